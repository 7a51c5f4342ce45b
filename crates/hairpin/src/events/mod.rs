//! Events for other programs: what happens to allocations and calls, and failed authentications.
//!
//! ```text
//!  worker ── record ──▶ queue of a sink (bounded) ── thread events-N ──▶ file, HTTP, Redis, NATS
//!                         └─ full: the event is dropped and counted
//! ```
//! A worker never waits. It copies the fields of an event into each queue that wants it; the thread of the sink makes
//! JSON of them. Nothing here is called for a packet.

mod record;
pub(crate) mod run;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use server::hooks::{Event, Hooks, SipEvent};
use stores::sinks::{Line, SendError, Sink, SinkKind, SinkOptions};
use tokio::sync::watch;

pub(crate) use record::Record;
use record::{Body, Stamp};
use run::{Destination, Plan, Spawned, ThreadEnd};

/// How long a server that ends waits for its sinks.
pub(crate) const FLUSH: Duration = Duration::from_secs(3);

/// What events are about. The order is that of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    AllocationOpened,
    AllocationRefreshed,
    AllocationClosed,
    CallOpened,
    CallRefreshed,
    CallClosed,
    AuthenticationFailed,
}

impl EventKind {
    pub(crate) const ALL: [EventKind; 7] = [
        EventKind::AllocationOpened,
        EventKind::AllocationRefreshed,
        EventKind::AllocationClosed,
        EventKind::CallOpened,
        EventKind::CallRefreshed,
        EventKind::CallClosed,
        EventKind::AuthenticationFailed,
    ];

    /// Its name in the configuration and in `kind` of an event.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            EventKind::AllocationOpened => "allocation_opened",
            EventKind::AllocationRefreshed => "allocation_refreshed",
            EventKind::AllocationClosed => "allocation_closed",
            EventKind::CallOpened => "call_opened",
            EventKind::CallRefreshed => "call_refreshed",
            EventKind::CallClosed => "call_closed",
            EventKind::AuthenticationFailed => "authentication_failed",
        }
    }

    fn of(event: &Event<'_>) -> Option<EventKind> {
        match event {
            Event::AllocationOpened { .. } => Some(EventKind::AllocationOpened),
            Event::AllocationRefreshed { .. } => Some(EventKind::AllocationRefreshed),
            Event::AllocationClosed { .. } => Some(EventKind::AllocationClosed),
            Event::AuthenticationFailed { .. } => Some(EventKind::AuthenticationFailed),
            _ => None,
        }
    }

    fn of_sip(event: &SipEvent<'_>) -> Option<EventKind> {
        match event {
            SipEvent::CallOpened(_) => Some(EventKind::CallOpened),
            SipEvent::CallRefreshed(_) => Some(EventKind::CallRefreshed),
            SipEvent::CallClosed { .. } => Some(EventKind::CallClosed),
            SipEvent::AuthenticationFailed { .. } => Some(EventKind::AuthenticationFailed),
            _ => None,
        }
    }

    /// Whether this is about SIP only.
    const fn is_of_calls(self) -> bool {
        matches!(
            self,
            EventKind::CallOpened | EventKind::CallRefreshed | EventKind::CallClosed
        )
    }
}

/// What happens to a batch that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is sent again, until the sink has it. What finds the queue full meanwhile is dropped and counted.
    AtLeastOnce,
    /// It is dropped and counted.
    AtMostOnce,
}

/// A sink of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SinkSettings {
    pub(crate) options: SinkOptions,
    pub(crate) kinds: Vec<EventKind>,
    pub(crate) delivery: Delivery,
    /// Events that may wait.
    pub(crate) queue: usize,
}

/// Counters of one sink.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Events that wait, or are being sent.
    pub(crate) waiting: AtomicU64,
    /// Events that the receiver has.
    pub(crate) sent: AtomicU64,
    /// Events that found the queue full.
    pub(crate) full: AtomicU64,
    /// Events of batches that the receiver rejects.
    pub(crate) refused: AtomicU64,
    /// Events of batches that failed, with at most one attempt.
    pub(crate) failed: AtomicU64,
    /// Events that waited when the server ended.
    pub(crate) stopped: AtomicU64,
    /// Attempts that failed.
    pub(crate) failures: AtomicU64,
}

/// What metrics show of a sink.
#[derive(Clone, Debug)]
pub(crate) struct SinkStatus {
    pub(crate) kind: &'static str,
    pub(crate) counters: Arc<Counters>,
}

/// The end of a queue that workers have.
#[derive(Debug)]
pub(crate) struct Queue {
    kinds: Vec<EventKind>,
    sender: tokio::sync::mpsc::Sender<Record>,
    counters: Arc<Counters>,
}

impl Queue {
    /// The queue of a destination that gets events of these kinds.
    pub(crate) fn new(kinds: Vec<EventKind>, spawned: &Spawned<Record>) -> Self {
        Self {
            kinds,
            sender: spawned.sender.clone(),
            counters: Arc::clone(&spawned.counters),
        }
    }

