//! Cutting a byte stream into STUN messages and ChannelData (RFC 8489 §6.2.2, RFC 8656 §12.5).
//!
//! Over TCP and TLS the messages follow each other; the length field of each says where the next begins. Ask
//! [`frame`] what the buffer starts with; it keeps no state, so the buffer may grow, move and be drained as its owner
//! likes. A stream that is out of step stays so: after [`Frame::Invalid`] it must be closed.

use crate::ChannelNumber;
use crate::channel_data;
use crate::demux::Packet;
use crate::header::{HEADER_LEN, MAGIC_COOKIE, field};

/// What a buffer starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Too little to say or not yet whole: ask again when the buffer holds at least this many bytes, which is more than
    /// it holds now.
    Need(usize),
    /// A whole message.
    Message {
        /// Bytes of the message, for [`Message::parse`](crate::Message::parse) or
        /// [`ChannelData::parse_frame`](crate::channel_data::ChannelData::parse_frame); its first byte says which.
        len: usize,
        /// Bytes to drain: the message and its padding. Not below `len`, and by up to 3 bytes above it.
        padded_len: usize,
    },
    /// Neither STUN nor ChannelData: close the connection.
    Invalid,
}

/// Says what `buffer` starts with.
#[inline]
#[must_use]
pub fn frame(buffer: &[u8]) -> Frame {
    let (len, padded_len) = match (Packet::of(buffer), buffer.first_chunk()) {
        (Packet::Stun | Packet::TurnChannel, None) => return Frame::Need(channel_data::HEADER_LEN),
        (Packet::Stun, Some(head)) => match stun_len(head, buffer) {
            Some(len) => (len, len),
            None => return Frame::Invalid,
        },
        (Packet::TurnChannel, Some(&[n0, n1, l0, l1])) => {
            if ChannelNumber::new(u16::from_be_bytes([n0, n1])).is_none() {
                return Frame::Invalid;
            }
            let len = channel_data::HEADER_LEN + usize::from(u16::from_be_bytes([l0, l1]));
            // RFC 8656 §12.5: over TCP and TLS the message is padded to a multiple of four bytes.
            (len, len.next_multiple_of(4))
        }
        (Packet::Other, _) if buffer.is_empty() => return Frame::Need(channel_data::HEADER_LEN),
        _ => return Frame::Invalid,
    };
    if buffer.len() < padded_len {
        Frame::Need(padded_len)
    } else {
        Frame::Message { len, padded_len }
    }
}

/// Bytes of a STUN message, unless its length or as much of its cookie as is there is wrong.
#[inline]
fn stun_len(&[_, _, l0, l1]: &[u8; 4], buffer: &[u8]) -> Option<usize> {
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let cookie = buffer
        .get(field::COOKIE.start..buffer.len().min(field::COOKIE.end))
        .unwrap_or_default();
    // A stream that is out of step must not make us wait for 64 kB: the cookie is checked as it arrives.
    let in_step = length.is_multiple_of(4) && MAGIC_COOKIE.to_be_bytes().starts_with(cookie);
    in_step.then_some(HEADER_LEN + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUN: [u8; 24] = [
        0, 1, 0, 4, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x80, 0x22, 0, 0,
    ];
    const CHANNEL: [u8; 12] = [0x40, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0];

    #[test]
    fn a_message_is_found_whatever_the_cut() {
        for end in 0..STUN.len() {
            let need = if end < 4 { 4 } else { STUN.len() };
            assert_eq!(frame(&STUN[..end]), Frame::Need(need), "{end}");
        }
        assert_eq!(
            frame(&STUN),
            Frame::Message {
                len: 24,
                padded_len: 24
            }
        );
        for end in 0..CHANNEL.len() {
            let need = if end < 4 { 4 } else { CHANNEL.len() };
            assert_eq!(frame(&CHANNEL[..end]), Frame::Need(need), "{end}");
        }
        assert_eq!(
            frame(&CHANNEL),
            Frame::Message {
                len: 9,
                padded_len: 12
            }
        );
    }

    #[test]
    fn messages_back_to_back() {
        let stream = [&CHANNEL[..], &STUN, &CHANNEL, &[0x4F, 0xFF, 0, 0]].concat();
        let mut rest = &stream[..];
        let mut lengths = Vec::new();
        while let Frame::Message { len, padded_len } = frame(rest) {
            lengths.push(len);
            rest = &rest[padded_len..];
        }
        assert_eq!((lengths, rest.len()), (vec![9, 24, 9, 4], 0));
    }

    #[test]
    fn a_stream_out_of_step_is_noticed_at_once() {
        assert_eq!(frame(b"POST / HTTP/1.1"), Frame::Invalid);
        // "GE" is a channel number: only its owner can tell that nobody has bound channel 0x4745.
        assert_eq!(frame(b"GET / HTTP/1.1"), Frame::Need(0x5424));
        assert_eq!(frame(&[0, 1, 0, 3]), Frame::Invalid);
        assert_eq!(frame(&[0, 1, 0, 4, 0x20]), Frame::Invalid);
        assert_eq!(frame(&[0x16]), Frame::Invalid);
        assert_eq!(frame(&[0x50, 0, 0, 0]), Frame::Invalid);
    }
}
