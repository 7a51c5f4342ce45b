//! The running server: it starts from a configuration, and commands and the main thread reach it here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use server::certificates::Certificates;
use server::features::Features;
use server::handover::{ForeignMessage, Joining, Offer, TakeOver};
use server::offload::{Offload, OffloadMode};
use server::sessions::Sessions;
use server::sip::SipInspector;
use server::{
    AddressFamily, Builder, InheritedSockets, Observer, Running, Server, SteeringInUse, addresses,
};

use super::binding_database;
use super::databases::Databases;
use super::explain::explain;
use super::names::LOCALHOST;
use super::plan::{Listeners, Machine};
use super::settings::{snapshot, with_databases};
use super::sip_tls;
use crate::config::{self, Config, ExternalIp, PinWorkers, Steering};
use crate::control::routing::{Routing, Snapshot};
use crate::events::Events;
use crate::telemetry::Telemetry;

/// The addresses of this machine.
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

/// The origin of sockets that the server does not open itself.
pub(super) struct Sources {
    pub(super) inherited: InheritedSockets,
    /// The running server that this one takes over from.
    pub(super) take_over: Option<TakeOver>,
    /// The highest number of datagrams in a batch; `None`: the default of the library.
    pub(super) batch_limit: Option<u16>,
}

/// The parts of the server beside its workers: databases, sinks of events, and the export to a collector.
pub(super) struct ServerParts {
    databases: Databases,
    /// The sinks of events.
    pub(super) events: Events,
    /// The export to a collector.
    pub(super) telemetry: Telemetry,
}

impl ServerParts {
    /// Opens the sinks of events.
    pub(super) fn new(config: &Config, databases: Databases, telemetry: Telemetry) -> Result<Self> {
        Ok(Self {
            databases,
            events: Events::start(&config.events, telemetry.traces())?,
            telemetry,
        })
    }
}

/// The running server.
pub(super) struct RunningServer {
    running: Running,
    realm: String,
    attached: ServerParts,
    /// How the SIP proxy decides with the settings of the workers.
    routing: Arc<Routing>,
}

