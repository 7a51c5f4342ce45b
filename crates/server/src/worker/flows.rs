//! The worker's side of relaying in the kernel: its channels, as entries in the program's table.
//!
//! ```text
//!  Offload ──▶ two next hops ──▶ client ─▶ peer and peer ─▶ client entered ──▶ the response leaves
//!  StopOffload  ──▶ both removed, with what they have counted ──▶ next hops given back
//! ```
//! Both directions are entered, or none. If any step fails, the channel stays in user space, without a notification.
//! The entries end by themselves at their deadline, so a worker that stalls prolongs nothing.

use crate::addresses::RelayAddresses;
use crate::counters::Counters;
use crate::offload::{Flowing, NextHopTable};
use crate::rates::Numbers;
use bpf::relay::{Counts, FlowEntry, FlowKey, InsertError};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;
use turn::Mono;
use turn::server::{OffloadedChannel, RelayDirection, Traffic};

/// What went over a channel, to the peer and to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChannelTraffic {
    pub(crate) to_peer: Traffic,
    pub(crate) to_client: Traffic,
}

/// The entries of one worker.
#[derive(Debug)]
pub(crate) struct Flows {
    table: Box<dyn Flowing>,
    next_hops: Arc<NextHopTable>,
    relays: Arc<RelayAddresses>,
    numbers: Arc<Numbers>,
    /// Allocations have a rate limit.
    limited: bool,
    /// Which change of the routes the next hops are of.
    routes_seen: u32,
    /// The relay from which on the next hops of channels are looked at again.
    recheck_from: Option<u32>,
    /// By the allocation's place and the channel's number.
    entered: HashMap<(u32, u16), ChannelEntries>,
}

/// A channel whose entries are in the table.
#[derive(Debug, Clone, Copy)]
struct ChannelEntries {
    /// What its flows had counted when they were last read: to the peer, and to the client.
    read: [Counts; 2],
    /// [`NextHopTable::NONE`] if, and only if, the peer is a relay of ours.
    hop_to_peer: u32,
    hop_to_client: u32,
    /// When its entries end; never, if they are to be written in any case.
    deadline: Mono,
}

impl ChannelEntries {
    fn is_own_relay(&self) -> bool {
        self.hop_to_peer == NextHopTable::NONE
    }

    /// What its flows have counted since they were last read. A flow that is not in the table has counted nothing.
    fn read(&mut self, counts: [Option<Counts>; 2]) -> ChannelTraffic {
        let mut carried = [Traffic::default(); 2];
        for ((known, counts), carried) in self.read.iter_mut().zip(counts).zip(&mut carried) {
            let counts = counts.unwrap_or(*known);
            let known = std::mem::replace(known, counts);
            *carried = Traffic {
                packets: counts.packets.wrapping_sub(known.packets).into(),
                bytes: counts.bytes.wrapping_sub(known.bytes),
            };
        }
        let [to_peer, to_client] = carried;
        ChannelTraffic { to_peer, to_client }
    }

    /// Whether the entries are good enough for this end, too.
    fn lasts_until(&self, deadline: Mono) -> bool {
        self.deadline <= deadline && deadline.since(self.deadline) < REFRESH_SLACK
    }
}

/// An end that moves on by less than this is not written: user space relays for the short time that is left. Every
/// request moves the ends of all channels to an address, and clients with many channels refresh them one by one.
const REFRESH_SLACK: Duration = Duration::from_secs(5);

/// Part of what a channel costs in user memory.
const _: () = assert!(size_of::<((u32, u16), ChannelEntries)>() <= 64);

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
    /// The addresses in the table would be those of another flow.
    Unfit,
}

impl From<InsertError> for Refusal {
    fn from(error: InsertError) -> Refusal {
        match error {
            InsertError::Full => Refusal::Full,
            _ => Refusal::Unfit,
        }
    }
}

