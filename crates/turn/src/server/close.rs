//! Ends relays, allocations, reservations and requests, one by one or when they expire.

use std::sync::Arc;

use stun::ErrorCode;

use super::Server;
use super::allocation::Stage;
use super::output::{CloseReason, RelayedAddresses};
use super::outputs::{Change, Closed, PathChange, Queued};
use super::relay::Relay;
use crate::{AllocationKey, FiveTuple, Mono, Now};

/// How many relays one call of `handle_timeout` sees to, so that a wave of expiries does not hold up the
/// worker's datagrams.
const RELAYS_PER_CALL: usize = 64;

impl Server {
    /// The client with this 5-tuple. If its allocation has expired, or a part of it, closes that part before it
    /// returns.
    pub(super) fn client_at(&mut self, now: Now, five_tuple: &FiveTuple) -> Option<u32> {
        let place = self.holder_of(five_tuple)?;
        if let Some(allocation) = self.clients.allocation(place) {
            let relays = allocation.relays();
            for relay in relays
                .filter(|relay| self.expires(*relay) <= now.mono)
                .collect::<Vec<_>>()
            {
                self.expire_relay(now, relay);
            }
        }
        self.holder_of(five_tuple)
    }

    /// When a relay in use expires.
    fn expires(&self, relay: u32) -> Mono {
        self.relays
            .get(relay)
            .and_then(Relay::live)
            .map_or(Mono::NEVER, |live| live.expires)
    }

    /// Ends an allocation, with all its relays.
    pub(super) fn close_client(&mut self, now: Now, place: u32, reason: CloseReason) {
        let Some(allocation) = self.clients.allocation(place) else {
            return;
        };
        let relayed = self.relayed(place);
        let key = AllocationKey {
            index: place,
            generation: self.clients.generation(place),
        };
        for relay in allocation.relays().collect::<Vec<_>>() {
            self.close_relay(relay);
        }
        let Some(client) = self.clients.remove(place) else {
            return;
        };
        let Stage::Open(allocation) = client.stage else {
            return;
        };
        if let Some(second) = self.mobility.forget(place) {
            self.outputs.push(Queued::Path(PathChange::Removed(second)));
        }
        self.limiter.end(place);
        self.stats.allocations -= 1;
        self.stats.count_closed(reason);
        self.outputs.push(Queued::Closed(Box::new(Closed {
            allocation: key,
            user: client.user,
            path: client.path.path(),
            relayed,
            to_peers: allocation.to_peers,
            to_client: allocation.to_client,
            duration: now.mono.since(allocation.opened_at),
            reason,
        })));
    }

    /// The addresses of a client's relays.
    pub(super) fn relayed(&self, place: u32) -> RelayedAddresses {
        let Some(allocation) = self.clients.allocation(place) else {
            return RelayedAddresses::default();
        };
        let advertised = |relay: u32| {
            self.relays
                .get(relay)
                .and_then(Relay::live)
                .map(|live| live.advertised.address())
        };
        RelayedAddresses {
            v4: allocation.v4.and_then(|relay| advertised(relay.get())),
            v6: allocation.v6.and_then(|relay| advertised(relay.get())),
        }
    }

    /// Ends one relay of an allocation: its permissions and channels go with it. The allocation stays, even
    /// without a relay.
    pub(super) fn close_relay(&mut self, relay: u32) {
        let key = self.relay_key(relay);
        self.stop_offloads(relay);
        self.close_connections_of(relay);
        let Some(Relay::Live(live)) = self.relays.remove(relay) else {
            return;
        };
        self.deadlines.remove(relay);
        self.shared_ports.forget(relay);
        self.stats.relays -= 1;
        self.stats.permissions -= live.permissions.len() as u64;
        self.stats.channels -= live.channels.len() as u64;
        self.outputs.push(Queued::CloseRelay(key));
        let Some(client) = self.clients.get_mut(live.client) else {
            return;
        };
        if let Stage::Open(allocation) = &mut client.stage {
            allocation.v4 = allocation.v4.filter(|other| other.get() != relay);
            allocation.v6 = allocation.v6.filter(|other| other.get() != relay);
        }
        let counted_at = self.mobility.counted_at(live.client);
        let path = counted_at.unwrap_or_else(|| client.path.path());
        let user = Arc::clone(&client.user);
        self.release(&user, path, 1);
    }

