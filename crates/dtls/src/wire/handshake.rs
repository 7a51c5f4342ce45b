//! The header of handshake messages and their fragments (RFC 6347 §4.2.2).
//!
//! ```text
//!  0      1        4             6                 9                 12
//! +------+--------+-------------+-----------------+-----------------+-----
//! | type | length | message_seq | fragment_offset | fragment_length | body
//! +------+--------+-------------+-----------------+-----------------+-----
//! ```

use super::Reader;

/// Length of the header.
pub(crate) const HEADER: usize = 12;

/// Types of handshake messages.
pub(crate) mod kind {
    pub(crate) const CLIENT_HELLO: u8 = 1;
    pub(crate) const SERVER_HELLO: u8 = 2;
    pub(crate) const HELLO_VERIFY_REQUEST: u8 = 3;
    pub(crate) const CERTIFICATE: u8 = 11;
    pub(crate) const SERVER_KEY_EXCHANGE: u8 = 12;
    pub(crate) const CERTIFICATE_REQUEST: u8 = 13;
    pub(crate) const SERVER_HELLO_DONE: u8 = 14;
    pub(crate) const CLIENT_KEY_EXCHANGE: u8 = 16;
    pub(crate) const FINISHED: u8 = 20;
}

/// A fragment of a message; often all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    pub(crate) kind: u8,
    /// Length of the whole message's body.
    pub(crate) length: usize,
    pub(crate) sequence: u16,
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Takes the next fragment from a record. `None` if it is malformed.
    pub(crate) fn take(reader: &mut Reader<'a>) -> Option<Fragment<'a>> {
        let kind = reader.u8()?;
        let length = reader.u24()?;
        let sequence = reader.u16()?;
        let offset = reader.u24()?;
        let bytes = reader.vector24()?;
        (offset + bytes.len() <= length).then_some(Fragment {
            kind,
            length,
            sequence,
            offset,
            bytes,
        })
    }

    /// Whether it is the whole message.
    pub(crate) const fn is_whole(&self) -> bool {
        self.bytes.len() == self.length
    }
}

/// Appends a handshake message with its header, in one fragment. The transcript has messages in this form (RFC 6347
/// §4.2.6). `body` writes what follows the header.
pub(crate) fn message(out: &mut Vec<u8>, kind: u8, sequence: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + HEADER, 0);
    body(out);
    let length = out.len() - start - HEADER;
    let header = header(kind, length, sequence, 0, length);
    out[start..start + HEADER].copy_from_slice(&header);
}

/// The header of a fragment. `length` is that of the whole message's body. It must be below 2^24.
pub(crate) fn header(
    kind: u8,
    length: usize,
    sequence: u16,
    offset: usize,
    fragment_length: usize,
) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = kind;
    bytes[4..6].copy_from_slice(&sequence.to_be_bytes());
    for (at, value) in [(1, length), (6, offset), (9, fragment_length)] {
        bytes[at..at + 3].copy_from_slice(&(value as u32).to_be_bytes()[1..]);
    }
    bytes
}
