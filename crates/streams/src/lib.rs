//! TLS, WebSocket, the PROXY protocol and the write queue of a connection, without sockets.
//!
//! The worker owns the socket and reads and writes it. This crate converts the bytes to messages, and messages to
//! bytes.
#![forbid(unsafe_code)]

pub mod domains;
pub mod first_bytes;
pub mod proxy;
pub mod tls;
pub mod websocket;
mod write_queue;

pub use first_bytes::FirstBytes;
pub use rustls;
pub use tls::Tls;
pub use write_queue::{CHUNK, ChunkPool, Content, Unread, WriteLimits, WriteQueue};
