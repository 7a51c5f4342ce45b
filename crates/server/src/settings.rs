//! What can change while a server runs: who may use it, for what, and how much of it.

use crate::alternates::AlternateSettings;
use crate::connections::{StreamSettings, WorkerLimits};
use crate::error::SettingsError;
use crate::hooks::Hooks;
use crate::offload::KernelBinding;
use crate::policy::PeerRules;
use crate::quota::QuotaLimits;
use crate::rates::{GroupRates, RateLimits};
use crate::realms::RealmSettings;
use crate::sip::routes::{Forwards, Table};
use crate::sip::{Domains, SipConfig, SipSettings};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use stun::nonce::NonceKeys;
use turn::server::credentials::{AccessTokens, AnyOf, RestCredentials, StaticCredentials};
use turn::server::{
    Config, Credentials, Discovery, MAX_ALLOCATION_RATE, MIN_ALLOCATION_RATE, PeerPolicy, Quota,
    TicketKeys,
};

/// The live settings of a server. [`Running::reload`](crate::Running::reload) replaces them as a whole.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The default realm (RFC 8489 §14.9), 1 to [`MAX_REALM_BYTES`](crate::MAX_REALM_BYTES) bytes.
    /// It cannot change while the server runs. Default `hairpin`.
    pub realm: String,
    /// Realms beside it. Default: none.
    pub realms: Vec<RealmSettings>,
    /// SOFTWARE in responses (RFC 8489 §14.14). Default: none, which is shorter and reveals nothing.
    pub software: Option<String>,
    /// Users with fixed passwords: name and password.
    pub users: Vec<(String, String)>,
    /// Secrets shared with the service that makes time-limited credentials. All of them are valid at once.
    pub secrets: Vec<Vec<u8>>,
    /// What opens access tokens (RFC 7635). Default: none, and clients need a name and a password.
    pub access_tokens: Option<Arc<dyn AccessTokens>>,
    /// Further sources of credentials. The server queries them after users and secrets. SIP queries them for users that
    /// are neither in [`Settings::users`] nor in [`Settings::sip`].
    pub credentials: Vec<Arc<dyn Credentials>>,
    /// What the embedding program decides and learns. Default: nothing.
    pub hooks: Hooks,
    /// Peers that are re-admitted or refused beyond the built-in policy.
    pub peers: PeerRules,
    /// How many relayed addresses a user, a source, and all users together may hold.
    pub quota: QuotaLimits,
    /// How long a nonce is valid: 1 second to 1 hour. Default 10 minutes.
    pub nonce_lifetime: Duration,
    /// Lifetime of an allocation unless the client asks for longer. Default 10 minutes.
    pub default_lifetime: Duration,
    /// The longest lifetime a client can get. Default 1 hour.
    pub max_lifetime: Duration,
    /// Permissions per relayed address: 1 to 1024. Default 256.
    pub max_permissions: usize,
    /// Channels per relayed address: 1 to 4096. Default 256.
    pub max_channels: usize,
    /// Whether clients can get TCP relayed addresses (RFC 6062), over TCP and TLS. Default: yes.
    pub tcp_relay: bool,
    /// Connections with peers per TCP relayed address. Beyond, Connect requests get 508, and peers that connect are
    /// refused. Default 16.
    pub max_peer_connections: usize,
    /// Whether clients can keep an allocation when their address changes (RFC 8016), where there is one worker or
    /// datagrams can be [steered](crate::Steering) to workers. If not, asking for a ticket is 405. Default: yes.
    pub mobility: bool,
    /// Bytes of application data per second, both directions together, that one allocation may have relayed, 0 for any
    /// number: 1,000 to 10,000,000,000. A burst of one second's worth passes. Default 0.
    pub allocation_rate: u64,
    /// How much application data per second groups of allocations may have relayed. Default: any amount.
    pub rates: RateLimits,
    /// Allocations per worker; beyond, clients get 508. Default 1,048,576: ports run out first.
    pub max_allocations: usize,
    /// Whether a Refresh needs a credential that has not expired. Default: no, as clients keep the one they began with.
    pub strict_expiry: bool,
    /// Whether clients that support RFC 5389 may also bind the channel numbers 0x5000 to 0x7FFF, which RFC 8656 §12
    /// took back. Default: yes, as Debian's coturn client picks at random among them.
    pub rfc5766_channels: bool,
    /// Whether the first 16 bytes of an access token's key of 20 bytes are also accepted as key of HMAC-SHA1. Default:
    /// yes, as clients that use coturn's library sign so.
    pub short_token_keys: bool,
    /// Whether a permission that a ChannelBind request installed lasts as long as the channel, 600 seconds from the
    /// last ChannelBind. Default: yes, because aioice and werift refresh only their channels, every 500 seconds. With
    /// no, RFC 8656 §9 applies: 300 seconds.
    pub channel_keeps_permission: bool,
    /// Whether Binding requests of classic STUN (RFC 3489) are answered, as RFC 5389 §12.2 describes. Default: yes.
    pub classic_stun: bool,
    /// Whether ADDITIONAL-ADDRESS-FAMILY is also taken under the number of the draft before RFC 8656, 0x8032, which
    /// coturn's client sends. Default: yes.
    pub draft_dual_allocation: bool,
    /// Whether Binding requests need credentials. Default: no (RFC 8489 §12).
    pub authenticate_binding: bool,
    /// Whether an address that nothing is proven of never gets more bytes than it sent. Default: no; it gets at most
    /// three times as many. With it, short requests over UDP get no response. These are Binding requests of less than
    /// 32 bytes (IPv4) or 44 (IPv6), and Allocate requests that are shorter than their challenge.
    pub strict_amplification: bool,
    /// Error responses per second over UDP to one address (IPv4) or /64 (IPv6) that no valid nonce has verified, 1 or
    /// more. Requests beyond are dropped. A request that authenticates gives one back. Loopback addresses have no
    /// limit. Default 10,000. The workers share it.
    pub unverified_responses: u32,
    /// Which Binding requests the kernel answers, where it relays. Default: [`KernelBinding::default`].
    pub kernel_binding: KernelBinding,
    /// Limits of connections over TCP and TLS.
    pub streams: StreamSettings,
    /// Other servers, to which clients are sent with 300. Default: none.
    pub alternates: AlternateSettings,
    /// How SIP is served, where it is.
    pub sip: SipSettings,
}

