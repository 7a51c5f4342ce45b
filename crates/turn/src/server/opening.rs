//! Allocations in the making: what the embedder says about their sockets (RFC 8656 §7.2).

use std::sync::Arc;

use stun::{
    AddressErrorCode, AddressFamily, AttributeType, BuildError, Builder, Encode, ErrorCode,
    Lifetime, ReservationToken, TransactionId, XorMappedAddress, XorRelayedAddress,
};

use super::Server;
use super::allocation::{Allocation, Client, Opening, Plan, RelayIndex, Stage};
use super::asked::Asked;
use super::output::{OpenError, OpenedRelay, RelayedAddresses};
use super::outputs::Queued;
use super::relay::{LiveRelay, Relay};
use crate::{FiveTuple, Now, RelayKey, RequestKey};

/// ADDRESS-ERROR-CODE for those who ask as the draft did: see [`Config::draft_dual_allocation`](super::Config).
const DRAFT_ADDRESS_ERROR_CODE: AttributeType = AttributeType(0x8033);

/// What became of the sockets, by their place in the request. `None` was not asked for.
type Results = [Option<Result<OpenedRelay, OpenError>>; 2];

/// What an Allocate success response says.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    relayed: RelayedAddresses,
    lifetime_s: u32,
    token: Option<[u8; 8]>,
    /// The family of a dual allocation that was not granted, and why.
    refused: Option<Missing>,
}

/// Half of a dual allocation that could not be granted.
#[derive(Clone, Copy, Debug)]
struct Missing {
    family: AddressFamily,
    error: ErrorCode<'static>,
    /// Whether the client knows ADDRESS-ERROR-CODE by the number of the draft.
    draft: bool,
}

