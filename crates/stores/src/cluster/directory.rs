//! The nodes of the cluster as this one knows them, without I/O.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::seal::Seal;

/// How often a node publishes itself and asks for the others.
pub const INTERVAL_MS: u64 = 1_000;
/// Time to live of what a node has published.
pub const TTL_MS: u64 = 4_000;
/// Without an engine, a node stays known for this long: nobody knows better.
const LAST_KNOWN_MS: u64 = 30_000;
const PURPOSE: &str = "node";
/// Nodes of a cluster.
const MOST: usize = 1_000;

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// `cluster.node`.
    pub name: String,
    /// Another number for each process.
    pub run: u64,
    /// Where clients reach it: transport (`udp`, `tcp`, `tls`, `dtls`) and address.
    pub addresses: Vec<(String, SocketAddr)>,
    /// Relayed addresses in use.
    pub allocations: u32,
    /// These as a share of its limit, in thousandths.
    pub load: u32,
    /// It admits no new work.
    pub draining: bool,
    /// It sends clients away, if it can.
    pub overloaded: bool,
    /// The version of the program.
    pub version: String,
    /// Counts what the process has published.
    pub sequence: u64,
    /// When, by its clock.
    pub unix_s: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    info: NodeInfo,
    /// When this node first saw that content.
    seen_ms: u64,
}

/// One node, for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it said.
    pub info: NodeInfo,
    /// How long ago that was news.
    pub age_ms: u64,
    /// This node itself.
    pub is_own: bool,
}

/// All nodes.
#[derive(Debug)]
pub struct Directory {
    own: NodeInfo,
    others: BTreeMap<String, Entry>,
    seal: Seal,
    /// When the engine last responded.
    heard_ms: Option<u64>,
    /// Texts in the engine that no node has written.
    forged: u64,
    /// Another process has published the name of this node.
    twins: u64,
}

impl Directory {
    /// Of a node that knows no other one yet.
    #[must_use]
    pub fn new(own: NodeInfo, seal: Seal) -> Directory {
        Directory {
            own,
            others: BTreeMap::new(),
            seal,
            heard_ms: None,
            forged: 0,
            twins: 0,
        }
    }

    /// What to publish next, after `change`.
    pub fn publish(&mut self, unix_s: u64, change: impl FnOnce(&mut NodeInfo)) -> String {
        change(&mut self.own);
        self.own.sequence += 1;
        self.own.unix_s = unix_s;
        self.seal.close(PURPOSE, &self.own)
    }

    /// The engine has these texts of nodes.
    pub fn learn(&mut self, texts: &[String], now_ms: u64) {
        self.heard_ms = Some(now_ms);
        let mut present = BTreeMap::new();
        for text in texts.iter().take(MOST) {
            match self.seal.open::<NodeInfo>(PURPOSE, text) {
                None => self.forged += 1,
                Some(info) if info.name == self.own.name => {
                    self.twins += u64::from(info.run != self.own.run);
                }
                Some(info) => drop(present.insert(info.name.clone(), info)),
            }
        }
        // The engine removes a node that publishes no more. One that was cut off for a while has old entries; so this looks whether they change.
        self.others.retain(|name, _| present.contains_key(name));
        for (name, info) in present {
            let entry = Entry {
                info,
                seen_ms: now_ms,
            };
            match self.others.get_mut(&name) {
                Some(known) if known.info == entry.info => {}
                Some(known) => *known = entry,
                None => drop(self.others.insert(name, entry)),
            }
        }
    }

    /// Other nodes that are there, as far as this one knows.
    pub fn live(&self, now_ms: u64) -> impl Iterator<Item = &NodeInfo> {
        let is_engine_up = self.is_current(now_ms);
        let limit = match is_engine_up {
            true => TTL_MS,
            false => LAST_KNOWN_MS,
        };
        let others = self.others.values();
        others
            .filter(move |entry| now_ms.saturating_sub(entry.seen_ms) <= limit)
            .map(|entry| &entry.info)
    }

    /// Whether the engine has responded lately.
    #[must_use]
    pub fn is_current(&self, now_ms: u64) -> bool {
        self.heard_ms
            .is_some_and(|heard| now_ms.saturating_sub(heard) <= TTL_MS)
    }

