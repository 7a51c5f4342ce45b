//! Registrations at other nodes of a cluster. Each worker publishes which addresses of record it has bindings of, and
//! asks which other nodes have some. The embedding program carries both, and no worker waits for it.

use super::node_tls::NodeTls;
use super::store::WorkerBindings;
use sip::{HashKey, Mono};
use sip_server::Aor;
use sip_server::location::Binding;
use sip_server::proxy::{AtNodes, PhoneNames};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How often a worker looks whether all bindings are to be published again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A worker publishes all bindings in parts: the time between two parts, and the places that it reads for each.
const PART_INTERVAL: Duration = Duration::from_millis(20);
const PLACES_PER_PART: usize = 512;
/// The priority of a contact without `q`.
const FULL_Q: u16 = 1000;
/// The log of bindings has no monotonic times. A binding from before the boot counts as made at this time.
const BEFORE_BOOT: Mono = Mono(1_000_000_000);
/// The age of a binding from before the boot. Every REGISTER at another node is later.
const LONG_AGO: Duration = Duration::from_secs(30 * 86_400);

/// One binding, for other nodes. They send requests to the node that has it, so they need no contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBinding {
    /// Tells the bindings of an address apart, on all nodes: a hash of instance and `reg-id` (RFC 5626 §4), or else of
    /// the contact.
    pub id: u64,
    /// Whether it has a `reg-id`. Only then a phone that registers at another node leaves this one (RFC 5626 §6).
    pub has_reg_id: bool,
    /// The name of its phone ([`PhoneNames::of`]), which may have other flows at other nodes.
    pub phone: u64,
    /// A hash of the Call-ID of the REGISTER.
    pub call: u64,
    /// Its CSeq.
    pub cseq: u32,
    /// The priority of the contact, in thousandths.
    pub q: u16,
    /// How long ago the REGISTER came.
    pub age: Duration,
    /// When the binding ends.
    pub left: Duration,
}

/// A binding that this node must remove, because its phone has registered at another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedBinding {
    /// As in [`SharedBinding`].
    pub id: u64,
    /// As in [`SharedBinding`]. A binding of another REGISTER stays.
    pub call: u64,
    /// As in [`SharedBinding`].
    pub cseq: u32,
}

/// Gets the result of a look-up.
pub type NodesReply = Box<dyn FnOnce(AtNodes) + Send>;

/// The embedding program's data about other nodes. Workers call it, so no method may wait.
pub trait OtherNodes: fmt::Debug + Send + Sync {
    /// Another number if all bindings are to be published again; never 0.
    fn generation(&self) -> u64;

    /// Whether only changes are to be published now.
    fn is_busy(&self) -> bool;

    /// This server has these bindings of an address of record now, and no others.
    fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>);

    /// The other nodes with bindings of an address; [`AtNodes::Pending`] if that must be asked.
    fn find(&self, aor: &[u8]) -> AtNodes;

    /// Queries the other nodes. `reply` is called at once, or on another thread.
    fn begin_find(&self, aor: &[u8], reply: NodesReply);
}

/// The other nodes of a cluster.
#[derive(Clone, Debug)]
pub struct NodesHook {
    pub(super) nodes: Arc<dyn OtherNodes>,
    /// For requests over TLS.
    pub(super) tls: Option<Arc<NodeTls>>,
    /// Nodes accept no plain requests of each other.
    pub(super) requires_tls: bool,
}

impl NodesHook {
    /// Makes the hook from `nodes`, which knows the other nodes. Requests between nodes are plain.
    pub fn new(nodes: Arc<dyn OtherNodes>) -> NodesHook {
        NodesHook {
            nodes,
            tls: None,
            requires_tls: false,
        }
    }

    /// Other nodes reach this one over TLS at its plain listeners; over TLS only, if that is required. It applies from
    /// the start.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<NodeTls>, is_required: bool) -> NodesHook {
        (self.tls, self.requires_tls) = (Some(tls), is_required);
        self
    }
}

