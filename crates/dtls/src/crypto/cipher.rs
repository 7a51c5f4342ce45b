//! Record protection (RFC 6347 §4.1.2, RFC 5288, RFC 7905).

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};

use super::{Refused, Suite};
use crate::window::Window;
use crate::wire::record::{self, ContentType, Header, MAX_SEQUENCE};

const TAG: usize = 16;
const EXPLICIT_NONCE: usize = 8;
/// The maximum number of bytes that protection adds to the contents of a record.
pub(crate) const EXPANSION: usize = EXPLICIT_NONCE + TAG;
/// The only epoch with protection: nothing is renegotiated.
pub(crate) const EPOCH: u16 = 1;

/// One direction's key.
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    explicit_nonce: bool,
}

impl Key {
    fn new(suite: &Suite, key: &[u8], iv: &[u8]) -> Result<Key, Refused> {
        let mut whole = [0; 12];
        whole[..iv.len()].copy_from_slice(iv);
        Ok(Key {
            key: LessSafeKey::new(UnboundKey::new(suite.aead, key)?),
            iv: whole,
            explicit_nonce: suite.explicit_nonce,
        })
    }

    const fn explicit(&self) -> usize {
        if self.explicit_nonce {
            EXPLICIT_NONCE
        } else {
            0
        }
    }

