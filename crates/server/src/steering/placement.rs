//! Placement at one worker: requests that it moves away, requests that it gets, and the steering entries of the latter.

use super::{Foreign, Loads, Numbering, Tables};
use crate::dtls::unmarked;
use crate::random::Entropy;
use bpf::steer::{Flow, Flows, InsertError};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use turn::{ClientPath, FiveTuple, Mono, Transport};

/// How often a worker measures what it does.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);

/// A worker moves a limited number of requests at once, and a limited number per second on average. This corrects the
/// uneven hash when many clients arrive. It costs little if thousands of allocations come and go.
const BURST_ALLOCATIONS: u32 = 128;
const PER_SECOND: u64 = 16;

/// Longest request that is handed over, in bytes; clients send a tenth of it.
const MAX_REQUEST_BYTES: usize = 1500;

/// After its entry was deleted, datagrams of a flow may still wait here for this long.
const MAX_QUEUED_TIME: Duration = Duration::from_secs(1);

/// How many flows are remembered for that; when there are more, none are.
const MAX_DEPARTED: usize = 4096;

/// Where a request is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) worker: u16,
    /// Its flow has got its entry for this; if not, it had one.
    pub(crate) is_new: bool,
}

impl Target {
    /// A worker that requests of this flow went to before.
    pub(crate) const fn known(worker: u16) -> Target {
        Target {
            worker,
            is_new: false,
        }
    }
}

/// The placing of one worker. Workers are counted from 0 here, regardless of their numbers.
#[derive(Debug)]
pub(crate) struct Placement {
    worker: u16,
    numbering: Numbering,
    /// The workers of the process that this one takes over from.
    foreign: Option<Foreign>,
    /// Another process gets what has no entry, so every flow of this worker needs one.
    holds_all: bool,
    loads: Arc<Loads>,
    table: Option<Table>,
    budget: Budget,
    measured: (Mono, u64),
}

/// What takes an entry.
#[derive(Debug)]
struct Table {
    flows: Flows,
    entropy: Entropy,
    /// The flows that have an entry for this worker: exactly those of its allocations that the hash would send
    /// elsewhere.
    own: HashedFlows,
    /// Flows whose entry went a moment ago. An Allocate that comes from one here had been received before that.
    departed: HashMap<Flow, Mono>,
}

impl Placement {
    /// For worker `worker`, counted from 0.
    pub(crate) fn new(worker: u16, tables: &mut Tables) -> Placement {
        let table = tables.flows.pop().map(Table::new);
        Placement {
            worker,
            numbering: tables.numbering,
            foreign: tables.foreign.clone(),
            holds_all: false,
            loads: Arc::clone(&tables.loads),
            table,
            budget: Budget {
                left: BURST_ALLOCATIONS,
                filled: Mono(0),
            },
            measured: (Mono(0), 0),
        }
    }

    /// How many flows have an entry for this worker.
    pub(crate) fn steered(&self) -> u64 {
        self.table
            .as_ref()
            .map_or(0, |table| table.own.flows.len() as u64)
    }

    /// Looks at what the worker has done: `datagrams` is how many it has handled in all.
    pub(crate) fn measure(&mut self, now: Mono, datagrams: u64) {
        let (at, before) = self.measured;
        let passed = now.since(at);
        if passed < MEASURE_INTERVAL || self.table.is_none() {
            return;
        }
        self.measured = (now, datagrams);
        let nanos = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let rate = (datagrams - before).saturating_mul(1_000_000_000) / nanos.max(1);
        self.loads
            .publish(self.worker, u32::try_from(rate).unwrap_or(u32::MAX), now);
    }

