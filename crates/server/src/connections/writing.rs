//! What clients get: queued per connection, written once per wake-up.

use super::connection::{Outcome, WatchedEvents, WriteTotals};
use super::{Connections, EndReason, MAX_UNSENT_BYTES, Slot, UNPROVEN_NS};
use crate::worker::Token;
use io::{Interest, Poller};
use streams::Content;
use turn::{ClientPath, Mono};

impl Connections {
    /// Queues one message for a client. `flush` writes the messages of a wake-up together.
    pub(crate) fn queue(
        &mut self,
        path: &ClientPath,
        parts: &[&[u8]],
        content: Content,
        poller: &Poller,
        now: Mono,
    ) {
        let Some(slot) = self.find(path) else {
            self.counters.dropped_gone += 1;
            return;
        };
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let mut limits = self.limits.write;
        if self.queued > self.limits.queue_bytes_total {
            // Connections that queue more than an equal share lose data first.
            limits.bytes =
                (self.limits.queue_bytes_total / self.open.max(1)).max(MAX_UNSENT_BYTES as usize);
        }
        let before = connection.unwritten.len();
        let pushed = connection
            .unwritten
            .push(parts, content, now, &limits, &mut self.spare);
        self.queued = self.queued + connection.unwritten.len() - before;
        match pushed {
            Ok(dropped) => {
                self.counters.dropped_bytes += dropped;
                self.mark_dirty(slot);
            }
            Err(streams::Unread) => self.close(slot, EndReason::Unread, None, poller),
        }
    }

    pub(super) fn mark_dirty(&mut self, slot: Slot) {
        if let Some(connection) = self.get(slot)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Writes to all connections that have something to write.
    pub(crate) fn flush(&mut self, poller: &Poller, now: Mono) {
        if !self.dirty.is_empty() {
            self.write_dirty(poller, now);
        }
        self.unproven_ns = self
            .unproven_ns
            .saturating_sub(UNPROVEN_NS)
            .min(UNPROVEN_NS);
    }

    /// Writes what the connections of this wake-up have queued. If a socket is full, it writes nothing to it, and drops
    /// only relayed data that is too old.
    fn write_dirty(&mut self, poller: &Poller, now: Mono) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.get(slot) else {
                continue;
            };
            connection.is_dirty = false;
            let begun = (!connection.is_proven).then(io::clock::monotonic_ns);
            // The poller will report when a full socket has room.
            if matches!(
                connection.watching,
                WatchedEvents::Write | WatchedEvents::Both
            ) {
                self.drop_old(slot, now);
            } else {
                self.write(slot, poller, now);
            }
            if let Some(begun) = begun {
                self.unproven_ns += io::clock::monotonic_ns() - begun;
            }
        }
        self.dirty = dirty;
    }

    /// Drops relayed data that waits for longer than the limit.
    pub(super) fn drop_old(&mut self, slot: Slot, now: Mono) {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let before = connection.unwritten.len();
        let age = self.limits.write.age;
        self.counters.dropped_age += connection.unwritten.expire(now, age, &mut self.spare);
        self.queued -= before - connection.unwritten.len();
    }

    pub(super) fn write(&mut self, slot: Slot, poller: &Poller, now: Mono) {
        if self.get(slot).is_none() {
            return;
        }
        self.drop_old(slot, now);
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let mut written = WriteTotals::default();
        let before = connection.waiting();
        let was_deaf = connection.is_reading_stopped();
        let outcome = connection.write(&mut self.scratch, &mut self.spare, &mut written);
        self.queued = self.queued + connection.waiting() - before;
        self.counters.writes += written.calls;
        self.counters.written_bytes += written.bytes;
        if was_deaf && !connection.is_reading_stopped() {
            self.resumed.push(slot);
        }
        match outcome {
            Outcome::Open => self.update_interest(slot, poller),
            Outcome::Ended(reason, failure) => self.close(slot, reason, failure, poller),
        }
    }

    /// Makes the poller report the readiness that the connection requires now.
    pub(super) fn update_interest(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let wants = connection.wants();
        if wants == connection.watching {
            return;
        }
        let interest = match wants {
            WatchedEvents::Nothing => Interest::Nothing,
            WatchedEvents::Read => Interest::Read,
            WatchedEvents::Write => Interest::Write,
            WatchedEvents::Both => Interest::ReadWrite,
        };
        let token = Token::Connection(slot).as_u64();
        if poller.modify(&connection.stream, token, interest).is_ok() {
            connection.watching = wants;
        }
    }
}
