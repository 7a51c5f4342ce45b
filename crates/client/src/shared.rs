//! What the client's task and the program's handles share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::Instant;
use turn::{Mono, Now};

use crate::data_connection::ConnectOptions;
use crate::endpoint::Endpoint;
use crate::error::{Disconnect, Ended};
use crate::events::{Attempts, Events};
use crate::link::Link;
use crate::queue::Queue;
use crate::waiters::Waiters;

/// What a client has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Datagrams of data that were sent.
    pub sent: u64,
    /// Datagrams of data that came and were queued.
    pub received: u64,
    /// Datagrams of data that came and were dropped, because a queue was full.
    pub dropped: u64,
    /// Datagrams whose end was cut off, because the program's buffer was shorter.
    pub truncated: u64,
    /// Events that were dropped, because no caller took them.
    pub events_dropped: u64,
    /// Connections of peers (RFC 6062) that were dropped because too many waited for the program.
    pub attempts_dropped: u64,
    /// Messages of no use: late second responses, mostly.
    pub ignored: u64,
    /// Messages that are neither STUN nor ChannelData.
    pub foreign: u64,
    /// Requests that the link did not accept. The client repeats them.
    pub unsent: u64,
}

/// The queue of a peer that the program has a handle for.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) queue: Queue,
    pub(crate) handles: usize,
}

/// An allocation in its handles: its number, so that an old handle does nothing to a new allocation.
#[derive(Debug)]
pub(crate) struct AllocationState {
    pub(crate) number: u64,
    pub(crate) ended: Option<Ended>,
}

/// The state behind the lock. It is held for a few microseconds and never across an `await`.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    pub(crate) waiters: Waiters,
    pub(crate) events: Events,
    pub(crate) attempts: Attempts,
    pub(crate) allocation: AllocationState,
    pub(crate) queue_limit: usize,
    pub(crate) others: Queue,
    pub(crate) inboxes: HashMap<SocketAddr, Inbox>,
    pub(crate) stats: Stats,
    /// The message that is being sent.
    pub(crate) scratch: Vec<u8>,
    /// Set when the last handle is dropped: the task ends at the latest then.
    pub(crate) end_at: Option<Mono>,
    /// The task has ended.
    pub(crate) closed: bool,
    /// Why the link is of no more use.
    pub(crate) lost: Option<Disconnect>,
}

impl Core {
    /// Why the allocation of this number is over; `None` while it is not.
    pub(crate) fn ended(&self, number: u64) -> Option<Ended> {
        if self.closed || self.allocation.number != number {
            return Some(self.allocation.ended.clone().unwrap_or(Ended::Closed));
        }
        self.allocation.ended.clone()
    }

    /// The allocation is over: callers that wait for its data or its permissions are informed.
    pub(crate) fn allocation_ended(&mut self, why: Ended) {
        if self.allocation.ended.is_none() {
            self.allocation.ended = Some(why);
        }
        self.waiters.allocation_ended();
        self.attempts.clear();
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.others.wake_all();
        self.inboxes
            .values()
            .for_each(|inbox| inbox.queue.wake_all());
        self.events.wake_all();
        self.attempts.wake_all();
    }

    /// Queues a peer's data, for the peer's own handle if there is one.
    pub(crate) fn deliver(&mut self, peer: SocketAddr, payload: &[u8]) {
        let queue = match self.inboxes.get_mut(&peer) {
            Some(inbox) => &mut inbox.queue,
            None => &mut self.others,
        };
        if queue.push(peer, payload) {
            self.stats.received += 1;
        } else {
            self.stats.dropped += 1;
        }
    }
}

/// The core, its link and its clock.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) link: Box<dyn Link>,
    /// How other connections to the server are made.
    pub(crate) dial: ConnectOptions,
    /// The program has asked for something: the task has to transmit it.
    pub(crate) changed: Notify,
    origin: Instant,
}

impl Shared {
    pub(crate) fn new(core: Core, link: Box<dyn Link>, dial: ConnectOptions) -> Arc<Shared> {
        Arc::new(Shared {
            core: Mutex::new(core),
            link,
            dial,
            changed: Notify::new(),
            origin: Instant::now(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // No code panics while it holds the lock. After a panic, at most some counters would be wrong.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// tokio's clock, which tests can pause.
    pub(crate) fn now(&self) -> Now {
        let mono = Mono::default().plus(self.origin.elapsed());
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_s = unix.unwrap_or(Duration::ZERO).as_secs();
        Now { mono, unix_s }
    }

    /// The moment by tokio's clock; `None` if it is too far away to matter.
    pub(crate) fn instant(&self, at: Mono) -> Option<Instant> {
        self.origin.checked_add(at.since(Mono::default()))
    }
}
