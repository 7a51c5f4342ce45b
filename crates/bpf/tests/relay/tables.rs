//! The relay's tables from user space's side: what is entered stays, what is full says so, what is shared is seen.

use std::net::SocketAddr;

use hairpin_bpf::relay::{
    BindingLimit, Bucket, FlowEntry, FlowKey, InsertError, NextHop, Relay, Settings, Totals,
};

use crate::rig::load;

fn relay(channels: u32) -> Option<Relay> {
    load(&Settings {
        listener_ports: vec![3478],
        relay_ports: 49152..=65535,
        channels,
        buckets: 100,
        next_hops: 4,
        binding: Some(BindingLimit::default()),
    })
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn key(port: u16, v6: bool) -> FlowKey {
    let (remote, local) = match v6 {
        false => (address("192.0.2.1:1"), address("192.0.2.2:3478")),
        true => (address("[2001:db8::1]:1"), address("[2001:db8::2]:3478")),
    };
    FlowKey {
        remote: SocketAddr::new(remote.ip(), port),
        local,
        channel: Some(0x4000),
    }
}

fn entry() -> FlowEntry {
    FlowEntry {
        source: address("192.0.2.2:50000"),
        destination: address("198.51.100.1:6000"),
        channel: None,
        own_relay: false,
        next_hop: 1,
        bucket: None,
        deadline_ns: u64::MAX,
        settles: false,
    }
}

#[test]
fn a_full_table_says_so_and_keeps_what_it_has() {
    for v6 in [false, true] {
        let Some(relay) = relay(2) else { return };
        let mut table = relay.table();
        for port in 1..=4 {
            table.insert(&key(port, v6), &entry()).expect("room");
        }
        let refused = table.insert(&key(5, v6), &entry());
        assert!(matches!(refused, Err(InsertError::Full)), "{refused:?}");
        table.insert(&key(4, v6), &entry()).expect("replaced");
        let mut again = table.clone();
        assert!((1..=4).all(|port| again.remove(&key(port, v6)).is_some()));
        assert_eq!(table.remove(&key(1, v6)), None, "it is gone");
        table.insert(&key(5, v6), &entry()).expect("room again");
    }
}

#[test]
fn families_are_not_mixed_within_a_side() {
    let Some(relay) = relay(2) else { return };
    let mut table = relay.table();
    let mixed = FlowEntry {
        source: address("[2001:db8::2]:50000"),
        ..entry()
    };
    let refused = table.insert(&key(1, false), &mixed);
    assert!(matches!(refused, Err(InsertError::MixedFamilies)));
    let to_v6 = FlowEntry {
        destination: address("[2001:db8::9]:6000"),
        ..mixed
    };
    table
        .insert(&key(1, false), &to_v6)
        .expect("from IPv4 to IPv6");
    assert!(table.remove(&key(1, false)).is_some());
}

#[test]
fn buckets_are_one_memory_and_the_rest_starts_at_zero() {
    let Some(mut relay) = relay(2) else { return };
    let buckets = relay.buckets().expect("mapped");
    let same = relay.buckets().expect("mapped");
    let bucket = buckets.get(99).expect("a hundred");
    assert!(buckets.get(100).is_none());
    bucket.set(Bucket::scale(1), 0);
    assert!(bucket.charge(1, 1));
    assert!(!bucket.charge(1, 1));
    assert_eq!(same.get(99).map(Bucket::dropped_packets), Some(1));
    assert_eq!(relay.totals().expect("readable"), Totals::default());
    assert_eq!(relay.table().counts(&key(1, false)), None);
    relay.set_binding(None).expect("writable");
    relay
        .set_listener(address("[::1]:3478"), true)
        .expect("room");
    relay
        .set_listener(address("[::1]:3478"), false)
        .expect("removed");
    relay.set_interface(7, 7, [2; 6]).expect("a slot");
    assert_eq!(relay.partial_checksums(7), 0);
    assert!(
        relay.set_interface(7 + 256, 7 + 256, [2; 6]).is_err(),
        "taken"
    );
    relay
        .forget_interface(7 + 256)
        .expect("of nothing that is known");
    assert!(
        relay.set_interface(7 + 256, 7 + 256, [2; 6]).is_err(),
        "still the other's"
    );
    relay.forget_interface(7).expect("writable");
    relay.set_interface(7 + 256, 7 + 256, [2; 6]).expect("free");
}

#[test]
fn next_hop_zero_is_nobody() {
    let Some(relay) = relay(2) else { return };
    let mut hops = relay.next_hops().expect("a table");
    let hop = NextHop {
        good_until_ns: u64::MAX,
        interface: 1,
        mtu: 1500,
        usable_xdp: true,
        usable_xdp_tx: true,
        usable_tc: true,
        destination: [2; 6],
        source: [2; 6],
    };
    assert!(hops.set(0, &hop).is_err());
    assert!(hops.set(5, &hop).is_err(), "four were asked for");
    hops.set(4, &hop).expect("the last");
    hops.clear(4).expect("the last");
}
