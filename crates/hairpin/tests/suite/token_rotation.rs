//! Keys of access tokens (RFC 7635) that reloads add and remove: sessions continue, and tokens of a removed key get
//! 401.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use server::stun::{
    AttributeType, BuildError, Builder, Class, ErrorCode, HmacKey, Lifetime, Message, Method,
    Nonce, Realm, RequestedTransport, ThirdPartyAuthorization, TransactionId, Username,
    XorPeerAddress,
};

use crate::common::controlled::Controlled;
use crate::common::{json, run, stderr};

const REALM: &str = "example.org";
const SERVER_NAME: &str = "turn.example.org";
const SHOP: &str = "shop.example";
const OLD: Key = Key::new("2026-11", 1);
const NEW: Key = Key::new("2026-12", 2);
/// How long a client waits before it repeats a request, and how often it sends it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const SENT: u32 = 30;

/// A key that the server shares with an authorization server.
#[derive(Clone, Copy)]
struct Key {
    kid: &'static str,
    /// All of its bytes.
    byte: u8,
    realm: Option<&'static str>,
}

impl Key {
    const fn new(kid: &'static str, byte: u8) -> Key {
        Key {
            kid,
            byte,
            realm: None,
        }
    }

    fn base64(self) -> String {
        STANDARD.encode([self.byte; 32])
    }

    fn table(self) -> String {
        let realm = self.realm.map(|realm| format!(", realm = \"{realm}\""));
        let (kid, key) = (self.kid, self.base64());
        format!(
            "{{ kid = \"{kid}\", key = \"{key}\"{} }}",
            realm.unwrap_or_default()
        )
    }
}

/// With these keys, and with a further realm for one allocation.
fn config(folder: &std::path::Path, keys: &[Key]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| key.table()).collect();
    format!(
        "[listen]\nudp = [\"127.0.0.1:0\"]\ntcp = []\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nrealm = \"{REALM}\"\nrealms = [{{ name = \"{SHOP}\", allocations = 1 }}]\ntoken_server_name = \"{SERVER_NAME}\"\ntoken_keys = [{}]\n[peers]\nallow_local = true\n[offload]\nmode = \"off\"\n[admin]\nlisten = \"off\"\n[server]\ncontrol_socket = {:?}\n",
        keys.join(", "),
        Controlled::socket_in(folder)
    )
}

struct Server(Controlled);

impl Server {
    fn start(keys: &[Key]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let text = config(folder.path(), keys);
        Self(Controlled::start(folder, &text))
    }

    /// Replaces the keys in the file, and waits until the server has applied them.
    fn reload(&self, keys: &[Key]) {
        let folder = self.0.folder.path();
        let path = folder.join("hairpin.toml");
        std::fs::write(path, config(folder, keys)).expect("a file can be written");
        let output = self.0.run(&["reload"]);
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// A client with a new token that this key encrypts.
    fn client(&self, with: Key) -> Client {
        let token = json(&run(&[
            "creds",
            "oauth",
            "--key",
            &format!("{}:{}", with.kid, with.base64()),
            "--server-name",
            SERVER_NAME,
            "--ttl",
            "1h",
        ]));
        let bytes = |field: &str| {
            let text = token[field].as_str().expect("a text");
            STANDARD.decode(text).expect("base64")
        };
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket
            .set_read_timeout(Some(RESPONSE_TIMEOUT))
            .expect("a timeout");
        Client {
            socket,
            server: self.0.first.address(),
            kid: with.kid.to_owned(),
            token: bytes("access_token"),
            key: HmacKey::sha1(&bytes("key")),
            nonce: None,
        }
    }
}

/// A TURN client with an access token.
struct Client {
    socket: UdpSocket,
    server: SocketAddr,
    kid: String,
    /// The value of ACCESS-TOKEN.
    token: Vec<u8>,
    key: HmacKey,
    nonce: Option<Vec<u8>>,
}

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// 0 for success.
    code: u16,
    /// Of THIRD-PARTY-AUTHORIZATION.
    server_name: Option<String>,
}

type Attributes<'a> = &'a dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>;

impl Client {
    /// An Allocate request with the token, and before it one without credentials.
    fn allocate(&mut self) -> Answer {
        let udp = |request: &mut Builder<'_>| request.push(&RequestedTransport::UDP).map(drop);
        self.nonce = None;
        let challenge = self.ask(Method::ALLOCATE, false, &udp);
        let server_name = Some(SERVER_NAME.to_owned());
        assert_eq!(
            challenge,
            Answer {
                code: 401,
                server_name
            }
        );
        self.ask(Method::ALLOCATE, true, &udp)
    }

    fn refresh(&mut self, with_token: bool) -> u16 {
        let lifetime = |request: &mut Builder<'_>| request.push(&Lifetime(900)).map(drop);
        self.ask(Method::REFRESH, with_token, &lifetime).code
    }

    fn permit(&mut self) -> u16 {
        let peer: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let attributes = |request: &mut Builder<'_>| request.push(&XorPeerAddress(peer)).map(drop);
        self.ask(Method::CREATE_PERMISSION, false, &attributes).code
    }

