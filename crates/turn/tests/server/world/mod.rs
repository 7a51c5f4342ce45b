//! A server with a virtual clock, an embedder that opens imaginary sockets, and clients that sign requests.

mod client;
mod event;
mod fakes;
mod reply;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use hairpin_turn as turn;
use stun::AddressFamily;
use stun::nonce::NonceKeys;
use turn::server::credentials::StaticCredentials;
use turn::server::{
    AuthFailure, ClientVerdict, CloseReason, Config, DropReason, OpenError, OpenedRelay,
    PeerVerdict, PortRequest, RelayRequest, RelayedAddresses, Server, Traffic,
};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, Run, Transport};

pub use client::{Client, Signing, bare, channel, channel_header, sign_into};
pub use event::{Event, Offloaded};
pub use fakes::{FakePolicy, FakeQuota};
pub use reply::Reply;

use event::own;

pub const REALM: &str = "example.org";
/// The wall clock at the start of every test.
pub const START_UNIX_S: u64 = 1_700_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The server's addresses for clients and for peers.
pub const LISTENER: &str = "192.0.2.1:3478";
pub const LISTENER_V6: &str = "[2001:db8::1]:3478";
pub const RELAY_IP: &str = "203.0.113.1";
pub const RELAY_IP_V6: &str = "2001:db8:1::1";

pub struct World {
    /// What the kernel has, by 5-tuple and channel number.
    pub offloaded: HashMap<(FiveTuple, u16), Offloaded>,
    pub server: Server,
    pub now: Now,
    pub config: Config,
    pub policy: Arc<FakePolicy>,
    pub quota: Arc<FakeQuota>,
    /// What happened and no test has looked at yet. Must be empty when a test ends.
    pub events: VecDeque<Event>,
    /// The failed authentications that were reported.
    pub failures: Vec<(String, AuthFailure, u64)>,
    /// The outputs that only report, in words.
    pub reports: Vec<String>,
    /// Whether sockets are opened at once; if not, `OpenRelays` is an event.
    pub auto_open: bool,
    /// What opening says, by family; `None` opens.
    pub refuse_v4: Option<OpenError>,
    pub refuse_v6: Option<OpenError>,
    /// Whether the port above an even one is taken.
    pub next_port_taken: bool,
    next_port: u16,
    /// The relays whose sockets are open.
    pub sockets: Vec<(RelayKey, SocketAddr)>,
}

impl World {
    pub fn new() -> World {
        World::with(|_| {})
    }

    /// A world whose server's configuration differs from the defaults.
    pub fn with(change: impl FnOnce(&mut Config)) -> World {
        let mut users = StaticCredentials::new(REALM);
        for name in ["alice", "bob"] {
            users
                .add_password(name, &format!("{name}'s password"))
                .unwrap();
        }
        let policy = Arc::new(FakePolicy::default());
        let quota = Arc::new(FakeQuota::default());
        let mut config = Config::new(
            REALM,
            NonceKeys::new(&[1; 32]),
            Arc::new(users),
            Arc::clone(&policy) as _,
        );
        config.quota = Arc::clone(&quota) as _;
        config.nonce_lifetime_s = 3600;
        // RFC 8656 to the letter; tests of the compatibility with other clients turn it on.
        config.channel_keeps_permission = false;
        change(&mut config);
        World {
            offloaded: HashMap::new(),
            server: Server::new(config.clone().validate().unwrap(), 7, [2; 32]),
            now: Now {
                mono: Mono(5 * SECOND),
                unix_s: START_UNIX_S,
            },
            config,
            policy,
            quota,
            events: VecDeque::new(),
            failures: Vec::new(),
            reports: Vec::new(),
            auto_open: true,
            refuse_v4: None,
            refuse_v6: None,
            next_port_taken: false,
            next_port: 50_000,
            sockets: Vec::new(),
        }
    }

