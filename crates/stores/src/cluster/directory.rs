//! The nodes of the cluster as this one knows them, without I/O.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::seal::Seal;

/// How often a node publishes itself and asks for the others.
pub const INTERVAL_MS: u64 = 1_000;
/// Time to live of what a node has published.
pub const TTL_MS: u64 = 4_000;
/// Without an engine, a node stays known for this long, because there is no newer information.
const LAST_KNOWN_MS: u64 = 30_000;
const PURPOSE: &str = "node";
/// Nodes of a cluster.
pub const MAX_NODES: usize = 1_000;
/// Clocks of nodes differ by less. It limits how long somebody without the secret can repeat a text.
const VALID_S: u64 = 180;

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// `cluster.node`.
    pub name: String,
    /// A number that differs between processes.
    pub run: u64,
    /// Where clients reach it: transport (`udp`, `tcp`, `tls`, `dtls`) and address.
    pub addresses: Vec<(String, SocketAddr)>,
    /// Where other nodes reach its SIP, over UDP and TCP.
    pub sip: Vec<SocketAddr>,
    /// If it takes TLS there, too: the SHA-256 of the certificates that it may show, in hexadecimal.
    pub fingerprints: Vec<String>,
    /// Relayed addresses in use.
    pub allocations: u32,
    /// These as a share of its limit, in thousandths.
    pub load: u32,
    /// Registration bindings.
    pub bindings: u64,
    /// It admits no new work.
    pub draining: bool,
    /// It sends clients away, if it can.
    pub overloaded: bool,
    /// The version of the program.
    pub version: String,
    /// Counts what the process has published.
    pub sequence: u64,
    /// When this was published, by the clock of the node.
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
pub struct KnownNode {
    /// What it said.
    pub info: NodeInfo,
    /// How long ago this node first saw it.
    pub age_ms: u64,
    /// This node itself.
    pub is_own: bool,
}

/// The last text that a process has published, as far as this node knows.
#[derive(Clone, Copy, Debug)]
struct Last {
    sequence: u64,
    unix_s: u64,
}

/// What the engine had under the name of this node before an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnEntry {
    /// The entry shows neither a loss of data nor another process.
    Kept,
    /// An earlier text, or none, although this process has published a later one: the engine has lost data.
    Lost,
    /// Another process has the same name, twice in a row. Once is normal: an upgrade or a restart.
    Twin,
}

/// All nodes.
#[derive(Debug)]
pub struct Directory {
    own: NodeInfo,
    others: BTreeMap<String, Entry>,
    /// The last text of each process, by name and run.
    last: HashMap<(String, u64), Last>,
    /// The sequence that the engine has confirmed, and when it was sent. `None` before the first confirmation.
    published: Option<(u64, u64)>,
    /// How many exchanges in a row have found an entry of another process under the name of this node.
    in_a_row: u32,
    seal: Seal,
    /// When the engine last responded.
    heard_ms: Option<u64>,
    /// Texts in the engine that no node has written.
    forged: u64,
    /// Texts of nodes whose time differs too much.
    untimely: u64,
    /// How often another process has published the name of this node.
    twins: u64,
}

impl Directory {
    /// The directory of a node that does not know any other node yet.
    #[must_use]
    pub fn new(own: NodeInfo, seal: Seal) -> Directory {
        Directory {
            own,
            others: BTreeMap::new(),
            last: HashMap::new(),
            published: None,
            in_a_row: 0,
            seal,
            heard_ms: None,
            forged: 0,
            untimely: 0,
            twins: 0,
        }
    }

    /// What to publish next, after `change`.
    pub fn publish(&mut self, unix_s: u64, change: impl FnOnce(&mut NodeInfo)) -> String {
        change(&mut self.own);
        self.own.sequence += 1;
        self.own.unix_s = unix_s;
        self.seal.sign(PURPOSE, &self.own)
    }

    /// The engine has the last text of [`Directory::publish`], which was sent at `sent_ms`. Before, it had this one.
    pub fn published(&mut self, before: Option<&str>, sent_ms: u64, now_ms: u64) -> OwnEntry {
        let earlier = self.published.replace((self.own.sequence, sent_ms));
        let Some((sequence, at_ms)) = earlier else {
            // The first time: an entry is of the process before this one.
            return OwnEntry::Kept;
        };
        let Some(before) = before else {
            self.in_a_row = 0;
            return match now_ms.saturating_sub(at_ms) < TTL_MS {
                true => OwnEntry::Lost,
                false => OwnEntry::Kept,
            };
        };
        let Some(info) = self.seal.verify::<NodeInfo>(PURPOSE, before) else {
            self.forged += 1;
            return OwnEntry::Kept;
        };
        if info.run == self.own.run {
            self.in_a_row = 0;
            return match info.sequence < sequence {
                true => OwnEntry::Lost,
                false => OwnEntry::Kept,
            };
        }
        self.in_a_row += 1;
        if self.in_a_row < 2 {
            return OwnEntry::Kept;
        }
        self.twins += 1;
        OwnEntry::Twin
    }

