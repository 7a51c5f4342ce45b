//! The seam between an endpoint and its transaction users (TUs): a user agent server, a registrar, a proxy.
//!
//! ```text
//!  messages ─> Engine ── request, ack, cancel, response ──> TransactionUser
//!                ^                                             │  accept, answer, respond; send, cancel
//!                └────────────── Transactions <────────────────┘
//!  a database, a hook, another worker ── answered ──────> TransactionUser
//! ```
//!
//! A TU is called for what concerns it and does what it does through [`Transactions`]. It never waits: what it must ask somebody else for, it
//! asks, having accepted the request, and answers when [`TransactionUser::answered`] tells it. As long as it waits, its
//! [`backlog`](TransactionUser::backlog) counts for admission control.
//!
//! **The rules for the embedder.** It hands every [`Received`](crate::engine::Received) and [`Event`](crate::engine::Event) to the TU that it
//! concerns, calls [`TransactionUser::handle_timeout`] in time, and drains the engine's outputs and the dispatcher's
//! [`poll_told`](Dispatcher::poll_told) after each of these calls. [`dispatch_event`] and [`dispatch_told`] do the handing over.
//!
//! **The rules for a TU.** It answers a [`NewRequest`], accepts it, or says that it is another worker's; one that it lets go comes again.
//! Requests that it sends with a mark go through [`Transactions::send`]. Several TUs can share an engine: the first byte of a
//! [`Mark`] says whose it is ([`Mark::of`]).

use crate::dispatch::{DispatchError, Dispatcher, Failure, Order, RequestKey};
use crate::engine::{
    AcceptError, Ack, Engine, Event, Mark, NewRequest, Reply, RespondError, ServerFailure,
    ServerKey,
};
use crate::flow::{ConnectionKey, Flow};
use crate::message::Message;
use crate::{Mono, Now};

/// Says which worker has a connection.
pub type OwnerOf = fn(ConnectionKey) -> u16;

/// What a TU acts through, while it is called.
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
    /// [`RespondError`]; the request has another answer then, or none that it may have.
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

    /// Sends a request to whom its target names, or by a flow, also one of another worker: see [`Dispatcher::send`]. An ACK is sent without a
    /// transaction.
    ///
    /// # Errors
    /// [`DispatchError`]; nothing will be told of it then.
    pub fn send(&mut self, order: &Order<'_>) -> Result<RequestKey, DispatchError> {
        if let Some(flow) = &order.flow {
            self.adopt(flow);
        }
        self.dispatcher.send(self.now.mono, self.engine, order)
    }

    /// Lets requests go by a connection of another worker, which says so if the connection is gone.
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
pub enum Taken {
    /// It is answered, or will be; an ACK has reached whom it is for, or nobody.
    Here,
    /// Nothing was kept of it: it belongs to this other worker, and so does everything else of its transaction.
    Elsewhere(u16),
}

/// An application on top of transactions.
pub trait TransactionUser {
    /// What others answer to what this TU has asked them.
    type Answer;

    /// A request that belongs to no transaction.
    fn request(&mut self, transactions: &mut Transactions<'_>, request: NewRequest<'_>) -> Taken;

    /// An ACK for a 2xx.
    fn ack(&mut self, transactions: &mut Transactions<'_>, ack: &Ack<'_>) -> Taken;

    /// An INVITE that was accepted and has no final response is cancelled (RFC 3261 §9.2). The CANCEL has its 200.
    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        invite: (ServerKey, Option<Mark>),
        cancel: &Message<'_>,
    );

    /// A response to a request of this mark, provisional or final, and the way it came by.
    fn response(
        &mut self,
        transactions: &mut Transactions<'_>,
        mark: Mark,
        response: (&Message<'_>, &Flow),
    );

    /// A request of this mark comes to no response, or to none any more.
    fn failed(&mut self, transactions: &mut Transactions<'_>, mark: Mark, failure: Failure);

    /// A server transaction with a mark has a failure to report; it may live on.
    fn server_failed(
        &mut self,
        _transactions: &mut Transactions<'_>,
        _server: (ServerKey, Mark),
        _failure: ServerFailure,
    ) {
    }

    /// A server transaction with a mark has ended.
    fn server_ended(&mut self, _transactions: &mut Transactions<'_>, _server: (ServerKey, Mark)) {}

    /// A 2xx that was to be repeated until its ACK comes has got none: the TU ends the dialog with a BYE (RFC 3261 §13.3.1.4). `flow` is the way by
    /// which the INVITE came, `remote_target` the URI of its Contact.
    fn unacknowledged(
        &mut self,
        _transactions: &mut Transactions<'_>,
        _flow: &Flow,
        _response: &[u8],
        _remote_target: &[u8],
    ) {
    }

    /// Somebody else has answered.
    fn answered(&mut self, transactions: &mut Transactions<'_>, answer: Self::Answer);

    /// When to call [`TransactionUser::handle_timeout`].
    fn poll_timeout(&self) -> Option<Mono>;

    /// Time has passed: does a bounded amount of what is due. If more is due, [`TransactionUser::poll_timeout`] says so.
    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>);

    /// How many requests wait for a back end, such as a database, to begin with them. Those that it works on do not count: its latency is
    /// no overload.
    fn backlog(&self) -> u64 {
        0
    }

    /// How many requests the back end has begun with so far, in all: with [`TransactionUser::backlog`] this tells how long the next one
    /// will wait. A back end that begins with nothing counts for as slow as it has been silent.
    fn begun(&self) -> u64 {
        0
    }
}

/// Hands an event of the engine to whom it concerns: the dispatcher, or the TU.
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
pub fn dispatch_told(user: &mut impl TransactionUser, transactions: &mut Transactions<'_>) -> bool {
    let told = transactions.dispatcher.poll_told();
    if let Some(told) = told {
        user.failed(transactions, told.mark, told.failure);
    }
    told.is_some()
}
