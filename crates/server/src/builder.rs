//! From wishes to a running server: checks, sockets, workers, threads, in this order.

use crate::addresses::{self, RelayAddress, RelayAddresses, family_of};
use crate::board::{Board, Publisher};
use crate::error::StartError;
use crate::features::{BusyPoll, Features};
use crate::local::Local;
use crate::mailbox::Mailbox;
use crate::observer::Observer;
use crate::offload::{KernelBinding, Offload, Part, Places, Prepared, Rates, Shown, Wanted};
use crate::policy::{OwnAddresses, PeerRule, loopback_and_private};
use crate::ports::PortRange;
use crate::privileges::Kept;
use crate::quota::{QuotaLimits, Quotas, SourcePrefix};
use crate::random;
use crate::running::{Live, Running};
use crate::settings::Settings;
use crate::sip::{self, SipSettings};
use crate::steering::{Placement, Steering, Tables};
use crate::worker::{
    Appetite, Core, Courier, Flows, Letter, Listener, Opener, ParcelStore, RelayTable, Sockets,
    Token, Worker, now,
};
use io::{Offloads, Poller, RecvBatch, SendOptions, SendQueue, UdpOptions, UdpSocket};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use stun::nonce::NonceKeys;
use turn::server::{Config, Credentials, Server as Engine};

/// Most workers: a reservation token names its worker in one byte.
pub const MOST_WORKERS: usize = 255;

/// Letters that may wait for one worker.
const MAILBOX: usize = 4096;

/// What a listener's receive buffer should hold, in bytes: some 5,000 small datagrams, 20 ms of what one core can relay. The
/// kernel caps it at `net.core.rmem_max` for the unprivileged.
pub const RECEIVE_BUFFER: u32 = 8 << 20;

/// Packets taken from a device's queue at a time while polling it: the most that the kernel allows everybody.
const BUSY_POLL_PACKETS: u16 = 64;

/// Collects what a server is to be. Made by [`Server::builder`](crate::Server::builder).
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `start`"]
pub struct Builder {
    listen: Vec<SocketAddr>,
    sip_listen: Vec<SocketAddr>,
    relay: Vec<IpAddr>,
    external: Vec<(IpAddr, Option<IpAddr>)>,
    ports: Option<(u16, u16)>,
    workers: Option<usize>,
    pin: bool,
    no_offloads: bool,
    receive_buffer: Option<u32>,
    busy_poll_us: u32,
    steering: Steering,
    offload: Offload,
    drop_privileges: bool,
    source_prefix: SourcePrefix,
    settings: Settings,
}

