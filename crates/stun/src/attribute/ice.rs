//! The attributes of ICE (RFC 8445 §16.1): hairpin only names them, agents that use this crate need them.

use super::{AttributeError, AttributeType, fixed_attribute};
use crate::{BuildError, TransactionId};

/// The priority of the peer-reflexive candidate this check would find (RFC 8445 §7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(
    /// 1 to 2^31 - 1.
    pub u32,
);
fixed_attribute!(
    Priority, PRIORITY,
    read: |bytes| Ok(Priority(u32::from_be_bytes(bytes))),
    write: |this: &Priority| this.0.to_be_bytes()
);

/// Nominates the candidate pair (RFC 8445 §7.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UseCandidate;
fixed_attribute!(UseCandidate, USE_CANDIDATE, read: |[]| Ok(UseCandidate), write: |_| [0; 0]);

/// The sender believes that it is controlled (RFC 8445 §7.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IceControlled(
    /// The random tie-breaker.
    pub u64,
);
fixed_attribute!(
    IceControlled, ICE_CONTROLLED,
    read: |bytes| Ok(IceControlled(u64::from_be_bytes(bytes))),
    write: |this: &IceControlled| this.0.to_be_bytes()
);

/// The sender believes that it controls (RFC 8445 §7.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IceControlling(
    /// The random tie-breaker.
    pub u64,
);
fixed_attribute!(
    IceControlling, ICE_CONTROLLING,
    read: |bytes| Ok(IceControlling(u64::from_be_bytes(bytes))),
    write: |this: &IceControlling| this.0.to_be_bytes()
);
