//! Splits received bytes into messages.

use stun::stream::Frame;

use super::{StreamError, empty};

/// Received bytes that [`next_message`](Incoming::next_message) has not returned yet.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Index of the next message in `bytes`.
    next: usize,
}

impl Incoming {
    /// The next complete message, without its padding.
    ///
    /// # Errors
    /// [`StreamError::NotStun`]: the bytes are not a message, so no further message can be found.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, StreamError> {
        let rest = &self.bytes[self.next..];
        if rest.is_empty() {
            return Ok(None);
        }
        match stun::stream::frame(rest) {
            Frame::Need(_) => Ok(None),
            Frame::Message { len, padded_len } => {
                let start = self.next;
                self.next += padded_len;
                // `frame` returns a message only if it is complete.
                Ok(Some(&self.bytes[start..start + len]))
            }
            Frame::Invalid => Err(StreamError::NotStun),
        }
    }

    /// The bytes that were not returned as messages: behind a ConnectionBind response the stream has no messages any
    /// more (RFC 6062 §5.4).
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.next..]
    }

    /// Takes `count` bytes of [`rest`](Incoming::rest) away, at most all of them.
    pub fn consume(&mut self, count: usize) {
        self.next = (self.next + count).min(self.bytes.len());
    }

    /// The buffer for received bytes. It still begins with bytes that were not returned; append to it.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        if self.next == self.bytes.len() {
            empty(&mut self.bytes);
        } else {
            self.bytes.drain(..self.next);
        }
        self.next = 0;
        &mut self.bytes
    }
}
