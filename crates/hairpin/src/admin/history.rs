//! Samples of the last hour, and each new sample as an event.
//!
//! One task of the admin thread takes a sample every two seconds from the published counters. Workers do no work for
//! it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::offload::{OffloadStatus, PathTotals};
use server::stats::Stats;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use crate::control::Shared;
use crate::metrics::worker_cpu_ns;

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Age of the last reading of the kernel's counters from which on their rates count as 0. The server reads them every
/// second, and a busy host can delay this by seconds. If the control thread has ended, there is no other reading, and
/// user space relays.
const KERNEL_READING_MAX: Duration = Duration::from_secs(15);
/// Samples of an hour.
const MAX_SAMPLES: usize = 1_800;
/// Samples that are kept for a slow reader of events. A reader that is further behind misses samples.
const MAX_SAMPLES_BEHIND: usize = 8;

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
            events: broadcast::channel(MAX_SAMPLES_BEHIND).0,
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
            SAMPLE_INTERVAL.as_secs(),
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
            if rows.len() >= MAX_SAMPLES {
                rows.pop_front();
            }
            rows.push_back(Arc::clone(&row));
        }
        // The send fails if nobody has subscribed.
        let _ = self.events.send(row);
    }

    /// Takes samples for ever.
    pub(super) async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut before = Reading::of(&shared);
        loop {
            ticks.tick().await;
            let mut now = Reading::of(&shared);
            now.set_kernel_rates(&before);
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
    /// Counters of user space, in the order of the columns that end with `_per_s`.
    counters: [u64; 7],
    kernel: KernelReading,
    /// The rates of the kernel's counters up to this sample.
    kernel_rates: [f64; 7],
    cpu_ns: Vec<u64>,
    memory: u64,
}

/// Counters of the kernel. The server reads them at its own times, about once per second. So between two samples, they
/// grow during another time than the counters of user space.
#[derive(Clone, Copy, Debug, Default)]
struct KernelReading {
    /// When the server read them; `None` if it has not done so yet.
    at: Option<Instant>,
    /// In the same order.
    counters: [u64; 7],
}

impl KernelReading {
    fn of(status: &OffloadStatus) -> Self {
        let paths = [&status.totals.xdp, &status.totals.tc];
        let sum =
            |number: fn(&PathTotals) -> u64| -> u64 { paths.iter().map(|path| number(path)).sum() };
        Self {
            at: status.totals_at,
            counters: [
                sum(|path| path.to_peer + path.relay_to_relay),
                sum(|path| path.to_client + path.relay_to_relay),
                sum(|path| path.to_peer_bytes + path.relay_to_relay_bytes),
                sum(|path| path.to_client_bytes + path.relay_to_relay_bytes),
                sum(|path| path.to_peer + path.to_client + path.relay_to_relay),
                0,
                0,
            ],
        }
    }

    /// Seconds from one reading to the next; `None` if there is no newer one.
    fn seconds_since(&self, before: &Self) -> Option<f64> {
        let time = self.at?.checked_duration_since(before.at?)?;
        Some(time.as_secs_f64()).filter(|seconds| *seconds > 0.0)
    }
}

impl Reading {
    fn of(shared: &Shared) -> Self {
        let observer = &shared.source.observer;
        let stats = observer.stats();
        let (sip, streams) = (stats.sip(), stats.streams());
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
                engine(|of| of.to_peers.packets + of.to_relays.packets),
                engine(|of| of.to_clients.packets),
                engine(|of| of.to_peers.bytes + of.to_relays.bytes),
                engine(|of| of.to_clients.bytes),
                0,
                super::failures::dropped(&stats),
                failures(&stats),
            ],
            kernel: KernelReading::of(&observer.offload()),
            kernel_rates: [0.0; 7],
            cpu_ns: worker_cpu_ns(observer),
            memory: crate::metrics::resident_bytes().unwrap_or(0),
        }
    }

    /// Computes the rates of the kernel's counters. Without a newer reading, the rates of before stay, but not for
    /// long.
    fn set_kernel_rates(&mut self, before: &Self) {
        let is_current = |at| self.at.duration_since(at) < KERNEL_READING_MAX;
        self.kernel_rates = match self.kernel.seconds_since(&before.kernel) {
            Some(seconds) => rates(&self.kernel.counters, &before.kernel.counters, seconds),
            None if self.kernel.at.is_some_and(is_current) => before.kernel_rates,
            None => [0.0; 7],
        };
    }

    /// The columns that end with `_per_s`.
    fn rates(&self, before: &Self, seconds: f64) -> [f64; 7] {
        let own = rates(&self.counters, &before.counters, seconds);
        std::array::from_fn(|at| own[at] + self.kernel_rates[at])
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
        row.extend(
            self.rates(before, seconds)
                .map(|rate| json!((rate * 10.0).round() / 10.0)),
        );
        row.extend([json!(overload), json!(draining), json!(self.memory)]);
        let pairs = self.cpu_ns.iter().zip(&before.cpu_ns);
        let shares = pairs.map(|(now, then)| now.saturating_sub(*then) as f64 / 1e9 / seconds);
        row.extend(shares.map(|share| json!((share * 1_000.0).round() / 1_000.0)));
        json!(row)
    }
}

