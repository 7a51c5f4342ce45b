//! Datagrams: relayed, dropped, received, sent.

use server::Observer;
use server::offload::{OffloadStatus, PathTotals};
use server::stats::{DropReason, Stats, Traffic, WorkerStats};

use super::text::{Kind, Labels, Page};

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    let kernel = observer.offload();
    relayed(page, stats, &kernel);
    dropped(page, stats, &kernel);
    received(page, stats);
    batches_received(page, stats);
    sent(page, stats);
    segmented(page, stats);
}

/// The number of a worker for each value of the label `side`: `client` and `peer`.
type Sides = [(&'static str, fn(&WorkerStats) -> u64); 2];

/// Writes a family of counters with the labels `side` and `worker`.
fn by_side(page: &mut Page, stats: &Stats, name: &'static str, help: &str, sides: Sides) {
    let mut family = page.family(name, Kind::Counter, help);
    for (side, number) in sides {
        for (worker, of) in stats.workers.iter().enumerate() {
            family.put(&[("side", &side), ("worker", &worker)], number(of));
        }
    }
}

/// Takes packets or bytes from a traffic count.
type Number = fn(Traffic) -> u64;

/// Datagrams and bytes that workers and the BPF programs have relayed.
fn relayed(page: &mut Page, stats: &Stats, kernel: &OffloadStatus) {
    let directions = |worker: &WorkerStats| {
        [
            ("to_peer", worker.engine.to_peers),
            ("to_relay", worker.engine.to_relays),
            ("to_client", worker.engine.to_clients),
        ]
    };
    let families: [(_, _, Number); 2] = [
        (
            "hairpin_turn_relayed_packets_total",
            "Datagrams relayed: to external peers, to other relayed addresses of this server, and to clients.",
            |traffic| traffic.packets,
        ),
        (
            "hairpin_turn_relayed_bytes_total",
            "Application data relayed, in bytes, without any header.",
            |traffic| traffic.bytes,
        ),
    ];
    for (name, help, number) in families {
        let mut family = page.family(name, Kind::Counter, help);
        for (worker, of) in stats.workers.iter().enumerate() {
            for (direction, traffic) in directions(of) {
                let labels: Labels<'_> = &[
                    ("direction", &direction),
                    ("path", &"user"),
                    ("worker", &worker),
                ];
                family.put(labels, number(traffic));
            }
        }
        for (path, totals) in [("xdp", &kernel.totals.xdp), ("tc", &kernel.totals.tc)] {
            for (direction, traffic) in in_kernel(totals) {
                let labels: Labels<'_> = &[
                    ("direction", &direction),
                    ("path", &path),
                    ("worker", &"none"),
                ];
                family.put(labels, number(traffic));
            }
        }
    }
    let counters = stats.counters();
    page.counters(
        "hairpin_turn_handed_over_packets_total",
        "Datagrams from one relayed address of this server to another, by whether the same worker has both.",
        "to",
        [
            ("same_worker", counters.handed_over_here),
            ("other_worker", counters.handed_over_away),
        ],
    );
}