    /// Chooses the worker for an Allocate request of this many bytes that would make an allocation here. Returns `None`
    /// if it stays here. Otherwise the client's datagrams go to the other worker from then on.
    pub(crate) fn choose_other_worker(
        &mut self,
        now: Mono,
        path: &ClientPath,
        bytes: usize,
    ) -> Option<Target> {
        let (numbering, listener) = (self.numbering, path.listener.0);
        let slot = |worker: u16| numbering.slot(listener, worker);
        // What is placed from now on is placed by the process that takes over.
        let table = self.table.as_mut().filter(|_| !self.holds_all)?;
        // This check comes first: where allocations come and go fast, it nearly always ends the function here.
        if bytes > MAX_REQUEST_BYTES || table.departed.is_empty() && !self.budget.has_some(now) {
            return None;
        }
        let flow = flow(&path.five_tuple)?;
        // Who has an entry for the flow has its allocation, or will have it.
        let holder = |table: &Table| {
            let entry = table.flows.get(&flow)?;
            let worker = numbering.worker_at(listener, entry)?;
            (worker != self.worker).then(|| Target::known(numbering.number(worker)))
        };
        // What the table of entries sent here stays here, unless the flow has got another entry meanwhile.
        if table.has_departed(now, &flow) {
            return holder(table);
        }
        if table.own.contains(&flow) || !self.budget.has_some(now) {
            return None;
        }
        let to = self
            .loads
            .better_than(self.worker, now, &mut table.entropy)?;
        match table.flows.insert(&flow, slot(to)) {
            Ok(()) => {
                self.budget.left -= 1;
                self.loads.add(to);
                Some(Target {
                    worker: numbering.number(to),
                    is_new: true,
                })
            }
            // The flow is another worker's, or this one's before the request that comes with it is read.
            Err(InsertError::Exists) => holder(table),
            Err(error) => {
                tracing::debug!(%error, "an allocation stays where the hash sent it");
                None
            }
        }
    }

    /// A client has a ticket (RFC 8016) for an allocation of the worker with this number. During an upgrade, that
    /// worker may belong to the old process. From then on its flow goes there. `None` if it cannot, or if it goes to a
    /// third worker.
    pub(crate) fn follow(&mut self, path: &ClientPath, to: u16) -> Option<Target> {
        let flow = flow(&path.five_tuple)?;
        let own = self.numbering.index(to);
        let slot = match (own, &self.foreign) {
            (Some(worker), _) => self.numbering.slot(path.listener.0, worker),
            (None, Some(foreign)) => foreign.slot(path.five_tuple.local, to)?,
            (None, None) => return None,
        };
        let table = self.table.as_mut()?;
        match table.flows.insert(&flow, slot) {
            Ok(()) => {
                own.into_iter().for_each(|worker| self.loads.add(worker));
                Some(Target {
                    worker: to,
                    is_new: true,
                })
            }
            Err(InsertError::Exists) => {
                (table.flows.get(&flow) == Some(slot)).then(|| Target::known(to))
            }
            Err(error) => {
                tracing::debug!(%error, client = %flow.remote, "a client does not reach its allocation");
                None
            }
        }
    }

    /// The request could not be handed over after all.
    pub(crate) fn give_up(&mut self, path: &ClientPath, target: Target) {
        if !target.is_new {
            return;
        }
        let own = self.numbering.index(target.worker);
        own.into_iter()
            .for_each(|worker| self.loads.subtract(worker));
        if let (Some(table), Some(flow)) = (&mut self.table, flow(&path.five_tuple)) {
            table.flows.remove(&flow);
        }
    }

    /// An allocation was opened here.
    pub(crate) fn opened(&mut self, now: Mono, path: &ClientPath) {
        self.loads.add(self.worker);
        if self.holds_all {
            self.hold(path);
        }
        let Some(table) = self
            .table
            .as_mut()
            .filter(|table| !table.departed.is_empty())
        else {
            return;
        };
        let Some(flow) = flow(&path.five_tuple) else {
            return;
        };
        if table.has_departed(now, &flow) {
            self.hold(path);
        }
    }

    /// An allocation was closed here.
    pub(crate) fn closed(&mut self, now: Mono, path: &ClientPath) {
        self.loads.subtract(self.worker);
        self.left(now, path);
    }

    /// An allocation here no longer has this 5-tuple.
    pub(crate) fn left(&mut self, now: Mono, path: &ClientPath) {
        let Some(flow) = flow(&path.five_tuple) else {
            return;
        };
        let slot = self.slot(path);
        if let Some(table) = self
            .table
            .as_mut()
            .filter(|table| !table.own.flows.is_empty())
            && table.own.remove(&flow)
        {
            table.leave(&flow, slot);
            table.depart(now, flow);
        }
    }

    /// An allocation here has this further 5-tuple (RFC 8016).
    pub(crate) fn joined(&mut self, path: &ClientPath) {
        if self.holds_all {
            self.hold(path);
        }
    }

