//! Shares of the sources: a source that has had less than its share is served before others.
//!
//! Each configured peer has a weight. All other sources together have the weight of one peer of weight 1, regardless of
//! their number. So a thousand forged addresses take nothing from a carrier. Those others share equally. They are
//! counted in an array of fixed size, by a keyed hash of their prefix. So no source can make it grow or choose its
//! place.
//!
//! The same places have the limit of requests per source ([`SourceCounts`]). All workers count in one array, because
//! the kernel spreads the ports of a source over them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::classes::Class;
use crate::{HashKey, Mono};

/// Places of sources that are no peers. Two sources in one place share a threshold; with 50 active sources one in 20 is
/// affected.
pub const HASHED_PLACES: usize = 1024;
/// Configured peers that have a place of their own; the kernel's table has the same size.
pub const MAX_PEERS: usize = 256;
/// All places: the hashed ones, then those of the peers.
pub const PLACES: usize = HASHED_PLACES + MAX_PEERS;

/// A configured peer: a carrier, a trunk, another proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedSource {
    /// Its network.
    pub address: IpAddr,
    /// Leading bits of `address` that count: 0 to 32, or 0 to 128.
    pub prefix: u8,
    /// How much it gets, where all unknown sources together get 1; at least 1.
    pub weight: u16,
}

impl WeightedSource {
    /// The network as an IPv6 address (IPv4 is mapped to `::ffff:0:0/96`) and its length: 0 to 128.
    #[must_use]
    pub fn network(&self) -> (u128, u8) {
        let (bits, length) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), 96 + self.prefix.min(32)),
            IpAddr::V6(v6) => (v6.to_bits(), self.prefix.min(128)),
        };
        (bits & mask(length), length)
    }

    /// Whether an address is in its network.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.contains(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        })
    }

    fn contains(&self, address: u128) -> bool {
        let (network, length) = self.network();
        address & mask(length) == network
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The configured peers, the longest prefix first.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightedSources(Vec<WeightedSource>);

impl WeightedSources {
    /// The first [`MAX_PEERS`] of them.
    pub(super) fn new(peers: &[WeightedSource]) -> WeightedSources {
        let mut peers = peers[..peers.len().min(MAX_PEERS)].to_vec();
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.network().1));
        WeightedSources(peers)
    }

    pub(super) fn all(&self) -> &[WeightedSource] {
        &self.0
    }

    /// The place of a source, and its keyed hash.
    pub(super) fn place(&self, source: IpAddr, keys: [u64; 2]) -> (usize, u64) {
        let hash = prefix(source)
            .wrapping_add(keys[0])
            .wrapping_mul(keys[1] | 1);
        let place = match self.0.is_empty() {
            true => None,
            false => {
                let address = match source {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
                    IpAddr::V6(v6) => v6.to_bits(),
                };
                self.0.iter().position(|peer| peer.contains(address))
            }
        };
        let hashed = (hash >> 54) as usize;
        (place.map_or(hashed, |at| HASHED_PLACES + at), hash)
    }

    /// The weight of a peer's place; `None` for a hashed one.
    fn weight(&self, place: usize) -> Option<f64> {
        let peer = self.0.get(place.checked_sub(HASHED_PLACES)?)?;
        Some(f64::from(peer.weight.max(1)))
    }

    /// How much each place may have at most so that together they have `wanted`, of what each asks for: infinite if
    /// they ask for less.
    pub(super) fn levels(&self, asked: &[f32; PLACES], wanted: f64) -> Levels {
        let (hashed, peers) = asked.split_at(HASHED_PLACES);
        let peers = peers.iter().zip(&self.0);
        let peers = peers.map(|(asked, peer)| (f64::from(*asked), f64::from(peer.weight.max(1))));
        let each = hashed.iter().filter(|asked| **asked > 0.0);
        let each = each.map(|asked| (f64::from(*asked), 1.0));
        let others: f64 = each.clone().map(|(asked, _)| asked).sum();
        let group = level(peers.chain([(others, 1.0)]), wanted);
        Levels {
            group,
            other: level(each, group),
        }
    }

    /// How much a place may have.
    pub(super) fn most(&self, levels: Levels, place: usize) -> f64 {
        self.weight(place)
            .map_or(levels.other, |weight| levels.group * weight)
    }
}

