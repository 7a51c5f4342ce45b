//! SIP: messages, transactions, connections, and what overload control makes of the load. Only where SIP is served.

use std::sync::atomic::{AtomicU64, Ordering};

use server::Observer;
use server::sip::{
    CALL_REFUSALS, DIGEST_OUTCOMES, DNS_OUTCOMES, MEDIA_OUTCOMES, SCREENED, SIP_CLASSES,
    SIP_METHODS, SipCounters,
};
use server::stats::Stats;

use super::text::{Kind, Page, nanoseconds};

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    if !observer.serves_sip() {
        return;
    }
    let sum = stats.sip();
    messages(page, &sum);
    transactions(page, &sum);
    overload(page, stats, &sum);
    screen(page, &sum);
    dropped(page, &sum);
    connections(page, &sum);
    nodes(page, &sum);
    own_requests(page, &sum);
    names(page, &sum);
    workers(page, stats);
}

fn own_requests(page: &mut Page, sum: &SipCounters) {
    page.counter(
        "hairpin_sip_unacknowledged_total",
        "2xx responses to INVITE that got no ACK in time.",
        sum.unacknowledged,
    );
    page.counter(
        "hairpin_sip_responses_redirected_total",
        "Responses over TCP that went to another server of their client, because the client's address did not accept them.",
        sum.redirected,
    );
    page.counters(
        "hairpin_sip_own_requests_total",
        "Requests of the server itself, by event; failed_over counts attempts after the first.",
        "event",
        [
            ("ordered", sum.own_requests),
            ("failed_over", sum.own_failed_over),
            ("failed", sum.own_failed),
            ("forbidden", sum.own_forbidden),
            ("refused", sum.own_refused),
        ],
    );
}

fn names(page: &mut Page, sum: &SipCounters) {
    page.counters(
        "hairpin_sip_dns_queries_total",
        "DNS queries, by outcome.",
        "outcome",
        DNS_OUTCOMES.into_iter().zip(sum.dns_queries),
    );
    page.counter(
        "hairpin_sip_dns_seconds_total",
        "Time that all DNS queries took together, in seconds.",
        nanoseconds(sum.dns_time_ns),
    );
    page.gauge(
        "hairpin_sip_dns_queries_open",
        "DNS queries that are open.",
        sum.dns_open,
    );
    page.gauge(
        "hairpin_sip_dns_cache_entries",
        "DNS results in the caches of all workers.",
        sum.dns_cached,
    );
}

fn messages(page: &mut Page, sum: &SipCounters) {
    page.counters(
        "hairpin_sip_received_messages_total",
        "SIP messages received, by transport; tcp includes TLS and WebSocket.",
        "transport",
        [("udp", sum.udp_messages), ("tcp", sum.tcp_messages)],
    );
    page.counters(
        "hairpin_sip_bytes_total",
        "Bytes of SIP messages, without headers of the transports.",
        "direction",
        [("received", sum.bytes_received), ("sent", sum.bytes_sent)],
    );
    page.counters(
        "hairpin_sip_requests_total",
        "Well-formed SIP requests, by method, without retransmissions.",
        "method",
        SIP_METHODS.into_iter().zip(sum.requests),
    );
    page.counters(
        "hairpin_sip_digest_total",
        "SIP requests that require credentials, by outcome.",
        "outcome",
        DIGEST_OUTCOMES.into_iter().zip(sum.digest),
    );
    let mut family = page.family(
        "hairpin_sip_responses_total",
        Kind::Counter,
        "SIP responses, by direction and class, without retransmissions.",
    );
    for (direction, row) in [
        ("received", sum.responses_received),
        ("sent", sum.responses_sent),
    ] {
        for (class, count) in SIP_CLASSES.iter().zip(row) {
            family.put(&[("direction", &direction), ("class", class)], count);
        }
    }
    page.counters(
        "hairpin_sip_hep_packets_total",
        "HEP packets to collectors, by outcome: sent, or dropped because the collector or the path was too slow or has no route.",
        "outcome",
        [("sent", sum.hep_sent), ("dropped", sum.hep_dropped)],
    );
    page.counters(
        "hairpin_sip_retransmissions_total",
        "Retransmitted SIP messages: received ones were absorbed, sent ones were sent by a timer.",
        "direction",
        [
            ("received", sum.request_retransmissions),
            ("sent", sum.response_retransmissions),
        ],
    );
    page.counters(
        "hairpin_sip_keepalives_total",
        "Keep-alives: CRLF over UDP, pings over TCP that were answered, STUN Binding requests that were answered.",
        "kind",
        [("newline", sum.pings), ("stun", sum.stun_answers)],
    );
}

