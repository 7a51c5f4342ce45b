//! Sources that guess passwords: they are slowed, then banned for a time.
//!
//! A failure counts only if its source address is verified. That is a wrong digest with a nonce that was issued to this
//! address, or a message over a connection. So forged datagrams cannot ban others.
//!
//! - A *pair* of source and user of a realm has few attempts. A user is not slowed as such, or strangers could lock users
//!   out.
//! - A *source* that fails with many users is banned. One phone with an old password fails as one pair, so it does not
//!   cause a ban of its whole site. The server does not check further attempts of the pair, and they do not count.

use sip::HashKey;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Failures of a pair of source and user of a realm. A person mistypes a few times. A phone with an old password tries
/// about twice per minute.
const PAIR_LIMIT: FailureLimit = FailureLimit {
    burst: 5,
    interval_ms: 20_000,
};
/// Failures of a source. Ten phones with old passwords that try twice per minute stay below this limit. A scan of user
/// names does not.
const SOURCE_LIMIT: FailureLimit = FailureLimit {
    burst: 30,
    interval_ms: 3_000,
};
/// The client retries after this time. Then its pair may try again.
pub(super) const RETRY_AFTER_LINE: &[u8] = b"Retry-After: 20\r\n";

/// Parts of the table of failures. Each has its own lock.
const SHARDS: usize = 16;
/// Places of a shard, and how many of them may have the record of a key. A place has 16 bytes: 256 KiB in total.
const PLACES_PER_SHARD: usize = 1024;
const PLACES_PER_KEY: usize = 4;
/// The longest ban, in seconds.
const MAX_BAN_S: u32 = 86_400;
/// Places for bans. Each has 8 bytes.
const MAX_BANS: usize = 4096;

/// How many failures are allowed at once, and the interval after which one more is allowed.
#[derive(Debug, Clone, Copy)]
struct FailureLimit {
    burst: u64,
    interval_ms: u64,
}

/// The failures of one key, stored as the time when all of them expire.
#[derive(Debug, Clone, Copy, Default)]
struct FailureRecord {
    key: u64,
    forgotten_ms: u64,
}

/// The result of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureResult {
    /// It is counted.
    Noted,
    /// It exceeds the limit: the source is banned from now on.
    Banned,
}

/// Failures and bans, for all workers. Its size is fixed, and both decay.
#[derive(Debug, Clone)]
pub(crate) struct Bans(Arc<BanTables>);

#[derive(Debug)]
struct BanTables {
    key: HashKey,
    parts: Box<[Mutex<Box<[FailureRecord]>>]>,
    /// When the last failure expires: until then some pair may be slowed.
    forgotten_ms: AtomicU64,
    /// Half of the key of a source, and the second that its ban ends in.
    bans: Box<[AtomicU64]>,
    /// The second that the last ban ends in.
    last_s: AtomicU32,
}

impl Bans {
    /// With a secret key, so that nobody can choose which sources share an index.
    pub(crate) fn new(key: HashKey) -> Bans {
        let part = || Mutex::new(vec![FailureRecord::default(); PLACES_PER_SHARD].into());
        Bans(Arc::new(BanTables {
            key: key.derive(u64::from_le_bytes(*b"banned..")),
            parts: (0..SHARDS).map(|_| part()).collect(),
            forgotten_ms: AtomicU64::new(0),
            bans: (0..MAX_BANS).map(|_| AtomicU64::new(0)).collect(),
            last_s: AtomicU32::new(0),
        }))
    }

    /// Whether a source may not try another password for this user now.
    pub(super) fn is_slowed(&self, unix_ms: u64, source: IpAddr, user: NameInRealm<'_>) -> bool {
        // Without failures there is nothing to look for.
        if self.0.forgotten_ms.load(Ordering::Relaxed) <= unix_ms {
            return false;
        }
        let key = self.pair_key(source, user);
        let part = self.shard_of(key);
        let part = part.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places_of(key).map(|at| part[at]).find(|it| it.key == key);
        let interval = PAIR_LIMIT.interval_ms;
        let (few, all) = (
            (PAIR_LIMIT.burst - 1) * interval,
            PAIR_LIMIT.burst * interval,
        );
        // If the clock was set back, the entry does not count.
        place.is_some_and(|place| (unix_ms + few + 1..=unix_ms + all).contains(&place.forgotten_ms))
    }

    /// A source has shown a wrong digest for this user. A ban of no time is none.
    pub(super) fn note_wrong_digest(
        &self,
        unix_ms: u64,
        source: IpAddr,
        user: NameInRealm<'_>,
        ban: Duration,
    ) -> FailureResult {
        self.count_failure(unix_ms, self.pair_key(source, user), PAIR_LIMIT);
        self.note_failure(unix_ms, source, ban)
    }

