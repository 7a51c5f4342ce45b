//! The settings of the library from a configuration. A reload can change all of them.

use std::sync::Arc;

use server::access_tokens::TokenKeys;
use server::connections::StreamSettings;
use server::offload::{BindingExcess, KernelBinding};
use server::policy::{PeerRule as Rule, PeerRules, loopback_and_private};
use server::quota::QuotaLimits;
use server::realms::RealmSettings;
use server::sip::SipSettings;
use server::turn::server::credentials::AccessTokens;
use server::{IpNet, Settings, addresses};

use super::databases::Databases;
use crate::config::{self, Config, PeerRule, User};
use crate::control::routing::Snapshot;
use crate::events::Events;

/// Copies the fields that have the same name and type on both sides.
macro_rules! copy {
    ($from:ident => $to:ident, $($field:ident),+) => {
        $($to.$field.clone_from(&$from.$field);)+
    };
}

/// What the decisions of the SIP proxy depend on, without the listeners.
pub(super) fn snapshot(settings: &Settings) -> Snapshot {
    let users = settings.users.iter();
    Snapshot {
        sip: settings.sip.clone(),
        users: users.map(|(name, _)| name.clone()).collect(),
        ..Snapshot::default()
    }
}

/// The settings of the server from the configuration, its stores and its sinks of events.
pub(super) fn with_databases(config: &Config, databases: &Databases, events: &Events) -> Settings {
    let mut settings = settings(config);
    databases.add_to(&mut settings, config);
    events.add_to(&mut settings.hooks);
    settings
}

/// Which Binding requests the kernel answers.
fn kernel_binding(config: &Config) -> KernelBinding {
    let mut binding = KernelBinding::default();
    binding.rate = config.binding_rate;
    binding.excess = match config.binding_excess {
        config::BindingExcess::User => BindingExcess::UserSpace,
        config::BindingExcess::Drop => BindingExcess::Drop,
    };
    binding
}

/// What opens access tokens, if there are keys. The configuration has been checked for keys that cannot be used.
fn access_tokens(config: &Config) -> Option<Arc<dyn AccessTokens>> {
    let keys = (!config.token_keys.is_empty()).then(|| config.token_keys.iter().cloned())?;
    let keys = TokenKeys::new(&config.token_server_name, keys).ok()?;
    Some(Arc::new(keys))
}

/// The part of the configuration that can change while the server runs.
fn settings(config: &Config) -> Settings {
    let mut settings = Settings::default();
    copy!(config => settings, realm, software, nonce_lifetime, strict_expiry, rfc5766_channels, short_token_keys);
    copy!(config => settings, authenticate_binding, channel_keeps_permission, classic_stun, draft_dual_allocation);
    let limits = &config.limits;
    copy!(limits => settings, strict_amplification, unverified_responses, allocation_rate);
    settings.users = passwords(&config.users);
    settings.secrets = bytes(&config.secrets);
    settings.access_tokens = access_tokens(config);
    settings.alternates = config.alternate.settings();
    settings.realms = config.realms.iter().map(realm).collect();
    settings.peers = peers(config);
    settings.quota = QuotaLimits::default()
        .per_user(limits.allocations_per_user)
        .per_source(limits.allocations_per_source)
        .total(limits.allocations);
    settings.kernel_binding = kernel_binding(config);
    settings.sip = sip_settings(&config.sip);
    settings.sip.push = crate::push::settings(config.sip.push.as_ref());
    settings.streams = streams(limits);
    settings.default_lifetime = limits.lifetime_default;
    settings.max_lifetime = limits.lifetime_max;
    settings.max_permissions = limits.permissions as usize;
    settings.max_channels = limits.channels as usize;
    settings.tcp_relay = config.relay_tcp;
    settings.mobility = config.relay_mobility;
    settings.max_peer_connections = limits.peer_connections as usize;
    settings.rates.per_user = limits.rate_per_user;
    settings.rates.per_source = limits.rate_per_source;
    settings.rates.total = limits.rate_total;
    settings.rates.directions_apart = limits.rate_directions_apart;
    settings
}

fn passwords(users: &[User]) -> Vec<(String, String)> {
    let pair = |user: &User| (user.name.clone(), user.password.clone());
    users.iter().map(pair).collect()
}

fn bytes(secrets: &[String]) -> Vec<Vec<u8>> {
    let bytes = |secret: &String| secret.clone().into_bytes();
    secrets.iter().map(bytes).collect()
}

/// A realm beside the default one.
fn realm(config: &config::Realm) -> RealmSettings {
    let mut realm = RealmSettings::new(&config.name);
    realm.origins.clone_from(&config.origins);
    realm.server_names.clone_from(&config.server_names);
    realm.listeners.clone_from(&config.listeners);
    realm.users = passwords(&config.users);
    realm.secrets = bytes(&config.secrets);
    realm.peers.allow = rules(&config.peers_allow);
    realm.peers.deny = rules(&config.peers_deny);
    realm.allocations = config.allocations;
    realm.allocations_per_user = config.allocations_per_user;
    realm.allocation_rate = config.allocation_rate;
    realm.rate = config.rate;
    realm.rate_per_user = config.rate_per_user;
    realm
}

