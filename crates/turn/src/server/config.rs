//! What the embedder decides. The engine holds one snapshot, and takes a new one with
//! [`Server::set_config`](super::Server::set_config).

use std::ops::Deref;
use std::sync::Arc;

use stun::nonce::NonceKeys;

use super::alternate::Alternates;
pub use super::challenge::{MAX_REALM_BYTES, max_server_name_bytes};
use super::credentials::{AccessTokens, Credentials};
use super::discovery::Discovery;
use super::limiter::rate_error;
use super::mobility::TicketKeys;
use super::policy::PeerPolicy;
use super::quota::{Quota, Unlimited};
use super::realms::{self, RealmConfig};

/// RFC 8656 §6: the lifetime of an allocation unless asked otherwise, in seconds.
pub const DEFAULT_LIFETIME_S: u32 = 600;
/// RFC 8656 §7.2: the longest lifetime that is recommended, in seconds.
pub const MAX_LIFETIME_S: u32 = 3600;
/// RFC 8656 §9: "The Permission Lifetime MUST be 300 seconds".
pub const PERMISSION_LIFETIME_S: u32 = 300;
/// RFC 8656 §12: a channel binding lasts for 10 minutes unless refreshed.
pub const CHANNEL_LIFETIME_S: u32 = 600;

/// The engine's configuration. All limits are for one [`Server`](super::Server), that is, for one worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The default realm (RFC 8489 §14.9), 1 to [`MAX_REALM_BYTES`] bytes. Up to 16 bytes, even the challenge to
    /// the shortest request fits the amplification limit with all it should hold.
    pub realm: String,
    /// SOFTWARE for responses, fewer than 128 characters; `None` sends none.
    pub software: Option<String>,
    /// The keys of the stateless nonces. The same in all workers: any of them may get the request after a
    /// challenge.
    pub nonce_keys: NonceKeys,
    /// How long a nonce is valid, in seconds. RFC 8656 §5: at most an hour.
    pub nonce_lifetime_s: u32,
    /// From user names to keys.
    pub credentials: Arc<dyn Credentials>,
    /// The realms beside the default one. Default: none.
    pub realms: Vec<RealmConfig>,
    /// Decrypts access tokens (RFC 7635). `None`: clients cannot use access tokens. Then ACCESS-TOKEN is an unknown
    /// attribute. In a realm without keys, it is an unknown attribute, too.
    pub access_tokens: Option<Arc<dyn AccessTokens>>,
    /// Which peers are allowed.
    pub policy: Arc<dyn PeerPolicy>,
    /// How much one user, one source and all together may hold. While anything is held, a server stays with
    /// the quota that has counted it.
    pub quota: Arc<dyn Quota>,
    /// Whether an address that nothing is proven of never gets more bytes than it sent, with the headers of IP and UDP.
    /// Then clients over UDP get responses only to requests that are long enough: see
    /// [`DropReason::Amplification`](super::DropReason::Amplification). If not, a response is at most three times as
    /// large.
    pub strict_amplification: bool,
    /// Error responses per second over UDP to one address (IPv4) or /64 (IPv6) that no valid nonce has verified; 0
    /// sends none. Requests beyond are dropped. A request that authenticates gives one back. Loopback addresses have no
    /// limit. Default 10,000. Each engine counts for itself.
    pub unverified_responses: u32,
    /// Which clients are sent to another server instead of an allocation (300); `None` sends none.
    pub alternates: Option<Arc<dyn Alternates>>,
    /// Whether IPv4 relayed addresses can be had; if not, asking for one is 440.
    pub relay_v4: bool,
    /// Whether IPv6 relayed addresses can be had; if not, asking for one is 440.
    pub relay_v6: bool,
    /// Whether the DF bit can be set towards peers; if not, DONT-FRAGMENT is an unknown attribute.
    pub dont_fragment: bool,
    /// The lifetime of an allocation unless asked for a longer one, in seconds.
    pub default_lifetime_s: u32,
    /// The longest lifetime to be had, in seconds.
    pub max_lifetime_s: u32,
    /// How long a reserved port is held for its token, in seconds; RFC 8656 §7.2: at least 30.
    pub reservation_s: u32,
    /// Allocations at once; 508 beyond.
    pub max_allocations: usize,
    /// Allocate requests that wait for the embedder at once; 508 beyond.
    pub max_pending: usize,
    /// Reserved ports at once; 508 beyond.
    pub max_reservations: usize,
    /// Permissions per relayed transport address; 508 beyond.
    pub max_permissions: usize,
    /// Channels per relayed transport address; 508 beyond. There are 4096 numbers.
    pub max_channels: usize,
    /// Deletions remembered for 40 seconds, so that a retransmitted Refresh to zero gets its response again
    /// (RFC 8489 §6.3.1). Further ones are not remembered: their retransmissions get 437. One /24 (IPv4) or /48 (IPv6)
    /// has at most an eighth.
    pub max_deletions: usize,
    /// Derived keys kept, so that a user who comes back is not derived again.
    pub max_cached_keys: usize,
    /// Requests that may wait for a source of credentials that responds later. Beyond, requests over UDP are dropped,
    /// and their client sends them again; streams get 500.
    pub max_lookups: usize,
    /// How many of them one /24 (IPv4) or /48 (IPv6) may have, so that no network takes the others' places. While more
    /// than half of the places are free, it may have half as many as there are free places.
    pub max_lookups_per_prefix: usize,
    /// How long such a source may take, in seconds; then the client gets 500. Clients give up after 40
    /// (RFC 8489 §6.2.1).
    pub lookup_timeout_s: u32,
    /// Whether Binding requests must be authenticated. RFC 8489 §12: a basic STUN server should not.
    pub authenticate_binding: bool,
    /// Whether PASSWORD-ALGORITHMS is announced (RFC 8489 §9.2.4). Clients that support it then use SHA-256.
    pub announce_password_algorithms: bool,
    /// Whether an RFC 5389 client may also bind the channel numbers 0x5000 to 0x7FFF. RFC 5766 had them,
    /// and RFC 8656 §12 removed them. Such a client is recognized because it sends no PASSWORD-ALGORITHM.
    /// Clients of RFC 8489 get 400 for them, as do all if this is off.
    pub rfc5766_channels: bool,
    /// Whether a permission that a ChannelBind request installed lasts as long as the channel, 600 seconds from the
    /// last ChannelBind. RFC 8656 §9 ends it after 300 seconds. Some clients refresh a channel every 500 seconds and
    /// send no CreatePermission.
    pub channel_keeps_permission: bool,
    /// Whether Binding requests of RFC 3489, without a magic cookie, are answered as RFC 5389 §12.2 describes. If not,
    /// or if Binding requests must be authenticated, they are dropped.
    pub classic_stun: bool,
    /// Whether the first 16 bytes of a token's key of 20 bytes are also accepted as key of HMAC-SHA1. Clients that use
    /// coturn's library sign so.
    pub short_token_keys: bool,
    /// The addresses and ports of NAT behaviour discovery (RFC 5780). Default: none, so that CHANGE-REQUEST,
    /// RESPONSE-PORT and PADDING are unknown attributes.
    pub discovery: Discovery,
    /// Whether ADDITIONAL-ADDRESS-FAMILY is also taken under 0x8032, the number that clients of the draft
    /// before RFC 8656 (coturn's up to now) send it with. They get ADDRESS-ERROR-CODE under the draft's
    /// number, too.
    pub draft_dual_allocation: bool,
    /// Whether TCP relayed addresses can be had (RFC 6062); if not, asking for one is 442.
    pub tcp_relay: bool,
    /// Connections with peers per TCP relayed transport address. Beyond, Connect requests get 508, and peers that
    /// connect are refused.
    pub max_peer_connections: usize,
    /// The keys of tickets (RFC 8016), the same in all servers that pass requests on to each other. `None`: clients
    /// cannot have tickets, and get 405 if they ask for one or use one.
    pub mobility: Option<TicketKeys>,
    /// Whether the embedder can have channels relayed below the engine: [`Output::Offload`](super::Output::Offload)
    /// says which.
    pub offload: bool,
    /// Whether the outputs that only report are produced:
    /// [`Output::AllocationRefreshed`](super::Output::AllocationRefreshed),
    /// [`PermissionInstalled`](super::Output::PermissionInstalled), [`ChannelBound`](super::Output::ChannelBound),
    /// [`PermissionEnded`](super::Output::PermissionEnded), [`ChannelEnded`](super::Output::ChannelEnded) and
    /// [`Authenticated`](super::Output::Authenticated).
    pub report_changes: bool,
    /// Bytes of application data per second that one allocation may relay, both directions together, after a burst of
    /// one second; 0 is no limit. What comes too fast is dropped. [`MIN_ALLOCATION_RATE`](super::MIN_ALLOCATION_RATE)
    /// to [`MAX_ALLOCATION_RATE`](super::MAX_ALLOCATION_RATE). Other realms have their own.
    pub allocation_rate: u64,
    /// Whether the embedder's [`SharedBuckets`](super::SharedBuckets) limit groups of allocations as well, such as
    /// those of one user.
    pub group_rates: bool,
    /// Whether an allocation ends with its credential. No lifetime exceeds the end of the credential, and a credential
    /// that has expired or was removed refreshes nothing. If not, a credential only has to be valid when the allocation
    /// is made.
    pub strict_expiry: bool,
}