    /// Changes the configuration of the running server.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        self.server
            .set_config(self.now, self.config.clone().validate().unwrap());
        self.catch_up();
    }

    /// Lets time pass, with every timeout handled at its very moment.
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.now.mono.0 + nanoseconds;
        let start = self.now;
        while let Some(at) = self.server.poll_timeout().filter(|at| at.0 <= end) {
            self.set_clock(start, at.0.max(self.now.mono.0));
            // A call does a bounded part of what is due.
            let mut calls = 0;
            while self.server.poll_timeout() == Some(at) {
                self.server.handle_timeout(self.now);
                self.drain();
                calls += 1;
                assert!(calls < 100, "the deadline was handled");
            }
        }
        self.set_clock(start, end);
    }

    /// Handles what is due at this moment.
    pub fn catch_up(&mut self) {
        while self
            .server
            .poll_timeout()
            .is_some_and(|at| at <= self.now.mono)
        {
            self.server.handle_timeout(self.now);
            self.drain();
        }
    }

    pub fn pass_s(&mut self, seconds: u64) {
        self.pass(seconds * SECOND);
    }

    /// Lets time pass while the embedder is asleep.
    pub fn oversleep_s(&mut self, seconds: u64) {
        self.set_clock(self.now, self.now.mono.0 + seconds * SECOND);
    }

    fn set_clock(&mut self, start: Now, mono: u64) {
        self.now = Now {
            mono: Mono(mono),
            unix_s: start.unix_s + (mono - start.mono.0) / SECOND,
        };
    }

    /// One datagram from a client.
    pub fn client(&mut self, path: &ClientPath, datagram: &[u8]) -> ClientVerdict {
        let verdict = self
            .server
            .handle_client(self.now, path, Run::single(datagram));
        assert!(verdict.covers() >= 1);
        self.drain();
        verdict
    }

    /// One datagram from a peer.
    pub fn peer(&mut self, relay: RelayKey, from: &str, payload: &[u8]) -> PeerVerdict {
        self.server
            .handle_peer(self.now, relay, address(from), Run::single(payload))
    }

    /// A request and its answer. Fails if there is not exactly one.
    pub fn ask(&mut self, path: &ClientPath, request: &[u8]) -> Reply {
        assert_eq!(
            self.client(path, request),
            ClientVerdict::Handled { covers: 1 }
        );
        self.reply(path)
    }

    /// The answer that has just been sent.
    pub fn reply(&mut self, to: &ClientPath) -> Reply {
        let place = self
            .events
            .iter()
            .position(|event| matches!(event, Event::Sent { .. }))
            .expect("an answer");
        let Some(Event::Sent { path, bytes }) = self.events.remove(place) else {
            unreachable!()
        };
        assert_eq!(path, *to);
        assert!(
            !self
                .events
                .iter()
                .any(|event| matches!(event, Event::Sent { .. })),
            "one answer"
        );
        Reply(bytes)
    }

    /// A datagram that must be discarded for this reason.
    pub fn dropped(&mut self, path: &ClientPath, datagram: &[u8]) -> DropReason {
        let before = self.server.stats().clone();
        let verdict = self.client(path, datagram);
        let ClientVerdict::Drop { covers: 1, reason } = verdict else {
            panic!("not dropped: {verdict:?}")
        };
        assert_eq!(
            self.server.stats().dropped(reason),
            before.dropped(reason) + 1
        );
        reason
    }

    /// Takes all outputs, and opens and closes sockets.
    pub fn drain(&mut self) {
        loop {
            let event = match self.server.poll_output() {
                None => return,
                Some(output) => own(output),
            };
            match event {
                Event::OpenRelays {
                    request, relays, ..
                } if self.auto_open => {
                    let results = self.open(&relays);
                    assert!(self.server.relays_opened(self.now, request, &results));
                }
                Event::Offload(offloaded) => {
                    let key = (offloaded.path.five_tuple, offloaded.channel);
                    self.offloaded.insert(key, offloaded.clone());
                    self.events.push_back(Event::Offload(offloaded));
                }
                Event::StopOffload(said) => {
                    let key = (said.path.five_tuple, said.channel);
                    let was = self.offloaded.remove(&key).expect("it was offloaded");
                    let (own_relay, deadline) = (was.own_relay, was.deadline);
                    let said = Offloaded {
                        own_relay,
                        deadline,
                        ..said
                    };
                    assert_eq!(said, was);
                    let one = Traffic {
                        packets: 1,
                        bytes: 10,
                    };
                    let two = Traffic {
                        packets: 2,
                        bytes: 20,
                    };
                    self.server.add_offloaded_traffic(said.allocation, one, two);
                    self.events.push_back(Event::StopOffload(said));
                }
                Event::CloseRelay(key) => {
                    self.sockets.retain(|(open, _)| *open != key);
                    self.events.push_back(event);
                }
                Event::AuthFailed(user, reason, omitted) => {
                    self.failures.push((user, reason, omitted));
                }
                Event::Reported(text) => self.reports.push(text),
                event => self.events.push_back(event),
            }
        }
    }

    /// Opens imaginary sockets.
    pub fn open(&mut self, relays: &[RelayRequest]) -> Vec<Result<OpenedRelay, OpenError>> {
        let mut results: Vec<Result<OpenedRelay, OpenError>> = Vec::new();
        for relay in relays {
            let refuse = if relay.family == AddressFamily::V4 {
                self.refuse_v4
            } else {
                self.refuse_v6
            };
            let result = match (refuse, relay.port, results.last().copied()) {
                (Some(error), ..) => Err(error),
                (None, PortRequest::Next, Some(Ok(_))) if self.next_port_taken => {
                    Err(OpenError::NoPort)
                }
                (None, PortRequest::Next, Some(Ok(even))) => {
                    Ok(opened(relay.family, even.advertised.port() + 1))
                }
                (None, PortRequest::Next, _) => Err(OpenError::NoPort),
                (None, PortRequest::Even, _) => Ok(opened(relay.family, self.take_port(true))),
                (None, PortRequest::Any, _) => Ok(opened(relay.family, self.take_port(false))),
            };
            if let Ok(opened) = result {
                self.sockets.push((relay.key, opened.advertised));
            }
            results.push(result);
        }
        results
    }

    fn take_port(&mut self, even: bool) -> u16 {
        self.next_port += if even { 2 - self.next_port % 2 } else { 1 };
        let port = self.next_port;
        self.next_port += u16::from(even);
        port
    }

    /// The key of the relay whose socket has this address.
    pub fn relay_at(&self, address: SocketAddr) -> RelayKey {
        self.sockets
            .iter()
            .find(|(_, open)| *open == address)
            .expect("an open socket")
            .0
    }

    /// The next event, which must be there.
    pub fn event(&mut self) -> Event {
        self.events.pop_front().expect("an event")
    }

    /// Expects the log record of a new allocation.
    pub fn expect_opened(&mut self) -> RelayedAddresses {
        match self.event() {
            Event::Opened { relayed, .. } => relayed,
            other => panic!("not opened: {other:?}"),
        }
    }

    /// Expects one allocation with so many relays to have ended.
    pub fn expect_closed(&mut self, relays: usize, reason: CloseReason) {
        for _ in 0..relays {
            let event = self.event();
            assert!(matches!(event, Event::CloseRelay(_)), "{event:?}");
        }
        let event = self.event();
        assert!(
            matches!(event, Event::Closed { reason: why, .. } if why == reason),
            "{event:?}"
        );
    }

    /// Ends the test: nothing is left over, and whatever was taken has been given back once all is over.
    pub fn finish(mut self) {
        self.close();
        self.expect_nothing_left();
    }

    /// Ends two worlds that share a quota.
    pub fn finish_both(mut self, mut other: World) {
        self.close();
        other.close();
        self.expect_nothing_left();
        other.expect_nothing_left();
    }

    fn close(&mut self) {
        assert_eq!(self.events, [], "nobody looked at these");
        self.server.close_all(self.now, CloseReason::ServerShutdown);
        while self.server.is_closing() {
            self.server.handle_timeout(self.now);
            self.drain();
        }
    }

    fn expect_nothing_left(&mut self) {
        let stats = self.server.stats();
        let left = [
            stats.allocations,
            stats.relays,
            stats.reservations,
            stats.pending,
            stats.lookups,
            stats.permissions,
            stats.channels,
            stats.peer_connections,
            stats.data_connections,
        ];
        assert_eq!(left, [0; 9], "the gauges return to zero");
        assert_eq!(
            self.offloaded,
            HashMap::new(),
            "nothing stays in the kernel"
        );
        assert_eq!(self.sockets, [], "all sockets are closed");
        self.quota.expect_all_released();
        self.pass_s(41);
        assert_eq!(self.server.stats().deletions, 0);
        assert_eq!(
            self.server.poll_timeout(),
            None,
            "nothing is left to expire"
        );
    }
}

