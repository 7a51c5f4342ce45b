//! The attributes that carry a transport address, in clear or XORed (RFC 8489 §14.1, §14.2).
//!
//! ```text
//! +--------+--------+-----------------+
//! |   0    | family |  port           |   XORed: port ^ 0x2112
//! +--------+--------+-----------------+
//! |  address, 4 or 16 bytes           |   XORed: address ^ (magic cookie ++ transaction ID)
//! +-----------------------------------+
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{AttributeError, AttributeType, Decode, Encode, put_slice};
use crate::{BuildError, MAGIC_COOKIE, TransactionId};

/// Where the fields are.
mod field {
    use core::ops::Range;

    pub(super) const FAMILY: usize = 1;
    pub(super) const PORT: Range<usize> = 2..4;
    pub(super) const IPV4: Range<usize> = 4..8;
    pub(super) const IPV6: Range<usize> = 4..20;
}

const IPV4_LEN: usize = field::IPV4.end;
const IPV6_LEN: usize = field::IPV6.end;

/// Bytes of the longest address value.
pub(crate) const XOR_ADDRESS_MAX: usize = IPV6_LEN;

/// The two families of RFC 8489 §14.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    /// IPv4, on the wire 1.
    V4,
    /// IPv6, on the wire 2.
    V6,
}

impl AddressFamily {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: &IpAddr) -> AddressFamily {
        match address {
            IpAddr::V4(_) => AddressFamily::V4,
            IpAddr::V6(_) => AddressFamily::V6,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            AddressFamily::V4 => 1,
            AddressFamily::V6 => 2,
        }
    }

    /// The family with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<AddressFamily> {
        match number {
            1 => Some(AddressFamily::V4),
            2 => Some(AddressFamily::V6),
            _ => None,
        }
    }
}

/// Bytes of the value for this address.
#[inline]
const fn address_len(address: &SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => IPV4_LEN,
        SocketAddr::V6(_) => IPV6_LEN,
    }
}

/// The 16 bytes that an IPv6 address is XORed with. An IPv4 address uses the first 4.
#[inline]
fn mask(transaction_id: &TransactionId) -> u128 {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
    mask[4..].copy_from_slice(&transaction_id.0);
    u128::from_be_bytes(mask)
}

/// Reads an address; `mask` is zero where the address is in clear.
#[inline]
fn decode(value: &[u8], mask: u128) -> Result<SocketAddr, AttributeError> {
    let family = *value.get(field::FAMILY).ok_or(AttributeError::Length)?;
    // RFC 8489 §14.1: the first 8 bits are ignored by receivers.
    match AddressFamily::from_number(family).ok_or(AttributeError::AddressFamily)? {
        AddressFamily::V4 => {
            let [_, _, p0, p1, a0, a1, a2, a3]: [u8; IPV4_LEN] = super::exactly(value)?;
            let ip = u32::from_be_bytes([a0, a1, a2, a3]) ^ (mask >> 96) as u32;
            let port = u16::from_be_bytes([p0, p1]) ^ (mask >> 112) as u16;
            Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(ip)), port))
        }
        AddressFamily::V6 => {
            let value: [u8; IPV6_LEN] = super::exactly(value)?;
            let mut ip = [0; 16];
            ip.copy_from_slice(&value[field::IPV6]);
            let ip = u128::from_be_bytes(ip) ^ mask;
            let port = u16::from_be_bytes([value[2], value[3]]) ^ (mask >> 112) as u16;
            Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(ip)), port))
        }
    }
}

/// The value for an address, and how many of its bytes count; `mask` is zero where the address is in clear.
#[inline]
fn encode(address: &SocketAddr, mask: u128) -> ([u8; IPV6_LEN], usize) {
    let mut value = [0; IPV6_LEN];
    let port = address.port() ^ (mask >> 112) as u16;
    value[field::PORT].copy_from_slice(&port.to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            value[field::FAMILY] = AddressFamily::V4.number();
            value[field::IPV4].copy_from_slice(&(ip.to_bits() ^ (mask >> 96) as u32).to_be_bytes());
            (value, IPV4_LEN)
        }
        IpAddr::V6(ip) => {
            value[field::FAMILY] = AddressFamily::V6.number();
            value[field::IPV6].copy_from_slice(&(ip.to_bits() ^ mask).to_be_bytes());
            (value, IPV6_LEN)
        }
    }
}

