//! The API at the admin address: who may do what, and that each operation does it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::api::{CREDENTIAL_TOKEN, SECRET, TOKEN, TwoClients, config};
use crate::common::controlled::eventually;
use crate::common::{Serve, TEST_TIMEOUT, file, run, stderr, stdout};
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};

/// A server with both kinds of tokens and a store.
struct Api {
    serve: Serve,
    address: String,
    directory: tempfile::TempDir,
}

/// A response.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.body))
    }

    /// Asserts that it is a problem with this status, which says this.
    fn fails(&self, status: u16, part: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        assert!(
            self.head.contains("application/problem+json"),
            "{}",
            self.head
        );
        let problem = self.json();
        assert_eq!(problem["status"], status);
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(part), "`{part}` is not in: {detail}");
    }
}

impl Api {
    fn start() -> Self {
        let (directory, path) = file("");
        let socket = directory.path().join("control.sock");
        let admin = format!("credential_tokens = [{CREDENTIAL_TOKEN:?}]\n");
        let config = config(directory.path(), "api.example", ["", &admin]);
        std::fs::write(&path, config).expect("a file can be written");
        let set = format!("server.control_socket={}", socket.display());
        let more = ["--dev", "--admin", "127.0.0.1:0", "--set", &set];
        let serve = Serve::local(&path, &more);
        let url = serve.admin().to_owned();
        Self {
            serve,
            address: url,
            directory,
        }
    }

    /// Runs a command at the control socket of this server.
    fn run(&self, args: &[&str]) -> std::process::Output {
        let socket = self.directory.path().join("control.sock");
        let at = ["--socket", socket.to_str().expect("UTF-8")];
        run(&[args, &at].concat())
    }

