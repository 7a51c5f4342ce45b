//! The server against a model of RFC 8656 that is as simple as the RFC's prose: lists, looked through from front to back, in
//! whole seconds. Random requests, data and pauses; whatever the model expects must happen, and nothing else.

use std::net::{IpAddr, SocketAddr};

use hairpin_turn::server::{CloseReason, Verdict};
use proptest::prelude::*;
use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeType, Lifetime, Method,
    RequestedAddressFamily, XorPeerAddress,
};

use crate::world::{Client, Event, World, address};

const USERS: [&str; 2] = ["alice", "bob"];
const CLIENTS: [&str; 3] = [
    "198.51.100.1:4000",
    "198.51.100.1:4001",
    "[2001:db8:5::1]:4000",
];
const PEERS: [&str; 7] = [
    "198.51.100.7:7",
    "198.51.100.7:8",
    "198.51.100.8:7",
    "198.51.100.9:7",
    "10.0.0.1:7",
    "[2001:db8:9::1]:7",
    "[2001:db8:9::2]:7",
];
const NUMBERS: [u16; 4] = [0x4000, 0x4001, 0x4002, 0x3fff];
const MAX_PERMISSIONS: usize = 2;
const MAX_CHANNELS: usize = 2;

/// One step.
#[derive(Clone, Debug)]
enum Op {
    Allocate {
        client: usize,
        user: usize,
        family: Family,
        lifetime: Option<u32>,
    },
    Refresh {
        client: usize,
        user: usize,
        family: Option<AddressFamily>,
        lifetime: Option<u32>,
    },
    Permit {
        client: usize,
        user: usize,
        peers: Vec<usize>,
    },
    Bind {
        client: usize,
        user: usize,
        number: usize,
        peer: usize,
    },
    ChannelData {
        client: usize,
        number: usize,
    },
    Send {
        client: usize,
        peer: usize,
    },
    Arrive {
        client: usize,
        family: AddressFamily,
        peer: usize,
    },
    Pass {
        seconds: u64,
        asleep: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    Default,
    V4,
    V6,
    Both,
}

/// A relayed transport address, as RFC 8656 §6 describes it.
#[derive(Clone, Debug)]
struct ModelRelay {
    address: SocketAddr,
    expires: u64,
    permissions: Vec<(IpAddr, u64)>,
    channels: Vec<(u16, SocketAddr, u64)>,
}

#[derive(Clone, Debug)]
struct ModelAllocation {
    user: usize,
    relays: Vec<ModelRelay>,
}

#[derive(Default)]
struct Model {
    now: u64,
    allocations: [Option<ModelAllocation>; CLIENTS.len()],
}

fn family_of(address: SocketAddr) -> AddressFamily {
    AddressFamily::of(&address.ip())
}

fn lifetime(asked: Option<u32>) -> u64 {
    u64::from(asked.unwrap_or(0).clamp(600, 3600))
}

impl Model {
    /// Removes whatever is over.
    fn expire(&mut self) {
        let now = self.now;
        for allocation in &mut self.allocations {
            if let Some(some) = allocation {
                some.relays.retain(|relay| relay.expires > now);
                for relay in &mut some.relays {
                    relay.permissions.retain(|(_, expires)| *expires > now);
                    relay.channels.retain(|(_, _, expires)| *expires > now);
                }
            }
            if allocation
                .as_ref()
                .is_some_and(|some| some.relays.is_empty())
            {
                *allocation = None;
            }
        }
    }

    /// RFC 8656 §5: the allocation, if this user may do something to it.
    fn owned(&mut self, client: usize, user: usize) -> Result<&mut ModelAllocation, u16> {
        match &mut self.allocations[client] {
            None => Err(437),
            Some(allocation) if allocation.user != user => Err(441),
            Some(allocation) => Ok(allocation),
        }
    }

