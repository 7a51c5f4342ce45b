//! How much to receive before handling it.
//!
//! Datagrams that are received together are sent together. Those of one flow in a batch leave in one call
//! (UDP_SEGMENT), at a fraction of the cost of separate calls. Thousands of flows that take turns never meet in a small
//! batch. So a worker that falls behind has full batches and takes more at a time. More datagrams of a flow are then in
//! one batch, each becomes cheaper, and the worker catches up. A worker that keeps up has small batches regardless of
//! the limit, so nobody waits for a batch to fill.
//!
//! If datagrams of one flow do not meet even in the largest batch, there are too many flows. Then large batches only
//! cost: data leaves the caches and the TLB between receiving, handling and sending. So the worker returns to small
//! batches, and retries large ones later.
//!
//! Room grows only for datagrams that are relayed: nobody without an allocation can make a worker use more memory.

/// Datagrams per send above which larger batches gain nothing more.
const LONG_RUN: u64 = 16;

/// Datagrams per send that the largest batches must reach, in quarters (5 is 1.25). With fewer, runs save less than
/// cache misses cost.
const MIN_RUN: u64 = 5;

/// Messages after which large batches are tried again. The way up to the largest limit takes twice that limit: one part
/// in sixteen.
const RETRY_MESSAGES: usize = 16 * 2 * BatchLimit::MAX;

/// Small batches in a row after which the limit is halved.
const CALM_BATCHES: u32 = 64;

/// Up to this many ready relays, each is read until the batch is full.
const FEW_RELAYS: usize = 4;

/// Messages taken from one of many relays, where several wait.
const MESSAGES_PER_RELAY: usize = 16;

/// One in this many wake-ups with many ready relays is a probe. It finds out whether several messages wait at each
/// relay.
const PROBE_MESSAGES: u32 = 16;

/// The limits of one worker, by what its last batches were like.
#[derive(Debug)]
pub(crate) struct BatchLimit {
    limit: usize,
    /// What the batch has room for.
    most: usize,
    /// Small batches in a row.
    calm: u32,
    /// The batch holds memory beyond the smallest limit.
    grown: bool,
    /// Messages until large batches are tried again.
    retry: usize,
    /// Wake-ups with many relays since the last probe.
    unprobed: u32,
    /// Several messages wait at each of many relays.
    several: bool,
}

/// What became of one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandledBatch {
    /// Messages.
    pub(crate) held: usize,
    /// Messages of which at least one datagram was relayed.
    pub(crate) relayed: usize,
    /// Datagrams sent in consequence.
    pub(crate) sent: u64,
    /// Messages that the kernel got for them: a run of datagrams is one.
    pub(crate) sends: u64,
}

impl BatchLimit {
    /// Messages per batch of a worker that keeps up.
    pub(crate) const MIN: usize = 64;
    /// The highest limit. A batch of this size has several datagrams of the same flow even if many flows take turns.
    pub(crate) const MAX: usize = 4096;

    /// For a batch with room for `most` messages.
    pub(crate) fn new(most: usize) -> BatchLimit {
        BatchLimit {
            limit: Self::MIN.min(most),
            most,
            calm: 0,
            grown: false,
            retry: 0,
            unprobed: 0,
            several: false,
        }
    }

    /// Messages to receive before they are handled.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Messages to take from each of this many ready relays. One is cheapest if no more wait.
    pub(crate) fn per_relay(&mut self, ready: usize) -> usize {
        if ready <= FEW_RELAYS {
            return self.limit;
        }
        self.unprobed += 1;
        if self.several || self.unprobed >= PROBE_MESSAGES {
            self.unprobed = 0;
            return MESSAGES_PER_RELAY;
        }
        1
    }

    /// What `per_relay` brought, if it was not one: this many messages from this many relays.
    pub(crate) fn relays_read(&mut self, relays: usize, messages: usize) {
        if relays > FEW_RELAYS {
            self.several = messages * 2 >= relays * 3;
        }
    }

