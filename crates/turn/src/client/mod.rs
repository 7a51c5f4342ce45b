//! The client side of STUN and TURN (RFC 8489, RFC 8656), without a socket or a clock.
//!
//! A [`Client`] is one end of one 5-tuple. Its owner hands it the datagrams that come from the server and the time, and
//! carries what it wants transmitted to the server:
//!
//! ```text
//!  allocate, permit, bind_channel, .. ──┐            ┌── poll_transmit: datagrams for the server
//!  datagrams from the server ─ handle_input ─ Client ┼── poll_event: what became of it
//!  time ────────────────── handle_timeout ──┘        └── poll_timeout: when to call handle_timeout next
//! ```
//!
//! It responds to challenges, retransmits, and refreshes allocation, permissions and channels before they expire. It
//! accepts a response only if it proves knowledge of the password.
//!
//! **The invariant:** after every call that takes a [`Now`], and before the next, the owner drains
//! [`poll_transmit`](Client::poll_transmit) and [`poll_event`](Client::poll_event), and asks
//! [`poll_timeout`](Client::poll_timeout) anew. Only data is exempt: [`Received::Data`],
//! [`channel_header`](Client::channel_header) and the Send indications change nothing that they report, and allocate
//! nothing.
//!
//! A client that is idle holds little: no buffers, no queues, a few hundred bytes and the key. A load generator has
//! many.
//!
//! ```
//! # use hairpin_turn as turn;
//! use std::sync::Arc;
//! use turn::client::{AllocateOptions, Client, ClientConfig};
//! use turn::{Mono, Now};
//!
//! let config = Arc::new(ClientConfig::with_credentials("user", "secret"));
//! let mut client = Client::new(config, [7; 32]); // the seed comes from the operating system
//! let now = Now { mono: Mono(0), unix_s: 1_700_000_000 };
//! client.allocate(now, AllocateOptions::default())?;
//! let request = client.poll_transmit().expect("the Allocate request");
//! assert_eq!(stun::Message::parse(request).expect("valid").method(), stun::Method::ALLOCATE);
//! assert_eq!(client.poll_timeout(), Some(Mono(500_000_000)));
//! # Ok::<(), turn::client::CallError>(())
//! ```

mod allocation;
mod auth;
mod channel;
mod config;
mod data;
mod drive;
mod encode;
mod error;
mod event;
mod outcome;
mod permission;
mod response;
mod round_trip;
mod tcp;
mod transaction;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use stun::{AddressFamily, ChannelNumber, IntegrityAlgorithm, PasswordAlgorithm};

use self::allocation::Allocation;
pub use self::allocation::{AllocateOptions, RequestedPort, RequestedRelays};
use self::auth::Challenge;
use self::channel::Channels;
pub use self::config::{ClientConfig, Credentials, Retransmission, Security};
pub use self::data::{Ignored, Received, SendError};
pub use self::error::{Advice, Alternate, DiscardReason, Discarded, Refusal, RequestError, Timing};
pub use self::event::{Allocated, AllocationLoss, Event, Mapped, PeerError};
use self::outcome::queue_permission;
use self::permission::Permissions;

use self::round_trip::RoundTrip;
use self::transaction::{Operation, Transaction};
use crate::random::Random;
use crate::{Mono, Now};

/// RFC 8656 §19: no allocation where one must be, or one where none may be.
const ALLOCATION_MISMATCH: u16 = 437;

/// Why a client cannot carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no allocation.
    #[error("there is no allocation yet; allocate first and wait for Event::Allocated")]
    NoAllocation,
    /// There is an allocation, or one has been asked for.
    #[error("there is an allocation already; release it first, or use another client")]
    AlreadyAllocated,
    /// The peer's address family is not that of the relayed transport address (RFC 8656 §10.1, §12.1).
    #[error("the peer's address family is not that of the allocation")]
    PeerFamily,
    /// The server has given no ticket (RFC 8016).
    #[error(
        "the allocation has no ticket; allocate with AllocateOptions::mobility, at a server that supports it"
    )]
    NoTicket,
    /// All 4,096 channels are bound, or were too recently (RFC 8656 §12).
    #[error("all 4096 channels are in use")]
    NoFreeChannel,
    /// The allocation relays datagrams. Only one of [`RequestedRelays::Tcp`] has connections (RFC 6062).
    #[error("the allocation relays datagrams; allocate with RequestedRelays::Tcp")]
    NotTcp,
    /// The server is connecting to this peer already.
    #[error("the server is connecting to this peer already")]
    Connecting,
}

