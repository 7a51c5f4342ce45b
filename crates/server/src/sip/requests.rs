//! Requests that the server itself sends to URIs. DNS results arrive as inter-worker messages.

use super::counters::{DNS_OUTCOMES, SipCounters};
use super::names::{AddressFamilies, DnsFailure, DnsQueryResult, NameResolver};
use super::settings::SipConfig;
use crate::worker::{Mailboxes, WorkerMessage};
use ipnet::IpNet;
use sip::Mono;
use sip::dispatch::{Allowed, ClusterNodes, Config, Dispatcher, PeerGroups, Source};
use sip::engine::Engine;
use sip::flow::{ListenerKey, Transport};
use sip::routing::{DnsFailed, DnsRecords, Query};
use sip_server::proxy::trunk_group;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The maximum of client transactions of a worker without a proxy. They are BYEs for callers that send no ACK: few,
/// unless there is an attack.
const MAX_REQUESTS: usize = 1000;

/// The maximum of trunks in [`Requests::former`]. The oldest are forgotten.
const MAX_FORMER_TRUNKS: usize = 256;

/// DNS queries in progress, per worker.
const MAX_DNS_QUERIES: usize = 64;

/// The requests that one worker sends.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) dispatcher: Dispatcher,
    names: NameResolver,
    families: AddressFamilies,
    /// Results that are not handled yet.
    answers: VecDeque<DnsQueryResult>,
    /// The addresses of trunks that a reload has removed or changed, the newest last. Requests within their calls may go
    /// there.
    former: Vec<TrunkAddresses>,
}

/// Where a trunk is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TrunkAddresses {
    group: [u8; 4],
    networks: Vec<IpNet>,
}

impl Requests {
    /// For a worker with these listeners. `tls` has those over TLS from which it can open connections.
    pub(super) fn new(
        listeners: &[SocketAddr],
        tls: &[(ListenerKey, SocketAddr)],
        sip_config: &SipConfig,
        names: NameResolver,
        key: sip::HashKey,
        seed: u64,
    ) -> Requests {
        let sources = [Transport::Udp, Transport::Tcp]
            .into_iter()
            .flat_map(|transport| {
                let of = move |(listener, address): (u16, &SocketAddr)| Source {
                    listener: ListenerKey(listener),
                    transport,
                    is_v4: address.is_ipv4(),
                };
                (0..).zip(listeners).map(of)
            });
        let tls = tls.iter().map(|(listener, address)| Source {
            listener: *listener,
            transport: Transport::Tls,
            is_v4: address.is_ipv4(),
        });
        let mut config = Config::new(sources.chain(tls.clone()).collect());
        config.most = match sip_config.settings.domains.is_empty() {
            true => MAX_REQUESTS,
            false => sip_config.share(sip_config.settings.transactions),
        };
        config.max_queries = MAX_DNS_QUERIES;
        // The maximum time of a transaction of the caller, for each of two servers.
        config.failover_time = sip_config.settings.t1.saturating_mul(128);
        config.allowed = allowed(sip_config, Vec::new());
        config.nodes = nodes(listeners, sip_config);
        Requests {
            dispatcher: Dispatcher::new(config, key, seed),
            names,
            families: AddressFamilies {
                v4: listeners.iter().any(SocketAddr::is_ipv4) || tls.clone().any(|tls| tls.is_v4),
                v6: listeners.iter().any(SocketAddr::is_ipv6) || tls.clone().any(|tls| !tls.is_v4),
            },
            answers: VecDeque::new(),
            former: Vec::new(),
        }
    }

    /// Applies new settings. `old`: the settings that they replace.
    pub(super) fn apply_settings(&mut self, new: &SipConfig, old: &SipConfig) {
        let current = trunk_addresses(new);
        // Tokens do not name a trunk without a name.
        let unnamed = trunk_group(b"");
        let replaced = trunk_addresses(old).into_iter();
        self.former
            .extend(replaced.filter(|trunk| trunk.group != unnamed));
        // Of equal entries, the newest one stays.
        self.former.reverse();
        let mut newer = HashSet::new();
        self.former
            .retain(|trunk| !current.contains(trunk) && newer.insert(trunk.clone()));
        self.former.truncate(MAX_FORMER_TRUNKS);
        self.former.reverse();
        self.dispatcher.allow(allowed(new, self.former.clone()));
    }

