//! A registrar and a proxy as one transaction user, for a server of one thread: [`sip::endpoint`] drives it.
//!
//! ```text
//!  REGISTER for a domain ──> Registrar ──> Registrations::location
//!  all other requests ─────> Proxy ──────> Policy: routing, lookup, authentication
//! ```
//!
//! The program implements [`Routing`](crate::proxy::Routing), [`Lookup`](crate::proxy::Lookup),
//! [`Authentication`](crate::proxy::Authentication) and [`Registrations`]. [`Calls`](crate::proxy::Calls),
//! [`Trunks`](crate::proxy::Trunks) and [`Pushes`](crate::proxy::Pushes) have defaults for a proxy without limits,
//! trunks and push.
//!
//! If a lookup or an authentication of the proxy is pending, the program calls
//! [`Endpoint::answered`](sip::endpoint::Endpoint::answered) when it is complete. For a REGISTER, everything must be
//! known at once: otherwise it gets 503. A location that saves later ([`Saved::Later`](crate::location::Saved::Later))
//! needs a TU of its own.

use sip::dispatch::Failure;
use sip::engine::{Ack, Mark, NewRequest, Reply, ServerKey};
use sip::flow::Flow;
use sip::tu::{RequestOwner, TransactionUser, Transactions};
use sip::{Message, Method, Mono, Now};

use crate::Aor;
use crate::flow::FlowId;
use crate::location::Location;
use crate::proxy::{Authenticated, Handled, Policy, Proxy, Stack};
use crate::registrar::{Access, Authority as _, Examined, Outcome, Registrar, Request, SameUser};

/// Header lines of an answer: a user may have many contacts.
const MAX_LINES_BYTES: usize = 64 << 10;

/// What a 405 and the answer to OPTIONS say.
const ALLOW: &[u8] = b"Allow: OPTIONS, REGISTER\r\nSupported: path, outbound, gruu\r\n";

/// For a 503 (RFC 3261 §21.5.4).
const RETRY: &[u8] = b"Retry-After: 5\r\n";

/// What a program implements for the registrar: where bindings are, who registers, and who may change which bindings.
pub trait Registrations {
    /// Where the bindings are.
    fn location(&mut self) -> &mut dyn Location;

    /// Who has sent a REGISTER: looks at Authorization.
    fn authenticate_register(
        &mut self,
        now: Now,
        request: &Message<'_>,
        flow: &Flow,
    ) -> Authenticated<'_>;

    /// What this user may do with the bindings of this address. By default, users have the address of their name
    /// ([`SameUser`]).
    fn access(&self, user: &[u8], aor: &Aor) -> Access {
        SameUser.access(Some(user), aor)
    }

    /// When to call [`Registrations::expire`].
    fn next_expiry(&self) -> Option<Mono> {
        None
    }

    /// Frees the memory of expired bindings. The proxy ignores expired bindings in any case.
    fn expire(&mut self, _now: Mono) {}
}

/// A registrar and a proxy.
#[derive(Debug)]
pub struct RegistrarProxy<P> {
    registrar: Registrar,
    proxy: Proxy,
    policy: P,
    run: u32,
    lines: Vec<u8>,
}

impl<P: Policy + Registrations> RegistrarProxy<P> {
    /// Combines a registrar and a proxy. The proxy must have worker 0 and the same `run`. Each run of the program
    /// requires another `run`.
    #[must_use]
    pub fn new(registrar: Registrar, proxy: Proxy, policy: P, run: u32) -> RegistrarProxy<P> {
        RegistrarProxy {
            registrar,
            proxy,
            policy,
            run,
            lines: vec![0; MAX_LINES_BYTES],
        }
    }

    /// The policy.
    pub const fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    const fn flow_id(&self, flow: Flow) -> FlowId {
        FlowId {
            worker: 0,
            run: self.run,
            flow,
        }
    }