/// The parameters of the server's last challenge that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The realm of its credentials.
    pub realm: &'a str,
    /// The algorithms it lists in PASSWORD-ALGORITHMS, as numbers of the IANA registry, and the one in use. `None` for
    /// a server that supports RFC 5389, or if the client does ([`Security::Classic`]).
    pub algorithms: Option<(stun::PasswordAlgorithms<'a>, PasswordAlgorithm)>,
    /// How requests are signed, and responses must be.
    pub integrity: IntegrityAlgorithm,
    /// Whether user names travel hashed.
    pub anonymous: bool,
}

/// One end of one 5-tuple; see the [module](self).
pub struct Client {
    config: Arc<ClientConfig>,
    random: Random,
    round_trip: RoundTrip,
    challenge: Option<Box<Challenge>>,
    /// Requests that wait for their response; at most `config.outstanding`.
    transactions: Vec<Transaction>,
    /// Requests that wait for a place among `transactions`.
    waiting: VecDeque<Operation>,
    allocation: Option<Allocation>,
    permissions: Permissions,
    channels: Channels,
    events: VecDeque<Event>,
    /// The minimum of all deadlines; [`Mono::NEVER`] if there is none.
    deadline: Mono,
    /// 437 responses to Allocate requests in a row.
    mismatches: u8,
}

// 18,000 of them are to fit into a load generator beside their sockets.
const _: () = assert!(size_of::<Client>() <= 640);

impl fmt::Debug for Client {
    /// Shows what it has and waits for; neither keys nor transaction IDs, which are as good as keys while they are
    /// pending.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("allocation", &self.allocation)
            .field("operations", &self.operations().collect::<Vec<_>>())
            .field("permissions", &self.permissions)
            .field("channels", &self.channels)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client that has asked for nothing yet.
    ///
    /// `seed` makes its transaction IDs: it must be random, and another one for every client.
    #[must_use]
    pub fn new(config: Arc<ClientConfig>, seed: [u8; 32]) -> Client {
        Client {
            config,
            random: Random::new(seed),
            round_trip: RoundTrip::default(),
            challenge: None,
            transactions: Vec::new(),
            waiting: VecDeque::new(),
            allocation: None,
            permissions: Permissions::default(),
            channels: Channels::default(),
            events: VecDeque::new(),
            deadline: Mono::NEVER,
            mismatches: 0,
        }
    }

    /// Asks for this client's own address as the server sees it: [`Event::Mapped`] or [`Event::BindingFailed`].
    pub fn binding(&mut self, now: Now) {
        self.waiting.push_back(Operation::Binding);
        self.proceed(now);
    }

    /// Asks for an allocation: [`Event::Allocated`] or [`Event::AllocateFailed`].
    ///
    /// # Errors
    /// [`CallError::AlreadyAllocated`].
    pub fn allocate(&mut self, now: Now, options: AllocateOptions) -> Result<(), CallError> {
        let pending = self
            .operations()
            .any(|operation| matches!(operation, Operation::Allocate(_)));
        if pending || self.allocation.is_some() {
            return Err(CallError::AlreadyAllocated);
        }
        self.waiting.push_back(Operation::Allocate(options));
        self.proceed(now);
        Ok(())
    }

    /// Prolongs the allocation now, for `lifetime_s` seconds if given, otherwise for as long as was asked for at first:
    /// [`Event::Refreshed`], [`Event::RefreshFailed`] or [`Event::Lost`]. Unless the configuration says otherwise this
    /// happens by itself. To delete the allocation use [`release`](Self::release).
    ///
    /// # Errors
    /// [`CallError::NoAllocation`].
    pub fn refresh(&mut self, now: Now, lifetime_s: Option<u32>) -> Result<(), CallError> {
        let allocation = self.allocation.as_mut().ok_or(CallError::NoAllocation)?;
        allocation.refresh_at = Mono::NEVER;
        let lifetime_s = lifetime_s
            .or(allocation.options.lifetime_s)
            .map(|seconds| seconds.max(1));
        self.waiting.push_front(Operation::Refresh {
            lifetime_s,
            family: None,
        });
        self.proceed(now);
        Ok(())
    }

