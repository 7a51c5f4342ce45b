//! What clients hold and ask for: allocations, permissions, channels, requests, errors, ports.

use server::stats::{CloseReason, ERROR_CODES, METHODS, Stats};
use server::{AddressFamily, Observer};

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    allocations(page, observer, stats);
    held(page, stats);
    ports(page, observer, stats);
    requests(page, stats);
    errors(page, stats);
}

fn allocations(page: &mut Page, observer: &Observer, stats: &Stats) {
    let mut family = page.family(
        "hairpin_turn_allocations",
        Kind::Gauge,
        "Allocations that exist.",
    );
    for (worker, of) in stats.workers.iter().enumerate() {
        family.put(&[("worker", &worker)], of.engine.allocations);
    }
    let mut family = page.family(
        "hairpin_turn_allocations_opened_total",
        Kind::Counter,
        "Allocations that were made.",
    );
    for (worker, of) in stats.workers.iter().enumerate() {
        family.put(&[("worker", &worker)], of.engine.allocations_opened);
    }
    let mut family = page.family(
        "hairpin_turn_allocations_closed_total",
        Kind::Counter,
        "Allocations that ended, by reason.",
    );
    for (at, reason) in CloseReason::ALL.iter().enumerate() {
        let count = stats.sum(|worker| worker.engine.allocations_closed[at]);
        family.put(&[("reason", &reason.name())], count);
    }
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
    let mut family = page.family(
        "hairpin_turn_steered_flows",
        Kind::Gauge,
        "Clients of a worker whom the kernel's hash would send to another one.",
    );
    for (worker, of) in stats.workers.iter().enumerate() {
        family.put(&[("worker", &worker)], of.flows_steered);
    }
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
    let mut family = page.family(
        "hairpin_turn_relay_open_failures_total",
        Kind::Counter,
        "Relays that could not be opened: the client got 508.",
    );
    for (reason, count) in [
        ("no_port", counters.no_port),
        ("no_descriptor", counters.no_descriptor),
        ("other", counters.open_failed),
    ] {
        family.put(&[("reason", &reason)], count);
    }
    page.counter(
        "hairpin_turn_foreign_ports_total",
        "Times that a relay port was passed over because another process holds it.",
        counters.foreign_ports,
    );
}

fn requests(page: &mut Page, stats: &Stats) {
    let mut family = page.family(
        "hairpin_stun_requests_total",
        Kind::Counter,
        "Requests received, retransmissions included.",
    );
    for (at, (_, method)) in METHODS.iter().enumerate() {
        let count = stats.sum(|worker| worker.engine.requests[at].packets);
        family.put(&[("method", method)], count);
    }
    let mut family = page.family(
        "hairpin_stun_request_bytes_total",
        Kind::Counter,
        "Bytes of requests received, headers of UDP and IP excluded.",
    );
    for (at, (_, method)) in METHODS.iter().enumerate() {
        let count = stats.sum(|worker| worker.engine.requests[at].bytes);
        family.put(&[("method", method)], count);
    }
    let mut family = page.family(
        "hairpin_stun_successes_total",
        Kind::Counter,
        "Requests answered with success.",
    );
    for (at, (_, method)) in METHODS.iter().enumerate() {
        let count = stats.sum(|worker| worker.engine.successes[at]);
        family.put(&[("method", method)], count);
    }
    page.counter(
        "hairpin_stun_retransmissions_total",
        "Retransmitted requests that got their first answer again.",
        stats.sum(|worker| worker.engine.retransmissions),
    );
}

fn errors(page: &mut Page, stats: &Stats) {
    let mut family = page.family(
        "hairpin_stun_errors_total",
        Kind::Counter,
        "Requests answered with an error, by method and code. The first request of a client gets 401, which is no failure.",
    );
    for (at, (_, method)) in METHODS.iter().enumerate() {
        for (slot, code) in ERROR_CODES.iter().enumerate() {
            let count = stats.sum(|worker| worker.engine.errors[at][slot]);
            family.put(&[("method", method), ("code", code)], count);
        }
    }
    page.counter(
        "hairpin_turn_auth_failures_total",
        "Requests with credentials that are not right: unknown user, wrong or expired password, other realm, another user's allocation.",
        stats.sum(|worker| worker.engine.auth_failures),
    );
    page.counter(
        "hairpin_turn_keys_derived_total",
        "Keys that were derived from credentials because no cache had them.",
        stats.sum(|worker| worker.engine.keys_derived),
    );
}
