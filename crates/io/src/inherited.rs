//! Sockets that the program that started this process has opened for it (`LISTEN_FDS`, sd_listen_fds(3)). Also finds
//! the kind and the address of a socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::sys::inherit::own;
use crate::sys::socket::{getsockname, getsockopt};

/// The number of the first one.
const FIRST: c_int = 3;
/// The name of a socket that has none.
const NO_NAME: &str = "unknown";

static TAKEN: AtomicBool = AtomicBool::new(false);

/// A descriptor that was open when this process began.
#[derive(Debug)]
pub struct Inherited {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Its number.
    pub number: c_int,
    /// The name that the program that started this process gave it.
    pub name: String,
}

/// What kind of listener a socket can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// A UDP socket.
    Udp,
    /// A TCP socket that listens.
    TcpListener,
}

/// Takes the sockets that the environment announces for this process: none if it announces none, and at the second
/// call. To be called before anything else uses descriptors.
///
/// # Errors
/// `InvalidInput` if the announcement makes no sense; EBADF if a descriptor is not open.
pub fn take() -> io::Result<Vec<Inherited>> {
    let variable = |name| std::env::var(name).ok();
    let own_pid = std::process::id().to_string();
    if variable("LISTEN_PID") != Some(own_pid) || TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let count = variable("LISTEN_FDS").unwrap_or_default();
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    numbered(&count, &names)?
        .into_iter()
        .map(|(number, name)| {
            Ok(Inherited {
                fd: own(number)?,
                number,
                name,
            })
        })
        .collect()
}

/// The numbers and names of this many descriptors.
fn numbered(count: &str, names: &str) -> io::Result<Vec<(c_int, String)>> {
    let count = count.parse::<u16>().map_err(|_| {
        let text = format!("LISTEN_FDS={count} is no number of sockets");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    let names = names.split(':').filter(|name| !name.is_empty());
    let names = names.chain(std::iter::repeat(NO_NAME)).map(str::to_owned);
    let numbers = (FIRST..).take(count.into());
    Ok(numbers.zip(names).collect())
}

/// The kind of a socket and the address that it is bound to. `None` if it is neither a UDP socket nor a listening TCP
/// socket.
///
/// # Errors
/// ENOTSOCK; otherwise what `getsockopt` or `getsockname` returns.
pub fn describe(fd: BorrowedFd<'_>) -> io::Result<Option<(SocketKind, SocketAddr)>> {
    let option = |name| getsockopt::<1>(fd, libc::SOL_SOCKET, name).map(|[word]| word as c_int);
    let family = option(libc::SO_DOMAIN)?;
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return Ok(None);
    }
    let kind = match (option(libc::SO_PROTOCOL)?, option(libc::SO_ACCEPTCONN)?) {
        (libc::IPPROTO_UDP, _) => SocketKind::Udp,
        (libc::IPPROTO_TCP, 1) => SocketKind::TcpListener,
        _ => return Ok(None),
    };
    Ok(Some((kind, getsockname(fd.as_fd())?.get())))
}

/// Whether an IPv6 socket serves IPv4, too (IPV6_V6ONLY is off).
#[must_use]
pub fn serves_both_families(fd: BorrowedFd<'_>) -> bool {
    let family = getsockopt::<1>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let only = getsockopt::<1>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    family.is_ok_and(|[family]| family as c_int == libc::AF_INET6) && only.is_ok_and(|on| on == [0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn numbers_begin_at_3_and_have_names() {
        let named = numbered("3", "turn:tls").unwrap();
        let names: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["turn", "tls", "unknown"]);
        assert_eq!(named[0].0, 3);
        assert!(numbered("0", "").unwrap().is_empty());
        for wrong in ["", "-1", "70000", "x"] {
            assert!(numbered(wrong, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn listeners_differ_from_other_sockets() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let kinds = [udp.as_fd(), tcp.as_fd()].map(|fd| describe(fd).unwrap().unwrap());
        assert_eq!(kinds[0], (SocketKind::Udp, udp.local_addr().unwrap()));
        assert_eq!(
            kinds[1],
            (SocketKind::TcpListener, tcp.local_addr().unwrap())
        );
        let connection = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        assert_eq!(describe(connection.as_fd()).unwrap(), None);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(describe(unix.as_fd()).unwrap(), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(describe(file.as_fd()).is_err());
    }
}