    /// A source has failed, or has sent a request of a tool that scans.
    pub(super) fn note_failure(
        &self,
        unix_ms: u64,
        source: IpAddr,
        ban: Duration,
    ) -> FailureResult {
        let key = self.source_key(source);
        let is_banned = self.count_failure(unix_ms, key, SOURCE_LIMIT) && !ban.is_zero();
        if !is_banned || self.is_banned(unix_ms / 1000, source) {
            return FailureResult::Noted;
        }
        self.ban(unix_ms / 1000, key, ban);
        FailureResult::Banned
    }

    /// Whether a source is banned. Without any ban, this is one atomic load.
    pub(super) fn is_banned(&self, unix_s: u64, source: IpAddr) -> bool {
        let now = unix_s as u32;
        if self.0.last_s.load(Ordering::Relaxed) <= now {
            return false;
        }
        let key = self.source_key(source);
        let mut found = ban_slots(key).map(|at| self.0.bans[at].load(Ordering::Relaxed));
        found.any(|ban| ban >> 32 == key >> 32 && is_active(ban, now))
    }

    /// Sources that are banned now.
    pub(super) fn count(&self, unix_s: u64) -> u64 {
        let now = unix_s as u32;
        if self.0.last_s.load(Ordering::Relaxed) <= now {
            return 0;
        }
        let bans = self.0.bans.iter();
        bans.filter(|ban| is_active(ban.load(Ordering::Relaxed), now))
            .count() as u64
    }

