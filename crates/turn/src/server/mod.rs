//! The TURN server's state machine (RFC 8656), and the STUN server's with it.
//!
//! # What is kept, and for whom
//!
//! ```text
//!  5-tuple ──hash──▶ client ──▶ allocation ──▶ relay (IPv4) ──▶ permissions, by address
//!                                   │      └─▶ relay (IPv6)     channels, by peer and by number
//!                                 user (name and key, shared by the allocations of one user)
//! ```
//!
//! A relay is one relayed transport address: its time-to-expiry, permissions and channels are its own (RFC 8656 §6). A
//! client that has not proven a user name gets responses, but the server stores nothing for it; a nonce requires no
//! memory.
//!
//! # The path of a datagram
//!
//! - **ChannelData** (`channel_data.rs`): one look-up of the 5-tuple, one of the channel, for as many datagrams of the
//!   run as are alike. **From a peer** (`data.rs`): the relay's key is an index; one look-up by peer.
//! - **A request** (`request.rs`): a retransmitted Allocate or deletion gets its response again. Then RFC 8489 §9.2.4
//!   (`auth.rs`), unknown attributes, RFC 8656 §5, and the file of the method. All checks come before the first change.
//! - **Allocate** requires sockets. The request waits in its client (`allocate.rs`) until the embedder has opened them
//!   or failed (`opening.rs`), or moves the request to another engine (`moved.rs`).
//! - **TCP allocations** (`tcp/`, RFC 6062): the embedder dials, accepts and relays; the engine names the connections
//!   and decides about them.
//! - **Mobility** (`mobility/`, RFC 8016): a Refresh request with a ticket gives an allocation a second 5-tuple; data
//!   from there makes it the only one.
//! - **Shared ports** (`shared_ports.rs`): relays of several allocations on one port, distinguished by the peers that
//!   they have claimed.
//! - **Time** (`close.rs`): each relay has one deadline, the earliest of all that is its own (`deadlines.rs`).
//!
//! # What it must never do
//!
//! - Allocate memory or copy for relayed data.
//! - Store anything for a client that has not authenticated.
//! - Send an unproven address more than three times the bytes of its request.
//! - Change anything for a request that it refuses.
//! - Hold a unit of quota without an allocation, a reservation or a pending request that owns it.
//!
//! ```
//! # use std::sync::Arc;
//! use hairpin_turn::server::{AllowEveryPeer, ClientVerdict, Config, Output, Server, credentials::StaticCredentials};
//! use hairpin_turn::{ClientPath, Mono, Now, Run};
//! # use stun::{Builder, Class, Message, Method, TransactionId, XorMappedAddress, nonce::NonceKeys};
//!
//! let users = Arc::new(StaticCredentials::new("example.org"));
//! let config = Config::new("example.org", NonceKeys::new(&[1; 32]), users, Arc::new(AllowEveryPeer));
//! let mut server = Server::new(config.validate()?, 0, [2; 32]);
//!
//! let (local, remote) = ("192.0.2.1:3478".parse()?, "198.51.100.1:4000".parse()?);
//! let path = ClientPath::udp(local, remote);
//! let mut buffer = [0; 20];
//! let request = Builder::new(&mut buffer, Class::Request, Method::BINDING, &TransactionId([7; 12]))?.finish();
//!
//! let now = Now { mono: Mono(0), unix_s: 1_700_000_000 };
//! assert_eq!(server.handle_client(now, &path, Run::single(request)), ClientVerdict::Handled { covers: 1 });
//! while let Some(output) = server.poll_output() {
//!     let Output::Send { path: to, bytes } = output else { unreachable!() };
//!     assert_eq!(to, path);
//!     assert_eq!(Message::parse(bytes)?.get()?, Some(XorMappedAddress(remote)));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allocate;
mod allocation;
mod alternate;
mod answer;
mod auth;
mod auth_failure;
mod binding;
mod challenge;
mod channel;
mod channel_bind;
mod channel_data;
mod close;
mod config;
mod create_permission;
pub mod credentials;
mod data;
mod deadlines;
mod deletions;
mod discovery;
mod drop_reason;
mod granted;
mod hash;
mod icmp;
mod limiter;
mod lookups;
mod mobility;
mod moved;
mod offload;
mod opening;
mod output;
mod outputs;
mod packed;
mod paths;
mod permission;
mod policy;
mod quota;
mod read_ahead;
mod realms;
mod refresh;
mod relay;
mod report;
mod request;
mod request_context;
mod requested_relay;
mod reservation;
mod send;
mod sessions;
mod shared_ports;
mod shares;
mod slab;
mod stats;
mod tcp;
mod token_user;
mod unverified;
mod user;
mod verdict;
mod walk;

use std::sync::Arc;