    /// Judges a batch. Returns whether the room beyond the smallest limit is no longer needed.
    pub(crate) fn judge(&mut self, batch: &HandledBatch) -> bool {
        self.retry = self.retry.saturating_sub(batch.held);
        let full = batch.held >= self.limit;
        if full && batch.relayed * 2 >= batch.held && batch.sent < batch.sends * LONG_RUN {
            self.adapt(batch);
        }
        if batch.held * 4 > self.limit || !self.grown {
            self.calm = 0;
            return false;
        }
        self.calm += 1;
        if self.calm < CALM_BATCHES {
            return false;
        }
        self.calm = 0;
        self.limit = (self.limit / 2).max(Self::MIN);
        self.grown = self.limit > Self::MIN;
        !self.grown
    }

    /// A full batch of relayed datagrams that left in short runs.
    fn adapt(&mut self, batch: &HandledBatch) {
        if self.limit < self.most {
            if self.retry == 0 {
                self.limit = (self.limit * 2).min(self.most);
                self.grown = true;
            }
        } else if batch.sent * 4 < batch.sends * MIN_RUN {
            self.limit = Self::MIN.min(self.most);
            self.retry = RETRY_MESSAGES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of single messages that left in runs of `run`.
    fn batch(held: usize, relayed: usize, run: u64) -> HandledBatch {
        HandledBatch {
            held,
            relayed,
            sent: relayed as u64,
            sends: relayed as u64 / run,
        }
    }

    #[test]
    fn full_batches_of_relayed_datagrams_make_room() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        for _ in 0..20 {
            let limit = limit_of.limit();
            let run = if limit < BatchLimit::MAX { 1 } else { 2 };
            limit_of.judge(&batch(limit, limit, run));
        }
        assert_eq!(limit_of.limit(), BatchLimit::MAX);
    }

    #[test]
    fn flows_that_never_meet_go_back_to_small_batches_and_are_tried_again() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        let (mut messages, mut large) = (0, 0);
        while messages < 4_000_000 {
            let limit = limit_of.limit();
            limit_of.judge(&batch(limit, limit, 1));
            messages += limit;
            large += if limit > BatchLimit::MIN { limit } else { 0 };
        }
        assert!(large > 0, "it is tried again");
        assert!(large * 15 < messages, "{large} of {messages}");
        let given_back = (0..10_000).filter(|_| limit_of.judge(&batch(10, 10, 1)));
        assert_eq!(given_back.count(), 1, "the memory of the attempts");
    }

    #[test]
    fn it_never_exceeds_the_room_there_is() {
        let mut limit_of = BatchLimit::new(BatchLimit::MIN);
        limit_of.judge(&batch(64, 64, 1));
        assert_eq!(limit_of.limit(), BatchLimit::MIN);
        assert_eq!(BatchLimit::new(1).limit(), 1);
    }

    #[test]
    fn datagrams_that_are_not_relayed_do_not_raise_the_limit() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        for _ in 0..20 {
            limit_of.judge(&batch(64, 31, 1));
        }
        assert_eq!(limit_of.limit(), BatchLimit::MIN);
    }

    #[test]
    fn long_runs_need_no_more_room() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        for _ in 0..20 {
            let limit = limit_of.limit();
            let run = limit as u64 / 64;
            limit_of.judge(&batch(limit, limit, run));
        }
        assert_eq!(limit_of.limit(), 64 * LONG_RUN as usize);
    }

    #[test]
    fn calm_gives_the_room_back_once() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        for _ in 0..3 {
            let limit = limit_of.limit();
            limit_of.judge(&batch(limit, limit, 1));
        }
        assert_eq!(limit_of.limit(), 512);
        let given_back = (0..10_000)
            .filter(|_| limit_of.judge(&batch(10, 10, 1)))
            .count();
        assert_eq!((given_back, limit_of.limit()), (1, BatchLimit::MIN));
    }

    #[test]
    fn many_relays_are_probed_now_and_then_and_read_more_while_that_pays() {
        let mut limit_of = BatchLimit::new(BatchLimit::MAX);
        let asked: Vec<usize> = (0..32).map(|_| limit_of.per_relay(100)).collect();
        assert_eq!(asked.iter().filter(|&&each| each == 1).count(), 30);
        limit_of.relays_read(100, 200);
        assert_eq!(limit_of.per_relay(100), MESSAGES_PER_RELAY);
        limit_of.relays_read(100, 120);
        assert_eq!(limit_of.per_relay(100), 1);
        assert_eq!(limit_of.per_relay(FEW_RELAYS), BatchLimit::MIN);
    }
}
