//! A client that signs requests, by the book or as badly as a test wants.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use hairpin_turn::server::{ClientVerdict, RelayRequest};
use hairpin_turn::{ClientPath, RelayKey, RequestKey};
use stun::{
    AttributeType, Builder, ChannelNumber, Class, HmacKey, Lifetime, Method, Nonce,
    PasswordAlgorithm, Realm, RequestedTransport, TransactionId, Userhash, Username,
    XorPeerAddress, long_term_key, userhash,
};

use super::{Event, REALM, Reply, World, address, path};

/// How requests are signed.
#[derive(Clone, Debug)]
pub struct Signing {
    pub username: Option<String>,
    pub userhash: Option<[u8; 32]>,
    pub realm: Option<String>,
    pub nonce: Option<Vec<u8>>,
    pub password_algorithms: Option<Vec<u8>>,
    pub password_algorithm: Option<Vec<u8>>,
    pub keys: Vec<HmacKey>,
}

impl Signing {
    /// As an RFC 5389 client: MD5 and HMAC-SHA1.
    pub fn legacy(name: &str, password: &str, nonce: &[u8]) -> Signing {
        let key = long_term_key(PasswordAlgorithm::Md5, name, REALM, password).unwrap();
        Signing {
            username: Some(name.to_owned()),
            userhash: None,
            realm: Some(REALM.to_owned()),
            nonce: Some(nonce.to_vec()),
            password_algorithms: None,
            password_algorithm: None,
            keys: vec![key.hmac_sha1()],
        }
    }

    /// As an RFC 8489 client: USERHASH, SHA-256 and HMAC-SHA256.
    pub fn modern(name: &str, password: &str, nonce: &[u8]) -> Signing {
        let key = long_term_key(PasswordAlgorithm::Sha256, name, REALM, password).unwrap();
        Signing {
            username: None,
            userhash: Some(userhash(name, REALM).unwrap()),
            realm: Some(REALM.to_owned()),
            nonce: Some(nonce.to_vec()),
            password_algorithms: Some(vec![0, 2, 0, 0, 0, 1, 0, 0]),
            password_algorithm: Some(vec![0, 2, 0, 0]),
            keys: vec![key.hmac_sha256()],
        }
    }
}

/// Adds the attributes of the credentials, and the integrity.
pub fn sign_into(builder: &mut Builder<'_>, signing: &Signing) {
    if let Some(name) = &signing.username {
        builder.push(&Username(name)).unwrap();
    }
    if let Some(hash) = signing.userhash {
        builder.push(&Userhash(hash)).unwrap();
    }
    if let Some(realm) = &signing.realm {
        builder.push(&Realm(realm)).unwrap();
    }
    if let Some(nonce) = &signing.nonce {
        builder.push(&Nonce(nonce)).unwrap();
    }
    if let Some(list) = &signing.password_algorithms {
        builder
            .push_raw(AttributeType::PASSWORD_ALGORITHMS, list)
            .unwrap();
    }
    if let Some(algorithm) = &signing.password_algorithm {
        builder
            .push_raw(AttributeType::PASSWORD_ALGORITHM, algorithm)
            .unwrap();
    }
    for key in &signing.keys {
        builder.integrity(key).unwrap();
    }
}

/// A range of transaction IDs that no other client of the test binary uses.
fn fresh_ids() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << 32
}

/// A request without any attribute.
pub fn bare(method: Method) -> Vec<u8> {
    let mut buffer = [0; 20];
    Builder::new(&mut buffer, Class::Request, method, &TransactionId([3; 12]))
        .unwrap()
        .finish()
        .to_vec()
}

/// A client on one 5-tuple.
#[derive(Clone, Debug)]
pub struct Client {
    pub path: ClientPath,
    pub signing: Signing,
    pub next_id: u64,
}

impl Client {
    /// A legacy client that has its nonce already.
    pub fn new(world: &mut World, name: &str, remote: &str) -> Client {
        Client::on(world, name, path(remote))
    }

    pub fn on(world: &mut World, name: &str, path: ClientPath) -> Client {
        let nonce = Client::nonce(world, &path);
        let signing = Signing::legacy(name, &format!("{name}'s password"), &nonce);
        Client {
            path,
            signing,
            next_id: fresh_ids(),
        }
    }

    /// A client by RFC 8489.
    pub fn modern(world: &mut World, name: &str, remote: &str) -> Client {
        let path = path(remote);
        let nonce = Client::nonce(world, &path);
        let signing = Signing::modern(name, &format!("{name}'s password"), &nonce);
        Client {
            path,
            signing,
            next_id: fresh_ids(),
        }
    }

    /// Gets a nonce with a request without credentials.
    pub fn nonce(world: &mut World, path: &ClientPath) -> Vec<u8> {
        let mut buffer = [0; 64];
        let id = TransactionId([0xee; 12]);
        let mut request = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
        request.push(&RequestedTransport::UDP).unwrap();
        let reply = world.ask(path, request.finish());
        assert_eq!(reply.code(), 401);
        reply.get::<Nonce<'_>>().unwrap().0.to_vec()
    }

