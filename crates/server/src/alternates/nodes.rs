//! Other nodes of the cluster, to which clients are sent.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use turn::server::Alternate;
use turn::{FiveTuple, Transport};

/// A node that admits clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// Where clients reach it.
    pub addresses: Vec<(Transport, SocketAddr)>,
    /// How busy it is, in any unit that all nodes share.
    pub load: u32,
}

impl LiveNode {
    fn address(&self, transport: Transport, is_v4: bool) -> Option<SocketAddr> {
        let mut all = self.addresses.iter();
        let found = all.find(|(of, address)| *of == transport && address.is_ipv4() == is_v4);
        found.map(|(_, address)| *address)
    }
}

/// The nodes that admit clients at this moment. The control side replaces them; workers read them when they send a
/// client away.
#[derive(Debug, Default)]
pub struct LiveNodes {
    nodes: RwLock<Arc<[LiveNode]>>,
}

impl LiveNodes {
    /// From now on, these.
    pub fn set(&self, nodes: Vec<LiveNode>) {
        let mut now = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        *now = nodes.into();
    }

    /// The less loaded of two random nodes with an address for this client. With one choice of two, no node gets all
    /// clients of a moment, and the busiest ones get none (Mitzenmacher 2001).
    pub(super) fn choose(&self, client: &FiveTuple, random: u32) -> Option<Alternate> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let nodes = Arc::clone(&nodes);
        let is_v4 = client.remote.is_ipv4();
        let able = || {
            let of_node =
                |node: &LiveNode| Some((node.load, node.address(client.transport, is_v4)?));
            nodes
                .iter()
                .filter_map(move |node| Some((node, of_node(node)?)))
        };
        let count = able().count();
        // Below `count`: a random share of it.
        let below = |random: u32, count: usize| ((random as usize & 0xFFFF) * count) >> 16;
        let first = below(random >> 16, count);
        let second = below(random, count.saturating_sub(1));
        let second = second + usize::from(second >= first);
        let one = able().nth(first)?;
        let two = able().nth(second).unwrap_or(one);
        let (node, (_, server)) = if two.1.0 < one.1.0 { two } else { one };
        Some(Alternate {
            server,
            other_family: node.address(client.transport, !is_v4),
            domain: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn client(transport: Transport, remote: &str) -> FiveTuple {
        FiveTuple {
            transport,
            local: at("192.0.2.1:3478"),
            remote: at(remote),
        }
    }

    fn node(number: u8, load: u32) -> LiveNode {
        let udp = SocketAddr::from(([192, 0, 2, number], 3478));
        LiveNode {
            addresses: vec![(Transport::Udp, udp)],
            load,
        }
    }

    /// How often each node is chosen, of 4,096 random numbers.
    fn shares(nodes: &LiveNodes, client: &FiveTuple) -> std::collections::BTreeMap<String, u32> {
        let mut shares = std::collections::BTreeMap::new();
        for number in 0..4_096_u32 {
            let random = number.wrapping_mul(0x9E37_79B9);
            let to = nodes.choose(client, random);
            let name = to.map_or("none".to_owned(), |to| to.server.ip().to_string());
            *shares.entry(name).or_insert(0) += 1;
        }
        shares
    }

    #[test]
    fn of_two_random_nodes_the_less_loaded_one_gets_the_client() {
        let nodes = LiveNodes::default();
        let udp = client(Transport::Udp, "198.51.100.1:1");
        assert_eq!(shares(&nodes, &udp)["none"], 4_096);
        nodes.set(vec![node(7, 500)]);
        assert_eq!(shares(&nodes, &udp)["192.0.2.7"], 4_096);
        nodes.set(vec![node(7, 10), node(8, 20), node(9, 30), node(10, 900)]);
        let found = shares(&nodes, &udp);
        // Of the six pairs, the first is the better one in three, the second in two, the third in one, the last in
        // none.
        for (ip, pairs) in [("192.0.2.7", 3), ("192.0.2.8", 2), ("192.0.2.9", 1)] {
            let expected = 4_096 * pairs / 6;
            assert!(found[ip].abs_diff(expected) < 300, "{found:?}");
        }
        assert_eq!(found.get("192.0.2.10"), None);
    }

    #[test]
    fn a_node_is_for_clients_that_can_reach_it() {
        let nodes = LiveNodes::default();
        let mut one = node(7, 0);
        one.addresses
            .push((Transport::Udp, at("[2001:db8::7]:3478")));
        nodes.set(vec![one]);
        let chosen = nodes.choose(&client(Transport::Udp, "[2001:db8::1]:1"), 9);
        let chosen = chosen.expect("it has an address");
        assert_eq!(chosen.server, at("[2001:db8::7]:3478"));
        assert_eq!(chosen.other_family, Some(at("192.0.2.7:3478")));
        assert_eq!(
            nodes.choose(&client(Transport::Tls, "198.51.100.1:1"), 9),
            None
        );
    }
}
