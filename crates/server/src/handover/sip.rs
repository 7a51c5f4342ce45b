//! The SIP parts of an offer and of the reply to it.

use super::HandoverError;
use super::offer::Bytes;
use crate::steering::Numbering;
use std::os::fd::OwnedFd;

/// Bytes of the key of branches, tags, nonces and transactions.
const KEY_BYTES: usize = 16;

/// The SIP of the old process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfferedSip {
    /// Both processes have it, so that each finds the worker that a message belongs to.
    pub(crate) key: [u8; KEY_BYTES],
    /// The number of its run, in flow tokens.
    pub(crate) run: u32,
}

impl OfferedSip {
    pub(super) fn encode(sip: Option<&OfferedSip>, bytes: &mut Vec<u8>) {
        bytes.push(sip.is_some().into());
        if let Some(sip) = sip {
            bytes.extend_from_slice(&sip.key);
            bytes.extend_from_slice(&sip.run.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Result<Option<OfferedSip>, HandoverError> {
        if bytes.byte()? == 0 {
            return Ok(None);
        }
        Ok(Some(OfferedSip {
            key: bytes.take()?,
            run: u32::from_le_bytes(bytes.take()?),
        }))
    }
}

/// The SIP of the new process.
#[derive(Debug)]
pub(crate) struct JoiningSip {
    /// The numbers of its workers.
    pub(crate) numbering: Numbering,
    /// The number of its run, in flow tokens.
    pub(crate) run: u32,
    /// Identifies where it saves bindings: see `sip::place_id`.
    pub(crate) place_id: u64,
    /// The old process's end of the connection between their workers.
    pub(crate) link: OwnedFd,
}

impl JoiningSip {
    pub(super) fn encode(sip: Option<&JoiningSip>, bytes: &mut Vec<u8>) {
        bytes.push(sip.is_some().into());
        if let Some(sip) = sip {
            bytes.extend_from_slice(&sip.numbering.first_worker.to_le_bytes());
            bytes.extend_from_slice(&sip.numbering.workers.to_le_bytes());
            bytes.extend_from_slice(&sip.run.to_le_bytes());
            bytes.extend_from_slice(&sip.place_id.to_le_bytes());
        }
    }

    pub(super) fn decode(
        bytes: &mut Bytes<'_>,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Option<JoiningSip>, HandoverError> {
        if bytes.byte()? == 0 {
            return Ok(None);
        }
        let first_worker = u16::from_le_bytes(bytes.take()?);
        let workers = u16::from_le_bytes(bytes.take()?);
        let run = u32::from_le_bytes(bytes.take()?);
        let place_id = u64::from_le_bytes(bytes.take()?);
        if workers == 0 || first_worker.checked_add(workers).is_none() {
            return Err(HandoverError::Offer("no workers"));
        }
        let link = fds.next();
        Ok(Some(JoiningSip {
            numbering: Numbering {
                first_worker,
                workers,
                first_slot: 0,
            },
            run,
            place_id,
            link: link.ok_or(HandoverError::Offer("descriptors are missing"))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_sip_state_is_decoded_unchanged() {
        let key = [7; KEY_BYTES];
        let run = 3;
        for offered in [None, Some(OfferedSip { key, run })] {
            let mut bytes = Vec::new();
            OfferedSip::encode(offered.as_ref(), &mut bytes);
            let read = OfferedSip::decode(&mut Bytes(&bytes)).unwrap();
            assert_eq!(read, offered);
            for end in 0..bytes.len() {
                assert!(OfferedSip::decode(&mut Bytes(&bytes[..end])).is_err());
            }
        }
        let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let joining = JoiningSip {
            numbering: Numbering {
                first_worker: 4,
                workers: 2,
                first_slot: 0,
            },
            run: 9,
            place_id: 7,
            link: fd(),
        };
        let mut bytes = Vec::new();
        JoiningSip::encode(Some(&joining), &mut bytes);
        let read = JoiningSip::decode(&mut Bytes(&bytes), &mut [fd()].into_iter());
        let read = read.unwrap().unwrap();
        assert_eq!(
            (read.numbering, read.run, read.place_id),
            (joining.numbering, 9, 7)
        );
        assert!(JoiningSip::decode(&mut Bytes(&bytes), &mut std::iter::empty()).is_err());
        for end in 0..bytes.len() {
            let read = JoiningSip::decode(&mut Bytes(&bytes[..end]), &mut [fd()].into_iter());
            assert!(read.is_err());
        }
    }
}
