//! The identifier of a client, and a client outside of a driver.

use std::net::SocketAddr;

use turn::client::Client;

use crate::Socket;

/// The timers of clients, by [`ClientId`], with ticks of a millisecond.
pub(super) type Wheel = timers::Wheel<1_000_000>;

/// Names a client of a [`Driver`](super::Driver): the first is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

impl ClientId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A client outside of a driver, with all that is its own.
#[derive(Debug)]
pub struct ClientParts {
    /// The client.
    pub client: Box<Client>,
    /// Its socket.
    pub socket: Socket,
    /// Its server.
    pub server: SocketAddr,
}