impl Missing {
    /// ADDRESS-ERROR-CODE (RFC 8656 §18.12).
    fn write(&self, message: &mut Builder<'_>) -> Result<(), BuildError> {
        let ErrorCode { code, reason } = self.error;
        let attribute = AddressErrorCode {
            family: self.family,
            code,
            reason,
        };
        if !self.draft {
            return message.push(&attribute).map(drop);
        }
        let mut value = [0; 64];
        let value = value
            .get_mut(..attribute.value_len())
            .ok_or(BuildError::BufferFull)?;
        attribute.encode(value, &TransactionId::default())?;
        message.push_raw(DRAFT_ADDRESS_ERROR_CODE, value).map(drop)
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
            if opening.asked.transaction_id == transaction_id)
    }

    /// The embedder has opened sockets, or has not.
    pub(super) fn opened(
        &mut self,
        now: Now,
        request: RequestKey,
        results: &[Result<OpenedRelay, OpenError>],
    ) -> bool {
        let is_claim = |opening: &Opening| opening.plan == Plan::Claim;
        let Some(opening) = self.take_opening(request, |opening| !is_claim(opening)) else {
            return false;
        };
        let result = |place: usize| {
            opening.relays[place]
                .map(|_| results.get(place).copied().unwrap_or(Err(OpenError::Other)))
        };
        let results = [result(0), result(1)];
        if let Some(refused) = refused(opening.plan, results) {
            self.close_opened(&opening, results);
            self.refuse_opening(now, request.index, &opening, refused);
            return true;
        }
        let place = request.index;
        let mut granted = Granted {
            lifetime_s: opening.lifetime_s,
            ..Granted::default()
        };
        let mut allocation = Allocation {
            opened_at: now.mono,
            ..Allocation::default()
        };
        for (which, result) in results.into_iter().enumerate() {
            let Some(relay) = opening.relays[which] else {
                continue;
            };
            match result {
                Some(Ok(opened)) if opening.plan == Plan::Pair && which == 1 => {
                    granted.token = self.reserve(now, relay.get(), place, opened);
                }
                Some(Ok(opened)) => {
                    self.go_live(now, place, relay, opened, opening.lifetime_s);
                    put(&mut allocation, &mut granted.relayed, relay, opened);
                }
                _ => self.forget_relay(relay.get(), place),
            }
        }
        if let Plan::Dual { draft } = opening.plan {
            granted.refused = missing(results).map(|(family, error)| Missing {
                family,
                error,
                draft,
            });
        }
        self.open_allocation(now, place, allocation, &opening.asked, &granted);
        true
    }

    /// Another worker has handed over the relay it held in reserve, or has none.
    pub(super) fn claimed(
        &mut self,
        now: Now,
        request: RequestKey,
        opened: Option<OpenedRelay>,
    ) -> bool {
        let Some(opening) = self.take_opening(request, |opening| opening.plan == Plan::Claim)
        else {
            return false;
        };
        let place = request.index;
        let Some(opened) = opened else {
            self.refuse_opening(now, place, &opening, ErrorCode::INSUFFICIENT_CAPACITY);
            return true;
        };
        let (Some(relay), Some(user)) = (opening.relays[0], opening.asked.user.clone()) else {
            return false;
        };
        // The other worker has given back its unit: the reservation's becomes the allocation's.
        let source = opening.asked.path.five_tuple.remote.ip();
        if let Err(error) = self.acquire(user.name(), source, 1) {
            self.outputs
                .push(Queued::CloseRelay(self.relay_key(relay.get())));
            self.refuse_opening(now, place, &opening, error);
            return true;
        }
        self.start_allocation(
            now,
            place,
            relay,
            opened,
            &opening.asked,
            opening.lifetime_s,
        );
        true
    }

    /// Makes an allocation of one relay that is there already.
    pub(super) fn start_allocation(
        &mut self,
        now: Now,
        place: u32,
        relay: RelayIndex,
        opened: OpenedRelay,
        asked: &Asked,
        lifetime_s: u32,
    ) {
        let mut granted = Granted {
            lifetime_s,
            ..Granted::default()
        };
        let mut allocation = Allocation {
            opened_at: now.mono,
            ..Allocation::default()
        };
        self.go_live(now, place, relay, opened, lifetime_s);
        put(&mut allocation, &mut granted.relayed, relay, opened);
        self.open_allocation(now, place, allocation, asked, &granted);
    }

    /// Takes the request out of its client, if it is there and is meant. The client and its relays stay.
    fn take_opening(
        &mut self,
        request: RequestKey,
        is_meant: impl Fn(&Opening) -> bool,
    ) -> Option<Box<Opening>> {
        let client = self.clients.get_tenant(request.index, request.generation)?;
        if !matches!(&client.stage, Stage::Opening(opening) if is_meant(opening)) {
            return None;
        }
        self.stats.pending -= 1;
        match std::mem::replace(&mut client.stage, Stage::Open(Allocation::default())) {
            Stage::Opening(opening) => Some(opening),
            Stage::Open(_) => None,
        }
    }

    fn go_live(
        &mut self,
        now: Now,
        place: u32,
        relay: RelayIndex,
        opened: OpenedRelay,
        lifetime_s: u32,
    ) {
        let expires = now.mono.plus_secs(u64::from(lifetime_s));
        if let Some(entry) = self.relays.get_mut(relay.get()) {
            *entry = Relay::Live(LiveRelay::new(place, opened.advertised, expires));
            self.deadlines.set(relay.get(), expires);
            self.stats.relays += 1;
        }
    }

    /// The allocation exists from now on: says so to the client and to the log.
    fn open_allocation(
        &mut self,
        now: Now,
        place: u32,
        allocation: Allocation,
        asked: &Asked,
        granted: &Granted,
    ) {
        let Some(client) = self.clients.get_mut(place) else {
            return;
        };
        client.stage = Stage::Open(allocation);
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
        self.grant(now, asked, granted);
    }

    /// The Allocate success response (RFC 8656 §7.2).
    fn grant(&mut self, now: Now, asked: &Asked, granted: &Granted) {
        let mapped = asked.path.five_tuple.remote;
        self.succeed(now, asked, |message| {
            for relayed in [granted.relayed.v4, granted.relayed.v6]
                .into_iter()
                .flatten()
            {
                message.push(&XorRelayedAddress(relayed))?;
            }
            message.push(&Lifetime(granted.lifetime_s))?;
            if let Some(token) = granted.token {
                message.push(&ReservationToken(token))?;
            }
            if let Some(missing) = &granted.refused {
                missing.write(message)?;
            }
            message.push(&XorMappedAddress(mapped)).map(drop)
        });
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
    fn refuse_opening(
        &mut self,
        now: Now,
        place: u32,
        opening: &Opening,
        error: ErrorCode<'static>,
    ) {
        self.dissolve(place, opening);
        self.refuse(now, &opening.asked, &error.into());
    }

    /// Gives back everything that a request held: the client's place, the relays' places and the quota.
    fn dissolve(&mut self, place: u32, opening: &Opening) {
        let relays = opening.relays.iter().flatten();
        for relay in relays.clone() {
            self.relays.remove(relay.get());
            self.deadlines.remove(relay.get());
        }
        if let Some(client) = self.clients.remove(place) {
            let units = if opening.plan == Plan::Claim {
                0
            } else {
                relays.count()
            };
            self.release(client.user.name(), client.path.source(), units);
        }
    }

    /// Gives back one relay that could not be opened, while the request goes on without it.
    fn forget_relay(&mut self, relay: u32, place: u32) {
        self.relays.remove(relay);
        self.deadlines.remove(relay);
        if let Some(client) = self.clients.get(place) {
            self.release(client.user.name(), client.path.source(), 1);
        }
    }

    /// Gives up on a request that waits for the embedder. `error` is what the client is told, if anything.
    pub(super) fn abandon_opening(
        &mut self,
        now: Now,
        place: u32,
        error: Option<ErrorCode<'static>>,
    ) {
        let request = RequestKey {
            index: place,
            generation: self.clients.generation(place),
        };
        let Some(opening) = self.take_opening(request, |_| true) else {
            return;
        };
        // The sockets may be open by now without our knowing: a close for nothing is for the embedder to ignore.
        for relay in opening.relays.into_iter().flatten() {
            self.outputs
                .push(Queued::CloseRelay(self.relay_key(relay.get())));
        }
        self.dissolve(place, &opening);
        if let Some(error) = error {
            self.refuse(now, &opening.asked, &error.into());
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

/// Files a relay under the family of its address.
fn put(
    allocation: &mut Allocation,
    relayed: &mut RelayedAddresses,
    relay: RelayIndex,
    opened: OpenedRelay,
) {
    if opened.advertised.is_ipv4() {
        allocation.v4 = Some(relay);
        relayed.v4 = Some(opened.advertised);
    } else {
        allocation.v6 = Some(relay);
        relayed.v6 = Some(opened.advertised);
    }
}

/// Why the request fails as a whole, if it does: a dual allocation only if neither family could be had, everything else if
/// anything could not.
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
fn missing(results: Results) -> Option<(AddressFamily, ErrorCode<'static>)> {
    let families = [AddressFamily::V4, AddressFamily::V6];
    families
        .into_iter()
        .zip(results)
        .find_map(|(family, result)| match result {
            None => Some((family, ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED)),
            Some(Err(error)) => Some((family, code(error))),
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
