//! Source ports, each used once before any is used again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The default of Linux.
const DEFAULT_RANGE: (u16, u16) = (32_768, 60_999);
const RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Walks through the ephemeral ports, and on loopback then through the next address. The kernel chooses at random, so
/// it chooses some ports again: a server could mistake a new client for an earlier one.
#[derive(Debug)]
pub(super) struct Ports {
    ip: IpAddr,
    /// On loopback every address is this machine's: another one for each lap.
    loopback: bool,
    lap: u32,
    next: u16,
    first: u16,
    last: u16,
    step: u16,
}

/// Addresses of 127.0.0.0/8 before the first is used again.
const ADDRESSES: u32 = 65_000;

impl Ports {
    /// Every `step`th port of the kernel's ephemeral range, beginning with the `index`th, for datagrams to `server`
    /// that leave from `local` if given. `seed` says where the walk begins: what another run left behind is not met
    /// again.
    pub(super) fn new(
        local: SocketAddr,
        server: IpAddr,
        (index, step): (u16, u16),
        seed: u32,
    ) -> Ports {
        let (first, last) = std::fs::read_to_string(RANGE_FILE)
            .ok()
            .and_then(|text| range(&text))
            .unwrap_or(DEFAULT_RANGE);
        let first = first.saturating_add(index).min(last);
        let v4_loopback = matches!(server, IpAddr::V4(ip) if ip.is_loopback());
        let step = step.max(1);
        let places = u32::from((last - first) / step) + 1;
        Ports {
            ip: local.ip(),
            loopback: v4_loopback && local.ip().is_unspecified(),
            lap: seed / places % ADDRESSES,
            // Within the range, which is less than 2^16.
            next: first + (seed % places) as u16 * step,
            first,
            last,
            step,
        }
    }

    /// A socket on the next port that `bind` finds free.
    ///
    /// # Errors
    /// What `bind` returns; `AddrInUse` if all ports are in use.
    pub(super) fn open<T>(
        &mut self,
        mut bind: impl FnMut(SocketAddr) -> io::Result<T>,
    ) -> io::Result<T> {
        let start = self.next;
        loop {
            match bind(self.take()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.next != start => {}
                result => return result,
            }
        }
    }

    fn take(&mut self) -> SocketAddr {
        let address = SocketAddr::new(self.address(), self.next);
        self.next = match self.next.checked_add(self.step) {
            Some(next) if next <= self.last => next,
            _ => {
                self.lap = (self.lap + 1) % ADDRESSES;
                self.first
            }
        };
        address
    }

    fn address(&self) -> IpAddr {
        if self.loopback {
            // 127.0.0.1 first.
            let offset = self.lap + 1;
            IpAddr::V4(Ipv4Addr::from(0x7F00_0000 | offset))
        } else {
            self.ip
        }
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::io::{UdpOptions, UdpSocket};
    use std::collections::HashSet;

    const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn local(ip: [u8; 4]) -> SocketAddr {
        SocketAddr::new(ip.into(), 0)
    }

    #[test]
    fn threads_walk_through_different_ports_and_repeat_none_early() {
        let mut seen = HashSet::new();
        for index in 0..3 {
            let mut ports = Ports::new(local([10, 0, 0, 1]), SERVER, (index, 3), 0);
            ports.last = ports.first + 299;
            for _ in 0..100 {
                assert!(seen.insert(ports.take()), "no port twice");
            }
            assert_eq!(ports.take().port(), ports.first, "then from the start");
        }
        let elsewhere = Ports::new(local([10, 0, 0, 1]), SERVER, (2, 3), 1_000_003);
        assert!((elsewhere.first..=elsewhere.last).contains(&elsewhere.next));
        assert_eq!((elsewhere.next - elsewhere.first) % 3, 0);
    }

    #[test]
    fn on_loopback_the_next_lap_is_another_address() {
        let mut ports = Ports::new(local([0, 0, 0, 0]), SERVER, (0, 1), 0);
        ports.last = ports.first + 9;
        let seen: HashSet<SocketAddr> = (0..3_000).map(|_| ports.take()).collect();
        assert_eq!(seen.len(), 3_000);
        assert!(seen.iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let mut ports = Ports::new(local([127, 0, 0, 1]), SERVER, (0, 1), 0);
        let taken = std::net::UdpSocket::bind((SERVER, 0)).unwrap();
        ports.next = taken.local_addr().unwrap().port();
        let socket = ports
            .open(|local| UdpSocket::bind(local, &UdpOptions::default()))
            .unwrap();
        assert_ne!(socket.local_addr(), taken.local_addr().unwrap());
    }

    #[test]
    fn the_range_is_read_as_the_kernel_writes_it() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(range("9 1"), None);
        assert_eq!(range(""), None);
    }
}
