//! Which protocol a datagram belongs to, and where messages end on a stream (RFC 3261 §18.3, RFC 5626 §3.5, RFC 7983).

use crate::chars::{self, TOKEN};
use crate::header::HeaderKind;
use crate::message::{Limits, Lines, ParseError, length_of};

/// What a datagram on a SIP port is, from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// 0 to 3: STUN, a keep-alive of RFC 5626 §3.5.2 or a client that asks for its address.
    Stun,
    /// A line end, or nothing: a keep-alive that wants no answer.
    KeepAlive,
    /// A byte that a method or a version begins with.
    Sip,
    /// Anything else: the caller drops it.
    Other,
}

impl Packet {
    /// The protocol of a datagram. Line ends before a SIP message do not count (RFC 3261 §7.5).
    #[inline]
    #[must_use]
    pub fn of(datagram: &[u8]) -> Packet {
        let first = datagram.iter().find(|byte| !matches!(byte, b'\r' | b'\n'));
        match first {
            None => Packet::KeepAlive,
            Some(0..=3) => Packet::Stun,
            Some(&byte) if chars::is(byte, TOKEN) => Packet::Sip,
            Some(_) => Packet::Other,
        }
    }
}

/// The answer to a [`Frame::Ping`] (RFC 5626 §4.4.1).
pub const PONG: &[u8] = b"\r\n";

/// Who opened a connection: that side pings, the other side answers (RFC 5626 §3.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opened {
    /// The peer.
    ByPeer,
    /// We: a single line end is an answer to our ping.
    ByUs,
}

/// What a stream's bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// No whole message; the next one has at least this many bytes.
    Need(usize),
    /// A message, for [`crate::Message::parse_with`].
    Message {
        /// Its length in bytes.
        len: usize,
    },
    /// A line end between messages: an answer to a ping of ours, or nothing at all.
    LineEnd {
        /// Its length in bytes.
        len: usize,
    },
    /// A ping: answer with [`PONG`].
    Ping {
        /// Its length in bytes.
        len: usize,
    },
}

/// A stream that cannot be cut into messages any more. It is closed, after a 400 if [`crate::verdict::judge_bytes`]
/// says so of the first `head_len` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream cannot be framed: {error}")]
pub struct Broken {
    /// Why.
    pub error: ParseError,
    /// How many bytes there are to answer by; 0 if they are not SIP.
    pub head_len: usize,
}

/// Cuts one stream into messages. It remembers how far it has looked, so that bytes that come one by one cost no more
/// than bytes that come at once.
#[derive(Clone, Debug)]
pub struct Framer {
    opened: Opened,
    /// No blank line ends in front of here.
    looked_at: usize,
    /// The length of the message whose header is whole; 0 if there is none.
    whole: usize,
    /// The last thing passed was a single line end: another one makes it a ping.
    is_half_ping: bool,
}

impl Framer {
    /// For a connection that has just been opened.
    #[must_use]
    pub const fn new(opened: Opened) -> Framer {
        Framer {
            opened,
            looked_at: 0,
            whole: 0,
            is_half_ping: false,
        }
    }

    /// Looks at what has been received and not been passed yet. Unless it is [`Frame::Need`], the caller takes `len`
    /// bytes off the front before it calls again.
    ///
    /// # Errors
    /// [`Broken`] if no message can be found any more: a header that is too long, or without a usable Content-Length.
    pub fn next(&mut self, bytes: &[u8], limits: &Limits) -> Result<Frame, Broken> {
        let Some(&first) = bytes.first() else {
            return Ok(Frame::Need(1));
        };
        if first == b'\r' {
            return self.line_end(bytes);
        }
        if self.whole == 0 {
            if !chars::is(first, TOKEN) {
                return Err(broken(ParseError::RequestLine, 0));
            }
            match self.find_head(bytes, limits)? {
                Some(whole) => self.whole = whole,
                None => return Ok(Frame::Need(bytes.len() + 1)),
            }
        }
        if bytes.len() < self.whole {
            return Ok(Frame::Need(self.whole));
        }
        let len = self.whole;
        *self = Framer::new(self.opened);
        Ok(Frame::Message { len })
    }

    /// Line ends between messages.
    fn line_end(&mut self, bytes: &[u8]) -> Result<Frame, Broken> {
        match bytes {
            [b'\r'] => Ok(Frame::Need(2)),
            [b'\r', b'\n', b'\r', b'\n', ..]
                if self.opened == Opened::ByPeer && !self.is_half_ping =>
            {
                Ok(Frame::Ping { len: 4 })
            }
            [b'\r', b'\n', ..] if self.is_half_ping => {
                self.is_half_ping = false;
                Ok(Frame::Ping { len: 2 })
            }
            [b'\r', b'\n', ..] => {
                // A ping may come in two parts.
                self.is_half_ping = self.opened == Opened::ByPeer;
                Ok(Frame::LineEnd { len: 2 })
            }
            _ => Err(broken(ParseError::LineEnd, 0)),
        }
    }

