//! The checked view of a received message.
//!
//! [`Message::parse`] walks the chain of attributes once. After that, every accessor relies on the walk. The chain of
//! attributes fits the datagram. The end of the attributes that count and the places of the integrity values are known.
//! A bit set has the common types that occur, so a search for an absent attribute costs one test.
//!
//! ```text
//! | header | plain attributes | MESSAGE-INTEGRITY | ignored | -SHA256 | ignored | FINGERPRINT |
//!          '---- find, get ---'------ verify -----'         '- verify '         '-------------'
//! ```

use crate::attribute::{AttributeError, AttributeType, Decode, UnknownAttributes};
use crate::header::{self, HEADER_LEN, MAGIC_COOKIE, field};
use crate::{Class, Method, TransactionId};

/// Why a datagram is not a STUN message. It must then be discarded without a response (RFC 8489 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer than 20 bytes.
    #[error("datagram is shorter than the 20 bytes of a STUN header")]
    TooShort,
    /// One of the first two bits is set.
    #[error("the first two bits of a STUN message are zero")]
    FirstBits,
    /// Bytes 4 to 8 are not the magic cookie. A Binding request of RFC 3489 has none: see
    /// [`ClassicBinding`](crate::ClassicBinding).
    #[error("magic cookie is not 0x2112A442")]
    MagicCookie,
    /// The length field is not a multiple of four, or not the rest of the datagram.
    #[error("length field does not agree with the datagram")]
    Length,
    /// An attribute reaches beyond the end of the message.
    #[error("attribute reaches beyond the end of the message")]
    AttributeOverrun,
    /// Something follows FINGERPRINT.
    #[error("FINGERPRINT is not the last attribute")]
    FingerprintNotLast,
}

/// Bytes of the type and the length in front of an attribute's value.
pub(crate) const TLV_HEADER_LEN: usize = 4;

/// One attribute as it is in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawAttribute<'a> {
    /// Its type.
    pub attribute_type: AttributeType,
    /// Its value without padding.
    pub value: &'a [u8],
}

/// An offset in the message. 0 means that there is none, because the header is at 0.
type Offset = u32;

/// A message that has been checked once, over the bytes of the datagram.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER_LEN],
    /// The attributes before the first integrity or fingerprint.
    plain: &'a [u8],
    marks: Marks,
    present: Present,
}

const _: () = assert!(
    size_of::<Message<'_>>() <= 72,
    "a message is passed around by value"
);

/// The offsets of the integrity attributes and of FINGERPRINT.
#[derive(Clone, Copy, Default)]
struct Marks {
    sha1: Offset,
    sha256: Offset,
    fingerprint: Offset,
}

/// Which types of the two ranges where nearly all are (0x0000 to 0x003F, 0x8000 to 0x803F) occur.
#[derive(Clone, Copy, Default)]
struct Present {
    required: u64,
    optional: u64,
}

impl Present {
    /// The bits of MESSAGE-INTEGRITY and MESSAGE-INTEGRITY-SHA256.
    const REQUIRED_MARKS: u64 =
        bit(AttributeType::MESSAGE_INTEGRITY) | bit(AttributeType::MESSAGE_INTEGRITY_SHA256);
    const OPTIONAL_MARKS: u64 = bit(AttributeType::FINGERPRINT);

    /// Notes a type, unless it has a role of its own: then false.
    #[inline]
    fn insert_plain(&mut self, attribute_type: u16) -> bool {
        let bit = bit(AttributeType(attribute_type));
        let (present, marks) = match attribute_type & !0x3F {
            0x0000 => (&mut self.required, Self::REQUIRED_MARKS),
            0x8000 => (&mut self.optional, Self::OPTIONAL_MARKS),
            _ => return true,
        };
        if marks & bit != 0 {
            return false;
        }
        *present |= bit;
        true
    }

