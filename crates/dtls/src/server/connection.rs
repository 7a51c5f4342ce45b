//! One connection: a handshake at first, then keys.

use std::ops::Range;

use timers::Mono;

use super::answer::Negotiated;
use super::counters::{Counters, DropReason};
use super::handshake::{Handshake, Progress};
use crate::crypto::cipher::EPOCH;
use crate::crypto::{Opener, Sealer};
use crate::flight::{Finished, Outgoing, Retransmission};
use crate::wire::Reader;
use crate::wire::alert::{self, Alert, description};
use crate::wire::handshake::{Fragment, kind};
use crate::wire::record::{ContentType, Header};
use crate::{CloseReason, Config, Path, SendError};

/// The state of the endpoint that a call on a connection requires.
pub(super) struct Context<'a> {
    pub(super) now: Mono,
    pub(super) config: &'a Config,
    pub(super) outgoing: &'a mut Outgoing<Path>,
    pub(super) counters: &'a mut Counters,
}

impl Context<'_> {
    pub(super) fn dropped(&mut self, reason: DropReason) -> Outcome {
        self.counters.dropped(reason);
        Outcome::Nothing
    }
}

/// The result of a record.
#[derive(Debug)]
pub(super) enum Outcome {
    Nothing,
    /// The handshake has a step for [`Endpoint::step`](super::Endpoint::step).
    Work,
    /// The record has a message in this range of its fragment.
    Data(Range<usize>),
    Established(Negotiated),
    End(CloseReason),
}

/// The keys, and the last flight for a client that has not received it.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) finished: Finished,
    pub(super) retransmission: Retransmission,
}

#[derive(Debug)]
enum Phase {
    Handshake(Box<Handshake>),
    Established(Box<Established>),
}

/// A connection whose client has returned its cookie.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) path: Path,
    /// The random of the ClientHello. A ClientHello with another one begins a new handshake.
    pub(super) client_random: [u8; 32],
    /// Sequence number of the server's next unencrypted record.
    plain_sequence: u64,
    /// Time of the last authenticated record.
    last_heard: Mono,
    phase: Phase,
}

impl Connection {
    /// `hello` is the record with the ClientHello, `message_sequence` that of its message.
    pub(super) fn new(
        context: &Context<'_>,
        path: Path,
        client_random: [u8; 32],
        hello: &Header,
        message_sequence: u16,
    ) -> Connection {
        let limits = &context.config.limits;
        let deadline = context.now.plus(limits.handshake_timeout);
        Connection {
            path,
            client_random,
            // RFC 6347 §4.2.1: the first record has the sequence number of the ClientHello's record.
            plain_sequence: hello.sequence,
            last_heard: context.now,
            phase: Phase::Handshake(Box::new(Handshake::new(
                message_sequence,
                context.now,
                deadline,
                limits,
            ))),
        }
    }

