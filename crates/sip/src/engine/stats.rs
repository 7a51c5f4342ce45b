//! Counters of an engine. They only rise; the gauges beside them are computed when asked for.

use super::error::DropReason;
use crate::congestion::ShedCounts;

/// What has happened so far, and how things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests received that belong to no transaction yet, accepted or not; ACKs are not among them.
    pub requests: u64,
    /// Requests received again.
    pub retransmissions_received: u64,
    /// Requests and responses sent again.
    pub retransmissions_sent: u64,
    /// Requests sent, retransmissions not counted.
    pub requests_sent: u64,
    /// Responses received by class, 1xx first.
    pub responses_received: [u64; 6],
    /// Responses sent by class, 1xx first, retransmissions not counted.
    pub responses_sent: [u64; 6],
    /// ACKs received.
    pub acks: u64,
    /// Client transactions that timed out.
    pub timeouts: u64,
    /// Finished server transactions that ended early to make room for new ones. They only absorbed retransmissions.
    pub cut_short: u64,
    /// Requests refused with 503 because there were as many transactions as there may be.
    pub without_room: u64,
    /// Messages dropped, by [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Work shed.
    pub shed: ShedCounts,
    /// Server transactions alive.
    pub servers: usize,
    /// Client transactions alive.
    pub clients: usize,
    /// Timers alive: as many as transactions.
    pub timers: usize,
    /// Bytes of messages kept by transactions.
    pub message_bytes: usize,
    /// Connections known.
    pub connections: usize,
}

impl Stats {
    pub(super) fn count_drop(&mut self, reason: DropReason) {
        let place = DropReason::ALL.iter().position(|known| *known == reason);
        if let Some(counter) = place.and_then(|place| self.dropped.get_mut(place)) {
            *counter += 1;
        }
    }

    pub(super) fn count_sent(&mut self, code: u16) {
        count(&mut self.responses_sent, code);
    }

    pub(super) fn count_received(&mut self, code: u16) {
        count(&mut self.responses_received, code);
    }
}

fn count(classes: &mut [u64; 6], code: u16) {
    let class = usize::from(code / 100).wrapping_sub(1);
    if let Some(counter) = classes.get_mut(class) {
        *counter += 1;
    }
}
