//! Refresh requests (RFC 8656 §8.2). Those with a ticket have passed `mobility/refresh.rs` before.

use std::sync::Arc;

use std::time::Duration;

use stun::{
    AddressFamily, AttributeError, Class, ErrorCode, Lifetime, Message, RequestedAddressFamily,
};

use super::Server;
use super::allocate::lifetime;
use super::allocation::RelayIndex;
use super::answer::Refusal;
use super::deletions::WINDOW_S;
use super::mobility::has_ticket;
use super::output::CloseReason;
use super::outputs::Change;
use super::relay::Relay;
use super::request_context::RequestContext;
use crate::Now;

/// The IPv4 and the IPv6 relay of an allocation.
type Relays = [Option<RelayIndex>; 2];

impl Server {
    /// Prolongs the allocation, or one family of it, or deletes it.
    pub(super) fn refresh(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        place: u32,
    ) -> Result<(), Refusal> {
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let all = [allocation.v4, allocation.v6];
        let relays = relays_of_family(all, requested_family(message)?)?;
        let asked_for = message
            .get::<Lifetime>()
            .map_err(|_| ErrorCode::BAD_REQUEST)?;
        let lifetime_s = match asked_for {
            Some(Lifetime(0)) => 0,
            _ => lifetime(now, context, message, &self.config)?,
        };
        let is_over = lifetime_s == 0 && relays == all;
        let ticket = if has_ticket(message) && !is_over {
            Some(self.begin_move(now, context, place, lifetime_s)?)
        } else {
            None
        };
        if lifetime_s == 0 {
            self.remember_deletion(now, context);
        }
        if is_over {
            self.remember_deleted_allocate(now, context, place);
        }
        self.stats.count_success(context.method);
        self.respond_refreshed(context, lifetime_s, ticket.as_ref());
        self.renew_token(context, place);
        if ticket.is_some() {
            self.switch_if_disconnected(now, place);
        }
        if is_over {
            self.close_client(now, place, CloseReason::Refreshed);
        } else if lifetime_s == 0 {
            for relay in relays.into_iter().flatten() {
                self.report_ends(relay.get());
                self.close_relay(relay.get());
            }
        } else {
            relays
                .into_iter()
                .flatten()
                .for_each(|relay| self.prolong(now, relay.get(), lifetime_s));
            self.report_change(place, Change::Refreshed { lifetime_s });
        }
        Ok(())
    }

    fn remember_deletion(&mut self, now: Now, context: &RequestContext) {
        if !context.path.five_tuple.transport.is_stream() {
            let limit = self.config.max_deletions;
            if let Some(user) = context.user.clone() {
                let transaction = (&context.path, context.transaction_id, user);
                self.deletions.remember(transaction, limit, now.mono);
            }
            self.stats.deletions = self.deletions.len() as u64;
        }
    }

    /// Remembers the Allocate request of an allocation that will be deleted, if the client may still retransmit it.
    /// Otherwise a retransmission would create an unwanted allocation.
    fn remember_deleted_allocate(&mut self, now: Now, context: &RequestContext, place: u32) {
        let Some(allocation) = self.clients.allocation(place) else {
            return;
        };
        if now.mono.since(allocation.opened_at) < Duration::from_secs(WINDOW_S) {
            let mut allocate = context.clone();
            // The client may have moved since (RFC 8016).
            if let Some(client) = self.clients.get(place) {
                allocate.path = client.path.path();
            }
            allocate.transaction_id = allocation.made_by.transaction_id;
            self.remember_deletion(now, &allocate);
        }
    }

    /// Answers a Refresh to zero that has been carried out already. `false` if none is known.
    pub(super) fn confirm_deletion(&mut self, now: Now, context: &RequestContext) -> bool {
        let Some(user) = self.deletions.find(context, now.mono).map(Arc::clone) else {
            return false;
        };
        let mut context = context.clone();
        context.user = Some(user);
        self.answer(&context, Class::Success, |message| {
            message.push(&Lifetime(0)).map(drop)
        });
        true
    }

    fn prolong(&mut self, now: Now, relay: u32, lifetime_s: u32) {
        let expires = now.mono.plus_secs(u64::from(lifetime_s));
        if let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) {
            let before = std::mem::replace(&mut live.expires, expires);
            self.offload_prolonged(now, relay, before);
        }
        self.update_deadline(relay);
    }
}

/// The relays of this family, or all. "If the attribute value does not match the address family of the
/// allocation": 443.
fn relays_of_family(
    all: Relays,
    family: Option<AddressFamily>,
) -> Result<Relays, ErrorCode<'static>> {
    let [v4, v6] = all;
    let of_family = match family {
        // RFC 8656 §8.1: without the attribute, all are meant.
        None => return Ok(all),
        Some(AddressFamily::V4) => [v4, None],
        Some(AddressFamily::V6) => [None, v6],
    };
    if of_family == [None, None] {
        Err(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH)
    } else {
        Ok(of_family)
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
