//! ICMP errors: what came back for a datagram that a socket sent.
//!
//! Linux reports them on unconnected sockets only if asked (IP_RECVERR, IPV6_RECVERR). Each error then waits in the
//! error queue of the socket, with the destination of its datagram. It also makes the *next* call on the socket fail,
//! regardless of the purpose of the call. Such a failure is reported once, so the call is repeated
//! ([`retry_after_icmp`]). Otherwise an error about one destination would lose a datagram to another one.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::{io, mem};

use libc::{c_int, msghdr};

use crate::UdpSocket;
use crate::address::{RawAddress, unmap};
use crate::control::{RecvControl, split_record};
use crate::sys;

/// An error about a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IcmpReport {
    /// Where the datagram was sent to; port 0 if that is not known. Its family says whether ICMP or ICMPv6 is meant.
    pub to: SocketAddr,
    /// The type of the ICMP or ICMPv6 message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU, in bytes, of the link it was too big for; 0 for other messages.
    pub mtu: u32,
}

impl IcmpReport {
    /// Whether the destination is unreachable: host, network, protocol or port, or prohibited. Other errors (too large,
    /// TTL exceeded) need not affect the next datagram.
    #[must_use]
    pub fn is_final(&self) -> bool {
        const UNREACHABLE: u8 = 3;
        const FRAGMENTATION_NEEDED: u8 = 4;
        const UNREACHABLE_V6: u8 = 1;
        match self.to {
            SocketAddr::V4(_) => self.kind == UNREACHABLE && self.code != FRAGMENTATION_NEEDED,
            SocketAddr::V6(_) => self.kind == UNREACHABLE_V6,
        }
    }
}

/// How many errors of other origins one call skips at most.
const PASSED_OVER: usize = 16;

/// How often a call is repeated after an error that only ICMP can cause. Each repetition is for an error that arrived
/// meanwhile.
const MAX_ATTEMPTS: usize = 4;

/// How often a call is repeated after an error that the call itself can cause, too.
const AMBIGUOUS_RETRIES: usize = 2;

impl UdpSocket {
    /// The next ICMP error about a datagram of this socket, if it was opened with
    /// [`UdpOptions::icmp_errors`](crate::UdpOptions) and an error waits. A datagram with DF may exceed the MTU of the
    /// first link. No router reports that, so this function reports it like an ICMP error of a router.
    ///
    /// # Errors
    /// What `recvmsg` returns.
    pub fn next_icmp_error(&self) -> io::Result<Option<IcmpReport>> {
        let next = self.next_icmp_error_about(&mut [])?;
        Ok(next.map(|(report, _)| report))
    }

    /// Like [`UdpSocket::next_icmp_error`]. Also copies the beginning of the datagram that caused the error into
    /// `quoted`, as far as the report has it. Returns the number of bytes.
    ///
    /// # Errors
    /// What `recvmsg` returns.
    pub fn next_icmp_error_about(
        &self,
        quoted: &mut [u8],
    ) -> io::Result<Option<(IcmpReport, usize)>> {
        for _ in 0..PASSED_OVER {
            let mut to = RawAddress::default();
            let mut control = RecvControl::new();
            // SAFETY: integers and pointers only: all zeros are valid, null pointers with zero lengths.
            let mut header: msghdr = unsafe { mem::zeroed() };
            header.msg_name = (&raw mut to).cast();
            header.msg_namelen = RawAddress::CAPACITY;
            let mut payload = libc::iovec {
                iov_base: quoted.as_mut_ptr().cast(),
                iov_len: quoted.len(),
            };
            header.msg_iov = &raw mut payload;
            header.msg_iovlen = 1;
            header.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_controllen = control.bytes.len() as _;
            // SAFETY: name, control and the one iovec are live locals of the lengths stated, and the iovec is that of
            // `quoted`.
            let length = match unsafe { sys::recv::recvmsg_error(self.as_fd(), &mut header) } {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                result => result?,
            };
            let used: usize = header.msg_controllen as _;
            let to = unmap(to.get());
            let report = report(to, control.bytes.get(..used).unwrap_or(&[]));
            if let Some(report) = report {
                return Ok(Some((report, length.min(quoted.len()))));
            }
        }
        Ok(None)
    }
}

/// What the records beside a message of the error queue say; `None` if it is not about ICMP.
fn report(to: SocketAddr, mut control: &[u8]) -> Option<IcmpReport> {
    while let Some((level, kind, data, rest)) = split_record(control) {
        if matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        ) {
            return extended_error(to, data);
        }
        control = rest;
    }
    None
}

