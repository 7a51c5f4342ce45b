//! Allocations in the making: what the embedder says about their sockets (RFC 8656 §7.2).

use std::sync::Arc;

use stun::{AddressFamily, ErrorCode, TransactionId};

use super::Server;
use super::allocation::{Allocation, Client, Opening, Plan, RelayIndex, Stage};
use super::granted::{Granted, Missing};
use super::output::{OpenError, OpenedRelay};
use super::outputs::Queued;
use super::relay::{LiveRelay, Relay};
use super::request_context::RequestContext;
use super::reservation::{ClaimError, ClaimedRelay};
use crate::{FiveTuple, Now, RelayKey, RequestKey};

/// What became of the sockets, by their place in the request. `None` was not asked for.
type Results = [Option<Result<OpenedRelay, OpenError>>; 2];

/// An allocation that is about to exist.
struct NewAllocation {
    /// Its client's place.
    place: u32,
    allocation: Allocation,
    granted: Granted,
}

impl NewAllocation {
    fn new(now: Now, place: u32, lifetime_s: u32) -> NewAllocation {
        NewAllocation {
            place,
            allocation: Allocation {
                opened_at: now.mono,
                ..Allocation::default()
            },
            granted: Granted {
                lifetime_s,
                ..Granted::default()
            },
        }
    }
}

impl Server {
    /// Whether this very request waits for the embedder.
    pub(super) fn is_opening(&self, five_tuple: &FiveTuple, transaction_id: TransactionId) -> bool {
        let client = self
            .clients
            .find(five_tuple)
            .and_then(|place| self.clients.get(place));
        matches!(client, Some(Client { stage: Stage::Opening(opening), .. })
            if opening.context.transaction_id == transaction_id)
    }

    /// The response to [`Output::OpenRelays`](super::Output::OpenRelays): one result per entry, in the same order.
    /// Returns `false` if the request is not known (any more). Then the embedder closes what it opened.
    pub fn relays_opened(
        &mut self,
        now: Now,
        request: RequestKey,
        results: &[Result<OpenedRelay, OpenError>],
    ) -> bool {
        let Some(opening) = self.take_opening(request, |opening| opening.plan != Plan::Claim)
        else {
            return false;
        };
        let result = |place: usize| {
            // `place` is 0 or 1: an allocation has at most two relays.
            opening.relays[place]
                .map(|_| results.get(place).copied().unwrap_or(Err(OpenError::Other)))
        };
        let results = [result(0), result(1)];
        if let Some(error) = refused(opening.plan, results) {
            self.close_opened(&opening, results);
            self.refuse_opening(request.index, &opening, error);
            return true;
        }
        let mut new_allocation = NewAllocation::new(now, request.index, opening.lifetime_s);
        for (which, (relay, result)) in opening.relays.into_iter().zip(results).enumerate() {
            let Some(relay) = relay else { continue };
            match result {
                Some(Ok(opened)) if opening.plan == Plan::Pair && which == 1 => {
                    new_allocation.granted.token =
                        self.reserve(now, relay.get(), new_allocation.place, opened);
                }
                Some(Ok(opened)) => {
                    self.activate(now, &mut new_allocation, relay, opened);
                    if opening.is_tcp {
                        self.tcp.add_relay(relay.get());
                    }
                }
                _ => self.forget_relay(relay.get(), new_allocation.place),
            }
        }
        new_allocation.granted.missing = missing(opening.plan, results);
        self.establish(new_allocation, &opening.context);
        true
    }

    /// The other response to [`Output::OpenRelays`](super::Output::OpenRelays): the embedder opens nothing and moves
    /// the request to the server that it calls `to`. The request is forgotten here without a response, and its quota is
    /// released before this returns. For a while, requests from the same 5-tuple make an
    /// [`Output::MoveRequest`](super::Output::MoveRequest). Returns `false` if the request is not known (any more).
    pub fn request_moved(&mut self, now: Now, request: RequestKey, to: u16) -> bool {
        // An opening with a reservation token waits for the server that holds the port.
        let Some(opening) = self.take_opening(request, |opening| opening.plan != Plan::Claim)
        else {
            return false;
        };
        self.release_pending(request.index, &opening);
        let context = &opening.context;
        let five_tuple = &context.path.five_tuple;
        self.moved
            .remember(five_tuple, context.transaction_id, to, now.mono);
        true
    }

