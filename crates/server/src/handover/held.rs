//! The counts of quotas and rate limits of a process, which the other process includes in its own.

use super::HandoverError;
use super::offer::Bytes;
use crate::quota::OtherCounts;
use std::os::fd::OwnedFd;

/// Descriptors of [`SharedCounts`](crate::quota::SharedCounts).
#[derive(Debug, Default)]
pub(crate) struct SharedCountFds {
    /// Relayed addresses of users, realms, sources and in all.
    pub(crate) quotas: Option<OwnedFd>,
    /// Allocations of groups that have rate limits; `None` if there are none.
    pub(crate) rates: Option<OwnedFd>,
}

impl SharedCountFds {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend([self.quotas.is_some(), self.rates.is_some()].map(u8::from));
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = &OwnedFd> {
        self.quotas.iter().chain(&self.rates)
    }

    /// Reads what [`encode`](Self::encode) has written.
    pub(super) fn decode(
        bytes: &mut Bytes<'_>,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<SharedCountFds, HandoverError> {
        let mut next = || -> Result<Option<OwnedFd>, HandoverError> {
            if bytes.byte()? == 0 {
                return Ok(None);
            }
            let fd = fds.next();
            fd.ok_or(HandoverError::Offer("descriptors are missing"))
                .map(Some)
        };
        Ok(SharedCountFds {
            quotas: next()?,
            rates: next()?,
        })
    }

    /// Maps both.
    pub(crate) fn map(self) -> Result<[Option<OtherCounts>; 2], HandoverError> {
        let map = |fd: Option<OwnedFd>| fd.map(OtherCounts::of).transpose();
        let mapped = map(self.quotas).and_then(|quotas| Ok([quotas, map(self.rates)?]));
        mapped.map_err(HandoverError::System)
    }

    pub(super) fn copies(&self) -> std::io::Result<SharedCountFds> {
        let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        Ok(SharedCountFds {
            quotas: copy(&self.quotas)?,
            rates: copy(&self.rates)?,
        })
    }
}
