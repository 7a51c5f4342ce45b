//! Numbers of next hops: shared by the workers, kept true by the control thread.
//!
//! ```text
//!  worker: acquire(local, to) ──▶ new ──▶ control thread: route, neighbour ──▶ usable in the program's table
//!  worker: release(index) ──▶ unused ──▶ control thread: cleared there ──▶ free for another hop
//! ```
//! Destinations that are routed alike (`cells.rs`) share one number per local address. So all peers behind one gateway
//! share a number, and the control thread asks for their route once. When the cells change, workers acquire the numbers
//! of their channels anew.
//!
//! A number is reused only after the control thread has cleared its entry in the program's table: otherwise datagrams
//! would leave by the old hop. Workers lock the table when a channel is bound or ends, never per datagram. No thread
//! walks over all numbers under the lock.

use super::cells::{Cell, Cells};
use crate::mailbox::Mailbox;
use crate::worker::WorkerMessage;
use io::Waker;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The ends of a path, as in the addresses of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// Where packets leave from: the address of a listener or a relay.
    pub(crate) local: IpAddr,
    /// Where they go: a client or a peer. Of a shared hop, one of them.
    pub(crate) to: IpAddr,
    /// The destinations that the hop is for.
    pub(crate) cell: Cell,
}

/// The numbers of next hops in use.
#[derive(Debug)]
pub(crate) struct NextHopTable {
    state: Mutex<State>,
    /// Tells the control thread that there is something new.
    waker: Option<Arc<Waker>>,
    /// How often the cells have changed.
    changes: AtomicU32,
    /// Mailboxes of the workers, which must acquire their next hops again when the cells change.
    workers: OnceLock<Arc<[Mailbox<WorkerMessage>]>>,
}

#[derive(Debug)]
struct State {
    cells: Arc<Cells>,
    indices: HashMap<(IpAddr, Cell), u32>,
    /// One per number; the one of number 0, "none", is never used.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Not yet seen by the control thread.
    new: Vec<u32>,
    /// Numbers that had no user, each once; some have one again.
    unused: Vec<u32>,
    /// Most numbers, number 0 included.
    most: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    path: Option<Path>,
    users: u32,
    /// Sweeps that have found it unused.
    idle: u32,
    /// It is in the list of unused numbers.
    listed: bool,
    /// It is in the list of new ones.
    announced: bool,
    /// Its path's destination is no longer one of its cell.
    stray: bool,
}

impl NextHopTable {
    /// The number of no next hop at all: the program never sends anything there.
    pub(crate) const NONE: u32 = 0;

    /// Unused numbers that are looked at while the lock is held.
    const AT_ONCE: usize = 256;

    /// A table of at most `most` numbers. `waker` wakes the control thread when there are new ones.
    pub(crate) fn new(most: u32, waker: Option<Arc<Waker>>) -> NextHopTable {
        NextHopTable {
            state: Mutex::new(State {
                cells: Arc::default(),
                indices: HashMap::new(),
                slots: vec![Slot::default()],
                free: Vec::new(),
                new: Vec::new(),
                unused: Vec::new(),
                most: most.saturating_add(1),
            }),
            waker,
            changes: AtomicU32::new(0),
            workers: OnceLock::new(),
        }
    }

    /// Sets the workers that get a message when the table changes.
    pub(crate) fn set_workers(&self, workers: Arc<[Mailbox<WorkerMessage>]>) {
        // The workers of a server are made once.
        let _ = self.workers.set(workers);
    }

    /// How often the cells have changed. A worker that sees a new number acquires the numbers of its channels again.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Has the workers acquire anew.
    pub(crate) fn notify_workers(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        for mailbox in self.workers.get().into_iter().flat_map(|all| all.iter()) {
            // Only to wake it up: a worker whose mailbox is full is awake.
            let _ = mailbox.post(WorkerMessage::RoutesChanged);
        }
    }

    /// The number of the next hop from `local` to `to`; [`NextHopTable::NONE`] if the table is full. The caller must
    /// release it once. It becomes usable when the control thread has found the hop.
    pub(crate) fn acquire(&self, local: IpAddr, to: IpAddr) -> u32 {
        let mut state = self.state();
        let (index, wake) = state.acquire(local, to);
        drop(state);
        if let (true, Some(waker)) = (wake, &self.waker) {
            waker.wake();
        }
        index
    }

    /// Gives a number back. Nothing in the program's tables may name it any more.
    pub(crate) fn release(&self, index: u32) {
        let mut state = self.state();
        let State { slots, unused, .. } = &mut *state;
        let Some(slot) = slots.get_mut(index as usize) else {
            return;
        };
        slot.users = slot.users.saturating_sub(1);
        if slot.users == 0 && !slot.listed {
            slot.listed = true;
            unused.push(index);
        }
    }

