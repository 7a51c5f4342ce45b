//! A tap: one socket, as a receiver sees it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::io::UdpSocket;
use stun::{Class, ErrorCode, Message, XorMappedAddress};
use turn::client::{AllocationLoss, Client, Event, Received, RequestError};
use turn::{Mono, Now};

use super::stamps::{IdStamp, Stamps};
use super::unexpected::{UnexpectedDatagram, is_cut};
use crate::Socket;
use crate::client::ClientParts;
use crate::measure::{Payload, PayloadError, Stamp};

/// How to make sense of what a socket receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decoder {
    /// Measured payloads as they are: a peer's socket.
    Raw,
    /// Answers to the Binding requests of a [`Stamping::TransactionId`](super::Stamping) lane.
    Binding {
        /// The server whose responses are received.
        server: SocketAddr,
        /// What they must say.
        mapped: ExpectedMapping,
    },
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
pub struct ReceiveSocket {
    pub(super) socket: Socket,
    pub(super) decoder: Decoder,
}

/// The mapped address that answers must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedMapping {
    /// This one: nothing between this machine and the server changes it.
    Is(SocketAddr),
    /// That of the first response: there may be a NAT.
    First,
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A measured payload with a head that is whole.
    Payload {
        stamp: Stamp,
        bytes: usize,
        /// What follows the head is what was sent.
        intact: bool,
    },
    /// A success response to a measured request.
    Bound { stamp: IdStamp, bytes: usize },
    /// An error response to a measured request.
    Refused { stamp: IdStamp, code: u16 },
    /// A response to what was not measured.
    Answer(usize),
    /// A message of the client's own transactions.
    Control,
    /// A datagram that no sender of this run has sent.
    Odd(UnexpectedDatagram),
}

impl Decoded {
    /// Whether a client may have something to send now: after a message of its own transactions, or after an unexpected
    /// datagram.
    #[inline]
    pub(super) fn may_change_client(self) -> bool {
        matches!(self, Decoded::Control | Decoded::Odd(_))
    }
}

/// Errors of the clients of a receiver during a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientErrors {
    /// Allocations that were lost.
    pub(super) lost: u64,
    /// Requests that keep something alive and failed: an allocation, a permission or a channel.
    pub(super) refused: u64,
    /// Connections that ended, and the first reason.
    pub(super) disconnected: u64,
    pub(super) why: Option<String>,
    /// The same by error code; 0 means time-outs and everything else without a code.
    pub(super) codes: BTreeMap<u16, u64>,
}

impl ReceiveSocket {
    /// A socket on which measured payloads arrive without a header.
    #[must_use]
    pub fn raw(socket: Arc<UdpSocket>) -> ReceiveSocket {
        ReceiveSocket {
            socket: socket.into(),
            decoder: Decoder::Raw,
        }
    }

    /// Binding responses of `server` arrive.
    #[must_use]
    pub fn binding(socket: impl Into<Socket>, server: SocketAddr) -> ReceiveSocket {
        let socket = socket.into();
        let mapped = ExpectedMapping::of(socket.local_addr(), server);
        ReceiveSocket {
            socket,
            decoder: Decoder::Binding { server, mapped },
        }
    }

    /// Responses arrive that no thread reads.
    #[must_use]
    pub fn answers(socket: Arc<UdpSocket>) -> ReceiveSocket {
        ReceiveSocket {
            socket: socket.into(),
            decoder: Decoder::Answers,
        }
    }

