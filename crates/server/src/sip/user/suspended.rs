//! Requests that wait for a source of credentials or for the media relay, and resume with its result.

use super::{LateResult, LookupReply, MAX_EXPIRED, Waiter, WorkerTu};
use crate::sip::MediaResponse;
use crate::worker::Mailboxes;
use sip::Mono;
use sip::engine::NewRequest;
use sip::flow::Flow;
use sip::tu::Transactions;
use sip_server::proxy::ContextKey;

impl WorkerTu {
    /// Lets a request without a transaction wait. The worker keeps a copy, and handles it again. Returns `false` if it
    /// may not wait.
    pub(super) fn park(&mut self, now: Mono, request: &NewRequest<'_>) -> bool {
        let forwarder = self.forwarder.as_ref();
        let is_known = forwarder.is_some_and(|it| it.is_trunk(&request.flow));
        let bytes = request.message.as_bytes().into();
        let waiter = Waiter::Message(request.transaction(), bytes, request.flow);
        self.authenticator
            .lookups
            .wait(now, waiter, is_known)
            .is_ok()
    }

    /// Lets a request with a context of the proxy wait, if the authenticator has noted a query for it. If it may not
    /// wait, it resumes at once, as if the source were unavailable.
    pub(super) fn park_context(&mut self, transactions: &mut Transactions<'_>, key: ContextKey) {
        let now = transactions.now;
        let is_known = self.with_proxy(transactions, None, |proxy, _| proxy.has_known_sender(key));
        let waiter = Waiter::Proxy(key);
        let waits = self
            .authenticator
            .lookups
            .wait(now.mono, waiter, is_known == Some(true));
        if let Err(result) = waits {
            self.authenticator.set_lookup_result(Some(result));
            self.with_proxy(transactions, None, |proxy, stack| {
                proxy.resume(now, stack, key)
            });
            self.authenticator.lookups.clear_wanted_query();
            self.authenticator.set_lookup_result(None);
        }
    }

    /// Begins the queries of requests that wait, and sends the requests to the media relay.
    pub(in crate::sip) fn begin_queries(&mut self, worker: u16, mailboxes: &Mailboxes) {
        self.authenticator.lookups.begin_queries(worker, mailboxes);
        if let Some(forwarder) = &mut self.forwarder {
            forwarder
                .media
                .send(&mut forwarder.proxy, worker, mailboxes);
        }
    }

    /// Takes a result. The proxy resumes its context, or [`WorkerTu::take_resumed`] has the request.
    pub(super) fn resume_with(&mut self, transactions: &mut Transactions<'_>, answer: LateResult) {
        match answer {
            LateResult::Lookup(keys) => self.resume_after_lookup(transactions, keys),
            LateResult::Media(response) => self.resume_after_media(transactions, &response),
        }
    }

    /// Resumes a message with the result of the media relay.
    fn resume_after_media(
        &mut self,
        transactions: &mut Transactions<'_>,
        response: &MediaResponse,
    ) {
        let forwarder = self.forwarder.as_mut();
        let result = forwarder.and_then(|forwarder| forwarder.media.read(response));
        let Some((number, sdp)) = result else {
            return;
        };
        let now = transactions.now;
        let result = self.with_proxy(transactions, None, |proxy, stack| {
            proxy.media_answered(now, stack, number, sdp)
        });
        if let (Some(forwarder), Some(result)) = (&mut self.forwarder, result) {
            forwarder.media.count(response, result);
        }
        self.report_changes(transactions);
    }

    /// Resumes a request with the result of its query.
    fn resume_after_lookup(&mut self, transactions: &mut Transactions<'_>, keys: LookupReply) {
        let Some((waiter, result)) = self.authenticator.lookups.take(keys) else {
            return;
        };
        self.authenticator.set_lookup_result(Some(result));
        match waiter {
            Waiter::Message(_, bytes, flow) => self.resumed = Some((bytes, flow)),
            Waiter::Proxy(key) => {
                let now = transactions.now;
                let waits = self.with_proxy(transactions, None, |proxy, stack| {
                    proxy.resume(now, stack, key)
                });
                match waits {
                    Some(true) => self.park_context(transactions, key),
                    _ => self.authenticator.lookups.clear_wanted_query(),
                }
                self.report_changes(transactions);
            }
        }
    }

    /// Takes the request that resumes.
    pub(in crate::sip) fn take_resumed(&mut self) -> Option<(Box<[u8]>, Flow)> {
        self.resumed.take()
    }

    /// Removes the result of a query, because it is not valid for other requests.
    pub(in crate::sip) fn clear_lookup_result(&mut self) {
        self.authenticator.set_lookup_result(None);
    }

    /// Collects requests whose sources have not answered in time. They resume as if the sources were unavailable.
    pub(super) fn expire_lookups(&mut self, now: Mono) {
        let expired = self.authenticator.lookups.expired(now).take(MAX_EXPIRED);
        self.expired.extend(expired);
    }

    /// See [`WorkerTu::expire_lookups`].
    pub(in crate::sip) fn take_expired(&mut self) -> std::vec::Drain<'_, LookupReply> {
        self.expired.drain(..)
    }
}
