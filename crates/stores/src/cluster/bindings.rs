//! Registrations of all nodes: each node says which addresses of record it has bindings of, and asks which others have
//! some. Workers never wait: they leave changes and questions here, and the control thread speaks with the engine.
//!
//! ```text
//!  worker ── publish ──> changes, one for each address ── take_changes ──> engine
//!  worker ── find ──> cache    begin_find ──> asked ── take_asked ──> engine ── answer ──> cache, replies
//! ```
//!
//! Changes that do not fit are lost, and [`ClusterBindings::generation`] grows: then workers publish all bindings
//! again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::binding_texts::Owner;
use super::clock_steps::ClockSteps;
use super::engine::BindRequest;
use super::moved::{MovedBinding, NoticeRead};

/// Addresses whose changes wait for the engine.
const MAX_CHANGES: usize = 1 << 16;
/// With so many, workers that publish all of their bindings wait.
const BUSY_CHANGES: usize = MAX_CHANGES / 4;
/// Addresses that are asked for at a time.
const MAX_ASKED: usize = 4_096;
/// Bindings to be removed at a time. Those beyond end by themselves.
const MAX_MOVED: usize = 1 << 16;
/// After a greater step of its clock, a node may have refused or missed notices of other nodes.
const COMPARE_AFTER_STEP_MS: u64 = 10_000;
/// Addresses whose answer is remembered.
const MAX_CACHED: usize = 1 << 14;
/// For how long: if another node has bindings, if none has, and if the engine has not responded.
const FOUND_MS: u64 = 2_000;
const NONE_MS: u64 = 1_000;
const UNAVAILABLE_MS: u64 = 250;

/// One binding, for the other nodes. They do not need the contact: its node knows the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBinding {
    /// Tells the bindings of an address apart, on all nodes: a hash of instance and `reg-id`, or of the contact.
    pub id: u64,
    /// Whether it has a `reg-id`. Only then a phone that registers at another node leaves this one (RFC 5626 §6).
    pub has_reg_id: bool,
    /// The name of its phone, on all nodes: the flows of one phone have the same. 0: no other binding is of its phone.
    pub phone: u64,
    /// A hash of the Call-ID of the REGISTER.
    pub call: u64,
    /// Its CSeq.
    pub cseq: u32,
    /// The priority of the contact, in thousandths.
    pub q: u16,
    /// How long ago the REGISTER came.
    pub age_ms: u64,
    /// When the binding ends.
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
/// Gets an answer, on another thread or at once. It must not wait.
pub type Reply = Box<dyn FnOnce(AtNodes) + Send>;

/// What is known at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownBindings {
    /// These nodes have bindings.
    At(Arc<[AtNode]>),
    /// The engine does not respond.
    Unavailable,
    /// The engine must be asked.
    Ask,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses whose bindings were written.
    pub written: u64,
    /// Bindings that the engine has not accepted, because another node has a later REGISTER, or because the address has
    /// too many.
    pub older: u64,
    /// Addresses whose write failed. They are repeated, unless the engine has rejected only some of a batch.
    pub failed: u64,
    /// Changes that were lost, because too many waited.
    pub dropped: u64,
    /// Look-ups that were answered by the cache.
    pub cached: u64,
    /// Look-ups that found another node.
    pub found: u64,
    /// Look-ups that found none.
    pub none: u64,
    /// Look-ups without an answer of the engine.
    pub unavailable: u64,
    /// Notices to other nodes that they must remove a binding, because its phone has registered here.
    pub notices_sent: u64,
    /// Those that were given up after a minute: the engine has not accepted them, or the other node was not alive.
    pub notices_failed: u64,
    /// Those that were lost, because too many waited.
    pub notices_dropped: u64,
    /// Notices of other nodes.
    pub received: ReceivedNotices,
    /// What the engine has said of bindings that two nodes had.
    pub conflicts: Conflicts,
    /// Addresses whose changes wait now.
    pub waiting: u64,
}

