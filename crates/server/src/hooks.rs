//! What a program that embeds the server decides and learns: peers, quota, events.
//!
//! Hooks run on the workers. A hook that blocks delays every client of its worker: hand long work to another thread,
//! events for example by a bounded channel ([`events`](crate::events)). A server without hooks pays nothing for them.
//!
//! [`RouteHook`](crate::sip::RouteHook) decides where SIP calls go.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use stun::{AddressFamily, ChannelNumber, Method};
use turn::FiveTuple;
use turn::server::{
    AuthFailure, CloseReason, Output, PeerPolicy, Quota, QuotaExceeded, RelayedAddresses, Traffic,
};

use crate::sip::Reporter;
pub use crate::sip::{OnSipEvent, SipEvent};
pub use turn::server::{ClientIdentity, PeerClass};

/// Whether a client may talk to a peer that the rules admit. The port is 0 if the question is about a permission, which
/// is for all ports (RFC 8656 §9).
pub type PermitPeer = dyn Fn(&ClientIdentity<'_>, SocketAddr) -> bool + Send + Sync;

/// Which relay address a client gets for this family.
pub type ChooseRelay = dyn Fn(&ClientIdentity<'_>, AddressFamily) -> RelayChoice + Send + Sync;

/// The relay address that a relayed transport address is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayChoice {
    /// Any of this family, at random: what happens without a hook.
    Any,
    /// This one, named by its own or by its public address. If it is no relay address of this family, the client gets
    /// 508.
    Address(IpAddr),
    /// None: the client gets 440, as if the server relayed nothing of this family.
    None,
}

/// Called for each event, on the worker that has the client.
pub type OnEvent = dyn Fn(&Event<'_>) + Send + Sync;

/// Something that has happened to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request was refused for its credentials. At most one event per second, worker and reason.
    AuthenticationFailed {
        /// The path of the request.
        five_tuple: FiveTuple,
        /// The user name that the request claims; anybody can have written it.
        user: &'a str,
        /// Why. The client does not get it.
        reason: AuthFailure,
        /// How many of this reason came without an event since the last one.
        omitted: u64,
    },
    /// An allocation was made, for an authenticated user.
    AllocationOpened {
        /// The client.
        client: ClientIdentity<'a>,
        /// Its relayed transport addresses.
        relayed: RelayedAddresses,
        /// Seconds until it expires, unless refreshed.
        lifetime_s: u32,
    },
    /// An allocation was refreshed.
    AllocationRefreshed {
        /// The client.
        client: ClientIdentity<'a>,
        /// Seconds until it expires.
        lifetime_s: u32,
    },
    /// An allocation has moved to another 5-tuple (RFC 8016).
    ClientMoved {
        /// The client, with the 5-tuple that it has now.
        client: ClientIdentity<'a>,
        /// The 5-tuple that it had.
        from: FiveTuple,
    },
    /// An allocation ended.
    AllocationClosed {
        /// The client.
        client: ClientIdentity<'a>,
        /// The relayed transport addresses it had when it ended.
        relayed: RelayedAddresses,
        /// Application data from the client to peers.
        to_peers: Traffic,
        /// Application data from peers to the client.
        to_client: Traffic,
        /// How long it lived.
        duration: Duration,
        /// Why it ended.
        reason: CloseReason,
    },
    /// A permission was installed or refreshed by CreatePermission.
    PermissionInstalled {
        /// The client.
        client: ClientIdentity<'a>,
        /// The address that it is for.
        peer: IpAddr,
    },
    /// A channel was bound or refreshed, and its permission with it.
    ChannelBound {
        /// The client.
        client: ClientIdentity<'a>,
        /// Its number.
        number: ChannelNumber,
        /// The peer.
        peer: SocketAddr,
    },
    /// A permission has expired, or the relayed address of its family has ended before the allocation. With the
    /// allocation, all its permissions and channels end: there is no event for each.
    PermissionEnded {
        /// The client.
        client: ClientIdentity<'a>,
        /// The address that it was for.
        peer: IpAddr,
    },
    /// A channel has expired, or the relayed address of its family has ended before the allocation.
    ChannelEnded {
        /// The client.
        client: ClientIdentity<'a>,
        /// Its number.
        number: ChannelNumber,
        /// The peer.
        peer: SocketAddr,
    },
    /// A request has proven its user's key. What it asks for may still be refused. A retransmission that gets its
    /// response again is not reported again.
    Authenticated {
        /// The client.
        client: ClientIdentity<'a>,
        /// What it asks for.
        method: Method,
    },
}

impl<'a> Event<'a> {
    /// The user name; for a failed authentication, the one that the request claims.
    #[must_use]
    pub fn user(&self) -> &'a str {
        match self {
            Event::AuthenticationFailed { user, .. } => user,
            _ => self.client().map_or("", |client| client.user),
        }
    }

    /// The authenticated client; `None` for a failed authentication.
    #[must_use]
    pub fn client(&self) -> Option<&ClientIdentity<'a>> {
        match self {
            Event::AuthenticationFailed { .. } => None,
            Event::AllocationOpened { client, .. }
            | Event::AllocationRefreshed { client, .. }
            | Event::ClientMoved { client, .. }
            | Event::AllocationClosed { client, .. }
            | Event::PermissionInstalled { client, .. }
            | Event::ChannelBound { client, .. }
            | Event::PermissionEnded { client, .. }
            | Event::ChannelEnded { client, .. }
            | Event::Authenticated { client, .. } => Some(client),
        }
    }

    /// The same event with another realm and user name.
    #[expect(clippy::too_many_lines, reason = "one arm for each event")]
    pub(crate) fn with_names<'b>(&self, realm: &'b str, user: &'b str) -> Event<'b> {
        let identity = |client: &ClientIdentity<'a>| client.with_names(realm, user);
        match *self {
            Event::AuthenticationFailed {
                five_tuple,
                reason,
                omitted,
                ..
            } => Event::AuthenticationFailed {
                five_tuple,
                user,
                reason,
                omitted,
            },
            Event::AllocationOpened {
                ref client,
                relayed,
                lifetime_s,
            } => Event::AllocationOpened {
                client: identity(client),
                relayed,
                lifetime_s,
            },
            Event::AllocationRefreshed {
                ref client,
                lifetime_s,
            } => Event::AllocationRefreshed {
                client: identity(client),
                lifetime_s,
            },
            Event::ClientMoved { ref client, from } => Event::ClientMoved {
                client: identity(client),
                from,
            },
            Event::AllocationClosed {
                ref client,
                relayed,
                to_peers,
                to_client,
                duration,
                reason,
            } => Event::AllocationClosed {
                client: identity(client),
                relayed,
                to_peers,
                to_client,
                duration,
                reason,
            },
            Event::PermissionInstalled { ref client, peer } => Event::PermissionInstalled {
                client: identity(client),
                peer,
            },
            Event::ChannelBound {
                ref client,
                number,
                peer,
            } => Event::ChannelBound {
                client: identity(client),
                number,
                peer,
            },
            Event::PermissionEnded { ref client, peer } => Event::PermissionEnded {
                client: identity(client),
                peer,
            },
            Event::ChannelEnded {
                ref client,
                number,
                peer,
            } => Event::ChannelEnded {
                client: identity(client),
                number,
                peer,
            },
            Event::Authenticated { ref client, method } => Event::Authenticated {
                client: identity(client),
                method,
            },
        }
    }

    /// The event of an output, if it is one.
    fn of(output: &Output<'a>) -> Option<Event<'a>> {
        Some(match *output {
            Output::AuthenticationFailed {
                ref path,
                user,
                reason,
                omitted,
            } => Event::AuthenticationFailed {
                five_tuple: path.five_tuple,
                user,
                reason,
                omitted,
            },
            Output::AllocationOpened {
                realm,
                user,
                path,
                relayed,
                lifetime_s,
            } => Event::AllocationOpened {
                client: ClientIdentity::new(path.five_tuple, realm, user),
                relayed,
                lifetime_s,
            },
            Output::AllocationRefreshed { client, lifetime_s } => {
                Event::AllocationRefreshed { client, lifetime_s }
            }
            Output::ClientMoved { client, from } => Event::ClientMoved {
                client,
                from: from.five_tuple,
            },
            Output::AllocationClosed {
                realm,
                user,
                path,
                relayed,
                to_peers,
                to_client,
                duration,
                reason,
            } => Event::AllocationClosed {
                client: ClientIdentity::new(path.five_tuple, realm, user),
                relayed,
                to_peers,
                to_client,
                duration,
                reason,
            },
            ref other => return Event::of_change(other),
        })
    }

    /// The event of a permission, a channel or a proven key.
    fn of_change(output: &Output<'a>) -> Option<Event<'a>> {
        Some(match *output {
            Output::PermissionInstalled { client, peer } => {
                Event::PermissionInstalled { client, peer }
            }
            Output::ChannelBound {
                client,
                number,
                peer,
            } => Event::ChannelBound {
                client,
                number,
                peer,
            },
            Output::PermissionEnded { client, peer } => Event::PermissionEnded { client, peer },
            Output::ChannelEnded {
                client,
                number,
                peer,
            } => Event::ChannelEnded {
                client,
                number,
                peer,
            },
            Output::Authenticated { client, method } => Event::Authenticated { client, method },
            _ => return None,
        })
    }
}

/// The hooks of a server. Set by the builder, or in [`Settings`](crate::Settings) for a reload.
#[derive(Clone, Default)]
pub struct Hooks {
    pub(crate) permit_peer: Option<Arc<PermitPeer>>,
    pub(crate) quota: Option<Arc<dyn Quota>>,
    pub(crate) on_event: Option<Arc<OnEvent>>,
    pub(crate) sip: Reporter,
    pub(crate) choose_relay: Option<Arc<ChooseRelay>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("permit_peer", &self.permit_peer.is_some())
            .field("quota", &self.quota.is_some())
            .field("on_event", &self.on_event.is_some())
            .field("sip", &self.sip)
            .field("choose_relay", &self.choose_relay.is_some())
            .finish()
    }
}

