//! What the target of the TURN server does with an input, shared with the test in crates/turn that replays the corpus.
//!
//! The input is a list of steps of a few bytes each; the first byte of a step says what it is, the next ones choose
//! among a few clients, peers and values. Requests are signed with what the server has told the client, or with
//! something near it. So inputs get beyond authentication.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hairpin_stun as stun;
use hairpin_turn as turn;
use stun::nonce::NonceKeys;
use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeType, Builder, Class, EvenPort, Lifetime,
    Message, Method, Nonce, PasswordAlgorithm, Realm, RequestedTransport, ReservationToken,
    TransactionId, Username, XorPeerAddress, long_term_key,
};
use turn::server::credentials::{
    Claim, Credentials, KeyLookup, KeyQuery, KnownUser, OwnedKeyQuery,
};
use turn::server::{
    ClientIdentity, CloseReason, Config, OpenError, OpenedRelay, Output, PeerClass, PeerPolicy,
    Server, UsersToForget,
};
use turn::{
    ClientPath, FiveTuple, ListenerKey, LookupKey, Mono, Now, RelayKey, RequestKey, Run, Transport,
};

const REALM: &str = "example.org";
const CLIENTS: usize = 4;

/// Users whose name begins with `l` are found later.
#[derive(Debug)]
struct Users;

impl Credentials for Users {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        match query.claim {
            Claim::Username(name) if name.starts_with('l') => KeyLookup::Pending,
            _ => known(query),
        }
    }
}

fn known(query: &KeyQuery<'_>) -> KeyLookup {
    let Claim::Username(name) = query.claim else {
        return KeyLookup::Unknown;
    };
    match long_term_key(query.algorithm, name, query.realm, "password") {
        Ok(key) => KeyLookup::Known(KnownUser::with_key(name, key)),
        Err(_) => KeyLookup::Unknown,
    }
}

#[derive(Debug)]
struct Policy;

impl PeerPolicy for Policy {
    fn classify(&self, _: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        match peer {
            IpAddr::V4(v4) if v4.octets()[3] == 3 => PeerClass::Denied,
            _ => PeerClass::Peer,
        }
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.classify(client, peer.ip())
    }
}

struct Target {
    server: Server,
    config: Config,
    now: Now,
    nonces: [Vec<u8>; CLIENTS],
    last: [Vec<u8>; CLIENTS],
    lookups: Vec<(LookupKey, OwnedKeyQuery)>,
    opening: Vec<(RequestKey, Vec<AddressFamily>)>,
    relays: Vec<RelayKey>,
    token: [u8; 8],
    id: u32,
    port: u16,
}

/// Takes the steps; whatever they are, in the end nothing is left.
pub fn server(input: &[u8]) {
    let mut config = Config::new(
        REALM,
        NonceKeys::new(&[1; 32]),
        Arc::new(Users),
        Arc::new(Policy),
    );
    (config.max_lookups, config.max_lookups_per_prefix) = (3, 2);
    (config.max_deletions, config.max_cached_keys) = (16, 2);
    let valid = config.clone().validate().expect("a valid configuration");
    let mut target = Target {
        server: Server::new(valid, 0, [2; 32]),
        config,
        now: Now {
            mono: Mono(5_000_000_000),
            unix_s: 1_700_000_000,
        },
        nonces: Default::default(),
        last: Default::default(),
        lookups: Vec::new(),
        opening: Vec::new(),
        relays: Vec::new(),
        token: [0; 8],
        id: 0,
        port: 50_000,
    };
    for step in input.chunks(4).take(256) {
        let byte = |at: usize| step.get(at).copied().unwrap_or_default();
        target.step(byte(0), byte(1), byte(2), byte(3));
        target.drain();
        let stats = target.server.stats();
        assert!(stats.lookups <= 3 && stats.deletions <= 16);
    }
    target.end();
}

