//! Workers and what the kernel does for them.

use std::time::Duration;

use server::features::{BusyPoll, ListenerFeatures};
use server::stats::Stats;
use server::{Observer, SteeringInUse};

use super::process;
use super::text::{Kind, Page, nanoseconds};

pub(super) fn write(page: &mut Page, observer: &Observer, stats: &Stats) {
    workers(page, observer, stats);
    threads(page, observer);
    features(page, observer);
    listeners(page, observer);
}

fn workers(page: &mut Page, observer: &Observer, stats: &Stats) {
    page.gauge(
        "hairpin_workers",
        "Workers of the server.",
        stats.workers.len(),
    );
    let mut family = page.family(
        "hairpin_worker_idle_seconds",
        Kind::Gauge,
        "Time since a worker's loop last turned, in seconds: at most about one, unless the worker hangs.",
    );
    for (worker, idle) in observer.idle().into_iter().enumerate() {
        let idle = idle.map_or(0.0, |idle: Duration| idle.as_secs_f64());
        family.put(&[("worker", &worker)], idle);
    }
    page.per_worker(
        "hairpin_worker_wakeups_total",
        Kind::Counter,
        "Times that a worker's loop turned.",
        stats,
        |of| of.counters.wake_ups,
    );
    let counters = stats.counters();
    page.family(
        "hairpin_worker_timer_lateness_seconds",
        Kind::Summary,
        "Delay of timers, in seconds.",
    )
    .seconds(&[], counters.expiries, counters.expiry_lateness_ns);
    page.counter(
        "hairpin_worker_stale_events_total",
        "Readiness events of relays that were closed in the same wake-up.",
        counters.stale_events,
    );
}

/// What the kernel counts for the workers' threads; nothing, if the kernel does not report it.
fn threads(page: &mut Page, observer: &Observer) {
    let times = |thread: Option<u32>| match thread {
        Some(thread) => process::thread_times(thread),
        // It has not run yet.
        None => Some(process::Times::default()),
    };
    let threads = observer.threads().into_iter().enumerate();
    let known: Vec<_> = threads
        .filter_map(|(worker, thread)| Some((worker, times(thread)?)))
        .collect();
    if known.is_empty() {
        return;
    }
    let mut family = page.family(
        "hairpin_worker_cpu_seconds_total",
        Kind::Counter,
        "Processor time of a worker, in seconds; at a rate near 1 the worker is saturated.",
    );
    for (worker, times) in &known {
        family.put(&[("worker", worker)], nanoseconds(times.ran_ns));
    }
    let mut family = page.family(
        "hairpin_worker_waited_seconds_total",
        Kind::Counter,
        "Time that a worker was ready to run and had no processor, in seconds.",
    );
    for (worker, times) in &known {
        family.put(&[("worker", worker)], nanoseconds(times.waited_ns));
    }
}

fn features(page: &mut Page, observer: &Observer) {
    let features = observer.features();
    let every = |on: fn(&ListenerFeatures) -> bool| {
        !features.listeners.is_empty() && features.listeners.iter().all(on)
    };
    let mut family = page.family(
        "hairpin_io_feature",
        Kind::Gauge,
        "1 if the server uses this feature of the kernel, else 0.",
    );
    for (feature, on) in [
        ("gro", features.gro),
        ("gso", features.gso),
        ("reuse_port", every(|listener| listener.reuse_port)),
        (
            "overflow_count",
            every(|listener| listener.overflow_counted),
        ),
        (
            "receive_buffer",
            every(|listener| !listener.receive_buffer.is_capped()),
        ),
        (
            "send_buffer",
            every(|listener| !listener.send_buffer.is_capped()),
        ),
        ("busy_poll", matches!(features.busy_poll, BusyPoll::On(_))),
        ("pinning", features.pinned),
        ("steering", features.steering == SteeringInUse::Bpf),
    ] {
        family.put(&[("feature", &feature)], u8::from(on));
    }
    page.gauge(
        "hairpin_io_gso_max_segments",
        "Most datagrams in one send; 1 without GSO.",
        features.max_segments,
    );
}

fn listeners(page: &mut Page, observer: &Observer) {
    let listeners = &observer.features().listeners;
    let mut put = |name, help, of: fn(&ListenerFeatures) -> u32| {
        let mut family = page.family(name, Kind::Gauge, help);
        for (listener, features) in listeners.iter().enumerate() {
            family.put(&[("listener", &listener)], of(features));
        }
    };
    put(
        "hairpin_io_receive_buffer_bytes",
        "Receive buffer of each socket of a listener, as granted. Listeners are numbered in the order of listen.udp.",
        |listener| listener.receive_buffer.granted,
    );
    put(
        "hairpin_io_receive_buffer_wanted_bytes",
        "Receive buffer of each socket of a listener, as configured (server.receive_buffer).",
        |listener| listener.receive_buffer.wanted,
    );
    put(
        "hairpin_io_send_buffer_bytes",
        "Send buffer of each socket of a listener, as granted.",
        |listener| listener.send_buffer.granted,
    );
    put(
        "hairpin_io_send_buffer_wanted_bytes",
        "Send buffer of each socket of a listener, as configured (server.send_buffer).",
        |listener| listener.send_buffer.wanted,
    );
}
