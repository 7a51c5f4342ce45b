//! TLS, WebSocket, the PROXY protocol and the write queue of a connection, without sockets.
//!
//! The worker owns the socket and reads and writes it. This crate converts the bytes to messages, and messages to
//! bytes.
//!
//! ```
//! use hairpin_streams::FirstBytes;
//! use hairpin_streams::proxy::{self, Carried, Proxy};
//!
//! // A load balancer checks the server: a PROXY header with the command LOCAL. Then it begins a TLS handshake.
//! let bytes = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00\x16\x03\x01\x02\x00";
//! assert_eq!(FirstBytes::of(bytes), FirstBytes::Proxy);
//! let Proxy::Header { len, addresses } = proxy::parse(bytes, Carried::Stream) else {
//!     panic!("the header is complete");
//! };
//! assert_eq!((len, addresses), (16, None));
//! assert_eq!(FirstBytes::of(&bytes[len..]), FirstBytes::Tls);
//! ```
//!
//! # When not to use it
//!
//! With an async runtime, use the crates for its streams, such as `tokio-rustls`. This crate has no HTTP except the
//! handshake of WebSocket.
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
