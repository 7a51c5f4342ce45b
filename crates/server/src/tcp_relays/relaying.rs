//! Relaying between a data connection and a peer (RFC 6062 §5.4), both ways.
//!
//! If both connections carry unencrypted bytes, the kernel moves them through a pipe (`splice`). With TLS, or if no
//! pipe is left, the worker copies them. A side that does not read makes the other wait: nothing is dropped. The end of
//! one direction is passed on, and the other may go on.

use super::pipes::Pipes;
use crate::connections::DataConnection;
use crate::counters::Counters;
use io::{Event, Pipe, TcpConnection};
use std::io::{ErrorKind, IoSlice, Result};
use std::time::Duration;
use turn::server::{RelayDirection, Server};
use turn::{ConnectionKey, Mono, Now};

/// Bytes relayed per direction and wake-up, so that one connection does not keep the worker from its datagrams: about
/// 0.1 ms.
const MAX_BYTES_PER_WAKE_UP: usize = 512 << 10;

/// What a read that brings none of the client's bytes takes of it (a part of a TLS record).
const MIN_COST: usize = 1 << 10;

/// How long a connection may go on in one direction only, without a byte.
const HALF_CLOSED: Duration = Duration::from_secs(30);

/// The result of relaying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayResult {
    /// An event of one of the connections must come first.
    Idle,
    /// There is more than one wake-up may relay.
    More,
    /// Continue at this time.
    Until(Mono),
    /// Close both connections.
    Over,
}

/// What asks the engine how much may be relayed, and counts what was.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    pub(crate) engine: &'a mut Server,
    pub(crate) counters: &'a mut Counters,
    pub(crate) now: Now,
    /// `None`: the relayed data has no limit and no counter.
    pub(crate) connection: Option<ConnectionKey>,
}

impl Meter<'_> {
    fn allowance(&mut self, direction: RelayDirection) -> std::result::Result<usize, Mono> {
        match self.connection {
            Some(connection) => self
                .engine
                .stream_allowance(self.now, connection, direction),
            None => Ok(usize::MAX),
        }
    }

    fn count(&mut self, direction: RelayDirection, bytes: usize) {
        let (to_peer, to_client) = match direction {
            RelayDirection::ToPeer => (bytes, 0),
            RelayDirection::ToClient => (0, bytes),
        };
        if let Some(connection) = self.connection {
            self.engine
                .add_stream_traffic(self.now, connection, to_peer, to_client);
        }
    }
}

/// One of the two connections of a relay.
trait End {
    /// The connection itself, if bytes pass unchanged.
    fn plain(&self) -> Option<&TcpConnection>;
    /// Reads once, and adds what came to `bytes`. 0 is the end. `Interrupted`: read again.
    fn read(&mut self, buffer: &mut [u8], bytes: &mut Vec<u8>) -> Result<usize>;
    fn write(&mut self, bytes: &[u8]) -> Result<usize>;
    /// Sends what has been taken and waits.
    fn flush(&mut self) -> Result<()>;
    /// Tells this side that nothing more comes.
    fn finish(&mut self) -> Result<()>;
}

impl End for TcpConnection {
    fn plain(&self) -> Option<&TcpConnection> {
        Some(self)
    }

