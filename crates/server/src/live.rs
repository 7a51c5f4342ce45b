//! The configuration that can change while a server runs: one value for all workers, replaced as a whole.
//!
//! At each wake-up, a worker compares the number of the published configuration with its own. It fetches a new one
//! before it reads a datagram. A change needs no room in a mailbox, so it reaches all workers or, if it fails, none.

use crate::addresses::{RelayAddresses, host_addresses};
use crate::alternates::Redirect;
use crate::cluster_keys::ClusterKeys;
use crate::connections::WorkerLimits;
use crate::error::{ReloadError, SettingsError};
use crate::handover::{HandoverError, Key, SharedCountFds};
use crate::hooks::WorkerHooks;
use crate::mailbox::Mailbox;
use crate::offload::KernelBinding;
use crate::policy::OwnAddresses;
use crate::quota::{Quotas, SharedCounts, SourcePrefix};
use crate::random;
use crate::rates::{GroupRates, RateTable};
use crate::realms;
use crate::settings::{EngineEnvironment, Settings};
use crate::sip;
use crate::worker::WorkerMessage;
use sip_server::flow::TokenKeys;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use stun::AddressFamily;
use stun::nonce::NonceKeys;
use turn::server::{Config, Discovery, TicketKeys, ValidConfig};

/// The configuration of a worker. All workers have the same.
#[derive(Clone)]
pub(crate) struct Configuration {
    pub(crate) engine: ValidConfig,
    pub(crate) sip: Arc<sip::SipConfig>,
    pub(crate) hooks: WorkerHooks,
    pub(crate) streams: WorkerLimits,
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

/// The latest configuration, for all workers.
#[derive(Debug)]
pub(crate) struct PublishedConfig {
    /// Counts changes. Written under the lock, read without.
    number: AtomicU64,
    latest: Mutex<Configuration>,
}

/// One worker's view of it.
#[derive(Debug)]
pub(crate) struct Subscription {
    published: Arc<PublishedConfig>,
    /// The number of the configuration that the worker has.
    seen: u64,
}

impl PublishedConfig {
    pub(crate) fn new(first: Configuration) -> Arc<PublishedConfig> {
        Arc::new(PublishedConfig {
            number: AtomicU64::new(0),
            latest: Mutex::new(first),
        })
    }

    /// For a worker that was made with the first configuration.
    pub(crate) fn subscribe(self: &Arc<PublishedConfig>) -> Subscription {
        Subscription {
            published: Arc::clone(self),
            seen: 0,
        }
    }

    /// The hooks that workers call themselves.
    pub(crate) fn hooks(&self) -> WorkerHooks {
        self.latest().hooks.clone()
    }

    fn publish(&self, configuration: Configuration) {
        let mut latest = self.latest();
        *latest = configuration;
        self.number.fetch_add(1, Ordering::Release);
    }

    fn latest(&self) -> MutexGuard<'_, Configuration> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// The latest configuration, if the worker does not have it yet. Otherwise this costs one load of a line that no
    /// thread writes.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Configuration> {
        if self.published.number.load(Ordering::Acquire) == self.seen {
            return None;
        }
        let latest = self.published.latest();
        self.seen = self.published.number.load(Ordering::Acquire);
        Some(latest.clone())
    }
}

/// What can change while the server runs, and what that depends on.
#[derive(Debug, Clone)]
pub(crate) struct LiveSettings {
    pub(crate) settings: Settings,
    own: OwnAddresses,
    nonce_keys: NonceKeys,
    /// What the keys of nonces are made of, the last one first: one or two.
    nonce_seeds: Vec<Key>,
    ticket_keys: Option<TicketKeys>,
    ticket_seed: Option<Key>,
    /// The keys that other nodes have as well, and the epoch of those of nonces.
    cluster: Option<(ClusterKeys, u64)>,
    /// The keys of the tokens in Path and Record-Route, which all nodes of the cluster have.
    sip_tokens: Option<TokenKeys>,
    pub(crate) relays: Arc<RelayAddresses>,
    pub(crate) quotas: Arc<Quotas>,
    /// The rate limits that the workers share, and what counts as one source.
    rates: Option<(Arc<RateTable>, SourcePrefix)>,
    pub(crate) draining: bool,
    /// The routes and trunks of SIP that workers have now: the next ones take over the health of trunks.
    sip_routes: Arc<sip::routes::Table>,
    /// The listeners of NAT behaviour discovery.
    discovery: Discovery,
    /// The workers have the kernel relay.
    offload: bool,
    workers: usize,
}

