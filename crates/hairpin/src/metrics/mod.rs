//! Metrics: what a running server shows of itself, as Prometheus reads it. docs/metrics.md describes each.
//!
//! Everything comes from an [`Observer`], so a scrape costs the workers nothing. Labels have few values that are known
//! beforehand: workers, listeners by number, directions, reasons, methods and codes. No label has a user, an address or
//! anything else that a client chooses.

mod alternates;
mod cluster;
mod dtls;
mod events;
mod machine;
mod offload;
pub(crate) mod probe;
mod process;
mod sip;
mod sip_trunks;
mod stores;
mod streams;
mod telemetry;
mod text;
mod traffic;
mod turn;

#[cfg(test)]
pub(crate) mod check;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use server::Observer;

use crate::acme::Counters;
use crate::events::SinkStatus;
use crate::external_address;
use text::Page;

/// What a page is made of.
#[derive(Debug)]
pub(crate) struct Source {
    /// The server.
    pub(crate) observer: Observer,
    /// How its reloads went.
    pub(crate) reloads: Reloads,
    /// How orders of certificates went.
    pub(crate) acme: Arc<Counters>,
    /// How checks of the external address went.
    pub(crate) external_address: Arc<external_address::Counters>,
    /// Databases with users. A reload replaces them.
    stores: RwLock<Vec<Arc<::stores::Source>>>,
    /// Sinks of events.
    pub(crate) events: Vec<SinkStatus>,
    /// The export to a collector, by signal.
    pub(crate) telemetry: Vec<SinkStatus>,
    /// The other nodes, if there may be some.
    pub(crate) cluster: Option<::stores::cluster::Handle>,
    /// When it started.
    pub(crate) started: Instant,
}

impl Source {
    /// For a server that has just started.
    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            observer,
            reloads: Reloads::default(),
            acme: Arc::default(),
            external_address: Arc::default(),
            stores: RwLock::default(),
            events: Vec::new(),
            telemetry: Vec::new(),
            cluster: None,
            started: Instant::now(),
        }
    }

    /// The server asks these stores.
    pub(crate) fn with_stores(self, stores: Vec<Arc<::stores::Source>>) -> Self {
        self.set_stores(stores);
        self
    }

    /// The server asks other stores from now on.
    pub(crate) fn set_stores(&self, stores: Vec<Arc<::stores::Source>>) {
        *self.stores.write().unwrap_or_else(PoisonError::into_inner) = stores;
    }

    /// The stores that the server asks.
    pub(crate) fn stores(&self) -> Vec<Arc<::stores::Source>> {
        let stores = self.stores.read();
        stores.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server sends events to these sinks.
    pub(crate) fn with_events(mut self, events: Vec<SinkStatus>) -> Self {
        self.events = events;
        self
    }

    /// The server exports these signals to a collector.
    pub(crate) fn with_telemetry(mut self, telemetry: Vec<SinkStatus>) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// The server is one of these nodes.
    pub(crate) fn with_cluster(mut self, cluster: Option<::stores::cluster::Handle>) -> Self {
        self.cluster = cluster;
        self
    }
}

/// How the last attempt to reload the configuration went.
#[derive(Debug)]
pub(crate) struct Reloads {
    successful: AtomicBool,
    last_success_unix_s: AtomicU64,
}

impl Default for Reloads {
    /// The start counts as a reload that went well.
    fn default() -> Self {
        Self {
            successful: AtomicBool::new(true),
            last_success_unix_s: AtomicU64::new(unix_s()),
        }
    }
}

impl Reloads {
    /// Notes how an attempt went.
    pub(crate) fn note(&self, successful: bool) {
        self.successful.store(successful, Ordering::Relaxed);
        if successful {
            self.last_success_unix_s.store(unix_s(), Ordering::Relaxed);
        }
    }

    /// Whether the last attempt went well.
    pub(crate) fn was_successful(&self) -> bool {
        self.successful.load(Ordering::Relaxed)
    }

    /// When the configuration that applies was loaded, in seconds since 1970.
    pub(crate) fn last_success_unix_s(&self) -> u64 {
        self.last_success_unix_s.load(Ordering::Relaxed)
    }
}

/// CPU time of each worker since its start, in nanoseconds; 0 if the kernel does not report it.
pub(crate) fn worker_cpu_ns(observer: &Observer) -> Vec<u64> {
    let threads = observer.threads().into_iter();
    let times = threads.map(|thread| thread.and_then(process::thread_times));
    times
        .map(|times| times.map_or(0, |times| times.ran_ns))
        .collect()
}

pub(crate) use process::resident_bytes;

fn unix_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// All metrics of this moment.
pub(crate) fn page(source: &Source) -> String {
    let mut page = Page::default();
    let stats = source.observer.stats();
    about(&mut page, source);
    turn::write(&mut page, &source.observer, &stats);
    traffic::write(&mut page, &source.observer, &stats);
    streams::write(&mut page, &source.observer, &stats);
    dtls::write(&mut page, &source.observer, &stats);
    alternates::write(&mut page, &source.observer);
    stores::write(&mut page, &source.stores());
    events::write(&mut page, &source.events);
    telemetry::write(&mut page, &source.telemetry);
    cluster::write(&mut page, source.cluster.as_ref());
    offload::write(&mut page, &source.observer);
    sip::write(&mut page, &source.observer, &stats);
    sip_trunks::write(&mut page, &source.observer);
    machine::write(&mut page, &source.observer, &stats);
    process::write(&mut page);
    page.finish()
}

fn about(page: &mut Page, source: &Source) {
    let version: &str = env!("CARGO_PKG_VERSION");
    page.family(
        "hairpin_build_info",
        text::Kind::Gauge,
        "Always 1; the label says which version runs.",
    )
    .put(&[("version", &version)], 1);
    page.gauge(
        "hairpin_uptime_seconds",
        "Seconds since the server started.",
        source.started.elapsed().as_secs_f64(),
    );
    page.gauge(
        "hairpin_draining",
        "1 while the server admits no new allocations and SIP transactions because it drains or stops, else 0.",
        u8::from(source.observer.is_draining()),
    );
    page.gauge(
        "hairpin_config_last_reload_successful",
        "1 if the last reload of the configuration, or the start, was successful, else 0: the previous configuration still applies.",
        u8::from(source.reloads.was_successful()),
    );
    page.gauge(
        "hairpin_config_last_reload_success_timestamp_seconds",
        "Time at which the server loaded the configuration in use, in seconds since 1970.",
        source.reloads.last_success_unix_s(),
    );
    page.counter(
        "hairpin_log_lines_dropped_total",
        "Log lines dropped because the reader of stderr was too slow, or because stderr is closed.",
        crate::log_queue::QUEUE.dropped(),
    );
    let checks = &source.external_address;
    let checks = [&checks.same, &checks.changed, &checks.failed];
    let [same, changed, failed] = checks.map(|count| count.load(Ordering::Relaxed));
    page.counters(
        "hairpin_external_address_checks_total",
        "Checks of the external address (relay.external_ip), by outcome.",
        "outcome",
        [("same", same), ("changed", changed), ("failed", failed)],
    );
    let [succeeded, failed] =
        [&source.acme.succeeded, &source.acme.failed].map(|count| count.load(Ordering::Relaxed));
    page.counters(
        "hairpin_acme_orders_total",
        "Orders of certificates at the ACME server (acme.domains), by outcome.",
        "outcome",
        [("success", succeeded), ("failure", failed)],
    );
}