    fn allocate(&mut self, client: usize, user: usize, relayed: &[SocketAddr], asked: Option<u32>) {
        let expires = self.now + lifetime(asked);
        let relay = |address: &SocketAddr| ModelRelay {
            address: *address,
            expires,
            permissions: Vec::new(),
            channels: Vec::new(),
        };
        self.allocations[client] = Some(ModelAllocation {
            user,
            relays: relayed.iter().map(relay).collect(),
        });
    }

    fn refresh(
        &mut self,
        client: usize,
        user: usize,
        family: Option<AddressFamily>,
        asked: Option<u32>,
    ) -> u16 {
        let now = self.now;
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        let is_meant =
            |relay: &ModelRelay| family.is_none_or(|family| family_of(relay.address) == family);
        if !allocation.relays.iter().any(is_meant) {
            return 443;
        }
        for relay in allocation.relays.iter_mut().filter(|relay| is_meant(relay)) {
            relay.expires = if asked == Some(0) {
                now
            } else {
                now + lifetime(asked)
            };
        }
        self.expire();
        0
    }

    fn permit(&mut self, client: usize, user: usize, peers: &[SocketAddr]) -> u16 {
        let now = self.now;
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        if peers.is_empty() {
            return 400;
        }
        let families: Vec<AddressFamily> = allocation
            .relays
            .iter()
            .map(|relay| family_of(relay.address))
            .collect();
        if peers
            .iter()
            .any(|peer| !families.contains(&family_of(*peer)))
        {
            return 443;
        }
        if peers.iter().any(is_denied) {
            return 403;
        }
        let mut after = allocation.clone();
        for peer in peers {
            for relay in after
                .relays
                .iter_mut()
                .filter(|relay| family_of(relay.address) == family_of(*peer))
            {
                relay.permissions.retain(|(ip, _)| *ip != peer.ip());
                relay.permissions.push((peer.ip(), now + 300));
            }
        }
        if after
            .relays
            .iter()
            .any(|relay| relay.permissions.len() > MAX_PERMISSIONS)
        {
            return 508;
        }
        *allocation = after;
        0
    }

    fn bind(&mut self, client: usize, user: usize, number: u16, peer: SocketAddr) -> u16 {
        let now = self.now;
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        let mut channels = allocation.relays.iter().flat_map(|relay| &relay.channels);
        if !(0x4000..=0x4fff).contains(&number)
            || channels.any(|(n, p, _)| (*n == number) != (*p == peer))
        {
            return 400;
        }
        let same_family = |relay: &&mut ModelRelay| family_of(relay.address) == family_of(peer);
        let Some(relay) = allocation.relays.iter_mut().find(same_family) else {
            return 443;
        };
        if is_denied(&peer) {
            return 403;
        }
        let mut after = relay.clone();
        after.permissions.retain(|(ip, _)| *ip != peer.ip());
        after.permissions.push((peer.ip(), now + 300));
        after.channels.retain(|(n, _, _)| *n != number);
        after.channels.push((number, peer, now + 600));
        if after.permissions.len() > MAX_PERMISSIONS || after.channels.len() > MAX_CHANNELS {
            return 508;
        }
        *relay = after;
        0
    }

    fn permitted(relay: &ModelRelay, peer: SocketAddr) -> bool {
        relay.permissions.iter().any(|(ip, _)| *ip == peer.ip())
    }

    /// From which relay to which peer ChannelData goes, if anywhere.
    fn channel_data(&self, client: usize, number: u16) -> Option<(SocketAddr, SocketAddr)> {
        let relays = &self.allocations[client].as_ref()?.relays;
        let bound = |relay: &ModelRelay| {
            let channel = relay.channels.iter().find(|(n, _, _)| *n == number)?;
            Self::permitted(relay, channel.1).then_some((relay.address, channel.1))
        };
        relays.iter().find_map(bound)
    }

    /// From which relay a Send indication goes on, if from any.
    fn send(&self, client: usize, peer: SocketAddr) -> Option<SocketAddr> {
        let relays = &self.allocations[client].as_ref()?.relays;
        let relay = relays
            .iter()
            .find(|relay| family_of(relay.address) == family_of(peer))?;
        Self::permitted(relay, peer).then_some(relay.address)
    }

