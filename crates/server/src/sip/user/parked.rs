//! Requests that wait for a source of credentials, and go on when it has answered.

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

    /// A request with a context of the proxy waits, if the gate has found a user missing.
    pub(super) fn park_context(&mut self, now: Mono, key: ContextKey) {
        self.gate.lookups.wait(now, Waiter::Proxy(key));
    }

    /// Begins the queries of requests that wait.
    pub(in crate::sip) fn ask(&mut self, worker: u16, mailboxes: &Mailboxes) {
        self.gate.lookups.ask(worker, mailboxes);
    }

    /// A source has answered: the proxy goes on, or [`User::take_resumed`] has the request.
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

    /// The request that goes on.
    pub(in crate::sip) fn take_resumed(&mut self) -> Option<(Box<[u8]>, Flow)> {
        self.resumed.take()
    }

    /// The request has gone on: what the source has said is of no further use.
    pub(in crate::sip) fn forget_told(&mut self) {
        self.gate.tell(None);
    }

    /// Requests whose sources have not answered in time: they go on as if the sources could not answer.
    pub(super) fn expire_lookups(&mut self, now: Mono) {
        let expired = self.gate.lookups.expired(now).take(EXPIRED);
        self.expired.extend(expired);
    }

    /// See [`User::expire_lookups`].
    pub(in crate::sip) fn take_expired(&mut self) -> std::vec::Drain<'_, SipKeys> {
        self.expired.drain(..)
    }
}
