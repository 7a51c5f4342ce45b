//! Datagrams, several at a time.

/// One or more datagrams from one source, back to back: all `stride` bytes long, except that the last may be
/// shorter.
///
/// ```text
/// bytes  |<-- stride -->|<-- stride -->|<- rest ->|
///        [ datagram 0  ][ datagram 1  ][ dgram 2 ]
/// ```
///
/// This is how UDP_GRO hands them over; a single datagram is a run whose stride is its length.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The datagrams' payloads.
    pub bytes: &'a [u8],
    /// The length of each datagram but the last, in bytes; 0 only for a single empty datagram.
    pub stride: usize,
    /// The TOS or traffic class byte they arrived with (DSCP and ECN).
    pub tos: u8,
}

impl<'a> Run<'a> {
    /// A single datagram that arrived with TOS 0.
    #[must_use]
    pub const fn single(bytes: &'a [u8]) -> Run<'a> {
        Run {
            bytes,
            stride: bytes.len(),
            tos: 0,
        }
    }

    /// The first datagram. An empty slice for a run that holds one empty datagram.
    #[must_use]
    pub fn first(&self) -> &'a [u8] {
        self.bytes.get(..self.stride).unwrap_or(self.bytes)
    }

    /// How many datagrams there are; at least 1.
    #[must_use]
    pub const fn count(&self) -> usize {
        if self.stride == 0 || self.bytes.is_empty() {
            1
        } else {
            self.bytes.len().div_ceil(self.stride)
        }
    }

    /// What is left of the run after its first `covered` datagrams; `None` if nothing is.
    #[must_use]
    pub fn skip(&self, covered: usize) -> Option<Run<'a>> {
        let bytes = self.bytes.get(covered.checked_mul(self.stride)?..)?;
        (!bytes.is_empty()).then_some(Run { bytes, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_into_its_datagrams() {
        let run = Run {
            bytes: &[1, 1, 1, 2, 2, 2, 3],
            stride: 3,
            tos: 0,
        };
        assert_eq!(run.count(), 3);
        assert_eq!(run.first(), [1, 1, 1]);
        let rest = run.skip(2).expect("one is left");
        assert_eq!((rest.first(), rest.count()), (&[3][..], 1));
        assert!(run.skip(3).is_none());
    }

    #[test]
    fn an_empty_datagram_is_a_run_of_one() {
        let run = Run::single(&[]);
        assert_eq!(run.count(), 1);
        assert!(run.first().is_empty());
        assert!(run.skip(1).is_none());
    }
}
