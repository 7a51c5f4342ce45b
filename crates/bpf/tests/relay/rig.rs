//! The programs with their tables filled for one case at a time.

use std::time::Duration;

use hairpin_bpf::relay::{
    BindingLimit, Bucket, Buckets, FlowEntry, FlowKey, NextHop, NextHops, PathTotals, ProgramRun,
    Relay, Settings, Table,
};

use crate::cases::reference::{ARRIVING, LEAVING};
use crate::cases::{CHANNEL, Case, Hop, LISTENER_PORT, OTHER_CHANNEL, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Xdp,
    Tc,
}

pub(crate) struct Rig {
    pub(crate) relay: Relay,
    pub(crate) table: Table,
    hops: NextHops,
    buckets: Buckets,
    /// Where the next hop is, unless the case wants another.
    pub(crate) interface: u32,
    /// New flows settle first.
    settles: bool,
}

/// The interface of a test run.
const LOOPBACK: u32 = 1;
const CHANNELS: u32 = 1 << 13;

/// Says that a test does nothing, and why: to whoever reads what it prints, and to `cargo xtask test`, which counts
/// them.
pub(crate) fn skipped(reason: &dyn std::fmt::Display) {
    use std::io::Write;
    eprintln!("skipped: {reason}");
    let list = std::env::var_os("HAIRPIN_TESTS_SKIPPED");
    let file = list.map(|list| {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
    });
    if let Some(Ok(mut file)) = file {
        let of = std::env::args().next().unwrap_or_default();
        let of = of.rsplit('/').next().unwrap_or_default();
        // Then it has been said on stderr only.
        let _ = file.write_all(format!("{of}: {reason}\n").as_bytes());
    }
}

/// `None`, with the reason on stderr, where this process may not load programs.
pub(crate) fn load(settings: &Settings) -> Option<Relay> {
    load_by(Relay::load, settings)
}

