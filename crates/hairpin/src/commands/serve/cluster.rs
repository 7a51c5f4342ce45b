//! The other nodes of the cluster: what this node says of itself, and what it does when others say something.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::registrations::{self, SipNodes, SipTls};
use anyhow::{Context, Result, anyhow};
use server::alternates::{LiveNode, LiveNodes};
use server::sip::{Fingerprint, MovedBinding, NodeTls, NodesHook, SipInspector};
use server::turn::Transport;
use server::{Observer, Settings};
use stores::cluster::{
    self, Cluster, ClusterQuota, Event, Limits, Message, NodeInfo, Order, RealmLimits,
};

use super::plan::{self, Listeners, Machine};
use super::running::RunningServer;
use crate::config::{Config, SipTransport};
use crate::control::sessions;

/// What workers have of the other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    quota: Arc<ClusterQuota>,
    nodes: Arc<LiveNodes>,
    /// Calls to phones at other nodes, if this one serves SIP.
    sip: Option<Arc<SipNodes>>,
}

impl Peers {
    /// `None` if the configuration has no engine.
    pub(super) fn of(config: &Config) -> Result<Option<Peers>> {
        if config.cluster.engine().is_none() {
            return Ok(None);
        }
        let sip = match config.sip.listen.is_empty() {
            true => None,
            false => Some(Arc::new(SipNodes::new(node_tls(config)?))),
        };
        Ok(Some(Peers {
            sip,
            ..Peers::default()
        }))
    }

    /// Adds what workers ask. The settings are otherwise complete.
    pub(super) fn add_to(&self, settings: &mut Settings) {
        settings.alternates.nodes = Some(Arc::clone(&self.nodes));
        settings.hooks.set_quota(Arc::clone(&self.quota) as _);
        if let Some(sip) = &self.sip {
            let hook = NodesHook::new(Arc::clone(sip) as _);
            settings.sip.nodes = Some(match sip.tls() {
                Some(tls) => hook.with_tls(Arc::clone(&tls.tls), tls.is_required),
                None => hook,
            });
        }
        // The total of the default realm is `limits.allocations`: what one server can have.
        let default = RealmLimits {
            per_user: settings.quota.per_user,
            total: u32::MAX,
        };
        let realms = settings.realms.iter().map(|realm| {
            let limits = RealmLimits {
                per_user: realm.allocations_per_user,
                total: realm.allocations,
            };
            (realm.name.clone(), limits)
        });
        let mut realms: std::collections::HashMap<_, _> = realms.collect();
        realms.insert(settings.realm.clone(), default);
        self.quota.set_limits(Limits { realms });
    }
}

/// TLS with the other nodes, if the configuration has it.
fn node_tls(config: &Config) -> Result<Option<SipTls>> {
    let is_required = match config.cluster.sip_transport {
        SipTransport::Plain => return Ok(None),
        SipTransport::Auto => false,
        SipTransport::Tls => true,
    };
    let Some(keys) = config.cluster.keys() else {
        return Ok(None);
    };
    let tls = NodeTls::new(keys, &node_name(config)?, unix_s())?;
    Ok(Some(SipTls {
        tls: Arc::new(tls),
        is_required,
    }))
}

fn node_name(config: &Config) -> Result<String> {
    let name = config.cluster.name();
    name.context("this node has no name; set cluster.node")
}

fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// The transports that a node publishes.
const TRANSPORTS: [(&str, Transport); 4] = [
    ("udp", Transport::Udp),
    ("tcp", Transport::Tcp),
    ("tls", Transport::Tls),
    ("dtls", Transport::Dtls),
];

/// Joins the other nodes, if the configuration says where.
pub(super) fn join(
    config: &Config,
    running: &RunningServer,
    machine: &Machine,
    takes_over: bool,
) -> Result<Option<Cluster>> {
    let (Some(options), Some(keys), Some(peers)) = (
        config.cluster.engine(),
        config.cluster.keys(),
        running.databases().peers().cloned(),
    ) else {
        return Ok(None);
    };
    let name = node_name(config)?;
    let mut run = [0; 8];
    getrandom::fill(&mut run).map_err(|error| anyhow!("no randomness: {error}"))?;
    let run = u64::from_le_bytes(run);
    // Until its next restart, a process that takes over has leases beside those of the process before.
    let holder = match takes_over {
        true => format!("{name}#{run:x}"),
        false => name.clone(),
    };
    let own = NodeInfo {
        addresses: addresses(config, running, machine),
        sip: match &peers.sip {
            Some(_) => {
                let listeners = running.sip_listeners();
                registrations::addresses(&listeners, &config.sip.advertise, machine)
            }
            None => Vec::new(),
        },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name,
        run,
        ..NodeInfo::default()
    };
    let opened = cluster::open(&options, &config.cluster.prefix);
    let opened = opened
        .map_err(|error| anyhow!("the engine of the cluster: {error}; see cluster.engine"))?;
    let observer = running.observer();
    let nodes = Arc::clone(&peers.nodes);
    let sip = peers.sip.clone();
    let tls = sip.as_ref().and_then(|sip| sip.tls().cloned());
    let bindings = sip.as_ref().map(|sip| {
        sip.set_own(&own.sip);
        sip.bindings()
    });
    let ended = running.sessions();
    let inspector = sip.as_ref().and_then(|_| running.sip_inspector());
    let settings = cluster::Settings {
        own,
        holder,
        key: keys.messages(),
        engine: opened,
        report: Box::new(move |own| {
            report(&observer, own);
            if let Some(tls) = &tls {
                publish_certificate(&tls.tls, own);
            }
        }),
        hear: Box::new(move |event| match event {
            Event::Nodes(all) => {
                nodes.set(all.iter().filter_map(open_to_clients).collect());
                if let Some(sip) = &sip {
                    sip.set_nodes(&all);
                }
            }
            Event::Order(message) => execute(&ended, message),
            Event::Moved(all) => remove_moved(inspector.clone(), all),
        }),
        bindings,
    };
    // The thread opens no port and loads nothing.
    let prepare = || drop(server::privileges::drop_all());
    let joined = Cluster::start(settings, peers.quota, prepare);
    Ok(Some(
        joined.context("cannot start the thread of the cluster")?,
    ))
}