/// Texts that the engine had for this node: other nodes say that they have a binding now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedNotices {
    /// This node removes the binding.
    pub accepted: u64,
    /// Too old, or the clocks of both nodes differ too much.
    pub untimely: u64,
    /// For another node: somebody has copied them.
    pub other_node: u64,
    /// No node has sent them.
    pub forged: u64,
    /// Genuine, but too many bindings waited to be removed.
    pub dropped: u64,
}

/// Bindings that this node has written and that another node had, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The later REGISTER came to another node: this one removes its binding.
    pub this_node: u64,
    /// It came here: the other node must remove its binding.
    pub other_node: u64,
    /// The text of the other node does not prove which one is later. Nobody removes anything.
    pub unproven: u64,
    /// This node had to remove its binding, but too many waited to be removed.
    pub dropped: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub(super) bindings: Vec<SharedBinding>,
    pub(super) at_ms: u64,
}

#[derive(Debug)]
struct Cached {
    nodes: AtNodes,
    until_ms: u64,
}

#[derive(Default)]
struct State {
    changes: HashMap<Box<[u8]>, Change>,
    /// Their addresses, the oldest first.
    order: VecDeque<Box<[u8]>>,
    /// Who waits for the answer about an address.
    replies: HashMap<Box<[u8]>, Vec<Reply>>,
    /// Those of them that the engine has not been asked for.
    asked: VecDeque<Box<[u8]>>,
    cache: HashMap<Box<[u8]>, Cached>,
    /// In the order in which they were added.
    added: VecDeque<Box<[u8]>>,
    has_lost: bool,
    /// Bindings that this node must remove.
    moved: Vec<MovedBinding>,
    steps: ClockSteps,
    counts: Counts,
}

impl State {
    fn cached(&self, aor: &[u8], now_ms: u64) -> Option<&AtNodes> {
        let cached = self.cache.get(aor)?;
        (cached.until_ms > now_ms).then_some(&cached.nodes)
    }

    fn remember(&mut self, aor: &[u8], nodes: &AtNodes, now_ms: u64) {
        let time = match nodes {
            None => UNAVAILABLE_MS,
            Some(nodes) if nodes.is_empty() => NONE_MS,
            Some(_) => FOUND_MS,
        };
        let cached = Cached {
            nodes: nodes.clone(),
            until_ms: now_ms + time,
        };
        if self.cache.insert(aor.into(), cached).is_none() {
            self.added.push_back(aor.into());
        }
        // Those at the front were added first; most of them have ended.
        while self.cache.len() > MAX_CACHED {
            let Some(oldest) = self.added.pop_front() else {
                break;
            };
            self.cache.remove(&oldest);
        }
    }

