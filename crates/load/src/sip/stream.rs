//! A connection with what waits on both sides of it: bytes that are no whole message yet, bytes that did not fit.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use ::io::{Event, Events, Interest, Poller, TcpConnection};

use super::layers::{ConnectionLayers, Layers, cut};

/// Bytes asked of the kernel at a time.
const MAX_READ_BYTES: usize = 65_536;
/// The limit of bytes that wait to be written. A client that does not read them is not served.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Reads of one connection in a row, so that others have their turn.
const MAX_READS: usize = 4;

/// What became of a connection while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SipConnectionState {
    /// It goes on.
    Open,
    /// The other side has ended it, or it failed, or what comes is not SIP.
    Closed,
}

/// A connection and its buffers.
#[derive(Debug)]
pub(crate) struct SipConnection {
    connection: TcpConnection,
    token: u64,
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    written: usize,
    /// TLS and WebSocket, if there are.
    layers: Option<Box<Layers>>,
    /// The poller reports when it can be written.
    watched: bool,
}

impl SipConnection {
    /// Of a connection with this `token` at the poller, for reading.
    pub(crate) fn new(connection: TcpConnection, token: u64) -> SipConnection {
        SipConnection {
            connection,
            token,
            incoming: Vec::new(),
            filled: 0,
            outgoing: Vec::new(),
            written: 0,
            layers: None,
            watched: false,
        }
    }

    /// The same with TLS or a WebSocket, whose handshakes begin with the first [`SipConnection::flush`].
    ///
    /// # Errors
    /// The TLS configuration cannot be used, or there is no randomness.
    pub(crate) fn with(
        way: &ConnectionLayers,
        connection: TcpConnection,
        token: u64,
    ) -> io::Result<SipConnection> {
        let mut pipe = SipConnection::new(connection, token);
        pipe.layers = Layers::new(way, &mut pipe.outgoing)?;
        Ok(pipe)
    }

    /// Waits until the connection is made, its handshakes included.
    ///
    /// # Errors
    /// Why it is of no use; `TimedOut` after `limit`.
    pub(crate) fn establish(&mut self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        let poller = Poller::new()?;
        poller.add(&self.connection, self.token, Interest::Write)?;
        let mut events = Events::with_capacity(1);
        let mut wait = |poller: &Poller| {
            let left = deadline.saturating_duration_since(Instant::now());
            match poller.wait(&mut events, Some(left))? {
                0 => Err(io::Error::from(io::ErrorKind::TimedOut)),
                _ => Ok(events.iter().next()),
            }
        };
        wait(&poller)?;
        self.connection.take_error()?;
        poller.modify(&self.connection, self.token, Interest::Read)?;
        while !self.is_ready() {
            self.flush(&poller)?;
            let Some(event) = wait(&poller)? else {
                continue;
            };
            if self.take(event, &mut |_| {}) == SipConnectionState::Closed {
                // The response of TLS as well, such as an alert.
                let _ = self.flush(&poller);
                return Err(io::Error::other(
                    "the server ends the connection during the handshake, or proves nothing that is trusted",
                ));
            }
        }
        self.flush(&poller)?;
        poller.remove(&self.connection)
    }

    fn is_ready(&self) -> bool {
        self.layers.as_ref().is_none_or(|layers| layers.is_ready())
    }

    /// The poller of the run watches the connection from now on.
    ///
    /// # Errors
    /// What the poller returns.
    pub(crate) fn watch_by(&mut self, poller: &Poller) -> io::Result<()> {
        self.watched = false;
        poller.add(&self.connection, self.token, Interest::Read)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// What the system returns.
    pub(crate) fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.connection.local_addr()
    }

    /// Reads what is there and hands over each whole message.
    pub(crate) fn take(&mut self, event: Event, on: &mut impl FnMut(&[u8])) -> SipConnectionState {
        if event.error && self.connection.take_error().is_err() {
            return SipConnectionState::Closed;
        }
        for _ in 0..MAX_READS {
            if !event.readable {
                break;
            }
            if self.incoming.len() < self.filled + MAX_READ_BYTES {
                self.incoming.resize(self.filled + MAX_READ_BYTES, 0);
            }
            let room = &mut self.incoming[self.filled..];
            let asked = room.len();
            let count = match self.connection.read(room) {
                Ok(0) => return SipConnectionState::Closed,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return SipConnectionState::Closed,
            };
            self.filled += count;
            if !self.cut(on) {
                return SipConnectionState::Closed;
            }
            if count < asked {
                break;
            }
        }
        SipConnectionState::Open
    }

    /// Hands over the whole messages and moves what is left to the front; false if no message can follow.
    fn cut(&mut self, on: &mut impl FnMut(&[u8])) -> bool {
        let bytes = &self.incoming[..self.filled];
        if let Some(layers) = &mut self.layers {
            self.filled = 0;
            return layers.receive(bytes, &mut self.outgoing, on);
        }
        let Some(at) = cut(bytes, &mut self.outgoing, on) else {
            return false;
        };
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        true
    }

    /// Puts a message behind what waits; false if too much does.
    pub(crate) fn queue(&mut self, message: &[u8]) -> bool {
        let held = self.layers.as_ref().map_or(0, |layers| layers.waiting());
        if self.outgoing.len() - self.written + held + message.len() > MAX_QUEUED_BYTES {
            return false;
        }
        if let Some(layers) = &mut self.layers {
            layers.queue(message);
            return true;
        }
        self.outgoing.extend_from_slice(message);
        true
    }

    /// Writes as much as there is room for; the poller reports when there is more.
    ///
    /// # Errors
    /// What `writev` or the poller returns: the connection is of no more use.
    pub(crate) fn flush(&mut self, poller: &Poller) -> io::Result<u64> {
        let mut calls = 0;
        if let Some(layers) = &mut self.layers
            && !layers.seal(&mut self.outgoing)
        {
            return Err(io::Error::other("TLS has failed"));
        }
        while self.written < self.outgoing.len() {
            calls += 1;
            match self
                .connection
                .write(&[IoSlice::new(&self.outgoing[self.written..])])
            {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.watch(true, poller)?;
                    return Ok(calls);
                }
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        self.watch(false, poller)?;
        Ok(calls)
    }

    fn watch(&mut self, on: bool, poller: &Poller) -> io::Result<()> {
        if self.watched != on {
            let interest = if on {
                Interest::ReadWrite
            } else {
                Interest::Read
            };
            poller.modify(&self.connection, self.token, interest)?;
            self.watched = on;
        }
        Ok(())
    }
}
