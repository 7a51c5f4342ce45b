//! The attribute of TURN mobility (RFC 8016 §3.4).

use super::{AttributeError, AttributeType, slice_attribute};
use crate::{BuildError, TransactionId};

/// Lets the holder move an allocation to another 5-tuple; empty in an Allocate request (RFC 8016 §3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MobilityTicket<'a>(
    /// Opaque to the client.
    pub &'a [u8],
);
slice_attribute!(MobilityTicket, MOBILITY_TICKET, read: Ok, allowed: |_| true);