impl Config {
    /// A configuration with the defaults of RFC 8656 and limits that suit a worker of a large server.
    #[must_use]
    pub fn new(
        realm: &str,
        nonce_keys: NonceKeys,
        credentials: Arc<dyn Credentials>,
        policy: Arc<dyn PeerPolicy>,
    ) -> Config {
        Config {
            realm: realm.to_owned(),
            software: None,
            nonce_keys,
            nonce_lifetime_s: 600,
            credentials,
            realms: Vec::new(),
            access_tokens: None,
            policy,
            quota: Arc::new(Unlimited),
            strict_amplification: false,
            unverified_responses: 10_000,
            alternates: None,
            relay_v4: true,
            relay_v6: true,
            dont_fragment: true,
            default_lifetime_s: DEFAULT_LIFETIME_S,
            max_lifetime_s: MAX_LIFETIME_S,
            reservation_s: 30,
            max_allocations: 1 << 20,
            max_pending: 1024,
            max_reservations: 1024,
            max_permissions: 256,
            max_channels: 256,
            max_deletions: 16_384,
            max_cached_keys: 4096,
            max_lookups: 1024,
            max_lookups_per_prefix: 64,
            lookup_timeout_s: 5,
            authenticate_binding: false,
            announce_password_algorithms: true,
            rfc5766_channels: true,
            channel_keeps_permission: true,
            classic_stun: true,
            short_token_keys: true,
            discovery: Discovery::default(),
            draft_dual_allocation: true,
            tcp_relay: false,
            max_peer_connections: 16,
            mobility: None,
            offload: false,
            report_changes: false,
            allocation_rate: 0,
            group_rates: false,
            strict_expiry: false,
        }
    }

