//! From a configuration to a running `server`, and back to words when it does not start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use server::access_tokens::TokenKeys;
use server::certificates::Certificates;
use server::connections::StreamSettings;
use server::features::Features;
use server::handover::{ForeignMessage, Joining, Offer, TakeOver};
use server::offload::{BindingExcess, KernelBinding, Offload, OffloadMode};
use server::policy::{PeerRule as Rule, PeerRules, loopback_and_private};
use server::quota::QuotaLimits;
use server::realms::RealmSettings;
use server::sessions::Sessions;
use server::sip::{SipInspector, SipSettings};
use server::turn::server::credentials::AccessTokens;
use server::{
    AddressFamily, Builder, InheritedSockets, IpNet, Observer, Running, Server, Settings,
    SteeringInUse, addresses,
};

use super::databases::Databases;
use super::explain::explain;
use super::plan::{Listeners, Machine};
use super::sip_tls;
use crate::config::{self, Config, ExternalIp, PeerRule, PinWorkers, Steering, User};
use crate::events::Events;

/// What `server` needs to know of the machine it runs on.
pub(super) fn machine() -> Machine {
    let families = [AddressFamily::V4, AddressFamily::V6];
    Machine {
        addresses: addresses::host_addresses(),
        routed: families
            .into_iter()
            .filter_map(addresses::default_route)
            .collect(),
    }
}

/// Where sockets come from that the server does not open itself.
pub(super) struct Sources {
    pub(super) inherited: InheritedSockets,
    /// The running server that this one takes over from.
    pub(super) take_over: Option<TakeOver>,
    /// The most datagrams of a batch.
    pub(super) batch_limit: Option<u16>,
}

/// The running server.
pub(super) struct Engine {
    running: Running,
    realm: String,
    databases: Databases,
    events: Events,
}

impl Engine {
    /// Opens all sockets and starts the workers.
    /// Clients may not relay to `others`: listeners of this process beside the server's.
    pub(super) fn start(
        config: &Config,
        (databases, events): (Databases, Events),
        listeners: &Listeners,
        others: &[SocketAddr],
        relays: &[IpAddr],
        sources: Sources,
    ) -> Result<Self> {
        let mut builder = Server::builder()
            .inherited_sockets(sources.inherited)
            .relay_ports(*config.relay_ports.start(), *config.relay_ports.end())
            .shared_ports(config.relay_shared_ports)
            .pin_workers(pinning(config.pin_workers))
            .steering(steering(config.steering))
            .segmentation_offload(config.offloads)
            .kernel_relay(offload(config))
            .drop_privileges(true)
            .receive_buffer(config.receive_buffer)
            .send_buffer(config.send_buffer)
            .busy_poll(config.busy_poll_us)
            .nat_discovery(config.nat_discovery.clone())
            .settings(with_databases(config, &databases, &events));
        if let Some(limit) = sources.batch_limit {
            builder = builder.batch_limit(limit.into());
        }
        builder = with_identity(builder, config);
        if let Some(from) = sources.take_over {
            builder = builder.take_over(from);
        }
        if let Some(workers) = config.workers {
            builder = builder.workers(usize::try_from(workers)?);
        }
        for &listener in others {
            builder = builder.protect(listener);
        }
        for &listener in &listeners.udp {
            builder = builder.listen(listener);
        }
        for &listener in &listeners.tcp {
            builder = builder.listen_tcp(listener);
        }
        let certificates = certificates(config, relays)?;
        builder = sip_tls::with_peers(builder, config, certificates.as_ref())?;
        if let Some(certificates) = certificates {
            builder = builder.tls(certificates.server_config(config.only_tls13));
            builder = builder.certificates(certificates);
        }
        for &listener in &listeners.tls {
            builder = builder.listen_tls(listener);
        }
        for &listener in &listeners.dtls {
            builder = builder.listen_dtls(listener);
        }
        for &network in &config.proxy_protocol_from {
            builder = builder.proxy_protocol_from(network);
        }
        builder = relays
            .iter()
            .fold(builder, |builder, &relay| builder.relay_address(relay));
        builder = config
            .sip
            .listen
            .iter()
            .fold(builder, |builder, &listener| builder.sip_listen(listener));
        builder = with_sip_streams(builder, &config.sip);
        for external in &config.external_ip {
            builder = builder.external_address(external.public, external.private);
        }
        let running = builder.start().map_err(|error| explain(&error, config))?;
        Ok(Self {
            running,
            realm: config.realm.clone(),
            databases,
            events,
        })
    }