impl Settings {
    /// The default realm.
    pub const REALM: &'static str = "hairpin";
    /// The default lifetime of a nonce.
    pub const NONCE_LIFETIME: Duration = Duration::from_secs(600);
    /// The default of [`Settings::default_lifetime`].
    pub const DEFAULT_LIFETIME: Duration =
        Duration::from_secs(turn::server::DEFAULT_LIFETIME_S as u64);
    /// The default of [`Settings::max_lifetime`].
    pub const MAX_LIFETIME: Duration = Duration::from_secs(turn::server::MAX_LIFETIME_S as u64);
    /// The default of [`Settings::max_permissions`].
    pub const MAX_PERMISSIONS: usize = 256;
    /// The default of [`Settings::max_channels`].
    pub const MAX_CHANNELS: usize = 256;
    /// The default of [`Settings::max_peer_connections`].
    pub const MAX_PEER_CONNECTIONS: usize = 16;
    /// The default of [`Settings::unverified_responses`].
    pub const UNVERIFIED_RESPONSES: u32 = 10_000;
    /// The default of [`Settings::max_allocations`].
    pub const MAX_ALLOCATIONS: usize = 1 << 20;

    /// The engine's configuration that these settings mean.
    pub(crate) fn engine_config(
        &self,
        environment: &EngineEnvironment,
    ) -> Result<Config, SettingsError> {
        let credentials =
            credentials_of(&self.realm, &self.users, &self.secrets, &self.credentials)?;
        self.check_rates()?;
        self.check_sip()?;
        let mut config = Config::new(
            &self.realm,
            environment.nonce_keys.clone(),
            credentials,
            Arc::clone(&environment.policy),
        );
        let realms = self.realms.iter().map(RealmSettings::engine_config);
        config.realms = realms.collect::<Result<_, _>>()?;
        config.software.clone_from(&self.software);
        config.access_tokens.clone_from(&self.access_tokens);
        config.quota = Arc::clone(&environment.quota);
        config.relay_v4 = environment.relay_v4;
        config.relay_v6 = environment.relay_v6;
        config.nonce_lifetime_s = seconds(self.nonce_lifetime);
        config.default_lifetime_s = seconds(self.default_lifetime);
        config.max_lifetime_s = seconds(self.max_lifetime);
        config.max_permissions = self.max_permissions;
        config.max_channels = self.max_channels;
        config.tcp_relay = self.tcp_relay;
        config.max_peer_connections = self.max_peer_connections;
        config.mobility = environment.ticket_keys.clone().filter(|_| self.mobility);
        config.allocation_rate = self.allocation_rate;
        config.max_allocations = self.max_allocations;
        config.strict_expiry = self.strict_expiry;
        config.rfc5766_channels = self.rfc5766_channels;
        config.short_token_keys = self.short_token_keys;
        config.channel_keeps_permission = self.channel_keeps_permission;
        config.classic_stun = self.classic_stun;
        config.draft_dual_allocation = self.draft_dual_allocation;
        config.authenticate_binding = self.authenticate_binding;
        config.strict_amplification = self.strict_amplification;
        config.report_changes = self.hooks.on_event.is_some();
        Ok(config)
    }

