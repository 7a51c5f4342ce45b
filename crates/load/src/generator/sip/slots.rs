//! The units of work in flight, in places that are used again.

use super::template::ID_LIMIT;

/// Where a unit of work stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// The slot is free.
    #[default]
    Free,
    /// The first request is outstanding.
    First,
    /// The call is up.
    Talking,
    /// The BYE is outstanding.
    Bye,
    /// The call rings, and its CANCEL is outstanding.
    Cancelling,
    /// A REGISTER is outstanding. It makes a callee reachable, or ends that.
    Enrol,
}

/// A unit of work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// When it was meant to begin.
    pub(super) intended_ns: u64,
    /// Time of the first transmission of the outstanding request.
    pub(super) sent_ns: u64,
    /// Time of its last transmission, in microseconds after the first one.
    pub(super) tried_us: u32,
    /// Until the request is sent again; 0 if it is not.
    pub(super) interval_ms: u32,
    pub(super) generation: u32,
    pub(super) cseq: u32,
    pub(super) aor: u32,
    pub(super) link: u16,
    pub(super) stage: Stage,
    /// A provisional response came.
    pub(super) proceeding: bool,
    pub(super) measured: bool,
    /// Challenges that were answered for the outstanding request.
    pub(super) challenges: u8,
    /// The other side has ended the call.
    pub(super) hung_up: bool,
    /// Servers that have refused it, or were silent.
    pub(super) refused: u8,
}

impl Slot {
    /// Nanoseconds since the last transmission of the outstanding request.
    pub(super) fn since_try(&self, now_ns: u64) -> u64 {
        let tried_ns = self.sent_ns + u64::from(self.tried_us) * 1000;
        now_ns.saturating_sub(tried_ns)
    }
}

// One per unit of work in flight, of which an overload has hundreds of thousands.
const _: () = assert!(size_of::<Slot>() <= 56);

/// All places.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: usize,
    /// Units in flight, and those of them that are measured.
    pub(super) in_flight: usize,
    pub(super) measured: usize,
}

impl Slots {
    /// At most `limit` at once.
    pub(super) fn new(limit: u32) -> Slots {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
            limit: limit.min(ID_LIMIT) as usize,
            in_flight: 0,
            measured: 0,
        }
    }

    /// Takes a place; `None` if all are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.in_flight >= self.limit {
            return None;
        }
        self.in_flight += 1;
        Some(self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        }))
    }

    /// Gives a place back: its generation is over.
    pub(super) fn release(&mut self, place: u32) {
        let slot = &mut self.slots[place as usize];
        slot.stage = Stage::Free;
        slot.generation = (slot.generation + 1) % ID_LIMIT;
        self.in_flight -= 1;
        self.measured -= usize::from(slot.measured);
        slot.measured = false;
        self.free.push(place);
    }

    /// The unit of this place and generation, if it is in flight.
    pub(super) fn find(&mut self, place: u32, generation: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(place as usize)?;
        (slot.generation == generation && slot.stage != Stage::Free).then_some(slot)
    }

    pub(super) fn get(&self, place: u32) -> &Slot {
        &self.slots[place as usize]
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Slot {
        &mut self.slots[place as usize]
    }

    /// Whether this was the place and generation of a unit that is over.
    pub(super) fn was(&self, place: u32, generation: u32) -> bool {
        let slot = self.slots.get(place as usize);
        // Half of all generations are the past.
        slot.is_some_and(|slot| {
            let ago = slot.generation.wrapping_sub(generation) % ID_LIMIT;
            ago > 0 && ago < ID_LIMIT / 2
        })
    }

    /// Places of all units in flight.
    pub(super) fn all(&self) -> Vec<u32> {
        let all = self.slots.iter().zip(0..);
        all.filter(|(slot, _)| slot.stage != Stage::Free)
            .map(|(_, place)| place)
            .collect()
    }

    /// Places of all units in flight over `link`.
    pub(super) fn over(&self, link: u16) -> Vec<u32> {
        let all = self.slots.iter().enumerate();
        all.filter(|(_, slot)| slot.stage != Stage::Free && slot.link == link)
            .map(|(place, _)| place as u32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_given_back_is_another_generation() {
        let mut slots = Slots::new(1);
        let place = slots.take().unwrap();
        slots.get_mut(place).stage = Stage::First;
        assert!(slots.take().is_none() && slots.find(place, 0).is_some());
        slots.release(place);
        assert!(slots.find(place, 0).is_none() && slots.find(place, 1).is_none());
        assert_eq!(slots.take(), Some(place));
        slots.get_mut(place).stage = Stage::First;
        assert!(slots.find(place, 0).is_none() && slots.find(place, 1).is_some());
        assert!(slots.find(99, 0).is_none());
        assert!(slots.was(place, 0) && !slots.was(place, 1) && !slots.was(place, 2));
        assert!(!slots.was(99, 0));
    }
}