    pub fn id(&mut self) -> TransactionId {
        self.next_id += 1;
        let mut id = [0; 12];
        id[4..].copy_from_slice(&self.next_id.to_be_bytes());
        TransactionId(id)
    }

    /// A signed request with these attributes in front.
    pub fn request(
        &mut self,
        method: Method,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let id = self.id();
        let mut builder = Builder::new(&mut buffer, Class::Request, method, &id).unwrap();
        attributes(&mut builder);
        sign_into(&mut builder, &self.signing);
        builder.finish().to_vec()
    }

    pub fn ask(
        &mut self,
        world: &mut World,
        method: Method,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> Reply {
        let request = self.request(method, attributes);
        world.ask(&self.path, &request)
    }

    /// A signed Allocate request with these attributes besides REQUESTED-TRANSPORT.
    pub fn allocate_request(&mut self, attributes: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
        self.request(Method::ALLOCATE, |request| {
            request.push(&RequestedTransport::UDP).unwrap();
            attributes(request);
        })
    }

    /// Sends an Allocate request whose sockets the test opens itself. Returns the request and what is to be opened.
    pub fn wait_for_relays(
        &mut self,
        world: &mut World,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> (Vec<u8>, RequestKey, Vec<RelayRequest>) {
        world.auto_open = false;
        let request = self.allocate_request(attributes);
        assert_eq!(
            world.client(&self.path, &request),
            ClientVerdict::Handled { covers: 1 }
        );
        match world.event() {
            Event::OpenRelays {
                request: key,
                relays,
                ..
            } => (request, key, relays),
            other => panic!("no relays wanted: {other:?}"),
        }
    }

    /// Asks with an Allocate request with these attributes besides REQUESTED-TRANSPORT.
    pub fn try_allocate(
        &mut self,
        world: &mut World,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> Reply {
        let request = self.allocate_request(attributes);
        world.ask(&self.path, &request)
    }

    /// Allocates; expects success and its log record. Returns the relay's key and address.
    pub fn allocate(&mut self, world: &mut World) -> (RelayKey, SocketAddr) {
        let reply = self.try_allocate(world, |_| {});
        assert_eq!(reply.code(), 0);
        world.expect_opened();
        let relayed = reply.relayed()[0];
        (world.relay_at(relayed), relayed)
    }

    pub fn refresh(&mut self, world: &mut World, lifetime_s: u32) -> Reply {
        self.ask(world, Method::REFRESH, |request| {
            request.push(&Lifetime(lifetime_s)).unwrap();
        })
    }

    pub fn permit(&mut self, world: &mut World, peers: &[&str]) -> u16 {
        let reply = self.ask(world, Method::CREATE_PERMISSION, |request| {
            for peer in peers {
                request.push(&XorPeerAddress(address(peer))).unwrap();
            }
        });
        reply.code()
    }

    pub fn bind(&mut self, world: &mut World, number: u16, peer: &str) -> u16 {
        let reply = self.ask(world, Method::CHANNEL_BIND, |request| {
            request
                .push_raw(
                    AttributeType::CHANNEL_NUMBER,
                    &[(number >> 8) as u8, number as u8, 0, 0],
                )
                .unwrap();
            request.push(&XorPeerAddress(address(peer))).unwrap();
        });
        reply.code()
    }

    /// The key that answers are signed with.
    pub fn key(&self) -> &HmacKey {
        &self.signing.keys[0]
    }

    /// Sends ChannelData.
    pub fn channel_data(&self, world: &mut World, number: u16, payload: &[u8]) -> ClientVerdict {
        let mut datagram = channel_header(number, payload.len()).to_vec();
        datagram.extend_from_slice(payload);
        world.client(&self.path, &datagram)
    }

    /// Sends a Send indication.
    pub fn send(&mut self, world: &mut World, peer: &str, payload: &[u8]) -> ClientVerdict {
        let indication = self.send_indication(|builder| {
            builder
                .push(&XorPeerAddress(address(peer)))
                .unwrap()
                .push(&stun::Data(payload))
                .unwrap();
        });
        world.client(&self.path, &indication)
    }

    pub fn send_indication(&mut self, attributes: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let id = self.id();
        let mut builder = Builder::new(&mut buffer, Class::Indication, Method::SEND, &id).unwrap();
        attributes(&mut builder);
        builder.finish().to_vec()
    }
}

pub fn channel_header(number: u16, length: usize) -> [u8; 4] {
    let [n0, n1] = number.to_be_bytes();
    let [l0, l1] = (length as u16).to_be_bytes();
    [n0, n1, l0, l1]
}

pub fn channel(number: u16) -> ChannelNumber {
    ChannelNumber::new(number).unwrap()
}
