//! Other servers, to which this one sends clients with 300 (Try Alternate, RFC 8489 §10).

mod checks;
mod nodes;

use crate::quota::Quotas;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use turn::Transport;
use turn::server::{Alternate, Alternates, ClientIdentity};

pub(crate) use checks::Checks;
pub use nodes::{LiveNode, LiveNodes};

/// Other servers, and when clients are sent to them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AlternateSettings {
    /// The servers. Default: none, and no client is sent away.
    pub servers: Vec<Arc<AlternateServer>>,
    /// The other nodes of the cluster. A client is sent to one of them if there is no other server for it. Default:
    /// none.
    pub nodes: Option<Arc<LiveNodes>>,
    /// When clients are sent away. Default: while this server drains, and while it is overloaded.
    pub when: RedirectConditions,
    /// This server is overloaded if its clients hold this share of [`QuotaLimits::total`](crate::quota::QuotaLimits),
    /// in percent: 1 to 100. Default: 90.
    pub overload_percent: u32,
    /// Time between two checks of each server; zero for none. A server that has not answered twice gets no client until
    /// it answers again. Default: 10 seconds.
    pub check_interval: Duration,
}

impl Default for AlternateSettings {
    fn default() -> AlternateSettings {
        AlternateSettings {
            servers: Vec::new(),
            nodes: None,
            when: RedirectConditions::default(),
            overload_percent: 90,
            check_interval: Duration::from_secs(10),
        }
    }
}

/// When clients are sent to other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedirectConditions {
    /// Always: this server only distributes clients.
    pub always: bool,
    /// While it drains.
    pub drain: bool,
    /// While it is overloaded.
    pub overload: bool,
}

impl Default for RedirectConditions {
    fn default() -> RedirectConditions {
        RedirectConditions {
            always: false,
            drain: true,
            overload: true,
        }
    }
}

/// One other server.
#[derive(Debug)]
pub struct AlternateServer {
    ipv4: Option<SocketAddr>,
    ipv6: Option<SocketAddr>,
    transport: Option<Transport>,
    weight: u32,
    domain: Option<Arc<str>>,
    /// What the checks have found. A server counts as healthy until it is known not to be.
    is_down: AtomicBool,
    /// Checks that were answered, and those that were not.
    checks: [AtomicU64; 2],
}

impl AlternateServer {
    /// A server with an address of either family or of both; without any it is never chosen.
    #[must_use]
    pub fn new(addresses: &[SocketAddr]) -> AlternateServer {
        AlternateServer {
            ipv4: addresses.iter().copied().find(SocketAddr::is_ipv4),
            ipv6: addresses.iter().copied().find(SocketAddr::is_ipv6),
            transport: None,
            weight: 1,
            domain: None,
            is_down: AtomicBool::new(false),
            checks: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// For clients of this transport only.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> AlternateServer {
        self.transport = Some(transport);
        self
    }

    /// Its share of the clients, relative to the weights of the others: 0 to 1,000,000. Default: 1.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> AlternateServer {
        self.weight = weight.min(1_000_000);
        self
    }

    /// The name in its certificate, if that is not this server's (RFC 8489 §14.16). At most 255 bytes of ASCII.
    #[must_use]
    pub fn domain(mut self, domain: &str) -> AlternateServer {
        self.domain = Some(domain.into());
        self
    }

    /// Whether the checks have found that it does not respond.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// How many checks were answered, and how many were not. A check asks twice.
    #[must_use]
    pub fn checks(&self) -> (u64, u64) {
        let [answered, unanswered] = &self.checks;
        (
            answered.load(Ordering::Relaxed),
            unanswered.load(Ordering::Relaxed),
        )
    }

