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
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PASSWORD: &str = "secret";
/// More than workers, so that each has some.
const USERS: usize = 12;
/// Names the state directory for the child process.
const DIRECTORY: &str = "HAIRPIN_TEST_STATE_DIR";
/// In place of one: nothing is kept.
const NONE: &str = "none";

fn start(directory: &Path, workers: usize) -> Result<Running, StartError> {
    let directory = Some(directory).filter(|path| *path != Path::new(NONE));

    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    // Other tests keep the machine busy.
    settings.tolerance = Duration::ZERO;
    let mut server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .workers(workers);
    if let Some(directory) = directory {
        server = server.state_dir(directory);
    }
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

/// A child that serves, and where.
fn spawn(directory: &Path) -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "child_that_serves_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let address = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("serves ").map(str::to_owned));
    let address = address.expect("it serves").parse().expect("an address");
    (child, address)
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
    let (mut child, address) = spawn(&directory);
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

/// CPU time of a process, all its threads, in ticks of 10 ms.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split(' ')
        .collect();
    let of = |place: usize| fields[place].parse::<u64>().expect("a number");
    // Fields 14 and 15 of proc(5); the first here is the second, which the text before ends with.
    of(12) + of(13)
}

/// Registers so many times by one nonce, many requests under way, and returns the ticks that it cost the server.
fn cost(directory: &Path, count: u32) -> u64 {
    let (mut child, address) = spawn(directory);
    let client = Client::new(address);
    let unauthorized = client.ask(&request(1, 1, ""));
    let mut spans = Spans::new();
    let message = Message::parse(unauthorized.as_bytes(), &mut spans).expect("well-formed");
    let challenge = choose(&message, HeaderKind::WwwAuthenticate).expect("a challenge");
    let ha1 = challenge.ha1(b"user1", PASSWORD.as_bytes());
    let mut before = 0;
    // The first ones find everything cold.
    let warm_up = 1000;
    for number in 0..warm_up + count {
        if number == warm_up {
            before = ticks(child.id());
        }
        let answer = Answer {
            challenge: &challenge,
            username: b"user1",
            ha1: &ha1,
            method: Method::Register,
            uri: b"sip:example.com",
            body: b"",
            count: number + 1,
            cnonce: b"c1",
        };
        let mut buffer = [0; 2048];
        let mut line = Builder::fields(&mut buffer);
        answer.write(&mut line, HeaderKind::Authorization);
        let line = line.finish_fields().expect("room").to_vec();
        let line = String::from_utf8(line).expect("text");
        let lines = format!("Contact: <sip:user1@192.0.2.1>;expires=3000\r\n{line}");
        let answer = client.ask(&request(1, number + 2, &lines));
        assert_eq!(status(&answer), 200, "{answer}");
    }
    let used = ticks(child.id()) - before;
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    used
}

/// A measurement: with a state directory a REGISTER costs at most 1.3 times as much. Rounds alternate.
#[test]
#[ignore = "a measurement, for a machine that does nothing else"]
fn cost_of_a_register_that_is_saved() {
    let root = tempfile::tempdir().expect("a directory");
    let count = 20_000;
    let (mut without, mut with) = (0, 0);
    for round in 0..3 {
        without += cost(Path::new(NONE), count);
        // Each round begins with the same CSeq.
        with += cost(&root.path().join(round.to_string()), count);
    }
    let ratio = with as f64 / without as f64;
    println!("ticks for {count} x 3: {without} without, {with} with: {ratio:.3}");
    assert!(ratio <= 1.3, "{ratio:.3}");
}