    /// The length of the message, once its header is whole.
    fn find_head(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Broken> {
        let limit = limits.head_bytes.min(usize::from(u16::MAX));
        let head = bytes.get(..limit).unwrap_or(bytes);
        let from = self.looked_at.saturating_sub(3);
        let found = memchr::memmem::find(head.get(from..).unwrap_or_default(), b"\r\n\r\n");
        let Some(at) = found else {
            self.looked_at = head.len();
            return match bytes.len() > limit {
                true => Err(broken(ParseError::HeadTooLong, limit)),
                false => Ok(None),
            };
        };
        let head_len = from + at + 4;
        let head = head.get(..head_len).unwrap_or_default();
        let body_len = body_len(head).map_err(|error| broken(error, head_len))?;
        match body_len <= limits.body_bytes {
            true => Ok(Some(head_len + body_len)),
            false => Err(broken(ParseError::BodyTooLong, head_len)),
        }
    }
}

const fn broken(error: ParseError, head_len: usize) -> Broken {
    Broken { error, head_len }
}

/// Content-Length, which must be there once (RFC 3261 §20.14).
fn body_len(head: &[u8]) -> Result<usize, ParseError> {
    let start = memchr::memmem::find(head, b"\r\n").ok_or(ParseError::Unfinished)?;
    let mut lines = Lines::new(head, start + 2);
    let mut length = None;
    while let Some(line) = lines.next()? {
        if line.kind != HeaderKind::ContentLength {
            continue;
        }
        let value = head.get(line.value_start..line.value_end);
        let number = length_of(value.unwrap_or_default())?;
        if length.replace(number).is_some() {
            return Err(ParseError::ContentLength);
        }
    }
    length.ok_or(ParseError::ContentLengthMissing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] = b"OPTIONS sip:a SIP/2.0\r\nl: 4\r\n\r\nbody";

    /// Everything in `stream`, which arrives in pieces of `step` bytes.
    fn cut(stream: &[u8], step: usize, opened: Opened) -> Vec<Result<Frame, ParseError>> {
        let (mut framer, mut frames) = (Framer::new(opened), Vec::new());
        let (mut start, mut end) = (0, 0);
        while end < stream.len() {
            end = (end + step).min(stream.len());
            loop {
                let frame = framer.next(&stream[start..end], &Limits::DEFAULT);
                match frame {
                    Ok(Frame::Need(need)) => {
                        assert!(need > end - start);
                        break;
                    }
                    Ok(Frame::Message { len } | Frame::LineEnd { len } | Frame::Ping { len }) => {
                        start += len;
                        frames.push(Ok(frame.expect("just matched")));
                    }
                    Err(broken) => {
                        frames.push(Err(broken.error));
                        return frames;
                    }
                }
            }
        }
        frames
    }

    #[test]
    fn messages_are_cut_however_they_arrive() {
        let stream = [ONE, ONE, ONE].concat();
        let whole = vec![Ok(Frame::Message { len: ONE.len() }); 3];
        for step in 1..stream.len() {
            assert_eq!(cut(&stream, step, Opened::ByPeer), whole, "{step}");
        }
    }

    #[test]
    fn a_ping_is_a_ping_in_one_piece_or_two() {
        let stream = [b"\r\n\r\n", ONE, b"\r\n\r\n"].concat();
        let message = Ok(Frame::Message { len: ONE.len() });
        let ping = Ok(Frame::Ping { len: 4 });
        assert_eq!(
            cut(&stream, stream.len(), Opened::ByPeer),
            [ping, message, ping]
        );
        let halves = [Ok(Frame::LineEnd { len: 2 }), Ok(Frame::Ping { len: 2 })];
        assert_eq!(cut(b"\r\n\r\n", 1, Opened::ByPeer), halves);
    }

    #[test]
    fn a_line_end_on_a_connection_of_ours_answers_our_ping() {
        let end = Ok(Frame::LineEnd { len: 2 });
        assert_eq!(cut(b"\r\n\r\n", 4, Opened::ByUs), [end, end]);
        let stream = [b"\r\n", ONE].concat();
        let message = Ok(Frame::Message { len: ONE.len() });
        assert_eq!(cut(&stream, 5, Opened::ByUs), [end, message]);
        assert_eq!(cut(&stream, 5, Opened::ByPeer), [end, message]);
    }

    #[test]
    fn framing_errors_are_named() {
        for (text, error) in [
            ("\x16\x03\x01", ParseError::RequestLine),
            ("\rx", ParseError::LineEnd),
            (
                "OPTIONS sip:a SIP/2.0\r\n\r\n",
                ParseError::ContentLengthMissing,
            ),
            (
                "OPTIONS sip:a SIP/2.0\r\nl: five\r\n\r\n",
                ParseError::ContentLength,
            ),
            (
                "OPTIONS sip:a SIP/2.0\r\nl: -1\r\n\r\n",
                ParseError::ContentLength,
            ),
            (
                "OPTIONS sip:a SIP/2.0\r\nl: 0\r\nl: 0\r\n\r\n",
                ParseError::ContentLength,
            ),
            (
                "OPTIONS sip:a SIP/2.0\r\nl: 65536\r\n\r\n",
                ParseError::BodyTooLong,
            ),
            (
                "OPTIONS sip:a SIP/2.0\r\nbroken\r\n\r\n",
                ParseError::HeaderName,
            ),
        ] {
            for step in [1, text.len()] {
                assert_eq!(
                    cut(text.as_bytes(), step, Opened::ByPeer).last(),
                    Some(&Err(error)),
                    "{text}"
                );
            }
        }
        let endless = vec![b'A'; 70_000];
        assert_eq!(
            cut(&endless, 1000, Opened::ByPeer),
            [Err(ParseError::HeadTooLong)]
        );
    }

    #[test]
    fn a_datagram_is_known_by_its_first_byte() {
        for (datagram, packet) in [
            (&b"\0\x01\0\0"[..], Packet::Stun),
            (b"\x03", Packet::Stun),
            (b"", Packet::KeepAlive),
            (b"\r\n\r\n", Packet::KeepAlive),
            (b"\r\nINVITE", Packet::Sip),
            (b"SIP/2.0", Packet::Sip),
            (b"!x", Packet::Sip),
            (b"\x16\x03", Packet::Other),
            (b"\x40\x00", Packet::Other),
            (b"\x80\x00", Packet::Other),
            (b"\xF8", Packet::Other),
        ] {
            assert_eq!(Packet::of(datagram), packet, "{datagram:?}");
        }
    }
}
