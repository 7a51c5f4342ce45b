//! What happens without being asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use turn::client::Event;

/// More than the events of a minute in which everything goes wrong.
const LIMIT: usize = 64;

/// A bounded queue of events: the newest are kept.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: VecDeque<Event>,
    arrived: Arc<Notify>,
}

impl Events {
    /// Appends an event; false if the oldest had to go for it.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        let room = self.waiting.len() < LIMIT;
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
