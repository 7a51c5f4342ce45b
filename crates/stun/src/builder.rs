//! Writing a message into a buffer of the caller.

use crate::attribute::{AttributeError, AttributeType, Encode};
use crate::fingerprint;
use crate::header::{self, HEADER_LEN, field};
use crate::integrity::{HmacKey, IntegrityAlgorithm, SHA256_TAG_MIN};
use crate::message::TLV_HEADER_LEN;
use crate::{Class, Method, TransactionId};

/// Why a message cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The buffer has no room for it, or the message would exceed the 65,535 bytes its length field can count.
    #[error("message does not fit the buffer")]
    BufferFull,
    /// The attribute breaks a rule of its RFC.
    #[error("attribute cannot be written: {0}")]
    Attribute(#[from] AttributeError),
    /// The attribute comes after one that must be behind it (RFC 8489 §14.5 to §14.7).
    #[error(
        "nothing but integrity and fingerprint may follow an integrity attribute, nothing a fingerprint"
    )]
    Order,
}

/// What may still be appended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Attributes,
    Sha1,
    Sha256,
    Fingerprint,
}

/// Writes one message; never allocates, and leaves nothing of the buffer's old content in it.
///
/// ```
/// # use hairpin_stun as stun;
/// use stun::{Builder, Class, ErrorCode, HmacKey, Message, Method, TransactionId};
///
/// let mut buffer = [0; 128];
/// let key = HmacKey::sha1(b"key");
/// let mut builder = Builder::new(&mut buffer, Class::Error, Method::ALLOCATE, &TransactionId([7; 12]))?;
/// builder.push(&ErrorCode::ALLOCATION_MISMATCH)?.integrity(&key)?.fingerprint()?;
/// let message = Message::parse(builder.finish()).expect("we wrote it");
/// assert_eq!(message.verify(&key), Ok(()));
/// # Ok::<(), stun::BuildError>(())
/// ```
pub struct Builder<'b> {
    buffer: &'b mut [u8],
    len: usize,
    transaction_id: TransactionId,
    stage: Stage,
}

impl<'b> Builder<'b> {
    /// Starts a message.
    ///
    /// # Errors
    /// [`BuildError::BufferFull`] if the buffer has fewer than 20 bytes.
    #[inline]
    pub fn new(
        buffer: &'b mut [u8],
        class: Class,
        method: Method,
        transaction_id: &TransactionId,
    ) -> Result<Self, BuildError> {
        // The length field counts whole words only, so 65,532 is the most it can say.
        const MAX_MESSAGE_BYTES: usize = HEADER_LEN + 65_532;
        let usable = buffer.len().min(MAX_MESSAGE_BYTES);
        let buffer = buffer.get_mut(..usable).ok_or(BuildError::BufferFull)?;
        let start = buffer
            .first_chunk_mut::<HEADER_LEN>()
            .ok_or(BuildError::BufferFull)?;
        *start = header::header_bytes(class, method, 0, transaction_id);
        Ok(Builder {
            buffer,
            len: HEADER_LEN,
            transaction_id: *transaction_id,
            stage: Stage::Attributes,
        })
    }

    /// Appends an attribute and its padding.
    ///
    /// # Errors
    /// [`BuildError`]; the message is then as it was before.
    #[inline]
    pub fn push(&mut self, attribute: &impl Encode) -> Result<&mut Self, BuildError> {
        if self.stage != Stage::Attributes {
            return Err(BuildError::Order);
        }
        let transaction_id = self.transaction_id;
        let (value, len) = self.reserve(attribute.attribute_type(), attribute.value_len())?;
        attribute.encode(value, &transaction_id)?;
        self.len = len;
        Ok(self)
    }

    /// Appends an attribute of any type from its bytes.
    ///
    /// # Errors
    /// [`BuildError`]; the message is then as it was before.
    #[inline]
    pub fn push_raw(
        &mut self,
        attribute_type: AttributeType,
        bytes: &[u8],
    ) -> Result<&mut Self, BuildError> {
        if self.stage != Stage::Attributes {
            return Err(BuildError::Order);
        }
        let (value, len) = self.reserve(attribute_type, bytes.len())?;
        value.copy_from_slice(bytes);
        self.len = len;
        Ok(self)
    }

    /// Writes type, length and padding; returns the place of the value and the length the message will have.
    #[inline]
    fn reserve(
        &mut self,
        attribute_type: AttributeType,
        value_len: usize,
    ) -> Result<(&mut [u8], usize), BuildError> {
        let length = u16::try_from(value_len).map_err(|_| BuildError::BufferFull)?;
        let end = self.len + TLV_HEADER_LEN + value_len.next_multiple_of(4);
        let space = self
            .buffer
            .get_mut(self.len..end)
            .ok_or(BuildError::BufferFull)?;
        let (head, value) = space
            .split_first_chunk_mut::<TLV_HEADER_LEN>()
            .ok_or(BuildError::BufferFull)?;
        let [t0, t1] = attribute_type.0.to_be_bytes();
        let [l0, l1] = length.to_be_bytes();
        *head = [t0, t1, l0, l1];
        // RFC 8489 §14: the padding bits are zero. The padding is within the last word; the value overwrites the rest.
        if let Some(last) = value.last_chunk_mut::<4>() {
            *last = [0; 4];
        }
        let value = value.get_mut(..value_len).ok_or(BuildError::BufferFull)?;
        Ok((value, end))
    }

