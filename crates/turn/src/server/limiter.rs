//! The rate limit of one allocation: a bucket for both directions together (the generic cell rate algorithm).
//!
//! Each allocation has one number, the moment at which all that it has relayed would be through if it went at the
//! permitted rate. A datagram is refused if that moment is more than a second ahead; otherwise the moment moves on by
//! what the datagram takes. The limiter tests before it charges. If the debt is small, one datagram of any size passes,
//! so no datagram is too long for a low rate. The excess is paid before the next one. A run of datagrams is judged as
//! one.
//!
//! If a part of the traffic is relayed below the engine, both charge the same number, in memory that the embedder
//! shares with the kernel.

use std::fmt::Debug;
use std::time::Duration;

use super::config::{Config, ConfigError};
use super::policy::ClientIdentity;
use crate::Mono;

/// How far ahead of its rate an allocation may be: a burst of one second's worth, in nanoseconds.
pub const RATE_BURST_NS: u64 = 1_000_000_000;

/// The lowest rate that can be had, in bytes per second, so that the nanoseconds of a byte fit into 32 bits.
pub const MIN_ALLOCATION_RATE: u64 = 1000;

/// The highest: beyond, a byte takes so few 1024ths of a nanosecond that the rate would not be what was asked for.
pub const MAX_ALLOCATION_RATE: u64 = 10_000_000_000;

/// A stream is relayed in parts that its rate permits within this time.
const STREAM_INTERVAL: Duration = Duration::from_millis(100);

/// The time of one byte, in 1024ths of a nanosecond. A rate of 0 is no limit, and gives 0.
#[must_use]
pub const fn rate_scale(bytes_per_second: u64) -> u32 {
    if bytes_per_second == 0 {
        return 0;
    }
    let scale = (1_000_000_000 << 10) / bytes_per_second;
    match scale {
        0 => 1,
        1..=0xffff_ffff => scale as u32,
        _ => u32::MAX,
    }
}

/// What is wrong with a rate.
pub(super) fn rate_error(rate: u64) -> Option<ConfigError> {
    let is_good = rate == 0 || (MIN_ALLOCATION_RATE..=MAX_ALLOCATION_RATE).contains(&rate);
    (!is_good).then_some(ConfigError::AllocationRate)
}

/// The way that application data takes through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelayDirection {
    /// From the client to a peer.
    ToPeer,
    /// From a peer to the client.
    ToClient,
}

/// Rate limits that are shared with other threads or the kernel. They limit allocations, by the
/// [`AllocationKey::index`](crate::AllocationKey), and groups of allocations of the embedder. Each works as said at the
/// head of this module.
pub trait SharedBuckets: Debug + Send {
    /// An allocation of this client begins: it has no debt, this [`rate_scale`] and a burst of [`RATE_BURST_NS`]. A
    /// scale of 0 lets everything pass. Returns whether the allocation has a shared bucket; that never changes. Another
    /// call without an end in between begins anew.
    fn begin(&mut self, allocation: u32, scale: u32, client: &ClientIdentity<'_>) -> bool;

    /// An allocation ends.
    fn end(&mut self, allocation: u32);

    /// Charges bytes to the buckets of the allocation and of its groups, in this order, until one refuses.
    ///
    /// - `Some(true)`: they may pass.
    /// - `Some(false)`: a bucket refuses them. Earlier buckets stay charged.
    /// - `None`: the groups accept them. The allocation has no shared bucket, and the caller must charge its own.
    fn charge(
        &self,
        allocation: u32,
        direction: RelayDirection,
        now: Mono,
        bytes: u64,
    ) -> Option<bool>;

    /// The largest [`rate_scale`] of the allocation's groups; 0 without a limit.
    fn group_scale(&self, allocation: u32, direction: RelayDirection) -> u32;
}

/// The limit of one allocation.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The moment at which all that was relayed would be through.
    number: u64,
    /// Of [`rate_scale`]; 0 is no limit.
    scale: u32,
}

/// The limits of all allocations.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    /// Whether any allocation has a limit.
    limits: bool,
    /// Buckets of allocations without a shared one, by the allocation's index.
    own: Vec<Bucket>,
    shared: Option<Box<dyn SharedBuckets>>,
}

impl Limiter {
    pub(super) fn new(config: &Config) -> Limiter {
        Limiter {
            limits: config.limits_rate(),
            ..Limiter::default()
        }
    }

