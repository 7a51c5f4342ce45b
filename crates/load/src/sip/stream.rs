//! A TCP connection with what waits on both sides of it: bytes that are no whole message yet, bytes that did not fit.

use std::io::{self, IoSlice};

use ::io::{Event, Interest, Poller, TcpConnection};

use super::frame::{self, Frame};

/// Bytes asked of the kernel at a time.
const CHUNK: usize = 65_536;
/// Bytes that may wait to be written; whoever does not read so much is not served.
const BACKLOG: usize = 16 << 20;
/// Reads of one connection in a row, so that others have their turn.
const READS: usize = 4;

/// What became of a connection while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It goes on.
    Open,
    /// The other side has ended it, or it failed, or what comes is not SIP.
    Closed,
}

/// A connection and its buffers.
#[derive(Debug)]
pub(crate) struct Pipe {
    connection: TcpConnection,
    token: u64,
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    written: usize,
    /// The poller tells when it can be written.
    watched: bool,
}

impl Pipe {
    /// Of a connection that a poller knows by `token`, for reading.
    pub(crate) fn new(connection: TcpConnection, token: u64) -> Pipe {
        Pipe {
            connection,
            token,
            incoming: Vec::new(),
            filled: 0,
            outgoing: Vec::new(),
            written: 0,
            watched: false,
        }
    }

    /// Reads what is there and hands over each whole message.
    pub(crate) fn take(&mut self, event: Event, on: &mut impl FnMut(&[u8])) -> Taken {
        if event.error && self.connection.take_error().is_err() {
            return Taken::Closed;
        }
        for _ in 0..READS {
            if !event.readable {
                break;
            }
            if self.incoming.len() < self.filled + CHUNK {
                self.incoming.resize(self.filled + CHUNK, 0);
            }
            let room = &mut self.incoming[self.filled..];
            let asked = room.len();
            let count = match self.connection.read(room) {
                Ok(0) => return Taken::Closed,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Taken::Closed,
            };
            self.filled += count;
            if !self.cut(on) {
                return Taken::Closed;
            }
            if count < asked {
                break;
            }
        }
        Taken::Open
    }

    /// Hands over the whole messages and moves what is left to the front; false if no message can follow.
    fn cut(&mut self, on: &mut impl FnMut(&[u8])) -> bool {
        let mut at = 0;
        loop {
            let rest = &self.incoming[at..self.filled];
            if rest.is_empty() {
                break;
            }
            match frame::next(rest) {
                Frame::Message(length) => {
                    on(&rest[..length]);
                    at += length;
                }
                Frame::Blank(length) => {
                    // RFC 5626 §3.5.1: a double line end is a ping, and a single one the pong.
                    if rest[..length] == *b"\r\n\r\n" {
                        self.outgoing.extend_from_slice(b"\r\n");
                    }
                    at += length;
                }
                Frame::Partial => break,
                Frame::Broken => return false,
            }
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        true
    }

    /// Puts a message behind what waits; false if too much does.
    pub(crate) fn queue(&mut self, message: &[u8]) -> bool {
        if self.outgoing.len() - self.written + message.len() > BACKLOG {
            return false;
        }
        self.outgoing.extend_from_slice(message);
        true
    }

    /// Writes as much as there is room for; the poller tells when there is more.
    ///
    /// # Errors
    /// What `writev` or the poller returns: the connection is of no more use.
    pub(crate) fn flush(&mut self, poller: &Poller) -> io::Result<u64> {
        let mut calls = 0;
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
