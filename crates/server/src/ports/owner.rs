//! Which relay socket a relay port belongs to at this moment.

use super::PortRange;
use io::SharedWords;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The worker and the slot in that worker's relay table that own a port.
///
/// When the worker looks, the slot may belong to another relay. The worker compares the address of the relay with
/// the requested one, so an outdated result finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The worker's number, from 0.
    pub worker: u16,
    /// The slot in the worker's relay table.
    pub slot: u32,
}

/// One word per port of a relay address: `(worker + 1) << 32 | slot`, 0 while no live allocation owns the port. Another
/// process can read the words during an upgrade.
#[derive(Debug)]
pub struct OwnerTable {
    range: PortRange,
    words: Words,
}

#[derive(Debug)]
enum Words {
    Shared(SharedWords),
    /// The system has no memory that could be shared.
    Own(Box<[AtomicU64]>),
}

impl Words {
    fn of(count: usize) -> Words {
        match SharedWords::new(count) {
            Ok(words) => Words::Shared(words),
            Err(_) => Words::Own((0..count).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    fn all(&self) -> &[AtomicU64] {
        match self {
            Words::Shared(words) => words.words(),
            Words::Own(words) => words,
        }
    }
}

impl OwnerTable {
    /// A table in which no port of `range` has an owner.
    #[must_use]
    pub fn new(range: PortRange) -> OwnerTable {
        OwnerTable {
            range,
            words: Words::of(range.len()),
        }
    }

    /// A descriptor of the words for another process; `None` if they cannot be shared.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        match &self.words {
            Words::Shared(words) => std::os::fd::AsFd::as_fd(words).try_clone_to_owned().ok(),
            Words::Own(_) => None,
        }
    }

    /// Says that `owner` owns `port` from now on. Ports outside the range are ignored.
    pub fn set(&self, port: u16, owner: Owner) {
        if let Some(word) = self.word(port) {
            let value = (u64::from(owner.worker) + 1) << 32 | u64::from(owner.slot);
            word.store(value, Ordering::Release);
        }
    }

    /// Notes that no allocation owns `port` any more.
    pub fn clear(&self, port: u16) {
        if let Some(word) = self.word(port) {
            word.store(0, Ordering::Release);
        }
    }

    /// The owner of `port`, if a live allocation has it.
    #[must_use]
    pub fn get(&self, port: u16) -> Option<Owner> {
        let value = self.word(port)?.load(Ordering::Acquire);
        let worker = u16::try_from((value >> 32).checked_sub(1)?).ok()?;
        Some(Owner {
            worker,
            slot: (value & 0xffff_ffff) as u32,
        })
    }

    fn word(&self, port: u16) -> Option<&AtomicU64> {
        self.words
            .all()
            .get(usize::from(port.checked_sub(self.range.first())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_comes_and_goes() {
        let table = OwnerTable::new(PortRange::new(50_000, 50_009).expect("a valid range"));
        let owner = Owner {
            worker: 0,
            slot: u32::MAX,
        };
        assert_eq!(table.get(50_000), None);
        table.set(50_000, owner);
        table.set(50_009, Owner { worker: 7, slot: 0 });
        assert_eq!(table.get(50_000), Some(owner));
        assert_eq!(table.get(50_009), Some(Owner { worker: 7, slot: 0 }));
        table.clear(50_000);
        assert_eq!(table.get(50_000), None);
    }

    #[test]
    fn ports_outside_the_range_have_no_owner() {
        let table = OwnerTable::new(PortRange::new(50_000, 50_009).expect("a valid range"));
        table.set(50_010, Owner { worker: 1, slot: 1 });
        table.clear(49_999);
        assert_eq!(table.get(50_010), None);
        assert_eq!(table.get(49_999), None);
        assert_eq!(table.get(0), None);
    }
}
