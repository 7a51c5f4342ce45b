//! The numbers of workers, and the slots of their sockets, while two processes share the listeners' groups.
//!
//! ```text
//!  numbers   0 1 │ 2 3 4        each worker of the two processes has a number of its own
//!  slots     listener 0: worker 0, worker 1 │ listener 1: worker 0, worker 1 │ ...
//! ```

use bpf::steer::SlotRange;
use std::net::SocketAddr;
use std::sync::Arc;

/// The numbers of a process's workers, and where their sockets are in the steering program's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbering {
    /// The number of the first worker.
    pub(crate) first_worker: u16,
    /// How many workers, at least 1.
    pub(crate) workers: u16,
    /// The slot of the first worker's socket of the first listener.
    pub(crate) first_slot: u32,
}

impl Numbering {
    /// Of a process that shares nothing with another one.
    pub(crate) fn alone(workers: usize) -> Numbering {
        Numbering {
            first_worker: 0,
            workers: u16::try_from(workers).unwrap_or(u16::MAX).max(1),
            first_slot: 0,
        }
    }

    /// The number of a worker.
    pub(crate) const fn number(self, worker: u16) -> u16 {
        self.first_worker + worker
    }

    /// The index of the worker with this number, from 0; `None` if the worker belongs to another process.
    pub(crate) fn index(self, number: u16) -> Option<u16> {
        let worker = number.checked_sub(self.first_worker)?;
        (worker < self.workers).then_some(worker)
    }

    /// The slot of a worker's socket of a listener.
    pub(crate) fn slot(self, listener: u32, worker: u16) -> u32 {
        self.first_slot + listener * u32::from(self.workers) + u32::from(worker)
    }

    /// The worker whose socket of this listener is in this slot.
    pub(crate) fn worker_at(self, listener: u32, slot: u32) -> Option<u16> {
        let worker = slot.checked_sub(self.slot(listener, 0))?;
        let worker = u16::try_from(worker).ok()?;
        (worker < self.workers).then_some(worker)
    }

    /// The slots of a listener's sockets.
    pub(crate) fn slots_of(self, listener: u32) -> SlotRange {
        SlotRange {
            first: self.slot(listener, 0),
            count: self.workers.into(),
        }
    }

    /// The slots of this many listeners.
    pub(crate) fn slots(self, listeners: usize) -> SlotRange {
        SlotRange {
            first: self.first_slot,
            count: u32::try_from(listeners).unwrap_or(u32::MAX) * u32::from(self.workers),
        }
    }

    /// Numbers and slots for a process that takes over from this one, which has `listeners`; that process has `workers`
    /// workers and `new_listeners`. `None` if there are not enough numbers: one byte has to hold each.
    pub(crate) fn next(
        self,
        listeners: usize,
        workers: usize,
        new_listeners: usize,
    ) -> Option<Numbering> {
        let workers = u16::try_from(workers).ok()?;
        let after = self.first_worker + self.workers;
        let first_worker = match workers {
            _ if after + workers <= MAX_NUMBERS => after,
            _ if workers <= self.first_worker => 0,
            _ => return None,
        };
        let next = Numbering {
            first_worker,
            workers,
            first_slot: 0,
        };
        let (own, wanted) = (self.slots(listeners), next.slots(new_listeners).count);
        let first_slot = match wanted <= own.first {
            true => 0,
            false => own.first + own.count,
        };
        Some(Numbering { first_slot, ..next })
    }
}

/// Mobility tickets, connection identifiers and reservation tokens hold a worker's number in one byte.
const MAX_NUMBERS: u16 = 256;

/// The workers of another process.
#[derive(Debug, Clone)]
pub(crate) struct Foreign {
    pub(crate) numbering: Numbering,
    /// Its UDP listeners, in the order of their slots.
    pub(crate) listeners: Arc<[SocketAddr]>,
}

impl Foreign {
    /// The slot of the socket by which datagrams to this local address reach the worker with this number.
    pub(crate) fn slot(&self, local: SocketAddr, number: u16) -> Option<u32> {
        let worker = self.numbering.index(number)?;
        let is_exact = |listener: &SocketAddr| *listener == local;
        let covers = |listener: &SocketAddr| {
            let same = listener.port() == local.port() && listener.is_ipv4() == local.is_ipv4();
            same && listener.ip().is_unspecified()
        };
        let exact = self.listeners.iter().position(is_exact);
        let listener = exact.or_else(|| self.listeners.iter().position(covers))?;
        let listener = u32::try_from(listener).ok()?;
        Some(self.numbering.slot(listener, worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_never_have_a_number_or_a_slot_in_common() {
        let mut old = Numbering::alone(3);
        for (workers, listeners) in [(2, 4), (200, 1), (40, 9), (1, 1), (7, 2), (255, 3)] {
            let Some(next) = old.next(4, workers, listeners) else {
                assert!(workers + usize::from(old.workers) > 128);
                continue;
            };
            let numbers = next.first_worker..next.first_worker + next.workers;
            assert!(numbers.end <= MAX_NUMBERS);
            assert!(numbers.clone().all(|number| old.index(number).is_none()));
            let (own, new) = (old.slots(4), next.slots(listeners));
            let apart = own.first + own.count <= new.first || new.first + new.count <= own.first;
            assert!(apart, "{own:?} {new:?}");
            old = next;
        }
    }

    #[test]
    fn a_slot_names_its_worker_and_its_listener() {
        let numbering = Numbering {
            first_worker: 4,
            workers: 3,
            first_slot: 10,
        };
        assert_eq!(numbering.slot(2, 1), 17);
        assert_eq!(numbering.worker_at(2, 17), Some(1));
        assert_eq!(numbering.worker_at(2, 19), None);
        assert_eq!(numbering.worker_at(2, 15), None);
        assert_eq!((numbering.index(3), numbering.index(6)), (None, Some(2)));
        let foreign = Foreign {
            numbering,
            listeners: ["192.0.2.1:3478", "0.0.0.0:5000"]
                .map(|address| address.parse().expect("an address"))
                .into(),
        };
        let slot = |local: &str, number| foreign.slot(local.parse().expect("an address"), number);
        assert_eq!(slot("192.0.2.1:3478", 5), Some(11));
        assert_eq!(slot("192.0.2.9:5000", 4), Some(13));
        assert_eq!(slot("[2001:db8::1]:5000", 4), None);
        assert_eq!(slot("192.0.2.1:3478", 0), None);
    }
}
