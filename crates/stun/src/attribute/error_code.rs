//! Why a request, or half of one, was refused (RFC 8489 §14.8, RFC 8656 §18.12).
//!
//! ```text
//! +--------+--------+-----+-----+--------+
//! | family |    0         |class| number |   family: only in ADDRESS-ERROR-CODE
//! +--------+--------+-----+-----+--------+
//! |  reason phrase, UTF-8               ..
//! +--------------------------------------+
//! ```

use super::text::{READ_MAX, is_writable};
use super::{AddressFamily, AttributeError, AttributeType, Decode, Encode, put_slice};
use crate::{BuildError, TransactionId};

/// Where the fields are.
mod field {
    pub(super) const FAMILY: usize = 0;
    pub(super) const CLASS: usize = 2;
    pub(super) const NUMBER: usize = 3;
    pub(super) const REASON: usize = 4;
}

/// Why a request was refused (RFC 8489 §14.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode<'a> {
    /// 300 to 699. The hundreds digit is the class (RFC 8489 §14.8).
    pub code: u16,
    /// For people; at most 127 characters are written.
    pub reason: &'a str,
}

/// Names the codes of the registry once, with their recommended phrases.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $reason:literal;)*) => {
        impl ErrorCode<'static> {
            $($(#[$doc])* pub const $name: ErrorCode<'static> = ErrorCode { code: $code, reason: $reason };)*
        }
    };
}

error_codes! {
    /// Go to the server in ALTERNATE-SERVER (RFC 8489 §14.8).
    TRY_ALTERNATE = 300, "Try Alternate";
    /// The request is malformed (RFC 8489 §14.8).
    BAD_REQUEST = 400, "Bad Request";
    /// The request lacks the right credentials (RFC 8489 §14.8).
    UNAUTHENTICATED = 401, "Unauthenticated";
    /// The request is not allowed (RFC 8656 §19).
    FORBIDDEN = 403, "Forbidden";
    /// Mobility is not allowed (RFC 8016 §3.4).
    MOBILITY_FORBIDDEN = 405, "Mobility Forbidden";
    /// The request holds required attributes that the server does not support (RFC 8489 §14.8).
    UNKNOWN_ATTRIBUTE = 420, "Unknown Attribute";
    /// No allocation where one is needed, or one where none may be (RFC 8656 §19).
    ALLOCATION_MISMATCH = 437, "Allocation Mismatch";
    /// The nonce is too old (RFC 8489 §14.8).
    STALE_NONCE = 438, "Stale Nonce";
    /// The server has no addresses of that family (RFC 8656 §19).
    ADDRESS_FAMILY_NOT_SUPPORTED = 440, "Address Family not Supported";
    /// The credentials are not those that made the allocation (RFC 8656 §19).
    WRONG_CREDENTIALS = 441, "Wrong Credentials";
    /// The server does not relay over that transport (RFC 8656 §19).
    UNSUPPORTED_TRANSPORT_PROTOCOL = 442, "Unsupported Transport Protocol";
    /// The peer's family is not that of the allocation (RFC 8656 §19).
    PEER_ADDRESS_FAMILY_MISMATCH = 443, "Peer Address Family Mismatch";
    /// There is a connection to that peer already (RFC 6062 §6.3).
    CONNECTION_ALREADY_EXISTS = 446, "Connection Already Exists";
    /// The peer cannot be reached by TCP (RFC 6062 §6.3).
    CONNECTION_TIMEOUT_OR_FAILURE = 447, "Connection Timeout or Failure";
    /// The user has as many allocations as allowed (RFC 8656 §19).
    ALLOCATION_QUOTA_REACHED = 486, "Allocation Quota Reached";
    /// The agents both want the same ICE role (RFC 8445 §7.3.1.1).
    ROLE_CONFLICT = 487, "Role Conflict";
    /// The server failed; try again (RFC 8489 §14.8).
    SERVER_ERROR = 500, "Server Error";
    /// Out of ports, memory or the like (RFC 8656 §19).
    INSUFFICIENT_CAPACITY = 508, "Insufficient Capacity";
}

/// The class and number bytes of a code.
fn encode_code(code: u16) -> Result<[u8; 2], BuildError> {
    // RFC 8489 §14.8: the class is 3 to 6, the number 0 to 99.
    if !(300..=699).contains(&code) {
        return Err(BuildError::Attribute(AttributeError::Value));
    }
    Ok([(code / 100) as u8, (code % 100) as u8])
}

