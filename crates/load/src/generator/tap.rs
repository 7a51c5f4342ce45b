//! A tap: one socket, as a receiver sees it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::io::UdpSocket;
use stun::{Class, ErrorCode, Message};
use turn::client::{Client, Event, Loss, Received, RequestError};
use turn::{Mono, Now};

use super::lane::IdStamp;
use crate::Socket;
use crate::client::ClientParts;
use crate::measure::{Payload, PayloadError};

/// How to make sense of what a socket receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decoder {
    /// Measured payloads as they are: a peer's socket.
    Raw,
    /// Answers to the Binding requests of a [`Stamping::TransactionId`](super::Stamping) lane.
    Binding,
    /// Answers to garbage: counted, not read.
    Answers,
    /// The socket of a TURN client: ChannelData and Data indications with measured payloads, and the client's own
    /// transactions, which it keeps alive.
    Turn {
        /// The client.
        client: Box<Client>,
        /// Its server.
        server: SocketAddr,
    },
}

/// A socket to receive from.
#[derive(Debug)]
pub struct Tap {
    pub(super) socket: Socket,
    pub(super) decoder: Decoder,
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
    Refused {
        flow: u32,
        sequence: u64,
        code: u16,
    },
    /// An answer to what was not measured.
    Answer(usize),
    /// The client's own business.
    Control,
    Corrupt,
    Foreign,
}

/// What befell the clients of a receiver during a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Troubles {
    /// Allocations that are gone.
    pub(super) lost: u64,
    /// Requests that keep something alive and failed: an allocation, a permission or a channel.
    pub(super) refused: u64,
    /// Connections that ended, and the first reason.
    pub(super) disconnected: u64,
    pub(super) why: Option<String>,
    /// The same by error code; 0 stands for time-outs and everything else without a code.
    pub(super) codes: BTreeMap<u16, u64>,
}

impl Tap {
    /// Measured payloads arrive as they are.
    #[must_use]
    pub fn raw(socket: Arc<UdpSocket>) -> Tap {
        Tap {
            socket: socket.into(),
            decoder: Decoder::Raw,
        }
    }

    /// Binding responses arrive.
    #[must_use]
    pub fn binding(socket: impl Into<Socket>) -> Tap {
        Tap {
            socket: socket.into(),
            decoder: Decoder::Binding,
        }
    }

    /// Answers arrive that nobody reads.
    #[must_use]
    pub fn answers(socket: Arc<UdpSocket>) -> Tap {
        Tap {
            socket: socket.into(),
            decoder: Decoder::Answers,
        }
    }

    /// A TURN client receives here. It is kept alive during a run, and its allocation released after it.
    #[must_use]
    pub fn turn(parts: ClientParts) -> Tap {
        Tap {
            socket: parts.socket,
            decoder: Decoder::Turn {
                client: parts.client,
                server: parts.server,
            },
        }
    }

    /// The TURN client, if it is one's.
    pub(super) fn into_client(self) -> Option<ClientParts> {
        match self.decoder {
            Decoder::Turn { client, server } => Some(ClientParts {
                client,
                socket: self.socket,
                server,
            }),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn decode(
        &mut self,
        payload: &Payload,
        origin_ns: u64,
        now: Now,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Decoded {
        match &self.decoder {
            // RFC 8656 §3.2: an allocation is tied to its 5-tuple; nobody but the server speaks to this socket.
            Decoder::Turn { server, .. } if *server != from => Decoded::Foreign,
            _ => self.decode_message(payload, origin_ns, now, datagram),
        }
    }

    /// The same of a message that certainly came from the server.
    #[inline]
    pub(super) fn decode_message(
        &mut self,
        payload: &Payload,
        origin_ns: u64,
        now: Now,
        datagram: &[u8],
    ) -> Decoded {
        match &mut self.decoder {
            Decoder::Raw => measured(payload, datagram),
            Decoder::Binding => binding(origin_ns, datagram),
            Decoder::Answers => Decoded::Answer(datagram.len()),
            Decoder::Turn { client, .. } => match client.handle_input(now, datagram) {
                Received::Data { payload: range, .. } => measured(payload, &datagram[range]),
                Received::Handled | Received::Ignored(_) => Decoded::Control,
                Received::NotMine => Decoded::Foreign,
            },
        }
    }

    /// Whether what a client wants sent waits for a full socket; writes what there is room for.
    pub(super) fn is_full(&self) -> bool {
        let connection = self.socket.connection();
        connection.is_some_and(|connection| matches!(connection.write().flush(&mut 0), Ok(false)))
    }

    /// Sends what a client wants sent, and takes note of what befell it.
    pub(super) fn service(&mut self, troubles: &mut Troubles) {
        let Decoder::Turn { client, server } = &mut self.decoder else {
            return;
        };
        while let Some(request) = client.poll_transmit() {
            // What does not leave is repeated by the client's own timer; over a connection it waits until there is room.
            let _ = self.socket.send(request, *server);
        }
        while let Some(event) = client.poll_event() {
            troubles.note(&event);
        }
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        match &self.decoder {
            Decoder::Turn { client, .. } => client.poll_timeout(),
            _ => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Now) {
        if let Decoder::Turn { client, .. } = &mut self.decoder {
            client.handle_timeout(now);
        }
    }
}

impl Troubles {
    /// A connection has ended.
    pub(super) fn disconnected(&mut self, error: &io::Error) {
        self.disconnected += 1;
        self.why.get_or_insert_with(|| error.to_string());
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Lost(loss) => {
                self.lost += 1;
                match loss {
                    Loss::Refused(error) => self.count(error),
                    // RFC 8656 §8.1: 437 is how a server says that it knows no such allocation.
                    Loss::Forgotten => *self.codes.entry(437).or_default() += 1,
                    _ => *self.codes.entry(0).or_default() += 1,
                }
            }
            Event::RefreshFailed(error)
            | Event::PermissionFailed { error, .. }
            | Event::ChannelFailed { error, .. } => {
                self.refused += 1;
                self.count(error);
            }
            _ => {}
        }
    }

    fn count(&mut self, error: &RequestError) {
        *self.codes.entry(error.code().unwrap_or(0)).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Troubles) {
        self.lost += other.lost;
        self.refused += other.refused;
        self.disconnected += other.disconnected;
        if self.why.is_none() {
            self.why.clone_from(&other.why);
        }
        for (&code, count) in &other.codes {
            *self.codes.entry(code).or_default() += count;
        }
    }
}

#[inline]
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
            Ok(Some(error)) => {
                let stamp = IdStamp::decode(&message.transaction_id().0);
                Decoded::Refused {
                    flow: stamp.flow,
                    sequence: stamp.sequence,
                    code: error.code,
                }
            }
            _ => Decoded::Corrupt,
        },
        Class::Request | Class::Indication => Decoded::Foreign,
    }
}
