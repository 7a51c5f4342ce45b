//! The client side of TURN, driven by hand: a scripted server, a virtual clock.

extern crate hairpin_turn as turn;

mod allocation;
mod auth;
mod peers;
mod robustness;
mod script;
mod transmission;