    /// This node must remove these bindings. Returns for how many there is room, and for how many not.
    fn add_moved(&mut self, moved: Vec<MovedBinding>) -> (u64, u64) {
        let room = MAX_MOVED.saturating_sub(self.moved.len()).min(moved.len());
        let dropped = moved.len() - room;
        self.moved.extend(moved.into_iter().take(room));
        (room as u64, dropped as u64)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Clock {
    Real(Instant),
    Virtual(Arc<AtomicU64>),
}

/// The registrations of all nodes.
#[derive(Debug)]
pub struct ClusterBindings {
    state: Mutex<State>,
    clock: Clock,
    /// The engine has responded to the last exchange.
    is_engine_up: AtomicBool,
    /// The last look-up has failed: none is begun for a moment.
    is_paused: AtomicBool,
    generation: AtomicU64,
    pub(super) changed: Notify,
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
    /// On the time of a simulator, in milliseconds.
    #[must_use]
    pub fn on_virtual_time(now_ms: Arc<AtomicU64>) -> ClusterBindings {
        ClusterBindings {
            clock: Clock::Virtual(now_ms),
            ..ClusterBindings::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    /// Another number if workers must publish all bindings again. Never 0.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether so much waits for the engine that only changes should be published.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.state().changes.len() >= BUSY_CHANGES
    }

    /// This node has these bindings of an address now, and no others.
    pub fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>) {
        let at_ms = self.now_ms();
        let change = Change { bindings, at_ms };
        let mut state = self.state();
        if let Some(waiting) = state.changes.get_mut(aor) {
            *waiting = change;
            return;
        }
        if state.changes.len() >= MAX_CHANGES {
            state.counts.dropped += 1;
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

    /// What is known about an address at once.
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
            KnownBindings::Unavailable => state.counts.unavailable += 1,
            _ => state.counts.cached += 1,
        }
        known
    }

    fn may_ask(&self) -> bool {
        self.is_engine_up.load(Ordering::Relaxed) && !self.is_paused.load(Ordering::Relaxed)
    }

    /// Asks the engine. All who ask for one address at a time get one answer.
    pub fn begin_find(&self, aor: &[u8], reply: Reply) {
        let mut state = self.state();
        let has_room = state.replies.len() < MAX_ASKED || state.replies.contains_key(aor);
        if !has_room || !self.may_ask() {
            state.counts.unavailable += 1;
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

    /// The addresses that the engine must be asked for, those that wait longest first.
    #[must_use]
    pub fn take_asked(&self, most: usize) -> Vec<Box<[u8]>> {
        let mut state = self.state();
        let most = most.min(state.asked.len());
        state.asked.drain(..most).collect()
    }

    /// The engine has answered; `None` if it has not.
    pub fn answer(&self, aor: &[u8], nodes: &AtNodes) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let replies = state.replies.remove(aor).unwrap_or_default();
        let asked = replies.len() as u64;
        match nodes {
            None => state.counts.unavailable += asked,
            Some(nodes) if nodes.is_empty() => state.counts.none += asked,
            Some(_) => state.counts.found += asked,
        }
        state.remember(aor, nodes, now_ms);
        drop(state);
        for reply in replies {
            reply(nodes.clone());
        }
    }

    /// The changes that have waited longest.
    pub(super) fn take_changes(&self, most: usize, of: &Owner<'_>) -> Vec<BindRequest> {
        self.note_clock(of.unix_ms);
        let (changes, steps) = self.pop_changes(most);
        let now_ms = self.now_ms();
        // Workers publish meanwhile: the MACs of a batch take longer than a worker may wait for the lock.
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

    /// The engine has not accepted these. A later change of the same address takes the place of one.
    pub(super) fn put_back(&self, requests: Vec<BindRequest>) {
        let mut state = self.state();
        state.counts.failed += requests.len() as u64;
        for BindRequest { aor, change, .. } in requests {
            if state.changes.contains_key(&aor) {
                continue;
            }
            if state.changes.len() >= MAX_CHANGES {
                state.counts.dropped += 1;
                state.has_lost = true;
                continue;
            }
            state.order.push_back(aor.clone());
            state.changes.insert(aor, change);
        }
    }

    /// The engine has written bindings of so many addresses and rejected so many other addresses, and has not accepted
    /// so many bindings.
    pub(super) fn written(&self, addresses: u64, rejected: u64, older: u64) {
        let mut state = self.state();
        state.counts.written += addresses;
        state.counts.failed += rejected;
        state.counts.older += older;
        let is_calm = state.changes.len() < BUSY_CHANGES;
        if is_calm && std::mem::take(&mut state.has_lost) {
            drop(state);
            self.publish_all();
        }
    }

    /// The engine has said that other nodes have a later REGISTER for these bindings of this node. It has also said
    /// that this node has the later one of so many other bindings, and of so many nobody knows it.
    pub(super) fn note_conflicts(&self, own: Vec<MovedBinding>, others: usize, unproven: usize) {
        let mut state = self.state();
        let (room, dropped) = state.add_moved(own);
        let counts = &mut state.counts.conflicts;
        counts.this_node += room;
        counts.other_node += others as u64;
        counts.unproven += unproven as u64;
        counts.dropped += dropped;
    }

    /// Other nodes have sent these texts. Returns how many are forged, and how many came too late.
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
        let (room, dropped) = state.add_moved(moved);
        let counts = &mut state.counts.received;
        counts.accepted += room;
        counts.untimely += more.untimely;
        counts.other_node += more.other_node;
        counts.forged += more.forged;
        counts.dropped += dropped;
        (more.forged, more.untimely)
    }

    /// The wall clock now. If it has stepped, the machine may have been suspended. Then bindings are older than the
    /// monotonic clock says, and this node may have missed notices to remove some.
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

    pub(super) fn count_notices(&self, of: impl Fn(&mut Counts) -> &mut u64, more: usize) {
        *of(&mut self.state().counts) += more as u64;
    }

    /// The bindings to be removed, once.
    pub(super) fn take_moved(&self) -> Vec<MovedBinding> {
        std::mem::take(&mut self.state().moved)
    }

    /// Has workers publish all bindings again.
    pub fn publish_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_engine_up(&self, is_up: bool) {
        self.is_engine_up.store(is_up, Ordering::Relaxed);
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// What was done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts {
            waiting: state.changes.len() as u64,
            ..state.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::seal::Seal;
    use super::*;
    use std::sync::mpsc;

    fn binding(id: u64, q: u16) -> SharedBinding {
        SharedBinding {
            id,
            has_reg_id: true,
            phone: 0,
            call: 7,
            cseq: 1,
            q,
            age_ms: 0,
            ttl_ms: 60_000,
        }
    }

    fn owner<'o>(node: &'o str, seal: &'o Seal) -> Owner<'o> {
        Owner {
            node,
            seal,
            unix_ms: 1_000_000_000,
        }
    }

    #[test]
    fn a_binding_ages_by_the_time_it_waits_however_often_it_is_tried() {
        let now_ms = Arc::new(AtomicU64::new(5_000));
        let bindings = ClusterBindings::on_virtual_time(Arc::clone(&now_ms));
        let seal = Seal::new(&[1; 32]);
        let owner = owner("a", &seal);
        bindings.publish(b"x@d", vec![binding(1, 1_000)]);
        for waited in [0, 4_000, 8_000, 12_000] {
            now_ms.store(5_000 + waited, Ordering::Relaxed);
            let taken = bindings.take_changes(10, &owner);
            let found = &taken[0].bindings[0];
            let left = 60_000 - waited;
            assert_eq!((found.age_ms, found.ttl_ms), (waited, left));
            now_ms.fetch_add(1_000, Ordering::Relaxed);
            bindings.put_back(taken);
        }
    }

    #[test]
    fn changes_of_one_address_are_one_write_and_too_many_have_all_published_again() {
        let bindings = ClusterBindings::default();
        let seal = Seal::new(&[1; 32]);
        let owner = owner("a", &seal);
        let before = bindings.generation();
        bindings.publish(b"x@d", vec![binding(1, 1_000)]);
        bindings.publish(b"y@d", vec![binding(2, 1_000)]);
        bindings.publish(b"x@d", vec![]);
        let mut taken = bindings.take_changes(10, &owner);
        let of = |request: &BindRequest| (request.aor.to_vec(), request.entries.len());
        let found: Vec<_> = taken.iter().map(of).collect();
        assert_eq!(found, [(b"x@d".to_vec(), 0), (b"y@d".to_vec(), 1)]);
        // The engine has failed. A later change stays.
        bindings.publish(b"x@d", vec![binding(1, 1_000), binding(3, 1_000)]);
        bindings.put_back(std::mem::take(&mut taken));
        let taken = bindings.take_changes(10, &owner);
        assert_eq!(of(&taken[0]), (b"x@d".to_vec(), 2));
        assert_eq!(of(&taken[1]), (b"y@d".to_vec(), 1));
        for number in 0..MAX_CHANGES + 1 {
            bindings.publish(&number.to_be_bytes(), vec![]);
        }
        assert!(bindings.is_busy());
        assert_eq!(bindings.counts().dropped, 1);
        bindings.written(1, 0, 0);
        assert_eq!(bindings.generation(), before, "there is no room yet");
        bindings.take_changes(MAX_CHANGES, &owner);
        bindings.written(1, 2, 3);
        assert_eq!(bindings.generation(), before + 1);
        bindings.written(1, 0, 0);
        assert_eq!(bindings.generation(), before + 1);
        let counts = bindings.counts();
        // Two addresses were put back, and two were rejected.
        assert_eq!((counts.written, counts.failed, counts.older), (3, 4, 3));
    }

    #[test]
    fn bindings_to_be_removed_are_bounded_and_what_is_lost_is_counted_by_its_cause() {
        let bindings = ClusterBindings::default();
        let moved = |call| MovedBinding {
            aor: b"x@d".as_slice().into(),
            id: 1,
            call,
            cseq: 1,
        };
        let half = MAX_MOVED as u64 / 2;
        bindings.note_conflicts((0..half).map(moved).collect(), 0, 0);
        let notices = |count| (0..count).map(|call| NoticeRead::Valid(moved(call)));
        assert_eq!(bindings.note_received(notices(half + 2)), (0, 0));
        bindings.note_conflicts((0..3).map(moved).collect(), 4, 0);
        let counts = bindings.counts();
        let (received, conflicts) = (counts.received, counts.conflicts);
        assert_eq!((received.accepted, received.dropped), (half, 2));
        assert_eq!((conflicts.this_node, conflicts.dropped), (half, 3));
        assert_eq!((conflicts.other_node, conflicts.unproven), (4, 0));
        assert_eq!(counts.notices_dropped, 0, "it has sent none");
        assert_eq!(bindings.take_moved().len(), MAX_MOVED);
    }

    #[test]
    fn who_asks_for_one_address_gets_one_answer_which_is_remembered_for_a_moment() {
        let bindings = ClusterBindings::default();
        let (sender, replies) = mpsc::channel();
        let ask = || {
            let sender = sender.clone();
            bindings.begin_find(b"x@d", Box::new(move |nodes| sender.send(nodes).unwrap()));
        };
        assert_eq!(bindings.find(b"x@d"), KnownBindings::Ask);
        ask();
        ask();
        assert_eq!(bindings.take_asked(10), [b"x@d".to_vec().into()]);
        // It is on its way.
        ask();
        assert!(bindings.take_asked(10).is_empty());
        let nodes: Arc<[AtNode]> = vec![AtNode {
            node: "b".to_owned(),
            q: 1_000,
            phones: vec![0],
        }]
        .into();
        bindings.answer(b"x@d", &Some(Arc::clone(&nodes)));
        let got: Vec<_> = replies.try_iter().collect();
        assert_eq!(got, vec![Some(Arc::clone(&nodes)); 3]);
        let now = bindings.now_ms();
        assert_eq!(bindings.find_at(b"x@d", now), KnownBindings::At(nodes));
        assert_eq!(
            bindings.find_at(b"x@d", now + FOUND_MS + 1),
            KnownBindings::Ask
        );
        let counts = bindings.counts();
        assert_eq!((counts.found, counts.cached, counts.none), (3, 1, 0));
    }

    #[test]
    fn without_an_engine_nobody_waits_and_memory_is_bounded() {
        let bindings = ClusterBindings::default();
        let (sender, replies) = mpsc::channel();
        let ask = |number: usize| {
            let sender = sender.clone();
            let reply = Box::new(move |nodes| sender.send(nodes).unwrap());
            bindings.begin_find(&number.to_be_bytes(), reply);
        };
        for number in 0..MAX_ASKED + 1 {
            ask(number);
        }
        assert_eq!(replies.try_iter().collect::<Vec<_>>(), [None]);
        for aor in bindings.take_asked(MAX_ASKED) {
            bindings.answer(&aor, &None);
        }
        assert_eq!(replies.try_iter().count(), MAX_ASKED);
        bindings.set_engine_up(false);
        assert_eq!(bindings.find(b"x@d"), KnownBindings::Unavailable);
        ask(0);
        assert_eq!(replies.try_recv(), Ok(None));
        bindings.set_engine_up(true);
        bindings.set_paused(true);
        assert_eq!(bindings.find(b"x@d"), KnownBindings::Unavailable);
        bindings.set_paused(false);
        assert_eq!(bindings.find(b"x@d"), KnownBindings::Ask);
        for number in 0..2 * MAX_CACHED {
            bindings.answer(&number.to_be_bytes(), &Some(Arc::default()));
        }
        let state = bindings.state();
        assert_eq!(
            (state.cache.len(), state.added.len()),
            (MAX_CACHED, MAX_CACHED)
        );
    }
}
