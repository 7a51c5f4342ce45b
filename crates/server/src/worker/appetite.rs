//! How much to receive before handling it.
//!
//! What is received together is sent together: datagrams of one flow that meet in a batch leave in one call (UDP_SEGMENT), for
//! a fraction of what each would cost alone. Thousands of flows that take turns never meet in a small batch. So a worker
//! that falls behind, whose batches come out full, takes more at a time: flows meet, each datagram becomes cheaper, and it
//! catches up. A worker that keeps up has small batches whatever the limit is, so nobody waits for a batch to fill.
//!
//! Room grows only for datagrams that are relayed: nobody without an allocation can make a worker use more memory.

/// Datagrams per send above which larger batches gain nothing more.
const LONG: u64 = 16;

/// Small batches in a row after which the limit is halved.
const CALM: u32 = 64;

/// Up to so many ready relays, each is read until the batch is full.
const FEW: usize = 4;

/// Messages taken from one of many relays, where several wait.
const SEVERAL: usize = 16;

/// Every so many wake-ups it is found out whether several messages wait at each of many relays.
const PROBE: u32 = 16;

/// The limits of one worker, by what its last batches were like.
#[derive(Debug)]
pub(crate) struct Appetite {
    limit: usize,
    /// What the batch has room for.
    most: usize,
    /// Small batches in a row.
    calm: u32,
    /// Wake-ups with many relays since the last probe.
    unprobed: u32,
    /// Several messages wait at each of many relays.
    several: bool,
}

/// What became of one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digested {
    /// Messages.
    pub(crate) held: usize,
    /// Messages of which at least one datagram was relayed.
    pub(crate) relayed: usize,
    /// Datagrams sent in consequence.
    pub(crate) sent: u64,
    /// Messages that the kernel got for them: a run of datagrams is one.
    pub(crate) sends: u64,
}

impl Appetite {
    /// Messages per batch of a worker that keeps up.
    pub(crate) const LEAST: usize = 64;
    /// Messages that a batch had better have room for, where what meets can be sent together.
    pub(crate) const MOST: usize = 4096;

    /// For a batch with room for `most` messages.
    pub(crate) fn new(most: usize) -> Appetite {
        Appetite {
            limit: Self::LEAST,
            most,
            calm: 0,
            unprobed: 0,
            several: false,
        }
    }

    /// Messages to receive before they are handled.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Messages to take from each of so many ready relays. One is cheapest if no more wait.
    pub(crate) fn per_relay(&mut self, ready: usize) -> usize {
        if ready <= FEW {
            return self.limit;
        }
        self.unprobed += 1;
        if self.several || self.unprobed >= PROBE {
            self.unprobed = 0;
            return SEVERAL;
        }
        1
    }

    /// What `per_relay` brought, if it was not one: so many messages from so many relays.
    pub(crate) fn relays_read(&mut self, relays: usize, messages: usize) {
        if relays > FEW {
            self.several = messages * 2 >= relays * 3;
        }
    }

    /// Judges a batch. Returns whether the room beyond the smallest limit is no longer needed.
    pub(crate) fn digested(&mut self, batch: &Digested) -> bool {
        let full = batch.held >= self.limit;
        if full && batch.relayed * 2 >= batch.held && batch.sent < batch.sends * LONG {
            self.limit = (self.limit * 2).min(self.most);
        }
        if batch.held * 4 > self.limit || self.limit == Self::LEAST {
            self.calm = 0;
            return false;
        }
        self.calm += 1;
        if self.calm < CALM {
            return false;
        }
        self.calm = 0;
        self.limit /= 2;
        self.limit == Self::LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of single messages that left in runs of `run`.
    fn batch(held: usize, relayed: usize, run: u64) -> Digested {
        Digested {
            held,
            relayed,
            sent: relayed as u64,
            sends: relayed as u64 / run,
        }
    }

    #[test]
    fn full_batches_of_relayed_datagrams_make_room() {
        let mut appetite = Appetite::new(Appetite::MOST);
        for _ in 0..20 {
            let limit = appetite.limit();
            appetite.digested(&batch(limit, limit, 1));
        }
        assert_eq!(appetite.limit(), Appetite::MOST);
    }

    #[test]
    fn it_never_exceeds_the_room_there_is() {
        let mut appetite = Appetite::new(Appetite::LEAST);
        appetite.digested(&batch(64, 64, 1));
        assert_eq!(appetite.limit(), Appetite::LEAST);
    }

    #[test]
    fn what_is_not_relayed_never_makes_room() {
        let mut appetite = Appetite::new(Appetite::MOST);
        for _ in 0..20 {
            appetite.digested(&batch(64, 31, 1));
        }
        assert_eq!(appetite.limit(), Appetite::LEAST);
    }

    #[test]
    fn long_runs_need_no_more_room() {
        let mut appetite = Appetite::new(Appetite::MOST);
        for _ in 0..20 {
            let limit = appetite.limit();
            let run = limit as u64 / 64;
            appetite.digested(&batch(limit, limit, run));
        }
        assert_eq!(appetite.limit(), 64 * LONG as usize);
    }

    #[test]
    fn calm_gives_the_room_back_once() {
        let mut appetite = Appetite::new(Appetite::MOST);
        for _ in 0..3 {
            let limit = appetite.limit();
            appetite.digested(&batch(limit, limit, 1));
        }
        assert_eq!(appetite.limit(), 512);
        let given_back = (0..10_000)
            .filter(|_| appetite.digested(&batch(10, 10, 1)))
            .count();
        assert_eq!((given_back, appetite.limit()), (1, Appetite::LEAST));
    }

    #[test]
    fn many_relays_are_probed_now_and_then_and_read_more_while_that_pays() {
        let mut appetite = Appetite::new(Appetite::MOST);
        let asked: Vec<usize> = (0..32).map(|_| appetite.per_relay(100)).collect();
        assert_eq!(asked.iter().filter(|&&each| each == 1).count(), 30);
        appetite.relays_read(100, 200);
        assert_eq!(appetite.per_relay(100), SEVERAL);
        appetite.relays_read(100, 120);
        assert_eq!(appetite.per_relay(100), 1);
        assert_eq!(appetite.per_relay(FEW), Appetite::LEAST);
    }
}
