//! Connections without sockets: bytes and time in, messages and bytes out.
//!
//! The worker that owns a socket reads and writes it; everything between the bytes and the messages is here.
#![forbid(unsafe_code)]

pub mod first_bytes;
pub mod proxy;
pub mod tls;
mod unwritten;
pub mod websocket;

pub use first_bytes::FirstBytes;
pub use rustls;
pub use tls::Tls;
pub use unwritten::{CHUNK, Content, Spare, Unread, Unwritten, WriteLimits};