    pub(super) const fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established(_))
    }

    pub(super) fn deadline(&self, config: &Config) -> Mono {
        match &self.phase {
            Phase::Handshake(handshake) => handshake.deadline(),
            Phase::Established(_) => self.last_heard.plus(config.limits.idle_timeout),
        }
    }

    /// Handles a received record.
    pub(super) fn record(
        &mut self,
        context: &mut Context<'_>,
        header: &Header,
        fragment: &mut [u8],
    ) -> Outcome {
        let progress = match (&mut self.phase, header.epoch) {
            (Phase::Handshake(handshake), 0) => {
                return handshake.plain(
                    context,
                    self.path,
                    &mut self.plain_sequence,
                    header.content,
                    fragment,
                );
            }
            (Phase::Handshake(handshake), EPOCH) => handshake.protected(
                context,
                self.path,
                &mut self.plain_sequence,
                header,
                fragment,
            ),
            (Phase::Established(_), EPOCH) => return self.established(context, header, fragment),
            // The client retransmits its flight. The server replies to the Finished message of it.
            (Phase::Established(_), 0) if header.content != ContentType::ApplicationData => {
                Progress::Outcome(Outcome::Nothing)
            }
            _ => Progress::Outcome(context.dropped(DropReason::WrongEpoch)),
        };
        self.progress(context, progress)
    }

    /// Does the handshake step that is due.
    pub(super) fn step(&mut self, context: &mut Context<'_>) -> Outcome {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return Outcome::Nothing;
        };
        let progress = handshake.step(context, self.path, &mut self.plain_sequence);
        self.progress(context, progress)
    }

    fn progress(&mut self, context: &Context<'_>, progress: Progress) -> Outcome {
        match progress {
            Progress::Outcome(outcome) => outcome,
            Progress::Established(established, agreed) => {
                self.phase = Phase::Established(established);
                self.last_heard = context.now;
                Outcome::Established(agreed)
            }
        }
    }

    fn established(
        &mut self,
        context: &mut Context<'_>,
        header: &Header,
        fragment: &mut [u8],
    ) -> Outcome {
        let Phase::Established(established) = &mut self.phase else {
            return Outcome::Nothing;
        };
        let range = match established.opener.open(header, fragment) {
            Ok(range) => range,
            Err(error) => return context.dropped(error.into()),
        };
        self.last_heard = context.now;
        match header.content {
            ContentType::ApplicationData => Outcome::Data(range),
            // The opener returns a range of the fragment.
            ContentType::Handshake => self.late_handshake(context, &fragment[range]),
            ContentType::Alert => match Alert::parse(&fragment[range]) {
                Some(Alert::CloseNotify) => Outcome::End(CloseReason::Peer),
                Some(Alert::Fatal(description)) => Outcome::End(CloseReason::Alert(description)),
                _ => Outcome::Nothing,
            },
            ContentType::ChangeCipherSpec => context.dropped(DropReason::UnexpectedHandshake),
        }
    }

    /// Handles a handshake message after the handshake: the client lost the server's Finished message, or tries to
    /// renegotiate.
    fn late_handshake(&mut self, context: &mut Context<'_>, text: &[u8]) -> Outcome {
        let Phase::Established(established) = &mut self.phase else {
            return Outcome::Nothing;
        };
        let mut packer = context.outgoing.pack(self.path, context.config.limits.mtu);
        match Fragment::take(&mut Reader::new(text)).map(|fragment| fragment.kind) {
            Some(kind::FINISHED) => {
                if established.retransmission.should_resend(context.now) {
                    context.counters.retransmissions += 1;
                    established.finished.send(
                        &mut packer,
                        &mut self.plain_sequence,
                        &mut established.sealer,
                    );
                }
                Outcome::Nothing
            }
            Some(kind::CLIENT_HELLO) => {
                let refusal = [alert::WARNING, description::NO_RENEGOTIATION];
                packer.sealed(ContentType::Alert, &mut established.sealer, &refusal);
                drop(packer);
                context.dropped(DropReason::Renegotiation)
            }
            _ => {
                drop(packer);
                context.dropped(DropReason::UnexpectedHandshake)
            }
        }
    }

    /// Restarts the idle timeout.
    pub(super) const fn keep(&mut self, now: Mono) {
        self.last_heard = now;
    }

    /// Handles the deadline of the connection.
    pub(super) fn timeout(&mut self, context: &mut Context<'_>) -> Outcome {
        let deadline = self.deadline(context.config);
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                handshake.timeout(context, self.path, &mut self.plain_sequence)
            }
            Phase::Established(_) if context.now >= deadline => Outcome::End(CloseReason::Idle),
            Phase::Established(_) => Outcome::Nothing,
        }
    }

    /// Encrypts one message.
    pub(super) fn seal(&mut self, parts: &[&[u8]], out: &mut [u8]) -> Result<usize, SendError> {
        match &mut self.phase {
            Phase::Established(established) => {
                Ok(established
                    .sealer
                    .seal(ContentType::ApplicationData, parts, out)?)
            }
            Phase::Handshake(_) => Err(SendError::NotConnected),
        }
    }

    /// Sends the client an alert with the reason, unless the reason requires none.
    pub(super) fn notify_end(&mut self, context: &mut Context<'_>, reason: CloseReason) {
        let alert = match reason {
            CloseReason::Local | CloseReason::Peer | CloseReason::Idle => {
                [alert::WARNING, description::CLOSE_NOTIFY]
            }
            CloseReason::Handshake(error) => [alert::FATAL, error.alert()],
            _ => return,
        };
        let mut packer = context.outgoing.pack(self.path, context.config.limits.mtu);
        let sealer = match &mut self.phase {
            Phase::Established(established) => Some(&mut established.sealer),
            Phase::Handshake(handshake) => handshake.sealer(),
        };
        match sealer {
            Some(sealer) => packer.sealed(ContentType::Alert, sealer, &alert),
            None => packer.plain(ContentType::Alert, &mut self.plain_sequence, &[&alert]),
        }
    }
}
