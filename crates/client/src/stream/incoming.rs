//! Bytes that came, as messages.

use stun::stream::Frame;

use super::{StreamError, empty};

/// What came by a connection and was not handed out yet.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Where the next message begins.
    next: usize,
}

impl Incoming {
    /// The next whole message, without its padding.
    ///
    /// # Errors
    /// [`StreamError::NotStun`]: no further message can be found.
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
                Ok(Some(&self.bytes[start..start + len]))
            }
            Frame::Invalid => Err(StreamError::NotStun),
        }
    }

    /// Where more bytes go, behind what was not handed out.
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
