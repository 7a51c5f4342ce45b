//! Received datagrams that are not the datagrams of this run: each kind has its counter, and none counts as received.

use std::ops::AddAssign;

use crate::report::Totals;

/// Kinds of datagrams that arrived and do not count as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnexpectedDatagram {
    /// Shorter or longer than it was sent.
    Truncated,
    /// Changed behind its head, or no message at all.
    Corrupt,
    /// Changed in its head: magic, run, flow, sequence, time.
    Damaged,
    /// Whole, of another run or another program.
    OtherRun,
    /// Whole, and of another client of this run.
    Misdelivered,
    /// From an address that is not the server, or nothing that a sender of this run sends.
    Foreign,
    /// A response to a request that was never made.
    UnknownId,
    /// A response with another mapped address, or none.
    WrongAddress,
    /// It arrived after its number was forgotten, so it may be a duplicate.
    Late,
}

const KINDS: usize = UnexpectedDatagram::Late as usize + 1;

/// How many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnexpectedCounts([u64; KINDS]);

impl UnexpectedCounts {
    pub(super) fn add(&mut self, kind: UnexpectedDatagram) {
        self.0[kind as usize] += 1;
    }

    fn get(self, kind: UnexpectedDatagram) -> u64 {
        self.0[kind as usize]
    }

    /// Enters them into a report.
    pub(super) fn add_to(self, total: &mut Totals) {
        total.truncated = self.get(UnexpectedDatagram::Truncated);
        total.corrupt = self.get(UnexpectedDatagram::Corrupt);
        total.damaged = self.get(UnexpectedDatagram::Damaged);
        total.other_run = self.get(UnexpectedDatagram::OtherRun);
        total.misdelivered = self.get(UnexpectedDatagram::Misdelivered);
        total.foreign = self.get(UnexpectedDatagram::Foreign);
        total.unknown_ids = self.get(UnexpectedDatagram::UnknownId);
        total.wrong_addresses = self.get(UnexpectedDatagram::WrongAddress);
        total.late = self.get(UnexpectedDatagram::Late);
    }
}

impl AddAssign for UnexpectedCounts {
    fn add_assign(&mut self, more: UnexpectedCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(more.0) {
            *mine += theirs;
        }
    }
}
