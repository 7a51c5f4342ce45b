//! The server as its embedder sees it: datagrams and time in, verdicts and outputs out, exactly, with nothing
//! left over.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod world;

mod allocate;
mod alternate;
mod amplification;
mod authentication;
mod bidding;
mod binding;
mod channels;
mod checks;
mod credentials;
mod data;
mod discovery;
mod dual;
mod expiry;
mod hostile;
mod indications;
mod lookups;
mod mobility;
mod model;
mod nonces;
mod offload;
mod permissions;
mod placing;
mod quota;
mod rate;
mod realms;
mod refresh;
mod reload;
mod reports;
mod reservations;
mod retransmissions;
mod shared_ports;
mod tcp;
mod tokens;
mod unverified;