    /// A request that another worker took here has been handled: whether there is an allocation now. `is_new` as in
    /// [`Target`].
    pub(crate) fn record_result(&mut self, path: &ClientPath, is_new: bool, alive: bool) {
        if is_new {
            self.loads.subtract(self.worker);
        }
        if alive {
            self.hold(path);
            return;
        }
        let Some(flow) = flow(&path.five_tuple) else {
            return;
        };
        let slot = self.slot(path);
        if let Some(table) = &mut self.table {
            table.own.remove(&flow);
            table.leave(&flow, slot);
        }
    }

    /// What an entry says that leads a client of this UDP listener to this worker.
    fn slot(&self, path: &ClientPath) -> u32 {
        self.numbering.slot(unmarked(path).listener.0, self.worker)
    }

    /// Gives every flow of this worker an entry from now on, in this table if the worker has none yet.
    pub(crate) fn hold_all(&mut self, table: Option<Flows>) {
        self.holds_all = true;
        if self.table.is_none() {
            self.table = table.map(Table::new);
        }
    }

    /// Leaves flows without an entry to the kernel's hash again. Entries stay until their allocations end.
    pub(crate) fn stop_adding_entries(&mut self) {
        self.holds_all = false;
    }

    /// The process that this one took over from has ended.
    pub(crate) fn forget_foreign(&mut self) {
        self.foreign = None;
    }

    /// Sees to it that the flow has an entry for this worker, as it nearly always has. Returns `false` if it has none:
    /// the table is full.
    pub(crate) fn hold(&mut self, path: &ClientPath) -> bool {
        let Some(flow) = flow(&path.five_tuple) else {
            return true;
        };
        let slot = self.slot(path);
        let Some(table) = &mut self.table else {
            return false;
        };
        if !table.own.insert(&flow) {
            return true;
        }
        let entered = table.enter(&flow, slot);
        if let Err(error) = &entered {
            table.own.remove(&flow);
            tracing::warn!(client = %flow.remote, %error, "cannot steer a client to the worker of its allocation");
        }
        entered.is_ok()
    }
}

/// A set of flows of which only keyed hashes are kept: 9 bytes each instead of 65. A collision among all the flows of a
/// worker is less likely than a memory fault, and would cost only a stale entry.
#[derive(Debug, Default)]
struct HashedFlows {
    key: RandomState,
    flows: HashSet<u64>,
}

impl HashedFlows {
    fn contains(&self, flow: &Flow) -> bool {
        self.flows.contains(&self.key.hash_one(flow))
    }

    fn insert(&mut self, flow: &Flow) -> bool {
        self.flows.insert(self.key.hash_one(flow))
    }

    fn remove(&mut self, flow: &Flow) -> bool {
        self.flows.remove(&self.key.hash_one(flow))
    }
}

impl Table {
    fn new(flows: Flows) -> Table {
        Table {
            flows,
            entropy: Entropy::new(),
            own: HashedFlows::default(),
            departed: HashMap::new(),
        }
    }

    /// Makes the entry of the flow name this slot.
    fn enter(&mut self, flow: &Flow, slot: u32) -> Result<(), InsertError> {
        match self.flows.insert(flow, slot) {
            Err(InsertError::Exists) if self.flows.get(flow) == Some(slot) => Ok(()),
            Err(InsertError::Exists) => {
                self.flows.remove(flow);
                self.flows.insert(flow, slot)
            }
            result => result,
        }
    }

    /// Takes the flow's entry out if it names this slot. Otherwise it is another worker's.
    fn leave(&mut self, flow: &Flow, slot: u32) {
        if self.flows.get(flow) == Some(slot) {
            self.flows.remove(flow);
        }
    }

    /// Whether the flow's entry went so lately that datagrams which it sent here may still wait.
    fn has_departed(&self, now: Mono, flow: &Flow) -> bool {
        self.departed
            .get(flow)
            .is_some_and(|left| now.since(*left) < MAX_QUEUED_TIME)
    }

    fn depart(&mut self, now: Mono, flow: Flow) {
        if self.departed.len() >= MAX_DEPARTED {
            self.departed
                .retain(|_, left| now.since(*left) < MAX_QUEUED_TIME);
        }
        if self.departed.len() >= MAX_DEPARTED {
            self.departed.clear();
        }
        self.departed.insert(flow, now);
    }
}

/// Requests that a worker may give away.
#[derive(Debug)]
struct Budget {
    left: u32,
    filled: Mono,
}