    /// The client's own address or port has changed, or its connection: what [`poll_transmit`](Self::poll_transmit)
    /// returns from now on leaves from the new one. Presents the allocation's ticket there (RFC 8016 §3.2.1):
    /// [`Event::Moved`], [`Event::MoveFailed`] or [`Event::Lost`]. Requests that were in progress are sent again after
    /// that. Permissions and channels stay.
    ///
    /// Until the server gets data from the new address, it sends data to the old one.
    ///
    /// # Errors
    /// [`CallError::NoAllocation`]; [`CallError::NoTicket`] without [`AllocateOptions::mobility`], or at a server that
    /// does not support it.
    pub fn moved(&mut self, now: Now) -> Result<(), CallError> {
        let allocation = self.allocation.as_mut().ok_or(CallError::NoAllocation)?;
        if allocation.ticket.is_none() {
            return Err(CallError::NoTicket);
        }
        allocation.refresh_at = Mono::NEVER;
        for transaction in std::mem::take(&mut self.transactions).into_iter().rev() {
            self.waiting.push_front(transaction.operation);
        }
        self.waiting
            .retain(|operation| !matches!(operation, Operation::Move));
        self.waiting.push_front(Operation::Move);
        self.proceed(now);
        Ok(())
    }

    /// Deletes the allocation, or one address of a dual one: [`Event::Released`] or [`Event::RefreshFailed`]. Deleting
    /// all of it ends the refreshing.
    ///
    /// # Errors
    /// [`CallError::NoAllocation`]; [`CallError::PeerFamily`] if there is no address of that family (RFC 8656 §8.1).
    pub fn release(&mut self, now: Now, family: Option<AddressFamily>) -> Result<(), CallError> {
        let allocation = self.allocation.as_mut().ok_or(CallError::NoAllocation)?;
        match family {
            Some(family) if !allocation.has_family(family) => return Err(CallError::PeerFamily),
            Some(_) => {}
            None => allocation.refresh_at = Mono::NEVER,
        }
        self.waiting.push_front(Operation::Refresh {
            lifetime_s: Some(0),
            family,
        });
        self.proceed(now);
        Ok(())
    }

    /// Lets these peers send: [`Event::Permitted`] or [`Event::PermissionFailed`] for each. Peers that are permitted
    /// already are asked for again, which prolongs the permission.
    ///
    /// # Errors
    /// [`CallError::NoAllocation`], [`CallError::PeerFamily`]; nothing is asked for then.
    pub fn permit(&mut self, now: Now, peers: &[IpAddr]) -> Result<(), CallError> {
        for peer in peers {
            self.check_peer(peer)?;
        }
        for peer in peers {
            if self.permissions.ask(*peer) {
                queue_permission(&mut self.waiting, *peer);
            }
        }
        self.proceed(now);
        Ok(())
    }

    /// Stops refreshing a permission; it ends within five minutes (RFC 8656 §9 has no request to delete it).
    pub fn forget_permission(&mut self, peer: IpAddr) {
        self.permissions.forget(&peer);
    }

