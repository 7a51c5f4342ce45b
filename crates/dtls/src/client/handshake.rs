//! The client's handshake: flights 1, 3 and 5 of RFC 6347 §4.2.4.

use rustls::pki_types::{ServerName, UnixTime};
use timers::Mono;

use super::{ClientConfig, verify};
use crate::HandshakeError;
use crate::crypto::schedule::{Randoms, Secret, Side};
use crate::crypto::{self, Group, Opener, Refused, SUITES, Sealer, Suite};
use crate::flight::{Finished, Flight, Outgoing, Packer, Retransmission};
use crate::reassembly::{Added, Bounds, Message, Reassembly};
use crate::transcript::Transcript;
use crate::wire::client_hello::Offer;
use crate::wire::handshake::{Fragment, kind, message};
use crate::wire::key_exchange::{self, ServerKeyExchange};
use crate::wire::record::Header;
use crate::wire::server_hello::{BadServerHello, ServerHello, parse_hello_verify};
use crate::wire::{Reader, certificate};

/// A server's flight has up to five messages and a certificate chain of 16 KiB.
const BOUNDS: Bounds = Bounds {
    ahead: 6,
    bytes: 32 * 1024,
};
/// The maximum number of cookies that the client returns before it ends the handshake.
const MAX_COOKIES: u16 = 4;

/// The keys of a completed handshake.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) suite: &'static Suite,
    pub(super) protocol: Option<Box<[u8]>>,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

/// The state after the client has sent its flight with Finished.
#[derive(Debug)]
struct Answered {
    keys: Keys,
    finished: Finished,
    /// The expected verify_data of the server's Finished message.
    expected: [u8; crypto::schedule::VERIFY_DATA],
    /// Its sequence number.
    sequence: u16,
}

#[derive(Debug)]
enum State {
    /// The client has sent ClientHello.
    Hello,
    /// The messages of the server's flight so far, until ServerHelloDone.
    Flight(Vec<Message>),
    Answered(Box<Answered>),
    Ended,
}

/// A handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    server_name: ServerName<'static>,
    unix: UnixTime,
    random: [u8; 32],
    deadline: Mono,
    retransmission: Retransmission,
    messages: Reassembly,
    flight: Flight,
    /// Sequence number of our next message.
    next_sequence: u16,
    state: State,
}

impl Handshake {
    pub(super) fn new(
        config: &ClientConfig,
        server_name: ServerName<'static>,
        now: Mono,
        unix: UnixTime,
    ) -> Result<Handshake, Refused> {
        let mut handshake = Handshake {
            server_name,
            unix,
            random: crypto::random()?,
            deadline: now.plus(config.handshake_timeout),
            retransmission: Retransmission::new(config.first_retransmission, now),
            messages: Reassembly::new(0, BOUNDS),
            flight: Flight::default(),
            next_sequence: 0,
            state: State::Hello,
        };
        handshake.hello(config, &[]);
        Ok(handshake)
    }

    /// Makes the ClientHello the flight to send.
    fn hello(&mut self, config: &ClientConfig, cookie: &[u8]) {
        let name = match &self.server_name {
            ServerName::DnsName(name) => Some(name.as_ref()),
            // RFC 6066 §3: literal addresses are not sent.
            _ => None,
        };
        let offer = Offer {
            random: &self.random,
            cookie,
            server_name: name,
            suites: &SUITES.iter().map(|suite| suite.id).collect::<Vec<_>>(),
            groups: &Group::ALL.map(Group::id),
            signature_schemes: &verify::schemes(config.algorithms)
                .map(u16::from)
                .collect::<Vec<_>>(),
            protocols: &config.protocols,
        };
        let mut flight = Flight::default();
        message(
            &mut flight.messages,
            kind::CLIENT_HELLO,
            self.next_sequence,
            |out| offer.write(out),
        );
        self.flight = flight;
        self.next_sequence += 1;
    }

    /// Sends the flight.
    pub(super) fn send(&self, outgoing: &mut Outgoing<()>, mtu: usize, sequence: &mut u64) {
        self.flight.send(&mut outgoing.pack((), mtu), sequence);
    }

    fn send_again(&mut self, outgoing: &mut Outgoing<()>, mtu: usize, sequence: &mut u64) {
        let mut packer: Packer<'_, ()> = outgoing.pack((), mtu);
        self.flight.send(&mut packer, sequence);
        if let State::Answered(answered) = &mut self.state {
            answered
                .finished
                .send(&mut packer, sequence, &mut answered.keys.sealer);
        }
    }

    pub(super) fn due(&self) -> Mono {
        self.deadline.min(self.retransmission.next_at())
    }

