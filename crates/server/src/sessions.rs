//! Lists the allocations of all workers in pages, and closes single allocations, for an operator.
//!
//! ```text
//!  Sessions ── SessionQuery ──▶ mailbox of a worker ──▶ turn::server::Server::sessions
//!      ▲                                                        │
//!      └─────────────── a bounded part of the list ◀────────────┘
//! ```
//!
//! A worker examines a bounded number of table places per query. So a table of 100,000 allocations does not delay
//! datagrams. The caller sends another query for the next part.

use crate::mailbox::Mailbox;
use crate::worker::WorkerMessage;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use turn::AllocationKey;
pub use turn::server::{Session, SessionDataConnection, SessionFilter};

/// Table places that a worker examines per query. This lasts about 50 microseconds.
const PLACES_PER_QUERY: u32 = 512;
/// The longest time until a worker responds to a query.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts to post to a full mailbox.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Why a query about sessions failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A worker did not respond in time.
    #[error(
        "worker {0} did not respond to a query about sessions within 1 s: it has ended or is overloaded; try again"
    )]
    Busy(usize),
    /// The session does not exist.
    #[error(
        "session {0} does not exist: it has ended, or the ID is wrong; list the sessions again"
    )]
    Ended(SessionId),
}

/// Identifies a session of a running server, as long as the session exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId {
    /// The number of its worker, from 0.
    pub worker: usize,
    /// The allocation.
    pub key: AllocationKey,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}-{}-{}",
            self.worker, self.key.index, self.key.generation
        )
    }
}

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<SessionId, SessionIdError> {
        let mut parts = text.split('-');
        let mut part = || {
            let part = parts.next().and_then(|part| part.parse::<u32>().ok());
            part.ok_or(SessionIdError)
        };
        let (worker, index, generation) = (part()?, part()?, part()?);
        if parts.next().is_some() {
            return Err(SessionIdError);
        }
        let worker = usize::try_from(worker).map_err(|_| SessionIdError)?;
        let key = AllocationKey { index, generation };
        Ok(SessionId { worker, key })
    }
}

/// A text is not the ID of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the ID of a session: write worker, place and generation, such as 0-17-3")]
pub struct SessionIdError;

/// Where the next page of a list begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionsCursor {
    /// The number of the worker, from 0.
    pub worker: usize,
    /// The place in its table.
    pub place: u32,
}

/// A page of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<(SessionId, Session)>,
    /// Where the next page begins; `None` at the end of the list.
    pub next: Option<SessionsCursor>,
}

/// A query to a worker.
#[derive(Debug)]
pub(crate) enum SessionQuery {
    /// Lists allocations from this place on.
    List(u32, Arc<SessionFilter>, SyncSender<WorkerPage>),
    /// Closes an allocation.
    End(AllocationKey, SyncSender<bool>),
}

/// A part of the list of one worker, and the place of the next part if there is one.
pub(crate) type WorkerPage = (Vec<Session>, Option<u32>);

impl SessionQuery {
    /// Runs the query on the worker's thread, and sends the result.
    pub(crate) fn answer(self, engine: &mut turn::server::Server, now: turn::Now) {
        // The thread that sent the query may not wait any more.
        match self {
            SessionQuery::List(from, filter, reply) => {
                let _ = reply.try_send(engine.sessions(now, from, PLACES_PER_QUERY, &filter));
            }
            SessionQuery::End(key, reply) => {
                let _ = reply.try_send(engine.close_session(now, key));
            }
        }
    }
}

/// Lists and ends the sessions of a running server. Clones refer to the same server.
#[derive(Debug, Clone)]
pub struct Sessions {
    boxes: Arc<[Mailbox<WorkerMessage>]>,
}

impl Sessions {
    pub(crate) fn new(boxes: Arc<[Mailbox<WorkerMessage>]>) -> Sessions {
        Sessions { boxes }
    }

    /// Returns at most `limit` sessions from a place on, and where the next page begins. `limit` must be at least 1.
    /// Blocks until the workers respond: do not call it on a worker's thread.
    ///
    /// # Errors
    /// If a worker does not respond within a second.
    pub fn list(
        &self,
        from: SessionsCursor,
        limit: usize,
        filter: SessionFilter,
    ) -> Result<SessionPage, SessionError> {
        let filter = Arc::new(filter);
        let mut found = Vec::new();
        let mut next = (from.worker < self.boxes.len()).then_some(from);
        while let Some(SessionsCursor { worker, place }) = next {
            let (part, more) = self.ask(worker, |reply| {
                SessionQuery::List(place, Arc::clone(&filter), reply)
            })?;
            found.extend(part.into_iter().map(|session| {
                let key = session.key;
                (SessionId { worker, key }, session)
            }));
            let of_next_worker = SessionsCursor {
                worker: worker + 1,
                place: 0,
            };
            let of_next_worker = Some(of_next_worker).filter(|it| it.worker < self.boxes.len());
            next = more
                .map(|place| SessionsCursor { worker, place })
                .or(of_next_worker);
            if found.len() > limit {
                found.truncate(limit);
                next = found.last().map(|(id, _)| SessionsCursor {
                    worker: id.worker,
                    place: id.key.index + 1,
                });
            }
            if found.len() == limit {
                break;
            }
        }
        Ok(SessionPage {
            sessions: found,
            next,
        })
    }

    /// Closes the allocation of a session. The client gets 437 (Allocation Mismatch) for its next request about this
    /// allocation.
    ///
    /// # Errors
    /// If the session does not exist, or its worker does not respond within a second.
    pub fn end(&self, id: SessionId) -> Result<(), SessionError> {
        if id.worker >= self.boxes.len() {
            return Err(SessionError::Ended(id));
        }
        match self.ask(id.worker, |reply| SessionQuery::End(id.key, reply))? {
            true => Ok(()),
            false => Err(SessionError::Ended(id)),
        }
    }

    fn ask<T>(
        &self,
        worker: usize,
        query: impl FnOnce(SyncSender<T>) -> SessionQuery,
    ) -> Result<T, SessionError> {
        let (reply, answer): (_, Receiver<T>) = sync_channel(1);
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let mut message = WorkerMessage::Sessions(query(reply));
        while let Err(back) = self.boxes[worker].post(message) {
            if Instant::now() >= deadline {
                return Err(SessionError::Busy(worker));
            }
            message = back;
            std::thread::sleep(RETRY_INTERVAL);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = answer.recv_timeout(left);
        outcome.map_err(|_| SessionError::Busy(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sessions_are_read_as_they_are_written() {
        let key = AllocationKey {
            index: 17,
            generation: 3,
        };
        let id = SessionId { worker: 1, key };
        assert_eq!(id.to_string(), "1-17-3");
        assert_eq!("1-17-3".parse(), Ok(id));
        for wrong in ["", "1", "1-2", "1-2-3-4", "a-2-3", "1-2-99999999999"] {
            assert!(wrong.parse::<SessionId>().is_err(), "{wrong}");
        }
    }
}
