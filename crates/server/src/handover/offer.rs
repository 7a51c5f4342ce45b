//! What a running server offers to a new process, and the encoding of the offer.

use super::HandoverError;
use super::OfferedSip;
use super::held::SharedCountFds;
use super::joining::{decode_ports, encode_ports};
use super::xdp::{self, XdpPrograms};
use crate::ports::{ForeignPorts, SharedPorts};
use crate::steering::Numbering;
use bpf::steer::Process;
use io::UdpSocket;
use io::inherited::describe;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The format of an offer. A server takes over only from a server with the same format.
const FORMAT: u8 = 3;
/// Descriptors of the steering program.
pub(super) const MAP_COUNT: usize = 5;

/// A key of nonces or tickets.
pub(crate) type Key = [u8; 32];

/// What a running server hands over: copies of its sockets, its keys, and the numbers of its workers.
pub struct Offer {
    pub(crate) process: u8,
    pub(crate) first_worker: u16,
    pub(crate) workers: u16,
    pub(crate) first_slot: u32,
    /// The newest key comes first.
    pub(crate) nonce_keys: Vec<Key>,
    pub(crate) ticket_key: Option<Key>,
    /// The steering program and its tables; empty if there are none.
    pub(crate) maps: Vec<OwnedFd>,
    /// UDP listeners of STUN and TURN, also over DTLS: for each its sockets, one per worker.
    pub(crate) udp: Vec<Vec<OwnedFd>>,
    /// Its relay ports.
    pub(crate) relays: Vec<SharedPorts>,
    pub(crate) held: SharedCountFds,
    /// `None` if no XDP program is attached.
    pub(crate) xdp: Option<XdpPrograms>,
    pub(crate) sip: Option<OfferedSip>,
    /// TCP listeners, and all sockets of SIP.
    pub(crate) others: Vec<OwnedFd>,
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer")
            .field("workers", &self.workers)
            .field("udp", &self.udp)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

impl Offer {
    /// The bytes and the descriptors of a message that [`decode`](Self::decode) reads.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let mut bytes = vec![FORMAT, self.process];
        bytes.extend_from_slice(&self.first_worker.to_le_bytes());
        bytes.extend_from_slice(&self.workers.to_le_bytes());
        bytes.extend_from_slice(&self.first_slot.to_le_bytes());
        bytes.push(self.nonce_keys.len() as u8);
        bytes.extend(self.nonce_keys.iter().flatten());
        bytes.push(self.ticket_key.is_some().into());
        bytes.extend(self.ticket_key.iter().flatten());
        bytes.push((self.maps.len() == MAP_COUNT).into());
        bytes.push(self.udp.len() as u8);
        bytes.extend(self.udp.iter().map(|group| group.len() as u8));
        encode_ports(&self.relays, &mut bytes);
        self.held.encode(&mut bytes);
        xdp::encode(self.xdp.as_ref(), &mut bytes);
        OfferedSip::encode(self.sip.as_ref(), &mut bytes);
        let udp = self.udp.iter().flatten();
        let relays = self.relays.iter().map(|relay| &relay.words);
        let fds = self
            .maps
            .iter()
            .chain(udp)
            .chain(relays)
            .chain(self.held.fds())
            .chain(xdp::fds(self.xdp.as_ref()))
            .chain(&self.others);
        (bytes, fds.map(AsFd::as_fd).collect())
    }

