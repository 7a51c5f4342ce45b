//! From settings to workers that are ready to run, in this order: addresses, sockets, programs, workers.

use super::Builder;
use super::offloaded::separate;
use super::plan::Plan;
use super::takeover::ServerTakeover;
use crate::addresses::{self, RelayAddresses};
use crate::certificates::Certificates;
use crate::cluster_keys::ClusterKeys;
use crate::connections::{Connections, StreamListener};
use crate::dtls::ListenerProtocols;
use crate::error::StartError;
use crate::features::{BusyPoll, Features};
use crate::handover::{OpenListeners, TakeOver};
use crate::live::{Changes, LiveSettings, PublishedConfig};
use crate::mailbox::Mailbox;
use crate::observer::{Listeners, Observer};
use crate::offload::{Prepared, PublishedStatus};
use crate::pinning::Pinning;
use crate::policy::OwnAddresses;
use crate::ports::PortRange;
use crate::privileges::KeptCapabilities;
use crate::published::PublishedCounters;
use crate::quota::Quotas;
use crate::random;
use crate::rates::{GroupRates, RateTable, TableSize};
use crate::sip::routes::Table;
use crate::sip::{self, SavePlace, Sip, SipEnvironment, SipTakeover, SipUpgrade, Transport};
use crate::state_dir::StateDir;
use crate::steering::{Numbering, Tables};
use crate::worker::{Worker, WorkerMessage, now};
use io::{Offloads, UdpSocket};
use std::net::IpAddr;
use std::sync::Arc;

/// Packets taken from a device's queue at a time while polling it: the highest number that the kernel allows without
/// privileges.
const BUSY_POLL_PACKETS: u16 = 64;

/// Each is a socket for every relay address. Ports are shared where few can be opened.
const MAX_SHARED_PORTS: usize = 256;

/// Most allocations with a rate limit of their own in memory that is shared: 48 to 288 bytes each, all of them at once.
const MAX_ALLOCATIONS: u32 = 1 << 20;

/// The sockets of all listeners.
struct BoundListeners {
    /// For each listener of STUN and TURN, one socket per worker.
    groups: Vec<Vec<UdpSocket>>,
    listeners: Listeners,
    /// For each worker, its TCP sockets of STUN and TURN.
    streams: Vec<Vec<StreamListener>>,
    /// One per worker, if SIP is served.
    sip: Vec<Sip>,
    sip_upgrade: Option<SipUpgrade>,
    /// Copies of all of them.
    open: OpenListeners,
}

/// A server whose workers do not run yet.
pub(crate) struct PreparedServer {
    pub(crate) workers: Vec<Worker>,
    pub(crate) boxes: Arc<[Mailbox<WorkerMessage>]>,
    pub(crate) observer: Observer,
    pub(crate) changes: Arc<Changes>,
    pub(crate) tables: Tables,
    /// Copies of the listeners' sockets, for a process that takes over.
    pub(crate) open: OpenListeners,
    /// Relay ports are shared by several allocations.
    pub(crate) shared_ports: bool,
    /// What SIP keeps for an upgrade, if it is served.
    pub(crate) sip: Option<SipUpgrade>,
    /// The first port that relays may have.
    pub(crate) first_port: u16,
    /// The kernel relays, too.
    pub(crate) offload: Option<Prepared>,
    pub(crate) kept: KeptCapabilities,
    /// Those whose files are watched.
    pub(crate) certificates: Vec<Certificates>,
}