/// The code of a class and a number byte.
fn decode_code(class: u8, number: u8) -> Result<u16, AttributeError> {
    // RFC 8489 §14.8: the bits above the class are reserved, receivers ignore them.
    let class = class & 0b111;
    if !(3..=6).contains(&class) || number > 99 {
        return Err(AttributeError::Value);
    }
    Ok(u16::from(class) * 100 + u16::from(number))
}

/// The phrase up to its first byte that is not UTF-8.
///
/// It is for people only. So the error code of a server that sends the phrase in Latin-1 is still valid.
fn decode_reason(reason: &[u8]) -> Result<&str, AttributeError> {
    if reason.len() > READ_MAX {
        return Err(AttributeError::Length);
    }
    Ok(reason
        .utf8_chunks()
        .next()
        .map_or("", |chunk| chunk.valid()))
}

/// Writes the whole value; the family byte is zero where there is none.
fn encode(value: &mut [u8], family: u8, code: u16, reason: &str) -> Result<(), BuildError> {
    if !is_writable(reason) {
        return Err(BuildError::Attribute(AttributeError::Length));
    }
    let [class, number] = encode_code(code)?;
    let (head, tail) = value
        .split_first_chunk_mut::<{ field::REASON }>()
        .ok_or(BuildError::BufferFull)?;
    *head = [0; field::REASON];
    head[field::FAMILY] = family;
    head[field::CLASS] = class;
    head[field::NUMBER] = number;
    put_slice(tail, reason.as_bytes())
}

impl<'a> Decode<'a> for ErrorCode<'a> {
    const TYPE: AttributeType = AttributeType::ERROR_CODE;

    fn decode(value: &'a [u8], _: &TransactionId) -> Result<Self, AttributeError> {
        let (head, reason) = value
            .split_first_chunk::<{ field::REASON }>()
            .ok_or(AttributeError::Length)?;
        let code = decode_code(head[field::CLASS], head[field::NUMBER])?;
        Ok(ErrorCode {
            code,
            reason: decode_reason(reason)?,
        })
    }
}

impl Encode for ErrorCode<'_> {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::ERROR_CODE
    }

    fn value_len(&self) -> usize {
        field::REASON + self.reason.len()
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        encode(value, 0, self.code, self.reason)
    }
}

/// Why one of the two families of a dual allocation was refused (RFC 8656 §18.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressErrorCode<'a> {
    /// The family that was not allocated.
    pub family: AddressFamily,
    /// 440 or 508.
    pub code: u16,
    /// For people; at most 127 characters are written.
    pub reason: &'a str,
}

impl<'a> Decode<'a> for AddressErrorCode<'a> {
    const TYPE: AttributeType = AttributeType::ADDRESS_ERROR_CODE;

    fn decode(value: &'a [u8], _: &TransactionId) -> Result<Self, AttributeError> {
        let (head, reason) = value
            .split_first_chunk::<{ field::REASON }>()
            .ok_or(AttributeError::Length)?;
        let family =
            AddressFamily::from_number(head[field::FAMILY]).ok_or(AttributeError::AddressFamily)?;
        let code = decode_code(head[field::CLASS], head[field::NUMBER])?;
        Ok(AddressErrorCode {
            family,
            code,
            reason: decode_reason(reason)?,
        })
    }
}

impl Encode for AddressErrorCode<'_> {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::ADDRESS_ERROR_CODE
    }

    fn value_len(&self) -> usize {
        field::REASON + self.reason.len()
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        encode(value, self.family.number(), self.code, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId([0; 12]);

    #[test]
    fn codes_outside_300_to_699_are_refused_both_ways() {
        let mut space = [0; 16];
        for code in [0, 299, 700, u16::MAX] {
            let error = ErrorCode { code, reason: "" };
            assert_eq!(
                error.encode(&mut space, &ID),
                Err(BuildError::Attribute(AttributeError::Value))
            );
        }
        assert_eq!(
            ErrorCode::decode(&[0, 0, 4, 100], &ID),
            Err(AttributeError::Value)
        );
        assert_eq!(
            ErrorCode::decode(&[0, 0, 2, 0], &ID),
            Err(AttributeError::Value)
        );
        assert_eq!(
            ErrorCode::decode(&[0, 0, 7, 0], &ID),
            Err(AttributeError::Value)
        );
        assert_eq!(
            ErrorCode::decode(&[0, 0, 4], &ID),
            Err(AttributeError::Length)
        );
    }

    #[test]
    fn reserved_bits_are_ignored_and_a_bad_phrase_is_cut() {
        let error = ErrorCode::decode(b"\xFF\xFF\xFC\x01M\xFCde", &ID);
        assert_eq!(
            error,
            Ok(ErrorCode {
                code: 401,
                reason: "M"
            })
        );
    }
}
