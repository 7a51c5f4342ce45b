//! A lane: one flow, as a sender sees it.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use io::{SendTo, UdpSocket};

use super::stamps::{IdStamp, Stamps};
use crate::Socket;
use crate::garbage::{Corpus, Sources};
use crate::measure::Payload;

/// Where a frame carries its flow, its sequence and its intended time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stamping {
    /// In a measured payload that starts at this offset of the frame.
    Payload {
        /// Offset in bytes.
        at: usize,
        /// Bytes after it: those that pad ChannelData over TCP and TLS.
        padding: usize,
    },
    /// In a measured payload within a Send indication, whose transaction ID is made anew for each send.
    /// XOR-PEER-ADDRESS must be its first attribute.
    Indication {
        /// Offset of the payload in bytes.
        at: usize,
        /// Bytes after it: those that pad the attribute.
        padding: usize,
        /// The peer's address is an IPv6 one.
        v6: bool,
    },
    /// The transaction ID of a STUN request has the flow, the end of the sequence number, a time and a check. The time
    /// is since the start of the run (at most 4.8 hours). All of them differ from run to run.
    TransactionId,
}

/// One flow to be sent: a socket, a destination, and frames that are complete but for their stamps.
#[derive(Clone, Debug)]
pub struct Lane {
    pub(super) socket: Socket,
    pub(super) to: SocketAddr,
    pub(super) flow: u32,
    /// Where its datagrams arrive.
    arrives: usize,
    content: Content,
    sequence: u64,
}

#[derive(Clone, Debug)]
enum Content {
    /// One frame, stamped anew for each send.
    Measured {
        stamping: Stamping,
        /// The frame, once for each datagram of a burst, one after the other.
        ring: Box<[u8]>,
        frame_len: usize,
        /// Where in the ring the next is written.
        slot: usize,
        /// The burst for which it was written last.
        last: u64,
    },
    /// The next datagram of the garbage, from the sources in turn.
    Garbage {
        corpus: Arc<Corpus>,
        sources: Sources,
    },
}

/// Offset of the transaction ID in a STUN message (RFC 8489 §5).
const ID_AT: usize = 8;
const ID_LEN: usize = 12;
/// Offset of that part of the address in the first attribute: behind the headers of message and attribute, family, port
/// and four bytes of address.
const V6_ADDRESS_AT: usize = stun::HEADER_LEN + 4 + 4 + 4;

impl Stamping {
    /// Where the measured payload of a frame of this length is.
    fn payload(self, frame_len: usize) -> Range<usize> {
        match self {
            Stamping::Payload { at, padding } | Stamping::Indication { at, padding, .. } => {
                at..frame_len.saturating_sub(padding)
            }
            Stamping::TransactionId => 0..frame_len,
        }
    }

    /// Whether a frame of this length has room for the stamp.
    fn fits(self, frame_len: usize) -> bool {
        match self {
            Stamping::TransactionId => frame_len >= ID_AT + ID_LEN,
            Stamping::Payload { .. } | Stamping::Indication { .. } => {
                let payload = self.payload(frame_len);
                payload.end.saturating_sub(payload.start) >= Payload::MIN
            }
        }
    }
}

impl Lane {
    /// A flow numbered `flow` that sends `frame` to `to`. A payload in the frame must have been filled for that flow.
    ///
    /// # Panics
    /// If the frame is too short to hold the stamp.
    #[must_use]
    pub fn new(
        socket: impl Into<Socket>,
        to: SocketAddr,
        flow: u32,
        stamping: Stamping,
        frame: &[u8],
    ) -> Lane {
        assert!(
            stamping.fits(frame.len()),
            "the frame has no room for its stamp"
        );
        let content = Content::Measured {
            stamping,
            ring: frame.into(),
            frame_len: frame.len(),
            slot: 0,
            last: 0,
        };
        let socket = socket.into();
        Lane {
            arrives: socket.identity(),
            socket,
            to,
            flow,
            content,
            sequence: 0,
        }
    }

    /// Its datagrams arrive at another socket than the one that sends them: elsewhere they are misdelivered.
    #[must_use]
    pub(super) fn with_receiver(mut self, socket: &Socket) -> Lane {
        self.arrives = socket.identity();
        self
    }

