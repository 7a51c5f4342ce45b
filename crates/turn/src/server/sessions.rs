//! Allocations for an operator: lists them in parts of limited size, and closes one of them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Server;
use super::allocation::{Client, Stage};
use super::output::{CloseReason, RelayedAddresses, Traffic};
use super::relay::{LiveRelay, Relay};
use super::tcp::BoundTraffic;
use crate::{AllocationKey, ClientPath, Mono, Now};

/// Limit of permissions, of channels and of data connections that a [`Session`] shows. An allocation can have more than
/// a thousand.
const MAX_SHOWN: usize = 16;

/// An allocation at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// Its name in this server.
    pub key: AllocationKey,
    /// The user name.
    pub user: String,
    /// The realm of the user.
    pub realm: String,
    /// The 5-tuple of the client, and the listener.
    pub path: ClientPath,
    /// The relayed transport addresses.
    pub relayed: RelayedAddresses,
    /// Time since the allocation was made.
    pub age: Duration,
    /// Time until it expires, unless the client refreshes it.
    pub expires_in: Duration,
    /// Packets and bytes relayed to peers. Those that the kernel relays are added when the allocation is refreshed.
    pub to_peers: Traffic,
    /// Packets and bytes relayed to the client, counted in the same way.
    pub to_client: Traffic,
    /// IP addresses with a permission, at most 16.
    pub permissions: Vec<IpAddr>,
    /// Peers that a channel is bound to, at most 16.
    pub channels: Vec<SocketAddr>,
    /// Permissions and channels beyond the first 16 of each.
    pub peers_omitted: usize,
    /// Connections with peers that have a data connection (RFC 6062), at most 16.
    pub data_connections: Vec<SessionDataConnection>,
    /// Data connections beyond the first 16.
    pub data_connections_omitted: usize,
}

/// A connection with a peer and its data connection (RFC 6062), as a [`Session`] shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionDataConnection {
    /// The peer.
    pub peer: SocketAddr,
    /// Bytes relayed to the peer.
    pub to_peer: u64,
    /// Bytes relayed to the client.
    pub to_client: u64,
    /// Time since the last bytes in either direction; without any, since the ConnectionBind request.
    pub idle: Duration,
}

/// Selects allocations. All conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// The user name contains this text.
    pub user: Option<String>,
    /// The client, a permission, a channel or a data connection's peer has this IP address.
    pub peer: Option<IpAddr>,
}

impl Server {
    /// Allocations in the slots of the table from `from` on. Reads at most `most` slots, and returns the next slot if
    /// there are more.
    #[must_use]
    pub fn sessions(
        &self,
        now: Now,
        from: u32,
        most: u32,
        filter: &SessionFilter,
    ) -> (Vec<Session>, Option<u32>) {
        let bound = u32::try_from(self.clients.slots_end()).unwrap_or(u32::MAX);
        let end = from.saturating_add(most).min(bound);
        let found = (from..end).filter_map(|place| {
            let client = self.clients.get(place)?;
            let fits = self.fits(client, filter);
            fits.then(|| self.session(now, place, client)).flatten()
        });
        (found.collect(), (end < bound).then_some(end))
    }

    /// Ends an allocation. Returns `false` if there is none with this key.
    pub fn close_session(&mut self, now: Now, key: AllocationKey) -> bool {
        let exists = self
            .clients
            .get_of_generation(key.index, key.generation)
            .is_some()
            && self.clients.allocation(key.index).is_some();
        if exists {
            self.close_client(now, key.index, CloseReason::Operator);
        }
        exists
    }

    fn fits(&self, client: &Client, filter: &SessionFilter) -> bool {
        let of_user = |text: &String| client.user.name().contains(text.as_str());
        let of_peer = |ip: &IpAddr| {
            client.path.path().five_tuple.remote.ip() == *ip
                || self.live_relays(client).any(|relay| {
                    let mut channels = relay.channels.iter();
                    relay.permissions.contains(ip) || channels.any(|it| it.peer_ip == *ip)
                })
                || self
                    .bound_connections(client)
                    .any(|(peer, _)| peer.ip() == *ip)
        };
        filter.user.as_ref().is_none_or(of_user) && filter.peer.as_ref().is_none_or(of_peer)
    }

    fn live_relays(&self, client: &Client) -> impl Iterator<Item = &LiveRelay> {
        relays(client).filter_map(|relay| self.relays.get(relay).and_then(Relay::live))
    }

    fn bound_connections(
        &self,
        client: &Client,
    ) -> impl Iterator<Item = (SocketAddr, BoundTraffic)> {
        relays(client).flat_map(|relay| self.tcp.bound_of_relay(relay))
    }

    fn session(&self, now: Now, place: u32, client: &Client) -> Option<Session> {
        let Stage::Open(allocation) = &client.stage else {
            return None;
        };
        let relays = || self.live_relays(client);
        let expires = relays().map(|relay| relay.expires).max();
        let permissions = relays().flat_map(|relay| relay.permissions.iter());
        let permissions = permissions.filter(|permission| permission.expires > now.mono);
        let channels = relays().flat_map(|relay| relay.channels.iter());
        let channels = channels.filter(|channel| channel.expires > now.mono);
        let connections = self.bound_connections(client);
        let connections = connections.map(|(peer, traffic)| SessionDataConnection {
            peer,
            to_peer: traffic.to_peer,
            to_client: traffic.to_client,
            idle: now.mono.since(traffic.last),
        });
        let (permissions, more_permissions) = first(permissions.map(|it| it.ip));
        let (channels, more_channels) = first(channels.map(|it| it.peer()));
        let (data_connections, data_connections_omitted) = first(connections);
        Some(Session {
            key: AllocationKey {
                index: place,
                generation: self.clients.generation(place),
            },
            user: client.user.name().to_owned(),
            realm: client.user.realm().to_owned(),
            path: client.path.path(),
            relayed: self.relayed(place),
            age: now.mono.since(allocation.opened_at),
            expires_in: expires.map_or(Duration::ZERO, |at: Mono| at.since(now.mono)),
            to_peers: allocation.to_peers,
            to_client: allocation.to_client,
            permissions,
            channels,
            peers_omitted: more_permissions + more_channels,
            data_connections,
            data_connections_omitted,
        })
    }
}

/// The first ones, and the number of the others.
fn first<T>(mut all: impl Iterator<Item = T>) -> (Vec<T>, usize) {
    let shown = all.by_ref().take(MAX_SHOWN).collect();
    (shown, all.count())
}

/// The indices of a client's relays.
fn relays(client: &Client) -> impl Iterator<Item = u32> {
    let allocation = match &client.stage {
        Stage::Open(allocation) => Some(allocation),
        Stage::Opening(_) => None,
    };
    allocation.into_iter().flat_map(|it| it.relays())
}
