//! What a generator measures and by what clock it sends: payloads that say who sent them and when, flows that know what
//! is missing, latencies by percentile, schedules that do not wait for the server.

mod counters;
mod flow;
mod latency;
mod payload;
mod schedule;
mod text;

pub use counters::{Counter, Counters, Snapshot};
pub use flow::{Arrival, FlowReport, FlowTracker};
pub use latency::{Latency, LatencyReport};
pub use payload::{Payload, PayloadError, Stamp};
pub use schedule::{ParseRateError, Rate, Schedule, Stage};
pub use text::{ParseDurationError, parse_duration, parse_number};
