//! Netlink messages as bytes: a header, a fixed part, attributes that may nest.
//!
//! ```text
//! | length | type, flags | sequence | port |  fixed part  | length, type | value, padded to 4 | ...
//! ```
//! Everything is in host order except addresses.

const ATTRIBUTE_HEADER_LEN: usize = 4;

/// Flags of every request here: it is one, and wants an answer.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;

/// Further flag of a request for a list.
pub(super) const NLM_F_DUMP: u16 = 0x300;
/// Further flags of a request that makes something.
pub(super) const NLM_F_REPLACE: u16 = 0x100;
pub(super) const NLM_F_EXCL: u16 = 0x200;
pub(super) const NLM_F_CREATE: u16 = 0x400;

/// A request under construction.
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request of type `kind` with extra `flags` and its fixed part.
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        Request { bytes }
    }

    /// Appends an attribute.
    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        self.push(kind, value);
        self
    }

    /// Appends an attribute made of a fixed part and further attributes.
    pub(super) fn nested(mut self, kind: u16, inside: impl FnOnce(Nested<'_>)) -> Request {
        self.nest(kind, &[], inside);
        self
    }

    /// The message, numbered `sequence`.
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, value, |_| ());
    }

    fn nest(&mut self, kind: u16, fixed: &[u8], inside: impl FnOnce(Nested<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0, 0]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(fixed);
        inside(Nested { request: self });
        // The messages of this crate have a few hundred bytes.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes
            .resize(self.bytes.len().next_multiple_of(ATTRIBUTE_HEADER_LEN), 0);
    }
}

/// The inside of a nested attribute.
pub(super) struct Nested<'a> {
    request: &'a mut Request,
}

impl Nested<'_> {
    /// Appends an attribute.
    pub(super) fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.request.push(kind, value);
        self
    }

    /// Appends an attribute that begins with `fixed` and holds further attributes.
    pub(super) fn nested(self, kind: u16, fixed: &[u8], inside: impl FnOnce(Nested<'_>)) -> Self {
        self.request.nest(kind, fixed, inside);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_lengths_cover_what_is_inside() {
        let bytes = Request::new(16, NLM_F_CREATE, &[9; 4])
            .attribute(3, b"ab\0")
            .nested(18, |inside| {
                inside.attribute(1, b"veth").nested(2, &[7; 4], |peer| {
                    peer.attribute(5, &[]);
                });
            })
            .finish(0x0102);
        let short = |value: u16| value.to_ne_bytes();
        let wanted = [
            &52u32.to_ne_bytes()[..],
            &short(16),
            &short(0x405),
            &0x0102u32.to_ne_bytes(),
            &[0; 4],
            &[9; 4],
            &short(7),
            &short(3),
            b"ab\0\0",
            &short(24),
            &short(18),
            &short(8),
            &short(1),
            b"veth",
            &short(12),
            &short(2),
            &[7; 4],
            &short(4),
            &short(5),
        ]
        .concat();
        assert_eq!(bytes[16..], wanted[16..]);
        assert_eq!(
            bytes.len(),
            usize::try_from(u32::from_ne_bytes(bytes[..4].try_into().unwrap())).unwrap()
        );
    }
}
