//! Responses that could not be delivered: the other servers of the host in sent-by (RFC 3263 §5, RFC 3261 §18.2.2).

use super::queries::Waiter;
use super::{AllowedDestination, Dispatcher, PeerGroups, SendFrom};
use crate::Mono;
use crate::engine::{Engine, Mark, ServerKey};
use crate::flow::{Destination, PeerName};
use crate::message::{Limits, Scan};
use crate::routing::{Candidate, Locate, Located, Query};

/// Names a response; stale when it is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl ResponseKey {
    fn mark(self) -> Mark {
        Mark(u64::from(self.slot) << 32 | u64::from(self.generation))
    }

    fn of(mark: Mark) -> ResponseKey {
        ResponseKey {
            slot: (mark.0 >> 32) as u32,
            generation: mark.0 as u32,
        }
    }
}

#[derive(Debug)]
pub(super) struct Response {
    server: ServerKey,
    /// The destination to which the response could not be sent.
    tried: Destination,
    target: Locate,
    /// Whom sent-by names, for TLS.
    name: PeerName,
    bytes: Box<[u8]>,
    asked: Vec<Query>,
    /// The servers that are left, once they are known.
    servers: Option<std::vec::IntoIter<Candidate>>,
}

impl Dispatcher {
    /// The engine could not deliver a response, as in [`Output::Undelivered`](crate::engine::Output::Undelivered). The
    /// client has chosen sent-by, so the response goes to the client's address or to those that
    /// [`Config::allowed`](super::Config::allowed) permits for [`PeerGroups::All`]. The response is dropped if the table
    /// is full, or if an earlier response of the same transaction is still being resolved.
    pub fn undelivered(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        server: ServerKey,
        tried: Destination,
        bytes: &[u8],
    ) {
        let scan = Scan::of(bytes, &Limits::DEFAULT).ok();
        let via = scan.as_ref().and_then(Scan::top_via);
        let is_full = self.responses.len() >= self.config.most_responses;
        let comes_again = || {
            self.responses
                .iter()
                .any(|(_, other)| other.server == server)
        };
        let Some((target, name)) = via
            .and_then(|via| Some((Locate::of_sent_by(&via)?, PeerName::of(via.host))))
            .filter(|_| !is_full && !comes_again())
        else {
            return engine.undeliverable(now, server);
        };
        let (slot, generation) = self.responses.insert(Response {
            server,
            tried,
            target,
            name,
            bytes: bytes.into(),
            asked: Vec::new(),
            servers: None,
        });
        self.locate_response(now, engine, ResponseKey { slot, generation });
    }

    /// Continues to find the servers that sent-by names. When they are known, tries the first one.
    pub(super) fn locate_response(&mut self, now: Mono, engine: &mut Engine, key: ResponseKey) {
        let Some(response) = self.responses.get(key.slot, key.generation) else {
            return;
        };
        if response.servers.is_some() {
            return;
        }
        let located = self
            .locator
            .locate(now, &response.target, &self.cache, &self.penalties);
        let who = Waiter::Response(key);
        match located {
            Located::Ask(queries) => {
                let asked = &mut response.asked;
                if self.queries.ask_all(now, queries, asked, who).is_err() {
                    self.give_up(now, engine, key);
                }
            }
            Located::Servers(mut servers) => {
                // Without a name nobody was asked there.
                let tried = &response.tried;
                let was_tried = !tried.transport.is_secure() || tried.name.is_some();
                let config = &self.config;
                let near =
                    AllowedDestination::NearOrGroups(Some(tried.remote.ip()), PeerGroups::All);
                servers.retain(|server| {
                    !(was_tried && server.remote == tried.remote)
                        && server.transport.is_reliable()
                        && config.permits(near, server.remote)
                });
                response.servers = Some(servers.into_iter());
                self.try_next_for_response(now, engine, key);
            }
            Located::Nowhere | Located::Failed => self.give_up(now, engine, key),
        }
    }

    fn try_next_for_response(&mut self, now: Mono, engine: &mut Engine, key: ResponseKey) {
        let Some(response) = self.responses.get(key.slot, key.generation) else {
            return;
        };
        let from = Some(SendFrom {
            listener: response.tried.listener,
            local: response.tried.local,
        });
        let name = Some(&response.name);
        let config = &self.config;
        let mut servers = response.servers.iter_mut().flatten();
        match servers.find_map(|server| config.destination(server, from, name)) {
            Some(to) => engine.redirect(now, to, &response.bytes, key.mark()),
            None => self.give_up(now, engine, key),
        }
    }

    /// What the engine says of an attempt.
    pub(super) fn redirected(&mut self, now: Mono, engine: &mut Engine, mark: Mark, sent: bool) {
        let key = ResponseKey::of(mark);
        if self.responses.get(key.slot, key.generation).is_none() {
            return;
        }
        if sent {
            self.stats.redirected += 1;
            self.responses.remove(key.slot);
        } else {
            self.try_next_for_response(now, engine, key);
        }
    }

    fn give_up(&mut self, now: Mono, engine: &mut Engine, key: ResponseKey) {
        if self.responses.get(key.slot, key.generation).is_none() {
            return;
        }
        if let Some(response) = self.responses.remove(key.slot) {
            engine.undeliverable(now, response.server);
        }
    }
}
