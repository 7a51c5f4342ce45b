//! Limits of calls, and the dialogs that count towards them.
//!
//! A proxy stores no dialogs, unless calls are limited. Then [`Counters`] has the number of calls in progress per user
//! and per domain. [`Dialogs`] has one entry per dialog. The entry ends with the BYE, with the session (RFC 4028), or
//! at a time limit. A [`Bye`] counts only if the called party has sent or got it. All workers share both. They change only
//! when a call begins, is answered, is refreshed or ends.

mod counters;
mod dialogs;
mod numbers;
mod record;
mod sides;

pub use counters::{CallAccount, CallCounter, CallRate, Counters, Exceeded, Limit, Ticket};
pub use dialogs::{Counted, DialogId, DialogLifetime, Dialogs, DialogsCursor};
pub use numbers::Numbers;
pub(crate) use record::tag_hash;
pub use record::{AttemptFailure, AttemptTimes, CallEnd, CallLine, CallRecord, EndedBy, Leg};
pub use sides::{Bye, ElementHashes, Sides};