    pub(super) fn has_expired(&self, now: Mono) -> bool {
        now >= self.deadline
    }

    pub(super) fn retransmit(
        &mut self,
        outgoing: &mut Outgoing<()>,
        mtu: usize,
        sequence: &mut u64,
        now: Mono,
    ) {
        self.retransmission.back_off(now);
        self.send_again(outgoing, mtu, sequence);
    }

    pub(super) fn sealer(&mut self) -> Option<&mut Sealer> {
        match &mut self.state {
            State::Answered(answered) => Some(&mut answered.keys.sealer),
            _ => None,
        }
    }

    /// Keeps the fragments of a record.
    pub(super) fn fragments(
        &mut self,
        config: &ClientConfig,
        outgoing: &mut Outgoing<()>,
        sequence: &mut u64,
        now: Mono,
        bytes: &[u8],
    ) {
        let mut reader = Reader::new(bytes);
        let mut retransmitted = false;
        while let Some(fragment) = Fragment::take(&mut reader) {
            retransmitted |= self.messages.add(&fragment) == Added::Old
                && fragment.kind == kind::SERVER_HELLO_DONE;
        }
        // RFC 6347 §4.2.4: our last flight was lost.
        if retransmitted
            && matches!(self.state, State::Answered(_))
            && self.retransmission.should_resend(now)
        {
            self.send_again(outgoing, config.mtu, sequence);
        }
    }

    /// Handles the messages that are complete.
    pub(super) fn advance(
        &mut self,
        config: &ClientConfig,
        outgoing: &mut Outgoing<()>,
        sequence: &mut u64,
        now: Mono,
    ) -> Result<Option<Keys>, HandshakeError> {
        while !matches!(self.state, State::Answered(_)) {
            let Some(message) = self.messages.take() else {
                break;
            };
            match &mut self.state {
                State::Hello if message.kind == kind::HELLO_VERIFY_REQUEST => {
                    let cookie =
                        parse_hello_verify(message.body()).ok_or(HandshakeError::Malformed)?;
                    if self.next_sequence > MAX_COOKIES {
                        return Err(HandshakeError::Malformed);
                    }
                    self.hello(config, cookie);
                    self.retransmission = Retransmission::new(config.first_retransmission, now);
                    self.send(outgoing, config.mtu, sequence);
                }
                State::Hello => self.state = State::Flight(vec![message]),
                State::Flight(messages) => messages.push(message),
                State::Answered(_) | State::Ended => break,
            }
            if let State::Flight(messages) = &mut self.state
                && messages
                    .last()
                    .is_some_and(|last| last.kind == kind::SERVER_HELLO_DONE)
            {
                let messages = std::mem::take(messages);
                self.answer(config, &messages)?;
                self.retransmission = Retransmission::new(config.first_retransmission, now);
                self.send_again(outgoing, config.mtu, sequence);
            }
        }
        Ok(None)
    }

