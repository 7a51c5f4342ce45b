//! The server with the model beside it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use hairpin_turn::server::{ClientVerdict, CloseReason, PeerVerdict};
use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeType, Lifetime, Method,
    RequestedAddressFamily, XorPeerAddress,
};

use super::rfc::{Model, family_of};
use super::{CLIENTS, Family, MAX_CHANNELS, MAX_PERMISSIONS, NUMBERS, Op, PEERS, USERS};
use crate::world::{Client, Event, Offloaded, World, address};

/// The server, the model beside it, and the clients.
pub struct Beside {
    world: World,
    model: Model,
    /// One signer for each client and user.
    clients: Vec<Vec<Client>>,
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

    pub fn step(&mut self, op: &Op) {
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
            } => self.refresh(client, user, family, lifetime),
            Op::Permit {
                client,
                user,
                peers,
            } => {
                let peers: Vec<SocketAddr> =
                    peers.iter().map(|peer| address(PEERS[*peer])).collect();
                self.permit(client, user, &peers);
            }
            Op::Bind {
                client,
                user,
                number,
                peer,
            } => self.bind(client, user, NUMBERS[number], address(PEERS[peer])),
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
        self.model.expire();
        self.compare_offloaded();
    }

    /// What the kernel was told to relay, and until when, is what the model relays over channels: nothing more and nothing less.
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

    fn send(&mut self, client: usize, peer: SocketAddr) {
        let verdict = self.clients[client][0].send(&mut self.world, &peer.to_string(), b"payload");
        let got = match verdict {
            ClientVerdict::ToPeer {
                covers: 1,
                relay,
                peer: to,
                ..
            } => {
                assert_eq!(to, peer);
                Some(relay)
            }
            ClientVerdict::Drop { covers: 1, .. } => None,
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