    /// One that runs already.
    #[cfg(test)]
    pub(super) fn of(running: Running, realm: &str) -> Self {
        let realm = realm.to_owned();
        let databases = Databases::none();
        Self {
            running,
            realm,
            databases,
            events: Events::default(),
        }
    }

    /// The stores.
    pub(super) fn databases(&self) -> &Databases {
        &self.databases
    }

    /// The stores, to replace them.
    pub(super) fn databases_mut(&mut self) -> &mut Databases {
        &mut self.databases
    }

    /// The sinks of events.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    /// Has the workers ask the stores again for a user, or for all of them.
    pub(super) fn forget_users(&self, user: Option<&str>) -> Result<()> {
        Ok(self.running.forget_users(user)?)
    }

    /// Closes SIP connections that nothing is under way on, after another process has taken over.
    pub(super) fn close_sip_connections(&self) -> Result<()> {
        Ok(self.running.close_sip_connections()?)
    }

    /// What a new process needs to take over.
    pub(super) fn offer(&self) -> Result<Offer> {
        Ok(self.running.offer()?)
    }

    /// Gives each client an entry in the steering table.
    pub(super) fn hold_clients(&self, joining: Joining) -> Result<()> {
        Ok(self.running.hold_clients(joining)?)
    }

    /// Leaves new connections to the process that has taken over.
    pub(super) fn stop_listening(&self) -> Result<()> {
        Ok(self.running.stop_listening()?)
    }

    /// Serves everything again.
    pub(super) fn resume(&self) -> Result<()> {
        Ok(self.running.resume()?)
    }

    /// The process that this one has taken over from has ended.
    pub(super) fn predecessor_ended(&self) -> Result<()> {
        Ok(self.running.predecessor_ended()?)
    }

    /// While two processes run, once per second.
    pub(super) fn share_rates(&self) {
        self.running.share_rates();
    }

    /// Handles what has come to the process that has taken over.
    pub(super) fn receive_foreign(&self, message: ForeignMessage) -> Result<()> {
        Ok(self.running.receive_foreign(message)?)
    }

    /// The listeners, with the real ports.
    pub(super) fn listeners(&self) -> Vec<SocketAddr> {
        self.running.listeners().to_vec()
    }

    /// The listeners of TCP connections, with the real ports.
    pub(super) fn tcp_listeners(&self) -> Vec<SocketAddr> {
        self.running.tcp_listeners().to_vec()
    }

    /// The listeners of TLS connections, with the real ports.
    pub(super) fn tls_listeners(&self) -> Vec<SocketAddr> {
        self.running.tls_listeners().to_vec()
    }

    /// The listeners of DTLS, with the real ports.
    pub(super) fn dtls_listeners(&self) -> Vec<SocketAddr> {
        self.running.dtls_listeners().to_vec()
    }

    /// Reads the state of SIP; `None` if there is no SIP listener.
    pub(super) fn sip_inspector(&self) -> Option<SipInspector> {
        self.running.sip_inspector()
    }

    /// The certificates of its TLS and DTLS listeners.
    pub(super) fn certificates(&self) -> Option<Certificates> {
        self.running.observer().certificates().cloned()
    }

