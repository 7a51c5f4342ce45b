//! The server: many clients on one socket.

mod answer;
mod connection;
mod counters;
mod endpoint;
mod half_open;
mod handshake;
mod sources;
mod table;

pub use counters::{Counters, DropReason};
pub use endpoint::{Endpoint, Event, Opened, Received};
pub use table::ConnectionKey;
