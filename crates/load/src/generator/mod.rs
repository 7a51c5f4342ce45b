//! The open-loop core of the load generator.
//!
//! A [`Plan`] says what to send ([`Lane`]s), where answers come in ([`ReceiveSocket`]s) and when
//! ([`Schedule`](crate::measure::Schedule)). Sender threads share the lanes out among themselves and follow the
//! schedule, regardless of the server; receiver threads share the taps. No thread touches another's counters, and
//! nothing shared is written per datagram. Senders stop first; receivers linger for what is still on its way.
//!
//! ```text
//!   schedule ─ sender ─ lane (socket, frames) ─▶ server under test ─▶ tap (socket, decoder) ─ receiver
//!                  │                                                                            │
//!                  └────── counters, one cache line pair a thread ──────┬── latencies, once a second
//!                                                                      Run
//! ```

mod binding;
mod churn;
mod closed;
mod connections;
mod end;
mod expected;
mod find_max;
mod frame;
mod garbage;
mod kernel;
mod lane;
mod live;
mod local_peers;
mod mixed;
mod plan;
mod receive_socket;
mod receiver;
mod relay;
mod release;
mod run;
mod run_threads;
mod sender;
mod setup;
mod share;
mod shared;
mod sip;
mod stamps;
mod stop;
mod sum;
mod target;
mod train;
mod unexpected;
mod warnings;
mod watch;
mod watched;

pub use binding::{BindingOptions, binding};
pub use churn::{ChurnOptions, allocate, connect};
pub use find_max::{FindMaxOptions, Found, Limit, Progress, find_max};
pub use garbage::{GarbageOptions, garbage};
pub use lane::{Lane, Stamping};
pub use mixed::{Media, MixedOptions, mixed};
pub use plan::{Plan, PlanError, Stream};
pub use receive_socket::{Decoder, ExpectedMapping, ReceiveSocket};
pub use relay::{Direction, Path, RelayOptions, relay};
pub use run::{Run, RunError};
pub use setup::{Framing, OptionsError, SetupError, TurnClients};
pub use sip::{
    ServerCheckError, SipCredentials, SipOptions, SipWorkload, SweepOptions, SweepProgress,
    TestStack, TestStackError, TestStackReport, check_server, sip, sweep,
};
pub use stop::Stopper;
pub use target::{Target, TargetError};
pub use turn::client::Security;