    /// The response to [`Output::ClaimReservation`](super::Output::ClaimReservation): what the other engine's
    /// [`claim_reservation`](Self::claim_reservation) returned. Returns `false` if the request is not known (any more).
    /// Then the embedder closes the socket.
    pub fn reservation_claimed(
        &mut self,
        now: Now,
        request: RequestKey,
        claimed: Result<ClaimedRelay, ClaimError>,
    ) -> bool {
        let Some(opening) = self.take_opening(request, |opening| opening.plan == Plan::Claim)
        else {
            return false;
        };
        let place = request.index;
        let claimed = match (claimed, opening.relays[0]) {
            (Ok(claimed), Some(relay)) => Ok((claimed, relay)),
            (Err(error), _) => Err(error.code()),
            (Ok(_), None) => Err(ErrorCode::SERVER_ERROR),
        };
        let (claimed, relay) = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                self.refuse_opening(place, &opening, error);
                return true;
            }
        };
        self.establish_on(
            now,
            place,
            relay,
            claimed.opened,
            &opening.context,
            opening.lifetime_s,
        );
        claimed.unit.hand_to_allocation();
        true
    }

    /// Makes an allocation of one relay that is there already.
    pub(super) fn establish_on(
        &mut self,
        now: Now,
        place: u32,
        relay: RelayIndex,
        opened: OpenedRelay,
        context: &RequestContext,
        lifetime_s: u32,
    ) {
        let mut new_allocation = NewAllocation::new(now, place, lifetime_s);
        self.activate(now, &mut new_allocation, relay, opened);
        self.establish(new_allocation, context);
    }

    /// Puts a relay whose socket is open to use.
    fn activate(
        &mut self,
        now: Now,
        new_allocation: &mut NewAllocation,
        relay: RelayIndex,
        opened: OpenedRelay,
    ) {
        let expires = now
            .mono
            .plus_secs(u64::from(new_allocation.granted.lifetime_s));
        let Some(entry) = self.relays.get_mut(relay.get()) else {
            return;
        };
        *entry = Relay::Live(LiveRelay::new(
            new_allocation.place,
            opened.advertised,
            expires,
        ));
        self.deadlines.set(relay.get(), expires);
        self.stats.relays += 1;
        if opened.advertised.is_ipv4() {
            new_allocation.allocation.v4 = Some(relay);
            new_allocation.granted.relayed.v4 = Some(opened.advertised);
        } else {
            new_allocation.allocation.v6 = Some(relay);
            new_allocation.granted.relayed.v6 = Some(opened.advertised);
        }
    }

    /// The allocation exists from now on: says so to the client and to the log.
    fn establish(&mut self, new_allocation: NewAllocation, context: &RequestContext) {
        let NewAllocation {
            place,
            mut allocation,
            mut granted,
        } = new_allocation;
        let Some(client) = self.clients.get_mut(place) else {
            return;
        };
        allocation.made_by = granted.retransmission_record(context);
        client.stage = Stage::Open(allocation);
        let rate = self.config.allocation_rate_of(client.user.realm());
        self.limiter.begin(place, rate, &client.identity());
        let (user, path) = (Arc::clone(&client.user), client.path.path());
        self.stats.allocations += 1;
        self.stats.allocations_opened += 1;
        let (relayed, lifetime_s) = (granted.relayed, granted.lifetime_s);
        self.outputs.push(Queued::Opened {
            user,
            path,
            relayed,
            lifetime_s,
        });
        if context.wants_ticket {
            self.mobility.begin(place);
            granted.ticket = self.ticket(place, 0);
        }
        self.grant(context, &granted);
    }

    /// Takes the request out of its client, if it is there and is meant. The client and its relays stay.
    fn take_opening(
        &mut self,
        request: RequestKey,
        is_meant: impl Fn(&Opening) -> bool,
    ) -> Option<Box<Opening>> {
        let client = self
            .clients
            .get_of_generation(request.index, request.generation)?;
        if !matches!(&client.stage, Stage::Opening(opening) if is_meant(opening)) {
            return None;
        }
        self.stats.pending -= 1;
        match std::mem::replace(&mut client.stage, Stage::Open(Allocation::default())) {
            Stage::Opening(opening) => Some(opening),
            Stage::Open(_) => None,
        }
    }

    /// Closes the sockets of a request that failed as a whole.
    fn close_opened(&mut self, opening: &Opening, results: Results) {
        for (relay, result) in opening.relays.iter().zip(results) {
            if let (Some(relay), Some(Ok(_))) = (relay, result) {
                self.outputs
                    .push(Queued::CloseRelay(self.relay_key(relay.get())));
            }
        }
    }

    /// Gives back everything that a request held, and refuses it.
    fn refuse_opening(&mut self, place: u32, opening: &Opening, error: ErrorCode<'static>) {
        self.release_pending(place, opening);
        self.refuse(&opening.context, &error.into());
    }

    /// Gives back everything that a request held: the client's place, the relays' places and the quota.
    fn release_pending(&mut self, place: u32, opening: &Opening) {
        let relays = opening.relays.iter().flatten();
        for relay in relays.clone() {
            self.shared_ports.forget(relay.get());
            self.relays.remove(relay.get());
            self.deadlines.remove(relay.get());
        }
        if let Some(client) = self.clients.remove(place) {
            let units = if opening.plan == Plan::Claim {
                0
            } else {
                relays.count()
            };
            self.release(&client.user, client.path.path(), units);
        }
    }

    /// Gives back one relay that could not be opened, while the request goes on without it.
    fn forget_relay(&mut self, relay: u32, place: u32) {
        self.shared_ports.forget(relay);
        self.relays.remove(relay);
        self.deadlines.remove(relay);
        if let Some(client) = self.clients.get(place) {
            self.release(&client.user, client.path.path(), 1);
        }
    }

    /// Gives up on a request that waits for the embedder. `error` is the code for the client, if it gets a response.
    pub(super) fn abandon_opening(&mut self, place: u32, error: Option<ErrorCode<'static>>) {
        let request = RequestKey {
            index: place,
            generation: self.clients.generation(place),
        };
        let Some(opening) = self.take_opening(request, |_| true) else {
            return;
        };
        // The embedder may have opened the sockets meanwhile. It ignores a close of a socket that is not open.
        for relay in opening.relays.into_iter().flatten() {
            self.outputs
                .push(Queued::CloseRelay(self.relay_key(relay.get())));
        }
        self.release_pending(place, &opening);
        if let Some(error) = error {
            self.refuse(&opening.context, &error.into());
        }
    }

    /// The full key of a relay.
    pub(super) fn relay_key(&self, index: u32) -> RelayKey {
        RelayKey {
            index,
            generation: self.relays.generation(index),
        }
    }
}

