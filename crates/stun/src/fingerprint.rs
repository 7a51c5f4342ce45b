//! FINGERPRINT: a CRC-32 that distinguishes STUN from other protocols on the same port (RFC 8489 §7, §14.7).

use crate::Message;

/// Bytes of the value.
pub(crate) const LEN: usize = 4;

/// RFC 8489 §14.7: the CRC is XORed with "STUN", so that a CRC-32 of another protocol does not match.
const XOR: u32 = 0x5354_554E;

/// The result of the check of a message's FINGERPRINT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FingerprintState {
    /// There is none.
    Absent,
    /// It matches the message.
    Valid,
    /// It does not: this is no STUN message, or a damaged one.
    Invalid,
}

/// The fingerprint of a message. `before` are the bytes before the attribute.
#[inline]
pub(crate) fn of(before: &[u8]) -> u32 {
    crc32fast::hash(before) ^ XOR
}

impl Message<'_> {
    /// Checks the FINGERPRINT, if there is one.
    #[must_use]
    pub fn fingerprint(&self) -> FingerprintState {
        // FINGERPRINT is the last attribute (`parse` has checked it), so the length field is already the one to cover.
        match self.fingerprint_mark() {
            None => FingerprintState::Absent,
            Some(mark) if *mark.value == of(mark.before).to_be_bytes() => FingerprintState::Valid,
            Some(_) => FingerprintState::Invalid,
        }
    }
}
