//! The changes, queries and results that wait between workers and the control thread.

use std::collections::{HashMap, VecDeque};

use super::{AtNodes, BindingCounters, Reply, SharedBinding};
use crate::cluster::clock_steps::ClockSteps;
use crate::cluster::moved::MovedBinding;

/// The maximum of bindings that wait to be removed. Other bindings end by themselves.
pub(super) const MAX_MOVED: usize = 1 << 16;
/// The maximum of addresses in the cache.
pub(super) const MAX_CACHED: usize = 1 << 14;
/// How long a result is cached: if another node has bindings, if none has, and if the engine has not responded.
pub(super) const FOUND_MS: u64 = 2_000;
const NONE_MS: u64 = 1_000;
const UNAVAILABLE_MS: u64 = 250;

/// The bindings of an address after a change.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Change {
    pub(in crate::cluster) bindings: Vec<SharedBinding>,
    pub(in crate::cluster) at_ms: u64,
}

/// A result of the engine.
#[derive(Debug)]
pub(super) struct CachedNodes {
    nodes: AtNodes,
    until_ms: u64,
}

/// What workers and the control thread exchange.
#[derive(Default)]
pub(super) struct BindingsState {
    pub(super) changes: HashMap<Box<[u8]>, Change>,
    /// The addresses of `changes`, the oldest first.
    pub(super) order: VecDeque<Box<[u8]>>,
    /// The look-ups that wait for a result, by address.
    pub(super) replies: HashMap<Box<[u8]>, Vec<Reply>>,
    /// The addresses of `replies` for which no query was sent.
    pub(super) asked: VecDeque<Box<[u8]>>,
    pub(super) cache: HashMap<Box<[u8]>, CachedNodes>,
    /// The addresses of `cache`, in the order in which they were added.
    pub(super) added: VecDeque<Box<[u8]>>,
    /// Changes were lost.
    pub(super) has_lost: bool,
    /// Bindings that this node must remove.
    pub(super) moved: Vec<MovedBinding>,
    pub(super) steps: ClockSteps,
    pub(super) counters: BindingCounters,
}

impl BindingsState {
    /// The cached result for an address. The outer `None`: there is none. The inner `None`: the engine did not respond.
    pub(super) fn cached(&self, aor: &[u8], now_ms: u64) -> Option<&AtNodes> {
        let cached = self.cache.get(aor)?;
        (cached.until_ms > now_ms).then_some(&cached.nodes)
    }

    pub(super) fn remember(&mut self, aor: &[u8], nodes: &AtNodes, now_ms: u64) {
        let time = match nodes {
            None => UNAVAILABLE_MS,
            Some(nodes) if nodes.is_empty() => NONE_MS,
            Some(_) => FOUND_MS,
        };
        let cached = CachedNodes {
            nodes: nodes.clone(),
            until_ms: now_ms + time,
        };
        if self.cache.insert(aor.into(), cached).is_none() {
            self.added.push_back(aor.into());
        }
        // The oldest results are removed first. Most of them have expired.
        while self.cache.len() > MAX_CACHED {
            let Some(oldest) = self.added.pop_front() else {
                break;
            };
            self.cache.remove(&oldest);
        }
    }

    /// Adds bindings that this node must remove. Returns how many fit, and how many do not.
    pub(super) fn add_moved(&mut self, moved: Vec<MovedBinding>) -> (u64, u64) {
        let added = MAX_MOVED.saturating_sub(self.moved.len()).min(moved.len());
        let dropped = moved.len() - added;
        self.moved.extend(moved.into_iter().take(added));
        (added as u64, dropped as u64)
    }
}

impl std::fmt::Debug for BindingsState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BindingsState")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
