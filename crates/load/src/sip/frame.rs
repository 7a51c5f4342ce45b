//! Messages out of a stream (RFC 3261 §18.3): a head, an empty line, as many bytes of body as Content-Length says.

use memchr::memmem;

use super::lines::{Lines, leading_number};

/// Longest head, and longest body, of a message that is taken from a stream.
pub(super) const MAX_PART_BYTES: usize = 65_536;

/// What a buffer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A whole message of this many bytes.
    Message(usize),
    /// This many bytes of line ends between messages, or a keep-alive (RFC 5626 §3.5.1).
    Blank(usize),
    /// Not enough yet.
    Partial,
    /// No message can begin like this: the stream is lost.
    Broken,
}

/// Looks at the start of `buffer`.
pub(crate) fn next(buffer: &[u8]) -> Frame {
    let blank = buffer
        .iter()
        .take_while(|byte| matches!(byte, b'\r' | b'\n'))
        .count();
    if blank > 0 {
        return Frame::Blank(blank);
    }
    let Some(end) = memmem::find(buffer, b"\r\n\r\n") else {
        return if buffer.len() > MAX_PART_BYTES {
            Frame::Broken
        } else {
            Frame::Partial
        };
    };
    let head = end + 4;
    let Some(length) = Lines::of(&buffer[..head]).find(b"Content-Length", b"l") else {
        // RFC 3261 §18.3: over a stream the length must be said.
        return Frame::Broken;
    };
    let body = leading_number(length);
    if body > MAX_PART_BYTES as u64 {
        return Frame::Broken;
    }
    let whole = head + body as usize;
    if buffer.len() < whole {
        Frame::Partial
    } else {
        Frame::Message(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_where_its_messages_end() {
        let message = b"OPTIONS sip:a SIP/2.0\r\nl: 3\r\n\r\nabc";
        let mut stream = message.to_vec();
        stream.extend_from_slice(b"\r\n\r\n");
        assert_eq!(next(&stream), Frame::Message(message.len()));
        assert_eq!(next(&stream[message.len()..]), Frame::Blank(4));
        for end in 0..message.len() {
            assert_eq!(next(&message[..end]), Frame::Partial, "{end}");
        }
    }

    #[test]
    fn a_message_without_a_length_breaks_the_stream() {
        assert_eq!(next(b"OPTIONS sip:a SIP/2.0\r\n\r\n"), Frame::Broken);
        assert_eq!(
            next(b"OPTIONS sip:a SIP/2.0\r\nl: 99999999\r\n\r\n"),
            Frame::Broken
        );
        assert_eq!(next(&vec![b'a'; MAX_PART_BYTES + 1]), Frame::Broken);
    }
}
