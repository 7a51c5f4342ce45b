//! The attributes of ICE (RFC 8445 §16.1): hairpin only names them, agents that use this crate need them.

use super::{AttributeError, AttributeType, empty_attribute, number_attribute};
use crate::{BuildError, TransactionId};

/// The priority of the peer-reflexive candidate this check would find (RFC 8445 §7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(
    /// 1 to 2^31 - 1.
    pub u32,
);
number_attribute!(Priority, u32, PRIORITY);

/// Nominates the candidate pair (RFC 8445 §7.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UseCandidate;
empty_attribute!(UseCandidate, USE_CANDIDATE);

/// The sender believes that it is controlled (RFC 8445 §7.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IceControlled(
    /// The random tie-breaker.
    pub u64,
);
number_attribute!(IceControlled, u64, ICE_CONTROLLED);

/// The sender believes that it controls (RFC 8445 §7.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IceControlling(
    /// The random tie-breaker.
    pub u64,
);
number_attribute!(IceControlling, u64, ICE_CONTROLLING);
