//! The server with the model beside it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use hairpin_turn::server::{ClientVerdict, CloseReason, IcmpError, PeerVerdict};
use stun::{
    AddressFamily, AttributeType, Lifetime, Method, RequestedAddressFamily, XorPeerAddress,
};

use super::opening::Opening;
use super::rfc::{Model, family_of};
use super::{
    CLIENTS, DENIED_LATER, Family, MAX_CHANNELS, MAX_PERMISSIONS, NUMBERS, Op, PEERS, USERS,
};
use crate::world::{Client, Event, Offloaded, RELAY_IP, World, address};

/// The server, the model beside it, and the clients.
pub struct Beside {
    pub(super) world: World,
    pub(super) model: Model,
    /// One signer for each client and user.
    pub(super) clients: Vec<Vec<Client>>,
    /// The requests whose sockets are opened later.
    pub(super) opening: [Option<Opening>; CLIENTS.len()],
    /// The tokens of all reservations.
    pub(super) tokens: Vec<[u8; 8]>,
}

impl Beside {
    pub fn new(channel_keeps_permission: bool) -> Beside {
        let mut world = World::with(|config| {
            config.channel_keeps_permission = channel_keeps_permission;
            (config.max_permissions, config.max_channels) = (MAX_PERMISSIONS, MAX_CHANNELS);
            config.offload = true;
        });
        let clients = CLIENTS.iter().map(|remote| {
            USERS
                .iter()
                .map(|user| Client::new(&mut world, user, remote))
                .collect()
        });
        let clients = clients.collect();
        Beside {
            world,
            model: Model {
                channel_keeps_permission,
                ..Model::default()
            },
            clients,
            opening: [const { None }; CLIENTS.len()],
            tokens: Vec::new(),
        }
    }

    /// The address of a peer, or of the IPv4 relay of a client. Without an allocation, it is one that no relay has.
    fn resolve(&self, peer: usize) -> SocketAddr {
        let Some(client) = peer.checked_sub(PEERS.len()) else {
            return address(PEERS[peer]);
        };
        let relays = self.model.allocations[client].iter();
        let mut relays = relays
            .flat_map(|some| &some.relays)
            .map(|relay| relay.address);
        relays
            .find(SocketAddr::is_ipv4)
            .unwrap_or(SocketAddr::new(address(&format!("{RELAY_IP}:1")).ip(), 1))
    }

