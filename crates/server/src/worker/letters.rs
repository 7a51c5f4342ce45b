//! What threads write to each other, and the parcels in which relayed datagrams travel between workers.

use super::sockets::RelaySocket;
use crate::addresses::RelayIndex;
use crate::mailbox::Mailbox;
use crossbeam_queue::ArrayQueue;
use io::UdpSocket;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use turn::server::{Config, OpenedRelay};
use turn::{ClientPath, RelayKey, RequestKey};

/// A letter to a worker.
#[derive(Debug)]
pub(crate) enum Letter {
    /// Datagrams for relays of this worker, from relays of another one.
    Datagrams(Parcel),
    /// Another worker's client has a reservation token of this worker.
    Claim {
        from: u16,
        request: RequestKey,
        token: [u8; 8],
        user: Box<str>,
        key: RelayKey,
    },
    /// A request whose allocation is better made by the worker that gets this.
    Request(Box<PlacedRequest>),
    /// The answer: the reserved relay's socket under its new key, if there was one.
    Claimed {
        request: RequestKey,
        relay: Option<Box<MovedRelay>>,
    },
    /// A new configuration.
    Config(Arc<Config>),
    /// Messages of SIP that belong to this worker.
    SipMessages(crate::sip::SipParcel),
    /// What the DNS says of a name that this worker has asked for.
    Name(Box<crate::sip::Answered>),
    /// A new configuration of SIP.
    Sip(Arc<crate::sip::Orders>),
    /// Somebody wants the counts of this moment: write them to the board, and say so.
    Publish(Sender<()>),
    /// Receive datagrams one by one from now on.
    Separate,
    /// Close everything and end.
    Shutdown,
}

/// A client's request as it arrived at another worker.
#[derive(Debug)]
pub(crate) struct PlacedRequest {
    pub(crate) path: ClientPath,
    pub(crate) bytes: Box<[u8]>,
    /// The flow has got an entry for it.
    pub(crate) is_new: bool,
}

/// A relay on its way from one worker to another. No worker's poller watches it.
#[derive(Debug)]
pub(crate) struct MovedRelay {
    pub(crate) key: RelayKey,
    pub(crate) socket: UdpSocket,
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    pub(crate) opened: OpenedRelay,
}

impl From<Box<MovedRelay>> for RelaySocket {
    fn from(moved: Box<MovedRelay>) -> RelaySocket {
        let MovedRelay {
            key,
            socket,
            address,
            port,
            ..
        } = *moved;
        RelaySocket {
            key,
            socket,
            address,
            port,
        }
    }
}

/// One run inside a parcel.
#[derive(Debug)]
pub(crate) struct Item {
    /// The slot that owned the target when the item was packed.
    pub(crate) slot: u32,
    /// Which relay it is for.
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    /// The sending allocation's relayed transport address.
    pub(crate) from: SocketAddr,
    /// Where its datagrams are in the parcel, back to back.
    pub(crate) bytes: Range<usize>,
    pub(crate) stride: usize,
    pub(crate) datagrams: u64,
    pub(crate) tos: u8,
}

/// Runs of datagrams for one worker, copied into one buffer.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
}

impl Parcel {
    /// Two of the longest runs fit, or a hundred ordinary datagrams.
    const BYTES: usize = 128 * 1024;
    const ITEMS: usize = 512;

    fn new() -> Parcel {
        Parcel {
            bytes: Vec::with_capacity(Self::BYTES),
            items: Vec::with_capacity(Self::ITEMS),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.items.len() < Self::ITEMS && self.bytes.len() + bytes <= Self::BYTES
    }

    fn datagrams(&self) -> u64 {
        self.items.iter().map(|item| item.datagrams).sum()
    }
}

/// Empty parcels for all workers, made at the start and used again and again. Memory that no datagram has touched costs nothing.
#[derive(Debug)]
pub(crate) struct ParcelStore {
    empty: ArrayQueue<Parcel>,
}

impl ParcelStore {
    /// 2 MiB for each worker, about what a socket's receive buffer holds; beyond that datagrams are dropped and counted.
    const PER_WORKER: usize = 16;

    /// A single worker sends no parcels.
    pub(crate) fn new(workers: usize) -> ParcelStore {
        let count = if workers > 1 {
            workers * Self::PER_WORKER
        } else {
            0
        };
        let empty = ArrayQueue::new(count.max(1));
        // There is room for all of them.
        (0..count).for_each(|_| drop(empty.push(Parcel::new())));
        ParcelStore { empty }
    }

