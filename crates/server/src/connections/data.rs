//! Data connections (RFC 6062 §5.4), which carry a stream of bytes instead of messages. Also connections that move to
//! another worker.
//!
//! A connection leaves the table of its worker, and stays in its counts until it ends.

use super::connection::{Connection, WriteTotals};
use super::{CONNECTION_BIT, Connections, EndReason, Slot};
use crate::worker::Token;
use io::{Interest, Poller, TcpConnection};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use streams::ChunkPool;
use turn::{ClientPath, ListenerKey, Mono};

/// A client's data connection.
#[derive(Debug)]
pub(crate) struct DataConnection {
    connection: Box<Connection>,
    /// The bytes that wait to be sent are the last ones.
    is_finishing: bool,
    /// The client has sent close_notify.
    has_ended: bool,
}

/// A connection between two workers. Neither counts it.
#[derive(Debug)]
pub(crate) struct MovingConnection(Box<Connection>);

impl Connections {
    /// Handles no more messages of this client: its connection becomes a data connection, or moves to another worker.
    pub(crate) fn hold(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_reading_paused(path, true, poller);
    }

    /// Handles its messages again.
    pub(crate) fn release(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_reading_paused(path, false, poller);
    }

    fn set_reading_paused(&mut self, path: &ClientPath, held: bool, poller: &Poller) {
        let Some(slot) = self.find(path) else {
            return;
        };
        if let Some(connection) = self.get(slot) {
            connection.is_held = held;
            if !held {
                self.resumed.push(slot);
            }
        }
        self.update_interest(slot, poller);
    }

    /// Makes the connection of this client a data connection, once the responses that wait have been written. Also
    /// returns the bytes that followed the last message. `None` if the connection has ended.
    pub(crate) fn take_data(
        &mut self,
        path: &ClientPath,
        poller: &Poller,
        now: Mono,
    ) -> Option<(DataConnection, Vec<u8>)> {
        self.prove(path);
        let slot = self.find(path)?;
        self.take_as_data(slot, poller, now)
    }

    /// The same for a connection over TLS whose messages another process handles. It counts as unproven, unless it is
    /// proven here. `None` if it has ended, or has no TLS.
    pub(crate) fn take_forwarded(
        &mut self,
        path: &ClientPath,
        poller: &Poller,
        now: Mono,
    ) -> Option<(DataConnection, Vec<u8>)> {
        let slot = self.find(path)?;
        let has_tls = self
            .get(slot)
            .is_some_and(|connection| connection.tls.is_some());
        has_tls.then_some(())?;
        self.take_as_data(slot, poller, now)
    }

    fn take_as_data(
        &mut self,
        slot: Slot,
        poller: &Poller,
        now: Mono,
    ) -> Option<(DataConnection, Vec<u8>)> {
        self.write(slot, poller, now);
        let mut connection = self.take_out(slot)?;
        // A stream has no age: what fits into the socket may wait there. An error is harmless.
        let _ = connection.stream.set_unsent_limit(u32::MAX);
        let kept = connection.begin_data(&mut self.spare);
        let data = DataConnection {
            connection,
            is_finishing: false,
            has_ended: false,
        };
        Some((data, kept))
    }

    /// A data connection has ended.
    pub(crate) fn end_data(&mut self, data: DataConnection) {
        let connection = *data.connection;
        self.uncount(&connection);
        self.counters.count_end(EndReason::DataConnection);
    }

    /// Takes the connection of this client out, for another worker.
    pub(crate) fn give(&mut self, path: &ClientPath, poller: &Poller) -> Option<MovingConnection> {
        let slot = self.find(path)?;
        let connection = self.take_out(slot)?;
        // It could only fail for a socket that is not watched; then nothing is left to undo.
        let _ = poller.remove(&connection.stream);
        self.uncount(&connection);
        Some(MovingConnection(connection))
    }