/// Why the whole request fails, if it does. A dual allocation fails only if neither family is
/// available; any other request fails if one part is not available.
fn refused(plan: Plan, results: Results) -> Option<ErrorCode<'static>> {
    let mut failures = results
        .into_iter()
        .flatten()
        .filter_map(|result| result.err().map(code));
    let opened = results.into_iter().flatten().any(|result| result.is_ok());
    if matches!(plan, Plan::Dual { .. }) && opened {
        None
    } else {
        failures.next()
    }
}

/// The family that a dual allocation lacks (RFC 8656 §7.2, 9): not supported if it was not even asked for.
fn missing(plan: Plan, results: Results) -> Option<Missing> {
    let Plan::Dual { draft } = plan else {
        return None;
    };
    let families = [AddressFamily::V4, AddressFamily::V6];
    families
        .into_iter()
        .zip(results)
        .find_map(|(family, result)| match result {
            None => Some(Missing {
                family,
                error: ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED,
                draft,
            }),
            Some(Err(error)) => Some(Missing {
                family,
                error: code(error),
                draft,
            }),
            Some(Ok(_)) => None,
        })
}

const fn code(error: OpenError) -> ErrorCode<'static> {
    match error {
        OpenError::FamilyUnsupported => ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED,
        OpenError::NoPort | OpenError::NoDescriptor | OpenError::Other => {
            ErrorCode::INSUFFICIENT_CAPACITY
        }
    }
}
