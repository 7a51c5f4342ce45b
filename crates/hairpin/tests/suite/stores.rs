//! Users in stores that need no other program: SQLite, a file, a service over HTTP. Real databases:
//! `cargo xtask stores`.

use crate::common::service::{ERROR, GORST, NEVER, Service};
use crate::common::{Serve, fails, file, json, run, stderr, stdout};
use sip::build::Builder;
use sip::digest::{DigestResponse, choose};
use sip::{HeaderKind, Message, Method, Spans};
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

fn config(realm: &str, url: &str, more: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    file(&format!(
        "[auth]\nrealm = \"{realm}\"\n[[auth.stores]]\nurl = \"{url}\"\nttl = \"1s\"\nttl_unknown = \"1s\"\n{more}"
    ))
}

fn serve(config: &Path, more: &[&str]) -> Serve {
    Serve::local(config, &[&["--dev", "--workers", "2"], more].concat())
}

fn probe(server: &Serve, user: &str) -> std::process::Output {
    let target = server.address().to_string();
    run(&["probe", "turn", &target, "--timeout", "8s", "--user", user])
}

fn works(server: &Serve, user: &str) {
    let output = probe(server, user);
    assert!(
        output.status.success(),
        "{user}: {}{}",
        stdout(&output),
        stderr(&output)
    );
}

fn soon(server: &Serve, user: &str, wanted: bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while probe(server, user).status.success() != wanted {
        assert!(Instant::now() < deadline, "{user}: not {wanted}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_server_with_a_state_directory_has_users_that_are_added_while_it_runs() {
    let state = tempfile::tempdir().expect("a directory");
    let text = format!(
        "[server]\nstate_dir = \"{}\"\n[auth]\nrealm = \"north.gov\"\n",
        state.path().display()
    );
    let (_directory, config) = file(&text);
    let server = serve(&config, &[]);
    let config = config.display().to_string();
    let verb = |args: &[&str]| run(&[args, &["--config", &config]].concat());
    let added = verb(&["user", "add", "alice"]);
    assert!(added.status.success(), "{}", stderr(&added));
    assert!(
        stderr(&added)
            .starts_with("audit: user.add store=\"sqlite\" realm=\"north.gov\" user=\"alice\"")
    );
    let password = stdout(&added).trim().to_owned();
    soon(&server, &format!("alice:{password}"), true);
    fails(&verb(&["user", "add", "alice"]), 1, "has a user alice");
    fails(&verb(&["user", "passwd", "bob"]), 1, "has no user bob");

    let (_import, users) = file(&format!("gorst:north.gov:{GORST}\nuser=bob:builder\n"));
    let users = users.display().to_string();
    let imported = verb(&["user", "import", &users]);
    assert_eq!(
        stdout(&imported),
        "2 users imported\n",
        "{}",
        stderr(&imported)
    );
    soon(&server, "gorst:hero", true);
    works(&server, "bob:builder");
    assert_eq!(
        stdout(&verb(&["user", "list"])),
        "north.gov\talice\nnorth.gov\tbob\nnorth.gov\tgorst\n"
    );
    let page = json(&verb(&[
        "user",
        "list",
        "--realm",
        "north.gov",
        "--after",
        "alice",
        "--limit",
        "1",
        "--json",
    ]));
    assert_eq!(
        page,
        serde_json::json!([{ "realm": "north.gov", "name": "bob" }])
    );

    let changed = verb(&["user", "passwd", "alice"]);
    soon(&server, &format!("alice:{}", stdout(&changed).trim()), true);
    soon(&server, &format!("alice:{password}"), false);
    assert!(verb(&["user", "del", "gorst"]).status.success());
    soon(&server, "gorst:hero", false);
    fails(&verb(&["user", "del", "gorst"]), 1, "has no user gorst");

    let secret = stdout(&verb(&["secret", "add"])).trim().to_owned();
    assert_eq!(stdout(&verb(&["secret", "list"])).trim(), secret);
    let target = server.address().to_string();
    let deadline = Instant::now() + Duration::from_secs(15);
    while !run(&["probe", "turn", &target, "--secret", &secret])
        .status
        .success()
    {
        assert!(Instant::now() < deadline, "the secret is not used");
    }
}

#[test]
fn a_file_of_htdigest_is_read_again_when_it_changes() {
    let (_users, users) = file(&format!("gorst:north.gov:{GORST}\n"));
    let (_config, config) = config("north.gov", &format!("file:{}", users.display()), "");
    let server = serve(&config, &[]);
    works(&server, "gorst:hero");
    std::fs::write(&users, "# nobody\n").expect("it can be written");
    soon(&server, "gorst:hero", false);
    let args = [
        "user",
        "add",
        "eve",
        "--config",
        &config.display().to_string(),
        "--store",
        &format!("file:{}", users.display()),
    ];
    fails(&run(&args), 1, "a file store cannot be changed");
}

#[test]
fn a_service_that_is_slow_or_silent_delays_nobody_whom_the_cache_knows() {
    let service = Service::start();
    let (_config, config) = config("north.gov", &format!("http://{}/user", service.address), "");
    let server = serve(&config, &["--set", "admin.listen=127.0.0.1:0"]);
    works(&server, "gorst:hero");
    assert!(!probe(&server, "eve:hero").status.success());
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200"));

    // A second and a half: the client waits, retransmits, and gets its allocation.
    service.set(1_500);
    std::thread::sleep(Duration::from_millis(1_100));
    let begun = Instant::now();
    works(&server, "gorst:hero");
    assert!(
        begun.elapsed() >= Duration::from_millis(1_400),
        "the cache was used"
    );
    let queries = server.metric("hairpin_store_queries_total", "store=\"1\"");

    let banner = server.banner().to_owned();
    let tcp = banner
        .lines()
        .find_map(|line| line.strip_prefix("listening")?.trim().strip_prefix("tcp "));
    let tcp = tcp.and_then(|rest| rest.split_whitespace().next());
    let tcp = tcp.expect("a TCP listener");
    // Never: after three queries the store is down.
    service.set(NEVER);
    std::thread::sleep(Duration::from_millis(1_100));
    // Over UDP, a client by the RFC ignores an error without integrity (RFC 8489 §9.2.5), and tries again.
    let target = format!("turn:{tcp}?transport=tcp");
    let wrong = |user: &str, code: &str| {
        let output = run(&["probe", "turn", &target, "--user", user]);
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains(code), "{user}: {said}");
    };
    for name in ["a", "b", "c"] {
        wrong(&format!("{name}:x"), "500");
    }
    // Nor does the code tell that the cache has this user.
    wrong("gorst:x", "500");
    assert!(server.metric("hairpin_store_queries_total", "store=\"1\"") > queries);
    let ready = server.get("/readyz");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("store 1 (http) does not answer"),
        "{ready}"
    );
    assert_eq!(server.metric("hairpin_store_up", ""), Some(0.0));
    let begun = Instant::now();
    works(&server, "gorst:hero");
    let taken = begun.elapsed();
    assert!(
        taken < Duration::from_millis(1_500),
        "the cache was not used: {taken:?}"
    );

    // It stays down, because it is asked whether it answers.
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(server.get("/readyz").starts_with("HTTP/1.1 503"));
    service.set(0);
    let deadline = Instant::now() + Duration::from_secs(45);
    while !server.get("/readyz").starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < deadline, "it is not ready again");
        std::thread::sleep(Duration::from_millis(100));
    }
    wrong("gorst:x", "401");
}