    fn check_rates(&self) -> Result<(), SettingsError> {
        let rates = GroupRates::new(&self.rates, &self.realms);
        let allowed = MIN_ALLOCATION_RATE..=MAX_ALLOCATION_RATE;
        match rates.all().all(|rate| rate == 0 || allowed.contains(&rate)) {
            true => Ok(()),
            false => Err(SettingsError::GroupRate),
        }
    }

    fn check_sip(&self) -> Result<(), SettingsError> {
        self.sip.registrar.validate()?;
        let domains = Domains::new(self.sip.domains.clone())?;
        for own in &self.sip.credentials {
            own.check(&domains)?;
        }
        match self.sip.test_uas && !self.sip.domains.is_empty() {
            true => Err(SettingsError::SipTestUas),
            false => Ok(()),
        }
    }

    /// The limits of connections of each worker.
    pub(crate) fn stream_limits(&self, workers: usize) -> WorkerLimits {
        self.streams.of_worker(workers)
    }

    /// The SIP settings of each worker.
    pub(crate) fn sip_config(
        &self,
        workers: usize,
        earlier: &Table,
    ) -> Result<SipConfig, SettingsError> {
        let domains = Domains::new(self.sip.domains.clone())?;
        let settings = SipSettings {
            // Workers share the table.
            aliases: Vec::new(),
            ..self.sip.clone()
        };
        Ok(SipConfig {
            routes: Arc::new(self.sip.table(Some(earlier))?),
            forwards: Arc::new(Forwards::new(self.sip.forwards.clone())),
            aliases: Arc::new(self.sip.usable_aliases(&domains)),
            settings,
            realm: self.realm.clone(),
            users: self.users.clone(),
            sources: (!self.credentials.is_empty())
                .then(|| Arc::new(AnyOf(self.credentials.clone())) as Arc<dyn Credentials>),
            ice_secret: self.secrets.first().cloned(),
            reporter: self.hooks.sip.clone(),
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
            draining: false,
            tokens: None,
        })
    }

    /// The Binding requests that the kernel may answer. None if they require credentials or a minimum length, which the
    /// kernel does not check, or if responses have the attributes of RFC 5780.
    pub(crate) fn answered_by_kernel(&self, discovery: &Discovery) -> Option<KernelBinding> {
        let is_left_to_user_space = self.authenticate_binding
            || self.strict_amplification
            || !discovery.listeners.is_empty();
        (!is_left_to_user_space).then_some(self.kernel_binding)
    }
}

