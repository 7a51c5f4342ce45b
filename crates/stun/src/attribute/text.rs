//! Names, texts and challenges (RFC 8489 §14.3, §14.4, §14.9, §14.10, §14.14, §14.16).
//!
//! The RFC counts in characters when sending ("fewer than 128") and in bytes when receiving (at most 763, which is what
//! RFC 5389 could produce). Here a receiver checks bytes, a sender both.

use super::{
    AttributeError, AttributeType, Decode, Encode, array_attribute, bytes_attribute, put_slice,
};
use crate::{BuildError, TransactionId};

/// Bytes of text a receiver must be able to read (RFC 8489 §14.3, §14.8, §14.9, §14.10, §14.14).
pub(super) const READ_MAX: usize = 763;
/// Bytes of text a sender may write (RFC 8489 §14.8, §14.14).
pub(super) const WRITE_MAX: usize = 509;
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

/// Whether a text obeys the limit in characters. Short ones are not counted.
#[inline]
pub(super) fn is_short(text: &str) -> bool {
    text.len() <= CHARS_MAX || text.chars().count() <= CHARS_MAX
}

/// Declares a text attribute with its limits.
macro_rules! text_attribute {
    ($(#[$doc:meta])* $name:ident, $attribute_type:ident, read: $read:expr, write: $write:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name<'a>(
            /// The text.
            pub &'a str,
        );

        impl<'a> Decode<'a> for $name<'a> {
            const TYPE: AttributeType = AttributeType::$attribute_type;

            #[inline]
            fn decode(value: &'a [u8], _: &TransactionId) -> Result<Self, AttributeError> {
                read_text(value, $read).map($name)
            }
        }

        impl Encode for $name<'_> {
            #[inline]
            fn attribute_type(&self) -> AttributeType {
                AttributeType::$attribute_type
            }

            #[inline]
            fn value_len(&self) -> usize {
                self.0.len()
            }

            #[inline]
            fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
                let fits: fn(&str) -> bool = $write;
                if !fits(self.0) {
                    return Err(BuildError::Attribute(AttributeError::Length));
                }
                put_slice(value, self.0.as_bytes())
            }
        }
    };
}
pub(super) use text_attribute;

text_attribute! {
    /// Who is asking; already prepared with the OpaqueString profile (RFC 8489 §14.3).
    ///
    /// At most 508 bytes are written and 763 read.
    Username, USERNAME, read: READ_MAX, write: |text| text.len() <= USERNAME_WRITE_MAX
}
text_attribute! {
    /// The realm of the credentials, without quotes (RFC 8489 §14.9).
    ///
    /// At most 763 bytes: a client has to repeat what an RFC 5389 server sent.
    Realm, REALM, read: READ_MAX, write: |text| text.len() <= READ_MAX
}
text_attribute! {
    /// The name and version of the sender, for people who debug (RFC 8489 §14.14).
    ///
    /// At most 127 characters are written.
    Software, SOFTWARE, read: READ_MAX, write: |text| text.len() <= WRITE_MAX && is_short(text)
}
text_attribute! {
    /// The name to expect in the alternate server's certificate (RFC 8489 §14.16).
    ///
    /// At most 255 bytes, and ASCII when written.
    AlternateDomain, ALTERNATE_DOMAIN, read: DOMAIN_MAX, write: |text| text.len() <= DOMAIN_MAX && text.is_ascii()
}

/// The server's challenge, to be repeated byte by byte (RFC 8489 §14.10). At most 763 bytes.
///
/// How this crate makes and checks its own is in [`nonce`](crate::nonce).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce<'a>(
    /// The bytes, not necessarily UTF-8.
    pub &'a [u8],
);
bytes_attribute!(Nonce, NONCE, read: READ_MAX, write: READ_MAX);

/// SHA-256 of user name and realm, in place of a [`Username`] (RFC 8489 §14.4).
///
/// [`userhash`](crate::userhash) computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Userhash(
    /// The hash.
    pub [u8; 32],
);
array_attribute!(Userhash, 32, USERHASH);

#[cfg(test)]
mod tests {
    use super::*;

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
