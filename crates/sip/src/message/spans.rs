//! Where the header fields of a message are.

use crate::header::HeaderKind;
use crate::header::kind::KINDS;

/// The greatest number of header fields there is room for. A full datagram of the shortest fields has more: that is
/// refused, it is nothing anybody sends. With the index in one byte, 255 marks the end.
pub const MAX_HEADERS: usize = 254;

const NONE: u8 = u8::MAX;

/// One field: offsets in the message, which ends before 64 KiB as far as its header goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) name_len: u16,
    pub(crate) value_start: u16,
    pub(crate) value_end: u16,
    /// Behind the line end.
    pub(crate) end: u16,
    pub(crate) kind: HeaderKind,
    /// The next field of this kind.
    next: u8,
}

const _: () = assert!(
    size_of::<Span>() == 12,
    "a table of spans stays within a few lines of cache"
);

/// The table of a message's header fields. The caller owns it and uses it again for message after message; parsing
/// overwrites it. About 3 kB.
#[derive(Clone, Debug)]
pub struct Spans {
    spans: [Span; MAX_HEADERS],
    len: u8,
    /// The first field of each kind, and the last.
    first: [u8; KINDS],
    last: [u8; KINDS],
}

impl Default for Spans {
    fn default() -> Self {
        Spans::new()
    }
}

impl Spans {
    /// A table of no fields.
    #[must_use]
    pub const fn new() -> Spans {
        const EMPTY: Span = Span {
            start: 0,
            name_len: 0,
            value_start: 0,
            value_end: 0,
            end: 0,
            kind: HeaderKind::Other,
            next: NONE,
        };
        Spans {
            spans: [EMPTY; MAX_HEADERS],
            len: 0,
            first: [NONE; KINDS],
            last: [NONE; KINDS],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.first = [NONE; KINDS];
    }

    /// Adds a field; false if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, span: Span) -> bool {
        let index = self.len;
        let Some(place) = self.spans.get_mut(usize::from(index)) else {
            return false;
        };
        *place = span;
        self.len += 1;
        // Both arrays have an entry for each kind.
        let kind = span.kind as usize;
        if self.first[kind] == NONE {
            self.first[kind] = index;
        } else if let Some(last) = self.spans.get_mut(usize::from(self.last[kind])) {
            last.next = index;
        }
        self.last[kind] = index;
        true
    }

    pub(crate) fn as_slice(&self) -> &[Span] {
        self.spans.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The index of the first field of a kind.
    #[inline]
    pub(crate) fn first(&self, kind: HeaderKind) -> Option<u8> {
        let index = self.first[kind as usize];
        (index != NONE).then_some(index)
    }

    #[inline]
    pub(crate) fn get(&self, index: u8) -> Option<&Span> {
        self.as_slice().get(usize::from(index))
    }
}

impl Span {
    /// A field that is not in a table yet.
    #[inline]
    pub(crate) const fn new(
        kind: HeaderKind,
        name: (u16, u16),
        value: (u16, u16),
        end: u16,
    ) -> Span {
        Span {
            start: name.0,
            name_len: name.1,
            value_start: value.0,
            value_end: value.1,
            end,
            kind,
            next: NONE,
        }
    }

    /// The index of the next field of the same kind.
    #[inline]
    pub(crate) fn next(&self) -> Option<u8> {
        (self.next != NONE).then_some(self.next)
    }
}
