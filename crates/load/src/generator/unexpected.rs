//! Received datagrams that are not the datagrams of this run: each kind has its counter, and none counts as received.

use std::ops::AddAssign;

use turn::client::Ignored;

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
    /// A response to a request that was never made, or that has its response.
    UnknownId,
    /// A response with a wrong or missing MESSAGE-INTEGRITY (RFC 8489 §9.2.5).
    Untrusted,
    /// Data on a channel that is not bound, or from a peer without a permission.
    Unbound,
    /// A response with another mapped address, or none.
    WrongAddress,
    /// It arrived after its number was forgotten, so it may be a duplicate.
    Late,
}

impl UnexpectedDatagram {
    /// The kind of a datagram from the server that a TURN client ignores.
    pub(super) fn of_ignored(why: Ignored, datagram: &[u8]) -> UnexpectedDatagram {
        match why {
            Ignored::UnknownTransaction => UnexpectedDatagram::UnknownId,
            Ignored::Untrusted => UnexpectedDatagram::Untrusted,
            Ignored::UnboundChannel | Ignored::NotPermitted => UnexpectedDatagram::Unbound,
            _ if is_cut(datagram) => UnexpectedDatagram::Truncated,
            _ => UnexpectedDatagram::Corrupt,
        }
    }
}

/// Whether the length of a datagram does not match its header. STUN: the length differs (RFC 8489 §5). ChannelData: the
/// datagram is shorter than the header says (RFC 8656 §12.4). The first bits tell which of the two it is.
pub(super) fn is_cut(datagram: &[u8]) -> bool {
    const CHANNEL_HEADER: usize = 4;
    let Some(&[first, _, high, low]) = datagram.first_chunk::<4>() else {
        return true;
    };
    let said = usize::from(u16::from_be_bytes([high, low]));
    match first {
        0..64 => said.is_multiple_of(4) && datagram.len() != stun::HEADER_LEN + said,
        64..80 => datagram.len() < CHANNEL_HEADER + said,
        _ => false,
    }
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
        total.untrusted = self.get(UnexpectedDatagram::Untrusted);
        total.unbound = self.get(UnexpectedDatagram::Unbound);
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