fn transactions(page: &mut Page, sum: &SipCounters) {
    page.gauge(
        "hairpin_sip_transactions",
        "Transactions that exist.",
        sum.transactions,
    );
    page.gauge(
        "hairpin_sip_bindings",
        "Registration bindings that exist.",
        sum.bindings,
    );
    page.counters(
        "hairpin_sip_forwarded_total",
        "Requests at the proxy and the copies that it sent, by event.",
        "event",
        [
            ("forwarded", sum.forwarded),
            ("copies", sum.forwarded_branches),
            ("refused", sum.forwarding_refused),
            ("challenged", sum.forwarding_challenged),
        ],
    );
    page.gauge(
        "hairpin_sip_forwarding",
        "Requests that the proxy handles now.",
        sum.forwarding,
    );
    calls(page, sum);
    store(page, sum);
    page.counter(
        "hairpin_sip_transactions_cut_short_total",
        "Completed transactions that were removed early to make room for new ones.",
        sum.transactions_cut_short,
    );
    page.gauge(
        "hairpin_sip_timers",
        "Timers that are set: one for each transaction.",
        sum.timers,
    );
    page.gauge(
        "hairpin_sip_state_bytes",
        "Bytes of messages that transactions store.",
        sum.state_bytes,
    );
}

fn store(page: &mut Page, sum: &SipCounters) {
    page.counter(
        "hairpin_sip_store_failures_total",
        "Failed attempts to write or synchronize the log of registration bindings, or to read or write the database.",
        sum.store_failures,
    );
    page.counter(
        "hairpin_sip_store_lost_batches_total",
        "Batches of changed registration bindings that are not saved, because 64 MiB of changes already waited.",
        sum.store_lost,
    );
    page.gauge(
        "hairpin_sip_store_bytes",
        "Bytes of the log of registration bindings; 0 with a database.",
        sum.store_bytes,
    );
}

fn calls(page: &mut Page, sum: &SipCounters) {
    page.gauge(
        "hairpin_sip_calls",
        "Answered calls that count towards a limit.",
        sum.calls,
    );
    page.counter(
        "hairpin_sip_calls_expired_total",
        "Calls without a BYE that no longer count, because their session or sip.max_call_duration is over.",
        sum.calls_expired,
    );
    page.counters(
        "hairpin_sip_media_requests_total",
        "Offers and answers for rtpengine, by outcome.",
        "outcome",
        MEDIA_OUTCOMES.into_iter().zip(sum.media_requests),
    );
    let outcomes = &crate::push::OUTCOMES;
    let count = |outcome: &AtomicU64| outcome.load(Ordering::Relaxed);
    page.counters(
        "hairpin_sip_pushes_total",
        "Push notifications for phones that sleep: accepted or refused by the gateway, failed, or dropped because too many waited.",
        "outcome",
        [
            ("accepted", count(&outcomes.accepted)),
            ("refused", count(&outcomes.refused)),
            ("failed", count(&outcomes.failed)),
            ("dropped", sum.pushes_dropped),
        ],
    );
    page.counters(
        "hairpin_sip_calls_refused_total",
        "Requests of users and trunks refused because of a limit of calls or a forbidden number.",
        "limit",
        CALL_REFUSALS.into_iter().zip(sum.calls_refused),
    );
}

fn overload(page: &mut Page, stats: &Stats, sum: &SipCounters) {
    page.per_worker(
        "hairpin_sip_expected_wait_seconds",
        Kind::Gauge,
        "Expected wait of a message that arrives now, in seconds.",
        stats,
        |of| of.sip.expected_wait_ns as f64 / 1e9,
    );
    page.per_worker(
        "hairpin_sip_service_time_seconds",
        Kind::Gauge,
        "Average time that an accepted message takes, in seconds.",
        stats,
        |of| of.sip.service_time_ns as f64 / 1e9,
    );
    page.per_worker(
        "hairpin_sip_overload_state",
        Kind::Gauge,
        "State of admission control: 0 accepts everything, 1 refuses some new requests, 2 refuses all of them and some requests within dialogs.",
        stats,
        |of| of.sip.overload_state,
    );
    page.counters(
        "hairpin_sip_shed_total",
        "Messages that admission control and the limit of transactions refused, dropped or delayed, by place.",
        "place",
        [
            ("refused", sum.shed_refused),
            ("dropped", sum.shed_dropped),
            ("socket", sum.shed_by_kernel),
            ("filter", sum.shed_by_filter),
            ("user", sum.shed_by_user),
            ("deferred", sum.shed_deferred),
            ("transactions", sum.shed_transactions),
        ],
    );
    page.counter(
        "hairpin_sip_over_limit_total",
        "Requests refused or dropped because their source exceeded sip.requests_per_source.",
        sum.over_limit,
    );
}

