//! The worker's side of relaying in the kernel: its channels, as entries in the program's table.
//!
//! ```text
//!  Offload ──▶ a number (two counters), two next hops ──▶ client ─▶ peer and peer ─▶ client entered ──▶ the answer leaves
//!  Onload  ──▶ both taken out ──▶ counters read, their difference to the engine ──▶ number and next hops given back
//! ```
//! Both directions are entered, or none. Whatever does not work out leaves the channel to user space, which needs nothing to be
//! told. The entries end by themselves at their deadline, so a worker that stalls prolongs nothing.

use crate::addresses::RelayAddresses;
use crate::counters::Counters;
use crate::offload::{Chunks, Flowing, NextHopTable, Places};
use bpf::relay::{Counts, FlowEntry, FlowKey, InsertError};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;
use turn::Mono;
use turn::server::{OffloadedChannel, Traffic};

/// What went over a channel, to the peer and to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) to_peer: Traffic,
    pub(crate) to_client: Traffic,
}

/// The entries of one worker.
#[derive(Debug)]
pub(crate) struct Flows {
    table: Box<dyn Flowing>,
    next_hops: Arc<NextHopTable>,
    relays: Arc<RelayAddresses>,
    places: Arc<Places>,
    /// Allocations have a rate limit.
    limited: bool,
    numbers: Numbers,
    /// By the allocation's place and the channel's number.
    entered: HashMap<(u32, u16), Entered>,
}

/// A channel whose entries are in the table.
#[derive(Debug, Clone, Copy)]
struct Entered {
    number: Number,
    /// [`NextHopTable::NONE`] if, and only if, the peer is a relay of ours.
    hop_to_peer: u32,
    hop_to_client: u32,
    /// When its entries end; never, if they are to be written in any case.
    deadline: Mono,
}

impl Entered {
    fn is_own_relay(&self) -> bool {
        self.hop_to_peer == NextHopTable::NONE
    }

    /// Whether the entries are good enough for this end, too.
    fn lasts_until(&self, deadline: Mono) -> bool {
        self.deadline <= deadline && deadline.since(self.deadline) < SLACK
    }
}

/// An end that moves on by less than this is not written: user space relays for the short time that is left. Every request
/// moves the ends of all channels to an address, and clients with many channels refresh them one by one.
const SLACK: Duration = Duration::from_secs(5);

/// Part of what a channel costs in user memory.
const _: () = assert!(size_of::<((u32, u16), Entered)>() <= 56);

/// The two keys of a channel.
#[derive(Debug, Clone, Copy)]
struct Keys {
    from_client: FlowKey,
    from_peer: FlowKey,
}

/// Why a channel stays in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// One of the tables is full.
    Full,
    /// The kernel does not take the entry.
    Kernel,
    /// Its addresses cannot be told apart in the table.
    Unfit,
}

impl From<InsertError> for Refusal {
    fn from(error: InsertError) -> Refusal {
        match error {
            InsertError::Full => Refusal::Full,
            _ => Refusal::Kernel,
        }
    }
}

impl Flows {
    /// `table` is this worker's handle; its allocations' buckets are at `places`.
    pub(crate) fn new(
        table: Box<dyn Flowing>,
        next_hops: Arc<NextHopTable>,
        channels: Arc<Chunks>,
        places: Arc<Places>,
        relays: Arc<RelayAddresses>,
    ) -> Flows {
        Flows {
            table,
            next_hops,
            relays,
            places,
            limited: false,
            numbers: Numbers::new(channels),
            entered: HashMap::new(),
        }
    }

    /// Allocations have a rate limit from now on, or none. The engine describes all channels again if that changes.
    pub(crate) fn set_limited(&mut self, limited: bool) {
        if limited != self.limited {
            self.limited = limited;
            let entered = self.entered.values_mut();
            entered.for_each(|entered| entered.deadline = Mono::NEVER);
        }
    }

    /// How many channels have entries.
    pub(crate) fn len(&self) -> usize {
        self.entered.len()
    }

