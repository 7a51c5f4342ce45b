//! A lane: one flow, as a sender sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use io::UdpSocket;

use crate::measure::Payload;

/// Where a frame carries its flow, its sequence and its intended time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stamping {
    /// In a measured payload that starts at this offset of the frame.
    Payload {
        /// Offset in bytes.
        at: usize,
    },
    /// In the transaction ID of a STUN request: 24 bits of flow, 32 of sequence, 40 of time in units of 16 ns since the
    /// start of the run (4.8 hours).
    TransactionId,
}

/// One flow to be sent: a socket, a destination, and frames that are complete but for their stamps.
#[derive(Clone, Debug)]
pub struct Lane {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) to: SocketAddr,
    pub(super) flow: u32,
    stamping: Stamping,
    frame: Box<[u8]>,
    ring: Vec<Box<[u8]>>,
    sequence: u64,
}

/// What a stamp in a transaction ID says: flow, sequence, and time since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdStamp {
    pub(super) flow: u32,
    pub(super) sequence: u64,
    pub(super) since_origin_ns: u64,
}

/// Offset of the transaction ID in a STUN message (RFC 8489 §5).
const ID_AT: usize = 8;
const ID_LEN: usize = 12;

impl Lane {
    /// A flow numbered `flow` that sends `frame` to `to`. A payload in the frame must have been filled for that flow.
    ///
    /// # Panics
    /// If the frame is too short to hold the stamp.
    #[must_use]
    pub fn new(
        socket: Arc<UdpSocket>,
        to: SocketAddr,
        flow: u32,
        stamping: Stamping,
        frame: &[u8],
    ) -> Lane {
        let needed = match stamping {
            Stamping::Payload { at } => at + Payload::MIN,
            Stamping::TransactionId => ID_AT + ID_LEN,
        };
        assert!(frame.len() >= needed, "the frame has no room for its stamp");
        Lane {
            socket,
            to,
            flow,
            stamping,
            frame: frame.into(),
            ring: Vec::new(),
            sequence: 0,
        }
    }

    /// Makes room for `slots` frames in one burst.
    pub(super) fn prepare(&mut self, slots: usize) {
        self.ring = vec![self.frame.clone(); slots.max(1)];
    }

    /// Stamps the next frame of the ring and returns its slot.
    pub(super) fn stamp(&mut self, origin_ns: u64, intended_ns: u64) -> usize {
        let slot = (self.sequence % self.ring.len() as u64) as usize;
        let frame = &mut self.ring[slot];
        match self.stamping {
            Stamping::Payload { at } => {
                Payload::stamp(&mut frame[at..], self.sequence, intended_ns);
            }
            Stamping::TransactionId => {
                let stamp = IdStamp {
                    flow: self.flow,
                    sequence: self.sequence,
                    since_origin_ns: intended_ns.saturating_sub(origin_ns),
                };
                frame[ID_AT..ID_AT + ID_LEN].copy_from_slice(&stamp.encode());
            }
        }
        self.sequence += 1;
        slot
    }

    pub(super) fn frame(&self, slot: usize) -> &[u8] {
        &self.ring[slot]
    }

    /// Payload bytes of each frame: what the byte counts speak of.
    pub(super) fn payload_len(&self) -> usize {
        match self.stamping {
            Stamping::Payload { at } => self.frame.len() - at,
            Stamping::TransactionId => self.frame.len(),
        }
    }
}

impl IdStamp {
    pub(super) fn encode(self) -> [u8; ID_LEN] {
        let mut id = [0; ID_LEN];
        id[..3].copy_from_slice(&self.flow.to_be_bytes()[1..]);
        id[3..7].copy_from_slice(&(self.sequence as u32).to_be_bytes());
        id[7..].copy_from_slice(&(self.since_origin_ns / 16).to_be_bytes()[3..]);
        id
    }

    pub(super) fn decode(id: &[u8; ID_LEN]) -> IdStamp {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        IdStamp {
            flow: number(&id[..3]) as u32,
            sequence: number(&id[3..7]),
            since_origin_ns: number(&id[7..]) * 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_transaction_id_carries_its_stamp(flow in 0u32..1 << 24, sequence in 0u64..1 << 32, units in 0u64..1 << 40) {
            let stamp = IdStamp { flow, sequence, since_origin_ns: units * 16 };
            prop_assert_eq!(IdStamp::decode(&stamp.encode()), stamp);
        }
    }
}