fn load_by(
    load: impl FnOnce(&Settings) -> Result<Relay, hairpin_bpf::BpfError>,
    settings: &Settings,
) -> Option<Relay> {
    match load(settings) {
        Ok(relay) => Some(relay),
        // SAFETY: geteuid has no preconditions.
        Err(error) if unsafe { libc::geteuid() } != 0 => {
            skipped(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

impl Rig {
    /// `None`, with the reason on stderr, where this process may not load programs.
    pub(crate) fn new() -> Option<Rig> {
        Rig::loaded_by(Relay::load)
    }

    /// The same, with an XDP program that may have another one behind it.
    pub(crate) fn in_front() -> Option<Rig> {
        Rig::loaded_by(Relay::load_in_front)
    }

    fn loaded_by(
        load: impl FnOnce(&Settings) -> Result<Relay, hairpin_bpf::BpfError>,
    ) -> Option<Rig> {
        let settings = Settings {
            listener_ports: vec![443, LISTENER_PORT],
            relay_ports: 49_152..=65_535,
            channels: CHANNELS,
            buckets: 2,
            next_hops: 1,
            binding: Some(BindingLimit::default()),
        };
        let mut relay = load_by(load, &settings)?;
        // The verifier takes a while, which is no part of what some tests time.
        relay.load_xdp().expect("accepted");
        relay.load_tc().expect("accepted");
        relay
            .set_interface(LOOPBACK, LOOPBACK, ARRIVING[0])
            .expect("a slot");
        Some(Rig {
            table: relay.table(),
            hops: relay.next_hops().expect("a table"),
            buckets: relay.buckets().expect("mapped"),
            relay,
            interface: LOOPBACK,
            settles: false,
        })
    }

    /// Makes the tables what the case wants them to be. Returns the keys of the flows that it goes over, and the
    /// identification that an IPv4 packet must leave with.
    pub(crate) fn enter(&mut self, case: &Case) -> (Vec<FlowKey>, u32) {
        let hop = NextHop {
            good_until_ns: if case.hop == Hop::Stale { 1 } else { u64::MAX },
            interface: if matches!(case.hop, Hop::Other | Hop::OtherWithoutXmit) {
                77
            } else {
                self.interface
            },
            mtu: case.mtu,
            // What goes back needs no `ndo_xdp_xmit`.
            usable_xdp: matches!(case.hop, Hop::Other | Hop::Stale),
            usable_xdp_tx: case.hop != Hop::Unusable,
            usable_tc: case.hop != Hop::Unusable,
            destination: LEAVING[0],
            source: LEAVING[1],
        };
        self.hops.set(1, &hop).expect("an index");
        let buckets = [(0, case.over_rate), (1, case.group_over_rate)];
        for (index, is_over) in buckets {
            let bucket = self.buckets.get(index).expect("two");
            if is_over {
                bucket.set(u32::MAX, 0);
                bucket.charge(u64::MAX >> 2, 1);
            } else {
                bucket.set(Bucket::scale(1_000_000_000), 1_000_000);
            }
        }
        let own = self.buckets.get(0).expect("two");
        own.set_groups([1, 0, 0, 0]);
        let mut keys = Vec::new();
        let mut leaving = None;
        for (key, entry) in flows(case) {
            let entry = FlowEntry {
                settles: self.settles,
                ..entry
            };
            self.table.insert(&key, &entry).expect("room");
            keys.push(key);
            leaving = Some(entry);
        }
        // Packets of a flow are counted from 0 here, so that the rest is the ports of the flow that they leave by.
        let seed = leaving.map_or(0, |leaving| {
            let source = u32::from(leaving.source.port().to_be());
            let destination = u32::from(leaving.destination.port().to_be());
            source.wrapping_mul(0x9e37).wrapping_add(destination)
        });
        (keys, seed & 0xffff)
    }

    /// Takes the case's entries out again.
    pub(crate) fn leave(&mut self, case: &Case) {
        for (key, _) in flows(case) {
            assert!(self.table.remove(&key).is_some());
        }
    }

    /// The flows of the next cases settle before they are used.
    pub(crate) fn settle_new_flows(&mut self) {
        self.settles = true;
    }

    pub(crate) fn run(&mut self, path: Path, frame: &[u8], segments: Option<u32>) -> ProgramRun {
        match path {
            Path::Xdp => self.relay.try_xdp(frame, 1),
            Path::Tc => self.relay.try_tc(frame, segments, 1),
        }
        .expect("a run")
    }

    pub(crate) fn totals(&self, path: Path) -> PathTotals {
        let totals = self.relay.totals().expect("readable");
        match path {
            Path::Xdp => totals.xdp,
            Path::Tc => totals.tc,
        }
    }

    /// What has been counted since.
    pub(crate) fn grown(&self, path: Path, before: &PathTotals) -> Vec<(&'static str, u64)> {
        let now = self.totals(path);
        let pairs = now.named().zip(before.named());
        pairs
            .map(|((name, now), (_, before))| (name, now - before))
            .filter(|(_, grown)| *grown > 0)
            .collect()
    }

    /// Packets and bytes that the case's allocation has lost to its rate.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        let bucket = self.buckets.get(0).expect("two");
        (bucket.dropped_packets(), bucket.dropped_bytes())
    }

    pub(crate) fn now_s(&self) -> u32 {
        now().as_secs() as u32
    }
}

/// CLOCK_MONOTONIC.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The entries that a server would have for the case; those that the packet goes over, and no others.
fn flows(case: &Case) -> Vec<(FlowKey, FlowEntry)> {
    let addresses = case.addresses();
    let entry = FlowEntry {
        source: addresses.relay,
        destination: addresses.peer,
        channel: None,
        own_relay: false,
        next_hop: if case.hop == Hop::None { 0 } else { 1 },
        bucket: Some(0),
        deadline_ns: if case.expired { 1 } else { u64::MAX },
        settles: false,
    };
    let from_client = FlowKey {
        remote: addresses.client,
        local: addresses.listener,
        channel: Some(CHANNEL),
    };
    match case.way {
        Way::ToPeer => vec![(from_client, entry)],
        Way::ToClient => {
            let from_peer = FlowKey {
                remote: addresses.peer,
                local: addresses.relay,
                channel: None,
            };
            let to_client = FlowEntry {
                source: addresses.listener,
                destination: addresses.client,
                channel: Some(CHANNEL),
                ..entry
            };
            vec![(from_peer, to_client)]
        }
        Way::Between => {
            let across = FlowEntry {
                destination: addresses.other_relay,
                own_relay: true,
                next_hop: 0,
                deadline_ns: u64::MAX,
                bucket: None,
                ..entry
            };
            let arrives = FlowKey {
                remote: addresses.relay,
                local: addresses.other_relay,
                channel: None,
            };
            let to_other = FlowEntry {
                source: addresses.listener,
                destination: addresses.other_client,
                channel: Some(OTHER_CHANNEL),
                ..entry
            };
            let mut flows = vec![(from_client, across)];
            if case.answered {
                flows.push((arrives, to_other));
            }
            flows
        }
    }
}
