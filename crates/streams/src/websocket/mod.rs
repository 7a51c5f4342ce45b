//! WebSocket (RFC 6455): the handshake in HTTP, and frames, on top of a connection's bytes.
//!
//! A server gives the bytes of a new connection to [`Accept`]; what it appends is the response. A client begins with [`Connect`].
//! Both give the rest to a [`WebSocket`], which finds messages and answers what the protocol has answered: Ping and Close.
//!
//! No extension is agreed, so nothing is compressed. How the bytes are cut into pieces changes neither the events nor the responses.

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