    /// The rates have changed: all allocations begin without debt.
    pub(super) fn forget(&mut self, config: &Config) {
        self.limits = config.limits_rate();
        self.own = Vec::new();
    }

    pub(super) fn share(&mut self, shared: Box<dyn SharedBuckets>) {
        self.shared = Some(shared);
    }

    /// An allocation of this client begins. `rate` is in bytes per second; 0 is no limit.
    pub(super) fn begin(&mut self, allocation: u32, rate: u64, client: &ClientIdentity<'_>) {
        let scale = rate_scale(rate);
        let shared = self.shared.as_mut();
        let is_shared = shared.is_some_and(|shared| shared.begin(allocation, scale, client));
        if !self.limits || is_shared {
            return;
        }
        let place = allocation as usize;
        if place >= self.own.len() {
            self.own.resize(place + 1, Bucket::default());
        }
        self.own[place] = Bucket { number: 0, scale };
    }

    /// An allocation ends.
    pub(super) fn end(&mut self, allocation: u32) {
        if let Some(shared) = &mut self.shared {
            shared.end(allocation);
        }
    }

    /// Whether this many bytes may be relayed now for the allocation at this place; if so, they are charged.
    #[inline]
    pub(super) fn admits(
        &mut self,
        now: Mono,
        place: u32,
        direction: RelayDirection,
        bytes: usize,
    ) -> bool {
        !self.limits || self.charge(now, place, direction, bytes)
    }

    /// How many bytes of a stream the allocation in this slot may relay in this direction now at this rate. At most, it
    /// is what the rate allows in a tenth of a second. If none, the time of the next attempt.
    pub(super) fn allowance(
        &mut self,
        now: Mono,
        place: u32,
        direction: RelayDirection,
        rate: u64,
    ) -> Result<usize, Mono> {
        if !self.limits {
            return Ok(usize::MAX);
        }
        if !self.charge(now, place, direction, 0) {
            return Err(now.plus(STREAM_INTERVAL));
        }
        let shared = self.shared.as_ref();
        let group = shared.map_or(0, |shared| shared.group_scale(place, direction));
        let scale = rate_scale(rate).max(group);
        if scale == 0 {
            return Ok(usize::MAX);
        }
        let bytes = (STREAM_INTERVAL.as_nanos() as u64 * 1024) / u64::from(scale);
        Ok(bytes.max(1) as usize)
    }

    // Cold, so that allocations without a limit do not pay for it.
    #[cold]
    #[inline(never)]
    fn charge(&mut self, now: Mono, place: u32, direction: RelayDirection, bytes: usize) -> bool {
        let shared = self.shared.as_ref();
        let shared = shared.map(|shared| shared.charge(place, direction, now, bytes as u64));
        if let Some(Some(passes)) = shared {
            return passes;
        }
        // There is one for every allocation.
        let bucket = self.own.get_mut(place as usize);
        let Some(bucket) = bucket.filter(|bucket| bucket.scale != 0) else {
            return true;
        };
        let cost = (bytes as u64 * u64::from(bucket.scale)) >> 10;
        let charged = charged(bucket.number, now, cost);
        bucket.number = charged.unwrap_or(bucket.number);
        charged.is_some()
    }
}