    fn take(&self) -> Option<Parcel> {
        self.empty.pop()
    }

    /// Takes back a parcel that was delivered or could not be.
    pub(crate) fn put(&self, mut parcel: Parcel) {
        parcel.bytes.clear();
        parcel.items.clear();
        // There is room for every parcel that was ever made.
        drop(self.empty.push(parcel));
    }
}

/// The outgoing post of one worker: at most one open parcel per other worker, sent when full or at the end of a wake-up.
#[derive(Debug)]
pub(crate) struct Courier {
    boxes: Arc<[Mailbox<Letter>]>,
    store: Arc<ParcelStore>,
    open: Vec<Option<Parcel>>,
}

/// What is packed: like an [`Item`], with the datagrams still where they were received.
#[derive(Debug)]
pub(crate) struct Shipment<'a> {
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

impl Courier {
    /// Unread letters from which on parcels are held back until they are full.
    const BACKLOG: usize = 2;
    /// Unread letters from which on a worker gets no more requests to serve.
    const UNREAD: usize = 64;

    pub(crate) fn new(boxes: Arc<[Mailbox<Letter>]>, store: Arc<ParcelStore>) -> Courier {
        let open = (0..boxes.len()).map(|_| None).collect();
        Courier { boxes, store, open }
    }

    /// Packs a run for `worker`. Returns how many datagrams had to be discarded, of this run or of an earlier parcel.
    pub(crate) fn pack(&mut self, worker: u16, shipment: &Shipment<'_>) -> u64 {
        let worker = usize::from(worker);
        let mut lost = 0;
        if self
            .open
            .get(worker)
            .and_then(Option::as_ref)
            .is_some_and(|parcel| !parcel.has_room(shipment.bytes.len()))
        {
            lost += self.send(worker);
        }
        let count = datagrams(shipment.bytes, shipment.stride).count() as u64;
        let Some(place) = self.open.get_mut(worker) else {
            return lost + count;
        };
        if place.is_none() {
            *place = self.store.take();
        }
        let Some(parcel) = place else {
            return lost + count;
        };
        let start = parcel.bytes.len();
        for datagram in datagrams(shipment.bytes, shipment.stride) {
            parcel
                .bytes
                .extend_from_slice(slice(datagram, &shipment.payload));
        }
        let first = datagrams(shipment.bytes, shipment.stride)
            .next()
            .map_or(0, |first| slice(first, &shipment.payload).len());
        parcel.items.push(Item {
            slot: shipment.slot,
            address: shipment.address,
            port: shipment.port,
            from: shipment.from,
            bytes: start..parcel.bytes.len(),
            stride: first,
            datagrams: count,
            tos: shipment.tos,
        });
        lost
    }

    /// Posts every open parcel, except to workers that have not read their mail: for those, parcels go on being filled, so that
    /// a worker that the system does not let run costs a few full parcels and not one per wake-up of ours.
    ///
    /// Returns how many datagrams had to be discarded, and whether a parcel was held back: call again soon.
    pub(crate) fn send_all(&mut self) -> (u64, bool) {
        let (mut lost, mut held) = (0, false);
        for worker in 0..self.open.len() {
            if self.open[worker].is_some() && self.boxes[worker].len() >= Self::BACKLOG {
                held = true;
            } else {
                lost += self.send(worker);
            }
        }
        (lost, held)
    }

    /// Posts a letter, or hands it back if there is no such worker or its mailbox is full.
    pub(crate) fn post(&self, worker: u16, letter: Letter) -> Result<(), Letter> {
        match self.boxes.get(usize::from(worker)) {
            Some(mailbox) => mailbox.post(letter),
            None => Err(letter),
        }
    }

    /// Whether a worker has mail that it has not read: what is not urgent waits until there is a full parcel of it.
    pub(crate) fn is_behind(&self, worker: u16) -> bool {
        let mailbox = self.boxes.get(usize::from(worker));
        mailbox.is_some_and(|mailbox| mailbox.len() >= Self::BACKLOG)
    }

    /// A worker's mailbox, for other threads to post to.
    pub(crate) fn mailbox(&self, worker: u16) -> Option<Mailbox<Letter>> {
        self.boxes.get(usize::from(worker)).cloned()
    }

    /// Whether a worker reads its mail so promptly that it may be given more work.
    pub(crate) fn keeps_up(&self, worker: u16) -> bool {
        let mailbox = self.boxes.get(usize::from(worker));
        mailbox.is_some_and(|mailbox| mailbox.len() < Self::UNREAD)
    }

