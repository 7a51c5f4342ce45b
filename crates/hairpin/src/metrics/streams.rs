//! Metrics of STUN and TURN over TCP and TLS. They exist only if there is a TCP or TLS listener.

use server::Observer;
use server::connections::{EndReason, StreamCounters, TlsFailure};
use server::stats::Stats;

use super::text::Page;

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    if observer.tcp_listeners().is_empty() && observer.tls_listeners().is_empty() {
        return;
    }
    let sum = stats.streams();
    connections(page, &sum);
    tls(page, &sum);
    bytes(page, &sum);
    certificates(page, observer);
}

fn certificates(page: &mut Page, observer: &Observer) {
    let Some(certificates) = observer.certificates() else {
        return;
    };
    let info = certificates.info();
    page.gauges(
        "hairpin_certificate_expiry_timestamp_seconds",
        "When each certificate expires, in seconds since 1970.",
        "name",
        info.iter().map(|info| (info.name(), info.expires_unix_s)),
    );
    page.counter(
        "hairpin_certificate_reloads_failed_total",
        "Times that changed certificate files could not be used; the old certificate stays in service.",
        certificates.failed_reloads(),
    );
}

fn connections(page: &mut Page, sum: &StreamCounters) {
    page.gauges(
        "hairpin_stream_connections",
        "Open connections of STUN and TURN, by transport.",
        "transport",
        [("tcp", sum.tcp_now), ("tls", sum.tls_now)],
    );
    page.gauge(
        "hairpin_stream_connections_unproven",
        "Open connections that have had no allocation yet.",
        sum.unproven_now,
    );
    page.counters(
        "hairpin_stream_connections_opened_total",
        "New connections by outcome: accepted, refused by the limit on all connections, refused by the limit per source.",
        "outcome",
        [
            ("accepted", sum.accepted),
            ("limit", sum.refused_limit),
            ("source_limit", sum.refused_source),
        ],
    );
    page.counters(
        "hairpin_stream_connections_closed_total",
        "Connections that ended, by reason.",
        "reason",
        EndReason::ALL
            .iter()
            .map(|&reason| (reason.name(), sum.ended(reason))),
    );
}

fn tls(page: &mut Page, sum: &StreamCounters) {
    page.counters(
        "hairpin_tls_handshakes_total",
        "Completed TLS handshakes, by version.",
        "version",
        [("1.2", sum.handshakes_tls12), ("1.3", sum.handshakes_tls13)],
    );
    page.counter(
        "hairpin_tls_handshakes_resumed_total",
        "Completed TLS handshakes that resumed a session.",
        sum.handshakes_resumed,
    );
    page.counter(
        "hairpin_tls_handshakes_deferred_total",
        "Times that a TLS handshake waited for the next wake-up, because handshakes had used their time in this one.",
        sum.handshakes_deferred,
    );
    page.counters(
        "hairpin_tls_failures_total",
        "TLS connections that failed, by failure.",
        "failure",
        TlsFailure::ALL
            .iter()
            .map(|&failure| (failure.name(), sum.tls_failed(failure))),
    );
}

fn bytes(page: &mut Page, sum: &StreamCounters) {
    page.counter(
        "hairpin_stream_messages_received_total",
        "STUN and ChannelData messages received over connections.",
        sum.messages,
    );
    page.counter(
        "hairpin_stream_received_bytes_total",
        "Bytes received over connections, TLS included.",
        sum.received_bytes,
    );
    page.counter(
        "hairpin_stream_sent_bytes_total",
        "Bytes written to connections, TLS included.",
        sum.written_bytes,
    );
    page.counter(
        "hairpin_stream_writes_total",
        "Write calls on connections.",
        sum.writes,
    );
    page.gauge(
        "hairpin_stream_queued_bytes",
        "Bytes that wait to be written to connections.",
        sum.queued_bytes_now,
    );
    page.counters(
        "hairpin_stream_dropped_messages_total",
        "Messages to clients dropped because they were too old, too many bytes waited, or the connection had ended.",
        "reason",
        [
            ("age", sum.dropped_age),
            ("bytes", sum.dropped_bytes),
            ("gone", sum.dropped_gone),
        ],
    );
}