impl Builder {
    /// Listens on this address, UDP. Port 0 takes a free one ([`Running::listeners`] tells which). Without any, `start` fails.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(address);
        self
    }

    /// Serves SIP on this address, over UDP and TCP; the first call turns SIP on. Port 0 takes a free one
    /// ([`Running::sip_listeners`] tells which).
    pub fn sip_listen(mut self, address: SocketAddr) -> Self {
        self.sip_listen.push(address);
        self
    }

    /// How SIP is served.
    pub fn sip(mut self, settings: SipSettings) -> Self {
        self.settings.sip = settings;
        self
    }

    /// Relays from this address of this machine. Without any: the default route's addresses, or loopback where there is no route.
    pub fn relay_address(mut self, address: IpAddr) -> Self {
        self.relay.push(address);
        self
    }

    /// Tells clients `public` for the relay address `private`, which is added if need be; with `None`, for every relay address of
    /// the same family.
    pub fn external_address(mut self, public: IpAddr, private: Option<IpAddr>) -> Self {
        self.external.push((public, private));
        self
    }

    /// Relay ports from `first` to `last`, both included. Default: [`PortRange::DYNAMIC`].
    pub fn relay_ports(mut self, first: u16, last: u16) -> Self {
        self.ports = Some((first, last));
        self
    }

    /// How many workers serve, 1 to [`MOST_WORKERS`]. Default: one per core that this process may use.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// Whether each worker stays on a core of its own. Default: no.
    pub fn pin_workers(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Whether UDP GRO and GSO are used where the kernel has them. Default: yes.
    pub fn offloads(mut self, wanted: bool) -> Self {
        self.no_offloads = !wanted;
        self
    }

    /// What the receive buffer of each listener's socket should hold, in bytes. Default: [`RECEIVE_BUFFER`]. Without CAP_NET_ADMIN the kernel
    /// grants at most `net.core.rmem_max`; [`Features`] tells what was granted.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// For how many microseconds a worker polls the network device before it sleeps, 0 for not at all (the default): less delay
    /// for a core that never rests. [`Features`] tells whether the kernel does it.
    pub fn busy_poll(mut self, microseconds: u32) -> Self {
        self.busy_poll_us = microseconds;
        self
    }

    /// How new allocations find their worker. Default: [`Steering::Auto`].
    pub fn steering(mut self, steering: Steering) -> Self {
        self.steering = steering;
        self
    }

    /// How much of relaying the kernel is asked to do. Default: nothing.
    pub fn offload(mut self, offload: Offload) -> Self {
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

    /// Adds another source of credentials.
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

    /// How many relayed addresses a user, a source and everybody may hold.
    pub fn quota(mut self, limits: QuotaLimits) -> Self {
        self.settings.quota = limits;
        self
    }

    /// All live settings at once; calls before this one that changed settings are forgotten.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Opens every socket, then starts the workers.
    ///
    /// # Errors
    /// Says what is wrong and what to do; nothing stays open then.
    pub fn start(self) -> Result<Running, StartError> {
        let workers = self.worker_count()?;
        let made = self.make(workers)?;
        Running::spawn(made, self.pin)
    }

    /// Opens every socket for one worker that runs on the caller's thread, when told to. Nothing is pinned, and [`Builder::workers`]
    /// has no say.
    ///
    /// # Errors
    /// As for [`Builder::start`].
    pub fn start_local(self) -> Result<Local, StartError> {
        Local::new(self.make(1)?)
    }

    fn make(&self, workers: usize) -> Result<Made, StartError> {
        let ports = self.ports.map_or(Ok(PortRange::DYNAMIC), |(first, last)| {
            PortRange::new(first, last)
        })?;
        // What cannot be raised stays as it is: sockets that are refused say so.
        let _ = io::rlimit::raise_open_files();
        let relays = Arc::new(RelayAddresses::new(
            &self.relay_addresses()?,
            ports,
            workers,
        ));
        let offloads = (!self.no_offloads).then(Offloads::probe);
        let groups = self.bind_listeners(workers, offloads.is_some_and(|offloads| offloads.gro))?;
        let listeners: Vec<SocketAddr> = groups.iter().map(|group| group[0].local_addr()).collect();
        let orders = self.settings.sip_orders(workers);
        let (sip_listeners, sip) =
            sip::set_up(&self.sip_listen, workers, self.wanted_buffer(), orders)?;
        let most = self.most_allocations(relays.iter().len() * ports.len());
        let shown = Arc::new(Shown::default());
        let mut offload = self.prepare_offload(&listeners, &relays, ports, most, &shown)?;
        let relay_gro = separate(offload.as_ref(), &groups, &relays);
        let mut features = Features::of(offloads, &groups, self.wanted_buffer());
        features.pinned = self.pin;

        let quotas = Arc::new(Quotas::new(self.settings.quota, self.source_prefix));
        let parts = offload.as_ref().map(|offload| offload.parts(workers));
        let parts = parts.transpose()?.unwrap_or_default();
        let mut live = self.live(
            &[&listeners[..], &sip_listeners[..]].concat(),
            &relays,
            &quotas,
        )?;
        live.set_offload(!parts.is_empty());
        let config = Arc::new(live.engine_config()?);

        let plan = Plan {
            relays: Arc::clone(&relays),
            config,
            offloads,
            relay_gro,
            boards: (0..workers).map(|_| Board::new()).collect(),
        };
        let (steering, mut tables) = Tables::set_up(self.steering, &groups, workers, most)?;
        features.steering = steering;
        let (mut made, boxes) = plan.workers(groups, workers, &mut tables, parts)?;
        let with_sip = made.iter_mut().zip(sip);
        with_sip.for_each(|(worker, sip)| worker.sip = Some(Box::new(sip)));
        features.busy_poll = self.busy_poll_of(&made);
        let boards = Arc::clone(&plan.boards);
        let addresses: Vec<IpAddr> = relays.iter().map(|relay| relay.advertised).collect();
        let observer = Observer::new(
            boards,
            [listeners, sip_listeners],
            relays,
            quotas,
            features,
            shown,
        );
        say_what_serves(&observer, workers, &addresses, ports);
        Ok(Made {
            workers: made,
            boxes,
            observer,
            live,
            kept: self.kept(offload.as_mut(), &mut tables),
            tables,
            offload,
        })
    }

    /// Each allocation takes a port and a unit of quota.
    fn most_allocations(&self, ports: usize) -> usize {
        let total = usize::try_from(self.settings.quota.total).unwrap_or(usize::MAX);
        total.min(ports)
    }

    /// What can change while the server runs.
    fn live(
        &self,
        listeners: &[SocketAddr],
        relays: &Arc<RelayAddresses>,
        quotas: &Arc<Quotas>,
    ) -> Result<Live, StartError> {
        let own = OwnAddresses {
            listeners: listeners.to_vec(),
            host: addresses::host_addresses(),
        };
        let nonce_keys = NonceKeys::new(&random::seed().map_err(StartError::Randomness)?);
        Ok(Live::new(
            self.settings.clone(),
            own,
            nonce_keys,
            Arc::clone(relays),
            Arc::clone(quotas),
        ))
    }

    /// Attaches the programs, if the kernel is to relay and can.
    fn prepare_offload(
        &self,
        listeners: &[SocketAddr],
        relays: &RelayAddresses,
        ports: PortRange,
        allocations: usize,
        shown: &Arc<Shown>,
    ) -> Result<Option<Prepared>, StartError> {
        let relays: Vec<IpAddr> = relays.iter().map(|relay| relay.local).collect();
        let wanted = Wanted {
            offload: self.offload,
            binding: self.settings.answered_by_kernel(),
            listeners,
            relays: &relays,
            ports,
            allocations: u32::try_from(allocations).unwrap_or(u32::MAX),
        };
        Prepared::new(&wanted, shown)
    }

    /// What the threads keep of their privileges.
    fn kept(&self, offload: Option<&mut Prepared>, tables: &mut Tables) -> Kept {
        if !self.drop_privileges {
            return Kept::EVERYTHING;
        }
        let relaying = offload.is_none_or(|offload| offload.can_write_unprivileged());
        Kept::needed(relaying && tables.can_write_unprivileged())
    }

    fn worker_count(&self) -> Result<usize, StartError> {
        let count = match self.workers {
            Some(count) => count,
            None => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MOST_WORKERS),
        };
        if (1..=MOST_WORKERS).contains(&count) {
            Ok(count)
        } else {
            Err(StartError::Workers(count))
        }
    }

    fn wanted_buffer(&self) -> u32 {
        self.receive_buffer.unwrap_or(RECEIVE_BUFFER)
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
            // Before Linux 6.9 an epoll cannot be told by itself.
            Err(_) if io::sysctl::busy_poll().is_some_and(|all| all > 0) => {
                BusyPoll::On(io::sysctl::busy_poll().unwrap_or(0))
            }
            Err(error) => BusyPoll::Refused(error.to_string()),
        }
    }

    /// The relay addresses with their mappings, each proven to be usable.
    fn relay_addresses(&self) -> Result<Vec<RelayAddress>, StartError> {
        let mut list: Vec<RelayAddress> = self
            .relay
            .iter()
            .copied()
            .map(RelayAddress::direct)
            .collect();
        let named = self.external.iter().filter_map(|(_, private)| *private);
        let missing: Vec<IpAddr> = named
            .filter(|private| list.iter().all(|relay| relay.local != *private))
            .collect();
        list.extend(missing.into_iter().map(RelayAddress::direct));
        if list.is_empty() {
            list = addresses::default_relay_addresses();
        }
        for &(public, private) in &self.external {
            map_external(&mut list, public, private)?;
        }
        match list.len() {
            0 => return Err(StartError::NoRelayAddress),
            1..=RelayAddresses::MOST => {}
            count => return Err(StartError::TooManyRelayAddresses(count)),
        }
        for (at, relay) in list.iter().enumerate() {
            check_relay_address(*relay, &list[..at])?;
        }
        Ok(list)
    }

    /// For each listener, one socket per worker, in the order of the workers. All are bound before any worker reads: a socket
    /// that joins its group later would take over flows of the others.
    fn bind_listeners(&self, workers: usize, gro: bool) -> Result<Vec<Vec<UdpSocket>>, StartError> {
        if self.listen.is_empty() {
            return Err(StartError::NoListener);
        }
        let options = UdpOptions {
            gro,
            recv_buffer: Some(self.wanted_buffer()),
            busy_poll_us: self.busy_poll_us,
            ..UdpOptions::listener()
        };
        let duplicate = self
            .listen
            .iter()
            .enumerate()
            .find(|(at, address)| address.port() != 0 && self.listen[..*at].contains(address));
        if let Some((_, address)) = duplicate {
            return Err(StartError::DuplicateListener(*address));
        }
        self.listen
            .iter()
            .map(|&address| {
                let options = UdpOptions {
                    // Only a wildcard leaves open what was asked.
                    local_address: address.ip().is_unspecified(),
                    ..options.clone()
                };
                bind_group(address, workers, &options)
            })
            .collect()
    }
}

