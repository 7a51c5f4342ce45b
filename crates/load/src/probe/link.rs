//! One client on one connected socket, and a thread that waits for it.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use client::{Endpoint, Input};
use turn::client::{Client, ClientConfig, Event, RequestError, Timing};
use turn::{Mono, Now};

use super::Connected;
use super::error::ProbeError;
use super::socket::Socket;
use crate::{ServerAddress, Via};

/// Longer than any UDP datagram, and than any message with its padding.
const BUFFER_BYTES: usize = 65_536 + 8;

/// A client, its socket and its clock.
pub(super) struct ProbeClient {
    socket: Socket,
    via: Via,
    endpoint: Endpoint,
    /// Why the connection is of no more use.
    lost: Option<io::Error>,
    buffer: Box<[u8]>,
    /// Datagrams that are neither STUN nor ChannelData.
    foreign: u32,
}

/// The outcome of [`ProbeClient::step`].
pub(super) enum Step {
    /// Something happened to the client.
    Event(Event),
    /// A peer sent data.
    Data {
        /// Who.
        peer: SocketAddr,
        /// Where it is in [`ProbeClient::buffer`].
        payload: Range<usize>,
    },
    /// The time is up.
    Deadline,
}

impl ProbeClient {
    /// Opens a socket; over TCP, TLS and DTLS it waits for the connection, at most `timeout`.
    pub(super) fn open(
        server: &ServerAddress,
        config: &ClientConfig,
        timeout: Duration,
    ) -> Result<ProbeClient, ProbeError> {
        let (address, via) = (server.address, &server.via);
        let config = ClientConfig {
            transport: via.transport(),
            ..config.clone()
        };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)
            .map_err(|error| ProbeError::local(address, io::Error::other(error.to_string())))?;
        let socket = Socket::open(server, timeout).map_err(|error| match via {
            Via::Udp => ProbeError::local(address, error),
            via => ProbeError::connection(address, via, error),
        })?;
        Ok(ProbeClient {
            socket,
            via: via.clone(),
            endpoint: Endpoint::new(address, Arc::new(config), seed),
            lost: None,
            buffer: vec![0; BUFFER_BYTES].into(),
            foreign: 0,
        })
    }

    /// What became of connecting; `None` over UDP.
    pub(super) fn connected(&self) -> Option<Connected> {
        self.socket.connected()
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.endpoint.server()
    }

    pub(super) fn client(&self) -> &Client {
        self.endpoint.client()
    }

    /// The address its datagrams leave from.
    pub(super) fn local(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    pub(super) fn bytes(&self, payload: Range<usize>) -> &[u8] {
        &self.buffer[payload]
    }

    pub(super) fn call(&mut self, action: impl FnOnce(&mut Client, Now)) {
        self.endpoint.with(now(), action);
    }

    /// Sends `payload` to `peer` through the relay, as ChannelData if a channel is bound, else as a Send indication.
    /// Returns false if there is neither channel nor permission, or if sending fails. With its header, `payload` must
    /// fit into 256 bytes.
    pub(super) fn send(&mut self, peer: SocketAddr, payload: &[u8]) -> bool {
        let mut out = [0; 256];
        let at = now();
        let client = self.endpoint.data();
        let header = client
            .channel_of(at, peer)
            .and_then(|channel| client.channel_header(at, channel, payload.len()).ok());
        let len = match header {
            Some(header) => {
                let end = header.len() + payload.len();
                out[..header.len()].copy_from_slice(&header);
                out[header.len()..end].copy_from_slice(payload);
                Ok(end + client.channel_padding(payload.len()))
            }
            None => client.write_send_indication(at, peer, payload, false, &mut out),
        };
        // A datagram that does not leave counts as lost; the next one is tried anyway.
        len.is_ok_and(|len| self.socket.send(&out[..len]).is_ok())
    }

    /// Waits for the one event that `wanted` recognises.
    pub(super) fn wait<T>(
        &mut self,
        request: &'static str,
        timeout: Duration,
        mut wanted: impl FnMut(Event) -> Option<Result<T, RequestError>>,
    ) -> Result<T, ProbeError> {
        let start = now().mono;
        let mut transmissions = 0;
        loop {
            match self.step(start.plus(timeout), &mut transmissions) {
                Step::Event(event) => match wanted(event) {
                    Some(Ok(value)) => return Ok(value),
                    Some(Err(error)) => return Err(self.explain(request, error)),
                    None => {}
                },
                Step::Data { .. } => {}
                Step::Deadline => {
                    let timing = Timing {
                        elapsed: now().mono.since(start),
                        transmissions,
                    };
                    return Err(self.explain(request, RequestError::TimedOut(timing)));
                }
            }
        }
    }

    fn explain(&self, request: &'static str, error: RequestError) -> ProbeError {
        if let Some(lost) = &self.lost {
            let lost = io::Error::new(lost.kind(), lost.to_string());
            return ProbeError::connection(self.server(), &self.via, lost);
        }
        match error {
            RequestError::TimedOut(_) if self.foreign > 0 => ProbeError::NotStun {
                server: self.server(),
            },
            error => ProbeError::request(self.server(), request, error).over(&self.via),
        }
    }

    /// Drives the client until something happens, at most until `deadline`. Adds what it sends to `transmissions`.
    pub(super) fn step(&mut self, deadline: Mono, transmissions: &mut u8) -> Step {
        loop {
            let at = now();
            self.endpoint.timeout(at);
            let (socket, mut refused) = (&mut self.socket, false);
            self.endpoint.transmit(|request| {
                *transmissions = transmissions.saturating_add(1);
                // Over UDP, the next call reports an ICMP error that waits, so the call is repeated once.
                refused |= socket.send(request).is_err() && socket.send(request).is_err();
            });
            if refused {
                self.unreachable(at);
            }
            if let Some(event) = self.endpoint.event() {
                return Step::Event(event);
            }
            // Nothing comes by a connection that is lost.
            if at.mono >= deadline || self.lost.is_some() {
                return Step::Deadline;
            }
            let until = self
                .endpoint
                .deadline()
                .map_or(deadline, |at| at.min(deadline));
            match self.receive(until.since(at.mono)) {
                Some(Input::Data { peer, payload, .. }) => return Step::Data { peer, payload },
                Some(Input::NotMine) => self.foreign += 1,
                _ => {}
            }
        }
    }

    fn unreachable(&mut self, at: Now) {
        self.endpoint
            .with(at, |client, now| client.handle_unreachable(now));
    }

    fn receive(&mut self, wait: Duration) -> Option<Input> {
        match self.socket.receive(wait, &mut self.buffer) {
            Ok(len) => {
                // The socket is connected: the kernel drops what others send.
                let server = self.server();
                Some(self.endpoint.input(now(), server, &self.buffer[..len]))
            }
            Err(error) if is_hard(error.kind()) => {
                self.unreachable(now());
                None
            }
            Err(error) if self.via.has_connections() && !is_timeout(error.kind()) => {
                self.lost = Some(error);
                self.unreachable(now());
                None
            }
            Err(_) => None,
        }
    }
}

pub(super) fn is_timeout(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// RFC 8489 §6.2.1: a hard ICMP error fails the transaction. By RFC 1122 §4.2.3.9, "port unreachable" is a hard error;
/// "network unreachable" and "host unreachable" are not.
fn is_hard(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied
    )
}

fn now() -> Now {
    Now {
        mono: Mono(::io::clock::monotonic_ns()),
        unix_s: ::io::clock::unix_s(),
    }
}
