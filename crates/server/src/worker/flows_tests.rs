//! The worker's entries, in a table that is not the kernel's.

use super::*;
use crate::addresses::RelayAddress;
use crate::ports::PortRange;
use crate::rates::Chunks;
use std::sync::Mutex;
use stun::ChannelNumber;
use turn::{AllocationKey, ClientPath, FiveTuple, ListenerKey, Transport};

/// What the kernel would have.
#[derive(Debug, Default)]
struct Kernel {
    flows: HashMap<FlowKey, FlowEntry>,
    /// What went over the flows that are in the table.
    counts: HashMap<FlowKey, Counts>,
    /// How many entries fit.
    room: usize,
}

#[derive(Debug, Clone)]
struct Fake(Arc<Mutex<Kernel>>);

impl Flowing for Fake {
    fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError> {
        let mut kernel = self.0.lock().unwrap();
        if kernel.flows.len() >= kernel.room && !kernel.flows.contains_key(key) {
            return Err(InsertError::Full);
        }
        kernel.flows.insert(*key, *entry);
        Ok(())
    }

    fn remove(&mut self, key: &FlowKey) -> Option<Counts> {
        let counts = self.counts(key);
        let mut kernel = self.0.lock().unwrap();
        kernel.flows.remove(key);
        kernel.counts.remove(key);
        counts
    }

    fn counts(&mut self, key: &FlowKey) -> Option<Counts> {
        let kernel = self.0.lock().unwrap();
        let counts = kernel.counts.get(key).copied().unwrap_or_default();
        kernel.flows.contains_key(key).then_some(counts)
    }
}

struct TestBed {
    kernel: Arc<Mutex<Kernel>>,
    flows: Flows,
    hops: Arc<NextHopTable>,
    counters: Counters,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn bed(room: usize, next_hops: u32) -> TestBed {
    let kernel = Arc::new(Mutex::new(Kernel {
        room,
        ..Kernel::default()
    }));
    let mapped = RelayAddress {
        local: [10, 0, 0, 5].into(),
        advertised: [203, 0, 113, 5].into(),
    };
    let v6 = RelayAddress::direct(address("[2001:db8::5]:0").ip());
    let relays = RelayAddresses::new(&[mapped, v6], PortRange::DYNAMIC, 1);
    let hops = Arc::new(NextHopTable::new(next_hops, None));
    let chunks = || Arc::new(Chunks::new(Chunks::SIZE));
    let flows = Flows::new(
        Box::new(Fake(Arc::clone(&kernel))),
        Arc::clone(&hops),
        Arc::new(Numbers::new(chunks(), 1)),
        Arc::new(relays),
    );
    TestBed {
        kernel,
        flows,
        hops,
        counters: Counters::default(),
    }
}

impl TestBed {
    fn offload(
        &mut self,
        subject: &OffloadedChannel,
        own_relay: bool,
        deadline: u64,
    ) -> ChannelTraffic {
        let counters = &mut self.counters;
        self.flows
            .offload(subject, own_relay, Mono(deadline), counters)
    }

    fn entry(&self, remote: &str, local: &str, channel: Option<u16>) -> Option<FlowEntry> {
        let key = FlowKey {
            remote: address(remote),
            local: address(local),
            channel,
        };
        self.kernel.lock().unwrap().flows.get(&key).copied()
    }

    /// Simulates that the kernel has relayed this many packets of a flow, with a hundred bytes each.
    fn relayed(&self, flow: FlowKey, packets: u32) {
        let mut kernel = self.kernel.lock().unwrap();
        assert!(kernel.flows.contains_key(&flow));
        let counts = kernel.counts.entry(flow).or_default();
        counts.packets += packets;
        counts.bytes += u64::from(packets) * 100;
    }

