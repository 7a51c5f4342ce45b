//! What happens without being asked for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stun::ConnectionId;
use tokio::sync::Notify;
use turn::Mono;
use turn::client::Event;

/// The most events that wait: more than one minute of failures causes.
const MAX_WAITING: usize = 64;

/// A bounded queue of events: the newest are kept.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: VecDeque<Event>,
    arrived: Arc<Notify>,
}

impl Events {
    /// Appends an event; false if the oldest was dropped for it.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        let room = self.waiting.len() < MAX_WAITING;
        if !room {
            self.waiting.pop_front();
        }
        self.waiting.push_back(event);
        self.arrived.notify_one();
        room
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.waiting.pop_front()
    }

    pub(crate) fn arrived(&self) -> Arc<Notify> {
        Arc::clone(&self.arrived)
    }

    pub(crate) fn wake_all(&self) {
        self.arrived.notify_waiters();
    }
}

/// RFC 6062 §5.3: the server closes a connection that the client has not bound within this time.
const BIND_WITHIN: Duration = Duration::from_secs(30);

/// Connections of peers that wait for the program: a bounded queue, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    waiting: VecDeque<(SocketAddr, ConnectionId, Mono)>,
    arrived: Arc<Notify>,
}

impl Attempts {
    /// Appends a connection; false if the queue is full. Connections that the server has closed by now are removed
    /// first.
    pub(crate) fn push(&mut self, peer: SocketAddr, id: ConnectionId, now: Mono) -> bool {
        self.forget(now);
        let room = self.waiting.len() < MAX_WAITING;
        if room {
            self.waiting.push_back((peer, id, now.plus(BIND_WITHIN)));
            self.arrived.notify_one();
        }
        room
    }

    /// The oldest one that can still be bound.
    pub(crate) fn pop(&mut self, now: Mono) -> Option<(SocketAddr, ConnectionId)> {
        self.forget(now);
        let (peer, id, _) = self.waiting.pop_front()?;
        if !self.waiting.is_empty() {
            // Another task may wait for the next one.
            self.arrived.notify_one();
        }
        Some((peer, id))
    }

    pub(crate) fn arrived(&self) -> Arc<Notify> {
        Arc::clone(&self.arrived)
    }

    pub(crate) fn wake_all(&self) {
        self.arrived.notify_waiters();
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    fn forget(&mut self, now: Mono) {
        while self
            .waiting
            .front()
            .is_some_and(|(_, _, until)| *until <= now)
        {
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_in_order_and_lapse_after_30_seconds() {
        let (mut attempts, start) = (Attempts::default(), Mono::default());
        let peer = SocketAddr::from(([192, 0, 2, 1], 5000));
        for number in 0..MAX_WAITING as u32 {
            assert!(attempts.push(peer, ConnectionId(number), start));
        }
        assert!(!attempts.push(peer, ConnectionId(99), start), "full");
        assert_eq!(attempts.pop(start), Some((peer, ConnectionId(0))));
        let late = start.plus(BIND_WITHIN);
        assert!(attempts.push(peer, ConnectionId(100), late), "room again");
        assert_eq!(attempts.pop(late), Some((peer, ConnectionId(100))));
        assert_eq!(attempts.pop(late), None);
    }
}
