//! REGISTER requests: the registrar of the domains, and the digest of users without domains.

use super::WorkerTu;
use crate::sip::authentication::{COMMON_REALM, RealmKey, Rejection};
use crate::sip::bans::RETRY_AFTER_LINE;
use crate::sip::registrar::RegisterTarget;
use sip::HeaderKind;
use sip::engine::{NewRequest, Reply, RespondError};
use sip::tu::{RequestOwner, Transactions};
use sip_server::Aor;
use sip_server::registrar::Access;

/// For a 503 (RFC 3261 §21.5.4): a store is down or does not respond in time. A retry after some seconds may succeed.
const UNAVAILABLE_LINE: &[u8] = b"Retry-After: 5\r\n";

impl WorkerTu {
    /// A REGISTER for the registrar (§10.3).
    pub(super) fn registered(
        &mut self,
        transactions: &mut Transactions<'_>,
        mut request: NewRequest<'_>,
    ) -> Result<RequestOwner, RespondError> {
        let Some(registrations) = &mut self.registrations else {
            return Ok(RequestOwner::Here);
        };
        let message = &request.message;
        let aor = match registrations.place_of(message, &mut self.lines) {
            RegisterTarget::Refused(answer) => {
                let reply = Reply::new(answer.code).reason(answer.reason.as_bytes());
                let reply = reply.headers(answer.headers);
                transactions.answer_statelessly(request, &reply)?;
                return Ok(RequestOwner::Here);
            }
            RegisterTarget::Elsewhere(worker) => return Ok(RequestOwner::Elsewhere(worker)),
            RegisterTarget::Here(aor) => aor,
        };
        let now = transactions.now;
        let domain = registrations.domain_of(message);
        let realm = self
            .authenticator
            .realm_of(domain.unwrap_or_default().as_bytes());
        let asked = (message, HeaderKind::Authorization);
        if let Err(stop) = self
            .authenticator
            .check(realm, asked, &request.flow, now.unix_s)
        {
            self.stop(transactions, request, (realm, stop))?;
            return Ok(RequestOwner::Here);
        }
        request.trust();
        let access = match &aor {
            Some(aor) if self.authenticator.owns(self.authenticator.user(), aor) => Access::Granted,
            Some(_) => Access::Forbidden,
            // It has no user that this one could be.
            None => Access::NoSuchUser,
        };
        let confirmation = self.authenticator.confirmation();
        let (first, room) = self.lines.split_at_mut(confirmation.len());
        first.copy_from_slice(confirmation);
        let answer = registrations.answer(now, &request, aor, access, room);
        let (code, reason, len) = (answer.code, answer.reason, answer.headers.len());
        let begin = confirmation.len();
        let headers = match code {
            200 => {
                let end = self.add_ice(begin + len, aor.as_ref(), now.unix_s);
                &self.lines[..end]
            }
            _ => &self.lines[begin..begin + len],
        };
        let reply = Reply::new(code).reason(reason.as_bytes()).headers(headers);
        transactions.answer(request, &reply)?;
        self.report_changes(transactions);
        Ok(RequestOwner::Here)
    }

    /// Adds credentials for TURN to the header lines, which end at `end`. Returns where they end now.
    fn add_ice(&mut self, end: usize, aor: Option<&Aor>, unix_s: u64) -> usize {
        let (Some(ice), Some(aor)) = (&self.ice, aor) else {
            return end;
        };
        let Some(line) = ice.line(aor, unix_s) else {
            return end;
        };
        // If the line does not fit, the 200 has no `Ice-Servers`: the registration still succeeds.
        match self.lines.get_mut(end..end + line.len()) {
            Some(room) => {
                room.copy_from_slice(line.as_bytes());
                end + line.len()
            }
            None => end,
        }
    }

    /// Answers a request whose sender is not known.
    pub(super) fn stop(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        (realm, stop): (RealmKey, Rejection),
    ) -> Result<(), RespondError> {
        let (unix_s, source) = (transactions.now.unix_s, request.flow.remote.ip());
        match stop {
            Rejection::Slowed => {
                let reply = Reply::new(503).headers(RETRY_AFTER_LINE);
                transactions.answer_statelessly(request, &reply)
            }
            Rejection::Unavailable => {
                let reply = Reply::new(503).headers(UNAVAILABLE_LINE);
                transactions.answer_statelessly(request, &reply)
            }
            Rejection::Pending if self.park(transactions.now.mono, &request) => Ok(()),
            Rejection::Pending => {
                self.authenticator.count_unavailable();
                let reply = Reply::new(503).headers(UNAVAILABLE_LINE);
                transactions.answer_statelessly(request, &reply)
            }
            Rejection::Bad(reason) => {
                let reply = Reply::new(400).reason(reason.as_bytes());
                transactions.answer_statelessly(request, &reply)
            }
            Rejection::Challenge(why) => {
                let lines = self.authenticator.challenge(
                    realm,
                    &mut self.lines,
                    HeaderKind::WwwAuthenticate,
                    source,
                    why,
                    unix_s,
                )?;
                transactions.answer_statelessly(request, &Reply::new(401).headers(lines))
            }
        }
    }

    /// A REGISTER that takes the digest of a user (§22.2).
    pub(super) fn challenged(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let unix_s = transactions.now.unix_s;
        let asked = (&request.message, HeaderKind::Authorization);
        match self
            .authenticator
            .check(COMMON_REALM, asked, &request.flow, unix_s)
        {
            Ok(()) => {
                let confirmation = self.authenticator.confirmation();
                self.lines[..confirmation.len()].copy_from_slice(confirmation);
                let (first, lines) = (confirmation.len(), &mut self.lines);
                self.uas.register(transactions, request, lines, first)
            }
            Err(stop) => self.stop(transactions, request, (COMMON_REALM, stop)),
        }
    }
}
