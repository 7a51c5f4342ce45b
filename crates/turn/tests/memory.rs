//! What an allocation costs, and that relaying costs nothing.
#![allow(missing_docs, clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use allocation_counter::measure;
use hairpin_turn as turn;
use stun::nonce::NonceKeys;
use stun::{
    Builder, ChannelNumber, Class, Data, HmacKey, Lifetime, Message, Method, Nonce,
    PasswordAlgorithm, Realm, RequestedTransport, TransactionId, Username, XorPeerAddress,
    long_term_key,
};
use turn::server::credentials::{RestCredentials, rest_password};
use turn::server::{
    ClientIdentity, ClientVerdict, Config, OpenedRelay, Output, PeerClass, PeerPolicy, PeerVerdict,
    Server,
};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, Run, Transport};

const NOW: Now = Now {
    mono: Mono(0),
    unix_s: 1_700_000_000,
};
const SECRET: &[u8] = b"secret";
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7)), 700);

#[derive(Debug)]
struct Everybody;

impl PeerPolicy for Everybody {
    fn classify(&self, _: &ClientIdentity<'_>, _: IpAddr) -> PeerClass {
        PeerClass::Peer
    }

    fn permits(&self, _: &ClientIdentity<'_>, _: SocketAddr) -> PeerClass {
        PeerClass::Peer
    }
}

fn server(change: impl FnOnce(&mut Config)) -> Server {
    let credentials = Arc::new(RestCredentials::new([SECRET]));
    let mut config = Config::new(
        "example.org",
        NonceKeys::new(&[1; 32]),
        credentials,
        Arc::new(Everybody),
    );
    change(&mut config);
    Server::new(config.validate().unwrap(), 0, [2; 32])
}

/// A client with a buffer of its own, so that it does not disturb what is measured.
struct Client {
    path: ClientPath,
    username: String,
    key: HmacKey,
    nonce: Vec<u8>,
    id: u64,
    buffer: [u8; 512],
    length: usize,
}

