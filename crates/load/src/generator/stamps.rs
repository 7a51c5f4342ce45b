//! Stamps in payloads and transaction IDs, which differ from run to run.

use io::clock;

use crate::measure::RunStamp;

/// Length of a transaction ID, bytes.
const ID_LEN: usize = 12;
/// Bits of a stamp in a transaction ID. Flows, sequence numbers (the last of them), time in units of 64 ns (4.8 hours),
/// check.
const FLOW_BITS: u32 = 20;
pub(super) const SEQUENCE_BITS: u32 = 20;
const TIME_BITS: u32 = 38;
const CHECK_BITS: u32 = 18;
const TIME_UNIT_NS: u64 = 64;

const _: () = assert!(FLOW_BITS + SEQUENCE_BITS + TIME_BITS + CHECK_BITS == 8 * ID_LEN as u32);

/// Of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// Time zero of the schedule.
    pub(super) origin_ns: u64,
    /// In measured payloads.
    pub(super) run: RunStamp,
    /// In transaction IDs: what they are XORed with, and what their check depends on.
    mask: u128,
    key: u64,
}

/// What a stamp in a transaction ID says: flow, the last bits of the sequence number, and the intended time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdStamp {
    pub(super) flow: u32,
    pub(super) sequence: u64,
    pub(super) intended_ns: u64,
}

impl Stamps {
    /// The stamps of a run that begins at `origin_ns`: no other run has them. Without a key for payloads, it gets one.
    pub(super) fn new(origin_ns: u64, payload_key: Option<u64>) -> Stamps {
        let mut bytes = [0; 36];
        if getrandom::fill(&mut bytes).is_err() {
            // Then it is enough that runs do not begin at the same moment.
            let salt = clock::monotonic_ns() ^ clock::unix_s().rotate_left(32);
            for chunk in bytes.chunks_exact_mut(4) {
                chunk.copy_from_slice(&(salt as u32).to_ne_bytes());
            }
        }
        let number = |from: usize, to: usize| {
            let bytes = bytes[from..to].iter();
            bytes.fold(0u128, |sum, &byte| sum << 8 | u128::from(byte))
        };
        Stamps {
            origin_ns,
            run: RunStamp {
                number: number(0, 4) as u32,
                key: payload_key.unwrap_or(number(24, 32) as u64),
            },
            mask: number(4, 16),
            key: number(16, 24) as u64,
        }
    }

    #[inline]
    fn check(&self, fields: u128) -> u128 {
        let (low, high) = (fields as u64, (fields >> 64) as u64);
        let mut sum = (low ^ self.key).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        sum = ((sum ^ sum >> 31) ^ high).wrapping_mul(0x94D0_49BB_1331_11EB);
        u128::from(sum >> (64 - CHECK_BITS))
    }

    /// The transaction ID of a datagram.
    #[inline]
    pub(super) fn encode(&self, stamp: IdStamp) -> [u8; ID_LEN] {
        let last = |value: u64, bits: u32| u128::from(value & ((1 << bits) - 1));
        let time = stamp.intended_ns.saturating_sub(self.origin_ns) / TIME_UNIT_NS;
        let mut id = last(stamp.flow.into(), FLOW_BITS);
        id = id << SEQUENCE_BITS | last(stamp.sequence, SEQUENCE_BITS);
        id = id << TIME_BITS | last(time, TIME_BITS);
        id = id << CHECK_BITS | self.check(id);
        let mut bytes = [0; ID_LEN];
        bytes.copy_from_slice(&(id ^ self.mask).to_be_bytes()[16 - ID_LEN..]);
        bytes
    }

    /// What a transaction ID of this run says; `None` if it is of none, or of another.
    #[inline]
    pub(super) fn decode(&self, bytes: &[u8; ID_LEN]) -> Option<IdStamp> {
        let id = bytes
            .iter()
            .fold(0u128, |sum, &byte| sum << 8 | u128::from(byte));
        let id = id ^ self.mask;
        let fields = id >> CHECK_BITS;
        if self.check(fields) != id & ((1 << CHECK_BITS) - 1) {
            return None;
        }
        let field = |shift: u32, bits: u32| (fields >> shift) as u64 & ((1 << bits) - 1);
        Some(IdStamp {
            flow: field(SEQUENCE_BITS + TIME_BITS, FLOW_BITS) as u32,
            sequence: field(TIME_BITS, SEQUENCE_BITS),
            intended_ns: self.origin_ns + field(0, TIME_BITS) * TIME_UNIT_NS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_transaction_id_carries_its_stamp(flow in 0u32..1 << 20, sequence in 0u64..1 << 20, units in 0u64..1 << 38) {
            let stamps = Stamps::new(1_000_000, None);
            let stamp = IdStamp { flow, sequence, intended_ns: 1_000_000 + units * 64 };
            prop_assert_eq!(stamps.decode(&stamps.encode(stamp)), Some(stamp));
        }
    }

    #[test]
    fn damage_and_other_runs_are_noticed() {
        let (stamps, others) = (Stamps::new(0, None), Stamps::new(0, None));
        let mut believed = 0;
        for sequence in 0..2000u64 {
            let stamp = IdStamp {
                flow: 3,
                sequence,
                intended_ns: sequence * 1000,
            };
            let id = stamps.encode(stamp);
            assert_ne!(id, others.encode(stamp));
            believed += u32::from(others.decode(&id).is_some());
            let mut damaged = id;
            damaged[sequence as usize % 12] ^= 1 << (sequence % 8);
            believed += u32::from(stamps.decode(&damaged).is_some());
        }
        // Each has a chance of one in 262,144.
        assert!(believed <= 1, "{believed}");
    }
}
