//! From a datagram to the method it is for, through the checks that all methods share.

use std::sync::Arc;

use stun::{AttributeType, Class, ErrorCode, FingerprintState, Message, Method};

use super::answer::Refusal;
use super::auth::Unauthenticated;
use super::auth_failure::AuthFailure;
use super::credentials::KeyLookup;
use super::mobility::has_ticket;
use super::request_context::RequestContext;
use super::user::{User, VerifiedUser};
use super::{ClientVerdict, DropReason, Server};
use crate::types::attribute::is_known;
use crate::{ClientPath, Now};

/// How a request reached this engine, and what is known about its user already.
#[derive(Debug)]
pub(super) struct RequestOrigin {
    /// Whether this engine may pass it to the engine of another worker. False if another engine has passed it to this
    /// one.
    pub(super) may_move: bool,
    /// The result of a look-up that suspended the request (`Output::FindKeys`).
    pub(super) found: Option<Box<KeyLookup>>,
    /// The user that another engine has verified.
    pub(super) user: Option<Arc<User>>,
}

impl RequestOrigin {
    /// The request comes from a client.
    pub(super) const fn of_client() -> RequestOrigin {
        RequestOrigin {
            may_move: true,
            found: None,
            user: None,
        }
    }

    /// The engine of another worker has passed the request on. `user` is its sender; `None` if that engine could not
    /// authenticate it.
    pub(super) fn moved(user: Option<&VerifiedUser>) -> RequestOrigin {
        RequestOrigin {
            may_move: false,
            found: None,
            user: user.map(|user| Arc::clone(&user.0)),
        }
    }
}

impl Server {
    /// A STUN message from a client (RFC 8489 §6.3).
    pub(super) fn stun(
        &mut self,
        now: Now,
        path: &ClientPath,
        datagram: &[u8],
        origin: RequestOrigin,
    ) -> ClientVerdict {
        let outcome = match Message::parse(datagram) {
            Ok(message) => match (message.method(), message.class()) {
                (Method::SEND, Class::Indication) => {
                    return self.send_indication(now, path, &message);
                }
                (Method::BINDING, Class::Indication) => binding_indication(&message),
                (Method::BINDING, Class::Request) => self.binding(now, path, &message),
                (Method::REFRESH, Class::Request)
                    if has_ticket(&message) && self.follows_ticket(path, &message) =>
                {
                    Ok(())
                }
                (
                    Method::ALLOCATE
                    | Method::REFRESH
                    | Method::CREATE_PERMISSION
                    | Method::CHANNEL_BIND,
                    Class::Request,
                ) => {
                    self.stats.count_request(message.method(), datagram.len());
                    self.turn_request(now, path, &message, origin)
                }
                (Method::CONNECTION_BIND, Class::Request)
                    if self.tcp.is_rfc6062_enabled() && self.moves_connection(path, &message) =>
                {
                    Ok(())
                }
                (Method::CONNECT | Method::CONNECTION_BIND, Class::Request)
                    if self.tcp.is_rfc6062_enabled() =>
                {
                    self.stats.count_request(message.method(), datagram.len());
                    self.turn_request(now, path, &message, origin)
                }
                (method, _) => Err(not_for_us(method)),
            },
            Err(_) => self.classic_binding(path, datagram),
        };
        match outcome {
            Ok(()) => ClientVerdict::Handled { covers: 1 },
            Err(reason) => self.drop_from_client(1, reason),
        }
    }

    /// A request that has waited for its user's keys.
    pub(super) fn resume(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        origin: RequestOrigin,
    ) -> Result<(), DropReason> {
        match message.method() {
            Method::BINDING => self.protected_binding(now, path, message, origin),
            _ => self.turn_request(now, path, message, origin),
        }
    }

    /// A request that needs credentials (RFC 8656 §5).
    pub(super) fn turn_request(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        origin: RequestOrigin,
    ) -> Result<(), DropReason> {
        let Some(context) = self.authenticated(now, path, message, origin)? else {
            return Ok(());
        };
        // RFC 8489 §6.3.1: unknown attributes come after authentication and before anything of the method.
        let unknown = self.unknown_attributes(&context, message);
        let outcome = if unknown.is_empty() {
            self.turn_method(now, &context, message)
        } else {
            Err(Refusal::Unknown(Box::new(unknown)))
        };
        if let Err(refusal) = outcome {
            if matches!(&refusal, Refusal::Code(error) if *error == ErrorCode::WRONG_CREDENTIALS) {
                self.auth_failed(now, path, message, AuthFailure::WrongUser);
            }
            self.refuse(&context, &refusal);
        }
        Ok(())
    }

    /// Handles retransmissions and credentials. `None` if the request is answered already, or waits.
    pub(super) fn authenticated(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        origin: RequestOrigin,
    ) -> Result<Option<RequestContext>, DropReason> {
        if message.fingerprint() == FingerprintState::Invalid {
            return Err(DropReason::WrongFingerprint);
        }
        let mut context = RequestContext::unauthenticated(path, message);
        context.may_move = origin.may_move;
        context.realm = self.realm_for(path, message);
        // A request that was moved here with its user has been reported where it came from.
        let is_new = origin.may_move || origin.user.is_none();
        if self.answer_again(now, &context)? {
            return Ok(None);
        }
        match self.authenticate(now, &context, message, origin) {
            Ok(user) => {
                context.user = Some(user);
                self.refund_unverified(now.mono, path);
                if is_new {
                    self.report_authenticated(&context);
                }
                Ok(Some(context))
            }
            Err(reason) => {
                let is_unknown_here = matches!(
                    reason,
                    Unauthenticated::Failed(AuthFailure::UnknownUser)
                        | Unauthenticated::UnexpectedToken
                );
                if !is_unknown_here || !self.pass_unverified(now, &context, message)? {
                    self.refuse_unauthenticated(now, &context, message, reason)?;
                }
                Ok(None)
            }
        }
    }