    fn read(&mut self, buffer: &mut [u8], bytes: &mut Vec<u8>) -> Result<usize> {
        let read = TcpConnection::read(self, buffer)?;
        bytes.extend_from_slice(&buffer[..read]);
        Ok(read)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        TcpConnection::write(self, &[IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        TcpConnection::finish(self)
    }
}

impl End for DataConnection {
    fn plain(&self) -> Option<&TcpConnection> {
        self.is_plain().then(|| self.stream())
    }

    fn read(&mut self, buffer: &mut [u8], bytes: &mut Vec<u8>) -> Result<usize> {
        DataConnection::read(self, buffer, bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        DataConnection::write(self, bytes)
    }

    fn flush(&mut self) -> Result<()> {
        DataConnection::flush(self)
    }

    fn finish(&mut self) -> Result<()> {
        DataConnection::finish(self)
    }
}

/// One direction.
#[derive(Debug)]
struct Direction {
    direction: RelayDirection,
    /// There may be something to read. Cleared when there is not.
    source_ready: bool,
    /// There may be room to write. Cleared when there is not.
    sink_ready: bool,
    /// Bytes that were read and wait to be written, and how many of them were.
    pending: Vec<u8>,
    written: usize,
    /// The same, in the kernel.
    pipe: Option<Pipe>,
    /// The source has ended.
    has_ended: bool,
    /// The end was passed on to the sink.
    is_finished: bool,
}

impl Direction {
    fn new(direction: RelayDirection, pending: Vec<u8>) -> Direction {
        Direction {
            direction,
            source_ready: true,
            sink_ready: true,
            pending,
            written: 0,
            pipe: None,
            has_ended: false,
            is_finished: false,
        }
    }

    /// Relays until one of the connections has to be waited for, or `budget` is used up. Returns when to go on, if the
    /// rate is to be waited for.
    fn pump(
        &mut self,
        source: &mut impl End,
        sink: &mut impl End,
        pipes: &mut Pipes,
        budget: &mut usize,
        meter: &mut Meter<'_>,
    ) -> Result<Option<Mono>> {
        while self.send(sink, pipes)? {
            if self.has_ended {
                self.finish(sink)?;
                return Ok(None);
            }
            if !self.source_ready || *budget == 0 {
                return Ok(None);
            }
            let most = match meter.allowance(self.direction) {
                Ok(most) => most.min(MAX_BYTES_PER_WAKE_UP),
                Err(at) => return Ok(Some(at)),
            };
            match self.receive(source, sink, pipes, most, meter) {
                Ok(0) => self.has_ended = true,
                Ok(bytes) => {
                    meter.count(self.direction, bytes);
                    *budget = budget.saturating_sub(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.source_ready = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    *budget = budget.saturating_sub(MIN_COST);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Sends the bytes that wait. Returns whether none are left.
    fn send(&mut self, sink: &mut impl End, pipes: &mut Pipes) -> Result<bool> {
        if !self.sink_ready {
            return Ok(false);
        }
        match self.send_waiting(sink) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.sink_ready = false;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        if let Some(pipe) = self.pipe.take() {
            pipes.put(pipe);
        }
        if self.pending.capacity() > 0 {
            pipes.put_pending(std::mem::take(&mut self.pending));
        }
        self.written = 0;
        Ok(true)
    }

    fn send_waiting(&mut self, sink: &mut impl End) -> Result<()> {
        sink.flush()?;
        while self.written < self.pending.len() {
            match sink.write(&self.pending[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let (Some(pipe), Some(to)) = (&mut self.pipe, sink.plain()) {
            while pipe.held() > 0 {
                match pipe.drain(to) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        sink.flush()
    }

    /// Reads at most `most` bytes. Nothing waits to be sent.
    fn receive(
        &mut self,
        source: &mut impl End,
        sink: &impl End,
        pipes: &mut Pipes,
        most: usize,
        meter: &mut Meter<'_>,
    ) -> Result<usize> {
        let spliced = source.plain().zip(sink.plain()).map(|(from, _)| from);
        if let Some(from) = spliced
            && let Some(mut pipe) = pipes.take()
        {
            let result = pipe.fill(from, most);
            match result {
                Ok(bytes) if bytes > 0 => {
                    meter.counters.stream_bytes_spliced += bytes as u64;
                    self.pipe = Some(pipe);
                }
                _ => pipes.put(pipe),
            }
            return result;
        }
        pipes.make_buffer();
        self.pending = pipes.take_pending();
        let room = pipes.buffer.len().min(most);
        let result = source.read(&mut pipes.buffer[..room], &mut self.pending);
        meter.counters.stream_bytes_copied += *result.as_ref().unwrap_or(&0) as u64;
        result
    }

    fn finish(&mut self, sink: &mut impl End) -> Result<()> {
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(());
        }
        match sink.finish() {
            // Only the end itself waits. It is sent when there is room.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.sink_ready = false;
                Ok(())
            }
            result => result,
        }
    }

    /// Whether more can be relayed at once.
    const fn has_more(&self) -> bool {
        self.source_ready && self.sink_ready && !self.has_ended
    }
}

/// A data connection and what waits in both directions. The connection with the peer is beside it.
#[derive(Debug)]
pub(super) struct Relaying {
    client: DataConnection,
    to_peer: Direction,
    to_client: Direction,
    /// Bytes of the client that came with its ConnectionBind request and have not been counted.
    kept: usize,
    is_broken: bool,
    /// The direction to the client goes first the next time: both may draw on one rate.
    is_client_next: bool,
    /// When a connection that is half closed is closed as a whole.
    deadline: Option<Mono>,
}

impl Relaying {
    pub(super) fn new(client: DataConnection, kept: Vec<u8>) -> Relaying {
        Relaying {
            client,
            kept: kept.len(),
            to_peer: Direction::new(RelayDirection::ToPeer, kept),
            to_client: Direction::new(RelayDirection::ToClient, Vec::new()),
            is_broken: false,
            is_client_next: false,
            deadline: None,
        }
    }

    pub(super) fn peer_ready(&mut self, event: Event) {
        self.to_client.source_ready |= event.readable || event.closed;
        self.to_peer.sink_ready |= event.writable || event.closed;
        self.is_broken |= event.error;
    }

    pub(super) fn client_ready(&mut self, event: Event) {
        self.to_peer.source_ready |= event.readable || event.closed;
        self.to_client.sink_ready |= event.writable || event.closed;
        self.is_broken |= event.error;
    }

    /// Relays a bounded amount in both directions.
    pub(super) fn pump(
        &mut self,
        peer: &mut TcpConnection,
        pipes: &mut Pipes,
        now: Mono,
        meter: &mut Meter<'_>,
    ) -> RelayResult {
        if self.is_broken {
            return RelayResult::Over;
        }
        let kept = std::mem::take(&mut self.kept);
        if kept > 0 {
            meter.count(RelayDirection::ToPeer, kept);
        }
        let (mut up, mut down) = (MAX_BYTES_PER_WAKE_UP, MAX_BYTES_PER_WAKE_UP);
        let Relaying {
            client,
            to_peer,
            to_client,
            is_client_next,
            ..
        } = self;
        let is_client_first = *is_client_next;
        *is_client_next = !is_client_first;
        let early = is_client_first.then(|| to_client.pump(peer, client, pipes, &mut down, meter));
        let up_until = to_peer.pump(client, peer, pipes, &mut up, meter);
        let down_until =
            early.unwrap_or_else(|| to_client.pump(peer, client, pipes, &mut down, meter));
        let (Ok(up_until), Ok(down_until)) = (up_until, down_until) else {
            return RelayResult::Over;
        };
        if to_peer.is_finished && to_client.is_finished {
            return RelayResult::Over;
        }
        let has_relayed = up < MAX_BYTES_PER_WAKE_UP || down < MAX_BYTES_PER_WAKE_UP;
        self.set_deadline(now, has_relayed);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return RelayResult::Over;
        }
        let has_more = up == 0 && self.to_peer.has_more() || down == 0 && self.to_client.has_more();
        let timers = [up_until, down_until, self.deadline];
        match timers.into_iter().flatten().min() {
            _ if has_more => RelayResult::More,
            Some(at) => RelayResult::Until(at),
            None => RelayResult::Idle,
        }
    }

    fn set_deadline(&mut self, now: Mono, has_relayed: bool) {
        let is_half_closed = self.to_peer.has_ended || self.to_client.has_ended;
        if is_half_closed && (has_relayed || self.deadline.is_none()) {
            self.deadline = Some(now.plus(HALF_CLOSED));
        }
    }

    /// Gives back what it holds, and returns the data connection.
    pub(super) fn close(self, pipes: &mut Pipes) -> DataConnection {
        let Relaying {
            client,
            to_peer,
            to_client,
            ..
        } = self;
        for pipe in [to_peer.pipe, to_client.pipe].into_iter().flatten() {
            pipes.put(pipe);
        }
        client
    }
}