    /// A TURN client receives here. It is kept alive during a run, and its allocation released after it.
    #[must_use]
    pub fn turn(parts: ClientParts) -> ReceiveSocket {
        ReceiveSocket {
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
        stamps: &Stamps,
        now: Now,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Decoded {
        match &self.decoder {
            // RFC 8656 §3.2: an allocation is tied to its 5-tuple; only the server sends to this socket.
            Decoder::Turn { server, .. } | Decoder::Binding { server, .. } if *server != from => {
                Decoded::Odd(UnexpectedDatagram::Foreign)
            }
            _ => self.decode_message(payload, stamps, now, datagram),
        }
    }

    /// The same of a message that certainly came from the server.
    #[inline]
    pub(super) fn decode_message(
        &mut self,
        payload: &Payload,
        stamps: &Stamps,
        now: Now,
        datagram: &[u8],
    ) -> Decoded {
        match &mut self.decoder {
            Decoder::Raw => measured(payload, stamps.run.key, datagram, now),
            Decoder::Binding { mapped, .. } => binding(stamps, mapped, datagram),
            Decoder::Answers => Decoded::Answer(datagram.len()),
            Decoder::Turn { client, .. } => match client.handle_input(now, datagram) {
                Received::Data {
                    payload: range,
                    channel,
                    ..
                } => {
                    // RFC 8656 §12.5: padding may follow. The lengths of STUN messages have been compared.
                    let behind = datagram.len() - range.end;
                    if channel.is_some() && behind > stun::padding(range.len()) {
                        return Decoded::Odd(UnexpectedDatagram::Truncated);
                    }
                    measured(payload, stamps.run.key, &datagram[range], now)
                }
                Received::Handled => Decoded::Control,
                Received::Ignored(why) => {
                    Decoded::Odd(UnexpectedDatagram::of_ignored(why, datagram))
                }
                Received::NotMine => Decoded::Odd(UnexpectedDatagram::Foreign),
            },
        }
    }

    /// Whether what a client wants sent waits for a full socket; writes what there is room for.
    pub(super) fn is_full(&self) -> bool {
        let connection = self.socket.connection();
        connection.is_some_and(|connection| matches!(connection.write().flush(&mut 0), Ok(false)))
    }

    /// Sends what a client wants sent, and counts its errors.
    pub(super) fn service(&mut self, client_errors: &mut ClientErrors) {
        let Decoder::Turn { client, server } = &mut self.decoder else {
            return;
        };
        while let Some(request) = client.poll_transmit() {
            // What does not leave is repeated by the client's own timer; over a connection it waits until there is
            // room.
            let _ = self.socket.send(request, *server);
        }
        while let Some(event) = client.poll_event() {
            client_errors.note(&event);
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

impl ClientErrors {
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
                    AllocationLoss::Refused(error) => self.count(error),
                    // RFC 8656 §8.1: a server responds 437 if it does not have the allocation.
                    AllocationLoss::Forgotten => *self.codes.entry(437).or_default() += 1,
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

    pub(super) fn add(&mut self, other: &ClientErrors) {
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

impl ExpectedMapping {
    /// What a socket bound to `local` looks like to `server`.
    fn of(local: SocketAddr, server: SocketAddr) -> ExpectedMapping {
        let mut ip = local.ip();
        if ip.is_unspecified() {
            // Connecting sends nothing; it asks the routes.
            let asked = std::net::UdpSocket::bind((ip, 0)).and_then(|socket| {
                socket.connect(server)?;
                socket.local_addr()
            });
            let Ok(asked) = asked else {
                return ExpectedMapping::First;
            };
            ip = asked.ip();
        }
        match server.ip().is_loopback() || server.ip() == ip {
            true => ExpectedMapping::Is(SocketAddr::new(ip, local.port())),
            false => ExpectedMapping::First,
        }
    }

    /// Whether a response may say this.
    fn admits(&mut self, found: SocketAddr) -> bool {
        match *self {
            ExpectedMapping::Is(expected) => expected == found,
            ExpectedMapping::First => {
                *self = ExpectedMapping::Is(found);
                true
            }
        }
    }
}

#[inline]
fn measured(payload: &Payload, key: u64, bytes: &[u8], now: Now) -> Decoded {
    match Payload::peek(bytes, key, now.mono.0) {
        Ok(stamp) => Decoded::Payload {
            stamp,
            bytes: bytes.len(),
            intact: payload.is_intact(bytes, stamp.flow),
        },
        Err(PayloadError::Truncated) => Decoded::Odd(UnexpectedDatagram::Truncated),
        Err(PayloadError::Damaged) => Decoded::Odd(UnexpectedDatagram::Damaged),
        Err(PayloadError::Corrupt) => Decoded::Odd(UnexpectedDatagram::Corrupt),
        Err(PayloadError::Foreign) => Decoded::Odd(UnexpectedDatagram::Foreign),
    }
}

fn binding(stamps: &Stamps, mapped: &mut ExpectedMapping, datagram: &[u8]) -> Decoded {
    if is_cut(datagram) {
        return Decoded::Odd(UnexpectedDatagram::Truncated);
    }
    let Ok(message) = Message::parse(datagram) else {
        return Decoded::Odd(UnexpectedDatagram::Corrupt);
    };
    if matches!(message.class(), Class::Request | Class::Indication) {
        return Decoded::Odd(UnexpectedDatagram::Foreign);
    }
    let Some(stamp) = stamps.decode(&message.transaction_id().0) else {
        return Decoded::Odd(UnexpectedDatagram::UnknownId);
    };
    if message.class() == Class::Error {
        return match message.get::<ErrorCode<'_>>() {
            Ok(Some(error)) => Decoded::Refused {
                stamp,
                code: error.code,
            },
            _ => Decoded::Odd(UnexpectedDatagram::Corrupt),
        };
    }
    match message.get::<XorMappedAddress>() {
        Ok(Some(found)) if mapped.admits(found.0) => Decoded::Bound {
            stamp,
            bytes: datagram.len(),
        },
        _ => Decoded::Odd(UnexpectedDatagram::WrongAddress),
    }
}
