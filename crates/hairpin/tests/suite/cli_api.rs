//! Commands with `--api`: over HTTPS they print what they print at the control socket, with the same status.

use std::process::Output;

use crate::common::api::{SECRET, TOKEN, TwoClients, config};
use crate::common::controlled::{eventually, free_port, is_alive, kill, may_load_programs};
use crate::common::{Serve, fails, file, hairpin, json, run, stderr, stdout};
use crate::sip_client::phone::{PASSWORD, Phone};

/// A server with a certificate, a control socket, a store and SIP.
struct Server {
    serve: Serve,
    folder: tempfile::TempDir,
    api: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with(
            "[sip]\nlisten = [\"127.0.0.1:0\"]\ntrace_memory = \"1MiB\"\ncall_log = true\n\
            [[sip.domain]]\nname = \"example.com\"\n[[sip.trunk]]\nname = \"carrier\"\nto = [\"sip:192.0.2.7:5060\"]\nprobe_interval = \"0s\"\n\
            [[sip.route]]\nprefixes = [\"+49\"]\ntrunks = [\"carrier\"]\n",
        )
    }

    fn start_with(more: &str) -> Self {
        let (folder, path) = file("");
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]);
        let made = made.expect("a certificate");
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(at(name), text).expect("it is written");
        write("cert.pem", &made.cert.pem());
        write("key.pem", &made.signing_key.serialize_pem());
        write("token", &format!("{TOKEN}\n"));
        let users = format!("users = [{{ name = \"user0\", password = {PASSWORD:?} }}]\n");
        let listen = "listen = \"127.0.0.1:0\"\n";
        let config = format!(
            "{}[listen]\nudp = [\"127.0.0.1:0\"]\ntls = []\ndtls = []\n\
             [relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n[offload]\nmode = \"off\"\n\
             [tls]\ncertificates = [{{ certificate = {:?}, key = {:?} }}]\n{more}",
            config(folder.path(), "example.com", [&users, listen]),
            at("cert.pem"),
            at("key.pem"),
        );
        std::fs::write(&path, config).expect("it is written");
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&path);
        let serve = Serve::start_command(command);
        let api = format!("https://{}", serve.admin());
        Self { serve, folder, api }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs a command at the control socket.
    fn local(&self, args: &[&str]) -> Output {
        run(&[args, &["--socket", &self.path("control.sock")]].concat())
    }

    /// Runs a command over the API, with the token and the certificate of the server.
    fn remote(&self, args: &[&str]) -> Output {
        let (token, ca) = (self.path("token"), self.path("cert.pem"));
        run(&[
            args,
            &["--api", &self.api, "--token-file", &token, "--ca", &ca],
        ]
        .concat())
    }

    /// Runs a command over the API that succeeds. Returns its output.
    fn done(&self, args: &[&str]) -> String {
        let output = self.remote(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Both ways print the same, with the same status. Returns what they print.
    fn same(&self, args: &[&str]) -> String {
        let (local, remote) = (self.local(args), self.remote(args));
        assert_eq!(stderr(&local), stderr(&remote), "{args:?}");
        assert_eq!(stdout(&local), stdout(&remote), "{args:?}");
        assert_eq!(local.status.code(), remote.status.code(), "{args:?}");
        stdout(&local)
    }
}

/// A status without what changes from one moment to the next.
fn lasting(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    let text = stdout(output);
    let is_lasting = |line: &&str| !line.starts_with("state ") && !line.starts_with("sip ");
    text.lines().filter(is_lasting).map(str::to_owned).collect()
}

#[test]
fn commands_print_the_same_over_https_as_at_the_socket() {
    let server = Server::start();
    let sip = server
        .serve
        .banner
        .lines()
        .find(|line| line.starts_with("sip "));
    let sip = sip.expect("SIP is served").split_whitespace();
    let sip = sip
        .filter_map(|word| word.trim_end_matches(':').parse().ok())
        .next();
    let mut phone = Phone::udp_at(sip.expect("an address"), "user0");
    phone.register();
    assert_eq!(
        lasting(&server.local(&["status"])),
        lasting(&server.remote(&["status"]))
    );
    for args in [
        &["sessions"][..],
        &["sessions", "--json", "--user", "nobody"],
        &["sessions", "kill", "0-1-2"],
        &["sessions", "kill", "--user", "nobody"],
        // Without a cluster, both are refused with the reason.
        &["nodes"],
        &["sip", "calls"],
        &["sip", "trunks"],
        &["sip", "trunks", "--json"],
        &["sip", "bindings", "--aor", "alice"],
        &["sip", "remove", "nobody@example.com"],
        &["sip", "trace", "nothing@test"],
        &["reload"],
    ] {
        server.same(args);
    }
    let bindings = server.done(&["sip", "bindings", "--aor", "user0@example.com"]);
    assert!(
        bindings.starts_with("user0@example.com  <sip:"),
        "{bindings}"
    );
    let call = format!("reg{}@test", phone.port());
    let ladder = server.same(&["sip", "trace", &call]);
    assert!(ladder.contains(" 200 OK (REGISTER) "), "{ladder}");
    server.same(&["sip", "trace", &call, "--json"]);
    let removed = server.done(&["sip", "remove", "user0@example.com"]);
    assert_eq!(removed, "1 binding removed\n");
    assert_eq!(server.same(&["sip", "bindings"]), "");
    decisions_are_the_same(&server);
    server.serve.signal("TERM");
    let (_, log) = server.serve.wait();
    for action in ["sip.binding.remove", "server.reload"] {
        let line = log
            .lines()
            .find(|line| line.contains(action) && line.contains("admin.tokens 1 at 127.0.0.1"));
        assert!(line.is_some(), "no audit line of {action}: {log}");
    }
}

/// `hairpin sip route` with the file of the server, and over the API.
fn decisions_are_the_same(server: &Server) {
    let config = server.path("hairpin.toml");
    let number = "sip:+49301@example.com";
    for (to, more) in [
        (number, &[][..]),
        (number, &["--json"]),
        (number, &["--method", "MESSAGE", "--header", "X-Tenant: 7"]),
        ("nonsense", &[]),
    ] {
        let call = [
            "sip",
            "route",
            "--from",
            "sip:user0@example.com",
            "--to",
            to,
        ];
        let local = run(&[&call, more, &["--config", &config]].concat());
        let remote = server.remote(&[&call, more].concat());
        assert_eq!(stdout(&local), stdout(&remote), "{to} {more:?}");
        assert_eq!(stderr(&local), stderr(&remote), "{to} {more:?}");
        assert_eq!(local.status.code(), remote.status.code(), "{to} {more:?}");
    }
}

#[test]
fn sessions_are_listed_and_ended_over_https() {
    let server = Server::start();
    let target = server.serve.address().to_string();
    let _load = TwoClients::start(&target);
    let ids = || -> Vec<String> {
        let text = server.done(&["sessions", "--json"]);
        let id = |line: &str| {
            let session: serde_json::Value = serde_json::from_str(line).expect("JSON");
            session["id"].as_str().expect("an ID").to_owned()
        };
        text.lines().map(id).collect()
    };
    eventually("two sessions", || ids().len() == 2);
    let id = ids().remove(0);
    assert_eq!(server.done(&["sessions", "kill", &id]), "1 session ended\n");
    fails(&server.remote(&["sessions", "kill", &id]), 1, "has ended");
    assert!(!ids().contains(&id));
}

#[test]
fn users_secrets_and_realms_of_a_server_elsewhere() {
    let server = Server::start();
    let config = server.path("hairpin.toml");
    let at_store = |args: &[&str]| run(&[args, &["--config", &config]].concat());
    let password = server.done(&["user", "add", "ann/1"]);
    assert!(
        password.len() > 20 && password.ends_with('\n'),
        "{password}"
    );
    let second = at_store(&["user", "add", "ann/1"]);
    let again = server.remote(&["user", "add", "ann/1"]);
    assert_eq!(stderr(&again), stderr(&second));
    assert_eq!(again.status.code(), second.status.code());
    fails(
        &server.remote(&["user", "passwd", "nobody"]),
        1,
        "has no user nobody",
    );
    std::fs::write(server.path("password"), "another\n").expect("it is written");
    assert_eq!(
        server.done(&[
            "user",
            "passwd",
            "ann/1",
            "--password-file",
            &server.path("password")
        ]),
        ""
    );
    let lines: String = (0..250)
        .map(|number| format!("user=user{number:03}:p{number}\n"))
        .collect();
    std::fs::write(server.path("users"), &lines).expect("it is written");
    let realm = ["--realm", "shop.example"];
    let imported = server.done(&[&["user", "import", &server.path("users")], &realm[..]].concat());
    assert_eq!(imported, "250 users imported\n");
    std::fs::write(server.path("wrong"), format!("{lines}user=broken\n")).expect("it is written");
    let wrong = server.remote(&["user", "import", &server.path("wrong")]);
    fails(&wrong, 1, "wrong:251: expected user=NAME:PASSWORD");
    fails(&wrong, 1, "no user was imported");
    for args in [
        &["user", "list"][..],
        &["user", "list", "--json"],
        &[
            "user",
            "list",
            "--realm",
            "shop.example",
            "--after",
            "user120",
            "--limit",
            "3",
        ],
    ] {
        let remote = server.done(args);
        assert_eq!(remote, stdout(&at_store(args)), "{args:?}");
        assert!(remote.contains("shop.example"), "{remote}");
    }
    assert_eq!(server.done(&["user", "list"]).lines().count(), 251);
    assert_eq!(server.done(&["user", "del", "ann/1"]), "");
    fails(
        &server.remote(&["user", "del", "ann/1"]),
        1,
        "has no user ann/1",
    );
    secrets_and_realms(&server);
}

fn secrets_and_realms(server: &Server) {
    let config = server.path("hairpin.toml");
    let at_store = |args: &[&str]| run(&[args, &["--config", &config]].concat());
    let secret = server.done(&["secret", "add"]);
    assert_eq!(server.done(&["secret", "list"]), secret);
    std::fs::write(server.path("secret"), &secret).expect("it is written");
    server.done(&["secret", "del", "--file", &server.path("secret")]);
    fails(
        &server.remote(&["secret", "del", "--file", &server.path("secret")]),
        1,
        "no such secret",
    );
    let set = [
        "realm",
        "set",
        "shop.example",
        "--origin",
        "https://shop.example",
        "--user-quota",
        "7",
    ];
    server.done(&set);
    let realms = server.done(&["realm", "list"]);
    assert_eq!(realms, stdout(&at_store(&["realm", "list"])));
    assert!(realms.contains("shop.example\tuser-quota=7\n"), "{realms}");
    server.done(&["realm", "del", "shop.example"]);
    fails(
        &server.remote(&["realm", "del", "shop.example"]),
        1,
        "no origins",
    );
}

#[test]
fn an_error_names_what_failed_and_what_to_do() {
    let server = Server::start_with("");
    let (token, ca) = (server.path("token"), server.path("cert.pem"));
    let status = |more: &[&str]| run(&[&["status"], more].concat());
    let with = |api: &str, token: &str, ca: &str| {
        status(&["--api", api, "--token-file", token, "--ca", ca])
    };
    std::fs::write(server.path("other"), "fedcba9876543210fedcba9876\n").expect("it is written");
    let other = server.path("other");
    fails(
        &with(&server.api, &other, &ca),
        1,
        &format!("refuses the token of {other} (401)"),
    );
    let change = run(&["drain", "--api", &server.api, "--ca", &ca]);
    fails(&change, 1, "requires a token (401): name a file");
    fails(
        &with(&server.api, "/nowhere/token", &ca),
        1,
        "cannot open the token file /nowhere/token",
    );
    // The certificate: its issuer, then its name.
    fails(
        &status(&["--api", &server.api, "--token-file", &token]),
        1,
        "by --ca",
    );
    let port = server.api.rsplit(':').next().expect("a port");
    let renamed = format!("https://localhost:{port}");
    fails(&with(&renamed, &token, &ca), 1, "use a name that it has");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let nobody = format!("https://{}", nobody.expect("a port"));
    fails(&with(&nobody, &token, &ca), 1, "nobody listens there");
    fails(&status(&["--api", "http://192.0.2.1:9641"]), 2, "use https");
    fails(
        &with(&format!("{}/elsewhere", server.api), &token, &ca),
        1,
        "not like the API of hairpin",
    );
    arguments_that_exclude_each_other(&server, [&token, &ca]);
}

fn arguments_that_exclude_each_other(server: &Server, [token, ca]: [&str; 2]) {
    let both = [
        "user",
        "list",
        "--api",
        &server.api,
        "--store",
        "sqlite:/nowhere/a.db",
    ];
    fails(&run(&both), 1, "use one of them");
    let both = ["drain", "--api", &server.api, "--socket", "/nowhere"];
    fails(&run(&both), 1, "use one of them");
    fails(
        &server.remote(&["reload", "--or-upgrade"]),
        1,
        "on the machine of the server",
    );
    fails(
        &server.remote(&["upgrade", "--program", "/bin/true"]),
        1,
        "--program names a file of this machine",
    );
    // Without SIP, a list is not empty but not there: as at the socket.
    let trunks = server.same(&["sip", "trunks"]);
    assert_eq!(trunks, "");
    fails(&server.remote(&["sip", "bindings"]), 1, "no SIP listener");
    assert_eq!(server.same(&["drain"]), "drained: nothing is left\n");
    assert_eq!(
        server.same(&["drain", "--wait", "--timeout", "60s"]),
        "drained: nothing is left\n"
    );
    server.same(&["drain", "--cancel"]);
    // Over HTTP on this machine, reading requires no token.
    let plain = server.api.replace("https", "http");
    let read = run(&["status", "--api", &plain]);
    assert_eq!(read.status.code(), Some(0), "{}", stderr(&read));
    let mut by_environment = hairpin(&["sessions", "--ca", ca]);
    by_environment
        .env("HAIRPIN_API", &server.api)
        .env("HAIRPIN_TOKEN_FILE", token);
    let listed = by_environment.output().expect("it runs");
    assert_eq!(
        (listed.status.code(), stdout(&listed)),
        (Some(0), String::new()),
        "{}",
        stderr(&listed)
    );
}

#[test]
fn a_server_is_upgraded_over_the_api() {
    if !may_load_programs() {
        return;
    }
    let (folder, _) = file("");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("token"), TOKEN).expect("it is written");
    let config = format!(
        "[server]\ncontrol_socket = {:?}\nworkers = 2\n[listen]\nudp = [\"127.0.0.1:{}\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n\
         [offload]\nmode = \"off\"\n[auth]\nsecrets = [{SECRET:?}]\n[admin]\nlisten = \"127.0.0.1:{}\"\ntokens = [{TOKEN:?}]\n",
        at("control.sock"),
        // The next process has the same ports.
        free_port(),
        free_port(),
    );
    std::fs::write(at("hairpin.toml"), config).expect("it is written");
    let mut command = hairpin(&["serve", "--config"]);
    command.arg(at("hairpin.toml"));
    let serve = Serve::start_command(command);
    let (api, token) = (
        format!("http://{}", serve.admin()),
        at("token").display().to_string(),
    );
    let remote = |args: &[&str]| run(&[args, &["--api", &api, "--token-file", &token]].concat());
    let before = u64::from(serve.id());
    // A configuration that the new process cannot use: the old one serves as before.
    let good = std::fs::read_to_string(at("hairpin.toml")).expect("it is there");
    std::fs::write(at("hairpin.toml"), format!("{good}nonsense = 1\n")).expect("it is written");
    let failed = remote(&["upgrade"]);
    fails(&failed, 1, "the new process has ended");
    fails(&failed, 1, &format!("process {before} serves as before"));
    assert_eq!(
        json(&remote(&["status", "--json"]))["upgrade"]["state"],
        "failed"
    );
    std::fs::write(at("hairpin.toml"), &good).expect("it is written");
    let upgraded = remote(&["upgrade"]);
    assert!(upgraded.status.success(), "{}", stderr(&upgraded));
    let status = json(&remote(&["status", "--json"]));
    let pid = status["pid"].as_u64().expect("a process");
    assert_ne!(pid, before);
    let said =
        format!("process {pid} serves; process {before} ends when its last client has gone\n");
    assert_eq!(stdout(&upgraded), said);
    let socket = at("control.sock").display().to_string();
    assert_eq!(
        json(&run(&["status", "--json", "--socket", &socket]))["pid"],
        pid
    );
    eventually("the end of the old process", || !is_alive(before));
    // Both write to one pipe.
    kill(pid, "-TERM");
    let (_, log) = serve.wait();
    assert!(log.contains("audit: server.upgrade"), "{log}");
}
