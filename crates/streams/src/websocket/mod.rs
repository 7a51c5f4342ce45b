//! WebSocket (RFC 6455) without sockets: the HTTP handshake, and frames.
//!
//! A server passes the bytes of a new connection to [`Accept`], which appends the response. A client begins with
//! [`Connect`]. Both pass the bytes after the handshake to a [`WebSocket`]. It finds messages, and replies to Ping and
//! Close frames.
//!
//! No extension is negotiated, so messages are not compressed. Events and responses do not depend on how the network
//! splits the bytes.

mod accept;
mod connect;
mod connection;
mod frame;
mod head;
mod mask;
mod utf8;

pub use accept::{Accept, AcceptRules, Accepted, Refusal};
pub use connect::{Connect, ConnectError, Request};
pub use connection::{End, Event, MessageKinds, MessageLimits, ProtocolError, WebSocket};
pub use frame::{CloseCode, FrameHeader, Kind};

#[cfg(test)]
mod tests;