    /// Another process publishes this node now. `change` has the same effect as in [`Directory::publish`]: this process
    /// goes on with its connections to other nodes, so it renews its certificate.
    pub fn retire(&mut self, change: impl FnOnce(&mut NodeInfo)) {
        change(&mut self.own);
        self.published = None;
        self.in_a_row = 0;
    }

    /// The engine has these texts of nodes.
    pub fn learn(&mut self, texts: &[String], now_ms: u64, unix_s: u64) {
        self.heard_ms = Some(now_ms);
        // An older text is refused because of its time, so it need not be remembered.
        self.last
            .retain(|_, last| last.unix_s.saturating_add(VALID_S) >= unix_s);
        let mut present = BTreeMap::new();
        for text in texts.iter().take(MAX_NODES) {
            match self.seal.verify::<NodeInfo>(PURPOSE, text) {
                None => self.forged += 1,
                Some(info) if info.name == self.own.name => {}
                Some(info) if info.unix_s.abs_diff(unix_s) > VALID_S => self.untimely += 1,
                Some(info) => drop(present.insert(info.name.clone(), info)),
            }
        }
        // The engine removes a node that publishes no more. One that was cut off for a while has old entries; so this
        // looks whether they change.
        self.others.retain(|name, _| present.contains_key(name));
        for (name, info) in present {
            if self.is_news(&info) {
                let seen_ms = now_ms;
                self.others.insert(name, Entry { info, seen_ms });
            }
        }
    }

