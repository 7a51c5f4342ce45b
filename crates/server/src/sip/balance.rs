//! One upstream is one 5-tuple, and the kernel's hash sends all of it to one worker. If the busiest worker gets more
//! than 1.5 times the mean, a keyed hash of the Call-ID decides: every worker keeps its own calls only. It hands the
//! others on, many in one inter-worker batch. Every worker does so, not only the busiest one. Otherwise that worker
//! would become the least busy one when the kernel sends more to the others.
//!
//! Transactions that began here before stay here. So do connections. A worker that responds to a request from a
//! connection returns the response to the worker of the connection. This worker also notifies it when the connection
//! closes.

use super::counters::SipCounters;
use super::link::Frame;
use super::other_process::{OtherProcess, OtherProcessState};
use crate::steering::Numbering;
use crate::worker::{Mailboxes, WorkerMessage};
use crossbeam_queue::ArrayQueue;
use sip::Mono;
use sip::flow::{ConnectionKey, Flow, PeerName};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often workers compare themselves: at 2,000 messages per second, 200 of them show a share with an error of a few
/// percent.
const COMPARE_INTERVAL: Duration = Duration::from_millis(100);

/// Share of its time, in percent, that a worker must be busy before it passes messages on. With less, it handles a
/// message sooner than another worker wakes up. While it passes messages on, [`STILL_BUSY_PERCENT`] is sufficient. Two
/// workers share the load that kept one busy for 40 %, and this lower share must not end the passing on.
const BUSY_PERCENT: u64 = 40;
const STILL_BUSY_PERCENT: u64 = 15;

/// Loads in percent of the mean. Above the first one, a worker begins to hand over. Below the second one, it begins to
/// stop. They differ, so that a load near the first one does not turn the handing over on and off.
const UNEVEN_PERCENT: u64 = 150;
const EVEN_PERCENT: u64 = 120;

/// For this time the load must be even before handing over ends: transactions that were handed over live for 64 * T1
/// (32 s).
const TRANSACTION_LIFETIME: Duration = Duration::from_secs(40);

/// Limits of one batch: four times what a worker handles before it reads its sockets again.
const MAX_BATCH_MESSAGES: usize = 64;
const MAX_BATCH_BYTES: usize = 128 << 10;

/// Batches that may be in progress per worker: 4,096 messages, about as many as the receive buffer of a socket holds.
const BATCHES_PER_WORKER: usize = 64;

/// A worker with more unopened batches gets no more messages of connections, because these must not be dropped. It is a
/// quarter of [`BATCHES_PER_WORKER`].
const MAX_UNOPENED_BATCHES: u64 = 16;

/// CANCELs passed on in one period. A CANCEL without a transaction costs every worker a look-up, and a flood of them
/// must not cost more than this.
const MAX_PASSED_ON_CANCELS: u32 = 500;

/// Closed connections that workers with a full mailbox learn about later. If a worker does not learn of one, it keeps
/// 100 bytes for it.
const MAX_UNSENT_CLOSED: usize = 4096;

/// The kind of an item that one worker sends another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ItemKind {
    /// A message as it was received.
    Message {
        /// The flow of the message, maybe a connection of another worker.
        flow: Flow,
        /// How many workers have found no transaction for this CANCEL.
        asked: u16,
    },
    /// The names that the client of a connection has proved, one per line. The next item is a message of this client.
    Names(ConnectionKey),
    /// Bytes for a connection of the worker that gets this.
    Bytes(ConnectionKey),
    /// A connection of the sender is closed.
    Closed(ConnectionKey),
    /// The other side of a connection of the sender has shut down its sending side.
    HalfClosed(ConnectionKey),
    /// The first bytes of a request that was not delivered.
    Unreachable,
}

/// One item of a batch.
#[derive(Debug, Clone)]
pub(crate) struct BatchItem {
    pub(crate) kind: ItemKind,
    pub(crate) bytes: Range<usize>,
}

/// The items that one worker sends another, in their order.
#[derive(Debug, Default)]
pub(crate) struct SipBatch {
    /// The worker that has packed it.
    pub(crate) from: u16,
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<BatchItem>,
    /// How many of the items are messages.
    pub(crate) messages: usize,
}

