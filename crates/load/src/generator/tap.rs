//! A tap: one socket, as a receiver sees it.

use std::sync::Arc;

use io::UdpSocket;
use stun::{Class, ErrorCode, Message};
use turn::client::{Client, Received};
use turn::{Mono, Now};

use super::lane::IdStamp;
use crate::measure::{Payload, PayloadError};

/// How to make sense of what a socket receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decoder {
    /// Measured payloads as they are: a peer's socket.
    Raw,
    /// Answers to the Binding requests of a [`Stamping::TransactionId`](super::Stamping) lane.
    Binding,
    /// The socket of a TURN client: ChannelData and Data indications with measured payloads, and the client's own
    /// transactions, which it keeps alive.
    Turn(Box<Client>),
}

/// A socket to receive from.
#[derive(Debug)]
pub struct Tap {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) decoder: Decoder,
    /// Where the decoder's own datagrams go: the server, for a TURN client.
    pub(super) server: Option<std::net::SocketAddr>,
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Measured {
        flow: u32,
        sequence: u64,
        intended_ns: u64,
        bytes: usize,
    },
    /// An error response to a measured request.
    Refused(u16),
    /// The client's own business.
    Control,
    Corrupt,
    Foreign,
}

impl Tap {
    /// Measured payloads arrive as they are.
    #[must_use]
    pub fn raw(socket: Arc<UdpSocket>) -> Tap {
        Tap {
            socket,
            decoder: Decoder::Raw,
            server: None,
        }
    }

    /// Binding responses arrive.
    #[must_use]
    pub fn binding(socket: Arc<UdpSocket>) -> Tap {
        Tap {
            socket,
            decoder: Decoder::Binding,
            server: None,
        }
    }

    /// A TURN client receives here. It is kept alive: its requests go to `server` from this socket.
    #[must_use]
    pub fn turn(socket: Arc<UdpSocket>, client: Box<Client>, server: std::net::SocketAddr) -> Tap {
        Tap {
            socket,
            decoder: Decoder::Turn(client),
            server: Some(server),
        }
    }

    pub(super) fn decode(
        &mut self,
        payload: &Payload,
        origin_ns: u64,
        now: Now,
        datagram: &[u8],
    ) -> Decoded {
        match &mut self.decoder {
            Decoder::Raw => measured(payload, datagram),
            Decoder::Binding => binding(origin_ns, datagram),
            Decoder::Turn(client) => match client.handle_input(now, datagram) {
                Received::Data { payload: range, .. } => measured(payload, &datagram[range]),
                Received::Handled | Received::Ignored(_) => Decoded::Control,
                Received::NotMine => Decoded::Foreign,
            },
        }
    }

    /// Sends what a client wants sent and forgets its events: a lost allocation shows as loss.
    pub(super) fn service(&mut self) {
        let (Decoder::Turn(client), Some(server)) = (&mut self.decoder, self.server) else {
            return;
        };
        while let Some(request) = client.poll_transmit() {
            // What does not leave is repeated by the client's own timer.
            let _ = self.socket.send_to(request, server, None);
        }
        while client.poll_event().is_some() {}
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        match &self.decoder {
            Decoder::Turn(client) => client.poll_timeout(),
            Decoder::Raw | Decoder::Binding => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Now) {
        if let Decoder::Turn(client) = &mut self.decoder {
            client.handle_timeout(now);
        }
        self.service();
    }
}

fn measured(payload: &Payload, bytes: &[u8]) -> Decoded {
    match payload.check(bytes) {
        Ok(stamp) => Decoded::Measured {
            flow: stamp.flow,
            sequence: stamp.sequence,
            intended_ns: stamp.intended_ns,
            bytes: bytes.len(),
        },
        Err(PayloadError::Corrupt) => Decoded::Corrupt,
        Err(PayloadError::Foreign) => Decoded::Foreign,
    }
}

fn binding(origin_ns: u64, datagram: &[u8]) -> Decoded {
    let Ok(message) = Message::parse(datagram) else {
        return Decoded::Corrupt;
    };
    match message.class() {
        Class::Success => {
            let stamp = IdStamp::decode(&message.transaction_id().0);
            Decoded::Measured {
                flow: stamp.flow,
                sequence: stamp.sequence,
                intended_ns: origin_ns + stamp.since_origin_ns,
                bytes: datagram.len(),
            }
        }
        Class::Error => match message.get::<ErrorCode<'_>>() {
            Ok(Some(error)) => Decoded::Refused(error.code),
            _ => Decoded::Corrupt,
        },
        Class::Request | Class::Indication => Decoded::Foreign,
    }
}
