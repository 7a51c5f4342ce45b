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
    /// Too short to decide, or not yet complete. Call again when the buffer holds at least this many bytes, which is
    /// more than now.
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
    frame_with(buffer, ChannelNumber::new)
}

/// Says what `buffer` starts with, where channels may have a number of RFC 5766: see [`ChannelNumber::of_rfc5766`].
#[inline]
#[must_use]
pub fn frame_rfc5766(buffer: &[u8]) -> Frame {
    frame_with(buffer, ChannelNumber::of_rfc5766)
}

/// The first frame of a stream. `channel` says which numbers are channels.
#[inline]
fn frame_with(buffer: &[u8], channel: impl Fn(u16) -> Option<ChannelNumber>) -> Frame {
    let Some(&first) = buffer.first() else {
        return Frame::Need(channel_data::HEADER_LEN);
    };
    let is_stun = Packet::of_byte(first) == Packet::Stun;
    // All numbers with the same first byte are channels, or none is.
    if !is_stun && channel(u16::from_be_bytes([first, 0])).is_none() {
        return Frame::Invalid;
    }
    let Some(&[_, _, l0, l1]) = buffer.first_chunk() else {
        return Frame::Need(channel_data::HEADER_LEN);
    };
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    if is_stun && !is_in_step(buffer, length) {
        return Frame::Invalid;
    }
    if is_stun && buffer.len() < field::COOKIE.end {
        // The length counts only with the cookie: else an owner that waits for the whole message never sees the wrong
        // cookie.
        return Frame::Need(field::COOKIE.end);
    }
    let header = if is_stun {
        HEADER_LEN
    } else {
        channel_data::HEADER_LEN
    };
    let len = header + length;
    // RFC 8656 §12.5: over TCP and TLS, ChannelData is padded to a multiple of four bytes. STUN is one already.
    let padded_len = len.next_multiple_of(4);
    if buffer.len() < padded_len {
        Frame::Need(padded_len)
    } else {
        Frame::Message { len, padded_len }
    }
}

/// Whether the length of a STUN message and the received part of its magic cookie are valid.
///
/// If the caller has lost the message boundaries, it must not wait for 64 kB. So the cookie is checked before the
/// length is used.
#[inline]
fn is_in_step(buffer: &[u8], length: usize) -> bool {
    let end = buffer.len().min(field::COOKIE.end);
    let cookie = buffer.get(field::COOKIE.start..end).unwrap_or_default();
    length.is_multiple_of(4) && MAGIC_COOKIE.to_be_bytes().starts_with(cookie)
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
            let need = match end {
                0..4 => 4,
                4..8 => 8,
                _ => STUN.len(),
            };
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
    fn the_older_channel_numbers_are_framed_on_request_only() {
        let older = [0x7F, 0xFF, 0, 1, 9, 0, 0, 0];
        assert_eq!(
            (frame(&older), frame(&older[..1])),
            (Frame::Invalid, Frame::Invalid)
        );
        assert_eq!(frame_rfc5766(&older[..1]), Frame::Need(4));
        let whole = Frame::Message {
            len: 5,
            padded_len: 8,
        };
        assert_eq!(
            (frame_rfc5766(&older[..7]), frame_rfc5766(&older)),
            (Frame::Need(8), whole)
        );
        assert_eq!(frame_rfc5766(&[0x80]), Frame::Invalid);
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
