//! Reading what the kernel says: messages in a datagram, attributes in a message.

use std::io;
use std::net::IpAddr;

/// Type of the end of a list.
const NLMSG_DONE: u16 = 3;
/// Type of a result: an error number, 0 for "done".
const NLMSG_ERROR: u16 = 2;

const HEADER_LEN: usize = 16;

/// One message of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    /// The message type, for example RTM_NEWLINK.
    pub(super) kind: u16,
    /// The number of the request that it answers; 0 for an event.
    pub(super) sequence: u32,
    /// What follows the header.
    pub(super) body: &'a [u8],
}

impl Message<'_> {
    /// The end of an answer, with its result.
    pub(super) fn result(&self) -> Option<io::Result<()>> {
        if self.kind != NLMSG_ERROR && self.kind != NLMSG_DONE {
            return None;
        }
        // A list may end without a number.
        let code = self.body.get(..4).and_then(|b| b.try_into().ok());
        Some(match code.map_or(0, i32::from_ne_bytes) {
            code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
            _ => Ok(()),
        })
    }
}

/// The messages of one datagram. A truncated message is left out.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let header = rest.get(..HEADER_LEN)?;
        let length = usize::try_from(u32_at(header, 0)?).ok()?;
        let message = Message {
            kind: u16_at(header, 4)?,
            sequence: u32_at(header, 8)?,
            body: rest.get(HEADER_LEN..length)?,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes behind the first `fixed` bytes: type without its flags, and value.
pub(super) fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    /// Marks nesting and byte order.
    const FLAGS: u16 = 0xc000;
    let mut rest = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & !FLAGS;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// An address, of the family that its length shows.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?)),
        _ => None,
    }
}

/// A text that ends with a zero byte, or with the attribute.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_cut_off_is_read() {
        let mut datagram = Vec::new();
        for (length, kind) in [(24u32, 16u16), (17, 20), (30, 24)] {
            datagram.extend(length.to_ne_bytes());
            datagram.extend(kind.to_ne_bytes());
            datagram.extend([0; 10]);
            datagram.extend(vec![7; length as usize - HEADER_LEN]);
            datagram.resize(datagram.len().next_multiple_of(4), 0);
        }
        let whole: Vec<_> = messages(&datagram)
            .map(|m| (m.kind, m.body.len()))
            .collect();
        assert_eq!(whole, [(16, 8), (20, 1), (24, 14)]);
        for length in 0..datagram.len() {
            for message in messages(&datagram[..length]) {
                for (_, value) in attributes(message.body, 2) {
                    assert!(value.len() < length);
                }
            }
        }
    }

    #[test]
    fn attributes_end_where_their_length_makes_no_sense() {
        let bytes = [9, 9, 6, 0, 1, 0, b'a', 0, 0, 0, 3, 0, 2, 0];
        let found: Vec<_> = attributes(&bytes, 2).collect();
        assert_eq!(found, [(1, &b"a\0"[..])]);
        assert_eq!(text(b"lo\0x"), "lo");
        assert_eq!(address(&[1, 2, 3]), None);
    }
}
