//! One recvfrom, one sendto. `damage` and `repeat` do more than send ([`faulty`](super::faulty)).

use std::io;
use std::net::{SocketAddr, UdpSocket};

use ::io::{Events, Interest, Poller};

use super::{binding_answer, flow_of, open, open_all, payload_of};
use crate::bench::layout;

/// Datagrams taken from one socket before the others have their turn.
const MAX_DATAGRAMS_PER_READ: usize = 64;
const LISTENER: u64 = 0;
const HEADER_LEN: usize = 4;

struct Relay<S> {
    listener: UdpSocket,
    relays: Vec<UdpSocket>,
    send: S,
}

/// Sends a datagram. What cannot be sent is lost, as everywhere with UDP.
pub(super) fn send(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
    drop(socket.send_to(datagram, to));
}

/// Relays until the process is killed. `send` gets each relayed datagram.
pub(super) fn run(flows: u16, send: impl FnMut(&UdpSocket, &[u8], SocketAddr)) -> io::Result<()> {
    let (listener, relays) = open_all(flows, open)?;
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER, Interest::Read)?;
    for (token, relay) in (1..).zip(&relays) {
        poller.add(relay, token, Interest::Read)?;
    }
    let mut relay = Relay {
        listener,
        relays,
        send,
    };
    let mut events = Events::with_capacity(64);
    let mut buffer = [0; 2048];
    loop {
        poller.wait(&mut events, None)?;
        for event in events.iter() {
            match event.token {
                LISTENER => (0..MAX_DATAGRAMS_PER_READ)
                    .take_while(|_| relay.take_from_client(&mut buffer).is_some())
                    .count(),
                // Tokens were counted up from 1 beside the flows.
                token => (0..MAX_DATAGRAMS_PER_READ)
                    .take_while(|_| {
                        relay
                            .take_from_peer(token as usize - 1, &mut buffer)
                            .is_some()
                    })
                    .count(),
            };
        }
    }
}

impl<S: FnMut(&UdpSocket, &[u8], SocketAddr)> Relay<S> {
    /// Handles one datagram of the listener; `None` when there is none.
    fn take_from_client(&mut self, buffer: &mut [u8; 2048]) -> Option<()> {
        let (length, client) = self.listener.recv_from(buffer).ok()?;
        let datagram = &buffer[..length];
        let payload =
            flow_of(client, self.relays.len()).and_then(|flow| Some((flow, payload_of(datagram)?)));
        match payload {
            Some((flow, payload)) => {
                (self.send)(&self.relays[flow], payload, layout::peer(flow as u16));
            }
            None => {
                let mut answer = [0; 64];
                if let Some(answer) = binding_answer(datagram, client, &mut answer) {
                    (self.send)(&self.listener, answer, client);
                }
            }
        }
        Some(())
    }

    /// Handles one datagram of a relay socket; `None` when there is none.
    fn take_from_peer(&mut self, flow: usize, buffer: &mut [u8; 2048]) -> Option<()> {
        let (length, peer) = self.relays[flow]
            .recv_from(&mut buffer[HEADER_LEN..])
            .ok()?;
        // Flows are numbered with 16 bits, and a datagram is shorter than the buffer.
        let (flow, length) = (flow as u16, length as u16);
        if peer == layout::peer(flow) {
            buffer[0..2].copy_from_slice(&layout::CHANNEL.to_be_bytes());
            buffer[2..4].copy_from_slice(&length.to_be_bytes());
            let datagram = &buffer[..HEADER_LEN + usize::from(length)];
            (self.send)(&self.listener, datagram, layout::client(flow));
        }
        Some(())
    }
}