    /// Appends MESSAGE-INTEGRITY or MESSAGE-INTEGRITY-SHA256, as the key says (RFC 8489 §14.5, §14.6).
    ///
    /// Both may be wanted: then SHA-1 first.
    ///
    /// # Errors
    /// [`BuildError::Order`] after the same or a later integrity or a fingerprint, [`BuildError::BufferFull`].
    #[inline]
    pub fn integrity(&mut self, key: &HmacKey) -> Result<&mut Self, BuildError> {
        self.append_integrity(key, key.algorithm().tag_len())
    }

    /// Appends a MESSAGE-INTEGRITY-SHA256 cut to `tag_len` bytes, for usages that allow it (RFC 8489 §14.6).
    ///
    /// # Errors
    /// [`AttributeError::Length`] unless the key is one for SHA-256 and `tag_len` is 16, 20, 24, 28 or 32; otherwise as
    /// [`integrity`](Self::integrity).
    pub fn truncated_integrity(
        &mut self,
        key: &HmacKey,
        tag_len: usize,
    ) -> Result<&mut Self, BuildError> {
        let full = key.algorithm().tag_len();
        let allowed = key.algorithm() == IntegrityAlgorithm::Sha256
            && (SHA256_TAG_MIN..=full).contains(&tag_len)
            && tag_len.is_multiple_of(4);
        if !allowed {
            return Err(BuildError::Attribute(AttributeError::Length));
        }
        self.append_integrity(key, tag_len)
    }

    fn append_integrity(&mut self, key: &HmacKey, tag_len: usize) -> Result<&mut Self, BuildError> {
        let (stage, attribute_type) = match key.algorithm() {
            IntegrityAlgorithm::Sha1 => (Stage::Sha1, AttributeType::MESSAGE_INTEGRITY),
            IntegrityAlgorithm::Sha256 => (Stage::Sha256, AttributeType::MESSAGE_INTEGRITY_SHA256),
        };
        if self.stage >= stage {
            return Err(BuildError::Order);
        }
        let start = self.len;
        let (_, end) = self.reserve(attribute_type, tag_len)?;
        let (before, attribute) = self
            .buffer
            .split_at_mut_checked(start)
            .ok_or(BuildError::BufferFull)?;
        // RFC 8489 §14.5: the length points to the end of this attribute while the HMAC is computed.
        let tag = key.message_tag(before, (end - HEADER_LEN) as u16);
        let value = attribute
            .get_mut(TLV_HEADER_LEN..TLV_HEADER_LEN + tag_len)
            .ok_or(BuildError::BufferFull)?;
        value.copy_from_slice(
            tag.as_bytes()
                .get(..tag_len)
                .ok_or(BuildError::BufferFull)?,
        );
        self.len = end;
        self.stage = stage;
        Ok(self)
    }

    /// Appends FINGERPRINT (RFC 8489 §14.7).
    ///
    /// # Errors
    /// [`BuildError::Order`] if there is one already, [`BuildError::BufferFull`].
    #[inline]
    pub fn fingerprint(&mut self) -> Result<&mut Self, BuildError> {
        if self.stage == Stage::Fingerprint {
            return Err(BuildError::Order);
        }
        let start = self.len;
        let (_, end) = self.reserve(AttributeType::FINGERPRINT, fingerprint::LEN)?;
        self.len = end;
        // RFC 8489 §14.7: the CRC covers the length field, which counts this attribute already.
        self.write_length();
        let (before, attribute) = self
            .buffer
            .split_at_mut_checked(start)
            .ok_or(BuildError::BufferFull)?;
        let value = attribute.get_mut(TLV_HEADER_LEN..TLV_HEADER_LEN + fingerprint::LEN);
        value
            .ok_or(BuildError::BufferFull)?
            .copy_from_slice(&fingerprint::of(before).to_be_bytes());
        self.stage = Stage::Fingerprint;
        Ok(self)
    }

    #[inline]
    fn write_length(&mut self) {
        let length = ((self.len - HEADER_LEN) as u16).to_be_bytes();
        if let Some(header) = self.buffer.first_chunk_mut::<HEADER_LEN>() {
            header[field::LENGTH].copy_from_slice(&length);
        }
    }

    /// Bytes written so far, header included.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Completes the length field and hands the message out.
    #[inline]
    #[must_use]
    pub fn finish(mut self) -> &'b [u8] {
        self.write_length();
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl core::fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
