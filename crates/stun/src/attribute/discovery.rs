//! The attributes of NAT behaviour discovery (RFC 5780 §7), except the address ones.

use super::{
    AttributeError, AttributeType, Decode, Encode, bytes_attribute, exactly, number_attribute, put,
};
use crate::{BuildError, TransactionId};

/// Ask for an answer from another address of the server (RFC 5780 §7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChangeRequest {
    /// Answer from the other IP address.
    pub change_ip: bool,
    /// Answer from the other port.
    pub change_port: bool,
}

impl ChangeRequest {
    const CHANGE_IP: u32 = 0x4;
    const CHANGE_PORT: u32 = 0x2;
}

impl Decode<'_> for ChangeRequest {
    const TYPE: AttributeType = AttributeType::CHANGE_REQUEST;

    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        let bits = u32::from_be_bytes(exactly(value)?);
        Ok(ChangeRequest {
            change_ip: bits & Self::CHANGE_IP != 0,
            change_port: bits & Self::CHANGE_PORT != 0,
        })
    }
}

impl Encode for ChangeRequest {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::CHANGE_REQUEST
    }

    fn value_len(&self) -> usize {
        4
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let ip = if self.change_ip { Self::CHANGE_IP } else { 0 };
        let port = if self.change_port {
            Self::CHANGE_PORT
        } else {
            0
        };
        put(value, (ip | port).to_be_bytes())
    }
}

/// Answer to this port of the source address (RFC 5780 §7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResponsePort(
    /// The port.
    pub u16,
);

impl Decode<'_> for ResponsePort {
    const TYPE: AttributeType = AttributeType::RESPONSE_PORT;

    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        // RFC 5780 §7.5: "a 16-bit unsigned integer followed by 2 bytes of padding". Senders differ on whether the
        // attribute's length counts those two bytes.
        match *value {
            [high, low] | [high, low, _, _] => Ok(ResponsePort(u16::from_be_bytes([high, low]))),
            _ => Err(AttributeError::Length),
        }
    }
}

impl Encode for ResponsePort {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::RESPONSE_PORT
    }

    fn value_len(&self) -> usize {
        4
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let [high, low] = self.0.to_be_bytes();
        put(value, [high, low, 0, 0])
    }
}

/// Makes a message large enough to be fragmented (RFC 5780 §7.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Padding<'a>(
    /// Bytes without meaning.
    pub &'a [u8],
);
bytes_attribute!(Padding, PADDING, read: usize::MAX, write: usize::from(u16::MAX));

/// How long a reflexive address may be cached (RFC 5780 §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheTimeout(
    /// Seconds.
    pub u32,
);
number_attribute!(CacheTimeout, u32, CACHE_TIMEOUT);

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId([0; 12]);

    #[test]
    fn a_response_port_may_count_its_padding_or_not() {
        assert_eq!(
            ResponsePort::decode(&[0x12, 0x34], &ID),
            Ok(ResponsePort(0x1234))
        );
        assert_eq!(
            ResponsePort::decode(&[0x12, 0x34, 9, 9], &ID),
            Ok(ResponsePort(0x1234))
        );
        assert_eq!(
            ResponsePort::decode(&[0x12], &ID),
            Err(AttributeError::Length)
        );
    }

    #[test]
    fn change_request_has_two_bits() {
        let both = ChangeRequest {
            change_ip: true,
            change_port: true,
        };
        assert_eq!(ChangeRequest::decode(&[0, 0, 0, 6], &ID), Ok(both));
        let mut value = [0xFF; 4];
        assert_eq!(
            (both.encode(&mut value, &ID), value),
            (Ok(()), [0, 0, 0, 6])
        );
    }
}
