//! Realms beside the default one: each with its own users, peer rules and limits.

use crate::addresses::RelayAddresses;
use crate::error::SettingsError;
use crate::policy::{OwnAddresses, PeerRules, Policy};
use crate::quota::{QuotaLimits, RealmLimits};
use crate::settings::credentials_of;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use turn::server::{
    ClientIdentity, Credentials, PeerClass, PeerPolicy, RealmConfig, RelayTransport,
};

/// A realm beside [`Settings::realm`](crate::Settings::realm), for the clients of one customer on a server that several
/// share.
///
/// The realm of a client is the first one that matches it. A realm matches the ORIGIN of its request, the server name
/// of its TLS or DTLS handshake, or the listener. Other clients belong to the default realm, if the key of their access
/// token names no other one. SIP belongs to the default realm.
#[derive(Clone)]
#[non_exhaustive]
pub struct RealmSettings {
    /// Its name (RFC 8489 §14.9), 1 to [`MAX_REALM_BYTES`](crate::MAX_REALM_BYTES) bytes.
    pub name: String,
    /// The web origins that choose it, like `https://example.com` (ORIGIN, draft-ietf-tram-stun-origin).
    pub origins: Vec<String>,
    /// The server names that choose it (SNI, RFC 6066 §3).
    pub server_names: Vec<String>,
    /// The listeners that choose it, by address and port. An unspecified address means the port on every address of its
    /// family.
    pub listeners: Vec<SocketAddr>,
    /// Users with fixed passwords: name and password.
    pub users: Vec<(String, String)>,
    /// Secrets shared with the service that makes time-limited credentials. All of them are valid at once.
    pub secrets: Vec<Vec<u8>>,
    /// Further sources of credentials, asked after users and secrets.
    pub credentials: Vec<Arc<dyn Credentials>>,
    /// Peers that are re-admitted or refused in this realm, beside [`Settings::peers`](crate::Settings::peers).
    pub peers: PeerRules,
    /// How many relayed addresses all users of the realm may hold. Default: no limit but that of the server.
    pub allocations: u32,
    /// How many relayed addresses one user may hold. Default [`QuotaLimits::PER_USER`].
    pub allocations_per_user: u32,
    /// Bytes of application data per second that one allocation may have relayed, 1,000 to 10,000,000,000; 0: no limit.
    /// Default 0.
    pub allocation_rate: u64,
    /// The same of all allocations of the realm together. Default 0.
    pub rate: u64,
    /// The same of all allocations of one user. Default 0.
    pub rate_per_user: u64,
}

impl RealmSettings {
    /// A realm without users that nothing chooses yet.
    #[must_use]
    pub fn new(name: &str) -> RealmSettings {
        RealmSettings {
            name: name.to_owned(),
            origins: Vec::new(),
            server_names: Vec::new(),
            listeners: Vec::new(),
            users: Vec::new(),
            secrets: Vec::new(),
            credentials: Vec::new(),
            peers: PeerRules::default(),
            allocations: QuotaLimits::UNLIMITED,
            allocations_per_user: QuotaLimits::PER_USER,
            allocation_rate: 0,
            rate: 0,
            rate_per_user: 0,
        }
    }

    pub(crate) fn engine_config(&self) -> Result<RealmConfig, SettingsError> {
        let credentials =
            credentials_of(&self.name, &self.users, &self.secrets, &self.credentials)?;
        let mut realm = RealmConfig::new(&self.name, credentials);
        realm.origins.clone_from(&self.origins);
        realm.server_names.clone_from(&self.server_names);
        realm.listeners.clone_from(&self.listeners);
        realm.allocation_rate = self.allocation_rate;
        Ok(realm)
    }

    pub(crate) const fn limits(&self) -> RealmLimits {
        RealmLimits {
            per_user: self.allocations_per_user,
            total: self.allocations,
        }
    }
}

/// Passwords and secrets stay out of logs.
impl fmt::Debug for RealmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealmSettings")
            .field("name", &self.name)
            .field("users", &self.users.len())
            .field("secrets", &self.secrets.len())
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

/// The peer policy of each realm.
#[derive(Debug)]
struct RealmPolicies {
    default: Arc<dyn PeerPolicy>,
    realms: HashMap<String, Arc<dyn PeerPolicy>>,
}

impl RealmPolicies {
    fn of(&self, client: &ClientIdentity<'_>) -> &dyn PeerPolicy {
        &**self.realms.get(client.realm).unwrap_or(&self.default)
    }
}

impl PeerPolicy for RealmPolicies {
    fn classify(&self, client: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        self.of(client).classify(client, peer)
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.of(client).permits(client, peer)
    }

    fn permits_connection(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.of(client).permits_connection(client, peer)
    }
}

/// The peer policy of each transport.
#[derive(Debug)]
struct TransportPolicies {
    udp: Policy,
    tcp: Policy,
}

impl TransportPolicies {
    fn of(&self, client: &ClientIdentity<'_>) -> &Policy {
        match client.relay {
            RelayTransport::Tcp => &self.tcp,
            _ => &self.udp,
        }
    }
}

impl PeerPolicy for TransportPolicies {
    fn classify(&self, client: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        self.of(client).classify(client, peer)
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.of(client).permits(client, peer)
    }

    fn permits_connection(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.of(client).permits_connection(client, peer)
    }
}

/// The policy by the rules of all realms. What holds for the server holds in each of them.
pub(crate) fn policy(
    rules: &PeerRules,
    realms: &[RealmSettings],
    own: &OwnAddresses,
    relays: &Arc<RelayAddresses>,
) -> Arc<dyn PeerPolicy> {
    let make = |rules: &PeerRules| -> Arc<dyn PeerPolicy> {
        let make = |rules: &PeerRules| Policy::new(rules, own.clone(), Arc::clone(relays));
        if !rules.depend_on_transport() {
            return Arc::new(make(rules));
        }
        Arc::new(TransportPolicies {
            udp: make(&rules.over(RelayTransport::Udp)),
            tcp: make(&rules.over(RelayTransport::Tcp)),
        })
    };
    let has_no_rules = |realm: &RealmSettings| realm.peers == PeerRules::default();
    if realms.iter().all(has_no_rules) {
        return make(rules);
    }
    let realms = realms.iter().map(|realm| {
        let mut both = rules.clone();
        both.allow.extend(realm.peers.allow.iter().cloned());
        both.deny.extend(realm.peers.deny.iter().cloned());
        (realm.name.clone(), make(&both))
    });
    Arc::new(RealmPolicies {
        default: make(rules),
        realms: realms.collect(),
    })
}
