//! TCP listeners and connections, non-blocking and close-on-exec, for workers that wait by a [`Poller`](crate::Poller).
//!
//! A listener of each worker shares the address (SO_REUSEPORT), so that the kernel spreads connections and a worker
//! accepts its own without a lock. What a connection reads goes into a buffer of the worker's, what it writes is
//! gathered from several: nothing is copied in between.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::c_int;

use crate::address::{RawAddress, unmap};
use crate::inherited::{SocketKind, describe};
use crate::sys::socket::{bind, getsockname, setsockopt, socket};
use crate::sys::stream;

/// How to open a [`TcpListener`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// SO_REUSEPORT: several listeners share the address and the kernel spreads connections.
    pub reuse_port: bool,
    /// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
    pub backlog: u16,
    /// IPV6_V6ONLY. Off, IPv4 is also served, and its addresses are reported as IPv4.
    pub v6_only: bool,
}

impl Default for TcpOptions {
    /// A listener of a worker: shared address, a backlog of 1,024.
    fn default() -> TcpOptions {
        TcpOptions {
            reuse_port: true,
            backlog: 1024,
            v6_only: true,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener {
    fd: OwnedFd,
    local: SocketAddr,
}

impl TcpListener {
    /// Opens, binds and listens. Port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// What `socket`, `setsockopt`, `bind` or `listen` returns: `AddrInUse`, `AddrNotAvailable`, `PermissionDenied`
    /// (ports below 1024), EMFILE and ENFILE when descriptors ran out.
    pub fn bind(address: SocketAddr, options: &TcpOptions) -> io::Result<TcpListener> {
        let fd = open(address)?;
        // Connections of a process before this one, in TIME_WAIT, must not keep it from its port.
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if options.reuse_port {
            set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if address.is_ipv6() {
            set(
                &fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_V6ONLY,
                options.v6_only.into(),
            )?;
        }
        bind(fd.as_fd(), &RawAddress::new(address))?;
        stream::listen(fd.as_fd(), options.backlog.into())?;
        let local = getsockname(fd.as_fd())?.get();
        Ok(TcpListener { fd, local })
    }

    /// Opens, binds and listens at an address that no other socket has. This process then connects to others from it
    /// with [`TcpConnection::connect_from`].
    ///
    /// # Errors
    /// As [`TcpListener::bind`]; `AddrInUse` also if another socket shares the address.
    pub fn bind_and_share(address: SocketAddr, backlog: u16) -> io::Result<TcpListener> {
        let fd = open(address)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        bind(fd.as_fd(), &RawAddress::new(address))?;
        // Set after `bind`: before it, this option would let the socket share the address with another process's
        // listener.
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        stream::listen(fd.as_fd(), backlog.into())?;
        let local = getsockname(fd.as_fd())?.get();
        Ok(TcpListener { fd, local })
    }

    /// Takes a socket that listens already.
    ///
    /// # Errors
    /// `InvalidInput`: it is no TCP socket that listens. Otherwise what `fcntl`, `getsockopt` or `getsockname` returns.
    pub fn from_listening(fd: OwnedFd) -> io::Result<TcpListener> {
        let Some((SocketKind::TcpListener, local)) = describe(fd.as_fd())? else {
            let text = "it is no TCP socket that listens";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let listener = std::net::TcpListener::from(fd);
        listener.set_nonblocking(true)?;
        let fd = listener.into();
        Ok(TcpListener { fd, local })
    }

    /// The address it is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection and who made it.
    ///
    /// # Errors
    /// `WouldBlock` when none waits. Otherwise what `accept4` returns. ECONNABORTED and the network errors belong to
    /// one connection that failed while it waited: call again for the next one. After EMFILE and ENFILE the connection
    /// still waits: stop watching the listener for a while, or the poller reports it without end.
    pub fn accept(&self) -> io::Result<(TcpConnection, SocketAddr)> {
        let (fd, peer) = stream::accept4(self.fd.as_fd())?;
        Ok((TcpConnection::new(fd)?, unmap(peer.get())))
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connection, or one that is being made.
#[derive(Debug)]
pub struct TcpConnection {
    stream: TcpStream,
}

impl TcpConnection {
    fn new(fd: OwnedFd) -> io::Result<TcpConnection> {
        // What is written is whole messages, gathered: holding back a part of one only adds delay.
        set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        Ok(TcpConnection {
            stream: TcpStream::from(fd),
        })
    }

    /// A connection that is open already: another process has accepted it.
    ///
    /// # Errors
    /// What `setsockopt` or `fcntl` returns, for a descriptor that is no TCP socket.
    pub fn from_open(fd: OwnedFd) -> io::Result<TcpConnection> {
        let connection = TcpConnection::new(fd)?;
        connection.stream.set_nonblocking(true)?;
        Ok(connection)
    }

    /// The two ends of a connection over loopback.
    ///
    /// # Errors
    /// What the system calls return: EMFILE, or `AddrNotAvailable` without a loopback interface.
    pub fn pair() -> io::Result<(TcpConnection, TcpConnection)> {
        /// Other programs of this machine may connect first.
        const MAX_ATTEMPTS: usize = 16;
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let own = near.local_addr()?;
        for _ in 0..MAX_ATTEMPTS {
            let (far, from) = listener.accept()?;
            if from == own {
                let near = TcpConnection::from_open(near.into())?;
                return Ok((near, TcpConnection::from_open(far.into())?));
            }
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    /// Begins to connect, from `local` if it is given (port 0: any). The connection is made, or has failed, when it
    /// becomes writable: ask [`TcpConnection::take_error`] then.
    ///
    /// # Errors
    /// What `socket`, `bind` or `connect` returns at once: `NetworkUnreachable`, `AddrNotAvailable` when ports ran out,
    /// EMFILE.
    pub fn connect(to: SocketAddr, local: Option<SocketAddr>) -> io::Result<TcpConnection> {
        let fd = open(to)?;
        if let Some(local) = local {
            if local.port() == 0 {
                // The port is chosen with the connection, so that ports are not used up one per destination.
                set(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
            }
            bind(fd.as_fd(), &RawAddress::new(local))?;
        }
        match stream::connect(fd.as_fd(), &RawAddress::new(to)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => TcpConnection::new(fd),
        }
    }

    /// Begins to connect from the address of a listener of [`TcpListener::bind_and_share`], as
    /// [`TcpConnection::connect`] does.
    ///
    /// # Errors
    /// As [`TcpConnection::connect`]; `AddrNotAvailable` if there is, or was a minute ago, a connection between the two
    /// addresses.
    pub fn connect_from(local: SocketAddr, to: SocketAddr) -> io::Result<TcpConnection> {
        let fd = open(to)?;
        // SO_REUSEADDR does not let an address be shared with a listener, SO_REUSEPORT does.
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        bind(fd.as_fd(), &RawAddress::new(local))?;
        match stream::connect(fd.as_fd(), &RawAddress::new(to)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => TcpConnection::new(fd),
        }
    }

    /// Reads what is there. 0 is the end: the other side will send nothing more.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; otherwise what `recv` returns.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(into)
    }

    /// Writes the parts in this order, as much as there is room for, with one call (at most 1,024 parts). Returns how
    /// many bytes went.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; otherwise what `writev` returns. A broken connection raises no signal in a
    /// program that leaves SIGPIPE as Rust sets it: ignored.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.stream).write_vectored(parts)
    }

    /// Bytes that were received and not read yet.
    ///
    /// # Errors
    /// What `ioctl` returns.
    pub fn unread(&self) -> io::Result<usize> {
        stream::unread(self.stream.as_fd()).map(to_usize)
    }

    /// Bytes that were written and not acknowledged by the other side yet.
    ///
    /// # Errors
    /// What `ioctl` returns.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        stream::unacknowledged(self.stream.as_fd()).map(to_usize)
    }

    /// What went wrong since the last time it was asked, for example while connecting.
    ///
    /// # Errors
    /// What went wrong.
    pub fn take_error(&self) -> io::Result<()> {
        self.stream.take_error()?.map_or(Ok(()), Err)
    }

    /// Gives the connection up when what was written stays unacknowledged for this long (TCP_USER_TIMEOUT, to the
    /// millisecond).
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn set_user_timeout(&self, limit: Duration) -> io::Result<()> {
        let milliseconds = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
        set(
            &self.stream,
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            milliseconds,
        )
    }

    /// Accepts no more bytes while this many wait in the kernel unsent (TCP_NOTSENT_LOWAT). Further data waits in the
    /// caller's queue, where the caller knows its age.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn set_unsent_limit(&self, bytes: u32) -> io::Result<()> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        set(
            &self.stream,
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            bytes,
        )
    }

    /// The connection sends nothing more; data in transit still arrives.
    ///
    /// # Errors
    /// What `shutdown` returns.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// This side's address.
    ///
    /// # Errors
    /// What `getsockname` returns.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The other side's address.
    ///
    /// # Errors
    /// What `getpeername` returns: `NotConnected` until the connection is established.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl From<TcpConnection> for OwnedFd {
    fn from(connection: TcpConnection) -> OwnedFd {
        connection.stream.into()
    }
}

impl AsFd for TcpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    socket(
        family,
        libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
    )
}

fn set(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    setsockopt(fd.as_fd(), level, name, value)
}

fn to_usize(bytes: c_int) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Events, Interest, Poller};

    const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0".parse().unwrap(), &TcpOptions::default()).unwrap()
    }

    fn wait_for(source: &impl AsFd, interest: Interest) {
        let poller = Poller::new().unwrap();
        poller.add(source, 0, interest).unwrap();
        let mut events = Events::with_capacity(1);
        assert_eq!(poller.wait(&mut events, TEST_TIMEOUT).unwrap(), 1);
    }

    fn pair() -> (TcpConnection, TcpConnection) {
        let listener = listener();
        let near = TcpConnection::connect(listener.local_addr(), None).unwrap();
        wait_for(&near, Interest::Write);
        near.take_error().unwrap();
        wait_for(&listener, Interest::Read);
        let (far, from) = listener.accept().unwrap();
        assert_eq!(from, near.local_addr().unwrap());
        assert_eq!(far.peer_addr().unwrap(), from);
        (near, far)
    }

    #[test]
    fn gathered_parts_arrive_in_order() {
        let (near, far) = pair();
        let parts = [
            IoSlice::new(b"one "),
            IoSlice::new(b""),
            IoSlice::new(b"message"),
        ];
        assert_eq!(near.write(&parts).unwrap(), 11);
        wait_for(&far, Interest::Read);
        assert_eq!(far.unread().unwrap(), 11);
        let mut bytes = [0; 32];
        assert_eq!(far.read(&mut bytes).unwrap(), 11);
        assert_eq!(&bytes[..11], b"one message");
        assert_eq!(far.unread().unwrap(), 0);
        assert_eq!(
            far.read(&mut bytes).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn the_end_of_a_stream_is_read_as_nothing() {
        let (near, far) = pair();
        near.finish().unwrap();
        wait_for(&far, Interest::Read);
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
        // The other direction is still open.
        assert_eq!(far.write(&[IoSlice::new(b"bye")]).unwrap(), 3);
    }

    #[test]
    fn unread_data_is_unacknowledged_and_then_refused() {
        let (near, _far) = pair();
        let chunk = vec![0; 1 << 16];
        let mut written = 0;
        let full = loop {
            match near.write(&[IoSlice::new(&chunk)]) {
                Ok(bytes) => written += bytes,
                Err(error) => break error,
            }
            assert!(written < 1 << 30, "a stream without a limit");
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(near.unacknowledged().unwrap() > 0);
    }

    #[test]
    fn a_refused_connection_is_an_error_when_it_becomes_writable() {
        let address = listener().local_addr();
        let near = TcpConnection::connect(address, None).unwrap();
        wait_for(&near, Interest::Write);
        let error = near.take_error().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn listeners_share_an_address_and_connections_choose_theirs() {
        let first = listener();
        let second = TcpListener::bind(first.local_addr(), &TcpOptions::default()).unwrap();
        assert_eq!(first.local_addr(), second.local_addr());
        let local = "127.0.0.1:0".parse().unwrap();
        let near = TcpConnection::connect(first.local_addr(), Some(local)).unwrap();
        wait_for(&near, Interest::Write);
        near.set_user_timeout(Duration::from_secs(10)).unwrap();
        assert_ne!(near.local_addr().unwrap().port(), 0);
    }

    #[test]
    fn connections_go_out_from_the_address_of_a_listener_and_nobody_shares_it() {
        let relay = TcpListener::bind_and_share("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let local = relay.local_addr();
        let taken = TcpListener::bind_and_share(local, 16).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let peers = [listener(), listener()];
        let connections = peers.each_ref().map(|peer| {
            let near = TcpConnection::connect_from(local, peer.local_addr()).unwrap();
            wait_for(&near, Interest::Write);
            near.take_error().unwrap();
            wait_for(peer, Interest::Read);
            let (far, from) = peer.accept().unwrap();
            assert_eq!(from, local);
            (near, far)
        });
        let again = TcpConnection::connect_from(local, peers[0].local_addr()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrNotAvailable);
        drop(connections);
        let caller = TcpConnection::connect(local, None).unwrap();
        wait_for(&relay, Interest::Read);
        let (_, from) = relay.accept().unwrap();
        assert_eq!(from, caller.local_addr().unwrap());
    }

    #[test]
    fn a_listener_without_connections_would_block() {
        let error = listener().accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_taken_address_is_refused_to_one_that_does_not_share() {
        let first = listener();
        let alone = TcpOptions {
            reuse_port: false,
            ..TcpOptions::default()
        };
        let error = TcpListener::bind(first.local_addr(), &alone).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
