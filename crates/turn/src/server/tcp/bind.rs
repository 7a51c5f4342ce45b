//! ConnectionBind requests (RFC 6062 §5.4). They come on a connection of their own, which may belong to another worker.

use std::sync::Arc;

use stun::nonce::Issued;
use stun::{ConnectionId, ErrorCode, Message, Method};

use super::super::Server;
use super::super::answer::Refusal;
use super::super::outputs::{ConnectionStep, Queued};
use super::super::relay::Relay;
use super::super::request::RequestOrigin;
use super::super::request_context::RequestContext;
use super::{BoundTraffic, Stage};
use crate::{ClientPath, Now};

impl Server {
    /// A request that another engine's embedder moved here with its connection
    /// ([`Output::MoveConnection`](super::super::Output::MoveConnection)), or that names an engine that does not exist.
    /// It is handled as if it had arrived here.
    pub fn connection_moved(&mut self, now: Now, path: &ClientPath, message: &[u8]) {
        let Ok(message) = Message::parse(message) else {
            return;
        };
        let bytes = message.as_bytes().len();
        self.stats.count_request(message.method(), bytes);
        if let Err(reason) = self.turn_request(now, path, &message, RequestOrigin::of_client()) {
            self.stats.count_drops(reason, 1);
        }
    }

    /// A request that was to move with its connection. The server that it names is there, but takes no connection at
    /// the moment: 500, so that the client tries again (RFC 8489 §14.8).
    pub fn connection_not_moved(&mut self, now: Now, path: &ClientPath, message: &[u8]) {
        let Ok(message) = Message::parse(message) else {
            return;
        };
        let bytes = message.as_bytes().len();
        self.stats.count_request(message.method(), bytes);
        match self.authenticated(now, path, &message, RequestOrigin::of_client()) {
            Ok(Some(context)) => self.refuse(&context, &ErrorCode::SERVER_ERROR.into()),
            // It has got its response.
            Ok(None) => {}
            Err(reason) => self.stats.count_drops(reason, 1),
        }
    }

    /// Has a ConnectionBind request moved to the server that its CONNECTION-ID names, if it is another one. That server
    /// knows the control connection, whose nonce the client may use. So nothing is authenticated here.
    pub(in super::super) fn moves_connection(
        &mut self,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> bool {
        let Ok(Some(ConnectionId(id))) = message.get::<ConnectionId>() else {
            return false;
        };
        let [worker, ..] = id.to_be_bytes();
        let is_data =
            path.five_tuple.transport.is_stream() && self.holder_of(&path.five_tuple).is_none();
        let moves = is_data && worker != self.tcp.worker;
        if moves {
            let bytes = message.as_bytes();
            self.outputs.move_connection(worker.into(), *path, bytes);
        }
        moves
    }

    /// What a nonce says that a client sent back with a ConnectionBind request, if it was issued to the client's
    /// control connection. RFC 6062 §4.3: both connections use the same credentials, and clients go on with the nonce
    /// that they have.
    pub(in super::super) fn nonce_of_control(
        &self,
        message: &Message<'_>,
        nonce: &[u8],
    ) -> Option<Issued> {
        let client = self.client_of_connection(message)?;
        let control = self.clients.get(client)?.path.five_tuple();
        self.config.nonce_keys.check(nonce, control.remote)
    }

    /// The client of the control connection, if this is a ConnectionBind request for one of its connections.
    pub(in super::super) fn client_of_connection(&self, message: &Message<'_>) -> Option<u32> {
        if message.method() != Method::CONNECTION_BIND {
            return None;
        }
        let ConnectionId(id) = message.get::<ConnectionId>().ok().flatten()?;
        let connection = self.tcp.slab.get(*self.tcp.by_id.get(&id)?)?;
        Some(self.relays.get(connection.relay)?.live()?.client)
    }

    /// Makes the client's connection the data connection of a connection to a peer.
    pub(in super::super) fn connection_bind(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let five_tuple = &context.path.five_tuple;
        // RFC 6062 §4.3: the data connection is not the control connection.
        let is_control = self.holder_of(five_tuple).is_some();
        if !five_tuple.transport.is_stream() || is_control {
            return Err(ErrorCode::BAD_REQUEST.into());
        }
        let id = message.get::<ConnectionId>();
        let ConnectionId(id) = id.ok().flatten().ok_or(ErrorCode::BAD_REQUEST)?;
        let index = self.unbound(now, id).ok_or(ErrorCode::BAD_REQUEST)?;
        if !self.owns_connection(context, index) {
            return Err(ErrorCode::WRONG_CREDENTIALS.into());
        }
        if let Some(connection) = self.tcp.slab.get_mut(index) {
            connection.stage = Stage::Bound(BoundTraffic::new(now.mono));
        }
        self.tcp.deadlines.remove(index);
        self.stats.data_connections += 1;
        self.succeed(context, |_| Ok(()));
        let step = ConnectionStep::Bind(context.path);
        self.outputs
            .push(Queued::Connection(self.tcp.key(index), step));
        Ok(())
    }

    /// The connection with this CONNECTION-ID, if it waits for a data connection.
    fn unbound(&mut self, now: Now, id: u32) -> Option<u32> {
        let index = *self.tcp.by_id.get(&id)?;
        let connection = self.tcp.slab.get(index)?;
        let Relay::Live(live) = self.relays.get(connection.relay)? else {
            return None;
        };
        let waits = matches!(connection.stage, Stage::Unbound) && live.expires > now.mono;
        waits.then_some(index)
    }

    /// RFC 6062 §4.3: the credentials are those of the control connection.
    fn owns_connection(&self, context: &RequestContext, index: u32) -> bool {
        let relay = self.tcp.slab.get(index).map(|connection| connection.relay);
        let live = relay.and_then(|relay| self.relays.get(relay)?.live());
        let owner = live.and_then(|live| self.clients.get(live.client));
        let user = context.user.as_ref();
        user.zip(owner)
            .is_some_and(|(user, owner)| Arc::as_ref(user).is_same_as(&owner.user))
    }
}
