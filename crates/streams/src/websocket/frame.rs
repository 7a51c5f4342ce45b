//! The header of a frame (RFC 6455 §5.2).
//!
//! ```text
//! FIN, RSV1-3, opcode (1) | MASK, length (1) | extended length (0, 2, 8) | masking key (0, 4) | payload
//! ```

use super::ProtocolError;

/// The longest header in bytes: with an 8-byte length and a masking key.
pub(super) const MAX_HEADER: usize = 14;
/// The longest payload of a control frame in bytes (RFC 6455 §5.5).
pub(super) const MAX_CONTROL: usize = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

impl Kind {
    /// The kind of message for this payload: text if it is UTF-8 (RFC 7118 §4.2).
    #[must_use]
    pub fn of(payload: &[u8]) -> Kind {
        match std::str::from_utf8(payload) {
            Ok(_) => Kind::Text,
            Err(_) => Kind::Binary,
        }
    }

    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Kind::Text => Opcode::Text,
            Kind::Binary => Opcode::Binary,
        }
    }
}

/// The status code of a Close frame (RFC 6455 §7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CloseCode {
    /// The connection has served its purpose.
    Normal = 1000,
    /// The server shuts down, or the user leaves the page.
    GoingAway = 1001,
    /// The peer violated the protocol.
    Protocol = 1002,
    /// The endpoint does not accept this kind of message.
    Unsupported = 1003,
    /// A payload that does not fit its kind, such as text that is not UTF-8.
    Payload = 1007,
    /// A message that is too long.
    TooLong = 1009,
    /// An unexpected condition prevents the server from continuing.
    Internal = 1011,
}

impl CloseCode {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether an endpoint may send this status code in a Close frame. It may if IANA has registered the code, or the
    /// code is in the ranges for libraries and applications (RFC 6455 §7.4.2).
    pub(super) const fn is_sendable(number: u16) -> bool {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// The opcode of a frame (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    const fn of(number: u8) -> Option<Opcode> {
        Some(match number {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    pub(super) const fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: Opcode,
    pub(super) is_final: bool,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) length: u64,
}

impl Header {
    /// The length of a header in bytes, from its second byte.
    pub(super) const fn length_of(second: u8) -> usize {
        let extended = match second & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + extended + if second & MASKED == 0 { 0 } else { 4 }
    }

    /// Checks the first two bytes. Returns the opcode.
    pub(super) fn check(first: u8, second: u8) -> Result<Opcode, ProtocolError> {
        // RFC 6455 §5.2: no extension is negotiated that defines the reserved bits.
        if first & RESERVED != 0 {
            return Err(ProtocolError::ReservedBits);
        }
        let opcode = Opcode::of(first & 15).ok_or(ProtocolError::Opcode)?;
        // RFC 6455 §5.5: control frames have at most 125 bytes and are not fragmented.
        let is_short = usize::from(second & !MASKED) <= MAX_CONTROL;
        if opcode.is_control() && (first & FIN == 0 || !is_short) {
            return Err(ProtocolError::Control);
        }
        Ok(opcode)
    }

    /// Parses a complete header of [`Header::length_of`] bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Header, ProtocolError> {
        let (&[first, second], rest) = bytes.split_first_chunk().ok_or(ProtocolError::Length)?;
        let opcode = Header::check(first, second)?;
        let (length, rest) = match second & !MASKED {
            126 => {
                let (length, rest) = rest.split_first_chunk().ok_or(ProtocolError::Length)?;
                (u64::from(u16::from_be_bytes(*length)), rest)
            }
            127 => {
                let (length, rest) = rest.split_first_chunk().ok_or(ProtocolError::Length)?;
                (u64::from_be_bytes(*length), rest)
            }
            short => (u64::from(short), rest),
        };
        // RFC 6455 §5.2: only the shortest encoding is valid, and the most significant bit is zero.
        let is_shortest = match second & !MASKED {
            126 => length > 125,
            127 => length > 0xffff && length >> 63 == 0,
            _ => true,
        };
        if !is_shortest {
            return Err(ProtocolError::Length);
        }
        let mask = if second & MASKED == 0 {
            None
        } else {
            Some(*rest.first_chunk().ok_or(ProtocolError::Length)?)
        };
        Ok(Header {
            opcode,
            is_final: first & FIN != 0,
            mask,
            length,
        })
    }
}

/// The header of a frame to send. The payload follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl FrameHeader {
    /// The header of a server's message in one frame.
    #[must_use]
    pub fn message(kind: Kind, length: usize) -> FrameHeader {
        FrameHeader::new(kind.opcode(), length, None)
    }

    pub(super) fn new(opcode: Opcode, length: usize, mask: Option<[u8; 4]>) -> FrameHeader {
        let mut header = FrameHeader {
            bytes: [0; MAX_HEADER],
            length: 0,
        };
        header.push(&[FIN | opcode as u8]);
        let masked = if mask.is_some() { MASKED } else { 0 };
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ ..=125), _) => header.push(&[masked | short]),
            (_, Ok(medium)) => {
                header.push(&[masked | 126]);
                header.push(&medium.to_be_bytes());
            }
            _ => {
                header.push(&[masked | 127]);
                header.push(&(length as u64).to_be_bytes());
            }
        }
        if let Some(mask) = mask {
            header.push(&mask);
        }
        header
    }

    fn push(&mut self, bytes: &[u8]) {
        // A header has at most 14 bytes (RFC 6455 §5.2), which is the length of the array.
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        let masks = [None, Some([1, 2, 3, 4])];
        for (length, mask) in [0, 1, 125, 126, 127, 65_535, 65_536, 1 << 20]
            .into_iter()
            .flat_map(|length| masks.map(|mask| (length, mask)))
        {
            let written = FrameHeader::new(Opcode::Binary, length, mask);
            let bytes = written.as_bytes();
            assert_eq!(Header::length_of(bytes[1]), bytes.len());
            let header = Header {
                opcode: Opcode::Binary,
                is_final: true,
                mask,
                length: length as u64,
            };
            assert_eq!(Header::parse(bytes), Ok(header));
            for end in 0..bytes.len() {
                assert!(Header::parse(&bytes[..end]).is_err());
            }
        }
    }

    #[test]
    fn only_the_shortest_length_is_accepted() {
        for bytes in [
            &[0x82, 126, 0, 125][..],
            &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(
                Header::parse(bytes),
                Err(ProtocolError::Length),
                "{bytes:?}"
            );
        }
    }
}
