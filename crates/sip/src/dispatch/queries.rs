//! The questions that are open, and who waits for their answers.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;

use super::responses::ResponseKey;
use super::{Failure, RequestKey};
use crate::hash::Seeded;
use crate::routing::Query;
use crate::{HashKey, Mono};

/// The DNS client gives up earlier than this.
const QUERY_TIMEOUT: Duration = Duration::from_secs(15);

/// Questions for one message: NAPTR, SRV for each transport, and 16 hosts twice.
const MAX_ASKED: usize = 40;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Request(RequestKey),
    Response(ResponseKey),
}

#[derive(Debug)]
pub(super) struct PendingQueries {
    open: HashMap<Query, Vec<Waiter>, Seeded>,
    /// Queries that the embedder has not taken yet.
    new: VecDeque<Query>,
    /// When each query was asked, the oldest first. Some of them have their answer already.
    asked: VecDeque<(Mono, Query)>,
    most: usize,
}

impl PendingQueries {
    pub(super) fn new(key: HashKey, most: usize) -> PendingQueries {
        PendingQueries {
            open: HashMap::with_hasher(Seeded::new(key)),
            new: VecDeque::new(),
            asked: VecDeque::new(),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Asks these queries, except those that were already asked for this message.
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
                    // Answered, and forgotten again: the cache has no room for what is needed at the same time.
                    return Err(Failure::NoDns);
                }
                continue;
            }
            if asked.len() >= MAX_ASKED {
                return Err(Failure::NoDns);
            }
            asked.push(query.clone());
            if !self.ask(now, query, who) {
                return Err(Failure::TooManyQueries);
            }
        }
        Ok(())
    }

    /// Asks a query. Returns `false` if too many are open.
    fn ask(&mut self, now: Mono, query: Query, who: Waiter) -> bool {
        if let Some(waiting) = self.open.get_mut(&query) {
            waiting.push(who);
            return true;
        }
        if self.open.len() >= self.most {
            return false;
        }
        self.open.insert(query.clone(), vec![who]);
        self.asked.push_back((now, query.clone()));
        self.new.push_back(query);
        true
    }

    fn is_open(&self, query: &Query) -> bool {
        self.open.contains_key(query)
    }

    pub(super) fn poll(&mut self) -> Option<Query> {
        self.new.pop_front()
    }

    /// Who waits for the answer that has come.
    pub(super) fn close(&mut self, query: &Query) -> Vec<Waiter> {
        let waiting = self.open.remove(query).unwrap_or_default();
        let open = &self.open;
        while self
            .asked
            .pop_front_if(|(_, asked)| !open.contains_key(asked))
            .is_some()
        {}
        // Answers in another order leave gaps.
        if self.asked.len() > 2 * self.most {
            self.asked.retain(|(_, asked)| open.contains_key(asked));
        }
        waiting
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.asked.front().map(|(at, _)| at.plus(QUERY_TIMEOUT))
    }

    /// A question that was not answered in time.
    pub(super) fn overdue(&mut self, now: Mono) -> Option<Query> {
        while let Some((_, query)) = self
            .asked
            .pop_front_if(|(at, _)| at.plus(QUERY_TIMEOUT) <= now)
        {
            if self.open.contains_key(&query) {
                return Some(query);
            }
        }
        None
    }
}