impl SipBatch {
    /// Removes the datagrams, because clients send them again. Items of connections stay. Returns the number of
    /// datagrams.
    pub(crate) fn drop_datagrams(&mut self) -> u64 {
        let before = self.messages;
        self.items.retain(|item| match item.kind {
            ItemKind::Message { flow, .. } => flow.connection.is_some(),
            ItemKind::Bytes(_)
            | ItemKind::Closed(_)
            | ItemKind::HalfClosed(_)
            | ItemKind::Names(_) => true,
            ItemKind::Unreachable => false,
        });
        let is_message = |item: &&BatchItem| matches!(item.kind, ItemKind::Message { .. });
        self.messages = self.items.iter().filter(is_message).count();
        (before - self.messages) as u64
    }
}

/// The state of the balance that all workers share.
#[derive(Debug, Clone)]
pub(crate) struct SharedBalance {
    /// The numbers of the workers.
    pub(super) numbering: Numbering,
    /// Messages that each worker has received from its sockets.
    received: Arc<[AtomicU64]>,
    /// When a worker last found the load uneven; 0 is never.
    uneven: Arc<AtomicU64>,
    /// Batches that each has taken from its mailbox and not opened.
    unopened: Arc<[AtomicU64]>,
    /// Transactions that each has.
    transactions: Arc<[AtomicU64]>,
    /// How many workers wait for ICMP errors.
    errors_wanted: Arc<AtomicU64>,
    /// The hash that gives a Call-ID to a worker. Keyed, so that nobody can give one worker everything.
    hash: RandomState,
    empty: Arc<ArrayQueue<SipBatch>>,
}

impl SharedBalance {
    pub(crate) fn new(numbering: Numbering) -> SharedBalance {
        let workers = usize::from(numbering.workers);
        SharedBalance {
            numbering,
            received: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            uneven: Arc::new(AtomicU64::new(0)),
            unopened: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            transactions: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            errors_wanted: Arc::new(AtomicU64::new(0)),
            hash: RandomState::new(),
            empty: Arc::new(ArrayQueue::new((workers * BATCHES_PER_WORKER).max(1))),
        }
    }
}

/// One worker's part in the balance.
#[derive(Debug)]
pub(super) struct Balance {
    number: u16,
    /// Its place among the workers of this process.
    place: usize,
    commons: SharedBalance,
    /// For the workers of this process.
    open: Vec<Option<SipBatch>>,
    /// The other process of an upgrade.
    other_process: Option<OtherProcessState>,
    /// The batches that the next [`Balance::send_all`] posts, with the numbers of their workers.
    full: Vec<(u16, SipBatch)>,
    /// Workers that do not read their mailbox as fast as it comes.
    lagging: Vec<bool>,
    /// Closed connections of which a worker is not notified yet.
    unsent_closed: Vec<(u16, ConnectionKey)>,
    /// Connections of other workers for which bytes were lost, and connections whose messages to another worker were
    /// lost.
    lost: Vec<ConnectionKey>,
    /// CANCELs passed on since the workers were last compared.
    passed_on: u32,
    /// What each worker had received when they were last compared, and when.
    before: Vec<u64>,
    busy_before_ns: u64,
    compared: Mono,
    /// Since when this worker has handed messages over.
    since: Option<Mono>,
}

impl Balance {
    pub(super) fn new(number: u16, commons: SharedBalance) -> Balance {
        let workers = commons.received.len();
        Balance {
            number,
            place: commons.numbering.index(number).map_or(0, usize::from),
            other_process: None,
            lost: Vec::new(),
            open: (0..workers).map(|_| None).collect(),
            full: Vec::new(),
            lagging: vec![false; workers],
            unsent_closed: Vec::new(),
            passed_on: 0,
            before: vec![0; workers],
            busy_before_ns: 0,
            compared: Mono(0),
            since: None,
            commons,
        }
    }

