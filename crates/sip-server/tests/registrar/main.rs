//! The registrar against its RFCs, by requests and answers.
#![allow(missing_docs, clippy::unwrap_used)]

extern crate hairpin_sip_server as sip_server;

mod gruu;
mod location;
mod outbound;
mod path;
mod push;
mod rfc3261;
mod sips;
mod stores;
mod world;