    /// Its address; of both, the IPv4 one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.ipv4.or(self.ipv6)
    }

    /// Takes over what the checks have found of the same server in the settings before.
    pub(crate) fn remember(&self, before: &[Arc<AlternateServer>]) {
        let is_same = |other: &&Arc<AlternateServer>| {
            other.ipv4 == self.ipv4 && other.ipv6 == self.ipv6 && other.transport == self.transport
        };
        if let Some(same) = before.iter().find(is_same) {
            self.is_down.store(same.is_down(), Ordering::Relaxed);
            for (own, before) in self.checks.iter().zip(&same.checks) {
                own.store(before.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// What a client of this transport and family gets; `None` if the server is not for it.
    fn for_client(&self, client: &ClientIdentity<'_>) -> Option<Alternate> {
        let five_tuple = &client.five_tuple;
        let (own, other) = match five_tuple.remote.is_ipv4() {
            true => (self.ipv4, self.ipv6),
            false => (self.ipv6, self.ipv4),
        };
        let speaks = self.transport.is_none_or(|own| own == five_tuple.transport);
        let server = own.filter(|_| speaks && self.weight > 0 && !self.is_down())?;
        Some(Alternate {
            server,
            other_family: other,
            domain: self.domain.clone(),
        })
    }
}

/// The decision at this moment of the configuration.
#[derive(Debug)]
pub(crate) struct Redirect {
    settings: AlternateSettings,
    is_draining: bool,
    quotas: Arc<Quotas>,
}

impl Redirect {
    /// `None` if no client is ever sent away in this state.
    pub(crate) fn of(
        settings: &AlternateSettings,
        is_draining: bool,
        quotas: &Arc<Quotas>,
    ) -> Option<Arc<dyn Alternates>> {
        let RedirectConditions {
            always,
            drain,
            overload,
        } = settings.when;
        let may_happen = always || overload || drain && is_draining;
        let has_others = !settings.servers.is_empty() || settings.nodes.is_some();
        (may_happen && has_others).then(|| {
            Arc::new(Redirect {
                settings: settings.clone(),
                is_draining,
                quotas: Arc::clone(quotas),
            }) as _
        })
    }

    fn has_reason(&self) -> bool {
        let when = self.settings.when;
        when.always || when.drain && self.is_draining || when.overload && self.is_overloaded()
    }

    fn is_overloaded(&self) -> bool {
        let limit = u64::from(self.quotas.total_limit());
        u64::from(self.quotas.held()) * 100 >= limit * u64::from(self.settings.overload_percent)
    }
}

impl Alternates for Redirect {
    fn alternate(&self, client: &ClientIdentity<'_>, random: u32) -> Option<Alternate> {
        if !self.has_reason() {
            return None;
        }
        let servers = self.settings.servers.iter();
        let able = || {
            servers
                .clone()
                .filter_map(|server| Some((u64::from(server.weight), server.for_client(client)?)))
        };
        let sum: u64 = able().map(|(weight, _)| weight).sum();
        // Below the sum: a random share of all weights.
        let mut place = (u64::from(random) * sum) >> 32;
        for (weight, alternate) in able() {
            match place.checked_sub(weight) {
                Some(rest) => place = rest,
                None => return Some(alternate),
            }
        }
        let nodes = self.settings.nodes.as_ref()?;
        nodes.choose(&client.five_tuple, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{QuotaLimits, SourcePrefix};
    use turn::FiveTuple;
    use turn::server::Quota;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn client(transport: Transport, remote: &str) -> ClientIdentity<'static> {
        let five_tuple = FiveTuple {
            transport,
            local: at("192.0.2.1:3478"),
            remote: at(remote),
        };
        ClientIdentity::new(five_tuple, "r", "alice")
    }

    fn quotas(total: u32) -> Arc<Quotas> {
        let limits = QuotaLimits::default().total(total);
        Arc::new(Quotas::new(limits, SourcePrefix::default()))
    }

    fn always(servers: Vec<AlternateServer>) -> AlternateSettings {
        AlternateSettings {
            servers: servers.into_iter().map(Arc::new).collect(),
            when: RedirectConditions {
                always: true,
                ..RedirectConditions::default()
            },
            ..AlternateSettings::default()
        }
    }

    /// How many of evenly spread random numbers lead to each server.
    fn shares(redirect: &dyn Alternates, client: &ClientIdentity<'_>) -> Vec<(String, u32)> {
        let mut found = std::collections::BTreeMap::new();
        for number in 0..1000_u32 {
            let to = redirect.alternate(client, number * (u32::MAX / 1000));
            let name = to.map_or("none".to_owned(), |to| to.server.to_string());
            *found.entry(name).or_insert(0) += 1;
        }
        found.into_iter().collect()
    }

    #[test]
    fn servers_get_clients_of_their_family_and_transport_by_weight() {
        let settings = always(vec![
            AlternateServer::new(&[at("192.0.2.7:3478"), at("[2001:db8::7]:3478")]).weight(3),
            AlternateServer::new(&[at("192.0.2.8:3478")]),
            AlternateServer::new(&[at("192.0.2.9:443")]).transport(Transport::Tls),
            AlternateServer::new(&[at("192.0.2.10:3478")]).weight(0),
        ]);
        let redirect = Redirect::of(&settings, false, &quotas(10)).expect("it sends away");
        let v4 = client(Transport::Udp, "198.51.100.1:1");
        let shares_of = |client: &ClientIdentity<'_>| shares(&*redirect, client);
        let close = |share: u32, expected: u32| share.abs_diff(expected) <= 2;
        let found = shares_of(&v4);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(close(found[0].1, 750) && found[0].0 == "192.0.2.7:3478");
        let tls = shares_of(&client(Transport::Tls, "198.51.100.1:1"));
        assert_eq!(tls.len(), 3);
        assert!(
            close(tls[2].1, 200) && tls[2].0 == "192.0.2.9:443",
            "{tls:?}"
        );
        let v6 = shares_of(&client(Transport::Udp, "[2001:db8::1]:1"));
        assert_eq!(v6, [("[2001:db8::7]:3478".to_owned(), 1000)]);
        let alternate = redirect.alternate(&v4, 0).expect("a server");
        assert_eq!(alternate.other_family, Some(at("[2001:db8::7]:3478")));
        // A server that is down gets no clients; if all are down, clients stay.
        for server in &settings.servers {
            server.is_down.store(true, Ordering::Relaxed);
        }
        assert_eq!(shares_of(&v4), [("none".to_owned(), 1000)]);
    }

    #[test]
    fn clients_are_sent_away_for_a_reason_only() {
        let mut settings = always(vec![AlternateServer::new(&[at("192.0.2.7:3478")])]);
        settings.when = RedirectConditions::default();
        let v4 = client(Transport::Udp, "198.51.100.1:1");
        let quotas = quotas(10);
        let calm = Redirect::of(&settings, false, &quotas).expect("overload is a reason");
        assert_eq!(calm.alternate(&v4, 0), None);
        let draining = Redirect::of(&settings, true, &quotas).expect("so is a drain");
        assert!(draining.alternate(&v4, 0).is_some());
        for _ in 0..9 {
            quotas.try_acquire(&v4).expect("below the limit");
        }
        assert!(calm.alternate(&v4, 0).is_some(), "90 percent are in use");
        quotas.release(&v4);
        assert_eq!(calm.alternate(&v4, 0), None);
        settings.when.overload = false;
        assert!(Redirect::of(&settings, false, &quotas).is_none());
        settings.servers.clear();
        assert!(Redirect::of(&settings, true, &quotas).is_none());
    }
}