/// What the kernel has relayed, in the directions of the workers. A datagram between two relays of this server counts
/// in two directions: `to_relay` and `to_client`.
fn in_kernel(totals: &PathTotals) -> [(&'static str, Traffic); 3] {
    let traffic = |packets, bytes| Traffic { packets, bytes };
    [
        ("to_peer", traffic(totals.to_peer, totals.to_peer_bytes)),
        (
            "to_relay",
            traffic(totals.relay_to_relay, totals.relay_to_relay_bytes),
        ),
        (
            "to_client",
            traffic(
                totals.to_client + totals.relay_to_relay,
                totals.to_client_bytes + totals.relay_to_relay_bytes,
            ),
        ),
    ]
}

fn dropped(page: &mut Page, stats: &Stats, kernel: &OffloadStatus) {
    let over_rate = kernel.totals.xdp.rate_dropped + kernel.totals.tc.rate_dropped;
    let counters = stats.counters();
    let by_engines = DropReason::ALL.iter().map(|&reason| {
        // The BPF programs count only this one of these reasons.
        let more = if reason == DropReason::OverRate {
            over_rate
        } else {
            0
        };
        (reason.name(), stats.dropped(reason) + more)
    });
    let by_workers = [
        ("truncated", counters.truncated),
        ("relay_gone", counters.relay_gone),
        ("relay_not_live", counters.relay_not_live),
        ("mailbox_full", counters.mailbox_full),
        ("peer_unclaimed", counters.peer_unclaimed),
        ("client_not_moved", counters.clients_not_moved),
    ];
    page.counters(
        "hairpin_turn_dropped_packets_total",
        "Datagrams that the server dropped, by reason.",
        "reason",
        by_engines.chain(by_workers),
    );
}

fn received(page: &mut Page, stats: &Stats) {
    by_side(
        page,
        stats,
        "hairpin_io_received_datagrams_total",
        "Datagrams received, from clients and from peers.",
        [
            ("client", |worker| worker.counters.client_datagrams),
            ("peer", |worker| worker.counters.peer_datagrams),
        ],
    );
    by_side(
        page,
        stats,
        "hairpin_io_received_bytes_total",
        "Bytes received, headers of UDP and IP excluded.",
        [
            ("client", |worker| worker.counters.client_bytes),
            ("peer", |worker| worker.counters.peer_bytes),
        ],
    );
    by_side(
        page,
        stats,
        "hairpin_io_receive_overflow_total",
        "Messages that the kernel dropped because a receive buffer was full (SO_RXQ_OVFL), at listeners and at relays. A GRO batch counts as one.",
        [
            ("client", |worker| worker.counters.listener_overflow),
            ("peer", |worker| worker.counters.relay_overflow),
        ],
    );
    page.counter(
        "hairpin_io_receive_errors_total",
        "Receive calls that failed.",
        stats.counters().receive_errors,
    );
    page.counter(
        "hairpin_turn_icmp_errors_total",
        "ICMP errors received for datagrams relayed to peers.",
        stats.counters().icmp_errors,
    );
}

fn batches_received(page: &mut Page, stats: &Stats) {
    let received = stats.received();
    page.counter(
        "hairpin_io_gro_trains_total",
        "Batches of datagrams received as one (UDP GRO).",
        received.gro_trains,
    );
    page.counter(
        "hairpin_io_gro_segments_total",
        "Datagrams in batches that were received as one.",
        received.gro_segments,
    );
    page.sizes(
        "hairpin_io_receive_call_datagrams",
        "Datagrams per system call that received any.",
        &received.per_call,
    );
    page.sizes(
        "hairpin_io_wakeup_datagrams",
        "Datagrams per wake-up of a worker that received any.",
        &stats.counters().batches,
    );
}

fn sent(page: &mut Page, stats: &Stats) {
    page.per_worker(
        "hairpin_io_sent_datagrams_total",
        Kind::Counter,
        "Datagrams that the kernel accepted, to clients and to peers.",
        stats,
        |of| of.sends.sent,
    );
    page.per_worker(
        "hairpin_io_sent_bytes_total",
        Kind::Counter,
        "Bytes that the kernel accepted, without headers of UDP and IP.",
        stats,
        |of| of.sends.sent_bytes,
    );
    let sends = stats.sends();
    page.counters(
        "hairpin_io_send_errors_total",
        "Datagrams that the kernel rejected, by reason.",
        "reason",
        [
            ("would_block", sends.would_block),
            ("too_big", sends.too_big),
            ("unreachable", sends.unreachable),
            ("denied", sends.denied),
            ("no_buffers", sends.no_buffers),
            ("other", sends.other_errors),
        ],
    );
    page.counter(
        "hairpin_io_send_calls_total",
        "System calls made to send.",
        sends.syscalls,
    );
    page.sizes(
        "hairpin_io_send_call_datagrams",
        "Datagrams per system call that sent any.",
        &sends.per_call,
    );
}

fn segmented(page: &mut Page, stats: &Stats) {
    let sends = stats.sends();
    page.counter(
        "hairpin_io_gso_super_packets_total",
        "Sends with several datagrams as one (UDP GSO).",
        sends.gso_runs,
    );
    page.counter(
        "hairpin_io_gso_segments_total",
        "Datagrams in sends with several datagrams as one.",
        sends.gso_segments,
    );
    page.counters(
        "hairpin_io_gso_refused_total",
        "Sends with GSO that the kernel refused and that were repeated datagram by datagram, by reason. The server remembers it per destination.",
        "reason",
        [
            ("size", sends.gso_wrong_size),
            ("unsupported", sends.gso_unsupported),
        ],
    );
}
