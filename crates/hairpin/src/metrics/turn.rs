//! What clients hold and ask for: allocations, permissions, channels, requests, errors, ports.

use server::stats::{AuthFailure, CloseReason, ERROR_CODES, EngineStats, METHODS, Stats};
use server::stun::Method;
use server::{AddressFamily, Observer};

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    allocations(page, observer, stats);
    held(page, stats);
    ports(page, observer, stats);
    requests(page, observer, stats);
    errors(page, stats);
}

fn allocations(page: &mut Page, observer: &Observer, stats: &Stats) {
    page.per_worker(
        "hairpin_turn_allocations",
        Kind::Gauge,
        "Allocations that exist.",
        stats,
        |of| of.engine.allocations,
    );
    page.per_worker(
        "hairpin_turn_allocations_opened_total",
        Kind::Counter,
        "Allocations that were made.",
        stats,
        |of| of.engine.allocations_opened,
    );
    page.per_worker(
        "hairpin_turn_allocations_moved_total",
        Kind::Counter,
        "Allocations whose client has moved to another address or port (relay.mobility).",
        stats,
        |of| of.engine.allocations_moved,
    );
    let closed = |reason| stats.sum(|worker| worker.engine.allocations_closed(reason));
    let reasons = CloseReason::ALL.iter();
    page.counters(
        "hairpin_turn_allocations_closed_total",
        "Allocations that ended, by reason.",
        "reason",
        reasons.map(|&reason| (reason.name(), closed(reason))),
    );
    let (held, limit) = observer.relayed_addresses();
    page.gauge(
        "hairpin_turn_relayed_addresses",
        "Relayed addresses that clients hold, counted as the limit counts them: dual and reserved ones twice.",
        held,
    );
    page.gauge(
        "hairpin_turn_relayed_addresses_limit",
        "Most relayed addresses that clients may hold (limits.allocations).",
        limit,
    );
}

fn held(page: &mut Page, stats: &Stats) {
    page.gauge(
        "hairpin_turn_permissions",
        "Permissions that exist; some may have lapsed a moment ago.",
        stats.sum(|worker| worker.engine.permissions),
    );
    page.gauge(
        "hairpin_turn_channels",
        "Channels that exist; some may have lapsed a moment ago.",
        stats.sum(|worker| worker.engine.channels),
    );
    page.gauge(
        "hairpin_turn_reservations",
        "Ports held for a reservation token.",
        stats.sum(|worker| worker.engine.reservations),
    );
    page.gauge(
        "hairpin_turn_pending_requests",
        "Allocate requests that wait for their sockets.",
        stats.sum(|worker| worker.engine.pending),
    );
    page.gauge(
        "hairpin_turn_relay_sockets",
        "Relay sockets that are open.",
        stats.sum(|worker| worker.relays_open),
    );
    connections(page, stats);
    page.counter(
        "hairpin_turn_relays_moved_total",
        "Reserved relays that went from one worker to another, because the client with the token is there.",
        stats.counters().relays_received,
    );
    page.counter(
        "hairpin_turn_requests_moved_total",
        "Requests that went from the worker they arrived at to the one that was to have their allocation.",
        stats.counters().requests_taken,
    );
    page.per_worker(
        "hairpin_turn_steered_flows",
        Kind::Gauge,
        "Clients of a worker whom the kernel's hash would send to another one.",
        stats,
        |of| of.flows_steered,
    );
    offloaded(page, stats);
}

/// Of TCP allocations (RFC 6062).
fn connections(page: &mut Page, stats: &Stats) {
    let engine = |number: fn(&EngineStats) -> u64| stats.sum(|worker| number(&worker.engine));
    page.gauge(
        "hairpin_turn_peer_connections",
        "TCP connections between TCP relayed addresses and peers, those being made included.",
        engine(|of| of.peer_connections),
    );
    page.gauge(
        "hairpin_turn_data_connections",
        "Peer connections that a client's data connection is bound to.",
        engine(|of| of.data_connections),
    );
    page.counter(
        "hairpin_turn_peer_connections_opened_total",
        "TCP connections with peers that were made, by either side.",
        engine(|of| of.peer_connections_opened),
    );
    page.counter(
        "hairpin_turn_peer_connections_refused_total",
        "TCP connections of peers that were closed at once, for want of a permission or of room.",
        engine(|of| of.peer_connections_refused),
    );
    let counters = stats.counters();
    page.counters(
        "hairpin_turn_stream_bytes_total",
        "Bytes relayed between data connections and peers, by how.",
        "how",
        [
            ("spliced", counters.stream_bytes_spliced),
            ("copied", counters.stream_bytes_copied),
        ],
    );
}

