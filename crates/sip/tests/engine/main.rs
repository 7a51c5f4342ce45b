//! Engines against each other, over a network with a will of its own, in virtual time.
#![allow(missing_docs, clippy::unwrap_used)]

mod allowance;
mod chaos;
mod congestion;
mod forged;
mod invite;
mod maddr;
mod memory;
mod merged;
mod network;
mod non_invite;
mod overload;
mod proxy;
mod random;
mod room;
mod streams;
mod unacknowledged;
mod world;
