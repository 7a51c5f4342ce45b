//! An allocation, and its peers.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stun::ChannelNumber;
use tokio::sync::Notify;
use turn::client::{Allocated, Event, SendError as Unsendable};

use crate::client::Handle;
use crate::error::{
    ChannelError, Ended, FromCallError, PermitError, RecvError, RefreshError, SendError,
};
use crate::queue::Queue;
use crate::shared::{Core, Inbox, Shared};

/// Room for the header of a Send indication, or of ChannelData with its padding.
const MAX_HEADER_BYTES: usize = 80;

/// The allocation stays open while this value exists.
struct AllocationGuard {
    handle: Arc<Handle>,
    number: u64,
    allocated: Box<Allocated>,
}

impl Drop for AllocationGuard {
    fn drop(&mut self) {
        release(&self.handle.shared, self.number);
    }
}

/// Lets the task delete the allocation of this number, if it exists.
pub(crate) fn release(shared: &Shared, number: u64) {
    let mut core = shared.lock();
    if core.ended(number).is_none() {
        core.allocation_ended(Ended::Closed);
        let _ = core
            .endpoint
            .with(shared.now(), |client, now| client.release(now, None));
        drop(core);
        shared.changed.notify_one();
    }
}

/// An allocation on a TURN server: a socket at another address.
///
/// Its clones are the same allocation. When the last of them and of its peers is dropped, the task releases it.
#[derive(Clone)]
pub struct Allocation {
    held: Arc<AllocationGuard>,
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocation")
            .field("allocated", &self.held.allocated)
            .finish_non_exhaustive()
    }
}

impl Allocation {
    pub(crate) fn new(handle: Arc<Handle>, number: u64, allocated: Box<Allocated>) -> Allocation {
        let held = Arc::new(AllocationGuard {
            handle,
            number,
            allocated,
        });
        Allocation { held }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.held.handle.shared
    }

    /// Sequence number of this allocation at its client, from 1. A handle with an older number has ended.
    pub(crate) fn number(&self) -> u64 {
        self.held.number
    }

    /// The relayed transport address of the peer's family.
    pub(crate) fn relayed_for(&self, peer: SocketAddr) -> SocketAddr {
        let additional = self.additional_relayed();
        let of_family = additional.filter(|other| other.is_ipv4() == peer.is_ipv4());
        match self.relayed() {
            relayed if relayed.is_ipv4() == peer.is_ipv4() => relayed,
            relayed => of_family.unwrap_or(relayed),
        }
    }

    /// The relayed transport address: peers send there.
    #[must_use]
    pub fn relayed(&self) -> SocketAddr {
        self.held.allocated.relayed
    }

    /// The relayed transport address of the other family, of a dual allocation.
    #[must_use]
    pub fn additional_relayed(&self) -> Option<SocketAddr> {
        self.held.allocated.additional
    }

    /// This client's address as the server sees it: its server-reflexive transport address.
    #[must_use]
    pub fn mapped(&self) -> SocketAddr {
        self.held.allocated.mapped
    }

