//! Ports held in reserve (RFC 8656 §7.2), and the tokens that claim them.
//!
//! ```text
//! | worker, 1 byte | relay's place, 3 bytes | MAC, 4 bytes |
//! ```
//!
//! The first byte says whom to ask, so that a claim that arrives at another worker finds its port. The MAC
//! includes the generation of the place. A token is valid only for the user who got it, so guessing 32 bits
//! is useless. Access tokens (RFC 7635) name no user: there it is the client's address.

use std::sync::Arc;

use stun::{ErrorCode, HmacKey, HmacTag};

use super::Server;
use super::allocation::{Allocation, Client, RelayIndex, Stage};
use super::output::OpenedRelay;
use super::outputs::Queued;
use super::packed::PackedPath;
use super::policy::ClientIdentity;
use super::quota::{QuotaExceeded, QuotaUnit};
use super::relay::{Relay, Reservation};
use super::request_context::RequestContext;
use super::user::User;
use crate::{Now, RelayKey};

/// Places beyond have no room in a token.
const PLACE_COUNT: u32 = 1 << 24;
/// Where a token's MAC starts.
const MAC_START: usize = 4;

/// A reserved relay that a client of another engine has claimed. Dropping it releases its unit of quota.
#[derive(Debug)]
#[non_exhaustive]
pub struct ClaimedRelay {
    /// The key it had here. It is not valid any more, and no `CloseRelay` follows: move the socket.
    pub relay: RelayKey,
    /// Its addresses.
    pub opened: OpenedRelay,
    /// Its unit of quota, which is the claiming client's by now.
    pub(super) unit: QuotaUnit,
}

/// Why a reserved relay cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The token is not genuine, its reservation has expired, or it belongs to another user: 508 (RFC 8656 §7.2).
    #[error("there is no such reservation")]
    Unknown,
    /// The claiming client may not hold another relayed address.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
}

impl ClaimError {
    pub(super) const fn code(self) -> ErrorCode<'static> {
        match self {
            ClaimError::Unknown => ErrorCode::INSUFFICIENT_CAPACITY,
            ClaimError::Quota(exceeded) => exceeded.code(),
        }
    }
}

/// Whether a reservation of `owner` is the client's.
fn is_same_client(owner: &ClientIdentity<'_>, client: &ClientIdentity<'_>) -> bool {
    let address = |client: &ClientIdentity<'_>| client.five_tuple.remote.ip();
    match (owner.by_token, client.by_token) {
        (true, true) => address(owner) == address(client) && owner.realm == client.realm,
        (one, other) => one == other && owner.user == client.user && owner.realm == client.realm,
    }
}

/// Makes and checks tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    worker: u8,
    key: HmacKey,
}

impl Tokens {
    /// The number of the worker that makes these tokens.
    pub(super) const fn worker(&self) -> u8 {
        self.worker
    }

    pub(super) fn new(worker: u8, key: &[u8]) -> Tokens {
        Tokens {
            worker,
            key: HmacKey::sha256(key),
        }
    }

    /// The token of a relay, if its place fits into one.
    fn token(&self, relay: RelayKey) -> Option<[u8; 8]> {
        if relay.index >= PLACE_COUNT {
            return None;
        }
        let [_, p0, p1, p2] = relay.index.to_be_bytes();
        let mut token = [self.worker, p0, p1, p2, 0, 0, 0, 0];
        for (byte, from) in token[MAC_START..]
            .iter_mut()
            .zip(self.tag(relay).as_bytes())
        {
            *byte = *from;
        }
        Some(token)
    }

    /// Whether this is the relay's token; in a time that does not reveal how much of it is right.
    fn is_genuine(&self, relay: RelayKey, token: [u8; 8]) -> bool {
        relay.index < PLACE_COUNT && self.tag(relay).starts_with(&token[MAC_START..])
    }

    fn tag(&self, relay: RelayKey) -> HmacTag {
        let [_, p0, p1, p2] = relay.index.to_be_bytes();
        let [g0, g1, g2, g3] = relay.generation.to_be_bytes();
        self.key.tag(&[self.worker, p0, p1, p2, g0, g1, g2, g3])
    }
}

impl Server {
    /// Whether a token was made here, as far as it says.
    pub(super) const fn is_own_token(&self, token: [u8; 8]) -> bool {
        token[0] == self.tokens.worker
    }

    /// Whether there is room for another reservation.
    pub(super) fn may_reserve(&self) -> bool {
        self.stats.reservations < self.config.max_reservations as u64
    }

    /// Holds a relay whose socket has just been opened, and returns its token. Its quota was taken with the
    /// request.
    pub(super) fn reserve(
        &mut self,
        now: Now,
        relay: u32,
        place: u32,
        opened: OpenedRelay,
    ) -> Option<[u8; 8]> {
        let client = self.clients.get(place)?;
        let (user, path) = (Arc::clone(&client.user), client.path);
        // RFC 8656 §7.2: "The server MUST hold this reservation for at least 30 seconds".
        let expires = now.mono.plus_secs(u64::from(self.config.reservation_s));
        let reservation = Reservation {
            user,
            path,
            opened,
            expires,
        };
        *self.relays.get_mut(relay)? = Relay::Reserved(Box::new(reservation));
        self.deadlines.set(relay, expires);
        self.stats.reservations += 1;
        let token = self.tokens.token(self.relay_key(relay));
        if token.is_none() {
            self.end_reservation(relay);
        }
        token
    }

