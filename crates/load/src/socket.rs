//! What a client has open to its server.

use std::fmt;
use std::io as stdio;
use std::io::{IoSlice, Write};
use std::net::{self as stdnet, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::{Incoming, Stream, StreamError, Wire};
use io::{Interest, Poller, TcpConnection, UdpSocket};

use crate::Via;
use crate::datagrams::Datagrams;

/// Bytes that may wait for the socket: what is to leave beyond that is not sent, and counted.
const MAX_QUEUED_BYTES: usize = 256 * 1024;
/// Datagrams that are read from a DTLS connection at once.
const MAX_DATAGRAMS: usize = 32;
/// Bytes that are read from a connection at once: more than any datagram has.
pub(crate) const MAX_READ_BYTES: usize = 64 * 1024;

/// What a client has open to its server: shared by the thread that sends and the one that receives.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A UDP socket, not connected.
    Udp(Arc<UdpSocket>),
    /// A TCP, TLS or DTLS connection.
    Connection(Arc<Connection>),
}

impl From<Arc<UdpSocket>> for Socket {
    fn from(socket: Arc<UdpSocket>) -> Socket {
        Socket::Udp(socket)
    }
}

impl Socket {
    /// The address it is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Socket::Udp(socket) => socket.local_addr(),
            Socket::Connection(connection) => connection.local_addr(),
        }
    }

    /// Two sockets are the same if their addresses in memory are.
    pub(crate) fn identity(&self) -> usize {
        match self {
            Socket::Udp(socket) => Arc::as_ptr(socket).addr(),
            Socket::Connection(connection) => Arc::as_ptr(connection).addr(),
        }
    }

    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Socket::Udp(_) => None,
            Socket::Connection(connection) => Some(connection),
        }
    }

    /// Sends a message to the server; over a connection, as much of it as there is room for.
    ///
    /// # Errors
    /// What the socket returns; `WouldBlock` if too much waits already. Then nothing was sent.
    pub(crate) fn send(&self, message: &[u8], server: SocketAddr) -> stdio::Result<()> {
        match self {
            Socket::Udp(socket) => socket.send_to(message, server, None),
            Socket::Connection(connection) => {
                let mut writing = connection.write();
                if !writing.queue(&[message]) {
                    return Err(stdio::ErrorKind::WouldBlock.into());
                }
                writing.flush(&mut 0).map(|_| ())
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Connection(connection) => connection.as_fd(),
        }
    }
}

/// A TCP, TLS or DTLS connection to a server.
pub struct Connection {
    socket: OsSocket,
    via: Via,
    /// The reader and the writer take turns, a batch at a time: TLS is one state for both.
    writer: Mutex<Writer>,
    incoming: Mutex<Incoming>,
}

/// The system's part of a connection.
enum OsSocket {
    Tcp(TcpConnection),
    /// Connected, and it does not block.
    Udp(stdnet::UdpSocket),
}

/// The protocol's part of a connection.
enum Protocol {
    Stream(Wire),
    Dtls(Box<Datagrams>),
}

struct Writer {
    protocol: Protocol,
    /// A burst has queued something, and not flushed it yet.
    is_touched: bool,
    /// A sender comes back to it, because the socket is full.
    is_full: bool,
    /// The poller reports when there is room.
    is_watched: bool,
}

/// The right to write to a connection.
pub(crate) struct Writing<'a> {
    socket: &'a OsSocket,
    writer: MutexGuard<'a, Writer>,
}

/// The socket as `Write`, with a count of the system calls.
struct Calls<'a>(&'a TcpConnection, &'a mut u64);

