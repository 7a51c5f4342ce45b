//! The registrar, the location service and the proxy of a SIP server, without a socket or a clock.
//!
//! # A REGISTER's way
//!
//! 1. [`registrar::Registrar::examine`] finds the domain of a REGISTER and its address of record: an [`Aor`].
//! 2. The embedder authenticates the request, and hands it to the worker that [`AorKey::worker`] names: all bindings of
//!    an address of record are on one worker.
//! 3. [`registrar::Registrar::register`] changes the bindings in a [`location::Location`], all or none, and writes the
//!    header lines of the answer.
//!
//! [`reg_event::RegEvents`] tells subscribers which bindings an address gets and loses.
//!
//! A request that is no REGISTER goes to [`proxy::Proxy`], which forwards it to the bindings, or to the trunks that
//! [`routes`] name.
//!
//! **The invariant:** a request that is not answered with 200 has changed no binding (RFC 3261 §10.3).
#![forbid(unsafe_code)]

mod aor;
pub mod calls;
mod date;
pub mod flow;
pub mod location;
pub mod log;
pub mod proxy;
pub mod push;
pub mod reg_event;
pub mod registrar;
pub mod registrar_proxy;
pub mod routes;
pub mod users;

pub use aor::{Aor, AorHash, AorKey, MAX_AOR};
