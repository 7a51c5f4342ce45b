//! The tests of RFC 5780 through simulated NATs, to the server's own engine.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stun::nonce::NonceKeys;
use stun::{AttributeType, Builder, Class, ErrorCode, Message, Method};
use turn::server::credentials::StaticCredentials;
use turn::server::{AllowEveryPeer, Config, DiscoveryListeners, Output, Server};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, Run, Transport};

use super::report::{Behaviour, Hairpinning, Lifetime, NatReport};
use super::steps::Prober;
use super::{Network, ProbeError, Received};
use crate::probe::ProbeErrorKind;

const SERVER: &str = "192.0.2.1:3478";
const IPS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const PORTS: [u16; 2] = [3478, 3479];
const PUBLIC: &str = "203.0.113.9";
const HOST: &str = "10.0.0.5";
const TIMEOUT: Duration = Duration::from_secs(5);
const EVERY: [Behaviour; 3] = [
    Behaviour::EndpointIndependent,
    Behaviour::AddressDependent,
    Behaviour::AddressAndPortDependent,
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// What the simulated network does.
#[derive(Clone, Copy)]
struct Rules {
    /// `None`: there is no NAT.
    mapping: Option<Behaviour>,
    filtering: Behaviour,
    hairpin: bool,
    lifetime: Duration,
    /// Each datagram's first transmission is lost.
    loses_first: bool,
    /// The server has one address.
    one_address: bool,
    /// The server does not know RESPONSE-PORT.
    no_response_port: bool,
    /// The server's responses come from where the request went.
    ignores_change: bool,
    /// The server's other address is silent.
    other_is_silent: bool,
}

const OPEN: Rules = Rules {
    mapping: Some(Behaviour::EndpointIndependent),
    filtering: Behaviour::EndpointIndependent,
    hairpin: true,
    lifetime: Duration::from_secs(3600),
    loses_first: false,
    one_address: false,
    no_response_port: false,
    ignores_change: false,
    other_is_silent: false,
};

struct Binding {
    inner: SocketAddr,
    outer: SocketAddr,
    /// The peer, as far as the mapping depends on it.
    towards: (Option<IpAddr>, Option<u16>),
    peers: Vec<SocketAddr>,
    last_sent: Duration,
}

struct Simulated {
    rules: Rules,
    now: Duration,
    sockets: Vec<SocketAddr>,
    bindings: Vec<Binding>,
    engine: Server,
    arrived: VecDeque<Received>,
    sent: Vec<Vec<u8>>,
    ids: u8,
}

impl Simulated {
    fn new(rules: Rules) -> Simulated {
        let users = Arc::new(StaticCredentials::new("example.org"));
        let keys = NonceKeys::new(&[1; 32]);
        let mut config = Config::new("example.org", keys, users, Arc::new(AllowEveryPeer));
        let ips = IPS.map(ip);
        if !rules.one_address {
            config.discovery.listeners.push(DiscoveryListeners {
                transport: Transport::Udp,
                ips,
                external: ips,
                ports: PORTS,
                listeners: [[0, 1], [2, 3]].map(|ports| ports.map(ListenerKey)),
            });
        }
        Simulated {
            rules,
            now: Duration::ZERO,
            sockets: Vec::new(),
            bindings: Vec::new(),
            engine: Server::new(config.validate().unwrap(), 0, [2; 32]),
            arrived: VecDeque::new(),
            sent: Vec::new(),
            ids: 0,
        }
    }

    /// The address that a datagram leaves the NAT with.
    fn outbound(&mut self, inner: SocketAddr, to: SocketAddr) -> SocketAddr {
        let Some(mapping) = self.rules.mapping else {
            return self.bind(inner, inner, (None, None), to);
        };
        let towards = match mapping {
            Behaviour::EndpointIndependent => (None, None),
            Behaviour::AddressDependent => (Some(to.ip()), None),
            Behaviour::AddressAndPortDependent => (Some(to.ip()), Some(to.port())),
        };
        let port = 20_000 + u16::try_from(self.bindings.len()).unwrap();
        self.bind(inner, SocketAddr::new(ip(PUBLIC), port), towards, to)
    }

    fn bind(
        &mut self,
        inner: SocketAddr,
        outer: SocketAddr,
        towards: (Option<IpAddr>, Option<u16>),
        to: SocketAddr,
    ) -> SocketAddr {
        let (now, lifetime) = (self.now, self.rules.lifetime);
        let alive = |binding: &&mut Binding| {
            binding.inner == inner
                && binding.towards == towards
                && now < binding.last_sent + lifetime
        };
        if let Some(binding) = self.bindings.iter_mut().find(alive) {
            binding.peers.push(to);
            binding.last_sent = now;
            return binding.outer;
        }
        self.bindings.push(Binding {
            inner,
            outer,
            towards,
            peers: vec![to],
            last_sent: now,
        });
        outer
    }

    /// A datagram from outside, or through the hairpin.
    fn inbound(&mut self, outer: SocketAddr, from: SocketAddr, bytes: Vec<u8>) {
        let (now, rules) = (self.now, self.rules);
        let admits = |binding: &&Binding| {
            let knows = |same: fn(&SocketAddr, &SocketAddr) -> bool| {
                binding.peers.iter().any(|peer| same(peer, &from))
            };
            let passes = match rules.filtering {
                Behaviour::EndpointIndependent => true,
                Behaviour::AddressDependent => knows(|peer, from| peer.ip() == from.ip()),
                Behaviour::AddressAndPortDependent => knows(|peer, from| peer == from),
            };
            binding.outer == outer && passes && now < binding.last_sent + rules.lifetime
        };
        let inner = self
            .bindings
            .iter()
            .find(admits)
            .map(|binding| binding.inner);
        let socket = self.sockets.iter().position(|local| Some(*local) == inner);
        if let Some(socket) = socket {
            self.arrived.push_back(Received {
                socket,
                from,
                bytes,
            });
        }
    }

    fn at_server(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        let message = Message::parse(datagram).unwrap();
        if self.rules.no_response_port && message.contains(AttributeType::RESPONSE_PORT) {
            let mut buffer = [0; 64];
            let id = message.transaction_id();
            let mut error = Builder::new(&mut buffer, Class::Error, Method::BINDING, &id).unwrap();
            error.push(&ErrorCode::UNKNOWN_ATTRIBUTE).unwrap();
            let bytes = error.finish().to_vec();
            return self.inbound(from, to, bytes);
        }
        if self.rules.other_is_silent && to.ip() == ip(IPS[1]) {
            return;
        }
        let path = ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local: to,
                remote: from,
            },
            listener: ListenerKey(0),
        };
        let now = Now {
            mono: Mono(self.now.as_nanos() as u64),
            unix_s: 1_700_000_000,
        };
        let _ = self.engine.handle_client(now, &path, Run::single(datagram));
        let mut responses = Vec::new();
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { path, bytes } = output {
                responses.push((path.five_tuple, bytes.to_vec()));
            }
        }
        for (five_tuple, bytes) in responses {
            let from = if self.rules.ignores_change {
                to
            } else {
                five_tuple.local
            };
            self.inbound(five_tuple.remote, from, bytes);
        }
    }
}

