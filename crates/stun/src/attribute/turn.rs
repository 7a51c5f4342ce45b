//! The attributes of TURN (RFC 8656 §18), except the address ones and ADDRESS-ERROR-CODE.

use core::fmt;

use super::{AddressFamily, AttributeError, AttributeType, fixed_attribute, slice_attribute};
use crate::{BuildError, TransactionId};

/// The number of a channel: 0x4000 to 0x4FFF, unless asked for by the older rule (RFC 8656 §12, §18.1).
///
/// It is also the CHANNEL-NUMBER attribute. A number outside the range decodes to [`AttributeError::Value`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelNumber(u16);

impl ChannelNumber {
    /// The lowest channel.
    pub const MIN: ChannelNumber = ChannelNumber(0x4000);
    /// The highest channel of RFC 8656.
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

    /// The channel with this number by the wider range of RFC 5766 §11, 0x4000 to 0x7FFF.
    ///
    /// RFC 8656 removed the numbers above 0x4FFF, for demultiplexing at the client; clients of the older RFC still use
    /// them. Only a server that wants to serve them uses this.
    #[inline]
    #[must_use]
    pub const fn of_rfc5766(number: u16) -> Option<ChannelNumber> {
        // RFC 5766 names 0x7FFF as the highest in §11 and 0x7FFE in §11.2. Clients draw from the whole range.
        if number & 0xC000 == 0x4000 {
            Some(ChannelNumber(number))
        } else {
            None
        }
    }

    /// The number, 0x4000 to 0x4FFF, or to 0x7FFF if it was made by [`ChannelNumber::of_rfc5766`].
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number counted from the lowest channel: an index for tables. 0 to 4095, or to 16,383 if it was made by
    /// [`ChannelNumber::of_rfc5766`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 0x3FFF) as usize
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

// RFC 8656 §18.1: the last two bytes are reserved and ignored.
fixed_attribute!(
    ChannelNumber, CHANNEL_NUMBER,
    read: |[high, low, _, _]| {
        ChannelNumber::new(u16::from_be_bytes([high, low])).ok_or(AttributeError::Value)
    },
    write: |this: &ChannelNumber| {
        let [high, low] = this.0.to_be_bytes();
        [high, low, 0, 0]
    }
);

/// Seconds an allocation lives without a refresh (RFC 8656 §18.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lifetime(
    /// Seconds; 0 in a Refresh request deletes the allocation.
    pub u32,
);
fixed_attribute!(
    Lifetime, LIFETIME,
    read: |bytes| Ok(Lifetime(u32::from_be_bytes(bytes))),
    write: |this: &Lifetime| this.0.to_be_bytes()
);

/// What the peer sent or shall receive (RFC 8656 §18.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Data<'a>(
    /// The payload of the UDP datagram; may be empty.
    pub &'a [u8],
);
slice_attribute!(Data, DATA, read: Ok, allowed: |_| true);

/// Reads a family; RFC 8656 §18.6: the 24 bits behind it are reserved and ignored.
#[inline]
fn read_family([family, _, _, _]: [u8; 4]) -> Result<AddressFamily, AttributeError> {
    AddressFamily::from_number(family).ok_or(AttributeError::AddressFamily)
}

/// The family an Allocate or Refresh request is about (RFC 8656 §18.6).
///
/// A family other than IPv4 and IPv6 decodes to [`AttributeError::AddressFamily`], which a server answers with 440.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestedAddressFamily(
    /// The family.
    pub AddressFamily,
);
fixed_attribute!(
    RequestedAddressFamily, REQUESTED_ADDRESS_FAMILY,
    read: |bytes| read_family(bytes).map(RequestedAddressFamily),
    write: |this: &RequestedAddressFamily| [this.0.number(), 0, 0, 0]
);

/// A second family wanted from an Allocate request; the RFC allows only IPv6 (RFC 8656 §18.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdditionalAddressFamily(
    /// The family.
    pub AddressFamily,
);
fixed_attribute!(
    AdditionalAddressFamily, ADDITIONAL_ADDRESS_FAMILY,
    read: |bytes| read_family(bytes).map(AdditionalAddressFamily),
    write: |this: &AdditionalAddressFamily| [this.0.number(), 0, 0, 0]
);

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

// RFC 8656 §18.7: the seven low bits are ignored.
fixed_attribute!(
    EvenPort, EVEN_PORT,
    read: |[bits]| Ok(EvenPort { reserve: bits & EvenPort::RESERVE != 0 }),
    write: |this: &EvenPort| [if this.reserve { EvenPort::RESERVE } else { 0 }]
);

/// The IP protocol between server and peers (RFC 8656 §18.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestedTransport(
    /// A number of the IANA protocol registry.
    pub u8,
);

impl RequestedTransport {
    /// The only one RFC 8656 allows.
    pub const UDP: RequestedTransport = RequestedTransport(17);
    /// TCP (RFC 6062).
    pub const TCP: RequestedTransport = RequestedTransport(6);
}

// RFC 8656 §18.8: the last three bytes are reserved and ignored.
fixed_attribute!(
    RequestedTransport, REQUESTED_TRANSPORT,
    read: |[protocol, _, _, _]| Ok(RequestedTransport(protocol)),
    write: |this: &RequestedTransport| [this.0, 0, 0, 0]
);

/// Set the DF bit on what goes to the peer (RFC 8656 §18.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DontFragment;
fixed_attribute!(DontFragment, DONT_FRAGMENT, read: |[]| Ok(DontFragment), write: |_| [0; 0]);

/// Names a relayed transport address that the server has reserved (RFC 8656 §18.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationToken(
    /// The token.
    pub [u8; 8],
);
fixed_attribute!(
    ReservationToken, RESERVATION_TOKEN,
    read: |bytes| Ok(ReservationToken(bytes)),
    write: |this: &ReservationToken| this.0
);

/// An ICMP error about a datagram to a peer (RFC 8656 §18.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// The ICMP or ICMPv6 type, by the family of the peer.
    pub icmp_type: u8,
    /// The ICMP or ICMPv6 code.
    pub icmp_code: u8,
    /// The MTU of the next hop for "packet too big", else 0.
    pub error_data: u32,
}

// RFC 8656 §18.13: figure 11 draws 7 and 9 bits, but both fields are bytes: ICMPv6 types reach 255.
fixed_attribute!(
    Icmp, ICMP,
    read: |[_, _, icmp_type, icmp_code, d0, d1, d2, d3]| {
        Ok(Icmp { icmp_type, icmp_code, error_data: u32::from_be_bytes([d0, d1, d2, d3]) })
    },
    write: |this: &Icmp| {
        let [d0, d1, d2, d3] = this.error_data.to_be_bytes();
        [0, 0, this.icmp_type, this.icmp_code, d0, d1, d2, d3]
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decode;

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
        let older = (0..=u16::MAX).filter(|&n| ChannelNumber::of_rfc5766(n).is_some());
        assert!(older.eq(0x4000..=0x7FFF));
        let highest = ChannelNumber::of_rfc5766(0x7FFF).map(ChannelNumber::index);
        assert_eq!(highest, Some(0x3FFF), "no two numbers share an index");
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
