//! What a client gets: the Allocate success response (RFC 8656 §7.2).

use stun::{
    AddressErrorCode, AddressFamily, AttributeType, BuildError, Builder, Encode, ErrorCode,
    Lifetime, ReservationToken, TransactionId, XorMappedAddress, XorRelayedAddress,
};

use super::Server;
use super::asked::Asked;
use super::output::RelayedAddresses;
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
}

/// Half of a dual allocation that could not be granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) family: AddressFamily,
    pub(super) error: ErrorCode<'static>,
    /// Whether the client knows ADDRESS-ERROR-CODE by the number of the draft.
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

impl Server {
    /// Answers an Allocate request with success.
    pub(super) fn grant(&mut self, now: Now, asked: &Asked, granted: &Granted) {
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
            if let Some(missing) = &granted.missing {
                missing.write(message)?;
            }
            message.push(&XorMappedAddress(mapped)).map(drop)
        });
    }
}