/// Configuration of SIP for users of north.gov.
const SIP: &str = "[sip]\nlisten = [\"127.0.0.1:0\"]\n[[sip.domain]]\nname = \"north.gov\"\n";

/// A phone over UDP.
struct Phone {
    socket: UdpSocket,
    count: u32,
}

impl Phone {
    fn new(server: &Serve) -> Self {
        Self::at(server, "127.0.0.1")
    }

    /// At this address of this host.
    fn at(server: &Serve, ip: &str) -> Self {
        let (_, uri) = server.value("sip").split_once("sip:").expect("a URI");
        let address = uri.split([';', ' ']).next().expect("an address");
        let socket = UdpSocket::bind((ip, 0)).expect("a port");
        socket.connect(address).expect("an address");
        let most = Some(Duration::from_secs(10));
        socket.set_read_timeout(most).expect("a time");
        Self { socket, count: 0 }
    }

    fn uri(&self, method: &str) -> &'static str {
        match method {
            "MESSAGE" => "sip:friend@north.gov",
            _ => "sip:north.gov",
        }
    }

    /// The final response to a request.
    fn ask(&mut self, method: &str, user: &str, line: &str) -> String {
        self.count += 1;
        let uri = self.uri(method);
        let (count, local) = (self.count, self.socket.local_addr().expect("it is bound"));
        let port = local.port();
        let text = format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {local};rport;branch=z9hG4bK{port}x{count}\r\n\
             From: <sip:{user}@north.gov>;tag=1\r\nTo: <sip:{user}@north.gov>\r\nCall-ID: {port}\r\n\
             CSeq: {count} {method}\r\nMax-Forwards: 70\r\nContact: <sip:{user}@{local}>\r\n{line}\
             Content-Length: 0\r\n\r\n"
        );
        self.socket.send(text.as_bytes()).expect("it is sent");
        let mut buffer = [0; 4096];
        let len = self.socket.recv(&mut buffer).expect("a response");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    /// The response to a REGISTER with credentials.
    fn register(&mut self, user: &str, password: &str) -> String {
        self.authenticate("REGISTER", user, password)
    }

    /// The response to a request with credentials.
    fn authenticate(&mut self, method: &str, user: &str, password: &str) -> String {
        let challenge = self.ask(method, user, "");
        let mut spans = Spans::new();
        let message = Message::parse(challenge.as_bytes(), &mut spans).expect("a response");
        let (method_of, challenges, credentials) = match method {
            "REGISTER" => (
                Method::Register,
                HeaderKind::WwwAuthenticate,
                HeaderKind::Authorization,
            ),
            _ => (
                Method::Message,
                HeaderKind::ProxyAuthenticate,
                HeaderKind::ProxyAuthorization,
            ),
        };
        let challenge = choose(&message, challenges).expect("a challenge");
        let answer = DigestResponse {
            challenge: &challenge,
            username: user.as_bytes(),
            ha1: &challenge.ha1(user.as_bytes(), password.as_bytes()),
            method: method_of,
            uri: self.uri(method).as_bytes(),
            body: b"",
            count: 1,
            cnonce: b"c1",
        };
        let mut buffer = [0; 2048];
        let mut line = Builder::fields(&mut buffer);
        answer.write(&mut line, credentials);
        let line = line.finish_fields().expect("room");
        let line = String::from_utf8_lossy(line).into_owned();
        self.ask(method, user, &line)
    }
}

