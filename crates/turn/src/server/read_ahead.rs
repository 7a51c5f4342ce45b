//! Loads what datagrams need into the caches, before the first of them is handled.
//!
//! With thousands of allocations whose clients send in random order, each table look-up for a datagram is a cache miss.
//! Each look-up also requires the result of the one before: index, client, relay, channel. One datagram after the other
//! would wait for all of these. Here each step is done for all datagrams before the next step, so the processor waits
//! for their misses together. Nothing is decided here. An address that is not found, or that belongs to another client,
//! is read without effect.

use std::hint::black_box;

use super::Server;
use super::allocation::Stage;
use super::relay::Relay;
use crate::{FiveTuple, RelayKey};

/// Where a datagram has arrived that will be handled soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// ChannelData from a client.
    Client(FiveTuple),
    /// From a peer, at this relay.
    Peer(RelayKey),
    /// Any other datagram: nothing is read for it.
    Other,
}

/// No entry: no slab grows to this.
const NO_ENTRY: u32 = u32::MAX;

impl Server {
    /// The limit of arrivals per [`read_ahead`](Self::read_ahead). Their cache lines and payloads fit into the
    /// first-level cache.
    pub const READ_AHEAD: usize = 32;

    /// From this number of relays on, their state exceeds the second-level cache of common processors. Below it,
    /// reading ahead costs time and gains nothing.
    const MIN_RELAYS: u64 = 2048;

    /// Whether reading ahead is worth the while.
    #[inline]
    #[must_use]
    pub const fn reads_ahead(&self) -> bool {
        self.stats.relays >= Self::MIN_RELAYS
    }

    /// Reads what the next datagrams, at most [`READ_AHEAD`](Self::READ_AHEAD), will need. Returns the indices of the
    /// relays that they probably go through, [`u32::MAX`] where there is none.
    pub fn read_ahead(&self, arrivals: impl Iterator<Item = Arrival>) -> [u32; Self::READ_AHEAD] {
        let mut clients = [NO_ENTRY; Self::READ_AHEAD];
        let mut relays = [NO_ENTRY; Self::READ_AHEAD];
        let places = clients.iter_mut().zip(&mut relays);
        for ((client, relay), arrival) in places.zip(arrivals) {
            match arrival {
                Arrival::Client(five_tuple) => {
                    *client = self.clients.guess(&five_tuple).unwrap_or(NO_ENTRY)
                }
                Arrival::Peer(key) => *relay = key.index,
                Arrival::Other => {}
            }
        }
        self.read_clients(&clients, &mut relays);
        self.read_relays(&relays, &mut clients);
        self.read_channels(&relays, &clients);
        relays
    }

    /// The clients, and so the relays of those that sent something.
    fn read_clients(&self, clients: &[u32], relays: &mut [u32]) {
        for (client, relay) in clients.iter().zip(relays) {
            if *client != NO_ENTRY
                && let Some(client) = self.clients.get(*client)
                && let Stage::Open(allocation) = &client.stage
            {
                black_box(client.path.port());
                *relay = allocation.relays().next().unwrap_or(NO_ENTRY);
            }
        }
    }

    /// The relays, and so the clients of those that get something.
    fn read_relays(&self, relays: &[u32], clients: &mut [u32]) {
        for (relay, client) in relays.iter().zip(clients) {
            if *relay != NO_ENTRY
                && let Some(Relay::Live(live)) = self.relays.get(*relay)
            {
                black_box(live.expires);
                *client = live.client;
            }
        }
    }

    /// The first channels, and the clients again: in the cache already for what clients send.
    fn read_channels(&self, relays: &[u32], clients: &[u32]) {
        for (relay, client) in relays.iter().zip(clients) {
            if *relay == NO_ENTRY {
                continue;
            }
            if let Some(Relay::Live(live)) = self.relays.get(*relay) {
                black_box(live.channels.any_number());
            }
            if let Some(client) = self.clients.get(*client) {
                black_box(client.path.port());
            }
        }
    }
}
