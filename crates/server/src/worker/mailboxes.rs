//! The mailboxes of all workers, as one of them sees them: what it sends to the others.

use super::batches::{BatchStore, Item, WorkerBatch, datagrams, slice};
use super::messages::WorkerMessage;
use crate::addresses::RelayIndex;
use crate::handover::Predecessor;
use crate::mailbox::Mailbox;
use crate::steering::Numbering;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// The mailboxes of all workers. A worker has at most one open batch for each other worker. It sends a batch when it is
/// full, or at the end of a wake-up.
#[derive(Debug)]
pub(crate) struct Mailboxes {
    boxes: Arc<[Mailbox<WorkerMessage>]>,
    numbering: Numbering,
    /// The process that this one has taken over from, while it is there.
    predecessor: Option<Arc<Predecessor>>,
    store: BatchStore,
    open: Vec<Option<WorkerBatch>>,
}

/// What is packed: like an [`Item`], with the datagrams still where they were received.
#[derive(Debug)]
pub(crate) struct OutgoingRun<'a> {
    pub(crate) slot: u32,
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    pub(crate) from: SocketAddr,
    pub(crate) tos: u8,
    /// The received datagrams, back to back, and their length.
    pub(crate) bytes: &'a [u8],
    pub(crate) stride: usize,
    /// What of each datagram is to travel.
    pub(crate) payload: Range<usize>,
}

impl Mailboxes {
    /// Unread messages from which on batches are held back until they are full.
    const HOLD_BACKLOG: usize = 2;
    /// Unread messages from which on a worker gets no more requests to serve.
    const MAX_UNREAD: usize = 64;

    /// `numbering` says which number each mailbox has.
    pub(crate) fn new(
        boxes: Arc<[Mailbox<WorkerMessage>]>,
        numbering: Numbering,
        predecessor: Option<Arc<Predecessor>>,
        store: BatchStore,
    ) -> Mailboxes {
        let open = (0..boxes.len()).map(|_| None).collect();
        Mailboxes {
            boxes,
            numbering,
            predecessor,
            store,
            open,
        }
    }

    /// The place of the worker with this number; beyond the end if it is another process's.
    fn place(&self, worker: u16) -> usize {
        self.numbering.index(worker).map_or(usize::MAX, usize::from)
    }

    /// The process that the worker with this number belongs to, if that is the one before this one.
    pub(crate) fn predecessor_of(&self, worker: u16) -> Option<&Predecessor> {
        self.predecessor
            .as_deref()
            .filter(|predecessor| predecessor.has_worker(worker))
    }

    /// The process before this one has ended.
    pub(crate) fn forget_predecessor(&mut self) {
        self.predecessor = None;
    }

    /// Packs a run for `worker`. Returns how many datagrams had to be discarded, of this run or of an earlier batch.
    pub(crate) fn pack(&mut self, worker: u16, outgoing: &OutgoingRun<'_>) -> u64 {
        let worker = self.place(worker);
        let mut lost = 0;
        if self
            .open
            .get(worker)
            .and_then(Option::as_ref)
            .is_some_and(|batch| !batch.has_room(outgoing.bytes.len()))
        {
            lost += self.send(worker);
        }
        let count = datagrams(outgoing.bytes, outgoing.stride).count() as u64;
        let Some(place) = self.open.get_mut(worker) else {
            return lost + count;
        };
        if place.is_none() {
            *place = self.store.take();
        }
        let Some(batch) = place else {
            return lost + count;
        };
        let start = batch.bytes.len();
        for datagram in datagrams(outgoing.bytes, outgoing.stride) {
            batch
                .bytes
                .extend_from_slice(slice(datagram, &outgoing.payload));
        }
        let first = datagrams(outgoing.bytes, outgoing.stride)
            .next()
            .map_or(0, |first| slice(first, &outgoing.payload).len());
        batch.items.push(Item {
            slot: outgoing.slot,
            address: outgoing.address,
            port: outgoing.port,
            from: outgoing.from,
            bytes: start..batch.bytes.len(),
            stride: first,
            datagrams: count,
            tos: outgoing.tos,
        });
        lost
    }

    /// Posts every open batch, except to workers with at least `HOLD_BACKLOG` unread messages: their batches fill up
    /// first. So a worker that the scheduler does not run holds a few full batches, not one per wake-up of this worker.
    ///
    /// Returns how many datagrams had to be discarded, and whether a batch was held back: call again soon.
    pub(crate) fn send_all(&mut self) -> (u64, bool) {
        let (mut lost, mut held) = (0, false);
        for worker in 0..self.open.len() {
            if self.open[worker].is_some() && self.boxes[worker].len() >= Self::HOLD_BACKLOG {
                held = true;
            } else {
                lost += self.send(worker);
            }
        }
        (lost, held)
    }

    /// Posts a message, or returns it if there is no such worker or its mailbox is full.
    pub(crate) fn post(&self, worker: u16, message: WorkerMessage) -> Result<(), WorkerMessage> {
        match self.boxes.get(self.place(worker)) {
            Some(mailbox) => mailbox.post(message),
            None => Err(message),
        }
    }

    /// Whether a worker has unread messages: what is not urgent waits until there is a full batch of it.
    pub(crate) fn is_behind(&self, worker: u16) -> bool {
        let mailbox = self.boxes.get(self.place(worker));
        mailbox.is_some_and(|mailbox| mailbox.len() >= Self::HOLD_BACKLOG)
    }

    /// A worker's mailbox, for other threads to post to.
    pub(crate) fn mailbox(&self, worker: u16) -> Option<Mailbox<WorkerMessage>> {
        self.boxes.get(self.place(worker)).cloned()
    }