impl LiveSettings {
    pub(crate) fn new(
        settings: Settings,
        own: OwnAddresses,
        nonce_seeds: Vec<Key>,
        relays: Arc<RelayAddresses>,
        quotas: Arc<Quotas>,
        workers: usize,
    ) -> LiveSettings {
        LiveSettings {
            settings,
            own,
            nonce_keys: nonce_keys(&nonce_seeds),
            nonce_seeds,
            ticket_keys: None,
            ticket_seed: None,
            cluster: None,
            sip_tokens: None,
            relays,
            quotas,
            rates: None,
            draining: false,
            sip_routes: Arc::default(),
            discovery: Discovery::default(),
            offload: false,
            workers,
        }
    }

    /// These listeners serve NAT behaviour discovery.
    pub(crate) fn set_discovery(&mut self, discovery: Discovery) {
        self.discovery = discovery;
    }

    /// This server is a node of the cluster that has these keys.
    pub(crate) fn join_cluster(&mut self, keys: ClusterKeys, unix_s: u64) {
        let epoch = ClusterKeys::epoch(unix_s);
        self.nonce_keys = keys.nonce_keys(epoch);
        self.nonce_seeds = keys.nonce_seeds(epoch);
        self.sip_tokens = Some(keys.sip_tokens(unix_s));
        self.cluster = Some((keys, epoch));
        if let Some(seed) = self.ticket_seed {
            self.set_ticket_seed(seed, unix_s);
        }
    }