use stun::demux::Packet;

pub use alternate::{Alternate, Alternates};
pub use auth_failure::AuthFailure;
pub use config::{
    CHANNEL_LIFETIME_S, Config, ConfigError, DEFAULT_LIFETIME_S, MAX_LIFETIME_S, MAX_REALM_BYTES,
    PERMISSION_LIFETIME_S, ValidConfig, max_server_name_bytes,
};
pub use credentials::Credentials;
pub use discovery::{Discovery, DiscoveryListeners, MAX_PADDING};
pub use drop_reason::DropReason;
pub use icmp::IcmpError;
pub use limiter::{
    MAX_ALLOCATION_RATE, MIN_ALLOCATION_RATE, RATE_BURST_NS, RelayDirection, SharedBuckets,
    rate_scale,
};
pub use mobility::TicketKeys;
pub use output::{
    CloseReason, OffloadedChannel, OpenError, OpenedRelay, Output, PortRequest, RelayRequest,
    RelayTransport, RelayedAddresses, Traffic,
};
pub use policy::{AllowEveryPeer, ClientIdentity, OwnedClientIdentity, PeerClass, PeerPolicy};
pub use quota::{Quota, QuotaExceeded, QuotaUnit, Unlimited};
pub use read_ahead::Arrival;
pub use realms::RealmConfig;
pub use reservation::{ClaimError, ClaimedRelay};
pub use sessions::{Session, SessionDataConnection, SessionFilter};
pub use stats::{ERROR_CODES, METHODS, Stats};
pub use tcp::ConnectError;
pub use verdict::{ClientVerdict, PeerVerdict};

use allocation::Clients;
use deadlines::Deadlines;
use deletions::Deletions;
use discovery::PaddingBudgets;
use hash::KeyedHash;
use limiter::Limiter;
use lookups::Lookups;
use mobility::Mobility;
use moved::Moved;
use outputs::Outputs;
use realms::{Realms, ServerNames};
use relay::Relay;
use report::Reports;
use request::RequestOrigin;
use reservation::Tokens;
use shared_ports::SharedPorts;
use slab::Slab;
use tcp::PeerConnections;
use unverified::Unverified;
use user::KnownUsers;
pub use user::{UsersToForget, VerifiedUser};
use walk::PolicySweep;

use crate::random::Random;
use crate::{ClientPath, FiveTuple, Now, Run};

/// The TURN server of one worker. Comments call it the engine; another engine is the `Server` of another worker.
#[derive(Debug)]
pub struct Server {
    config: ValidConfig,
    /// What is derived from the realms of the configuration.
    realms: Realms,
    /// The realms that clients have chosen by the name of a server.
    server_names: ServerNames,
    /// The quota that has counted what is held.
    quota: Arc<dyn Quota>,
    /// Counts the policies: what was allowed under an earlier one is asked again.
    policy_epoch: u16,
    /// Counts the credentials.
    credentials_epoch: u32,
    clients: Clients,
    relays: Slab<Relay>,
    deadlines: Deadlines,
    tokens: Tokens,
    deletions: Deletions,
    mobility: Mobility,
    moved: Moved,
    known_users: KnownUsers,
    lookups: Lookups,
    padding_budgets: PaddingBudgets,
    unverified: Unverified,
    reports: Reports,
    outputs: Outputs,
    limiter: Limiter,
    random: Random,
    stats: Stats,
    tcp: PeerConnections,
    shared_ports: SharedPorts,
    walks: PolicySweep,
}

impl Server {
    /// A server without allocations. `worker` is its number in reservation tokens, so that another worker can be found;
    /// `seed` is 32 secret random bytes.
    #[must_use]
    pub fn new(config: ValidConfig, worker: u8, seed: [u8; 32]) -> Server {
        let mut random = Random::new(seed);
        let mut hash = || KeyedHash::new(random.word(), random.word());
        let (by_five_tuple, by_name) = (hash(), hash());
        let limiter = Limiter::new(&config);
        let tcp = PeerConnections::new(worker, config.tcp_relay);
        Server {
            realms: Realms::new(&config),
            server_names: ServerNames::new(by_five_tuple.clone()),
            quota: Arc::clone(&config.quota),
            config,
            policy_epoch: 0,
            credentials_epoch: 0,
            mobility: Mobility::new(by_five_tuple.clone()),
            moved: Moved::new(by_five_tuple.clone()),
            clients: Clients::new(by_five_tuple.clone()),
            relays: Slab::new(),
            deadlines: Deadlines::default(),
            tokens: Tokens::new(worker, &random.key()),
            deletions: Deletions::new(by_five_tuple.clone()),
            known_users: KnownUsers::new(by_name),
            lookups: Lookups::new(by_five_tuple.clone()),
            padding_budgets: PaddingBudgets::new(by_five_tuple),
            unverified: Unverified::default(),
            reports: Reports::default(),
            outputs: Outputs::default(),
            limiter,
            random,
            stats: Stats::default(),
            tcp,
            shared_ports: SharedPorts::default(),
            walks: PolicySweep::default(),
        }
    }

