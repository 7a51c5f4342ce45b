//! What the in-kernel relay costs on this machine: nanoseconds per run of its programs, and per update of its tables.
//!
//! `cargo run --release -p hairpin-bpf --example relay_cost` as root. The programs run on a frame that goes in circles:
//! from client to peer, from there back to the client, and so on until its TTL is used up. The floor of the figures is
//! the kernel's own loop around a run, shown as the cost of a packet that is none of ours.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hairpin_bpf::BpfError;
use hairpin_bpf::frame::Path;
use hairpin_bpf::relay::{
    BindingLimit, Bucket, FlowEntry, FlowKey, NextHop, ProgramRun, Relay, Settings, Verdict,
};

const LOOPBACK: u32 = 1;
const CHANNEL: u16 = 0x4000;
/// A frame's TTL is used up after 254 runs.
const RUNS: u32 = 250;
const ROUNDS: u32 = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut relay = prepared(Relay::load)?;
    programs(&mut relay)?;
    behind(&relay)?;
    tables(&relay)
}

/// Programs that can send.
fn prepared(
    load: impl FnOnce(&Settings) -> Result<Relay, BpfError>,
) -> Result<Relay, Box<dyn std::error::Error>> {
    let mut relay = load(&Settings {
        listener_ports: vec![3478],
        relay_ports: 49_152..=65_535,
        channels: 65_536,
        buckets: 1,
        next_hops: 1,
        binding: Some(BindingLimit {
            per_second: 1_000_000_000,
            ..BindingLimit::default()
        }),
    })?;
    relay.set_interface(LOOPBACK, LOOPBACK, [0; 6])?;
    relay.next_hops()?.set(
        1,
        &NextHop {
            good_until_ns: u64::MAX,
            interface: LOOPBACK,
            mtu: 1500,
            usable_xdp: true,
            usable_xdp_tx: true,
            usable_tc: true,
            destination: [0; 6],
            source: [0; 6],
        },
    )?;
    let buckets = relay.buckets()?;
    if let Some(bucket) = buckets.get(0) {
        bucket.set(Bucket::scale(1_000_000_000_000), 1_000_000);
    }
    Ok(relay)
}

/// During an upgrade: the program of another process comes first, and finds nothing in its tables.
fn behind(relay: &Relay) -> Result<(), Box<dyn std::error::Error>> {
    let mut front = prepared(Relay::load_in_front)?;
    front.set_behind(Some(relay.xdp_program()?.as_fd()))?;
    for (name, v6) in [("IPv4", false), ("IPv6", true)] {
        let ends = Ends::new(v6)?;
        circle(relay, &ends, None)?;
        let frame = ends.frame(&channel_data(120))?;
        let xdp = best(|| front.try_xdp(&frame, RUNS), Verdict::Transmit)?;
        println!("relayed by the program behind another one, {name}, 120 bytes: XDP {xdp} ns");
    }
    Ok(())
}

fn programs(relay: &mut Relay) -> Result<(), Box<dyn std::error::Error>> {
    for (name, v6) in [("IPv4", false), ("IPv6", true)] {
        let ends = Ends::new(v6)?;
        for (limit, bucket) in [("", None), (" with a rate limit", Some(0))] {
            circle(relay, &ends, bucket)?;
            for bytes in [120, 1200] {
                let frame = ends.frame(&channel_data(bytes))?;
                let xdp = best(|| relay.try_xdp(&frame, RUNS), Verdict::Transmit)?;
                let tc = best(|| relay.try_tc(&frame, None, RUNS), Verdict::Redirect)?;
                println!("relayed, {name}, {bytes} bytes{limit}: XDP {xdp} ns, tc {tc} ns");
            }
        }
        let mut unknown = channel_data(120);
        unknown[1] = 9;
        let misses = [
            ("an unknown channel", ends.frame(&unknown)?),
            ("a listener's STUN", ends.frame(&[0; 20])?),
            ("another port", ends.elsewhere()?),
        ];
        for (what, frame) in misses {
            let xdp = best(|| relay.try_xdp(&frame, RUNS), Verdict::Pass)?;
            let tc = best(|| relay.try_tc(&frame, None, RUNS), Verdict::Pass)?;
            println!("passed, {name}, {what}: XDP {xdp} ns, tc {tc} ns");
        }
        relay.set_listener(ends.listener, true)?;
        let mut request = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
        request.resize(20, 7);
        let frame = ends.frame(&request)?;
        let idle = best(
            || relay.try_xdp(&ends.elsewhere().unwrap_or_default(), 1),
            Verdict::Pass,
        )?;
        let xdp = best(|| relay.try_xdp(&frame, 1), Verdict::Transmit)?;
        println!("answered, {name}, single runs: XDP {xdp} ns, of which {idle} ns are the clock's");
    }
    Ok(())
}