/// Every source of credentials of a realm as one. Without any source, no client can allocate: a STUN server.
pub(crate) fn credentials_of(
    realm: &str,
    users: &[(String, String)],
    secrets: &[Vec<u8>],
    further: &[Arc<dyn Credentials>],
) -> Result<Arc<dyn Credentials>, SettingsError> {
    let mut sources: Vec<Arc<dyn Credentials>> = Vec::new();
    if !users.is_empty() {
        let mut fixed = StaticCredentials::new(realm);
        for (name, password) in users {
            fixed
                .add_password(name, password)
                .map_err(|source| SettingsError::User {
                    name: name.clone(),
                    source,
                })?;
        }
        sources.push(Arc::new(fixed));
    }
    if secrets.iter().any(Vec::is_empty) {
        return Err(SettingsError::EmptySecret);
    }
    if !secrets.is_empty() {
        sources.push(Arc::new(RestCredentials::new(secrets.to_vec())));
    }
    sources.extend(further.iter().cloned());
    // One source alone may support user names by their hash; a list only if all its members do.
    Ok(match sources.pop() {
        Some(only) if sources.is_empty() => only,
        last => {
            sources.extend(last);
            Arc::new(AnyOf(sources))
        }
    })
}

/// What an engine's configuration needs beside the settings.
#[derive(Debug)]
pub(crate) struct EngineEnvironment {
    pub(crate) nonce_keys: NonceKeys,
    /// `None` if clients cannot move.
    pub(crate) ticket_keys: Option<TicketKeys>,
    pub(crate) policy: Arc<dyn PeerPolicy>,
    pub(crate) quota: Arc<dyn Quota>,
    pub(crate) relay_v4: bool,
    pub(crate) relay_v6: bool,
}

/// Whole seconds; what is longer than 136 years is refused by the engine's own check.
fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            realm: Self::REALM.to_owned(),
            realms: Vec::new(),
            software: None,
            users: Vec::new(),
            secrets: Vec::new(),
            access_tokens: None,
            credentials: Vec::new(),
            hooks: Hooks::default(),
            peers: PeerRules::default(),
            quota: QuotaLimits::default(),
            nonce_lifetime: Self::NONCE_LIFETIME,
            default_lifetime: Self::DEFAULT_LIFETIME,
            max_lifetime: Self::MAX_LIFETIME,
            max_permissions: Self::MAX_PERMISSIONS,
            max_channels: Self::MAX_CHANNELS,
            tcp_relay: true,
            max_peer_connections: Self::MAX_PEER_CONNECTIONS,
            mobility: true,
            allocation_rate: 0,
            rates: RateLimits::default(),
            max_allocations: Self::MAX_ALLOCATIONS,
            strict_expiry: false,
            rfc5766_channels: true,
            short_token_keys: true,
            channel_keeps_permission: true,
            classic_stun: true,
            draft_dual_allocation: true,
            authenticate_binding: false,
            strict_amplification: false,
            unverified_responses: Self::UNVERIFIED_RESPONSES,
            kernel_binding: KernelBinding::default(),
            streams: StreamSettings::default(),
            alternates: AlternateSettings::default(),
            sip: SipSettings::default(),
        }
    }
}

/// Passwords and secrets stay out of logs.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("realm", &self.realm)
            .field("users", &self.users.len())
            .field("secrets", &self.secrets.len())
            .field("peers", &self.peers)
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let mut settings = Settings::default();
        settings
            .users
            .push(("ann".to_owned(), "pa55word".to_owned()));
        settings.secrets.push(b"5ecret".to_vec());
        let text = format!("{settings:?}");
        assert!(
            !text.contains("pa55word") && !text.contains("5ecret"),
            "{text}"
        );
    }
}