impl Budget {
    fn has_some(&mut self, now: Mono) -> bool {
        let passed = u64::try_from(now.since(self.filled).as_millis()).unwrap_or(u64::MAX);
        let more = passed.saturating_mul(PER_SECOND) / 1000;
        if more > 0 {
            self.filled = now;
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(BURST_ALLOCATIONS);
        }
        self.left > 0
    }
}

/// The flow in the addresses of its packets; `None` if these addresses do not distinguish it from another one.
fn flow(five_tuple: &FiveTuple) -> Option<Flow> {
    let is_datagrams = matches!(five_tuple.transport, Transport::Udp | Transport::Dtls);
    (is_datagrams && !is_link_local(five_tuple.remote)).then_some(Flow {
        remote: five_tuple.remote,
        local: five_tuple.local,
    })
}

/// The same link-local address may exist on each of several interfaces.
fn is_link_local(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_allows_a_burst_and_then_a_trickle() {
        let mut budget = Budget {
            left: BURST_ALLOCATIONS,
            filled: Mono(0),
        };
        let mut spend = |now: u64| {
            let mut spent = 0;
            while budget.has_some(Mono(now)) {
                budget.left -= 1;
                spent += 1;
            }
            spent
        };
        assert_eq!(spend(1), BURST_ALLOCATIONS);
        assert_eq!(spend(2), 0);
        assert_eq!((1..=1000).map(|ms| spend(ms * 1_000_000)).sum::<u32>(), 15);
        assert_eq!(spend(3_600_000_000_000), BURST_ALLOCATIONS);
    }

    #[test]
    fn link_local_flows_and_streams_have_no_entry() {
        let of = |transport, remote: &str| {
            flow(&FiveTuple {
                transport,
                local: ([192, 0, 2, 1], 3478).into(),
                remote: remote.parse().expect("an address"),
            })
        };
        assert!(of(Transport::Udp, "192.0.2.7:4000").is_some());
        assert!(of(Transport::Udp, "[2001:db8::7]:4000").is_some());
        assert!(of(Transport::Udp, "[fe80::7]:4000").is_none());
        assert!(of(Transport::Tcp, "192.0.2.7:4000").is_none());
    }

    /// Placements of two workers over one table, and a look into it; `None` where this process may not load programs.
    fn two_workers() -> Option<([Placement; 2], Flows)> {
        let program = bpf::steer::Steering::load(4, 16)
            .inspect_err(|error| eprintln!("skipped: {error}"))
            .ok()?;
        let handle = || program.flows().expect("a handle");
        let mut tables = Tables {
            flows: vec![handle(), handle()],
            ..Tables::none(2)
        };
        let workers = [0, 1].map(|number| Placement::new(number, &mut tables));
        Some((workers, handle()))
    }

    fn path() -> ClientPath {
        ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local: ([192, 0, 2, 1], 3478).into(),
                remote: ([192, 0, 2, 7], 4000).into(),
            },
            listener: turn::ListenerKey(0),
        }
    }

    #[test]
    fn an_entry_names_the_worker_that_has_the_allocation() {
        let Some(([mut first, mut second], entries)) = two_workers() else {
            return;
        };
        let (now, path) = (Mono(1_000_000_000), path());
        let flow = flow(&path.five_tuple).expect("over UDP");
        second.record_result(&path, false, true);
        assert_eq!(entries.get(&flow), Some(1));
        // A request that came late finds no allocation at the other worker, whose word does not count.
        first.record_result(&path, false, false);
        assert_eq!(entries.get(&flow), Some(1), "the owner keeps its entry");
        // The allocation ends, and the next one of this flow is made at the first worker.
        second.closed(now, &path);
        assert_eq!(entries.get(&flow), None);
        first.record_result(&path, false, true);
        assert_eq!(entries.get(&flow), Some(0));
        // What had waited in the second worker's socket since the entry named it belongs to the first one now.
        let target = second
            .choose_other_worker(now, &path, 100)
            .expect("elsewhere");
        assert_eq!((target.worker, target.is_new), (0, false));
        // Should it be made there all the same, the entry follows.
        second.record_result(&path, false, true);
        assert_eq!(entries.get(&flow), Some(1));
        first.closed(now, &path);
        assert_eq!(
            entries.get(&flow),
            Some(1),
            "not the first worker's any more"
        );
    }
}
