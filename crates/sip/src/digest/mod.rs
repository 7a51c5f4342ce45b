//! Digest authentication (RFC 3261 §22, RFC 7616, RFC 8760): MD5, SHA-256 and SHA-512-256, with `qop=auth` or
//! `auth-int`, both sides.
//!
//! A server stores nothing for a challenge: its [`NonceKeys`] recognise a nonce of theirs. It keeps a little, in a
//! table with a limit, for nonces that somebody has answered rightly: [`Replay`], so that no answer counts twice.
//! The path of a request:
//!
//! 1. no credentials for our realm: [`challenge`], one field for each algorithm, the best first
//! 2. [`Credentials::of`] reads them, [`Server::check`] looks at all that needs no password
//! 3. the embedder finds the [`Ha1`] of that user, by name or by its hash, or finds that there is none
//! 4. [`Server::verify`] compares, in a time that reveals nothing
//! 5. [`Server::confirm`] proves that the server has the password as well, and names the next nonce
//!
//! A client reads a [`Challenge`], writes a [`DigestResponse`], and reads the server's [`Confirmation`]. A client
//! responds to the session variants of the algorithms as well. Servers do not offer them, because they gain nothing if
//! the hash of the password is known.
//!
//! The hash that TURN keeps for a user is the same as here, realm and algorithm being the same: see [`Ha1::from_hash`].

mod client;
mod confirmation;
mod hash;
mod nonce;
mod replay;
mod server;

pub use client::{Challenge, DigestResponse, choose, choose_in};
pub use confirmation::Confirmation;
pub use hash::{Algorithm, Ha1, Hex, Proof, Qop};
pub use nonce::{NONCE_LEN, NonceCheck, NonceKeys};
pub use replay::{NonceUse, Replay};
pub use server::{Credentials, DigestMismatch, DigestRequest, Outcome, Policy, Server, challenge};

use std::borrow::Cow;

use crate::build::{Builder, Part};

/// What is between the quotes of a quoted string, or the text as it is. Backslashes stay: [`unescaped`] leaves them
/// out.
fn inside_quotes(text: &[u8]) -> &[u8] {
    match text {
        [b'"', inner @ .., b'"'] => inner,
        plain => plain,
    }
}

/// Shows the pieces of a quoted string's inside, without the backslashes that quote (RFC 7616 §3.3, `unq`).
fn unescaped<'a>(text: &'a [u8], mut see: impl FnMut(&'a [u8])) {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, quoted) = rest.split_at(at);
        see(before);
        // The byte behind it stands for itself, even if it is a backslash.
        let (one, behind) = quoted.split_at(quoted.len().min(2));
        see(one.get(1..).unwrap_or_default());
        rest = behind;
    }
    see(rest);
}

/// What stands between quotes, without the backslashes; copied only if there are any.
fn meaning(quoted: &[u8]) -> Cow<'_, [u8]> {
    if !quoted.contains(&b'\\') {
        return Cow::Borrowed(quoted);
    }
    let mut text = Vec::with_capacity(quoted.len());
    unescaped(quoted, |piece| text.extend_from_slice(piece));
    Cow::Owned(text)
}

/// Writes what [`meaning`] returns to `buffer`, without allocating. Returns as many bytes of it as fit.
fn start_of_meaning<'b>(quoted: &[u8], buffer: &'b mut [u8]) -> &'b [u8] {
    let mut length = 0;
    unescaped(quoted, |piece| {
        let room = buffer.get_mut(length..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(piece) {
            *to = *from;
            length += 1;
        }
    });
    buffer.get(..length).unwrap_or_default()
}

/// Whether what stands between quotes means this text.
fn means(quoted: &[u8], text: &[u8]) -> bool {
    let mut left = Some(text);
    unescaped(quoted, |piece| {
        left = left.and_then(|left| left.strip_prefix(piece));
    });
    left.is_some_and(<[u8]>::is_empty)
}

/// Writes a text between quotes, with backslashes where they must be.
fn write_quoted(builder: &mut Builder<'_>, text: &[u8]) {
    builder.raw(b"\"");
    for piece in text.split_inclusive(|byte| matches!(byte, b'"' | b'\\')) {
        match piece {
            [plain @ .., special @ (b'"' | b'\\')] => {
                builder.part(Part::Bytes(plain));
                builder.raw(b"\\").raw(&[*special]);
            }
            plain => {
                builder.part(Part::Bytes(plain));
            }
        }
    }
    builder.raw(b"\"");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_means_what_was_written() {
        for text in ["", "a", "\"", "\\", "DOMAIN\\ann", "a\"b\\\\c\""] {
            let mut buffer = [0; 64];
            let mut builder = Builder::fields(&mut buffer);
            write_quoted(&mut builder, text.as_bytes());
            let written = builder.finish_fields().expect("room");
            assert!(means(inside_quotes(written), text.as_bytes()), "{text}");
            assert!(!means(inside_quotes(written), b"other"), "{text}");
        }
        assert!(means(b"\\a", b"a") && means(b"a\\", b"a"));
    }
}
