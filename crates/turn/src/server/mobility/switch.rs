//! The end of a move: the second 5-tuple of an allocation becomes its only one.

use std::sync::Arc;
use std::time::Duration;

use super::super::Server;
use super::super::deletions::WINDOW_S;
use super::super::outputs::{Moved, PathChange, Queued};
use super::super::packed::PackedPath;
use super::super::relay::Relay;
use crate::{ClientPath, FiveTuple, Now};

impl Server {
    /// Data has come from a 5-tuple that is no allocation's first one. If it is one's second, the client has moved
    /// there. Returns whether it has.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn switches_to(&mut self, now: Now, five_tuple: &FiveTuple) -> bool {
        let index = self.mobility.find(five_tuple);
        index.is_some_and(|index| self.switch(now, index))
    }

    /// The connection of a 5-tuple is closed. Returns whether its allocation stays, because it has a ticket.
    pub(in super::super) fn survives_close(&mut self, now: Now, five_tuple: &FiveTuple) -> bool {
        if let Some(index) = self.mobility.find(five_tuple) {
            let second = self.mobility.take_second(index);
            self.outputs
                .extend(second.map(PathChange::Removed).map(Queued::Path));
            return true;
        }
        let Some(index) = self.clients.find(five_tuple) else {
            return false;
        };
        if !self.mobility.mobile.contains_key(&index) || self.clients.allocation(index).is_none() {
            return false;
        }
        if !self.switch(now, index)
            && let Some(mobile) = self.mobility.mobile.get_mut(&index)
        {
            mobile.is_disconnected = true;
        }
        true
    }

    /// Makes the second 5-tuple of a client its only one, if the connection of the first one is closed already.
    pub(in super::super) fn switch_if_disconnected(&mut self, now: Now, index: u32) {
        let mobile = self.mobility.mobile.get(&index);
        if mobile.is_some_and(|mobile| mobile.is_disconnected) {
            self.switch(now, index);
        }
    }

    /// Makes the second 5-tuple of this client its only one. RFC 8016 §3.2.2: the old ticket goes with the old 5-tuple.
    fn switch(&mut self, now: Now, index: u32) -> bool {
        let Some(to) = self.mobility.take_second(index) else {
            return false;
        };
        let Some(allocation) = self.clients.allocation(index) else {
            return false;
        };
        let relays: Vec<u32> = allocation.relays().collect();
        for relay in &relays {
            self.stop_offloads(*relay);
        }
        self.remember_moved_allocate(now, index);
        let Some(from) = self.clients.set_path(index, PackedPath::of(&to)) else {
            return false;
        };
        if let Some(mobile) = self.mobility.mobile.get_mut(&index) {
            mobile.last = None;
            mobile.is_disconnected = false;
            mobile.counted_at = mobile.counted_at.filter(|path| *path != to);
        }
        let rate = self.rate_at(index);
        if let Some(client) = self.clients.get(index) {
            self.limiter.begin(index, rate, &client.identity());
            let user = Arc::clone(&client.user);
            let to = to.five_tuple;
            let moved = Moved { user, from, to };
            self.outputs
                .push(Queued::Path(PathChange::Moved(Box::new(moved))));
        }
        for relay in relays {
            self.ask_policy_again(relay);
            self.reclassify(now, relay, false);
        }
        self.stats.allocations_moved += 1;
        true
    }

    /// A retransmission of the Allocate request from the old 5-tuple would make another allocation.
    fn remember_moved_allocate(&mut self, now: Now, index: u32) {
        let (Some(client), Some(allocation)) =
            (self.clients.get(index), self.clients.allocation(index))
        else {
            return;
        };
        let path: ClientPath = client.path.path();
        let is_recent = now.mono.since(allocation.opened_at) < Duration::from_secs(WINDOW_S);
        if is_recent && !path.five_tuple.transport.is_stream() {
            let (user, transaction_id) =
                (Arc::clone(&client.user), allocation.made_by.transaction_id);
            let limit = self.config.max_deletions;
            self.deletions
                .remember((&path, transaction_id, user), limit, now.mono);
            self.stats.deletions = self.deletions.len() as u64;
        }
    }

    /// The policy may depend on where the client is.
    fn ask_policy_again(&mut self, relay: u32) {
        let epoch = self.policy_epoch.wrapping_sub(1);
        if let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) {
            for channel in live.channels.all() {
                channel.policy_epoch = epoch;
            }
        }
    }
}
