//! MESSAGE-INTEGRITY and MESSAGE-INTEGRITY-SHA256 (RFC 8489 §14.5, §14.6).

use subtle::ConstantTimeEq;

use crate::Message;
use crate::header::HEADER_LEN;
use crate::hmac::{Keyed, Sha1, Sha256, write_words};
use crate::message::{Marked, TLV_HEADER_LEN};

/// Bytes of an HMAC-SHA1.
const SHA1_TAG: usize = 20;
/// Bytes of an HMAC-SHA256.
const SHA256_TAG: usize = 32;
/// RFC 8489 §14.6: a truncated value keeps at least 16 bytes.
pub(crate) const SHA256_TAG_MIN: usize = 16;

/// The integrity attributes, by the algorithm of their HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegrityAlgorithm {
    /// MESSAGE-INTEGRITY: 20 bytes (RFC 8489 §14.5).
    Sha1,
    /// MESSAGE-INTEGRITY-SHA256: 32 bytes, or truncated to no fewer than 16 (RFC 8489 §14.6).
    Sha256,
}

impl IntegrityAlgorithm {
    /// The number of bytes of a value that is not truncated.
    #[must_use]
    pub const fn tag_len(self) -> usize {
        match self {
            IntegrityAlgorithm::Sha1 => SHA1_TAG,
            IntegrityAlgorithm::Sha256 => SHA256_TAG,
        }
    }
}

/// Why the integrity of a message could not be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// The attribute for this key's algorithm is not there.
    #[error("message has no integrity attribute for this key")]
    Missing,
    /// The value was not made with this key, or has an invalid length.
    #[error("message integrity does not match the key")]
    Mismatch,
}

/// A key for the integrity attributes. It is prepared once, so a check or a response hashes only the message.
///
/// Dropping it erases the key. Its `Debug` output does not show the key.
pub struct HmacKey(State);

enum State {
    Sha1(Keyed<5>),
    Sha256(Keyed<8>),
}

impl HmacKey {
    /// A key for MESSAGE-INTEGRITY; of any length.
    #[must_use]
    pub fn sha1(key: &[u8]) -> HmacKey {
        HmacKey(State::Sha1(Keyed::new::<Sha1>(key)))
    }

    /// A key for MESSAGE-INTEGRITY-SHA256; of any length.
    #[must_use]
    pub fn sha256(key: &[u8]) -> HmacKey {
        HmacKey(State::Sha256(Keyed::new::<Sha256>(key)))
    }

    /// The attribute this key is for.
    #[inline]
    #[must_use]
    pub const fn algorithm(&self) -> IntegrityAlgorithm {
        match self.0 {
            State::Sha1(_) => IntegrityAlgorithm::Sha1,
            State::Sha256(_) => IntegrityAlgorithm::Sha256,
        }
    }

    /// The HMAC of any bytes: 20 or 32 bytes, by the algorithm.
    #[must_use]
    pub fn tag(&self, text: &[u8]) -> HmacTag {
        match &self.0 {
            State::Sha1(keyed) => HmacTag::new(&keyed.tag::<Sha1>(text)),
            State::Sha256(keyed) => HmacTag::new(&keyed.tag::<Sha256>(text)),
        }
    }

    /// The HMAC of `before`, the message up to its integrity attribute. `length` replaces the header's length field.
    #[inline]
    pub(crate) fn message_tag(&self, before: &[u8], length: u16) -> HmacTag {
        match &self.0 {
            State::Sha1(keyed) => HmacTag::new(&keyed.message_tag::<Sha1>(before, length)),
            State::Sha256(keyed) => HmacTag::new(&keyed.message_tag::<Sha256>(before, length)),
        }
    }
}

impl Clone for HmacKey {
    fn clone(&self) -> Self {
        HmacKey(match &self.0 {
            State::Sha1(keyed) => State::Sha1(keyed.clone()),
            State::Sha256(keyed) => State::Sha256(keyed.clone()),
        })
    }
}

impl Drop for HmacKey {
    fn drop(&mut self) {
        match &mut self.0 {
            State::Sha1(keyed) => keyed.zeroize(),
            State::Sha256(keyed) => keyed.zeroize(),
        }
    }
}

impl core::fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HmacKey({:?})", self.algorithm())
    }
}

