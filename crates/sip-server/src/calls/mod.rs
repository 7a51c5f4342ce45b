//! Limits of calls, and the dialogs that count towards them.
//!
//! A proxy keeps nothing per dialog. If calls are limited, it cannot do without: [`Counters`] has how many calls a user, a domain or anything
//! else has in progress, and [`Dialogs`] has one entry per dialog, until its BYE, the end of its session (RFC 4028) or a limit of time.
//! All workers share both. They are touched when a call begins, is answered, is refreshed and ends, and never otherwise.

mod counters;
mod dialogs;
mod numbers;

pub use counters::{Counters, Exceeded, Limit, Payer, Ticket};
pub use dialogs::{DialogId, Dialogs, Span};
pub use numbers::Numbers;