    /// Compares this worker with the others, now and then. `received` is the number of messages from its sockets,
    /// `busy_ns` the time it has worked on messages, both since the start. To be called at every wake-up, so that the
    /// others compare with current values, not with those of a tenth of a second ago.
    pub(super) fn compare(&mut self, now: Mono, received: u64, busy_ns: u64) {
        let mine = &self.commons.received[self.place];
        mine.store(received, Ordering::Relaxed);
        let passed = now.since(self.compared);
        if passed < COMPARE_INTERVAL || self.before.len() < 2 {
            return;
        }
        self.compared = now;
        self.passed_on = 0;
        let of = |counts: &[AtomicU64], at: usize| counts[at].load(Ordering::Relaxed);
        let counts: Vec<u64> = (0..self.before.len())
            .map(|at| of(&self.commons.received, at))
            .collect();
        let grown = |at: usize| counts[at].saturating_sub(self.before[at]);
        let total: u64 = (0..counts.len()).map(grown).sum();
        let mine = grown(self.place);
        let busy_ns = busy_ns - std::mem::replace(&mut self.busy_before_ns, busy_ns);
        let busy = busy_ns.saturating_mul(100) / (passed.as_nanos() as u64).max(1);
        self.judge(now, mine * counts.len() as u64 * 100 / total.max(1), busy);
        self.before = counts;
    }

    /// Takes note of this worker's load in percent of the mean and of its time, and of what the others have found.
    fn judge(&mut self, now: Mono, load: u64, busy: u64) {
        let (most, busiest) = match self.since {
            None => (UNEVEN_PERCENT, BUSY_PERCENT),
            Some(_) => (EVEN_PERCENT, STILL_BUSY_PERCENT),
        };
        let uneven = &self.commons.uneven;
        if load > most && busy > busiest {
            uneven.fetch_max(now.0, Ordering::Relaxed);
        }
        match uneven.load(Ordering::Relaxed) {
            0 => {}
            last if now.since(Mono(last)) > TRANSACTION_LIFETIME => self.since = None,
            _ => {
                self.since.get_or_insert(now);
            }
        }
    }

    /// Whether messages are handed over.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Whether a transaction that was begun before this worker handed over may still be alive.
    pub(super) fn is_young(&self, now: Mono) -> bool {
        self.since
            .is_some_and(|since| now.since(since) < TRANSACTION_LIFETIME)
    }

    /// The worker that a Call-ID belongs to.
    pub(super) fn owner_of(&self, call_id: &[u8]) -> u16 {
        let hash = self.commons.hash.hash_one(call_id);
        worker_at(self.commons.numbering, hash)
    }

    /// During an upgrade, the other process of it.
    pub(super) fn set_other_process(&mut self, other: Option<&OtherProcess>) {
        self.other_process = other.map(OtherProcessState::new);
    }

    /// The other process.
    pub(super) fn other_process(&self) -> Option<&OtherProcessState> {
        self.other_process.as_ref()
    }

    /// Leaves what begins anew to the other process from now on.
    pub(super) fn follow(&mut self) {
        if let Some(other_process) = &mut self.other_process {
            other_process.leads = true;
        }
    }

    /// The worker of the other process that a new request is to be handed to, if that process serves and keeps up.
    pub(super) fn successor(&self, call_id: &[u8]) -> Option<u16> {
        let other_process = self
            .other_process
            .as_ref()
            .filter(|other_process| other_process.leads)?;
        let hash = self.commons.hash.hash_one(call_id);
        (!other_process.link.is_behind()).then(|| worker_at(other_process.numbering, hash))
    }

    /// Whether a worker is the other process's.
    pub(super) fn is_foreign(&self, worker: u16) -> bool {
        let other_process = self.other_process.as_ref();
        other_process.is_some_and(|other_process| other_process.numbering.index(worker).is_some())
    }

    /// The connections that a message was lost for since the last time.
    pub(super) fn take_lost(&mut self) -> Vec<ConnectionKey> {
        std::mem::take(&mut self.lost)
    }

    /// Whether a worker reads its mailbox so promptly that nothing it gets is in danger of being dropped.
    pub(super) fn keeps_up(&self, worker: u16) -> bool {
        let place = self.commons.numbering.index(worker);
        let lagging = place.and_then(|place| self.lagging.get(usize::from(place)));
        lagging.is_some_and(|lagging| !lagging)
    }

    /// The worker that gets a CANCEL next. All workers look it up one after the other; the last one responds. No worker
    /// if all were asked, or if too many CANCELs wait.
    pub(super) fn next_worker_to_ask(&mut self, asked: u16) -> Option<u16> {
        let workers = u16::try_from(self.open.len()).unwrap_or(u16::MAX);
        if asked + 1 >= workers || (asked == 0 && self.passed_on >= MAX_PASSED_ON_CANCELS) {
            return None;
        }
        self.passed_on += u32::from(asked == 0);
        Some(worker_at(self.commons.numbering, self.place as u64 + 1))
    }

