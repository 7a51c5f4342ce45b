//! A hierarchical timer wheel with one timer per owner, named by the owner's index.
//!
//! An owner has one timer: the earliest of its deadlines. So a deadline moves in place, and cancelling needs nothing
//! but the index. Six wheels of 64 slots with ticks of a millisecond reach 64 ms, 4 s, 4 minutes, 5 hours, 12 days and
//! 2 years. A timer is in the finest wheel in which its slot differs from the current one. When time reaches a slot of
//! a coarser wheel, the timers of this slot move to finer wheels.

use crate::Mono;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Timers whose time had come when they were set.
const OVERDUE: usize = LEVELS * SLOTS;
/// End of a list.
const END_OF_LIST: u32 = u32::MAX;
/// The owner has no timer.
const NO_TIMER: u32 = u32::MAX;
/// Farther deadlines wait in the last slot of the coarsest wheel. When time reaches that slot, they get another slot.
const HORIZON: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
/// Memory for this many timers is not released. To release memory, the remaining timers must be fewer by this factor,
/// and few enough to move quickly.
const MIN_KEPT_TIMERS: usize = 1024;
const SHRINK_FACTOR: usize = 8;
const MAX_MOVED: usize = 8192;

/// The timers of all owners. Its resolution is `TICK_NS` nanoseconds, at least 1: a timer fires up to one tick late,
/// and never early.
///
/// ```
/// use hairpin_timers::{Mono, Wheel};
///
/// let mut wheel: Wheel<1_000_000> = Wheel::new();
/// wheel.set(7, Mono(5_000_000));
/// assert_eq!(wheel.pop_due(Mono(4_999_999)), None);
/// assert_eq!(wheel.pop_due(Mono(5_000_000)), Some(7));
/// ```
#[derive(Debug)]
pub struct Wheel<const TICK_NS: u64> {
    /// The tick that time has reached. All timers have later deadlines, except the overdue ones.
    now: u64,
    occupied: [u64; LEVELS],
    heads: [u32; OVERDUE + 1],
    /// By owner.
    nodes: Vec<Node>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// In ticks, rounded up.
    deadline: u64,
    previous: u32,
    next: u32,
    /// The slot that its list belongs to, or [`NO_TIMER`].
    slot: u32,
}

const _: () = assert!(size_of::<Node>() == 24);

impl<const TICK_NS: u64> Default for Wheel<TICK_NS> {
    fn default() -> Wheel<TICK_NS> {
        Wheel::new()
    }
}

impl<const TICK_NS: u64> Wheel<TICK_NS> {
    /// A wheel without timers.
    #[must_use]
    pub const fn new() -> Wheel<TICK_NS> {
        Wheel {
            now: 0,
            occupied: [0; LEVELS],
            heads: [END_OF_LIST; OVERDUE + 1],
            nodes: Vec::new(),
            len: 0,
        }
    }

    /// Sets or moves the owner's timer. A deadline that has passed fires at the next [`Wheel::pop_due`];
    /// [`Mono::NEVER`] removes the timer.
    pub fn set(&mut self, owner: u32, at: Mono) {
        if at == Mono::NEVER {
            self.remove(owner);
            return;
        }
        let index = owner as usize;
        if index >= self.nodes.len() {
            let unset = Node {
                deadline: 0,
                previous: END_OF_LIST,
                next: END_OF_LIST,
                slot: NO_TIMER,
            };
            self.nodes.resize(index + 1, unset);
        }
        let deadline = at.0.div_ceil(TICK_NS);
        let node = &mut self.nodes[index];
        if node.slot == NO_TIMER {
            self.len += 1;
        } else if node.deadline == deadline {
            return;
        } else {
            self.unlink(owner);
        }
        self.nodes[index].deadline = deadline;
        self.link(owner);
    }

    /// Removes the owner's timer, if it has one.
    pub fn remove(&mut self, owner: u32) {
        if self
            .nodes
            .get(owner as usize)
            .is_some_and(|node| node.slot != NO_TIMER)
        {
            self.unlink(owner);
            self.nodes[owner as usize].slot = NO_TIMER;
            self.len -= 1;
        }
    }

    /// Releases memory if few owners are left. No owner with the index `owners` or a higher one may have a timer.
    /// Returns the number of released bytes.
    pub fn release_memory(&mut self, owners: usize) -> usize {
        let before = self.nodes.capacity();
        let keeps = owners.max(MIN_KEPT_TIMERS);
        if before < SHRINK_FACTOR * keeps || owners > MAX_MOVED {
            return 0;
        }
        debug_assert!(
            self.nodes
                .iter()
                .skip(owners)
                .all(|node| node.slot == NO_TIMER)
        );
        self.nodes.truncate(owners);
        self.nodes.shrink_to(2 * keeps);
        (before - self.nodes.capacity()) * size_of::<Node>()
    }