    /// False only if the type does not occur.
    #[inline]
    fn may_contain(&self, attribute_type: AttributeType) -> bool {
        match attribute_type.0 & !0x3F {
            0x0000 => self.required & bit(attribute_type) != 0,
            0x8000 => self.optional & bit(attribute_type) != 0,
            _ => true,
        }
    }
}

/// The bit of a type within its range.
#[inline]
const fn bit(attribute_type: AttributeType) -> u64 {
    1 << (attribute_type.0 & 0x3F)
}

/// The type and the length at the start of a chain; `None` at its end.
#[inline]
fn tlv_header(chain: &[u8]) -> Option<(u16, usize)> {
    let &[t0, t1, l0, l1] = chain.first_chunk()?;
    Some((
        u16::from_be_bytes([t0, t1]),
        usize::from(u16::from_be_bytes([l0, l1])),
    ))
}

/// What follows an attribute of this length and its padding; `None` if the chain ends before.
#[inline]
fn skip(chain: &[u8], length: usize) -> Option<&[u8]> {
    chain.get(TLV_HEADER_LEN + length.next_multiple_of(4)..)
}

/// Cuts the first attribute off a chain: the attribute and what follows its padding.
#[inline]
fn split_attribute(chain: &[u8]) -> Option<(RawAttribute<'_>, &[u8])> {
    let (attribute_type, length) = tlv_header(chain)?;
    let rest = skip(chain, length)?;
    let value = chain.get(TLV_HEADER_LEN..TLV_HEADER_LEN + length)?;
    Some((
        RawAttribute {
            attribute_type: AttributeType(attribute_type),
            value,
        },
        rest,
    ))
}

