//! Congestion management: new work is refused before the wait of accepted work grows beyond what is of use.
//!
//! The measure is the expected wait: the moving average of the time a message takes times the messages that wait, those in
//! the sockets included. It is compared with a tolerance, 200 ms by default. Above 80 % of it new work is refused, above 100 %
//! all that is not essential. What finishes work that was begun (ACK, CANCEL, BYE, responses, whatever matches a
//! transaction) is never refused, for refusing it wastes what was spent on it and makes its sender repeat it.
//!
//! A refusal is a 503 with a Retry-After, as long as 503s stay within their share of the processor's time; beyond it
//! messages are dropped in silence, which costs less than anything else that can be done with them; what has been read by then
//! has cost too much already, so a [`Sieve`] holds it back.

mod classes;
mod controller;
mod downstream;
mod fairness;
mod rates;
mod service_time;
mod sieve;
mod upstream;

#[cfg(test)]
mod crowd;
#[cfg(test)]
mod simulation;

pub use classes::{Class, Classifier, Traits};
pub use controller::{Admission, Backlog, Behaviour, Config, Controller, ShedCounts};
pub use downstream::{Downstream, Feedback};
pub use sieve::{PLACES, Sieve};
pub(crate) use upstream::is_oc_parameter;
pub use upstream::{Algorithm, OcOffer, OcReply};
