//! The payload of a measured datagram.
//!
//! ```text
//!  0    2      6     9         14       20     24
//!  +----+------+-----+---------+--------+------+---------------------- - -
//!  | hp | run  | flow| sequence| sent at| check| pattern of the flow
//!  +----+------+-----+---------+--------+------+---------------------- - -
//! ```
//! All big-endian. `run` differs from run to run, so that payloads of another run or another program are recognised.
//! `check` also depends on the length of the payload: a receiver that expects no particular length notices a payload
//! that was cut or that grew. `sent at` are the low 48 bits of a time in nanoseconds: the reader takes the time next to its own. `check` covers
//! everything between it and the magic: a damaged head displaces no datagram and ages none. The pattern is a slice of
//! one fixed table at an offset that depends on the flow. So checking it is one comparison, and a payload of another
//! flow does not match.
//!
//! `run` is the number of the run, XORed with a number that depends on flow, sequence, time and a key. The key is not in
//! the payload. So a payload of somebody who knows this format but not the key belongs to another run. This is no MAC:
//! it is made for speed, not against cryptanalysis.

/// Bytes of pattern beyond the longest payload, so that every flow finds its slice.
const SHIFTS: usize = 251;
/// Bits of the time.
const TIME_BITS: u32 = 48;

/// What the head of a measured payload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the run.
    pub run: u32,
    /// Number of the flow, as the sender counts them, below 2^24.
    pub flow: u32,
    /// Number of the datagram within its flow and direction, from 0, below 2^40.
    pub sequence: u64,
    /// When it should have left, in nanoseconds of the monotonic clock. Latency from the *intended* time is what keeps
    /// a stalled server from hiding its stall.
    pub intended_ns: u64,
    /// Bytes of the whole payload as it was sent.
    pub length: usize,
}

/// What all payloads of a run have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStamp {
    /// Number of the run.
    pub number: u32,
    /// What the number is masked with in payloads. 0: it is not masked, so everybody can make payloads of the run.
    pub key: u64,
}

/// Why a payload is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Neither magic nor check are right.
    #[error("not a measured payload")]
    Foreign,
    /// Shorter or longer than it was sent.
    #[error("payload was cut or grew on its way")]
    Truncated,
    /// The head was changed: nothing that it says can be believed.
    #[error("the head of the payload was changed on its way")]
    Damaged,
    /// The head is ours and the rest is not what was sent.
    #[error("payload was changed on its way")]
    Corrupt,
}

/// Writes and reads measured payloads. Holds the pattern table: make one per thread, or share it.
#[derive(Clone, Debug)]
pub struct Payload {
    table: Box<[u8]>,
}

impl Payload {
    /// Shortest payload in bytes: the head alone.
    pub const MIN: usize = 24;
    /// Longest payload in bytes: what fits into UDP over IPv4 with a ChannelData header.
    pub const MAX: usize = 65_503;
    const MAGIC: [u8; 2] = *b"hp";

    /// The table every sender and receiver shares.
    #[must_use]
    pub fn new() -> Payload {
        let mut state = 0x243F_6A88_85A3_08D3u64;
        let table = (0..Payload::MAX + SHIFTS)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        Payload { table }
    }

    /// Fills `buffer` for `flow`: everything but what [`Payload::stamp`] writes for each send.
    ///
    /// # Panics
    /// If `buffer` is not [`Payload::MIN`]`..=`[`Payload::MAX`] bytes long.
    pub fn fill(&self, buffer: &mut [u8], flow: u32) {
        assert!((Payload::MIN..=Payload::MAX).contains(&buffer.len()));
        buffer[..2].copy_from_slice(&Payload::MAGIC);
        buffer[6..9].copy_from_slice(&flow.to_be_bytes()[1..]);
        let length = buffer.len() - Payload::MIN;
        buffer[Payload::MIN..].copy_from_slice(self.pattern(flow, length));
    }

