//! The open-loop core of the load generator.
//!
//! A [`Plan`] says what to send ([`Lane`]s), where answers come in ([`Tap`]s) and when ([`Schedule`](crate::measure::Schedule)).
//! Sender threads share the lanes out among themselves and follow the schedule, whatever the server does; receiver threads share the
//! taps. No thread touches another's counters, and nothing shared is written per datagram. Senders stop first; receivers linger for
//! what is still on its way.
//!
//! ```text
//!   schedule ─ sender ─ lane (socket, frames) ─▶ server under test ─▶ tap (socket, decoder) ─ receiver
//!                  │                                                                            │
//!                  └────── counters, one cache line pair a thread ──────┬── latencies, once a second
//!                                                                      Run
//! ```

mod binding;
mod lane;
mod plan;
mod receiver;
mod run;
mod sender;
mod tap;
mod warnings;

pub use binding::{BindingOptions, binding};
pub use lane::{Lane, Stamping};
pub use plan::{Plan, PlanError};
pub use run::{Run, RunError, Stopper};
pub use tap::{Decoder, Tap};