impl Target {
    fn step(&mut self, kind: u8, who: u8, a: u8, b: u8) {
        let client = usize::from(who) % CLIENTS;
        match kind % 16 {
            0..=6 => self.request(client, kind % 16, a, b),
            7 => {
                let again = self.last[client].clone();
                self.server
                    .handle_client(self.now, &path(client), Run::single(&again));
            }
            8 => {
                let datagram = [0x40, a % 4, 0, 4, 1, 2, 3, 4];
                self.server
                    .handle_client(self.now, &path(client), Run::single(&datagram));
            }
            9 => {
                if let Some(relay) = self.relays.get(usize::from(a)).copied() {
                    self.server
                        .handle_peer(self.now, relay, peer(b), Run::single(b"data"));
                }
            }
            10 => self.pass(u64::from(a) * 1_000_000_000 * if b > 200 { 60 } else { 1 }),
            11 => self.answer(a, b),
            12 => self.opened(a, b),
            13 => self.reload(a, b),
            14 => self.server.forget_users(match a % 3 {
                0 => UsersToForget::All,
                1 => UsersToForget::Realm(REALM),
                _ => UsersToForget::User("late"),
            }),
            _ => self
                .server
                .client_closed(self.now, &path(client).five_tuple),
        }
    }

    fn request(&mut self, client: usize, method: u8, a: u8, b: u8) {
        let method = match method {
            0 | 1 => Method::ALLOCATE,
            2 => Method::REFRESH,
            3 => Method::CREATE_PERMISSION,
            4 | 5 => Method::CHANNEL_BIND,
            _ => Method::BINDING,
        };
        self.id += 1;
        let mut id = [0; 12];
        id[..4].copy_from_slice(&self.id.to_be_bytes());
        let mut buffer = [0; 512];
        let mut builder =
            Builder::new(&mut buffer, Class::Request, method, &TransactionId(id)).expect("room");
        self.attributes(&mut builder, method, a);
        let name = ["ann", "late", "lena", "bob"][usize::from(b) % 4];
        let mut nonce = self.nonces[client].clone();
        if b & 0x80 != 0 && !nonce.is_empty() {
            let at = usize::from(a) % nonce.len();
            nonce[at] ^= 1;
        }
        let password = if b & 0x40 != 0 { "wrong" } else { "password" };
        let key = long_term_key(PasswordAlgorithm::Md5, name, REALM, password).expect("ASCII");
        let hmac = match b & 0x20 {
            0 => key.hmac_sha1(),
            _ => key.hmac_sha256(),
        };
        builder.push(&Username(name)).expect("room");
        builder.push(&Realm(REALM)).expect("room");
        builder.push(&Nonce(&nonce)).expect("room");
        if b & 0x10 == 0 {
            builder.integrity(&hmac).expect("room");
        }
        self.last[client] = builder.finish().to_vec();
        let request = self.last[client].clone();
        self.server
            .handle_client(self.now, &path(client), Run::single(&request));
    }

    fn attributes(&self, builder: &mut Builder<'_>, method: Method, a: u8) {
        let number = [0x40, a % 4, 0, 0];
        if method == Method::ALLOCATE {
            builder.push(&RequestedTransport::UDP).expect("room");
            match a % 6 {
                1 => builder.push(&EvenPort { reserve: true }).map(drop),
                2 => builder.push(&ReservationToken(self.token)).map(drop),
                3 => builder
                    .push(&AdditionalAddressFamily(AddressFamily::V6))
                    .map(drop),
                4 => builder.push(&Lifetime(3600)).map(drop),
                _ => Ok(()),
            }
            .expect("room");
        } else if method == Method::REFRESH {
            builder
                .push(&Lifetime(u32::from(a % 3) * 600))
                .expect("room");
        } else {
            builder
                .push_raw(AttributeType::CHANNEL_NUMBER, &number)
                .expect("room");
            builder.push(&XorPeerAddress(peer(a / 4))).expect("room");
        }
    }

    /// A source of credentials answers.
    fn answer(&mut self, a: u8, b: u8) {
        if self.lookups.is_empty() {
            return;
        }
        let at = usize::from(a) % self.lookups.len();
        let (lookup, query) = self.lookups.swap_remove(at);
        let found = match b % 4 {
            0 | 1 => known(&query.query()),
            2 => KeyLookup::Unknown,
            _ => KeyLookup::Unavailable,
        };
        self.server.keys_found(self.now, lookup, found);
    }