impl Network for Simulated {
    fn open(&mut self) -> io::Result<usize> {
        let host = if self.rules.mapping.is_some() {
            HOST
        } else {
            PUBLIC
        };
        let port = 50_000 + u16::try_from(self.sockets.len()).unwrap();
        self.sockets.push(SocketAddr::new(ip(host), port));
        Ok(self.sockets.len() - 1)
    }

    fn local(&self, socket: usize) -> SocketAddr {
        self.sockets[socket]
    }

    fn send(&mut self, socket: usize, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let is_first = !self.sent.iter().any(|sent| sent == datagram);
        self.sent.push(datagram.to_vec());
        let from = self.outbound(self.sockets[socket], to);
        if is_first && self.rules.loses_first {
            return Ok(());
        }
        if to.ip() == ip(PUBLIC) {
            if self.rules.hairpin {
                self.inbound(to, from, datagram.to_vec());
            }
        } else {
            self.at_server(from, to, datagram);
        }
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> io::Result<Option<Received>> {
        let received = self.arrived.pop_front();
        if received.is_none() {
            self.now = self.now.max(until);
        }
        Ok(received)
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn wait(&mut self, until: Duration) {
        self.now = self.now.max(until);
    }

    fn random(&mut self) -> io::Result<[u8; 12]> {
        self.ids += 1;
        Ok([self.ids; 12])
    }
}

fn probe_for(rules: Rules, lifetime: Option<Duration>) -> Result<NatReport, ProbeError> {
    Prober::new(Simulated::new(rules), at(SERVER), TIMEOUT).probe(lifetime)
}

fn probe(rules: Rules) -> NatReport {
    probe_for(rules, None).unwrap()
}

#[test]
fn every_mapping_and_filtering_is_recognized_rfc5780_4_3_and_4_4() {
    for mapping in EVERY {
        for filtering in EVERY {
            for loses_first in [false, true] {
                let rules = Rules {
                    mapping: Some(mapping),
                    filtering,
                    loses_first,
                    ..OPEN
                };
                let found = probe(rules);
                assert_eq!((found.mapping, found.filtering), (mapping, Some(filtering)));
                assert!(found.has_nat() && !found.preserves_port());
                assert_eq!(found.other, at("192.0.2.2:3479"));
                assert_eq!(found.origin, None);
            }
        }
    }
}

#[test]
fn without_a_nat_a_firewall_may_filter() {
    for filtering in EVERY {
        let rules = Rules {
            mapping: None,
            filtering,
            ..OPEN
        };
        let found = probe(rules);
        assert!(!found.has_nat() && found.preserves_port());
        assert_eq!(found.mapping, Behaviour::EndpointIndependent);
        assert_eq!(found.filtering, Some(filtering));
        assert_eq!(found.hairpinning, Hairpinning::NotNeeded);
    }
}

#[test]
fn hairpinning_is_found_through_every_filter() {
    for filtering in EVERY {
        for (hairpin, expected) in [(true, Hairpinning::Works), (false, Hairpinning::Fails)] {
            let rules = Rules {
                filtering,
                hairpin,
                ..OPEN
            };
            assert_eq!(probe(rules).hairpinning, expected);
        }
    }
}

#[test]
fn the_lifetime_of_bindings_is_found_between_two_steps_rfc5780_4_6() {
    let seconds = Duration::from_secs;
    let of = |lifetime, longest| {
        let rules = Rules {
            lifetime: seconds(lifetime),
            filtering: Behaviour::AddressAndPortDependent,
            ..OPEN
        };
        probe_for(rules, Some(seconds(longest))).unwrap().lifetime
    };
    assert_eq!(
        of(35, 120),
        Some(Lifetime::Between(seconds(30), seconds(40)))
    );
    assert_eq!(of(3600, 120), Some(Lifetime::AtLeast(seconds(120))));
    assert_eq!(of(5, 120), Some(Lifetime::Between(seconds(0), seconds(10))));
    let old = Rules {
        no_response_port: true,
        ..OPEN
    };
    let found = probe_for(old, Some(seconds(12))).unwrap();
    assert_eq!(found.lifetime, Some(Lifetime::Unsupported));
}

#[test]
fn a_server_without_nat_tests_is_recognized() {
    let kind = |rules| probe_for(rules, None).unwrap_err();
    let plain = kind(Rules {
        one_address: true,
        ..OPEN
    });
    assert_eq!(plain.kind(), ProbeErrorKind::Unsupported);
    let stubborn = kind(Rules {
        ignores_change: true,
        ..OPEN
    });
    assert_eq!(stubborn.kind(), ProbeErrorKind::Ignored);
    let silent = kind(Rules {
        other_is_silent: true,
        ..OPEN
    });
    let text = silent.to_string();
    assert!(text.contains("192.0.2.2:3478, another address"), "{text}");
}
