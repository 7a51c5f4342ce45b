//! Flights of handshake messages: packing into datagrams, and retransmission (RFC 6347 §4.2.4).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use timers::Mono;

use crate::crypto::Sealer;
use crate::crypto::cipher::EXPANSION;
use crate::wire::Reader;
use crate::wire::handshake::{self, Fragment};
use crate::wire::record::{self, ContentType};

/// RFC 6347 §4.2.4.1: the timer doubles up to a minute.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// The shortest first fragment of a message at the end of a datagram. If there is less room, the message begins in the
/// next datagram.
const SHORT_FRAGMENT: usize = 64;

/// Datagrams that wait to be sent. Their bytes are in one buffer, which is reused.
#[derive(Debug)]
pub(crate) struct Outgoing<P> {
    bytes: Vec<u8>,
    datagrams: VecDeque<(P, Range<usize>)>,
}

impl<P: Copy> Outgoing<P> {
    pub(crate) const fn new() -> Outgoing<P> {
        Outgoing {
            bytes: Vec::new(),
            datagrams: VecDeque::new(),
        }
    }

    /// The next datagram and its destination.
    pub(crate) fn poll(&mut self) -> Option<(P, &[u8])> {
        let (path, range) = self.datagrams.pop_front()?;
        Some((path, &self.bytes[range]))
    }

    /// Begins datagrams of at most `mtu` bytes.
    pub(crate) fn pack(&mut self, path: P, mtu: usize) -> Packer<'_, P> {
        if self.datagrams.is_empty() {
            self.bytes.clear();
        }
        let start = self.bytes.len();
        Packer {
            outgoing: self,
            path,
            mtu,
            start,
        }
    }

    /// Frees the memory that a burst required.
    pub(crate) fn release_memory(&mut self) {
        if self.datagrams.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(1 << 16);
        }
    }
}

/// Packs records into datagrams. Dropping it queues the last datagram.
pub(crate) struct Packer<'a, P: Copy> {
    outgoing: &'a mut Outgoing<P>,
    path: P,
    mtu: usize,
    start: usize,
}

impl<P: Copy> Packer<'_, P> {
    fn room(&self) -> usize {
        self.mtu
            .saturating_sub(self.outgoing.bytes.len() - self.start)
    }

    fn cut(&mut self) {
        let end = self.outgoing.bytes.len();
        if end > self.start {
            self.outgoing
                .datagrams
                .push_back((self.path, self.start..end));
            self.start = end;
        }
    }

    /// A record without protection, from its parts.
    pub(crate) fn plain(&mut self, content: ContentType, sequence: &mut u64, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        if record::HEADER + length > self.room() {
            self.cut();
        }
        let out = &mut self.outgoing.bytes;
        out.extend_from_slice(&record::header(content, 0, *sequence, length));
        *sequence += 1;
        for part in parts {
            out.extend_from_slice(part);
        }
    }

    /// A whole datagram.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.cut();
        self.outgoing.bytes.extend_from_slice(bytes);
        self.cut();
    }

    /// A protected record. Nothing is sent once the sequence numbers are used up.
    pub(crate) fn sealed(&mut self, content: ContentType, sealer: &mut Sealer, contents: &[u8]) {
        let most = record::HEADER + EXPANSION + contents.len();
        if most > self.room() {
            self.cut();
        }
        let out = &mut self.outgoing.bytes;
        let start = out.len();
        out.resize(start + most, 0);
        let length = sealer
            .seal(content, &[contents], &mut out[start..])
            .unwrap_or(0);
        out.truncate(start + length);
    }

    /// A handshake message, in as many fragments as necessary.
    fn message(&mut self, message: &Fragment<'_>, sequence: &mut u64) {
        const HEADERS: usize = record::HEADER + handshake::HEADER;
        let mut offset = 0;
        loop {
            let left = message.length - offset;
            if self.room() < HEADERS + left.min(SHORT_FRAGMENT) {
                self.cut();
            }
            let length = left.min(self.room().saturating_sub(HEADERS).max(1));
            let header = handshake::header(
                message.kind,
                message.length,
                message.sequence,
                offset,
                length,
            );
            // `length` is at most the rest of the message.
            let bytes = &message.bytes[offset..offset + length];
            self.plain(ContentType::Handshake, sequence, &[&header, bytes]);
            offset += length;
            if offset == message.length {
                return;
            }
        }
    }
}

impl<P: Copy> Drop for Packer<'_, P> {
    fn drop(&mut self) {
        self.cut();
    }
}

/// The messages of one flight.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Whole messages without protection.
    pub(crate) messages: Vec<u8>,
}