    /// How long a permission lasts after a ChannelBind request, in seconds.
    pub(super) const fn bound_permission_lifetime_s(&self) -> u32 {
        if self.channel_keeps_permission {
            CHANNEL_LIFETIME_S
        } else {
            PERMISSION_LIFETIME_S
        }
    }

    /// Checks every value. Returns a configuration that an engine accepts.
    ///
    /// # Errors
    /// Names the first value that it cannot work with.
    pub fn validate(self) -> Result<ValidConfig, ConfigError> {
        self.check()?;
        Ok(ValidConfig(Arc::new(self)))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let too_long = |text: &str| text.chars().count() >= 128;
        let software_too_long = self.software.as_deref().is_some_and(too_long);
        let realms_error = realms::name_error(&self.realm).or_else(|| realms::realms_error(self));
        if let Some(error) = realms_error {
            Err(error)
        } else if let Some(error) = server_name_error(self) {
            Err(error)
        } else if software_too_long {
            Err(ConfigError::Software)
        } else if !(1..=3600).contains(&self.nonce_lifetime_s) {
            Err(ConfigError::NonceLifetime)
        } else if self.default_lifetime_s == 0 || self.max_lifetime_s < self.default_lifetime_s {
            Err(ConfigError::Lifetime)
        } else if self.reservation_s < 30 {
            Err(ConfigError::Reservation)
        } else if !(1..=1024).contains(&self.max_permissions) {
            Err(ConfigError::Permissions)
        } else if !(1..=4096).contains(&self.max_channels) {
            Err(ConfigError::Channels)
        } else if let Some(error) = rate_error(self.allocation_rate) {
            Err(error)
        } else if !(1..=40).contains(&self.lookup_timeout_s) {
            Err(ConfigError::LookupTimeout)
        } else if !self.relay_v4 && !self.relay_v6 {
            Err(ConfigError::NoFamily)
        } else {
            Ok(())
        }
    }
}