impl Builder {
    /// Binds all sockets, opens everything else that a server requires, and makes the workers. No thread runs yet.
    pub(super) fn make(&self, workers: usize) -> Result<PreparedServer, StartError> {
        let ports = self.port_range()?;
        // What cannot be raised stays as it is: sockets that are refused say so.
        let _ = io::rlimit::raise_open_files();
        let relays = self.relay_addresses()?;
        let relays = Arc::new(RelayAddresses::new(&relays, ports, workers));
        let offloads = (!self.no_segmentation_offload).then(Offloads::probe);
        let most = self.most_allocations(&relays, ports);
        let size = self.rates_size(most);
        let quotas = Arc::new(Quotas::new(self.settings.quota, self.source_prefix));
        let mut taking = self.begin_take_over((workers, most), (&relays, ports), &quotas, size)?;
        let sip = taking.as_mut().and_then(|taking| taking.sip.take());
        let BoundListeners {
            groups,
            listeners,
            streams,
            sip,
            sip_upgrade,
            open,
        } = self.bind(workers, offloads, (taking.as_ref(), sip))?;
        let published = Arc::new(PublishedStatus::default());
        let mut offload = self.prepare_offload(&listeners.udp, &relays, ports, size, &published)?;
        let rates = make_rate_table(offload.as_ref(), size, taking.as_mut())?;
        let relay_gro = separate(offload.as_ref(), &groups, &relays);
        let mut features = self.features(offloads, &groups);
        let parts: Vec<_> = offload.iter().flat_map(|one| one.parts(workers)).collect();
        let mut tables = self.steer(taking, &groups, (workers, most), &mut features)?;
        let mut live = self.live((&listeners, &sip), &relays, &quotas, &rates, workers)?;
        self.set_abilities(&mut live, &features, !parts.is_empty())?;
        let configuration = live.configuration()?;
        let plan = Plan {
            relays: Arc::clone(&relays),
            rates,
            config: configuration.engine.clone(),
            published: PublishedConfig::new(configuration),
            offloads,
            relay_gro,
            batch_limit: self.batch_limit,
            streams: self.settings.stream_limits(workers),
            shared_ports: self.shared_port_range(ports, workers)?,
            predecessor: self.take_over.as_ref().and_then(TakeOver::predecessor),
            published_counters: (0..workers).map(|_| PublishedCounters::new()).collect(),
        };
        let (mut made, boxes) = plan.workers(groups, workers, &mut tables, parts)?;
        self.serve_connections(&mut made, streams, sip);
        self.serve_dtls(&mut made, &self.settings.stream_limits(workers))?;
        features.busy_poll = self.busy_poll_of(&made);
        let observer = Observer::new(
            Arc::clone(&plan.published_counters),
            listeners,
            relays,
            quotas,
            features,
            published,
            self.certificates.clone(),
        );
        observer.follow(&live);
        log_started(&observer, workers, &live.relays, ports);
        Ok(PreparedServer {
            kept: self.kept(&mut made, offload.as_mut(), &mut tables),
            workers: made,
            changes: Arc::new(Changes::new(live, plan.published, Arc::clone(&boxes))),
            boxes,
            observer,
            tables,
            open,
            shared_ports: self.shared_ports,
            sip: sip_upgrade,
            first_port: ports.first(),
            offload,
            certificates: self.watched(),
        })
    }

    fn features(&self, offloads: Option<Offloads>, groups: &[Vec<UdpSocket>]) -> Features {
        Features {
            pinned: self.pinning != Pinning::Off,
            ..Features::of(offloads, groups, self.wanted_buffers())
        }
    }

    pub(super) fn serves_sip(&self) -> bool {
        !(self.sip_listen.plain.is_empty() && self.sip_listen.streams.is_empty())
    }

    /// All certificates that change with their files.
    fn watched(&self) -> Vec<Certificates> {
        let own = self.sip_next_hops.as_ref().and_then(|(_, own)| own.clone());
        self.certificates.iter().cloned().chain(own).collect()
    }

    /// Gives each worker its sockets of TCP listeners, and SIP.
    fn serve_connections(
        &self,
        workers: &mut [Worker],
        streams: Vec<Vec<StreamListener>>,
        sip: Vec<Sip>,
    ) {
        for (worker, sip) in workers.iter_mut().zip(sip) {
            worker.sip = Some(Box::new(sip));
        }
        let limits = self.settings.stream_limits(workers.len());
        for (worker, listeners) in workers.iter_mut().zip(streams) {
            worker.serve_connections(Connections::new(listeners, limits.clone()));
        }
    }