    /// Which destinations are routed alike from now on. Numbers that are in use stay what they were.
    pub(crate) fn set_cells(&self, cells: Arc<Cells>) {
        let before = std::mem::replace(&mut self.state().cells, cells);
        // Only now, without the lock: there may be many.
        drop(before);
    }

    /// The destination of a number's path has left its cell. The next caller that acquires the number brings another
    /// one.
    pub(super) fn lost_destination(&self, index: u32) {
        if let Some(slot) = self.state().slots.get_mut(index as usize) {
            slot.stray = true;
        }
    }

    /// What has been acquired for the first time since the last call.
    pub(crate) fn take_new(&self, found: &mut Vec<(u32, Path)>) {
        let mut state = self.state();
        let State { new, slots, .. } = &mut *state;
        found.extend(new.drain(..).filter_map(|index| {
            let slot = slots.get_mut(index as usize)?;
            slot.announced = false;
            Some((index, slot.path?))
        }));
    }

    /// Withdraws the numbers that no channel has used for `sweeps` calls; in a full table, at once. The delay keeps a
    /// next hop resolved for a client that returns or binds another channel. The caller clears the numbers in the
    /// program's table, then frees them.
    pub(crate) fn withdraw_unused(&self, sweeps: u32, withdrawn: &mut Vec<u32>) {
        let mut left = std::mem::take(&mut self.state().unused);
        while !left.is_empty() {
            let mut state = self.state();
            for index in left.drain(left.len().saturating_sub(Self::AT_ONCE)..) {
                state.judge_unused(index, sweeps, withdrawn);
            }
        }
    }

    /// Makes numbers available that were withdrawn and are cleared.
    pub(crate) fn free(&self, cleared: impl IntoIterator<Item = u32>) {
        self.state().free.extend(cleared);
    }

