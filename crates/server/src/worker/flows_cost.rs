//! What a channel costs in the kernel's tables. A measurement, not a test: run it alone, as root, with
//! `cargo test -p hairpin-server --lib -- --ignored --nocapture flows_cost`.

use super::*;
use crate::addresses::RelayAddress;
use crate::ports::PortRange;
use crate::rates::Chunks;
use bpf::relay::{Relay, Settings};
use std::time::Instant;
use stun::ChannelNumber;
use turn::{AllocationKey, ClientPath, FiveTuple, ListenerKey, Transport};

const CHANNELS: u32 = 16_384;
const ROUNDS: usize = 7;

/// A channel of a client and a peer of its own, like most.
fn channel(index: u32) -> OffloadedChannel {
    let [_, _, high, low] = index.to_be_bytes();
    let port = 10_000 + (index % 50_000) as u16;
    OffloadedChannel {
        allocation: AllocationKey {
            index,
            generation: 0,
        },
        path: ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local: ([192, 0, 2, 1], 3478).into(),
                remote: ([10, 1, high, low], port).into(),
            },
            listener: ListenerKey(0),
        },
        relayed: ([192, 0, 2, 1], port).into(),
        peer: ([10, 2, high, low], 7000).into(),
        number: ChannelNumber::MIN,
    }
}

#[test]
#[ignore = "a measurement"]
fn flows_cost() {
    let settings = Settings {
        listener_ports: vec![3478],
        relay_ports: 49_152..=65_535,
        channels: CHANNELS,
        buckets: CHANNELS,
        next_hops: 65_535,
        binding: None,
    };
    let relay = Relay::load(&settings).expect("root, and a kernel that has it");
    let relays = RelayAddresses::new(
        &[RelayAddress::direct([192, 0, 2, 1].into())],
        PortRange::DYNAMIC,
        1,
    );
    let chunks = || Arc::new(Chunks::new(CHANNELS));
    let hops = Arc::new(NextHopTable::new(65_535, None));
    let mut flows = Flows::new(
        Box::new(relay.table()),
        Arc::clone(&hops),
        Arc::new(Numbers::new(chunks(), 1)),
        Arc::new(relays),
    );
    let channels: Vec<OffloadedChannel> = (0..CHANNELS).map(channel).collect();
    let mut counters = Counters::default();
    let mut timed = |what: &str, work: &mut dyn FnMut(&mut Flows, &OffloadedChannel)| {
        let start = Instant::now();
        channels
            .iter()
            .for_each(|channel| work(&mut flows, channel));
        let each = start.elapsed().as_nanos() / u128::from(CHANNELS);
        println!("{what:>8} {each:6} ns");
    };
    for round in 0..ROUNDS {
        println!("round {round}, per channel:");
        timed("bind", &mut |flows, channel| {
            flows.offload(channel, false, Mono(1), &mut counters);
        });
        timed("refresh", &mut |flows, channel| {
            flows.offload(channel, false, Mono(9_000_000_000), &mut counters);
        });
        timed("end", &mut |flows, channel| {
            flows.stop_offload(channel);
        });
    }
    assert_eq!(
        counters.offload_entered,
        ROUNDS as u64 * u64::from(CHANNELS)
    );
}