    /// Sends the DNS queries of the dispatcher. Their results are messages to this worker.
    pub(super) fn send_queries(&mut self, number: u16, mailboxes: &Mailboxes) {
        while let Some(query) = self.dispatcher.poll_query() {
            let result = match mailboxes.mailbox(number) {
                Some(mailbox) => self
                    .names
                    .ask(query.clone(), self.families, move |answered| {
                        // A full mailbox loses the result. Then the query has failed after its timeout.
                        drop(mailbox.post(WorkerMessage::Name(Box::new(answered))));
                    }),
                None => Err(DnsFailure::Failed),
            };
            if let Err(error) = result {
                self.answers.push_back(DnsQueryResult {
                    query,
                    result: Err(error),
                    took: Duration::ZERO,
                });
            }
        }
    }

    /// Keeps a result for [`Requests::take_answer`].
    pub(super) fn receive(&mut self, answered: DnsQueryResult) {
        self.answers.push_back(answered);
    }

    /// Whether results wait.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Handles one result. Returns `false` if there is none.
    pub(super) fn take_answer(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        counters: &mut SipCounters,
    ) -> bool {
        let Some(answered) = self.answers.pop_front() else {
            return false;
        };
        let DnsQueryResult {
            query,
            result,
            took,
        } = answered;
        counters.dns_time_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let outcome = match &result {
            Ok(known) if is_empty(&known.answer) => 1,
            Ok(_) => 0,
            Err(DnsFailure::Failed) => 2,
            Err(DnsFailure::TimedOut) => 3,
            Err(DnsFailure::TooMany) => 4,
        };
        const { assert!(DNS_OUTCOMES.len() == 5) };
        counters.dns_queries[outcome] += 1;
        let result = result.map(|known| (known.answer, known.ttl));
        self.answered(now, engine, query, result.map_err(|_| DnsFailed));
        true
    }

    fn answered(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        query: Query,
        result: Result<(DnsRecords, Duration), DnsFailed>,
    ) {
        self.dispatcher.answered(now, engine, query, result);
    }

    /// Adds the counters and gauges of the dispatcher.
    pub(super) fn count(&self, counters: &mut SipCounters) {
        let stats = self.dispatcher.stats();
        counters.own_requests = stats.requests;
        counters.own_failed_over = stats.failed_over;
        counters.own_failed = stats.failed - stats.forbidden;
        counters.own_forbidden = stats.forbidden;
        counters.redirected = stats.redirected;
        counters.dns_cached = stats.cached as u64;
        counters.dns_open = stats.queries as u64;
    }
}

fn is_empty(answer: &DnsRecords) -> bool {
    match answer {
        DnsRecords::Naptr(records) => records.is_empty(),
        DnsRecords::Srv(records) => records.is_empty(),
        DnsRecords::Addresses(records) => records.is_empty(),
    }
}

/// The other nodes of the cluster, if this one reaches them over TLS: by its plain listeners.
fn nodes(listeners: &[SocketAddr], sip_config: &SipConfig) -> Option<ClusterNodes> {
    let tls = Arc::clone(sip_config.settings.nodes.as_ref()?.tls.as_ref()?);
    let sources = (0..).map(ListenerKey).zip(listeners);
    let sources = sources.map(|(listener, address)| Source {
        listener,
        transport: Transport::Tls,
        is_v4: address.is_ipv4(),
    });
    Some(ClusterNodes {
        sources: sources.collect(),
        has: Box::new(move |transport, address| tls.has(transport, address)),
    })
}

/// The trunks. Each is a group.
fn trunk_addresses(sip_config: &SipConfig) -> Vec<TrunkAddresses> {
    let trunks = sip_config.settings.trunks.iter();
    let trunks = trunks.map(|trunk| TrunkAddresses {
        group: trunk_group(trunk.name.as_bytes()),
        networks: trunk.addresses.clone(),
    });
    trunks.collect()
}

/// Where a request may go whose target a caller or a phone has chosen: to `sip.targets` and to trunks of the permitted
/// groups. `former`: addresses that only requests within dialogs may go to.
fn allowed(sip_config: &SipConfig, former: Vec<TrunkAddresses>) -> Allowed {
    let rules = sip_config.settings.targets.clone();
    let trunks = trunk_addresses(sip_config);
    Box::new(move |to, groups| {
        let ip = to.ip().to_canonical();
        let is_target = rules
            .iter()
            .any(|rule| rule.network.contains(&ip) && rule.ports.contains(&to.port()));
        let is_meant = |group: [u8; 4]| match groups {
            PeerGroups::All => true,
            PeerGroups::One(wanted) => wanted == group,
            PeerGroups::None => false,
        };
        let former = match groups {
            PeerGroups::One(_) => &former[..],
            PeerGroups::All | PeerGroups::None => &[],
        };
        let trunks = trunks.iter().chain(former);
        let mut meant = trunks.filter(|trunk| is_meant(trunk.group));
        is_target || meant.any(|trunk| trunk.networks.iter().any(|it| it.contains(&ip)))
    })
}
