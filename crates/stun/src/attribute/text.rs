//! Names, texts and challenges (RFC 8489 §14.3, §14.4, §14.9, §14.10, §14.14, §14.16).
//!
//! The RFC counts in characters when sending ("fewer than 128") and in bytes when receiving (at most 763, which is what
//! RFC 5389 could produce). Here a receiver checks bytes, a sender both.

use super::{AttributeError, AttributeType, fixed_attribute, slice_attribute};
use crate::{BuildError, TransactionId};

/// Bytes of text a receiver must be able to read (RFC 8489 §14.3, §14.8, §14.9, §14.10, §14.14).
pub(super) const READ_MAX: usize = 763;
/// Bytes of text a sender may write (RFC 8489 §14.8, §14.14).
const WRITE_MAX: usize = 509;
/// RFC 8489 §14.3: a user name has fewer than 509 bytes.
const USERNAME_WRITE_MAX: usize = 508;
/// Characters a sender may write: fewer than 128 (RFC 8489 §14.8, §14.9, §14.14).
const CHARS_MAX: usize = 127;
/// RFC 8489 §14.16: a DNS name of 255 or fewer ASCII characters.
const DOMAIN_MAX: usize = 255;

/// Reads UTF-8 of at most `max` bytes.
#[inline]
pub(super) fn read_text(value: &[u8], max: usize) -> Result<&str, AttributeError> {
    if value.len() > max {
        return Err(AttributeError::Length);
    }
    core::str::from_utf8(value).map_err(|_| AttributeError::NotUtf8)
}

/// Whether a text is within the limits of bytes and of characters. A text with at most [`CHARS_MAX`] bytes is within
/// both, so its characters are not counted.
#[inline]
pub(super) fn is_writable(text: &str) -> bool {
    text.len() <= CHARS_MAX || text.len() <= WRITE_MAX && text.chars().count() <= CHARS_MAX
}

/// Reads bytes of any kind, at most `max`.
#[inline]
fn read_bytes(value: &[u8], max: usize) -> Result<&[u8], AttributeError> {
    if value.len() > max {
        return Err(AttributeError::Length);
    }
    Ok(value)
}

/// The user name of the sender, prepared with the OpaqueString profile (RFC 8489 §14.3).
///
/// At most 508 bytes are written and 763 read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Username<'a>(
    /// The name.
    pub &'a str,
);
slice_attribute!(
    Username, USERNAME,
    read: |value| read_text(value, READ_MAX),
    allowed: |text: &str| text.len() <= USERNAME_WRITE_MAX
);

/// The realm of the credentials, without quotes (RFC 8489 §14.9).
///
/// At most 763 bytes: a client has to repeat what an RFC 5389 server sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Realm<'a>(
    /// The realm.
    pub &'a str,
);
slice_attribute!(
    Realm, REALM,
    read: |value| read_text(value, READ_MAX),
    allowed: |text: &str| text.len() <= READ_MAX
);

/// The name and version of the sender, for people who debug (RFC 8489 §14.14).
///
/// At most 127 characters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Software<'a>(
    /// The text.
    pub &'a str,
);
slice_attribute!(
    Software, SOFTWARE,
    read: |value| read_text(value, READ_MAX),
    allowed: is_writable
);

/// The name to expect in the alternate server's certificate (RFC 8489 §14.16).
///
/// At most 255 bytes, and ASCII when written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AlternateDomain<'a>(
    /// The DNS name.
    pub &'a str,
);
slice_attribute!(
    AlternateDomain, ALTERNATE_DOMAIN,
    read: |value| read_text(value, DOMAIN_MAX),
    allowed: |text: &str| text.len() <= DOMAIN_MAX && text.is_ascii()
);

/// The web origin on whose behalf the client asks, as RFC 6454 writes it (draft-ietf-tram-stun-origin):
/// `https://example.com`.
///
/// At most 763 bytes are read, and 127 characters of ASCII written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin<'a>(
    /// Scheme, host and, unless it is the scheme's own, port.
    pub &'a str,
);
slice_attribute!(
    Origin, ORIGIN,
    read: |value| read_text(value, READ_MAX),
    allowed: |text: &str| is_writable(text) && text.is_ascii()
);

/// The server's challenge, to be repeated byte by byte (RFC 8489 §14.10). At most 763 bytes.
///
/// How this crate makes and checks its own is in [`nonce`](crate::nonce).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce<'a>(
    /// The bytes, not necessarily UTF-8.
    pub &'a [u8],
);
slice_attribute!(
    Nonce, NONCE,
    read: |value| read_bytes(value, READ_MAX),
    allowed: |bytes: &[u8]| bytes.len() <= READ_MAX
);

/// SHA-256 of user name and realm, in place of a [`Username`] (RFC 8489 §14.4).
///
/// [`userhash`](crate::userhash) computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Userhash(
    /// The hash.
    pub [u8; 32],
);
fixed_attribute!(
    Userhash, USERHASH,
    read: |hash| Ok(Userhash(hash)),
    write: |this: &Userhash| this.0
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};

    const ID: TransactionId = TransactionId([0; 12]);

    #[test]
    fn reading_stops_at_763_bytes_and_writing_earlier() {
        let long = "a".repeat(764);
        assert_eq!(
            Username::decode(&long.as_bytes()[..763], &ID),
            Ok(Username(&long[..763]))
        );
        assert_eq!(
            Username::decode(long.as_bytes(), &ID),
            Err(AttributeError::Length)
        );
        let mut space = [0; 800];
        assert!(Username(&long[..508]).encode(&mut space, &ID).is_ok());
        assert!(Username(&long[..509]).encode(&mut space, &ID).is_err());
        assert!(Software(&long[..127]).encode(&mut space, &ID).is_ok());
        assert!(Software(&long[..128]).encode(&mut space, &ID).is_err());
        assert!(Software(&"é".repeat(127)).encode(&mut space, &ID).is_ok());
        assert!(
            AlternateDomain("bücher.example")
                .encode(&mut space, &ID)
                .is_err()
        );
    }

    #[test]
    fn text_must_be_utf8_but_a_nonce_need_not() {
        assert_eq!(Realm::decode(b"\xFF", &ID), Err(AttributeError::NotUtf8));
        assert_eq!(Nonce::decode(b"\xFF", &ID), Ok(Nonce(b"\xFF")));
    }
}
