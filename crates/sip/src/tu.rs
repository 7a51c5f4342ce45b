//! The interface between an endpoint and its transaction users (TUs): a user agent server, a registrar, a proxy.
//!
//! ```text
//!  messages ─> Engine ── request, ack, cancel, response ──> TransactionUser
//!                ^                                             │  accept, answer, respond; send, cancel
//!                └────────────── Transactions <────────────────┘
//!  a database, a hook, another worker ── answered ──────> TransactionUser
//! ```
//!
//! The embedder calls a TU with the messages and events of its transactions. The TU acts through [`Transactions`], and
//! never blocks. If it must ask another thread, it accepts the request, asks, and responds in
//! [`TransactionUser::answered`]. Its [`backlog`](TransactionUser::backlog) counts the requests that the other thread
//! has not begun, for admission control.
//!
//! **The rules for the embedder.** It gives every [`Received`](crate::engine::Received) and [`Event`] to its TU, with
//! [`dispatch_event`] and [`deliver_failure`]. It calls [`TransactionUser::handle_timeout`] in time. After each of
//! these calls it drains the engine's outputs and the dispatcher's [`poll_failure`](Dispatcher::poll_failure).
//!
//! **The rules for a TU.** It answers a [`NewRequest`], accepts it, or says that another worker must handle it. If it
//! does none of these, the client retransmits the request. It sends requests with a mark through
//! [`Transactions::send`]. Several TUs can share an engine: the first byte of a [`Mark`] names the TU ([`Mark::of`]).

use crate::dispatch::{DispatchError, Dispatcher, Failure, OutgoingRequest, RequestKey};
use crate::engine::{
    AcceptError, Ack, Engine, Event, Mark, NewRequest, Reply, RespondError, ServerFailure,
    ServerKey,
};
use crate::flow::{ConnectionKey, Flow};
use crate::message::Message;
use crate::{Mono, Now};

/// Says which worker has a connection.
pub type OwnerOf = fn(ConnectionKey) -> u16;

/// The engine and the dispatcher, for a TU during a call.
#[derive(Debug)]
pub struct Transactions<'a> {
    /// The time.
    pub now: Now,
    /// Server transactions, and what is sent without a transaction.
    pub engine: &'a mut Engine,
    /// Client transactions.
    pub dispatcher: &'a mut Dispatcher,
    /// Which worker has a connection, for [`Transactions::send`].
    pub owner_of: OwnerOf,
}

impl Transactions<'_> {
    /// See [`Engine::accept`].
    ///
    /// # Errors
    /// [`AcceptError`]; the request is answered then.
    pub fn accept(
        &mut self,
        request: NewRequest<'_>,
        mark: Option<Mark>,
    ) -> Result<ServerKey, AcceptError> {
        self.engine.accept(self.now.mono, request, mark)
    }

    /// See [`Engine::answer`].
    ///
    /// # Errors
    /// [`RespondError`]; then the client gets another response, or none if no response is allowed. See
    /// [`Engine::answer`].
    pub fn answer(
        &mut self,
        request: NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<Option<ServerKey>, RespondError> {
        self.engine.answer(self.now.mono, request, reply)
    }

    /// See [`Engine::answer_statelessly`].
    ///
    /// # Errors
    /// [`RespondError`].
    pub fn answer_statelessly(
        &mut self,
        request: NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<(), RespondError> {
        self.engine.answer_statelessly(request, reply)
    }

    /// See [`Engine::respond`].
    ///
    /// # Errors
    /// [`RespondError`]; nothing has changed then.
    pub fn respond(&mut self, key: ServerKey, reply: &Reply<'_>) -> Result<(), RespondError> {
        self.engine.respond(self.now.mono, key, reply)
    }

    /// Sends a request to its target, or by a flow, which may be another worker's: see [`Dispatcher::send`]. An ACK is
    /// sent without a transaction.
    ///
    /// # Errors
    /// [`DispatchError`]; then the request has no other result.
    pub fn send(&mut self, order: &OutgoingRequest<'_>) -> Result<RequestKey, DispatchError> {
        if let Some(flow) = &order.flow {
            self.adopt(flow);
        }
        self.dispatcher.send(self.now.mono, self.engine, order)
    }

    /// Permits requests over a connection of another worker. If the connection is closed, that worker reports it.
    pub fn adopt(&mut self, flow: &Flow) {
        let other = |key| (self.owner_of)(key) != self.engine.worker();
        if flow.connection.is_some_and(other) {
            self.engine.adopt(self.now.mono, flow);
        }
    }

    /// See [`Dispatcher::cancel`].
    pub fn cancel(&mut self, key: RequestKey) {
        self.dispatcher.cancel(self.now.mono, self.engine, key);
    }
}

/// What became of a message that was given to a TU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RequestOwner {
    /// The TU has answered the request, or will. An ACK has been handled, or dropped.
    Here,
    /// The TU has kept nothing of it. It belongs to this other worker, with all other messages of its transaction.
    Elsewhere(u16),
}