/// What is wrong with the value of THIRD-PARTY-AUTHORIZATION. Every challenge to an Allocate request must have room for
/// it.
fn server_name_error(config: &Config) -> Option<ConfigError> {
    let tokens = config.access_tokens.as_ref()?;
    let name = tokens.server_name();
    let realms = config.realms.iter().map(|realm| &realm.name);
    let longest = realms
        .filter(|realm| tokens.has_realm(realm))
        .chain([&config.realm])
        .map(String::len)
        .max();
    let room = max_server_name_bytes(longest.unwrap_or(0));
    let is_good = (1..=room).contains(&name.len()) && !name.chars().any(char::is_control);
    (!is_good).then_some(ConfigError::ServerName(room))
}

/// A [`Config`] that has passed [`Config::validate`]. Clones share it.
#[derive(Clone, Debug)]
pub struct ValidConfig(Arc<Config>);

impl Deref for ValidConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.0
    }
}

/// A value in [`Config`] that the engine cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// RFC 8489 §14.9, §9.2.2.
    #[error("realm is empty or has a character that RFC 8265 does not allow")]
    Realm,
    /// This many bytes. See [`MAX_REALM_BYTES`].
    #[error(
        "realm has {0} bytes; at most {MAX_REALM_BYTES} are possible, as the answer to the shortest request must not be larger than three times \
         the request"
    )]
    LongRealm(usize),
    /// Policy, quota and users could not distinguish them.
    #[error("two realms have the same name")]
    SameRealm,
    /// At most 65,534 are possible.
    #[error("there are too many realms; at most 65,534 are possible")]
    TooManyRealms,
    /// Clients give up after 40 seconds (RFC 8489 §6.2.1).
    #[error("the timeout of look-ups must be 1 to 40 seconds")]
    LookupTimeout,
    /// RFC 7635 §6.1, and [`challenge`](MAX_REALM_BYTES)'s limit: this many bytes fit beside the realm.
    #[error(
        "the server name for access tokens must have 1 to {0} bytes beside this realm, and no control character"
    )]
    ServerName(usize),
    /// RFC 8489 §14.14.
    #[error("software must have at most 127 characters")]
    Software,
    /// RFC 8656 §5.
    #[error("nonce lifetime must be 1 to 3600 seconds")]
    NonceLifetime,
    /// RFC 8656 §7.2.
    #[error("default lifetime must be at least 1 second and at most the maximum lifetime")]
    Lifetime,
    /// RFC 8656 §7.2.
    #[error("a reservation must be held for at least 30 seconds")]
    Reservation,
    /// A client may ask for more in one request than a sorted table of this size should take.
    #[error("permissions per relayed address must be 1 to 1024")]
    Permissions,
    /// RFC 8656 §12.
    #[error("channels per relayed address must be 1 to 4096")]
    Channels,
    /// See [`MIN_ALLOCATION_RATE`](super::MIN_ALLOCATION_RATE) and [`MAX_ALLOCATION_RATE`](super::MAX_ALLOCATION_RATE).
    #[error("the rate of an allocation must be 0, or 1,000 to 10,000,000,000 bytes per second")]
    AllocationRate,
    /// There would be nothing to allocate.
    #[error("at least one of IPv4 and IPv6 must be relayed")]
    NoFamily,
}
