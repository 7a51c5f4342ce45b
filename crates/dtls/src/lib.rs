//! DTLS 1.2 (RFC 6347) without sockets, clocks or threads: [`Endpoint`] for the server's worker, [`Client`] for the other side.
//!
//! **The invariant:** before a client has returned its cookie, nothing is kept for it, nothing costly is computed for it, and it
//! is never sent more bytes than it sent.
//!
//! One record of application data is one message. A datagram is decrypted in the buffer that it came in, a message is encrypted
//! into the caller's buffer, and neither allocates. Only handshakes allocate, and what they took is given back when they end.
//!
//! Cipher suites are ECDHE with AES-GCM or ChaCha20-Poly1305, certificates RSA, ECDSA or Ed25519 with their chains. There is no
//! renegotiation, no resumption, no compression, no client certificate, and no DTLS 1.3. All cryptography is that of aws-lc;
//! keys and certificates have rustls's types.
#![forbid(unsafe_code)]

mod certificates;
mod client;
mod close;
mod config;
mod cookie;
mod crypto;
mod flight;
mod reassembly;
mod server;
mod transcript;
mod window;
mod wire;

use std::net::SocketAddr;

pub use certificates::{Certificates, UnusableCertificate, check_certificate};
pub use client::{Client, ClientConfig, ClientEvent};
pub use close::{CloseReason, HandshakeError};
pub use config::{Config, Limits};
pub use cookie::CookieKey;
pub use server::{ConnectionKey, Counters, DropReason, Endpoint, Event, Opened, Received};
pub use timers::Mono;
pub use wire::alert::alert_name;

/// The most by which a message grows when it is encrypted: a record header, an explicit nonce and a tag.
pub const OVERHEAD: usize = wire::record::HEADER + crypto::cipher::EXPANSION;

/// The longest message (RFC 6347 §4.1).
pub const MAX_MESSAGE: usize = 1 << 14;

/// Where a client is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The embedder's name for the socket; not part of the identity.
    pub listener: u32,
    /// The server's address and port, as the client addressed it.
    pub local: SocketAddr,
    /// The client's address and port.
    pub remote: SocketAddr,
}

/// Why a message was not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The handshake has not ended, or the connection has.
    #[error("there is no established DTLS connection")]
    NotConnected,
    /// The message is longer than [`MAX_MESSAGE`], or the buffer shorter than the message and [`OVERHEAD`].
    #[error(
        "the message does not fit: a record holds 16,384 bytes, and the buffer must hold 37 more"
    )]
    TooLong,
    /// The connection has sent 2^48 records.
    #[error("the connection has used up its sequence numbers")]
    Exhausted,
}

impl From<crypto::cipher::SealError> for SendError {
    fn from(error: crypto::cipher::SealError) -> SendError {
        match error {
            crypto::cipher::SealError::TooLong => SendError::TooLong,
            crypto::cipher::SealError::Exhausted => SendError::Exhausted,
        }
    }
}

/// Whether a datagram that begins with this byte is for DTLS (RFC 7983 §7).
#[must_use]
pub const fn is_dtls(first_byte: u8) -> bool {
    matches!(first_byte, 20..=63)
}