    /// Nothing is left: no entry, no channel, no next hop in use.
    fn expect_empty(&self) {
        assert_eq!(self.kernel.lock().unwrap().flows.len(), 0);
        assert_eq!(self.flows.len(), 0);
        self.hops.withdraw_unused(0, &mut Vec::new());
        assert_eq!(self.hops.len(), 0);
    }
}

const CLIENT: &str = "198.51.100.1:4000";
const LISTENER: &str = "192.0.2.1:3478";
const PEER: &str = "198.51.100.200:700";
const SOCKET: &str = "10.0.0.5:50000";
const RELAYED: &str = "203.0.113.5:50000";

/// What the client sends on a channel.
fn from_client(channel: u16) -> FlowKey {
    FlowKey {
        remote: address(CLIENT),
        local: address(LISTENER),
        channel: Some(channel),
    }
}

/// What a peer sends.
fn from_peer(peer: &str) -> FlowKey {
    FlowKey {
        remote: address(peer),
        local: address(SOCKET),
        channel: None,
    }
}

fn subject(number: u16, peer: &str) -> OffloadedChannel {
    let five_tuple = FiveTuple {
        transport: Transport::Udp,
        local: address(LISTENER),
        remote: address(CLIENT),
    };
    OffloadedChannel {
        allocation: AllocationKey {
            index: 3,
            generation: 1,
        },
        path: ClientPath {
            five_tuple,
            listener: ListenerKey(0),
        },
        relayed: address(RELAYED),
        peer: address(peer),
        number: ChannelNumber::new(number).unwrap(),
    }
}

fn carried(to_peer: u64, to_client: u64) -> ChannelTraffic {
    let traffic = |packets| Traffic {
        packets,
        bytes: packets * 100,
    };
    ChannelTraffic {
        to_peer: traffic(to_peer),
        to_client: traffic(to_client),
    }
}

#[test]
fn both_directions_are_entered_and_taken_out() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, PEER);
    bed.offload(&one, false, 77);
    let out = bed.entry(CLIENT, LISTENER, Some(0x4000)).unwrap();
    let expected = FlowEntry {
        source: address(SOCKET),
        destination: address(PEER),
        channel: None,
        own_relay: false,
        next_hop: out.next_hop,
        bucket: None,
        deadline_ns: 77,
        settles: true,
    };
    assert_eq!(out, expected);
    let back = bed.entry(PEER, SOCKET, None).unwrap();
    let expected = FlowEntry {
        source: address(LISTENER),
        destination: address(CLIENT),
        channel: Some(0x4000),
        next_hop: back.next_hop,
        ..expected
    };
    assert_eq!(back, expected);
    assert!(out.next_hop != back.next_hop && out.next_hop.min(back.next_hop) > 0);
    assert_eq!((bed.flows.len(), bed.counters.offload_entered), (1, 1));
    assert_eq!(bed.flows.stop_offload(&one), ChannelTraffic::default());
    bed.expect_empty();
}

#[test]
fn a_moved_end_changes_nothing_else() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, PEER);
    bed.offload(&one, false, 77);
    let before = bed.entry(PEER, SOCKET, None).unwrap();
    for deadline in [5_000_000_077, 5, 99_000_000_000] {
        bed.offload(&one, false, deadline);
        let after = bed.entry(PEER, SOCKET, None).unwrap();
        let moved = FlowEntry {
            deadline_ns: deadline,
            ..before
        };
        assert_eq!(after, moved);
    }
    assert_eq!((bed.flows.len(), bed.counters.offload_entered), (1, 1));
    bed.flows.stop_offload(&one);
    bed.expect_empty();
}

#[test]
fn an_end_that_moves_on_by_little_is_not_written() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, PEER);
    bed.offload(&one, false, 77);
    bed.offload(&one, false, 5_000_000_076);
    assert_eq!(bed.entry(PEER, SOCKET, None).unwrap().deadline_ns, 77);
    bed.offload(&one, false, 5_000_000_077);
    let written = bed.entry(PEER, SOCKET, None).unwrap().deadline_ns;
    assert_eq!(written, 5_000_000_077);
    bed.flows.stop_offload(&one);
    bed.expect_empty();
}

#[test]
fn counts_are_those_of_this_channel_alone() {
    let mut bed = bed(8, 8);
    let (one, two) = (subject(0x4000, PEER), subject(0x4001, "198.51.100.200:701"));
    bed.offload(&one, false, 77);
    bed.offload(&two, false, 77);
    bed.relayed(from_client(0x4000), 5);
    bed.relayed(from_peer(PEER), 6);
    bed.relayed(from_client(0x4001), 100);
    assert_eq!(bed.flows.stop_offload(&one), carried(5, 6));
    // The same peer again, by another channel: it counts from zero.
    let three = subject(0x4002, PEER);
    bed.offload(&three, false, 77);
    bed.relayed(from_peer(PEER), 1);
    assert_eq!(bed.flows.stop_offload(&three), carried(0, 1));
    assert_eq!(bed.flows.stop_offload(&two), carried(100, 0));
    assert_eq!(
        bed.flows.stop_offload(&two),
        ChannelTraffic::default(),
        "only once"
    );
    bed.expect_empty();
}

