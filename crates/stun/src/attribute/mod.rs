//! Typed attributes: one small struct each, by the document that defines it.
//!
//! Every file has the same structure: the positions of the fields (`mod field`), the struct, [`Decode`], [`Encode`],
//! tests. [`Decode`] reads the checked value of a TLV. [`Encode`] writes into the space that a
//! [`Builder`](crate::Builder) reserves. Where the RFCs require a receiver to ignore bits (reserved ones, padding),
//! `Decode` ignores them and `Encode` writes zeros.

mod address;
mod authorization;
mod discovery;
mod error_code;
mod ice;
mod mobility;
mod password_algorithm;
mod tcp;
mod text;
mod turn;
mod types;
mod unknown;

pub use address::{
    AddressFamily, AlternateServer, MappedAddress, OtherAddress, ResponseOrigin, XorMappedAddress,
    XorPeerAddress, XorRelayedAddress,
};
pub(crate) use address::{XOR_ADDRESS_MAX, xor_address};
pub use authorization::{AccessToken, ThirdPartyAuthorization};
pub use discovery::{CacheTimeout, ChangeRequest, Padding, ResponsePort};
pub use error_code::{AddressErrorCode, ErrorCode};
pub use ice::{IceControlled, IceControlling, Priority, UseCandidate};
pub use mobility::MobilityTicket;
pub use password_algorithm::{
    PasswordAlgorithm, PasswordAlgorithmEntries, PasswordAlgorithmEntry, PasswordAlgorithms,
};
pub use tcp::ConnectionId;
pub use text::{AlternateDomain, Nonce, Origin, Realm, Software, Userhash, Username};
pub use turn::{
    AdditionalAddressFamily, ChannelNumber, Data, DontFragment, EvenPort, Icmp, Lifetime,
    RequestedAddressFamily, RequestedTransport, ReservationToken,
};
pub use types::AttributeType;
pub use unknown::UnknownAttributes;

use crate::{BuildError, TransactionId};

/// Why the value of an attribute makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The value is shorter or longer than its type allows.
    #[error("attribute has a length that its type does not allow")]
    Length,
    /// The address family is neither IPv4 nor IPv6.
    #[error("address family is neither IPv4 (1) nor IPv6 (2)")]
    AddressFamily,
    /// A text is not UTF-8.
    #[error("attribute is not UTF-8 text")]
    NotUtf8,
    /// A number is outside the range the RFC allows.
    #[error("attribute has a value that its type does not allow")]
    Value,
}

/// An attribute that can be read from a message.
pub trait Decode<'a>: Sized {
    /// The type under which it is found.
    const TYPE: AttributeType;

    /// Reads `value`, the bytes of the TLV without its padding. The transaction ID undoes the XOR of addresses.
    ///
    /// # Errors
    /// [`AttributeError`] if the value cannot be one of this type.
    fn decode(value: &'a [u8], transaction_id: &TransactionId) -> Result<Self, AttributeError>;
}

/// An attribute that can be written into a message.
pub trait Encode {
    /// The type under which it is written.
    fn attribute_type(&self) -> AttributeType;

    /// Bytes of the value, without padding.
    fn value_len(&self) -> usize;

    /// Writes the value into exactly [`value_len`](Encode::value_len) bytes.
    ///
    /// # Errors
    /// [`BuildError::Attribute`] if the value violates its RFC, [`BuildError::BufferFull`] if `value` is too
    /// short.
    fn encode(&self, value: &mut [u8], transaction_id: &TransactionId) -> Result<(), BuildError>;
}

/// Writes a value of known size.
#[inline]
fn put<const N: usize>(value: &mut [u8], bytes: [u8; N]) -> Result<(), BuildError> {
    *value.first_chunk_mut().ok_or(BuildError::BufferFull)? = bytes;
    Ok(())
}

/// Writes a value of any size.
#[inline]
fn put_slice(value: &mut [u8], bytes: &[u8]) -> Result<(), BuildError> {
    value
        .get_mut(..bytes.len())
        .ok_or(BuildError::BufferFull)?
        .copy_from_slice(bytes);
    Ok(())
}

/// Reads a value that must be `N` bytes long.
#[inline]
fn exactly<const N: usize>(value: &[u8]) -> Result<[u8; N], AttributeError> {
    value.try_into().map_err(|_| AttributeError::Length)
}

/// Implements both directions for an attribute whose value always has the same length.
///
/// `$read` takes the value as an array, which says how long it must be, and `$write` gives the array back.
macro_rules! fixed_attribute {
    ($name:ident, $attribute_type:ident, read: $read:expr, write: $write:expr) => {
        impl $crate::attribute::Decode<'_> for $name {
            const TYPE: AttributeType = AttributeType::$attribute_type;

            #[inline]
            fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
                $crate::attribute::exactly(value).and_then($read)
            }
        }

        impl $crate::attribute::Encode for $name {
            #[inline]
            fn attribute_type(&self) -> AttributeType {
                AttributeType::$attribute_type
            }

            #[inline]
            fn value_len(&self) -> usize {
                ($write)(self).len()
            }

            #[inline]
            fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
                $crate::attribute::put(value, ($write)(self))
            }
        }
    };
}

/// Implements both directions for an attribute that is text or opaque bytes.
///
/// `$read` makes the content of the value; `$allowed` says whether a content may be sent.
macro_rules! slice_attribute {
    ($name:ident, $attribute_type:ident, read: $read:expr, allowed: $allowed:expr) => {
        impl<'a> $crate::attribute::Decode<'a> for $name<'a> {
            const TYPE: AttributeType = AttributeType::$attribute_type;

            #[inline]
            fn decode(value: &'a [u8], _: &TransactionId) -> Result<Self, AttributeError> {
                ($read)(value).map($name)
            }
        }

        impl $crate::attribute::Encode for $name<'_> {
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
                if !($allowed)(self.0) {
                    return Err(BuildError::Attribute(AttributeError::Length));
                }
                $crate::attribute::put_slice(value, self.0.as_ref())
            }
        }
    };
}

use {fixed_attribute, slice_attribute};
