//! What clients send: from the socket through TLS to the arena.

use super::connection::{KeptBytes, Outcome};
use super::{Arena, Connections, EndReason, Slot, UNPROVEN_NS};
use io::{Event, Poller};
use std::io::ErrorKind;
use streams::rustls::ProtocolVersion;
use turn::{ClientPath, Mono};

/// The maximum number of bytes read per wake-up from a connection that has not had an allocation.
const READ_UNPROVEN: usize = 4 << 10;

impl Connections {
    /// Handles an event of a connection. Adds received data to the arena.
    pub(crate) fn handle_event(
        &mut self,
        slot: Slot,
        event: Event,
        arena: &mut Arena,
        poller: &Poller,
        now: Mono,
    ) {
        if event.writable {
            self.write(slot, poller, now);
        }
        let Some(connection) = self.get(slot) else {
            return;
        };
        if connection.is_reading_stopped() {
            if event.closed {
                self.close(slot, EndReason::Client, None, poller);
            }
        } else if event.readable || event.closed {
            self.read(slot, arena, poller, now);
        }
    }

    /// Time that connections without an allocation have used in this wake-up.
    pub(crate) fn unproven_ns(&self) -> u64 {
        self.unproven_ns
    }

    /// Reads from the socket once.
    fn read(&mut self, slot: Slot, arena: &mut Arena, poller: &Poller, now: Mono) {
        let defers = self.unproven_ns > UNPROVEN_NS;
        let Some(connection) = self.get(slot) else {
            return;
        };
        let is_unproven = !connection.is_proven;
        if defers && is_unproven {
            // The poller is level-triggered and reports the connection again.
            self.counters.handshakes_deferred += 1;
            return;
        }
        let begun = is_unproven.then(io::clock::monotonic_ns);
        let mut buffer = std::mem::take(&mut arena.received);
        let room = if connection.is_proven {
            buffer.len()
        } else {
            buffer.len().min(READ_UNPROVEN)
        };
        let result = connection.stream.read(&mut buffer[..room]);
        match result {
            Ok(0) => self.close(slot, EndReason::Client, None, poller),
            Ok(bytes) => self.take(slot, &buffer[..bytes], arena, poller, now),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.close(slot, EndReason::Client, None, poller),
        }
        arena.received = buffer;
        if let Some(begun) = begun {
            self.unproven_ns += io::clock::monotonic_ns() - begun;
        }
    }

    /// Passes bytes that were read to their connection, which adds the decrypted data to the arena. Then updates the
    /// counters and the timer. If the connection has ended, [`Connections::end`] closes it later.
    fn take(&mut self, slot: Slot, bytes: &[u8], arena: &mut Arena, poller: &Poller, now: Mono) {
        self.counters.received_bytes += bytes.len() as u64;
        let Connections {
            table, listeners, ..
        } = self;
        let Some(Some(connection)) = table.get_mut(slot.index as usize) else {
            return;
        };
        let Some(listener) = listeners.get(usize::from(connection.listener)) else {
            return;
        };
        let was_open = connection.is_open();
        let was_handshaking = !was_open || connection.is_handshaking();
        let queued_before = connection.waiting();
        let outcome = connection.handle_received(bytes, &listener.protocols, arena, now);
        let queued_after = connection.waiting();
        self.queued = self.queued + queued_after - queued_before;
        if was_handshaking {
            self.note_beginning(slot, was_open);
        }
        match outcome {
            Outcome::Open if self.follow_source(slot) => {
                self.close(slot, EndReason::SourceLimit, None, poller);
            }
            Outcome::Open if queued_after > 0 => self.mark_dirty(slot),
            Outcome::Open => {}
            // What arrived before the end is handled first.
            Outcome::Ended(reason, failure) => self.ending.push((slot, reason, failure)),
        }
        self.arm(slot);
    }

