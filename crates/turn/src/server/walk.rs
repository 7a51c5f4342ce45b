//! Work on all relays or all allocations, in bounded steps.
//!
//! A new configuration concerns every offloaded channel, and a shutdown every allocation. Neither may hold up the
//! worker's datagrams, so each call of [`Server::handle_timeout`] does one step, and [`Server::poll_timeout`] is in the
//! past until all is done.

use super::Server;
use super::config::Config;
use super::output::CloseReason;
use crate::{Mono, Now};

/// Relays or allocations per step.
const STEP_ENTRIES: u32 = 64;

/// How far the walks are.
#[derive(Debug, Default)]
pub(super) struct PolicySweep {
    reclassify: Option<Reclassify>,
    close: Option<Close>,
}

/// The relays from `next` on are to be classified again.
#[derive(Clone, Copy, Debug)]
struct Reclassify {
    next: u32,
    /// Whether offloaded channels are described again: with a rate limit they are described differently.
    again: bool,
    since: Mono,
}

/// The allocations, then the reservations, from `next` on are to be closed.
#[derive(Clone, Copy, Debug)]
struct Close {
    next: u32,
    reason: CloseReason,
    since: Mono,
}

impl PolicySweep {
    /// When the oldest of them began; `None` if there is none.
    pub(super) fn since(&self) -> Option<Mono> {
        let reclassify = self.reclassify.map(|walk| walk.since);
        let close = self.close.map(|walk| walk.since);
        reclassify.into_iter().chain(close).min()
    }
}

impl Server {
    /// Ends all allocations, reservations and pending requests, in bounded steps: call
    /// [`handle_timeout`](Self::handle_timeout) until [`is_closing`](Self::is_closing) is false.
    pub fn close_all(&mut self, now: Now, reason: CloseReason) {
        self.forget_lookups();
        self.walks.close = Some(Close {
            next: 0,
            reason,
            since: now.mono,
        });
    }

    /// Whether [`close_all`](Self::close_all) has not ended everything yet.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.walks.close.is_some()
    }

    /// The configuration has changed from `before`: the policy may allow other peers.
    pub(super) fn start_reclassifying(&mut self, now: Now, before: &Config) {
        if !before.offload && !self.config.offload {
            return;
        }
        let unfinished = self.walks.reclassify.is_some_and(|walk| walk.again);
        self.walks.reclassify = Some(Reclassify {
            next: 0,
            again: unfinished || self.config.limits_rate() != before.limits_rate(),
            since: now.mono,
        });
    }

    /// Takes one step of each walk.
    pub(super) fn walk(&mut self, now: Now) {
        if let Some(walk) = self.walks.reclassify {
            let end = walk.next + STEP_ENTRIES;
            (walk.next..end).for_each(|relay| self.reclassify(now, relay, walk.again));
            let is_over = end as usize >= self.relays.slots_end();
            self.walks.reclassify = (!is_over).then_some(Reclassify { next: end, ..walk });
        }
        if let Some(walk) = self.walks.close {
            let end = walk.next + STEP_ENTRIES;
            for index in walk.next..end {
                self.end_client(now, index, walk.reason);
                self.end_reservation(index);
            }
            let bound = self.clients.places_ever().max(self.relays.slots_end());
            self.walks.close = ((end as usize) < bound).then_some(Close { next: end, ..walk });
        }
    }
}
