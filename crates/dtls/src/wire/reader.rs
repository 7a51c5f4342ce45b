//! A cursor over received bytes. Every read may fail, none may panic.

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes are left.
    pub(crate) const fn left(&self) -> usize {
        self.0.len()
    }

    /// What lies between this cursor and a later one over the same bytes.
    pub(crate) fn until(self, later: &Reader<'a>) -> &'a [u8] {
        &self.0[..self.0.len() - later.0.len()]
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(length)?;
        self.0 = left;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, left) = self.0.split_first_chunk::<N>()?;
        self.0 = left;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    pub(crate) fn u24(&mut self) -> Option<usize> {
        let [a, b, c] = *self.array::<3>()?;
        Some(u32::from_be_bytes([0, a, b, c]) as usize)
    }

    /// A vector with a length of one byte (RFC 5246 §4.3).
    pub(crate) fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A vector with a length of two bytes.
    pub(crate) fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// A vector with a length of three bytes.
    pub(crate) fn vector24(&mut self) -> Option<&'a [u8]> {
        let length = self.u24()?;
        self.take(length)
    }

    /// `None` if bytes are left.
    pub(crate) fn end(self) -> Option<()> {
        self.is_empty().then_some(())
    }
}

/// The 16-bit values of a vector. Ignores a last odd byte: the caller must refuse such a vector.
pub(crate) fn u16s(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}