/// The XORed value for an address, and how many of its bytes count.
#[inline]
pub(crate) fn xor_address(
    address: &SocketAddr,
    transaction_id: &TransactionId,
) -> ([u8; XOR_ADDRESS_MAX], usize) {
    encode(address, mask(transaction_id))
}

/// Declares an address attribute; the mask decides whether it is XORed.
macro_rules! address_attribute {
    ($(#[$doc:meta])* $name:ident, $attribute_type:ident, $mask:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The transport address. An IPv6 flow label and scope do not travel.
            pub SocketAddr,
        );

        impl Decode<'_> for $name {
            const TYPE: AttributeType = AttributeType::$attribute_type;

            #[inline]
            fn decode(value: &[u8], transaction_id: &TransactionId) -> Result<Self, AttributeError> {
                let mask: fn(&TransactionId) -> u128 = $mask;
                decode(value, mask(transaction_id)).map($name)
            }
        }

        impl Encode for $name {
            #[inline]
            fn attribute_type(&self) -> AttributeType {
                AttributeType::$attribute_type
            }

            #[inline]
            fn value_len(&self) -> usize {
                address_len(&self.0)
            }

            #[inline]
            fn encode(&self, value: &mut [u8], transaction_id: &TransactionId) -> Result<(), BuildError> {
                let mask: fn(&TransactionId) -> u128 = $mask;
                let (bytes, len) = encode(&self.0, mask(transaction_id));
                put_slice(value, &bytes[..len])
            }
        }
    };
}

address_attribute! {
    /// The client's reflexive address in clear, for RFC 3489 clients (RFC 8489 §14.1).
    MappedAddress, MAPPED_ADDRESS, |_| 0
}
address_attribute! {
    /// The client's reflexive address (RFC 8489 §14.2).
    XorMappedAddress, XOR_MAPPED_ADDRESS, mask
}
address_attribute! {
    /// A peer's address, as the server sees it (RFC 8656 §18.3).
    XorPeerAddress, XOR_PEER_ADDRESS, mask
}
address_attribute! {
    /// The address the server allocated for the client (RFC 8656 §18.5).
    XorRelayedAddress, XOR_RELAYED_ADDRESS, mask
}
address_attribute! {
    /// Another server to try, with error 300 (RFC 8489 §14.15).
    AlternateServer, ALTERNATE_SERVER, |_| 0
}
address_attribute! {
    /// The address this response was sent from (RFC 5780 §7.3).
    ResponseOrigin, RESPONSE_ORIGIN, |_| 0
}
address_attribute! {
    /// The address and port a response with both changed would come from (RFC 5780 §7.4).
    OtherAddress, OTHER_ADDRESS, |_| 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId(*b"0123456789ab");

    #[test]
    fn an_unknown_family_differs_from_a_wrong_length() {
        assert_eq!(
            XorPeerAddress::decode(&[0, 3, 0, 0, 0, 0, 0, 0], &ID),
            Err(AttributeError::AddressFamily)
        );
        assert_eq!(
            XorPeerAddress::decode(&[0, 1, 0, 0, 0, 0, 0], &ID),
            Err(AttributeError::Length)
        );
        assert_eq!(
            XorPeerAddress::decode(&[0, 2, 0, 0, 0, 0, 0, 0], &ID),
            Err(AttributeError::Length)
        );
        assert_eq!(
            XorPeerAddress::decode(&[0], &ID),
            Err(AttributeError::Length)
        );
        assert_eq!(
            XorPeerAddress::decode(&[], &ID),
            Err(AttributeError::Length)
        );
    }

    #[test]
    fn the_first_byte_is_ignored() {
        let address = MappedAddress::decode(&[0xFF, 1, 0x12, 0x34, 192, 0, 2, 1], &ID);
        assert_eq!(
            address,
            Ok(MappedAddress(SocketAddr::from(([192, 0, 2, 1], 0x1234))))
        );
    }

    #[test]
    fn the_port_is_xored_with_the_cookie_and_nothing_else() {
        let (value, len) = xor_address(&SocketAddr::from(([0, 0, 0, 0], 0)), &ID);
        assert_eq!(value[..len], [0, 1, 0x21, 0x12, 0x21, 0x12, 0xA4, 0x42]);
    }
}
