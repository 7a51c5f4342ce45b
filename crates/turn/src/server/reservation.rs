//! Ports held in reserve (RFC 8656 §7.2), and the tokens that claim them.
//!
//! ```text
//! | worker, 1 byte | relay's place, 3 bytes | MAC, 4 bytes |
//! ```
//!
//! The first byte says whom to ask, so that a claim that arrives at another worker finds its port. The MAC
//! covers the place's generation too; and a token is good only for the user who got it, so that guessing 32
//! bits gains nothing.

use std::sync::Arc;

use stun::{ErrorCode, HmacKey, HmacTag};

use super::ClaimedRelay;
use super::Server;
use super::allocation::{Allocation, Client, RelayIndex, Stage};
use super::asked::Asked;
use super::output::OpenedRelay;
use super::outputs::Queued;
use super::packed::PackedPath;
use super::relay::{Relay, Reservation};
use super::user::User;
use crate::{Now, RelayKey};

/// Places beyond have no room in a token.
const PLACES: u32 = 1 << 24;
/// Where a token's MAC starts.
const MAC: usize = 4;

/// Makes and checks tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    worker: u8,
    key: HmacKey,
}

impl Tokens {
    pub(super) fn new(worker: u8, key: &[u8]) -> Tokens {
        Tokens {
            worker,
            key: HmacKey::sha256(key),
        }
    }

    /// The token of a relay, if its place fits into one.
    fn token(&self, relay: RelayKey) -> Option<[u8; 8]> {
        if relay.index >= PLACES {
            return None;
        }
        let [_, p0, p1, p2] = relay.index.to_be_bytes();
        let mut token = [self.worker, p0, p1, p2, 0, 0, 0, 0];
        for (byte, from) in token[MAC..].iter_mut().zip(self.tag(relay).as_bytes()) {
            *byte = *from;
        }
        Some(token)
    }

    /// Whether this is the relay's token; in a time that does not tell how much of it is right.
    fn is_genuine(&self, relay: RelayKey, token: [u8; 8]) -> bool {
        relay.index < PLACES && self.tag(relay).starts_with(&token[MAC..])
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
        let (user, source) = (Arc::clone(&client.user), client.path.source());
        // RFC 8656 §7.2: "The server MUST hold this reservation for at least 30 seconds".
        let expires = now.mono.plus_secs(u64::from(self.config.reservation_s));
        let reservation = Reservation {
            user,
            source,
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
        user: Option<&str>,
    ) -> Option<u32> {
        let [_, p0, p1, p2, ..] = token;
        let relay = u32::from_be_bytes([0, p0, p1, p2]);
        let Relay::Reserved(reservation) = self.relays.get(relay)? else {
            return None;
        };
        let is_theirs = Some(reservation.user.name()) == user && reservation.expires > now.mono;
        let is_genuine =
            self.is_own_token(token) && self.tokens.is_genuine(self.relay_key(relay), token);
        (is_theirs && is_genuine).then_some(relay)
    }

    /// Makes an allocation of a relay held here.
    pub(super) fn use_reservation(
        &mut self,
        now: Now,
        asked: &Asked,
        user: Arc<User>,
        relay: u32,
        lifetime_s: u32,
    ) -> Result<(), ErrorCode<'static>> {
        let Some(Relay::Reserved(reservation)) = self.relays.get(relay) else {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY);
        };
        let (opened, old_source) = (reservation.opened, reservation.source);
        // The unit of quota moves to the source that claims it.
        let source = asked.path.five_tuple.remote.ip();
        if source != old_source {
            self.release(user.name(), old_source, 1);
            if let Err(error) = self.acquire(user.name(), source, 1) {
                self.stop_reserving(relay);
                return Err(error);
            }
        }
        self.stats.reservations -= 1;
        let stage = Stage::Open(Allocation::default());
        let (place, _) = self.clients.insert(Client {
            path: PackedPath::of(&asked.path),
            user,
            stage,
        });
        self.found_on(
            now,
            place,
            RelayIndex::new(relay),
            opened,
            asked,
            lifetime_s,
        );
        Ok(())
    }

    /// Hands a relay held here over to another worker.
    pub(super) fn hand_over(
        &mut self,
        now: Now,
        token: [u8; 8],
        user: &str,
    ) -> Option<ClaimedRelay> {
        let relay = self.reserved_relay(now, token, Some(user))?;
        let key = self.relay_key(relay);
        let reservation = self.take_reservation(relay)?;
        Some(ClaimedRelay {
            relay: key,
            opened: reservation.opened,
        })
    }

    /// Ends a reservation that nobody claimed.
    pub(super) fn end_reservation(&mut self, relay: u32) {
        let key = self.relay_key(relay);
        if self.take_reservation(relay).is_some() {
            self.outputs.push(Queued::CloseRelay(key));
        }
    }

    /// Removes a reservation and gives its quota back.
    fn take_reservation(&mut self, relay: u32) -> Option<Box<Reservation>> {
        let Some(Relay::Reserved(_)) = self.relays.get(relay) else {
            return None;
        };
        self.deadlines.remove(relay);
        self.stats.reservations -= 1;
        match self.relays.remove(relay)? {
            Relay::Reserved(reservation) => {
                self.release(reservation.user.name(), reservation.source, 1);
                Some(reservation)
            }
            Relay::Opening(_) | Relay::Live(_) => None,
        }
    }

    /// Ends a reservation whose quota is given back already.
    fn stop_reserving(&mut self, relay: u32) {
        self.outputs.push(Queued::CloseRelay(self.relay_key(relay)));
        self.deadlines.remove(relay);
        self.stats.reservations -= 1;
        self.relays.remove(relay);
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
                index: PLACES,
                generation: 0
            }),
            None
        );
    }
}
