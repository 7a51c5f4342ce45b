//! One client and its timer.

use std::net::SocketAddr;
use std::sync::Arc;

use io::{TimerKey, TimerWheel, UdpSocket};
use turn::Now;
use turn::client::Client;

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
    timer: Option<TimerKey>,
}

impl Slot {
    pub(super) fn new(client: Box<Client>, server: SocketAddr) -> Slot {
        Slot {
            client,
            server,
            timer: None,
        }
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
    pub(super) fn arm(&mut self, id: ClientId, wheel: &mut TimerWheel<ClientId>) {
        self.timer = match (self.client.poll_timeout(), self.timer) {
            (Some(deadline), Some(timer)) if wheel.reschedule(timer, deadline.0) => Some(timer),
            (Some(deadline), _) => Some(wheel.insert(deadline.0, id)),
            (None, timer) => {
                timer.and_then(|timer| wheel.cancel(timer));
                None
            }
        };
    }

    /// The timer has fired.
    pub(super) fn expire(&mut self, now: Now) {
        self.timer = None;
        self.client.handle_timeout(now);
    }

    pub(super) fn disarm(&mut self, wheel: &mut TimerWheel<ClientId>) {
        self.timer.take().and_then(|timer| wheel.cancel(timer));
    }
}
