//! A place in a header's value, and the steps of the grammar from there.

use crate::chars::{self, LWS};

/// Reads a value from its start to its end; every step is linear in what it passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes passed so far.
    #[inline]
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// What is left.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// What has been passed since `from`.
    #[inline]
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        self.bytes.get(from..self.at).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn skip(&mut self, n: usize) {
        self.at = (self.at + n).min(self.bytes.len());
    }

    /// Passes `byte`, if it is next.
    #[inline]
    pub(crate) fn skip_if(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    pub(crate) fn skip_lws(&mut self) {
        while self.peek().is_some_and(|byte| chars::is(byte, LWS)) {
            self.at += 1;
        }
    }

    /// Passes and returns the bytes of `class`, perhaps none.
    #[inline]
    pub(crate) fn take(&mut self, class: u16) -> &'a [u8] {
        let rest = self.rest();
        let end = rest.iter().position(|&byte| !chars::is(byte, class));
        let taken = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.at += taken.len();
        taken
    }

    /// Passes a separator and the white space around it.
    #[inline]
    pub(crate) fn skip_separator(&mut self, byte: u8) -> bool {
        let from = self.at;
        self.skip_lws();
        if self.skip_if(byte) {
            self.skip_lws();
            return true;
        }
        self.at = from;
        false
    }

    /// Passes a quoted string and returns it with its quotes; `None` if there is none or it does not end.
    #[inline]
    pub(crate) fn quoted(&mut self) -> Option<&'a [u8]> {
        let from = self.at;
        if !self.skip_if(b'"') {
            return None;
        }
        loop {
            let hit = memchr::memchr2(b'"', b'\\', self.rest())?;
            self.at += hit + 1;
            if self.bytes.get(self.at - 1) == Some(&b'"') {
                return Some(self.since(from));
            }
            // RFC 3261 §25.1: a quoted-pair is a backslash and any byte but a line end.
            match self.peek() {
                None | Some(b'\r' | b'\n') => return None,
                Some(_) => self.at += 1,
            }
        }
    }

    /// Passes bytes up to `byte`, which is passed too, and returns them; `None` if it does not occur.
    #[inline]
    pub(crate) fn until(&mut self, byte: u8) -> Option<&'a [u8]> {
        let length = memchr::memchr(byte, self.rest())?;
        let passed = self.rest().get(..length)?;
        self.at += length + 1;
        Some(passed)
    }
}
