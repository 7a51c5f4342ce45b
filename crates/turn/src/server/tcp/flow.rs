//! What bound connections relay: how much they may, and how much they have. Above the rate, a stream is
//! slowed down. A datagram would be dropped.

use super::super::Server;
use super::super::limiter::RelayDirection;
use super::super::output::Traffic;
use super::super::relay::Relay;
use super::Stage;
use crate::{ConnectionKey, Mono, Now};

impl Server {
    /// Bytes that may be relayed in this direction between a connection and its data connection now; `usize::MAX`
    /// without a rate limit or for an unknown connection.
    ///
    /// # Errors
    /// The rate limit is used up ([`Config::allocation_rate`](super::super::Config::allocation_rate)). Read nothing
    /// before the returned time, then call again.
    pub fn stream_allowance(
        &mut self,
        now: Now,
        connection: ConnectionKey,
        direction: RelayDirection,
    ) -> Result<usize, Mono> {
        match self.client_of(connection) {
            Some(place) => {
                let rate = self.rate_at(place);
                self.limiter.allowance(now.mono, place, direction, rate)
            }
            None => Ok(usize::MAX),
        }
    }

    /// Counts bytes that were relayed between a connection and its data connection, and charges them to the
    /// allocation's rate.
    pub fn add_stream_traffic(
        &mut self,
        now: Now,
        connection: ConnectionKey,
        to_peer: usize,
        to_client: usize,
    ) {
        let Some(place) = self.client_of(connection) else {
            return;
        };
        if let Some(found) = self.tcp.get(connection)
            && let Stage::Bound(traffic) = &mut found.stage
        {
            traffic.to_peer += to_peer as u64;
            traffic.to_client += to_client as u64;
            traffic.last = now.mono;
        }
        // What the allowance has let pass is charged even if the bucket is empty by now.
        for (direction, bytes) in [
            (RelayDirection::ToPeer, to_peer),
            (RelayDirection::ToClient, to_client),
        ] {
            self.limiter.admits(now.mono, place, direction, bytes);
        }
        self.stats.to_peers.add(0, to_peer);
        self.stats.to_clients.add(0, to_client);
        let client = self.clients.get_mut(place);
        if let Some(allocation) = client.and_then(|client| client.allocation_mut()) {
            allocation.to_peers.merge(bytes(to_peer));
            allocation.to_client.merge(bytes(to_client));
        }
    }

    /// The place of the client that a connection belongs to.
    fn client_of(&mut self, connection: ConnectionKey) -> Option<u32> {
        let relay = self.tcp.get(connection)?.relay;
        self.relays
            .get(relay)
            .and_then(Relay::live)
            .map(|live| live.client)
    }
}

/// Bytes of a stream, which is no datagrams.
const fn bytes(bytes: usize) -> Traffic {
    Traffic {
        packets: 0,
        bytes: bytes as u64,
    }
}