impl<'a> Message<'a> {
    /// Checks a whole datagram, or a whole frame of a stream.
    ///
    /// # Errors
    /// [`ParseError`] if it breaks a rule of RFC 8489 §5 or §14; values of attributes are not looked at.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let (header, attributes) = datagram
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(ParseError::TooShort)?;
        // RFC 8489 §6.3: the first two bits are 0, the cookie is right, the length is sensible.
        if header[0] & 0xC0 != 0 {
            return Err(ParseError::FirstBits);
        }
        if header[field::COOKIE] != MAGIC_COOKIE.to_be_bytes() {
            return Err(ParseError::MagicCookie);
        }
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if length % 4 != 0 || length != attributes.len() {
            return Err(ParseError::Length);
        }
        let mut message = Message {
            bytes: datagram,
            header,
            plain: attributes,
            marks: Marks::default(),
            present: Present::default(),
        };
        message.scan(attributes)?;
        Ok(message)
    }

    /// Walks over the attributes up to the first that has a role of its own.
    #[inline]
    fn scan(&mut self, attributes: &'a [u8]) -> Result<(), ParseError> {
        let mut chain = attributes;
        // The whole is a multiple of four bytes and so is each step: the chain ends with no bytes left or with an
        // overrun.
        while let Some((attribute_type, length)) = tlv_header(chain) {
            if !self.present.insert_plain(attribute_type) {
                let plain = attributes.len() - chain.len();
                self.plain = attributes.get(..plain).unwrap_or_default();
                return self.scan_marks(chain);
            }
            chain = skip(chain, length).ok_or(ParseError::AttributeOverrun)?;
        }
        Ok(())
    }

    /// Walks over the rest, where only integrity and fingerprint count.
    fn scan_marks(&mut self, mut chain: &'a [u8]) -> Result<(), ParseError> {
        while !chain.is_empty() {
            let offset = (self.bytes.len() - chain.len()) as Offset;
            let (attribute, rest) = split_attribute(chain).ok_or(ParseError::AttributeOverrun)?;
            match attribute.attribute_type {
                // RFC 8489 §9: after MESSAGE-INTEGRITY only -SHA256 and FINGERPRINT count, after -SHA256 only
                // FINGERPRINT. The first of each wins (§14).
                AttributeType::MESSAGE_INTEGRITY
                    if self.marks.sha1 == 0 && self.marks.sha256 == 0 =>
                {
                    self.marks.sha1 = offset;
                }
                AttributeType::MESSAGE_INTEGRITY_SHA256 if self.marks.sha256 == 0 => {
                    self.marks.sha256 = offset
                }
                // RFC 8489 §14.7: FINGERPRINT is the last attribute.
                AttributeType::FINGERPRINT if !rest.is_empty() => {
                    return Err(ParseError::FingerprintNotLast);
                }
                AttributeType::FINGERPRINT => self.marks.fingerprint = offset,
                _ => {}
            }
            chain = rest;
        }
        Ok(())
    }

    /// The class.
    #[inline]
    #[must_use]
    pub const fn class(&self) -> Class {
        header::class_of(u16::from_be_bytes([self.header[0], self.header[1]]))
    }

    /// The method. It may be unknown.
    #[inline]
    #[must_use]
    pub const fn method(&self) -> Method {
        header::method_of(u16::from_be_bytes([self.header[0], self.header[1]]))
    }

    /// The transaction ID.
    #[inline]
    #[must_use]
    pub fn transaction_id(&self) -> TransactionId {
        let mut id = TransactionId::default();
        id.0.copy_from_slice(&self.header[field::TRANSACTION_ID]);
        id
    }

    /// The whole message.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The attributes in their order, without those a receiver has to ignore.
    ///
    /// RFC 8489 §9: what follows MESSAGE-INTEGRITY is ignored except MESSAGE-INTEGRITY-SHA256 and FINGERPRINT; what
    /// follows MESSAGE-INTEGRITY-SHA256 is ignored except FINGERPRINT.
    #[inline]
    #[must_use]
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes {
            plain: self.plain,
            message: *self,
            next_mark: 0,
        }
    }

    /// The first attribute of this type (RFC 8489 §14), unless it is to be ignored.
    #[inline]
    #[must_use]
    pub fn find(&self, attribute_type: AttributeType) -> Option<RawAttribute<'a>> {
        if self.present.may_contain(attribute_type) {
            return self.find_present(attribute_type);
        }
        match attribute_type {
            AttributeType::MESSAGE_INTEGRITY => self.at(self.marks.sha1),
            AttributeType::MESSAGE_INTEGRITY_SHA256 => self.at(self.marks.sha256),
            AttributeType::FINGERPRINT => self.at(self.marks.fingerprint),
            _ => None,
        }
    }

    fn find_present(&self, attribute_type: AttributeType) -> Option<RawAttribute<'a>> {
        let mut chain = self.plain;
        while let Some((found, length)) = tlv_header(chain) {
            if found == attribute_type.0 {
                let value = chain.get(TLV_HEADER_LEN..TLV_HEADER_LEN + length)?;
                return Some(RawAttribute {
                    attribute_type,
                    value,
                });
            }
            chain = skip(chain, length)?;
        }
        None
    }

    /// Whether there is an attribute of this type that is not to be ignored.
    #[inline]
    #[must_use]
    pub fn contains(&self, attribute_type: AttributeType) -> bool {
        self.find(attribute_type).is_some()
    }

    /// The first attribute of type `A`, decoded; `None` if there is none.
    ///
    /// # Errors
    /// [`AttributeError`] if it is there and malformed.
    #[inline]
    pub fn get<A: Decode<'a>>(&self) -> Result<Option<A>, AttributeError> {
        match self.find(A::TYPE) {
            Some(attribute) => A::decode(attribute.value, &self.transaction_id()).map(Some),
            None => Ok(None),
        }
    }

    /// The comprehension-required types for which `known` is false, each once: the list of a 420 (RFC 8489 §6.3.1).
    ///
    /// The integrity attributes are always known. After [`UnknownAttributes::MAX`] types the list ends.
    pub fn unknown_required<F: Fn(AttributeType) -> bool>(
        &self,
        known: F,
    ) -> UnknownRequired<'a, F> {
        UnknownRequired {
            chain: self.plain,
            known,
            seen: UnknownAttributes::new(),
        }
    }

    /// The attribute at a mark.
    #[inline]
    fn at(&self, offset: Offset) -> Option<RawAttribute<'a>> {
        if offset == 0 {
            return None;
        }
        split_attribute(self.bytes.get(offset as usize..)?).map(|(attribute, _)| attribute)
    }

    /// The attribute of this mark, and the bytes in front of it.
    #[inline]
    fn marked(&self, offset: Offset) -> Option<Marked<'a>> {
        let value = self.at(offset)?.value;
        Some(Marked {
            before: self.bytes.get(..offset as usize)?,
            value,
        })
    }

    /// MESSAGE-INTEGRITY.
    #[inline]
    pub(crate) fn sha1_mark(&self) -> Option<Marked<'a>> {
        self.marked(self.marks.sha1)
    }

    /// MESSAGE-INTEGRITY-SHA256.
    #[inline]
    pub(crate) fn sha256_mark(&self) -> Option<Marked<'a>> {
        self.marked(self.marks.sha256)
    }

    /// FINGERPRINT.
    #[inline]
    pub(crate) fn fingerprint_mark(&self) -> Option<Marked<'a>> {
        self.marked(self.marks.fingerprint)
    }
}

