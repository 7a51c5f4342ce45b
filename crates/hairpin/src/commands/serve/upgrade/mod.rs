//! A new process takes over from a running server (`hairpin upgrade`).
//!
//! ```text
//!  new process                          old process
//!  take_over  ── control socket ──────▶
//!             ◀── reply, offer, process   sockets, keys, the control socket's lock
//!  hold       ────────────────────────▶   each client gets an entry in the steering table
//!             ◀── held
//!  serving    ────────────────────────▶   stops listening, and ends when it has no clients left
//!  foreign    ────────────────────────▶   a request that belongs to one of its clients
//!             ◀── left, once per second
//! ```
//! If the new process ends without saying `stop`, the old one serves everything again.

mod messages;
mod new;
mod old;
mod start;

pub(super) use new::{InheritedProcess, PredecessorLink};
pub(super) use old::Successor;
