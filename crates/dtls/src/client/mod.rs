//! A client: one connection to a server.

mod handshake;
mod verify;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{ServerName, UnixTime};
use timers::Mono;

use crate::crypto::cipher::EPOCH;
use crate::crypto::{Opener, Sealer, Suite};
use crate::flight::Outgoing;
use crate::wire::Reader;
use crate::wire::alert::{self, Alert, description};
use crate::wire::handshake::{Fragment, kind};
use crate::wire::record::{self, ContentType, Header};
use crate::{CloseReason, SendError};
use handshake::{Handshake, Keys};

/// The settings of [`Client`]s.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Verifies the server's certificate and name. Every verifier of rustls can be used.
    pub verifier: Arc<dyn ServerCertVerifier>,
    /// Application protocols to offer (RFC 7443: `stun.turn`). If empty, the ClientHello has no ALPN extension.
    pub protocols: Vec<Vec<u8>>,
    /// The longest duration of the handshake.
    pub handshake_timeout: Duration,
    /// Time until the first retransmission of a flight. It doubles with each retransmission (RFC 6347 §4.2.4.1).
    pub first_retransmission: Duration,
    /// The longest datagram of a handshake in bytes, without IP and UDP headers.
    pub mtu: usize,
    /// The algorithms that verify signatures of servers.
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientConfig {
    /// Settings with this verifier, and the defaults of RFC 6347 §4.2.4.1 for retransmissions.
    #[must_use]
    pub fn new(verifier: Arc<dyn ServerCertVerifier>) -> ClientConfig {
        ClientConfig {
            verifier,
            protocols: Vec::new(),
            handshake_timeout: Duration::from_secs(20),
            first_retransmission: Duration::from_secs(1),
            mtu: 1200,
            algorithms: rustls::crypto::aws_lc_rs::default_provider()
                .signature_verification_algorithms,
        }
    }
}

/// An event of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The handshake is complete: messages can be sent.
    Connected {
        /// The cipher suite's name in the IANA registry.
        cipher_suite: &'static str,
        /// The application protocol that the server selected, if any.
        protocol: Option<Box<[u8]>>,
    },
    /// The connection has ended.
    Closed(CloseReason),
}

#[derive(Debug)]
enum State {
    Handshake(Box<Handshake>),
    Established(Box<(Sealer, Opener)>),
    Closed,
}

/// A connection to a server. After every call, drain [`Client::poll_transmit`] and [`Client::poll_event`].
#[derive(Debug)]
pub struct Client {
    config: Arc<ClientConfig>,
    state: State,
    plain_sequence: u64,
    outgoing: Outgoing<()>,
    events: VecDeque<ClientEvent>,
}

impl Client {
    /// Begins a handshake. The certificate must be valid for `server_name` at the time `unix`.
    #[must_use]
    pub fn new(
        config: Arc<ClientConfig>,
        server_name: ServerName<'static>,
        now: Mono,
        unix: UnixTime,
    ) -> Client {
        let mut client = Client {
            config,
            state: State::Closed,
            plain_sequence: 0,
            outgoing: Outgoing::new(),
            events: VecDeque::new(),
        };
        match Handshake::new(&client.config, server_name, now, unix) {
            Ok(handshake) => {
                handshake.send(
                    &mut client.outgoing,
                    client.config.mtu,
                    &mut client.plain_sequence,
                );
                client.state = State::Handshake(Box::new(handshake));
            }
            Err(refused) => client.end(CloseReason::Handshake(refused.into())),
        }
        client
    }

