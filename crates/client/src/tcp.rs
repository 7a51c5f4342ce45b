//! TCP allocations (RFC 6062): connections with peers, through the server.

use std::future::IntoFuture;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use stun::{AddressFamily, ConnectionId};
use turn::client::{Allocated, Event, RequestedRelays};

use crate::allocation::Allocation;
use crate::client::{Client, seed};
use crate::data_connection::{self, PeerStream};
use crate::error::{
    AcceptError, AllocateError, ConnectPeerError, DataConnectionError, Ended, FromCallError,
    PermitError, RefreshError,
};

/// A request for a TCP allocation; see [`Client::allocate_tcp`].
#[must_use = "it asks for nothing until it is awaited"]
#[derive(Debug)]
pub struct AllocateTcp<'a> {
    client: &'a Client,
    family: Option<AddressFamily>,
    lifetime: Option<Duration>,
}

impl<'a> AllocateTcp<'a> {
    pub(crate) fn new(client: &'a Client) -> AllocateTcp<'a> {
        AllocateTcp {
            client,
            family: None,
            lifetime: None,
        }
    }

    /// A relayed transport address of this family (REQUESTED-ADDRESS-FAMILY). Default: the server's choice, which is
    /// IPv4.
    pub fn family(mut self, family: AddressFamily) -> Self {
        self.family = Some(family);
        self
    }

    /// The requested lifetime in whole seconds (LIFETIME). The server may change it. Default: the server's, usually 10
    /// minutes.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    async fn obtain(self) -> Result<TcpAllocation, AllocateError> {
        if !self.client.transport().is_stream() {
            return Err(AllocateError::NotStream);
        }
        let mut allocate = self.client.allocate();
        if let Some(lifetime) = self.lifetime {
            allocate = allocate.lifetime(lifetime);
        }
        let family = self.family;
        let allocation = allocate.relay(RequestedRelays::Tcp { family }).await?;
        Ok(TcpAllocation { allocation })
    }
}

impl<'a> IntoFuture for AllocateTcp<'a> {
    type Output = Result<TcpAllocation, AllocateError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.obtain())
    }
}

/// An allocation on a TURN server whose peers are reached over TCP (RFC 6062).
///
/// Its clones are the same allocation. When the last of them and of its streams is dropped, the task releases it.
#[derive(Clone, Debug)]
pub struct TcpAllocation {
    allocation: Allocation,
}

impl TcpAllocation {
    /// The relayed transport address: peers that have a permission connect to it.
    #[must_use]
    pub fn relayed(&self) -> SocketAddr {
        self.allocation.relayed()
    }

    /// This client's address as the server sees it.
    #[must_use]
    pub fn mapped(&self) -> SocketAddr {
        self.allocation.mapped()
    }

    /// All attributes of the response that granted the allocation.
    #[must_use]
    pub fn allocated(&self) -> &Allocated {
        self.allocation.allocated()
    }

