//! Many TURN clients on one thread.
//!
//! A [`Driver`] owns a socket (UDP, TCP or TLS) and a [`Client`](turn::client::Client) for each client. One epoll waits
//! for all of them, one timer wheel has their timers, and one batch receives for them. Load generators make their
//! allocations with it and keep them alive. Tests use it as well:
//!
//! ```text
//!  add, with ──────────┐                                  ┌── Handler::event: an allocation, a channel, a failure
//!  Driver::run ─ epoll ┼─ socket ─ Client::handle_input ─ ┤
//!              └ wheel ┘                                  └── Handler::data: what a peer sent, in place
//! ```
//!
//! **The invariant:** after each call on a client, the driver first sends its output, queues its events and sets its
//! timer. Only then does it call that client again.
//!
//! Nothing is allocated per datagram of data, in either direction.

mod driver;
mod sender;
mod slot;

use std::io;
use std::net::SocketAddr;

use stun::ChannelNumber;
use turn::client::Event;

pub use driver::{Driver, DriverOptions};
pub use sender::Sender;

use crate::Via;
pub use slot::{ClientId, ClientParts};

/// An event of a client.
pub trait Handler {
    /// Something happened to a client. The driver is an argument, for the next step.
    fn event(&mut self, driver: &mut Driver, id: ClientId, event: Event);

    /// The connection of a client is lost, or never came about. What the client waits for fails next.
    fn disconnected(&mut self, driver: &mut Driver, id: ClientId, error: &io::Error) {
        let _ = (driver, id, error);
    }

    /// A peer's data came in. What it leads to must wait until [`Driver::run`] returns, or for an event.
    fn data(&mut self, id: ClientId, data: Data<'_>);
}

/// Data from a peer, where it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// Who sent it to the relayed transport address.
    pub peer: SocketAddr,
    /// The channel it came on; `None` for a Data indication.
    pub channel: Option<ChannelNumber>,
    /// What was sent; may be empty.
    pub payload: &'a [u8],
}

/// Why a client cannot be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The socket could not be opened.
    #[error(
        "cannot open a UDP socket on {local}: {source}{}", descriptors_hint(.source)
    )]
    Socket {
        /// Where it was to be bound.
        local: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A connection could not be begun.
    #[error("no {via} connection to {server}: {source}{}", descriptors_hint(.source))]
    Connection {
        /// The server.
        server: SocketAddr,
        /// TCP or TLS.
        via: Via,
        /// What the system said.
        source: io::Error,
    },
    /// The socket cannot be waited for.
    #[error("cannot wait for a socket: {0}")]
    Poll(#[source] io::Error),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Randomness(String),
}

/// The most frequent reason by far deserves its remedy.
fn descriptors_hint(error: &io::Error) -> &'static str {
    // EMFILE and ENFILE have no portable kind.
    match error.raw_os_error() {
        Some(23 | 24) => " (raise the limit on open files: ulimit -n)",
        _ => "",
    }
}

/// What a driver has seen. Every datagram from the network is in exactly one of the first seven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverStats {
    /// Data from peers.
    pub data: u64,
    /// Responses and indications for the clients themselves.
    pub handled: u64,
    /// Unusable for the client: late second responses, mostly.
    pub ignored: u64,
    /// From the server, but unusable: malformed, or a response with a wrong or missing MESSAGE-INTEGRITY (RFC 8489
    /// §9.2.5).
    pub malformed: u64,
    /// Neither STUN nor ChannelData.
    pub foreign: u64,
    /// Not from the client's server.
    pub strangers: u64,
    /// Longer than a slot of the receive batch: raise [`DriverOptions::slot_size`].
    pub truncated: u64,
    /// Requests that the kernel did not take; the client repeats them.
    pub unsent: u64,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub overflow: u64,
}

impl DriverStats {
    /// Unusable datagrams: malformed, wrong integrity, neither STUN nor ChannelData, or not from the server. Also those
    /// that were truncated here.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.malformed + self.foreign + self.strangers + self.truncated
    }
}
