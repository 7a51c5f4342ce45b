use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use server::signals::Signals;
use server::{InheritedSockets, Running, Server};

use super::{Serving, bind, http};
use crate::config::AdminListen;
use crate::control::{self, ChangeSender, Shared};
use crate::metrics::Source;

/// A sender of changes that nobody makes. A process can catch signals once.
fn changes() -> ChangeSender {
    static SIGNALS: OnceLock<Signals> = OnceLock::new();
    let signals = SIGNALS.get_or_init(|| Signals::install().expect("handlers"));
    control::channel(signals).expect("a pipe").0
}

/// A server, and an admin listener for it.
fn start() -> (Running, Serving, SocketAddr) {
    let builder = Server::builder()
        .listen("127.0.0.1:0".parse().unwrap())
        .relay_address("127.0.0.1".parse().unwrap())
        .user("ann", "secret")
        .workers(2);
    let running = builder.start().expect("the server starts");
    let any = AdminListen::At("127.0.0.1:0".parse().unwrap());
    let bound = bind(any, &mut InheritedSockets::default())
        .unwrap()
        .expect("a listener was asked for");
    let address = bound.address();
    let shared = Shared {
        source: Arc::new(Source::new(running.observer())),
        config_file: None,
        sip: None,
        admin: None,
        stopping: AtomicBool::new(false),
        predecessor: Mutex::new(None),
        upgrade: control::upgrade::Upgrade::default(),
        routing: Arc::default(),
        sessions: running.sessions(),
        applied: Mutex::default(),
    };
    let serving = bound.serve(Arc::new(shared), changes(), None);
    let serving = serving.unwrap();
    (running, serving, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).expect("a timeout");
    stream
}

/// Sends `request` as it is and returns all that comes back.
fn say(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    // What was not read of a refused request makes the kernel reset the connection after the answer.
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Status and body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = say(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a complete answer");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

#[test]
fn a_server_is_alive_and_ready_until_it_drains() {
    let (running, _serving, address) = start();
    assert_eq!(get(address, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get(address, "/readyz"), (200, "ready\n".to_owned()));
    let (status, page) = get(address, "/metrics");
    assert_eq!(status, 200);
    assert_eq!(
        crate::metrics::check::read(&page)["hairpin_draining"].sum(&[]),
        0.0
    );
    assert_eq!(running.drain(Duration::from_secs(5)), Ok(true));
    let (status, line) = get(address, "/readyz");
    assert_eq!(status, 503);
    assert!(line.starts_with("draining"), "{line}");
    assert_eq!(
        get(address, "/healthz").0,
        200,
        "draining is no reason to be killed"
    );
}

#[test]
fn unknown_paths_get_404_and_other_methods_405() {
    let (_running, _serving, address) = start();
    assert_eq!(get(address, "/nothing").0, 404);
    assert!(get(address, "/").1.contains("<title>hairpin</title>"));
    assert!(get(address, "/nothing").1.contains("/metrics"));
    let posted = say(
        address,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(
        posted.starts_with("HTTP/1.1 405") && posted.contains("allow: GET, HEAD"),
        "{posted}"
    );
    let head = say(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(say(address, "\u{16}\u{3}\u{1}nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
}

#[test]
fn requests_that_are_too_long_are_refused() {
    let (_running, _serving, address) = start();
    let long = "a".repeat(20_000);
    let answer = say(
        address,
        &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"),
    );
    assert!(!answer.contains("200 OK"), "{answer}");
    let many = "X: y\r\n".repeat(100);
    let answer = say(address, &format!("GET /metrics HTTP/1.1\r\n{many}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(get(address, "/healthz").0, 200);
}

/// Whether the server has closed a connection of a client that has said nothing.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a flag");
    let read = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("a flag");
    !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let (_running, _serving, address) = start();
    // On a busy machine, the silent connections may end by their timeout before the response comes. That proves nothing.
    let mut attempts = (0..10).filter_map(|_| {
        let silent: Vec<_> = (0..2 * http::MAX_CONNECTIONS)
            .map(|_| {
                let mut stream = connect(address);
                stream.write_all(b"GET /metr").expect("sent");
                stream
            })
            .collect();
        assert_eq!(get(address, "/healthz").0, 200);
        // The oldest was closed to make room, and the newest waits for its timeout.
        let [oldest, .., newest] = &silent[..] else {
            return None;
        };
        let is_proof = is_closed(oldest) && !is_closed(newest);
        is_proof.then_some(silent)
    });
    let mut silent = attempts.next().expect("a response before the timeout");
    let newest = silent.last_mut().expect("there are some");
    let ended = newest.read_to_end(&mut Vec::new());
    let is_still_open = |error: &Error| error.kind() == ErrorKind::WouldBlock;
    assert!(!ended.as_ref().is_err_and(is_still_open), "{ended:?}");
}

#[test]
fn a_request_without_its_body_gets_a_response_before_its_connection_ends() {
    let (_running, _serving, address) = start();
    let head = "POST /api/v1/sip/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n";
    let answer = say(address, head);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let expected = "the body did not arrive within 7 s, so nothing was changed";
    assert!(answer.contains(expected), "{answer}");
}

#[test]
fn it_outlives_the_server_and_says_so() {
    let (running, serving, address) = start();
    running.shutdown().expect("no worker failed");
    assert_eq!(get(address, "/readyz").0, 503);
    assert_eq!(get(address, "/metrics").0, 200);
    drop(serving);
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
}

#[test]
fn an_address_that_is_taken_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = bind(AdminListen::At(address), &mut InheritedSockets::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&address.to_string()) && error.contains("--admin"),
        "{error}"
    );
    assert!(
        bind(AdminListen::Off, &mut InheritedSockets::default())
            .unwrap()
            .is_none()
    );
}