    /// Packs bytes for a connection that another worker has.
    pub(super) fn queue_for_owner(
        &mut self,
        worker: u16,
        key: ConnectionKey,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) {
        counters.handed_back += 1;
        self.push_item(worker, ItemKind::Bytes(key), bytes, counters);
    }

    /// Tells all other workers that a connection of this one is closed.
    pub(super) fn broadcast_closed(&mut self, key: ConnectionKey, counters: &mut SipCounters) {
        self.broadcast(ItemKind::Closed(key), counters);
    }

    /// Tells all other workers that the other side of a connection of this one sends nothing more.
    pub(super) fn broadcast_half_closed(&mut self, key: ConnectionKey, counters: &mut SipCounters) {
        self.broadcast(ItemKind::HalfClosed(key), counters);
    }

    /// Tells all other workers, those of the other process included.
    fn broadcast(&mut self, kind: ItemKind, counters: &mut SipCounters) {
        let own = self.commons.numbering;
        let other = self
            .other_process
            .as_ref()
            .map(|other_process| other_process.numbering);
        for numbering in [Some(own), other].into_iter().flatten() {
            for worker in (0..numbering.workers).map(|place| numbering.number(place)) {
                if worker != self.number {
                    self.push_item(worker, kind, &[], counters);
                }
            }
        }
    }

    /// Tells a worker that a connection of this one is closed.
    pub(super) fn send_closed(
        &mut self,
        worker: u16,
        key: ConnectionKey,
        counters: &mut SipCounters,
    ) {
        self.push_item(worker, ItemKind::Closed(key), &[], counters);
    }

    /// Tells `worker` that its request was not delivered. `quoted`: the start of the request, from the ICMP error.
    pub(super) fn send_unreachable(
        &mut self,
        worker: u16,
        quoted: &[u8],
        counters: &mut SipCounters,
    ) {
        self.push_item(worker, ItemKind::Unreachable, quoted, counters);
    }

