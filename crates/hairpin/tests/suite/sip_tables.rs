//! SIP aliases and routes in stores: SQLite, Redis, and a service over HTTP. PostgreSQL and MariaDB: `cargo xtask
//! stores`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use crate::common::controlled::eventually;
use crate::common::nodes::Redis;
use crate::common::sip::{SipConfig, SipServer};
use crate::common::{Serve, run, stdout};
use crate::sip_client::phone::Phone;
use sip::Method;

/// A server with SIP, and a trunk that is a socket of this test.
struct Server {
    serve: Serve,
    sip: SocketAddr,
    trunk: UdpSocket,
    folder: tempfile::TempDir,
}

impl Server {
    /// With these lines of `[server]`, and these at the end.
    fn start(server: &str, more: &str) -> Server {
        let trunk = UdpSocket::bind("127.0.0.2:0").expect("a port");
        let limit = Some(std::time::Duration::from_secs(60));
        trunk.set_read_timeout(limit).expect("an option");
        let to = format!("sip:{}", trunk.local_addr().expect("a port"));
        let SipServer { serve, sip, folder } = SipServer::start(&SipConfig {
            server: &format!("control_socket = \"off\"\n{server}\n"),
            domain: "aliases = [\"127.0.0.1\"]\n",
            users: &["ann", "bob"],
            more: &format!(
                "{more}[[sip.trunk]]\nname = \"carrier\"\nto = [\"{to}\"]\nprobe_interval = \"0s\"\n\
                 [[sip.route]]\nname = \"own\"\nprefixes = [\"+1\"]\nreject = \"403 Own\"\n"
            ),
            ..SipConfig::default()
        });
        Server {
            serve,
            sip,
            trunk,
            folder,
        }
    }

    /// How the server decides about a call of ann.
    fn explain(&self, to: &str) -> String {
        let api = format!("http://{}", self.serve.admin());
        let to = format!("sip:{to}@example.com");
        let args = [
            "sip",
            "route",
            "--api",
            &api,
            "--from",
            "sip:ann@example.com",
            "--to",
            &to,
        ];
        stdout(&run(&args))
    }

    /// Ann calls with another phone, which gets the responses to this call alone.
    fn call(&self, to: &str, call: &str) -> Phone {
        let mut ann = Phone::udp_at(self.sip, "ann");
        ann.ask(Method::Invite, &format!("sip:{to}@example.com"), call);
        ann
    }
}

/// The INVITE of this call. Those of other calls may come again.
fn invited(phone: &mut Phone, call: &str) -> String {
    let call = format!("\r\nCall-ID: {call}@test\r\n");
    for _ in 0..100 {
        let text = phone.receive();
        if text.starts_with("INVITE ") && text.contains(&call) {
            return text;
        }
    }
    panic!("no INVITE with {call}");
}

/// Runs SQL in a file.
fn sqlite(path: &std::path::Path, sql: &str) {
    let output = Command::new("sqlite3")
        .args(["-cmd", ".timeout 10000"])
        .arg(path)
        .arg(sql)
        .output();
    let output = output.expect("cargo xtask tools installs sqlite3");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sql}: {text}");
}