    /// The relay that a token claims, if this user may claim it.
    pub(super) fn reserved_relay(
        &self,
        now: Now,
        token: [u8; 8],
        client: &ClientIdentity<'_>,
    ) -> Option<u32> {
        let [_, p0, p1, p2, ..] = token;
        let relay = u32::from_be_bytes([0, p0, p1, p2]);
        let Relay::Reserved(reservation) = self.relays.get(relay)? else {
            return None;
        };
        let owner = Self::identity(&reservation.user, reservation.path.path());
        let is_theirs = is_same_client(&owner, client) && reservation.expires > now.mono;
        let is_genuine =
            self.is_own_token(token) && self.tokens.is_genuine(self.relay_key(relay), token);
        (is_theirs && is_genuine).then_some(relay)
    }

    /// Makes an allocation of a relay held here.
    pub(super) fn use_reservation(
        &mut self,
        now: Now,
        context: &RequestContext,
        user: Arc<User>,
        relay: u32,
        lifetime_s: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let Some(Relay::Reserved(reservation)) = self.relays.get(relay) else {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY);
        };
        let opened = reservation.opened;
        // The unit of quota moves to the client that claims it. If it cannot, the reservation remains.
        let from = Self::identity(&reservation.user, reservation.path.path());
        self.quota
            .transfer(&from, &Self::identity(&user, context.path))
            .map_err(QuotaExceeded::code)?;
        self.stats.reservations -= 1;
        let stage = Stage::Open(Allocation::default());
        let (place, _) = self.clients.insert(Client {
            path: PackedPath::of(&context.path),
            user,
            stage,
        });
        self.establish_on(
            now,
            place,
            RelayIndex::new(relay),
            opened,
            context,
            lifetime_s,
        );
        Ok(())
    }

    /// Another engine's [`Output::ClaimReservation`](super::Output::ClaimReservation), for its client. On success the
    /// relay is no longer known here, and its unit of quota is the claiming client's.
    ///
    /// # Errors
    /// Says why the relay cannot be claimed. A reservation that exists remains.
    pub fn claim_reservation(
        &mut self,
        now: Now,
        token: [u8; 8],
        client: &ClientIdentity<'_>,
    ) -> Result<ClaimedRelay, ClaimError> {
        let relay = self
            .reserved_relay(now, token, client)
            .ok_or(ClaimError::Unknown)?;
        let Some(Relay::Reserved(reservation)) = self.relays.get(relay) else {
            return Err(ClaimError::Unknown);
        };
        let from = Self::identity(&reservation.user, reservation.path.path());
        self.quota.transfer(&from, client)?;
        let opened = reservation.opened;
        let unit = QuotaUnit::acquired(&self.quota, client);
        let key = self.relay_key(relay);
        self.forget_reservation(relay);
        Ok(ClaimedRelay {
            relay: key,
            opened,
            unit,
        })
    }

    /// Ends a reservation that nobody claimed, and releases its quota.
    pub(super) fn end_reservation(&mut self, relay: u32) {
        let key = self.relay_key(relay);
        if let Some(reservation) = self.forget_reservation(relay) {
            self.release(&reservation.user, reservation.path.path(), 1);
            self.outputs.push(Queued::CloseRelay(key));
        }
    }

    /// Removes a reservation. Its unit of quota stays acquired.
    fn forget_reservation(&mut self, relay: u32) -> Option<Box<Reservation>> {
        if !matches!(self.relays.get(relay), Some(Relay::Reserved(_))) {
            return None;
        }
        self.deadlines.remove(relay);
        self.stats.reservations -= 1;
        match self.relays.remove(relay)? {
            Relay::Reserved(reservation) => Some(reservation),
            Relay::Opening(_) | Relay::Live(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_depends_on_worker_place_generation_and_key() {
        let tokens = Tokens::new(3, b"key");
        let relay = RelayKey {
            index: 70_000,
            generation: 9,
        };
        let token = tokens.token(relay).expect("the place fits");
        assert_eq!(token[..4], [3, 1, 0x11, 0x70]);
        let mut others = vec![
            tokens.token(RelayKey {
                generation: 10,
                ..relay
            }),
            tokens.token(RelayKey {
                index: 70_001,
                ..relay
            }),
            Tokens::new(4, b"key").token(relay),
            Tokens::new(3, b"another").token(relay),
        ];
        others.retain(|other| other.is_some_and(|other| other[4..] == token[4..]));
        assert!(others.is_empty());
        assert_eq!(
            tokens.token(RelayKey {
                index: PLACE_COUNT,
                generation: 0
            }),
            None
        );
    }
}
