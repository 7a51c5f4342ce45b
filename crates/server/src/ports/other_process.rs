//! The relay ports that are live in another process of this server, during an upgrade.

use io::SharedWords;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// What travels beside the descriptor: a byte for the family, 16 for the address, 2 for the first port.
pub(crate) const ENTRY_BYTES: usize = 19;

/// One relay address of a process, and a descriptor of the words of its ports: see [`OwnerTable`](super::OwnerTable).
#[derive(Debug)]
pub(crate) struct SharedPorts {
    pub(crate) local: IpAddr,
    pub(crate) first: u16,
    pub(crate) words: OwnedFd,
}

impl SharedPorts {
    /// The bytes that travel beside the descriptor.
    pub(crate) fn entry(&self) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        let octets = match self.local {
            IpAddr::V4(v4) => {
                entry[0] = 4;
                v4.to_ipv6_mapped().octets()
            }
            IpAddr::V6(v6) => {
                entry[0] = 6;
                v6.octets()
            }
        };
        entry[1..17].copy_from_slice(&octets);
        entry[17..].copy_from_slice(&self.first.to_le_bytes());
        entry
    }

    /// Reads what has travelled.
    pub(crate) fn read(entry: &[u8; ENTRY_BYTES], words: OwnedFd) -> Option<SharedPorts> {
        let [family, address @ .., low, high] = *entry;
        let v6 = Ipv6Addr::from(address);
        let local = match family {
            4 => IpAddr::V4(v6.to_ipv4_mapped()?),
            6 => IpAddr::V6(v6),
            _ => return None,
        };
        let first = u16::from_le_bytes([low, high]);
        Some(SharedPorts {
            local,
            first,
            words,
        })
    }
}

/// The relay ports of another process. It writes them, this one reads them.
#[derive(Debug)]
pub(crate) struct ForeignPorts(Vec<(IpAddr, u16, SharedWords)>);

impl ForeignPorts {
    /// Maps what another process has sent.
    ///
    /// # Errors
    /// If a descriptor is no such memory.
    pub(crate) fn new(ports: Vec<SharedPorts>) -> std::io::Result<ForeignPorts> {
        let map =
            |ports: SharedPorts| Ok((ports.local, ports.first, SharedWords::of(ports.words)?));
        ports
            .into_iter()
            .map(map)
            .collect::<Result<_, _>>()
            .map(ForeignPorts)
    }

    /// Whether an allocation of the other process has this port of the host's address.
    pub(crate) fn is_live(&self, relayed: SocketAddr) -> bool {
        let is_its = |(local, first, words): &(IpAddr, u16, SharedWords)| {
            let word = relayed.port().checked_sub(*first);
            let word = word.and_then(|word| words.words().get(usize::from(word)));
            *local == relayed.ip() && word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
        };
        self.0.iter().any(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Owner, OwnerTable, PortRange};
    use super::*;

    #[test]
    fn another_process_sees_which_ports_are_live() {
        let table = OwnerTable::new(PortRange::new(50_000, 50_009).expect("a range"));
        for local in ["192.0.2.1", "2001:db8::1"] {
            let local: IpAddr = local.parse().expect("an address");
            let sent = SharedPorts {
                local,
                first: 50_000,
                words: table.descriptor().expect("a descriptor"),
            };
            let entry = sent.entry();
            let read = SharedPorts::read(&entry, sent.words).expect("as it was sent");
            let ports = ForeignPorts::new(vec![read]).expect("it can be mapped");
            let is_live = |port| ports.is_live(SocketAddr::new(local, port));
            table.clear(50_003);
            assert!(!is_live(50_003));
            table.set(50_003, Owner { worker: 0, slot: 0 });
            assert!(is_live(50_003));
            assert!(!is_live(50_004) && !is_live(49_999) && !is_live(50_010) && !is_live(0));
            assert!(!ports.is_live("192.0.2.2:50003".parse().expect("an address")));
        }
    }
}
