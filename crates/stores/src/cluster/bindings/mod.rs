//! Registrations of all nodes. Each node publishes the addresses of record of its bindings, and asks which other nodes
//! have some. Workers never wait: they queue changes and look-ups here. The control thread exchanges them with the
//! engine.
//!
//! ```text
//!  worker ── publish ──> changes, one for each address ── take_changes ──> engine
//!  worker ── find ──> cache    begin_find ──> asked ── take_asked ──> engine ── finish_find ──> cache, replies
//! ```
//!
//! If changes do not fit, they are lost, and [`ClusterBindings::generation`] grows. Then workers publish all bindings
//! again.

mod counters;
mod state;

pub use counters::{BindingCounters, Conflicts, ReceivedNotices};
pub(super) use state::Change;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::binding_texts::Owner;
use super::clock_steps::ClockSteps;
use super::engine::BindRequest;
use super::moved::{MovedBinding, NoticeRead};
use state::BindingsState;

/// The maximum of addresses whose changes wait for the engine.
const MAX_CHANGES: usize = 1 << 16;
/// With more waiting changes, workers that publish all of their bindings pause.
const BUSY_CHANGES: usize = MAX_CHANGES / 4;
/// The maximum of addresses in look-ups.
const MAX_ASKED: usize = 4_096;
/// After a greater step of its clock, a node may have refused or missed notices of other nodes.
const COMPARE_AFTER_STEP_MS: u64 = 10_000;

/// One binding, for the other nodes. They send requests to its node, so they need no contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBinding {
    /// Distinguishes the bindings of an address on all nodes: a hash of instance and `reg-id`, or of the contact.
    pub id: u64,
    /// Whether it has a `reg-id`. Only then a phone that registers at another node leaves this one (RFC 5626 §6).
    pub has_reg_id: bool,
    /// Identifies its phone on all nodes: all flows of a phone have one number. 0: its phone has no other binding.
    pub phone: u64,
    /// A hash of the Call-ID of the REGISTER.
    pub call: u64,
    /// Its CSeq.
    pub cseq: u32,
    /// The priority of the contact, in thousandths.
    pub q: u16,
    /// How long ago the REGISTER came.
    pub age_ms: u64,
    /// Time until the binding ends.
    pub ttl_ms: u64,
}

/// Another node with bindings of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtNode {
    /// Its name.
    pub node: String,
    /// The greatest priority of its contacts.
    pub q: u16,
    /// The phone of each of its bindings, as in [`SharedBinding`].
    pub phones: Vec<u64>,
}

/// The nodes with bindings of an address; `None` if the engine does not respond.
pub type AtNodes = Option<Arc<[AtNode]>>;
/// Gets the result of a look-up, on another thread or at once. It must not wait.
pub type Reply = Box<dyn FnOnce(AtNodes) + Send>;

/// The result of a look-up that does not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownBindings {
    /// These nodes have bindings.
    At(Arc<[AtNode]>),
    /// The engine does not respond.
    Unavailable,
    /// Only the engine knows: call [`ClusterBindings::begin_find`].
    Ask,
}

#[derive(Debug)]
enum Clock {
    Real(Instant),
    Virtual(Arc<AtomicU64>),
}

/// The registrations of all nodes.
#[derive(Debug)]
pub struct ClusterBindings {
    state: Mutex<BindingsState>,
    clock: Clock,
    /// The engine has responded to the last exchange.
    is_engine_up: AtomicBool,
    /// The last look-up has failed, so none begins for a short time.
    is_paused: AtomicBool,
    generation: AtomicU64,
    /// Wakes the task that takes changes.
    pub(super) changed: Notify,
    /// Wakes the task that takes look-ups.
    pub(super) wanted: Notify,
}

impl Default for ClusterBindings {
    fn default() -> ClusterBindings {
        ClusterBindings {
            state: Mutex::default(),
            clock: Clock::Real(Instant::now()),
            is_engine_up: AtomicBool::new(true),
            is_paused: AtomicBool::new(false),
            generation: AtomicU64::new(1),
            changed: Notify::new(),
            wanted: Notify::new(),
        }
    }
}

/// Changes by the address of record.
type Changes = Vec<(Box<[u8]>, Change)>;