    /// Closes the connections whose last bytes have been handled.
    pub(crate) fn end(&mut self, poller: &Poller, now: Mono) {
        if self.ending.is_empty() {
            return;
        }
        let begun = io::clock::monotonic_ns();
        while let Some((slot, reason, failure)) = self.ending.pop() {
            if failure.is_none() {
                self.write(slot, poller, now);
            }
            self.close(slot, reason, failure, poller);
        }
        self.unproven_ns += io::clock::monotonic_ns() - begun;
    }

    /// Once the PROXY header has named the client, counts the connection for the client's address and no longer for the
    /// load balancer's. Returns whether the client has too many connections.
    fn follow_source(&mut self, slot: Slot) -> bool {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return false;
        };
        let client = connection.path.five_tuple.remote;
        if connection.source == client {
            return false;
        }
        let balancer = std::mem::replace(&mut connection.source, client);
        self.sources.leave(balancer);
        let is_full = self.sources.count(client) as usize >= self.limits.per_source;
        self.sources.enter(client, usize::MAX);
        if !connection.is_proven {
            self.unproven_sources.leave(balancer);
            self.unproven_sources.enter(client, usize::MAX);
        }
        is_full
    }

    /// Counts a connection that has turned out to use TLS, and a completed handshake.
    fn note_beginning(&mut self, slot: Slot, was_open: bool) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let Some(tls) = connection.tls.as_deref() else {
            return;
        };
        let done = (!tls.is_handshaking()).then(|| (tls.version(), tls.is_resumed()));
        let name = tls.server_name().filter(|_| done.is_some());
        let named = name.map(|name| (connection.path.five_tuple, name.into()));
        self.named.extend(named);
        if !was_open {
            self.counters.tcp_now -= 1;
            self.counters.tls_now += 1;
        }
        if let Some((version, is_resumed)) = done {
            match version {
                Some(ProtocolVersion::TLSv1_2) => self.counters.handshakes_tls12 += 1,
                _ => self.counters.handshakes_tls13 += 1,
            }
            self.counters.handshakes_resumed += u64::from(is_resumed);
        }
    }

    /// Checks the first application data of a connection. Returns why the connection must end, if it must.
    pub(crate) fn check_first_bytes(&mut self, slot: Slot, bytes: &[u8]) -> Option<EndReason> {
        self.get(slot)?.check_first_bytes(bytes)
    }

    /// Whether the next message of a connection may be handled now.
    pub(crate) fn may_handle_next(&mut self, slot: Slot) -> bool {
        self.get(slot)
            .is_some_and(|connection| !connection.is_reading_stopped())
    }

    /// Keeps the bytes that were not handled.
    pub(crate) fn keep(&mut self, slot: Slot, rest: &[u8], kept: KeptBytes, now: Mono) {
        if let Some(connection) = self.get(slot) {
            connection.keep(rest, kept, now);
            if !rest.is_empty() {
                self.arm(slot);
            }
        }
    }

    pub(crate) fn count_messages(&mut self, messages: usize) {
        self.counters.messages += messages as u64;
    }

    /// A request of this client waits for its credentials. The worker reads no more from the connection.
    pub(crate) fn pause(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_paused(path, true, poller);
    }

    /// The request that waited has been handled. The worker reads from the connection again.
    pub(crate) fn resume(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_paused(path, false, poller);
    }

    fn set_paused(&mut self, path: &ClientPath, paused: bool, poller: &Poller) {
        let Some(slot) = self.find(path) else {
            return;
        };
        if let Some(connection) = self.get(slot) {
            connection.is_paused = paused;
            if !paused {
                self.resumed.push(slot);
            }
        }
        self.update_interest(slot, poller);
    }

    /// Moves the kept bytes of connections that may be read again to the arena.
    pub(crate) fn take_resumed(&mut self, arena: &mut Arena, poller: &Poller) {
        while let Some(slot) = self.resumed.pop() {
            if let Some(connection) = self
                .get(slot)
                .filter(|connection| !connection.is_reading_stopped())
            {
                connection.resume(arena);
                self.update_interest(slot, poller);
            }
        }
    }
}