    /// Opens the sockets of all listeners, before any worker reads.
    fn bind(
        &self,
        workers: usize,
        offloads: Option<Offloads>,
        (taking, taking_sip): (Option<&ServerTakeover>, Option<SipTakeover>),
    ) -> Result<BoundListeners, StartError> {
        let gro = offloads.is_some_and(|offloads| offloads.gro);
        let shared = taking.map_or(&[][..], |taking| taking.steering.listeners());
        let groups = self.bind_listeners(workers, gro, shared)?;
        let mut sip_config = self.settings.sip_config(workers, &Table::default())?;
        let cluster = self.cluster.as_ref();
        sip_config.tokens = cluster.map(|keys| keys.sip_tokens(now().unix_s));
        let buffers = self.wanted_buffers();
        let state = self.state_dir.as_deref();
        let state = state.map(StateDir::open).transpose()?;
        let save_place = state.map(|directory| SavePlace {
            directory,
            database: self.binding_database.clone(),
        });
        let surroundings = SipEnvironment {
            inherited: &self.inherited,
            save_place,
            numbering: taking.map_or_else(
                || Numbering::alone(workers),
                |taking| taking.steering.numbering(),
            ),
            cluster: cluster.map(ClusterKeys::sip_identities),
            taking: taking_sip,
            proxies: &self.proxies,
        };
        let tls = self.sip_tls_configs();
        let sip = sip::set_up(&self.sip_listen, &tls, buffers, sip_config, surroundings)?;
        let (sip_addresses, sip, sip_upgrade) = (sip.addresses, sip.workers, sip.upgrade);
        let (streams, tcp, tls) = self.bind_streams(workers)?;
        self.inherited.check_used()?;
        let local = |group: &Vec<UdpSocket>| group[0].local_addr();
        let carries = self.carries()?;
        let with = |not: ListenerProtocols| {
            let groups = groups.iter().zip(carries.iter());
            groups
                .filter(move |(_, carries)| **carries != not)
                .map(|(group, _)| local(group))
                .collect()
        };
        let open = open_listeners(&groups, &streams, &sip).map_err(StartError::Worker)?;
        Ok(BoundListeners {
            open,
            listeners: Listeners {
                udp: with(ListenerProtocols::Dtls),
                dtls: with(ListenerProtocols::Plain),
                tcp,
                tls,
                sip_tls: sip_addresses.of(Transport::Tls),
                sip_ws: sip_addresses.of(Transport::Ws),
                sip_wss: sip_addresses.of(Transport::Wss),
                sip: sip_addresses.plain,
            },
            groups,
            streams,
            sip,
            sip_upgrade,
        })
    }

    /// Each allocation takes a unit of quota and, unless they are shared, a port.
    fn most_allocations(&self, relays: &RelayAddresses, ports: PortRange) -> usize {
        let total = usize::try_from(self.settings.quota.total).unwrap_or(usize::MAX);
        match self.shared_ports {
            true => total,
            false => total.min(relays.iter().len() * ports.len()),
        }
    }

    fn port_range(&self) -> Result<PortRange, StartError> {
        match self.ports {
            Some((first, last)) => Ok(PortRange::new(first, last)?),
            None => Ok(PortRange::DYNAMIC),
        }
    }

    /// The ports that relays share, if they do: a few, and at least one for each worker.
    fn shared_port_range(
        &self,
        ports: PortRange,
        workers: usize,
    ) -> Result<Option<PortRange>, StartError> {
        if !self.shared_ports {
            return Ok(None);
        }
        if (workers..=MAX_SHARED_PORTS).contains(&ports.len()) {
            Ok(Some(ports))
        } else {
            Err(StartError::SharedPorts {
                ports: ports.len(),
                workers,
            })
        }
    }

    /// How many rate limits there are, for this many allocations.
    fn rates_size(&self, allocations: usize) -> TableSize {
        let settings = &self.settings;
        let groups = GroupRates::new(&settings.rates, &settings.realms);
        let allocations = u32::try_from(allocations).unwrap_or(u32::MAX);
        TableSize::new(allocations.min(MAX_ALLOCATIONS), &settings.rates, &groups)
    }

    /// What can change while the server runs.
    fn live(
        &self,
        (listeners, sip): (&Listeners, &[Sip]),
        relays: &Arc<RelayAddresses>,
        quotas: &Arc<Quotas>,
        rates: &Option<Arc<RateTable>>,
        workers: usize,
    ) -> Result<LiveSettings, StartError> {
        let own = OwnAddresses {
            listeners: [listeners.all(), self.protected.clone()].concat(),
            host: Vec::new(),
        };
        let offered = self.take_over.as_ref().map(TakeOver::offer);
        let offered = offered.map(|offer| offer.nonce_keys.clone());
        let nonce_seeds = match (self.nonce_key, offered) {
            (Some(key), _) => vec![key],
            (None, Some(keys)) if !keys.is_empty() => keys,
            _ => vec![random::seed().map_err(StartError::Randomness)?],
        };
        let mut live = LiveSettings::new(
            self.settings.clone(),
            own,
            nonce_seeds,
            Arc::clone(relays),
            Arc::clone(quotas),
            workers,
        );
        if let Some(keys) = &self.cluster {
            live.join_cluster(keys.clone(), now().unix_s);
        }
        if let Some(sip) = sip.first() {
            live.set_sip_routes(sip.routes());
        }
        live.set_discovery(self.discovery.clone());
        live.set_host(addresses::host_addresses());
        live.set_rates(rates.clone(), self.source_prefix);
        live.apply_limits();
        Ok(live)
    }

