//! Handshakes with OpenSSL over loopback: `s_client` against the endpoint, `s_server` for the client. These need the
//! `openssl` program; without it they fail.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "sockets, files, programs and clocks, in a test"
)]
#![allow(clippy::unwrap_used, reason = "a test says no more")]

mod support;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hairpin_dtls::{ClientEvent, Endpoint, Event, Limits, Path, Received};
use support::*;
use timers::Mono;

const DEADLINE: Duration = Duration::from_secs(20);

/// A running `openssl`, whose output is collected. It ends with this value.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Program {
    fn start(arguments: &[&str]) -> Program {
        let mut child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("these tests need the program `openssl` (Debian: openssl)");
        let (sender, output) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        for stream in [Box::new(stdout) as Box<dyn Read + Send>, Box::new(stderr)] {
            let sender = sender.clone();
            std::thread::spawn(move || forward(stream, &sender));
        }
        let input = child.stdin.take();
        Program {
            child,
            input,
            output,
            seen: String::new(),
        }
    }

    fn say(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn has_said(&mut self, text: &str) -> bool {
        for bytes in self.output.try_iter() {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.seen.contains(text)
    }
}

fn forward(mut stream: impl Read, sender: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if sender.send(buffer[..length].to_vec()).is_err() {
            return;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Clock(Instant);

impl Clock {
    fn now(&self) -> Mono {
        Mono(self.0.elapsed().as_nanos() as u64 + 1)
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(10)))
        .unwrap();
    socket
}

/// The endpoint on a socket: it answers each message with the same in capitals.
struct Served {
    endpoint: Endpoint,
    socket: UdpSocket,
    clock: Clock,
    messages: Vec<String>,
    events: Vec<Event>,
}

impl Served {
    fn new(authority: &Authority, limits: Limits) -> Served {
        Served {
            endpoint: authority.endpoint(limits),
            socket: socket(),
            clock: Clock(Instant::now()),
            messages: Vec::new(),
            events: Vec::new(),
        }
    }

    fn turn(&mut self) {
        let mut buffer = [0; 4096];
        if let Ok((length, remote)) = self.socket.recv_from(&mut buffer) {
            let path = Path {
                listener: 0,
                local: self.socket.local_addr().unwrap(),
                remote,
            };
            let mut rest = &mut buffer[..length];
            let mut answers = Vec::new();
            while let Received::Data {
                connection,
                message,
                rest: behind,
            } = self.endpoint.handle_datagram(self.clock.now(), &path, rest)
            {
                self.messages
                    .push(String::from_utf8_lossy(message).into_owned());
                answers.push((connection, message.to_ascii_uppercase()));
                rest = behind;
            }
            for (connection, answer) in answers {
                let mut sealed = vec![0; answer.len() + hairpin_dtls::OVERHEAD];
                let length = self
                    .endpoint
                    .seal(connection, &[&answer], &mut sealed)
                    .unwrap();
                self.socket.send_to(&sealed[..length], remote).unwrap();
            }
        }
        while self.endpoint.step(self.clock.now()) {}
        self.endpoint.handle_timeout(self.clock.now());
        while let Some((path, bytes)) = self.endpoint.poll_transmit() {
            self.socket.send_to(bytes, path.remote).unwrap();
        }
        self.events.extend(events(&mut self.endpoint));
    }

    fn until(
        &mut self,
        program: &mut Program,
        what: &str,
        done: impl Fn(&mut Served, &mut Program) -> bool,
    ) {
        let start = Instant::now();
        while !done(self, program) {
            self.turn();
            assert!(
                start.elapsed() < DEADLINE,
                "{what} did not happen: {:?}, {:?}\n{}",
                self.events,
                self.endpoint.counters(),
                program.seen
            );
        }
    }
}

fn file(name: &str, text: &str) -> std::path::PathBuf {
    let unique = format!(
        "hairpin-dtls-{}-{:?}-{name}",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(unique.replace(['(', ')'], ""));
    std::fs::write(&path, text).unwrap();
    path
}

/// `s_client` handshakes, has a line answered and closes; it verifies our chain.
fn s_client(authority: &Authority, limits: Limits, more: &[&str], suite: &str) {
    let root = file("root.pem", &authority.root_pem);
    let mut served = Served::new(authority, limits);
    let at = served.socket.local_addr().unwrap().to_string();
    let mut arguments = vec![
        "s_client",
        "-dtls1_2",
        "-connect",
        &at,
        "-servername",
        "turn.example",
        "-alpn",
        "stun.turn",
    ];
    arguments.extend([
        "-CAfile",
        root.to_str().unwrap(),
        "-verify_return_error",
        "-verify_hostname",
        "turn.example",
    ]);
    arguments.extend(more);
    let mut program = Program::start(&arguments);
    served.until(&mut program, "the handshake", |served, _| {
        !served.events.is_empty()
    });
    let Event::Connected {
        cipher_suite,
        protocol,
        ..
    } = &served.events[0]
    else {
        panic!("{:?}\n{}", served.events, program.seen);
    };
    assert_eq!(
        (*cipher_suite, protocol.as_deref()),
        (suite, Some(&b"stun.turn"[..]))
    );
    program.say("hello there\n");
    served.until(&mut program, "the answer", |_, program| {
        program.has_said("HELLO THERE")
    });
    assert_eq!(served.messages, ["hello there\n"]);
    assert!(
        program.has_said("Verify return code: 0 (ok)"),
        "{}",
        program.seen
    );
    assert!(
        program.has_said("Extended master secret: yes"),
        "{}",
        program.seen
    );
    // The end of its input makes it close.
    program.input = None;
    served.until(&mut program, "the close", |served, _| {
        served.events.len() > 1
    });
    assert!(
        matches!(
            served.events[1],
            Event::Closed {
                reason: hairpin_dtls::CloseReason::Peer,
                established: true,
                ..
            }
        ),
        "{:?}",
        served.events
    );
    assert_eq!(served.endpoint.counters().hello_verify_requests, 1);
    std::fs::remove_file(root).unwrap();
}

#[test]
fn s_client_with_an_ecdsa_chain() {
    let authority = Authority::ecdsa();
    s_client(
        &authority,
        Limits::default(),
        &[],
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    );
}

#[test]
fn s_client_with_an_rsa_chain() {
    let authority = Authority::new(&rcgen::PKCS_RSA_SHA256);
    s_client(
        &authority,
        Limits::default(),
        &[],
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    );
}

#[test]
fn s_client_with_every_cipher_suite() {
    let authority = Authority::ecdsa();
    for (openssl, iana) in [
        (
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ),
        (
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
    ] {
        s_client(&authority, Limits::default(), &["-cipher", openssl], iana);
    }
}

#[test]
fn s_client_with_every_group() {
    // With an ECDSA certificate OpenSSL wants the certificate's group in the list, too.
    let authority = Authority::new(&rcgen::PKCS_RSA_SHA256);
    for group in ["X25519", "P-256", "P-384"] {
        s_client(
            &authority,
            Limits::default(),
            &["-groups", group],
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        );
    }
}

/// Both sides cut their messages: OpenSSL into datagrams of 256 bytes, which is the least it takes.
#[test]
fn s_client_with_small_datagrams() {
    let authority = Authority::new(&rcgen::PKCS_RSA_SHA256);
    let limits = Limits {
        mtu: 300,
        ..Limits::default()
    };
    s_client(
        &authority,
        limits,
        &["-mtu", "256"],
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    );
}

#[test]
fn s_client_that_offers_other_suites_only_is_refused_with_an_alert() {
    let authority = Authority::ecdsa();
    let mut served = Served::new(&authority, Limits::default());
    let at = served.socket.local_addr().unwrap().to_string();
    let mut program = Program::start(&[
        "s_client",
        "-dtls1_2",
        "-connect",
        &at,
        "-cipher",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ]);
    served.until(&mut program, "the refusal", |_, program| {
        program.has_said("handshake failure")
    });
    assert!(
        matches!(
            served.events[..],
            [Event::Closed {
                established: false,
                ..
            }]
        ),
        "{:?}",
        served.events
    );
}

/// Our client against `s_server`, which prints what it is told and sends what is typed.
fn s_server(authority: &Authority, more: &[&str]) {
    let chain = file("chain.pem", &authority.chain_pem);
    let key = file("key.pem", &authority.key_pem);
    // A port that was free a moment ago.
    let at = socket().local_addr().unwrap();
    let port = at.port().to_string();
    let (chain_name, key_name) = (chain.to_str().unwrap(), key.to_str().unwrap());
    let mut arguments = vec![
        "s_server",
        "-dtls1_2",
        "-4",
        "-accept",
        &port,
        "-alpn",
        "stun.turn",
    ];
    arguments.extend([
        "-cert",
        chain_name,
        "-cert_chain",
        chain_name,
        "-key",
        key_name,
    ]);
    arguments.extend(more);
    let mut program = Program::start(&arguments);
    let start = Instant::now();
    while !program.has_said("ACCEPT") {
        assert!(start.elapsed() < DEADLINE, "{}", program.seen);
        std::thread::sleep(Duration::from_millis(10));
    }
    let socket = socket();
    socket.connect(at).unwrap();
    let clock = Clock(Instant::now());
    let mut config = authority.client_config();
    config.first_retransmission = Duration::from_millis(200);
    let mut client = client_of(config, "turn.example", clock.now());
    let mut answered = false;
    let mut answer = Vec::new();
    while answer != b"general answer\n" {
        assert!(
            start.elapsed() < DEADLINE,
            "{:?}\n{}",
            client_events(&mut client),
            program.seen
        );
        while let Some(datagram) = client.poll_transmit() {
            let _ = socket.send(datagram);
        }
        if let Some(event) = client.poll_event() {
            let ClientEvent::Connected { protocol, .. } = event else {
                panic!("{event:?}\n{}", program.seen);
            };
            assert_eq!(protocol.as_deref(), Some(&b"stun.turn"[..]));
            let mut sealed = [0; 100];
            let length = client.seal(&[b"hello there\n"], &mut sealed).unwrap();
            socket.send(&sealed[..length]).unwrap();
        }
        let mut buffer = [0; 4096];
        if let Ok(length) = socket.recv(&mut buffer) {
            answer.extend(give_client(&mut client, clock.now(), &buffer[..length]).concat());
        }
        client.handle_timeout(clock.now());
        if !answered && program.has_said("hello there") {
            program.say("general answer\n");
            answered = true;
        }
    }
    for path in [chain, key] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn s_server_without_cookies() {
    s_server(&Authority::ecdsa(), &[]);
}

#[test]
fn s_server_with_cookies() {
    s_server(&Authority::ecdsa(), &["-listen"]);
}

#[test]
fn s_server_with_an_rsa_chain_that_asks_for_a_certificate() {
    s_server(
        &Authority::new(&rcgen::PKCS_RSA_SHA256),
        &["-verify", "1", "-mtu", "300"],
    );
}
