//! A look-up that blocks, for programs that may wait.

use super::{AddressFamilies, DnsFailure, DnsQueryResult, NameResolver};
use sip::routing::{Candidate, DnsCache, Locate, Located, Locator, Penalties, Query};
use sip::{HashKey, Mono};
use std::sync::mpsc;
use std::time::Duration;

/// Why the servers of a URI are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocateError {
    /// The name does not exist, or has no usable records.
    #[error(
        "there is no such name, or nothing serves SIP there over a transport that is spoken here"
    )]
    Nowhere,
    /// Name servers refuse the query or fail.
    #[error("the DNS does not answer as it should: look at the name servers in /etc/resolv.conf")]
    Failed,
    /// Name servers do not respond.
    #[error("the DNS did not answer in time: look at the name servers in /etc/resolv.conf")]
    TimedOut,
}

/// Rounds of queries: NAPTR, SRV, addresses.
const MAX_ROUNDS: usize = 4;

/// Longer than the timeout of the resolver for one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

impl NameResolver {
    /// The servers to try for a URI, in this order (RFC 3263 §4); never empty. Waits for the DNS, at most some
    /// seconds per query. `locator` has the transports that can be used.
    ///
    /// # Errors
    /// [`LocateError`].
    pub fn locate(
        &self,
        locator: &mut Locator,
        target: &Locate,
    ) -> Result<Vec<Candidate>, LocateError> {
        let key = HashKey::new([0; 16]);
        let mut cache = DnsCache::new(key);
        let penalties = Penalties::new(key);
        for _ in 0..MAX_ROUNDS {
            match locator.locate(Mono(0), target, &cache, &penalties) {
                Located::Servers(servers) => return Ok(servers),
                Located::Nowhere => return Err(LocateError::Nowhere),
                Located::Failed => return Err(LocateError::Failed),
                Located::Ask(queries) => {
                    for answered in self.ask_all(queries)? {
                        match answered.result {
                            Ok(known) => {
                                cache.insert(Mono(0), answered.query, known.answer, known.ttl);
                            }
                            Err(_) => cache.insert_failure(Mono(0), answered.query),
                        }
                    }
                }
            }
        }
        Err(LocateError::Failed)
    }

    fn ask_all(&self, queries: Vec<Query>) -> Result<Vec<DnsQueryResult>, LocateError> {
        let both = AddressFamilies { v4: true, v6: true };
        let (sender, answers) = mpsc::channel();
        let count = queries.len();
        for query in queries {
            let sender = sender.clone();
            // The caller may not wait any more.
            let reply = move |answered| drop(sender.send(answered));
            let asked = self.ask(query, both, reply);
            asked.map_err(|_| LocateError::Failed)?;
        }
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let answered = answers.recv_timeout(QUERY_TIMEOUT);
            let answered = answered.map_err(|_| LocateError::TimedOut)?;
            tracing::debug!(query = ?answered.query, took = ?answered.took, "asked the DNS");
            all.push(answered);
        }
        let silent = |answered: &DnsQueryResult| {
            answered.result.as_ref().err() == Some(&DnsFailure::TimedOut)
        };
        match all.iter().all(silent) {
            true => Err(LocateError::TimedOut),
            false => Ok(all),
        }
    }
}