#[test]
fn a_refresh_brings_what_was_carried_since_and_counters_may_go_round() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, PEER);
    bed.offload(&one, false, 77);
    bed.kernel.lock().unwrap().counts.insert(
        from_client(0x4000),
        Counts {
            packets: u32::MAX - 1,
            bytes: 100 * (u64::from(u32::MAX) - 1),
            last_seen_s: 0,
        },
    );
    bed.offload(&one, false, 9_000_000_000);
    {
        let mut kernel = bed.kernel.lock().unwrap();
        let counts = kernel.counts.get_mut(&from_client(0x4000)).unwrap();
        (counts.packets, counts.bytes) = (3, counts.bytes + 500);
    }
    assert_eq!(bed.offload(&one, false, 18_000_000_000), carried(5, 0));
    bed.relayed(from_client(0x4000), 2);
    assert_eq!(bed.flows.stop_offload(&one), carried(2, 0));
    bed.expect_empty();
}

#[test]
fn a_full_table_leaves_the_channel_to_user_space() {
    let mut bed = bed(3, 8);
    bed.offload(&subject(0x4000, PEER), false, 77);
    let other = "198.51.100.200:701";
    bed.offload(&subject(0x4001, other), false, 77);
    assert_eq!(
        (bed.counters.offload_full, bed.counters.offload_entered),
        (1, 1)
    );
    assert_eq!(
        bed.entry(CLIENT, LISTENER, Some(0x4001)),
        None,
        "not half of it"
    );
    assert_eq!(bed.kernel.lock().unwrap().flows.len(), 2);
    // There is room when the channel is refreshed.
    bed.flows.stop_offload(&subject(0x4000, PEER));
    bed.offload(&subject(0x4001, other), false, 88);
    assert_eq!(bed.flows.len(), 1);
    bed.flows.stop_offload(&subject(0x4001, other));
    bed.expect_empty();
}

#[test]
fn without_a_next_hop_nothing_is_entered() {
    let mut bed = bed(8, 1);
    bed.offload(&subject(0x4000, PEER), false, 77);
    assert_eq!(bed.counters.offload_full, 1);
    bed.expect_empty();
    // One side is enough for a path that is known already.
    bed.hops.free([1]);
    bed.offload(&subject(0x4000, CLIENT), true, 77);
    assert_eq!(bed.counters.offload_full, 1);
}

#[test]
fn an_entry_that_cannot_be_changed_does_not_stay() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, PEER);
    bed.offload(&one, false, 77);
    bed.relayed(from_client(0x4000), 5);
    // A limit appears, and there is no bucket for the allocation.
    bed.flows.set_limited(true);
    assert_eq!(bed.offload(&one, false, 77), carried(5, 0));
    assert_eq!(bed.counters.offload_full, 1);
    bed.expect_empty();
    assert_eq!(bed.flows.stop_offload(&one), ChannelTraffic::default());
}

#[test]
fn a_relay_of_ours_is_looked_up_by_both_names_that_its_client_knows() {
    let mut bed = bed(8, 8);
    let one = subject(0x4000, "203.0.113.5:50002");
    bed.offload(&one, true, 77);
    let out = bed.entry(CLIENT, LISTENER, Some(0x4000)).unwrap();
    assert!(out.own_relay && out.next_hop == 0 && out.channel.is_none());
    assert_eq!(out.source, address(RELAYED));
    assert_eq!(out.destination, address("10.0.0.5:50002"));
    let back = bed.entry("203.0.113.5:50002", SOCKET, None).unwrap();
    assert!(!back.own_relay && back.next_hop != 0);
    // The relay becomes a stranger's address: the same channel goes by the network.
    bed.relayed(from_client(0x4000), 2);
    assert_eq!(bed.offload(&one, false, 88), carried(2, 0));
    let out = bed.entry(CLIENT, LISTENER, Some(0x4000)).unwrap();
    assert!(!out.own_relay && out.next_hop != 0);
    assert_eq!(out.source, address(SOCKET));
    bed.flows.stop_offload(&one);
    bed.expect_empty();
}

