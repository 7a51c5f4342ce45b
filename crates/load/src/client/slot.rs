//! One client and its timer.

use std::net::SocketAddr;
use std::sync::Arc;

use io::UdpSocket;
use turn::client::Client;
use turn::{Mono, Now};

/// The timers of clients, by [`ClientId`], with ticks of a millisecond.
pub(super) type Wheel = timers::Wheel<1_000_000>;

/// Names a client of a [`Driver`](super::Driver): the first is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

impl ClientId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A client outside of a driver, with all that is its own.
#[derive(Debug)]
pub struct ClientParts {
    /// The client.
    pub client: Box<Client>,
    /// Its socket, bound and not connected.
    pub socket: Arc<UdpSocket>,
    /// Its server.
    pub server: SocketAddr,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) client: Box<Client>,
    pub(super) server: SocketAddr,
}

impl Slot {
    pub(super) fn new(client: Box<Client>, server: SocketAddr) -> Slot {
        Slot { client, server }
    }

    /// Sends what the client wants sent; returns how many datagrams the kernel did not take.
    pub(super) fn transmit(&mut self, socket: &UdpSocket) -> u64 {
        let mut unsent = 0;
        while let Some(request) = self.client.poll_transmit() {
            unsent += u64::from(socket.send_to(request, self.server, None).is_err());
        }
        unsent
    }

    /// Sets the timer to what the client wants.
    pub(super) fn arm(&mut self, id: ClientId, wheel: &mut Wheel) {
        wheel.set(id.0, self.client.poll_timeout().unwrap_or(Mono::NEVER));
    }

    /// The timer has fired.
    pub(super) fn expire(&mut self, now: Now) {
        self.client.handle_timeout(now);
    }
}
