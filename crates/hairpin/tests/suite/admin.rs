//! The admin listener of `hairpin serve`: counts while a load runs, tells when the server drains, keeps to itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::common::controlled::eventually;
use crate::common::{Background, Serve, TEST_TIMEOUT, run, stderr};

const SECRET: &str = "0123456789abcdef0123";

/// A server for this machine, with an admin listener on some port.
fn start(more: &[&str]) -> Serve {
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--workers",
        "2",
    ];
    Serve::start(&[&arguments, more].concat())
}

/// Asks the admin listener of the banner.
fn get(serve: &Serve, path: &str) -> String {
    let url = serve.value("admin").split('/').nth(2).expect("a URL");
    let mut stream = TcpStream::connect(url).expect("it listens");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {url}\r\n\r\n").expect("it leaves");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The sum of the samples that begin like this.
fn sum(serve: &Serve, start: &str) -> f64 {
    let page = get(serve, "/metrics");
    let samples = page.lines().filter(|line| line.starts_with(start));
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn binding_requests_are_counted() {
    let serve = start(&[]);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback exists");
    // RFC 8489 §5: a Binding request without attributes.
    let mut request = [0; 20];
    request[..8].copy_from_slice(&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
    for _ in 0..8 {
        socket
            .send_to(&request, serve.address())
            .expect("it leaves");
        socket.recv(&mut [0; 100]).expect("an answer");
    }
    // Workers show their counts every few milliseconds.
    eventually("all answers are counted", || {
        sum(&serve, "hairpin_stun_successes_total{method=\"binding\"}") == 8.0
    });
    assert!(get(&serve, "/healthz").starts_with("HTTP/1.1 200 "));
    assert!(get(&serve, "/readyz").starts_with("HTTP/1.1 200 "));
    assert!(serve.value("kernel").contains("GRO") && serve.value("buffers").contains("iB"));
}

#[test]
fn a_drained_server_counts_on_and_ends_with_its_last_client() {
    let serve = start(&[
        "--dev",
        "--relay-address",
        "127.0.0.1",
        "--secret",
        SECRET,
        "--set",
        "server.drain=1h",
    ]);
    let address = serve.address().to_string();
    let load = Background::start(&[
        "load",
        "turn",
        &address,
        "--secret",
        SECRET,
        "--clients",
        "5",
        "--rate",
        "500/s",
        "--duration",
        "3s",
    ]);
    let relayed = || {
        sum(
            &serve,
            "hairpin_turn_relayed_packets_total{direction=\"to_peer\"",
        )
    };
    eventually("clients relay", || {
        sum(&serve, "hairpin_turn_allocations{") == 5.0 && relayed() > 0.0
    });
    serve.signal("TERM");
    eventually("it is not ready any more", || {
        get(&serve, "/readyz").starts_with("HTTP/1.1 503 ")
    });
    assert!(get(&serve, "/healthz").starts_with("HTTP/1.1 200 "));
    assert_eq!(sum(&serve, "hairpin_draining"), 1.0);
    let before = relayed();
    eventually("clients go on, and are counted while they do", || {
        relayed() > before + 100.0
    });
    let (status, _, log) = load.wait();
    assert!(status.success(), "{log}");
    let (status, log) = serve.wait();
    assert!(status.success() && log.contains("draining for 1h"), "{log}");
}

#[test]
fn a_server_without_an_admin_listener_says_nothing_of_one() {
    let serve = Serve::start(&["--listen", "127.0.0.1:0", "--admin", "off"]);
    assert!(!serve.banner.contains("admin"), "{}", serve.banner);
}

#[test]
fn an_admin_address_that_is_taken_starts_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--admin", &address]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains(&address) && text.contains("--admin"),
        "{text}"
    );
}

#[test]
fn an_admin_listener_that_others_reach_has_to_be_wanted() {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("metrics require no token") && text.contains("admin.allow_remote"),
        "{text}"
    );
    let allowed = ["--set", "admin.allow_remote=true"];
    let serve = Serve::start(&[&arguments[1..], &allowed].concat());
    assert!(serve.value("admin").starts_with("http://0.0.0.0:"));
}

/// RFC 8489 §5: a Binding request without attributes.
const BINDING: [u8; 20] = [
    0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

#[test]
fn a_log_that_nobody_reads_stops_neither_the_workers_nor_the_end() {
    let tcp = format!("127.0.0.1:{}", crate::common::controlled::free_port());
    let listen = format!("listen.tcp={tcp}");
    let serve = start(&[
        "--set",
        &listen,
        "--log-level",
        "debug",
        "--log-format",
        "json",
    ]);
    let dropped = || sum(&serve, "hairpin_log_lines_dropped_total ");
    // Each connection has a line in the log. The pipe and the queue have room for more than 7,000 of them. On a busy
    // machine, 2,000 connections wait in the backlogs meanwhile, so a fixed number of them may not be enough.
    let mut rounds = 0;
    while dropped() < 1_000.0 {
        assert!(rounds < 100, "{} lines dropped", dropped());
        rounds += 1;
        for _ in 0..1_000 {
            let connection = TcpStream::connect(&tcp).expect("it listens");
            let connection = socket2::Socket::from(connection);
            // A reset, so that neither side keeps state.
            let linger = Some(Duration::ZERO);
            connection.set_linger(linger).expect("an option");
        }
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback exists");
    socket
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    for _ in 0..8 {
        socket
            .send_to(&BINDING, serve.address())
            .expect("it leaves");
        socket.recv(&mut [0; 100]).expect("a response");
    }
    serve.signal("TERM");
    // It reads the log after the end only.
    let (status, log) = serve.wait();
    assert!(status.success(), "{status}");
    assert!(log.contains("connection closed"), "{log}");
}