    /// The receiver and the payload length of its datagrams; `None` if they are not measured.
    pub(super) fn expected(&self) -> Option<(usize, usize)> {
        let Content::Measured {
            stamping,
            frame_len,
            ..
        } = &self.content
        else {
            return None;
        };
        Some((self.arrives, stamping.payload(*frame_len).len()))
    }

    /// A lane of garbage datagrams, from `sources` in turn. Nothing of it is measured, and it has no flow number.
    #[must_use]
    pub(super) fn garbage(
        socket: Arc<UdpSocket>,
        to: SocketAddr,
        corpus: Arc<Corpus>,
        sources: Sources,
    ) -> Lane {
        let socket = Socket::from(socket);
        Lane {
            arrives: socket.identity(),
            socket,
            to,
            flow: 0,
            content: Content::Garbage { corpus, sources },
            sequence: 0,
        }
    }

    /// Makes room for `slots` frames in one burst.
    pub(super) fn prepare(&mut self, slots: usize) {
        if let Content::Measured {
            ring,
            frame_len,
            slot,
            ..
        } = &mut self.content
        {
            *ring = ring[..*frame_len].repeat(slots.max(1)).into();
            *slot = 0;
        }
    }

    /// Begins another burst: the frames of the one before have left, or never will.
    pub(super) fn begin(&mut self, burst: u64) {
        if let Content::Measured { slot, last, .. } = &mut self.content
            && *last != burst
        {
            (*slot, *last) = (0, burst);
        }
    }

    /// Stamps the next `count` frames; `intended_ns` says when each is due, by its place in the run. Returns the place
    /// of the first; they follow each other.
    #[inline]
    pub(super) fn stamp(
        &mut self,
        count: usize,
        stamps: &Stamps,
        mut intended_ns: impl FnMut(u64) -> u64,
    ) -> usize {
        let first = self.sequence;
        self.sequence += count as u64;
        let flow = self.flow;
        let Content::Measured {
            stamping,
            ring,
            frame_len,
            slot,
            ..
        } = &mut self.content
        else {
            return first as usize;
        };
        let place = *slot;
        *slot += count;
        let frames = &mut ring[place * *frame_len..][..count * *frame_len];
        for (frame, n) in frames.chunks_exact_mut(*frame_len).zip(0..) {
            let (sequence, intended_ns) = (first + n, intended_ns(n));
            let id = || {
                stamps.encode(IdStamp {
                    flow,
                    sequence,
                    intended_ns,
                })
            };
            match *stamping {
                Stamping::Payload { at, padding } => {
                    let end = frame.len() - padding;
                    Payload::stamp(&mut frame[at..end], stamps.run, sequence, intended_ns)
                }
                Stamping::Indication { at, padding, v6 } => {
                    let end = frame.len() - padding;
                    // RFC 8489 §5: the ID of an indication is as unique as that of a request.
                    change_id(frame, &id(), v6);
                    Payload::stamp(&mut frame[at..end], stamps.run, sequence, intended_ns);
                }
                Stamping::TransactionId => {
                    frame[ID_AT..ID_AT + ID_LEN].copy_from_slice(&id());
                }
            }
        }
        place
    }

    /// A stamped frame.
    #[inline]
    pub(super) fn frame(&self, place: usize) -> &[u8] {
        match &self.content {
            Content::Measured {
                ring, frame_len, ..
            } => &ring[place * frame_len..][..*frame_len],
            Content::Garbage { corpus, .. } => corpus.datagram(place as u64),
        }
    }

    /// This many stamped frames in one piece, and the length of each; `None` if they differ in length.
    #[inline]
    pub(super) fn train(&self, place: usize, count: usize) -> Option<(&[u8], usize)> {
        match &self.content {
            Content::Measured {
                ring, frame_len, ..
            } => Some((&ring[place * frame_len..][..count * frame_len], *frame_len)),
            Content::Garbage { .. } => None,
        }
    }

