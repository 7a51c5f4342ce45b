//! SIP (RFC 3261) without a socket or a clock: messages, transactions, routing and overload control.
//!
//! The embedder owns sockets, names, time and randomness; it hands datagrams and stream bytes in and carries out what comes back.
#![forbid(unsafe_code)]

mod time;

pub use time::{Mono, Now};
