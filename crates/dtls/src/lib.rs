//! DTLS 1.2 (RFC 6347) without sockets, clocks or threads: [`Endpoint`] for a worker of a server, [`Client`] for a
//! client.
//!
//! **Invariant:** before a client has returned its cookie, the endpoint stores nothing for it and computes no signature
//! or key for it. It also never sends more bytes to the client than it has received from it.
//!
//! One record of application data is one message. A datagram is decrypted in place, and a message is encrypted into the
//! caller's buffer. Neither allocates memory. Only handshakes allocate memory, and they free it when they end.
//!
//! Cipher suites are ECDHE with AES-GCM or ChaCha20-Poly1305. Certificates have RSA, ECDSA or Ed25519 keys, and may
//! have chains. There is no renegotiation, no resumption, no compression, no client certificate, and no DTLS 1.3.
//! aws-lc does all cryptography. Keys and certificates have rustls's types.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hairpin_dtls::{Client, ClientConfig, Config, CookieKey, Endpoint, Limits, Mono, Path, Received};
//! # use rustls::pki_types::{PrivateKeyDer, ServerName, UnixTime};
//! # let key = rcgen::generate_simple_self_signed(["turn.example".to_owned()])?;
//! # let der = PrivateKeyDer::try_from(key.signing_key.serialize_der())?;
//! # let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der)?;
//! # let chain = vec![key.cert.der().clone()];
//! # let mut roots = rustls::RootCertStore::empty();
//! # roots.add(key.cert.der().clone())?;
//! # let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
//! # let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
//! # let certificate = Arc::new(rustls::sign::CertifiedKey::new(chain, signing));
//! # let name = ServerName::try_from("turn.example")?;
//! # let today = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_790_000_000));
//! # let (cookie_key, seed) = (CookieKey::new(&[9; 32]), [1, 2]);
//!
//! let config = Config { certificates: Arc::new(certificate), protocols: Vec::new(), limits: Limits::default() };
//! let mut server = Endpoint::new(Arc::new(config), cookie_key, seed);
//! let mut client = Client::new(Arc::new(ClientConfig::new(verifier)), name, Mono(0), today);
//!
//! // A program moves the datagrams over a UDP socket. Here both ends are in one process.
//! let path = Path { listener: 0, local: "192.0.2.1:5349".parse()?, remote: "198.51.100.7:4000".parse()? };
//! while !client.is_established() {
//!     while let Some(datagram) = client.poll_transmit().map(<[u8]>::to_vec) {
//!         server.handle_datagram(Mono(0), &path, &mut datagram.clone());
//!         while server.step(Mono(0)) {} // one step of a handshake
//!     }
//!     while let Some((_, datagram)) = server.poll_transmit() {
//!         client.handle_datagram(Mono(0), &mut datagram.to_vec());
//!     }
//! }
//!
//! let mut datagram = [0; 100];
//! let length = client.seal(&[b"hello"], &mut datagram)?;
//! let received = server.handle_datagram(Mono(0), &path, &mut datagram[..length]);
//! assert!(matches!(received, Received::Data { message, .. } if message == b"hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When not to use it
//!
//! - The other side requires DTLS 1.3, a client certificate or a pre-shared key.
//! - You need the keys for media (DTLS-SRTP): this crate does not export them.
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

/// The maximum number of bytes that encryption adds to a message: a record header, an explicit nonce and a tag.
pub const OVERHEAD: usize = wire::record::HEADER + crypto::cipher::EXPANSION;

/// The longest message in bytes (RFC 6347 §4.1).
pub const MAX_MESSAGE: usize = 1 << 14;

/// The addresses and the socket of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The caller's number of the socket. It does not identify the connection.
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
    /// The handshake is not complete, or the connection has ended.
    #[error("there is no established DTLS connection")]
    NotConnected,
    /// The message is longer than [`MAX_MESSAGE`], or the buffer is shorter than the message plus [`OVERHEAD`].
    #[error(
        "the message is too long: a record holds 16,384 bytes, and the buffer must be 37 bytes longer than the message"
    )]
    TooLong,
    /// The connection has sent 2^48 records.
    #[error("the connection has no sequence numbers left: establish a new connection")]
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