/// The first line of the log.
fn say_what_serves(observer: &Observer, workers: usize, relays: &[IpAddr], ports: PortRange) {
    let features = observer.features();
    tracing::info!(
        workers,
        listeners = ?observer.listeners(),
        sip = ?observer.sip_listeners(),
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

/// Binds the sockets of one SO_REUSEPORT group.
fn bind_group(
    address: SocketAddr,
    workers: usize,
    options: &UdpOptions,
) -> Result<Vec<UdpSocket>, StartError> {
    let refused = |source| StartError::Bind { address, source };
    // SO_REUSEPORT would let a second server of the same user join silently and take half of the clients. A plain socket
    // finds out whether the port is free, and which one is if any will do.
    let plain = UdpOptions {
        reuse_port: false,
        ..options.clone()
    };
    let group = || -> Result<Vec<UdpSocket>, StartError> {
        let free = UdpSocket::bind(address, &plain)
            .map_err(refused)?
            .local_addr();
        (0..workers)
            .map(|_| UdpSocket::bind(free, options).map_err(refused))
            .collect()
    };
    // A port that the system chose may be somebody else's a moment later; then another one will do.
    let attempts = if address.port() == 0 { 8 } else { 1 };
    let mut made = group();
    for _ in 1..attempts {
        if made.is_ok() {
            break;
        }
        made = group();
    }
    made
}

fn map_external(
    list: &mut [RelayAddress],
    public: IpAddr,
    private: Option<IpAddr>,
) -> Result<(), StartError> {
    if let Some(private) = private.filter(|private| private.is_ipv4() != public.is_ipv4()) {
        return Err(StartError::MixedFamilies { public, private });
    }
    let mut found = false;
    for relay in list.iter_mut() {
        // Never across families: an IPv6 relay must not be advertised by an IPv4 mapping.
        if relay.local.is_ipv4() == public.is_ipv4()
            && private.is_none_or(|private| relay.local == private)
        {
            relay.advertised = public;
            found = true;
        }
    }
    if found {
        Ok(())
    } else {
        Err(StartError::ExternalAddress {
            public,
            family: family_of(public),
        })
    }
}

fn check_relay_address(relay: RelayAddress, before: &[RelayAddress]) -> Result<(), StartError> {
    for ip in [relay.local, relay.advertised] {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(StartError::UnusableRelayAddress(ip));
        }
        if before
            .iter()
            .any(|other| other.local == ip || other.advertised == ip)
        {
            return Err(StartError::DuplicateRelayAddress(ip));
        }
    }
    let probe = UdpSocket::bind(SocketAddr::new(relay.local, 0), &UdpOptions::relay());
    probe.map(drop).map_err(|source| StartError::RelayAddress {
        address: relay.local,
        source,
    })
}

/// Has datagrams arrive one by one where tc is to see them one by one. Returns whether relays may join theirs.
fn separate(
    offload: Option<&Prepared>,
    groups: &[Vec<UdpSocket>],
    relays: &RelayAddresses,
) -> bool {
    let Some(offload) = offload else { return true };
    let at_tc = offload.addresses_at_tc();
    let reaches = |ip: IpAddr| {
        at_tc
            .iter()
            .any(|at| *at == ip || ip.is_unspecified() && ip.is_ipv4() == at.is_ipv4())
    };
    for group in groups
        .iter()
        .filter(|group| reaches(group[0].local_addr().ip()))
    {
        for socket in group {
            // Where it stays on, trains merely take the way through user space.
            let _ = socket.set_gro(false);
        }
    }
    !relays.iter().any(|relay| reaches(relay.local))
}

/// A server whose workers do not run yet.
pub(crate) struct Made {
    pub(crate) workers: Vec<Worker>,
    pub(crate) boxes: Arc<[Mailbox<Letter>]>,
    pub(crate) observer: Observer,
    pub(crate) live: Live,
    pub(crate) tables: Tables,
    /// The kernel relays, too.
    pub(crate) offload: Option<Prepared>,
    pub(crate) kept: Kept,
}

/// The workers, and their mailboxes in the same order.
type Workers = (Vec<Worker>, Arc<[Mailbox<Letter>]>);

/// What one worker is made of.
struct Outfit {
    number: u8,
    poller: Poller,
    mailbox: Mailbox<Letter>,
    listeners: Vec<Listener>,
    courier: Courier,
    placement: Placement,
    part: Option<Part>,
}

/// What all workers are made of.
struct Plan {
    relays: Arc<RelayAddresses>,
    config: Arc<Config>,
    offloads: Option<Offloads>,
    /// Relays may join datagrams where the kernel can.
    relay_gro: bool,
    boards: Arc<[Board]>,
}

impl Plan {
    /// Makes the workers; `groups` has one list of sockets per listener, with one socket per worker; `parts` has one entry
    /// per worker, or none where user space relays everything.
    fn workers(
        &self,
        groups: Vec<Vec<UdpSocket>>,
        count: usize,
        tables: &mut Tables,
        parts: Vec<Part>,
    ) -> Result<Workers, StartError> {
        let pollers: Vec<Poller> = (0..count)
            .map(|_| Poller::new())
            .collect::<Result<_, _>>()
            .map_err(StartError::Worker)?;
        let mailbox = |poller| Mailbox::new(MAILBOX, poller, Token::Mailbox.as_u64());
        let boxes: Arc<[Mailbox<Letter>]> = pollers
            .iter()
            .map(mailbox)
            .collect::<Result<_, _>>()
            .map_err(StartError::Worker)?;
        let store = Arc::new(ParcelStore::new(count));
        let mut listeners: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
        for group in groups {
            listeners
                .iter_mut()
                .zip(group)
                .for_each(|(list, socket)| list.push(Listener::new(socket)));
        }
        let mut parts = parts.into_iter();
        let numbered = (0_u8..).zip(pollers).zip(listeners);
        let workers = numbered.map(|((number, poller), listeners)| {
            let courier = Courier::new(Arc::clone(&boxes), Arc::clone(&store));
            self.worker(Outfit {
                number,
                poller,
                mailbox: boxes[usize::from(number)].clone(),
                listeners,
                courier,
                placement: Placement::new(u16::from(number), count, tables),
                part: parts.next(),
            })
        });
        Ok((workers.collect::<Result<_, _>>()?, Arc::clone(&boxes)))
    }

    fn worker(&self, outfit: Outfit) -> Result<Worker, StartError> {
        let Outfit {
            number,
            poller,
            mailbox,
            listeners,
            courier,
            placement,
            part,
        } = outfit;
        let now = now();
        let seed = random::seed().map_err(StartError::Randomness)?;
        let gro = self.relay_gro && self.offloads.is_some_and(|offloads| offloads.gro);
        let (gso, max_segments) = self
            .offloads
            .map_or((false, 1), |offloads| (offloads.gso, offloads.max_segments));
        // Room for more than a worker that keeps up needs is of use only if what meets in it can be sent together, and is
        // address space that a strict system may refuse.
        let most = if gso { Appetite::MOST } else { Appetite::LEAST };
        let batch = RecvBatch::try_new(most, RecvBatch::LARGE)
            .or_else(|_| RecvBatch::try_new(Appetite::LEAST, RecvBatch::LARGE))
            .map_err(StartError::Worker)?;
        let mut engine = Engine::new(Arc::clone(&self.config), number, seed);
        let flows = part.map(|part| Box::new(self.flows(part, &mut engine)));
        let core = Core {
            now,
            engine,
            opener: Opener::new(u16::from(number), Arc::clone(&self.relays), gro),
            courier,
            poller,
            counters: Default::default(),
            changes: Vec::new(),
            placement,
            flows,
        };
        Ok(Worker {
            core,
            mailbox,
            sockets: Sockets {
                listeners,
                relays: RelayTable::default(),
            },
            queue: SendQueue::new(&SendOptions {
                gso,
                max_segments,
                capacity: Appetite::MOST,
            }),
            appetite: Appetite::new(batch.room()),
            batch,
            publisher: Publisher::new(Arc::clone(&self.boards), number.into()),
            parcels: Vec::new(),
            sip: None,
            letters_left: false,
            parcels_held: false,
            stopping: false,
        })
    }

    /// Has a worker's channels relayed in the kernel, and its rate limits kept where the kernel sees them.
    fn flows(&self, part: Part, engine: &mut Engine) -> Flows {
        let places = Arc::new(Places::new(part.rates));
        engine.share_buckets(Arc::new(Rates::new(part.buckets, Arc::clone(&places))));
        let mut flows = Flows::new(
            Box::new(part.table),
            part.next_hops,
            part.channels,
            places,
            Arc::clone(&self.relays),
        );
        flows.set_limited(self.config.allocation_rate != 0);
        flows
    }
}
