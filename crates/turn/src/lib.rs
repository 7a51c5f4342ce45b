//! TURN (RFC 8656) as two state machines, [`server`] and [`client`], without a socket or a clock.
//!
//! The embedder owns sockets, time and randomness. It hands datagrams in and carries out what comes back:
//!
//! ```text
//!  client datagrams ── handle_client ──┐  server  ┌── verdict: relay these n datagrams there (the hot path)
//!  peer datagrams ──── handle_peer ────┤    ::    ├── poll_output: answers, sockets to open or close, log
//!  time ────────────── handle_timeout ─┘  Server  └── poll_timeout: when to call handle_timeout next
//! ```
//!
//! **The invariant:** after every `handle_*` the embedder drains [`server::Server::poll_output`] before it calls
//! another `handle_*`. It sends queued datagrams before a `CloseRelay` closes their socket. A [`RelayKey`] carries a
//! generation, so that an outdated event of the same wake-up finds nothing.
//!
//! Time ([`Now`]) and the seed are arguments: the same inputs give the same outputs, byte for byte.
//!
//! [`server`] and [`client`] each have an example.
//!
//! # When not to use it
//!
//! - You want a client with sockets: use `hairpin-client`.
//! - You want a server with sockets, threads and policies: use `hairpin-server`, or the program `hairpin`.
#![forbid(unsafe_code)]

pub mod client;
mod random;
pub mod server;
mod types;

pub use timers::{Mono, Now};
pub use types::address::{ClientPath, FiveTuple, ListenerKey, Transport};
pub use types::attribute::is_known as is_known_attribute;
pub use types::key::{AllocationKey, ConnectionKey, LookupKey, RelayKey, RequestKey};
pub use types::run::Run;