/// The least of many rounds, in nanoseconds per run.
fn best(
    mut round: impl FnMut() -> Result<ProgramRun, BpfError>,
    wanted: Verdict,
) -> Result<u128, Box<dyn std::error::Error>> {
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        let trial = round()?;
        if trial.verdict != wanted {
            return Err(format!("{:?} instead of {wanted:?}", trial.verdict).into());
        }
        least = least.min(trial.duration);
    }
    Ok(least.as_nanos())
}

struct Ends {
    client: SocketAddr,
    listener: SocketAddr,
    relay: SocketAddr,
    peer: SocketAddr,
}

impl Ends {
    fn new(v6: bool) -> Result<Ends, std::net::AddrParseError> {
        let [a, b] = if v6 {
            ["[2001:db8::1]", "[2001:db8::2]"]
        } else {
            ["192.0.2.1", "192.0.2.2"]
        };
        Ok(Ends {
            client: format!("{a}:40000").parse()?,
            listener: format!("{b}:3478").parse()?,
            relay: format!("{b}:50000").parse()?,
            // In the range of relays, so that what leaves can come in.
            peer: format!("{a}:60000").parse()?,
        })
    }

    fn frame(&self, payload: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        self.frame_to(self.listener, payload)
    }

    fn elsewhere(&self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        self.frame_to(SocketAddr::new(self.listener.ip(), 53), &[0; 120])
    }

    fn frame_to(
        &self,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let path = Path {
            source_mac: [0; 6],
            destination_mac: [0; 6],
            source: self.client,
            destination: to,
        };
        let mut frame = path.frame(payload)?;
        if self.client.is_ipv4() {
            // 191 more, on both sides of the sum.
            frame[22] = 255;
            let sum = u16::from_be_bytes([frame[24], frame[25]]);
            let (sum, carry) = sum.overflowing_sub(191 << 8);
            frame[24..26].copy_from_slice(&(sum - u16::from(carry)).to_be_bytes());
        } else {
            frame[21] = 255;
        }
        Ok(frame)
    }
}

fn channel_data(bytes: usize) -> Vec<u8> {
    let mut message = CHANNEL.to_be_bytes().to_vec();
    message.extend((bytes as u16).to_be_bytes());
    message.extend((0..bytes).map(|at| at as u8));
    message
}

/// Client to peer, and what has left so comes in as the peer's and leaves as the client's.
fn circle(
    relay: &Relay,
    ends: &Ends,
    bucket: Option<u32>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut table = relay.table();
    let there = FlowEntry {
        source: ends.relay,
        destination: ends.peer,
        channel: None,
        own_relay: false,
        next_hop: 1,
        bucket,
        deadline_ns: u64::MAX,
        settles: false,
    };
    let from_client = FlowKey {
        remote: ends.client,
        local: ends.listener,
        channel: Some(CHANNEL),
    };
    table.insert(&from_client, &there)?;
    let from_peer = FlowKey {
        remote: ends.relay,
        local: ends.peer,
        channel: None,
    };
    let back = FlowEntry {
        source: ends.client,
        destination: ends.listener,
        channel: Some(CHANNEL),
        ..there
    };
    Ok(table.insert(&from_peer, &back)?)
}

/// A ChannelBind enters two entries; its end takes them out and reads their counters.
fn tables(relay: &Relay) -> Result<(), Box<dyn std::error::Error>> {
    const CHANNELS: u16 = 16_000;
    let mut table = relay.table();
    let ends = Ends::new(false)?;
    let flow = |number: u16| {
        let client = SocketAddr::new(ends.client.ip(), 1024 + number);
        let relay = SocketAddr::new(ends.relay.ip(), 49_152 + number);
        let from_client = FlowKey {
            remote: client,
            local: ends.listener,
            channel: Some(CHANNEL),
        };
        let from_peer = FlowKey {
            remote: ends.peer,
            local: relay,
            channel: None,
        };
        let there = FlowEntry {
            source: relay,
            destination: ends.peer,
            channel: None,
            own_relay: false,
            next_hop: 1,
            bucket: None,
            deadline_ns: u64::MAX,
            settles: false,
        };
        let back = FlowEntry {
            source: ends.listener,
            destination: client,
            channel: Some(CHANNEL),
            ..there
        };
        [(from_client, there), (from_peer, back)]
    };
    for _ in 0..4 {
        let start = Instant::now();
        for number in 0..CHANNELS {
            for (key, entry) in flow(number) {
                table.insert(&key, &entry)?;
            }
        }
        let bound = start.elapsed();
        let start = Instant::now();
        for number in 0..CHANNELS {
            for (key, _) in flow(number) {
                std::hint::black_box(table.remove(&key));
            }
        }
        let ended = start.elapsed();
        let each = |time: Duration| time.as_nanos() / u128::from(CHANNELS);
        println!(
            "tables: {} ns for a ChannelBind (two inserts), {} ns for its end (two removals)",
            each(bound),
            each(ended)
        );
    }
    Ok(())
}