    /// Ends a relay that was not refreshed in time, and its allocation with the last one.
    fn expire_relay(&mut self, now: Now, relay: u32) {
        let Some(live) = self.relays.get(relay).and_then(Relay::live) else {
            return;
        };
        let place = live.client;
        let Some(allocation) = self.clients.allocation(place) else {
            return;
        };
        let all_over = allocation
            .relays()
            .all(|relay| self.expires(relay) <= now.mono);
        if all_over {
            self.close_client(now, place, CloseReason::Expired);
        } else {
            self.report_ends(relay);
            self.close_relay(relay);
        }
    }

    /// Deletes the expired permissions and channels of a relay.
    pub(super) fn sweep(&mut self, now: Now, relay: u32) {
        self.stop_lapsed_offloads(now, relay);
        let is_reported = self.config.report_changes;
        let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) else {
            return;
        };
        // Stays empty, and so uses no memory, if changes are not reported.
        let (mut ends, client) = (Vec::new(), live.client);
        self.stats.channels -= live.channels.expire(now.mono, |channel| {
            ends.extend(is_reported.then(|| Change::end_of_channel(channel)));
        }) as u64;
        self.stats.permissions -= live.permissions.expire(now.mono, |permission| {
            ends.extend(is_reported.then(|| Change::end_of_permission(permission)));
        }) as u64;
        self.end_unused_claims(relay);
        self.update_deadline(relay);
        self.report_all(client, ends);
    }

    /// Sets the deadline of a relay in use to what expires first.
    pub(super) fn update_deadline(&mut self, relay: u32) {
        if let Some(live) = self.relays.get(relay).and_then(Relay::live) {
            self.deadlines.set(relay, live.earliest());
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called next; exact, and `None` if nothing can expire.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let relay = self.deadlines.first().map(|(at, _)| at);
        let memories = earlier(self.deletions.all_old_at(), self.moved.all_old_at());
        let waiting = earlier(self.lookups.next_deadline(), self.walks.since());
        let connections = self.next_connection_deadline();
        earlier(earlier(relay, memories), earlier(waiting, connections))
    }

    /// Expires what is due. Does a bounded amount of work: call [`poll_timeout`](Self::poll_timeout) again afterwards.
    pub fn handle_timeout(&mut self, now: Now) {
        self.walk(now);
        for _ in 0..RELAYS_PER_CALL {
            match self.deadlines.first() {
                Some((at, relay)) if at <= now.mono => self.relay_due(now, relay),
                _ => break,
            }
        }
        self.expire_lookups(now);
        self.expire_connections(now);
        if self.deletions.all_old_at().is_some_and(|at| at <= now.mono) {
            self.deletions.clear();
            self.stats.deletions = 0;
        }
        if self.moved.all_old_at().is_some_and(|at| at <= now.mono) {
            self.moved.clear();
        }
    }

    fn relay_due(&mut self, now: Now, relay: u32) {
        match self.relays.get(relay) {
            // The embedder did not respond in time.
            Some(Relay::Opening(place)) => {
                self.abandon_opening(*place, Some(ErrorCode::INSUFFICIENT_CAPACITY));
            }
            Some(Relay::Reserved(_)) => self.end_reservation(relay),
            Some(Relay::Live(live)) if live.expires <= now.mono => self.expire_relay(now, relay),
            Some(Relay::Live(_)) => self.sweep(now, relay),
            None => self.deadlines.remove(relay),
        }
    }

    /// The client's connection is closed: its allocation ends, unless it has a ticket (RFC 8016). For stream transports
    /// and DTLS.
    pub fn client_closed(&mut self, now: Now, five_tuple: &FiveTuple) {
        self.forget_lookups_of(five_tuple);
        self.set_server_name(five_tuple, None);
        if self.survives_close(now, five_tuple) {
            return;
        }
        if let Some(place) = self.clients.find(five_tuple) {
            self.end_client(now, place, CloseReason::ClientClosed);
        }
    }

    /// Ends a client's allocation, or its request for one without a response.
    pub(super) fn end_client(&mut self, now: Now, place: u32, reason: CloseReason) {
        if self.clients.allocation(place).is_some() {
            self.close_client(now, place, reason);
        } else {
            self.abandon_opening(place, None);
        }
    }
}

/// The earlier of two deadlines, of which either may not exist.
fn earlier(one: Option<Mono>, other: Option<Mono>) -> Option<Mono> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
