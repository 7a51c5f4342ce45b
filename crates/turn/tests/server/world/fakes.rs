//! A peer policy and a quota that tests can turn.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use hairpin_turn::server::{ClientIdentity, PeerClass, PeerPolicy, Quota, QuotaExceeded};

use super::RELAY_IP;

/// Denies 10.0.0.0/8, port 25, and whatever a test adds; knows the relay's IPv4 address as its own.
#[derive(Debug, Default)]
pub struct FakePolicy {
    pub denied: Mutex<HashSet<IpAddr>>,
    /// The ports of our own relays that are alive.
    pub live: Mutex<HashSet<SocketAddr>>,
}

impl PeerPolicy for FakePolicy {
    fn classify(&self, _: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        let is_private = matches!(peer, IpAddr::V4(v4) if v4.octets()[0] == 10);
        if is_private || self.denied.lock().unwrap().contains(&peer) {
            PeerClass::Denied
        } else if peer == RELAY_IP.parse::<IpAddr>().unwrap() {
            PeerClass::OwnRelay
        } else {
            PeerClass::Peer
        }
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        match self.classify(client, peer.ip()) {
            PeerClass::OwnRelay if !self.live.lock().unwrap().contains(&peer) => PeerClass::Denied,
            PeerClass::Peer if peer.port() == 25 => PeerClass::Denied,
            class => class,
        }
    }
}

/// Counts units by user and source.
#[derive(Debug)]
pub struct FakeQuota {
    pub per_user: Mutex<usize>,
    pub per_source: Mutex<usize>,
    pub total: Mutex<usize>,
    held: Mutex<HashMap<(String, IpAddr), usize>>,
}

impl Default for FakeQuota {
    fn default() -> Self {
        let unlimited = || Mutex::new(usize::MAX);
        FakeQuota {
            per_user: unlimited(),
            per_source: unlimited(),
            total: unlimited(),
            held: Mutex::default(),
        }
    }
}

impl FakeQuota {
    /// All units that are held.
    pub fn held(&self) -> usize {
        self.held.lock().unwrap().values().sum()
    }

    pub fn held_by(&self, user: &str) -> usize {
        self.held
            .lock()
            .unwrap()
            .iter()
            .filter(|((name, _), _)| name == user)
            .map(|(_, units)| units)
            .sum()
    }

    pub fn expect_all_released(&self) {
        assert_eq!(self.held(), 0, "each unit is released");
    }
}

impl Quota for FakeQuota {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        let (user, source) = (client.user, client.five_tuple.remote.ip());
        if self.held_by(user) >= *self.per_user.lock().unwrap() {
            return Err(QuotaExceeded::User);
        }
        if self.held() >= *self.total.lock().unwrap() {
            return Err(QuotaExceeded::Total);
        }
        let mut held = self.held.lock().unwrap();
        let of_source: usize = held
            .iter()
            .filter(|((_, from), _)| *from == source)
            .map(|(_, units)| units)
            .sum();
        if of_source >= *self.per_source.lock().unwrap() {
            return Err(QuotaExceeded::Source);
        }
        *held.entry((user.to_owned(), source)).or_default() += 1;
        Ok(())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        let (user, source) = (client.user, client.five_tuple.remote.ip());
        let mut held = self.held.lock().unwrap();
        let units = held
            .get_mut(&(user.to_owned(), source))
            .expect("released what was acquired");
        assert!(*units > 0, "released once");
        *units -= 1;
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        let held = self.held.lock().unwrap().clone();
        self.release(from);
        self.try_acquire(to)
            .inspect_err(|_| *self.held.lock().unwrap() = held)
    }
}