#[test]
fn families_may_differ_between_the_two_sides() {
    let mut bed = bed(8, 8);
    let one = OffloadedChannel {
        relayed: address("[2001:db8::5]:50000"),
        ..subject(0x4000, "[2001:db8:9::1]:7")
    };
    bed.offload(&one, false, 77);
    let out = bed.entry(CLIENT, LISTENER, Some(0x4000)).unwrap();
    assert!(out.source.is_ipv6() && out.destination.is_ipv6());
    let back = bed.entry("[2001:db8:9::1]:7", "[2001:db8::5]:50000", None);
    assert_eq!(back.unwrap().destination, address(CLIENT));
    bed.flows.stop_offload(&one);
    bed.expect_empty();
}

#[test]
fn link_local_clients_stay_in_user_space() {
    let mut bed = bed(8, 8);
    let mut one = subject(0x4000, PEER);
    one.path.five_tuple.remote = address("[fe80::1%3]:4000");
    one.path.five_tuple.local = address("[fe80::2%3]:3478");
    bed.offload(&one, false, 77);
    assert_eq!(bed.counters.offload_unfit, 1);
    bed.expect_empty();
}

/// Routes to these prefixes, each by one gateway.
fn route_by_gateways(hops: &NextHopTable, prefixes: &[(&str, u8)]) {
    let prefix = |&(network, length): &(&str, u8)| io::netlink::RoutePrefix {
        network: network.parse().unwrap(),
        length,
        separates: false,
    };
    let prefixes: Vec<_> = prefixes.iter().map(prefix).collect();
    hops.set_cells(Arc::new(crate::offload::Cells::new(&prefixes)));
    hops.notify_workers();
}

#[test]
fn peers_behind_one_gateway_share_a_next_hop_until_a_route_parts_them() {
    let mut bed = bed(64, 4);
    route_by_gateways(&bed.hops, &[("0.0.0.0", 0)]);
    let peers = ["198.51.100.200:700", "203.0.113.9:700", "203.0.113.10:700"];
    let channels: Vec<_> = (0x4000..)
        .zip(peers)
        .map(|(number, peer)| subject(number, peer))
        .collect();
    for one in &channels {
        bed.offload(one, false, 77);
    }
    let hops = |bed: &TestBed| {
        let entry = |number| bed.entry(CLIENT, LISTENER, Some(number));
        [0x4000, 0x4001, 0x4002].map(|number| Some(entry(number)?.next_hop))
    };
    let [one, two, three] = hops(&bed);
    assert!(one.is_some() && one == two && two == three);
    assert_eq!(bed.hops.len(), 2, "one from each local address");

    route_by_gateways(&bed.hops, &[("0.0.0.0", 0), ("203.0.113.0", 24)]);
    assert_eq!(bed.flows.recheck_from(), Some(0));
    for one in &channels {
        bed.relayed(from_client(one.number.get()), 1);
        bed.offload(one, false, 77);
    }
    bed.flows.rechecked_until(None);
    assert_eq!(bed.flows.recheck_from(), None);
    let [first, second, third] = hops(&bed);
    assert_eq!(first, one);
    assert!(second.is_some() && second != one && second == third);
    for one in &channels {
        bed.flows.stop_offload(one);
    }
    bed.expect_empty();
}

#[test]
fn a_channel_for_whose_new_next_hop_there_is_no_room_goes_to_user_space() {
    let mut bed = bed(64, 2);
    route_by_gateways(&bed.hops, &[("0.0.0.0", 0)]);
    let (one, two) = (subject(0x4000, PEER), subject(0x4001, "203.0.113.9:700"));
    bed.offload(&one, false, 77);
    bed.offload(&two, false, 77);
    route_by_gateways(&bed.hops, &[("0.0.0.0", 0), ("203.0.113.0", 24)]);
    bed.flows.recheck_from();
    bed.relayed(from_client(0x4001), 5);
    assert_eq!(bed.offload(&one, false, 77), ChannelTraffic::default());
    assert_eq!(bed.offload(&two, false, 77), carried(5, 0));
    assert_eq!((bed.flows.len(), bed.counters.offload_full), (1, 1));
    bed.flows.stop_offload(&one);
    bed.expect_empty();
}
