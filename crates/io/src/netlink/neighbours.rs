//! Neighbours: which link-layer address is behind an address, and how sure the kernel is of it.

use std::io;
use std::net::IpAddr;

use super::answer::{Message, address, attributes, u16_at, u32_at};
use super::message::{NLM_F_CREATE, NLM_F_DUMP, Request};
use super::{Mac, Netlink, family, octets};

pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `struct ndmsg`.
const HEADER_BYTES: usize = 12;

/// The kernel's entry of one neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address, if the kernel would send to it now.
    pub mac: Option<Mac>,
    /// How sure that is.
    pub state: NeighbourState,
}

/// How sure the kernel is of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Confirmed of late, or fixed by an administrator.
    Sure,
    /// Good, but not confirmed for a while. It stays so until a packet is sent there.
    Stale,
    /// Good, and being confirmed.
    Probing,
    /// Not known, being asked for, failed or gone.
    Unknown,
}

impl Netlink {
    /// Every neighbour of both families.
    ///
    /// # Errors
    /// What the kernel says; it needs no privileges.
    pub fn neighbours(&mut self) -> io::Result<Vec<Neighbour>> {
        let request = Request::new(RTM_GETNEIGH, NLM_F_DUMP, &[0; HEADER_BYTES]);
        let mut found = Vec::new();
        self.ask(request, |message| found.extend(neighbour(message)))?;
        Ok(found)
    }

    /// Has the kernel find out about a neighbour, or confirm it if it is stale, as if something was to be sent there.
    /// Does not wait for the outcome.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN; ENODEV.
    pub fn use_neighbour(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        const NTF_USE: u8 = 1;
        let fixed = [
            &[family(address), 0, 0, 0][..],
            &index.to_ne_bytes(),
            &[0, 0, NTF_USE, 0],
        ]
        .concat();
        let request =
            Request::new(RTM_NEWNEIGH, NLM_F_CREATE, &fixed).attribute(NDA_DST, &octets(address));
        self.ask(request, |_| ())
    }
}

/// The neighbour that a message is about. One that was deleted is unknown.
pub(super) fn neighbour(message: &Message<'_>) -> Option<Neighbour> {
    const NUD_REACHABLE: u16 = 0x02;
    const NUD_STALE: u16 = 0x04;
    const NUD_DELAY: u16 = 0x08;
    const NUD_PROBE: u16 = 0x10;
    const NUD_NOARP: u16 = 0x40;
    const NUD_PERMANENT: u16 = 0x80;
    if message.kind != RTM_NEWNEIGH && message.kind != RTM_DELNEIGH {
        return None;
    }
    let family = i32::from(*message.body.first()?);
    // Bridges have neighbours of another kind.
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return None;
    }
    let state = match u16_at(message.body, 8)? {
        _ if message.kind == RTM_DELNEIGH => NeighbourState::Unknown,
        bits if bits & (NUD_REACHABLE | NUD_NOARP | NUD_PERMANENT) != 0 => NeighbourState::Sure,
        bits if bits & NUD_STALE != 0 => NeighbourState::Stale,
        bits if bits & (NUD_DELAY | NUD_PROBE) != 0 => NeighbourState::Probing,
        _ => NeighbourState::Unknown,
    };
    let find =
        |wanted| attributes(message.body, HEADER_BYTES).find(move |(kind, _)| *kind == wanted);
    let known = find(NDA_LLADDR).filter(|_| state != NeighbourState::Unknown);
    Some(Neighbour {
        index: u32_at(message.body, 4)?,
        address: find(NDA_DST).and_then(|(_, value)| address(value))?,
        mac: known.and_then(|(_, value)| value.try_into().ok()),
        state,
    })
}