    /// Whether the client gets what a peer sends, and on which channel.
    fn arrive(
        &self,
        client: usize,
        family: AddressFamily,
        peer: SocketAddr,
    ) -> Option<Option<u16>> {
        let relays = &self.allocations[client].as_ref()?.relays;
        let relay = relays
            .iter()
            .find(|relay| family_of(relay.address) == family)?;
        let channel = relay
            .channels
            .iter()
            .find(|(_, p, _)| *p == peer)
            .map(|(number, ..)| *number);
        Self::permitted(relay, peer).then_some(channel)
    }
}

fn is_denied(peer: &SocketAddr) -> bool {
    peer.ip().to_string().starts_with("10.")
}

/// The server, the model beside it, and the clients.
struct Both {
    world: World,
    model: Model,
    /// One signer for each client and user.
    clients: Vec<Vec<Client>>,
}

impl Both {
    fn new() -> Both {
        let mut world = World::with(|config| {
            (config.max_permissions, config.max_channels) = (MAX_PERMISSIONS, MAX_CHANNELS);
        });
        let clients = CLIENTS.iter().map(|remote| {
            USERS
                .iter()
                .map(|user| Client::new(&mut world, user, remote))
                .collect()
        });
        let clients = clients.collect();
        Both {
            world,
            model: Model::default(),
            clients,
        }
    }