    /// This worker has requests in progress that ICMP errors matter to, or has none any more.
    pub(super) fn want_errors(&self, wants: bool) {
        let wanted = &self.commons.errors_wanted;
        match wants {
            true => wanted.fetch_add(1, Ordering::Relaxed),
            false => wanted.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether any worker waits for ICMP errors. The kernel reports an error to the worker of the socket that a
    /// response would come to.
    pub(super) fn are_errors_wanted(&self) -> bool {
        self.commons.errors_wanted.load(Ordering::Relaxed) > 0
    }

    /// Publishes the number of transactions of this worker.
    pub(super) fn publish_transactions(&self, count: usize) {
        let mine = &self.commons.transactions[self.place];
        mine.store(count as u64, Ordering::Relaxed);
    }

    /// Whether no worker has any.
    pub(super) fn is_calm(&self) -> bool {
        let mut counts = self.commons.transactions.iter();
        counts.all(|count| count.load(Ordering::Relaxed) == 0)
    }

    /// Packs a message for another worker.
    pub(super) fn pack(
        &mut self,
        worker: u16,
        flow: &Flow,
        asked: u16,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) {
        counters.handed_over += 1;
        let kind = ItemKind::Message { flow: *flow, asked };
        self.push_item(worker, kind, bytes, counters);
    }

    /// Packs the names of the client that a message comes from, which is packed next.
    pub(super) fn pack_names(
        &mut self,
        worker: u16,
        key: ConnectionKey,
        names: &[PeerName],
        counters: &mut SipCounters,
    ) {
        let names: Vec<&str> = names.iter().map(PeerName::as_str).collect();
        self.push_item(
            worker,
            ItemKind::Names(key),
            names.join("\n").as_bytes(),
            counters,
        );
    }

    fn push_item(&mut self, worker: u16, kind: ItemKind, bytes: &[u8], counters: &mut SipCounters) {
        let place = match self.commons.numbering.index(worker) {
            Some(place) => self.open.get_mut(usize::from(place)),
            None => self
                .other_process
                .as_mut()
                .and_then(|other_process| other_process.place_of(worker)),
        };
        let Some(place) = place else {
            // The process of that worker has ended.
            return self.count_lost(worker, &kind, counters);
        };
        let batch = place.get_or_insert_with(|| self.commons.empty.pop().unwrap_or_default());
        let start = batch.bytes.len();
        batch.bytes.extend_from_slice(bytes);
        batch.from = self.number;
        batch.messages += usize::from(matches!(kind, ItemKind::Message { .. }));
        // Names stay in one batch with the message that they belong to.
        let has_next = matches!(kind, ItemKind::Names(_));
        batch.items.push(BatchItem {
            kind,
            bytes: start..batch.bytes.len(),
        });
        if !has_next
            && (batch.items.len() >= MAX_BATCH_MESSAGES || batch.bytes.len() >= MAX_BATCH_BYTES)
        {
            self.full.extend(place.take().map(|batch| (worker, batch)));
        }
    }

    /// Posts what was packed. If a worker has not read its mailbox, messages for it are collected until a batch is
    /// full. So a busy worker gets few messages, and not one for each wake-up of this one. Returns whether something
    /// was held back.
    pub(super) fn send_all(&mut self, mailboxes: &Mailboxes, counters: &mut SipCounters) -> bool {
        for (worker, key) in std::mem::take(&mut self.unsent_closed) {
            self.send_closed(worker, key, counters);
        }
        if self.is_on() {
            self.find_slow_workers(mailboxes);
        }
        let mut held = false;
        let numbering = self.commons.numbering;
        for (worker, place) in (numbering.first_worker..).zip(&mut self.open) {
            if place.is_some() && mailboxes.is_behind(worker) {
                held = true;
            } else {
                self.full.extend(place.take().map(|batch| (worker, batch)));
            }
        }
        if let Some(other_process) = &mut self.other_process {
            self.full.extend(other_process.take_open());
        }
        let mut full = std::mem::take(&mut self.full);
        for (worker, batch) in full.drain(..) {
            self.post(mailboxes, worker, batch, counters);
        }
        // Keeps the space for the next time.
        self.full = full;
        held
    }

    fn find_slow_workers(&mut self, mailboxes: &Mailboxes) {
        let numbers = self.commons.numbering.first_worker..;
        let unopened = self.commons.unopened.iter();
        for ((worker, lagging), unopened) in numbers.zip(&mut self.lagging).zip(unopened) {
            *lagging = !mailboxes.keeps_up(worker)
                || unopened.load(Ordering::Relaxed) > MAX_UNOPENED_BATCHES;
        }
    }

    /// Shows the others how many batches wait here.
    pub(super) fn publish_unopened(&self, batches: usize) {
        let shown = &self.commons.unopened[self.place];
        if shown.load(Ordering::Relaxed) != batches as u64 {
            shown.store(batches as u64, Ordering::Relaxed);
        }
    }

    /// Posts a batch. For a worker that does not read its mailbox only what belongs to connections is posted.
    fn post(
        &mut self,
        mailboxes: &Mailboxes,
        worker: u16,
        mut batch: SipBatch,
        counters: &mut SipCounters,
    ) {
        if self.commons.numbering.index(worker).is_none() {
            return self.post_to_other(worker, batch, counters);
        }
        if !mailboxes.keeps_up(worker) {
            counters.mailbox_full += batch.drop_datagrams();
        }
        if batch.items.is_empty() {
            self.put_back(batch);
            return;
        }
        let message = mailboxes.post(worker, WorkerMessage::SipMessages(batch));
        if let Err(WorkerMessage::SipMessages(mut batch)) = message {
            counters.mailbox_full += batch.drop_datagrams();
            for item in &batch.items {
                match item.kind {
                    ItemKind::Closed(key) if self.unsent_closed.len() < MAX_UNSENT_CLOSED => {
                        self.unsent_closed.push((worker, key));
                    }
                    ItemKind::Message { .. } => counters.mailbox_full += 1,
                    ItemKind::Bytes(_) | ItemKind::Closed(_) => counters.unsent += 1,
                    // They are sent again, or nothing is lost: responses find the connection all the same.
                    ItemKind::Unreachable | ItemKind::Names(_) | ItemKind::HalfClosed(_) => {}
                }
            }
            self.put_back(batch);
        }
    }

    /// Sends a batch to the other process. If there is no room, what it holds is lost, and so are the connections
    /// concerned: of a connection nothing may be lacking.
    fn post_to_other(&mut self, worker: u16, batch: SipBatch, counters: &mut SipCounters) {
        let unsent = match &self.other_process {
            Some(other_process) => match other_process
                .link
                .try_send(Frame::Batch { to: worker, batch })
            {
                Ok(()) => return,
                Err(Frame::Batch { batch, .. }) => batch,
                Err(_) => return,
            },
            None => batch,
        };
        for item in &unsent.items {
            self.count_lost(worker, &item.kind, counters);
        }
        self.put_back(unsent);
    }

    /// What is for this worker is lost.
    fn count_lost(&mut self, worker: u16, kind: &ItemKind, counters: &mut SipCounters) {
        match kind {
            ItemKind::Message { flow, .. } => {
                counters.mailbox_full += 1;
                self.lost.extend(flow.connection);
            }
            ItemKind::Bytes(key) => {
                counters.unsent += 1;
                self.lost.push(*key);
            }
            ItemKind::Closed(key)
                if self.is_foreign(worker) && self.unsent_closed.len() < MAX_UNSENT_CLOSED =>
            {
                self.unsent_closed.push((worker, *key));
            }
            // They are sent again, or their receiver has ended.
            ItemKind::Closed(_)
            | ItemKind::HalfClosed(_)
            | ItemKind::Names(_)
            | ItemKind::Unreachable => {}
        }
    }

    /// Takes back a batch that was delivered.
    pub(super) fn put_back(&self, mut batch: SipBatch) {
        batch.bytes.clear();
        batch.items.clear();
        batch.messages = 0;
        // There is room for as many as are usually in progress.
        drop(self.commons.empty.push(batch));
    }
}

/// The number of one of these workers.
fn worker_at(numbering: Numbering, number: u64) -> u16 {
    let place = u16::try_from(number % u64::from(numbering.workers));
    numbering.number(place.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    #[test]
    fn a_worker_with_all_load_hands_over_until_the_load_is_even_for_long() {
        let commons = SharedBalance::new(Numbering::alone(2));
        let mut first = Balance::new(0, commons.clone());
        let mut second = Balance::new(1, commons);
        let ms = |ms: u64| ms * 1_000_000;
        first.compare(at(100), 0, 0);
        second.compare(at(100), 0, 0);
        first.compare(at(200), 5000, ms(30));
        assert!(!first.is_on(), "it has time for all of them");
        first.compare(at(300), 10_000, ms(80));
        assert!(first.is_on() && first.is_young(at(300)));
        assert!(!second.is_on());
        second.compare(at(300), 0, 0);
        assert!(
            second.is_on(),
            "a call is where its Call-ID says, whoever receives it"
        );
        let mut received = [10_000, 0];
        for tenth in 4..=420 {
            received = [received[0] + 500, received[1] + 500];
            let busy = ms(80 + (tenth - 3) * 50);
            second.compare(at(tenth * 100), received[1], busy);
            first.compare(at(tenth * 100), received[0], busy);
            assert!(tenth > 10 || first.is_on(), "what was handed over lives on");
        }
        assert!(!first.is_on() && !second.is_on());
    }

    #[test]
    fn an_even_load_is_none_less_so_for_turns_of_different_lengths() {
        let commons = SharedBalance::new(Numbering::alone(2));
        let mut first = Balance::new(0, commons.clone());
        let mut second = Balance::new(1, commons);
        for step in 1..=400_u64 {
            // Both receive 100 in 10 ms; one has turns of 10 ms, the other of 30.
            let busy_ns = step * 9_000_000;
            first.compare(at(step * 10), step * 100, busy_ns);
            if step % 3 == 0 {
                second.compare(at(step * 10), step * 100, busy_ns);
            }
            assert!(!first.is_on() && !second.is_on(), "at {} ms", step * 10);
        }
    }

    #[test]
    fn every_worker_agrees_whose_a_call_is() {
        let commons = SharedBalance::new(Numbering::alone(4));
        let workers: Vec<_> = (0..4).map(|n| Balance::new(n, commons.clone())).collect();
        let mut shares = [0; 4];
        for number in 0..1000 {
            let id = format!("{number}@example.org");
            let owner = workers[0].owner_of(id.as_bytes());
            assert!(
                workers
                    .iter()
                    .all(|worker| worker.owner_of(id.as_bytes()) == owner)
            );
            shares[usize::from(owner)] += 1;
        }
        assert!(shares.iter().all(|share| *share > 150), "{shares:?}");
    }
}
