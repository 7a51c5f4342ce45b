//! Samples of the last hour, and each new sample as an event.
//!
//! One task of the admin thread takes a sample every two seconds from the published counters. Workers do no work for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::stats::Stats;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use crate::control::Shared;
use crate::metrics::worker_cpu_ns;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(2);
/// Samples of an hour.
const SAMPLES: usize = 1_800;
/// Samples that are kept for a slow reader of events. A reader that is further behind misses samples.
const BEHIND: usize = 8;

/// The columns of a sample. One column per worker follows: its CPU time divided by the elapsed time.
const COLUMNS: [&str; 16] = [
    "time_unix_s",
    "allocations",
    "connections",
    "sip_transactions",
    "sip_bindings",
    "sip_calls",
    "packets_to_peers_per_s",
    "packets_to_clients_per_s",
    "bytes_to_peers_per_s",
    "bytes_to_clients_per_s",
    "packets_by_kernel_per_s",
    "dropped_per_s",
    "failures_per_s",
    "sip_overload_state",
    "draining",
    "memory_bytes",
];

/// Samples of the last hour.
#[derive(Debug)]
pub(super) struct History {
    rows: Mutex<VecDeque<Arc<str>>>,
    events: broadcast::Sender<Arc<str>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            rows: Mutex::default(),
            events: broadcast::channel(BEHIND).0,
        }
    }
}

impl History {
    /// The whole history as JSON. The rows are arrays in the order of `columns`.
    pub(super) fn json(&self, workers: usize) -> String {
        let mut columns: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
        columns.extend((0..workers).map(|worker| format!("cpu_worker_{worker}")));
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<&str> = rows.iter().map(|row| &**row).collect();
        format!(
            "{{\"interval_s\":{},\"columns\":{},\"rows\":[{}]}}\n",
            INTERVAL.as_secs(),
            json!(columns),
            rows.join(",")
        )
    }

    /// Subscribes to new samples, each a row in JSON.
    pub(super) fn follow(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }

    fn add(&self, row: Arc<str>) {
        {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            if rows.len() >= SAMPLES {
                rows.pop_front();
            }
            rows.push_back(Arc::clone(&row));
        }
        // The send fails if nobody has subscribed.
        let _ = self.events.send(row);
    }

    /// Takes samples for ever.
    pub(super) async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut before = Reading::of(&shared);
        loop {
            ticks.tick().await;
            let now = Reading::of(&shared);
            self.add(now.row(&before).to_string().into());
            before = now;
        }
    }
}

/// Counters and gauges of one moment.
#[derive(Debug)]
struct Reading {
    at: Instant,
    gauges: [u64; 8],
    /// In the order of the columns that end with `_per_s`.
    counters: [u64; 7],
    cpu_ns: Vec<u64>,
    memory: u64,
}

impl Reading {
    fn of(shared: &Shared) -> Self {
        let observer = &shared.source.observer;
        let stats = observer.stats();
        let (sip, streams) = (stats.sip(), stats.streams());
        let kernel = observer.offload().totals;
        let kernel = [&kernel.xdp, &kernel.tc];
        let by_kernel = |number: fn(&server::offload::PathTotals) -> u64| {
            kernel.iter().map(|path| number(path)).sum::<u64>()
        };
        let overload = stats.workers.iter().map(|worker| worker.sip.overload_state);
        let engine = |number: fn(&server::stats::EngineStats) -> u64| {
            stats.sum(|worker| number(&worker.engine))
        };
        Self {
            at: Instant::now(),
            gauges: [
                stats.allocations(),
                streams.tcp_now + streams.tls_now + stats.dtls().connections_now + sip.connections,
                sip.transactions,
                sip.bindings,
                sip.calls,
                overload.max().unwrap_or(0),
                u64::from(observer.is_draining()),
                stats.workers.len() as u64,
            ],
            counters: [
                engine(|of| of.to_peers.packets + of.to_relays.packets)
                    + by_kernel(|path| path.to_peer + path.relay_to_relay),
                engine(|of| of.to_clients.packets)
                    + by_kernel(|path| path.to_client + path.relay_to_relay),
                engine(|of| of.to_peers.bytes + of.to_relays.bytes)
                    + by_kernel(|path| path.to_peer_bytes + path.relay_to_relay_bytes),
                engine(|of| of.to_clients.bytes)
                    + by_kernel(|path| path.to_client_bytes + path.relay_to_relay_bytes),
                by_kernel(|path| path.to_peer + path.to_client + path.relay_to_relay),
                super::failures::dropped(&stats),
                failures(&stats),
            ],
            cpu_ns: worker_cpu_ns(observer),
            memory: crate::metrics::resident_bytes().unwrap_or(0),
        }
    }

    fn row(&self, before: &Self) -> Value {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(0.001);
        let mut row = vec![json!(crate::commands::creds::now_unix_s())];
        let [
            allocations,
            connections,
            transactions,
            bindings,
            calls,
            overload,
            draining,
            _,
        ] = self.gauges;
        let gauges = [allocations, connections, transactions, bindings, calls];
        row.extend(gauges.iter().map(|gauge| json!(gauge)));
        let pairs = self.counters.iter().zip(&before.counters);
        let rates = pairs.map(|(now, then)| now.saturating_sub(*then) as f64 / seconds);
        row.extend(rates.map(|rate| json!((rate * 10.0).round() / 10.0)));
        row.extend([json!(overload), json!(draining), json!(self.memory)]);
        let pairs = self.cpu_ns.iter().zip(&before.cpu_ns);
        let shares = pairs.map(|(now, then)| now.saturating_sub(*then) as f64 / 1e9 / seconds);
        row.extend(shares.map(|share| json!((share * 1_000.0).round() / 1_000.0)));
        json!(row)
    }
}

/// Failed requests. A first request without credentials (401) and a stale nonce (438) are normal for each client and do not count.
fn failures(stats: &Stats) -> u64 {
    let codes = server::stats::ERROR_CODES.iter();
    let errors = codes.filter(|code| !matches!(code, 401 | 438));
    let errors: u64 = errors.map(|code| stats.errors_with(*code)).sum();
    errors + super::failures::not_authenticated(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_rows_fit_the_columns() {
        let history = History::default();
        for row in 0..SAMPLES + 5 {
            history.add(format!("[{row}]").into());
        }
        let all: Value = serde_json::from_str(&history.json(2)).unwrap();
        let rows = all["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0][0]), (SAMPLES, &json!(5)));
        let reading = |at, count| Reading {
            at,
            gauges: [0; 8],
            counters: [count; 7],
            cpu_ns: vec![count, 0],
            memory: 1,
        };
        let start = Instant::now();
        let (before, now) = (reading(start, 0), reading(start + INTERVAL, 1_000_000_000));
        let row = now.row(&before);
        let row = row.as_array().unwrap();
        let columns = all["columns"].as_array().unwrap();
        assert_eq!(row.len(), columns.len());
        let of = |name: &str| &row[columns.iter().position(|column| column == name).unwrap()];
        assert_eq!(of("dropped_per_s"), &json!(5e8));
        assert_eq!(of("cpu_worker_0"), &json!(0.5));
    }
}
