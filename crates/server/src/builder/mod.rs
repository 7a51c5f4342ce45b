//! From settings to a running server: checks, sockets, workers, threads, in this order.

mod bound;
mod dtls;
mod make;
mod offloaded;
mod open_sockets;
mod plan;
mod takeover;
mod tcp;

pub(crate) use make::PreparedServer;

use crate::addresses;
use crate::alternates::AlternateSettings;
use crate::certificates::Certificates;
use crate::cluster_keys::ClusterKeys;
use crate::connections::StreamSettings;
use crate::error::{NatDiscoveryError, StartError};
use crate::handover::TakeOver;
use crate::hooks::{ClientIdentity, Event, RelayChoice, SipEvent};
use crate::inherited::InheritedSockets;
use crate::local::Local;
use crate::nat_discovery::NatDiscovery;
use crate::offload::{KernelBinding, Offload};
use crate::pinning::Pinning;
use crate::policy::{PeerRule, loopback_and_private};
use crate::quota::{QuotaLimits, SourcePrefix};
use crate::realms::RealmSettings;
use crate::running::Running;
use crate::settings::Settings;
use crate::sip::{BindingDatabase, SipAddresses, SipSettings, Transport};
use crate::steering::Steering;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use streams::rustls::{RootCertStore, ServerConfig};
use stun::AddressFamily;
use turn::server::credentials::AccessTokens;
use turn::server::{Credentials, Discovery, Quota};

/// Most workers: a reservation token names its worker in one byte.
pub const MAX_WORKERS: usize = 255;

/// What a listener's receive buffer should hold, in bytes: some 5,000 small datagrams, 20 ms of what one core can
/// relay. The kernel caps it at `net.core.rmem_max` for the unprivileged.
pub const RECEIVE_BUFFER: u32 = 8 << 20;

/// The size of a listener's send buffer, in bytes. One socket carries all datagrams from a worker to its clients. The
/// kernel charges datagrams to it that wait for a neighbour without a response. These are up to 208 KiB for each
/// neighbour (`unres_qlen_bytes`), for 3 s. A full socket sends nothing. So 8 MiB, which the kernel doubles, have room
/// for 78 such neighbours at a time; the system's default has room for one. Without privileges, the kernel limits it to
/// `net.core.wmem_max`.
pub const SEND_BUFFER: u32 = 8 << 20;

/// The most datagrams that a worker receives before it handles them, once it falls behind.
pub const BATCH_LIMIT: usize = crate::worker::BatchLimit::MAX;

/// Collects what a server is to be. Made by [`Server::builder`](crate::Server::builder).
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `start`"]
pub struct Builder {
    listen: Vec<SocketAddr>,
    listen_sockets: Vec<Arc<[OwnedFd]>>,
    inherited: Arc<InheritedSockets>,
    listen_tcp: Vec<SocketAddr>,
    listen_tls: Vec<SocketAddr>,
    tls: Option<Arc<ServerConfig>>,
    tls_of: Vec<(SocketAddr, Arc<ServerConfig>)>,
    certificates: Option<Certificates>,
    listen_dtls: Vec<SocketAddr>,
    /// Listeners of the embedding program.
    protected: Vec<SocketAddr>,
    nat_discovery: NatDiscovery,
    discovery: Discovery,
    proxies: Vec<IpNet>,
    sip_listen: SipAddresses,
    sip_tls: Option<Arc<ServerConfig>>,
    sip_tls_of: Vec<(SocketAddr, Arc<ServerConfig>)>,
    sip_next_hops: Option<(Arc<RootCertStore>, Option<Certificates>)>,
    relay: Vec<IpAddr>,
    external: Vec<(IpAddr, Option<IpAddr>)>,
    ports: Option<(u16, u16)>,
    shared_ports: bool,
    workers: Option<usize>,
    pinning: Pinning,
    no_segmentation_offload: bool,
    receive_buffer: Option<u32>,
    send_buffer: Option<u32>,
    busy_poll_us: u32,
    batch_limit: Option<usize>,
    steering: Steering,
    offload: Offload,
    drop_privileges: bool,
    source_prefix: SourcePrefix,
    settings: Settings,
    nonce_key: Option<[u8; 32]>,
    cluster: Option<ClusterKeys>,
    state_dir: Option<PathBuf>,
    binding_database: Option<Arc<dyn BindingDatabase>>,
    take_over: Option<TakeOver>,
}

