//! The cases of the in-kernel relay as data: what arrives, under which conditions, and what must become of it. Whoever
//! relays (XDP, tc, user space) must make the same payload, addresses and TOS of each that is relayed.

pub(crate) mod reference;
mod table;

pub(crate) use table::cases;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a client, on a channel.
    ToPeer,
    /// From a peer that a channel is bound to.
    ToClient,
    /// From a client, on a channel that is bound to the relayed address of another client of this server.
    Between,
}

/// What the checksum field of what arrives holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Complete,
    /// 0: there is none (IPv4).
    Absent,
    /// Complete and right, and by chance the sum over the pseudo header too, as if hardware were to do the rest.
    LooksPartial,
}

/// The next hop's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// Out by the interface that the packet came in by.
    Back,
    /// Out by another interface.
    Other,
    /// Out by another interface, whose driver has no `ndo_xdp_xmit`.
    OtherWithoutXmit,
    /// None is known.
    None,
    /// It was good until some time ago.
    Stale,
    /// Not for XDP, nor for tc.
    Unusable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// It leaves as the reference says.
    Relayed,
    /// Nothing about it is changed; this counter says why.
    Passed(&'static str),
    /// It is dropped and counted as over the rate.
    Dropped,
}

/// One case. Start from [`Case::NEW`] or what `table` makes of it.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) way: Way,
    /// The family between clients and server ...
    pub(crate) client: Family,
    /// ... and between relay and peer.
    pub(crate) peer: Family,
    /// Bytes of the payload.
    pub(crate) payload: usize,
    /// What follows the payload of ChannelData.
    pub(crate) padding: &'static [u8],
    /// What follows the IP packet in the frame.
    pub(crate) trailer: &'static [u8],
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) checksum: Checksum,
    /// What else is done to the frame.
    pub(crate) damage: fn(&mut Vec<u8>),
    /// Whether the entry's deadline has come.
    pub(crate) expired: bool,
    /// Whether the entry of the receiving relay's client is there, between two relays.
    pub(crate) answered: bool,
    pub(crate) hop: Hop,
    pub(crate) mtu: u16,
    pub(crate) over_rate: bool,
    /// Whether a group of the allocation is over its rate.
    pub(crate) group_over_rate: bool,
    pub(crate) expect: Expect,
}

impl Case {
    pub(crate) const NEW: Case = Case {
        what: "plain",
        way: Way::ToPeer,
        client: Family::V4,
        peer: Family::V4,
        payload: 120,
        padding: &[],
        trailer: &[],
        tos: 0,
        ttl: 64,
        checksum: Checksum::Complete,
        damage: |_| (),
        expired: false,
        answered: true,
        hop: Hop::Back,
        mtu: 1500,
        over_rate: false,
        group_over_rate: false,
        expect: Expect::Relayed,
    };

    /// The payload: every byte differs from its neighbours, and from case to case by length.
    pub(crate) fn data(&self) -> Vec<u8> {
        (0..self.payload)
            .map(|position| (position * 7 + self.payload) as u8)
            .collect()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case {
            what,
            way,
            client,
            peer,
            payload,
            ..
        } = self;
        write!(
            f,
            "{what} ({way:?}, client {client:?}, peer {peer:?}, {payload} bytes)"
        )
    }
}

/// The channel of the client under test ...
pub(crate) const CHANNEL: u16 = 0x4abc;
/// ... and the other client's, between two relays.
pub(crate) const OTHER_CHANNEL: u16 = 0x4001;
/// The port of the listeners.
pub(crate) const LISTENER_PORT: u16 = 3478;

fn host(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, number).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0x8899, 0, 0xff, number.into()).into(),
    }
}

fn at(family: Family, number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(host(family, number), port)
}

/// The addresses of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) client: SocketAddr,
    pub(crate) listener: SocketAddr,
    pub(crate) relay: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) other_relay: SocketAddr,
    pub(crate) other_client: SocketAddr,
}

impl Case {
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            client: at(self.client, 1, 40_000),
            listener: at(self.client, 2, LISTENER_PORT),
            relay: at(self.peer, 2, 50_000),
            peer: at(self.peer, 7, 6_000),
            other_relay: at(self.peer, 2, 50_002),
            other_client: at(self.client, 9, 41_000),
        }
    }
}
