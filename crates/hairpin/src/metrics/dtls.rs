//! Metrics of STUN and TURN over DTLS. They exist only if there is a DTLS listener.

use server::Observer;
use server::dtls::{DropReason, DtlsCounters};
use server::stats::Stats;

use super::text::Page;

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    if observer.dtls_listeners().is_empty() {
        return;
    }
    let sum = stats.dtls();
    counts(page, &sum);
    page.counters(
        "hairpin_dtls_closed_total",
        "DTLS connections and handshakes that ended, by reason.",
        "reason",
        sum.ended(),
    );
    page.counters(
        "hairpin_dtls_dropped_records_total",
        "DTLS records that were dropped, by reason.",
        "reason",
        DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), sum.dropped(reason))),
    );
}

fn counts(page: &mut Page, sum: &DtlsCounters) {
    page.gauge(
        "hairpin_dtls_connections",
        "Established DTLS connections.",
        sum.connections_now,
    );
    page.gauge(
        "hairpin_dtls_handshakes_pending",
        "DTLS handshakes in progress, of clients that have returned their cookie.",
        sum.handshakes_now,
    );
    for (name, help, value) in [
        (
            "hairpin_dtls_cookies_sent_total",
            "HelloVerifyRequest messages sent, each with a cookie.",
            sum.cookies_sent,
        ),
        (
            "hairpin_dtls_cookies_bad_total",
            "ClientHello messages with a cookie that was wrong or too old.",
            sum.cookies_bad,
        ),
        (
            "hairpin_dtls_handshakes_total",
            "DTLS handshakes begun, each by a ClientHello with a valid cookie.",
            sum.handshakes,
        ),
        (
            "hairpin_dtls_established_total",
            "DTLS handshakes completed.",
            sum.established,
        ),
        (
            "hairpin_dtls_handshakes_deferred_total",
            "Times that DTLS handshakes waited for the next wake-up, because handshakes had used their time in this one.",
            sum.handshakes_deferred,
        ),
        (
            "hairpin_dtls_retransmissions_total",
            "Flights of DTLS handshakes retransmitted.",
            sum.retransmissions,
        ),
        (
            "hairpin_dtls_messages_received_total",
            "STUN and ChannelData messages received over DTLS.",
            sum.messages,
        ),
        (
            "hairpin_dtls_dropped_messages_total",
            "Messages to DTLS clients dropped because the connection had ended, or because they were too long.",
            sum.dropped_gone,
        ),
    ] {
        page.counter(name, help, value);
    }
}
