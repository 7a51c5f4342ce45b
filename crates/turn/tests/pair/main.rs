//! Client and server, both real, with a network between them that loses, repeats and reorders, and a virtual clock.

extern crate hairpin_turn as turn;

mod chaos;
mod network;
mod pair;
mod scenarios;
mod tcp;
