//! Requests that wait for a source of credentials, and resume when it has answered.

use super::{EXPIRED, SipKeys, User, Waiter};
use crate::worker::Mailboxes;
use sip::Mono;
use sip::engine::NewRequest;
use sip::flow::Flow;
use sip::tu::Transactions;
use sip_server::proxy::ContextKey;

impl User {
    /// A request without a transaction waits: the worker keeps a copy, and handles it again.
    pub(super) fn park(&mut self, now: Mono, request: &NewRequest<'_>) {
        let bytes = request.message.as_bytes().into();
        let waiter = Waiter::Message(request.transaction(), bytes, request.flow);
        self.gate.lookups.wait(now, waiter);
    }

    /// A request with a context of the proxy waits, if the gate has noted a query for it.
    pub(super) fn park_context(&mut self, now: Mono, key: ContextKey) {
        self.gate.lookups.wait(now, Waiter::Proxy(key));
    }

    /// Begins the queries of requests that wait.
    pub(in crate::sip) fn ask(&mut self, worker: u16, mailboxes: &Mailboxes) {
        self.gate.lookups.ask(worker, mailboxes);
    }

    /// A source has answered: the proxy resumes its context, or [`User::take_resumed`] has the request.
    pub(super) fn go_on(&mut self, transactions: &mut Transactions<'_>, keys: SipKeys) {
        let Some((waiter, wanted, found)) = self.gate.lookups.end(keys) else {
            return;
        };
        self.gate.tell(Some((wanted, found)));
        match waiter {
            Waiter::Message(_, bytes, flow) => self.resumed = Some((bytes, flow)),
            Waiter::Proxy(key) => {
                let now = transactions.now;
                let waits = self.with_proxy(transactions, None, |proxy, stack| {
                    proxy.resume(now, stack, key)
                });
                match waits {
                    Some(true) => self.park_context(now.mono, key),
                    _ => self.gate.lookups.forget_wanted(),
                }
                self.report_changes(transactions);
            }
        }
    }

    /// Takes the request that resumes.
    pub(in crate::sip) fn take_resumed(&mut self) -> Option<(Box<[u8]>, Flow)> {
        self.resumed.take()
    }

    /// The request has resumed: removes the result, which is not valid for other requests.
    pub(in crate::sip) fn forget_told(&mut self) {
        self.gate.tell(None);
    }

    /// Collects requests whose sources have not answered in time. They resume as if the sources were unavailable.
    pub(super) fn expire_lookups(&mut self, now: Mono) {
        let expired = self.gate.lookups.expired(now).take(EXPIRED);
        self.expired.extend(expired);
    }

    /// See [`User::expire_lookups`].
    pub(in crate::sip) fn take_expired(&mut self) -> std::vec::Drain<'_, SipKeys> {
        self.expired.drain(..)
    }
}
