//! An engine in memory, for tests and for the simulator. It does what the scripts of the Redis engine do.

use std::collections::{BTreeMap, HashMap};

use super::leases::Request;

/// How long the engine keeps a message for nodes that have not asked.
pub const MESSAGE_TTL_MS: u64 = 60_000;

/// One lease of a holder.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    units: u32,
    until_ms: u64,
}

/// What all nodes share. The time is an argument: that of the engine.
#[derive(Debug, Default)]
pub struct Model {
    leases: HashMap<String, BTreeMap<String, HeldLease>>,
    nodes: BTreeMap<String, (String, u64)>,
    messages: Vec<(u64, String, u64)>,
    sequence: u64,
}

/// How many units an engine grants. `others` are the units of other holders, and `holders` counts all of them and this
/// one.
#[must_use]
pub fn grant(request: &Request, others: u32, holders: u32) -> u32 {
    let free = request.limit.saturating_sub(others);
    let free = free.saturating_sub(request.used);
    // Near the limit blocks shrink, so that each holder finds something.
    let share = (free / (2 * holders.max(1))).max(1);
    request
        .used
        .saturating_add(request.block.min(share).min(free))
}

impl Model {
    /// Leases units to a holder. Returns how many it has now.
    pub fn lease(&mut self, holder: &str, request: &Request, now_ms: u64) -> u32 {
        let of_key = self.leases.entry(request.key.to_string()).or_default();
        of_key.retain(|_, held| held.until_ms > now_ms);
        let others = of_key.iter().filter(|(name, _)| *name != holder);
        let (count, units) = others.fold((1, 0u32), |(count, units), (_, held)| {
            (count + 1, units.saturating_add(held.units))
        });
        let units = grant(request, units, count);
        match units {
            0 => drop(of_key.remove(holder)),
            _ => {
                let until_ms = now_ms + request.ttl_ms;
                of_key.insert(holder.to_owned(), HeldLease { units, until_ms });
            }
        }
        if of_key.is_empty() {
            self.leases.remove(&*request.key);
        }
        units
    }

    /// All units of a key that are leased.
    #[must_use]
    pub fn leased(&self, key: &str, now_ms: u64) -> u32 {
        let of_key = self.leases.get(key);
        let held = of_key.into_iter().flat_map(BTreeMap::values);
        held.filter(|held| held.until_ms > now_ms)
            .map(|held| held.units)
            .sum()
    }

    /// Keys with a lease.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.leases.len()
    }

    /// What a node has published, if that has not ended.
    #[must_use]
    pub fn own(&self, name: &str, now_ms: u64) -> Option<String> {
        let entry = self.nodes.get(name);
        let live = entry.filter(|(_, until_ms)| *until_ms > now_ms);
        live.map(|(text, _)| text.clone())
    }

    /// Publishes what a node says of itself, and returns what all say.
    pub fn publish(&mut self, name: &str, text: &str, ttl_ms: u64, now_ms: u64) -> Vec<String> {
        let entry = (text.to_owned(), now_ms + ttl_ms);
        self.nodes.insert(name.to_owned(), entry);
        self.nodes.retain(|_, (_, until_ms)| *until_ms > now_ms);
        self.nodes.values().map(|(text, _)| text.clone()).collect()
    }

    /// Keeps a message for all nodes.
    pub fn send(&mut self, text: &str, now_ms: u64) {
        self.sequence += 1;
        let entry = (self.sequence, text.to_owned(), now_ms + MESSAGE_TTL_MS);
        self.messages.push(entry);
    }

    /// The messages after this one, and the number of the last one.
    pub fn messages(&mut self, after: u64, now_ms: u64) -> (Vec<String>, u64) {
        self.messages.retain(|(_, _, until_ms)| *until_ms > now_ms);
        let after = if after > self.sequence { 0 } else { after };
        let new = self.messages.iter().filter(|(number, ..)| *number > after);
        (
            new.map(|(_, text, _)| text.clone()).collect(),
            self.sequence,
        )
    }

    /// The engine is started again, with nothing.
    pub fn restart(&mut self) {
        *self = Model::default();
    }
}
