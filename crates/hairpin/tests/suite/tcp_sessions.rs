//! Data connections of TCP allocations (RFC 6062) in the list of sessions: by the API and by `hairpin sessions`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::stun::{
    BuildError, Builder, Class, ConnectionId, ErrorCode, HmacKey, Message, Method, Nonce,
    PasswordAlgorithm, Realm, RequestedTransport, TransactionId, Username, XorPeerAddress,
    long_term_key,
};

use crate::common::{Serve, TEST_TIMEOUT, hairpin, stderr, stdout};

const USER: &str = "alice";
const PASSWORD: &str = "secret";

/// A client over TCP.
struct Client {
    stream: TcpStream,
    challenge: Option<(String, Vec<u8>, HmacKey)>,
    requests: u8,
}

impl Client {
    fn new(server: SocketAddr) -> Client {
        let stream = TcpStream::connect(server).expect("the server listens");
        let timeout = stream.set_read_timeout(Some(TEST_TIMEOUT));
        timeout.expect("a timeout can be set");
        Client {
            stream,
            challenge: None,
            requests: 0,
        }
    }

    /// Sends a request until it is authenticated, and returns CONNECTION-ID if the success response has one.
    fn ask(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Option<u32> {
        for _ in 0..3 {
            let bytes = self.exchange(method, attributes);
            let message = Message::parse(&bytes).expect("a message");
            let error: Option<ErrorCode<'_>> = message.get().expect("well formed");
            match error.map_or(0, |error| error.code) {
                0 => {
                    let id: Option<ConnectionId> = message.get().expect("well formed");
                    return id.map(|id| id.0);
                }
                401 | 438 => self.challenge = Some(challenge(&message)),
                code => panic!("{method:?}: {code}"),
            }
        }
        panic!("the server does not accept the credentials");
    }

    fn exchange(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Vec<u8> {
        self.requests += 1;
        let id = TransactionId([self.requests; 12]);
        let mut buffer = [0; 1024];
        let mut request = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
        attributes(&mut request).expect("room");
        if let Some((realm, nonce, key)) = &self.challenge {
            let signed = request
                .push(&Username(USER))
                .and_then(|request| request.push(&Realm(realm)))
                .and_then(|request| request.push(&Nonce(nonce)))
                .and_then(|request| request.integrity(key));
            signed.expect("room");
        }
        self.stream.write_all(request.finish()).expect("sent");
        let mut response = vec![0; 20];
        self.stream.read_exact(&mut response).expect("a response");
        let length = usize::from(u16::from_be_bytes([response[2], response[3]]));
        response.resize(20 + length, 0);
        let rest = self.stream.read_exact(&mut response[20..]);
        rest.expect("a whole response");
        response
    }
}

fn challenge(message: &Message<'_>) -> (String, Vec<u8>, HmacKey) {
    let realm: Option<Realm<'_>> = message.get().expect("well formed");
    let nonce: Option<Nonce<'_>> = message.get().expect("well formed");
    let (realm, nonce) = (realm.expect("a realm").0, nonce.expect("a nonce").0);
    let key = long_term_key(PasswordAlgorithm::Md5, USER, realm, PASSWORD);
    let key = key.expect("plain ASCII").hmac_sha1();
    (realm.to_owned(), nonce.to_vec(), key)
}

/// The listener for TCP.
fn tcp_listener(serve: &Serve) -> SocketAddr {
    let mut lines = serve.banner().lines();
    let rest = lines.find_map(|line| line.strip_prefix("listening")?.trim().strip_prefix("tcp "));
    let address = rest.and_then(|rest| rest.split_whitespace().next());
    address.expect("a listener").parse().expect("an address")
}

/// The data connections of the only session, when they are as `wanted` says.
fn eventually(serve: &Serve, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let response = serve.get("/api/v1/sessions?peer=127.0.0.1");
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body);
        let body = body.unwrap_or_else(|| panic!("no body: {response}"));
        let page: Value = serde_json::from_str(body).expect("JSON");
        let connections = page["sessions"][0]["data_connections"].clone();
        if wanted(&connections) {
            return connections;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sessions_show_bytes_and_idle_time_of_data_connections() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("control.sock").display().to_string();
    let control = format!("server.control_socket={socket}");
    let user = format!("{USER}:{PASSWORD}");
    let serve = Serve::start(&[
        "--dev",
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--offload",
        "off",
        "--user",
        &user,
        "--set",
        &control,
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let peer = listener.local_addr().expect("bound");
    let mut client = Client::new(tcp_listener(&serve));
    client.ask(Method::ALLOCATE, &|request| {
        request.push(&RequestedTransport::TCP).map(drop)
    });
    let id = client.ask(Method::CONNECT, &|request| {
        request.push(&XorPeerAddress(peer)).map(drop)
    });
    let id = id.expect("an ID");
    eventually(&serve, |connections| *connections == json!([]));
    let mut data = Client::new(tcp_listener(&serve));
    data.ask(Method::CONNECTION_BIND, &|request| {
        request.push(&ConnectionId(id)).map(drop)
    });
    let (mut far, _) = listener.accept().expect("the server connects");
    let timeout = far.set_read_timeout(Some(TEST_TIMEOUT));
    timeout.expect("a timeout can be set");
    data.stream.write_all(b"hello peer").expect("sent");
    far.read_exact(&mut [0; 10]).expect("relayed");
    far.write_all(b"hello").expect("sent");
    data.stream.read_exact(&mut [0; 5]).expect("relayed");
    let bytes = |connections: &Value| {
        let connection = &connections[0];
        (connection["to_peer_bytes"] == 10 && connection["to_client_bytes"] == 5)
            && connection["peer"] == peer.to_string()
    };
    eventually(&serve, |connections| {
        bytes(connections) && connections[0]["idle_s"].is_u64()
    });
    // Time passes without a byte.
    eventually(&serve, |connections| {
        bytes(connections) && connections[0]["idle_s"].as_u64() >= Some(1)
    });
    let shown = hairpin(&["sessions", "--socket", &socket]).output();
    let shown = shown.expect("the binary runs");
    let text = stdout(&shown);
    assert!(
        text.contains(", expires in ") && text.contains("  1 data connection, idle for "),
        "{text}{}",
        stderr(&shown)
    );
    drop((far, data));
    eventually(&serve, |connections| *connections == json!([]));
}
