//! Refresh requests (RFC 8656 §8.2).

use stun::{AddressFamily, AttributeError, ErrorCode, Lifetime, Message, RequestedAddressFamily};

use super::Server;
use super::allocate::lifetime;
use super::answer::Refusal;
use super::asked::Asked;
use super::output::CloseReason;
use crate::Now;

impl Server {
    /// Prolongs the allocation, or one family of it, or deletes it.
    pub(super) fn refresh(
        &mut self,
        now: Now,
        asked: &Asked,
        message: &Message<'_>,
        place: u32,
    ) -> Result<(), Refusal> {
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let (v4, v6) = (allocation.v4, allocation.v6);
        // "the attribute value does not match the address family of the allocation": 443. Without it, all are meant (§8.1).
        let relays = match requested_family(message)? {
            None => [v4, v6],
            Some(AddressFamily::V4) => [
                Some(v4.ok_or(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH)?),
                None,
            ],
            Some(AddressFamily::V6) => [
                None,
                Some(v6.ok_or(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH)?),
            ],
        };
        let asked_for = message
            .get::<Lifetime>()
            .map_err(|_| ErrorCode::BAD_REQUEST)?;
        if asked_for == Some(Lifetime(0)) {
            self.succeed(now, asked, |message| message.push(&Lifetime(0)).map(drop));
            if relays == [v4, v6] {
                self.close_client(now, place, CloseReason::Refreshed);
            } else {
                relays
                    .into_iter()
                    .flatten()
                    .for_each(|relay| self.close_relay(relay.get()));
            }
            return Ok(());
        }
        let lifetime_s = lifetime(message, &self.config)?;
        for relay in relays.into_iter().flatten() {
            if let Some(live) = self
                .relays
                .get_mut(relay.get())
                .and_then(|relay| relay.live_mut())
            {
                live.expires = now.mono.plus_secs(u64::from(lifetime_s));
            }
            self.update_deadline(relay.get());
        }
        self.succeed(now, asked, |message| {
            message.push(&Lifetime(lifetime_s)).map(drop)
        });
        Ok(())
    }
}

/// The family that is meant, if it is not all.
fn requested_family(message: &Message<'_>) -> Result<Option<AddressFamily>, ErrorCode<'static>> {
    match message.get::<RequestedAddressFamily>() {
        Ok(family) => Ok(family.map(|family| family.0)),
        // A family that does not exist is none of the allocation's.
        Err(AttributeError::AddressFamily) => Err(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH),
        Err(_) => Err(ErrorCode::BAD_REQUEST),
    }
}