impl Flight {
    /// Sends the messages, each time under new record numbers.
    pub(crate) fn send<P: Copy>(&self, packer: &mut Packer<'_, P>, sequence: &mut u64) {
        let mut reader = Reader::new(&self.messages);
        while let Some(message) = Fragment::take(&mut reader) {
            packer.message(&message, sequence);
        }
    }
}

/// ChangeCipherSpec and Finished, which end a flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished(
    pub(crate) [u8; handshake::HEADER + crate::crypto::schedule::VERIFY_DATA],
);

impl Finished {
    pub(crate) fn new(message_sequence: u16, verify_data: &[u8]) -> Finished {
        let mut bytes = [0; handshake::HEADER + crate::crypto::schedule::VERIFY_DATA];
        let length = verify_data.len();
        bytes[..handshake::HEADER].copy_from_slice(&handshake::header(
            handshake::kind::FINISHED,
            length,
            message_sequence,
            0,
            length,
        ));
        bytes[handshake::HEADER..].copy_from_slice(verify_data);
        Finished(bytes)
    }

    pub(crate) fn send<P: Copy>(
        &self,
        packer: &mut Packer<'_, P>,
        sequence: &mut u64,
        sealer: &mut Sealer,
    ) {
        packer.plain(ContentType::ChangeCipherSpec, sequence, &[&[1]]);
        packer.sealed(ContentType::Handshake, sealer, &self.0);
    }
}

/// The retransmission timer of a flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retransmission {
    interval: Duration,
    sent: Mono,
}

impl Retransmission {
    pub(crate) const fn new(first: Duration, now: Mono) -> Retransmission {
        Retransmission {
            interval: first,
            sent: now,
        }
    }

    /// When to send the flight again (RFC 6347 §4.2.4.1).
    pub(crate) fn next_at(&self) -> Mono {
        self.sent.plus(self.interval)
    }

    /// Records that the flight was retransmitted because of the timer. Doubles the interval.
    pub(crate) fn back_off(&mut self, now: Mono) {
        self.interval = (self.interval * 2).min(LONGEST_INTERVAL);
        self.sent = now;
    }

    /// Whether to reply to the peer's retransmission with one of this side. Duplicates of the network arrive at once,
    /// and are ignored.
    pub(crate) fn should_resend(&mut self, now: Mono) -> bool {
        let resend = now.since(self.sent) >= self.interval / 4;
        if resend {
            self.sent = now;
        }
        resend
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reassembly::{Added, Bounds, Reassembly};
    use crate::wire::record::Header;

    #[test]
    fn a_flight_fits_into_datagrams_and_comes_back_whole() {
        let bodies = [vec![1; 90], vec![2; 3000], vec![3; 300], vec![]];
        let mut flight = Flight::default();
        for (sequence, body) in bodies.iter().enumerate() {
            handshake::message(&mut flight.messages, 11, sequence as u16, |out| {
                out.extend_from_slice(body)
            });
        }
        for mtu in [100, 256, 1200, 9000] {
            let mut outgoing = Outgoing::new();
            let mut sequence = 5;
            flight.send(&mut outgoing.pack((), mtu), &mut sequence);
            let mut reassembly = Reassembly::new(
                0,
                Bounds {
                    ahead: 8,
                    bytes: 1 << 16,
                },
            );
            let mut expected = 5;
            while let Some(((), datagram)) = outgoing.poll() {
                assert!(datagram.len() <= mtu);
                let mut at = 0;
                while at < datagram.len() {
                    let header = Header::parse(&datagram[at..]).unwrap();
                    assert_eq!((header.epoch, header.sequence), (0, expected));
                    expected += 1;
                    at += record::HEADER;
                    let mut reader = Reader::new(&datagram[at..at + header.length]);
                    assert_eq!(
                        reassembly.add(&Fragment::take(&mut reader).unwrap()),
                        Added::Kept
                    );
                    at += header.length;
                }
            }
            assert_eq!(sequence, expected);
            for body in &bodies {
                assert_eq!(reassembly.take().unwrap().body(), body);
            }
        }
    }

    #[test]
    fn the_timer_doubles_up_to_a_minute() {
        let mut timer = Retransmission::new(Duration::from_secs(1), Mono(0));
        let mut now = Mono(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(timer.next_at().since(now).as_secs());
            now = timer.next_at();
            timer.back_off(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn copies_of_the_peers_flight_are_not_answered() {
        let mut timer = Retransmission::new(Duration::from_secs(1), Mono(0));
        assert!(!timer.should_resend(Mono(249_000_000)));
        assert!(timer.should_resend(Mono(250_000_000)));
        assert!(!timer.should_resend(Mono(250_000_001)));
    }
}
