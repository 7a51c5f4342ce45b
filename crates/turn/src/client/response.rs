//! Responses: whether to believe them (RFC 8489 §6.3.3, §6.3.4 and §9.2.5), then what they mean.

use stun::{Class, ErrorCode, Message, UnknownAttributes};

use super::auth::{self, STALE_NONCE, UNAUTHENTICATED};
use super::config::Security;
use super::data::{Ignored, Received};
use super::error::{DiscardReason, Discarded, Refusal, RequestError};
use super::transaction::Transaction;
use super::{Client, allocation};
use crate::Now;
use crate::types::attribute::is_known;

/// How often one operation may be challenged. Two are normal (401, then 438 if the nonce ages in between); requests
/// that are in progress while a nonce changes may see one more.
const CHALLENGES_MAX: u8 = 4;

impl Client {
    pub(super) fn handle_response(&mut self, now: Now, response: &Message<'_>) -> Received {
        let id = response.transaction_id();
        let is_its = |t: &Transaction| t.id == id && t.operation.method() == response.method();
        let Some(index) = self.transactions.iter().position(is_its) else {
            return Received::Ignored(Ignored::UnknownTransaction);
        };
        let code = error_code(response);
        if let (Some(UNAUTHENTICATED | STALE_NONCE), Some(code)) = (code, code) {
            self.challenged(now, index, code, response);
        } else if let Err(reason) = self.trust(index, response) {
            self.discard(now, index, Discarded { code, reason });
            self.proceed(now);
            return Received::Ignored(Ignored::Untrusted);
        } else {
            self.conclude(now, index, response);
        }
        self.proceed(now);
        Received::Handled
    }

    /// A 401 or 438: asks again with other credentials or another nonce, or gives up.
    fn challenged(&mut self, now: Now, index: usize, code: u16, response: &Message<'_>) {
        let transaction = self.transactions.remove(index);
        let previous = self.challenge.as_deref();
        let answer = auth::answer(&self.config, previous, code, transaction.signed, response);
        let error = match answer {
            Ok(_) if transaction.challenges >= CHALLENGES_MAX => RequestError::TooManyChallenges,
            Ok(challenge) => {
                self.challenge = Some(Box::new(challenge));
                self.start(now, transaction.operation, transaction.challenges + 1);
                return;
            }
            Err(error) => error,
        };
        self.failed(now, transaction.operation, error);
    }

    /// Whether the response proves that it comes from the server.
    fn trust(&self, index: usize, response: &Message<'_>) -> Result<(), DiscardReason> {
        if self.config.security == Security::Negotiate && auth::lacks_promised_algorithms(response)
        {
            return Err(DiscardReason::AlgorithmsRemoved);
        }
        // A response to a request without credentials has nothing to prove. That includes the 400 that RFC 8489 §9.2.5
        // wants discarded: it means the one to an authenticated request.
        match &self.challenge {
            Some(challenge) if self.transactions[index].signed => challenge.verify(response),
            _ => Ok(()),
        }
    }

    /// RFC 8489 §9.2.5: over an unreliable transport as if it had never come; over a reliable one the end.
    fn discard(&mut self, now: Now, index: usize, discarded: Discarded) {
        if self.config.transport.is_stream() {
            let transaction = self.transactions.remove(index);
            self.failed(
                now,
                transaction.operation,
                RequestError::IntegrityViolated(discarded),
            );
        } else {
            // The caller has found the transaction at this index.
            self.transactions[index].discarded = Some(discarded);
        }
    }

    /// A response to believe: the transaction is over.
    fn conclude(&mut self, now: Now, index: usize, response: &Message<'_>) {
        let transaction = self.transactions.remove(index);
        let timing = transaction.timing(now.mono);
        if timing.transmissions == 1 {
            self.round_trip.sample(now.mono, timing.elapsed);
        }
        // RFC 8489 §6.3.3, §6.3.4: with an unknown comprehension-required attribute the transaction has failed.
        if response.unknown_required(is_known).next().is_some() {
            self.failed(now, transaction.operation, RequestError::Malformed);
        } else if response.class() == Class::Success {
            self.succeeded(now, transaction, response);
        } else {
            let error = refusal(response).map_or(RequestError::Malformed, RequestError::Refused);
            self.failed(now, transaction.operation, error);
        }
    }
}

fn error_code(response: &Message<'_>) -> Option<u16> {
    match response.class() {
        Class::Error => response
            .get()
            .ok()
            .flatten()
            .map(|ErrorCode { code, .. }| code),
        _ => None,
    }
}

/// What an error response says; `None` without ERROR-CODE.
fn refusal(response: &Message<'_>) -> Option<Box<Refusal>> {
    let ErrorCode { code, reason } = response.get().ok().flatten()?;
    let unknown: UnknownAttributes = response.get().ok().flatten().unwrap_or_default();
    let alternate = if code == 300 {
        allocation::alternate(response)
    } else {
        None
    };
    Some(Box::new(Refusal {
        code,
        reason: reason.into(),
        unknown: unknown.as_slice().into(),
        alternate,
    }))
}
