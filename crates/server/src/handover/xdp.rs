//! The XDP attachments of a process, for another process whose program will run first.

use super::HandoverError;
use super::offer::Bytes;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An XDP program, and the links that attach it to interfaces.
#[derive(Debug)]
pub(crate) struct XdpPrograms {
    pub(crate) program: OwnedFd,
    /// Each with the index of its interface.
    pub(crate) links: Vec<(u32, OwnedFd)>,
}

impl XdpPrograms {
    /// The link of this interface.
    pub(crate) fn link(&self, interface: u32) -> Option<BorrowedFd<'_>> {
        let mut links = self.links.iter();
        let found = links.find(|(index, _)| *index == interface);
        found.map(|(_, link)| link.as_fd())
    }
}

/// Appends how many links there are, and the interface of each.
pub(super) fn encode(programs: Option<&XdpPrograms>, bytes: &mut Vec<u8>) {
    let links = programs.map_or(&[][..], |programs| &programs.links);
    bytes.push(links.len() as u8);
    bytes.extend(links.iter().flat_map(|(index, _)| index.to_le_bytes()));
}

pub(super) fn fds(programs: Option<&XdpPrograms>) -> impl Iterator<Item = &OwnedFd> {
    let links = programs.map(|programs| programs.links.iter().map(|(_, link)| link));
    let program = programs.map(|programs| &programs.program);
    program.into_iter().chain(links.into_iter().flatten())
}

/// Reads what [`encode`] has written.
pub(super) fn decode(
    bytes: &mut Bytes<'_>,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Option<XdpPrograms>, HandoverError> {
    let count = bytes.byte()?;
    if count == 0 {
        return Ok(None);
    }
    let mut next = || {
        fds.next()
            .ok_or(HandoverError::Offer("descriptors are missing"))
    };
    let program = next()?;
    let links = (0..count)
        .map(|_| Ok((u32::from_le_bytes(bytes.take()?), next()?)))
        .collect::<Result<_, HandoverError>>()?;
    Ok(Some(XdpPrograms { program, links }))
}
