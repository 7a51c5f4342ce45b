//! The table of flows while programs and several threads use it at the same time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use hairpin_bpf::relay::{Counts, FlowEntry, FlowKey, InsertError, Verdict};

use crate::cases::{Case, Expect, Way};
use crate::rig::{Path, Rig};

fn key(number: u16) -> FlowKey {
    let remote = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 1000 + number);
    let local = |text: &str| text.parse().expect("an address");
    match number % 2 {
        0 => FlowKey {
            remote: remote("192.0.2.1"),
            local: local("192.0.2.2:3478"),
            channel: Some(0x4000 + number % 3),
        },
        _ => FlowKey {
            remote: remote("2001:db8::1"),
            local: local("[2001:db8::2]:3478"),
            channel: None,
        },
    }
}

fn entry() -> FlowEntry {
    FlowEntry {
        source: "192.0.2.2:50000".parse().expect("an address"),
        destination: "198.51.100.1:6000".parse().expect("an address"),
        channel: None,
        own_relay: false,
        next_hop: 1,
        bucket: None,
        deadline_ns: u64::MAX,
        settles: false,
    }
}

#[test]
fn the_table_agrees_with_a_map_through_a_hundred_thousand_changes() {
    let Some(rig) = Rig::new() else { return };
    let mut table = rig.relay.table();
    let mut model: HashMap<u16, ()> = HashMap::new();
    let (mut random, mut refused) = (1_u64, 0);
    for step in 0..100_000_u32 {
        // xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let number = (random >> 20) as u16 % 12_000;
        // Mostly filling in the first half, mostly emptying in the second.
        let inserts = (random & 7) < if step < 50_000 { 6 } else { 2 };
        if inserts {
            // With few free places near its own, a flow finds no room.
            match table.insert(&key(number), &entry()) {
                Ok(()) => drop(model.insert(number, ())),
                Err(error) => {
                    assert!(matches!(error, InsertError::Full), "{error}");
                    assert!(!model.contains_key(&number));
                    refused += 1;
                }
            }
        } else {
            let known = model.remove(&number).map(|()| Counts::default());
            assert_eq!(table.remove(&key(number)), known, "step {step}");
        }
    }
    assert!(
        refused < 20,
        "{refused} of 100,000 found no room in a table a quarter full"
    );
    for number in 0..12_000 {
        let known = model.get(&number).map(|()| Counts::default());
        assert_eq!(table.counts(&key(number)), known, "{number}");
    }
}

#[test]
fn a_flow_that_changes_meanwhile_never_mixes_with_what_it_was() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case {
        way: Way::ToPeer,
        expect: Expect::Relayed,
        ..Case::NEW
    };
    let (keys, _) = rig.enter(&case);
    let (key, mut table) = (keys[0], rig.relay.table());
    let address = |text: &str| text.parse().expect("an address");
    let ends: [(SocketAddr, SocketAddr); 2] = [
        ("192.0.2.2:50000", "198.51.100.1:6000"),
        ("192.0.2.3:50007", "203.0.113.9:6011"),
    ]
    .map(|(source, destination)| (address(source), address(destination)));
    let frame = case.arriving_frame();
    let of = |(source, destination): (SocketAddr, SocketAddr)| FlowEntry {
        source,
        destination,
        ..entry()
    };
    table.insert(&key, &of(ends[0])).expect("room");
    /// Ends the other thread, also when a check fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let mut seen = [0_u32; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (source, destination) in ends.iter().cycle() {
                let entry = of((*source, *destination));
                table.insert(&key, &entry).expect("room");
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                for _ in 0..50 {
                    std::hint::spin_loop();
                }
                // Both ways of changing a flow: in its place, and by a new one.
                if destination.port() == 6011 {
                    table.remove(&key);
                }
            }
        });
        let _stop = Stop(&stop);
        // On a busy machine, one of the threads may not run for a while.
        for number in 0..3_000_000 {
            if number > 30_000 && seen.iter().all(|&count| count > 0) {
                break;
            }
            let run = rig.run(Path::Xdp, &frame, None);
            if !matches!(run.verdict, Verdict::Transmit | Verdict::Redirect) {
                continue;
            }
            // IPv4 addresses and UDP ports, behind the Ethernet header.
            let found = ends.iter().position(|(source, destination)| {
                let (SocketAddr::V4(source), SocketAddr::V4(destination)) = (source, destination)
                else {
                    return false;
                };
                run.frame[26..30] == source.ip().octets()
                    && run.frame[30..34] == destination.ip().octets()
                    && run.frame[34..36] == source.port().to_be_bytes()
                    && run.frame[36..38] == destination.port().to_be_bytes()
            });
            seen[found.expect("of one flow")] += 1;
        }
    });
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}
