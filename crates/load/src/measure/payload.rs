//! The payload of a measured datagram.
//!
//! ```text
//!  0       4       8              16             24
//!  +-------+-------+--------------+--------------+---------------------- - -
//!  | magic | flow  | sequence     | sent at, ns  | pattern of the flow
//!  +-------+-------+--------------+--------------+---------------------- - -
//! ```
//! All big-endian. The pattern is a slice of one fixed table at an offset that depends on the flow: checking it is one
//! comparison, and a payload that reached the wrong flow does not match.

/// Bytes of pattern beyond the longest payload, so that every flow finds its slice.
const SHIFTS: usize = 251;

/// What the head of a measured payload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the flow, as the sender counts them.
    pub flow: u32,
    /// Number of the datagram within its flow and direction, from 0.
    pub sequence: u64,
    /// When it should have left, in nanoseconds of the monotonic clock. Latency from the *intended* time is what keeps a
    /// stalled server from hiding its stall.
    pub intended_ns: u64,
}

/// Why a payload is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Shorter than [`Payload::MIN`], or the magic is wrong.
    #[error("not a measured payload")]
    Foreign,
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
    const MAGIC: [u8; 4] = *b"hpn1";

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

    /// Fills `buffer` for `flow`: everything but the sequence and the time, which [`Payload::stamp`] writes for each send.
    ///
    /// # Panics
    /// If `buffer` is not [`Payload::MIN`]`..=`[`Payload::MAX`] bytes long.
    pub fn fill(&self, buffer: &mut [u8], flow: u32) {
        assert!((Payload::MIN..=Payload::MAX).contains(&buffer.len()));
        buffer[..4].copy_from_slice(&Payload::MAGIC);
        buffer[4..8].copy_from_slice(&flow.to_be_bytes());
        let length = buffer.len() - Payload::MIN;
        buffer[Payload::MIN..].copy_from_slice(self.pattern(flow, length));
    }

    /// Writes what changes from send to send into a filled `buffer`.
    pub fn stamp(buffer: &mut [u8], sequence: u64, intended_ns: u64) {
        buffer[8..16].copy_from_slice(&sequence.to_be_bytes());
        buffer[16..24].copy_from_slice(&intended_ns.to_be_bytes());
    }

    /// Reads the head without looking at the rest.
    ///
    /// # Errors
    /// [`PayloadError::Foreign`].
    pub fn peek(payload: &[u8]) -> Result<Stamp, PayloadError> {
        let head = payload
            .first_chunk::<{ Payload::MIN }>()
            .filter(|head| head[..4] == Payload::MAGIC)
            .ok_or(PayloadError::Foreign)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        Ok(Stamp {
            flow: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            sequence: number(8),
            intended_ns: number(16),
        })
    }

    /// Reads a whole payload and compares every byte of it.
    ///
    /// # Errors
    /// [`PayloadError`].
    pub fn check(&self, payload: &[u8]) -> Result<Stamp, PayloadError> {
        let stamp = Payload::peek(payload)?;
        let body = &payload[Payload::MIN..];
        if body.len() > Payload::MAX - Payload::MIN || body != self.pattern(stamp.flow, body.len())
        {
            return Err(PayloadError::Corrupt);
        }
        Ok(stamp)
    }

    fn pattern(&self, flow: u32, length: usize) -> &[u8] {
        let shift = flow as usize % SHIFTS;
        &self.table[shift..shift + length]
    }
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(length: usize) -> (Payload, Vec<u8>) {
        let payload = Payload::new();
        let mut buffer = vec![0; length];
        payload.fill(&mut buffer, 77);
        Payload::stamp(&mut buffer, 5, 123_456);
        (payload, buffer)
    }

    #[test]
    fn what_was_written_is_read() {
        for length in [Payload::MIN, 25, 120, 1200, Payload::MAX] {
            let (payload, buffer) = sample(length);
            let stamp = Stamp {
                flow: 77,
                sequence: 5,
                intended_ns: 123_456,
            };
            assert_eq!(payload.check(&buffer), Ok(stamp));
        }
    }

    #[test]
    fn one_changed_byte_is_noticed() {
        let (payload, buffer) = sample(200);
        for at in Payload::MIN..200 {
            let mut changed = buffer.clone();
            changed[at] ^= 1;
            assert_eq!(payload.check(&changed), Err(PayloadError::Corrupt));
        }
    }

    #[test]
    fn a_payload_of_another_flow_does_not_match() {
        let (payload, mut buffer) = sample(200);
        buffer[7] ^= 1;
        assert_eq!(payload.check(&buffer), Err(PayloadError::Corrupt));
    }

    #[test]
    fn foreign_bytes_are_foreign() {
        let (payload, buffer) = sample(64);
        assert_eq!(payload.check(&buffer[..23]), Err(PayloadError::Foreign));
        assert_eq!(payload.check(&[0; 64]), Err(PayloadError::Foreign));
    }
}