/// The value of an HMAC. Its `Debug` output does not show the value: some are passwords (time-limited credentials).
#[derive(Clone, Copy)]
pub struct HmacTag {
    bytes: [u8; SHA256_TAG],
    len: usize,
}

impl HmacTag {
    #[inline]
    fn new(words: &[u32]) -> HmacTag {
        let mut bytes = [0; SHA256_TAG];
        write_words(&mut bytes, words);
        HmacTag {
            bytes,
            len: 4 * words.len(),
        }
    }

    /// The bytes: 20 or 32.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Whether the tag starts with these bytes. The time of the comparison depends only on their number.
    #[inline]
    #[must_use]
    pub fn starts_with(&self, prefix: &[u8]) -> bool {
        match self.as_bytes().get(..prefix.len()) {
            Some(start) => start.ct_eq(prefix).into(),
            None => false,
        }
    }
}

impl core::fmt::Debug for HmacTag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HmacTag({} bytes)", self.len)
    }
}

/// An integrity attribute of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integrity<'a> {
    /// Which of the two it is.
    pub algorithm: IntegrityAlgorithm,
    /// Its value as received, of any length.
    pub value: &'a [u8],
}

impl<'a> Message<'a> {
    /// The integrity attribute of this algorithm. `None` if there is none, or if an earlier attribute makes
    /// the receiver ignore it (RFC 8489 §14.5, §14.6).
    #[must_use]
    pub fn integrity(&self, algorithm: IntegrityAlgorithm) -> Option<Integrity<'a>> {
        self.integrity_mark(algorithm).map(|mark| Integrity {
            algorithm,
            value: mark.value,
        })
    }

    /// The integrity attribute to verify. RFC 8489 §9.2.4 prefers SHA-256 if both are present.
    #[inline]
    #[must_use]
    pub fn has_integrity(&self) -> Option<IntegrityAlgorithm> {
        [IntegrityAlgorithm::Sha256, IntegrityAlgorithm::Sha1]
            .into_iter()
            .find(|&algorithm| self.integrity_mark(algorithm).is_some())
    }

    /// Checks the integrity attribute of the key's algorithm.
    ///
    /// A truncated MESSAGE-INTEGRITY-SHA256 of 16 to 28 bytes is valid, too. A usage that does not allow truncation
    /// requires 32 bytes with [`verify_at_least`](Self::verify_at_least).
    ///
    /// # Errors
    /// [`IntegrityError`].
    #[inline]
    pub fn verify(&self, key: &HmacKey) -> Result<(), IntegrityError> {
        self.verify_at_least(key, SHA256_TAG_MIN)
    }

    /// Checks the integrity attribute of the key's algorithm. A value of less than `tag_len` bytes is a
    /// [`Mismatch`](IntegrityError::Mismatch).
    ///
    /// # Errors
    /// [`IntegrityError`].
    pub fn verify_at_least(&self, key: &HmacKey, tag_len: usize) -> Result<(), IntegrityError> {
        let algorithm = key.algorithm();
        let mark = self
            .integrity_mark(algorithm)
            .ok_or(IntegrityError::Missing)?;
        let value_len = mark.value.len();
        let is_valid_len = match algorithm {
            // RFC 8489 §14.5: the HMAC is 20 bytes.
            IntegrityAlgorithm::Sha1 => value_len == SHA1_TAG,
            // RFC 8489 §14.6: at most 32 bytes, at least 16, a multiple of 4.
            IntegrityAlgorithm::Sha256 => {
                (SHA256_TAG_MIN..=SHA256_TAG).contains(&value_len) && value_len.is_multiple_of(4)
            }
        };
        if !is_valid_len || value_len < tag_len {
            return Err(IntegrityError::Mismatch);
        }
        // RFC 8489 §14.5: the length is adjusted to point to the end of this attribute.
        let length = mark.before.len() - HEADER_LEN + TLV_HEADER_LEN + value_len;
        let tag = key.message_tag(mark.before, length as u16);
        if tag.starts_with(mark.value) {
            Ok(())
        } else {
            Err(IntegrityError::Mismatch)
        }
    }

    #[inline]
    fn integrity_mark(&self, algorithm: IntegrityAlgorithm) -> Option<Marked<'a>> {
        match algorithm {
            IntegrityAlgorithm::Sha1 => self.sha1_mark(),
            IntegrityAlgorithm::Sha256 => self.sha256_mark(),
        }
    }
}