    /// The lifetime that the server granted first. The client refreshes the allocation before that.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(self.held.allocated.lifetime_s.into())
    }

    /// The token of the reserved next higher port; see
    /// [`Allocate::even_port_and_next`](crate::Allocate::even_port_and_next).
    #[must_use]
    pub fn reservation(&self) -> Option<[u8; 8]> {
        self.held.allocated.reservation
    }

    /// All that the server said when it granted the allocation.
    #[must_use]
    pub fn allocated(&self) -> &Allocated {
        &self.held.allocated
    }

    /// Why the allocation is over; `None` while it exists.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.shared().lock().ended(self.held.number)
    }

    /// Lets these peers send, regardless of their ports. The client refreshes the permissions.
    ///
    /// # Errors
    /// [`PermitError`] of the first peer that fails. Others may be permitted.
    pub async fn permit(&self, peers: &[IpAddr]) -> Result<(), PermitError> {
        let outcomes: Vec<_> = {
            let shared = self.shared();
            let mut core = shared.lock();
            if let Some(ended) = core.ended(self.held.number) {
                return Err(PermitError::Ended(ended));
            }
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.permit(now, peers));
            asked.map_err(PermitError::from_call)?;
            peers
                .iter()
                .map(|peer| core.waiters.wait_permit(*peer))
                .collect()
        };
        self.shared().changed.notify_one();
        for outcome in outcomes {
            match outcome.await {
                Ok(outcome) => outcome.map_err(PermitError::Request)?,
                Err(_) => return Err(PermitError::Ended(self.why())),
            }
        }
        Ok(())
    }

    /// Stops refreshing the permission of a peer; it lapses within five minutes.
    pub fn forget(&self, peer: IpAddr) {
        let shared = self.shared();
        let mut core = shared.lock();
        if core.ended(self.held.number).is_none() {
            core.endpoint
                .with(shared.now(), |client, _| client.forget_permission(peer));
        }
    }

    /// Binds a channel to a peer, which permits it too: the cheapest way to exchange data. From now on its data comes
    /// by [`Peer::recv`] and not by [`recv_from`](Allocation::recv_from).
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn peer(&self, peer: SocketAddr) -> Result<Peer, ChannelError> {
        let (inbox, outcome) = {
            let shared = self.shared();
            let mut core = shared.lock();
            if let Some(ended) = core.ended(self.held.number) {
                return Err(ChannelError::Ended(ended));
            }
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.bind_channel(now, peer));
            asked.map_err(ChannelError::from_call)?;
            let outcome = core.waiters.wait_bind(peer);
            (Subscription::open(self, &mut core, peer), outcome)
        };
        self.shared().changed.notify_one();
        match outcome.await {
            Ok(Ok(channel)) => Ok(Peer { inbox, channel }),
            Ok(Err(error)) => Err(ChannelError::Request(error)),
            Err(_) => Err(ChannelError::Ended(self.why())),
        }
    }

    /// Sends `payload` to `peer`: over its channel if it has one, otherwise in a Send indication. If there is no
    /// permission for the peer, the first call asks for one and waits for it.
    ///
    /// # Errors
    /// [`SendError`]. As over any datagram socket, data that was sent may be lost.
    pub async fn send_to(&self, payload: &[u8], peer: SocketAddr) -> Result<(), SendError> {
        let mut asked = false;
        loop {
            match self.try_send_to(payload, peer) {
                Err(SendError::NotPermitted) if !asked => {
                    asked = true;
                    self.permit(&[peer.ip()]).await?;
                }
                Err(SendError::Link(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.shared()
                        .link
                        .writable()
                        .await
                        .map_err(SendError::Link)?;
                }
                outcome => return outcome,
            }
        }
    }

    /// As [`send_to`](Allocation::send_to), without waiting for anything.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send_to(&self, payload: &[u8], peer: SocketAddr) -> Result<(), SendError> {
        let shared = self.shared();
        let mut core = shared.lock();
        if let Some(ended) = core.ended(self.held.number) {
            return Err(SendError::Ended(ended));
        }
        let len = core.encode(shared, payload, peer)?;
        shared
            .link
            .try_send(&core.scratch[..len])
            .map_err(SendError::Link)?;
        core.stats.sent += 1;
        Ok(())
    }

    /// Receives a datagram from a peer that has no [`Peer`] handle; returns how many bytes of it are in `buffer`. What
    /// does not fit is cut off.
    ///
    /// Cancellation loses nothing.
    ///
    /// # Errors
    /// [`RecvError`], when the queue is empty and the allocation is over.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr), RecvError> {
        let arrived = self.shared().lock().others.arrived();
        self.receive(&arrived, buffer, None).await
    }

    /// The next thing that happened without being asked for: a refresh, a failed one, an unreachable peer. Up to 64
    /// wait here. `None` when the allocation is over.
    pub async fn event(&self) -> Option<Event> {
        let arrived = self.shared().lock().events.arrived();
        loop {
            let notified = arrived.notified();
            {
                let mut core = self.shared().lock();
                if let Some(event) = core.events.pop() {
                    return Some(event);
                }
                if core.ended(self.held.number).is_some() {
                    return None;
                }
            }
            notified.await;
        }
    }

    /// Refreshes the allocation now, for `lifetime` if given. Without calls to this, the client does it in time.
    ///
    /// # Errors
    /// [`RefreshError`].
    pub async fn refresh(&self, lifetime: Option<Duration>) -> Result<(), RefreshError> {
        let shared = self.shared();
        let seconds =
            lifetime.map(|lifetime| u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
        let outcome = {
            let mut core = shared.lock();
            if let Some(ended) = core.ended(self.held.number) {
                return Err(RefreshError::Ended(ended));
            }
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.refresh(now, seconds));
            asked.map_err(|_| RefreshError::Ended(Ended::Expired))?;
            core.waiters.wait_refresh()
        };
        shared.changed.notify_one();
        match outcome.await {
            Ok(outcome) => outcome.map_err(RefreshError::Request),
            Err(_) => Err(RefreshError::Ended(self.why())),
        }
    }

    /// Deletes the allocation and waits for the response. Dropping the allocation does the same without waiting.
    ///
    /// # Errors
    /// [`RefreshError`]: the server then deletes it when its lifetime ends.
    pub async fn close(self) -> Result<(), RefreshError> {
        let shared = self.shared();
        let outcome = {
            let mut core = shared.lock();
            if let Some(ended) = core.ended(self.held.number) {
                return Err(RefreshError::Ended(ended));
            }
            core.allocation_ended(Ended::Closed);
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.release(now, None));
            asked.map_err(|_| RefreshError::Ended(Ended::Expired))?;
            core.waiters.wait_close()
        };
        shared.changed.notify_one();
        match outcome.await {
            Ok(outcome) => outcome.map_err(RefreshError::Request),
            Err(_) => Ok(()),
        }
    }

    fn why(&self) -> Ended {
        self.ended().unwrap_or(Ended::Closed)
    }

    async fn receive(
        &self,
        arrived: &Notify,
        buffer: &mut [u8],
        peer: Option<SocketAddr>,
    ) -> Result<(usize, SocketAddr), RecvError> {
        loop {
            let notified = arrived.notified();
            {
                let mut core = self.shared().lock();
                let popped = core.queue(peer).and_then(|queue| queue.pop(buffer));
                if let Some((copied, len, peer)) = popped {
                    core.stats.truncated += u64::from(copied < len);
                    return Ok((copied, peer));
                }
                if let Some(ended) = core.ended(self.held.number) {
                    return Err(RecvError::Ended(ended));
                }
            }
            notified.await;
        }
    }
}

