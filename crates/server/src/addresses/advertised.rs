//! The address that clients and peers get instead of a relay address. One thread replaces it while workers read it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError, RwLock};

/// Earlier addresses that are remembered: allocations keep the address that their clients got, and relay to each other
/// by it.
const MAX_REMEMBERED: usize = 8;

#[derive(Debug)]
pub(super) struct Advertised {
    is_v4: bool,
    /// Odd while the words change. An IPv6 address is two words.
    version: AtomicU64,
    words: [AtomicU64; 2],
    changing: Mutex<()>,
    /// Whether there are earlier addresses, so that most servers take no lock.
    has_changed: AtomicBool,
    earlier: RwLock<Vec<IpAddr>>,
}

impl Advertised {
    pub(super) fn new(ip: IpAddr) -> Advertised {
        Advertised {
            is_v4: ip.is_ipv4(),
            version: AtomicU64::new(0),
            words: words(ip).map(AtomicU64::new),
            changing: Mutex::new(()),
            has_changed: AtomicBool::new(false),
            earlier: RwLock::default(),
        }
    }

    /// The address that clients get now.
    pub(super) fn now(&self) -> IpAddr {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let [high, low] = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return match self.is_v4 {
                    true => IpAddr::V4(Ipv4Addr::from_bits(low as u32)),
                    false => IpAddr::V6(Ipv6Addr::from_bits(
                        u128::from(high) << 64 | u128::from(low),
                    )),
                };
            }
            std::hint::spin_loop();
        }
    }

    /// Whether clients got this address before.
    pub(super) fn was(&self, ip: IpAddr) -> bool {
        self.has_changed.load(Ordering::Acquire) && self.earlier().contains(&ip)
    }

    /// The addresses that clients got before.
    pub(super) fn before(&self) -> Vec<IpAddr> {
        self.earlier().clone()
    }

    /// Tells an address of the same family from now on. Returns whether it differs.
    pub(super) fn replace(&self, ip: IpAddr) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.now();
        if ip == old {
            return false;
        }
        self.remember(old, ip);
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words(ip)) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    fn remember(&self, old: IpAddr, new: IpAddr) {
        let mut earlier = self.earlier.write().unwrap_or_else(PoisonError::into_inner);
        earlier.retain(|ip| ![old, new].contains(ip));
        if earlier.len() >= MAX_REMEMBERED {
            earlier.remove(0);
        }
        earlier.push(old);
        self.has_changed.store(true, Ordering::Release);
    }

    fn earlier(&self) -> std::sync::RwLockReadGuard<'_, Vec<IpAddr>> {
        self.earlier.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn words(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(v4) => [0, v4.to_bits().into()],
        IpAddr::V6(v6) => [(v6.to_bits() >> 64) as u64, v6.to_bits() as u64],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_addresses() {
        let both = ["2001:db8:1:1::1", "2001:db8:2:2::2"].map(|ip: &str| ip.parse::<IpAddr>());
        let [one, two] = both.map(|ip| ip.expect("an address"));
        let advertised = Advertised::new(one);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    assert!(advertised.replace(two) && advertised.replace(one));
                }
            });
            for _ in 0..100_000 {
                assert!([one, two].contains(&advertised.now()));
            }
        });
        assert_eq!(advertised.before(), [two]);
    }

    #[test]
    fn the_latest_eight_are_remembered() {
        let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
        let advertised = Advertised::new(ip(0));
        (1..20).for_each(|last| assert!(advertised.replace(ip(last))));
        assert_eq!(advertised.before(), (11..19).map(ip).collect::<Vec<_>>());
        assert!(advertised.was(ip(18)) && !advertised.was(ip(10)));
        assert!(!advertised.replace(ip(19)));
    }
}