impl RunningServer {
    /// Opens all sockets and starts the workers.
    /// Clients may not relay to `others`: listeners of this process beside the server's.
    pub(super) fn start(
        config: &Config,
        attached: ServerParts,
        listeners: &Listeners,
        others: &[SocketAddr],
        relays: &[IpAddr],
        sources: Sources,
    ) -> Result<Self> {
        let settings = with_databases(config, &attached.databases, &attached.events);
        let routes = snapshot(&settings);
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
            .settings(settings);
        if let Some(limit) = sources.batch_limit {
            builder = builder.batch_limit(limit.into());
        }
        builder = binding_database::add(with_identity(builder, config), config)?;
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
            builder = with_certificates(builder, config, certificates);
        }
        builder = with_encryption(builder, listeners);
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
        let server = Self {
            running,
            realm: config.realm.clone(),
            attached,
            routing: Arc::default(),
        };
        server.set_routing(routes);
        Ok(server)
    }

    /// A server that runs already.
    #[cfg(test)]
    pub(super) fn of(running: Running, realm: &str) -> Self {
        let realm = realm.to_owned();
        let attached = ServerParts {
            databases: Databases::none(),
            events: Events::default(),
            telemetry: Telemetry::default(),
        };
        Self {
            running,
            realm,
            attached,
            routing: Arc::default(),
        }
    }

    /// The stores.
    pub(super) fn databases(&self) -> &Databases {
        &self.attached.databases
    }

    /// The stores, to replace them.
    pub(super) fn databases_mut(&mut self) -> &mut Databases {
        &mut self.attached.databases
    }

    /// How the SIP proxy decides, for explanations.
    pub(super) fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.routing)
    }

    fn set_routing(&self, mut snapshot: Snapshot) {
        let listeners = [
            self.running.sip_listeners(),
            self.running.sip_tls_listeners(),
        ];
        snapshot.listeners = listeners.concat();
        self.routing.set(snapshot);
    }

    /// What belongs to the server beside its workers.
    pub(super) fn attached(&self) -> &ServerParts {
        &self.attached
    }

    /// Makes the workers look up a user in the stores again; `None`: all users.
    pub(super) fn forget_users(&self, user: Option<&str>) -> Result<()> {
        Ok(self.running.forget_users(user)?)
    }

    /// Closes SIP connections without a transaction, after another process has taken over.
    pub(super) fn close_sip_connections(&self) -> Result<()> {
        Ok(self.running.close_sip_connections()?)
    }

    /// The sockets and keys with which a new process takes over.
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

    /// Publishes the counts of rate groups for the other process. While two processes run, it is called once per
    /// second.
    pub(super) fn share_rates(&self) {
        self.running.share_rates();
    }

    /// Handles a message that the process that has taken over has received for this one.
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

    /// The SIP listeners over UDP and TCP, with the real ports.
    pub(super) fn sip_listeners(&self) -> Vec<SocketAddr> {
        self.running.sip_listeners().to_vec()
    }

    /// The listeners of SIP over TLS and WebSocket, and the URI of each for clients.
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

    /// Each relay address, and the address that clients get instead.
    pub(super) fn relays(&self) -> Vec<(IpAddr, IpAddr)> {
        self.running
            .relay_addresses()
            .iter()
            .map(|relay| (relay.local, relay.advertised))
            .collect()
    }

    /// Sets the address that clients get instead of a relay address.
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

    /// Reads the state of the server from any thread.
    pub(super) fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// The features of the kernel in use.
    pub(super) fn features(&self) -> Features {
        self.running.observer().features().clone()
    }

    /// For each interface, whether the kernel or user space relays its packets.
    pub(super) fn offload(&self) -> Vec<String> {
        let status = self.running.observer().offload();
        if status.interfaces.is_empty() {
            return vec!["off: user space relays everything".to_owned()];
        }
        status.interfaces.iter().map(ToString::to_string).collect()
    }

    /// The number of workers.
    pub(super) fn workers(&self) -> usize {
        self.running.workers()
    }

    /// How new allocations find their worker, in a few words; `None` if there is only one worker.
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
            // It logs the result.
            certificates.reload();
        }
        Ok(())
    }

    /// Replaces the settings alone, and reads no certificate.
    pub(super) fn reload_settings(&self, config: &Config) -> Result<()> {
        let attached = &self.attached;
        let mut settings = with_databases(config, &attached.databases, &attached.events);
        // The realm is part of every key and requires a restart; the caller has logged that.
        settings.realm = self.realm.clone();
        let routes = snapshot(&settings);
        self.running.reload(settings)?;
        self.set_routing(routes);
        Ok(())
    }

    /// Replaces the key of nonces. Nonces of the previous key stay valid.
    pub(super) fn rotate_nonce_key(&self) -> Result<()> {
        Ok(self.running.rotate_nonce_key()?)
    }

    /// In a cluster, uses the keys of the current epoch.
    pub(super) fn follow_epoch(&self) -> Result<()> {
        Ok(self.running.follow_epoch(SystemTime::now())?)
    }

    /// Whether a worker has ended by a failure.
    pub(super) fn has_failed(&self) -> bool {
        self.running.failed_worker().is_some()
    }

    /// Admits no new allocations and SIP transactions, and waits at most `limit` until the others have ended. Returns
    /// whether all have ended.
    pub(super) fn drain(&self, limit: Duration) -> Result<bool> {
        Ok(self.running.drain(limit)?)
    }

    /// Admits new allocations and SIP transactions again.
    pub(super) fn end_drain(&self) -> Result<()> {
        Ok(self.running.end_drain()?)
    }

    /// Ends every allocation and waits for the workers.
    pub(super) fn stop(self) -> Result<()> {
        let outcome = self.running.shutdown();
        // The last allocations have ended now.
        self.attached.events.finish();
        self.attached.telemetry.finish();
        outcome?;
        Ok(())
    }
}

/// The certificates of all listeners, and of those that have some of their own.
fn with_certificates(mut builder: Builder, config: &Config, certificates: Certificates) -> Builder {
    if !certificates.is_empty() {
        builder = builder.tls(certificates.server_config(config.only_tls13));
    }
    for listener in certificates.listeners() {
        let own = certificates.at(listener).server_config(config.only_tls13);
        builder = builder.tls_of(listener, own);
    }
    builder.certificates(certificates)
}

/// STUN and TURN over TLS and DTLS.
fn with_encryption(mut builder: Builder, listeners: &Listeners) -> Builder {
    for &listener in &listeners.tls {
        builder = builder.listen_tls(listener);
    }
    for &listener in &listeners.dtls {
        builder = builder.listen_dtls(listener);
    }
    builder
}

/// The state directory, and the keys of the cluster.
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

/// The certificates of the configuration. Without any, and with `tls.self_signed`, a certificate for this machine that
/// no client trusts.
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
