//! The client's state machine together with its server's address. Every driver needs both, with any means of waiting.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use stun::ChannelNumber;
use turn::client::{Client, ClientConfig, Event, Ignored, Received};
use turn::{Mono, Now};

/// What a datagram was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Input {
    /// A peer's data.
    Data {
        /// Who sent it to the relayed transport address.
        peer: SocketAddr,
        /// The channel it came on; `None` for a Data indication.
        channel: Option<ChannelNumber>,
        /// Where in the datagram it is; may be empty.
        payload: Range<usize>,
    },
    /// A response or an indication. The owner calls [`Endpoint::drain`] next.
    Handled,
    /// STUN or ChannelData, but of no use.
    Ignored(Ignored),
    /// Neither STUN nor ChannelData, or a STUN request.
    NotMine,
    /// Not from this endpoint's server.
    UnknownSource,
}

/// One TURN client and its server.
///
/// **The invariant:** after [`with`](Endpoint::with), [`timeout`](Endpoint::timeout) and [`Input::Handled`] the owner
/// calls [`drain`](Endpoint::drain) before anything else, and then waits until [`deadline`](Endpoint::deadline) at
/// most.
#[derive(Debug)]
pub struct Endpoint {
    // Load generators have thousands, and move them between threads.
    client: Box<Client>,
    server: SocketAddr,
}

impl Endpoint {
    /// A client of `server`. `seed` must be random, and another one for every client.
    #[must_use]
    pub fn new(server: SocketAddr, config: Arc<ClientConfig>, seed: [u8; 32]) -> Endpoint {
        Endpoint::adopt(server, Box::new(Client::new(config, seed)))
    }

    /// Takes over a client of `server` that may have an allocation.
    #[must_use]
    pub fn adopt(server: SocketAddr, client: Box<Client>) -> Endpoint {
        Endpoint { client, server }
    }

    /// The client alone.
    #[must_use]
    pub fn into_client(self) -> Box<Client> {
        self.client
    }

    /// Where requests and data go.
    #[inline]
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The client, to look at.
    #[inline]
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The client, to send data with. Nothing else may be asked of it; that is for [`with`](Endpoint::with).
    #[inline]
    pub fn data(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Asks something of the client.
    pub fn with<R>(&mut self, now: Now, call: impl FnOnce(&mut Client, Now) -> R) -> R {
        call(&mut self.client, now)
    }

    /// Looks at a datagram that came from `from`.
    #[inline]
    pub fn input(&mut self, now: Now, from: SocketAddr, datagram: &[u8]) -> Input {
        // RFC 8656 §3.2: an allocation is tied to its 5-tuple; only the server sends to this socket.
        if from != self.server {
            return Input::UnknownSource;
        }
        match self.client.handle_input(now, datagram) {
            Received::Data {
                peer,
                channel,
                payload,
            } => Input::Data {
                peer,
                channel,
                payload,
            },
            Received::Handled => Input::Handled,
            Received::Ignored(why) => Input::Ignored(why),
            Received::NotMine => Input::NotMine,
        }
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Now) {
        self.client.handle_timeout(now);
    }

    /// Hands out what the client wants transmitted, then its events. A request that cannot be transmitted is lost like
    /// any other: the client repeats it.
    pub fn drain(&mut self, transmit: impl FnMut(&[u8]), mut event: impl FnMut(Event)) {
        self.transmit(transmit);
        while let Some(happened) = self.event() {
            event(happened);
        }
    }

    /// The first half of [`drain`](Endpoint::drain).
    pub fn transmit(&mut self, mut transmit: impl FnMut(&[u8])) {
        while let Some(request) = self.client.poll_transmit() {
            transmit(request);
        }
    }

    /// The next event. [`drain`](Endpoint::drain) handles all of them; a program whose next request depends on an event
    /// calls this function instead.
    pub fn event(&mut self) -> Option<Event> {
        self.client.poll_event()
    }

    /// When to call [`timeout`](Endpoint::timeout) next; `None` if nothing is pending.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.client.poll_timeout()
    }
}