#[test]
fn calls_follow_the_tables_of_sqlite_while_the_server_runs() {
    let server = Server::start("state_dir = \"FOLDER/state\"", "");
    let path = server.folder.path().join("state/hairpin.db");
    let mut bob = Phone::udp_at(server.sip, "bob");
    bob.register();
    server.call("info", "before").expect("SIP/2.0 404");
    sqlite(
        &path,
        "INSERT INTO hairpin_sip_alias VALUES ('info@example.com', 'desk@example.com'), ('desk@127.0.0.1', 'bob@example.com'),
           ('+4930@example.com', '+43@example.com'), ('lost@example.com', 'ann@elsewhere.example'), ('self@example.com', 'self@example.com');
         INSERT INTO hairpin_sip_route (name, prefixes, trunks) VALUES ('out', '+43, +44', 'carrier'), ('wrong', '+45', 'nowhere');
         INSERT INTO hairpin_sip_route (name, prefixes, reject) VALUES ('own', '+1', '603 Store'), ('last', '+46', '480 Store');
         INSERT INTO hairpin_sip_route (name, prefixes, to_domain, \"replace\") VALUES ('direct', '+47', 'example.com', 'info');",
    );
    eventually("the alias applies", || {
        server
            .explain("info")
            .contains("info@example.com is an alias of bob@example.com")
    });
    let explained = server.explain("info");
    assert!(
        explained.contains("result       to the registered phones of bob@example.com"),
        "{explained}"
    );
    let _ann = server.call("info", "alias");
    let invite = invited(&mut bob, "alias");
    assert!(invite.starts_with("INVITE sip:bob@"), "{invite}");
    assert!(
        invite.contains("\r\nTo: <sip:info@example.com>"),
        "To stays: {invite}"
    );
    // A route to a user here leads to its alias, too.
    let _ann = server.call("+471", "direct");
    invited(&mut bob, "direct");
    // An alias of a number goes by the routes of the number.
    let _ann = server.call("+4930", "number");
    let mut buffer = [0; 4096];
    let (length, _) = server.trunk.recv_from(&mut buffer).expect("a request");
    let text = String::from_utf8_lossy(&buffer[..length]);
    assert!(text.starts_with("INVITE sip:+43@127.0.0.2:"), "{text}");
    // The configuration wins.
    server.call("+1234", "own").expect("SIP/2.0 403 Own");
    server.call("+4600", "last").expect("SIP/2.0 480 Store");
    sqlite(
        &path,
        "DELETE FROM hairpin_sip_alias; DELETE FROM hairpin_sip_route WHERE name = 'last'",
    );
    eventually("nothing of it applies", || {
        !server.explain("info").contains("is an alias of")
            && !server.explain("+4600").contains("`last`")
    });
    server.call("info", "after").expect("SIP/2.0 404");
    server.serve.signal("TERM");
    let (status, log) = server.serve.wait();
    assert!(status.success(), "{log}");
    for part in [
        "lost@example.com",
        "self@example.com",
        "there is no trunk `nowhere`",
        "the configuration or an earlier store has a route `own`",
    ] {
        let line = log
            .lines()
            .find(|line| line.contains("of a store is ignored") && line.contains(part));
        assert!(line.is_some(), "{part} is not in {log}");
    }
}

#[test]
fn the_keys_of_redis_apply_at_once() {
    let redis = Redis::start();
    redis.ask(&["config", "set", "notify-keyspace-events", "KA"]);
    redis.ask(&["hset", "sip/aliases", "info@example.com", "bob@example.com"]);
    let store = format!(
        "[[auth.stores]]\nurl = \"redis://127.0.0.1:{}\"\n",
        redis.port
    );
    let server = Server::start("", &store);
    assert!(
        server
            .explain("info")
            .contains("is an alias of bob@example.com")
    );
    redis.ask(&[
        "hset",
        "sip/route/out",
        "prefixes",
        "+43,+44",
        "trunks",
        "carrier",
        "priority",
        "5",
    ]);
    eventually("the route applies", || {
        server
            .explain("+4430")
            .contains("route `out` (prefix `+44`) matches")
    });
    redis.ask(&["del", "sip/aliases"]);
    eventually("the alias is gone", || {
        !server.explain("info").contains("is an alias of")
    });
}

#[test]
fn a_user_of_redis_without_permissions_keeps_the_store_up_and_the_log_says_so_once() {
    let redis = Redis::start();
    redis.ask(&["hset", "sip/aliases", "info@example.com", "bob@example.com"]);
    let rule = ["on", ">secret", "~turn/*", "resetchannels", "+@all"];
    redis.ask(&[&["acl", "setuser", "limited"], &rule[..]].concat());
    let store = format!(
        "[[auth.stores]]\nurl = \"redis://limited:secret@127.0.0.1:{}\"\n",
        redis.port
    );
    let server = Server::start("", &store);
    let metric = |name: &str| server.serve.metric(name, "store=\"1\"");
    eventually("the tables of SIP could not be read", || {
        metric("hairpin_store_sip_failures_total").is_some_and(|count| count >= 1.0)
    });
    assert_eq!(metric("hairpin_store_up"), Some(1.0));
    assert_eq!(metric("hairpin_store_sip_tables_current"), Some(0.0));
    // With the permission, they are read within half a minute.
    redis.ask(&["acl", "setuser", "limited", "~sip/*"]);
    eventually("the alias applies", || {
        server
            .explain("info")
            .contains("is an alias of bob@example.com")
    });
    assert_eq!(metric("hairpin_store_sip_tables_current"), Some(1.0));
    server.serve.signal("TERM");
    let (_, log) = server.serve.wait();
    for part in [
        "a store may not report changes of keys",
        "the SIP tables of a store cannot be read",
    ] {
        let lines = log.lines().filter(|line| line.contains(part));
        assert_eq!(lines.count(), 1, "{part}: {log}");
    }
}

/// A service that has tables of SIP, and no user.
fn service(tables: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, tables);
        }
    });
    address
}

fn answer(mut stream: TcpStream, tables: &str) {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains("\"username\":") {
        match stream.read(&mut part) {
            Ok(length @ 1..) => text.push_str(&String::from_utf8_lossy(&part[..length])),
            _ => return,
        }
    }
    let (status, body) = match text.contains("\"username\":\"\"") {
        true => ("200 OK", tables),
        false => ("404 Not Found", ""),
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

#[test]
fn a_service_over_http_has_tables_in_its_response_to_the_empty_name() {
    let address = service(
        r#"{"sip_aliases": {"info@example.com": "bob@example.com"},
            "sip_routes": [{"name": "out", "prefixes": ["+43", "+44"], "trunks": ["carrier"]}, {"name": "wrong"}]}"#,
    );
    let store = format!("[[auth.stores]]\nurl = \"http://{address}/users\"\n");
    let server = Server::start("", &store);
    eventually("the alias applies", || {
        server
            .explain("info")
            .contains("is an alias of bob@example.com")
    });
    let explained = server.explain("+4430");
    assert!(
        explained.contains("route `out` (prefix `+44`) matches"),
        "{explained}"
    );
    server.serve.signal("TERM");
    let (_, log) = server.serve.wait();
    assert!(
        log.contains("a SIP route of a store is ignored: the route leads nowhere"),
        "{log}"
    );
}
