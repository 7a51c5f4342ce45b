//! What a new process sends to the old one before it binds its sockets.

use super::held::SharedCountFds;
use super::offer::{Bytes, MAP_COUNT};
use super::{HandoverError, JoiningSip};
use crate::ports::{ENTRY_BYTES, SharedPorts};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the old process gets from the new one. This is the steering program (if the new process loaded it), its relay
/// ports, and its counts of quotas and rate limits.
#[derive(Debug, Default)]
pub struct Joining {
    /// The steering program and its tables; empty if the old process has loaded them.
    pub(crate) maps: Vec<OwnedFd>,
    pub(crate) relays: Vec<SharedPorts>,
    pub(crate) held: SharedCountFds,
    /// `None` if one of the two serves no SIP.
    pub(crate) sip: Option<JoiningSip>,
}

impl Joining {
    /// The bytes and the descriptors of a message that [`decode`](Self::decode) reads.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let mut bytes = vec![(self.maps.len() == MAP_COUNT).into()];
        encode_ports(&self.relays, &mut bytes);
        self.held.encode(&mut bytes);
        JoiningSip::encode(self.sip.as_ref(), &mut bytes);
        let relays = self.relays.iter().map(|relay| &relay.words);
        let sip = self.sip.iter().map(|sip| &sip.link);
        let fds = self.maps.iter().chain(relays).chain(self.held.fds());
        let fds = fds.chain(sip);
        (bytes, fds.map(AsFd::as_fd).collect())
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`HandoverError::Offer`] if it comes from another release.
    pub fn decode(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Joining, HandoverError> {
        let mut bytes = Bytes(bytes);
        let has_maps = bytes.byte()? != 0;
        let mut fds = fds.into_iter();
        let maps: Vec<_> = fds
            .by_ref()
            .take(if has_maps { MAP_COUNT } else { 0 })
            .collect();
        if has_maps && maps.len() != MAP_COUNT {
            return Err(HandoverError::Offer("descriptors are missing"));
        }
        Ok(Joining {
            maps,
            relays: decode_ports(&mut bytes, &mut fds)?,
            held: SharedCountFds::decode(&mut bytes, &mut fds)?,
            sip: JoiningSip::decode(&mut bytes, &mut fds)?,
        })
    }
}

/// Appends how many relay addresses there are, and each.
pub(super) fn encode_ports(ports: &[SharedPorts], bytes: &mut Vec<u8>) {
    bytes.push(ports.len() as u8);
    bytes.extend(ports.iter().flat_map(SharedPorts::entry));
}

/// Reads what [`encode_ports`] has written; each takes a descriptor.
pub(super) fn decode_ports(
    bytes: &mut Bytes<'_>,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Vec<SharedPorts>, HandoverError> {
    let count = bytes.byte()?;
    let mut ports = Vec::with_capacity(count.into());
    for _ in 0..count {
        let entry: [u8; ENTRY_BYTES] = bytes.take()?;
        let fd = fds
            .next()
            .ok_or(HandoverError::Offer("descriptors are missing"))?;
        let read = SharedPorts::read(&entry, fd);
        ports.push(read.ok_or(HandoverError::Offer("a relay address makes no sense"))?);
    }
    Ok(ports)
}