impl Hooks {
    /// Asks `permit` about each peer that the rules admit.
    pub fn set_permit_peer(
        &mut self,
        permit: impl Fn(&ClientIdentity<'_>, SocketAddr) -> bool + Send + Sync + 'static,
    ) {
        self.permit_peer = Some(Arc::new(permit));
    }

    /// Counts each relayed transport address in `quota`, beside the limits of
    /// [`QuotaLimits`](crate::quota::QuotaLimits).
    pub fn set_quota(&mut self, quota: Arc<dyn Quota>) {
        self.quota = Some(quota);
    }

    /// Calls `on_event` for each event.
    pub fn set_on_event(&mut self, on_event: impl Fn(&Event<'_>) + Send + Sync + 'static) {
        self.on_event = Some(Arc::new(on_event));
    }

    /// Calls `on_event` for each event of SIP, on a worker. It must not block. For events of calls, the proxy keeps a
    /// record of each call, as with [`CallSettings::log`](crate::sip::CallSettings::log); without `with_calls` there
    /// are only failed authentications.
    pub fn set_on_sip_event(
        &mut self,
        with_calls: bool,
        on_event: impl Fn(&SipEvent<'_>) + Send + Sync + 'static,
    ) {
        self.sip = Reporter {
            hook: Some(Arc::new(on_event)),
            wants_calls: with_calls,
        };
    }

    /// Asks `choose` which relay address a client gets. See [`Builder::choose_relay`](crate::Builder::choose_relay).
    pub fn set_choose_relay(
        &mut self,
        choose: impl Fn(&ClientIdentity<'_>, AddressFamily) -> RelayChoice + Send + Sync + 'static,
    ) {
        self.choose_relay = Some(Arc::new(choose));
    }

    /// What the workers do themselves.
    pub(crate) fn of_worker(&self) -> WorkerHooks {
        WorkerHooks {
            on_event: self.on_event.clone(),
            choose_relay: self.choose_relay.clone(),
        }
    }

    /// The policy of the rules, with the hook behind it.
    pub(crate) fn policy(&self, rules: Arc<dyn PeerPolicy>) -> Arc<dyn PeerPolicy> {
        match &self.permit_peer {
            Some(permit) => Arc::new(HookedPolicy {
                rules,
                permit: Arc::clone(permit),
            }),
            None => rules,
        }
    }

    /// The quota of the limits, with the hook behind it.
    pub(crate) fn quota(&self, limits: Arc<dyn Quota>) -> Arc<dyn Quota> {
        match &self.quota {
            Some(hook) => Arc::new(BothQuotas {
                limits,
                hook: Arc::clone(hook),
            }),
            None => limits,
        }
    }
}

/// The hooks that a worker calls itself; the others are behind the engine's policy and quota.
#[derive(Clone, Default)]
pub(crate) struct WorkerHooks {
    on_event: Option<Arc<OnEvent>>,
    choose_relay: Option<Arc<ChooseRelay>>,
}

impl fmt::Debug for WorkerHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHooks")
            .field("on_event", &self.on_event.is_some())
            .field("choose_relay", &self.choose_relay.is_some())
            .finish()
    }
}

impl WorkerHooks {
    /// Tells the hook of an output, if it is an event.
    pub(crate) fn report(&self, output: &Output<'_>) {
        if let Some(on_event) = &self.on_event
            && let Some(event) = Event::of(output)
        {
            on_event(&event);
        }
    }

    /// The relay address that a client gets for this family.
    pub(crate) fn relay_for(
        &self,
        client: &ClientIdentity<'_>,
        family: AddressFamily,
    ) -> RelayChoice {
        match &self.choose_relay {
            Some(choose) => choose(client, family),
            None => RelayChoice::Any,
        }
    }
}

struct HookedPolicy {
    rules: Arc<dyn PeerPolicy>,
    permit: Arc<PermitPeer>,
}

impl fmt::Debug for HookedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HookedPolicy").field(&self.rules).finish()
    }
}

impl HookedPolicy {
    fn ask(&self, class: PeerClass, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        if class == PeerClass::Denied || (self.permit)(client, peer) {
            class
        } else {
            PeerClass::Denied
        }
    }
}

impl PeerPolicy for HookedPolicy {
    fn classify(&self, client: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        let class = self.rules.classify(client, peer);
        self.ask(class, client, SocketAddr::new(peer, 0))
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.ask(self.rules.permits(client, peer), client, peer)
    }

    fn permits_connection(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.ask(self.rules.permits_connection(client, peer), client, peer)
    }
}

/// Two quotas, both of which must agree.
#[derive(Debug)]
struct BothQuotas {
    limits: Arc<dyn Quota>,
    hook: Arc<dyn Quota>,
}

impl Quota for BothQuotas {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        self.limits.try_acquire(client)?;
        self.hook
            .try_acquire(client)
            .inspect_err(|_| self.limits.release(client))
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        self.hook.release(client);
        self.limits.release(client);
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        self.hook.transfer(from, to)?;
        // Taking it back only fails if another client got the place meanwhile; then the hook counts the unit for `to`.
        self.limits.transfer(from, to).inspect_err(|_| {
            let _ = self.hook.transfer(to, from);
        })
    }
}
