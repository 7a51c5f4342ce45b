//! The server against a model of RFC 8656 that is as simple as the RFC's prose: lists, looked through from
//! front to back, in whole seconds. Random requests, data and pauses; whatever the model expects must happen,
//! and nothing else.

mod beside;
mod opening;
mod rfc;

use proptest::prelude::*;
use stun::AddressFamily;

use beside::Beside;

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
/// The peer that a reload denies.
const DENIED_LATER: &str = "198.51.100.9";
const NUMBERS: [u16; 4] = [0x4000, 0x4001, 0x4002, 0x3fff];
const MAX_PERMISSIONS: usize = 2;
const MAX_CHANNELS: usize = 2;

/// One step.
#[derive(Clone, Debug)]
pub enum Op {
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
    /// An ICMP error for a datagram to this peer.
    Icmp {
        client: usize,
        family: AddressFamily,
        peer: usize,
    },
    /// A reload that denies [`DENIED_LATER`], or admits it again.
    Reload,
    /// An Allocate with EVEN-PORT that reserves the next port; `next_taken` if another process has that one.
    Reserve {
        client: usize,
        user: usize,
        next_taken: bool,
    },
    /// An Allocate with the RESERVATION-TOKEN of any reservation that there ever was.
    Claim {
        client: usize,
        user: usize,
        token: usize,
    },
    /// An Allocate whose sockets cannot be opened.
    FailToOpen {
        client: usize,
        user: usize,
    },
    /// An Allocate whose sockets are opened later.
    BeginToOpen {
        client: usize,
        user: usize,
        family: Family,
        lifetime: Option<u32>,
    },
    /// The Allocate of [`Op::BeginToOpen`] again.
    Retransmit {
        client: usize,
    },
    /// The sockets of [`Op::BeginToOpen`] are open, or cannot be opened.
    Opened {
        client: usize,
        success: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    Default,
    V4,
    V6,
    Both,
}

fn family() -> impl Strategy<Value = AddressFamily> {
    prop_oneof![Just(AddressFamily::V4), Just(AddressFamily::V6)]
}

fn wanted() -> impl Strategy<Value = Family> {
    prop_oneof![
        Just(Family::Default),
        Just(Family::V4),
        Just(Family::V6),
        Just(Family::Both),
        Just(Family::Both)
    ]
}

fn lifetime() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![
        4 => Just(None),
        2 => Just(Some(0)),
        4 => prop_oneof![Just(1u32), Just(700), Just(1200), Just(5000)].prop_map(Some),
    ]
}

/// Allocations that are made in unusual ways.
fn opening() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS.len();
    let user = prop_oneof![9 => Just(0), 1 => Just(1usize)];
    prop_oneof![
        3 => (client.clone(), user.clone(), prop::bool::weighted(0.2))
            .prop_map(|(client, user, next_taken)| Op::Reserve { client, user, next_taken }),
        3 => (client.clone(), user.clone(), any::<usize>())
            .prop_map(|(client, user, token)| Op::Claim { client, user, token }),
        1 => (client.clone(), user.clone()).prop_map(|(client, user)| Op::FailToOpen { client, user }),
        3 => (client.clone(), user, wanted(), lifetime())
            .prop_map(|(client, user, family, lifetime)| Op::BeginToOpen { client, user, family, lifetime }),
        1 => client.clone().prop_map(|client| Op::Retransmit { client }),
        3 => (client, prop::bool::weighted(0.8))
            .prop_map(|(client, success)| Op::Opened { client, success }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS.len();
    // Mostly the owner, else most sequences would be about 441.
    let user = prop_oneof![9 => Just(0), 1 => Just(1usize)];
    let peer = 0..PEERS.len();
    // Peers, and the IPv4 relays of the clients.
    let any_peer = 0..PEERS.len() + CLIENTS.len();
    let number = 0..NUMBERS.len();
    let pause = prop_oneof![3 => 0u64..20, 3 => Just(150u64), 2 => 250u64..400, 1 => Just(300u64), 1 => Just(600u64)];
    prop_oneof![
        2 => (client.clone(), user.clone(), wanted(), lifetime())
            .prop_map(|(client, user, family, lifetime)| Op::Allocate { client, user, family, lifetime }),
        1 => (client.clone(), user.clone(), prop::option::of(family()), lifetime())
            .prop_map(|(client, user, family, lifetime)| Op::Refresh { client, user, family, lifetime }),
        3 => (client.clone(), user.clone(), prop::collection::vec(any_peer.clone(), 0..3))
            .prop_map(|(client, user, peers)| Op::Permit { client, user, peers }),
        4 => (client.clone(), user, number.clone(), peer.clone())
            .prop_map(|(client, user, number, peer)| Op::Bind { client, user, number, peer }),
        4 => (client.clone(), number).prop_map(|(client, number)| Op::ChannelData { client, number }),
        3 => (client.clone(), any_peer.clone()).prop_map(|(client, peer)| Op::Send { client, peer }),
        4 => (client.clone(), family(), any_peer).prop_map(|(client, family, peer)| Op::Arrive { client, family, peer }),
        1 => (client.clone(), family(), peer).prop_map(|(client, family, peer)| Op::Icmp { client, family, peer }),
        1 => Just(Op::Reload),
        2 => opening(),
        3 => (pause, any::<bool>()).prop_map(|(seconds, asleep)| Op::Pass { seconds, asleep }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_server_does_what_a_simple_model_of_rfc_8656_does(
        ops in prop::collection::vec(op(), 0..80),
        channel_keeps_permission: bool,
    ) {
        let mut beside = Beside::new(channel_keeps_permission);
        for op in &ops {
            beside.step(op);
        }
        beside.settle();
    }
}
