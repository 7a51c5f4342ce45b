//! The location log: what survives a restart, a kill, a power cut and damage.
#![allow(missing_docs, clippy::unwrap_used)]

extern crate hairpin_sip_server as sip_server;

mod compaction;
mod crashes;
mod disk;
mod format;
mod world;