/// An attribute with a check value over the bytes before it: integrity or FINGERPRINT.
#[derive(Clone, Copy)]
pub(crate) struct Marked<'a> {
    /// The message up to this attribute.
    pub(crate) before: &'a [u8],
    /// The attribute's value.
    pub(crate) value: &'a [u8],
}

impl core::fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Types only: values may be credentials or somebody's data.
        f.debug_struct("Message")
            .field("class", &self.class())
            .field("method", &self.method())
            .field("transaction_id", &self.transaction_id())
            .field("attributes", &Types(self.attributes()))
            .finish()
    }
}

struct Types<'a>(Attributes<'a>);

impl core::fmt::Debug for Types<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list()
            .entries(self.0.clone().map(|attribute| attribute.attribute_type))
            .finish()
    }
}

/// Iterates over the attributes of a message that count; see [`Message::attributes`].
#[derive(Clone)]
pub struct Attributes<'a> {
    plain: &'a [u8],
    message: Message<'a>,
    next_mark: u8,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = RawAttribute<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawAttribute<'a>> {
        if let Some((attribute, rest)) = split_attribute(self.plain) {
            self.plain = rest;
            return Some(attribute);
        }
        // The order on the wire: `scan_marks` accepts the three in no other.
        let marks = &self.message.marks;
        while let Some(&mark) =
            [marks.sha1, marks.sha256, marks.fingerprint].get(usize::from(self.next_mark))
        {
            self.next_mark += 1;
            if let Some(attribute) = self.message.at(mark) {
                return Some(attribute);
            }
        }
        None
    }
}

impl core::iter::FusedIterator for Attributes<'_> {}

/// Iterates over the required types that a receiver does not support; see [`Message::unknown_required`].
#[derive(Debug, Clone)]
pub struct UnknownRequired<'a, F> {
    chain: &'a [u8],
    known: F,
    seen: UnknownAttributes,
}

impl<F: Fn(AttributeType) -> bool> Iterator for UnknownRequired<'_, F> {
    type Item = AttributeType;

    #[inline]
    fn next(&mut self) -> Option<AttributeType> {
        while let Some((attribute_type, length)) = tlv_header(self.chain) {
            self.chain = skip(self.chain, length)?;
            let attribute_type = AttributeType(attribute_type);
            if attribute_type.is_comprehension_required() && !(self.known)(attribute_type) {
                if self.seen.is_full() {
                    return None;
                }
                if self.seen.insert(attribute_type) {
                    return Some(attribute_type);
                }
            }
        }
        None
    }
}