    /// Parses the server's flight, and verifies its certificate and signature.
    fn verified<'m>(
        &self,
        config: &ClientConfig,
        flight: &ServerFlight<'m>,
    ) -> Result<Verified<'m>, HandshakeError> {
        let hello = flight.hello(config)?;
        let suite = Suite::by_id(hello.suite).ok_or(HandshakeError::NotOffered)?;
        let chain =
            certificate::parse(flight.certificate.body()).ok_or(HandshakeError::Malformed)?;
        verify::chain(&*config.verifier, &chain, &self.server_name, self.unix)?;
        let exchange =
            ServerKeyExchange::parse(flight.exchange.body()).ok_or(HandshakeError::Malformed)?;
        let randoms = Randoms {
            client: &self.random,
            server: hello.random,
        };
        verify::signature(
            config.algorithms,
            &chain[0],
            &exchange,
            randoms,
            suite.authentication,
        )?;
        let group = Group::by_id(exchange.group).ok_or(HandshakeError::NotOffered)?;
        Ok(Verified {
            hello,
            suite,
            group,
            public: exchange.public,
        })
    }

    /// Replies to the server's flight with the client's key and Finished.
    fn answer(
        &mut self,
        config: &ClientConfig,
        messages: &[Message],
    ) -> Result<(), HandshakeError> {
        let flight = ServerFlight::new(messages)?;
        let Verified {
            hello,
            suite,
            group,
            public,
        } = self.verified(config, &flight)?;
        let pair = group.generate()?;
        let mut transcript = Transcript::new(suite);
        transcript.add(&self.flight.messages);
        for message in messages {
            transcript.add(message.bytes());
        }
        let mut ours = Flight::default();
        if flight.wants_certificate {
            // RFC 5246 §7.4.6: a client without a certificate sends an empty list.
            message(
                &mut ours.messages,
                kind::CERTIFICATE,
                self.next_sequence,
                |out| certificate::write(out, &[]),
            );
            self.next_sequence += 1;
        }
        message(
            &mut ours.messages,
            kind::CLIENT_KEY_EXCHANGE,
            self.next_sequence,
            |out| {
                key_exchange::write_client(out, pair.public());
            },
        );
        transcript.add(&ours.messages);
        let randoms = Randoms {
            client: &self.random,
            server: hello.random,
        };
        let pre_master = pair.agree(public).map_err(|_| HandshakeError::KeyShare)?;
        let session_hash = hello.extended_master_secret.then(|| transcript.hash());
        let secret = Secret::new(
            suite,
            &pre_master,
            randoms,
            session_hash.as_ref().map(AsRef::as_ref),
        )?;
        let (sealer, opener) = secret.keys(Side::Client, randoms)?;
        let verify_data = secret.verify_data(Side::Client, transcript.hash().as_ref())?;
        let finished = Finished::new(self.next_sequence + 1, &verify_data);
        transcript.add(&finished.0);
        self.state = State::Answered(Box::new(Answered {
            keys: Keys {
                suite,
                protocol: hello.protocol.map(Into::into),
                sealer,
                opener,
            },
            finished,
            expected: secret.verify_data(Side::Server, transcript.hash().as_ref())?,
            sequence: self.messages.next(),
        }));
        self.flight = ours;
        Ok(())
    }

    /// Decrypts a record of epoch 1. Before it has the keys, the client drops the record: the server retransmits its
    /// flight.
    pub(super) fn open<'a>(&mut self, header: &Header, fragment: &'a mut [u8]) -> Option<&'a [u8]> {
        let State::Answered(answered) = &mut self.state else {
            return None;
        };
        let range = answered.keys.opener.open(header, fragment).ok()?;
        // The opener returns a range of the fragment.
        Some(&fragment[range])
    }

    /// The server's Finished message.
    pub(super) fn finished(
        &mut self,
        message: &Fragment<'_>,
    ) -> Result<Option<Keys>, HandshakeError> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Answered(answered)
                if message.sequence == answered.sequence && message.is_whole() =>
            {
                if crypto::equal(&answered.expected, message.bytes) {
                    Ok(Some(answered.keys))
                } else {
                    self.state = State::Answered(answered);
                    Err(HandshakeError::Finished)
                }
            }
            other => {
                self.state = other;
                Ok(None)
            }
        }
    }
}

struct Verified<'m> {
    hello: ServerHello<'m>,
    suite: &'static Suite,
    group: Group,
    /// The server's ephemeral key.
    public: &'m [u8],
}

/// The messages of the server's flight, in the only order there is.
struct ServerFlight<'a> {
    hello: &'a Message,
    certificate: &'a Message,
    exchange: &'a Message,
    wants_certificate: bool,
}

impl<'a> ServerFlight<'a> {
    fn new(messages: &'a [Message]) -> Result<ServerFlight<'a>, HandshakeError> {
        let kinds: Vec<u8> = messages.iter().map(|message| message.kind).collect();
        let common = [
            kind::SERVER_HELLO,
            kind::CERTIFICATE,
            kind::SERVER_KEY_EXCHANGE,
        ];
        let wants_certificate = match kinds.strip_prefix(&common) {
            Some([kind::SERVER_HELLO_DONE]) => false,
            Some([kind::CERTIFICATE_REQUEST, kind::SERVER_HELLO_DONE]) => true,
            _ => return Err(HandshakeError::Malformed),
        };
        match messages {
            [hello, certificate, exchange, .., done] if done.body().is_empty() => {
                Ok(ServerFlight {
                    hello,
                    certificate,
                    exchange,
                    wants_certificate,
                })
            }
            _ => Err(HandshakeError::Malformed),
        }
    }

    /// The ServerHello, if it answers what was offered.
    fn hello(&self, config: &ClientConfig) -> Result<ServerHello<'a>, HandshakeError> {
        let hello = ServerHello::parse(self.hello.body()).map_err(|error| match error {
            BadServerHello::Malformed => HandshakeError::Malformed,
            BadServerHello::Version => HandshakeError::Version,
            BadServerHello::Extension => HandshakeError::Extension,
        })?;
        match hello.protocol {
            Some(_) if config.protocols.is_empty() => Err(HandshakeError::Extension),
            Some(protocol) if !config.protocols.iter().any(|ours| ours == protocol) => {
                Err(HandshakeError::NotOffered)
            }
            _ => Ok(hello),
        }
    }
}
