//! Bindings survive the end of the server, however it ends (`Builder::state_dir`).

use crate::sip_client::{Client, status};
use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server, StartError, StateError};
use sip::build::Builder;
use sip::digest::{DigestResponse, choose};
use sip::{HeaderKind, Message, Method, Spans};
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
    let answer = DigestResponse {
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
    let command = Command::new(std::env::current_exe().expect("this program"));
    spawn_by(command, directory)
}

/// The same by a command that runs this program.
fn spawn_by(mut command: Command, directory: &Path) -> (Child, SocketAddr) {
    let mut child = command
        .args([
            "--exact",
            "sip_restart::child_that_serves_until_it_is_killed",
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

/// Fills the disk of a running server: a small tmpfs in a mount namespace of its own, seen from outside by `/proc`.
#[test]
fn a_full_disk_costs_no_registration_and_is_used_again_when_it_has_room() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = root.path().join("state");
    std::fs::create_dir(&directory).expect("room");
    let path = directory.to_str().expect("text");
    let mount = format!("mount -t tmpfs -o size=128k,mode=700 none {path} && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &mount]);
    command.arg(std::env::current_exe().expect("this program"));
    let (mut child, address) = spawn_by(command, &directory);
    register_all(address);
    let inside = format!("/proc/{}/root{path}", child.id());
    let filler = Path::new(&inside).join("filler");
    let mut file = std::fs::File::create(&filler).expect("room for a name");
    // The disk is full when not one more byte fits.
    while std::io::Write::write_all(&mut file, &[0; 512]).is_ok() {}
    while std::io::Write::write_all(&mut file, &[0]).is_ok() {}
    let logged = || {
        std::fs::metadata(Path::new(&inside).join("bindings.log"))
            .expect("a log")
            .len()
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = logged();
    // More than the last page of the log has room for, by far.
    for round in 0..4 {
        for number in 0..USERS {
            let contact =
                format!("Contact: <sip:user{number}@192.0.2.{number};r={round}>;expires=3000\r\n");
            register(address, number, 11 + 2 * round, &contact);
        }
    }
    std::thread::sleep(Duration::from_secs(2));
    let full = logged();
    assert!(
        full < before + 4096 + 512,
        "{before} to {full} bytes on a full disk"
    );
    std::fs::remove_file(&filler).expect("it is there");
    drop(file);
    let begun = Instant::now();
    while logged() < before + 4 * USERS as u64 * 100 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{} bytes",
            logged()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    // What the disk has now is what a restart finds.
    std::thread::sleep(Duration::from_secs(1));
    let copy = root.path().join("copy");
    std::fs::create_dir(&copy).expect("room");
    for file in ["key", "bindings.log"] {
        std::fs::copy(Path::new(&inside).join(file), copy.join(file)).expect("room");
    }
    use std::os::unix::fs::PermissionsExt as _;
    for (path, mode) in [(copy.clone(), 0o700), (copy.join("key"), 0o600)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("it is ours");
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let server = start(&copy, 3).expect("the server starts");
    for number in 0..USERS {
        let answer = register(server.sip_listeners()[0], number, 31, "");
        let last = format!("Contact: <sip:user{number}@192.0.2.{number};r=3>");
        assert!(answer.contains(&last), "{answer}");
    }
}

/// Writes a log with so many bindings.
fn write_log(path: &Path, count: u32) {
    use sip_server::location::{Change, Limits, Location as _, MemoryLocation, Revision};
    use sip_server::log::{Disk, Journal, Log, Persistent, Settings};
    let key = sip::HashKey::new([1; 16]);
    let disk = Disk::open(path).expect("nobody has it");
    let (mut log, _) = Log::open(disk, Settings::default(), key).expect("a log");
    let unix = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let now = sip::Now {
        mono: sip::Mono::default(),
        unix_s: unix.expect("a clock").as_secs(),
    };
    let limits = Limits {
        total: count as usize,
        ..Limits::default()
    };
    let mut location = Persistent {
        memory: MemoryLocation::new(key, limits),
        journal: Journal::new(Duration::ZERO),
    };
    for number in 0..count {
        let aor = format!("user{number}@example.com");
        let aor = sip_server::Aor::from_canonical(aor.as_bytes()).expect("short");
        let change = Change::Add(phone(number, now.mono));
        let saved = location.change(now, &aor, Revision::default(), &mut vec![change]);
        let _ = saved.expect("there is room");
        if number % 1000 == 999 {
            let batch = location.journal.take_all();
            log.write(now.mono, &batch).expect("room");
        }
    }
    let batch = location.journal.take_all();
    log.write(now.mono, &batch).expect("room");
    log.sync().expect("room");
}

/// The binding of a phone as they are.
fn phone(number: u32, now: sip::Mono) -> sip_server::location::Binding {
    use sip_server::location::{Binding, NO_Q, NewBinding};
    let uri = format!("sip:user{number}@192.0.2.1:5060;transport=udp");
    let call_id = format!("{number}-0123456789abcdef@192.0.2.1");
    let binding = Binding::new(&NewBinding {
        uri: uri.as_bytes(),
        params: b";+sip.instance=\"<urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6>\"",
        instance: b"urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        call_id: call_id.as_bytes(),
        cseq: 1,
        path: b"",
        agent: b"",
        flow: None,
        q: NO_Q,
        reg_id: 0,
        gruu: 0,
        expires: now.plus_secs(86_400),
        updated: now,
    });
    binding.expect("short")
}

/// `cargo test --release -p hairpin-server --test suite -- --ignored --nocapture sip_restart::loading` prints the time.
#[test]
#[ignore = "a measurement, for a machine that does nothing else"]
fn loading_a_million_bindings() {
    const COUNT: u32 = 1_000_000;
    let root = tempfile::tempdir().expect("a directory");
    drop(start(root.path(), 1).expect("the server starts"));
    let path = root.path().join("bindings.log");
    write_log(&path, COUNT);
    let bytes = std::fs::metadata(&path).expect("a log").len();
    for workers in [1, 2] {
        let begun = Instant::now();
        let server = start(root.path(), workers).expect("the server starts");
        let took = begun.elapsed();
        let end = Instant::now() + Duration::from_secs(5);
        while server.stats().sip().bindings < u64::from(COUNT) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let bindings = server.stats().sip().bindings;
        println!("{workers} workers: {bindings} bindings, {bytes} bytes, in {took:?}");
        assert_eq!(bindings, u64::from(COUNT));
        let is_in_time = cfg!(debug_assertions) || took < Duration::from_secs(3);
        assert!(is_in_time, "{took:?}");
    }
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

/// Registers so many times by one nonce, many requests in progress, and returns the ticks that it cost the server.
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
        let answer = DigestResponse {
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
