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
        "Permissions that exist; an expired one counts until the server next checks its allocation.",
        stats.sum(|worker| worker.engine.permissions),
    );
    page.gauge(
        "hairpin_turn_channels",
        "Channels that exist; an expired one counts until the server next checks its allocation.",
        stats.sum(|worker| worker.engine.channels),
    );
    page.gauge(
        "hairpin_turn_reservations",
        "Relay ports reserved for clients with a RESERVATION-TOKEN.",
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
        "Reserved relays that moved to another worker, which has the client with the RESERVATION-TOKEN.",
        stats.counters().relays_received,
    );
    page.counter(
        "hairpin_turn_requests_moved_total",
        "Requests that moved from the worker that received them to the one that made their allocation.",
        stats.counters().requests_taken,
    );
    page.per_worker(
        "hairpin_turn_steered_flows",
        Kind::Gauge,
        "Clients whose datagrams the steering program delivers to this worker, although the kernel's hash selects another one.",
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
        "TCP connections between TCP relayed addresses and peers, including those in progress.",
        engine(|of| of.peer_connections),
    );
    page.gauge(
        "hairpin_turn_data_connections",
        "Peer connections that a client's data connection is bound to.",
        engine(|of| of.data_connections),
    );
    page.counter(
        "hairpin_turn_peer_connections_opened_total",
        "TCP connections between TCP relayed addresses and peers, opened by either side.",
        engine(|of| of.peer_connections_opened),
    );
    page.counter(
        "hairpin_turn_peer_connections_refused_total",
        "TCP connections of peers that the server closed at once, because of a missing permission or a limit.",
        engine(|of| of.peer_connections_refused),
    );
    let counters = stats.counters();
    page.counters(
        "hairpin_turn_stream_bytes_total",
        "Bytes relayed between data connections and peers: spliced by the kernel or copied by the worker.",
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
        "Channels of a worker in the kernel's table.",
        stats,
        |of| of.channels_offloaded,
    );
    let counters = stats.counters();
    page.counter(
        "hairpin_offload_channels_entered_total",
        "Channels that were added to the kernel's table.",
        counters.offload_entered,
    );
    page.counters(
        "hairpin_offload_channels_refused_total",
        "Times that a channel was not added to the kernel's table or was removed, so that user space relays it.",
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
        "Relay ports of all relay addresses, by state.",
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
        "Times that the server skipped a relay port because another process uses it.",
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
        "Requests received, including retransmissions.",
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
        "Success responses.",
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
        "Error responses, by method and code. The first request of a client gets 401, which is no failure.",
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
        "Requests whose credentials the server rejected, by reason. stale_nonce is normal for every client.",
    );
    for reason in AuthFailure::ALL {
        let count = stats.sum(|worker| worker.engine.auth_failed(*reason));
        family.put(&[("reason", &reason.name())], count);
    }
    page.counter(
        "hairpin_turn_key_lookups_total",
        "Look-ups begun at sources of credentials that respond later.",
        stats.sum(|worker| worker.engine.lookups_begun),
    );
    let mut family = page.family(
        "hairpin_turn_key_lookups_failed_total",
        Kind::Counter,
        "Look-ups without a result, by reason; their clients got 500.",
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
