//! Numbers of next hops: shared by the workers, kept true by the control thread.
//!
//! ```text
//!  worker: acquire(local, to) ──▶ new ──▶ control thread: route, neighbour ──▶ usable in the program's table
//!  worker: release(index) ──▶ unused ──▶ control thread: cleared there ──▶ free for another path
//! ```
//! A number is given to another path only after the control thread has cleared its entry in the program's table, so that no
//! datagram ever leaves by the hop of a path that was. The lock is taken when a channel is bound or ends, never per datagram.

use io::Waker;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ends of a path, as in the addresses of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Path {
    /// Where packets leave from: the address of a listener or a relay.
    pub(crate) local: IpAddr,
    /// Where they go: a client or a peer.
    pub(crate) to: IpAddr,
}

/// The numbers of next hops in use.
#[derive(Debug)]
pub(crate) struct NextHopTable {
    state: Mutex<State>,
    /// Tells the control thread that there is something new.
    waker: Option<Arc<Waker>>,
}

#[derive(Debug)]
struct State {
    indices: HashMap<Path, u32>,
    /// One per number; the one of number 0, "none", is never used.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Not yet seen by the control thread.
    new: Vec<u32>,
    /// Most numbers, number 0 included.
    most: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    path: Option<Path>,
    users: u32,
    /// Sweeps that have found it unused.
    idle: u32,
}

impl NextHopTable {
    /// The number of no next hop at all: the program never sends anything there.
    pub(crate) const NONE: u32 = 0;

    /// A table of at most `most` paths. `waker` wakes the control thread when there are new ones.
    pub(crate) fn new(most: u32, waker: Option<Arc<Waker>>) -> NextHopTable {
        NextHopTable {
            state: Mutex::new(State {
                indices: HashMap::new(),
                slots: vec![Slot::default()],
                free: Vec::new(),
                new: Vec::new(),
                most: most.saturating_add(1),
            }),
            waker,
        }
    }

    /// The number of the next hop from `local` to `to`; [`NextHopTable::NONE`] if the table is full. To be released once by
    /// whoever got it. It becomes usable when the control thread has found the hop.
    pub(crate) fn acquire(&self, local: IpAddr, to: IpAddr) -> u32 {
        let mut state = self.state();
        let (index, wake) = state.acquire(Path { local, to });
        drop(state);
        if let (true, Some(waker)) = (wake, &self.waker) {
            waker.wake();
        }
        index
    }

    /// Gives a number back. Nothing in the program's tables may name it any more.
    pub(crate) fn release(&self, index: u32) {
        if let Some(slot) = self.state().slots.get_mut(index as usize) {
            slot.users = slot.users.saturating_sub(1);
        }
    }

    /// What has been acquired for the first time since the last call.
    pub(crate) fn take_new(&self, found: &mut Vec<(u32, Path)>) {
        let mut state = self.state();
        let State { new, slots, .. } = &mut *state;
        found.extend(
            new.drain(..)
                .filter_map(|index| Some((index, slots.get(index as usize)?.path?))),
        );
    }

    /// Withdraws the numbers that nobody has used for `patience` calls of this: a client that comes back, or binds another channel,
    /// finds them resolved. They are to be cleared in the program's table, and then freed. In a full table nobody waits.
    pub(crate) fn withdraw_unused(&self, patience: u32, withdrawn: &mut Vec<u32>) {
        let mut state = self.state();
        let full = state.free.is_empty() && state.slots.len() >= state.most as usize;
        let patience = if full { 0 } else { patience };
        let State {
            indices,
            slots,
            new,
            ..
        } = &mut *state;
        indices.retain(|_, index| {
            let slot = &mut slots[*index as usize];
            slot.idle += u32::from(slot.users == 0);
            let keep = slot.users > 0 || slot.idle <= patience;
            if !keep {
                slot.path = None;
                withdrawn.push(*index);
            }
            keep
        });
        new.retain(|index| slots[*index as usize].path.is_some());
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
    /// The number, and whether the control thread is to be woken.
    fn acquire(&mut self, path: Path) -> (u32, bool) {
        if let Some(&index) = self.indices.get(&path) {
            let slot = &mut self.slots[index as usize];
            slot.users += 1;
            slot.idle = 0;
            return (index, false);
        }
        let Some(index) = self.unused() else {
            return (NextHopTable::NONE, false);
        };
        self.slots[index as usize] = Slot {
            path: Some(path),
            users: 1,
            idle: 0,
        };
        self.indices.insert(path, index);
        let first = self.new.is_empty();
        self.new.push(index);
        (index, first)
    }

    fn unused(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let index = u32::try_from(self.slots.len()).ok()?;
            (index < self.most).then(|| self.slots.push(Slot::default()))?;
            Some(index)
        })
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

    #[test]
    fn what_is_withdrawn_before_it_was_seen_is_not_reported_as_new() {
        let table = NextHopTable::new(8, None);
        table.release(table.acquire(ip(1), ip(2)));
        assert_eq!(withdrawn(&table).len(), 1);
        assert_eq!(new_ones(&table), Vec::<u32>::new());
    }
}
