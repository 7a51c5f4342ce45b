//! Calls to phones that are registered at other nodes: workers speak with the cluster by this.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use server::sip::{
    Advertised, AtNodes, NodeFingerprints, NodeHop, NodeTls, NodesReply, OtherNodes, SharedBinding,
};
use stores::cluster::bindings::KnownBindings;
use stores::cluster::{self, AtNode, ClusterBindings, NodeInfo};

use super::plan::{self, Machine};

/// What is known of the SIP of other nodes.
#[derive(Debug, Default)]
pub(super) struct SipNodes {
    bindings: Arc<ClusterBindings>,
    directory: Arc<RwLock<Directory>>,
    tls: Option<SipTls>,
}

/// TLS with other nodes.
#[derive(Clone, Debug)]
pub(super) struct SipTls {
    pub(super) tls: Arc<NodeTls>,
    /// Nodes without TLS get no requests.
    pub(super) is_required: bool,
}

#[derive(Debug, Default)]
struct Directory {
    /// This node has addresses of these families.
    has_v4: bool,
    has_v6: bool,
    nodes: HashMap<String, LiveSip>,
}

/// A node that is alive.
#[derive(Debug)]
struct LiveSip {
    /// Its address for SIP.
    address: SocketAddr,
    is_tls: bool,
    load: u64,
}

/// The load of a node. Calls prefer the node with the least load. A node that drains or is overloaded has the highest
/// load. Among other nodes, the share of the allocation limit in use decides, in percent. If it is equal, the number of
/// registration bindings decides.
fn load_of(node: &NodeInfo) -> u64 {
    const BINDINGS: u64 = 1 << 48;
    let percent = match node.draining || node.overloaded {
        true => u64::from(u16::MAX),
        false => u64::from(node.load / 10).min(u64::from(u16::MAX) - 1),
    };
    percent * BINDINGS + node.bindings.min(BINDINGS - 1)
}

impl Directory {
    /// The addresses of those nodes that are alive.
    fn hops(&self, nodes: &[AtNode]) -> Vec<NodeHop> {
        let hop = |at: &AtNode| {
            let node = self.nodes.get(&at.node)?;
            Some(NodeHop {
                address: node.address,
                is_tls: node.is_tls,
                q: at.q,
                load: node.load,
                phones: at.phones.clone(),
            })
        };
        nodes.iter().filter_map(hop).collect()
    }
}

fn hops(directory: &RwLock<Directory>, nodes: &[AtNode]) -> AtNodes {
    let directory = directory.read().unwrap_or_else(PoisonError::into_inner);
    AtNodes::Known(directory.hops(nodes))
}

impl SipNodes {
    /// No other node is known yet.
    pub(super) fn new(tls: Option<SipTls>) -> SipNodes {
        SipNodes {
            tls,
            ..SipNodes::default()
        }
    }

    /// TLS with other nodes.
    pub(super) fn tls(&self) -> Option<&SipTls> {
        self.tls.as_ref()
    }

    /// What the control thread of the cluster shares.
    pub(super) fn bindings(&self) -> Arc<ClusterBindings> {
        Arc::clone(&self.bindings)
    }

    /// The own addresses of SIP.
    pub(super) fn set_own(&self, own: &[SocketAddr]) {
        let mut directory = self.write();
        directory.has_v4 = own.iter().any(SocketAddr::is_ipv4);
        directory.has_v6 = own.iter().any(SocketAddr::is_ipv6);
    }

