//! Which sends of a schedule are one sender's.
//!
//! Lanes take turns, `train` datagrams at a time. Global send `g` belongs to lane `g / train % lanes`, and lane `l` to
//! sender `l % senders`. So every lane keeps its exact rate and place in the schedule, however many threads there are.

/// One sender's part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The index of this sender among `senders`.
    index: u64,
    senders: u64,
    /// Lanes of all senders.
    lanes: u64,
    /// Lanes of this one.
    hand: u64,
    train: u64,
}

impl Share {
    /// The part of sender `index` of `senders`, which must have at least one of the `lanes`.
    pub(super) fn new(index: usize, senders: usize, lanes: usize, train: u64) -> Share {
        let (index, senders, lanes) = (index as u64, senders.max(1) as u64, lanes as u64);
        debug_assert!(index < senders && index < lanes);
        Share {
            index,
            senders,
            lanes,
            hand: (lanes - index).div_ceil(senders),
            train: train.max(1),
        }
    }

    /// The number in the whole schedule of this sender's send `n`.
    pub(super) fn global(&self, n: u64) -> u64 {
        let (turn, within) = (n / self.train, n % self.train);
        let (round, place) = (turn / self.hand, turn % self.hand);
        let lane = place * self.senders + self.index;
        (round * self.lanes + lane) * self.train + within
    }

    /// How many of this sender's sends are among the first `global` of the schedule.
    pub(super) fn count(&self, global: u64) -> u64 {
        let (turns, partial) = (global / self.train, global % self.train);
        let (rounds, rest) = (turns / self.lanes, turns % self.lanes);
        let places = rest.saturating_sub(self.index).div_ceil(self.senders);
        let own_turn = rest % self.senders == self.index;
        let partial = if own_turn { partial } else { 0 };
        (rounds * self.hand + places) * self.train + partial
    }

    /// The first send after `n` that is another lane's, or the same lane's next train.
    pub(super) fn end_of_train(&self, n: u64) -> u64 {
        (n / self.train + 1) * self.train
    }

    /// Sends in a row that go to one lane.
    pub(super) fn train(&self) -> u64 {
        self.train
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn senders_share_every_send_and_agree_on_how_many_are_due(
            senders in 1usize..6, lanes in 1usize..20, train in 1u64..9, global in 0u64..2_000,
        ) {
            let senders = senders.min(lanes);
            let mut owners = vec![0u32; global as usize];
            for index in 0..senders {
                let share = Share::new(index, senders, lanes, train);
                let count = share.count(global);
                for n in 0..count {
                    let place = share.global(n);
                    prop_assert!(place < global);
                    prop_assert_eq!((place / train) as usize % lanes % senders, index);
                    owners[place as usize] += 1;
                }
                prop_assert!(share.global(count) >= global);
            }
            prop_assert!(owners.iter().all(|&owners| owners == 1));
        }
    }
}