fn dropped(page: &mut Page, sum: &SipCounters) {
    page.counter(
        "hairpin_sip_refused_total",
        "Requests with an error response because they are malformed or not supported.",
        sum.refused,
    );
    page.counters(
        "hairpin_sip_dropped_total",
        "Messages and datagrams that were dropped, by reason.",
        "reason",
        [
            ("malformed", sum.malformed),
            ("stray_response", sum.stray_responses),
            ("stray_ack", sum.stray_acks),
            ("stun", sum.stun_dropped),
            ("overflow", sum.overflow),
            ("amplification", sum.amplification),
            ("receive_error", sum.receive_errors),
            ("unsent", sum.unsent),
            ("mailbox_full", sum.mailbox_full),
        ],
    );
}

fn screen(page: &mut Page, sum: &SipCounters) {
    page.counters(
        "hairpin_sip_screened_total",
        "Messages dropped before they are handled, and connections of denied or banned sources, by reason.",
        "reason",
        SCREENED.into_iter().zip(sum.screened),
    );
    page.gauge(
        "hairpin_sip_banned_sources",
        "Sources that are banned now, because they guessed passwords.",
        sum.banned,
    );
}

fn connections(page: &mut Page, sum: &SipCounters) {
    page.gauge(
        "hairpin_sip_connections",
        "Open SIP connections.",
        sum.connections,
    );
    page.counters(
        "hairpin_sip_connections_opened_total",
        "SIP connections that were accepted, opened by the server, or closed at once because there were too many.",
        "how",
        [
            ("accepted", sum.connections_accepted),
            ("made", sum.connections_made),
            ("refused", sum.connections_refused),
        ],
    );
    page.counters(
        "hairpin_sip_connections_closed_total",
        "SIP connections that ended, by reason.",
        "reason",
        [
            ("peer", sum.closed_by_peer),
            ("idle", sum.closed_idle),
            ("slow", sum.closed_slow),
            ("malformed", sum.closed_malformed),
            ("unread", sum.closed_unread),
            ("unreachable", sum.closed_unreachable),
            ("aborted", sum.closed_aborted),
            ("evicted", sum.closed_evicted),
            ("drained", sum.closed_drained),
            ("source_limit", sum.closed_source_limit),
            ("denied", sum.closed_denied),
        ],
    );
    page.counters(
        "hairpin_sip_tls_handshakes_total",
        "TLS handshakes of SIP, completed, failed, or deferred to the next wake-up of the worker.",
        "result",
        [
            ("completed", sum.tls_handshakes),
            ("failed", sum.tls_failed),
            ("deferred", sum.tls_deferred),
        ],
    );
    page.counter(
        "hairpin_sip_next_hop_tls_failures_total",
        "TLS handshakes with SIP servers that hairpin connected to failed, for example because the certificate is for another name.",
        sum.next_hop_tls_failed,
    );
    page.counters(
        "hairpin_sip_websockets_total",
        "WebSockets that were opened, refused in the handshake, or closed because the client violated the protocol.",
        "result",
        [
            ("opened", sum.websockets),
            ("refused", sum.websockets_refused),
            ("failed", sum.websockets_failed),
        ],
    );
}

/// What the nodes of a cluster say to each other.
fn nodes(page: &mut Page, sum: &SipCounters) {
    page.counter(
        "hairpin_sip_bindings_moved_total",
        "Registration bindings that were removed because their phones have registered at another node of the cluster.",
        sum.bindings_moved,
    );
    page.counters(
        "hairpin_sip_node_tls_total",
        "TLS connections between the nodes of a cluster: those that both nodes accepted, certificates that this node or another one refused, and other failures.",
        "result",
        [
            ("completed", sum.node_tls_handshakes),
            ("refused", sum.node_tls_refused),
            ("refused_by_other", sum.node_tls_refused_by_other),
            ("failed", sum.node_tls_failed),
        ],
    );
}

/// Messages between workers.
fn workers(page: &mut Page, stats: &Stats) {
    page.per_worker(
        "hairpin_sip_handed_over_total",
        Kind::Counter,
        "Messages that a worker received and handed to the worker that they belong to.",
        stats,
        |of| of.sip.handed_over,
    );
    page.per_worker(
        "hairpin_sip_handed_back_total",
        Kind::Counter,
        "Messages that a worker handed to the worker that has their connection.",
        stats,
        |of| of.sip.handed_back,
    );
    page.counter(
        "hairpin_sip_cancels_passed_on_total",
        "CANCELs that a worker passed to the next one, because it has no matching transaction.",
        stats.sip().cancels_passed_on,
    );
}
