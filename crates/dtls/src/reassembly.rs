//! Handshake messages from fragments, in order (RFC 6347 §4.2.3). Fragments may overlap, repeat or be out of order.

use crate::wire::handshake::{self, Fragment};

/// The maximum number of separate ranges per message. With more, a fragment is refused.
const MAX_RANGES: usize = 32;

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    /// With the header of a message in one fragment, as it enters the transcript.
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[handshake::HEADER..]
    }

    /// Header and body.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The result of adding a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It belongs to a message that was handled before: the peer retransmits.
    Old,
    /// It was stored.
    Kept,
    /// It is too long, too far ahead, or contradicts another fragment.
    Refused,
}

/// Limits on stored fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Messages after the next one.
    pub(crate) ahead: u16,
    /// Bytes of all messages that are not taken yet.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct Partial {
    kind: u8,
    sequence: u16,
    bytes: Vec<u8>,
    /// The received ranges of the body, sorted and not adjacent.
    received: Vec<(usize, usize)>,
}

impl Partial {
    fn is_whole(&self) -> bool {
        let body = self.bytes.len() - handshake::HEADER;
        matches!(self.received[..], [(0, end)] if end == body)
    }

    fn put(&mut self, fragment: &Fragment<'_>) -> Added {
        let (mut start, mut end) = (fragment.offset, fragment.offset + fragment.bytes.len());
        let at = handshake::HEADER + start;
        self.bytes[at..at + fragment.bytes.len()].copy_from_slice(fragment.bytes);
        self.received.retain(|(from, to)| {
            let touches = *from <= end && start <= *to;
            if touches {
                (start, end) = (start.min(*from), end.max(*to));
            }
            !touches
        });
        if self.received.len() == MAX_RANGES {
            return Added::Refused;
        }
        let place = self.received.partition_point(|(from, _)| *from < start);
        self.received.insert(place, (start, end));
        Added::Kept
    }
}

/// Fragments that wait for others.
#[derive(Debug)]
pub(crate) struct Reassembly {
    next: u16,
    bounds: Bounds,
    waiting: Vec<Partial>,
}

impl Reassembly {
    /// The first message will have this sequence number.
    pub(crate) const fn new(next: u16, bounds: Bounds) -> Reassembly {
        Reassembly {
            next,
            bounds,
            waiting: Vec::new(),
        }
    }

    /// Sequence number of the next message.
    pub(crate) const fn next(&self) -> u16 {
        self.next
    }

    /// Adds a fragment to its message. A fragment of an earlier message is old; a fragment that does not fit, or is too
    /// far ahead, is refused.
    pub(crate) fn add(&mut self, fragment: &Fragment<'_>) -> Added {
        if fragment.sequence < self.next {
            return Added::Old;
        }
        if fragment.sequence - self.next > self.bounds.ahead {
            return Added::Refused;
        }
        let found = self
            .waiting
            .iter_mut()
            .find(|partial| partial.sequence == fragment.sequence);
        if let Some(partial) = found {
            let same = partial.kind == fragment.kind
                && partial.bytes.len() == handshake::HEADER + fragment.length;
            return if same {
                partial.put(fragment)
            } else {
                Added::Refused
            };
        }
        let kept: usize = self.waiting.iter().map(|partial| partial.bytes.len()).sum();
        if kept + handshake::HEADER + fragment.length > self.bounds.bytes {
            return Added::Refused;
        }
        let mut bytes = vec![0; handshake::HEADER + fragment.length];
        let header = handshake::header(
            fragment.kind,
            fragment.length,
            fragment.sequence,
            0,
            fragment.length,
        );
        bytes[..handshake::HEADER].copy_from_slice(&header);
        let mut partial = Partial {
            kind: fragment.kind,
            sequence: fragment.sequence,
            bytes,
            received: Vec::new(),
        };
        let added = partial.put(fragment);
        self.waiting.push(partial);
        added
    }

    /// The next message, if it is whole.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let at = self
            .waiting
            .iter()
            .position(|partial| partial.sequence == self.next && partial.is_whole())?;
        let partial = self.waiting.swap_remove(at);
        // Sequence numbers do not wrap: a handshake of 65,536 messages has failed long before.
        self.next = self.next.checked_add(1)?;
        Some(Message {
            kind: partial.kind,
            bytes: partial.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        ahead: 3,
        bytes: 4096,
    };

    fn fragment<'a>(sequence: u16, body: &'a [u8], from: usize, to: usize) -> Fragment<'a> {
        Fragment {
            kind: 11,
            length: body.len(),
            sequence,
            offset: from,
            bytes: &body[from..to],
        }
    }

    proptest! {
        #[test]
        fn a_message_comes_out_of_any_pieces_that_cover_it(
            length in 0usize..500,
            mut pieces in prop::collection::vec((0usize..500, 0usize..80), 0..25),
        ) {
            let body: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut reassembly = Reassembly::new(0, BOUNDS);
            let mut came = vec![false; length];
            // The last two pieces cover what is left.
            pieces.push((0, length / 2));
            pieces.push((length / 2, length));
            let last = pieces.len() - 1;
            for (number, (from, size)) in pieces.into_iter().enumerate() {
                let from = from.min(length);
                let to = (from + size).min(length);
                came[from..to].fill(true);
                prop_assert_eq!(reassembly.add(&fragment(0, &body, from, to)), Added::Kept);
                if number < last && !came.iter().all(|came| *came) {
                    prop_assert!(reassembly.take().is_none());
                }
                if came.iter().all(|came| *came) {
                    break;
                }
            }
            let message = reassembly.take().unwrap();
            prop_assert_eq!(message.body(), &body[..]);
            prop_assert_eq!(&message.bytes()[..12], &handshake::header(11, length, 0, 0, length));
        }
    }

    #[test]
    fn messages_come_out_in_order() {
        let mut reassembly = Reassembly::new(1, BOUNDS);
        assert_eq!(reassembly.add(&fragment(2, b"two", 0, 3)), Added::Kept);
        assert!(reassembly.take().is_none());
        assert_eq!(reassembly.add(&fragment(1, b"one", 0, 3)), Added::Kept);
        assert_eq!(reassembly.take().unwrap().body(), b"one");
        assert_eq!(reassembly.take().unwrap().body(), b"two");
        assert_eq!(reassembly.add(&fragment(2, b"two", 0, 3)), Added::Old);
    }

    #[test]
    fn oversized_and_contradictory_fragments_are_refused() {
        let mut reassembly = Reassembly::new(0, BOUNDS);
        assert_eq!(reassembly.add(&fragment(4, b"far", 0, 3)), Added::Refused);
        assert_eq!(
            reassembly.add(&fragment(0, &[0; 4085], 0, 1)),
            Added::Refused
        );
        assert_eq!(reassembly.add(&fragment(0, b"right", 0, 1)), Added::Kept);
        assert_eq!(
            reassembly.add(&fragment(0, b"wrong one", 0, 1)),
            Added::Refused
        );
        let body = [0; 200];
        let mut reassembly = Reassembly::new(0, BOUNDS);
        let refused = (0..100)
            .filter(|at| reassembly.add(&fragment(0, &body, 2 * at, 2 * at + 1)) == Added::Refused);
        assert_eq!(refused.count(), 100 - MAX_RANGES);
    }
}
