//! Time as an argument ([`Mono`], [`Now`]), and a hierarchical timer wheel ([`Wheel`]).
//!
//! The state machines of STUN, TURN and SIP have no clock. They and the code around them share these types.
#![forbid(unsafe_code)]

mod time;
mod wheel;

pub use time::{Mono, Now};
pub use wheel::Wheel;
