//! OpenTelemetry: log records and spans for a collector, over OTLP/HTTP with JSON.
//!
//! ```text
//!  any thread ── log event ───────────────────▶ queue (bounded) ── thread telemetry-logs ────▶ POST URL/v1/logs
//!  worker ── an allocation or call has ended ─▶ queue (bounded) ── thread telemetry-traces ──▶ POST URL/v1/traces
//!                                                └─ full: dropped and counted
//! ```
//! A span is made of the event that a sink of events gets, so both have the same fields.

mod encode;
mod send;

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use serde_json::Value;
use stores::sinks::{Otlp, OtlpOptions, OtlpSignal};
use tokio::sync::{mpsc, watch};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::events::run::{self, Plan, Spawned, ThreadEnd};
use crate::events::{Counters, Delivery, EventKind, FLUSH, Queue, SinkStatus, run_of_process};
use crate::log_fields::Fields;
use encode::{LogRecord, Origin};
use send::{Logs, Traces};

/// The events that become spans.
const ENDED: [EventKind; 2] = [EventKind::AllocationClosed, EventKind::CallClosed];

/// A collector of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TelemetrySettings {
    pub(crate) collector: OtlpOptions,
    pub(crate) signals: Vec<OtlpSignal>,
    /// Log records and spans that may wait, of each.
    pub(crate) queue: usize,
}

/// The export to a collector.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    threads: Vec<(SinkStatus, ThreadEnd)>,
    traces: Option<Arc<Queue>>,
    /// When the threads must end.
    stop: Option<watch::Sender<Option<Instant>>>,
}

impl Telemetry {
    /// Starts a thread for each signal; none without a collector. From now on, log events are exported.
    ///
    /// # Errors
    /// If the collector cannot be used as it is configured, or if the system has no resources for a thread.
    pub(crate) fn start(settings: Option<&TelemetrySettings>) -> Result<Telemetry> {
        let Some(settings) = settings else {
            return Ok(Telemetry::default());
        };
        let failed = |error: &dyn std::fmt::Display| {
            anyhow!("telemetry cannot be exported: {error}; see telemetry.otlp")
        };
        let (stop, stopped) = watch::channel(None);
        let run = run_of_process()?;
        let origin = Origin::new(&run);
        let mut telemetry = Telemetry {
            stop: Some(stop),
            ..Telemetry::default()
        };
        for signal in &settings.signals {
            let otlp = Otlp::new(&settings.collector, *signal).map_err(|error| failed(&error))?;
            let plan = Plan {
                thread: format!("telemetry-{}", signal.name()),
                name: format!("telemetry ({})", signal.name()),
                // A batch is sent again only if the collector permits it.
                delivery: Delivery::AtLeastOnce,
                queue: settings.queue,
            };
            let stopped = stopped.clone();
            match signal {
                OtlpSignal::Logs => {
                    let logs = run::spawn(plan, Logs::new(otlp, origin.clone()), stopped);
                    let logs = logs.map_err(|error| failed(&error))?;
                    let queue = LogQueue {
                        sender: logs.sender.clone(),
                        counters: Arc::clone(&logs.counters),
                    };
                    // A process starts once.
                    let _ = LOGS.set(queue);
                    telemetry.add(*signal, logs);
                }
                OtlpSignal::Traces => {
                    let traces = Traces::new(otlp, origin.clone(), run.clone());
                    let traces = run::spawn(plan, traces, stopped);
                    let traces = traces.map_err(|error| failed(&error))?;
                    let queue = Queue::new(ENDED.to_vec(), &traces);
                    telemetry.traces = Some(Arc::new(queue));
                    telemetry.add(*signal, traces);
                }
            }
        }
        Ok(telemetry)
    }

    fn add<R>(&mut self, signal: OtlpSignal, spawned: Spawned<R>) {
        let status = SinkStatus {
            kind: signal.name(),
            counters: spawned.counters,
        };
        self.threads.push((status, spawned.ended));
    }

    /// The queue of events that become spans.
    pub(crate) fn traces(&self) -> Option<Arc<Queue>> {
        self.traces.clone()
    }

    /// What metrics show, by signal.
    pub(crate) fn status(&self) -> Vec<SinkStatus> {
        let threads = self.threads.iter();
        threads.map(|(status, _)| status.clone()).collect()
    }

    /// Waits until the collector has everything, for [`FLUSH`] at most. What is left is counted.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + FLUSH;
        if let Some(stop) = &self.stop {
            let _ = stop.send(Some(deadline));
        }
        for (_, ended) in self.threads {
            ended.wait_until(deadline);
        }
    }
}

/// The sending end of the queue of log records. All threads use it.
#[derive(Debug)]
struct LogQueue {
    sender: mpsc::Sender<LogRecord>,
    counters: Arc<Counters>,
}

/// The queue of this process, once it exports logs.
static LOGS: OnceLock<LogQueue> = OnceLock::new();

thread_local! {
    /// Whether this thread exports. Its log events are not exported: with `log.level = "debug"`, each request would
    /// cause the next one.
    static IS_EXPORTER: Cell<bool> = const { Cell::new(false) };
}

/// Puts each log event into [`LOGS`]. A part of the subscriber; the same events are in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToCollector;

impl<S: Subscriber> Layer<S> for ToCollector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(queue) = LOGS.get() else {
            return;
        };
        if IS_EXPORTER.get() {
            return;
        }
        match queue.sender.try_reserve() {
            Ok(place) => {
                queue.counters.waiting.fetch_add(1, Ordering::Relaxed);
                place.send(record(event));
            }
            // Nothing is copied for a queue that is full.
            Err(_) => drop(queue.counters.full.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

fn record(event: &Event<'_>) -> LogRecord {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let mut record = LogRecord {
        unix_ns: u64::try_from(now).unwrap_or(u64::MAX),
        level: *event.metadata().level(),
        message: String::new(),
        fields: Vec::new(),
    };
    event.record(&mut Fields(|name, value| match (name, value) {
        ("message", Value::String(text)) => record.message = text,
        (name, value) => record.fields.push((name, value)),
    }));
    record
}
