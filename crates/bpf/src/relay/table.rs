//! The table of flows, and what went over them.

use std::hash::RandomState;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::counters::Counters;
use super::layout::{self, ENTRY, KEY_V4, KEY_V6, Key};
use super::settling::Settling;
use crate::BpfError;
use crate::sys::RawMap;

/// One direction of a channel, as its packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Where the packets come from.
    pub remote: SocketAddr,
    /// Where they go to: a listener's or a relay's address on this machine, never a wildcard. Of `remote`'s family, and
    /// no IPv4 address in IPv6's clothes.
    pub local: SocketAddr,
    /// The channel that they are on, from a client; `None` from a peer.
    pub channel: Option<u16>,
}

/// What becomes of the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// What they leave from: a relay's or a listener's address on this machine.
    pub source: SocketAddr,
    /// Where they go to. Of `source`'s family, which need not be the family of the key.
    pub destination: SocketAddr,
    /// The channel that they leave on, to a client; `None` to a peer.
    pub channel: Option<u16>,
    /// The peer is a relayed address of this server: `destination` is where that relay has its socket, `source` is what
    /// *its* client knows the sender as, and the entry of (`source`, `destination`, no channel) says how it goes on.
    /// Then `next_hop` is not looked at, and `channel` is `None`.
    pub own_relay: bool,
    /// Index of the next hop; what is none (0, or out of range) makes the packets pass to user space.
    pub next_hop: u32,
    /// Index of the counter; each entry has its own.
    pub counter: u32,
    /// Index of the allocation's rate limit; `None` has none.
    pub bucket: Option<u32>,
    /// CLOCK_MONOTONIC in nanoseconds: from then on packets pass to user space. Seen up to a timer tick (1 to 10 ms) late.
    pub deadline_ns: u64,
}

/// Why a flow was not entered. Then nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// The table is full: user space relays.
    #[error("the table of relayed flows is full")]
    Full,
    /// Two addresses that belong together are of two families.
    #[error("the two addresses of one side of a flow must be of one address family")]
    MixedFamilies,
    /// The kernel refuses otherwise, for example for want of memory.
    #[error("the table of relayed flows: {0}")]
    Refused(io::Error),
}

/// What one counter has counted since the programs were loaded, on all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets relayed; modulo 2^32.
    pub packets: u32,
    /// Their payload without TURN's framing.
    pub bytes: u64,
    /// CLOCK_MONOTONIC in seconds of a recent packet; 0 before the first. Stays what it was when an index is used again.
    pub last_seen_s: u32,
}

/// The table of flows, for one thread. A system call per change, nothing allocated.
#[derive(Debug)]
pub struct Table {
    v4: RawMap<KEY_V4, ENTRY>,
    v6: RawMap<KEY_V6, ENTRY>,
    counters: Counters,
    settling: Settling,
    labels: RandomState,
}

impl Table {
    /// Over the maps FLOWS_V4 and FLOWS_V6.
    pub(super) fn new(
        v4: OwnedFd,
        v6: OwnedFd,
        counters: Counters,
        settling: Settling,
        labels: RandomState,
    ) -> Table {
        // SAFETY: the sizes are those of `relay_maps.h`, and neither map is per processor.
        let (v4, v6) = unsafe { (RawMap::new(v4, 1), RawMap::new(v6, 1)) };
        Table {
            v4,
            v6,
            counters,
            settling,
            labels,
        }
    }

    /// Another handle to the same table, for another thread.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn again(&self) -> Result<Table, BpfError> {
        let again = || -> io::Result<Table> {
            Ok(Table {
                v4: self.v4.again()?,
                v6: self.v6.again()?,
                counters: self.counters.clone(),
                settling: self.settling.clone(),
                labels: self.labels.clone(),
            })
        };
        again().map_err(BpfError::Descriptor)
    }

    /// The flow of this counter begins: what came of it so far may still wait in user space. Its entry, made next, is used
    /// after a pause of 2 ms in the flow, or after 200 ms without one, so that packets do not overtake each other. Without
    /// this, an entry is used at once.
    pub fn begin(&mut self, counter: u32) {
        self.settling.begin(counter);
    }

    /// Enters a flow, or replaces its entry; from the next packet on.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError> {
        let settled = self.settling.is_over(entry.counter);
        let bytes =
            layout::entry(key, entry, settled, &self.labels).ok_or(InsertError::MixedFamilies)?;
        match Key::new(key).ok_or(InsertError::MixedFamilies)? {
            Key::V4(key) => self.v4.set(&key, &bytes),
            Key::V6(key) => self.v6.set(&key, &bytes),
        }
        .map_err(|error| match error.raw_os_error() {
            Some(libc::E2BIG) => InsertError::Full,
            _ => InsertError::Refused(error),
        })
    }

    /// Leaves a flow to user space, from the next packet on. Returns whether it had an entry.
    pub fn remove(&mut self, key: &FlowKey) -> bool {
        match Key::new(key) {
            Some(Key::V4(key)) => self.v4.remove(&key).is_ok(),
            Some(Key::V6(key)) => self.v6.remove(&key).is_ok(),
            None => false,
        }
    }

    /// What a counter has counted; nothing if there is no such counter. Whoever uses an index again takes the difference.
    /// No system call.
    #[must_use]
    pub fn counts(&self, counter: u32) -> Counts {
        self.counters.sum(counter)
    }
}