    fn with_proxy<R>(
        &mut self,
        transactions: &mut Transactions<'_>,
        act: impl FnOnce(&mut Proxy, &mut Stack<'_>) -> R,
    ) -> R {
        let mut stack = Stack {
            engine: transactions.engine,
            dispatcher: transactions.dispatcher,
            policy: &mut self.policy,
        };
        act(&mut self.proxy, &mut stack)
    }

    /// Answers a REGISTER (RFC 3261 §10.3). Returns it if it is for another domain.
    fn register<'m>(
        &mut self,
        transactions: &mut Transactions<'_>,
        mut request: NewRequest<'m>,
    ) -> Option<NewRequest<'m>> {
        let (now, message) = (transactions.now, { request.message });
        let aor = match self.registrar.examine(&message, &mut self.lines) {
            Examined::Foreign => return Some(request),
            Examined::Refused(answer) => {
                let reply = Reply::new(answer.code).headers(answer.headers);
                // Nobody is authenticated yet: see below.
                let _ = transactions.answer_statelessly(request, &reply);
                return None;
            }
            Examined::Aor(aor) => aor,
        };
        let user = match self
            .policy
            .authenticate_register(now, &message, &request.flow)
        {
            Authenticated::User(user) => user.to_vec(),
            Authenticated::Challenge(lines) => {
                // These responses create no transactions, because unauthenticated clients can cause any number of them.
                let _ = transactions.answer_statelessly(request, &Reply::new(401).headers(lines));
                return None;
            }
            Authenticated::Bad(reason) => {
                let reply = Reply::new(400).reason(reason.as_bytes());
                let _ = transactions.answer_statelessly(request, &reply);
                return None;
            }
            Authenticated::Slowed | Authenticated::Unavailable | Authenticated::Pending => {
                let reply = Reply::new(503).headers(RETRY);
                let _ = transactions.answer_statelessly(request, &reply);
                return None;
            }
        };
        request.trust();
        let access = match &aor {
            Some(aor) => self.policy.access(&user, aor),
            None => Access::NoSuchUser,
        };
        let asked = Request {
            message: &message,
            aor,
            flow: self.flow_id(request.flow),
            access,
        };
        let location = self.policy.location();
        let outcome = self
            .registrar
            .register(now, &asked, location, &mut self.lines);
        let reply = match outcome {
            Outcome::Response(answer) => {
                let reply = Reply::new(answer.code).reason(answer.reason.as_bytes());
                reply.headers(answer.headers)
            }
            Outcome::Later(..) => Reply::new(500),
            Outcome::Pending => Reply::new(503).headers(RETRY),
        };
        reply_at_once(transactions, request, &reply);
        if let Some(aor) = aor {
            self.with_proxy(transactions, |proxy, stack| {
                proxy.registered(now, stack, &aor)
            });
        }
        None
    }

    fn forward(&mut self, transactions: &mut Transactions<'_>, request: NewRequest<'_>) {
        let (now, from) = (transactions.now, self.flow_id(request.flow));
        let handled = self.with_proxy(transactions, |proxy, stack| {
            proxy.request(now, stack, request, &from)
        });
        if let Handled::Own(request) = handled {
            let code = match request.message.method() {
                Some(Method::Options) => 200,
                _ => 405,
            };
            reply_at_once(transactions, request, &Reply::new(code).headers(ALLOW));
        }
    }
}

/// Responds to a request. If that fails, the client retransmits the request.
fn reply_at_once(transactions: &mut Transactions<'_>, request: NewRequest<'_>, reply: &Reply<'_>) {
    let _ = transactions.answer(request, reply);
}

impl<P: Policy + Registrations> TransactionUser for RegistrarProxy<P> {
    /// Some lookup or authentication is complete.
    type QueryResult = ();

    fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> RequestOwner {
        let request = match request.message.method() {
            Some(Method::Register) => self.register(transactions, request),
            _ => Some(request),
        };
        if let Some(request) = request {
            self.forward(transactions, request);
        }
        RequestOwner::Here
    }

    fn ack(&mut self, transactions: &mut Transactions<'_>, ack: &Ack<'_>) -> RequestOwner {
        let (now, from) = (transactions.now, self.flow_id(ack.flow));
        self.with_proxy(transactions, |proxy, stack| {
            proxy.ack(now, stack, &ack.message, &from)
        })
    }

    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        (_, mark): (ServerKey, Option<Mark>),
        cancel: &Message<'_>,
    ) {
        let now = transactions.now.mono;
        if let Some(mark) = mark {
            self.with_proxy(transactions, |proxy, stack| {
                proxy.cancel(now, stack, mark, cancel);
            });
        }
    }

    fn response(
        &mut self,
        transactions: &mut Transactions<'_>,
        mark: Mark,
        (message, flow): (&Message<'_>, &Flow),
    ) {
        let now = transactions.now;
        self.with_proxy(transactions, |proxy, stack| {
            proxy.response(now, stack, mark, message, flow);
        });
    }

    fn failed(&mut self, transactions: &mut Transactions<'_>, mark: Mark, failure: Failure) {
        let now = transactions.now;
        self.with_proxy(transactions, |proxy, stack| {
            proxy.failed(now, stack, mark, &failure);
        });
    }

    fn server_ended(&mut self, _: &mut Transactions<'_>, (_, mark): (ServerKey, Mark)) {
        self.proxy.server_ended(mark);
    }

    fn answered(&mut self, transactions: &mut Transactions<'_>, (): ()) {
        let now = transactions.now;
        self.with_proxy(transactions, |proxy, stack| {
            for key in proxy.waiting() {
                proxy.resume(now, stack, key);
            }
        });
    }

    fn poll_timeout(&self) -> Option<Mono> {
        let deadlines = [self.proxy.poll_timeout(), self.policy.next_expiry()];
        deadlines.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        let now = transactions.now.mono;
        self.policy.expire(now);
        self.with_proxy(transactions, |proxy, stack| {
            proxy.handle_timeout(now, stack)
        });
    }
}