/// The number after a charge, or `None` if it is too far ahead to be charged.
fn charged(number: u64, now: Mono, cost: u64) -> Option<u64> {
    (number <= now.0.saturating_add(RATE_BURST_NS)).then(|| number.max(now.0).saturating_add(cost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FiveTuple, Transport};
    use std::sync::{Arc, Mutex};

    const UP: RelayDirection = RelayDirection::ToPeer;
    const SECOND: u64 = 1_000_000_000;

    fn limiter(rate: u64) -> Limiter {
        let mut limiter = Limiter {
            limits: rate != 0,
            ..Limiter::default()
        };
        limiter.begin(3, rate, &client());
        limiter
    }

    fn client() -> ClientIdentity<'static> {
        let address = "192.0.2.1:1000".parse().expect("an address");
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: address,
            remote: address,
        };
        ClientIdentity::new(five_tuple, "example.org", "ann")
    }

    /// How many of these bytes, offered in datagrams of a hundred all through a time, get through.
    fn passed(limiter: &mut Limiter, seconds: u64, offered_per_second: u64) -> u64 {
        let datagrams = seconds * offered_per_second / 100;
        let step = SECOND * 100 / offered_per_second;
        let admitted =
            (0..datagrams).filter(|n| limiter.admits(Mono(5 * SECOND + n * step), 3, UP, 100));
        100 * admitted.count() as u64
    }

    #[test]
    fn the_rate_is_kept_after_a_burst_of_a_second() {
        for rate in [1000, 12_345, 1_000_000, 1_000_000_000] {
            let offered = rate * 10;
            if offered > 100_000_000 {
                continue;
            }
            let through = passed(&mut limiter(rate), 20, offered);
            let expected = rate * 21;
            assert!(
                through.abs_diff(expected) <= expected / 100 + 200,
                "{rate}: {through}"
            );
        }
    }

    #[test]
    fn traffic_below_the_rate_is_never_refused() {
        let through = passed(&mut limiter(10_000), 50, 9_900);
        assert_eq!(through, 50 * 9_900);
    }

    #[test]
    fn no_datagram_is_too_long_for_a_low_rate_and_all_are_paid_for() {
        let mut limiter = limiter(MIN_ALLOCATION_RATE);
        assert!(limiter.admits(Mono(SECOND), 3, UP, 65_000));
        assert!(!limiter.admits(Mono(64 * SECOND), 3, UP, 1));
        assert!(limiter.admits(Mono(65 * SECOND), 3, UP, 1));
    }

    #[test]
    fn without_a_limit_there_is_no_memory() {
        let mut limiter = limiter(0);
        assert!(limiter.admits(Mono(0), 3, UP, usize::MAX));
        assert_eq!(limiter.own.capacity(), 0);
    }

    #[test]
    fn where_there_is_a_shared_bucket_it_decides() {
        type Begun = Arc<Mutex<Vec<(u32, u32)>>>;
        #[derive(Debug)]
        struct Stingy(Begun);
        impl SharedBuckets for Stingy {
            fn begin(&mut self, allocation: u32, scale: u32, _: &ClientIdentity<'_>) -> bool {
                self.0
                    .lock()
                    .expect("not poisoned")
                    .push((allocation, scale));
                allocation == 3
            }
            fn end(&mut self, _: u32) {}
            fn charge(
                &self,
                allocation: u32,
                direction: RelayDirection,
                _: Mono,
                bytes: u64,
            ) -> Option<bool> {
                match allocation {
                    3 => Some(bytes < 10 || direction != UP),
                    5 => Some(direction != UP),
                    _ => None,
                }
            }
            fn group_scale(&self, allocation: u32, _: RelayDirection) -> u32 {
                allocation << 10
            }
        }
        let begun = Begun::default();
        let mut limiter = Limiter {
            limits: true,
            ..Limiter::default()
        };
        limiter.share(Box::new(Stingy(Arc::clone(&begun))));
        limiter.begin(3, 1000, &client());
        limiter.begin(4, 1000, &client());
        assert!(limiter.admits(Mono(0), 3, UP, 9) && !limiter.admits(Mono(0), 3, UP, 10));
        assert!(limiter.admits(Mono(0), 4, UP, 10), "not this one's");
        let down = RelayDirection::ToClient;
        assert!(limiter.admits(Mono(0), 3, down, 10));
        assert_eq!(limiter.allowance(Mono(0), 3, UP, 0), Ok(33_333_333));
        // Each direction of a stream waits for its own bucket only.
        let later = Mono(0).plus(STREAM_INTERVAL);
        assert_eq!(limiter.allowance(Mono(0), 5, UP, 0), Err(later));
        assert_eq!(limiter.allowance(Mono(0), 5, down, 0), Ok(20_000_000));
        assert_eq!(
            *begun.lock().expect("not poisoned"),
            [(3, 1_024_000_000), (4, 1_024_000_000)]
        );
    }

    #[test]
    fn the_ends_of_the_range_have_a_scale() {
        assert_eq!(rate_scale(0), 0);
        assert_eq!(rate_scale(MIN_ALLOCATION_RATE), 1_024_000_000);
        assert_eq!(rate_scale(MAX_ALLOCATION_RATE), 102);
        assert_eq!((rate_scale(1), rate_scale(u64::MAX)), (u32::MAX, 1));
    }
}
