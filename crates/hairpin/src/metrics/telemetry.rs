//! The export to an OpenTelemetry collector, by signal.

use std::sync::atomic::{AtomicU64, Ordering};

use super::text::{Kind, Page};
use crate::events::{Counters, SinkStatus};

pub(super) fn write(page: &mut Page, signals: &[SinkStatus]) {
    if signals.is_empty() {
        return;
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut one = |name, kind, help, counter: fn(&Counters) -> &AtomicU64| {
        let mut family = page.family(name, kind, help);
        for signal in signals {
            family.put(&[("signal", &signal.kind)], read(counter(&signal.counters)));
        }
    };
    one(
        "hairpin_telemetry_waiting",
        Kind::Gauge,
        "Log records or spans that wait for the collector, by signal.",
        |counters| &counters.waiting,
    );
    one(
        "hairpin_telemetry_sent_total",
        Kind::Counter,
        "Log records or spans that the collector has accepted, by signal.",
        |counters| &counters.sent,
    );
    one(
        "hairpin_telemetry_send_failures_total",
        Kind::Counter,
        "Requests to the collector that failed, by signal.",
        |counters| &counters.failures,
    );
    let mut lost = page.family(
        "hairpin_telemetry_lost_total",
        Kind::Counter,
        "Log records or spans that the collector will never receive, by signal and reason.",
    );
    for signal in signals {
        let counters = &signal.counters;
        for (reason, counter) in [
            ("full", &counters.full),
            ("refused", &counters.refused),
            ("stopped", &counters.stopped),
        ] {
            let labels: [(&str, &dyn std::fmt::Display); 2] =
                [("signal", &signal.kind), ("reason", &reason)];
            lost.put(&labels, read(counter));
        }
    }
}