    /// Reads an offer.
    ///
    /// # Errors
    /// [`HandoverError::Offer`] if it comes from another release.
    pub fn decode(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Offer, HandoverError> {
        let mut bytes = Bytes(bytes);
        if bytes.byte()? != FORMAT {
            return Err(HandoverError::Offer("another format"));
        }
        let process = bytes.byte()?;
        let first_worker = u16::from_le_bytes(bytes.take()?);
        let workers = u16::from_le_bytes(bytes.take()?);
        let first_slot = u32::from_le_bytes(bytes.take()?);
        let keys = bytes.byte()?.min(2);
        let nonce_keys = (0..keys).map(|_| bytes.take()).collect::<Result<_, _>>()?;
        let ticket_key = (bytes.byte()? != 0).then(|| bytes.take()).transpose()?;
        let maps = if bytes.byte()? != 0 { MAP_COUNT } else { 0 };
        let groups = bytes.byte()?;
        let counts: Vec<u8> = (0..groups)
            .map(|_| bytes.byte())
            .collect::<Result<_, _>>()?;
        let mut fds = fds.into_iter();
        let mut next = |count: usize| -> Result<Vec<OwnedFd>, HandoverError> {
            let taken: Vec<_> = fds.by_ref().take(count).collect();
            let complete = taken.len() == count;
            complete
                .then_some(taken)
                .ok_or(HandoverError::Offer("descriptors are missing"))
        };
        let maps = next(maps)?;
        let udp = counts
            .iter()
            .map(|&count| next(count.into()))
            .collect::<Result<_, _>>()?;
        let relays = decode_ports(&mut bytes, &mut fds)?;
        let held = SharedCountFds::decode(&mut bytes, &mut fds)?;
        let xdp = xdp::decode(&mut bytes, &mut fds)?;
        let sip = OfferedSip::decode(&mut bytes)?;
        if workers == 0 || first_worker.checked_add(workers).is_none() {
            return Err(HandoverError::Offer("no workers"));
        }
        Ok(Offer {
            process,
            first_worker,
            workers,
            first_slot,
            nonce_keys,
            ticket_key,
            maps,
            udp,
            relays,
            held,
            xdp,
            sip,
            others: fds.collect(),
        })
    }

    /// Takes the TCP listeners and the sockets of SIP, for
    /// [`InheritedSockets::of_predecessor`](crate::InheritedSockets::of_predecessor).
    pub fn take_other_sockets(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.others)
    }

    pub(crate) const fn numbering(&self) -> Numbering {
        Numbering {
            first_worker: self.first_worker,
            workers: self.workers,
            first_slot: self.first_slot,
        }
    }

    pub(crate) const fn process(&self) -> Process {
        Process::of_number(self.process as u64)
    }

    /// Duplicates of the file descriptors of the steering program's maps.
    pub(crate) fn maps(&self) -> Result<Option<[OwnedFd; MAP_COUNT]>, HandoverError> {
        let copies = self
            .maps
            .iter()
            .map(OwnedFd::try_clone)
            .collect::<Result<Vec<_>, _>>();
        Ok(copies.map_err(HandoverError::System)?.try_into().ok())
    }

    /// The relay ports of the process.
    pub(crate) fn relay_ports(&self) -> Result<ForeignPorts, HandoverError> {
        let copy = |ports: &SharedPorts| {
            Ok(SharedPorts {
                local: ports.local,
                first: ports.first,
                words: ports.words.try_clone()?,
            })
        };
        let copies = self.relays.iter().map(copy).collect::<std::io::Result<_>>();
        copies
            .and_then(ForeignPorts::new)
            .map_err(HandoverError::System)
    }

    /// What the process holds of quotas and rate limits.
    pub(crate) fn held(&self) -> Result<SharedCountFds, HandoverError> {
        self.held.copies().map_err(HandoverError::System)
    }

    /// The addresses of the UDP listeners.
    pub(crate) fn listeners(&self) -> Result<Vec<SocketAddr>, HandoverError> {
        let address = |group: &Vec<OwnedFd>| {
            let first = group
                .first()
                .ok_or(HandoverError::Offer("a listener has no socket"))?;
            let described = describe(first.as_fd()).map_err(HandoverError::System)?;
            let (_, address) = described.ok_or(HandoverError::Offer("a listener is no socket"))?;
            Ok(address)
        };
        self.udp.iter().map(address).collect()
    }
}

