//! One request on its way: from its URI to servers, and from one server to the next.

use super::forwarding::StoredRoute;
use super::outgoing::{
    AllowedDestination, DispatchError, DispatchFailure, Failure, OutgoingRequest, SendFrom,
};
use super::queries::Waiter;
use super::{Dispatcher, RequestKey};
use crate::Mono;
use crate::branch::LoopCheck;
use crate::congestion::Class;
use crate::engine::{ClientKey, Engine, Mark, Outgoing, RequestError};
use crate::flow::{Destination, Flow, PeerName};
use crate::routing::{Candidate, Failover, Locate, Located, Outcome, Query};

#[derive(Debug)]
pub(super) struct Request {
    /// The mark of the TU.
    pub(super) mark: Mark,
    class: Class,
    reach: AllowedDestination,
    from: Option<SendFrom>,
    loop_check: Option<LoopCheck>,
    target: Locate,
    /// The host of the URI, which its server must prove over TLS (RFC 5922 §7.3). `None` for an address that is not
    /// reached over TLS.
    name: Option<PeerName>,
    /// Empty when no other server will be tried any more.
    pub(super) bytes: Box<[u8]>,
    /// The queries that were asked for this request.
    asked: Vec<Query>,
    servers: Option<Failover>,
    /// The transaction with the server that is tried now.
    pub(super) client: Option<ClientKey>,
    /// That server has sent a provisional response.
    pub(super) heard: bool,
    is_invite: bool,
    pub(super) is_ack: bool,
    /// What a proxy puts on top.
    pub(super) record_route: Option<Box<StoredRoute>>,
    /// It uses its flow, or fails.
    pub(super) only_by_flow: bool,
    /// It fails with its flow, also after a provisional response.
    pub(super) ends_with_flow: bool,
    /// It uses a flow. If the flow fails, the dispatcher may still find the server of its target by the DNS.
    may_locate: bool,
    /// The TU has cancelled it.
    pub(super) is_cancelled: bool,
}

impl Request {
    pub(super) fn new(order: &OutgoingRequest<'_>) -> Result<Request, DispatchError> {
        let begins_with = |method: &[u8]| {
            let start = order.pieces.first();
            start.is_some_and(|start| start.starts_with(method))
        };
        let (target, name) = Locate::with_peer_name(order.target)?;
        Ok(Request {
            mark: order.mark,
            class: order.class,
            reach: order.reach,
            from: order.from,
            loop_check: order.loop_check,
            target,
            name,
            bytes: order.pieces.concat().into(),
            asked: Vec::new(),
            servers: None,
            client: None,
            heard: false,
            is_invite: begins_with(b"INVITE "),
            is_ack: begins_with(b"ACK "),
            record_route: None,
            only_by_flow: false,
            ends_with_flow: false,
            may_locate: false,
            is_cancelled: false,
        })
    }

    /// No other server is tried.
    pub(super) fn stop_failover(&mut self) {
        self.servers = None;
        self.bytes = Box::default();
        // Nothing more is written, and the transaction of an INVITE that was answered stays for 32 s.
        self.name = None;
        self.record_route = None;
        self.may_locate = false;
    }
}

