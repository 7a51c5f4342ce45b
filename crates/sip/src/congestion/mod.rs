//! Admission control: an overloaded worker refuses new work. Otherwise accepted work would wait until its response is
//! useless.
//!
//! The measure is the expected wait. It is the average time per message, times the waiting messages, those in the
//! sockets included. The wait of requests that the transaction user has not begun is added. It is compared with a
//! tolerance, 200 ms by default.
//!
//! | wait, in percent of the tolerance | refused |
//! |---|---|
//! | 25 to 75 | more and more requests of [`Class::New`], but of sources below their share |
//! | 75 to 125 | those too, and more and more of [`Class::Continuing`] |
//! | 125 to 200 | more and more of [`Class::Priority`] |
//!
//! [`Class::Finishing`] and all messages that match a transaction are never refused. Beyond a part of the capacity,
//! requests of the upper three classes are treated like those of a class below, and emergency calls of unknown sources
//! are refused first. So a flood of them leaves room for others.
//!
//! A source that exceeds its limit of requests per second is refused without an overload, too. A refusal is a 503 with
//! Retry-After, as long as 503s and their ACKs use at most 8 % of the time. What is beyond that is dropped and counted,
//! and a [`Filter`] drops as much before it is read.

mod classes;
mod controller;
mod downstream;
mod filter;
mod proof;
mod service_time;
mod sources;
mod tu_queue;
mod upstream;

#[cfg(test)]
mod simulation;

pub use classes::{Class, Dialog, Traits, is_emergency};
pub use controller::{Admission, Backlog, Config, Controller, ShedCounts};
pub use downstream::{Downstream, Feedback};
pub use filter::Filter;
pub use proof::{ProofFields, RequestProof};
pub use sources::{HASHED_PLACES, MAX_PEERS, PLACES, SourceCounts, WeightedSource};
pub(crate) use upstream::is_oc_parameter;
pub use upstream::{OcReply, offers_loss};