    /// Takes over a connection of another worker. Returns its path here; `None` if there is no room for it: it is
    /// closed.
    pub(crate) fn receive(
        &mut self,
        moving: MovingConnection,
        poller: &Poller,
    ) -> Option<ClientPath> {
        let MovingConnection(mut connection) = moving;
        let index = self.free.pop();
        let index = index.unwrap_or(u32::try_from(self.table.len()).ok()?);
        self.generation = self.generation.wrapping_add(1);
        let slot = Slot {
            index,
            generation: self.generation,
        };
        let token = Token::Connection(slot).as_u64();
        let is_watched = index < Token::MAX_CONNECTIONS
            && self.open < self.limits.connections
            && poller
                .add(&connection.stream, token, Interest::Nothing)
                .is_ok();
        if !is_watched {
            self.free.push(index);
            self.counters.refused_limit += 1;
            return None;
        }
        connection.moved_to(slot, ListenerKey(CONNECTION_BIT | index), &self.limits);
        self.timers.set(index, connection.armed);
        self.count(&connection);
        let path = connection.path;
        let place = index as usize;
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        self.table[place] = Some(connection);
        self.release(&path, poller);
        Some(path)
    }

    /// Serves a connection that comes from another process of this server (upgrade). It was accepted there, or it is a
    /// connection over loopback with the data of a TLS client. `bytes` are complete STUN messages that it has already
    /// read.
    ///
    /// # Errors
    /// No listener has this address, or there are too many connections. The connection is then closed.
    pub(crate) fn adopt(
        &mut self,
        stream: OwnedFd,
        (local, remote): (SocketAddr, SocketAddr),
        bytes: Vec<u8>,
        poller: &Poller,
        now: Mono,
    ) -> Result<()> {
        let stream = TcpConnection::from_open(stream)?;
        let at = |address: SocketAddr| {
            self.listeners.iter().position(|listener| {
                let at = listener.socket.local_addr();
                let covers = at.ip() == address.ip() || at.ip().is_unspecified();
                covers && at.port() == address.port()
            })
        };
        // A PROXY header may have named `local`. Over loopback, the connection's own address says nothing.
        let number = at(stream.local_addr()?).or_else(|| at(local));
        let number = number.and_then(|number| u16::try_from(number).ok());
        let number = number.ok_or(ErrorKind::AddrNotAvailable)?;
        self.sources.enter(remote, usize::MAX);
        self.unproven_sources.enter(remote, usize::MAX);
        let entered = self.enter(stream, remote, number, false, poller, now);
        let Some(slot) = entered else {
            self.sources.leave(remote);
            self.unproven_sources.leave(remote);
            self.counters.refused_limit += 1;
            return Err(ErrorKind::OutOfMemory.into());
        };
        if let Some(connection) = self.get(slot) {
            connection.adopt((local, remote), bytes);
            self.resumed.push(slot);
        }
        Ok(())
    }

    /// Takes the plain connection of this client out, for another process: its descriptor, and the bytes that followed
    /// the last message. `None` if it has ended, has TLS, or if responses wait to be written.
    pub(crate) fn take_for_handover(
        &mut self,
        path: &ClientPath,
        poller: &Poller,
    ) -> Option<(OwnedFd, Vec<u8>)> {
        let slot = self.find(path)?;
        let can_move = |connection: &mut Connection| {
            connection.tls.is_none() && connection.unwritten.is_empty()
        };
        self.get(slot).is_some_and(can_move).then_some(())?;
        let MovingConnection(connection) = self.give(path, poller)?;
        let Connection {
            stream, inbound, ..
        } = *connection;
        Some((stream.into(), inbound))
    }

    /// Takes a connection out of the table, and leaves it in the counts.
    fn take_out(&mut self, slot: Slot) -> Option<Box<Connection>> {
        self.get(slot)?;
        let connection = self.table.get_mut(slot.index as usize)?.take()?;
        self.queued -= connection.waiting();
        self.free.push(slot.index);
        self.timers.remove(slot.index);
        Some(connection)
    }

    fn count(&mut self, connection: &Connection) {
        self.open += 1;
        self.peak = self.peak.max(self.open);
        self.queued += connection.waiting();
        self.sources.enter(connection.source, usize::MAX);
        if !connection.is_proven {
            self.unproven += 1;
            self.unproven_sources.enter(connection.source, usize::MAX);
        }
        match connection.tls {
            Some(_) => self.counters.tls_now += 1,
            None => self.counters.tcp_now += 1,
        }
    }

