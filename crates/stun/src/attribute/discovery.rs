//! The attributes of NAT behaviour discovery (RFC 5780 §7), except the address ones.

use super::{AttributeError, AttributeType, Decode, Encode, fixed_attribute, put, slice_attribute};
use crate::{BuildError, TransactionId};

/// Ask for a response from another address of the server (RFC 5780 §7.2).
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

fixed_attribute!(
    ChangeRequest, CHANGE_REQUEST,
    read: |bytes| {
        let bits = u32::from_be_bytes(bytes);
        Ok(ChangeRequest {
            change_ip: bits & ChangeRequest::CHANGE_IP != 0,
            change_port: bits & ChangeRequest::CHANGE_PORT != 0,
        })
    },
    write: |this: &ChangeRequest| {
        let ip = if this.change_ip { ChangeRequest::CHANGE_IP } else { 0 };
        let port = if this.change_port { ChangeRequest::CHANGE_PORT } else { 0 };
        (ip | port).to_be_bytes()
    }
);

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
slice_attribute!(Padding, PADDING, read: Ok, allowed: |_| true);

/// How long a reflexive address may be cached (RFC 5780 §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheTimeout(
    /// Seconds.
    pub u32,
);
fixed_attribute!(
    CacheTimeout, CACHE_TIMEOUT,
    read: |bytes| Ok(CacheTimeout(u32::from_be_bytes(bytes))),
    write: |this: &CacheTimeout| this.0.to_be_bytes()
);

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
