//! The 20 bytes in front of every STUN message (RFC 8489 §5).
//!
//! ```text
//!  0               1               2               3
//! +-+-+-----------------------------+-------------------------------+
//! |0 0|  method and class, 14 bits  |  length of the attributes     |
//! +-+-+-----------------------------+-------------------------------+
//! |                   magic cookie 0x2112A442                       |
//! +-----------------------------------------------------------------+
//! |                   transaction ID, 96 bits                       |
//! +-----------------------------------------------------------------+
//! ```

use core::fmt;

/// The constant in bytes 4 to 8 of every message (RFC 8489 §5).
pub const MAGIC_COOKIE: u32 = 0x2112_A442;

/// Bytes in the header of a message, which its length field does not count (RFC 8489 §5).
pub const HEADER_LEN: usize = 20;

/// Where the fields of the header are.
pub(crate) mod field {
    use core::ops::Range;

    pub(crate) const TYPE: Range<usize> = 0..2;
    pub(crate) const LENGTH: Range<usize> = 2..4;
    pub(crate) const COOKIE: Range<usize> = 4..8;
    pub(crate) const TRANSACTION_ID: Range<usize> = 8..20;
}

/// What ties a response to its request: 96 random bits (RFC 8489 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TransactionId(pub [u8; 12]);

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The four kinds of message (RFC 8489 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Asks for a response: `0b00`.
    Request,
    /// Asks for none: `0b01`.
    Indication,
    /// The response to a request that was carried out: `0b10`.
    Success,
    /// The response to a request that was refused: `0b11`.
    Error,
}

/// What a message is about: a 12-bit number (RFC 8489 §5, RFC 8656 §17, RFC 6062 §6.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(u16);

impl Method {
    /// Learn the reflexive transport address (RFC 8489 §18.2).
    pub const BINDING: Method = Method(0x001);
    /// Create an allocation (RFC 8656 §7).
    pub const ALLOCATE: Method = Method(0x003);
    /// Prolong or delete an allocation (RFC 8656 §8).
    pub const REFRESH: Method = Method(0x004);
    /// Data from the client to a peer; an indication (RFC 8656 §11).
    pub const SEND: Method = Method(0x006);
    /// Data from a peer to the client; an indication (RFC 8656 §11).
    pub const DATA: Method = Method(0x007);
    /// Admit peers by IP address (RFC 8656 §10).
    pub const CREATE_PERMISSION: Method = Method(0x008);
    /// Tie a channel number to a peer (RFC 8656 §12).
    pub const CHANNEL_BIND: Method = Method(0x009);
    /// Open a TCP connection to a peer (RFC 6062 §4.3).
    pub const CONNECT: Method = Method(0x00A);
    /// Make this connection the data connection (RFC 6062 §4.4).
    pub const CONNECTION_BIND: Method = Method(0x00B);
    /// A peer has connected; an indication (RFC 6062 §4.4).
    pub const CONNECTION_ATTEMPT: Method = Method(0x00C);

    /// The method with this number, which must fit 12 bits.
    #[must_use]
    pub const fn new(number: u16) -> Option<Method> {
        if number < 0x1000 {
            Some(Method(number))
        } else {
            None
        }
    }

    /// The number in the IANA registry.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The method of a message that begins with these two bytes, for every class (RFC 8489 §5, figure 3).
    #[must_use]
    pub const fn of_message(first: [u8; 2]) -> Method {
        method_of(u16::from_be_bytes(first))
    }

    const fn name(self) -> Option<&'static str> {
        Some(match self {
            Method::BINDING => "Binding",
            Method::ALLOCATE => "Allocate",
            Method::REFRESH => "Refresh",
            Method::SEND => "Send",
            Method::DATA => "Data",
            Method::CREATE_PERMISSION => "CreatePermission",
            Method::CHANNEL_BIND => "ChannelBind",
            Method::CONNECT => "Connect",
            Method::CONNECTION_BIND => "ConnectionBind",
            Method::CONNECTION_ATTEMPT => "ConnectionAttempt",
            _ => return None,
        })
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "method {:#05x}", self.0),
        }
    }
}

/// The first 16 bits of a message.
///
/// RFC 8489 §5, figure 3: the two class bits sit between the method's bits, at 4 and 8.
pub(crate) const fn message_type(class: Class, method: Method) -> u16 {
    let m = method.0;
    let spread = (m & 0x00F) | ((m & 0x070) << 1) | ((m & 0xF80) << 2);
    let class = match class {
        Class::Request => 0x0000,
        Class::Indication => 0x0010,
        Class::Success => 0x0100,
        Class::Error => 0x0110,
    };
    spread | class
}

/// The class in the first 16 bits of a message.
pub(crate) const fn class_of(message_type: u16) -> Class {
    match message_type & 0x0110 {
        0x0000 => Class::Request,
        0x0010 => Class::Indication,
        0x0100 => Class::Success,
        _ => Class::Error,
    }
}

/// The method in the first 16 bits of a message.
pub(crate) const fn method_of(message_type: u16) -> Method {
    let t = message_type;
    Method((t & 0x000F) | ((t >> 1) & 0x0070) | ((t >> 2) & 0x0F80))
}

/// The header of a message whose attributes fill `length` bytes.
pub(crate) fn header_bytes(
    class: Class,
    method: Method,
    length: u16,
    transaction_id: &TransactionId,
) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[field::TYPE].copy_from_slice(&message_type(class, method).to_be_bytes());
    header[field::LENGTH].copy_from_slice(&length.to_be_bytes());
    header[field::COOKIE].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
    header[field::TRANSACTION_ID].copy_from_slice(&transaction_id.0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_and_class_and_method_round_trip_for_all_sixteen_thousand() {
        for number in 0..0x1000 {
            let method = Method::new(number).expect("12 bits");
            for class in [
                Class::Request,
                Class::Indication,
                Class::Success,
                Class::Error,
            ] {
                let t = message_type(class, method);
                assert_eq!(t & 0xC000, 0);
                assert_eq!((class_of(t), method_of(t)), (class, method));
            }
        }
        assert_eq!(Method::new(0x1000), None);
    }

    #[test]
    fn the_types_the_rfcs_print() {
        assert_eq!(message_type(Class::Request, Method::BINDING), 0x0001);
        assert_eq!(message_type(Class::Success, Method::BINDING), 0x0101);
        assert_eq!(message_type(Class::Error, Method::ALLOCATE), 0x0113);
        assert_eq!(message_type(Class::Indication, Method::SEND), 0x0016);
        assert_eq!(message_type(Class::Indication, Method::DATA), 0x0017);
    }
}
