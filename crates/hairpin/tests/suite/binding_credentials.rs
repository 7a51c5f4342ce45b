//! `auth.binding_requests`: Binding requests with credentials (RFC 8489 §9.2), which a reload turns on and off.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::stun::{
    Builder, Class, ErrorCode, HmacKey, Message, Method, Nonce, PasswordAlgorithm, Realm,
    TransactionId, Username, XorMappedAddress, long_term_key,
};

use crate::common::controlled::Controlled;
use crate::common::{TEST_TIMEOUT, fails, run, stderr};

const REALM: &str = "example.org";
const USER: &str = "ann";
const PASSWORD: &str = "a password of this test";
/// Bytes of the shortest Binding request.
const HEADER: usize = 20;

fn config(folder: &std::path::Path, line: &str) -> String {
    format!(
        "[listen]\nudp = [\"127.0.0.1:0\"]\ntcp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n[auth]\nrealm = \"{REALM}\"\nusers = [{{ name = \"{USER}\", password = \"{PASSWORD}\" }}]\n{line}\n[offload]\nmode = \"off\"\n[admin]\nlisten = \"off\"\n[server]\ncontrol_socket = {:?}\n",
        Controlled::socket_in(folder)
    )
}

fn start(line: &str) -> Controlled {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let text = config(folder.path(), line);
    Controlled::start(folder, &text)
}

