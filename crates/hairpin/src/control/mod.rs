//! The control socket: a Unix socket at which the user of the server and root query the state of the server and give it
//! commands.
//!
//! One line of JSON each way, then the connection ends. A thread of its own serves it, and answers what an
//! [`Observer`](server::Observer) can see; what changes the server is an [`Change`] for the main thread.

mod changes;
pub(crate) mod client;
pub(crate) mod nodes;
pub(crate) mod protocol;
pub(crate) mod routing;
mod serve;
pub(crate) mod sessions;
pub(crate) mod sip;
mod socket;
pub(crate) mod status;
pub(crate) mod tasks;
pub(crate) mod upgrade;

pub(crate) use changes::{Change, ChangeSender, Inbox, channel};
pub(crate) use serve::Shared;
pub(crate) use socket::{BoundControlSocket, bind};
