//! The measurements of a generator, and its schedule. A payload names its sender and its time. A flow has a list of
//! missing payloads. Latencies have percentiles. A schedule does not wait for the server.

mod counters;
mod flow;
mod latency;
mod payload;
mod schedule;
mod text;

pub use counters::{Counter, Counters, Snapshot};
pub use flow::{Arrival, FlowReport, FlowTracker};
pub use latency::{Latency, LatencyReport};
pub use payload::{Payload, PayloadError, RunStamp, Stamp};
pub use schedule::{ParseRateError, Rate, Schedule, Stage};
pub use text::{ParseDurationError, parse_duration, parse_number};
