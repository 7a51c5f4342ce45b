//! A hierarchical timer wheel.
//!
//! Six wheels of 64 slots; a slot of wheel *n* is 64^n ticks wide, so with ticks of a millisecond they reach 64 ms, 4 s,
//! 4 minutes, 5 hours, 12 days and 2 years. A timer lies in the finest wheel in which its deadline's slot differs from
//! that of now. When time reaches a slot of a coarser wheel, its timers are sorted into finer ones, each at most five
//! times in its life. Slots are doubly linked lists through one slab, so that a timer is unlinked without a search; a bit
//! per slot says where to look next, so that empty slots cost nothing.

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Timers whose time had come when they were set.
const OVERDUE: usize = LEVELS * SLOTS;
/// End of a list.
const NONE: u32 = u32::MAX;
/// Farther deadlines wait in the last slot of the coarsest wheel and are looked at again when it comes.
const HORIZON: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;

/// Names a timer of a [`TimerWheel`]; goes stale when the timer fires or is cancelled, and is then simply not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

/// Deadlines in nanoseconds (of any monotonic clock) with a value each.
///
/// Insert, cancel and reschedule cost the same however many timers there are. A timer never fires early, and fires at
/// the latest in the first [`TimerWheel::advance`] one tick after its deadline.
#[derive(Debug)]
pub struct TimerWheel<T> {
    tick_ns: u64,
    /// The tick that time has reached. Every timer in a slot has a later deadline, but for the overdue ones.
    now: u64,
    occupied: [u64; LEVELS],
    heads: [u32; OVERDUE + 1],
    nodes: Vec<Node<T>>,
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Node<T> {
    /// In ticks, rounded up.
    deadline: u64,
    /// `None` if the node is free.
    value: Option<T>,
    generation: u32,
    previous: u32,
    /// In the slot's list, or in that of free nodes.
    next: u32,
    slot: u32,
}

impl<T> TimerWheel<T> {
    /// An empty wheel whose hands stand at `now_ns`. `tick_ns` is its resolution, at least 1 (a worker uses 1,000,000).
    #[must_use]
    pub fn new(tick_ns: u64, now_ns: u64) -> TimerWheel<T> {
        let tick_ns = tick_ns.max(1);
        TimerWheel {
            tick_ns,
            now: now_ns / tick_ns,
            occupied: [0; LEVELS],
            heads: [NONE; OVERDUE + 1],
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// Adds a timer. One whose deadline has passed fires in the next [`TimerWheel::advance`].
    ///
    /// # Panics
    /// If 2^32 - 1 timers are pending.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        let deadline = deadline_ns.div_ceil(self.tick_ns);
        let index = self.take_free_node();
        let node = &mut self.nodes[index as usize];
        node.deadline = deadline;
        node.value = Some(value);
        let generation = node.generation;
        self.len += 1;
        self.link(index);
        TimerKey { index, generation }
    }

    /// Removes a timer and returns its value; `None` if it has fired or was cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.pending(key)?;
        self.unlink(key.index);
        self.release(key.index)
    }

    /// Moves a timer to another deadline and keeps its key valid; `false` if it has fired or was cancelled.
    pub fn reschedule(&mut self, key: TimerKey, deadline_ns: u64) -> bool {
        let deadline = deadline_ns.div_ceil(self.tick_ns);
        let Some(node) = self.pending(key) else {
            return false;
        };
        if node.deadline != deadline {
            node.deadline = deadline;
            self.unlink(key.index);
            self.link(key.index);
        }
        true
    }

    /// Fires every timer that is due, in the order of deadlines rounded up to ticks; within a tick in any order.
    pub fn advance(&mut self, now_ns: u64, fired: &mut impl FnMut(T)) {
        while let Some(value) = self.pop_due(now_ns) {
            fired(value);
        }
    }

    /// Takes one timer that is due, the earliest tick first; `None` when there is none. Between two calls the wheel may
    /// be changed.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        let end = now_ns / self.tick_ns;
        loop {
            if let Some(value) = self.pop_front(OVERDUE) {
                return Some(value);
            }
            match self.next_slot() {
                Some((level, slot, start)) if start <= end => self.reach(level, slot, start),
                _ => {
                    self.now = self.now.max(end);
                    return None;
                }
            }
        }
    }