    /// Whether the nodes of its cluster have other keys at this time.
    pub(crate) fn is_epoch_over(&self, unix_s: u64) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|(_, epoch)| *epoch != ClusterKeys::epoch(unix_s))
    }

    /// Issues nonces, tickets and SIP tokens with the keys that the nodes of its cluster have at this time.
    pub(crate) fn follow_epoch(&mut self, unix_s: u64) {
        if let Some((keys, _)) = self.cluster.take() {
            self.join_cluster(keys, unix_s);
        }
    }

    /// Turns mobility tickets (RFC 8016) on. Their keys are derived from this seed; in a cluster, from its secret and
    /// the time.
    pub(crate) fn set_ticket_seed(&mut self, seed: Key, unix_s: u64) {
        self.ticket_keys = Some(match &self.cluster {
            Some((keys, _)) => keys.ticket_keys(unix_s, &seed),
            None => TicketKeys::new(&seed),
        });
        self.ticket_seed = Some(seed);
    }

    /// What the keys of nonces and tickets are made of, for a process that takes over.
    pub(crate) fn seeds(&self) -> (Vec<Key>, Option<Key>) {
        (self.nonce_seeds.clone(), self.ticket_seed)
    }

    /// The Binding requests that the kernel may answer.
    pub(crate) fn answered_by_kernel(&self) -> Option<KernelBinding> {
        self.settings.answered_by_kernel(&self.discovery)
    }

    /// The workers have the kernel relay what it can, or nothing.
    pub(crate) fn set_offload(&mut self, offload: bool) {
        self.offload = offload;
    }

    /// The addresses of this host are these. Returns whether they were others before.
    pub(crate) fn set_host(&mut self, mut host: Vec<IpAddr>) -> bool {
        host.sort_unstable();
        host.dedup();
        let differs = host != self.own.host;
        self.own.host = host;
        differs
    }

    /// No client may relay to this address from now on.
    fn protect(&mut self, listener: SocketAddr) {
        self.own.listeners.push(listener);
    }

    /// The workers share this table of rate limits.
    pub(crate) fn set_rates(&mut self, table: Option<Arc<RateTable>>, prefix: SourcePrefix) {
        self.rates = table.map(|table| (table, prefix));
    }

    fn has_group_rates(&self) -> bool {
        let rates = self.rates.as_ref();
        rates.is_some_and(|(table, _)| table.has_groups())
    }

    /// Workers were made with these routes and trunks of SIP.
    pub(crate) fn set_sip_routes(&mut self, routes: Arc<sip::routes::Table>) {
        self.sip_routes = routes;
    }

    /// The routes and trunks of SIP.
    pub(crate) fn sip_routes(&self) -> Arc<sip::routes::Table> {
        Arc::clone(&self.sip_routes)
    }

    /// Applies the limits of the settings.
    pub(crate) fn apply_limits(&self) {
        let settings = &self.settings;
        if let Some((table, prefix)) = &self.rates {
            let rates = GroupRates::new(&settings.rates, &settings.realms);
            table.set_rates(rates, *prefix);
        }
        self.quotas.set_limits(settings.quota);
        let realms = settings.realms.iter();
        self.quotas
            .set_realms(realms.map(|realm| (&*realm.name, realm.limits())));
    }

    /// From now on, writes the counts of quotas and rates to memory that another process may read.
    pub(crate) fn share_counts(&self) -> std::io::Result<SharedCountFds> {
        let table = self.rates.as_ref().map(|(table, _)| table);
        let own = table
            .map(|table| table.size().shared_counts())
            .transpose()?;
        let own = own.flatten();
        let rates = own.as_ref().map(SharedCounts::descriptor).transpose()?;
        if let (Some(table), Some(own)) = (table, own) {
            table.share(own);
        }
        Ok(SharedCountFds {
            quotas: Some(self.quotas.share()?),
            rates,
        })
    }

    /// From now on, the counts of this other process are included.
    pub(crate) fn count_other(&self, held: SharedCountFds) -> Result<(), HandoverError> {
        let [quotas, rates] = held.map()?;
        if let Some(quotas) = quotas {
            self.quotas.count_other(quotas);
        }
        if let (Some(rates), Some((table, _))) = (rates, &self.rates) {
            table.share_with(rates);
        }
        Ok(())
    }

    /// The other process has ended.
    pub(crate) fn count_alone(&self) {
        self.quotas.count_alone();
        if let Some((table, _)) = &self.rates {
            table.stop_sharing();
        }
    }

    /// Computes the shares of the rates that the two processes have.
    pub(crate) fn set_rate_shares(&self) {
        if let Some((table, _)) = &self.rates {
            table.set_shares();
        }
    }

    /// Issues nonces under a fresh key. In a cluster the time says which key is valid.
    pub(crate) fn rotate_nonce_key(&mut self) -> Result<(), ReloadError> {
        if self.cluster.is_some() {
            return Ok(());
        }
        let key = random::seed().map_err(|_| ReloadError::Randomness)?;
        self.nonce_keys.rotate(&key);
        self.nonce_seeds.truncate(1);
        self.nonce_seeds.insert(0, key);
        Ok(())
    }

    /// The current configuration of the workers.
    pub(crate) fn configuration(&mut self) -> Result<Configuration, SettingsError> {
        let earlier = Arc::clone(&self.sip_routes);
        let mut sip = self.settings.sip_config(self.workers, &earlier)?;
        self.sip_routes = Arc::clone(&sip.routes);
        sip.draining = self.draining;
        sip.tokens = self.sip_tokens;
        Ok(Configuration {
            engine: self.engine_config()?.validate()?,
            sip: Arc::new(sip),
            hooks: self.settings.hooks.of_worker(),
            streams: self.settings.stream_limits(self.workers),
        })
    }

    fn engine_config(&self) -> Result<Config, SettingsError> {
        let settings = &self.settings;
        let policy = realms::policy(&settings.peers, &settings.realms, &self.own, &self.relays);
        let environment = EngineEnvironment {
            nonce_keys: self.nonce_keys.clone(),
            ticket_keys: self.ticket_keys.clone(),
            policy: settings.hooks.policy(policy),
            quota: settings.hooks.quota(Arc::clone(&self.quotas) as _),
            relay_v4: self.relays.has(AddressFamily::V4),
            relay_v6: self.relays.has(AddressFamily::V6),
        };
        let mut config = settings.engine_config(&environment)?;
        config.offload = self.offload;
        config.group_rates = self.has_group_rates();
        // Each worker counts for itself, and the kernel spreads the clients of one source over all of them.
        let workers = u32::try_from(self.workers).unwrap_or(u32::MAX).max(1);
        config.unverified_responses = settings.unverified_responses.div_ceil(workers);
        config.alternates = Redirect::of(&settings.alternates, self.draining, &self.quotas);
        config.discovery.clone_from(&self.discovery);
        if self.draining {
            config.max_allocations = 0;
        }
        Ok(config)
    }
}