fn reload(server: &Controlled, line: &str) {
    let folder = server.folder.path();
    std::fs::write(folder.join("hairpin.toml"), config(folder, line)).expect("a file");
    let output = server.run(&["reload"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The credentials of a request.
struct Signing {
    user: &'static str,
    nonce: Vec<u8>,
    key: HmacKey,
}

impl Signing {
    fn new(password: &str, nonce: &[u8]) -> Self {
        let key = long_term_key(PasswordAlgorithm::Md5, USER, REALM, password);
        Self {
            user: USER,
            nonce: nonce.to_vec(),
            key: key.expect("plain ASCII").hmac_sha1(),
        }
    }
}

/// A Binding request, and its transaction ID.
fn request(signing: Option<&Signing>) -> (TransactionId, Vec<u8>) {
    static LAST_ID: AtomicU64 = AtomicU64::new(0);
    let mut id = [0x62; 12];
    id[4..].copy_from_slice(&LAST_ID.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    let id = TransactionId(id);
    let mut buffer = [0; 512];
    let mut request =
        Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).expect("room");
    if let Some(Signing { user, nonce, key }) = signing {
        let signed = request
            .push(&Username(user))
            .and_then(|request| request.push(&Realm(REALM)))
            .and_then(|request| request.push(&Nonce(nonce)))
            .and_then(|request| request.integrity(key));
        signed.expect("room");
    }
    (id, request.finish().to_vec())
}

/// A client over UDP or TCP.
enum Link {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Link {
    fn udp(server: &Controlled) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect(server.first.address()).expect("an address");
        let wait = Some(Duration::from_secs(1));
        socket.set_read_timeout(wait).expect("a timeout");
        Self::Udp(socket)
    }

    fn tcp(server: &Controlled) -> Self {
        let status = server.status().expect("it serves");
        let at = status["listeners"]["tcp"][0].as_str().expect("a listener");
        let stream = TcpStream::connect(at).expect("it listens");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        Self::Tcp(stream)
    }

    fn local(&self) -> SocketAddr {
        match self {
            Self::Udp(socket) => socket.local_addr(),
            Self::Tcp(stream) => stream.local_addr(),
        }
        .expect("connected")
    }

    /// The response to a request, which UDP sends again until there is one.
    fn ask(&mut self, signing: Option<&Signing>) -> Vec<u8> {
        let (id, request) = request(signing);
        match self {
            Self::Udp(socket) => {
                let mut buffer = [0; 1024];
                for _ in 0..TEST_TIMEOUT.as_secs() {
                    socket.send(&request).expect("sent");
                    while let Ok(length) = socket.recv(&mut buffer) {
                        let message = Message::parse(&buffer[..length]).expect("a message");
                        if message.transaction_id() == id {
                            return buffer[..length].to_vec();
                        }
                    }
                }
                panic!("no response");
            }
            Self::Tcp(stream) => {
                stream.write_all(&request).expect("sent");
                let mut head = [0; HEADER];
                stream.read_exact(&mut head).expect("a response");
                let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
                stream.read_exact(&mut body).expect("a response");
                [&head[..], &body].concat()
            }
        }
    }

    /// The nonce of the 401 that a request without credentials gets.
    fn challenge(&mut self) -> Vec<u8> {
        let response = self.ask(None);
        let message = Message::parse(&response).expect("a message");
        assert_eq!(code(&response), 401);
        // RFC 8489 §9.2.4.
        let realm: Option<Realm<'_>> = message.get().expect("well formed");
        assert_eq!(realm, Some(Realm(REALM)));
        assert!(message.has_integrity().is_none());
        if matches!(self, Self::Udp(_)) {
            // No stranger gets more than three times the bytes, with the headers of IPv4 and UDP.
            assert!(
                response.len() + 28 <= 3 * (HEADER + 28),
                "{}",
                response.len()
            );
        }
        let nonce: Option<Nonce<'_>> = message.get().expect("well formed");
        nonce.expect("a nonce").0.to_vec()
    }
}

/// 0 for success.
fn code(response: &[u8]) -> u16 {
    let message = Message::parse(response).expect("a message");
    let error: Option<ErrorCode<'_>> = message.get().expect("well formed");
    assert_eq!(message.method(), Method::BINDING);
    assert_eq!(error.is_none(), message.class() == Class::Success);
    error.map_or(0, |error| error.code)
}

#[test]
fn binding_requests_get_401_and_then_a_signed_response() {
    let server = start("binding_requests = true");
    for mut link in [Link::udp(&server), Link::tcp(&server)] {
        let nonce = link.challenge();
        let right = Signing::new(PASSWORD, &nonce);
        let response = link.ask(Some(&right));
        assert_eq!(code(&response), 0);
        let message = Message::parse(&response).expect("a message");
        let mapped: Option<XorMappedAddress> = message.get().expect("well formed");
        assert_eq!(mapped, Some(XorMappedAddress(link.local())));
        message
            .verify(&right.key)
            .expect("signed with the user's key");

        let wrong = Signing::new("another password", &nonce);
        assert_eq!(code(&link.ask(Some(&wrong))), 401);
        let nobody = Signing {
            user: "nobody",
            ..Signing::new(PASSWORD, &nonce)
        };
        assert_eq!(code(&link.ask(Some(&nobody))), 401);
        let mut forged = nonce.clone();
        forged[nonce.len() / 2] ^= 1;
        assert_eq!(code(&link.ask(Some(&Signing::new(PASSWORD, &forged)))), 438);
    }
}

#[test]
fn a_classic_request_gets_nothing_while_credentials_are_required() {
    let server = start("binding_requests = true");
    let mut link = Link::udp(&server);
    // RFC 3489: no magic cookie, and 16 bytes of transaction ID.
    let mut classic = vec![0, 1, 0, 0];
    classic.extend([7; 16]);
    let send = |link: &Link| match link {
        Link::Udp(socket) => socket.send(&classic).expect("sent"),
        Link::Tcp(_) => panic!("over UDP"),
    };
    send(&link);
    // Its response would arrive first: `ask` accepts no message without the cookie.
    link.challenge();
    reload(&server, "binding_requests = false");
    send(&link);
    let Link::Udp(socket) = &link else {
        panic!("over UDP");
    };
    socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer).expect("a response");
    assert_eq!((&buffer[..2], &buffer[4..20]), (&[1, 1][..], &[7; 16][..]));
    assert!(length > HEADER);
}

#[test]
fn a_reload_turns_it_on_and_off_and_the_probe_says_what_is_missing() {
    let server = start("");
    let mut link = Link::udp(&server);
    assert_eq!(code(&link.ask(None)), 0, "by default, everybody");
    reload(&server, "binding_requests = true");
    let nonce = link.challenge();
    assert_eq!(code(&link.ask(Some(&Signing::new(PASSWORD, &nonce)))), 0);
    let target = server.first.address().to_string();
    let probed = run(&["probe", "stun", &target]);
    fails(&probed, 1, "(401)");
    assert!(stderr(&probed).contains("hairpin probe turn"));
    let user = format!("{USER}:{PASSWORD}");
    let probed = run(&["probe", "turn", &target, "--user", &user]);
    assert!(probed.status.success(), "{}", stderr(&probed));
    reload(&server, "binding_requests = false");
    assert_eq!(code(&link.ask(None)), 0);
    assert!(run(&["probe", "stun", &target]).status.success());
}