fn offloaded(page: &mut Page, stats: &Stats) {
    page.per_worker(
        "hairpin_offload_channels",
        Kind::Gauge,
        "Channels of a worker that the kernel may relay: each has an entry for each direction in its table.",
        stats,
        |of| of.channels_offloaded,
    );
    let counters = stats.counters();
    page.counter(
        "hairpin_offload_channels_entered_total",
        "Channels that were entered into the kernel's table.",
        counters.offload_entered,
    );
    page.counters(
        "hairpin_offload_channels_refused_total",
        "Times that a channel was not entered, or could not stay, so that user space relays it.",
        "reason",
        [
            ("full", counters.offload_full),
            ("address", counters.offload_unfit),
        ],
    );
}

fn ports(page: &mut Page, observer: &Observer, stats: &Stats) {
    let mut family = page.family(
        "hairpin_turn_ports",
        Kind::Gauge,
        "Relay ports of all relay addresses, by what has become of them.",
    );
    for (name, of) in [("ipv4", AddressFamily::V4), ("ipv6", AddressFamily::V6)] {
        let Some(counts) = observer.ports(of) else {
            continue;
        };
        for (state, count) in [
            ("in_use", counts.in_use),
            ("free", counts.free),
            ("resting", counts.resting),
            ("foreign", counts.foreign),
        ] {
            family.put(&[("family", &name), ("state", &state)], count);
        }
    }
    let counters = stats.counters();
    page.counters(
        "hairpin_turn_relay_open_failures_total",
        "Relays that could not be opened: the client got 508.",
        "reason",
        [
            ("no_port", counters.no_port),
            ("no_descriptor", counters.no_descriptor),
            ("other", counters.open_failed),
        ],
    );
    page.counter(
        "hairpin_turn_foreign_ports_total",
        "Times that a relay port was passed over because another process holds it.",
        counters.foreign_ports,
    );
}

/// A family of counters by method. `by_kernel` are Binding requests that no worker has seen.
fn by_method(
    page: &mut Page,
    stats: &Stats,
    name: &'static str,
    help: &str,
    number: fn(&EngineStats, Method) -> u64,
    by_kernel: u64,
) {
    let counts = METHODS.iter().map(|&(method, name)| {
        let by_kernel = if method == Method::BINDING {
            by_kernel
        } else {
            0
        };
        let count = stats.sum(|worker| number(&worker.engine, method));
        (name, count + by_kernel)
    });
    page.counters(name, help, "method", counts);
}

fn requests(page: &mut Page, observer: &Observer, stats: &Stats) {
    let totals = observer.offload().totals;
    let answered = totals.xdp.binding + totals.tc.binding;
    by_method(
        page,
        stats,
        "hairpin_stun_requests_total",
        "Requests received, retransmissions included.",
        |engine, method| engine.requests(method).packets,
        answered,
    );
    by_method(
        page,
        stats,
        "hairpin_stun_request_bytes_total",
        "Bytes of requests received by workers, headers of UDP and IP excluded.",
        |engine, method| engine.requests(method).bytes,
        0,
    );
    by_method(
        page,
        stats,
        "hairpin_stun_successes_total",
        "Requests answered with success.",
        EngineStats::successes,
        answered,
    );
    page.counter(
        "hairpin_stun_retransmissions_total",
        "Retransmitted Allocate requests and deletions that got their first response again.",
        stats.sum(|worker| worker.engine.retransmissions),
    );
}

fn errors(page: &mut Page, stats: &Stats) {
    let mut family = page.family(
        "hairpin_stun_errors_total",
        Kind::Counter,
        "Requests answered with an error, by method and code. The first request of a client gets 401, which is no failure.",
    );
    for (method, name) in METHODS {
        for code in ERROR_CODES {
            let count = stats.sum(|worker| worker.engine.errors(*method, *code));
            family.put(&[("method", name), ("code", code)], count);
        }
    }
    let mut family = page.family(
        "hairpin_turn_auth_failures_total",
        Kind::Counter,
        "Requests whose credentials were not accepted, by reason. Every client meets stale_nonce now and then.",
    );
    for reason in AuthFailure::ALL {
        let count = stats.sum(|worker| worker.engine.auth_failed(*reason));
        family.put(&[("reason", &reason.name())], count);
    }
    page.counter(
        "hairpin_turn_key_lookups_total",
        "Look-ups begun at sources of credentials that answer later.",
        stats.sum(|worker| worker.engine.lookups_begun),
    );
    let mut family = page.family(
        "hairpin_turn_key_lookups_failed_total",
        Kind::Counter,
        "Look-ups that ended without an answer, by reason; their clients got 500.",
    );
    for (reason, count) in [
        (
            "timeout",
            stats.sum(|worker| worker.engine.lookups_timed_out),
        ),
        (
            "unavailable",
            stats.sum(|worker| worker.engine.lookups_failed),
        ),
    ] {
        family.put(&[("reason", &reason)], count);
    }
    page.gauge(
        "hairpin_turn_key_lookups_pending",
        "Requests that wait for a source of credentials.",
        stats.sum(|worker| worker.engine.lookups),
    );
    page.counter(
        "hairpin_turn_keys_derived_total",
        "Keys that were derived from credentials because no cache had them.",
        stats.sum(|worker| worker.engine.keys_derived),
    );
}