/// See [`WeightedSources::levels`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    /// For each unit of a peer's weight, and for all other sources together.
    group: f64,
    /// For each other source.
    other: f64,
}

/// Rounds after which a level is near enough: each gives out what those that ask for less have left.
const ROUNDS: usize = 32;

/// Each of `(asked, weight)` gets what it requests, or the level times its weight: the smaller one. Together they get
/// `wanted`.
fn level(all: impl Iterator<Item = (f64, f64)> + Clone, wanted: f64) -> f64 {
    let mut level = 0.0;
    for _ in 0..ROUNDS {
        let (mut taken, mut weights) = (0.0, 0.0);
        for (asked, weight) in all.clone() {
            match asked <= level * weight {
                true => taken += asked,
                false => weights += weight,
            }
        }
        if weights == 0.0 {
            return f64::INFINITY;
        }
        let next = (wanted - taken) / weights;
        if next <= level {
            break;
        }
        level = next;
    }
    level
}

/// The part of an address by which a source is known: nobody chooses among IPv4 addresses, but everybody in an IPv6
/// /64.
fn prefix(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(v4) => u64::from(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h, ..] = v6.octets();
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        }
    }
}

/// How long sources are counted; then all begin anew, in other places. A caller repeats a request after 500 ms at the
/// earliest (RFC 3261 §17.1.1.1), so each attempt meets another window.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOWS: u64 = 1_000 / WINDOW.as_millis() as u64;
/// The part of the accepted requests that the server distributes as shares in an overload. The remainder reduces the
/// backlog: 100 ms of it in half a second.
const SHARED: f64 = 0.8;
/// The part of this share of the capacity ([`SHARED`]) that [`Class::Continuing`] can use before others. It is more than half,
/// because a client that gets a challenge each time sends half of its requests with credentials. And 503s use 8 % of the
/// time. It is bounded, because an attacker could repeat one request of a dialog, or one nonce, any number of times.
const CONTINUING_PART: f64 = 0.6;
/// The same of [`Class::Priority`]. A server has few emergency calls, so they do not need more. A flood of calls to
/// `urn:service:sos` leaves three quarters to all others.
const PRIORITY_PART: f64 = 0.25;
/// The part of [`PRIORITY_PART`] that one source can have. So a flood of one source leaves priority to the emergency
/// calls of others.
const PRIORITY_OF_SOURCE: f64 = 0.5;
/// The part of the shared capacity in which [`Class::Finishing`] is never refused: a call has one BYE for its INVITE,
/// so half of the requests of calls can be BYEs. A client with one To tag of this server could send any number of BYEs.
const FINISHING_PART: f64 = 0.5;
/// The part of a window by which these classes may be ahead of their part of the capacity: 5 ms of work. While the
/// worker serves such a burst, a flood fills the queue. With 25 ms, the wait became so long that the worker also
/// refused sources below their shares.
const BURST: f64 = 0.02;
/// The same of the share of a source: 25 ms of it. Without such a pace, one source would use its share at the beginning
/// of the window, and the wait of all would grow by half a window.
const SOURCE_BURST: f64 = 0.1;

/// What all workers have accepted from the hashed places in this window, for the limit of requests per source. Its size
/// is fixed: 8 KiB.
#[derive(Clone, Debug)]
pub struct SourceCounts(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// The same for all workers, so that a source has the same place at each.
    key: HashKey,
    /// By place: the low half of the window's number above, and the count below.
    places: Box<[AtomicU64]>,
}