    fn ask(
        &mut self,
        client: usize,
        user: usize,
        method: Method,
        build: impl Fn(&mut stun::Builder<'_>),
    ) -> (u16, Vec<SocketAddr>) {
        let signer = &mut self.clients[client][user];
        let mut reply = signer.ask(&mut self.world, method, &build);
        if reply.code() == 438 {
            signer.signing.nonce = Some(reply.get::<stun::Nonce<'_>>().unwrap().0.to_vec());
            reply = signer.ask(&mut self.world, method, &build);
        }
        assert!(reply.is_signed_with(signer.key()));
        self.world.events.clear();
        (reply.code(), reply.relayed())
    }

    fn step(&mut self, op: &Op) {
        self.model.expire();
        match op.clone() {
            Op::Allocate {
                client,
                user,
                family,
                lifetime,
            } => self.allocate(client, user, family, lifetime),
            Op::Refresh {
                client,
                user,
                family,
                lifetime,
            } => {
                let expected = self.model.refresh(client, user, family, lifetime);
                let (code, _) = self.ask(client, user, Method::REFRESH, |request| {
                    if let Some(family) = family {
                        request.push(&RequestedAddressFamily(family)).unwrap();
                    }
                    if let Some(lifetime) = lifetime {
                        request.push(&Lifetime(lifetime)).unwrap();
                    }
                });
                assert_eq!(code, expected);
            }
            Op::Permit {
                client,
                user,
                peers,
            } => {
                let peers: Vec<SocketAddr> =
                    peers.iter().map(|peer| address(PEERS[*peer])).collect();
                let expected = self.model.permit(client, user, &peers);
                let (code, _) = self.ask(client, user, Method::CREATE_PERMISSION, |request| {
                    for peer in &peers {
                        request.push(&XorPeerAddress(*peer)).unwrap();
                    }
                });
                assert_eq!(code, expected);
            }
            Op::Bind {
                client,
                user,
                number,
                peer,
            } => {
                let (number, peer) = (NUMBERS[number], address(PEERS[peer]));
                let expected = self.model.bind(client, user, number, peer);
                let (code, _) = self.ask(client, user, Method::CHANNEL_BIND, |request| {
                    let [high, low] = number.to_be_bytes();
                    request
                        .push_raw(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0])
                        .unwrap();
                    request.push(&XorPeerAddress(peer)).unwrap();
                });
                assert_eq!(code, expected);
            }
            Op::ChannelData { client, number } => self.channel_data(client, NUMBERS[number]),
            Op::Send { client, peer } => self.send(client, address(PEERS[peer])),
            Op::Arrive {
                client,
                family,
                peer,
            } => self.arrive(client, family, address(PEERS[peer])),
            Op::Pass { seconds, asleep } => {
                self.model.now += seconds;
                if asleep {
                    self.world.oversleep_s(seconds)
                } else {
                    self.world.pass_s(seconds)
                }
                self.world.events.clear();
            }
        }
    }

    fn allocate(&mut self, client: usize, user: usize, family: Family, lifetime: Option<u32>) {
        let expected = if self.model.allocations[client].is_some() {
            437
        } else {
            0
        };
        let (code, relayed) = self.ask(client, user, Method::ALLOCATE, |request| {
            request.push(&stun::RequestedTransport::UDP).unwrap();
            match family {
                Family::Default => {}
                Family::V4 => drop(
                    request
                        .push(&RequestedAddressFamily(AddressFamily::V4))
                        .map(|_| ()),
                ),
                Family::V6 => drop(
                    request
                        .push(&RequestedAddressFamily(AddressFamily::V6))
                        .map(|_| ()),
                ),
                Family::Both => drop(
                    request
                        .push(&AdditionalAddressFamily(AddressFamily::V6))
                        .map(|_| ()),
                ),
            }
            if let Some(lifetime) = lifetime {
                request.push(&Lifetime(lifetime)).unwrap();
            }
        });
        assert_eq!(code, expected);
        if code == 0 {
            let families: Vec<AddressFamily> =
                relayed.iter().map(|relay| family_of(*relay)).collect();
            let wanted = match family {
                Family::Default | Family::V4 => vec![AddressFamily::V4],
                Family::V6 => vec![AddressFamily::V6],
                Family::Both => vec![AddressFamily::V4, AddressFamily::V6],
            };
            assert_eq!(families, wanted);
            self.model.allocate(client, user, &relayed, lifetime);
        }
    }

    fn channel_data(&mut self, client: usize, number: u16) {
        let verdict = self.clients[client][0].channel_data(&mut self.world, number, b"payload");
        let got = match verdict {
            Verdict::ToPeer {
                covers: 1,
                relay,
                peer,
                ..
            } => Some((relay, peer)),
            Verdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        let expected = self.model.channel_data(client, number);
        assert_eq!(
            got,
            expected.map(|(relay, peer)| (self.world.relay_at(relay), peer))
        );
    }

    fn send(&mut self, client: usize, peer: SocketAddr) {
        let verdict = self.clients[client][0].send(&mut self.world, &peer.to_string(), b"payload");
        let got = match verdict {
            Verdict::ToPeer {
                covers: 1,
                relay,
                peer: to,
                ..
            } => {
                assert_eq!(to, peer);
                Some(relay)
            }
            Verdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        let expected = self.model.send(client, peer);
        assert_eq!(got, expected.map(|relay| self.world.relay_at(relay)));
    }

    fn arrive(&mut self, client: usize, family: AddressFamily, peer: SocketAddr) {
        let Some(allocation) = &self.model.allocations[client] else {
            return;
        };
        let Some(relay) = allocation
            .relays
            .iter()
            .find(|relay| family_of(relay.address) == family)
        else {
            return;
        };
        let key = self.world.relay_at(relay.address);
        let path = self.clients[client][0].path;
        let got = match self.world.peer(key, &peer.to_string(), b"payload") {
            Verdict::ToClient {
                covers: 1,
                path: to,
                channel,
            } if to == path => Some(Some(channel.get())),
            Verdict::Indicate {
                covers: 1,
                path: to,
            } if to == path => Some(None),
            Verdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(got, self.model.arrive(client, family, peer));
    }

    /// With every timeout handled, the gauges are those of the model.
    fn settle(mut self) {
        self.world.pass(0);
        self.world.events.clear();
        self.model.expire();
        let relays = || {
            self.model
                .allocations
                .iter()
                .flatten()
                .flat_map(|allocation| &allocation.relays)
        };
        let expected = [
            self.model.allocations.iter().flatten().count(),
            relays().count(),
            relays().map(|relay| relay.permissions.len()).sum(),
            relays().map(|relay| relay.channels.len()).sum(),
        ];
        let stats = self.world.server.stats();
        assert_eq!(
            [
                stats.allocations,
                stats.relays,
                stats.permissions,
                stats.channels
            ],
            expected.map(|count| count as u64)
        );
        let mut deadlines: Vec<u64> = relays().map(|relay| relay.expires).collect();
        deadlines.extend(
            relays().flat_map(|relay| relay.permissions.iter().map(|(_, expires)| *expires)),
        );
        deadlines
            .extend(relays().flat_map(|relay| relay.channels.iter().map(|(.., expires)| *expires)));
        let next = self
            .world
            .server
            .poll_timeout()
            .map(|at| (at.0 - self.world.now.mono.0) / crate::world::SECOND);
        let expected = deadlines.into_iter().min().map(|at| at - self.model.now);
        assert!(
            next == expected || next.is_some_and(|next| next <= 40),
            "{next:?} {expected:?}"
        );
        self.world
            .server
            .close_all(self.world.now, CloseReason::Operator);
        self.world.drain();
        let closed = self
            .world
            .events
            .iter()
            .filter(|event| matches!(event, Event::Closed { .. }))
            .count();
        assert_eq!(closed, self.model.allocations.iter().flatten().count());
        self.world.events.clear();
        self.world.finish();
    }
}

fn family() -> impl Strategy<Value = AddressFamily> {
    prop_oneof![Just(AddressFamily::V4), Just(AddressFamily::V6)]
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS.len();
    // Mostly the owner, else most sequences would be about 441.
    let user = prop_oneof![9 => Just(0), 1 => Just(1usize)];
    let peer = 0..PEERS.len();
    let number = 0..NUMBERS.len();
    let wanted = prop_oneof![
        Just(Family::Default),
        Just(Family::V4),
        Just(Family::V6),
        Just(Family::Both),
        Just(Family::Both)
    ];
    let lifetime = prop_oneof![
        4 => Just(None),
        2 => Just(Some(0)),
        4 => prop_oneof![Just(1u32), Just(700), Just(1200), Just(5000)].prop_map(Some),
    ];
    let pause = prop_oneof![3 => 0u64..20, 3 => Just(150u64), 2 => 250u64..400, 1 => Just(300u64), 1 => Just(600u64)];
    prop_oneof![
        2 => (client.clone(), user.clone(), wanted, lifetime.clone())
            .prop_map(|(client, user, family, lifetime)| Op::Allocate { client, user, family, lifetime }),
        1 => (client.clone(), user.clone(), prop::option::of(family()), lifetime)
            .prop_map(|(client, user, family, lifetime)| Op::Refresh { client, user, family, lifetime }),
        3 => (client.clone(), user.clone(), prop::collection::vec(peer.clone(), 0..3))
            .prop_map(|(client, user, peers)| Op::Permit { client, user, peers }),
        4 => (client.clone(), user, number.clone(), peer.clone())
            .prop_map(|(client, user, number, peer)| Op::Bind { client, user, number, peer }),
        4 => (client.clone(), number).prop_map(|(client, number)| Op::ChannelData { client, number }),
        3 => (client.clone(), peer.clone()).prop_map(|(client, peer)| Op::Send { client, peer }),
        4 => (client, family(), peer).prop_map(|(client, family, peer)| Op::Arrive { client, family, peer }),
        3 => (pause, any::<bool>()).prop_map(|(seconds, asleep)| Op::Pass { seconds, asleep }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_server_does_what_a_simple_model_of_rfc_8656_does(ops in prop::collection::vec(op(), 0..80)) {
        let mut both = Both::new();
        for op in &ops {
            both.step(op);
        }
        both.settle();
    }
}
