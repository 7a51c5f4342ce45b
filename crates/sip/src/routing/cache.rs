//! The cache of DNS answers. It keeps an answer until it expires. If the cache is full, it removes the answers that
//! expire first.

use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;

use super::name::DnsName;
use crate::{HashKey, Mono};

/// A question to the DNS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// NAPTR records (RFC 3403).
    Naptr(DnsName),
    /// SRV records (RFC 2782).
    Srv(DnsName),
    /// A and AAAA records, IPv4 addresses last or first as the embedder's resolver sorts them.
    Addresses(DnsName),
}

/// A NAPTR record with the flag `s`; others are of no use here (RFC 3263 §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naptr {
    /// Records of lower order come first, and alone.
    pub order: u16,
    /// Within an order, lower ones come first.
    pub preference: u16,
    /// Such as `SIP+D2U`.
    pub service: Box<str>,
    /// Where the SRV records are.
    pub replacement: DnsName,
}

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Srv {
    /// Lower ones come first.
    pub priority: u16,
    /// Within a priority, the share of requests.
    pub weight: u16,
    /// The port.
    pub port: u16,
    /// The host.
    pub target: DnsName,
}

/// What the DNS says; an empty list means that there are no such records, or no such name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecords {
    /// To [`Query::Naptr`].
    Naptr(Vec<Naptr>),
    /// To [`Query::Srv`].
    Srv(Vec<Srv>),
    /// To [`Query::Addresses`].
    Addresses(Vec<IpAddr>),
}

impl DnsRecords {
    fn is_empty(&self) -> bool {
        match self {
            DnsRecords::Naptr(records) => records.is_empty(),
            DnsRecords::Srv(records) => records.is_empty(),
            DnsRecords::Addresses(records) => records.is_empty(),
        }
    }

    /// Keeps the first [`MAX_RECORDS`] records only. The locator needs no more of them.
    fn truncate(&mut self) {
        match self {
            DnsRecords::Naptr(records) => records.truncate(MAX_RECORDS),
            DnsRecords::Srv(records) => records.truncate(MAX_RECORDS),
            DnsRecords::Addresses(records) => records.truncate(MAX_RECORDS),
        }
    }
}

const MAX_RECORDS: usize = 32;
/// Answers kept at a time.
const MAX_ANSWERS: usize = 1024;
/// The shortest time to live of an answer. With a shorter one, the server would send too many queries.
const MIN_TTL: Duration = Duration::from_secs(5);
/// The longest time to live of an answer. So a change of the zone has an effect within a day.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// How long the cache keeps an answer without records. RFC 2308 §5 allows hours; here it is minutes.
const LONGEST_NEGATIVE: Duration = Duration::from_secs(300);
/// How long the cache keeps a failure of the DNS. The server must not send a query for every message, but must notice
/// soon when the DNS responds again.
const FAILURE_TTL: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Entry {
    answer: Result<DnsRecords, DnsFailed>,
    until: Mono,
}

/// The DNS could not be asked, or did not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the DNS did not answer")]
pub struct DnsFailed;

/// The cache.
#[derive(Debug)]
pub struct DnsCache {
    entries: HashMap<Query, Entry, crate::hash::Seeded>,
}

impl DnsCache {
    /// An empty cache. Clients choose the names, so a key is necessary.
    #[must_use]
    pub fn new(key: HashKey) -> DnsCache {
        DnsCache {
            entries: HashMap::with_hasher(crate::hash::Seeded::new(key)),
        }
    }

    /// Keeps an answer for its time to live, within limits.
    pub fn insert(&mut self, now: Mono, query: Query, mut answer: DnsRecords, ttl: Duration) {
        let longest = if answer.is_empty() {
            LONGEST_NEGATIVE
        } else {
            MAX_TTL
        };
        answer.truncate();
        let until = now.plus(ttl.clamp(MIN_TTL, longest));
        self.put(now, query, Ok(answer), until);
    }

    /// Remembers for a moment that the DNS did not respond.
    pub fn insert_failure(&mut self, now: Mono, query: Query) {
        self.put(now, query, Err(DnsFailed), now.plus(FAILURE_TTL));
    }

    fn put(&mut self, now: Mono, query: Query, answer: Result<DnsRecords, DnsFailed>, until: Mono) {
        if self.entries.len() >= MAX_ANSWERS && !self.entries.contains_key(&query) {
            self.make_room(now);
        }
        self.entries.insert(query, Entry { answer, until });
    }

    /// Forgets what has expired, or else the quarter that would expire first, so that it is not done for every answer.
    fn make_room(&mut self, now: Mono) {
        self.entries.retain(|_, entry| entry.until > now);
        if self.entries.len() < MAX_ANSWERS {
            return;
        }
        let mut ends: Vec<Mono> = self.entries.values().map(|entry| entry.until).collect();
        let (_, limit, _) = ends.select_nth_unstable(MAX_ANSWERS / 4);
        let limit = *limit;
        let mut left = MAX_ANSWERS * 3 / 4;
        self.entries.retain(|_, entry| {
            let stays = entry.until > limit && left > 0;
            left -= usize::from(stays);
            stays
        });
    }

    /// The cached answer, if it has not expired.
    pub(super) fn get(&self, now: Mono, query: &Query) -> Option<&Result<DnsRecords, DnsFailed>> {
        let entry = self.entries.get(query)?;
        (entry.until > now).then_some(&entry.answer)
    }

    /// How many answers are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no answer is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str) -> Query {
        Query::Addresses(DnsName::new(name.as_bytes()).unwrap())
    }

    fn cache() -> DnsCache {
        DnsCache::new(HashKey::new([1; 16]))
    }

    fn known(cache: &DnsCache, at_s: u64, name: &str) -> bool {
        cache
            .get(Mono::default().plus_secs(at_s), &query(name))
            .is_some()
    }

    #[test]
    fn answers_live_as_long_as_they_say_within_limits() {
        let mut cache = cache();
        let yes = DnsRecords::Addresses(vec![[192, 0, 2, 1].into()]);
        let no = DnsRecords::Addresses(Vec::new());
        let mut put = |name, answer: &DnsRecords, ttl| {
            cache.insert(
                Mono(0),
                query(name),
                answer.clone(),
                Duration::from_secs(ttl),
            );
        };
        put("short", &yes, 0);
        put("usual", &yes, 60);
        put("long", &yes, u64::from(u32::MAX));
        put("never", &no, 86_400);
        cache.insert_failure(Mono(0), query("failed"));
        let at = |s| ["short", "usual", "long", "never", "failed"].map(|n| known(&cache, s, n));
        assert_eq!(at(4), [true; 5]);
        assert_eq!(at(9), [false, true, true, true, true]);
        assert_eq!(at(59), [false, true, true, true, false]);
        assert_eq!(at(299), [false, false, true, true, false]);
        assert_eq!(at(86_399), [false, false, true, false, false]);
        assert_eq!(at(86_400), [false; 5]);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_lives_longest() {
        let mut cache = cache();
        for number in 0..5000u64 {
            let answer = DnsRecords::Addresses(vec![[192, 0, 2, 1].into(); 100]);
            let ttl = Duration::from_secs(100 + number);
            cache.insert(Mono(0), query(&format!("h{number}")), answer, ttl);
            assert!(cache.len() <= MAX_ANSWERS);
        }
        assert!(known(&cache, 1, "h4999") && !known(&cache, 1, "h0"));
    }
}
