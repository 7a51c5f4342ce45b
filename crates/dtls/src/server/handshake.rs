//! One handshake of a client that has returned its cookie: hello, key exchange, Finished.

use timers::Mono;

use super::answer::{AwaitingKeyExchange, Derived, Negotiated, answer, derive};
use super::connection::{Context, Established, Outcome};
use super::counters::DropReason;
use crate::crypto::OpenError;
use crate::crypto::cipher::EPOCH;
use crate::crypto::schedule::Side;
use crate::flight::{Finished, Flight, Retransmission};
use crate::reassembly::{Added, Bounds, Message, Reassembly};
use crate::wire::Reader;
use crate::wire::alert::Alert;
use crate::wire::handshake::{Fragment, kind};
use crate::wire::record::{self, ContentType, Header};
use crate::{CloseReason, HandshakeError, Limits, Path, crypto};

/// The longest message is a ClientHello with post-quantum key shares: 2 kB.
const BOUNDS: Bounds = Bounds {
    ahead: 0,
    bytes: 8192,
};
/// The maximum number of stored bytes that arrived before the keys: a Finished message and an alert, both repeated.
const MAX_EARLY: usize = 256;

#[derive(Debug)]
enum State {
    /// Fragments of the ClientHello are missing.
    Hello,
    /// The next step makes the first flight.
    Answer(Message),
    /// The server has sent its flight.
    AwaitingKeyExchange(AwaitingKeyExchange),
    /// The next step derives the keys.
    Exchange(AwaitingKeyExchange, Message),
    /// The server waits for Finished.
    Derived(Box<Derived>),
    /// A step failed.
    Failed,
}

/// A handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    deadline: Mono,
    retransmission: Retransmission,
    messages: Reassembly,
    flight: Flight,
    /// Records of epoch 1 that arrived before the keys were derived.
    early: Vec<u8>,
    /// Sequence number of the server's first message, which is that of the ClientHello (RFC 6347 §4.2.2).
    first_sequence: u16,
    state: State,
}

/// The progress of a handshake after a record.
pub(super) enum Progress {
    Outcome(Outcome),
    Established(Box<Established>, Negotiated),
}

impl Handshake {
    pub(super) const fn new(
        message_sequence: u16,
        now: Mono,
        deadline: Mono,
        limits: &Limits,
    ) -> Handshake {
        Handshake {
            deadline,
            retransmission: Retransmission::new(limits.first_retransmission, now),
            messages: Reassembly::new(message_sequence, BOUNDS),
            flight: Flight {
                messages: Vec::new(),
            },
            early: Vec::new(),
            first_sequence: message_sequence,
            state: State::Hello,
        }
    }

    pub(super) fn deadline(&self) -> Mono {
        match self.state {
            State::AwaitingKeyExchange(_) => self.deadline.min(self.retransmission.next_at()),
            _ => self.deadline,
        }
    }

    /// The keys, if they are derived: then an alert must be encrypted.
    pub(super) fn sealer(&mut self) -> Option<&mut crypto::Sealer> {
        match &mut self.state {
            State::Derived(derived) => Some(&mut derived.sealer),
            _ => None,
        }
    }

    pub(super) fn timeout(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
    ) -> Outcome {
        if context.now >= self.deadline {
            return Outcome::End(CloseReason::HandshakeTimeout);
        }
        if matches!(self.state, State::AwaitingKeyExchange(_))
            && context.now >= self.retransmission.next_at()
        {
            self.retransmission.back_off(context.now);
            context.counters.retransmissions += 1;
            self.send_flight(context, path, sequence);
        }
        Outcome::Nothing
    }

    fn send_flight(&self, context: &mut Context<'_>, path: Path, sequence: &mut u64) {
        let mtu = context.config.limits.mtu;
        self.flight
            .send(&mut context.outgoing.pack(path, mtu), sequence);
    }

