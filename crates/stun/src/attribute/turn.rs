//! The attributes of TURN (RFC 8656 §18), except the address ones and ADDRESS-ERROR-CODE.

use core::fmt;

use super::{
    AddressFamily, AttributeError, AttributeType, Decode, Encode, array_attribute, bytes_attribute,
    empty_attribute, exactly, number_attribute, put,
};
use crate::{BuildError, TransactionId};

/// The number of a channel: 0x4000 to 0x4FFF and nothing else (RFC 8656 §12, §18.1).
///
/// It is also the CHANNEL-NUMBER attribute. A number outside the range decodes to [`AttributeError::Value`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelNumber(u16);

impl ChannelNumber {
    /// The lowest channel.
    pub const MIN: ChannelNumber = ChannelNumber(0x4000);
    /// The highest channel.
    pub const MAX: ChannelNumber = ChannelNumber(0x4FFF);

    /// The channel with this number, if there is one (RFC 8656 §12, table 2).
    #[inline]
    #[must_use]
    pub const fn new(number: u16) -> Option<ChannelNumber> {
        if number & 0xF000 == 0x4000 {
            Some(ChannelNumber(number))
        } else {
            None
        }
    }

    /// The number, 0x4000 to 0x4FFF.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number counted from the lowest channel, 0 to 4095: an index for tables.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 0x0FFF) as usize
    }
}

impl fmt::Debug for ChannelNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ChannelNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl Decode<'_> for ChannelNumber {
    const TYPE: AttributeType = AttributeType::CHANNEL_NUMBER;

    #[inline]
    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        // RFC 8656 §18.1: the last two bytes are reserved and ignored.
        let [high, low, _, _] = exactly(value)?;
        ChannelNumber::new(u16::from_be_bytes([high, low])).ok_or(AttributeError::Value)
    }
}

impl Encode for ChannelNumber {
    #[inline]
    fn attribute_type(&self) -> AttributeType {
        AttributeType::CHANNEL_NUMBER
    }

    #[inline]
    fn value_len(&self) -> usize {
        4
    }

    #[inline]
    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let [high, low] = self.0.to_be_bytes();
        put(value, [high, low, 0, 0])
    }
}

/// Seconds an allocation lives without a refresh (RFC 8656 §18.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lifetime(
    /// Seconds; 0 in a Refresh request deletes the allocation.
    pub u32,
);
number_attribute!(Lifetime, u32, LIFETIME);

/// What the peer sent or shall receive (RFC 8656 §18.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Data<'a>(
    /// The payload of the UDP datagram; may be empty.
    pub &'a [u8],
);
bytes_attribute!(Data, DATA, read: usize::MAX, write: usize::from(u16::MAX));

/// Declares an attribute that is an address family and three reserved bytes.
macro_rules! family_attribute {
    ($(#[$doc:meta])* $name:ident, $attribute_type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The family.
            pub AddressFamily,
        );

        impl Decode<'_> for $name {
            const TYPE: AttributeType = AttributeType::$attribute_type;

            #[inline]
            fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
                // RFC 8656 §18.6: the 24 reserved bits are ignored by the server.
                let [family, _, _, _] = exactly(value)?;
                AddressFamily::from_number(family).map($name).ok_or(AttributeError::AddressFamily)
            }
        }

        impl Encode for $name {
            #[inline]
            fn attribute_type(&self) -> AttributeType {
                AttributeType::$attribute_type
            }

            #[inline]
            fn value_len(&self) -> usize {
                4
            }

            #[inline]
            fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
                put(value, [self.0.number(), 0, 0, 0])
            }
        }
    };
}

family_attribute! {
    /// The family an Allocate or Refresh request is about (RFC 8656 §18.6).
    ///
    /// A family other than IPv4 and IPv6 decodes to [`AttributeError::AddressFamily`], which a server answers with 440.
    RequestedAddressFamily, REQUESTED_ADDRESS_FAMILY
}
family_attribute! {
    /// A second family wanted from an Allocate request; the RFC allows only IPv6 (RFC 8656 §18.11).
    AdditionalAddressFamily, ADDITIONAL_ADDRESS_FAMILY
}

/// Ask for an even port (RFC 8656 §18.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EvenPort {
    /// Also keep the next port for a later allocation.
    pub reserve: bool,
}

impl EvenPort {
    /// The R bit.
    const RESERVE: u8 = 0x80;
}

impl Decode<'_> for EvenPort {
    const TYPE: AttributeType = AttributeType::EVEN_PORT;

    #[inline]
    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        // RFC 8656 §18.7: the seven low bits are ignored.
        let [bits] = exactly(value)?;
        Ok(EvenPort {
            reserve: bits & Self::RESERVE != 0,
        })
    }
}

impl Encode for EvenPort {
    #[inline]
    fn attribute_type(&self) -> AttributeType {
        AttributeType::EVEN_PORT
    }

    #[inline]
    fn value_len(&self) -> usize {
        1
    }

    #[inline]
    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        put(value, [if self.reserve { Self::RESERVE } else { 0 }])
    }
}

/// The IP protocol between server and peers (RFC 8656 §18.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestedTransport(
    /// A number of the IANA protocol registry.
    pub u8,
);