impl PartialEq for NodesHook {
    fn eq(&self, other: &NodesHook) -> bool {
        Arc::ptr_eq(&self.nodes, &other.nodes)
    }
}

impl Eq for NodesHook {}

/// Publishes the bindings of a worker.
#[derive(Debug)]
pub(super) struct Publisher {
    nodes: Option<NodesHook>,
    /// The same on all nodes.
    key: HashKey,
    phone_names: PhoneNames,
    generation: u64,
    /// The first place of the location that is to be published again.
    next: Option<usize>,
    /// When to look again.
    at: Mono,
}

impl Publisher {
    /// `key` is that of all nodes.
    pub(super) fn new(nodes: Option<NodesHook>, key: HashKey) -> Publisher {
        Publisher {
            nodes,
            key: key.derive(u64::from_le_bytes(*b"shared r")),
            phone_names: PhoneNames::new(key),
            generation: 0,
            next: None,
            at: Mono(0),
        }
    }

    /// New settings.
    pub(super) fn apply_settings(&mut self, nodes: Option<NodesHook>) {
        if self.nodes != nodes {
            self.nodes = nodes;
            self.restart();
        }
    }

    /// There are other bindings now: publishes all of them.
    pub(super) fn restart(&mut self) {
        (self.generation, self.at) = (0, Mono(0));
    }

    /// Whether there may be other nodes.
    pub(super) fn has_nodes(&self) -> bool {
        self.nodes.is_some()
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        self.nodes.as_ref().map(|_| self.at)
    }

    /// The bindings of an address have changed.
    pub(super) fn changed(&self, now: Mono, aor: &[u8], bindings: &[Binding]) {
        let Some(NodesHook { nodes, .. }) = &self.nodes else {
            return;
        };
        let alive = bindings.iter().filter(|binding| !binding.is_expired(now));
        let shared = alive.map(|binding| self.shared(now, binding));
        nodes.publish(aor, shared.collect());
    }

    /// Whether a binding is this one, of the same REGISTER, and of a phone with a reg-id (RFC 5626 §6). Other phones
    /// may register one Contact at several nodes.
    pub(super) fn is_moved(&self, now: Mono, binding: &Binding, moved: &MovedBinding) -> bool {
        // An address may have many bindings, and the rest makes two MACs.
        if binding.reg_id() == 0 || binding.cseq() != moved.cseq {
            return false;
        }
        let own = self.shared(now, binding);
        (own.id, own.call) == (moved.id, moved.call)
    }

    fn shared(&self, now: Mono, binding: &Binding) -> SharedBinding {
        let reg_id = binding.reg_id().to_be_bytes();
        let id = match binding.reg_id() {
            0 => self.key.mac(&[&b"c"[..], binding.uri()].concat()),
            _ => self
                .key
                .mac(&[&b"i"[..], &reg_id, binding.instance()].concat()),
        };
        SharedBinding {
            id,
            has_reg_id: binding.reg_id() != 0,
            phone: self.phone_names.of(binding),
            call: self.key.mac(binding.call_id()),
            cseq: binding.cseq(),
            q: binding.q().unwrap_or(FULL_Q),
            age: match binding.updated() < BEFORE_BOOT {
                true => LONG_AGO,
                false => now.since(binding.updated()),
            },
            left: binding.expires().since(now),
        }
    }

    /// Publishes a part of all bindings, if they are to be published again.
    pub(super) fn handle_timeout(&mut self, now: Mono, kept: &WorkerBindings) {
        let Some(NodesHook { nodes, .. }) = &self.nodes else {
            return;
        };
        if now < self.at {
            return;
        }
        let generation = nodes.generation();
        if generation != self.generation {
            (self.generation, self.next) = (generation, Some(0));
        }
        let Some(first) = self.next else {
            self.at = now.plus(CHECK_INTERVAL);
            return;
        };
        self.at = now.plus(PART_INTERVAL);
        if nodes.is_busy() {
            return;
        }
        self.next = kept.part(first, PLACES_PER_PART).map(|part| {
            for (aor, bindings) in part {
                self.changed(now, aor, bindings);
            }
            first + PLACES_PER_PART
        });
    }
}