    /// Handles an unencrypted record. `sequence` is the next record sequence number of epoch 0.
    pub(super) fn plain(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
        content: ContentType,
        bytes: &[u8],
    ) -> Outcome {
        match content {
            ContentType::Handshake => self.fragments(context, path, sequence, bytes),
            // The alert is not authenticated, but a client has no other way to reject the certificate.
            ContentType::Alert => match Alert::parse(bytes) {
                Some(Alert::Fatal(description)) => Outcome::End(CloseReason::Alert(description)),
                Some(Alert::CloseNotify) => Outcome::End(CloseReason::Peer),
                _ => Outcome::Nothing,
            },
            // The message is redundant: later record headers have another epoch.
            ContentType::ChangeCipherSpec => Outcome::Nothing,
            ContentType::ApplicationData => context.dropped(DropReason::WrongEpoch),
        }
    }

    /// Handles the handshake fragments of a record of epoch 0. `sequence` is the next record sequence number of epoch
    /// 0.
    fn fragments(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
        bytes: &[u8],
    ) -> Outcome {
        let mut reader = Reader::new(bytes);
        let mut retransmitted = false;
        while !reader.is_empty() {
            let Some(fragment) = Fragment::take(&mut reader) else {
                return context.dropped(DropReason::MalformedHandshake);
            };
            match self.messages.add(&fragment) {
                Added::Kept => (),
                Added::Old => retransmitted |= fragment.kind == kind::CLIENT_HELLO,
                Added::Refused => context.counters.dropped(DropReason::UnexpectedHandshake),
            }
        }
        // RFC 6347 §4.2.4: the server's flight was lost.
        if retransmitted
            && matches!(self.state, State::AwaitingKeyExchange(_))
            && self.retransmission.should_resend(context.now)
        {
            context.counters.retransmissions += 1;
            self.send_flight(context, path, sequence);
        }
        self.take()
    }