    /// Applies a new configuration. Allocations stay. Their peers are classified again when they are used; lower limits
    /// apply to what is added. Offloaded channels are classified again in bounded steps: see
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn set_config(&mut self, now: Now, config: ValidConfig) {
        if !config.has_same_users(&self.config) {
            self.forget_users(UsersToForget::All);
        }
        if self.stats.relays + self.stats.reservations + self.stats.pending == 0 {
            self.quota = Arc::clone(&config.quota);
        }
        self.policy_epoch = self.policy_epoch.wrapping_add(1);
        if !config.has_same_names(&self.config) {
            self.server_names.clear();
        }
        self.realms = Realms::new(&config);
        self.limit_rates(&config);
        self.tcp.configure(config.tcp_relay);
        let before = std::mem::replace(&mut self.config, config);
        self.start_reclassifying(now, &before);
        self.start_rechecking(now);
    }

    /// Datagrams from a client. The verdict is for the first [`ClientVerdict::covers`] of them.
    pub fn handle_client(&mut self, now: Now, path: &ClientPath, run: Run<'_>) -> ClientVerdict {
        match Packet::of(run.first()) {
            Packet::TurnChannel => self.channel_data(now, path, run),
            Packet::Stun => self.stun(now, path, run.first(), RequestOrigin::of_client()),
            Packet::Other if self.config.rfc5766_channels && has_rfc5766_channel(run.first()) => {
                self.channel_data(now, path, run)
            }
            _ if run.first().is_empty() => self.drop_from_client(1, DropReason::EmptyDatagram),
            _ => self.drop_from_client(1, DropReason::ForeignProtocol),
        }
    }

    /// A request that another engine's embedder moved here ([`Output::MoveRequest`], or
    /// [`request_moved`](Self::request_moved)). It is handled as if it had arrived here, and is not moved again.
    /// `user` is what the output said: nobody is looked up again. Without a user, the request is authenticated here.
    pub fn handle_moved(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &[u8],
        user: Option<&VerifiedUser>,
    ) -> ClientVerdict {
        self.stun(now, path, message, RequestOrigin::moved(user))
    }

    /// Whether there is anything to do: nearly never after relayed data, so this is worth a look before
    /// [`poll_output`](Self::poll_output).
    #[inline]
    #[must_use]
    pub fn has_outputs(&self) -> bool {
        self.outputs.is_waiting()
    }

    /// The next thing to do, oldest first; `None` when all is done.
    pub fn poll_output(&mut self) -> Option<Output<'_>> {
        self.outputs.next()
    }

    /// Whether the 5-tuple has an allocation here.
    #[must_use]
    pub fn has_allocation(&self, five_tuple: &FiveTuple) -> bool {
        let place = self.holder_of(five_tuple);
        place.is_some_and(|place| self.clients.allocation(place).is_some())
    }

    /// Keeps rate limits where other workers and the BPF programs see them. Call it before there are allocations.
    pub fn share_buckets(&mut self, buckets: Box<dyn SharedBuckets>) {
        self.limiter.share(buckets);
    }

    /// Counters and gauges.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Applies the rates of a new configuration.
    fn limit_rates(&mut self, config: &Config) {
        if config.has_same_rates(&self.config) {
            return;
        }
        self.limiter.forget(config);
        for place in 0..self.clients.places_ever() as u32 {
            // Others have no limit yet: they begin with the new rates.
            let is_open = self.clients.allocation(place).is_some();
            let Some(client) = self.clients.get(place).filter(|_| is_open) else {
                continue;
            };
            let rate = config.allocation_rate_of(client.user.realm());
            self.limiter.begin(place, rate, &client.identity());
        }
    }

    /// The rate of the allocation at this place.
    fn rate_at(&self, place: u32) -> u64 {
        if !self.config.limits_rate() {
            return 0;
        }
        let client = self.clients.get(place);
        client.map_or(0, |client| {
            self.config.allocation_rate_of(client.user.realm())
        })
    }

    /// Counts datagrams of a client as dropped, and returns the verdict.
    fn drop_from_client(&mut self, covers: usize, reason: DropReason) -> ClientVerdict {
        self.stats.count_drops(reason, covers);
        ClientVerdict::Drop { covers, reason }
    }
}

/// Whether a datagram starts like ChannelData of RFC 5766, on a channel that RFC 8656 reserves.
fn has_rfc5766_channel(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(0x50..=0x7F))
}