    /// All nodes by name, this one included.
    #[must_use]
    pub fn list(&self, now_ms: u64) -> Vec<Known> {
        let live = self.live(now_ms).map(|info| Known {
            info: info.clone(),
            age_ms: now_ms.saturating_sub(self.others[&info.name].seen_ms),
            is_own: false,
        });
        let mut all: Vec<_> = live.collect();
        all.push(Known {
            info: self.own.clone(),
            age_ms: 0,
            is_own: true,
        });
        all.sort_by(|one, other| one.info.name.cmp(&other.info.name));
        all
    }

    /// Texts of the engine that no node has written, and those of another process with the name of this node.
    #[must_use]
    pub fn strange(&self) -> (u64, u64) {
        (self.forged, self.twins)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    fn node(name: &str, key: u8) -> Directory {
        let own = NodeInfo {
            name: name.to_owned(),
            run: 1,
            ..NodeInfo::default()
        };
        Directory::new(own, Seal::new(&[key; 32]))
    }

    fn exchange(node: &mut Directory, engine: &mut Model, load: u32, now_ms: u64) {
        let text = node.publish(0, |own| own.load = load);
        let name = node.own.name.clone();
        let texts = engine.publish(&name, &text, TTL_MS, now_ms);
        node.learn(&texts, now_ms);
    }

    fn names(node: &Directory, now_ms: u64) -> Vec<String> {
        node.live(now_ms).map(|info| info.name.clone()).collect()
    }

    #[test]
    fn each_node_knows_all_others_after_two_intervals_and_forgets_the_dead_after_four_seconds() {
        let mut engine = Model::default();
        let mut all = ["a", "b", "c"].map(|name| node(name, 1));
        let mut now = 0;
        while now < 10_000 {
            for node in &mut all {
                exchange(node, &mut engine, 7, now);
            }
            now += INTERVAL_MS;
            if now >= 2 * INTERVAL_MS {
                assert_eq!(names(&all[0], now), ["b", "c"]);
            }
        }
        assert_eq!(all[1].list(now).len(), 3);
        assert_eq!(all[1].list(now)[2].info.load, 7);
        for _ in 0..6 {
            exchange(&mut all[0], &mut engine, 7, now);
            exchange(&mut all[1], &mut engine, 8, now);
            now += INTERVAL_MS;
        }
        assert_eq!(names(&all[0], now), ["b"]);
        // It comes back.
        exchange(&mut all[2], &mut engine, 7, now);
        exchange(&mut all[0], &mut engine, 7, now);
        assert_eq!(names(&all[0], now), ["b", "c"]);
    }

    #[test]
    fn without_an_engine_the_nodes_last_known_stay_for_a_while() {
        let mut engine = Model::default();
        let mut all = ["a", "b"].map(|name| node(name, 1));
        for node in &mut all {
            exchange(node, &mut engine, 7, 0);
        }
        exchange(&mut all[0], &mut engine, 7, 1_000);
        assert!(all[0].is_current(5_000) && !all[0].is_current(5_001));
        assert_eq!(names(&all[0], 31_000), ["b"]);
        assert_eq!(names(&all[0], 31_001), [""; 0]);
    }

    #[test]
    fn who_has_not_the_secret_is_no_node_and_a_twin_is_noticed() {
        let mut engine = Model::default();
        let [mut own, mut stranger, mut twin] = [node("a", 1), node("b", 2), node("a", 1)];
        twin.own.run = 2;
        exchange(&mut stranger, &mut engine, 0, 0);
        exchange(&mut own, &mut engine, 0, 0);
        assert_eq!((names(&own, 0), own.strange()), (Vec::new(), (1, 0)));
        let text = twin.publish(0, |_| {});
        own.learn(&[text], 0);
        assert_eq!(own.strange(), (1, 1));
    }

    #[test]
    fn a_node_of_a_later_version_is_understood() {
        let seal = Seal::new(&[1; 32]);
        let later = serde_json::json!({ "name": "z", "run": 3, "new_in_this_version": [1] });
        let mut own = node("a", 1);
        own.learn(&[seal.close(PURPOSE, &later)], 0);
        assert_eq!(names(&own, 0), ["z"]);
    }
}
