//! The record header (RFC 6347 §4.1).
//!
//! ```text
//!  0      1          3        5                  11       13
//! +------+----------+--------+-------------------+--------+---------
//! | type | version  | epoch  | sequence number   | length | fragment
//! +------+----------+--------+-------------------+--------+---------
//! ```

use super::{DTLS12, Reader};

/// Length of the header.
pub(crate) const HEADER: usize = 13;
/// The longest fragment of an encrypted record (RFC 6347 §4.1: TLS's limit, 2^14 + 2048).
const MAX_FRAGMENT: usize = (1 << 14) + 2048;
/// A sequence number has 48 bits.
pub(crate) const MAX_SEQUENCE: u64 = (1 << 48) - 1;

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ContentType {
    ChangeCipherSpec = 20,
    Alert = 21,
    Handshake = 22,
    ApplicationData = 23,
}

impl ContentType {
    const fn from_byte(byte: u8) -> Option<ContentType> {
        match byte {
            20 => Some(ContentType::ChangeCipherSpec),
            21 => Some(ContentType::Alert),
            22 => Some(ContentType::Handshake),
            23 => Some(ContentType::ApplicationData),
            _ => None,
        }
    }
}

/// A parsed header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) content: ContentType,
    pub(crate) version: u16,
    pub(crate) epoch: u16,
    pub(crate) sequence: u64,
    /// Length of the fragment. `parse` has checked that the fragment is complete.
    pub(crate) length: usize,
}

impl Header {
    /// The header of the first record in `bytes`, whose fragment follows.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Header> {
        let mut reader = Reader::new(bytes);
        let content = ContentType::from_byte(reader.u8()?)?;
        let version = reader.u16()?;
        // RFC 6347 §4.1: DTLS 1.0 and 1.2 are 0xfeff and 0xfefd; a first ClientHello may have either.
        if version >> 8 != 0xfe {
            return None;
        }
        let epoch = reader.u16()?;
        let [a, b, c, d, e, f] = *reader.array::<6>()?;
        let sequence = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let length = usize::from(reader.u16()?);
        (length <= MAX_FRAGMENT && length <= reader.left()).then_some(Header {
            content,
            version,
            epoch,
            sequence,
            length,
        })
    }

    /// Epoch and sequence number as one number: what the AEAD's nonce and additional data hold (RFC 6347 §4.1.2.1).
    pub(crate) const fn number(&self) -> u64 {
        number(self.epoch, self.sequence)
    }
}

/// Epoch and sequence number as one number.
pub(crate) const fn number(epoch: u16, sequence: u64) -> u64 {
    (epoch as u64) << 48 | sequence
}

/// A header of DTLS 1.2.
pub(crate) fn header(
    content: ContentType,
    epoch: u16,
    sequence: u64,
    length: usize,
) -> [u8; HEADER] {
    with_version(content, DTLS12, epoch, sequence, length)
}

/// A header of any version.
pub(crate) fn with_version(
    content: ContentType,
    version: u16,
    epoch: u16,
    sequence: u64,
    length: usize,
) -> [u8; HEADER] {
    debug_assert!(sequence <= MAX_SEQUENCE && length <= MAX_FRAGMENT);
    let mut bytes = [0; HEADER];
    bytes[0] = content as u8;
    bytes[1..3].copy_from_slice(&version.to_be_bytes());
    bytes[3..11].copy_from_slice(&number(epoch, sequence).to_be_bytes());
    bytes[11..].copy_from_slice(&(length as u16).to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_written() {
        let mut bytes = header(ContentType::ApplicationData, 1, 0x0102_0304_0506, 3).to_vec();
        assert!(Header::parse(&bytes).is_none(), "the fragment is missing");
        bytes.extend_from_slice(b"abc");
        let parsed = Header::parse(&bytes).unwrap();
        assert_eq!(
            (
                parsed.content,
                parsed.version,
                parsed.epoch,
                parsed.sequence,
                parsed.length
            ),
            (ContentType::ApplicationData, DTLS12, 1, 0x0102_0304_0506, 3)
        );
        assert_eq!(parsed.number(), 0x0001_0102_0304_0506);
    }

    #[test]
    fn other_versions_and_contents_are_no_records() {
        let good = header(ContentType::Handshake, 0, 0, 0);
        assert!(Header::parse(&good).is_some());
        for (at, byte) in [(0, 19), (0, 24), (0, 0), (1, 3), (11, 0xff)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Header::parse(&bad).is_none(), "byte {at} is {byte}");
        }
        assert!(Header::parse(&good[..12]).is_none());
    }
}