    /// `number`: what the explicit part of the nonce says, or the record's number.
    fn nonce(&self, number: [u8; 8]) -> Nonce {
        let mut nonce = self.iv;
        // For an explicit nonce these bytes of the IV are zero, so that both constructions are one.
        for (byte, number) in nonce[4..].iter_mut().zip(number) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

/// RFC 6347 §4.1.2.1: record number, type, version and the length of the contents.
fn additional_data(
    number: u64,
    content: ContentType,
    version: u16,
    length: usize,
) -> Aad<[u8; 13]> {
    let mut bytes = [0; 13];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes[8] = content as u8;
    bytes[9..11].copy_from_slice(&version.to_be_bytes());
    bytes[11..].copy_from_slice(&(length as u16).to_be_bytes());
    Aad::from(bytes)
}

/// Writes protected records.
pub(crate) struct Sealer {
    key: Key,
    /// Sequence number of the next record.
    next: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

/// Why no record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealError {
    /// The contents do not fit into a record, or the record not into the space.
    TooLong,
    /// 2^48 records were sent.
    Exhausted,
}

impl Sealer {
    pub(crate) fn new(suite: &Suite, key: &[u8], iv: &[u8]) -> Result<Sealer, Refused> {
        let key = Key::new(suite, key, iv)?;
        Ok(Sealer { key, next: 0 })
    }

    /// Writes one record with `parts` as its contents into `out`, and returns its length.
    pub(crate) fn seal(
        &mut self,
        content: ContentType,
        parts: &[&[u8]],
        out: &mut [u8],
    ) -> Result<usize, SealError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let explicit = self.key.explicit();
        let fragment = explicit + length + TAG;
        if length > 1 << 14 || out.len() < record::HEADER + fragment {
            return Err(SealError::TooLong);
        }
        if self.next > MAX_SEQUENCE {
            return Err(SealError::Exhausted);
        }
        let number = record::number(EPOCH, self.next);
        let (header, rest) = out.split_at_mut(record::HEADER);
        header.copy_from_slice(&record::header(content, EPOCH, self.next, fragment));
        // The check above ensures room for the explicit nonce, the parts and the tag.
        rest[..explicit].copy_from_slice(&number.to_be_bytes()[..explicit]);
        let (text, rest) = rest[explicit..].split_at_mut(length);
        let mut at = 0;
        for part in parts {
            text[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let aad = additional_data(number, content, crate::wire::DTLS12, length);
        let nonce = self.key.nonce(number.to_be_bytes());
        // It fails for texts of gigabytes only.
        let tag = self.key.key.seal_in_place_separate_tag(nonce, aad, text);
        rest[..TAG].copy_from_slice(tag.map_err(|_| SealError::TooLong)?.as_ref());
        self.next += 1;
        Ok(record::HEADER + fragment)
    }
}

/// Reads protected records, each once.
pub(crate) struct Opener {
    key: Key,
    window: Window,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

/// Why a record is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// It was received before, or is older than the replay window.
    Replayed,
    /// Its authentication tag does not match this key.
    Forged,
}

impl Opener {
    pub(crate) fn new(suite: &Suite, key: &[u8], iv: &[u8]) -> Result<Opener, Refused> {
        Ok(Opener {
            key: Key::new(suite, key, iv)?,
            window: Window::default(),
        })
    }

    /// Decrypts a fragment in place. Returns the range of its contents.
    pub(crate) fn open(
        &mut self,
        header: &Header,
        fragment: &mut [u8],
    ) -> Result<std::ops::Range<usize>, OpenError> {
        if !self.window.is_new(header.sequence) {
            return Err(OpenError::Replayed);
        }
        let explicit = self.key.explicit();
        let length = fragment
            .len()
            .checked_sub(explicit + TAG)
            .ok_or(OpenError::Forged)?;
        let (nonce, text) = fragment.split_at_mut(explicit);
        // The explicit nonce is the peer's to choose (RFC 5288 §3).
        let number = <[u8; 8]>::try_from(&*nonce).unwrap_or(header.number().to_be_bytes());
        let aad = additional_data(header.number(), header.content, header.version, length);
        self.key
            .key
            .open_in_place(self.key.nonce(number), aad, text)
            .map_err(|_| OpenError::Forged)?;
        // RFC 6347 §4.1.2.6: the window moves only for records that are authentic.
        self.window.insert(header.sequence);
        Ok(explicit..explicit + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::SUITES;

    fn pair(suite: &Suite) -> (Sealer, Opener) {
        let key = vec![3; suite.aead.key_len()];
        let iv = [4; 12];
        let iv = if suite.explicit_nonce {
            &iv[..4]
        } else {
            &iv[..]
        };
        (
            Sealer::new(suite, &key, iv).unwrap(),
            Opener::new(suite, &key, iv).unwrap(),
        )
    }

    fn open(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, OpenError> {
        let mut record = record.to_vec();
        let header = Header::parse(&record).unwrap();
        let fragment = &mut record[record::HEADER..];
        let range = opener.open(&header, fragment)?;
        Ok(fragment[range].to_vec())
    }

    #[test]
    fn a_record_of_every_suite_opens_once() {
        for suite in SUITES {
            let (mut sealer, mut opener) = pair(suite);
            let mut out = [0; 100];
            for text in [&b""[..], b"hello", &[7; 60]] {
                let (head, tail) = text.split_at(text.len() / 2);
                let length = sealer
                    .seal(ContentType::ApplicationData, &[head, tail], &mut out)
                    .unwrap();
                assert!(length <= record::HEADER + EXPANSION + text.len());
                assert_eq!(
                    open(&mut opener, &out[..length]).unwrap(),
                    text,
                    "{}",
                    suite.name
                );
                assert_eq!(open(&mut opener, &out[..length]), Err(OpenError::Replayed));
            }
        }
    }

    #[test]
    fn a_changed_record_is_forged_and_does_not_move_the_window() {
        let (mut sealer, mut opener) = pair(&SUITES[0]);
        let mut out = [0; 100];
        let length = sealer
            .seal(ContentType::ApplicationData, &[b"hello"], &mut out)
            .unwrap();
        // Epoch and length are changed by the tests of the record header: a changed length is another record.
        for at in (0..3).chain(5..11).chain(13..length) {
            let mut changed = out[..length].to_vec();
            changed[at] ^= 1;
            if Header::parse(&changed).is_some() {
                assert_eq!(
                    open(&mut opener, &changed),
                    Err(OpenError::Forged),
                    "byte {at}"
                );
            }
        }
        assert!(open(&mut opener, &out[..length]).is_ok());
    }

    #[test]
    fn oversized_records_are_refused() {
        let (mut sealer, _) = pair(&SUITES[0]);
        let mut out = vec![0; 1 << 15];
        let too_long = vec![0; (1 << 14) + 1];
        let content = ContentType::ApplicationData;
        assert_eq!(
            sealer.seal(content, &[&too_long], &mut out),
            Err(SealError::TooLong)
        );
        assert_eq!(
            sealer.seal(content, &[b"hello"], &mut out[..41]),
            Err(SealError::TooLong)
        );
        assert_eq!(sealer.seal(content, &[b"hello"], &mut out[..42]), Ok(42));
        sealer.next = MAX_SEQUENCE + 1;
        assert_eq!(
            sealer.seal(content, &[b"hello"], &mut out),
            Err(SealError::Exhausted)
        );
    }
}