/// What is asked of other nodes.
#[derive(Debug)]
pub(super) struct NodesQuery {
    pub(super) aor: Aor,
    pub(super) nodes: NodesHook,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip_server::location::{Change, Found, Limits, Location, MemoryLocation, NewBinding};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    type Published = Vec<(Vec<u8>, Vec<SharedBinding>)>;

    #[derive(Debug, Default)]
    struct Nodes {
        generation: AtomicU64,
        published: Mutex<Published>,
    }

    impl Nodes {
        fn take(&self) -> Published {
            let mut all = std::mem::take(&mut *self.published.lock().unwrap());
            all.sort_by(|one, other| one.0.cmp(&other.0));
            all
        }
    }

    impl OtherNodes for Nodes {
        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }

        fn is_busy(&self) -> bool {
            self.published.lock().unwrap().len() > 1_000
        }

        fn publish(&self, aor: &[u8], bindings: Vec<SharedBinding>) {
            let mut published = self.published.lock().unwrap();
            published.push((aor.to_vec(), bindings));
        }

        fn find(&self, _aor: &[u8]) -> AtNodes {
            AtNodes::Pending
        }

        fn begin_find(&self, _aor: &[u8], reply: NodesReply) {
            reply(AtNodes::Unavailable);
        }
    }

    fn binding(uri: &str, expires: Mono) -> Binding {
        flow_binding(uri, 0, now(2).mono, expires)
    }

    fn flow_binding(uri: &str, reg_id: u32, updated: Mono, expires: Mono) -> Binding {
        made((uri, b"", reg_id), updated, expires)
    }

    fn flow_of(instance: &[u8], reg_id: u32, updated: Mono, expires: Mono) -> Binding {
        made(("sip:a@192.0.2.1", instance, reg_id), updated, expires)
    }

    fn made((uri, instance, reg_id): (&str, &[u8], u32), updated: Mono, expires: Mono) -> Binding {
        let params = match instance {
            [] => Vec::new(),
            _ => [b";+sip.instance=\"<", instance, b">\""].concat(),
        };
        let new = NewBinding {
            uri: uri.as_bytes(),
            params: &params,
            instance,
            call_id: b"c1",
            cseq: 7,
            path: b"",
            agent: b"",
            flow: None,
            q: 700,
            reg_id,
            gruu: 0,
            expires,
            updated,
        };
        Binding::new(&new).unwrap()
    }

    fn now(seconds: u64) -> sip::Now {
        sip::Now {
            mono: Mono(0).plus(Duration::from_secs(seconds)),
            unix_s: seconds,
        }
    }

    #[test]
    fn nodes_with_one_key_name_a_binding_alike_and_what_has_ended_is_not_published() {
        let nodes = Arc::new(Nodes::default());
        let hook = NodesHook::new(Arc::clone(&nodes) as _);
        let [one, other] = [1, 1].map(|key| {
            let key = HashKey::new([key; 16]);
            Publisher::new(Some(hook.clone()), key)
        });
        let bindings = [
            binding("sip:a@192.0.2.1", now(60).mono),
            binding("sip:a@192.0.2.2", now(9).mono),
        ];
        for publisher in [one, other] {
            publisher.changed(now(10).mono, b"a@d", &bindings);
        }
        let published = nodes.take();
        assert_eq!(published[0], published[1]);
        let [shared] = published[0].1[..] else {
            panic!("{published:?}");
        };
        assert_eq!((shared.cseq, shared.q), (7, 700));
        assert_eq!(shared.age, Duration::from_secs(8));
        assert_eq!(shared.left, Duration::from_secs(50));
        let off = Publisher::new(None, HashKey::new([1; 16]));
        off.changed(now(10).mono, b"a@d", &bindings);
        assert_eq!((nodes.take(), off.poll_timeout()), (Vec::new(), None));
    }

    #[test]
    fn a_binding_from_before_the_boot_is_published_as_an_old_one() {
        let publisher = Publisher::new(None, HashKey::new([1; 16]));
        let age = |updated| {
            let binding = flow_binding("sip:a@192.0.2.1", 1, updated, now(60).mono);
            publisher.shared(now(20).mono, &binding).age
        };
        assert_eq!(age(Mono(1)), LONG_AGO);
        assert_eq!(age(now(1).mono), Duration::from_secs(19));
    }

    #[test]
    fn only_a_binding_with_a_reg_id_is_removed_for_another_node_rfc5626_6() {
        let publisher = Publisher::new(None, HashKey::new([1; 16]));
        for (reg_id, is_removed) in [(0, false), (1, true)] {
            let at = now(20).mono;
            let binding = flow_binding("sip:a@192.0.2.1", reg_id, now(2).mono, now(60).mono);
            let SharedBinding { id, call, cseq, .. } = publisher.shared(at, &binding);
            let moved = MovedBinding { id, call, cseq };
            assert_eq!(publisher.is_moved(at, &binding, &moved), is_removed);
            let of_later_register = MovedBinding { cseq: 6, ..moved };
            assert!(!publisher.is_moved(at, &binding, &of_later_register));
        }
    }

    #[test]
    fn two_flows_of_a_phone_have_one_name_and_other_bindings_have_none_rfc5626_4_2() {
        let names = [1, 1, 2].map(|key| Publisher::new(None, HashKey::new([key; 16])));
        let at = now(20).mono;
        let shared = |publisher: usize, instance: &[u8], reg_id| {
            let flow = flow_of(instance, reg_id, now(2).mono, now(60).mono);
            names[publisher].shared(at, &flow)
        };
        let (one, other) = (shared(0, b"urn:uuid:1", 1), shared(1, b"urn:uuid:1", 2));
        assert_ne!(one.id, other.id);
        assert_ne!(one.phone, 0);
        assert_eq!(one.phone, other.phone);
        assert_ne!(one.phone, shared(0, b"urn:uuid:2", 1).phone);
        assert_ne!(one.phone, shared(2, b"urn:uuid:1", 1).phone, "another key");
        assert_eq!(shared(0, b"urn:uuid:1", 0).phone, 0);
    }

    #[test]
    fn all_bindings_are_published_again_with_each_generation() {
        let nodes = Arc::new(Nodes::default());
        nodes.generation.store(1, Ordering::Relaxed);
        let key = HashKey::new([1; 16]);
        let hook = NodesHook::new(Arc::clone(&nodes) as _);
        let mut publisher = Publisher::new(Some(hook), key);
        let mut memory = MemoryLocation::new(key, Limits::default());
        let count = 3 * PLACES_PER_PART;
        for number in 0..count {
            let aor = Aor::from_canonical(format!("u{number:05}@d").as_bytes()).unwrap();
            let Found::Bindings(revision, _) = memory.find(&aor) else {
                panic!("memory knows at once");
            };
            let new = binding("sip:a@192.0.2.1", now(3_600).mono);
            let mut changes = vec![Change::Add(new)];
            let _ = memory.change(now(0), &aor, revision, &mut changes).unwrap();
        }
        let kept = WorkerBindings::InMemory(memory);
        for generation in [1, 2] {
            nodes.generation.store(generation, Ordering::Relaxed);
            let mut seen = Vec::new();
            for second in 0..20 {
                publisher.handle_timeout(now(generation * 100 + second).mono, &kept);
                assert!(nodes.published.lock().unwrap().len() <= PLACES_PER_PART);
                seen.extend(nodes.take());
            }
            seen.sort_by(|one, other| one.0.cmp(&other.0));
            seen.dedup_by(|one, other| one.0 == other.0);
            assert_eq!(seen.len(), count);
        }
    }
}