impl Client {
    fn new(server: &mut Server, number: u16, username: &str) -> Client {
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: ([192, 0, 2, 1], 3478).into(),
            remote: ([198, 51, 100, 1], number).into(),
        };
        let password = rest_password(SECRET, username);
        let key =
            long_term_key(PasswordAlgorithm::Md5, username, "example.org", &password).unwrap();
        let mut client = Client {
            path: ClientPath {
                five_tuple,
                listener: ListenerKey(0),
            },
            username: username.to_owned(),
            key: key.hmac_sha1(),
            nonce: Vec::new(),
            id: u64::from(number) << 32,
            buffer: [0; 512],
            length: 0,
        };
        let mut buffer = [0; 64];
        let mut request = Builder::new(
            &mut buffer,
            Class::Request,
            Method::ALLOCATE,
            &TransactionId([0; 12]),
        )
        .unwrap();
        request.push(&RequestedTransport::UDP).unwrap();
        let request = request.finish();
        assert_eq!(
            server.handle_client(NOW, &client.path, Run::single(request)),
            ClientVerdict::Handled { covers: 1 }
        );
        let Some(Output::Send { bytes, .. }) = server.poll_output() else {
            panic!()
        };
        let nonce: Nonce<'_> = Message::parse(bytes).unwrap().get().unwrap().unwrap();
        client.nonce = nonce.0.to_vec();
        assert!(server.poll_output().is_none());
        client
    }

    fn write(&mut self, method: Method, attributes: impl FnOnce(&mut Builder<'_>)) {
        self.id += 1;
        let mut id = [0; 12];
        id[..8].copy_from_slice(&self.id.to_be_bytes());
        let mut request =
            Builder::new(&mut self.buffer, Class::Request, method, &TransactionId(id)).unwrap();
        attributes(&mut request);
        request.push(&Username(&self.username)).unwrap();
        request.push(&Realm("example.org")).unwrap();
        request.push(&Nonce(&self.nonce)).unwrap();
        request.integrity(&self.key).unwrap();
        self.length = request.finish().len();
    }

    /// Hands the request in, opens the socket if one is wanted, and expects success. Returns the relay's key.
    fn ask(
        &mut self,
        server: &mut Server,
        method: Method,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> Option<RelayKey> {
        self.ask_at(NOW, server, method, attributes)
    }

    fn ask_at(
        &mut self,
        now: Now,
        server: &mut Server,
        method: Method,
        attributes: impl FnOnce(&mut Builder<'_>),
    ) -> Option<RelayKey> {
        self.write(method, attributes);
        let run = Run::single(&self.buffer[..self.length]);
        assert_eq!(
            server.handle_client(now, &self.path, run),
            ClientVerdict::Handled { covers: 1 }
        );
        let mut wanted = None;
        while let Some(output) = server.poll_output() {
            match output {
                Output::OpenRelays {
                    request, relays, ..
                } => wanted = Some((request, relays[0].key)),
                Output::Send { bytes, .. } => {
                    assert_eq!(Message::parse(bytes).unwrap().class(), Class::Success)
                }
                _ => {}
            }
        }
        let (request, key) = wanted?;
        let address = SocketAddr::from(([203, 0, 113, 1], self.path.five_tuple.remote.port()));
        assert!(server.relays_opened(
            now,
            request,
            &[Ok(OpenedRelay {
                local: address,
                advertised: address
            })]
        ));
        while server.poll_output().is_some() {}
        Some(key)
    }

    fn allocate(&mut self, server: &mut Server) -> RelayKey {
        self.ask(server, Method::ALLOCATE, |request| {
            request.push(&RequestedTransport::UDP).unwrap();
        })
        .unwrap()
    }

    fn bind(&mut self, server: &mut Server) {
        self.ask(server, Method::CHANNEL_BIND, |request| {
            request
                .push(&ChannelNumber::MIN)
                .unwrap()
                .push(&XorPeerAddress(PEER))
                .unwrap();
        });
    }

    fn delete(&mut self, server: &mut Server) {
        self.ask(server, Method::REFRESH, |request| {
            request.push(&Lifetime(0)).unwrap();
        });
    }
}

const CLIENTS: u16 = 4096;

/// Bytes of heap per allocation with one permission and one channel.
fn bytes_per_allocation(username: impl Fn(u16) -> String) -> u64 {
    bytes_per_allocation_with(username, |_| {})
}

fn bytes_per_allocation_with(
    username: impl Fn(u16) -> String,
    change: impl FnOnce(&mut Config),
) -> u64 {
    let mut server = server(change);
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| Client::new(&mut server, number + 1, &username(number)))
        .collect();
    let counted = measure(|| {
        for client in &mut clients {
            client.allocate(&mut server);
            client.bind(&mut server);
        }
    });
    assert_eq!(server.stats().channels, u64::from(CLIENTS));
    counted.bytes_current as u64 / u64::from(CLIENTS)
}

#[test]
fn an_allocation_with_a_permission_and_a_channel_takes_at_most_450_bytes() {
    let shared = bytes_per_allocation(|_| "1800000000:alice".to_owned());
    println!("allocation, permission and channel: {shared} bytes");
    assert!(shared <= 450, "{shared}");
}

#[test]
fn an_allocation_with_a_user_of_its_own_takes_at_most_600_bytes() {
    let own = bytes_per_allocation(|number| format!("1800000000:user{number}"));
    println!("allocation, permission, channel, user and its place in the cache: {own} bytes");
    assert!(own <= 600, "{own}");
}

#[test]
fn offloading_takes_no_memory_and_a_rate_limit_one_number() {
    let alice = |_| "1800000000:alice".to_owned();
    let plain = bytes_per_allocation(alice);
    let offloaded = bytes_per_allocation_with(alice, |config| config.offload = true);
    let limited = bytes_per_allocation_with(alice, |config| config.allocation_rate = 1_000_000);
    println!("plain {plain}, offloaded {offloaded}, limited {limited} bytes");
    assert_eq!(offloaded, plain);
    assert!(limited <= plain + 16);
}

#[test]
fn memory_is_flat_when_allocations_come_and_go() {
    let mut server = server(|config| (config.max_deletions, config.max_cached_keys) = (0, 16));
    let mut clients: Vec<Client> = (0..64)
        .map(|number| Client::new(&mut server, number + 1, "1800000000:alice"))
        .collect();
    let mut round = |server: &mut Server| {
        for client in &mut clients {
            client.allocate(server);
            client.bind(server);
        }
        for client in &mut clients {
            client.delete(server);
        }
    };
    round(&mut server);
    let counted = measure(|| (0..50).for_each(|_| round(&mut server)));
    assert_eq!(server.stats().allocations_opened, 51 * 64);
    assert_eq!(counted.bytes_current, 0);
}

/// The time passes, so allocations, permissions, channels, answers and nonces all grow old.
#[test]
fn memory_is_flat_after_a_million_allocations() {
    const AT_ONCE: u16 = 4000;
    const ROUNDS: u64 = 250;
    let mut server = server(|config| config.nonce_lifetime_s = 3600);
    let mut clients: Vec<Client> = (0..AT_ONCE)
        .map(|number| Client::new(&mut server, number + 1, "1800000000:alice"))
        .collect();
    let mut now = NOW;
    let mut round = |server: &mut Server| {
        for client in &mut clients {
            client.ask_at(now, server, Method::ALLOCATE, |request| {
                request.push(&RequestedTransport::UDP).unwrap();
            });
        }
        assert_eq!(server.stats().allocations, u64::from(AT_ONCE));
        now.mono = now.mono.plus_secs(600);
        while server.poll_timeout().is_some_and(|at| at <= now.mono) {
            server.handle_timeout(now);
            while server.poll_output().is_some() {}
        }
        assert_eq!(
            (server.stats().allocations, server.stats().deletions),
            (0, 0)
        );
    };
    round(&mut server);
    let counted = measure(|| (1..ROUNDS).for_each(|_| round(&mut server)));
    let opened = server.stats().allocations_opened;
    assert_eq!(opened, ROUNDS * u64::from(AT_ONCE));
    // Tables shrink when they are empty, so it may be a little less.
    assert!(counted.bytes_current <= 0, "{}", counted.bytes_current);
}

#[test]
fn memory_of_many_allocations_is_given_back_when_they_have_ended() {
    const AT_ONCE: u16 = 4000;
    let mut server = server(|config| config.max_deletions = 0);
    let mut clients: Vec<Client> = (0..AT_ONCE)
        .map(|number| Client::new(&mut server, number + 1, "1800000000:alice"))
        .collect();
    let before = measure(|| {
        for client in &mut clients {
            client.allocate(&mut server);
        }
    });
    let after = measure(|| {
        for client in &mut clients {
            client.delete(&mut server);
        }
    });
    let kept = before.bytes_current + after.bytes_current;
    assert!(
        kept * 10 < before.bytes_current,
        "{kept} of {} bytes are kept",
        before.bytes_current
    );
}

#[test]
fn deletions_take_what_their_limit_allows_and_then_nothing_more() {
    let mut server = server(|config| config.max_deletions = 800);
    let mut client = Client::new(&mut server, 1, "1800000000:alice");
    let mut cycle = |server: &mut Server, times: usize| {
        for _ in 0..times {
            client.allocate(server);
            client.delete(server);
        }
    };
    let filled = measure(|| cycle(&mut server, 1_000));
    // One prefix gets an eighth.
    assert_eq!(server.stats().deletions, 100);
    println!("100 deletions: {} bytes", filled.bytes_current);
    assert!(filled.bytes_current < 30_000, "{}", filled.bytes_current);
    let full = measure(|| cycle(&mut server, 1_000));
    assert_eq!(full.bytes_current, 0);
}

#[test]
fn relaying_allocates_nothing_in_either_direction() {
    let mut server = server(|_| {});
    let mut client = Client::new(&mut server, 1, "1800000000:alice");
    let relay = client.allocate(&mut server);
    client.bind(&mut server);
    let path = client.path;
    let mut datagrams = Vec::new();
    for _ in 0..10 {
        datagrams.extend_from_slice(&[0x40, 0, 0, 100]);
        datagrams.resize(datagrams.len() + 100, 7);
    }
    let mut buffer = [0; 256];
    let mut indication = Builder::new(
        &mut buffer,
        Class::Indication,
        Method::SEND,
        &TransactionId([1; 12]),
    )
    .unwrap();
    indication
        .push(&XorPeerAddress(PEER))
        .unwrap()
        .push(&Data(b"payload"))
        .unwrap();
    let indication = indication.finish();
    let unbound = SocketAddr::new(PEER.ip(), 1);
    let counted = measure(|| {
        for _ in 0..100 {
            let run = Run {
                bytes: &datagrams,
                stride: 104,
                tos: 0,
            };
            assert!(matches!(
                server.handle_client(NOW, &path, run),
                ClientVerdict::ToPeer { covers: 10, .. }
            ));
            let single = Run::single(&datagrams[..104]);
            assert!(matches!(
                server.handle_client(NOW, &path, single),
                ClientVerdict::ToPeer { covers: 1, .. }
            ));
            let sent = server.handle_client(NOW, &path, Run::single(indication));
            assert!(matches!(sent, ClientVerdict::ToPeer { covers: 1, .. }));
            assert!(matches!(
                server.handle_peer(NOW, relay, PEER, run),
                PeerVerdict::ChannelData { covers: 10, .. }
            ));
            assert!(matches!(
                server.handle_peer(NOW, relay, unbound, run),
                PeerVerdict::DataIndication { covers: 10, .. }
            ));
            let mut head = [0; 64];
            assert_eq!(server.write_data_indication(unbound, 100, &mut head), 36);
            assert!(server.poll_output().is_none());
        }
    });
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}

#[test]
fn unauthenticated_clients_use_no_memory() {
    let mut server = server(|_| {});
    // Warm up the buffer of outputs.
    Client::new(&mut server, 1, "1800000000:alice");
    let mut request = [0; 28];
    Builder::new(
        &mut request,
        Class::Request,
        Method::ALLOCATE,
        &TransactionId([1; 12]),
    )
    .unwrap()
    .push(&RequestedTransport::UDP)
    .unwrap();
    let mut bind = [0; 20];
    let _ = Builder::new(
        &mut bind,
        Class::Request,
        Method::BINDING,
        &TransactionId([1; 12]),
    )
    .unwrap()
    .finish();
    let counted = measure(|| {
        for number in 0..100_000u32 {
            let remote = SocketAddr::from((number.to_be_bytes(), number as u16));
            let five_tuple = FiveTuple {
                transport: Transport::Udp,
                local: ([192, 0, 2, 1], 3478).into(),
                remote,
            };
            let path = ClientPath {
                five_tuple,
                listener: ListenerKey(0),
            };
            for datagram in [&bind[..], &request[..], &[0x40, 0, 0, 1, 7], &[0, 1, 2]] {
                server.handle_client(NOW, &path, Run::single(datagram));
                while server.poll_output().is_some() {}
            }
        }
    });
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}
