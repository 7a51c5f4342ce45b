//! From a datagram to the method it is for, through the checks that all methods share.

use stun::{Class, ErrorCode, FingerprintState, Message, Method, UnknownAttributes};

use super::answer::Refusal;
use super::asked::Asked;
use super::auth::Unauthenticated;
use super::{ClientVerdict, DropReason, Server};
use crate::types::attribute::is_known;
use crate::{ClientPath, Now};

impl Server {
    /// A STUN message from a client (RFC 8489 §6.3). `may_move` says whether a request may go to another server.
    pub(super) fn stun(
        &mut self,
        now: Now,
        path: &ClientPath,
        datagram: &[u8],
        may_move: bool,
    ) -> ClientVerdict {
        let outcome = match Message::parse(datagram) {
            Ok(message) => match (message.method(), message.class()) {
                (Method::SEND, Class::Indication) => {
                    return self.send_indication(now, path, &message);
                }
                (Method::BINDING, Class::Indication) => binding_indication(&message),
                (Method::BINDING, Class::Request) => self.binding(now, path, &message),
                (
                    Method::ALLOCATE
                    | Method::REFRESH
                    | Method::CREATE_PERMISSION
                    | Method::CHANNEL_BIND,
                    Class::Request,
                ) => self.turn_request(now, path, &message, may_move),
                (method, _) => Err(not_for_us(method)),
            },
            Err(_) => Err(DropReason::MalformedStun),
        };
        match outcome {
            Ok(()) => ClientVerdict::Handled { covers: 1 },
            Err(reason) => self.drop_from_client(1, reason),
        }
    }

    /// A request that needs credentials (RFC 8656 §5).
    fn turn_request(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        may_move: bool,
    ) -> Result<(), DropReason> {
        self.stats
            .count_request(message.method(), message.as_bytes().len());
        let Some(mut asked) = self.authenticated(now, path, message)? else {
            return Ok(());
        };
        asked.may_move = may_move;
        // RFC 8489 §6.3.1: unknown attributes come after authentication and before anything of the method.
        let unknown: UnknownAttributes = message.unknown_required(is_known).collect();
        let outcome = if unknown.is_empty() {
            self.turn_method(now, &asked, message)
        } else {
            Err(Refusal::Unknown(Box::new(unknown)))
        };
        if let Err(refusal) = outcome {
            self.refuse(now, &asked, &refusal);
        }
        Ok(())
    }

    /// Sees to retransmissions and credentials. `None` if the request is answered already.
    pub(super) fn authenticated(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<Option<Asked>, DropReason> {
        if message.fingerprint() == FingerprintState::Invalid {
            return Err(DropReason::WrongFingerprint);
        }
        let mut asked = Asked::by_anybody(path, message);
        if self.answer_again(now, &asked)? {
            return Ok(None);
        }
        let request_len = message.as_bytes().len();
        match self.authenticate(now, path, message) {
            Ok(user) => asked.user = Some(user),
            Err(Unauthenticated::Challenge) => {
                self.stats.auth_failures += u64::from(message.has_integrity().is_some());
                self.challenge(now, &asked, request_len, ErrorCode::UNAUTHENTICATED)?;
                return Ok(None);
            }
            Err(Unauthenticated::StaleNonce) => {
                self.challenge(now, &asked, request_len, ErrorCode::STALE_NONCE)?;
                return Ok(None);
            }
            Err(Unauthenticated::BadRequest) => {
                self.refuse(now, &asked, &ErrorCode::BAD_REQUEST.into());
                return Ok(None);
            }
        }
        Ok(Some(asked))
    }

    /// RFC 8489 §6.3.1: a request that comes again gets the answer it got.
    fn answer_again(&mut self, now: Now, asked: &Asked) -> Result<bool, DropReason> {
        let five_tuple = &asked.path.five_tuple;
        if five_tuple.transport.is_stream() {
            return Ok(false);
        }
        if let Some((header, attributes)) =
            self.answered
                .find(five_tuple, (asked.method, asked.transaction_id), now.mono)
        {
            self.outputs.send_parts(asked.path, &header, attributes);
            self.stats.retransmissions += 1;
            return Ok(true);
        }
        if self.is_opening(five_tuple, asked.transaction_id) {
            return Err(DropReason::RequestPending);
        }
        Ok(false)
    }

    fn turn_method(
        &mut self,
        now: Now,
        asked: &Asked,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let holder = self.client_at(now, &asked.path.five_tuple);
        if holder.is_none()
            && asked.may_move
            && let Some(to) =
                self.moved
                    .find(&asked.path.five_tuple, asked.transaction_id, now.mono)
        {
            self.outputs
                .move_request(to, asked.path, message.as_bytes());
            return Ok(());
        }
        if asked.method == Method::ALLOCATE {
            // RFC 8656 §7.2, 2: the 5-tuple must not be in use.
            return match holder {
                Some(_) => Err(ErrorCode::ALLOCATION_MISMATCH.into()),
                None => self.allocate(now, asked, message),
            };
        }
        // RFC 8656 §5: 437 without an allocation, 441 for anybody but who made it.
        let place = holder.filter(|place| self.clients.allocation(*place).is_some());
        let place = place.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let owner = self.clients.get(place).map(|client| client.user.name());
        if owner != asked.user.as_ref().map(|user| user.name()) {
            return Err(ErrorCode::WRONG_CREDENTIALS.into());
        }
        match asked.method {
            Method::REFRESH => self.refresh(now, asked, message, place),
            Method::CREATE_PERMISSION => self.create_permission(now, asked, message, place),
            _ => self.channel_bind(now, asked, message, place),
        }
    }
}

/// Why a method and class that the server does not serve is discarded (RFC 8489 §6.3).
fn not_for_us(method: Method) -> DropReason {
    match method {
        Method::BINDING
        | Method::ALLOCATE
        | Method::REFRESH
        | Method::SEND
        | Method::DATA
        | Method::CREATE_PERMISSION
        | Method::CHANNEL_BIND => DropReason::UnexpectedClass,
        _ => DropReason::UnsupportedMethod,
    }
}

/// RFC 8489 §6.3.2: a Binding indication keeps NAT bindings alive; nothing is to be done.
fn binding_indication(message: &Message<'_>) -> Result<(), DropReason> {
    if message.fingerprint() == FingerprintState::Invalid {
        return Err(DropReason::WrongFingerprint);
    }
    match message.unknown_required(is_known).next() {
        Some(_) => Err(DropReason::UnknownAttribute),
        None => Ok(()),
    }
}