/// Where clients reach this server.
fn addresses(
    config: &Config,
    running: &RunningServer,
    machine: &Machine,
) -> Vec<(String, SocketAddr)> {
    let listeners = Listeners {
        udp: running.listeners(),
        tcp: running.tcp_listeners(),
        tls: running.tls_listeners(),
        dtls: running.dtls_listeners(),
    };
    let lists = [
        ("udp", &listeners.udp),
        ("tcp", &listeners.tcp),
        ("tls", &listeners.tls),
        ("dtls", &listeners.dtls),
    ];
    let of = |(name, list): (&str, &Vec<SocketAddr>)| {
        let all = plan::addresses(list, &config.external_ip, machine);
        let name = name.to_owned();
        all.into_iter().map(move |address| (name.clone(), address))
    };
    lists.into_iter().flat_map(of).collect()
}

/// What changes of a node.
fn report(observer: &Observer, own: &mut NodeInfo) {
    let (held, limit) = observer.relayed_addresses();
    let thousandths = u64::from(held) * 1_000 / u64::from(limit.max(1));
    own.allocations = held;
    own.bindings = observer.stats().sip().bindings;
    own.load = u32::try_from(thousandths).unwrap_or(u32::MAX);
    own.draining = observer.is_draining();
    let alternates = observer.alternates();
    own.overloaded = alternates.when.always
        || alternates.when.overload && own.load >= alternates.overload_percent * 10;
}

/// Changes the certificate for other nodes if it is time.
fn publish_certificate(tls: &NodeTls, own: &mut NodeInfo) {
    match tls.renew(unix_s()) {
        Ok(all) => own.fingerprints = all.iter().map(Fingerprint::to_string).collect(),
        // Only the epoch differs between certificates. The server has made one at startup, so the next one cannot fail
        // either.
        Err(error) => tracing::error!(
            "cannot renew the node certificate, so the current one stays in use: {error}"
        ),
    }
}

/// A node that clients can be sent to.
fn open_to_clients(node: &NodeInfo) -> Option<LiveNode> {
    let known = node.addresses.iter().filter_map(|(name, address)| {
        let known = TRANSPORTS.iter().find(|(of, _)| of == name);
        known.map(|(_, transport)| (*transport, *address))
    });
    let is_open = !node.draining && !node.overloaded;
    is_open.then(|| LiveNode {
        addresses: known.collect(),
        load: node.load,
    })
}

/// Removes bindings whose phones have registered at other nodes. A mailbox of a worker may be full, so it has a
/// separate thread.
fn remove_moved(inspector: Option<SipInspector>, all: Vec<cluster::MovedBinding>) {
    let Some(inspector) = inspector else {
        return;
    };
    let body = move || {
        let all = all.iter().map(|it| {
            let moved = MovedBinding {
                id: it.id,
                call: it.call,
                cseq: it.cseq,
            };
            (&*it.aor, moved)
        });
        let all: Vec<_> = all.collect();
        // Bindings that are not removed expire.
        if let Err(error) = inspector.remove_moved(&all) {
            tracing::debug!(%error, "bindings of phones that have moved stay until they end");
        }
    };
    let thread = std::thread::Builder::new().name("cluster-moved".to_owned());
    if let Err(error) = thread.spawn(body) {
        tracing::debug!(%error, "bindings of phones that have moved stay until they end");
    }
}

/// Does what another node orders. Waits for workers, so it has a separate thread.
fn execute(all: &server::sessions::Sessions, message: Message) {
    let all = all.clone();
    let body = move || {
        let by = format!("node {}", message.from);
        match &message.order {
            Order::EndSessions { user } => match sessions::end_user(&all, user, &by) {
                Ok(ended) => tracing::info!(
                    user,
                    ended,
                    from = message.from,
                    "sessions ended by an order of another node"
                ),
                Err(error) => {
                    tracing::error!(user, from = message.from, "sessions not ended: {error}")
                }
            },
        }
    };
    let thread = std::thread::Builder::new().name("cluster-order".to_owned());
    if let Err(error) = thread.spawn(body) {
        tracing::error!("cannot carry out an order of another node: no thread: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_sent_to_nodes_that_admit_them() {
        let at = |text: &str| text.parse().unwrap();
        let mut node = NodeInfo {
            addresses: vec![
                ("udp".to_owned(), at("192.0.2.1:3478")),
                ("quic".to_owned(), at("192.0.2.1:443")),
            ],
            load: 7,
            ..NodeInfo::default()
        };
        let open = open_to_clients(&node).expect("it is open");
        assert_eq!(open.addresses, [(Transport::Udp, at("192.0.2.1:3478"))]);
        assert_eq!(open.load, 7);
        node.draining = true;
        assert_eq!(open_to_clients(&node), None);
        node.draining = false;
        node.overloaded = true;
        assert_eq!(open_to_clients(&node), None);
    }
}