    /// Signed if there is a nonce.
    fn compose(
        &self,
        id: &TransactionId,
        method: Method,
        with_token: bool,
        attributes: Attributes<'_>,
    ) -> Result<Vec<u8>, BuildError> {
        let mut buffer = [0; 1024];
        let mut request = Builder::new(&mut buffer, Class::Request, method, id)?;
        attributes(&mut request)?;
        if let Some(nonce) = &self.nonce {
            request
                .push(&Username(&self.kid))?
                .push(&Realm(REALM))?
                .push(&Nonce(nonce))?;
            if with_token {
                request.push_raw(AttributeType::ACCESS_TOKEN, &self.token)?;
            }
            request.integrity(&self.key)?;
        }
        Ok(request.finish().to_vec())
    }

    /// The answer to a request; takes over the nonce of a challenge.
    fn ask(&mut self, method: Method, with_token: bool, attributes: Attributes<'_>) -> Answer {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let mut id = [0x74; 12];
        id[4..].copy_from_slice(&LAST_ID.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let id = TransactionId(id);
        let request = self.compose(&id, method, with_token, attributes);
        let request = request.expect("room");
        let mut buffer = [0; 1024];
        for _ in 0..SENT {
            self.socket.send_to(&request, self.server).expect("sent");
            while let Ok((length, _)) = self.socket.recv_from(&mut buffer) {
                let message = Message::parse(&buffer[..length]).expect("a message");
                if message.transaction_id() == id {
                    return self.read(&message);
                }
            }
        }
        panic!("no response");
    }

    fn read(&mut self, message: &Message<'_>) -> Answer {
        let error: Option<ErrorCode<'_>> = message.get().expect("well formed");
        if let Some(nonce) = message.get::<Nonce<'_>>().expect("well formed") {
            self.nonce = Some(nonce.0.to_vec());
        }
        let name = message.get::<ThirdPartyAuthorization<'_>>();
        Answer {
            code: error.map_or(0, |error| error.code),
            server_name: name.expect("well formed").map(|name| name.0.to_owned()),
        }
    }
}

const SUCCESS: Answer = Answer {
    code: 0,
    server_name: None,
};

/// 401, with the name for which the authorization server is asked for a token.
fn refused() -> Answer {
    Answer {
        code: 401,
        server_name: Some(SERVER_NAME.to_owned()),
    }
}

#[test]
fn keys_are_replaced_by_reloads_without_a_gap() {
    let server = Server::start(&[OLD]);
    let mut first = server.client(OLD);
    assert_eq!(first.allocate(), SUCCESS);
    assert_eq!(server.client(NEW).allocate(), refused(), "not known yet");

    server.reload(&[OLD, NEW]);
    let mut second = server.client(OLD);
    let mut third = server.client(NEW);
    for client in [&mut second, &mut third] {
        assert_eq!(client.allocate(), SUCCESS);
    }
    assert_eq!((first.refresh(true), first.refresh(false)), (0, 0));

    server.reload(&[NEW]);
    for client in [&mut first, &mut second, &mut third] {
        // RFC 7635 §9: a Refresh request has the token, too.
        assert_eq!(client.refresh(true), 0, "{}", client.kid);
        assert_eq!(client.refresh(false), 0, "{}", client.kid);
        assert_eq!(client.permit(), 0, "{}", client.kid);
    }
    assert_eq!(server.client(OLD).allocate(), refused(), "a new token");
    // Also the token that has an allocation, from another port.
    let other = server.client(OLD);
    let mut again = Client {
        token: first.token.clone(),
        key: first.key.clone(),
        ..other
    };
    assert_eq!(again.allocate(), refused());
    // The session continues with a token of the new key (RFC 7635 §9), and no longer with the old one.
    let newer = server.client(NEW);
    let mut renewed = Client {
        socket: first.socket.try_clone().expect("a descriptor"),
        nonce: first.nonce.clone(),
        ..newer
    };
    assert_eq!(renewed.refresh(true), 0);
    assert_eq!(renewed.permit(), 0);
    assert_eq!(first.refresh(true), 401);
    assert_eq!(first.refresh(false), 401);
    assert_eq!(server.client(NEW).allocate(), SUCCESS);
}

#[test]
fn a_reload_with_a_mistake_in_a_key_leaves_all_keys_as_they_are() {
    let server = Server::start(&[OLD]);
    let folder = server.0.folder.path();
    let twice = config(folder, &[NEW, NEW]);
    std::fs::write(folder.join("hairpin.toml"), twice).expect("a file can be written");
    let output = server.0.run(&["reload"]);
    assert!(!output.status.success());
    let reason = stderr(&output);
    assert!(reason.contains("two keys have the kid"), "{reason}");
    assert_eq!(server.client(OLD).allocate(), SUCCESS);
    assert_eq!(server.client(NEW).allocate(), refused());
}

#[test]
fn the_limits_of_a_realm_apply_to_the_holders_of_tokens_of_its_key() {
    let of_shop = Key {
        realm: Some(SHOP),
        ..NEW
    };
    let server = Server::start(&[OLD, of_shop]);
    let mut shopper = server.client(of_shop);
    assert_eq!(shopper.allocate(), SUCCESS);
    // With the challenge of the default realm, whose REALM it continues to send.
    assert_eq!((shopper.permit(), shopper.refresh(true)), (0, 0));
    assert_eq!(server.client(of_shop).allocate().code, 486);
    for _ in 0..2 {
        assert_eq!(server.client(OLD).allocate(), SUCCESS);
    }
    // The realm can change: the shop's limit is not that of the default realm.
    server.reload(&[OLD, NEW]);
    assert_eq!(server.client(NEW).allocate(), SUCCESS);
    // The allocation keeps its realm, with and without the token in its requests.
    assert_eq!((shopper.refresh(true), shopper.refresh(false)), (0, 0));
}
