//! Time as an argument ([`Mono`], [`Now`]), and a hierarchical timer wheel ([`Wheel`]).
//!
//! The state machines of STUN, TURN and SIP have no clock. They and the code around them share these types.
//!
//! ```
//! use std::time::Duration;
//!
//! use hairpin_timers::{Mono, Wheel};
//!
//! // Two connections, by number, with ticks of a millisecond. The caller passes the time.
//! let start = Mono(0);
//! let mut idle: Wheel<1_000_000> = Wheel::new();
//! idle.set(0, start.plus(Duration::from_secs(5)));
//! idle.set(1, start.plus(Duration::from_secs(3)));
//! idle.set(1, start.plus(Duration::from_secs(9))); // moves the only timer of connection 1
//! let now = start.plus(Duration::from_secs(6));
//! assert_eq!(idle.pop_due(now), Some(0));
//! assert_eq!(idle.pop_due(now), None);
//! ```
//!
//! # When not to use it
//!
//! With an async runtime, use its timers. With few timers, a binary heap is simpler.
#![forbid(unsafe_code)]

mod time;
mod wheel;

pub use time::{Mono, Now};
pub use wheel::Wheel;