    fn take(&mut self) -> Outcome {
        let expected = match self.state {
            State::Hello => kind::CLIENT_HELLO,
            State::AwaitingKeyExchange(_) => kind::CLIENT_KEY_EXCHANGE,
            // Further messages stay in `messages` and are not used.
            _ => return Outcome::Nothing,
        };
        let Some(message) = self.messages.take() else {
            return Outcome::Nothing;
        };
        if message.kind != expected {
            return Outcome::End(CloseReason::Handshake(HandshakeError::Malformed));
        }
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::AwaitingKeyExchange(offered) => State::Exchange(offered, message),
            _ => State::Answer(message),
        };
        Outcome::Work
    }

    /// Does the step that is due.
    pub(super) fn step(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
    ) -> Progress {
        match self.try_step(context, path, sequence) {
            Ok(progress) => progress,
            Err(error) => Progress::Outcome(Outcome::End(CloseReason::Handshake(error))),
        }
    }

    fn try_step(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
    ) -> Result<Progress, HandshakeError> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Answer(hello) => {
                let (first, listener) = (self.first_sequence, path.listener);
                let (offered, flight) = answer(&hello, first, listener, context.config)?;
                self.flight = flight;
                self.retransmission =
                    Retransmission::new(context.config.limits.first_retransmission, context.now);
                self.send_flight(context, path, sequence);
                self.state = State::AwaitingKeyExchange(offered);
            }
            State::Exchange(offered, exchange) => {
                self.state = State::Derived(Box::new(derive(offered, &exchange)?));
                self.flight = Flight::default();
                return Ok(self.replay_early(context, path, sequence));
            }
            other => self.state = other,
        }
        Ok(Progress::Outcome(Outcome::Nothing))
    }

    fn replay_early(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
    ) -> Progress {
        let mut early = std::mem::take(&mut self.early);
        let mut rest = &mut early[..];
        while let Some(header) = Header::parse(rest) {
            let (one, others) = rest.split_at_mut(record::HEADER + header.length);
            rest = others;
            match self.protected(context, path, sequence, &header, &mut one[record::HEADER..]) {
                Progress::Outcome(Outcome::Nothing) => (),
                progress => return progress,
            }
        }
        Progress::Outcome(Outcome::Nothing)
    }

    /// Handles a record of epoch 1.
    pub(super) fn protected(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
        header: &Header,
        fragment: &mut [u8],
    ) -> Progress {
        let State::Derived(derived) = &mut self.state else {
            return Progress::Outcome(self.keep(context, header, fragment));
        };
        // The opener returns a range of the fragment.
        let text = match derived.opener.open(header, fragment) {
            Ok(range) => &fragment[range],
            Err(error) => return Progress::Outcome(context.dropped(error.into())),
        };
        match header.content {
            ContentType::Handshake => match finish(derived, self.messages.next(), text) {
                Ok(Some(finished)) => self.establish(context, path, sequence, finished),
                Ok(None) => Progress::Outcome(context.dropped(DropReason::UnexpectedHandshake)),
                Err(error) => Progress::Outcome(Outcome::End(CloseReason::Handshake(error))),
            },
            ContentType::Alert => Progress::Outcome(match Alert::parse(text) {
                Some(Alert::Fatal(description)) => Outcome::End(CloseReason::Alert(description)),
                Some(Alert::CloseNotify) => Outcome::End(CloseReason::Peer),
                _ => Outcome::Nothing,
            }),
            // RFC 6347 §4.1: the network may reorder data before Finished. The server drops it, as if it were lost.
            ContentType::ApplicationData | ContentType::ChangeCipherSpec => {
                Progress::Outcome(context.dropped(DropReason::Early))
            }
        }
    }

    /// Stores a record until the keys are derived. The network may reorder datagrams, and the key derivation may be
    /// deferred.
    fn keep(&mut self, context: &mut Context<'_>, header: &Header, fragment: &[u8]) -> Outcome {
        let length = record::HEADER + fragment.len();
        let wanted = header.content == ContentType::Handshake
            && matches!(
                self.state,
                State::AwaitingKeyExchange(_) | State::Exchange(..)
            );
        if !wanted || self.early.len() + length > MAX_EARLY {
            return context.dropped(DropReason::Early);
        }
        let bytes = record::with_version(
            header.content,
            header.version,
            EPOCH,
            header.sequence,
            fragment.len(),
        );
        self.early.extend_from_slice(&bytes);
        self.early.extend_from_slice(fragment);
        Outcome::Nothing
    }

    /// Sends the server's ChangeCipherSpec and Finished. The handshake is complete.
    fn establish(
        &mut self,
        context: &mut Context<'_>,
        path: Path,
        sequence: &mut u64,
        finished: Finished,
    ) -> Progress {
        let State::Derived(derived) = std::mem::replace(&mut self.state, State::Failed) else {
            return Progress::Outcome(Outcome::Nothing);
        };
        let Derived {
            agreed,
            mut sealer,
            opener,
            ..
        } = *derived;
        let mut packer = context.outgoing.pack(path, context.config.limits.mtu);
        finished.send(&mut packer, sequence, &mut sealer);
        let retransmission =
            Retransmission::new(context.config.limits.first_retransmission, context.now);
        Progress::Established(
            Box::new(Established {
                sealer,
                opener,
                finished,
                retransmission,
            }),
            agreed,
        )
    }
}

/// Checks the client's Finished message and returns the server's. `None` if it is another message.
fn finish(
    derived: &mut Derived,
    expected_sequence: u16,
    text: &[u8],
) -> Result<Option<Finished>, HandshakeError> {
    let mut reader = Reader::new(text);
    let fragment =
        Fragment::take(&mut reader).filter(|fragment| fragment.is_whole() && reader.is_empty());
    let Some(fragment) = fragment.filter(|fragment| {
        fragment.kind == kind::FINISHED && fragment.sequence == expected_sequence
    }) else {
        return Ok(None);
    };
    let expected = derived
        .secret
        .verify_data(Side::Client, derived.transcript.hash().as_ref())?;
    if !crypto::equal(&expected, fragment.bytes) {
        return Err(HandshakeError::Finished);
    }
    derived.transcript.add(text);
    let ours = derived
        .secret
        .verify_data(Side::Server, derived.transcript.hash().as_ref())?;
    Ok(Some(Finished::new(derived.agreed.next_sequence, &ours)))
}

impl From<OpenError> for DropReason {
    fn from(error: OpenError) -> DropReason {
        match error {
            OpenError::Replayed => DropReason::Replayed,
            OpenError::Forged => DropReason::Forged,
        }
    }
}