impl Dispatcher {
    /// Continues to find the servers. When they are known, tries the first one.
    pub(super) fn locate(&mut self, now: Mono, engine: &mut Engine, key: RequestKey) {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return;
        };
        if request.servers.is_some() || request.client.is_some() {
            return;
        }
        let located = self
            .locator
            .locate(now, &request.target, &self.cache, &self.penalties);
        match located {
            Located::Ask(queries) => self.ask(now, key, queries),
            Located::Servers(servers) => self.found(now, engine, key, servers),
            Located::Nowhere => self.fail(key, Failure::Nowhere),
            Located::Failed => self.fail(key, Failure::NoDns),
        }
    }

    fn ask(&mut self, now: Mono, key: RequestKey, queries: Vec<Query>) {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return;
        };
        let (asked, who) = (&mut request.asked, Waiter::Request(key));
        if let Err(failure) = self.queries.ask_all(now, queries, asked, who) {
            self.fail(key, failure);
        }
    }

    /// The servers of a request are known: sends it to the first one that may be used.
    fn found(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        key: RequestKey,
        mut servers: Vec<Candidate>,
    ) {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return;
        };
        let config = &self.config;
        servers.retain(|server| {
            config.permits(request.reach, server.remote)
                && config.destination(*server, request.from, None).is_some()
        });
        if servers.is_empty() {
            return self.fail(key, Failure::Forbidden);
        }
        // RFC 3261 §21.5.4: "SHOULD NOT forward any other requests to that server". What belongs to a dialog may go
        // nowhere else.
        if matches!(request.class, Class::New | Class::Priority) {
            let penalties = &self.penalties;
            servers.retain(|server| !penalties.has_asked(now, server.transport, server.remote));
        }
        if servers.is_empty() {
            return self.fail(key, Failure::AskedToWait);
        }
        request.asked = Vec::new();
        request.servers = Some(Failover::new(servers, now, config.failover_time));
        self.try_next(now, engine, key, None);
    }

    /// Sends a request by a flow. Returns `false` if its target is to be asked for instead.
    pub(super) fn send_by(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        key: RequestKey,
        flow: &Flow,
    ) -> bool {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return false;
        };
        let mut to = Destination::new(flow.transport, flow.remote, flow.listener);
        to.local = Some(flow.local);
        let out = Outgoing {
            to,
            connection: flow.connection,
            pieces: &[],
            class: request.class,
            mark: Some(key.mark()),
            loop_check: request.loop_check,
        };
        // RFC 7118 §7: nobody can connect to a WebSocket client.
        let may_locate = !flow.transport.is_websocket() && !request.only_by_flow;
        match request.give(now, engine, out, true) {
            Ok(Some(client)) => {
                request.client = Some(client);
                request.may_locate = may_locate;
                if request.ends_with_flow {
                    engine.end_with_connection(client);
                }
                true
            }
            Ok(None) => {
                self.requests.remove(key.slot);
                true
            }
            Err(RequestError::NoConnection) if may_locate => false,
            Err(RequestError::NoConnection) => {
                self.fail(key, Failure::TransportFailed);
                true
            }
            Err(error) => {
                self.fail(key, Failure::Refused(error));
                true
            }
        }
    }

    /// The flow of a request has ended without a response: the target of the request decides where it goes. Returns
    /// `false` if it may not.
    pub(super) fn locate_instead(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        key: RequestKey,
    ) -> bool {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return false;
        };
        if !std::mem::take(&mut request.may_locate) || request.heard {
            return false;
        }
        request.client = None;
        self.locate(now, engine, key);
        true
    }

    /// Tries the next server. If there is none, the request has failed. The reason is the failure of the `last` server
    /// that got the request; if none got it, the reason is why it was not sent.
    fn try_next(&mut self, now: Mono, engine: &mut Engine, key: RequestKey, last: Option<Failure>) {
        let mut unsent = Failure::TransportFailed;
        loop {
            let Some(request) = self.requests.get(key.slot, key.generation) else {
                return;
            };
            let next = request
                .servers
                .as_mut()
                .and_then(|servers| servers.next_server(now));
            let Some(server) = next else {
                return self.fail(key, last.unwrap_or(unsent));
            };
            let name = request.name.as_ref();
            let Some(to) = self.config.destination(server, request.from, name) else {
                continue;
            };
            let out = Outgoing {
                to,
                connection: None,
                pieces: &[],
                class: request.class,
                mark: Some(key.mark()),
                loop_check: request.loop_check,
            };
            match request.give(now, engine, out, false) {
                Ok(Some(client)) => {
                    request.client = Some(client);
                    request.heard = false;
                    return;
                }
                Ok(None) => {
                    self.requests.remove(key.slot);
                    return;
                }
                // RFC 7339 §5.10: another server may accept the request.
                Err(error @ RequestError::HeldBack) => unsent = Failure::Refused(error),
                Err(RequestError::NoSentBy) => {}
                Err(error) => return self.fail(key, Failure::Refused(error)),
            }
        }
    }

    /// An attempt has ended. Returns whether another server is tried.
    pub(super) fn ended(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        key: RequestKey,
        outcome: Outcome,
    ) -> bool {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return false;
        };
        let Some(servers) = &mut request.servers else {
            return false;
        };
        if !servers.ended(now, outcome, &mut self.penalties) {
            return false;
        }
        self.stats.failed_over += 1;
        request.client = None;
        let failure = match outcome {
            Outcome::TimedOut => Failure::TimedOut,
            _ => Failure::TransportFailed,
        };
        self.try_next(now, engine, key, Some(failure));
        true
    }

    /// A final response has come. Of a 2xx for an INVITE more may follow, until the transaction ends.
    pub(super) fn done(&mut self, key: RequestKey, code: u16) {
        if let Some(request) = self.requests.get(key.slot, key.generation) {
            if request.is_invite && code < 300 {
                request.stop_failover();
                return;
            }
            self.requests.remove(key.slot);
        }
    }

    pub(super) fn fail(&mut self, key: RequestKey, failure: Failure) {
        if self.requests.get(key.slot, key.generation).is_none() {
            return;
        }
        if let Some(request) = self.requests.remove(key.slot) {
            self.stats.failed += 1;
            self.stats.forbidden += u64::from(failure == Failure::Forbidden);
            // Nobody waits for what becomes of an ACK.
            if request.is_ack {
                return;
            }
            self.failures.push_back(DispatchFailure {
                mark: request.mark,
                failure,
            });
        }
    }
}