/// Reads a `sock_extended_err`: errno, origin, type, code, padding, info, data.
fn extended_error(to: SocketAddr, data: &[u8]) -> Option<IcmpReport> {
    let &[e0, e1, e2, e3, origin, kind, code, _, i0, i1, i2, i3] = data.first_chunk()?;
    let errno = c_int::from_ne_bytes([e0, e1, e2, e3]);
    let info = u32::from_ne_bytes([i0, i1, i2, i3]);
    let (kind, code) = match (origin, to) {
        (libc::SO_EE_ORIGIN_ICMP, SocketAddr::V4(_))
        | (libc::SO_EE_ORIGIN_ICMP6, SocketAddr::V6(_)) => (kind, code),
        // Destination unreachable, fragmentation needed; packet too big.
        (libc::SO_EE_ORIGIN_LOCAL, SocketAddr::V4(_)) if errno == libc::EMSGSIZE => (3, 4),
        (libc::SO_EE_ORIGIN_LOCAL, SocketAddr::V6(_)) if errno == libc::EMSGSIZE => (2, 0),
        _ => return None,
    };
    let mtu = if errno == libc::EMSGSIZE { info } else { 0 };
    Some(IcmpReport {
        to,
        kind,
        code,
        mtu,
    })
}

/// Makes a call, and makes it again if it failed because of an earlier datagram.
#[inline]
pub(crate) fn retry_after_icmp<T>(
    socket: &UdpSocket,
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    match call() {
        Ok(value) => Ok(value),
        Err(error) => again(socket, error, call),
    }
}

#[cold]
#[inline(never)]
fn again<T>(
    socket: &UdpSocket,
    mut error: io::Error,
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut tries = 0;
    while tries < most_tries(socket, &error) {
        tries += 1;
        match call() {
            Ok(value) => return Ok(value),
            Err(another) => error = another,
        }
    }
    Err(error)
}

/// How often a call that failed like this is repeated at most.
fn most_tries(socket: &UdpSocket, error: &io::Error) -> usize {
    match error.raw_os_error().unwrap_or(0) {
        // No call on an unconnected socket fails like this by itself, and no signal comes that often.
        libc::ECONNREFUSED | libc::EINTR => MAX_ATTEMPTS,
        libc::EPROTO | libc::ENONET | libc::EHOSTDOWN if socket.reports_icmp() => MAX_ATTEMPTS,
        libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EMSGSIZE
        | libc::EACCES
        | libc::ENOPROTOOPT
        | libc::EOPNOTSUPP
            if socket.reports_icmp() =>
        {
            AMBIGUOUS_RETRIES
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: c_int, origin: u8, kind: u8, code: u8, info: u32) -> Vec<u8> {
        let mut bytes = errno.to_ne_bytes().to_vec();
        bytes.extend([origin, kind, code, 0]);
        bytes.extend(info.to_ne_bytes());
        bytes.extend([0; 20]);
        bytes
    }

    fn parse_report(to: &str, data: &[u8]) -> Option<(u8, u8, u32)> {
        let report = extended_error(to.parse().unwrap(), data)?;
        Some((report.kind, report.code, report.mtu))
    }

    #[test]
    fn unreachable_and_too_large_are_distinguished() {
        let is_final = |to: &str, kind, code| {
            let report = IcmpReport {
                to: to.parse().unwrap(),
                kind,
                code,
                mtu: 0,
            };
            report.is_final()
        };
        assert!(is_final("192.0.2.1:9", 3, 3) && is_final("[2001:db8::1]:9", 1, 4));
        assert!(!is_final("192.0.2.1:9", 3, 4) && !is_final("192.0.2.1:9", 11, 0));
        assert!(!is_final("[2001:db8::1]:9", 2, 0));
    }

    #[test]
    fn errors_have_the_types_of_the_destinations_family() {
        const V4: &str = "192.0.2.1:9";
        const V6: &str = "[2001:db8::1]:9";
        let refused = error(libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP, 3, 3, 77);
        assert_eq!(parse_report(V4, &refused), Some((3, 3, 0)));
        assert_eq!(parse_report(V6, &refused), None);
        let big = error(libc::EMSGSIZE, libc::SO_EE_ORIGIN_ICMP6, 2, 0, 1280);
        assert_eq!(parse_report(V6, &big), Some((2, 0, 1280)));
        let here = error(libc::EMSGSIZE, libc::SO_EE_ORIGIN_LOCAL, 0, 0, 1500);
        assert_eq!(parse_report(V4, &here), Some((3, 4, 1500)));
        assert_eq!(parse_report(V6, &here), Some((2, 0, 1500)));
        let other = error(libc::EINVAL, libc::SO_EE_ORIGIN_LOCAL, 0, 0, 0);
        assert_eq!(parse_report(V4, &other), None);
        assert_eq!(parse_report(V4, &refused[..8]), None);
    }
}
