//! The attribute of TURN over TCP (RFC 6062 §6.2).

use super::{AttributeError, AttributeType, number_attribute};
use crate::{BuildError, TransactionId};

/// Names a connection between the server and a peer (RFC 6062 §6.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(
    /// Unique within the allocation.
    pub u32,
);
number_attribute!(ConnectionId, u32, CONNECTION_ID);
