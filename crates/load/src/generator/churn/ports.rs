//! Source ports, each used once before any is used again.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ::io::{UdpOptions, UdpSocket};

/// What Linux has without being told otherwise.
const DEFAULT_RANGE: (u16, u16) = (32_768, 60_999);
const RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Walks through the ephemeral ports. The kernel chooses at random, and so the same again and again: a server could take a
/// new client for one it knows.
#[derive(Debug)]
pub(super) struct Ports {
    ip: IpAddr,
    next: u16,
    first: u16,
    last: u16,
    step: u16,
}

impl Ports {
    /// Every `step`th port of the kernel's ephemeral range, beginning with the `index`th.
    pub(super) fn new(ip: IpAddr, index: u16, step: u16) -> Ports {
        let (first, last) = std::fs::read_to_string(RANGE_FILE)
            .ok()
            .and_then(|text| range(&text))
            .unwrap_or(DEFAULT_RANGE);
        let first = first.saturating_add(index).min(last);
        Ports {
            ip,
            next: first,
            first,
            last,
            step: step.max(1),
        }
    }

    /// A socket on the next port that is free.
    ///
    /// # Errors
    /// What `bind` returns; `AddrInUse` if all ports are in use.
    pub(super) fn open(&mut self, options: &UdpOptions) -> io::Result<UdpSocket> {
        let start = self.next;
        loop {
            let address = SocketAddr::new(self.ip, self.take());
            match UdpSocket::bind(address, options) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.next != start => {}
                result => return result,
            }
        }
    }

    fn take(&mut self) -> u16 {
        let port = self.next;
        self.next = match port.checked_add(self.step) {
            Some(next) if next <= self.last => next,
            _ => self.first,
        };
        port
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
    use std::collections::HashSet;

    #[test]
    fn threads_walk_through_different_ports_and_repeat_none_early() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut seen = HashSet::new();
        for index in 0..3 {
            let mut ports = Ports::new(ip, index, 3);
            ports.last = ports.first + 299;
            for _ in 0..100 {
                assert!(seen.insert(ports.take()), "no port twice");
            }
            assert_eq!(ports.take(), ports.first, "then from the start");
        }
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut ports = Ports::new(ip, 0, 1);
        let taken = std::net::UdpSocket::bind((ip, 0)).unwrap();
        ports.next = taken.local_addr().unwrap().port();
        let socket = ports.open(&UdpOptions::default()).unwrap();
        assert_ne!(socket.local_addr(), taken.local_addr().unwrap());
    }

    #[test]
    fn the_range_is_read_as_the_kernel_writes_it() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(range("9 1"), None);
        assert_eq!(range(""), None);
    }
}