fn opened(family: AddressFamily, port: u16) -> OpenedRelay {
    let ip = if family == AddressFamily::V4 {
        RELAY_IP
    } else {
        RELAY_IP_V6
    };
    let address = SocketAddr::new(ip.parse().unwrap(), port);
    OpenedRelay {
        local: address,
        advertised: address,
    }
}

/// The verdict that one datagram is dropped, from a client or from a peer.
pub fn drop_of<V: Dropped>(reason: DropReason) -> V {
    V::dropped(reason)
}

pub trait Dropped {
    fn dropped(reason: DropReason) -> Self;
}

impl Dropped for ClientVerdict {
    fn dropped(reason: DropReason) -> ClientVerdict {
        ClientVerdict::Drop { covers: 1, reason }
    }
}

impl Dropped for PeerVerdict {
    fn dropped(reason: DropReason) -> PeerVerdict {
        PeerVerdict::Drop { covers: 1, reason }
    }
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The path of a client on UDP.
pub fn path(remote: &str) -> ClientPath {
    path_on(Transport::Udp, remote)
}

pub fn path_on(transport: Transport, remote: &str) -> ClientPath {
    let remote = address(remote);
    let local = address(if remote.is_ipv4() {
        LISTENER
    } else {
        LISTENER_V6
    });
    ClientPath {
        five_tuple: FiveTuple {
            transport,
            local,
            remote,
        },
        listener: ListenerKey(1),
    }
}