    /// How many are in use, or not yet withdrawn.
    pub(crate) fn len(&self) -> usize {
        self.state().indices.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the number of the next hop, and whether the control thread must be woken.
    fn acquire(&mut self, local: IpAddr, to: IpAddr) -> (u32, bool) {
        let to = to.to_canonical();
        let cell = self.cells.of(to);
        let path = Path { local, to, cell };
        if let Some(&index) = self.indices.get(&(local, cell)) {
            let slot = &mut self.slots[index as usize];
            slot.users += 1;
            slot.idle = 0;
            if !slot.stray {
                return (index, false);
            }
            (slot.path, slot.stray) = (Some(path), false);
            return (index, self.announce(index));
        }
        let Some(index) = self.take_free() else {
            return (NextHopTable::NONE, false);
        };
        let slot = &mut self.slots[index as usize];
        *slot = Slot {
            path: Some(path),
            users: 1,
            announced: slot.announced,
            ..Slot::default()
        };
        self.indices.insert((local, cell), index);
        (index, self.announce(index))
    }

    /// Tells the control thread of a number. Returns whether it is to be woken.
    fn announce(&mut self, index: u32) -> bool {
        let first = self.new.is_empty();
        let slot = &mut self.slots[index as usize];
        if !std::mem::replace(&mut slot.announced, true) {
            self.new.push(index);
        }
        first
    }

    fn take_free(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let index = u32::try_from(self.slots.len()).ok()?;
            (index < self.most).then(|| self.slots.push(Slot::default()))?;
            Some(index)
        })
    }

    /// Withdraws a number that was unused, unless it is used again, or may wait.
    fn judge_unused(&mut self, index: u32, sweeps: u32, withdrawn: &mut Vec<u32>) {
        let full = self.free.is_empty() && self.slots.len() >= self.most as usize;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        slot.listed = false;
        if slot.users > 0 {
            return;
        }
        slot.idle += 1;
        if slot.idle <= sweeps && !full {
            slot.listed = true;
            self.unused.push(index);
        } else if let Some(path) = slot.path.take() {
            self.indices.remove(&(path.local, path.cell));
            withdrawn.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn new_ones(table: &NextHopTable) -> Vec<u32> {
        let mut found = Vec::new();
        table.take_new(&mut found);
        found.into_iter().map(|(index, _)| index).collect()
    }

    fn withdrawn(table: &NextHopTable) -> Vec<u32> {
        let mut withdrawn = Vec::new();
        table.withdraw_unused(0, &mut withdrawn);
        withdrawn
    }

    #[test]
    fn one_path_has_one_number_until_nobody_uses_it() {
        let table = NextHopTable::new(8, None);
        let index = table.acquire(ip(1), ip(2));
        assert_ne!(index, NextHopTable::NONE);
        assert_eq!(table.acquire(ip(1), ip(2)), index);
        assert_ne!(table.acquire(ip(3), ip(2)), index);
        assert_eq!(new_ones(&table), [1, 2]);
        assert_eq!(new_ones(&table), Vec::<u32>::new());
        table.release(index);
        assert_eq!(withdrawn(&table), Vec::<u32>::new());
        table.release(index);
        assert_eq!(withdrawn(&table), [index]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_number_is_not_given_away_before_it_is_cleared() {
        let table = NextHopTable::new(1, None);
        let index = table.acquire(ip(1), ip(2));
        assert_eq!(
            table.acquire(ip(1), ip(3)),
            NextHopTable::NONE,
            "full: there is room for one"
        );
        table.release(index);
        let gone = withdrawn(&table);
        assert_eq!(table.acquire(ip(1), ip(3)), NextHopTable::NONE);
        table.free(gone);
        assert_eq!(table.acquire(ip(1), ip(3)), index);
        assert_eq!(new_ones(&table), [index]);
    }

    #[test]
    fn a_path_that_is_acquired_again_before_it_is_withdrawn_keeps_its_number() {
        let table = NextHopTable::new(8, None);
        let index = table.acquire(ip(1), ip(2));
        table.release(index);
        assert_eq!(table.acquire(ip(1), ip(2)), index);
        assert_eq!(withdrawn(&table), Vec::<u32>::new());
    }

    #[test]
    fn unused_numbers_are_kept_for_a_while_unless_the_table_is_full() {
        let table = NextHopTable::new(2, None);
        table.release(table.acquire(ip(1), ip(2)));
        let mut withdrawn = Vec::new();
        table.withdraw_unused(2, &mut withdrawn);
        table.withdraw_unused(2, &mut withdrawn);
        assert!(withdrawn.is_empty());
        table.release(table.acquire(ip(1), ip(2)));
        table.withdraw_unused(2, &mut withdrawn);
        assert!(withdrawn.is_empty(), "used again meanwhile");
        table.acquire(ip(1), ip(3));
        table.withdraw_unused(2, &mut withdrawn);
        assert_eq!(withdrawn, [1], "full");
    }

    fn gateway_for(prefixes: &[(&str, u8)]) -> Arc<Cells> {
        let prefix = |&(network, length): &(&str, u8)| io::netlink::RoutePrefix {
            network: network.parse().expect("an address"),
            length,
            separates: false,
        };
        Arc::new(Cells::new(&prefixes.iter().map(prefix).collect::<Vec<_>>()))
    }

    #[test]
    fn half_a_million_peers_behind_a_gateway_take_one_number() {
        let table = NextHopTable::new(8, None);
        table.set_cells(gateway_for(&[("0.0.0.0", 0)]));
        for peer in 0..500_000_u32 {
            let to = IpAddr::from((0xc633_0000 + peer).to_be_bytes());
            assert_eq!(table.acquire(ip(1), to), 1);
        }
        assert_eq!((table.len(), new_ones(&table)), (1, vec![1]));
        assert_eq!(table.acquire(ip(2), ip(9)), 2, "another local address");
    }

    #[test]
    fn a_new_prefix_takes_its_destinations_to_another_number() {
        let table = NextHopTable::new(8, None);
        table.set_cells(gateway_for(&[("0.0.0.0", 0)]));
        let (one, other) = ([198, 51, 100, 1].into(), [203, 0, 113, 1].into());
        assert_eq!(
            (table.acquire(ip(1), one), table.acquire(ip(1), other)),
            (1, 1)
        );
        assert_eq!(new_ones(&table), [1]);
        table.set_cells(gateway_for(&[("0.0.0.0", 0), ("198.51.100.0", 24)]));
        // The path that stood for all of them is the one that has left.
        table.lost_destination(1);
        assert_eq!(
            (table.acquire(ip(1), one), table.acquire(ip(1), other)),
            (2, 1)
        );
        let mut announced = Vec::new();
        table.take_new(&mut announced);
        let announced = announced.iter().map(|(index, path)| (*index, path.to));
        assert_eq!(announced.collect::<Vec<_>>(), [(2, one), (1, other)]);
    }

    #[test]
    fn a_number_that_is_used_and_given_back_again_and_again_is_withdrawn_once() {
        let table = NextHopTable::new(8, None);
        for _ in 0..3 {
            table.release(table.acquire(ip(1), ip(2)));
            table.release(table.acquire(ip(1), ip(3)));
        }
        let mut gone = withdrawn(&table);
        gone.sort_unstable();
        assert_eq!(gone, [1, 2]);
        assert_eq!(withdrawn(&table), Vec::<u32>::new());
    }

    #[test]
    fn withdrawn_next_hops_are_not_reported_as_new() {
        let table = NextHopTable::new(8, None);
        table.release(table.acquire(ip(1), ip(2)));
        assert_eq!(withdrawn(&table).len(), 1);
        assert_eq!(new_ones(&table), Vec::<u32>::new());
    }
}
