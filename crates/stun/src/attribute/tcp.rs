//! The attribute of TURN over TCP (RFC 6062 §6.2).

use super::{AttributeError, AttributeType, fixed_attribute};
use crate::{BuildError, TransactionId};

/// Names a connection between the server and a peer (RFC 6062 §6.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(
    /// Unique within the allocation.
    pub u32,
);
fixed_attribute!(
    ConnectionId, CONNECTION_ID,
    read: |bytes| Ok(ConnectionId(u32::from_be_bytes(bytes))),
    write: |this: &ConnectionId| this.0.to_be_bytes()
);