    pub(super) fn ask(
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

    pub fn step(&mut self, op: &Op) {
        self.model.expire();
        self.publish_relays();
        if self.has_to_wait(op) {
            return;
        }
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
            } => self.refresh(client, user, family, lifetime),
            Op::Permit {
                client,
                user,
                peers,
            } => {
                let peers: Vec<SocketAddr> = peers.iter().map(|peer| self.resolve(*peer)).collect();
                self.permit(client, user, &peers);
            }
            Op::Bind {
                client,
                user,
                number,
                peer,
            } => self.bind(client, user, NUMBERS[number], address(PEERS[peer])),
            Op::ChannelData { client, number } => self.channel_data(client, NUMBERS[number]),
            Op::Send { client, peer } => self.send(client, self.resolve(peer), peer >= PEERS.len()),
            Op::Arrive {
                client,
                family,
                peer,
            } => self.arrive(client, family, self.resolve(peer)),
            Op::Pass { seconds, asleep } => {
                self.model.now += seconds;
                // Sockets that take too long are given up by the timer alone.
                let is_opening = self.opening.iter().any(Option::is_some);
                if asleep && !is_opening {
                    self.world.oversleep_s(seconds)
                } else {
                    self.world.pass_s(seconds)
                }
                self.give_up();
                self.world.events.clear();
            }
            Op::Icmp {
                client,
                family,
                peer,
            } => self.icmp(client, family, self.resolve(peer)),
            Op::Reload => self.reload(),
            other => self.open(other),
        }
        self.model.expire();
        self.compare_offloaded();
    }

    /// What the kernel was told to relay, and until when, is what the model relays over channels: nothing more and
    /// nothing less.
    fn compare_offloaded(&self) {
        let now = self.world.now.mono;
        let alive = self.world.offloaded.values();
        let alive = alive.filter(|offloaded| offloaded.deadline > now);
        let alive: BTreeSet<_> = alive
            .map(|offloaded| {
                let client = offloaded.path.five_tuple.remote;
                let ends_in = offloaded.deadline.since(now).as_nanos();
                let Offloaded {
                    relayed,
                    peer,
                    channel,
                    ..
                } = *offloaded;
                (client, channel, relayed, peer, ends_in)
            })
            .collect();
        let second = u128::from(crate::world::SECOND);
        let expected = (0..CLIENTS.len()).flat_map(|client| {
            let remote = address(CLIENTS[client]);
            let channels = self.model.carrying(client);
            channels.map(move |(number, relayed, peer, seconds)| {
                (remote, number, relayed, peer, u128::from(seconds) * second)
            })
        });
        assert_eq!(alive, expected.collect());
    }

    fn refresh(
        &mut self,
        client: usize,
        user: usize,
        family: Option<AddressFamily>,
        lifetime: Option<u32>,
    ) {
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

    fn permit(&mut self, client: usize, user: usize, peers: &[SocketAddr]) {
        let expected = self.model.permit(client, user, peers);
        let (code, _) = self.ask(client, user, Method::CREATE_PERMISSION, |request| {
            for peer in peers {
                request.push(&XorPeerAddress(*peer)).unwrap();
            }
        });
        assert_eq!(code, expected);
    }

    fn bind(&mut self, client: usize, user: usize, number: u16, peer: SocketAddr) {
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

    fn allocate(&mut self, client: usize, user: usize, family: Family, lifetime: Option<u32>) {
        let expected = if self.model.allocations[client].is_some() {
            437
        } else {
            0
        };
        let (code, relayed) = self.ask(client, user, Method::ALLOCATE, |request| {
            family.write(lifetime, request);
        });
        assert_eq!(code, expected);
        if code == 0 {
            self.allocated(client, user, family, lifetime, &relayed);
        }
    }

    /// The server has made an allocation with these relays.
    pub(super) fn allocated(
        &mut self,
        client: usize,
        user: usize,
        family: Family,
        lifetime: Option<u32>,
        relayed: &[SocketAddr],
    ) {
        let families: Vec<AddressFamily> = relayed.iter().map(|relay| family_of(*relay)).collect();
        assert_eq!(families, family.wanted());
        self.model.allocate(client, user, relayed, lifetime);
    }

    fn channel_data(&mut self, client: usize, number: u16) {
        let verdict = self.clients[client][0].channel_data(&mut self.world, number, b"payload");
        let got = match verdict {
            ClientVerdict::ToPeer {
                covers: 1,
                relay,
                peer,
                ..
            } => Some((relay, peer)),
            ClientVerdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        let expected = self.model.channel_data(client, number);
        assert_eq!(
            got,
            expected.map(|(relay, peer)| (self.world.relay_at(relay), peer))
        );
    }

    fn send(&mut self, client: usize, peer: SocketAddr, is_own: bool) {
        let verdict = self.clients[client][0].send(&mut self.world, &peer.to_string(), b"payload");
        let got = match verdict {
            ClientVerdict::ToPeer {
                covers: 1,
                relay,
                peer: to,
                ..
            } => {
                assert_eq!((to, is_own), (peer, false));
                Some(relay)
            }
            ClientVerdict::ToRelay {
                covers: 1,
                from,
                peer: to,
                ..
            } => {
                assert_eq!((to, is_own), (peer, true));
                Some(self.world.relay_at(from))
            }
            ClientVerdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        let expected = self.model.send(client, peer, is_own);
        assert_eq!(got, expected.map(|relay| self.world.relay_at(relay)));
    }

    fn icmp(&mut self, client: usize, family: AddressFamily, peer: SocketAddr) {
        let relays = self.model.allocations[client]
            .iter()
            .flat_map(|some| &some.relays);
        let mut relays = relays.filter(|relay| family_of(relay.address) == family);
        let Some(relay) = relays.next().map(|relay| relay.address) else {
            return;
        };
        let unreachable = match family_of(peer) {
            AddressFamily::V4 => IcmpError {
                kind: 3,
                code: 1,
                mtu: 0,
            },
            AddressFamily::V6 => IcmpError {
                kind: 1,
                code: 0,
                mtu: 0,
            },
        };
        let key = self.world.relay_at(relay);
        let told = self
            .world
            .server
            .handle_icmp(self.world.now, key, peer, unreachable);
        self.world.drain();
        let sent = self.world.events.iter();
        let sent = sent
            .filter(|event| matches!(event, Event::Sent { .. }))
            .count();
        let expected =
            family_of(peer) == family && self.model.arrive(client, family, peer).is_some();
        assert_eq!((told.is_ok(), sent == 1), (expected, expected), "{told:?}");
        self.world.events.clear();
    }

    fn reload(&mut self) {
        self.model.denies = !self.model.denies;
        let ip = address(&format!("{DENIED_LATER}:1")).ip();
        let mut denied = self.world.policy.denied.lock().unwrap();
        match self.model.denies {
            true => denied.insert(ip),
            false => denied.remove(&ip),
        };
        drop(denied);
        self.world.reconfigure(|_| {});
        self.world.events.clear();
    }

    /// Tells the policy which relays are alive, as the embedder does.
    fn publish_relays(&mut self) {
        let relays = self.model.allocations.iter().flatten();
        let relays = relays
            .flat_map(|some| &some.relays)
            .map(|relay| relay.address);
        *self.world.policy.live.lock().unwrap() = relays.collect();
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
            PeerVerdict::ChannelData {
                covers: 1,
                path: to,
                channel,
            } if to == path => Some(Some(channel.get())),
            PeerVerdict::DataIndication {
                covers: 1,
                path: to,
            } if to == path => Some(None),
            PeerVerdict::Drop { covers: 1, .. } => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(got, self.model.arrive(client, family, peer));
    }

    /// With every timeout handled, the gauges are those of the model.
    pub fn settle(mut self) {
        (0..CLIENTS.len()).for_each(|client| self.opened(client, false));
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
            self.model.reservations.len(),
            0,
            relays().count() + self.model.reservations.len(),
        ];
        let stats = self.world.server.stats();
        assert_eq!(
            [
                stats.allocations,
                stats.relays,
                stats.permissions,
                stats.channels,
                stats.reservations,
                stats.pending,
                self.world.quota.held() as u64,
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
        self.world.catch_up();
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