/// Limits of connections.
fn streams(limits: &config::Limits) -> StreamSettings {
    let mut streams = StreamSettings::default();
    streams.connections = limits.connections;
    streams.connections_per_source = limits.connections_per_source;
    streams.message_deadline = limits.stream_message_deadline;
    streams.idle = limits.stream_idle;
    streams.queue_age = limits.stream_queue_age;
    streams.queue_bytes = limits.stream_queue as usize;
    streams.queue_bytes_total = limits.stream_queue_total as usize;
    streams
}

/// How SIP is served.
pub(crate) fn sip_settings(config: &config::Sip) -> SipSettings {
    let mut sip = SipSettings::default();
    copy!(config => sip, test_uas, challenge, domains, credentials, trunks, advertise, local_networks, routes);
    copy!(config => sip, forwards, record_route, forking, recurse, calls, trace, deny, allow, ban, scanners);
    copy!(config => sip, ice_servers, rtpengine, registrar, bindings, bindings_per_user, digest_algorithms);
    copy!(config => sip, auth_int, digest_any_uri, digest_without_qop, userhash, tolerance, service_time, t1, resolvers);
    copy!(config => sip, transactions, connections, connections_per_source, headers, message_deadline, idle);
    copy!(config => sip, requests_per_source);
    sip.targets = rules(&config.targets);
    sip.websocket_paths.clone_from(&config.ws_paths);
    sip.websocket_origins.clone_from(&config.ws_origins);
    sip.head_bytes = config.head_size;
    sip.body_bytes = config.body_size;
    sip
}

fn rules(list: &[PeerRule]) -> Vec<Rule> {
    let rule = |rule: &PeerRule| Rule {
        network: rule.net,
        ports: rule.ports.clone(),
        transport: rule.transport,
    };
    list.iter().map(rule).collect()
}

fn peers(config: &Config) -> PeerRules {
    let mut peers = PeerRules::default();
    peers.allow = rules(&config.peers_allow);
    peers.deny = rules(&config.peers_deny);
    if config.peers_allow_local {
        // This host's own addresses are denied one by one, which a rule for the network around them does not undo.
        let own = addresses::host_addresses().into_iter().map(IpNet::from);
        peers.allow.extend(
            loopback_and_private()
                .into_iter()
                .chain(own)
                .map(Rule::all_ports),
        );
    }
    peers
}

#[cfg(test)]
mod tests {
    use server::ports::PortRange;

    use super::*;
    use crate::config::{Inputs, load};

    fn defaults() -> Config {
        load(&Inputs::default()).config.unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let (config, library) = (defaults(), Settings::default());
        let ours = settings(&config);
        assert_eq!(ours.realm, library.realm);
        assert_eq!(config.receive_buffer, server::RECEIVE_BUFFER);
        assert_eq!(config.send_buffer, server::SEND_BUFFER);
        assert_eq!(ours.quota, library.quota);
        assert_eq!(ours.unverified_responses, library.unverified_responses);
        assert_eq!(ours.nonce_lifetime, library.nonce_lifetime);
        assert_eq!(ours.default_lifetime, library.default_lifetime);
        assert_eq!(ours.max_lifetime, library.max_lifetime);
        assert_eq!(ours.max_permissions, library.max_permissions);
        assert_eq!(ours.max_channels, library.max_channels);
        assert_eq!(ours.tcp_relay, library.tcp_relay);
        assert_eq!(ours.mobility, library.mobility);
        assert_eq!(ours.max_peer_connections, library.max_peer_connections);
        assert_eq!(ours.allocation_rate, library.allocation_rate);
        assert_eq!(ours.rates, library.rates);
        assert_eq!(ours.strict_expiry, library.strict_expiry);
        assert_eq!(ours.authenticate_binding, library.authenticate_binding);
        assert_eq!(ours.rfc5766_channels, library.rfc5766_channels);
        assert_eq!(ours.short_token_keys, library.short_token_keys);
        assert_eq!(ours.classic_stun, library.classic_stun);
        assert_eq!(
            ours.channel_keeps_permission,
            library.channel_keeps_permission
        );
        assert_eq!(ours.draft_dual_allocation, library.draft_dual_allocation);
        assert_eq!(ours.kernel_binding, library.kernel_binding);
        assert_eq!(ours.sip, library.sip);
        assert_eq!(ours.streams, library.streams);
        assert_eq!(config.offload_channels, server::offload::Offload::CHANNELS);
        assert_eq!(
            config.relay_ports,
            PortRange::DYNAMIC.first()..=PortRange::DYNAMIC.last()
        );
    }

    #[test]
    fn local_peers_are_admitted_only_on_request() {
        let mut config = defaults();
        assert_eq!(peers(&config), PeerRules::default());
        config.peers_allow_local = true;
        let loopback: IpNet = "127.0.0.0/8".parse().unwrap();
        assert!(peers(&config).allow.contains(&Rule::all_ports(loopback)));
    }
}
