//! The table of flows, and what went over them: memory that the programs and user space share.
//!
//! Open addressing with linear probing. The programs search without a lock, so user space changes a flow in one of two
//! ways:
//!
//! - Deadline, next hop and rate limit each fit in one word. User space stores that word in place.
//! - For any other change, user space makes the version odd before it writes, and even afterwards. A program compares
//!   the versions before and after it reads the flow. If they differ, it drops the packet that it has rewritten.
//!
//! A removed flow leaves a mark, so that searches continue past it. The mark is cleared when the next place is empty.

use std::hash::RandomState;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::layout::{self, FlowWords, Key, word};
use crate::BpfError;
use crate::sys::Mapping;

/// One direction of a channel, as its packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Where the packets come from.
    pub remote: SocketAddr,
    /// Where they go to: a listener's or a relay's address on this machine, never a wildcard. Of `remote`'s family, and
    /// no IPv4-mapped IPv6 address.
    pub local: SocketAddr,
    /// The channel that they are on, from a client; `None` from a peer.
    pub channel: Option<u16>,
}

/// What becomes of the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// What they leave from: a relay's or a listener's address on this machine.
    pub source: SocketAddr,
    /// Where they go to. Of `source`'s family, which need not be the family of the key.
    pub destination: SocketAddr,
    /// The channel that they leave on, to a client; `None` to a peer.
    pub channel: Option<u16>,
    /// The peer is a relayed address of this server. `destination` is the socket address of that relay. `source` is the
    /// address under which *its* client knows the sender. The flow of (`source`, `destination`, no channel) names the
    /// next step. Then `next_hop` is not looked at, and `channel` is `None`.
    pub own_relay: bool,
    /// Index of the next hop. If there is none (0, or out of range), the packets pass to user space.
    pub next_hop: u32,
    /// Index of the allocation's rate limit; `None` has none.
    pub bucket: Option<u32>,
    /// CLOCK_MONOTONIC in nanoseconds: from then on, and up to 0.27 s before, packets pass to user space.
    pub deadline_ns: u64,
    /// Whether the programs wait before they use a new flow, because earlier packets may still wait in user space and
    /// must not be overtaken. They wait for 2 ms without a packet, but at most 200 ms from the first one.
    pub settles: bool,
}

/// Why a flow was not entered. Then nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// The table is full: user space relays.
    #[error(
        "the table of relayed flows is full: relay this flow in user space, or use a larger table"
    )]
    Full,
    /// Two addresses that belong together are of two families.
    #[error("the two addresses of one side of a flow must be of one address family")]
    MixedFamilies,
}

/// What was relayed over a flow since it was entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets relayed; modulo 2^32.
    pub packets: u32,
    /// Their payload without TURN's framing.
    pub bytes: u64,
    /// CLOCK_MONOTONIC in seconds of a recent packet, up to a second early; 0 before the first.
    pub last_seen_s: u32,
}

/// Places in the table for each channel: two flows, and as many places free, so that searches are short.
pub(super) const PLACES_PER_CHANNEL: u32 = 4;

/// Places that a search looks at, at most, as in the programs (`FLOW_PROBES`). A flow that finds no free place among
/// them is relayed in user space.
const MAX_PROBES: u32 = 16;

/// `struct flow`.
#[repr(C)]
struct Flow {
    words: [AtomicU32; word::COUNT],
    bytes: AtomicU64,
    packets: AtomicU32,
    last_seen: AtomicU32,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// `struct flow_tail`.
#[repr(C)]
struct Tail {
    addresses: [AtomicU32; 12],
    settling: AtomicU64,
    zero: AtomicU64,
}

const _: () = assert!(size_of::<Tail>() == 64);

/// The value of `settling` of a settled flow, and of a new flow that has no packet yet.
const IS_SETTLED: u64 = 0;
const IS_FRESH: u64 = 1;

/// A handle to the table of flows. No operation makes a system call. All handles share one lock, which an operation
/// holds for as long as it looks at a few dozen places.
#[derive(Clone, Debug)]
pub struct Table {
    shared: Arc<Shared>,
    labels: RandomState,
}

#[derive(Debug)]
struct Shared {
    flows: Mapping,
    tails: Mapping,
    /// Places less 1.
    mask: u32,
    seed: [u64; 2],
    /// Flows in the table.
    length: Mutex<u32>,
    limit: u32,
}

/// Where a flow is, or may be entered.
enum Search {
    Found(u32),
    Free(u32),
    NoRoom,
}

impl Table {
    /// Over the maps FLOWS and FLOW_TAILS, which have this many places (a power of two) for up to `limit` flows.
    pub(super) fn new(
        flows: &OwnedFd,
        tails: &OwnedFd,
        places: u32,
        limit: u32,
        seed: [u64; 2],
    ) -> Result<Table, BpfError> {
        let map = |name, descriptor: &OwnedFd| {
            let bytes = size_of::<Flow>() * places as usize;
            Mapping::new(descriptor.as_fd(), bytes)
                .map_err(|source| BpfError::Element { map: name, source })
        };
        Ok(Table {
            shared: Arc::new(Shared {
                flows: map("FLOWS", flows)?,
                tails: map("FLOW_TAILS", tails)?,
                mask: places - 1,
                seed,
                length: Mutex::new(0),
                limit,
            }),
            labels: RandomState::new(),
        })
    }