    /// Enters a channel, or what has changed about it. Returns what it has carried since the last time: channels are refreshed
    /// every few minutes, so that no counter ever gets around its 32 bits unseen.
    pub(crate) fn offload(
        &mut self,
        channel: &OffloadedChannel,
        own_relay: bool,
        deadline: Mono,
        counters: &mut Counters,
    ) -> Carried {
        let Some(keys) = self.keys(channel) else {
            counters.offload_unfit += 1;
            return Carried::default();
        };
        let key = (channel.allocation.index, channel.number.get());
        let known = self.entered.get(&key).copied();
        let mut carried = Carried::default();
        match known {
            Some(entered) if entered.is_own_relay() != own_relay => {
                carried = self.take_out(key, &keys);
            }
            Some(entered) if entered.lasts_until(deadline) => return carried,
            _ => {}
        }
        let outcome = match self.entered.get(&key).copied() {
            Some(entered) => Ok(entered),
            None => self.begin(key, channel, &keys, own_relay),
        };
        let outcome =
            outcome.and_then(|entered| self.enter(channel, &keys, &entered, own_relay, deadline));
        let counter = match outcome {
            Ok(()) if known.is_some() => {
                carried += self.collect(key);
                return carried;
            }
            Ok(()) => &mut counters.offload_entered,
            Err(Refusal::Full) => &mut counters.offload_full,
            Err(Refusal::Kernel) => &mut counters.offload_refused,
            Err(Refusal::Unfit) => &mut counters.offload_unfit,
        };
        *counter += 1;
        if outcome.is_err() {
            // An entry that could not be changed must not stay: its end may have come nearer.
            carried += self.take_out(key, &keys);
        }
        carried
    }

    /// Takes a channel's entries out; says what went over them.
    pub(crate) fn onload(&mut self, channel: &OffloadedChannel) -> Carried {
        let key = (channel.allocation.index, channel.number.get());
        match self.keys(channel) {
            Some(keys) => self.take_out(key, &keys),
            None => Carried::default(),
        }
    }

    /// The keys of a channel's packets; `None` for addresses that mean something else on each link.
    fn keys(&self, channel: &OffloadedChannel) -> Option<Keys> {
        let five_tuple = &channel.path.five_tuple;
        if [five_tuple.remote, five_tuple.local].iter().any(is_on_link) {
            return None;
        }
        Some(Keys {
            from_client: FlowKey {
                remote: five_tuple.remote,
                local: five_tuple.local,
                channel: Some(channel.number.get()),
            },
            from_peer: FlowKey {
                remote: channel.peer,
                local: self.socket_of(channel.relayed)?,
                channel: None,
            },
        })
    }

    /// What a relay of ours is bound to.
    fn socket_of(&self, relayed: SocketAddr) -> Option<SocketAddr> {
        let relay = self.relays.find(relayed.ip())?;
        let local = self.relays.address(relay).local;
        Some(SocketAddr::new(local, relayed.port()))
    }

    /// Takes a number and next hops for a channel, or nothing.
    fn begin(
        &mut self,
        key: (u32, u16),
        channel: &OffloadedChannel,
        keys: &Keys,
        own_relay: bool,
    ) -> Result<Entered, Refusal> {
        let number = self.numbers.take().ok_or(Refusal::Full)?;
        let to_peer = (keys.from_peer.local.ip(), channel.peer.ip());
        let to_client = (keys.from_client.local.ip(), keys.from_client.remote.ip());
        let hop = |(local, to): (IpAddr, IpAddr)| self.next_hops.acquire(local, to);
        let entered = Entered {
            number,
            hop_to_peer: if own_relay {
                NextHopTable::NONE
            } else {
                hop(to_peer)
            },
            hop_to_client: hop(to_client),
            deadline: Mono::NEVER,
        };
        let lacks_hop = entered.is_own_relay() != own_relay;
        if lacks_hop || entered.hop_to_client == NextHopTable::NONE {
            self.release(&entered);
            self.numbers.free.push(number);
            return Err(Refusal::Full);
        }
        for counter in [number.to_peer(), number.to_client()] {
            self.table.begin(counter);
        }
        self.entered.insert(key, entered);
        Ok(entered)
    }

    /// Gives the next hops of a channel back.
    fn release(&self, entered: &Entered) {
        for hop in [entered.hop_to_peer, entered.hop_to_client] {
            if hop != NextHopTable::NONE {
                self.next_hops.release(hop);
            }
        }
    }