    /// These other nodes are alive.
    pub(super) fn set_nodes(&self, all: &[NodeInfo]) {
        if let Some(SipTls { tls, .. }) = &self.tls {
            let known: Vec<_> = all.iter().filter_map(fingerprints_of).collect();
            tls.set_nodes(&known, Instant::now());
        }
        let has_tls = self.tls.is_some();
        let is_required = self.tls.as_ref().is_some_and(|tls| tls.is_required);
        let mut directory = self.write();
        let (has_v4, has_v6) = (directory.has_v4, directory.has_v6);
        let live = |node: &NodeInfo| {
            let mut all = node.sip.iter();
            let is_usable = |at: &&SocketAddr| match at.is_ipv4() {
                true => has_v4,
                false => has_v6,
            };
            let is_tls = has_tls && fingerprints_of(node).is_some();
            let at = all.find(is_usable).filter(|_| is_tls || !is_required)?;
            let live = LiveSip {
                address: *at,
                is_tls,
                load: load_of(node),
            };
            Some((node.name.clone(), live))
        };
        directory.nodes = all.iter().filter_map(live).collect();
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Directory> {
        let directory = self.directory.write();
        directory.unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node with TLS publishes; `None` for a node without.
fn fingerprints_of(node: &NodeInfo) -> Option<NodeFingerprints> {
    let fingerprints = node.fingerprints.iter();
    let fingerprints: Vec<_> = fingerprints.filter_map(|text| text.parse().ok()).collect();
    (!fingerprints.is_empty()).then(|| NodeFingerprints {
        addresses: node.sip.clone(),
        fingerprints,
    })
}

/// The addresses at which other nodes reach these listeners. They are those that SIP writes into Record-Route, because
/// a request within a dialog goes only to a published address of a node. `relay.external_ip` has no effect on SIP. A
/// name of `sip.advertise` is not published.
pub(super) fn addresses(
    listeners: &[SocketAddr],
    advertised: &[Advertised],
    machine: &Machine,
) -> Vec<SocketAddr> {
    let outside = |local: SocketAddr| {
        let listener = listeners.iter().find(|it| **it == local);
        let bound = listener.map_or(SocketAddr::new(any(local), local.port()), |it| *it);
        let of = |it: &&Advertised| {
            let host = it.host.parse::<IpAddr>();
            let is_of = it.of.is_none_or(|of| of == local.ip() || of == bound.ip());
            is_of
                && it.of_port.is_none_or(|port| port == local.port())
                && host.map_or(true, |ip| ip.is_ipv4() == local.is_ipv4())
        };
        let all: Vec<&Advertised> = advertised.iter().filter(of).collect();
        // An entry for one address of a listener comes before an entry for the whole listener.
        let first = all
            .iter()
            .find(|it| it.of.is_some_and(|of| of != bound.ip()));
        let Some(entry) = first.or(all.first()) else {
            return Some(local);
        };
        let ip = entry.host.parse().ok()?;
        Some(SocketAddr::new(ip, entry.port.unwrap_or(local.port())))
    };
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in plan::addresses(listeners, &[], machine) {
        let address = outside(address).filter(|it| !all.contains(it));
        all.extend(address);
    }
    all
}

/// All addresses of a family.
fn any(of: SocketAddr) -> IpAddr {
    match of {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl OtherNodes for SipNodes {
    fn generation(&self) -> u64 {
        self.bindings.generation()
    }

    fn is_busy(&self) -> bool {
        self.bindings.is_busy()
    }

    fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>) {
        let shared = bindings.iter().map(|it| cluster::SharedBinding {
            id: it.id,
            call: it.call,
            cseq: it.cseq,
            q: it.q,
            has_reg_id: it.has_reg_id,
            phone: it.phone,
            age_ms: milliseconds(it.age),
            ttl_ms: milliseconds(it.left),
        });
        self.bindings.publish(aor, shared.collect());
    }

    fn find(&self, aor: &[u8]) -> AtNodes {
        match self.bindings.find(aor) {
            KnownBindings::At(nodes) => hops(&self.directory, &nodes),
            KnownBindings::Unavailable => AtNodes::Unavailable,
            KnownBindings::Ask => AtNodes::Pending,
        }
    }

    fn begin_find(&self, aor: &[u8], reply: NodesReply) {
        let directory = Arc::clone(&self.directory);
        let answer = move |nodes: cluster::bindings::AtNodes| match nodes {
            Some(nodes) => reply(hops(&directory, &nodes)),
            None => reply(AtNodes::Unavailable),
        };
        self.bindings.begin_find(aor, Box::new(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::cluster_keys::ClusterKeys;

    #[test]
    fn a_node_publishes_the_addresses_that_sip_advertises() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let machine = Machine {
            addresses: vec![ip("10.0.0.5"), ip("2001:db8::5")],
            ..Machine::default()
        };
        let entry = |host: &str, port, of: Option<&str>| Advertised {
            host: host.to_owned(),
            port,
            of: of.map(ip),
            of_port: None,
        };
        let of = |listeners: &[&str], entries: &[Advertised]| {
            let listeners: Vec<SocketAddr> = listeners.iter().map(|text| at(text)).collect();
            let all = addresses(&listeners, entries, &machine);
            all.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        let (four, six) = ("0.0.0.0:5060", "[::]:5060");
        assert_eq!(of(&[four], &[]), ["10.0.0.5:5060"]);
        let for_all = entry("203.0.113.5", Some(5070), None);
        assert_eq!(
            of(&["10.0.0.5:5060"], std::slice::from_ref(&for_all)),
            ["203.0.113.5:5070"]
        );
        assert_eq!(
            of(&[four, six], std::slice::from_ref(&for_all)),
            ["203.0.113.5:5070", "[2001:db8::5]:5060"]
        );
        let for_one = entry("203.0.113.6", None, Some("10.0.0.5"));
        let both = [for_all, for_one];
        assert_eq!(of(&[four], &both), ["203.0.113.6:5060"]);
        let other = entry("203.0.113.7", None, Some("10.0.0.6"));
        assert_eq!(of(&[four], &[other]), ["10.0.0.5:5060"]);
        let name = entry("sip.example.org", None, None);
        assert!(of(&[four], &[name]).is_empty());
    }

    #[test]
    fn only_nodes_that_are_alive_and_of_an_own_family_get_calls() {
        let at = |text: &str| text.parse().unwrap();
        let node = |name: &str, sip: &[&str]| NodeInfo {
            name: name.to_owned(),
            sip: sip.iter().map(|text| at(text)).collect(),
            ..NodeInfo::default()
        };
        let sip = SipNodes::default();
        sip.set_own(&[at("192.0.2.1:5060")]);
        sip.set_nodes(&[
            node("a", &["[2001:db8::1]:5060", "192.0.2.2:5060"]),
            node("b", &["[2001:db8::2]:5060"]),
            node("c", &[]),
        ]);
        let all = ["a", "b", "c", "d"].map(|node| AtNode {
            node: node.to_owned(),
            q: 700,
            phones: vec![7],
        });
        let hop = NodeHop {
            address: at("192.0.2.2:5060"),
            is_tls: false,
            q: 700,
            load: 0,
            phones: vec![7],
        };
        assert_eq!(hops(&sip.directory, &all), AtNodes::Known(vec![hop]));
        sip.set_nodes(&[]);
        assert_eq!(hops(&sip.directory, &all), AtNodes::Known(Vec::new()));
    }

    #[test]
    fn a_node_that_drains_is_busier_than_all_then_allocations_count_and_then_registrations() {
        let node = |load, bindings| NodeInfo {
            load,
            bindings,
            ..NodeInfo::default()
        };
        let draining = NodeInfo {
            draining: true,
            ..NodeInfo::default()
        };
        let overloaded = NodeInfo {
            overloaded: true,
            ..NodeInfo::default()
        };
        let order = [
            node(9, 0),
            node(0, 1),
            node(9, u64::from(u32::MAX)),
            node(10, 0),
            node(999, 5),
            node(u32::MAX, u64::MAX),
        ];
        for pair in order.windows(2) {
            assert!(load_of(&pair[0]) < load_of(&pair[1]), "{pair:?}");
        }
        for busy in [draining, overloaded] {
            assert!(load_of(&order[5]) < load_of(&busy));
        }
    }

    #[test]
    fn requests_go_over_tls_to_nodes_that_have_it_and_plain_to_others_if_that_is_allowed() {
        let node = |name: &str, sip: &str, fingerprints: &[&str]| NodeInfo {
            name: name.to_owned(),
            sip: vec![sip.parse().unwrap()],
            fingerprints: fingerprints.iter().map(|text| (*text).to_owned()).collect(),
            ..NodeInfo::default()
        };
        let digits = "0".repeat(64);
        let known = [
            node("a", "192.0.2.1:5060", &["later form", &digits]),
            node("b", "192.0.2.2:5060", &[]),
        ];
        let all = ["a", "b"].map(|node| AtNode {
            node: node.to_owned(),
            q: 700,
            phones: vec![0],
        });
        let keys = ClusterKeys::new(b"a secret of 32 bytes for a test.").expect("long enough");
        let tls = Arc::new(NodeTls::new(keys, "c", 0).expect("a certificate"));
        let of = |tls| {
            let sip = SipNodes::new(tls);
            sip.set_own(&["192.0.2.3:5060".parse().unwrap()]);
            sip.set_nodes(&known);
            let AtNodes::Known(hops) = hops(&sip.directory, &all) else {
                panic!("the nodes are known");
            };
            let hops = hops.iter().map(|hop| (hop.address.to_string(), hop.is_tls));
            hops.collect::<Vec<_>>()
        };
        let (a, b) = ("192.0.2.1:5060".to_owned(), "192.0.2.2:5060".to_owned());
        let with = |is_required| SipTls {
            tls: Arc::clone(&tls),
            is_required,
        };
        assert_eq!(of(None), [(a.clone(), false), (b.clone(), false)]);
        assert_eq!(of(Some(with(false))), [(a.clone(), true), (b, false)]);
        assert_eq!(of(Some(with(true))), [(a, true)]);
    }
}