    fn say(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout can be set");
        stream.write_all(request.as_bytes()).expect("it leaves");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a complete answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Answer {
            status: status.expect("a status"),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// A request with these header fields.
    fn with(&self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        self.say(&format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    /// A request without a token.
    fn read(&self, path: &str) -> Answer {
        self.with("GET", path, "", "")
    }

    /// A request with the token.
    fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let kind = "Content-Type: application/json\r\n";
        let fields = format!("Authorization: Bearer {TOKEN}\r\n{kind}");
        self.with(
            method,
            path,
            &fields,
            &body.map_or_else(String::new, |body| body.to_string()),
        )
    }

    /// The same, if it has to succeed.
    fn result(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let answer = self.call(method, path, body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.json()
    }
}

#[test]
fn a_client_on_this_machine_can_read_and_nobody_can_change_without_a_token() {
    let api = Api::start();
    assert_eq!(api.read("/status").json()["state"], "serving");
    for path in [
        "/history",
        "/failures",
        "/configuration",
        "/sessions",
        "/sip/bindings",
        "/sip/calls",
        "/sip/trunks",
    ] {
        assert_eq!(api.read(path).status, 200, "{path}");
    }
    for (method, path) in [
        ("POST", "/reload"),
        ("POST", "/drain"),
        ("DELETE", "/sessions/0-0-0"),
        ("DELETE", "/sip/bindings?aor=a@b.example"),
        ("GET", "/users"),
        ("GET", "/secrets"),
        ("GET", "/ice-servers"),
    ] {
        api.with(method, path, "", "")
            .fails(401, "a token is required");
    }
    let wrong = "Authorization: Bearer 00000000000000000000\r\n";
    api.with("GET", "/status", wrong, "")
        .fails(401, "not in admin.tokens");
    let basic = format!("Authorization: Basic {TOKEN}\r\n");
    api.with("POST", "/drain", &basic, "")
        .fails(401, "not in admin.tokens");
    let credentials = format!("Authorization: Bearer {CREDENTIAL_TOKEN}\r\n");
    api.with("POST", "/drain", &credentials, "")
        .fails(403, "ice-servers only");
    assert_eq!(api.read("/status").json()["state"], "serving");
}

#[test]
fn a_page_of_another_site_gets_nothing() {
    let api = Api::start();
    let cross = "Sec-Fetch-Site: cross-site\r\n";
    api.with("GET", "/status", cross, "")
        .fails(403, "other sites");
    let rebound = "GET /api/v1/status HTTP/1.1\r\nHost: evil.example:9641\r\n\r\n";
    api.say(rebound).fails(401, "a token is required");
    // A proxy on this machine has clients elsewhere.
    let proxied = "X-Forwarded-For: 192.0.2.1\r\n";
    api.with("GET", "/status", proxied, "")
        .fails(401, "a token is required");
    let form = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: text/plain\r\n");
    api.with("PUT", "/users/ann", &form, "{}")
        .fails(415, "application/json");
    let page = api.say(&format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", api.address));
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'"),
        "{}",
        page.head
    );
    assert!(!page.body.contains("style=") && !page.body.contains("onclick"));
}

#[test]
fn invalid_requests_get_a_problem_document() {
    let api = Api::start();
    api.read("/nothing").fails(404, "openapi.json");
    let other = api.call("PUT", "/drain", None);
    other.fails(405, "POST, DELETE");
    assert!(other.head.contains("allow: POST, DELETE"), "{}", other.head);
    api.read("/sessions?user=a&colour=red")
        .fails(400, "unknown parameter colour");
    api.read("/sessions?limit=0").fails(400, "from 1 to 1000");
    api.read("/sessions?peer=here").fails(400, "IP address");
    api.call("DELETE", "/sessions/none", None)
        .fails(400, "0-17-3");
    api.call("DELETE", "/sessions/0-9-9", None)
        .fails(404, "has ended");
    let body = Some(json!({ "pass": "word" }));
    api.call("PUT", "/users/ann", body)
        .fails(400, "unknown field `pass`");
}

/// Every operation of the document exists, and every route is in the document.
#[test]
fn the_document_describes_each_route() {
    let api = Api::start();
    let document = api.read("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
    let mut count = 0;
    for (path, item) in paths {
        let real = path.strip_prefix("/api/v1").expect("all are below it");
        let real = real.replace("{name}", "x").replace("{id}", "x");
        for method in methods {
            // Without a token, nothing is changed and each route says that it is there.
            let there = api.with(method, &real, "Sec-Fetch-Site: cross-site\r\n", "");
            let documented = item.get(method.to_lowercase());
            let expected = if documented.is_some() { 403 } else { 405 };
            assert_eq!(there.status, expected, "{method} {path}");
            let Some(operation) = documented else {
                continue;
            };
            count += 1;
            let is_whole = operation["summary"].is_string()
                && operation["responses"]["200"]["description"].is_string()
                && operation["security"].is_array();
            assert!(is_whole, "{method} {path}");
            let has_name = operation["parameters"]
                .to_string()
                .contains("\"in\":\"path\"");
            assert_eq!(has_name, path.contains('{'), "{method} {path}");
        }
    }
    assert!(count >= 20, "{count}");
    let page = include_str!("../../../../docs/api.md");
    for path in paths.keys() {
        assert!(
            page.contains(&format!("`{path}`")),
            "{path} is not in docs/api.md"
        );
    }
}

#[test]
fn credentials_of_the_api_work() {
    let api = Api::start();
    let path = format!("/ice-servers?service=turn&username=bob&ttl=600&key={CREDENTIAL_TOKEN}");
    let answer = api.read(&path);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let made = answer.json();
    assert_eq!(made["ttl"], 600);
    let name = made["username"].as_str().expect("a name");
    assert!(name.ends_with(":bob"), "{name}");
    assert_eq!(made["iceServers"][0]["credential"], made["password"]);
    assert!(
        made["uris"][0]
            .as_str()
            .is_some_and(|uri| uri.starts_with("turn:127.0.0.1:"))
    );
    // draft-uberti-behave-turn-rest-00 §2.2: the password is the HMAC of the user name.
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(SECRET.as_bytes()).expect("any length");
    mac.update(name.as_bytes());
    let password = base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
    assert_eq!(made["password"], password);
    api.read(&format!("/ice-servers?service=mail&key={CREDENTIAL_TOKEN}"))
        .fails(400, "service mail is unknown");
    api.read(&format!("/ice-servers?ttl=9&key={CREDENTIAL_TOKEN}"))
        .fails(400, "from 60 to 86400");
    let limited = (0..200)
        .map(|_| api.read(&path).status)
        .find(|status| *status != 200);
    assert!(limited.is_none_or(|status| status == 429), "{limited:?}");
}

#[test]
fn users_secrets_and_realms_of_the_store_can_be_changed() {
    let api = Api::start();
    let made = api.result("PUT", "/users/ann", None);
    assert_eq!(made["is_new"], true);
    let password = made["password"].as_str().expect("a password").to_owned();
    let (target, user) = (api.serve.address().to_string(), format!("ann:{password}"));
    // Changes of a store apply within about a second.
    let start = Instant::now();
    loop {
        let probe = run(&["probe", "turn", &target, "--user", &user]);
        if probe.status.success() {
            break;
        }
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "{}{}",
            stdout(&probe),
            stderr(&probe)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let given = Some(json!({ "password": "another one" }));
    assert_eq!(api.result("PUT", "/users/ann", given)["is_new"], false);
    for name in ["bob", "cid"] {
        api.result("PUT", &format!("/users/{name}"), None);
    }
    let first = api.result("GET", "/users?realm=api.example&limit=2", None);
    assert_eq!(first["next"], "bob");
    let second = api.result("GET", "/users?realm=api.example&limit=2&after=bob", None);
    assert_eq!(
        (&second["users"][0]["name"], &second["next"]),
        (&json!("cid"), &Value::Null)
    );
    api.result("DELETE", "/users/ann", None);
    api.call("DELETE", "/users/ann", None)
        .fails(404, "no user ann");
    let secret = api.result("POST", "/secrets?realm=shop.example", None);
    let listed = api.result("GET", "/secrets?realm=shop.example", None);
    assert_eq!(listed["secrets"][0], secret["secret"]);
    api.result(
        "DELETE",
        "/secrets?realm=shop.example",
        Some(secret.clone()),
    );
    api.call("DELETE", "/secrets?realm=shop.example", Some(secret))
        .fails(404, "no such secret");
    let limits = json!({ "origins": ["https://shop.example"], "user_quota": 7 });
    api.result("PATCH", "/realms/shop.example", Some(limits));
    let realms = api.result("GET", "/realms", None);
    assert_eq!(realms["realms"][0]["name"], "shop.example");
    assert_eq!(realms["realms"][0]["user_quota"], 7);
    api.result("DELETE", "/realms/shop.example", None);
    api.call("DELETE", "/realms/shop.example", None)
        .fails(404, "no origins");
}

#[test]
fn a_session_is_found_and_ended_and_the_log_says_by_whom() {
    let api = Api::start();
    let target = api.serve.address().to_string();
    let load = TwoClients::start(&target);
    let start = Instant::now();
    let sessions = loop {
        let page = api.result("GET", "/sessions?limit=1&peer=127.0.0.1", None);
        if page["next"].is_string() && page["sessions"][0]["to_peers"]["bytes"] != 0 {
            break page;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let session = &sessions["sessions"][0];
    assert_eq!(session["realm"], "api.example");
    assert_eq!(session["transport"], "udp");
    assert_eq!(
        api.result("GET", "/sessions?user=nobody", None)["sessions"],
        json!([])
    );
    let id = session["id"].as_str().expect("an id").to_owned();
    api.result("DELETE", &format!("/sessions/{id}"), None);
    the_command_lists_and_ends_the_other_session(&api);
    let left = api.result("GET", "/sessions", None);
    assert!(
        !left["sessions"].to_string().contains(&format!("\"{id}\"")),
        "{left}"
    );
    drop(load);
    api.result("POST", "/drain", None);
    assert_eq!(api.read("/status").json()["state"], "draining");
    api.result("DELETE", "/drain", None);
    assert_eq!(api.read("/status").json()["state"], "serving");
    api.result("POST", "/reload", None);
    api.serve.signal("TERM");
    let (_, log) = api.serve.wait();
    for line in [
        format!("audit: session.end session=\\\"{id}\\\""),
        "audit: server.drain outcome=\\\"ok\\\" by=\\\"admin.tokens 1 at 127.0.0.1\\\"".to_owned(),
        "audit: server.reload".to_owned(),
        "by=\\\"control socket, user ID ".to_owned(),
    ] {
        assert!(log.contains(&line), "{line} is not in {log}");
    }
    assert!(log.contains("\"reason\":\"operator\""), "{log}");
}

/// A session of the load, by `hairpin sessions`.
fn the_command_lists_and_ends_the_other_session(api: &Api) {
    let listed = api.run(&["sessions", "--json", "--peer", "127.0.0.1"]);
    let text = stdout(&listed);
    let sessions = text.lines().map(serde_json::from_str::<Value>);
    let sessions: Vec<_> = sessions.map(|it| it.expect("JSON")).collect();
    let session = sessions.first().expect("the load has another session");
    let name = session["user"].as_str().expect("a user");
    assert_eq!(session["realm"], "api.example", "{text}");
    let shown = stdout(&api.run(&["sessions", "--user", name, "--limit", "1"]));
    assert!(
        shown.lines().count() == 1 && shown.contains(" B to peers, "),
        "{shown}"
    );
    // Only whole names are ended.
    let half = &name[..name.len() - 1];
    let nobody = api.run(&["sessions", "kill", "--user", half]);
    assert_eq!(stdout(&nobody), "0 sessions ended\n");
    assert_eq!(nobody.status.code(), Some(1));
    let killed = api.run(&["sessions", "kill", "--user", name]);
    assert!(stdout(&killed).ends_with(" ended\n"), "{}", stderr(&killed));
    assert_eq!(killed.status.code(), Some(0));
    let id = session["id"].as_str().expect("an ID");
    let again = api.run(&["sessions", "kill", id]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("has ended"), "{}", stderr(&again));
}

#[test]
fn samples_come_as_events() {
    let api = Api::start();
    let mut stream = TcpStream::connect(&api.address).expect("it listens");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    write!(
        stream,
        "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n\r\n",
        api.address
    )
    .expect("it leaves");
    let start = Instant::now();
    let lines = BufReader::new(stream)
        .lines()
        .map(|line| line.expect("a line"));
    let rows = lines.filter_map(|line| {
        let row = line.strip_prefix("data: ")?.to_owned();
        Some(serde_json::from_str::<Value>(&row).expect("JSON"))
    });
    // Longer than any other response may last.
    let rows: Vec<Value> = rows.take(6).collect();
    assert!(
        start.elapsed() > Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let history = api.read("/history").json();
    let columns = history["columns"].as_array().expect("columns");
    assert!(
        rows.iter()
            .all(|row| row.as_array().map(Vec::len) == Some(columns.len()))
    );
    let kept = history["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| kept.contains(row)));
}

#[test]
fn the_configuration_says_where_each_value_comes_from_and_shows_no_secret() {
    let api = Api::start();
    let answer = api.read("/configuration");
    for secret in [TOKEN, CREDENTIAL_TOKEN, SECRET] {
        assert!(!answer.body.contains(secret));
    }
    let keys = answer.json()["keys"].clone();
    let of = |name: &str| {
        let keys = keys.as_array().expect("keys").iter();
        keys.clone()
            .find(|key| key["key"] == name)
            .expect("a key")
            .clone()
    };
    assert_eq!(of("auth.realm")["value"], "\"api.example\"");
    assert!(
        of("auth.realm")["origin"]
            .as_str()
            .is_some_and(|at| at.ends_with("hairpin.toml:6:9"))
    );
    assert_eq!(
        of("relay.addresses")["origin"],
        "command line --relay-address"
    );
    assert_eq!(
        (&of("sip.t1")["is_default"], &of("sip.t1")["is_live"]),
        (&json!(true), &json!(false))
    );
}

/// Another process that writes into the file of a store, and does not end.
struct Writer(Child);

impl Writer {
    fn begin(path: &Path) -> Self {
        let mut command = Command::new("sqlite3");
        command.args(["-cmd", ".timeout 10000"]).arg(path);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut writer = Self(process.spawn().expect("cargo xtask tools installs sqlite3"));
        let said = "BEGIN IMMEDIATE;\n.shell echo begun\n";
        let input = writer.0.stdin.as_mut().expect("a pipe");
        input.write_all(said.as_bytes()).expect("it reads");
        let output = writer.0.stdout.as_mut().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "begun\n");
        writer
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins to add a user while the store waits for another process. Returns whether the server has ended the connection
/// of the client before there was a response.
fn add_and_be_cut_off(api: &Api, name: &str) -> bool {
    let writer = Writer::begin(&api.directory.path().join("state/hairpin.db"));
    let mut client = TcpStream::connect(&api.address).expect("it listens");
    let request = format!(
        "PUT /api/v1/users/{name} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n",
        api.address
    );
    client.write_all(request.as_bytes()).expect("it leaves");
    // The server has begun the first request when it responds to the second one.
    assert_eq!(api.read("/status").status, 200);
    // One connection too many closes the oldest.
    let connect = |_| TcpStream::connect(&api.address).expect("it listens");
    let others: Vec<TcpStream> = (0..40).map(connect).collect();
    client
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    let mut response = Vec::new();
    let _ = client.read_to_end(&mut response);
    drop((writer, others));
    response.is_empty()
}

#[test]
fn a_change_whose_client_is_gone_is_made_and_has_its_audit_line() {
    let api = Api::start();
    api.result("PUT", "/users/ann", None);
    // A busy machine can be so slow that the store gives up first.
    let mut names = (0..20).map(|number| format!("bob{number}"));
    let name = names.find(|name| add_and_be_cut_off(&api, name));
    let name = name.expect("the connection ends before the change");
    eventually("the change is made", || {
        let users = api.call("GET", "/users?limit=1000", None);
        users.status == 200 && users.body.contains(&format!("\"{name}\""))
    });
    api.serve.signal("TERM");
    let (_, log) = api.serve.wait();
    let lines = log.lines().filter(|line| line.contains("audit: user.add"));
    let of_it = lines.filter(|line| line.contains(&format!("\\\"{name}\\\"")));
    assert_eq!(of_it.count(), 1, "{log}");
}
