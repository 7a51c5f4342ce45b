//! The payload of a benchmark load.
//!
//! ```text
//!   0        4        8          12           16
//!   | "hrpn" |  flow  | sequence | ~sequence  | pattern: byte i is (7 i + 3) mod 256, to the end
//! ```
//! All words little endian. The sequence number and its complement make the Internet checksum
//! independent of the sequence number. So a frame generator never changes checksums, and a receiver
//! gets a first check without cost. The pattern depends on the position alone: a shifted, truncated
//! or recycled payload does not match.

/// First four bytes of every payload ("hrpn"), as a little-endian word.
pub const MAGIC: u32 = 0x6e70_7268;

/// Bytes in front of the pattern.
pub const HEAD_LEN: usize = 16;

/// Shortest payload of a load, in bytes: the counter looks at this many of every datagram.
pub const MIN_LEN: usize = 32;

/// Longest payload of a load, in bytes.
pub const MAX_LEN: usize = 1536;

/// The pattern byte at a position of the payload, for positions from [`HEAD_LEN`] on.
pub fn pattern(position: usize) -> u8 {
    // Truncation is the point: the pattern has a period of 256.
    (position as u8).wrapping_mul(7).wrapping_add(3)
}

/// Writes a whole payload.
///
/// # Panics
/// When `payload` is shorter than [`HEAD_LEN`].
pub fn fill(payload: &mut [u8], flow: u32, sequence: u32) {
    payload[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    payload[4..8].copy_from_slice(&flow.to_le_bytes());
    stamp(payload, sequence);
    for (position, byte) in payload.iter_mut().enumerate().skip(HEAD_LEN) {
        *byte = pattern(position);
    }
}

/// Writes a new sequence number into a payload that [`fill`] has filled.
///
/// # Panics
/// When `payload` is shorter than [`HEAD_LEN`].
pub fn stamp(payload: &mut [u8], sequence: u32) {
    payload[8..12].copy_from_slice(&sequence.to_le_bytes());
    payload[12..16].copy_from_slice(&(!sequence).to_le_bytes());
}

/// Flow and sequence of a payload, or `None` when any byte of it is not as [`fill`] wrote it.
pub fn check(payload: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| {
        payload
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes)
    };
    let (flow, sequence) = (word(4)?, word(8)?);
    let whole = word(0)? == MAGIC
        && word(12)? == !sequence
        && payload
            .iter()
            .enumerate()
            .skip(HEAD_LEN)
            .all(|(position, byte)| *byte == pattern(position));
    whole.then_some((flow, sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_payload_checks_and_any_changed_byte_does_not() {
        let mut payload = [0; 120];
        fill(&mut payload, 7, 0x0102_0304);
        assert_eq!(check(&payload), Some((7, 0x0102_0304)));
        for position in (0..4).chain(8..120) {
            let mut damaged = payload;
            damaged[position] ^= 0x10;
            assert_eq!(check(&damaged), None, "byte {position}");
        }
        stamp(&mut payload, 9);
        assert_eq!(check(&payload), Some((7, 9)));
        assert_eq!(check(&payload[..15]), None);
    }
}