impl Core {
    /// The queue of a peer with a handle, or of all others.
    fn queue(&mut self, peer: Option<SocketAddr>) -> Option<&mut Queue> {
        match peer {
            Some(peer) => self.inboxes.get_mut(&peer).map(|inbox| &mut inbox.queue),
            None => Some(&mut self.others),
        }
    }

    /// Writes data for `peer` into `scratch` and returns its length.
    fn encode(
        &mut self,
        shared: &Shared,
        payload: &[u8],
        peer: SocketAddr,
    ) -> Result<usize, SendError> {
        let now = shared.now();
        self.scratch.resize(payload.len() + MAX_HEADER_BYTES, 0);
        let (scratch, client) = (&mut self.scratch, self.endpoint.data());
        let header = client
            .channel_of(now, peer)
            .and_then(|channel| client.channel_header(now, channel, payload.len()).ok());
        if let Some(header) = header {
            let end = header.len() + payload.len();
            // MAX_HEADER_BYTES has room for the header and the padding.
            scratch[..header.len()].copy_from_slice(&header);
            scratch[header.len()..end].copy_from_slice(payload);
            let padded = end + client.channel_padding(payload.len());
            scratch[end..padded].fill(0);
            return Ok(padded);
        }
        let written = client.write_send_indication(now, peer, payload, false, scratch);
        written.map_err(|error| match error {
            Unsendable::TooLong => SendError::TooLong,
            _ => SendError::NotPermitted,
        })
    }
}

/// A place for the data of one peer. Its handles share it.
struct Subscription {
    allocation: Allocation,
    peer: SocketAddr,
    arrived: Arc<Notify>,
}

impl Subscription {
    fn open(allocation: &Allocation, core: &mut Core, peer: SocketAddr) -> Subscription {
        let limit = core.queue_limit;
        let inbox = core.inboxes.entry(peer).or_insert_with(|| Inbox {
            queue: Queue::new(limit),
            handles: 0,
        });
        inbox.handles += 1;
        Subscription {
            allocation: allocation.clone(),
            peer,
            arrived: inbox.queue.arrived(),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut core = self.allocation.shared().lock();
        let Some(inbox) = core.inboxes.get_mut(&self.peer) else {
            return;
        };
        inbox.handles -= 1;
        if inbox.handles == 0 {
            core.inboxes.remove(&self.peer);
        }
    }
}

/// A peer with a channel. It keeps the allocation; the channel is refreshed as long as the allocation exists.
pub struct Peer {
    inbox: Subscription,
    channel: ChannelNumber,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Peer");
        shown
            .field("address", &self.inbox.peer)
            .field("channel", &self.channel)
            .finish()
    }
}

impl Peer {
    /// The peer's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.inbox.peer
    }

    /// The number of its channel.
    #[must_use]
    pub fn channel(&self) -> ChannelNumber {
        self.channel
    }

    /// Its allocation.
    #[must_use]
    pub fn allocation(&self) -> &Allocation {
        &self.inbox.allocation
    }

    /// Sends `payload` to the peer.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.inbox
            .allocation
            .send_to(payload, self.inbox.peer)
            .await
    }

    /// Receives a datagram from the peer; returns how many bytes of it are in `buffer`. What does not fit is cut off.
    ///
    /// Cancellation loses nothing.
    ///
    /// # Errors
    /// [`RecvError`], when the queue is empty and the allocation is over.
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize, RecvError> {
        let Subscription {
            allocation,
            peer,
            arrived,
        } = &self.inbox;
        let (len, _) = allocation.receive(arrived, buffer, Some(*peer)).await?;
        Ok(len)
    }
}