    /// Where that frame goes, and from where; `None` over a connection, which goes to one place.
    #[inline]
    pub(super) fn destination(&self, place: usize) -> Option<SendTo<'_>> {
        let Socket::Udp(socket) = &self.socket else {
            return None;
        };
        let mut to = SendTo::new(socket, self.to);
        to.from_ip = self.source(place);
        Some(to)
    }

    fn source(&self, place: usize) -> Option<IpAddr> {
        match &self.content {
            Content::Measured { .. } => None,
            Content::Garbage { sources, .. } => sources.at(place as u64),
        }
    }

    /// Bytes of `count` frames, and of the payload in them, for the byte counters.
    #[inline]
    pub(super) fn bytes(&self, place: usize, count: usize) -> (u64, u64) {
        match &self.content {
            Content::Measured {
                stamping,
                frame_len,
                ..
            } => {
                let payload = stamping.payload(*frame_len).len();
                ((count * frame_len) as u64, (count * payload) as u64)
            }
            Content::Garbage { corpus, .. } => {
                let places = place as u64..(place + count) as u64;
                let bytes = places
                    .map(|place| corpus.datagram(place).len() as u64)
                    .sum();
                (bytes, bytes)
            }
        }
    }

    /// Whether what it sends is to be received by a tap and measured there.
    pub(super) fn is_measured(&self) -> bool {
        matches!(self.content, Content::Measured { .. })
    }

    /// The sequence number that the next frame gets.
    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence
    }
}

/// Gives a Send indication another transaction ID.
fn change_id(frame: &mut [u8], id: &[u8; ID_LEN], v6: bool) {
    if v6 {
        // RFC 8489 §14.2: behind the first four bytes an IPv6 address is XORed with the transaction ID.
        for (n, new) in id.iter().enumerate() {
            frame[V6_ADDRESS_AT + n] ^= frame[ID_AT + n] ^ new;
        }
    }
    frame[ID_AT..ID_AT + ID_LEN].copy_from_slice(id);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(stamping: Stamping, frame: &[u8]) -> Lane {
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = UdpSocket::bind(any, &io::UdpOptions::default()).unwrap();
        Lane::new(Arc::new(socket), any, 7, stamping, frame)
    }

    #[test]
    fn a_burst_holds_as_many_different_frames_as_the_ring_was_made_for() {
        let mut frame = vec![0; 4 + 30];
        Payload::new().fill(&mut frame[4..], 7);
        let mut lane = lane(Stamping::Payload { at: 4, padding: 0 }, &frame);
        lane.prepare(3);
        lane.begin(1);
        let stamps = Stamps::new(0, None);
        let one = lane.stamp(1, &stamps, |_| 100);
        lane.begin(1);
        let two = lane.stamp(2, &stamps, |n| 101 + n);
        for (n, place) in [(0, one), (1, two), (2, two + 1)] {
            let frame = &lane.frame(place)[4..];
            let stamp = Payload::new().check(frame, stamps.run.key, 0).unwrap();
            assert_eq!((stamp.sequence, stamp.intended_ns), (n, 100 + n));
            assert_eq!(stamp.run, stamps.run.number);
        }
        let (train, length) = lane.train(two, 2).unwrap();
        assert_eq!((train.len(), length), (68, 34));
        assert_eq!(lane.bytes(two, 2), (68, 60));
        lane.begin(2);
        assert_eq!(lane.stamp(3, &stamps, |_| 0), one, "then it starts over");
    }

    #[test]
    fn an_indication_has_another_transaction_id_each_time_and_always_the_same_peer() {
        for peer in ["192.0.2.7:9000", "[2001:db8::7]:9000"] {
            let peer: SocketAddr = peer.parse().unwrap();
            let mut header = [0; stun::INDICATION_HEADER_MAX];
            let id = stun::TransactionId([9; 12]);
            let at = stun::send_indication_header(&mut header, &id, &peer, 25).unwrap();
            let mut frame = header[..at].to_vec();
            frame.resize(at + 28, 0);
            Payload::new().fill(&mut frame[at..at + 25], 7);
            let (v6, stamps) = (peer.is_ipv6(), Stamps::new(0, None));
            let mut lane = lane(Stamping::Indication { at, padding: 3, v6 }, &frame);
            lane.prepare(2);
            for burst in 1..4 {
                lane.begin(burst);
                let place = lane.stamp(2, &stamps, |n| 64 * (burst + n));
                assert_ne!(lane.frame(place)[8..20], lane.frame(place + 1)[8..20]);
                for place in [place, place + 1] {
                    let message = stun::Message::parse(lane.frame(place)).unwrap();
                    assert_eq!(message.get(), Ok(Some(stun::XorPeerAddress(peer))));
                    let payload = message.get::<stun::Data<'_>>().unwrap().unwrap().0;
                    assert!(Payload::new().check(payload, stamps.run.key, 0).is_ok());
                }
                assert_eq!(lane.bytes(place, 1), (at as u64 + 28, 25));
            }
        }
    }
}
