//! The timers of RFC 3261 §17, in nanoseconds.

/// Round-trip estimate, and the first interval of retransmissions.
pub(crate) const T1_NS: u64 = 500_000_000;
/// Longest interval of what is not an INVITE.
pub(crate) const T2_NS: u64 = 4_000_000_000;
/// Timers B, F and H: 64 times T1.
pub(crate) const GIVE_UP_NS: u64 = 64 * T1_NS;
