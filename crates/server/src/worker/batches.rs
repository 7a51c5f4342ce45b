//! Inter-worker batches: the buffers in which relayed datagrams travel from worker to worker.

use crate::addresses::RelayIndex;
use crossbeam_queue::ArrayQueue;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// One run inside a batch.
#[derive(Debug)]
pub(crate) struct Item {
    /// The slot that owned the target when the item was packed.
    pub(crate) slot: u32,
    /// Which relay it is for.
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    /// The sending allocation's relayed transport address.
    pub(crate) from: SocketAddr,
    /// Where its datagrams are in the batch, back to back.
    pub(crate) bytes: Range<usize>,
    pub(crate) stride: usize,
    pub(crate) datagrams: u64,
    pub(crate) tos: u8,
}

/// An inter-worker batch: runs of datagrams for one worker, copied into one buffer.
#[derive(Debug)]
pub(crate) struct WorkerBatch {
    /// The worker whose store it belongs to.
    owner: u16,
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
}

impl WorkerBatch {
    /// Two of the longest runs fit, or a hundred ordinary datagrams.
    const MAX_BYTES: usize = 128 * 1024;
    const MAX_ITEMS: usize = 512;

    fn new(owner: u16) -> WorkerBatch {
        WorkerBatch {
            owner,
            bytes: Vec::with_capacity(Self::MAX_BYTES),
            items: Vec::with_capacity(Self::MAX_ITEMS),
        }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.items.len() < Self::MAX_ITEMS && self.bytes.len() + bytes <= Self::MAX_BYTES
    }

    pub(super) fn datagrams(&self) -> u64 {
        self.items.iter().map(|item| item.datagrams).sum()
    }
}

/// The batches of one worker, empty ones. A batch returns to the worker that has filled it. Its memory is in the caches
/// there, and on the NUMA node of the processor that used it first. The batch that came back last is used next, so a
/// calm worker touches few of them.
#[derive(Debug)]
pub(crate) struct BatchStore {
    worker: u16,
    empty: Vec<WorkerBatch>,
    /// Of each worker: batches that others have emptied.
    returned: Arc<[ArrayQueue<WorkerBatch>]>,
}

impl BatchStore {
    /// Batches per worker; with more workers than this, one for each. 16 are 2 MiB, about what a socket's receive
    /// buffer holds. If all are in use, datagrams are dropped and counted.
    pub(super) const PER_WORKER: usize = 16;

    /// One store for each worker. A single worker sends no batches.
    pub(crate) fn for_workers(workers: usize) -> Vec<BatchStore> {
        // At least one for each other worker, as all of them may be open at a time. Memory that no datagram has touched
        // costs nothing.
        let count = if workers > 1 {
            Self::PER_WORKER.max(workers)
        } else {
            0
        };
        let returned: Arc<[_]> = (0..workers)
            .map(|_| ArrayQueue::new(count.max(1)))
            .collect();
        let store = |worker: usize| BatchStore {
            // Workers are numbered with 16 bits.
            worker: worker as u16,
            empty: (0..count)
                .map(|_| WorkerBatch::new(worker as u16))
                .collect(),
            returned: Arc::clone(&returned),
        };
        (0..workers).map(store).collect()
    }

    /// An empty batch; `None` if all are on their way.
    pub(super) fn take(&mut self) -> Option<WorkerBatch> {
        let returned = &self.returned[usize::from(self.worker)];
        while let Some(batch) = returned.pop() {
            self.empty.push(batch);
        }
        self.empty.pop()
    }

    /// Gives a batch that was delivered, or could not be, back to the worker that filled it.
    pub(super) fn put(&mut self, mut batch: WorkerBatch) {
        batch.bytes.clear();
        batch.items.clear();
        if batch.owner == self.worker {
            self.empty.push(batch);
        } else if let Some(returned) = self.returned.get(usize::from(batch.owner)) {
            // There is room for every batch of this worker.
            drop(returned.push(batch));
        }
    }

    /// How many are here.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.empty.len() + self.returned[usize::from(self.worker)].len()
    }
}

/// Each datagram of a run; one, if it is empty.
pub(crate) fn datagrams(bytes: &[u8], stride: usize) -> impl Iterator<Item = &[u8]> {
    let whole = (stride == 0 || bytes.is_empty()).then_some(bytes);
    whole
        .into_iter()
        .chain(bytes.chunks(stride.max(1)).filter(move |_| whole.is_none()))
}

/// The same for the hot path, where an iterator costs more than what it is for.
#[inline]
pub(crate) fn each_datagram<'a>(bytes: &'a [u8], stride: usize, mut act: impl FnMut(&'a [u8])) {
    let stride = if stride == 0 { bytes.len() } else { stride };
    let mut rest = bytes;
    loop {
        let (datagram, others) = rest.split_at(stride.min(rest.len()));
        act(datagram);
        if others.is_empty() {
            return;
        }
        rest = others;
    }
}

/// The part of a datagram that a verdict names; the last datagram of a run may be shorter than the others.
pub(crate) fn slice<'a>(datagram: &'a [u8], payload: &Range<usize>) -> &'a [u8] {
    datagram
        .get(payload.start..payload.end.min(datagram.len()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_datagrams_count() {
        for (bytes, stride, count) in [
            (&b""[..], 0, 1),
            (b"", 3, 1),
            (b"abc", 0, 1),
            (b"abc", 3, 1),
            (b"abcd", 3, 2),
            (b"abcdef", 3, 2),
        ] {
            let one_by_one: Vec<_> = datagrams(bytes, stride).collect();
            assert_eq!(one_by_one.len(), count);
            let mut each = Vec::new();
            each_datagram(bytes, stride, |datagram| each.push(datagram));
            assert_eq!(each, one_by_one);
        }
        assert_eq!(slice(b"abc", &(4..6)), b"");
    }

    /// Where a batch's bytes are.
    fn place(batch: &WorkerBatch) -> *const u8 {
        batch.bytes.as_ptr()
    }

    #[test]
    fn a_batch_goes_back_to_the_worker_that_filled_it_and_is_used_next() {
        let mut stores = BatchStore::for_workers(2);
        let [first, second] = &mut stores[..] else {
            panic!("two stores")
        };
        let held = first.take().expect("there are some");
        let filled = first.take().expect("there are some");
        let warm = place(&filled);
        second.put(filled);
        let of_second = second.take().expect("there are some");
        assert_ne!(place(&of_second), warm, "it belongs to the first worker");
        assert_eq!(
            first.take().map(|batch| place(&batch)),
            Some(warm),
            "the last one returned is the first one used"
        );
        drop(held);
    }

    #[test]
    fn a_worker_can_have_a_batch_open_for_each_other_worker() {
        let mut stores = BatchStore::for_workers(40);
        assert!((1..40).all(|_| stores[0].take().is_some()));
    }
}