    /// Writes what changes from send to send into a filled `buffer`.
    #[inline]
    pub fn stamp(buffer: &mut [u8], run: RunStamp, sequence: u64, intended_ns: u64) {
        buffer[9..14].copy_from_slice(&sequence.to_be_bytes()[3..]);
        buffer[14..20].copy_from_slice(&intended_ns.to_be_bytes()[2..]);
        let length = buffer.len();
        if let Some(head) = buffer.first_chunk_mut::<{ Payload::MIN }>() {
            let mask = mask(head, run.key);
            head[2..6].copy_from_slice(&(run.number ^ mask).to_be_bytes());
            let check = check(head) ^ mark(length);
            head[20..24].copy_from_slice(&check.to_be_bytes());
        }
    }

    /// Reads the head without looking at the rest; `now_ns` is a time within 39 hours of the one in it. `key` is that
    /// of the sender ([`RunStamp::key`]). The caller compares [`Stamp::length`] with what it has.
    ///
    /// # Errors
    /// [`PayloadError`], but not [`PayloadError::Corrupt`].
    #[inline]
    pub fn peek(payload: &[u8], key: u64, now_ns: u64) -> Result<Stamp, PayloadError> {
        let is_ours = payload.starts_with(&Payload::MAGIC);
        let Some(head) = payload.first_chunk::<{ Payload::MIN }>() else {
            return Err(match is_ours {
                true => PayloadError::Truncated,
                false => PayloadError::Foreign,
            });
        };
        let mut found = [0; 4];
        found.copy_from_slice(&head[20..24]);
        let length = length_of(u32::from_be_bytes(found) ^ check(head));
        let is_whole = (Payload::MIN..=Payload::MAX).contains(&length);
        match (is_ours, is_whole) {
            (true, true) => {}
            (false, false) => return Err(PayloadError::Foreign),
            _ => return Err(PayloadError::Damaged),
        }
        let number = |from: usize, to: usize| {
            let bytes = head[from..to].iter();
            bytes.fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let since = number(14, 20).wrapping_sub(now_ns) << (64 - TIME_BITS);
        let since = (since as i64) >> (64 - TIME_BITS);
        Ok(Stamp {
            run: number(2, 6) as u32 ^ mask(head, key),
            flow: number(6, 9) as u32,
            sequence: number(9, 14),
            intended_ns: now_ns.wrapping_add_signed(since),
            length,
        })
    }

    /// Whether all that follows the head is what was sent in this flow.
    #[inline]
    #[must_use]
    pub fn is_intact(&self, payload: &[u8], flow: u32) -> bool {
        let body = payload.get(Payload::MIN..).unwrap_or_default();
        body.len() <= Payload::MAX - Payload::MIN && body == self.pattern(flow, body.len())
    }

    /// Reads a whole payload and compares every byte of it; `key` and `now_ns` as for [`Payload::peek`].
    ///
    /// # Errors
    /// [`PayloadError`].
    pub fn check(&self, payload: &[u8], key: u64, now_ns: u64) -> Result<Stamp, PayloadError> {
        let stamp = Payload::peek(payload, key, now_ns)?;
        if stamp.length != payload.len() {
            return Err(PayloadError::Truncated);
        }
        match self.is_intact(payload, stamp.flow) {
            true => Ok(stamp),
            false => Err(PayloadError::Corrupt),
        }
    }

    fn pattern(&self, flow: u32, length: usize) -> &[u8] {
        let shift = flow as usize % SHIFTS;
        &self.table[shift..shift + length]
    }
}

/// The mask that the number of the run is XORed with; 0 if the key is 0.
#[inline]
fn mask(head: &[u8; Payload::MIN], key: u64) -> u32 {
    if key == 0 {
        return 0;
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_be_bytes(bytes)
    };
    // Flow and sequence; then the time, behind the end of the sequence.
    let mut sum = (word(6) ^ key).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    sum = ((sum ^ sum >> 31) ^ word(12) ^ key.rotate_left(32)).wrapping_mul(0x94D0_49BB_1331_11EB);
    sum = (sum ^ sum >> 29).wrapping_mul(key | 1);
    (sum >> 32) as u32
}

/// A checksum of the head behind its magic, in which any change of one bit changes about half of all.
#[inline]
fn check(head: &[u8; Payload::MIN]) -> u32 {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_be_bytes(bytes)
    };
    let mut sum = (word(2) ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    sum = ((sum ^ sum >> 31) ^ word(10)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let rest = u64::from(head[18]) << 8 | u64::from(head[19]);
    sum = ((sum ^ sum >> 29) ^ rest).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (sum >> 32) as u32
}

/// Multiplier of [`mark`]. It is odd, so multiplication modulo 2^32 is a bijection: each length has its own mark, and
/// [`length_of`] recovers it. A random mark gives a value outside of the valid lengths, almost always.
const MARK: u32 = 0x9E37_79B1;
const MARK_INVERSE: u32 = inverse(MARK);

/// The inverse modulo 2^32 of an odd number, by Newton's method.
const fn inverse(odd: u32) -> u32 {
    let mut found = odd;
    let mut step = 0;
    while step < 5 {
        found = found.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

/// What the length of a payload changes in its check.
#[inline]
fn mark(length: usize) -> u32 {
    (length as u32).wrapping_mul(MARK)
}

#[inline]
fn length_of(mark: u32) -> usize {
    mark.wrapping_mul(MARK_INVERSE) as usize
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 5 << 50;
    const RUN: RunStamp = RunStamp {
        number: 9,
        key: 0x1234_5678_9ABC_DEF0,
    };

    fn sample(length: usize) -> (Payload, Vec<u8>) {
        let payload = Payload::new();
        let mut buffer = vec![0; length];
        payload.fill(&mut buffer, 77);
        Payload::stamp(&mut buffer, RUN, 5, NOW - 123_456);
        (payload, buffer)
    }

    #[test]
    fn written_payloads_are_read() {
        for length in [Payload::MIN, 25, 120, 1200, Payload::MAX] {
            let (payload, buffer) = sample(length);
            let stamp = Stamp {
                run: 9,
                flow: 77,
                sequence: 5,
                intended_ns: NOW - 123_456,
                length,
            };
            for now in [NOW, NOW - 1_000_000, NOW + (1 << 46)] {
                assert_eq!(payload.check(&buffer, RUN.key, now), Ok(stamp));
            }
        }
    }

    #[test]
    fn one_changed_bit_is_noticed_wherever_it_is() {
        let (payload, buffer) = sample(200);
        for at in 0..200 * 8 {
            let mut changed = buffer.clone();
            changed[at / 8] ^= 1 << (at % 8);
            let expected = match at / 8 < Payload::MIN {
                true => PayloadError::Damaged,
                false => PayloadError::Corrupt,
            };
            assert_eq!(
                payload.check(&changed, RUN.key, NOW),
                Err(expected),
                "bit {at}"
            );
        }
    }

    #[test]
    fn a_payload_with_another_key_is_of_another_run() {
        let (payload, mut forged) = sample(120);
        for key in [0, RUN.key ^ 1, RUN.key.rotate_left(32)] {
            for sequence in 0..100 {
                Payload::stamp(&mut forged, RunStamp { key, ..RUN }, sequence, NOW);
                let found = payload.check(&forged, RUN.key, NOW).unwrap();
                assert_ne!(found.run, RUN.number, "{key:x} {sequence}");
                assert_eq!(found.sequence, sequence);
            }
        }
    }

    #[test]
    fn foreign_bytes_are_foreign_and_short_ones_are_cut() {
        let (payload, buffer) = sample(64);
        assert_eq!(
            payload.check(&buffer[..23], RUN.key, NOW),
            Err(PayloadError::Truncated)
        );
        // What is left is a prefix of the pattern.
        for end in [24, 25, 63] {
            let cut = payload.check(&buffer[..end], RUN.key, NOW);
            assert_eq!(cut, Err(PayloadError::Truncated));
        }
        let longer = [&buffer[..], &[0; 5]].concat();
        assert_eq!(
            payload.check(&longer, RUN.key, NOW),
            Err(PayloadError::Truncated)
        );
        assert_eq!(
            payload.check(b"h", RUN.key, NOW),
            Err(PayloadError::Foreign)
        );
        assert_eq!(
            payload.check(&[0; 64], RUN.key, NOW),
            Err(PayloadError::Foreign)
        );
    }
}
