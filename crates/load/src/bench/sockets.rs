//! The socket load: real sockets of the client's namespace, one `send` per datagram.
//!
//! For comparison only. A socket uses more time for sending than a server for relaying, so the
//! generator would be the limit. With segmentation offload, a socket hands 64 datagrams over a veth
//! as one packet.

use std::time::{Duration, Instant};

use bpf::inject::Injected;
use bpf::payload;

use super::packets::Senders;
use super::verify::channel_data;

/// Datagrams between two looks at the clock.
const BURST: u32 = 32;

/// Sends ChannelData of all flows in turn at a rate, numbered from `first` on.
pub(crate) fn send(
    senders: &Senders<'_>,
    train: u32,
    (first, rate): (u32, Option<f64>),
    duration: Duration,
) -> Injected {
    let mut datagrams: Vec<Vec<u8>> = (0..)
        .zip(&senders.sockets)
        .map(|(flow, _): (u32, _)| {
            let mut body = vec![0; senders.payload];
            payload::fill(&mut body, flow ^ senders.flow_mask, 0);
            match senders.raw {
                true => body,
                false => channel_data(&body),
            }
        })
        .collect();
    let head = if senders.raw { 0 } else { 4 };
    let (start, start_ns) = (Instant::now(), ::io::clock::monotonic_ns());
    let (mut sent, mut flow, mut in_train) = (0u32, 0, 0);
    while start.elapsed() < duration && !datagrams.is_empty() {
        if rate.is_some_and(|rate| f64::from(sent) > start.elapsed().as_secs_f64() * rate) {
            std::hint::spin_loop();
            continue;
        }
        for _ in 0..BURST {
            payload::stamp(&mut datagrams[flow][head..], first.wrapping_add(sent));
            // A datagram that the kernel does not take counts as offered and lost.
            let _ = senders.sockets[flow].send(&datagrams[flow]);
            sent = sent.wrapping_add(1);
            in_train += 1;
            if in_train >= train {
                in_train = 0;
                flow = (flow + 1) % datagrams.len();
            }
        }
    }
    Injected {
        frames: sent.into(),
        start_ns,
        elapsed: start.elapsed(),
        skipped: Duration::ZERO,
    }
}
