//! Requests that the proxy of the domains gets: all but REGISTER for one of the domains (RFC 3261 §16).

use super::{REGISTRAR_RULES, WorkerTu};
use sip::build::Builder;
use sip::engine::{NewRequest, Reply, RespondError};
use sip::flow::Flow;
use sip::tu::{RequestOwner, Transactions};
use sip::{HeaderKind, Message, Method, Uri};
use sip_server::proxy::{Handled, Proxy, Stack};

impl WorkerTu {
    /// Calls `act` with the proxy, if there is one. `flow`: a message has arrived by it.
    pub(super) fn with_proxy<T>(
        &mut self,
        transactions: &mut Transactions<'_>,
        flow: Option<&Flow>,
        act: impl FnOnce(&mut Proxy, &mut Stack<'_>) -> T,
    ) -> Option<T> {
        let forwarder = self.forwarder.as_mut()?;
        let registrations = self.registrations.as_mut()?;
        if let Some(flow) = flow {
            forwarder.note_source(flow, transactions.engine);
        }
        let local = flow.map(|flow| flow.local);
        let (authenticator, lines) = (&mut self.authenticator, &mut self.lines[..]);
        let (proxy, mut policy) = forwarder.with(registrations, authenticator, lines, local);
        let mut stack = Stack {
            engine: transactions.engine,
            dispatcher: transactions.dispatcher,
            policy: &mut policy,
        };
        Some(act(proxy, &mut stack))
    }

    /// A request that is no REGISTER for one of the domains.
    pub(super) fn forward(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<RequestOwner, RespondError> {
        let Some(from) = self.forwarder.as_ref().map(|it| it.flow_id(&request.flow)) else {
            return Ok(RequestOwner::Here);
        };
        let (now, flow) = (transactions.now, request.flow);
        let handled = self.with_proxy(transactions, Some(&flow), |proxy, stack| {
            proxy.request(now, stack, request, &from)
        });
        self.report_changes(transactions);
        match handled {
            Some(Handled::Waits(key)) => self.park_context(transactions, key),
            // The request does not wait, for example because its sender may not send. So no query for the callee
            // begins.
            _ => self.authenticator.lookups.clear_wanted_query(),
        }
        match handled {
            Some(Handled::Elsewhere(worker)) => Ok(RequestOwner::Elsewhere(worker)),
            Some(Handled::Own(request)) => {
                self.own(transactions, request).map(|()| RequestOwner::Here)
            }
            Some(Handled::Yes | Handled::NoRoom | Handled::Waits(_)) | None => {
                Ok(RequestOwner::Here)
            }
        }
    }

    /// Whether a request is a REGISTER for one of the domains. Others are forwarded (§10.3 step 1).
    pub(super) fn is_registration(&self, message: &Message<'_>) -> bool {
        let uri = Uri::parse(message.request_uri().unwrap_or_default());
        let domains = self.registrations.as_ref().map(|it| it.domains());
        let is_here = match (&uri, domains) {
            (Ok(Uri::Sip(uri)), Some(domains)) => domains.of(uri.host).is_some(),
            _ => false,
        };
        message.method() == Some(Method::Register) && is_here
    }

    /// A request for this server itself, of which nothing is kept (§8.2, §11.2).
    fn own(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let message = request.message;
        let mut unknown = message.require().filter_map(Result::ok).peekable();
        let method = message.method();
        if method == Some(Method::Options) && unknown.peek().is_none() {
            let reply = Reply::new(200).headers(&self.abilities.options);
            return transactions.answer_statelessly(request, &reply);
        }
        if method == Some(Method::Subscribe) {
            return WorkerTu::bad_event(transactions, request);
        }
        let mut lines = Builder::fields(&mut self.lines);
        let code = match method {
            Some(Method::Options) => {
                lines.list(HeaderKind::Unsupported, unknown);
                420
            }
            method => {
                let methods = REGISTRAR_RULES.methods.iter();
                lines.list(HeaderKind::Allow, methods.map(|method| method.as_bytes()));
                match method {
                    Some(Method::Other(_)) => 501,
                    _ => 405,
                }
            }
        };
        let lines = lines.finish_fields()?;
        transactions.answer_statelessly(request, &Reply::new(code).headers(lines))
    }
}