    /// Writes both entries.
    fn enter(
        &mut self,
        channel: &OffloadedChannel,
        keys: &Keys,
        entered: &Entered,
        own_relay: bool,
        deadline: Mono,
    ) -> Result<(), Refusal> {
        let bucket = match self.limited {
            true => Some(
                self.places
                    .bucket(channel.allocation.index)
                    .ok_or(Refusal::Full)?,
            ),
            false => None,
        };
        // Between two relays of ours nothing travels: the program looks up what the other relay does with it, from the
        // address that the other client knows this one by.
        let (source, destination) = match own_relay {
            true => (
                channel.relayed,
                self.socket_of(channel.peer).ok_or(Refusal::Unfit)?,
            ),
            false => (keys.from_peer.local, channel.peer),
        };
        let to_peer = FlowEntry {
            source,
            destination,
            channel: None,
            own_relay,
            next_hop: entered.hop_to_peer,
            counter: entered.number.to_peer(),
            bucket,
            deadline_ns: deadline.0,
        };
        let to_client = FlowEntry {
            source: keys.from_client.local,
            destination: keys.from_client.remote,
            channel: keys.from_client.channel,
            own_relay: false,
            next_hop: entered.hop_to_client,
            counter: entered.number.to_client(),
            bucket,
            deadline_ns: deadline.0,
        };
        self.table.insert(&keys.from_client, &to_peer)?;
        self.table.insert(&keys.from_peer, &to_client)?;
        let key = (channel.allocation.index, channel.number.get());
        if let Some(entered) = self.entered.get_mut(&key) {
            entered.deadline = deadline;
        }
        Ok(())
    }

    /// What a channel has carried since this was last asked.
    fn collect(&mut self, key: (u32, u16)) -> Carried {
        let Some(entered) = self.entered.get_mut(&key) else {
            return Carried::default();
        };
        let to_peer = self.table.counts(entered.number.to_peer());
        let to_client = self.table.counts(entered.number.to_client());
        entered.number.read(to_peer, to_client)
    }

    /// Takes out what there is of a channel.
    fn take_out(&mut self, key: (u32, u16), keys: &Keys) -> Carried {
        if !self.entered.contains_key(&key) {
            return Carried::default();
        }
        self.table.remove(&keys.from_client);
        self.table.remove(&keys.from_peer);
        let carried = self.collect(key);
        if let Some(entered) = self.entered.remove(&key) {
            self.release(&entered);
            self.numbers.free.push(entered.number);
        }
        carried
    }
}

/// Whether an address is good on one link only.
fn is_on_link(address: &SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The number of a channel, and where its two counters stood when they were last read: they are never reset, as the kernel may count at
/// that moment.
#[derive(Debug, Clone, Copy)]
struct Number {
    index: u32,
    packets: [u32; 2],
    bytes: [u64; 2],
}

impl Number {
    fn to_peer(self) -> u32 {
        2 * self.index
    }

    fn to_client(self) -> u32 {
        2 * self.index + 1
    }

    /// What the counters have counted since they were last read.
    fn read(&mut self, to_peer: Counts, to_client: Counts) -> Carried {
        Carried {
            to_peer: self.since(0, to_peer),
            to_client: self.since(1, to_client),
        }
    }

    fn since(&mut self, way: usize, counts: Counts) -> Traffic {
        let packets = std::mem::replace(&mut self.packets[way], counts.packets);
        let bytes = std::mem::replace(&mut self.bytes[way], counts.bytes);
        Traffic {
            packets: counts.packets.wrapping_sub(packets).into(),
            bytes: counts.bytes.wrapping_sub(bytes),
        }
    }
}

/// The numbers that this worker has.
#[derive(Debug)]
struct Numbers {
    pool: Arc<Chunks>,
    free: Vec<Number>,
}

impl Numbers {
    fn new(pool: Arc<Chunks>) -> Numbers {
        Numbers {
            pool,
            free: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<Number> {
        if self.free.is_empty() {
            let first = self.pool.take()?;
            let fresh = (first..first + Chunks::SIZE).rev();
            self.free.extend(fresh.map(|index| Number {
                index,
                packets: [0; 2],
                bytes: [0; 2],
            }));
        }
        self.free.pop()
    }
}

impl AddAssign for Carried {
    fn add_assign(&mut self, other: Carried) {
        for (sum, more) in [
            (&mut self.to_peer, other.to_peer),
            (&mut self.to_client, other.to_client),
        ] {
            sum.packets += more.packets;
            sum.bytes += more.bytes;
        }
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "flows_cost.rs"]
mod cost;