    /// The name of the default certificate, if others trust it.
    pub(super) fn server_name(&self) -> Option<String> {
        let observer = self.running.observer();
        let info = observer.certificates()?.info();
        let is_name = |name: &&String| name.parse::<IpAddr>().is_err() && !name.starts_with("*.");
        let names = &info.first()?.names;
        names
            .iter()
            .find(is_name)
            .filter(|name| *name != LOCALHOST)
            .cloned()
    }

    /// Where SIP is served, with the real ports.
    pub(super) fn sip_listeners(&self) -> Vec<SocketAddr> {
        self.running.sip_listeners().to_vec()
    }

    /// The listeners of SIP over TLS and WebSocket, and how a client is told to reach them.
    pub(super) fn sip_streams(&self) -> Vec<String> {
        let running = &self.running;
        let tls = running.sip_tls_listeners().iter();
        let ws = running.sip_ws_listeners().iter();
        let wss = running.sip_wss_listeners().iter();
        tls.map(|at| format!("tls {at}: sips:{at}"))
            .chain(ws.map(|at| format!("websocket {at}: ws://{at}")))
            .chain(wss.map(|at| format!("websocket {at}: wss://{at}")))
            .collect()
    }

    /// Each relay address, and what clients are told instead.
    pub(super) fn relays(&self) -> Vec<(IpAddr, IpAddr)> {
        self.running
            .relay_addresses()
            .iter()
            .map(|relay| (relay.local, relay.advertised))
            .collect()
    }

    /// Tells clients and peers another address for a relay address.
    pub(super) fn advertise(&self, external: &ExternalIp) -> Result<(), String> {
        let Some(local) = external.private else {
            return Ok(());
        };
        let outcome = self.running.set_external_address(local, external.public);
        outcome.map_err(|error| error.to_string())?;
        tracing::info!(%external, "external address changed");
        Ok(())
    }

    /// Lists and ends allocations.
    pub(super) fn sessions(&self) -> Sessions {
        self.running.sessions()
    }

    /// What other threads can see of it.
    pub(super) fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// What the kernel does for it.
    pub(super) fn features(&self) -> Features {
        self.running.observer().features().clone()
    }

    /// Who relays what arrives on each interface.
    pub(super) fn offload(&self) -> Vec<String> {
        let status = self.running.observer().offload();
        if status.interfaces.is_empty() {
            return vec!["off: user space relays everything".to_owned()];
        }
        status.interfaces.iter().map(ToString::to_string).collect()
    }

    /// How many workers serve.
    pub(super) fn workers(&self) -> usize {
        self.running.workers()
    }

    /// How new allocations find their worker, in a few words; `None` if there is but one.
    pub(super) fn steering(&self) -> Option<&'static str> {
        match self.running.steering() {
            SteeringInUse::OneWorker => None,
            SteeringInUse::Bpf => Some("each new allocation on the least loaded"),
            _ => Some("clients spread by the kernel's hash"),
        }
    }

    /// Applies the settings that can change while the server runs.
    pub(super) fn reload(&self, config: &Config) -> Result<()> {
        self.reload_settings(config)?;
        if let Some(certificates) = self.running.observer().certificates() {
            // It logs what came of it.
            certificates.reload();
        }
        Ok(())
    }

    /// Replaces the settings alone, and reads no certificate.
    pub(super) fn reload_settings(&self, config: &Config) -> Result<()> {
        let mut settings = with_databases(config, &self.databases, &self.events);
        // The realm is part of every key and requires a restart; the caller has said so.
        settings.realm = self.realm.clone();
        Ok(self.running.reload(settings)?)
    }

    /// Replaces the key that nonces are made with; those made with the last one stay good.
    pub(super) fn rotate_nonce_key(&self) -> Result<()> {
        Ok(self.running.rotate_nonce_key()?)
    }

    /// In a cluster, uses the keys of this time.
    pub(super) fn follow_epoch(&self) -> Result<()> {
        Ok(self.running.follow_epoch(SystemTime::now())?)
    }

    /// Whether a worker has ended although nobody asked it to.
    pub(super) fn has_failed(&self) -> bool {
        self.running.failed_worker().is_some()
    }

    /// Admits no new work and waits for allocations and SIP transactions to end, at most for `limit`.
    pub(super) fn drain(&self, limit: Duration) -> Result<bool> {
        Ok(self.running.drain(limit)?)
    }

    /// Admits new work again.
    pub(super) fn end_drain(&self) -> Result<()> {
        Ok(self.running.end_drain()?)
    }

    /// Ends every allocation and waits for the workers.
    pub(super) fn stop(self) -> Result<()> {
        let outcome = self.running.shutdown();
        // The last allocations have ended now.
        self.events.finish();
        outcome?;
        Ok(())
    }
}