/// The growth of counters per second.
fn rates(now: &[u64; 7], then: &[u64; 7], seconds: f64) -> [f64; 7] {
    std::array::from_fn(|at| now[at].saturating_sub(then[at]) as f64 / seconds)
}

/// Failed requests. A first request without credentials (401) and a stale nonce (438) are normal for each client and do
/// not count.
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
        for row in 0..MAX_SAMPLES + 5 {
            history.add(format!("[{row}]").into());
        }
        let all: Value = serde_json::from_str(&history.json(2)).unwrap();
        let rows = all["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0][0]), (MAX_SAMPLES, &json!(5)));
        let reading = |at, count| Reading {
            at,
            gauges: [0; 8],
            counters: [count; 7],
            kernel: KernelReading::default(),
            kernel_rates: [0.0; 7],
            cpu_ns: vec![count, 0],
            memory: 1,
        };
        let start = Instant::now();
        let (before, now) = (
            reading(start, 0),
            reading(start + SAMPLE_INTERVAL, 1_000_000_000),
        );
        let row = now.row(&before);
        let row = row.as_array().unwrap();
        let columns = all["columns"].as_array().unwrap();
        assert_eq!(row.len(), columns.len());
        let of = |name: &str| &row[columns.iter().position(|column| column == name).unwrap()];
        assert_eq!(of("dropped_per_s"), &json!(5e8));
        assert_eq!(of("cpu_worker_0"), &json!(0.5));
    }

    /// The kernel relays 1,000 packets per second, and the server reads its counters at times of its own: 0 to 3 times
    /// between two samples.
    #[test]
    fn the_rate_of_the_kernel_does_not_depend_on_when_its_counters_are_read() {
        let start = Instant::now();
        let reading = |sample: u32, every: Duration| {
            let at = SAMPLE_INTERVAL * sample;
            let read_at = every * u32::try_from(at.as_nanos() / every.as_nanos()).unwrap();
            let packets = u64::try_from(read_at.as_millis()).unwrap();
            Reading {
                at: start + at,
                gauges: [0; 8],
                counters: [0, 0, 0, 0, 0, 2 * u64::from(sample), 0],
                kernel: KernelReading {
                    at: Some(start + read_at),
                    counters: [packets, 0, 0, 0, packets, 0, 0],
                },
                kernel_rates: [0.0; 7],
                cpu_ns: Vec::new(),
                memory: 0,
            }
        };
        for every in [1_003, 2_007, 5_000].map(Duration::from_millis) {
            let mut before = reading(0, every);
            for sample in 1..1_800 {
                let mut now = reading(sample, every);
                now.set_kernel_rates(&before);
                let rates = now.rates(&before, SAMPLE_INTERVAL.as_secs_f64());
                let [to_peers, to_clients, .., by_kernel, dropped, failures] = rates;
                assert_eq!((to_clients, dropped, failures), (0.0, 1.0, 0.0));
                // The first rate is known after the second reading.
                if now.kernel.at > Some(start) {
                    assert!((to_peers - 1_000.0).abs() < 0.1, "{sample}: {to_peers}");
                    assert!((by_kernel - 1_000.0).abs() < 0.1, "{sample}: {by_kernel}");
                }
                before = now;
            }
        }
    }

    #[test]
    fn the_rate_of_the_kernel_is_0_if_nobody_reads_its_counters_any_more() {
        let start = Instant::now();
        let read_at = |seconds| Some(start + Duration::from_secs(seconds));
        let reading = |sample: u32, at| Reading {
            at: start + SAMPLE_INTERVAL * sample,
            gauges: [0; 8],
            counters: [0; 7],
            kernel: KernelReading {
                at,
                counters: [1_000; 7],
            },
            kernel_rates: [500.0; 7],
            cpu_ns: Vec::new(),
            memory: 0,
        };
        let mut before = reading(1, read_at(2));
        let rates: Vec<f64> = (2..20)
            .map(|sample| {
                let mut now = reading(sample, read_at(2));
                now.set_kernel_rates(&before);
                before = now;
                before.kernel_rates[0]
            })
            .collect();
        assert_eq!((rates[0], rates[17]), (500.0, 0.0));
        // When they are read again, there is a rate again.
        let mut now = reading(20, read_at(40));
        now.kernel.counters = [39_000; 7];
        now.set_kernel_rates(&before);
        assert_eq!(now.kernel_rates, [1_000.0; 7]);
    }

    #[test]
    fn without_two_readings_the_kernel_has_no_rate() {
        let now = Instant::now();
        let reading = |at, packets| KernelReading {
            at,
            counters: [packets; 7],
        };
        let some = reading(Some(now), 1_000);
        assert_eq!(some.seconds_since(&reading(None, 0)), None);
        assert_eq!(some.seconds_since(&some), None);
        assert_eq!(reading(None, 0).seconds_since(&some), None);
        let later = reading(Some(now + Duration::from_millis(500)), 2_000);
        assert_eq!(later.seconds_since(&some), Some(0.5));
    }
}