    /// Refuses a request that is not authenticated, with or without a response.
    fn refuse_unauthenticated(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        reason: Unauthenticated,
    ) -> Result<(), DropReason> {
        if !matches!(reason, Unauthenticated::Pending) {
            self.take_unverified(now.mono, &context.path)?;
        }
        let request_len = message.as_bytes().len();
        let mut challenge =
            |error, issuer| self.challenge(now, context, request_len, error, issuer);
        match reason {
            Unauthenticated::NoIntegrity => challenge(ErrorCode::UNAUTHENTICATED, None)?,
            Unauthenticated::Forged(issuer) => {
                challenge(ErrorCode::STALE_NONCE, Some(issuer))?;
                self.auth_failed(now, &context.path, message, AuthFailure::ForgedNonce);
            }
            Unauthenticated::Failed(failure) => {
                let error = match failure {
                    AuthFailure::StaleNonce | AuthFailure::OutdatedOffer => ErrorCode::STALE_NONCE,
                    _ => ErrorCode::UNAUTHENTICATED,
                };
                challenge(error, None)?;
                self.auth_failed(now, &context.path, message, failure);
            }
            Unauthenticated::UnexpectedToken => {
                let unknown = [AttributeType::ACCESS_TOKEN].into_iter().collect();
                self.refuse(context, &Refusal::Unknown(Box::new(unknown)));
            }
            Unauthenticated::BadRequest => {
                self.refuse(context, &ErrorCode::BAD_REQUEST.into());
            }
            Unauthenticated::Unavailable => {
                self.stats.lookups_failed += 1;
                self.refuse(context, &ErrorCode::SERVER_ERROR.into());
            }
            Unauthenticated::Undecided(failure) => {
                self.refuse(context, &ErrorCode::SERVER_ERROR.into());
                self.auth_failed(now, &context.path, message, failure);
            }
            Unauthenticated::Pending => {}
            // The client sends the request again, and may find room. On a stream it would wait for nothing.
            Unauthenticated::NoRoom(reason) => {
                if !context.path.five_tuple.transport.is_stream() {
                    return Err(reason);
                }
                self.refuse(context, &ErrorCode::SERVER_ERROR.into());
            }
        }
        Ok(())
    }

    /// RFC 8489 §6.3.1: a request that comes again gets the response it got, if it is not idempotent.
    fn answer_again(&mut self, now: Now, context: &RequestContext) -> Result<bool, DropReason> {
        let five_tuple = &context.path.five_tuple;
        if five_tuple.transport.is_stream() {
            return Ok(false);
        }
        if self.is_opening(five_tuple, context.transaction_id) || self.is_looked_up(context) {
            return Err(DropReason::RequestPending);
        }
        let is_answered = match context.method {
            Method::ALLOCATE => {
                let holder = self.client_at(now, five_tuple);
                if self.deletions.find(context, now.mono).is_some() {
                    return Err(DropReason::AllocationDeleted);
                }
                holder.is_some_and(|place| self.grant_again(now, context, place))
            }
            Method::REFRESH => self.confirm_deletion(now, context),
            _ => false,
        };
        self.stats.retransmissions += u64::from(is_answered);
        Ok(is_answered)
    }

    /// Handles an authenticated request by its method. A request for an allocation at another worker goes there.
    fn turn_method(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        if context.method == Method::CONNECTION_BIND {
            return self.connection_bind(now, context, message);
        }
        let holder = self.client_at(now, &context.path.five_tuple);
        if holder.is_none()
            && context.may_move
            && let Some(to) =
                self.moved
                    .find(&context.path.five_tuple, context.transaction_id, now.mono)
            && self.leads_to(message).is_none_or(|worker| worker == to)
        {
            if let Some(user) = context.user.clone() {
                self.outputs
                    .move_request(to, context.path, message.as_bytes(), user);
            }
            return Ok(());
        }
        if has_ticket(message) {
            return self.refresh_by_ticket(now, context, message);
        }
        if context.method == Method::ALLOCATE {
            // RFC 8656 §7.2, 2: the 5-tuple must not be in use.
            return match holder {
                Some(_) => Err(ErrorCode::ALLOCATION_MISMATCH.into()),
                None => self.allocate(now, context, message),
            };
        }
        // RFC 8656 §5: 437 without an allocation, 441 for anybody but who made it.
        let place = holder.filter(|place| self.clients.allocation(*place).is_some());
        let place = place.ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        self.check_owner(context, place)?;
        match context.method {
            Method::REFRESH => self.refresh(now, context, message, place),
            Method::CREATE_PERMISSION => self.create_permission(now, context, message, place),
            Method::CONNECT => self.connect(now, context, message, place),
            _ => self.channel_bind(now, context, message, place),
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