    /// Removes one timer that is due, the earliest tick first. Returns its owner.
    pub fn pop_due(&mut self, now: Mono) -> Option<u32> {
        let end = now.0 / TICK_NS;
        loop {
            let owner = self.heads[OVERDUE];
            if owner != END_OF_LIST {
                self.remove(owner);
                return Some(owner);
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

    /// When to call [`Wheel::pop_due`] next. This may be earlier than the earliest deadline, by the width of its slot.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.heads[OVERDUE] != END_OF_LIST {
            return Some(Mono(self.now * TICK_NS));
        }
        self.next_slot()
            .map(|(_, _, start)| Mono(start.saturating_mul(TICK_NS)))
    }

    /// The number of timers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no timer.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first slot that time will reach, with its wheel and the tick at which it begins. Finer wheels come first.
    /// Their timers are due before their wheel has turned once, which is when the next slot of a coarser wheel begins.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.occupied[level];
            if occupied == 0 {
                return None;
            }
            let shift = SLOT_BITS * level as u32;
            let position = (self.now >> shift) as u32 % SLOTS as u32;
            // The rotation puts the current slot last: only deadlines beyond the horizon are in it.
            let ahead = occupied.rotate_right((position + 1) % 64).trailing_zeros() + 1;
            let start = ((self.now >> shift) + u64::from(ahead)) << shift;
            Some((level, (position + ahead) as usize % SLOTS, start))
        })
    }

    /// Moves time to the start of a slot. The timers of this slot are due, or move to finer wheels.
    fn reach(&mut self, level: usize, slot: usize, start: u64) {
        self.now = start;
        let slot = level * SLOTS + slot;
        let mut owner = self.heads[slot];
        self.clear_slot(slot);
        while owner != END_OF_LIST {
            let next = self.nodes[owner as usize].next;
            self.link(owner);
            owner = next;
        }
    }

    fn clear_slot(&mut self, slot: usize) {
        self.heads[slot] = END_OF_LIST;
        if slot < OVERDUE {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    fn link(&mut self, owner: u32) {
        let slot = self.slot_for(self.nodes[owner as usize].deadline);
        if slot < OVERDUE {
            self.occupied[slot / SLOTS] |= 1 << (slot % SLOTS);
        }
        let next = std::mem::replace(&mut self.heads[slot], owner);
        let node = &mut self.nodes[owner as usize];
        node.slot = slot as u32;
        node.previous = END_OF_LIST;
        node.next = next;
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = owner;
        }
    }

    fn slot_for(&self, deadline: u64) -> usize {
        if deadline <= self.now {
            return OVERDUE;
        }
        let deadline = deadline.min(self.now.saturating_add(HORIZON));
        let level = ((self.now ^ deadline).ilog2() / SLOT_BITS) as usize;
        // The coarsest wheel is circular: it has a slot for each deadline that is less than one turn ahead.
        let level = level.min(LEVELS - 1);
        let slot = (deadline >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        level * SLOTS + slot
    }

    fn unlink(&mut self, owner: u32) {
        let Node {
            previous,
            next,
            slot,
            ..
        } = self.nodes[owner as usize];
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.nodes.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None if next == END_OF_LIST => self.clear_slot(slot as usize),
            None => self.heads[slot as usize] = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const TICK_NS: u64 = 1_000_000;
    type Wheel = super::Wheel<TICK_NS>;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32, u64),
        Remove(u32),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        // Spans from less than a tick to beyond the horizon.
        let span = (0u32..48, 0u64..1000).prop_map(|(shift, factor)| factor << shift);
        prop_oneof![
            4 => (0u32..30, span.clone()).prop_map(|(owner, span)| Op::Set(owner, span)),
            1 => (0u32..30).prop_map(Op::Remove),
            3 => span.prop_map(Op::Advance),
        ]
    }

    proptest! {
        #[test]
        fn timers_fire_in_order_never_early_and_at_most_a_tick_late(ops in prop::collection::vec(op(), 0..200)) {
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0u64;
            for op in ops {
                match op {
                    Op::Set(owner, span) => {
                        wheel.set(owner, Mono(now + span));
                        model.insert(owner, now + span);
                    }
                    Op::Remove(owner) => {
                        wheel.remove(owner);
                        model.remove(&owner);
                    }
                    Op::Advance(span) => {
                        now += span;
                        let mut before = 0;
                        while let Some(owner) = wheel.pop_due(Mono(now)) {
                            let at = model.remove(&owner);
                            prop_assert!(at.is_some_and(|at| at <= now), "timer of {owner} fired early");
                            let tick = at.map_or(0, |at| at.div_ceil(TICK_NS));
                            prop_assert!(tick >= before || tick * TICK_NS <= now, "order of ticks");
                            before = tick;
                        }
                        prop_assert!(model.values().all(|at| at + TICK_NS > now), "a timer is late");
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                prop_assert_eq!(wheel.next_deadline().is_some(), !model.is_empty());
                if let (Some(next), Some(earliest)) = (wheel.next_deadline(), model.values().min()) {
                    prop_assert!(next.0 <= earliest.div_ceil(TICK_NS) * TICK_NS || next.0 <= now);
                }
            }
        }
    }

    #[test]
    fn a_moved_timer_fires_once_at_its_new_time() {
        let mut wheel = Wheel::new();
        wheel.set(3, Mono(1_000_000));
        wheel.set(3, Mono(5_000_000));
        assert_eq!(wheel.len(), 1);
        assert_eq!(wheel.pop_due(Mono(4_999_999)), None);
        assert_eq!(wheel.pop_due(Mono(5_000_000)), Some(3));
        assert_eq!(wheel.pop_due(Mono(u64::MAX / 2)), None);
        assert_eq!(wheel.len(), 0);
    }

    #[test]
    fn a_wheel_of_coarse_ticks_fires_late_by_at_most_one() {
        let mut wheel = super::Wheel::<100>::new();
        wheel.set(0, Mono(101));
        assert_eq!(wheel.pop_due(Mono(199)), None);
        assert_eq!(wheel.pop_due(Mono(200)), Some(0));
        assert!(wheel.is_empty());
    }
}
