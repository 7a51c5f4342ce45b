//! Servers that asked to be left alone, or that do not respond, for a while.

use std::net::SocketAddr;
use std::time::Duration;

use hashbrown::HashMap;

use crate::flow::Transport;
use crate::{HashKey, Mono};

/// Servers remembered at a time.
const MAX_SERVERS: usize = 1024;
/// After a timeout or a transport error, for lack of anything the server said.
const DEFAULT_PENALTY: Duration = Duration::from_secs(32);
/// No Retry-After counts for longer: the server will be tried again within the hour.
const MAX_PENALTY: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
struct Entry {
    until: Mono,
    /// It asked for it by Retry-After. If not, it was silent.
    has_asked: bool,
}

/// The list. It belongs to one worker, as its transactions do.
#[derive(Debug)]
pub struct Penalties {
    entries: HashMap<(Transport, SocketAddr), Entry, crate::hash::Seeded>,
}

impl Penalties {
    /// Nobody is on it.
    #[must_use]
    pub fn new(key: HashKey) -> Penalties {
        Penalties {
            entries: HashMap::with_hasher(crate::hash::Seeded::new(key)),
        }
    }

    /// RFC 3261 §21.5.4: a 503 with this Retry-After came; without one, or with 0, it says nothing of later requests.
    pub fn unavailable(
        &mut self,
        now: Mono,
        transport: Transport,
        server: SocketAddr,
        retry_after_s: u32,
    ) {
        if retry_after_s > 0 {
            let pause = Duration::from_secs(u64::from(retry_after_s)).min(MAX_PENALTY);
            self.put(now, transport, server, pause, true);
        }
    }

    /// It did not respond, or cannot be reached (RFC 3263 §4.3).
    pub fn silent(&mut self, now: Mono, transport: Transport, server: SocketAddr) {
        if !self.has_asked(now, transport, server) {
            self.put(now, transport, server, DEFAULT_PENALTY, false);
        }
    }

    /// It answered, so it is not silent. What it asked for stays: it may answer what belongs to a dialog meanwhile.
    pub fn answered(&mut self, transport: Transport, server: SocketAddr) {
        let key = (transport, server);
        if self.entries.get(&key).is_some_and(|entry| !entry.has_asked) {
            self.entries.remove(&key);
        }
    }

    /// Whether it is to be left alone now.
    #[must_use]
    pub fn is_listed(&self, now: Mono, transport: Transport, server: SocketAddr) -> bool {
        self.entry(now, transport, server).is_some()
    }

    /// Whether it has asked by Retry-After to be left alone now: nothing new is sent to it (RFC 3261 §21.5.4).
    #[must_use]
    pub fn has_asked(&self, now: Mono, transport: Transport, server: SocketAddr) -> bool {
        self.entry(now, transport, server)
            .is_some_and(|entry| entry.has_asked)
    }

    fn entry(&self, now: Mono, transport: Transport, server: SocketAddr) -> Option<&Entry> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = self.entries.get(&(transport, server));
        entry.filter(|entry| entry.until > now)
    }

    fn put(
        &mut self,
        now: Mono,
        transport: Transport,
        server: SocketAddr,
        pause: Duration,
        has_asked: bool,
    ) {
        if self.entries.len() >= MAX_SERVERS {
            self.entries.retain(|_, entry| entry.until > now);
        }
        // If this many servers do not respond, the list is useless and starts again.
        if self.entries.len() >= MAX_SERVERS {
            self.entries.clear();
        }
        let until = now.plus(pause);
        self.entries
            .insert((transport, server), Entry { until, has_asked });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_alone_as_long_as_it_asked() {
        let mut list = Penalties::new(HashKey::new([1; 16]));
        let server = ([192, 0, 2, 1], 5060).into();
        let is_listed = |list: &Penalties, s| {
            list.is_listed(Mono::default().plus_secs(s), Transport::Udp, server)
        };
        list.unavailable(Mono(0), Transport::Udp, server, 0);
        assert!(!is_listed(&list, 0));
        list.unavailable(Mono(0), Transport::Udp, server, 20);
        assert!(is_listed(&list, 19) && !is_listed(&list, 20));
        assert!(!list.is_listed(Mono(0), Transport::Tcp, server));
        assert!(list.has_asked(Mono(0), Transport::Udp, server));
        list.answered(Transport::Udp, server);
        list.silent(Mono(0), Transport::Udp, server);
        assert!(is_listed(&list, 19) && !is_listed(&list, 20));
        let later = Mono::default().plus_secs(20);
        list.silent(later, Transport::Udp, server);
        assert!(is_listed(&list, 51) && !is_listed(&list, 52));
        assert!(!list.has_asked(later, Transport::Udp, server));
        list.answered(Transport::Udp, server);
        assert!(!is_listed(&list, 21));
        list.unavailable(Mono(0), Transport::Udp, server, u32::MAX);
        assert!(!is_listed(&list, 3600));
    }

    #[test]
    fn the_list_is_bounded() {
        let mut list = Penalties::new(HashKey::new([1; 16]));
        for port in 1..10_000 {
            list.silent(Mono(0), Transport::Udp, ([192, 0, 2, 1], port).into());
            assert!(list.entries.len() <= MAX_SERVERS);
        }
    }
}