    /// Binds a channel to a peer and returns its number: [`Event::ChannelBound`] or [`Event::ChannelFailed`]. A peer
    /// that has a channel keeps its number, and the binding is prolonged.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn bind_channel(&mut self, now: Now, peer: SocketAddr) -> Result<ChannelNumber, CallError> {
        self.check_peer(&peer.ip())?;
        let (channel, send) = self
            .channels
            .ask(peer, now.mono)
            .ok_or(CallError::NoFreeChannel)?;
        if send {
            self.waiting
                .push_back(Operation::ChannelBind { channel, peer });
        }
        self.proceed(now);
        Ok(channel)
    }

    /// Stops refreshing a channel; it ends within ten minutes (RFC 8656 §12 has no request to delete it).
    pub fn release_channel(&mut self, channel: ChannelNumber) {
        self.channels.release(channel);
    }

    /// Forgets all state of the server: for a new local address after [`Advice::ChangePort`], or for another server
    /// after [`Advice::TryAlternate`]. No event comes for what was in progress.
    pub fn restart(&mut self) {
        self.transactions = Vec::new();
        self.waiting = VecDeque::new();
        self.events = VecDeque::new();
        self.allocation = None;
        self.permissions.remove_family(None);
        self.channels.remove_family(None);
        self.challenge = None;
        self.round_trip = RoundTrip::default();
        self.deadline = Mono::NEVER;
    }

    /// The network reported that the server cannot be reached. The cause is a hard ICMP error on the path (RFC 8489
    /// §6.2.1), or the end of the connection (§6.2.2). All requests in progress fail.
    pub fn handle_unreachable(&mut self, now: Now) {
        for transaction in std::mem::take(&mut self.transactions) {
            self.failed(now, transaction.operation, RequestError::Unreachable);
        }
        self.proceed(now);
    }

    /// The next datagram (or message, over a stream) for the server; `None` when there is none for now.
    pub fn poll_transmit(&mut self) -> Option<&[u8]> {
        let transaction = self
            .transactions
            .iter_mut()
            .find(|transaction| transaction.due)?;
        transaction.due = false;
        Some(&transaction.request)
    }

    /// The next event; `None` when there is none for now.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() {
            // Events are rare; the space they took is not kept.
            self.events = VecDeque::new();
        }
        event
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` if nothing is pending.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        (self.deadline != Mono::NEVER).then_some(self.deadline)
    }

    /// Repeats, gives up, refreshes and expires what is due. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Now) {
        if now.mono < self.deadline {
            return;
        }
        self.lapse_transactions(now);
        self.refresh_allocation(now);
        let waiting = &mut self.waiting;
        self.permissions
            .handle_timeout(now.mono, |peer| queue_permission(waiting, peer));
        self.channels.handle_timeout(now.mono, |channel, peer| {
            waiting.push_back(Operation::ChannelBind { channel, peer });
        });
        self.proceed(now);
    }

    /// The relayed transport address, while there is an allocation.
    #[must_use]
    pub fn relayed(&self) -> Option<SocketAddr> {
        self.allocation
            .as_ref()
            .map(|allocation| allocation.relayed)
    }

    /// The relayed transport address of a dual allocation's other family.
    #[must_use]
    pub fn additional_relayed(&self) -> Option<SocketAddr> {
        self.allocation.as_ref()?.additional
    }

    /// This client's address as the server saw it when it allocated.
    #[must_use]
    pub fn mapped(&self) -> Option<SocketAddr> {
        self.allocation.as_ref().map(|allocation| allocation.mapped)
    }

    /// The channel that is bound, or being bound, to this peer.
    #[must_use]
    pub fn channel_of(&self, now: Now, peer: SocketAddr) -> Option<ChannelNumber> {
        self.channels.of_peer(&peer, now.mono)
    }

    /// What the server asked for in its last challenge; `None` before there was one that could be answered.
    #[must_use]
    pub fn offer(&self) -> Option<Offer<'_>> {
        let challenge = self.challenge.as_deref()?;
        Some(Offer {
            realm: challenge.realm(),
            algorithms: challenge.algorithms(),
            integrity: challenge.integrity(),
            anonymous: challenge.is_anonymous(),
        })
    }

    /// Whether requests wait for a response, or for their turn.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.operations().next().is_some()
    }

    fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.transactions
            .iter()
            .map(|transaction| &transaction.operation)
            .chain(&self.waiting)
    }

    fn check_peer(&self, peer: &IpAddr) -> Result<(), CallError> {
        let allocation = self.allocation.as_ref().ok_or(CallError::NoAllocation)?;
        if allocation.has_family(AddressFamily::of(peer)) {
            Ok(())
        } else {
            Err(CallError::PeerFamily)
        }
    }
}
