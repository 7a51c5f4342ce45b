//! What a client has open to its server.

use std::fmt;
use std::io as stdio;
use std::io::{IoSlice, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::{Incoming, Stream, StreamError, Wire};
use io::{Interest, Poller, TcpConnection, UdpSocket};

use crate::Via;

/// Bytes that may wait for the socket: what is to leave beyond that is not sent, and counted.
const BACKLOG: usize = 256 * 1024;
/// Bytes that are read from a connection at once.
pub(crate) const CHUNK: usize = 64 * 1024;

/// What a client has open to its server: shared by the thread that sends and the one that receives.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A UDP socket, not connected.
    Udp(Arc<UdpSocket>),
    /// A TCP or TLS connection.
    Stream(Arc<Connection>),
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
            Socket::Stream(connection) => connection.local_addr(),
        }
    }

    /// Two sockets are the same if their addresses in memory are.
    pub(crate) fn identity(&self) -> usize {
        match self {
            Socket::Udp(socket) => Arc::as_ptr(socket).addr(),
            Socket::Stream(connection) => Arc::as_ptr(connection).addr(),
        }
    }

    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Socket::Udp(_) => None,
            Socket::Stream(connection) => Some(connection),
        }
    }

    /// Sends a message to the server; over a connection, as much of it as there is room for.
    ///
    /// # Errors
    /// What the socket returns; `WouldBlock` if too much waits already. Then nothing was sent.
    pub(crate) fn send(&self, message: &[u8], server: SocketAddr) -> stdio::Result<()> {
        match self {
            Socket::Udp(socket) => socket.send_to(message, server, None),
            Socket::Stream(connection) => {
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
            Socket::Stream(connection) => connection.socket.as_fd(),
        }
    }
}

/// A TCP or TLS connection to a server.
pub struct Connection {
    socket: TcpConnection,
    via: Via,
    /// Whoever reads and whoever writes take turns, a batch at a time: TLS is one state for both.
    writer: Mutex<Writer>,
    incoming: Mutex<Incoming>,
}

struct Writer {
    wire: Wire,
    /// A burst has queued something, and not flushed it yet.
    is_touched: bool,
    /// A sender comes back to it, because the socket is full.
    is_full: bool,
    /// The poller tells when there is room.
    is_watched: bool,
}

/// The right to write to a connection.
pub(crate) struct Writing<'a> {
    socket: &'a TcpConnection,
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
        let stream = via.stream().unwrap_or_else(|| Ok(Stream::tcp()));
        let (wire, incoming) = stream.map_err(invalid)?.into_parts();
        let bound = !local.ip().is_unspecified() || local.port() != 0;
        let socket = TcpConnection::connect(server, bound.then_some(local))?;
        Ok(Connection {
            socket,
            via: via.clone(),
            writer: Mutex::new(Writer {
                wire,
                is_touched: false,
                is_full: false,
                is_watched: false,
            }),
            incoming: Mutex::new(incoming),
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        // An open socket has an address; the call cannot fail.
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        self.socket.local_addr().unwrap_or(any)
    }

    /// Whether TCP is connected and the TLS handshake, if there is one, is complete.
    pub(crate) fn is_established(&self) -> bool {
        self.socket.peer_addr().is_ok() && self.lock().wire.is_established()
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

    /// Reads once and hands over each whole message.
    ///
    /// # Errors
    /// The connection is of no more use; the error says why, also that of a connection that never came about.
    pub(crate) fn read(&self, chunk: &mut [u8], mut on: impl FnMut(&[u8])) -> stdio::Result<()> {
        let count = match self.socket.read(chunk) {
            Ok(0) => return Err(self.ended()),
            Ok(count) => count,
            Err(error) if error.kind() == stdio::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let incoming = &mut *self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writing = self.write();
        let received = writing.writer.wire.receive(&chunk[..count], incoming);
        // TLS has something to say in the handshake, and after an error: the alert that says why.
        let flushed = match writing.writer.wire.wants_write()
            && self.via.transport() == turn::Transport::Tls
        {
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

    fn ended(&self) -> stdio::Error {
        let text = match self.lock().wire.is_established() {
            true => "it closed the connection",
            false => "it closed the connection during the TLS handshake",
        };
        stdio::Error::new(stdio::ErrorKind::UnexpectedEof, text)
    }

    /// Writes what waits, and has `poller`, which knows the connection by `token`, tell when there is room for the rest.
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
            poller.modify(&self.socket, token, interest)?;
            writing.writer.is_watched = rest;
        }
        Ok(())
    }

    /// Forgets which poller watched it: another one does so from now on.
    pub(crate) fn unwatched(&self) {
        self.lock().is_watched = false;
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    /// Says over TLS that this is the end.
    fn drop(&mut self) {
        let mut writing = self.write();
        writing.writer.wire.close();
        let _ = writing.flush(&mut 0);
    }
}

impl Writing<'_> {
    /// Queues a message in parts; false if too much waits already.
    #[inline]
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> bool {
        let has_room = self.writer.wire.backlog() < BACKLOG;
        if has_room {
            self.writer.wire.queue(parts);
        }
        has_room
    }

    /// Writes what waits; true if nothing is left. Adds the system calls to `calls`.
    ///
    /// # Errors
    /// What the socket returns.
    pub(crate) fn flush(&mut self, calls: &mut u64) -> stdio::Result<bool> {
        self.writer.is_touched = false;
        self.writer.wire.flush(&mut Calls(self.socket, calls))
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