fn registers(server: &Serve, user: &str, password: &str, code: &str) {
    let answer = Phone::new(server).register(user, password);
    let start = format!("SIP/2.0 {code} ");
    assert!(answer.starts_with(&start), "{user}: {answer}");
}

#[test]
fn phones_register_with_users_of_sqlite() {
    let state = tempfile::tempdir().expect("a directory");
    let text = format!(
        "[server]\nstate_dir = \"{}\"\n[auth]\nrealm = \"north.gov\"\n{SIP}",
        state.path().display()
    );
    let (_directory, config) = file(&text);
    let server = serve(&config, &[]);
    registers(&server, "alice", "x", "401");
    let config = config.display().to_string();
    let verb = |args: &[&str]| run(&[args, &["--config", &config]].concat());
    let added = verb(&["user", "add", "alice"]);
    let password = stdout(&added).trim().to_owned();
    soon(&server, &format!("alice:{password}"), true);
    registers(&server, "alice", &password, "200");
    registers(&server, "alice", "wrong", "401");
    registers(&server, "nobody", "wrong", "401");
    assert!(verb(&["user", "del", "alice"]).status.success());
    soon(&server, &format!("alice:{password}"), false);
    registers(&server, "alice", &password, "401");
}

#[test]
fn phones_wait_for_a_slow_service_and_others_do_not() {
    let service = Service::start();
    let url = format!("http://{}/user", service.address);
    let more = format!("timeout = \"4s\"\n{SIP}");
    let (_config, config) = config("north.gov", &url, &more);
    let server = serve(&config, &[]);
    registers(&server, "gorst", "hero", "200");
    registers(&server, "eve", "hero", "401");
    // The cache forgets within a second.
    std::thread::sleep(Duration::from_millis(1_100));
    service.set(2_000);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            let begun = Instant::now();
            registers(&server, "gorst", "hero", "200");
            begun.elapsed()
        });
        let mut phone = Phone::new(&server);
        let mut worst = Duration::ZERO;
        for _ in 0..100 {
            let begun = Instant::now();
            let answer = phone.ask("OPTIONS", "x", "");
            assert!(answer.starts_with("SIP/2.0 200"), "{answer}");
            worst = worst.max(begun.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(worst < Duration::from_secs(1), "{worst:?}");
        let slow = slow.join().expect("it registers");
        assert!(slow >= Duration::from_millis(1_900), "{slow:?}");
    });
    for delay in [NEVER, ERROR] {
        std::thread::sleep(Duration::from_millis(1_100));
        service.set(delay);
        let answer = Phone::new(&server).register("bob", "x");
        let is_503 = answer.starts_with("SIP/2.0 503") && answer.contains("\r\nRetry-After: 5\r\n");
        assert!(is_503, "{answer}");
    }
}