    fn put(&self, stamp: Stamp, body: impl FnOnce() -> Option<Body>) {
        if !self.kinds.contains(&stamp.kind) {
            return;
        }
        // Nothing is copied for a queue that is full.
        match self.sender.try_reserve() {
            Ok(place) => {
                if let Some(body) = body() {
                    self.counters.waiting.fetch_add(1, Ordering::Relaxed);
                    place.send(Record::new(stamp, body));
                }
            }
            Err(_) => drop(self.counters.full.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// A sink, which gets each event as a line.
struct ToSink {
    run: String,
    sink: Sink,
}

impl Destination for ToSink {
    type Record = Record;
    type Batch = Vec<Line>;
    const LINGER: Duration = Duration::ZERO;

    fn batch(&mut self, records: &[Record]) -> Vec<Line> {
        records
            .iter()
            .map(|record| record.line(&self.run))
            .collect()
    }

    async fn send(&mut self, batch: &Vec<Line>) -> Result<u64, SendError> {
        self.sink.send(batch).await.map(|()| 0)
    }
}

/// A sink and its thread.
#[derive(Debug)]
struct Running {
    status: SinkStatus,
    ended: ThreadEnd,
}

/// The sinks of a server.
#[derive(Debug, Default)]
pub(crate) struct Events {
    sinks: Vec<Running>,
    /// The queues of the sinks, and that of traces.
    queues: Vec<Arc<Queue>>,
    /// The number of the next event of this process.
    sequence: Arc<AtomicU64>,
    /// When the sinks must end.
    stop: Option<watch::Sender<Option<Instant>>>,
}

/// The random number of this process. With it, receivers can distinguish the events of two processes.
///
/// # Errors
/// If the system has no random numbers.
pub(crate) fn run_of_process() -> Result<String> {
    static RUN: OnceLock<String> = OnceLock::new();
    if let Some(run) = RUN.get() {
        return Ok(run.clone());
    }
    let mut run = [0; 8];
    getrandom::fill(&mut run).map_err(|error| anyhow!("no random numbers: {error}"))?;
    let run = format!("{:016x}", u64::from_ne_bytes(run));
    Ok(RUN.get_or_init(|| run).clone())
}

impl Events {
    /// Opens the sinks, and starts a thread for each. `traces` gets events, too.
    pub(crate) fn start(settings: &[SinkSettings], traces: Option<Arc<Queue>>) -> Result<Events> {
        let (stop, stopped) = watch::channel(None);
        let run = run_of_process()?;
        let mut events = Events {
            stop: Some(stop),
            ..Events::default()
        };
        for (number, sink) in (1..).zip(settings) {
            let kind = SinkKind::of(&sink.options.at.url).map_or("", SinkKind::name);
            let failed = |error: &dyn std::fmt::Display| {
                anyhow!("sink {number} of events ({kind}): {error}; see events.sinks")
            };
            let to_sink = ToSink {
                run: run.clone(),
                sink: Sink::open(&sink.options).map_err(|error| failed(&error))?,
            };
            let plan = Plan {
                thread: format!("events-{number}"),
                name: format!("{number} ({kind})"),
                delivery: sink.delivery,
                queue: sink.queue,
            };
            let spawned = run::spawn(plan, to_sink, stopped.clone());
            let spawned = spawned.map_err(|error| failed(&error))?;
            let queue = Queue::new(sink.kinds.clone(), &spawned);
            events.queues.push(Arc::new(queue));
            events.sinks.push(Running {
                status: SinkStatus {
                    kind,
                    counters: spawned.counters,
                },
                ended: spawned.ended,
            });
        }
        events.queues.extend(traces);
        Ok(events)
    }

    /// What metrics show.
    pub(crate) fn status(&self) -> Vec<SinkStatus> {
        self.sinks.iter().map(|sink| sink.status.clone()).collect()
    }

    /// Has a server report what the sinks want.
    pub(crate) fn add_to(&self, hooks: &mut Hooks) {
        let wanting = |wants: fn(EventKind) -> bool| -> Vec<Arc<Queue>> {
            let queues = self.queues.iter().cloned();
            queues
                .filter(|queue| queue.kinds.iter().any(|kind| wants(*kind)))
                .collect()
        };
        let of_turn = wanting(|kind| !kind.is_of_calls());
        if !of_turn.is_empty() {
            let sequence = Arc::clone(&self.sequence);
            hooks.set_on_event(move |event| {
                if let Some(kind) = EventKind::of(event) {
                    let stamp = Stamp::new(kind, sequence.fetch_add(1, Ordering::Relaxed));
                    for queue in &of_turn {
                        queue.put(stamp, || Some(Body::of(event)));
                    }
                }
            });
        }
        let is_of_sip =
            |kind: EventKind| kind.is_of_calls() || kind == EventKind::AuthenticationFailed;
        let of_sip = wanting(is_of_sip);
        if !of_sip.is_empty() {
            let with_calls = !wanting(EventKind::is_of_calls).is_empty();
            let sequence = Arc::clone(&self.sequence);
            hooks.set_on_sip_event(with_calls, move |event| {
                if let Some(kind) = EventKind::of_sip(event) {
                    let stamp = Stamp::new(kind, sequence.fetch_add(1, Ordering::Relaxed));
                    for queue in &of_sip {
                        queue.put(stamp, || Body::of_sip(event));
                    }
                }
            });
        }
    }

    /// Waits until the sinks have everything, for [`FLUSH`] at most. What is left is counted, and logged.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + FLUSH;
        if let Some(stop) = &self.stop {
            let _ = stop.send(Some(deadline));
        }
        for sink in self.sinks {
            sink.ended.wait_until(deadline);
        }
    }
}
