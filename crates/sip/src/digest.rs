//! Digest authentication (RFC 3261 §22, RFC 7616, RFC 8760): MD5, SHA-256 and SHA-512-256 with `qop=auth`, both sides.
//!
//! A server keeps nothing for a challenge: its [`NonceKeys`] know a nonce of theirs. It keeps a little, in a table that never
//! grows, for nonces that somebody has answered rightly: [`Replay`], so that no answer counts twice. The path of a request:
//!
//! 1. no credentials for our realm: [`challenge`], one field for each algorithm, the best first
//! 2. [`Credentials::of`] reads them, [`Server::check`] looks at all that needs no password
//! 3. the embedder finds the [`Ha1`] of that user, or finds that there is none
//! 4. [`Server::verify`] compares, in a time that tells nothing
//!
//! The hash that TURN keeps for a user is the same as here, realm and algorithm being the same: see [`Ha1::from_hash`].

mod client;
mod hash;
mod nonce;
mod replay;
mod server;

pub use client::{Challenge, answer, choose};
pub use hash::{Algorithm, Ha1, Hex, Proof};
pub use nonce::{NONCE_LEN, NonceCheck, NonceKeys};
pub use replay::{Replay, Use};
pub use server::{Credentials, Outcome, Policy, Server, challenge};

/// What is between the quotes of a quoted string, or the text as it is. Backslashes stay: what is hashed is the text as it was
/// sent (RFC 7616 §3.4, `unq`).
fn inside_quotes(text: &[u8]) -> &[u8] {
    match text {
        [b'"', inner @ .., b'"'] => inner,
        plain => plain,
    }
}