    /// When to call [`TimerWheel::advance`] next: no timer is due before it. It may come before the earliest deadline
    /// (by the width of a slot, for timers that are far away), and `advance` then merely sorts some timers more finely.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if self.heads[OVERDUE] != NONE {
            return Some(self.now * self.tick_ns);
        }
        self.next_slot()
            .map(|(_, _, start)| start.saturating_mul(self.tick_ns))
    }

    /// How many timers are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first slot that time will reach, with its wheel and the tick at which it begins. Finer wheels come first:
    /// what lies in them is due before their wheel has turned once, which is when the next slot of a coarser one begins.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.occupied[level];
            if occupied == 0 {
                return None;
            }
            let shift = SLOT_BITS * level as u32;
            let position = (self.now >> shift) as u32 % SLOTS as u32;
            // Rotated so that the slot time stands at comes last: only deadlines beyond the horizon lie there.
            let ahead = occupied.rotate_right(position + 1).trailing_zeros() + 1;
            let start = ((self.now >> shift) + u64::from(ahead)) << shift;
            Some((level, (position + ahead) as usize % SLOTS, start))
        })
    }

    /// Time arrives at a slot: its timers are due (the finest wheel) or belong into finer wheels now.
    fn reach(&mut self, level: usize, slot: usize, start: u64) {
        self.now = start;
        let slot = level * SLOTS + slot;
        let mut index = self.heads[slot];
        self.clear_slot(slot);
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.link(index);
            index = next;
        }
    }

    fn clear_slot(&mut self, slot: usize) {
        self.heads[slot] = NONE;
        if slot < OVERDUE {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    /// Puts a node where its deadline belongs.
    fn link(&mut self, index: u32) {
        let deadline = self.nodes[index as usize].deadline;
        let slot = self.slot_for(deadline);
        if slot < OVERDUE {
            self.occupied[slot / SLOTS] |= 1 << (slot % SLOTS);
        }
        let next = std::mem::replace(&mut self.heads[slot], index);
        let node = &mut self.nodes[index as usize];
        node.slot = slot as u32;
        node.previous = NONE;
        node.next = next;
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = index;
        }
    }

    fn slot_for(&self, deadline: u64) -> usize {
        if deadline <= self.now {
            return OVERDUE;
        }
        let deadline = deadline.min(self.now.saturating_add(HORIZON));
        let level = ((self.now ^ deadline).ilog2() / SLOT_BITS) as usize;
        // The top wheel goes round: what lies ahead by less than a turn has a slot of its own.
        let level = level.min(LEVELS - 1);
        let slot = (deadline >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        level * SLOTS + slot
    }

    fn unlink(&mut self, index: u32) {
        let Node {
            previous,
            next,
            slot,
            ..
        } = self.nodes[index as usize];
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.nodes.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None if next == NONE => self.clear_slot(slot as usize),
            None => self.heads[slot as usize] = next,
        }
    }

    fn pop_front(&mut self, slot: usize) -> Option<T> {
        let index = self.heads[slot];
        if index == NONE {
            return None;
        }
        self.unlink(index);
        self.release(index)
    }

    fn pending(&mut self, key: TimerKey) -> Option<&mut Node<T>> {
        let node = self.nodes.get_mut(key.index as usize)?;
        (node.generation == key.generation && node.value.is_some()).then_some(node)
    }

    fn take_free_node(&mut self) -> u32 {
        let index = self.free;
        if let Some(node) = self.nodes.get(index as usize) {
            self.free = node.next;
            return index;
        }
        let index = self.nodes.len() as u32;
        assert!(self.nodes.len() < NONE as usize, "at most 2^32 - 1 timers");
        self.nodes.push(Node {
            deadline: 0,
            value: None,
            generation: 0,
            previous: NONE,
            next: NONE,
            slot: 0,
        });
        index
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        node.value.take()
    }
}