impl ClusterBindings {
    /// Registrations whose clock is that of a simulator, in milliseconds.
    #[must_use]
    pub fn on_virtual_time(now_ms: Arc<AtomicU64>) -> ClusterBindings {
        ClusterBindings {
            clock: Clock::Virtual(now_ms),
            ..ClusterBindings::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, BindingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        match &self.clock {
            Clock::Real(started) => {
                u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
            }
            Clock::Virtual(now_ms) => now_ms.load(Ordering::Relaxed),
        }
    }

    /// A number that grows when workers must publish all bindings again. Never 0.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether many changes wait for the engine. Then workers publish only new changes, and pause the publication of
    /// all bindings.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.state().changes.len() >= BUSY_CHANGES
    }

    /// Queues the current bindings of an address of record for the engine. They replace those that still wait.
    pub fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>) {
        let at_ms = self.now_ms();
        let change = Change { bindings, at_ms };
        let mut state = self.state();
        if let Some(waiting) = state.changes.get_mut(aor) {
            *waiting = change;
            return;
        }
        if state.changes.len() >= MAX_CHANGES {
            state.counters.dropped += 1;
            state.has_lost = true;
            return;
        }
        let was_empty = state.changes.is_empty();
        state.changes.insert(aor.into(), change);
        state.order.push_back(aor.into());
        drop(state);
        if was_empty {
            self.changed.notify_one();
        }
    }

    /// Looks up which other nodes have bindings of an address, in the cache only. If the cache has no result and the
    /// engine can be asked, returns [`KnownBindings::Ask`].
    #[must_use]
    pub fn find(&self, aor: &[u8]) -> KnownBindings {
        self.find_at(aor, self.now_ms())
    }

    fn find_at(&self, aor: &[u8], now_ms: u64) -> KnownBindings {
        let mut state = self.state();
        let known = match state.cached(aor, now_ms) {
            Some(Some(nodes)) => KnownBindings::At(Arc::clone(nodes)),
            Some(None) => KnownBindings::Unavailable,
            None if self.may_ask() => return KnownBindings::Ask,
            None => KnownBindings::Unavailable,
        };
        match known {
            KnownBindings::Unavailable => state.counters.unavailable += 1,
            _ => state.counters.cached += 1,
        }
        known
    }

    /// Whether a look-up at the engine may begin.
    fn may_ask(&self) -> bool {
        self.is_engine_up.load(Ordering::Relaxed) && !self.is_paused.load(Ordering::Relaxed)
    }

    /// Begins a look-up at the engine. Look-ups of one address at the same time share one query.
    pub fn begin_find(&self, aor: &[u8], reply: Reply) {
        let mut state = self.state();
        let has_room = state.replies.len() < MAX_ASKED || state.replies.contains_key(aor);
        if !has_room || !self.may_ask() {
            state.counters.unavailable += 1;
            drop(state);
            return reply(None);
        }
        if let Some(replies) = state.replies.get_mut(aor) {
            return replies.push(reply);
        }
        state.replies.insert(aor.into(), vec![reply]);
        state.asked.push_back(aor.into());
        drop(state);
        self.wanted.notify_one();
    }

    /// The addresses to look up at the engine, the oldest first.
    #[must_use]
    pub fn take_asked(&self, most: usize) -> Vec<Box<[u8]>> {
        let mut state = self.state();
        let most = most.min(state.asked.len());
        state.asked.drain(..most).collect()
    }

    /// Ends the look-ups of an address with the result of the engine; `None` if it has not responded.
    pub fn finish_find(&self, aor: &[u8], nodes: &AtNodes) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let replies = state.replies.remove(aor).unwrap_or_default();
        let asked = replies.len() as u64;
        match nodes {
            None => state.counters.unavailable += asked,
            Some(nodes) if nodes.is_empty() => state.counters.none += asked,
            Some(_) => state.counters.found += asked,
        }
        state.remember(aor, nodes, now_ms);
        drop(state);
        for reply in replies {
            reply(nodes.clone());
        }
    }

    /// Takes at most `most` changes, those that have waited longest. Returns the requests to the engine for them.
    pub(super) fn take_changes(&self, most: usize, of: &Owner<'_>) -> Vec<BindRequest> {
        self.note_clock(of.unix_ms);
        let (changes, steps) = self.pop_changes(most);
        let now_ms = self.now_ms();
        // The MACs of a batch take longer than a worker may wait for the lock. So the lock is released before.
        let requests = changes.into_iter();
        let requests = requests.map(|(aor, change)| of.request(aor, change, now_ms, &steps));
        requests.collect()
    }

    fn pop_changes(&self, most: usize) -> (Changes, ClockSteps) {
        let mut state = self.state();
        let mut popped = Vec::new();
        while popped.len() < most
            && let Some(aor) = state.order.pop_front()
        {
            if let Some(change) = state.changes.remove(&aor) {
                popped.push((aor, change));
            }
        }
        (popped, state.steps.clone())
    }

    /// Queues changes again that the engine has not accepted. If an address has changed since, the later change stays.
    pub(super) fn put_back(&self, requests: Vec<BindRequest>) {
        let mut state = self.state();
        state.counters.failed += requests.len() as u64;
        for BindRequest { aor, change, .. } in requests {
            if state.changes.contains_key(&aor) {
                continue;
            }
            if state.changes.len() >= MAX_CHANGES {
                state.counters.dropped += 1;
                state.has_lost = true;
                continue;
            }
            state.order.push_back(aor.clone());
            state.changes.insert(aor, change);
        }
    }

    /// Counts a write: the addresses that were written, those that the engine has rejected, and bindings that were
    /// older than those of other nodes.
    pub(super) fn note_written(&self, addresses: u64, rejected: u64, older: u64) {
        let mut state = self.state();
        state.counters.written += addresses;
        state.counters.failed += rejected;
        state.counters.older += older;
        let is_calm = state.changes.len() < BUSY_CHANGES;
        if is_calm && std::mem::take(&mut state.has_lost) {
            drop(state);
            self.publish_all();
        }
    }

    /// Notes bindings that this node and another one have. For those in `own`, the other node has the later REGISTER,
    /// so that this node must remove them. For `others`, this node has the later one. For `unproven`, it is unknown.
    pub(super) fn note_conflicts(&self, own: Vec<MovedBinding>, others: usize, unproven: usize) {
        let mut state = self.state();
        let (added, dropped) = state.add_moved(own);
        let counters = &mut state.counters.conflicts;
        counters.this_node += added;
        counters.other_node += others as u64;
        counters.unproven += unproven as u64;
        counters.dropped += dropped;
    }

    /// Notes the notices of other nodes. Returns how many are forged, and how many are untimely.
    pub(super) fn note_received(&self, all: impl Iterator<Item = NoticeRead>) -> (u64, u64) {
        let mut moved = Vec::new();
        let mut more = ReceivedNotices::default();
        for read in all {
            match read {
                NoticeRead::Valid(binding) => moved.push(binding),
                NoticeRead::Untimely => more.untimely += 1,
                NoticeRead::OtherNode => more.other_node += 1,
                NoticeRead::Forged => more.forged += 1,
            }
        }
        let mut state = self.state();
        let (added, dropped) = state.add_moved(moved);
        let counters = &mut state.counters.received;
        counters.accepted += added;
        counters.untimely += more.untimely;
        counters.other_node += more.other_node;
        counters.forged += more.forged;
        counters.dropped += dropped;
        (more.forged, more.untimely)
    }

    /// Notes the wall clock. After a step, the machine may have been suspended. Then bindings are older than the
    /// monotonic clock says, and this node may have missed notices of other nodes.
    pub(super) fn note_clock(&self, unix_ms: u64) {
        let now_ms = self.now_ms();
        let by_ms = self.state().steps.note(now_ms, unix_ms);
        if by_ms.unsigned_abs() > COMPARE_AFTER_STEP_MS {
            tracing::info!(
                by_ms,
                "the clock of this node has stepped: it compares its registrations with those of other nodes"
            );
            self.publish_all();
        }
    }

    /// Adds `more` to the counter of notices that `of` selects.
    pub(super) fn count_notices(&self, of: impl Fn(&mut BindingCounters) -> &mut u64, more: usize) {
        *of(&mut self.state().counters) += more as u64;
    }

    /// Takes the bindings that this node must remove.
    pub(super) fn take_moved(&self) -> Vec<MovedBinding> {
        std::mem::take(&mut self.state().moved)
    }

    /// Makes workers publish all bindings again.
    pub fn publish_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_engine_up(&self, is_up: bool) {
        self.is_engine_up.store(is_up, Ordering::Relaxed);
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> BindingCounters {
        let state = self.state();
        BindingCounters {
            waiting: state.changes.len() as u64,
            ..state.counters
        }
    }
}

#[cfg(test)]
mod tests;