    fn ban(&self, unix_s: u64, key: u64, time: Duration) {
        let end = (unix_s + time.as_secs().max(1)) as u32;
        let new = key >> 32 << 32 | u64::from(end);
        // The place of a ban that is over, or else of the one that ends first.
        let of = |at: &usize| self.0.bans[*at].load(Ordering::Relaxed) as u32;
        if let Some(at) = ban_slots(key).min_by_key(of) {
            self.0.bans[at].store(new, Ordering::Relaxed);
            self.0.last_s.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Counts a failure. Returns whether this key has too many.
    fn count_failure(&self, unix_ms: u64, key: u64, limit: FailureLimit) -> bool {
        let part = self.shard_of(key);
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        // The place of this key, or the one that expires first.
        let own = places_of(key).find(|at| part[*at].key == key);
        let at = own.or_else(|| places_of(key).min_by_key(|at| part[*at].forgotten_ms));
        let Some(place) = at.and_then(|at| part.get_mut(at)) else {
            return false;
        };
        if place.key != key {
            *place = FailureRecord {
                key,
                forgotten_ms: 0,
            };
        }
        let most = unix_ms + limit.burst * limit.interval_ms;
        let next = place.forgotten_ms.max(unix_ms) + limit.interval_ms;
        // A source that continues is not slowed for longer than one that stops.
        place.forgotten_ms = next.min(most);
        self.0
            .forgotten_ms
            .fetch_max(place.forgotten_ms, Ordering::Relaxed);
        next >= most
    }

    fn shard_of(&self, key: u64) -> &Mutex<Box<[FailureRecord]>> {
        &self.0.parts[(key >> 60) as usize % SHARDS]
    }

    fn source_key(&self, source: IpAddr) -> u64 {
        self.0.key.mac(&source_prefix(source))
    }

    fn pair_key(&self, source: IpAddr, NameInRealm(realm, user): NameInRealm<'_>) -> u64 {
        let of = |part, text: &[u8]| self.0.key.derive(part).mac(text).to_be_bytes();
        let mut bytes = [0; 25];
        bytes[..9].copy_from_slice(&source_prefix(source));
        bytes[9..17].copy_from_slice(&of(1, user));
        bytes[17..].copy_from_slice(&of(2, realm));
        self.0.key.mac(&bytes)
    }
}

/// A realm, and an unescaped user name or unknown `userhash` in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameInRealm<'n>(pub(super) &'n [u8], pub(super) &'n [u8]);

/// Whether a ban lasts. If the clock was set back, the ban does not count.
fn is_active(ban: u64, now: u32) -> bool {
    let end = ban as u32;
    end > now && end - now <= MAX_BAN_S
}

/// An IPv4 address, or an IPv6 /64, which one host may have all of.
fn source_prefix(source: IpAddr) -> [u8; 9] {
    let mut bytes = [0; 9];
    match source.to_canonical() {
        IpAddr::V4(v4) => bytes[1..5].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => {
            bytes[0] = 6;
            bytes[1..].copy_from_slice(&v6.octets()[..8]);
        }
    }
    bytes
}

fn places_of(key: u64) -> impl Iterator<Item = usize> {
    let first = key as usize % (PLACES_PER_SHARD / PLACES_PER_KEY) * PLACES_PER_KEY;
    first..first + PLACES_PER_KEY
}

fn ban_slots(key: u64) -> impl Iterator<Item = usize> {
    let first = key as usize % (MAX_BANS / PLACES_PER_KEY) * PLACES_PER_KEY;
    first..first + PLACES_PER_KEY
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_794_571_200_000;
    const BAN: Duration = Duration::from_secs(300);

    fn bans() -> Bans {
        Bans::new(HashKey::new([1; 16]))
    }

    fn of(user: &[u8]) -> NameInRealm<'_> {
        NameInRealm(b"example.org", user)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_pair_is_slowed_and_its_user_is_not() {
        let (bans, here, there) = (bans(), address("192.0.2.1"), address("192.0.2.2"));
        for attempt in 0..5 {
            assert!(!bans.is_slowed(NOW, here, of(b"alice")), "{attempt}");
            assert_eq!(
                bans.note_wrong_digest(NOW, here, of(b"alice"), BAN),
                FailureResult::Noted
            );
        }
        assert!(bans.is_slowed(NOW, here, of(b"alice")));
        assert!(
            !bans.is_slowed(NOW, there, of(b"alice")),
            "the user elsewhere"
        );
        assert!(!bans.is_slowed(NOW, here, of(b"bob")), "her neighbour");
        let other = NameInRealm(b"b.example", b"alice");
        assert!(
            !bans.is_slowed(NOW, here, other),
            "another user of this name"
        );
        // One attempt each 20 s from then on.
        assert!(bans.is_slowed(NOW + 19_000, here, of(b"alice")));
        assert!(!bans.is_slowed(NOW + 20_000, here, of(b"alice")));
        bans.note_wrong_digest(NOW + 20_000, here, of(b"alice"), BAN);
        assert!(bans.is_slowed(NOW + 21_000, here, of(b"alice")));
        assert!(!bans.is_slowed(NOW + 120_000, here, of(b"alice")));
    }

    #[test]
    fn a_phone_with_an_old_password_bans_nobody() {
        let (bans, here) = (bans(), address("192.0.2.1"));
        // Ten phones of a site try twice a minute each, all day.
        for second in 0..86_400 {
            let now = NOW + second * 1000;
            let phone = [(second % 30) as u8];
            if phone[0] < 10 && !bans.is_slowed(now, here, of(&phone)) {
                assert_eq!(
                    bans.note_wrong_digest(now, here, of(&phone), BAN),
                    FailureResult::Noted
                );
            }
        }
    }

    #[test]
    fn a_source_that_tries_many_users_is_banned_for_a_time() {
        let (bans, here) = (bans(), address("192.0.2.1"));
        let failed = |number: u8| bans.note_wrong_digest(NOW, here, of(&[number]), BAN);
        let banned = (0..40).find(|number| failed(*number) == FailureResult::Banned);
        assert_eq!(banned, Some(29));
        let s = NOW / 1000;
        assert!(bans.is_banned(s, here));
        assert!(bans.is_banned(s, address("::ffff:192.0.2.1")));
        assert!(!bans.is_banned(s, address("192.0.2.2")));
        assert!(bans.is_banned(s + 299, here));
        assert!(!bans.is_banned(s + 300, here), "it is over");
        assert_eq!((bans.count(s), bans.count(s + 300)), (1, 0));
        let v6 = address("2001:db8::1");
        for _ in 0..30 {
            let _ = bans.note_failure(NOW, v6, BAN);
        }
        assert!(bans.is_banned(s, address("2001:db8::ffff")), "the same /64");
        assert!(!bans.is_banned(s, address("2001:db8:0:1::1")));
        // Turned off.
        let off = address("192.0.2.9");
        for _ in 0..60 {
            let _ = bans.note_failure(NOW, off, Duration::ZERO);
        }
        assert!(!bans.is_banned(s, off));
    }

    #[test]
    fn memory_does_not_grow_and_those_who_fail_stay_known() {
        let bans = bans();
        for number in 0..200_000u32 {
            bans.note_wrong_digest(NOW, IpAddr::from(number.to_be_bytes()), of(b"alice"), BAN);
        }
        assert_eq!(bans.count(NOW / 1000), 0);
        let here = address("192.0.2.1");
        let banned = (0..60).any(|_| bans.note_failure(NOW, here, BAN) == FailureResult::Banned);
        assert!(banned, "also among so many others");
    }
}