    /// Why the allocation has ended; `None` while it exists.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.allocation.ended()
    }

    /// Lets these peers connect, regardless of their ports. The client refreshes the permissions.
    /// [`connect`](TcpAllocation::connect) needs none.
    ///
    /// # Errors
    /// [`PermitError`] of the first peer that fails. Others may be permitted.
    pub async fn permit(&self, peers: &[IpAddr]) -> Result<(), PermitError> {
        self.allocation.permit(peers).await
    }

    /// Stops refreshing the permission of a peer; it lapses within five minutes.
    pub fn forget(&self, peer: IpAddr) {
        self.allocation.forget(peer);
    }

    /// Asks the server to connect to a peer, which takes up to 30 seconds, and opens a data connection.
    ///
    /// If the future is dropped, the server closes its connection with the peer 30 seconds after it was made.
    ///
    /// # Errors
    /// [`ConnectPeerError`]. The server allows one connection with a peer at a time (446).
    pub async fn connect(&self, peer: SocketAddr) -> Result<PeerStream, ConnectPeerError> {
        let shared = self.allocation.shared();
        let outcome = {
            let mut core = shared.lock();
            if let Some(ended) = core.ended(self.allocation.number()) {
                return Err(ConnectPeerError::Ended(ended));
            }
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.connect_peer(now, peer));
            asked.map_err(ConnectPeerError::from_call)?;
            core.waiters.wait_connect(peer)
        };
        shared.changed.notify_one();
        match outcome.await {
            Ok(Ok(id)) => Ok(self.bind(peer, id).await?),
            Ok(Err(error)) => Err(ConnectPeerError::Request(error)),
            Err(_) => Err(ConnectPeerError::Ended(self.why())),
        }
    }

    /// Waits for a peer's connection and accepts it: [`attempt`](TcpAllocation::attempt) and [`Attempt::accept`] in
    /// one.
    ///
    /// If the future is dropped while it opens the data connection, that peer's connection is lost.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub async fn accept(&self) -> Result<PeerStream, AcceptError> {
        let attempt = self.attempt().await.map_err(AcceptError::Ended)?;
        Ok(attempt.accept().await?)
    }

    /// Waits until a peer with a permission connects. Up to 64 connections wait here, each for 30 seconds; further ones
    /// are dropped and counted ([`Stats::attempts_dropped`](crate::Stats)).
    ///
    /// Cancellation loses nothing.
    ///
    /// # Errors
    /// [`Ended`], when the allocation is over.
    pub async fn attempt(&self) -> Result<Attempt, Ended> {
        let shared = self.allocation.shared();
        let arrived = shared.lock().attempts.arrived();
        loop {
            let notified = arrived.notified();
            {
                let mut core = shared.lock();
                if let Some(ended) = core.ended(self.allocation.number()) {
                    return Err(ended);
                }
                if let Some((peer, id)) = core.attempts.pop(shared.now().mono) {
                    return Ok(Attempt {
                        allocation: self.clone(),
                        peer,
                        id,
                    });
                }
            }
            notified.await;
        }
    }

    /// The next thing that happened without being asked for: see [`Allocation::event`].
    pub async fn event(&self) -> Option<Event> {
        self.allocation.event().await
    }

    /// Refreshes the allocation now, for `lifetime` if given. The client also refreshes it in time by itself.
    ///
    /// # Errors
    /// [`RefreshError`].
    pub async fn refresh(&self, lifetime: Option<Duration>) -> Result<(), RefreshError> {
        self.allocation.refresh(lifetime).await
    }

    /// Deletes the allocation and waits for the response. Its streams end. Dropping allocation and streams does the
    /// same without waiting.
    ///
    /// # Errors
    /// [`RefreshError`]: the server then deletes it when its lifetime ends.
    pub async fn close(self) -> Result<(), RefreshError> {
        self.allocation.close().await
    }

    fn why(&self) -> Ended {
        self.ended().unwrap_or(Ended::Closed)
    }

    async fn bind(
        &self,
        peer: SocketAddr,
        id: ConnectionId,
    ) -> Result<PeerStream, DataConnectionError> {
        let seed = seed()?;
        let engine = self
            .allocation
            .shared()
            .lock()
            .endpoint
            .client()
            .data_client(seed);
        data_connection::open(self.allocation.clone(), engine, peer, id).await
    }
}

/// A peer that has connected to the relayed transport address. If it is dropped, the server closes that connection
/// within 30 seconds.
#[derive(Debug)]
pub struct Attempt {
    allocation: TcpAllocation,
    peer: SocketAddr,
    id: ConnectionId,
}

impl Attempt {
    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Opens a data connection for it.
    ///
    /// # Errors
    /// [`DataConnectionError`].
    pub async fn accept(self) -> Result<PeerStream, DataConnectionError> {
        self.allocation.bind(self.peer, self.id).await
    }
}