impl Builder {
    /// Listens on this address, UDP. With port 0, the kernel chooses a free one ([`Running::listeners`] has it).
    /// Without any, `start` fails.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(address);
        self
    }

    /// Listens on UDP sockets that are open and bound: from a test, from systemd (`LISTEN_FDS`), or from a parent that
    /// may bind ports below 1024. All sockets of one call are one listener, with one socket per worker, so they share
    /// one address by SO_REUSEPORT. Call it once per listener. Without [`workers`](Self::workers), there are as many
    /// workers as the first listener has sockets.
    ///
    /// The server sets what it needs on them (buffers, GRO, ancillary data). It keeps duplicates of the descriptors: a
    /// clone of this builder holds the sockets open after the server has ended.
    pub fn listen_sockets<S: Into<OwnedFd>>(
        mut self,
        sockets: impl IntoIterator<Item = S>,
    ) -> Self {
        self.listen_sockets
            .push(sockets.into_iter().map(Into::into).collect());
        self
    }

    /// Uses these sockets for the listeners whose address and transport they have. Each has to be used, or the server
    /// does not start. A UDP listener needs a socket for each worker; the server binds those that are missing, if it
    /// may. Workers share a TCP socket.
    pub fn inherited_sockets(mut self, sockets: InheritedSockets) -> Self {
        self.inherited = Arc::new(sockets);
        self
    }

    /// Listens on this address for TCP connections that carry STUN and TURN. With port 0, the kernel chooses a free one
    /// ([`Running::tcp_listeners`] has it).
    pub fn listen_tcp(mut self, address: SocketAddr) -> Self {
        self.listen_tcp.push(address);
        self
    }

    /// Listens on this address for TLS connections that carry STUN and TURN: `turns:` and `stuns:`. It may be one of
    /// [`listen_tcp`](Self::listen_tcp): the first bytes distinguish the two. Requires
    /// [`certificates`](Self::certificates) or [`tls`](Self::tls). Port 0 takes a free one.
    pub fn listen_tls(mut self, address: SocketAddr) -> Self {
        self.listen_tls.push(address);
        self
    }

    /// The certificates of TLS listeners. Files are read again when they change. TLS 1.2 and 1.3 are spoken, unless
    /// [`tls`](Self::tls) says otherwise. A listener whose address a pair names
    /// ([`CertificateFiles::listeners`](crate::certificates::CertificateFiles::listeners)) uses only such pairs.
    pub fn certificates(mut self, certificates: Certificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// The configuration of TLS listeners, instead of one made of [`certificates`](Self::certificates).
    pub fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// The configuration of one TLS listener, instead of [`tls`](Self::tls). `listener` is the address that the builder
    /// got for it, such as that of [`listen_tls`](Self::listen_tls). A listener of SIP uses it only without
    /// [`sip_tls`](Self::sip_tls).
    pub fn tls_of(mut self, listener: SocketAddr, config: Arc<ServerConfig>) -> Self {
        self.tls_of.push((listener, config));
        self
    }

    /// Listens on this address for DTLS 1.2 over UDP that carries STUN and TURN (RFC 7350). It may be one of
    /// [`listen`](Self::listen): the first byte distinguishes the two. Requires [`certificates`](Self::certificates).
    /// With port 0, the kernel chooses a free one ([`Running::dtls_listeners`] has it).
    pub fn listen_dtls(mut self, address: SocketAddr) -> Self {
        self.listen_dtls.push(address);
        self
    }

    /// Keeps clients from relaying to this address, regardless of the rules: a listener of the embedding program, for
    /// example one for metrics. The listeners of this server are protected anyway. See also
    /// [`Running::protect`](crate::Running::protect).
    pub fn protect(mut self, listener: SocketAddr) -> Self {
        self.protected.push(listener);
        self
    }

    /// Serves NAT behaviour discovery (RFC 5780), on two addresses and two ports. The kernel answers no Binding
    /// requests then.
    pub fn nat_discovery(mut self, wanted: NatDiscovery) -> Self {
        self.nat_discovery = wanted;
        self
    }

    /// TCP connections from this network must begin with a header of the PROXY protocol, version 2, which has the
    /// client's address. The server closes a connection without one. This applies to SIP as well. Name only load
    /// balancers: others could claim any address.
    pub fn proxy_protocol_from(mut self, network: IpNet) -> Self {
        self.proxies.push(network);
        self
    }

    /// Limits of connections over TCP and TLS.
    pub fn streams(mut self, settings: StreamSettings) -> Self {
        self.settings.streams = settings;
        self
    }

    /// Serves SIP on this address, over UDP and TCP; the first call turns SIP on. With port 0, the kernel chooses a
    /// free one ([`Running::sip_listeners`] has it).
    pub fn sip_listen(mut self, address: SocketAddr) -> Self {
        self.sip_listen.plain.push(address);
        self
    }

    /// Serves SIP over TLS on this address. Requires [`certificates`](Self::certificates) or [`tls`](Self::tls). With
    /// port 0, the kernel chooses a free one ([`Running::sip_tls_listeners`] has it).
    pub fn sip_listen_tls(mut self, address: SocketAddr) -> Self {
        self.sip_listen.streams.push((Transport::Tls, address));
        self
    }

    /// Serves SIP over WebSocket (RFC 7118) on this address, without TLS: for a reverse proxy in front, or for tests.
    /// With port 0, the kernel chooses a free one ([`Running::sip_ws_listeners`] has it).
    pub fn sip_listen_ws(mut self, address: SocketAddr) -> Self {
        self.sip_listen.streams.push((Transport::Ws, address));
        self
    }

    /// Serves SIP over WebSocket and TLS on this address, as browsers require it. Requires
    /// [`certificates`](Self::certificates) or [`tls`](Self::tls). With port 0, the kernel chooses a free one
    /// ([`Running::sip_wss_listeners`] has it).
    pub fn sip_listen_wss(mut self, address: SocketAddr) -> Self {
        self.sip_listen.streams.push((Transport::Wss, address));
        self
    }

    /// The configuration of SIP's own TLS listeners, for example one that asks for certificates of clients
    /// ([`Certificates::server_config_for_clients`]). Default: that of all TLS listeners. ALPN is left out.
    pub fn sip_tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.sip_tls = Some(config);
        self
    }

    /// The configuration of one SIP listener over TLS or WebSocket. It replaces [`sip_tls`](Self::sip_tls) and
    /// [`tls_of`](Self::tls_of) for this listener.
    pub fn sip_tls_of(mut self, listener: SocketAddr, config: Arc<ServerConfig>) -> Self {
        self.sip_tls_of.push((listener, config));
        self
    }

    /// Lets SIP open TLS connections, to servers whose certificates these roots have issued and that prove the domain
    /// of the URI (RFC 5922: no wildcards). `own` is shown to servers that ask for a certificate; of several pairs the
    /// first. Connections leave from the addresses of TLS listeners, so without one none is opened. Default: no
    /// connection is opened over TLS.
    pub fn sip_next_hops(mut self, roots: Arc<RootCertStore>, own: Option<Certificates>) -> Self {
        self.sip_next_hops = Some((roots, own));
        self
    }

    /// Keeps what is to survive a restart in this directory: the registration bindings of SIP, and a key. It is made if
    /// there is none. One process at a time can use it; the start waits five seconds for another one to end. Default:
    /// none, so that bindings end with the server.
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(path.into());
        self
    }

    /// Saves the registration bindings of SIP in this database, instead of a file in the state directory. The state
    /// directory is still required: it has a key and a lock. If the server has not read the bindings after five
    /// seconds, it starts without them, and adds them when it has read them. Default: none.
    pub fn binding_database(mut self, database: Arc<dyn BindingDatabase>) -> Self {
        self.binding_database = Some(database);
        self
    }

    /// How SIP is served.
    pub fn sip(mut self, settings: SipSettings) -> Self {
        self.settings.sip = settings;
        self
    }

    /// Relays from this address of this machine. Without any: the default route's addresses, or loopback where there is
    /// no route.
    pub fn relay_address(mut self, address: IpAddr) -> Self {
        self.relay.push(address);
        self
    }

    /// Tells clients `public` for the relay address `private`, which is added if need be; with `None`, for every relay
    /// address of the same family.
    pub fn external_address(mut self, public: IpAddr, private: Option<IpAddr>) -> Self {
        self.external.push((public, private));
        self
    }

    /// Relay ports from `first` to `last`, both included. Default:
    /// [`PortRange::DYNAMIC`](crate::ports::PortRange::DYNAMIC).
    pub fn relay_ports(mut self, first: u16, last: u16) -> Self {
        self.ports = Some((first, last));
        self
    }

    /// Has all UDP allocations share the relay ports, which must be few: at least one for each worker and at most 256.
    /// The peers distinguish the allocations of a port. A peer (address and port) gets 508 if another client of the
    /// port has a channel to it or has sent to it. There are no even ports and no reservations then. Default: each
    /// relayed address has its own port.
    pub fn shared_ports(mut self, shared: bool) -> Self {
        self.shared_ports = shared;
        self
    }

    /// How many workers serve, 1 to [`MAX_WORKERS`]. Default: one per core that this process may use.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// Which processor each worker stays on. Default: [`Pinning::Off`].
    pub fn pin_workers(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// Whether the server uses UDP GRO and GSO, which send and receive several datagrams per system call. Default: yes,
    /// if the kernel has them.
    pub fn segmentation_offload(mut self, wanted: bool) -> Self {
        self.no_segmentation_offload = !wanted;
        self
    }

    /// The most datagrams that a worker receives before it handles them, 1 to [`BATCH_LIMIT`], which is the default.
    /// Below 64, small batches are cut as well. It is there to measure what batches are worth.
    pub fn batch_limit(mut self, datagrams: usize) -> Self {
        self.batch_limit = Some(datagrams.clamp(1, BATCH_LIMIT));
        self
    }

    /// What the receive buffer of each listener's socket should hold, in bytes. Default: [`RECEIVE_BUFFER`]. Without
    /// CAP_NET_ADMIN the kernel grants at most `net.core.rmem_max`; [`Features`](crate::features::Features) has the
    /// granted size.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// What the send buffer of each listener's socket should hold, in bytes. Default: [`SEND_BUFFER`]. Without
    /// CAP_NET_ADMIN the kernel grants at most `net.core.wmem_max`.
    pub fn send_buffer(mut self, bytes: u32) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// How many microseconds a worker polls the network device before it sleeps; 0 (the default) turns this off. It
    /// reduces the delay and keeps the core busy. [`Features`](crate::features::Features) says whether the kernel does
    /// it.
    pub fn busy_poll(mut self, microseconds: u32) -> Self {
        self.busy_poll_us = microseconds;
        self
    }

    /// How new allocations find their worker. Default: [`Steering::Auto`].
    pub fn steering(mut self, steering: Steering) -> Self {
        self.steering = steering;
        self
    }

    /// Whether BPF programs in the kernel relay, and which. Default: none.
    pub fn kernel_relay(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Which Binding requests the kernel answers, where it relays.
    pub fn kernel_binding(mut self, binding: KernelBinding) -> Self {
        self.settings.kernel_binding = binding;
        self
    }

    /// Whether the server's threads give up every capability that they do not need once everything is open
    /// ([`privileges`](crate::privileges)). Default: no. The caller's thread keeps its own.
    pub fn drop_privileges(mut self, drop: bool) -> Self {
        self.drop_privileges = drop;
        self
    }

    /// What counts as one source for the quota per source. It cannot change while the server runs.
    pub fn source_prefix(mut self, prefix: SourcePrefix) -> Self {
        self.source_prefix = prefix;
        self
    }

    /// The realm of all credentials.
    pub fn realm(mut self, realm: &str) -> Self {
        realm.clone_into(&mut self.settings.realm);
        self
    }

    /// Adds a user with a fixed password.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.settings
            .users
            .push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds a secret shared with the service that makes time-limited credentials.
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.settings.secrets.push(secret.to_vec());
        self
    }

    /// Takes access tokens (RFC 7635), for example those that [`TokenKeys`](crate::access_tokens::TokenKeys) opens.
    /// Clients with a user name and a password are served as before.
    pub fn access_tokens(mut self, tokens: Arc<dyn AccessTokens>) -> Self {
        self.settings.access_tokens = Some(tokens);
        self
    }

    /// Adds a realm with its own users, peer rules and limits, for the clients that choose it.
    pub fn further_realm(mut self, realm: RealmSettings) -> Self {
        self.settings.realms.push(realm);
        self
    }

    /// Sends clients to other servers with 300 (RFC 8489 §10): while this server drains or is overloaded, or always.
    pub fn alternates(mut self, alternates: AlternateSettings) -> Self {
        self.settings.alternates = alternates;
        self
    }

    /// Adds another source of credentials. A source that waits for its response, for example for a database, returns
    /// [`KeyLookup::Pending`](turn::server::credentials::KeyLookup::Pending). It responds later, from any thread.
    /// [`AsyncCredentials`](crate::credentials::AsyncCredentials) makes such a source of an async function.
    pub fn credentials(mut self, source: Arc<dyn Credentials>) -> Self {
        self.settings.credentials.push(source);
        self
    }

    /// Re-admits every port of a network that is refused by default, or admits a part of one that is denied.
    pub fn allow_peers(mut self, network: IpNet) -> Self {
        self.settings.peers.allow.push(PeerRule::all_ports(network));
        self
    }

    /// Refuses every port of a network.
    pub fn deny_peers(mut self, network: IpNet) -> Self {
        self.settings.peers.deny.push(PeerRule::all_ports(network));
        self
    }

    /// Re-admits loopback and private networks, and this machine's own addresses: for development, never in production.
    pub fn allow_development_peers(mut self) -> Self {
        let own = addresses::host_addresses().into_iter().map(IpNet::from);
        self.settings.peers.allow.extend(
            loopback_and_private()
                .into_iter()
                .chain(own)
                .map(PeerRule::all_ports),
        );
        self
    }

    /// How many relayed addresses a user, a source, and all users together may hold.
    pub fn quota(mut self, limits: QuotaLimits) -> Self {
        self.settings.quota = limits;
        self
    }

    /// Asks `permit` about each peer that the rules admit. See [`hooks`](crate::hooks).
    pub fn permit_peer(
        mut self,
        permit: impl Fn(&ClientIdentity<'_>, SocketAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.hooks.set_permit_peer(permit);
        self
    }

    /// Asks `choose` which of the relay addresses a client gets, when it allocates and once per family. The hook may be
    /// asked again if another worker takes the request. A reserved port
    /// ([RFC 8656 §7.2](https://www.rfc-editor.org/rfc/rfc8656#section-7.2)) keeps its address.
    pub fn choose_relay(
        mut self,
        choose: impl Fn(&ClientIdentity<'_>, AddressFamily) -> RelayChoice + Send + Sync + 'static,
    ) -> Self {
        self.settings.hooks.set_choose_relay(choose);
        self
    }

    /// Counts relayed transport addresses in `quota`, too, beside [`quota`](Self::quota)'s limits.
    pub fn quota_hook(mut self, quota: Arc<dyn Quota>) -> Self {
        self.settings.hooks.set_quota(quota);
        self
    }

    /// Calls `on_event` for each [`Event`], on the worker that has the client. It must not block.
    pub fn on_event(mut self, on_event: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.hooks.set_on_event(on_event);
        self
    }

    /// Calls `on_event` for each [`SipEvent`], on a worker. See
    /// [`Hooks::set_on_sip_event`](crate::hooks::Hooks::set_on_sip_event).
    pub fn on_sip_event(
        mut self,
        with_calls: bool,
        on_event: impl Fn(&SipEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.settings.hooks.set_on_sip_event(with_calls, on_event);
        self
    }

    /// The key of nonces, so that several servers accept each other's. Default: a random one.
    pub fn nonce_key(mut self, key: [u8; 32]) -> Self {
        self.nonce_key = Some(key);
        self
    }

    /// Makes this server a node of a cluster. Nodes with the same secret accept the nonces of each other, and recognize
    /// each other's mobility tickets and SIP tokens. Call [`Running::follow_epoch`] once per second. It replaces
    /// [`nonce_key`](Self::nonce_key).
    pub fn cluster(mut self, keys: ClusterKeys) -> Self {
        self.cluster = Some(keys);
        self
    }

    /// All live settings at once; calls before this one that changed settings are forgotten.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Takes over from a running server: its clients keep their allocations there, and new clients come here as soon as
    /// [`start`](Self::start) returns. Requires CAP_BPF and CAP_NET_ADMIN, also on Linux 5.19 and later. TCP listeners
    /// and the sockets of SIP come by [`inherited_sockets`](Self::inherited_sockets). Not for
    /// [`start_local`](Self::start_local).
    pub fn take_over(mut self, from: TakeOver) -> Self {
        self.take_over = Some(from);
        self
    }

    /// Opens every socket, then starts the workers.
    ///
    /// # Errors
    /// Says what is wrong and what to do; nothing stays open then.
    pub fn start(mut self) -> Result<Running, StartError> {
        self.add_discovery_listeners()?;
        let workers = self.worker_count()?;
        let made = self.make(workers)?;
        Running::spawn(made, self.pinning)
    }

    /// Opens every socket for one worker that runs on the caller's thread, by [`Local::turn`](crate::Local::turn).
    /// Nothing is pinned, and [`Builder::workers`] has no say.
    ///
    /// # Errors
    /// As for [`Builder::start`].
    pub fn start_local(mut self) -> Result<Local, StartError> {
        self.add_discovery_listeners()?;
        self.take_over = None;
        Local::new(self.make(1)?)
    }

    /// The listeners of NAT behaviour discovery are listeners like all others.
    fn add_discovery_listeners(&mut self) -> Result<(), NatDiscoveryError> {
        self.discovery.listeners = self.nat_discovery.add_listeners(
            &mut self.listen,
            &mut self.listen_tcp,
            &mut self.listen_tls,
        )?;
        self.discovery.padding = self.nat_discovery.padding;
        Ok(())
    }

    fn worker_count(&self) -> Result<usize, StartError> {
        let count = match self.workers {
            Some(count) => count,
            None => match self.listen_sockets.first().map(|sockets| sockets.len()) {
                Some(count) if count > 0 => count,
                _ => std::thread::available_parallelism()
                    .map_or(1, usize::from)
                    .min(MAX_WORKERS),
            },
        };
        if (1..=MAX_WORKERS).contains(&count) {
            Ok(count)
        } else {
            Err(StartError::Workers(count))
        }
    }
}
