//! Bindings survive the end of the server, however it ends (`Builder::state_dir`).

mod sip_client;

use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server, StartError, StateError};
use sip::build::Builder;
use sip::digest::{Answer, choose};
use sip::{HeaderKind, Message, Method, Spans};
use sip_client::{Client, status};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PASSWORD: &str = "secret";
/// More than workers, so that each has some.
const USERS: usize = 12;
/// Names the state directory for the child process.
const DIRECTORY: &str = "HAIRPIN_TEST_STATE_DIR";

fn start(directory: &Path, workers: usize) -> Result<Running, StartError> {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    let mut server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .state_dir(directory)
        .workers(workers);
    for number in 0..USERS {
        server = server.user(&format!("user{number}"), PASSWORD);
    }
    server.start()
}

fn request(number: usize, cseq: u32, lines: &str) -> String {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1:5060;rport;branch=z9hG4bK{number}x{cseq}\r\n\
         From: <sip:user{number}@example.com>;tag=1\r\nTo: <sip:user{number}@example.com>\r\n\
         Call-ID: {number}@test\r\nCSeq: {cseq} REGISTER\r\nMax-Forwards: 70\r\n\
         {lines}Content-Length: 0\r\n\r\n"
    )
}

fn register(server: SocketAddr, number: usize, cseq: u32, lines: &str) -> String {
    let client = Client::new(server);
    let challenge = client.ask(&request(number, cseq, lines));
    assert_eq!(status(&challenge), 401, "{challenge}");
    let mut spans = Spans::new();
    let message = Message::parse(challenge.as_bytes(), &mut spans).expect("well-formed");
    let challenge = choose(&message, HeaderKind::WwwAuthenticate).expect("a challenge");
    let user = format!("user{number}");
    let answer = Answer {
        challenge: &challenge,
        username: user.as_bytes(),
        ha1: &challenge.ha1(user.as_bytes(), PASSWORD.as_bytes()),
        method: Method::Register,
        uri: b"sip:example.com",
        body: b"",
        count: 1,
        cnonce: b"c1",
    };
    let mut buffer = [0; 2048];
    let mut line = Builder::fields(&mut buffer);
    answer.write(&mut line, HeaderKind::Authorization);
    let line = line.finish_fields().expect("room").to_vec();
    let lines = format!("{lines}{}", String::from_utf8(line).expect("text"));
    let answer = client.ask(&request(number, cseq + 1, &lines));
    assert_eq!(status(&answer), 200, "{answer}");
    answer
}

fn register_all(server: SocketAddr) {
    for number in 0..USERS {
        let contact = format!("Contact: <sip:user{number}@192.0.2.{number}>;expires=3000\r\n");
        register(server, number, 1, &contact);
    }
}

fn check_all(server: SocketAddr) {
    for number in 0..USERS {
        let answer = register(server, number, 7, "");
        let contact = format!("Contact: <sip:user{number}@192.0.2.{number}>;expires=");
        let found = answer.lines().find(|line| line.starts_with(&contact));
        let found = found.unwrap_or_else(|| panic!("user{number} is gone: {answer}"));
        let left: u32 = found[contact.len()..].parse().expect("seconds");
        assert!((2900..=3000).contains(&left), "{found}");
    }
}

#[test]
fn bindings_survive_a_shutdown_and_another_number_of_workers() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = root.path().join("state");
    let server = start(&directory, 2).expect("the server starts");
    register_all(server.sip_listeners()[0]);
    server.shutdown().expect("no worker failed");
    for workers in [3, 1, 2] {
        let server = start(&directory, workers).expect("the server starts");
        check_all(server.sip_listeners()[0]);
        let stats = server.shutdown().expect("no worker failed");
        assert_eq!(stats.sip().bindings, USERS as u64);
    }
}

/// Not a test: the server of the next one, which kills it.
#[test]
fn child_that_serves_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let server = start(Path::new(&directory), 2).expect("the server starts");
    println!("\nserves {}", server.sip_listeners()[0]);
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_kill_loses_no_change_that_is_a_second_old() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = root.path().join("state");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "child_that_serves_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIRECTORY, &directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let address = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("serves ").map(str::to_owned));
    let address = address.expect("it serves").parse().expect("an address");
    register_all(address);
    std::thread::sleep(Duration::from_secs(1));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let server = start(&directory, 1).expect("the server starts");
    check_all(server.sip_listeners()[0]);
}

#[test]
fn one_process_uses_the_directory_at_a_time() {
    let root = tempfile::tempdir().expect("a directory");
    let first = start(root.path(), 1).expect("the server starts");
    let begun = Instant::now();
    let refused = start(root.path(), 1);
    let error = refused.map(drop).expect_err("it is in use");
    assert!(matches!(error, StartError::State(StateError::InUse { .. })));
    assert!(error.to_string().contains("another process"), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(4), "it waits");
    drop(first);
    start(root.path(), 1).expect("it is free");
}

#[test]
fn a_torn_end_of_the_log_is_cut_off() {
    use std::io::Write as _;
    let root = tempfile::tempdir().expect("a directory");
    let server = start(root.path(), 1).expect("the server starts");
    register_all(server.sip_listeners()[0]);
    server.shutdown().expect("no worker failed");
    let path = root.path().join("bindings.log");
    let whole = std::fs::metadata(&path).expect("it is there").len();
    let mut log = std::fs::OpenOptions::new().append(true).open(&path);
    let torn = log.as_mut().expect("it is there").write_all(&[7; 99]);
    torn.expect("it is written");
    let server = start(root.path(), 1).expect("the server starts");
    check_all(server.sip_listeners()[0]);
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), whole);
}
