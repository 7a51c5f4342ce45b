//! A proxy between user agents, on a virtual clock and a network that loses and reorders.
#![allow(missing_docs, clippy::unwrap_used)]

extern crate hairpin_sip_server as sip_server;

mod agreement;
mod call_ends;
mod calls;
mod conformance;
mod dialogs;
mod flows;
mod forged_sources;
mod fork;
mod forwards;
mod identity;
mod matrix;
mod media;
mod media_ends;
mod media_forks;
mod media_passes;
mod memory;
mod moved;
mod network;
mod node;
mod nodes;
mod overload;
mod policy;
mod push;
mod races;
mod record_route;
mod relay;
mod rung;
mod spirals;
mod transparent;
mod trunk_credentials;
mod trunk_policy;
mod trunks;
mod validation;
mod world;