    /// Sockets are open, or are not.
    fn opened(&mut self, a: u8, b: u8) {
        if self.opening.is_empty() {
            return;
        }
        let at = usize::from(a) % self.opening.len();
        let (request, families) = self.opening.swap_remove(at);
        if b == 0xFF {
            self.server.request_moved(self.now, request, 1);
            return;
        }
        let results: Vec<_> = (0..)
            .zip(families)
            .map(|(which, family)| {
                self.port = self.port.wrapping_add(1);
                let v4 = SocketAddr::from(([203, 0, 113, 1], self.port));
                let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], self.port));
                let address = if family == AddressFamily::V6 { v6 } else { v4 };
                match b & (1 << which) {
                    0 => Ok(OpenedRelay {
                        local: address,
                        advertised: address,
                    }),
                    _ => Err(OpenError::NoPort),
                }
            })
            .collect();
        self.server.relays_opened(self.now, request, &results);
    }

    fn reload(&mut self, a: u8, b: u8) {
        self.config.strict_expiry = a & 1 != 0;
        self.config.announce_password_algorithms = a & 2 != 0;
        self.config.authenticate_binding = a & 4 != 0;
        if a & 8 != 0 {
            self.config.nonce_keys.rotate(&[b; 32]);
        }
        let valid = self.config.clone().validate().expect("still valid");
        self.server.set_config(self.now, valid);
    }

    fn pass(&mut self, nanoseconds: u64) {
        let end = self.now.mono.0 + nanoseconds;
        for _ in 0..1000 {
            let Some(at) = self.server.poll_timeout().filter(|at| at.0 <= end) else {
                break;
            };
            self.now.mono = self.now.mono.max(at);
            self.server.handle_timeout(self.now);
            self.drain();
        }
        self.now.unix_s += nanoseconds / 1_000_000_000;
        self.now.mono = self.now.mono.max(Mono(end));
    }

    fn drain(&mut self) {
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Send { path, bytes } => {
                    let message = Message::parse(bytes).expect("responses are well formed");
                    let client = usize::from(path.five_tuple.remote.port() - 4000);
                    if let Ok(Some(nonce)) = message.get::<Nonce<'_>>() {
                        self.nonces[client] = nonce.0.to_vec();
                    }
                    if let Ok(Some(token)) = message.get::<ReservationToken>() {
                        self.token = token.0;
                    }
                }
                Output::OpenRelays {
                    request, relays, ..
                } => {
                    let families = relays.iter().map(|relay| relay.family).collect();
                    self.opening.push((request, families));
                    self.relays.extend(relays.iter().map(|relay| relay.key));
                }
                Output::FindKeys { lookup, query, .. } => {
                    self.lookups.push((lookup, query.to_owned()));
                }
                _ => {}
            }
        }
    }

    /// Closes everything: nothing is left, and nothing waits.
    fn end(mut self) {
        self.server.close_all(self.now, CloseReason::ServerShutdown);
        while self.server.is_closing() {
            self.server.handle_timeout(self.now);
            self.drain();
        }
        self.pass(4_000_000_000_000);
        let stats = self.server.stats();
        let left = [
            stats.allocations,
            stats.relays,
            stats.reservations,
            stats.pending,
            stats.lookups,
            stats.deletions,
            stats.permissions,
            stats.channels,
        ];
        assert_eq!(left, [0; 8]);
        assert_eq!(self.server.poll_timeout(), None);
    }
}

fn path(client: usize) -> ClientPath {
    let transport = if client == 3 {
        Transport::Tcp
    } else {
        Transport::Udp
    };
    ClientPath {
        five_tuple: FiveTuple {
            transport,
            local: ([192, 0, 2, 1], 3478).into(),
            remote: ([198, 51, 100, 1], 4000 + client as u16).into(),
        },
        listener: ListenerKey(0),
    }
}

fn peer(number: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 2 + number % 4], 7 + u16::from(number % 2)))
}