    /// Says whether the kernel relays, and gives clients tickets (RFC 8016) if they can be led to any worker.
    fn set_abilities(
        &self,
        live: &mut LiveSettings,
        features: &Features,
        offload: bool,
    ) -> Result<(), StartError> {
        live.set_offload(offload);
        if features.steering.reaches_every_worker() {
            let offer = self.take_over.as_ref().map(TakeOver::offer);
            let seed = match offer.and_then(|offer| offer.ticket_key) {
                Some(seed) => seed,
                None => random::seed().map_err(StartError::Randomness)?,
            };
            live.set_ticket_seed(seed, now().unix_s);
        }
        Ok(())
    }

    /// Has clients find their workers.
    fn steer(
        &self,
        taking: Option<ServerTakeover>,
        groups: &[Vec<UdpSocket>],
        (workers, most): (usize, usize),
        features: &mut Features,
    ) -> Result<Tables, StartError> {
        let (steering, tables) = match taking {
            Some(taking) => taking.steering.enter(groups)?,
            None => Tables::set_up(self.steering, groups, workers, most)?,
        };
        features.steering = steering;
        Ok(tables)
    }

    /// Has the workers poll devices, if that is wanted.
    fn busy_poll_of(&self, workers: &[Worker]) -> BusyPoll {
        if self.busy_poll_us == 0 {
            return BusyPoll::Off;
        }
        let outcome = workers.iter().try_for_each(|worker| {
            let poller = &worker.core.poller;
            poller.set_busy_poll(self.busy_poll_us, BUSY_POLL_PACKETS)
        });
        match outcome {
            Ok(()) => BusyPoll::On(self.busy_poll_us),
            // Before Linux 6.9, a single epoll instance cannot have this setting.
            Err(_) if io::sysctl::busy_poll().is_some_and(|all| all > 0) => {
                BusyPoll::On(io::sysctl::busy_poll().unwrap_or(0))
            }
            Err(error) => BusyPoll::Refused(error.to_string()),
        }
    }
}

/// Copies of all sockets that are listened on.
fn open_listeners(
    groups: &[Vec<UdpSocket>],
    streams: &[Vec<StreamListener>],
    sip: &[Sip],
) -> std::io::Result<OpenListeners> {
    let mut open = OpenListeners::default();
    open.add_groups(groups)?;
    for listener in streams.iter().flatten() {
        open.add(&listener.socket)?;
    }
    for socket in sip.iter().flat_map(Sip::listening) {
        open.add(&socket)?;
    }
    Ok(open)
}

/// The first line of the log.
fn log_started(observer: &Observer, workers: usize, relays: &RelayAddresses, ports: PortRange) {
    let relays: Vec<IpAddr> = relays.iter().map(|relay| relay.advertised).collect();
    let features = observer.features();
    tracing::info!(
        workers,
        listeners = ?observer.listeners(),
        tcp = ?observer.tcp_listeners(),
        tls = ?observer.tls_listeners(),
        dtls = ?observer.dtls_listeners(),
        sip = ?observer.sip_listeners(),
        sip_tls = ?observer.sip_tls_listeners(),
        sip_ws = ?observer.sip_ws_listeners(),
        sip_wss = ?observer.sip_wss_listeners(),
        relay_addresses = ?relays,
        first_port = ports.first(),
        last_port = ports.last(),
        gro = features.gro,
        gso = features.gso,
        max_segments = features.max_segments,
        steering = features.steering.name(),
        // Raised to the hard limit before the first socket was opened.
        open_files = io::rlimit::open_files().map_or(0, |limit| limit.soft),
        "serving"
    );
}

/// The table of rate limits. With in-kernel relay, it is the table that the BPF programs share. Otherwise it is one in
/// this process, if a rate limit covers several allocations or each direction has its own rate. `None`: each engine
/// keeps the limits of its allocations. `taking`: shares the rates with the process that this one replaces.
fn make_rate_table(
    offload: Option<&Prepared>,
    size: TableSize,
    taking: Option<&mut ServerTakeover>,
) -> Result<Option<Arc<RateTable>>, StartError> {
    let table = match offload {
        Some(offload) => Some(Arc::clone(&offload.rates)),
        None if size.needs_table() => {
            let table = RateTable::in_memory(size).map_err(StartError::Worker)?;
            Some(Arc::new(table))
        }
        None => None,
    };
    if let (Some(table), Some(taking)) = (&table, taking) {
        taking.share_rates(table);
    }
    Ok(table)
}