    /// Whether this process has a worker with this number.
    pub(crate) fn has(&self, worker: u16) -> bool {
        self.numbering.index(worker).is_some()
    }

    /// Whether a worker reads its mailbox so promptly that it may be given more work.
    pub(crate) fn keeps_up(&self, worker: u16) -> bool {
        let mailbox = self.boxes.get(self.place(worker));
        mailbox.is_some_and(|mailbox| mailbox.len() < Self::MAX_UNREAD)
    }

    /// Gives an emptied batch back to the worker that filled it.
    pub(crate) fn put_back(&mut self, batch: WorkerBatch) {
        self.store.put(batch);
    }

    fn send(&mut self, worker: usize) -> u64 {
        let Some(batch) = self.open.get_mut(worker).and_then(Option::take) else {
            return 0;
        };
        match self.boxes[worker].post(WorkerMessage::Datagrams(batch)) {
            Ok(()) => 0,
            Err(WorkerMessage::Datagrams(batch)) => {
                let lost = batch.datagrams();
                self.store.put(batch);
                lost
            }
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::Poller;

    fn outgoing(bytes: &[u8], stride: usize) -> OutgoingRun<'_> {
        let relays = crate::addresses::RelayAddresses::new(
            &[crate::addresses::RelayAddress::direct(
                [192, 0, 2, 1].into(),
            )],
            crate::ports::PortRange::DYNAMIC,
            1,
        );
        let address = relays.find([192, 0, 2, 1].into()).expect("just made");
        let from = SocketAddr::from(([192, 0, 2, 1], 50_000));
        OutgoingRun {
            slot: 7,
            address,
            port: 50_001,
            from,
            tos: 8,
            bytes,
            stride,
            payload: 4..stride,
        }
    }

    fn mailboxes_of(workers: usize, capacity: usize) -> (Mailboxes, Vec<Poller>) {
        let pollers: Vec<Poller> = (0..workers)
            .map(|_| Poller::new().expect("epoll"))
            .collect();
        let boxes = pollers
            .iter()
            .map(|poller| Mailbox::new(capacity, poller, 0).expect("eventfd"))
            .collect();
        (
            Mailboxes::new(
                boxes,
                Numbering::alone(workers),
                None,
                BatchStore::for_workers(workers).remove(0),
            ),
            pollers,
        )
    }

    #[test]
    fn a_run_is_stripped_and_packed_back_to_back() {
        let (mut mailboxes, _pollers) = mailboxes_of(2, 4);
        assert_eq!(mailboxes.pack(1, &outgoing(b"headAAheadBBheadC", 6)), 0);
        assert_eq!(mailboxes.pack(1, &outgoing(b"headDD", 6)), 0);
        assert_eq!(mailboxes.send_all(), (0, false));
        let Some(WorkerMessage::Datagrams(batch)) = mailboxes.boxes[1].take() else {
            panic!("a batch was posted")
        };
        assert_eq!(batch.bytes, b"AABBCDD");
        assert_eq!(
            (
                batch.items[0].bytes.clone(),
                batch.items[0].stride,
                batch.items[0].datagrams
            ),
            (0..5, 2, 3)
        );
        assert_eq!(
            (batch.items[1].bytes.clone(), batch.items[1].stride),
            (5..7, 2)
        );
        mailboxes.put_back(batch);
        assert_eq!(mailboxes.store.len(), BatchStore::PER_WORKER);
    }

    #[test]
    fn a_batch_for_a_worker_that_does_not_read_waits_and_fills() {
        let (mut mailboxes, _pollers) = mailboxes_of(2, 64);
        for _ in 0..Mailboxes::HOLD_BACKLOG {
            mailboxes.pack(1, &outgoing(b"headAA", 6));
            assert_eq!(mailboxes.send_all(), (0, false));
        }
        for _ in 0..1000 {
            assert_eq!(mailboxes.pack(1, &outgoing(b"headBB", 6)), 0);
            assert_eq!(mailboxes.send_all(), (0, true));
        }
        // One was full and went out in spite of it; the other is still open.
        assert_eq!(mailboxes.boxes[1].len(), Mailboxes::HOLD_BACKLOG + 1);
        while mailboxes.boxes[1].take().is_some() {}
        assert_eq!(mailboxes.send_all(), (0, false));
        assert_eq!(mailboxes.boxes[1].len(), 1);
    }

    #[test]
    fn messages_beyond_the_mailbox_are_counted_and_their_batch_is_reused() {
        let (mut mailboxes, _pollers) = mailboxes_of(2, 1);
        let long = vec![0; 60_004];
        let lost: u64 = (0..100)
            .map(|_| mailboxes.pack(1, &outgoing(&long, long.len())))
            .sum();
        // The mailbox holds one batch, another is open: two datagrams in each.
        assert_eq!(lost, 96);
        assert_eq!(
            mailboxes.pack(9, &outgoing(b"headAA", 6)),
            1,
            "there is no worker 9"
        );
        assert_eq!(mailboxes.store.len(), BatchStore::PER_WORKER - 2);
    }

    #[test]
    fn a_full_batch_is_sent_and_the_next_begun() {
        let (mut mailboxes, _pollers) = mailboxes_of(2, 64);
        let long = vec![0; 60_004];
        for _ in 0..5 {
            assert_eq!(mailboxes.pack(1, &outgoing(&long, long.len())), 0);
        }
        assert_eq!(mailboxes.boxes[1].len(), 2);
    }
}