/// The keys of nonces, made of one or two seeds, the last one first.
fn nonce_keys(seeds: &[Key]) -> NonceKeys {
    let mut oldest_first = seeds.iter().rev();
    let mut keys = NonceKeys::new(oldest_first.next().unwrap_or(&[0; 32]));
    oldest_first.for_each(|seed| keys.rotate(seed));
    keys
}

/// Changes the configuration of all workers. All threads that change it share this value.
#[derive(Debug)]
pub(crate) struct Changes {
    live: Mutex<LiveSettings>,
    /// The configuration has changed.
    changed: Condvar,
    published: Arc<PublishedConfig>,
    boxes: Arc<[Mailbox<WorkerMessage>]>,
}

impl Changes {
    pub(crate) fn new(
        live: LiveSettings,
        published: Arc<PublishedConfig>,
        boxes: Arc<[Mailbox<WorkerMessage>]>,
    ) -> Changes {
        Changes {
            live: Mutex::new(live),
            changed: Condvar::new(),
            published,
            boxes,
        }
    }

    /// Replaces the settings, for all workers or for none.
    pub(crate) fn replace_settings(&self, settings: Settings) -> Result<(), ReloadError> {
        self.make(|live| {
            if settings.realm != live.settings.realm {
                return Err(ReloadError::Realm);
            }
            let rates = GroupRates::new(&settings.rates, &settings.realms);
            if rates.limits_any() && !live.has_group_rates() {
                return Err(ReloadError::GroupRates);
            }
            live.set_host(host_addresses());
            for server in &settings.alternates.servers {
                server.remember(&live.settings.alternates.servers);
            }
            live.settings = settings;
            Ok(true)
        })
    }

    /// Keeps clients from relaying to this address.
    pub(crate) fn protect(&self, listener: SocketAddr) -> Result<(), ReloadError> {
        self.make(|live| {
            live.protect(listener);
            Ok(true)
        })
    }

    /// Has all workers refuse new work, or admit it again.
    pub(crate) fn set_draining(&self, draining: bool) -> Result<(), ReloadError> {
        self.make(|live| {
            live.draining = draining;
            Ok(true)
        })
    }

    /// Waits for a change, until `due` at the latest, and not at all after `ended` has been set and [`Self::notify`]
    /// been called.
    pub(crate) fn wait(&self, ended: &AtomicBool, due: Option<Instant>) {
        let live = self.live();
        if ended.load(Ordering::Relaxed) {
            return;
        }
        // The waiting thread checks everything again, also after a spurious wake-up.
        match due {
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now());
                drop(self.changed.wait_timeout(live, left));
            }
            None => drop(self.changed.wait(live)),
        }
    }

    /// Wakes all who wait for a change.
    pub(crate) fn notify(&self) {
        // With the lock, no thread is between reading the flag and its wait.
        let _live = self.live();
        self.changed.notify_all();
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, LiveSettings> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a copy with `change`, and publishes it if that returns `true`.
    ///
    /// # Errors
    /// What `change` returns, or that the settings are wrong; then nothing has changed.
    pub(crate) fn make(
        &self,
        change: impl FnOnce(&mut LiveSettings) -> Result<bool, ReloadError>,
    ) -> Result<(), ReloadError> {
        let mut live = self.live();
        let mut next = live.clone();
        if !change(&mut next)? {
            return Ok(());
        }
        let configuration = next.configuration()?;
        next.apply_limits();
        *live = next;
        // Under the lock, so that the last change is also the one that is published last.
        self.published.publish(configuration);
        self.boxes.iter().for_each(Mailbox::wake);
        self.changed.notify_all();
        Ok(())
    }
}
