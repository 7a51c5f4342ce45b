//! Measures STUN, TURN and SIP servers of any project.
//!
//! - [`probe`] tests one server, and says in plain words what went wrong.
//! - [`client`] drives many TURN clients on one thread. [`uri`] parses the URI of their server.
//! - [`generator`] sends on a fixed schedule, regardless of the server. [`measure`] counts the result, and [`report`]
//!   writes it.
//! - [`sip`] is the answering side of SIP. [`peer`] is the other end of a TURN measurement.
//! - [`garbage`] sends what a server on the Internet must tolerate. [`mod@bench`] compares servers.
//!
//! ```
//! use std::time::Duration;
//!
//! use hairpin_load::measure::{Latency, Schedule};
//!
//! // 100 sends per second: after 2 s, 201 are due, because the first one is due at once.
//! let schedule = Schedule::constant("100".parse()?);
//! assert_eq!(schedule.due(Duration::from_secs(2)), 201);
//!
//! let mut latency = Latency::new();
//! for us in 1..=1000 {
//!     latency.record_ns(us * 1000);
//! }
//! let p50 = latency.percentile_us(50.0).ok_or("too few")?;
//! assert!((499.0..=502.0).contains(&p50));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **The invariant:** each rate, loss and latency in a report is of datagrams that were *delivered*, counted where they
//! arrived. A latency begins at the scheduled time of the datagram.
//!
//! # When not to use it
//!
//! Use the program instead: `hairpin load`, `hairpin probe` and `hairpin bench`. The API follows the needs of the
//! program and changes with them. The generator sends to a public address only if the caller states that the server is
//! its own.
#![forbid(unsafe_code)]

pub mod bench;
pub mod client;
mod datagrams;
pub mod garbage;
mod gather;
pub mod generator;
pub mod measure;
pub mod peer;
pub mod probe;
pub mod report;
pub mod sip;
mod socket;
pub mod uri;
mod via;

pub use ::client::{Tls, TlsConfigError};
pub use socket::{Connection, Socket};
pub use turn::Transport;
pub use via::{ServerAddress, Via};