/// Copies of all sockets that a server listens on, for an offer.
#[derive(Debug, Default)]
pub(crate) struct OpenListeners {
    pub(crate) udp: Vec<Vec<OwnedFd>>,
    pub(crate) others: Vec<OwnedFd>,
}

impl OpenListeners {
    pub(crate) fn add_groups(&mut self, groups: &[Vec<UdpSocket>]) -> std::io::Result<()> {
        for group in groups {
            let copies = group
                .iter()
                .map(|socket| socket.as_fd().try_clone_to_owned());
            self.udp.push(copies.collect::<Result<_, _>>()?);
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, socket: &impl AsFd) -> std::io::Result<()> {
        self.others.push(socket.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Copies of the copies.
    pub(crate) fn copies(&self) -> std::io::Result<OpenListeners> {
        let copy = |list: &Vec<OwnedFd>| {
            list.iter()
                .map(OwnedFd::try_clone)
                .collect::<Result<_, _>>()
        };
        Ok(OpenListeners {
            udp: self.udp.iter().map(copy).collect::<Result<_, _>>()?,
            others: copy(&self.others)?,
        })
    }
}

/// Bytes that are taken from the front.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    pub(super) fn byte(&mut self) -> Result<u8, HandoverError> {
        self.take().map(|[byte]| byte)
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], HandoverError> {
        let taken = self.0.split_first_chunk::<N>();
        let (taken, rest) = taken.ok_or(HandoverError::Offer("it is too short"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn socket() -> OwnedFd {
        UdpSocket::bind("127.0.0.1:0").expect("a port").into()
    }

    #[test]
    fn an_offer_arrives_as_it_was_made_and_a_part_of_it_is_refused() {
        let offer = Offer {
            process: 1,
            first_worker: 7,
            workers: 2,
            first_slot: 12,
            nonce_keys: vec![[1; 32], [2; 32]],
            ticket_key: Some([3; 32]),
            maps: Vec::new(),
            udp: vec![vec![socket(), socket()], vec![socket(), socket()]],
            relays: vec![SharedPorts {
                local: "192.0.2.1".parse().expect("an address"),
                first: 49_152,
                words: socket(),
            }],
            held: SharedCountFds {
                quotas: Some(socket()),
                rates: None,
            },
            xdp: Some(XdpPrograms {
                program: socket(),
                links: vec![(7, socket()), (70_000, socket())],
            }),
            sip: Some(OfferedSip {
                key: [4; 16],
                run: 5,
            }),
            others: vec![socket()],
        };
        let (bytes, fds) = offer.encode();
        let copies = || -> Vec<OwnedFd> {
            let copy = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
            fds.iter().map(copy).collect()
        };
        let read = Offer::decode(&bytes, copies()).expect("the same release");
        assert_eq!(read.numbering(), offer.numbering());
        assert_eq!(read.process(), Process::Odd);
        assert_eq!(
            (&read.nonce_keys, read.ticket_key),
            (&offer.nonce_keys, Some([3; 32]))
        );
        assert_eq!(
            read.listeners().expect("sockets"),
            offer.listeners().expect("sockets")
        );
        assert_eq!((read.udp[1].len(), read.others.len()), (2, 1));
        assert_eq!(read.relays[0].entry(), offer.relays[0].entry());
        assert!(read.held.quotas.is_some() && read.held.rates.is_none());
        let xdp = read.xdp.expect("it was there");
        assert!(xdp.link(70_000).is_some() && xdp.link(8).is_none());
        assert_eq!(read.sip, offer.sip);
        for length in 0..bytes.len() {
            assert!(
                Offer::decode(&bytes[..length], copies()).is_err(),
                "{length}"
            );
        }
        assert!(Offer::decode(&bytes, Vec::new()).is_err());
        let other = [&[FORMAT + 1][..], &bytes[1..]].concat();
        assert!(Offer::decode(&other, copies()).is_err());
    }
}
