//! Sinks of events. The label is their place in `events.sinks`, not their URL, because URLs have passwords.

use std::sync::atomic::{AtomicU64, Ordering};

use super::text::{Kind, Page};
use crate::events::{Counters, SinkStatus};

pub(super) fn write(page: &mut Page, sinks: &[SinkStatus]) {
    if sinks.is_empty() {
        return;
    }
    let all: Vec<(usize, &SinkStatus)> = (1..).zip(sinks).collect();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut waiting = page.family(
        "hairpin_events_waiting",
        Kind::Gauge,
        "Events that wait for a sink; by its place in events.sinks.",
    );
    for (number, sink) in &all {
        let labels: [(&str, &dyn std::fmt::Display); 2] = [("sink", number), ("kind", &sink.kind)];
        waiting.put(&labels, read(&sink.counters.waiting));
    }
    let mut one = |name, help, counter: fn(&Counters) -> &AtomicU64| {
        let mut family = page.family(name, Kind::Counter, help);
        for (number, sink) in &all {
            family.put(&[("sink", number)], read(counter(&sink.counters)));
        }
    };
    one(
        "hairpin_events_sent_total",
        "Events that a sink has received.",
        |counters| &counters.sent,
    );
    one(
        "hairpin_events_send_failures_total",
        "Attempts to send a batch of events to a sink that failed.",
        |counters| &counters.failures,
    );
    let mut lost = page.family(
        "hairpin_events_lost_total",
        Kind::Counter,
        "Events that a sink will never receive, by reason.",
    );
    for (number, sink) in &all {
        let counters = &sink.counters;
        for (reason, counter) in [
            ("full", &counters.full),
            ("refused", &counters.refused),
            ("failed", &counters.failed),
            ("stopped", &counters.stopped),
        ] {
            lost.put(&[("sink", number), ("reason", &reason)], read(counter));
        }
    }
}