/// What a sender sees of a response: its code, its Retry-After, and whether it has a challenge.
fn seen(response: &str) -> (String, Option<String>, bool) {
    let code = response.split(' ').nth(1).expect("a code").to_owned();
    let mut lines = response.lines();
    let retry_after = lines.find_map(|line| line.strip_prefix("Retry-After: "));
    let has_challenge = response.contains("\r\nWWW-Authenticate: ")
        || response.contains("\r\nProxy-Authenticate: ");
    (code, retry_after.map(str::to_owned), has_challenge)
}

#[test]
fn a_store_that_is_down_does_not_tell_by_its_codes_who_is_a_user_rfc3261_22() {
    let service = Service::start();
    let (_config, config) = file(&format!(
        "[auth]\nrealm = \"north.gov\"\nusers = [{{ name = \"local\", password = \"secret\" }}]\n[[auth.stores]]\nurl = \"http://{}/user\"\nttl = \"1h\"\nttl_unknown = \"10m\"\n{SIP}",
        service.address
    ));
    let server = serve(&config, &[]);
    let mut phone = Phone::new(&server);
    let names = ["gorst", "eve", "local", "bob"];
    registers(&server, "gorst", "hero", "200");
    // The store has MD5 keys only, so the realm offers only MD5. The user of the configuration has a key for it.
    registers(&server, "local", "secret", "200");
    let denied = ("401".to_owned(), None, true);
    for name in ["gorst", "eve", "local"] {
        assert_eq!(seen(&phone.register(name, "wrong")), denied, "{name}");
    }
    let unavailable = ("503".to_owned(), Some("5".to_owned()), false);
    // A query that the store rejects concerns one name, and does not change what others get.
    service.set(ERROR);
    assert_eq!(seen(&phone.register("odd", "wrong")), unavailable);
    assert_eq!(seen(&phone.register("gorst", "wrong")), denied);
    service.set(NEVER);
    assert_eq!(seen(&phone.register("bob", "wrong")), unavailable);
    // More often than the limit of wrong passwords: that response is the same as well.
    for _ in 0..6 {
        for name in names {
            assert_eq!(seen(&phone.register(name, "wrong")), unavailable, "{name}");
            let sent = phone.authenticate("MESSAGE", name, "wrong");
            assert_eq!(seen(&sent), unavailable, "{name}");
        }
    }
    for name in names {
        let challenged = phone.ask("REGISTER", name, "");
        assert_eq!(seen(&challenged), denied, "{name}");
    }
    // Whoever has the right password and has not guessed is served by the cache.
    let mut elsewhere = Phone::at(&server, "127.0.0.9");
    let response = elsewhere.register("gorst", "hero");
    assert!(response.starts_with("SIP/2.0 200 "), "{response}");
    let response = elsewhere.register("local", "secret");
    assert!(response.starts_with("SIP/2.0 200 "), "{response}");
    service.set(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen(&elsewhere.register("carol", "wrong")) != denied {
        assert!(Instant::now() < deadline, "the store is not used again");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(seen(&elsewhere.register("gorst", "wrong")), denied);
}

#[test]
fn a_source_that_guesses_while_a_store_is_down_is_banned() {
    let service = Service::start();
    let user = |number| format!("{{ name = \"user{number}\", password = \"secret\" }}");
    let users: Vec<String> = (0..10).map(user).collect();
    let (_config, config) = file(&format!(
        "[auth]\nrealm = \"north.gov\"\nusers = [{}]\n[[auth.stores]]\nurl = \"http://{}/user\"\n{SIP}",
        users.join(", "),
        service.address
    ));
    let server = serve(&config, &["--set", "admin.listen=127.0.0.1:0"]);
    let mut phone = Phone::new(&server);
    service.set(NEVER);
    let response = phone.register("bob", "wrong");
    assert!(response.starts_with("SIP/2.0 503 "), "{response}");
    // The limit of a source is 30 failures, and one more every three seconds. A user has five.
    let is_banned = |wait: Duration| {
        let deadline = Instant::now() + wait;
        loop {
            if server.metric("hairpin_sip_banned_sources", "") == Some(1.0) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for attempt in 1.. {
        let response = phone.register(&format!("user{}", attempt % 10), "wrong");
        assert!(response.starts_with("SIP/2.0 503 "), "{response}");
        if attempt >= 30 && is_banned(Duration::from_secs(2)) {
            break;
        }
        assert!(attempt < 50, "it is not banned");
    }
}