impl Write for Calls<'_> {
    fn write(&mut self, bytes: &[u8]) -> stdio::Result<usize> {
        *self.1 += 1;
        self.0.write(&[IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> stdio::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("via", &self.via)
            .field("local", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Begins to connect, from `local` if its address is given.
    ///
    /// # Errors
    /// What the system returns at once, or the TLS configuration.
    pub(crate) fn open(
        server: SocketAddr,
        local: SocketAddr,
        via: &Via,
    ) -> stdio::Result<Connection> {
        let bound = !local.ip().is_unspecified() || local.port() != 0;
        let (socket, protocol, incoming) = match via {
            Via::Dtls(tls) => {
                let socket = udp(server, local)?;
                let session = Datagrams::new(tls).map_err(invalid)?;
                let protocol = Protocol::Dtls(Box::new(session));
                (OsSocket::Udp(socket), protocol, Incoming::default())
            }
            via => {
                let stream = via.stream().unwrap_or_else(|| Ok(Stream::tcp()));
                let (wire, incoming) = stream.map_err(invalid)?.into_parts();
                let socket = TcpConnection::connect(server, bound.then_some(local))?;
                (OsSocket::Tcp(socket), Protocol::Stream(wire), incoming)
            }
        };
        let connection = Connection {
            socket,
            via: via.clone(),
            writer: Mutex::new(Writer {
                protocol,
                is_touched: false,
                is_full: false,
                is_watched: false,
            }),
            incoming: Mutex::new(incoming),
        };
        if let Via::Dtls(_) = via {
            connection.write().flush(&mut 0)?;
        }
        Ok(connection)
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        let address = match &self.socket {
            OsSocket::Tcp(socket) => socket.local_addr(),
            OsSocket::Udp(socket) => socket.local_addr(),
        };
        // An open socket has an address; the call cannot fail.
        address.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// Whether it is connected, with the TLS or DTLS handshake if there is one.
    pub(crate) fn is_established(&self) -> bool {
        match (&self.socket, &self.lock().protocol) {
            (OsSocket::Tcp(socket), Protocol::Stream(wire)) => {
                socket.peer_addr().is_ok() && wire.is_established()
            }
            (_, Protocol::Dtls(datagrams)) => datagrams.is_established(),
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> Writing<'_> {
        Writing {
            socket: &self.socket,
            writer: self.lock(),
        }
    }

    /// What the poller watches until the connection is established.
    pub(crate) fn first_interest(&self) -> Interest {
        match self.socket {
            OsSocket::Tcp(_) => Interest::ReadWrite,
            OsSocket::Udp(_) => Interest::Read,
        }
    }

    /// Reads once, or a few datagrams, and hands over each whole message.
    ///
    /// # Errors
    /// The connection is of no more use; the error says why, also that of a connection that never came about.
    pub(crate) fn read(&self, chunk: &mut [u8], on: impl FnMut(&[u8])) -> stdio::Result<()> {
        match &self.socket {
            OsSocket::Tcp(socket) => self.read_stream(socket, chunk, on),
            OsSocket::Udp(socket) => self.read_datagrams(socket, chunk, on),
        }
    }

    fn read_stream(
        &self,
        socket: &TcpConnection,
        chunk: &mut [u8],
        mut on: impl FnMut(&[u8]),
    ) -> stdio::Result<()> {
        let count = match socket.read(chunk) {
            Ok(0) => return Err(self.ended()),
            Ok(count) => count,
            Err(error) if error.kind() == stdio::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let incoming = &mut *self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writing = self.write();
        let (received, wants_write) = match &mut writing.writer.protocol {
            Protocol::Stream(wire) => {
                let received = wire.receive(&chunk[..count], incoming);
                (received, wire.wants_write())
            }
            Protocol::Dtls(_) => (Ok(()), false),
        };
        // TLS has something to say in the handshake, and after an error: the alert that says why.
        let flushed = match wants_write && self.via.transport() == turn::Transport::Tls {
            true => writing.flush(&mut 0).map(|_| ()),
            false => Ok(()),
        };
        drop(writing);
        received.map_err(invalid)?;
        flushed?;
        while let Some(message) = incoming.next_message().map_err(invalid)? {
            on(message);
        }
        Ok(())
    }

    fn read_datagrams(
        &self,
        socket: &stdnet::UdpSocket,
        chunk: &mut [u8],
        mut on: impl FnMut(&[u8]),
    ) -> stdio::Result<()> {
        for _ in 0..MAX_DATAGRAMS {
            let length = match socket.recv(chunk) {
                Ok(length) => length,
                Err(error) if error.kind() == stdio::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut at = 0;
            loop {
                let opened = {
                    let mut writing = self.write();
                    let Protocol::Dtls(datagrams) = &mut writing.writer.protocol else {
                        return Ok(());
                    };
                    let opened = datagrams.open(&mut chunk[..length], at);
                    writing.flush(&mut 0)?;
                    opened
                };
                let Some((message, next)) = opened.map_err(ended)? else {
                    break;
                };
                on(&chunk[message]);
                at = next;
            }
        }
        Ok(())
    }

    fn ended(&self) -> stdio::Error {
        let text = match self.is_established() {
            true => "it closed the connection",
            false => "it closed the connection during the TLS handshake",
        };
        stdio::Error::new(stdio::ErrorKind::UnexpectedEof, text)
    }

    /// Writes what waits. If something is left, `poller` reports when there is room, with `token`.
    ///
    /// # Errors
    /// What the socket or the poller returns.
    pub(crate) fn advance(&self, poller: &Poller, token: u64) -> stdio::Result<()> {
        let mut writing = self.write();
        // While TCP is being connected nothing can be written.
        let rest = !writing.flush(&mut 0)?;
        if rest != writing.writer.is_watched {
            let interest = if rest {
                Interest::ReadWrite
            } else {
                Interest::Read
            };
            poller.modify(self, token, interest)?;
            writing.writer.is_watched = rest;
        }
        Ok(())
    }

    /// Forgets which poller watched it: another one does so from now on.
    pub(crate) fn clear_watched(&self) {
        self.lock().is_watched = false;
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            OsSocket::Tcp(socket) => socket.as_fd(),
            OsSocket::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Drop for Connection {
    /// Says over TLS and DTLS that this is the end.
    fn drop(&mut self) {
        let mut writing = self.write();
        match &mut writing.writer.protocol {
            Protocol::Stream(wire) => wire.close(),
            Protocol::Dtls(datagrams) => datagrams.close(),
        }
        let _ = writing.flush(&mut 0);
    }
}

impl Writing<'_> {
    /// Queues a message in parts; false if too much waits already.
    #[inline]
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> bool {
        match &mut self.writer.protocol {
            Protocol::Stream(wire) => {
                let has_room = wire.backlog() < MAX_QUEUED_BYTES;
                if has_room {
                    wire.queue(parts);
                }
                has_room
            }
            Protocol::Dtls(datagrams) => {
                datagrams.backlog() < MAX_QUEUED_BYTES && datagrams.queue(parts)
            }
        }
    }

    /// Writes what waits; true if nothing is left. Adds the system calls to `calls`.
    ///
    /// # Errors
    /// What the socket returns, or why a DTLS handshake has ended.
    pub(crate) fn flush(&mut self, calls: &mut u64) -> stdio::Result<bool> {
        self.writer.is_touched = false;
        match (self.socket, &mut self.writer.protocol) {
            (OsSocket::Tcp(socket), Protocol::Stream(wire)) => {
                wire.flush(&mut Calls(socket, calls))
            }
            (OsSocket::Udp(socket), Protocol::Dtls(datagrams)) => {
                datagrams.flush(socket, calls).map_err(ended)
            }
            _ => Ok(true),
        }
    }

    /// Notes whether a sender comes back to it; returns what was noted before.
    pub(crate) fn set_full(&mut self, full: bool) -> bool {
        std::mem::replace(&mut self.writer.is_full, full)
    }

    /// Notes that something waits for the burst's end; true the first time.
    pub(crate) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.writer.is_touched, true)
    }
}

fn invalid(error: StreamError) -> stdio::Error {
    stdio::Error::new(stdio::ErrorKind::InvalidData, error)
}

/// Why a DTLS session has ended.
fn ended(error: StreamError) -> stdio::Error {
    match error {
        StreamError::Closed => stdio::Error::new(stdio::ErrorKind::UnexpectedEof, error),
        error => invalid(error),
    }
}

fn udp(server: SocketAddr, local: SocketAddr) -> stdio::Result<stdnet::UdpSocket> {
    let socket = stdnet::UdpSocket::bind(local)?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