    /// Takes back an emptied parcel.
    pub(crate) fn put_back(&self, parcel: Parcel) {
        self.store.put(parcel);
    }

    fn send(&mut self, worker: usize) -> u64 {
        let Some(parcel) = self.open.get_mut(worker).and_then(Option::take) else {
            return 0;
        };
        match self.boxes[worker].post(Letter::Datagrams(parcel)) {
            Ok(()) => 0,
            Err(Letter::Datagrams(parcel)) => {
                let lost = parcel.datagrams();
                self.store.put(parcel);
                lost
            }
            Err(_) => 0,
        }
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
    use io::Poller;

    fn shipment(bytes: &[u8], stride: usize) -> Shipment<'_> {
        let relays = crate::addresses::RelayAddresses::new(
            &[crate::addresses::RelayAddress::direct(
                [192, 0, 2, 1].into(),
            )],
            crate::ports::PortRange::DYNAMIC,
            1,
        );
        let address = relays.find([192, 0, 2, 1].into()).expect("just made");
        let from = SocketAddr::from(([192, 0, 2, 1], 50_000));
        Shipment {
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

    fn courier(workers: usize, capacity: usize) -> (Courier, Vec<Poller>) {
        let pollers: Vec<Poller> = (0..workers)
            .map(|_| Poller::new().expect("epoll"))
            .collect();
        let boxes = pollers
            .iter()
            .map(|poller| Mailbox::new(capacity, poller, 0).expect("eventfd"))
            .collect();
        (
            Courier::new(boxes, Arc::new(ParcelStore::new(workers))),
            pollers,
        )
    }

    #[test]
    fn a_run_is_stripped_and_packed_back_to_back() {
        let (mut courier, _pollers) = courier(2, 4);
        assert_eq!(courier.pack(1, &shipment(b"headAAheadBBheadC", 6)), 0);
        assert_eq!(courier.pack(1, &shipment(b"headDD", 6)), 0);
        assert_eq!(courier.send_all(), (0, false));
        let Some(Letter::Datagrams(parcel)) = courier.boxes[1].take() else {
            panic!("a parcel was posted")
        };
        assert_eq!(parcel.bytes, b"AABBCDD");
        assert_eq!(
            (
                parcel.items[0].bytes.clone(),
                parcel.items[0].stride,
                parcel.items[0].datagrams
            ),
            (0..5, 2, 3)
        );
        assert_eq!(
            (parcel.items[1].bytes.clone(), parcel.items[1].stride),
            (5..7, 2)
        );
        courier.put_back(parcel);
        assert_eq!(courier.store.empty.len(), 2 * ParcelStore::PER_WORKER);
    }

    #[test]
    fn a_parcel_for_a_worker_that_does_not_read_waits_and_fills() {
        let (mut courier, _pollers) = courier(2, 64);
        for _ in 0..Courier::BACKLOG {
            courier.pack(1, &shipment(b"headAA", 6));
            assert_eq!(courier.send_all(), (0, false));
        }
        for _ in 0..1000 {
            assert_eq!(courier.pack(1, &shipment(b"headBB", 6)), 0);
            assert_eq!(courier.send_all(), (0, true));
        }
        // One was full and went out in spite of it; the other is still open.
        assert_eq!(courier.boxes[1].len(), Courier::BACKLOG + 1);
        while courier.boxes[1].take().is_some() {}
        assert_eq!(courier.send_all(), (0, false));
        assert_eq!(courier.boxes[1].len(), 1);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_its_parcel_is_used_again() {
        let (mut courier, _pollers) = courier(2, 1);
        let long = vec![0; 60_004];
        let lost: u64 = (0..100)
            .map(|_| courier.pack(1, &shipment(&long, long.len())))
            .sum();
        // The mailbox holds one parcel, another is open: two datagrams in each.
        assert_eq!(lost, 96);
        assert_eq!(
            courier.pack(9, &shipment(b"headAA", 6)),
            1,
            "there is no worker 9"
        );
        assert_eq!(courier.store.empty.len(), 2 * ParcelStore::PER_WORKER - 2);
    }

    #[test]
    fn a_full_parcel_is_sent_and_the_next_begun() {
        let (mut courier, _pollers) = courier(2, 64);
        let long = vec![0; 60_004];
        for _ in 0..5 {
            assert_eq!(courier.pack(1, &shipment(&long, long.len())), 0);
        }
        assert_eq!(courier.boxes[1].len(), 2);
    }

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
}
