//! The TCP connections of the answering side.

use std::io;
use std::net::SocketAddr;

use ::io::{Event, Interest, Poller, TcpConnection, TcpListener, TcpOptions};

use super::answer::Ends;
use super::answerer::Answerer;
use crate::sip::Transport;
use crate::sip::out::Out;
use crate::sip::stream::{SipConnection, SipConnectionState};

/// Connections accepted per look at a listener.
const MAX_ACCEPTS: usize = 64;
/// Links above this are connections.
const FIRST_CONNECTION: u32 = 1 << 20;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener(TcpListener);

impl Listener {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Listener> {
        TcpListener::bind(address, &TcpOptions::default()).map(Listener)
    }

    pub(super) fn source(&self) -> &TcpListener {
        &self.0
    }
}

/// A connection and its ends.
#[derive(Debug)]
struct Connection {
    pipe: SipConnection,
    peer: SocketAddr,
    local: SocketAddr,
}

/// All connections of a worker.
#[derive(Debug)]
pub(super) struct Streams {
    first_token: u64,
    places: Vec<Option<Connection>>,
    free: Vec<usize>,
    out: Out,
}

impl Streams {
    pub(super) fn new(first_token: u64) -> Streams {
        Streams {
            first_token,
            places: Vec::new(),
            free: Vec::new(),
            out: Out::default(),
        }
    }

    /// Accepts what waits.
    pub(super) fn accept(&mut self, listener: &Listener, poller: &Poller) {
        for _ in 0..MAX_ACCEPTS {
            let Ok((connection, peer)) = listener.0.accept() else {
                return;
            };
            let Ok(local) = connection.local_addr() else {
                continue;
            };
            self.add(connection, peer, local, poller);
        }
    }

    fn add(
        &mut self,
        connection: TcpConnection,
        peer: SocketAddr,
        local: SocketAddr,
        poller: &Poller,
    ) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let token = self.first_token + place as u64;
        if poller.add(&connection, token, Interest::Read).is_err() {
            self.free.push(place);
            return;
        }
        self.places[place] = Some(Connection {
            pipe: SipConnection::new(connection, token),
            peer,
            local,
        });
    }

    /// Reads, answers, writes.
    pub(super) fn serve(&mut self, event: Event, poller: &Poller, answerer: &mut Answerer) {
        let place = (event.token - self.first_token) as usize;
        let Some(Some(connection)) = self.places.get_mut(place) else {
            return;
        };
        let ends = Ends {
            from: connection.peer,
            local: connection.local,
            transport: Transport::Tcp,
        };
        let link = FIRST_CONNECTION + place as u32;
        let out = &mut self.out;
        let taken = connection.pipe.take(event, &mut |message: &[u8]| {
            answerer.take(link, message, ends, out);
        });
        for entry in &self.out.entries {
            connection.pipe.queue(&self.out.bytes[entry.range.clone()]);
        }
        self.out.clear();
        let open = taken == SipConnectionState::Open && connection.pipe.flush(poller).is_ok();
        if !open {
            self.close(place);
        }
    }

    /// Writes one message, if the connection is still that of `to`.
    pub(super) fn send(&mut self, link: u32, to: SocketAddr, message: &[u8], poller: &Poller) {
        let place = link.saturating_sub(FIRST_CONNECTION) as usize;
        let Some(Some(connection)) = self.places.get_mut(place) else {
            return;
        };
        if connection.peer != to {
            return;
        }
        connection.pipe.queue(message);
        if connection.pipe.flush(poller).is_err() {
            self.close(place);
        }
    }

    fn close(&mut self, place: usize) {
        self.places[place] = None;
        self.free.push(place);
    }
}
