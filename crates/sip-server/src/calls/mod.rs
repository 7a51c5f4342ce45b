//! Limits of calls, and the dialogs that count towards them.
//!
//! A proxy stores no dialogs, unless calls are limited. Then [`Counters`] has the number of calls in progress of each user and domain, and
//! [`Dialogs`] has one entry per dialog, until its BYE, the end of its session (RFC 4028) or a time limit. All workers share both. They change
//! only when a call begins, is answered, is refreshed or ends.

mod counters;
mod dialogs;
mod numbers;

pub use counters::{Counters, Exceeded, Limit, Payer, Ticket};
pub use dialogs::{DialogId, Dialogs, Span};
pub use numbers::Numbers;
