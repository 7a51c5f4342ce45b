//! Shares of the sources: while work is refused, a source that has had less than its share is still served.
//!
//! Sources are counted in an array of fixed size, by a keyed hash of their prefix, so that no source can make it grow or
//! choose whom it shares a place with. The hash changes with every window: whoever shares a place with a flooder shares it
//! for one window only.

use std::net::IpAddr;
use std::time::Duration;

use crate::{HashKey, Mono};

const PLACES: usize = 1024;
/// How long a window is.
const WINDOW: Duration = Duration::from_millis(250);
/// Which part of what can be served in a window is handed out as shares while work is refused: the rest lets the backlog
/// shrink.
const SHARED: f64 = 0.5;

/// The counters.
#[derive(Debug)]
pub(super) struct Fairness {
    key: HashKey,
    window: u64,
    /// Messages accepted in this window.
    accepted: Box<[u16; PLACES]>,
    active: u32,
    /// Sources in the window before: in the first moments of a window few have been seen.
    active_before: u32,
}

impl Fairness {
    pub(super) fn new(key: HashKey) -> Fairness {
        Fairness {
            key,
            window: 0,
            accepted: Box::new([0; PLACES]),
            active: 0,
            active_before: 0,
        }
    }

    /// Whether the source has had less than its share in this window, where a message takes `service_time`.
    pub(super) fn is_below_share(
        &mut self,
        now: Mono,
        source: IpAddr,
        service_time: Duration,
    ) -> bool {
        self.turn(now);
        let served = self.accepted[self.place(source)];
        let capacity = WINDOW.as_secs_f64() / service_time.as_secs_f64().max(1e-9);
        let sources = self.active.max(self.active_before).max(1);
        let share = capacity * SHARED / f64::from(sources);
        f64::from(served) < share
    }

    /// A message of the source was accepted.
    pub(super) fn count(&mut self, now: Mono, source: IpAddr) {
        self.turn(now);
        let place = self.place(source);
        let counter = &mut self.accepted[place];
        if *counter == 0 {
            self.active += 1;
        }
        *counter = counter.saturating_add(1);
    }

    fn turn(&mut self, now: Mono) {
        let window = now.0 / WINDOW.as_nanos() as u64;
        if window != self.window {
            self.active_before = if window == self.window + 1 {
                self.active
            } else {
                0
            };
            self.window = window;
            self.active = 0;
            self.accepted.fill(0);
        }
    }

    fn place(&self, source: IpAddr) -> usize {
        let mut hasher = self.key.fingerprint();
        hasher.write(&self.window.to_le_bytes());
        match source.to_canonical() {
            IpAddr::V4(v4) => hasher.write(&v4.octets()),
            // A network has a /64 at the least: its single addresses are free to choose.
            IpAddr::V6(v6) => hasher.write(&v6.octets()[..8]),
        }
        hasher.finish_128() as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Duration = Duration::from_micros(50);

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_flooder_is_above_its_share_and_others_are_not() {
        let mut fairness = Fairness::new(HashKey::new([1; 16]));
        let now = Mono::default().plus_secs(9);
        for _ in 0..3000 {
            fairness.count(now, source(1));
        }
        for last in 2..12 {
            fairness.count(now, source(last));
        }
        assert!(!fairness.is_below_share(now, source(1), SERVICE));
        assert!(fairness.is_below_share(now, source(2), SERVICE));
        assert!(fairness.is_below_share(now, source(200), SERVICE));
    }

    #[test]
    fn a_window_later_nothing_is_remembered() {
        let mut fairness = Fairness::new(HashKey::new([1; 16]));
        for _ in 0..9000 {
            fairness.count(Mono(0), source(1));
        }
        assert!(!fairness.is_below_share(Mono(0), source(1), SERVICE));
        assert!(fairness.is_below_share(Mono(0).plus(WINDOW), source(1), SERVICE));
    }

    #[test]
    fn one_ipv6_network_is_one_source() {
        let mut fairness = Fairness::new(HashKey::new([1; 16]));
        for host in 0..9000u16 {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host);
            fairness.count(Mono(0), address.into());
        }
        let other: IpAddr = "2001:db8:0:7::ffff:1".parse().unwrap();
        assert!(!fairness.is_below_share(Mono(0), other, SERVICE));
        let elsewhere: IpAddr = "2001:db8:0:8::1".parse().unwrap();
        assert!(fairness.is_below_share(Mono(0), elsewhere, SERVICE));
    }
}