impl RequestedTransport {
    /// The only one RFC 8656 allows.
    pub const UDP: RequestedTransport = RequestedTransport(17);
    /// The one RFC 6062 adds.
    pub const TCP: RequestedTransport = RequestedTransport(6);
}

impl Decode<'_> for RequestedTransport {
    const TYPE: AttributeType = AttributeType::REQUESTED_TRANSPORT;

    #[inline]
    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        // RFC 8656 §18.8: the last three bytes are reserved and ignored.
        let [protocol, _, _, _] = exactly(value)?;
        Ok(RequestedTransport(protocol))
    }
}

impl Encode for RequestedTransport {
    #[inline]
    fn attribute_type(&self) -> AttributeType {
        AttributeType::REQUESTED_TRANSPORT
    }

    #[inline]
    fn value_len(&self) -> usize {
        4
    }

    #[inline]
    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        put(value, [self.0, 0, 0, 0])
    }
}

/// Set the DF bit on what goes to the peer (RFC 8656 §18.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DontFragment;
empty_attribute!(DontFragment, DONT_FRAGMENT);

/// Names a relayed transport address that the server holds back (RFC 8656 §18.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationToken(
    /// The token.
    pub [u8; 8],
);
array_attribute!(ReservationToken, 8, RESERVATION_TOKEN);

/// An ICMP error that a datagram to a peer ran into (RFC 8656 §18.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// The ICMP or ICMPv6 type, by the family of the peer.
    pub icmp_type: u8,
    /// The ICMP or ICMPv6 code.
    pub icmp_code: u8,
    /// The MTU of the next hop for "packet too big", else 0.
    pub error_data: u32,
}

impl Decode<'_> for Icmp {
    const TYPE: AttributeType = AttributeType::ICMP;

    #[inline]
    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        // RFC 8656 §18.13: figure 11 draws 7 and 9 bits, but both fields are bytes: ICMPv6 types reach 255.
        let [_, _, icmp_type, icmp_code, d0, d1, d2, d3] = exactly(value)?;
        Ok(Icmp {
            icmp_type,
            icmp_code,
            error_data: u32::from_be_bytes([d0, d1, d2, d3]),
        })
    }
}

impl Encode for Icmp {
    #[inline]
    fn attribute_type(&self) -> AttributeType {
        AttributeType::ICMP
    }

    #[inline]
    fn value_len(&self) -> usize {
        8
    }

    #[inline]
    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let [d0, d1, d2, d3] = self.error_data.to_be_bytes();
        put(
            value,
            [0, 0, self.icmp_type, self.icmp_code, d0, d1, d2, d3],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId([0; 12]);

    #[test]
    fn only_4096_numbers_are_channels() {
        let channels: Vec<u16> = (0..=u16::MAX)
            .filter(|&n| ChannelNumber::new(n).is_some())
            .collect();
        assert_eq!(channels, (0x4000..=0x4FFF).collect::<Vec<u16>>());
        assert_eq!(
            (ChannelNumber::MIN.index(), ChannelNumber::MAX.index()),
            (0, 4095)
        );
        assert_eq!(
            ChannelNumber::decode(&[0x50, 0, 0, 0], &ID),
            Err(AttributeError::Value)
        );
        assert_eq!(
            ChannelNumber::decode(&[0x40, 0], &ID),
            Err(AttributeError::Length)
        );
    }

    #[test]
    fn reserved_bits_are_ignored() {
        assert_eq!(
            ChannelNumber::decode(&[0x40, 1, 0xFF, 0xFF], &ID).map(ChannelNumber::get),
            Ok(0x4001)
        );
        assert_eq!(
            EvenPort::decode(&[0x7F], &ID),
            Ok(EvenPort { reserve: false })
        );
        assert_eq!(
            EvenPort::decode(&[0xFF], &ID),
            Ok(EvenPort { reserve: true })
        );
        assert_eq!(
            RequestedTransport::decode(&[17, 1, 2, 3], &ID),
            Ok(RequestedTransport::UDP)
        );
        assert_eq!(
            RequestedAddressFamily::decode(&[2, 1, 2, 3], &ID),
            Ok(RequestedAddressFamily(AddressFamily::V6))
        );
        let icmp = Icmp {
            icmp_type: 200,
            icmp_code: 255,
            error_data: 1400,
        };
        assert_eq!(Icmp::decode(&[9, 9, 200, 255, 0, 0, 5, 120], &ID), Ok(icmp));
    }

    #[test]
    fn an_unknown_family_has_its_own_error() {
        assert_eq!(
            RequestedAddressFamily::decode(&[3, 0, 0, 0], &ID),
            Err(AttributeError::AddressFamily)
        );
        assert_eq!(
            RequestedAddressFamily::decode(&[1, 0, 0], &ID),
            Err(AttributeError::Length)
        );
    }

    #[test]
    fn dont_fragment_has_no_value() {
        assert_eq!(DontFragment::decode(&[], &ID), Ok(DontFragment));
        assert_eq!(DontFragment::decode(&[0], &ID), Err(AttributeError::Length));
    }
}