impl SourceCounts {
    /// With a secret key, so that nobody can choose which sources share a place.
    #[must_use]
    pub fn new(key: HashKey) -> SourceCounts {
        SourceCounts(Arc::new(Counts {
            key: key.derive(u64::from_le_bytes(*b"fairness")),
            places: (0..HASHED_PLACES).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// How many were accepted from a hashed place in this window. `None` for the place of a peer.
    fn get(&self, window: u64, place: usize) -> Option<u64> {
        let count = self.0.places.get(place)?.load(Ordering::Relaxed);
        let is_current = count >> 32 == window & u64::from(u32::MAX);
        Some(if is_current {
            count & u64::from(u32::MAX)
        } else {
            0
        })
    }

    /// Counts a request. If two workers begin a window at once, the count of one of them may be lost.
    fn add(&self, window: u64, place: usize) {
        let Some(count) = self.0.places.get(place) else {
            return;
        };
        if count.load(Ordering::Relaxed) >> 32 == window & u64::from(u32::MAX) {
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            count.store(window << 32 | 1, Ordering::Relaxed);
        }
    }

    /// Subtracts one request from the count of this window. In a later window, the count does not include that request.
    fn remove(&self, window: u64, place: usize) {
        let window = window & u64::from(u32::MAX);
        if let Some(count) = self.0.places.get(place) {
            let less = |count: u64| {
                let has_some = count >> 32 == window && count & u64::from(u32::MAX) > 0;
                has_some.then(|| count - 1)
            };
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

/// What was accepted in this window, by place.
#[derive(Debug)]
pub(super) struct Fairness {
    counts: SourceCounts,
    keys: [u64; 2],
    window: u64,
    accepted: Box<[u16; PLACES]>,
    active: Active,
    /// In the window before: at the beginning of a window few have been seen.
    active_before: Active,
    /// Accepted by class, in an overload; as [`Class::Priority`] by place, too.
    by_class: [u32; 4],
    priority: Box<[u16; PLACES]>,
}

/// Who has been served.
#[derive(Clone, Copy, Debug, Default)]
struct Active {
    peer_weight: f64,
    others: f64,
}

/// How many seconds of the window have passed, plus `burst` windows, but at most a window.
fn window_until(now: Mono, burst: f64) -> f64 {
    let passed = (now.0 % WINDOW.as_nanos() as u64) as f64 / WINDOW.as_nanos() as f64;
    WINDOW.as_secs_f64() * (passed + burst).min(1.0)
}

impl Fairness {
    pub(super) fn new(counts: SourceCounts) -> Fairness {
        Fairness {
            counts,
            keys: [0, 1],
            window: 0,
            accepted: Box::new([0; PLACES]),
            active: Active::default(),
            active_before: Active::default(),
            by_class: [0; 4],
            priority: Box::new([0; PLACES]),
        }
    }

    /// The place of a source in this window.
    pub(super) fn place(&mut self, now: Mono, peers: &WeightedSources, source: IpAddr) -> usize {
        self.turn(now);
        peers.place(source, self.keys).0
    }

    /// Whether a place is at its limit of requests in this window. The place of a peer has no limit.
    pub(super) fn is_at_limit(&self, place: usize, per_second: u32) -> bool {
        let most = u64::from(per_second).div_ceil(WINDOWS);
        let count = self.counts.get(self.window, place);
        count.is_some_and(|count| count >= most)
    }

    /// The class that a request is treated like, if the server can serve `per_second` messages: a lower one if its
    /// class has used its part of the capacity. `None`: an emergency call above the part, whose source is no peer. Such
    /// sources may be forged.
    pub(super) fn bounded_class(
        &self,
        now: Mono,
        class: Class,
        place: usize,
        per_second: f64,
    ) -> Option<Class> {
        let capacity = per_second * SHARED * window_until(now, BURST);
        let is_within = |class, part| f64::from(self.by_class[class as usize]) < capacity * part;
        // `WeightedSources::place` returns a place of this array.
        let of_source = f64::from(self.priority[place]);
        match class {
            Class::Priority
                if is_within(class, PRIORITY_PART)
                    && of_source < capacity * PRIORITY_PART * PRIORITY_OF_SOURCE =>
            {
                Some(class)
            }
            Class::Priority if place < HASHED_PLACES => None,
            Class::Finishing if is_within(class, FINISHING_PART) => Some(class),
            Class::Finishing | Class::Continuing
                if is_within(Class::Continuing, CONTINUING_PART) =>
            {
                Some(Class::Continuing)
            }
            _ => Some(Class::New),
        }
    }

    /// A request was accepted as one of this class, in an overload.
    pub(super) fn count_class(&mut self, class: Class, place: usize) {
        self.by_class[class as usize] += 1;
        if class == Class::Priority {
            let counter = &mut self.priority[place];
            *counter = counter.saturating_add(1);
        }
    }

    /// Whether a place has had less than its share of the window until now, if the server accepts `per_second` requests.
    pub(super) fn is_below_share(
        &self,
        now: Mono,
        peers: &WeightedSources,
        place: usize,
        per_second: f64,
    ) -> bool {
        let (seen, before) = (self.active, self.active_before);
        let others = seen.others.max(before.others);
        let all_weight = seen.peer_weight.max(before.peer_weight) + others.min(1.0);
        let weight = peers.weight(place).unwrap_or_else(|| 1.0 / others.max(1.0));
        let capacity = per_second * SHARED * window_until(now, SOURCE_BURST);
        // `WeightedSources::place` returns a place of this array.
        f64::from(self.accepted[place]) < capacity * weight / all_weight.max(weight)
    }

    /// A message goes to another worker, which counts it again.
    pub(super) fn uncount_for_limit(&mut self, now: Mono, peers: &WeightedSources, source: IpAddr) {
        let place = self.place(now, peers, source);
        self.counts.remove(self.window, place);
    }

    /// A message was accepted from a place of this window. `has_limit`: all workers count it towards the limit of its
    /// source, too. Without a limit the counts that they share are not touched.
    pub(super) fn count(&mut self, peers: &WeightedSources, place: usize, has_limit: bool) {
        if has_limit {
            self.counts.add(self.window, place);
        }
        // `WeightedSources::place` returns a place of this array.
        let counter = &mut self.accepted[place];
        if *counter == 0 {
            match peers.weight(place) {
                Some(weight) => self.active.peer_weight += weight,
                None => self.active.others += 1.0,
            }
        }
        *counter = counter.saturating_add(1);
    }

    fn turn(&mut self, now: Mono) {
        let window = now.0 / WINDOW.as_nanos() as u64;
        if window != self.window {
            let is_next = window == self.window + 1;
            self.active_before = if is_next {
                self.active
            } else {
                Active::default()
            };
            self.window = window;
            self.active = Active::default();
            self.accepted.fill(0);
            let [.., priority, _] = std::mem::take(&mut self.by_class);
            if priority > 0 {
                self.priority.fill(0);
            }
            let key = self.counts.0.key.derive(window);
            self.keys = [key.mac(b"places"), key.mac(b"places, by")];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 us each.
    const PER_SECOND: f64 = 20_000.0;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn count(fairness: &mut Fairness, now: Mono, peers: &WeightedSources, source: IpAddr) {
        let place = fairness.place(now, peers, source);
        fairness.count(peers, place, false);
    }

    fn is_below(
        fairness: &mut Fairness,
        now: Mono,
        peers: &WeightedSources,
        source: IpAddr,
    ) -> bool {
        let place = fairness.place(now, peers, source);
        fairness.is_below_share(now, peers, place, PER_SECOND)
    }

    fn fairness() -> (Fairness, WeightedSources) {
        let transport = WeightedSource {
            address: [203, 0, 113, 0].into(),
            prefix: 24,
            weight: 2,
        };
        (
            Fairness::new(SourceCounts::new(HashKey::new([1; 16]))),
            WeightedSources::new(&[transport]),
        )
    }

    #[test]
    fn a_flooder_is_above_its_share_and_others_are_not() {
        let (mut fairness, peers) = fairness();
        let now = Mono::default().plus_secs(9);
        for _ in 0..3000 {
            count(&mut fairness, now, &peers, source(1));
        }
        for last in 2..12 {
            count(&mut fairness, now, &peers, source(last));
        }
        let mut below = |last| is_below(&mut fairness, now, &peers, source(last));
        assert!(!below(1));
        assert!(below(2) && below(200));
    }

    #[test]
    fn a_window_later_nothing_is_remembered() {
        let (mut fairness, peers) = fairness();
        for _ in 0..9000 {
            count(&mut fairness, Mono(0), &peers, source(1));
        }
        let mut at = |now| is_below(&mut fairness, now, &peers, source(1));
        assert!(!at(Mono(0)));
        assert!(at(Mono(0).plus(WINDOW)));
    }

    #[test]
    fn one_ipv6_network_is_one_source() {
        let (mut fairness, peers) = fairness();
        for host in 0..9000u16 {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host);
            count(&mut fairness, Mono(0), &peers, address.into());
        }
        let mut below = |text: &str| {
            let source = text.parse().unwrap();
            is_below(&mut fairness, Mono(0), &peers, source)
        };
        assert!(!below("2001:db8:0:7::ffff:1"));
        assert!(below("2001:db8:0:8::1"));
    }

    #[test]
    fn a_thousand_forged_sources_leave_a_trunk_its_share() {
        let (mut fairness, peers) = fairness();
        // At the end of a window.
        let now = Mono::default().plus(Duration::from_millis(9_249));
        for number in 0..2000u32 {
            let forged = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number * 7919);
            count(&mut fairness, now, &peers, forged.into());
        }
        let transport = [203, 0, 113, 7].into();
        let mut served = 0;
        while is_below(&mut fairness, now, &peers, transport) {
            count(&mut fairness, now, &peers, transport);
            served += 1;
        }
        // Two thirds of what is shared: weight 2 of 3.
        assert!((2_600..2_700).contains(&served), "{served} of 4,000");
        assert!(!is_below(&mut fairness, now, &peers, [10, 0, 0, 0].into()));
    }

    #[test]
    fn levels_give_what_little_asks_for_and_share_the_rest_by_weight() {
        let peer = |last, weight| WeightedSource {
            address: source(last),
            prefix: 32,
            weight,
        };
        let peers = WeightedSources::new(&[peer(1, 1), peer(2, 3), peer(3, 1)]);
        let place = |last| peers.place(source(last), [3, 5]).0;
        let mut asked = [0.0; PLACES];
        asked[place(1)] = 1000.0;
        asked[place(2)] = 1000.0;
        asked[place(3)] = 10.0;
        asked[7] = 40.0;
        asked[8] = 1000.0;
        let levels = peers.levels(&asked, 510.0);
        assert_eq!(peers.most(levels, place(1)), 100.0);
        assert_eq!(peers.most(levels, place(2)), 300.0);
        assert!(peers.most(levels, place(3)) >= 10.0);
        assert!(peers.most(levels, 7) >= 40.0);
        assert_eq!(peers.most(levels, 8), 60.0);
        let levels = peers.levels(&asked, 5000.0);
        assert_eq!(peers.most(levels, place(2)), f64::INFINITY);
    }

    #[test]
    fn the_longest_prefix_of_a_peer_counts_and_ipv4_is_not_ipv6() {
        let peer = |address: &str, prefix| WeightedSource {
            address: address.parse().unwrap(),
            prefix,
            weight: 1,
        };
        let peers = WeightedSources::new(&[
            peer("192.0.0.0", 8),
            peer("192.0.2.0", 24),
            peer("2001:db8::", 32),
            peer("0.0.0.0", 0),
        ]);
        let place = |address: &str| peers.place(address.parse().unwrap(), [3, 5]).0;
        assert_ne!(place("192.0.2.9"), place("192.0.3.9"));
        assert_eq!(place("192.0.2.9"), place("192.0.2.77"));
        assert_eq!(place("192.0.2.9"), place("::ffff:192.0.2.77"));
        assert!(place("198.51.100.1") >= HASHED_PLACES);
        assert!(place("2001:db8::7") >= HASHED_PLACES);
        assert!(place("2001:db9::7") < HASHED_PLACES);
    }
}