/// What a restart survives, and what other nodes have as well.
fn with_identity(mut builder: Builder, config: &Config) -> Builder {
    if let Some(path) = config.state_dir.path() {
        builder = builder.state_dir(path);
    }
    if let Some(keys) = config.cluster.keys() {
        builder = builder.cluster(keys);
    }
    builder
}

/// SIP over TLS and WebSocket.
fn with_sip_streams(mut builder: Builder, sip: &config::Sip) -> Builder {
    for &listener in &sip.listen_tls {
        builder = builder.sip_listen_tls(listener);
    }
    for &listener in &sip.listen_ws {
        builder = builder.sip_listen_ws(listener);
    }
    for &listener in &sip.listen_wss {
        builder = builder.sip_listen_wss(listener);
    }
    builder
}

/// The name in certificates that the server makes itself.
const LOCALHOST: &str = "localhost";

/// The certificates of the configuration; else, if that is wanted, one for this machine that nobody trusts.
fn certificates(config: &Config, relays: &[IpAddr]) -> Result<Option<Certificates>> {
    if !config.certificates.is_empty() {
        return Ok(Some(Certificates::from_files(config.certificates.clone())?));
    }
    if !config.self_signed {
        return Ok(None);
    }
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let mut names = vec![LOCALHOST.to_owned()];
    for ip in loopback.iter().chain(relays) {
        if !names.contains(&ip.to_string()) {
            names.push(ip.to_string());
        }
    }
    let made = Certificates::self_signed(&names)?;
    if let Some(info) = made.info().first() {
        tracing::warn!(
            names = ?info.names,
            sha256 = info.sha256,
            "made a certificate that no client trusts, for development"
        );
    }
    Ok(Some(made))
}

fn pinning(wanted: PinWorkers) -> server::Pinning {
    match wanted {
        PinWorkers::Off => server::Pinning::Off,
        PinWorkers::Cores => server::Pinning::Cores,
        PinWorkers::Queues => server::Pinning::Queues,
    }
}

fn steering(wanted: Steering) -> server::Steering {
    match wanted {
        Steering::Auto => server::Steering::Auto,
        Steering::Bpf => server::Steering::Bpf,
        Steering::Hash => server::Steering::Hash,
    }
}

/// How much the kernel relays.
fn offload(config: &Config) -> Offload {
    let mut offload = Offload::default();
    offload.mode = match config.offload_mode {
        config::OffloadMode::Auto => OffloadMode::Auto,
        config::OffloadMode::Xdp => OffloadMode::Xdp,
        config::OffloadMode::Tc => OffloadMode::Tc,
        config::OffloadMode::Off => OffloadMode::Off,
    };
    offload.channels = config.offload_channels;
    offload
}

/// Which Binding requests it answers.
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

/// The settings, with what is in the stores and what the sinks of events want.
fn with_databases(config: &Config, databases: &Databases, events: &Events) -> Settings {
    let mut settings = settings(config);
    databases.add_to(&mut settings, config);
    events.add_to(&mut settings.hooks);
    settings
}

