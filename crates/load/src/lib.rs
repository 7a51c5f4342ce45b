//! Measures STUN and TURN servers, ours and others': asks one, loads one, and is the peer on the other side.
//!
//! - [`probe`] asks one server what it does, and says in plain words what went wrong;
//! - [`client`] drives many TURN clients on one thread, with [`uri`] saying where their server is;
//! - [`generator`] sends on a fixed schedule regardless of the server, [`measure`] counts what comes of it, and
//!   [`report`] tells;
//! - [`peer`] is the other end of a measurement, and [`garbage`] what a server on the open internet must not mind.
//!
//! **The invariant:** each rate, loss and latency in a report is of datagrams that were *delivered*, counted where they
//! arrived. A latency begins at the scheduled time of the datagram.
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