    /// Whether the process has not yet published this text or a later one. Somebody without the secret can repeat an
    /// earlier text.
    fn is_news(&mut self, info: &NodeInfo) -> bool {
        let of = (info.name.clone(), info.run);
        let last = self.last.get(&of);
        if last.is_some_and(|last| info.sequence <= last.sequence) {
            return false;
        }
        let (sequence, unix_s) = (info.sequence, info.unix_s);
        self.last.insert(of, Last { sequence, unix_s });
        true
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
    pub fn list(&self, now_ms: u64) -> Vec<KnownNode> {
        let live = self.live(now_ms).map(|info| KnownNode {
            info: info.clone(),
            age_ms: now_ms.saturating_sub(self.others[&info.name].seen_ms),
            is_own: false,
        });
        let mut all: Vec<_> = live.collect();
        all.push(KnownNode {
            info: self.own.clone(),
            age_ms: 0,
            is_own: true,
        });
        all.sort_by(|one, other| one.info.name.cmp(&other.info.name));
        all
    }

    /// Texts of the engine that no node has written, and how often another process had the name of this node.
    #[must_use]
    pub fn strange(&self) -> (u64, u64) {
        (self.forged, self.twins)
    }

    /// Texts of nodes whose clock differs too much from the one of this node.
    #[must_use]
    pub fn untimely(&self) -> u64 {
        self.untimely
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

    fn exchange(node: &mut Directory, engine: &mut Model, load: u32, now_ms: u64) -> OwnEntry {
        let text = node.publish(0, |own| own.load = load);
        let name = node.own.name.clone();
        let before = engine.own(&name, now_ms);
        let texts = engine.publish(&name, &text, TTL_MS, now_ms);
        let entry = node.published(before.as_deref(), now_ms, now_ms);
        node.learn(&texts, now_ms, 0);
        entry
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
    fn a_process_without_the_secret_is_no_node() {
        let mut engine = Model::default();
        let [mut own, mut stranger] = [node("a", 1), node("b", 2)];
        exchange(&mut stranger, &mut engine, 0, 0);
        exchange(&mut own, &mut engine, 0, 0);
        assert_eq!((names(&own, 0), own.strange()), (Vec::new(), (1, 0)));
    }

    #[test]
    fn two_processes_with_one_name_are_noticed_but_not_an_upgrade() {
        let mut engine = Model::default();
        let [mut own, mut twin] = [node("a", 1), node("a", 1)];
        twin.own.run = 2;
        for now in [0, 1_000, 2_000] {
            assert_eq!(exchange(&mut own, &mut engine, 0, now), OwnEntry::Kept);
        }
        // The new process of an upgrade: both publish for a moment.
        assert_eq!(exchange(&mut twin, &mut engine, 0, 2_500), OwnEntry::Kept);
        assert_eq!(exchange(&mut own, &mut engine, 0, 3_000), OwnEntry::Kept);
        own.retire(|_| {});
        for now in [3_500, 4_500, 5_500] {
            assert_eq!(exchange(&mut twin, &mut engine, 0, now), OwnEntry::Kept);
        }
        // It has given up.
        for now in [6_000, 7_000] {
            assert_eq!(exchange(&mut own, &mut engine, 0, now), OwnEntry::Kept);
        }
        assert_eq!((own.strange(), twin.strange()), ((0, 0), (0, 0)));
        // Two that stay.
        for now in [8_000, 9_000, 10_000] {
            exchange(&mut twin, &mut engine, 0, now - 500);
            exchange(&mut own, &mut engine, 0, now);
        }
        assert_eq!(exchange(&mut own, &mut engine, 0, 10_500), OwnEntry::Kept);
        assert_eq!((own.strange().1, twin.strange().1), (2, 2));
    }

    #[test]
    fn an_engine_that_has_lost_the_own_entry_or_has_an_earlier_one_is_noticed() {
        let mut engine = Model::default();
        let mut own = node("a", 1);
        exchange(&mut own, &mut engine, 0, 0);
        let early = engine.own("a", 0).unwrap();
        exchange(&mut own, &mut engine, 0, 1_000);
        engine.restart();
        assert_eq!(exchange(&mut own, &mut engine, 0, 2_000), OwnEntry::Lost);
        assert_eq!(exchange(&mut own, &mut engine, 0, 3_000), OwnEntry::Kept);
        // A replica that was behind.
        engine.publish("a", &early, TTL_MS, 3_500);
        assert_eq!(exchange(&mut own, &mut engine, 0, 4_000), OwnEntry::Lost);
        // It was cut off, so its entry has ended.
        assert_eq!(exchange(&mut own, &mut engine, 0, 9_000), OwnEntry::Kept);
    }

    #[test]
    fn a_text_that_is_repeated_or_of_another_time_is_refused() {
        let [mut own, mut other] = [node("a", 1), node("b", 1)];
        let early = other.publish(1_000, |own| own.load = 1);
        let late = other.publish(1_001, |own| own.load = 2);
        own.learn(std::slice::from_ref(&early), 0, 1_000);
        own.learn(&[late], 1_000, 1_001);
        own.learn(std::slice::from_ref(&early), 2_000, 1_002);
        assert_eq!(own.live(2_000).next().unwrap().load, 2);
        assert_eq!(names(&own, 1_000 + TTL_MS), ["b"]);
        // Not even after the node is gone, or as news.
        own.learn(&[], 3_000, 1_003);
        own.learn(std::slice::from_ref(&early), 4_000, 1_004);
        assert_eq!(names(&own, 4_000), [""; 0]);
        own.learn(&[early], 300_000, 1_000 + VALID_S + 1);
        assert_eq!((names(&own, 300_000), own.untimely()), (Vec::new(), 1));
        assert!(own.last.len() <= 1);
        let text = other.publish(1_000 + 2 * VALID_S, |_| {});
        own.learn(&[text], 400_000, 1_000 + VALID_S);
        assert_eq!(names(&own, 400_000), ["b"]);
    }

    #[test]
    fn a_node_of_a_later_version_is_understood() {
        let seal = Seal::new(&[1; 32]);
        let later = serde_json::json!({ "name": "z", "run": 3, "new_in_this_version": [1] });
        let mut own = node("a", 1);
        own.learn(&[seal.sign(PURPOSE, &later)], 0, 0);
        assert_eq!(names(&own, 0), ["z"]);
    }

    #[test]
    fn entries_of_adjacent_versions_are_read() {
        let mut own = node("a", 1);
        let seal = Seal::new(&[1; 32]);
        let text = |json: &str| {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            seal.sign(PURPOSE, &value)
        };
        let older = text(r#"{"name":"b","run":2,"sequence":1,"unix_s":1000}"#);
        let newer = text(r#"{"name":"c","run":3,"sequence":1,"unix_s":1000,"colour":"red"}"#);
        own.learn(&[older, newer], 0, 1_000);
        assert_eq!((names(&own, 0).len(), own.strange()), (2, (0, 0)));
    }
}