    fn uncount(&mut self, connection: &Connection) {
        self.open -= 1;
        self.sources.leave(connection.source);
        if !connection.is_proven {
            self.unproven -= 1;
            self.unproven_sources.leave(connection.source);
        }
        match connection.tls {
            Some(_) => self.counters.tls_now -= 1,
            None => self.counters.tcp_now -= 1,
        }
    }
}

impl Connection {
    /// Returns the bytes that are no message any more.
    fn begin_data(&mut self, spare: &mut ChunkPool) -> Vec<u8> {
        let mut unwritten = Vec::new();
        while let Some(chunk) = self.unwritten.first() {
            unwritten.extend_from_slice(chunk);
            let length = chunk.len();
            self.unwritten.advance(length, spare);
        }
        self.unwritten.clear(spare);
        match &mut self.tls {
            // Without TLS, `ciphertext` holds what waits to be written as it is.
            None => self.ciphertext.append(&mut unwritten),
            // It fails only if the connection has: the next call says so.
            Some(tls) => drop(tls.encrypt(&unwritten, &mut self.ciphertext)),
        }
        std::mem::take(&mut self.inbound)
    }

    fn moved_to(&mut self, slot: Slot, listener: ListenerKey, limits: &super::WorkerLimits) {
        self.slot = slot;
        self.path.listener = listener;
        self.is_dirty = false;
        self.watching = super::connection::WatchedEvents::Nothing;
        self.armed = self.deadline(limits).0;
    }
}

impl DataConnection {
    pub(crate) const fn stream(&self) -> &TcpConnection {
        &self.connection.stream
    }

    /// Whether bytes pass unchanged and none wait here.
    pub(crate) fn is_plain(&self) -> bool {
        self.connection.tls.is_none() && self.connection.waiting() == 0
    }

    /// Reads once, at most as much as `buffer` has room for, and adds the client's bytes to `bytes`. Returns how many
    /// these are; 0 is the end. `Interrupted`: some that are none of the client's, so read again.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; otherwise the connection has failed.
    pub(crate) fn read(&mut self, buffer: &mut [u8], bytes: &mut Vec<u8>) -> Result<usize> {
        if self.has_ended {
            return Ok(0);
        }
        let read = self.connection.stream.read(buffer)?;
        let received = &buffer[..read];
        let Some(tls) = &mut self.connection.tls else {
            bytes.extend_from_slice(received);
            return Ok(read);
        };
        if read == 0 {
            return Ok(0);
        }
        let before = bytes.len();
        let result = tls.received(received, bytes, &mut self.connection.ciphertext);
        self.has_ended = result.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        match bytes.len() - before {
            0 if !self.has_ended => Err(ErrorKind::Interrupted.into()),
            count => Ok(count),
        }
    }

    /// Takes some of the bytes to send them. Returns how many.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; otherwise the connection has failed.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.flush()?;
        let connection = &mut *self.connection;
        let Some(tls) = &mut connection.tls else {
            return connection.stream.write(&[IoSlice::new(bytes)]);
        };
        tls.encrypt(bytes, &mut connection.ciphertext)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(bytes.len()),
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room for all of it; otherwise the connection has failed.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let mut written = WriteTotals::default();
        if self.connection.waiting() > 0 && !self.connection.write_ciphertext(&mut written) {
            return Err(match written.is_broken {
                true => ErrorKind::BrokenPipe.into(),
                false => ErrorKind::WouldBlock.into(),
            });
        }
        if std::mem::take(&mut self.is_finishing) {
            self.connection.stream.finish()?;
        }
        Ok(())
    }

    /// Tells the client that nothing more comes.
    ///
    /// # Errors
    /// As [`DataConnection::flush`].
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(tls) = &mut self.connection.tls {
            tls.finish(&mut self.connection.ciphertext);
        }
        self.is_finishing = true;
        self.flush()
    }
}