    /// Handles a received datagram. Decrypts a message in place, and returns it with the records after it. Pass these
    /// records to the next call.
    pub fn handle_datagram<'a>(
        &mut self,
        now: Mono,
        datagram: &'a mut [u8],
    ) -> Option<(&'a mut [u8], &'a mut [u8])> {
        let (message, end) = self.open(now, datagram, 0)?;
        let (head, rest) = datagram.split_at_mut(end);
        // `open` returns a range that ends before `end`.
        Some((&mut head[message], rest))
    }

    /// The same as [`Client::handle_datagram`], for the records from `at` on. Returns the range of the first message,
    /// and where the records after it begin.
    pub fn open(
        &mut self,
        now: Mono,
        datagram: &mut [u8],
        mut at: usize,
    ) -> Option<(Range<usize>, usize)> {
        while let Some(header) = datagram.get(at..).and_then(Header::parse) {
            let start = at + record::HEADER;
            let end = start + header.length;
            at = end;
            // `Header::parse` has checked that the record is complete.
            let fragment = &mut datagram[start..end];
            let range = match (&mut self.state, header.epoch) {
                (State::Handshake(_), _) => {
                    self.handshake_record(now, &header, fragment);
                    continue;
                }
                (State::Established(keys), EPOCH) => keys.1.open(&header, fragment).ok(),
                _ => None,
            };
            let Some(range) = range else {
                continue;
            };
            match header.content {
                ContentType::ApplicationData => {
                    return Some((start + range.start..start + range.end, end));
                }
                ContentType::Alert => self.alert(&fragment[range]),
                // A repeated Finished message; or HelloRequest, which may be ignored (RFC 5246 §7.4.1.1).
                ContentType::Handshake | ContentType::ChangeCipherSpec => (),
            }
        }
        None
    }

    fn alert(&mut self, bytes: &[u8]) {
        match Alert::parse(bytes) {
            Some(Alert::CloseNotify) => self.end(CloseReason::Peer),
            Some(Alert::Fatal(description)) => self.end(CloseReason::Alert(description)),
            _ => (),
        }
    }

    /// Handles a record while the handshake is in progress.
    fn handshake_record(&mut self, now: Mono, header: &Header, fragment: &mut [u8]) {
        let State::Handshake(handshake) = &mut self.state else {
            return;
        };
        let result = match (header.content, header.epoch) {
            // The alert is not authenticated, but a server has no other way to reject a ClientHello.
            (ContentType::Alert, 0) => return self.alert(fragment),
            (ContentType::Handshake, 0) => {
                handshake.fragments(
                    &self.config,
                    &mut self.outgoing,
                    &mut self.plain_sequence,
                    now,
                    fragment,
                );
                handshake.advance(
                    &self.config,
                    &mut self.outgoing,
                    &mut self.plain_sequence,
                    now,
                )
            }
            (_, EPOCH) => {
                let Some(text) = handshake.open(header, fragment) else {
                    return;
                };
                match header.content {
                    ContentType::Handshake => match Fragment::take(&mut Reader::new(text)) {
                        Some(message) if message.kind == kind::FINISHED => {
                            handshake.finished(&message)
                        }
                        _ => return,
                    },
                    ContentType::Alert => return self.alert(text),
                    // The network reordered data before Finished. The client drops it, as if it were lost.
                    _ => return,
                }
            }
            _ => return,
        };
        match result {
            Ok(None) => (),
            Ok(Some(keys)) => self.established(keys),
            Err(error) => self.end(CloseReason::Handshake(error)),
        }
    }

    fn established(&mut self, keys: Keys) {
        let suite: &'static Suite = keys.suite;
        self.events.push_back(ClientEvent::Connected {
            cipher_suite: suite.name,
            protocol: keys.protocol,
        });
        self.state = State::Established(Box::new((keys.sealer, keys.opener)));
    }

    fn end(&mut self, reason: CloseReason) {
        let alert = match reason {
            CloseReason::Local | CloseReason::Peer => {
                Some([alert::WARNING, description::CLOSE_NOTIFY])
            }
            CloseReason::Handshake(error) => Some([alert::FATAL, error.alert()]),
            _ => None,
        };
        if let Some(alert) = alert {
            let mut packer = self.outgoing.pack((), self.config.mtu);
            let sealer = match &mut self.state {
                State::Handshake(handshake) => handshake.sealer(),
                State::Established(keys) => Some(&mut keys.0),
                State::Closed => None,
            };
            match sealer {
                Some(sealer) => packer.sealed(ContentType::Alert, sealer, &alert),
                None => packer.plain(ContentType::Alert, &mut self.plain_sequence, &[&alert]),
            }
        }
        self.state = State::Closed;
        self.events.push_back(ClientEvent::Closed(reason));
    }

    /// Encrypts one message, given in parts, into `out`, and returns the length of the datagram. `out` must be longer
    /// than the message by [`crate::OVERHEAD`].
    ///
    /// # Errors
    /// The connection is not established, or the message does not fit.
    pub fn seal(&mut self, parts: &[&[u8]], out: &mut [u8]) -> Result<usize, SendError> {
        match &mut self.state {
            State::Established(keys) => {
                Ok(keys.0.seal(ContentType::ApplicationData, parts, out)?)
            }
            _ => Err(SendError::NotConnected),
        }
    }

    /// Ends the connection. The server gets a close_notify alert.
    pub fn close(&mut self) {
        if !self.is_closed() {
            self.end(CloseReason::Local);
        }
    }

    /// Whether messages can be sent.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// Whether the connection has ended.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<&[u8]> {
        self.outgoing.poll().map(|((), datagram)| datagram)
    }

    /// The next event of the connection.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// The time at which the caller must call [`Client::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        match &self.state {
            State::Handshake(handshake) => Some(handshake.due()),
            _ => None,
        }
    }

    /// Handles timers that are due: retransmits a flight, or ends the handshake.
    pub fn handle_timeout(&mut self, now: Mono) {
        let State::Handshake(handshake) = &mut self.state else {
            return;
        };
        if handshake.has_expired(now) {
            self.end(CloseReason::HandshakeTimeout);
        } else if now >= handshake.due() {
            handshake.retransmit(
                &mut self.outgoing,
                self.config.mtu,
                &mut self.plain_sequence,
                now,
            );
        }
    }
}