    /// Enters a flow, or replaces what is known of it; from the next packet on. A flow that is replaced keeps its
    /// counts, and does not settle again.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn insert(&mut self, flow: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError> {
        let key = Key::new(flow).ok_or(InsertError::MixedFamilies)?;
        let image =
            layout::image(flow, &key, entry, &self.labels).ok_or(InsertError::MixedFamilies)?;
        let mut length = self.shared.lock();
        match self.shared.search(&key) {
            Search::Found(at) => self.shared.replace(at, &image),
            Search::Free(at) if *length < self.shared.limit => {
                *length += 1;
                self.shared.fill(at, &image, entry.settles);
            }
            Search::Free(_) | Search::NoRoom => return Err(InsertError::Full),
        }
        Ok(())
    }

    /// Leaves a flow to user space, from the next packet on. Returns what went over it; `None` if it was not in the
    /// table.
    pub fn remove(&mut self, flow: &FlowKey) -> Option<Counts> {
        let key = Key::new(flow)?;
        let mut length = self.shared.lock();
        let Search::Found(at) = self.shared.search(&key) else {
            return None;
        };
        *length -= 1;
        self.shared.clear(at);
        Some(self.shared.counts(at))
    }

    /// What went over a flow since it was entered; `None` if it is not in the table.
    #[must_use]
    pub fn counts(&self, flow: &FlowKey) -> Option<Counts> {
        let key = Key::new(flow)?;
        let _length = self.shared.lock();
        match self.shared.search(&key) {
            Search::Found(at) => Some(self.shared.counts(at)),
            _ => None,
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, u32> {
        // No operation leaves the table half changed by a panic: none can happen between its stores.
        self.length.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flow(&self, at: u32) -> &Flow {
        // SAFETY: `Flow` is made of atomics, for which every bit pattern is a value, and of the size that the mapping
        // was made for.
        let flows = unsafe { self.flows.slots::<Flow>() };
        &flows[(at & self.mask) as usize]
    }

    fn tail(&self, at: u32) -> &Tail {
        // SAFETY: `Tail` is made of atomics, for which every bit pattern is a value, and of the size that the mapping
        // was made for.
        let tails = unsafe { self.tails.slots::<Tail>() };
        &tails[(at & self.mask) as usize]
    }

    fn flags(&self, at: u32) -> u32 {
        self.flow(at).words[word::FLAGS].load(Ordering::Relaxed)
    }

    /// In the order of `find_v4` and `find_v6`.
    fn search(&self, key: &Key) -> Search {
        let start = key.place(self.seed);
        let mut free = None;
        for at in (0..MAX_PROBES).map(|probe| start.wrapping_add(probe) & self.mask) {
            let flags = self.flags(at);
            if flags == 0 {
                return Search::Free(free.unwrap_or(at));
            }
            if flags & layout::IN_USE == 0 {
                free.get_or_insert(at);
            } else if self.holds(at, key) {
                return Search::Found(at);
            }
        }
        free.map_or(Search::NoRoom, Search::Free)
    }

    fn holds(&self, at: u32, key: &Key) -> bool {
        let words = &self.flow(at).words;
        let load = |index: usize| words[index].load(Ordering::Relaxed);
        let addresses = &self.tail(at).addresses;
        let tail = |range: std::ops::Range<usize>| {
            let words = addresses[range].iter();
            words.map(|word| word.load(Ordering::Relaxed))
        };
        load(word::REMOTE) == key.remote[0]
            && load(word::LOCAL) == key.local[0]
            && load(word::PORTS_IN) == key.ports
            && load(word::CHANNEL_IN_AND_HOP) as u16 == key.channel
            && (load(word::FLAGS) & layout::IN_V6 != 0) == key.v6
            && (!key.v6
                || tail(0..3).eq(key.remote[1..].iter().copied())
                    && tail(3..6).eq(key.local[1..].iter().copied()))
    }

    /// Enters a new flow.
    fn fill(&self, at: u32, image: &FlowWords, settles: bool) {
        let flow = self.flow(at);
        let version = begin(flow);
        flow.bytes.store(0, Ordering::Relaxed);
        flow.packets.store(0, Ordering::Relaxed);
        flow.last_seen.store(0, Ordering::Relaxed);
        let settling = if settles { IS_FRESH } else { IS_SETTLED };
        self.tail(at).settling.store(settling, Ordering::Relaxed);
        self.write(at, image, if settles { 0 } else { layout::SETTLED });
        end(flow, version);
    }

    /// Replaces the entry of a flow. Its counts stay.
    fn replace(&self, at: u32, image: &FlowWords) {
        let flow = self.flow(at);
        let settled = self.flags(at) & layout::SETTLED;
        let single = [word::DEADLINE, word::BUCKET, word::CHANNEL_IN_AND_HOP];
        let is_same = (word::FLAGS..word::COUNT)
            .filter(|index| !single.contains(index))
            .all(|index| {
                let extra = if index == word::FLAGS { settled } else { 0 };
                flow.words[index].load(Ordering::Relaxed) == image.words[index] | extra
            });
        let tails = self.tail(at).addresses.iter().zip(image.tail);
        let is_same = is_same
            && tails
                .into_iter()
                .all(|(word, new)| word.load(Ordering::Relaxed) == new);
        if is_same {
            for index in single {
                flow.words[index].store(image.words[index], Ordering::Relaxed);
            }
            return;
        }
        let version = begin(flow);
        self.write(at, image, settled);
        end(flow, version);
    }

    fn write(&self, at: u32, image: &FlowWords, settled: u32) {
        let flow = self.flow(at);
        for (word, new) in self.tail(at).addresses.iter().zip(image.tail) {
            word.store(new, Ordering::Relaxed);
        }
        for index in word::DEADLINE..word::COUNT {
            flow.words[index].store(image.words[index], Ordering::Relaxed);
        }
        flow.words[word::FLAGS].store(image.words[word::FLAGS] | settled, Ordering::Relaxed);
    }

    /// Marks a place as removed. If the next place is empty, this place and the marks before it become empty, too.
    fn clear(&self, at: u32) {
        let flow = self.flow(at);
        let version = begin(flow);
        flow.words[word::FLAGS].store(layout::REMOVED, Ordering::Relaxed);
        end(flow, version);
        if self.flags(at.wrapping_add(1)) != 0 {
            return;
        }
        let mut at = at;
        // A program that settles the flow at this moment may add a flag to the mark.
        while self.flags(at) != 0 && self.flags(at) & layout::IN_USE == 0 {
            self.flow(at).words[word::FLAGS].store(0, Ordering::Relaxed);
            at = at.wrapping_sub(1);
        }
    }

    fn counts(&self, at: u32) -> Counts {
        let flow = self.flow(at);
        Counts {
            packets: flow.packets.load(Ordering::Relaxed),
            bytes: flow.bytes.load(Ordering::Relaxed),
            last_seen_s: seconds(flow.last_seen.load(Ordering::Relaxed)),
        }
    }
}

/// Makes the version odd: from now on, programs treat the flow as absent. Returns the odd version.
fn begin(flow: &Flow) -> u32 {
    let version = flow.words[word::VERSION].load(Ordering::Relaxed) | 1;
    flow.words[word::VERSION].store(version, Ordering::Relaxed);
    fence(Ordering::Release);
    version
}

/// Makes the version even: programs use the flow again.
fn end(flow: &Flow, version: u32) {
    flow.words[word::VERSION].store(version.wrapping_add(1), Ordering::Release);
}

/// From the programs' units of 2^30 ns, which save them a division: up to a second early.
fn seconds(units: u32) -> u32 {
    // Fits: 2^32 units are not much more than 2^32 seconds, and none has passed.
    ((u64::from(units) << 30) / 1_000_000_000) as u32
}