impl Flows {
    /// `table` is this worker's handle; its allocations' buckets are those of `numbers`.
    pub(crate) fn new(
        table: Box<dyn Flowing>,
        next_hops: Arc<NextHopTable>,
        numbers: Arc<Numbers>,
        relays: Arc<RelayAddresses>,
    ) -> Flows {
        let next_hops_changes = next_hops.changes();
        Flows {
            table,
            next_hops,
            relays,
            numbers,
            limited: false,
            routes_seen: next_hops_changes,
            recheck_from: None,
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

    /// The relay from which the engine must describe its channels again, because routes have changed; `None` if all
    /// next hops are correct.
    pub(crate) fn recheck_from(&mut self) -> Option<u32> {
        let changes = self.next_hops.changes();
        if changes != self.routes_seen {
            self.routes_seen = changes;
            self.recheck_from = Some(0);
        }
        self.recheck_from
    }

    /// The channels of relays before this one have been described again; `None` if all have.
    pub(crate) fn rechecked_until(&mut self, relay: Option<u32>) {
        self.recheck_from = relay;
    }

    /// How many channels have entries.
    pub(crate) fn len(&self) -> usize {
        self.entered.len()
    }

    /// Enters a channel, or what has changed about it. Returns the traffic since the last call. Channels are refreshed
    /// every few minutes, so no counter of 32 bits wraps unnoticed.
    pub(crate) fn offload(
        &mut self,
        channel: &OffloadedChannel,
        own_relay: bool,
        deadline: Mono,
        counters: &mut Counters,
    ) -> ChannelTraffic {
        let Some(keys) = self.keys(channel) else {
            counters.offload_unfit += 1;
            return ChannelTraffic::default();
        };
        let key = (channel.allocation.index, channel.number.get());
        let Ok(former) = self.exchange_hops(key, &keys) else {
            counters.offload_full += 1;
            return self.take_out(key, &keys);
        };
        let carried = self.describe(channel, &keys, own_relay, deadline, counters);
        if let Some(former) = former {
            // Only now does no entry name them any more.
            self.release(former);
        }
        carried
    }

    /// Enters a channel, or what has changed about it, with the next hops that it has.
    fn describe(
        &mut self,
        channel: &OffloadedChannel,
        keys: &Keys,
        own_relay: bool,
        deadline: Mono,
        counters: &mut Counters,
    ) -> ChannelTraffic {
        let key = (channel.allocation.index, channel.number.get());
        let known = self.entered.get(&key).copied();
        let mut carried = ChannelTraffic::default();
        match known {
            Some(entered) if entered.is_own_relay() != own_relay => {
                carried = self.take_out(key, keys);
            }
            Some(entered) if entered.lasts_until(deadline) => return carried,
            _ => {}
        }
        let outcome = match self.entered.get(&key).copied() {
            Some(entered) => Ok(entered),
            None => self.begin(key, keys, own_relay),
        };
        let outcome =
            outcome.and_then(|entered| self.enter(channel, keys, &entered, own_relay, deadline));
        let counter = match outcome {
            Ok(()) if known.is_some() => {
                carried += self.collect(key, keys);
                return carried;
            }
            Ok(()) => &mut counters.offload_entered,
            Err(Refusal::Full) => &mut counters.offload_full,
            Err(Refusal::Unfit) => &mut counters.offload_unfit,
        };
        *counter += 1;
        if outcome.is_err() {
            // An entry that could not be changed must not stay: its end may have come nearer.
            carried += self.take_out(key, keys);
        }
        carried
    }

    /// Takes a channel's entries out; says what went over them.
    pub(crate) fn stop_offload(&mut self, channel: &OffloadedChannel) -> ChannelTraffic {
        let key = (channel.allocation.index, channel.number.get());
        match self.keys(channel) {
            Some(keys) => self.take_out(key, &keys),
            None => ChannelTraffic::default(),
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

    /// Takes next hops for a channel, or nothing.
    fn begin(
        &mut self,
        key: (u32, u16),
        keys: &Keys,
        own_relay: bool,
    ) -> Result<ChannelEntries, Refusal> {
        let hops = self.acquire(keys, own_relay);
        let [hop_to_peer, hop_to_client] = hops.ok_or(Refusal::Full)?;
        let entered = ChannelEntries {
            read: [Counts::default(); 2],
            hop_to_peer,
            hop_to_client,
            deadline: Mono::NEVER,
        };
        self.entered.insert(key, entered);
        Ok(entered)
    }

    /// Takes the next hops of a channel as routes are now, if they may be others than before, and returns those it had.
    /// They must not be released before its entries are written.
    fn exchange_hops(&mut self, key: (u32, u16), keys: &Keys) -> Result<Option<[u32; 2]>, Refusal> {
        let Some(entered) = self
            .entered
            .get(&key)
            .filter(|_| self.recheck_from.is_some())
        else {
            return Ok(None);
        };
        let former = [entered.hop_to_peer, entered.hop_to_client];
        let hops = self.acquire(keys, entered.is_own_relay());
        let hops = hops.ok_or(Refusal::Full)?;
        if hops == former {
            self.release(hops);
            return Ok(None);
        }
        if let Some(entered) = self.entered.get_mut(&key) {
            [entered.hop_to_peer, entered.hop_to_client] = hops;
            entered.deadline = Mono::NEVER;
        }
        Ok(Some(former))
    }

    /// Takes the next hops to the peer and to the client, or none of them if the table is full.
    fn acquire(&self, keys: &Keys, own_relay: bool) -> Option<[u32; 2]> {
        let hop = |key: &FlowKey| self.next_hops.acquire(key.local.ip(), key.remote.ip());
        let hops = match own_relay {
            true => [NextHopTable::NONE, hop(&keys.from_client)],
            false => [hop(&keys.from_peer), hop(&keys.from_client)],
        };
        let lacks_one =
            hops[1] == NextHopTable::NONE || !own_relay && hops[0] == NextHopTable::NONE;
        if lacks_one {
            self.release(hops);
            return None;
        }
        Some(hops)
    }

    /// Gives next hops back.
    fn release(&self, hops: [u32; 2]) {
        for hop in hops {
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
        entered: &ChannelEntries,
        own_relay: bool,
        deadline: Mono,
    ) -> Result<(), Refusal> {
        let bucket = |direction| match self.limited {
            true => {
                let bucket = self.numbers.bucket(channel.allocation.index, direction);
                bucket.map(Some).ok_or(Refusal::Full)
            }
            false => Ok(None),
        };
        // Between two relays of this server, no packet is sent. The program looks up the flow of the other relay, from
        // the address by which the other client knows this one.
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
            bucket: bucket(RelayDirection::ToPeer)?,
            deadline_ns: deadline.0,
            settles: true,
        };
        let to_client = FlowEntry {
            source: keys.from_client.local,
            destination: keys.from_client.remote,
            channel: keys.from_client.channel,
            own_relay: false,
            next_hop: entered.hop_to_client,
            bucket: bucket(RelayDirection::ToClient)?,
            deadline_ns: deadline.0,
            settles: true,
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
    fn collect(&mut self, key: (u32, u16), keys: &Keys) -> ChannelTraffic {
        let counts = [keys.from_client, keys.from_peer].map(|flow| self.table.counts(&flow));
        match self.entered.get_mut(&key) {
            Some(entered) => entered.read(counts),
            None => ChannelTraffic::default(),
        }
    }

    /// Takes out what there is of a channel.
    fn take_out(&mut self, key: (u32, u16), keys: &Keys) -> ChannelTraffic {
        let Some(mut entered) = self.entered.remove(&key) else {
            return ChannelTraffic::default();
        };
        let counts = [keys.from_client, keys.from_peer].map(|flow| self.table.remove(&flow));
        self.release([entered.hop_to_peer, entered.hop_to_client]);
        entered.read(counts)
    }
}

/// Whether an address is good on one link only.
fn is_on_link(address: &SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl AddAssign for ChannelTraffic {
    fn add_assign(&mut self, other: ChannelTraffic) {
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
