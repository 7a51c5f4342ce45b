//! Routes of requests that name no local user, and the trunks that routes lead to.
//!
//! ```text
//!  request ──> Table::decide ── the routes that match: by priority, longest prefix, place in the list
//!                   │              └── the trunks of each: by priority, then in order, by weight or by hash
//!                   └──> Decision: trunks, one after the other · a user here · a code · no route
//!  responses, silence, OPTIONS ──> Health of each address of a trunk ──> the next decision
//! ```
//!
//! A [`Table`] is immutable, and all workers share it. Only the [`Health`] of its trunks changes: atomic numbers,
//! written once or twice per call.
//!
//! **The invariant:** a request of a trunk goes to a trunk only by a route that names the first one in `from_trunks`,
//! or by a [`TrunkChoice`] of the embedder that permits it. So a missing condition in a route never makes an open relay.

mod aliases;
mod call;
mod choice;
mod config;
mod decide;
mod forwards;
mod health;
mod hunt;
mod lint;
mod matching;
mod prefix;
mod probes;
mod registrations;
mod rewrite;
mod table;

pub use aliases::{Alias, AliasError, Aliases};
pub use call::{Call, CallSender};
pub use choice::TrunkChoice;
pub use config::{
    Action, Credentials, Failures, HeaderRule, Hunt, Network, Next, NextHop, NextHopError,
    ProbeConfig, RegisterConfig, Route, Trunk, is_sip_user,
};
pub use decide::{Decision, Hop, Step};
pub use forwards::{DivertReason, Forward, Forwards};
pub use health::{
    AddressError, AddressState, AddressStatus, CODE_METHODS, CodeCounts, Health, Outcome,
    RESPONSE_CLASSES, TrunkCounts,
};
pub use lint::{Finding, lint};
pub use probes::{Change, Probe, Prober};
pub use registrations::{Register, RegistrationChange, Registrations};
pub use table::{Table, TableError};

/// Whether a route can reject a request with this code: 400 to 699, except those whose response requires a header
/// field that a route does not have. These are 401, 405, 407, 420, 421 and 423 (RFC 3261 §21.4).
#[must_use]
pub const fn can_reject_with(code: u16) -> bool {
    matches!(code, 400..=699) && !matches!(code, 401 | 405 | 407 | 420 | 421 | 423)
}
