//! The DNS queries that have no answer yet, and the messages that wait for the answers.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;

use super::responses::ResponseKey;
use super::{Failure, RequestKey};
use crate::hash::Seeded;
use crate::routing::Query;
use crate::{HashKey, Mono};

/// After this time, a query without an answer has failed. The DNS client gives up earlier.
const QUERY_TIMEOUT: Duration = Duration::from_secs(15);

/// The maximum number of queries for one message: NAPTR, SRV for each transport, and 16 hosts twice.
const MAX_ASKED: usize = 40;

/// The message that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Request(RequestKey),
    Response(ResponseKey),
}

#[derive(Debug)]
pub(super) struct PendingQueries {
    /// The queries without an answer, and what waits for each of them.
    open: HashMap<Query, Vec<Waiter>, Seeded>,
    /// Queries that the embedder has not taken yet.
    new: VecDeque<Query>,
    /// When each query was started, the oldest first. Some of them have their answer already.
    started: VecDeque<(Mono, Query)>,
    /// The maximum number of open queries.
    max_open: usize,
}

impl PendingQueries {
    pub(super) fn new(key: HashKey, max_open: usize) -> PendingQueries {
        PendingQueries {
            open: HashMap::with_hasher(Seeded::new(key)),
            new: VecDeque::new(),
            started: VecDeque::new(),
            max_open,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Starts the queries that the message `who` requires now. `asked` has all queries of this message: those that are
    /// in it already are not started again.
    pub(super) fn ask_all(
        &mut self,
        now: Mono,
        queries: Vec<Query>,
        asked: &mut Vec<Query>,
        who: Waiter,
    ) -> Result<(), Failure> {
        for query in queries {
            if asked.contains(&query) {
                if !self.is_open(&query) {
                    // The cache has removed the answer: it has no room for all answers that the message requires.
                    return Err(Failure::NoDns);
                }
                continue;
            }
            if asked.len() >= MAX_ASKED {
                return Err(Failure::NoDns);
            }
            asked.push(query.clone());
            if !self.wait_for(now, query, who) {
                return Err(Failure::TooManyQueries);
            }
        }
        Ok(())
    }

    /// Adds `who` to those that wait for the answer to a query. A query that is not open yet is started: `poll` returns
    /// it to the embedder. Returns `false` if too many queries are open.
    fn wait_for(&mut self, now: Mono, query: Query, who: Waiter) -> bool {
        if let Some(waiting) = self.open.get_mut(&query) {
            waiting.push(who);
            return true;
        }
        if self.open.len() >= self.max_open {
            return false;
        }
        self.open.insert(query.clone(), vec![who]);
        self.started.push_back((now, query.clone()));
        self.new.push_back(query);
        true
    }

    fn is_open(&self, query: &Query) -> bool {
        self.open.contains_key(query)
    }

    /// The next query that the embedder must send.
    pub(super) fn poll(&mut self) -> Option<Query> {
        self.new.pop_front()
    }

    /// Removes a query whose answer has come. Returns what waits for it.
    pub(super) fn close(&mut self, query: &Query) -> Vec<Waiter> {
        let waiting = self.open.remove(query).unwrap_or_default();
        let open = &self.open;
        while self
            .started
            .pop_front_if(|(_, started)| !open.contains_key(started))
            .is_some()
        {}
        // Answers that come in another order leave entries of closed queries.
        if self.started.len() > 2 * self.max_open {
            self.started
                .retain(|(_, started)| open.contains_key(started));
        }
        waiting
    }

    /// When to call [`PendingQueries::overdue`].
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.started.front().map(|(at, _)| at.plus(QUERY_TIMEOUT))
    }

    /// A query that has had no answer for [`QUERY_TIMEOUT`]. It stays open until [`PendingQueries::close`].
    pub(super) fn overdue(&mut self, now: Mono) -> Option<Query> {
        while let Some((_, query)) = self
            .started
            .pop_front_if(|(at, _)| at.plus(QUERY_TIMEOUT) <= now)
        {
            if self.open.contains_key(&query) {
                return Some(query);
            }
        }
        None
    }
}