/// The part of the configuration that can change while the server runs.
fn settings(config: &Config) -> Settings {
    let mut settings = Settings::default();
    settings.realm.clone_from(&config.realm);
    settings.software.clone_from(&config.software);
    settings.users = passwords(&config.users);
    settings.secrets = bytes(&config.secrets);
    settings.strict_amplification = config.limits.strict_amplification;
    settings.unverified_responses = config.limits.unverified_responses;
    settings.access_tokens = access_tokens(config);
    settings.alternates = config.alternate.settings();
    settings.realms = config.realms.iter().map(realm).collect();
    settings.peers = peers(config);
    settings.quota = QuotaLimits::default()
        .per_user(config.limits.allocations_per_user)
        .per_source(config.limits.allocations_per_source)
        .total(config.limits.allocations);
    settings.nonce_lifetime = config.nonce_lifetime;
    settings.strict_expiry = config.strict_expiry;
    settings.rfc5766_channels = config.rfc5766_channels;
    settings.short_token_keys = config.short_token_keys;
    settings.channel_keeps_permission = config.channel_keeps_permission;
    settings.classic_stun = config.classic_stun;
    settings.draft_dual_allocation = config.draft_dual_allocation;
    settings.kernel_binding = kernel_binding(config);
    settings.sip = sip_settings(&config.sip);
    settings.sip.push = crate::push::settings(config.sip.push.as_ref());
    settings.streams = streams(&config.limits);
    settings.default_lifetime = config.limits.lifetime_default;
    settings.max_lifetime = config.limits.lifetime_max;
    settings.max_permissions = config.limits.permissions as usize;
    settings.max_channels = config.limits.channels as usize;
    settings.tcp_relay = config.relay_tcp;
    settings.mobility = config.relay_mobility;
    settings.max_peer_connections = config.limits.peer_connections as usize;
    settings.allocation_rate = config.limits.allocation_rate;
    settings.rates.per_user = config.limits.rate_per_user;
    settings.rates.per_source = config.limits.rate_per_source;
    settings.rates.total = config.limits.rate_total;
    settings.rates.directions_apart = config.limits.rate_directions_apart;
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
    sip.test_uas = config.test_uas;
    sip.challenge = config.challenge;
    sip.domains.clone_from(&config.domains);
    sip.credentials.clone_from(&config.credentials);
    sip.trunks.clone_from(&config.trunks);
    sip.advertise.clone_from(&config.advertise);
    sip.local_networks.clone_from(&config.local_networks);
    sip.routes.clone_from(&config.routes);
    sip.forwards.clone_from(&config.forwards);
    sip.record_route = config.record_route;
    sip.forking = config.forking;
    sip.recurse = config.recurse;
    sip.calls.clone_from(&config.calls);
    sip.trace.clone_from(&config.trace);
    sip.deny.clone_from(&config.deny);
    sip.allow.clone_from(&config.allow);
    sip.ban = config.ban;
    sip.scanners.clone_from(&config.scanners);
    sip.ice_servers.clone_from(&config.ice_servers);
    sip.rtpengine = config.rtpengine;
    sip.registrar.clone_from(&config.registrar);
    sip.bindings = config.bindings;
    sip.bindings_per_user = config.bindings_per_user;
    sip.digest_algorithms.clone_from(&config.digest_algorithms);
    sip.auth_int = config.auth_int;
    sip.digest_any_uri = config.digest_any_uri;
    sip.userhash = config.userhash;
    sip.tolerance = config.tolerance;
    sip.service_time = config.service_time;
    sip.t1 = config.t1;
    sip.resolvers.clone_from(&config.resolvers);
    sip.targets = rules(&config.targets);
    sip.transactions = config.transactions;
    sip.connections = config.connections;
    sip.connections_per_source = config.connections_per_source;
    sip.websocket_paths.clone_from(&config.ws_paths);
    sip.websocket_origins.clone_from(&config.ws_origins);
    sip.headers = config.headers;
    sip.head_bytes = config.head_size;
    sip.body_bytes = config.body_size;
    sip.message_deadline = config.message_deadline;
    sip.idle = config.idle;
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
        assert_eq!(config.offload_channels, Offload::CHANNELS);
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
