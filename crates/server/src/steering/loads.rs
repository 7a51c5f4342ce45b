//! How much each worker has to do, published for the others.

use crate::random::Entropy;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use turn::Mono;

/// What an allocation counts for before its datagrams do: a call of 50 datagrams per second, each way.
const ALLOCATION_LOAD: u64 = 100;

/// Up to this many workers, all are compared. Above it, two random ones are, which is nearly as good and has a constant
/// cost.
const FULL_SCAN: usize = 16;

/// How long a published rate is good for: a worker that sleeps publishes nothing.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The load of one worker. This worker writes it, and so do workers that move a request to it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Load {
    /// Allocations it has, and requests for one that are on their way to it.
    allocations: AtomicU32,
    /// Datagrams handled per second of late.
    rate: AtomicU32,
    /// When that was measured.
    measured: AtomicU64,
}

/// The loads of all workers. They are accessed when an allocation opens or closes and a few times per second, never per
/// datagram.
#[derive(Debug)]
pub(crate) struct Loads {
    workers: Box<[Load]>,
}

impl Loads {
    pub(crate) fn new(workers: usize) -> Loads {
        Loads {
            workers: (0..workers).map(|_| Load::default()).collect(),
        }
    }

    /// A worker has one allocation more, or soon will have.
    pub(crate) fn add(&self, worker: u16) {
        if let Some(load) = self.workers.get(usize::from(worker)) {
            load.allocations.fetch_add(1, Relaxed);
        }
    }

    /// Takes back what [`Loads::add`] said.
    pub(crate) fn subtract(&self, worker: u16) {
        if let Some(load) = self.workers.get(usize::from(worker)) {
            load.allocations.fetch_sub(1, Relaxed);
        }
    }

    /// How many datagrams a worker handled per second of late.
    pub(crate) fn publish(&self, worker: u16, rate: u32, now: Mono) {
        if let Some(load) = self.workers.get(usize::from(worker)) {
            load.rate.store(rate, Relaxed);
            load.measured.store(now.0, Relaxed);
        }
    }

    /// The worker that a new allocation at `own` is better made on, if there is one. Moving a request costs a few
    /// microseconds, so small differences are ignored. The load of the other worker must be lower by half an allocation
    /// and a 64th. If no datagrams flow, a difference of one allocation is then enough.
    pub(crate) fn better_than(&self, own: u16, now: Mono, entropy: &mut Entropy) -> Option<u16> {
        let here = self.load(usize::from(own), now);
        let (there, worker) = if self.workers.len() <= FULL_SCAN {
            self.least(usize::from(own), now, entropy)?
        } else {
            self.less_loaded_of_two(now, entropy)
        };
        let is_better = here >= there + ALLOCATION_LOAD / 2 + here / 64;
        is_better.then(|| u16::try_from(worker).ok()).flatten()
    }

    /// The least loaded of the others. Of equals the first from a random one on, so that not all workers choose the
    /// same one.
    fn least(&self, own: usize, now: Mono, entropy: &mut Entropy) -> Option<(u64, usize)> {
        let count = self.workers.len();
        let first = entropy.below(count);
        let others = (0..count).map(|step| (first + step) % count);
        let loads = others
            .filter(|&worker| worker != own)
            .map(|worker| (self.load(worker, now), worker));
        loads.min_by_key(|(load, _)| *load)
    }

    /// The less loaded of two random ones.
    fn less_loaded_of_two(&self, now: Mono, entropy: &mut Entropy) -> (u64, usize) {
        let [one, other] = [(); 2].map(|()| {
            let worker = entropy.below(self.workers.len());
            (self.load(worker, now), worker)
        });
        one.min(other)
    }

    /// In datagrams per second: those that it handles, and those that its allocations may bring.
    fn load(&self, worker: usize, now: Mono) -> u64 {
        let Some(load) = self.workers.get(worker) else {
            return u64::MAX / 2;
        };
        let age = now.since(Mono(load.measured.load(Relaxed)));
        let rate = if age < MAX_AGE {
            load.rate.load(Relaxed)
        } else {
            0
        };
        u64::from(load.allocations.load(Relaxed)) * ALLOCATION_LOAD + u64::from(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Mono = Mono(10_000_000_000);

    /// Simulates workers and allocations that arrive at random workers.
    fn spread(workers: usize, allocations: usize) -> (Vec<u32>, usize) {
        let loads = Loads::new(workers);
        let mut entropy = Entropy::new();
        let mut moved = 0;
        for _ in 0..allocations {
            let hashed = entropy.below(workers) as u16;
            let better = loads.better_than(hashed, NOW, &mut entropy);
            moved += usize::from(better.is_some());
            loads.add(better.unwrap_or(hashed));
        }
        let counts = loads.workers.iter();
        (
            counts.map(|load| load.allocations.load(Relaxed)).collect(),
            moved,
        )
    }

    #[test]
    fn equal_clients_are_spread_evenly() {
        for workers in [2, 4, 8, 16] {
            let (counts, _) = spread(workers, 8 * workers);
            assert_eq!(counts, vec![8; workers]);
            let (counts, moved) = spread(workers, 128 * workers);
            assert!(
                counts.iter().all(|count| (125..=131).contains(count)),
                "{counts:?}"
            );
            assert!(moved < 64 * workers, "{moved} of {}", 128 * workers);
        }
    }

    #[test]
    fn two_choices_do_for_many_workers() {
        let (counts, _) = spread(64, 64 * 64);
        assert!(counts.iter().all(|count| *count < 72), "{counts:?}");
    }

    #[test]
    fn a_busy_worker_is_spared_though_it_has_few_allocations() {
        let loads = Loads::new(2);
        let mut entropy = Entropy::new();
        loads.add(0);
        (0..50).for_each(|_| loads.add(1));
        assert_eq!(loads.better_than(1, NOW, &mut entropy), Some(0));
        loads.publish(0, 100_000, NOW);
        assert_eq!(loads.better_than(0, NOW, &mut entropy), Some(1));
        assert_eq!(loads.better_than(1, NOW, &mut entropy), None);
        // What was published long ago is not believed.
        let later = NOW.plus_secs(1);
        assert_eq!(loads.better_than(1, later, &mut entropy), Some(0));
    }

    #[test]
    fn a_few_datagrams_do_not_hide_an_allocation_less_nor_make_one() {
        let loads = Loads::new(2);
        let mut entropy = Entropy::new();
        loads.publish(1, 40, NOW);
        assert_eq!(loads.better_than(1, NOW, &mut entropy), None);
        loads.add(0);
        assert_eq!(loads.better_than(0, NOW, &mut entropy), Some(1));
    }

    #[test]
    fn noise_moves_nobody() {
        let loads = Loads::new(2);
        let mut entropy = Entropy::new();
        for _ in 0..1000 {
            loads.add(0);
            loads.add(1);
        }
        loads.publish(0, 101_000, NOW);
        loads.publish(1, 99_000, NOW);
        assert_eq!(loads.better_than(0, NOW, &mut entropy), None);
    }

    #[test]
    fn equals_take_turns() {
        let loads = Loads::new(4);
        let mut entropy = Entropy::new();
        loads.add(0);
        let chosen: std::collections::HashSet<_> = (0..200)
            .map(|_| loads.better_than(0, NOW, &mut entropy))
            .collect();
        assert_eq!(chosen, [Some(1), Some(2), Some(3)].into());
    }
}
