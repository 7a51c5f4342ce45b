//! What a client gets: the Allocate success response (RFC 8656 §7.2).

use stun::{
    AddressErrorCode, AddressFamily, AttributeType, BuildError, Builder, Class, Encode, ErrorCode,
    Lifetime, MobilityTicket, ReservationToken, TransactionId, XorMappedAddress, XorRelayedAddress,
};

use std::sync::Arc;

use super::Server;
use super::allocation::{AllocateTransaction, Extra};
use super::deletions::WINDOW_S;
use super::mobility;
use super::output::RelayedAddresses;
use super::request_context::RequestContext;
use crate::Now;

/// ADDRESS-ERROR-CODE for those who ask as the draft did: see
/// [`Config::draft_dual_allocation`](super::Config).
const DRAFT_ADDRESS_ERROR_CODE: AttributeType = AttributeType(0x8033);

/// What an Allocate success response says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    pub(super) relayed: RelayedAddresses,
    pub(super) lifetime_s: u32,
    pub(super) token: Option<[u8; 8]>,
    pub(super) missing: Option<Missing>,
    /// The first ticket (RFC 8016 §3.1.2).
    pub(super) ticket: Option<[u8; mobility::LEN]>,
}

/// Half of a dual allocation that could not be granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) family: AddressFamily,
    pub(super) error: ErrorCode<'static>,
    /// Whether the client uses ADDRESS-ERROR-CODE with the number of the draft.
    pub(super) draft: bool,
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

impl Granted {
    /// Data to answer a retransmission of this Allocate request with.
    pub(super) fn retransmission_record(&self, context: &RequestContext) -> AllocateTransaction {
        let Granted { token, missing, .. } = *self;
        let has_extra = token.is_some() || missing.is_some();
        AllocateTransaction {
            transaction_id: context.transaction_id,
            lifetime_s: self.lifetime_s,
            extra: has_extra.then(|| Box::new(Extra { token, missing })),
        }
    }

    /// What was granted once, from what the allocation has kept.
    fn again(relayed: RelayedAddresses, made_by: &AllocateTransaction) -> Granted {
        let extra = made_by.extra.as_deref();
        Granted {
            relayed,
            lifetime_s: made_by.lifetime_s,
            token: extra.and_then(|extra| extra.token),
            missing: extra.and_then(|extra| extra.missing),
            ticket: None,
        }
    }
}

impl Server {
    /// Answers an Allocate request with success.
    pub(super) fn grant(&mut self, context: &RequestContext, granted: &Granted) {
        self.stats.count_success(context.method);
        self.respond_granted(context, granted);
    }

    /// Answers the very request that made the allocation at this place once more (RFC 8656 §7.2). `false` if it did
    /// not, or not of late.
    pub(super) fn grant_again(&mut self, now: Now, context: &RequestContext, place: u32) -> bool {
        let relayed = self.relayed(place);
        let (Some(allocation), Some(client)) =
            (self.clients.allocation(place), self.clients.get(place))
        else {
            return false;
        };
        let is_recent = now.mono < allocation.opened_at.plus_secs(WINDOW_S);
        // An allocation that has lost a relay has had its response.
        let is_whole = relayed != RelayedAddresses::default();
        if allocation.made_by.transaction_id != context.transaction_id || !is_recent || !is_whole {
            return false;
        }
        let mut granted = Granted::again(relayed, &allocation.made_by);
        granted.ticket = self.ticket(place, 0);
        let mut context = context.clone();
        context.user = Some(Arc::clone(&client.user));
        self.respond_granted(&context, &granted);
        true
    }

    fn respond_granted(&mut self, context: &RequestContext, granted: &Granted) {
        let mapped = context.path.five_tuple.remote;
        self.answer(context, Class::Success, |message| {
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
            if let Some(ticket) = &granted.ticket {
                message.push(&MobilityTicket(ticket))?;
            }
            if let Some(missing) = &granted.missing {
                missing.write(message)?;
            }
            message.push(&XorMappedAddress(mapped)).map(drop)
        });
    }
}