/// An application on top of transactions.
pub trait TransactionUser {
    /// The results of other threads that this TU has asked.
    type QueryResult;

    /// A request that belongs to no transaction.
    fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> RequestOwner;

    /// An ACK for a 2xx.
    fn ack(&mut self, transactions: &mut Transactions<'_>, ack: &Ack<'_>) -> RequestOwner;

    /// An INVITE that was accepted and has no final response is cancelled (RFC 3261 §9.2). The CANCEL has its 200.
    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        invite: (ServerKey, Option<Mark>),
        cancel: &Message<'_>,
    );

    /// A provisional or final response to a request with this mark, and the flow that it came by.
    fn response(
        &mut self,
        transactions: &mut Transactions<'_>,
        mark: Mark,
        response: (&Message<'_>, &Flow),
    );

    /// A request with this mark gets no final response.
    fn failed(&mut self, transactions: &mut Transactions<'_>, mark: Mark, failure: Failure);

    /// A server transaction with a mark has a failure to report; it may not have ended.
    fn server_failed(
        &mut self,
        _transactions: &mut Transactions<'_>,
        _server: (ServerKey, Mark),
        _failure: ServerFailure,
    ) {
    }

    /// A server transaction with a mark has ended.
    fn server_ended(&mut self, _transactions: &mut Transactions<'_>, _server: (ServerKey, Mark)) {}

    /// No ACK has come for a 2xx: the TU ends the dialog with a BYE (RFC 3261 §13.3.1.4). The INVITE came by `flow`,
    /// and `remote_target` is the URI of its Contact.
    fn unacknowledged(
        &mut self,
        _transactions: &mut Transactions<'_>,
        _flow: &Flow,
        _response: &[u8],
        _remote_target: &[u8],
    ) {
    }

    /// The result that an accepted request waited for, from another thread.
    fn answered(&mut self, transactions: &mut Transactions<'_>, answer: Self::QueryResult);

    /// When to call [`TransactionUser::handle_timeout`].
    fn poll_timeout(&self) -> Option<Mono>;

    /// Handles a bounded number of timers that have expired. If more have, [`TransactionUser::poll_timeout`] is not in
    /// the future.
    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>);

    /// How many requests a back end, such as a database, has not begun yet. Requests that it works on do not count: its
    /// latency is no overload.
    fn backlog(&self) -> u64 {
        0
    }

    /// How many requests the back end has begun in total. With [`TransactionUser::backlog`], this gives the waiting
    /// time of the next one. If the back end begins none, the expected wait is at least the time since the last one.
    fn begun(&self) -> u64 {
        0
    }
}

/// Gives an event of the engine to the dispatcher or to the TU.
pub fn dispatch_event(
    user: &mut impl TransactionUser,
    transactions: &mut Transactions<'_>,
    event: &Event,
) {
    match *event {
        Event::ServerFailed { key, mark, failure } => {
            user.server_failed(transactions, (key, mark), failure);
        }
        Event::ServerEnded { key, mark } => user.server_ended(transactions, (key, mark)),
        Event::ClientFailed { .. } | Event::ClientEnded { .. } | Event::Redirected { .. } => {
            let now = transactions.now.mono;
            transactions
                .dispatcher
                .event(now, transactions.engine, event);
        }
    }
}

/// Hands one failure of the dispatcher to the TU. Returns whether there was one.
pub fn deliver_failure(
    user: &mut impl TransactionUser,
    transactions: &mut Transactions<'_>,
) -> bool {
    let told = transactions.dispatcher.poll_failure();
    if let Some(told) = told {
        user.failed(transactions, told.mark, told.failure);
    }
    told.is_some()
}
