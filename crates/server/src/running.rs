//! A server that runs: look at it, change it, end it.

use crate::addresses::{RelayAddress, RelayAddresses, host_addresses};
use crate::builder::Made;
use crate::error::{ReloadError, SettingsError, StartError, WorkerFailure};
use crate::mailbox::Mailbox;
use crate::observer::Observer;
use crate::offload::Control;
use crate::policy::{OwnAddresses, Policy};
use crate::quota::Quotas;
use crate::random;
use crate::settings::{Settings, Surroundings};
use crate::stats::{Stats, WorkerStats};
use crate::steering::{SteeringInUse, Tables};
use crate::worker::Letter;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stun::AddressFamily;
use stun::nonce::NonceKeys;
use turn::server::Config;

/// How long a worker may take to answer a question before it is left out of a snapshot.
const ANSWER: Duration = Duration::from_secs(1);

/// How long to wait before trying a full mailbox again, or looking at a drain.
const PAUSE: Duration = Duration::from_millis(2);

/// What can change while the server runs, and what that depends on.
#[derive(Debug)]
pub(crate) struct Live {
    settings: Settings,
    own: OwnAddresses,
    nonce_keys: NonceKeys,
    relays: Arc<RelayAddresses>,
    quotas: Arc<Quotas>,
    draining: bool,
    /// The workers have the kernel relay.
    offload: bool,
}

impl Live {
    pub(crate) fn new(
        settings: Settings,
        own: OwnAddresses,
        nonce_keys: NonceKeys,
        relays: Arc<RelayAddresses>,
        quotas: Arc<Quotas>,
    ) -> Live {
        Live {
            settings,
            own,
            nonce_keys,
            relays,
            quotas,
            draining: false,
            offload: false,
        }
    }

    /// The workers have the kernel relay what it can, or nothing.
    pub(crate) fn set_offload(&mut self, offload: bool) {
        self.offload = offload;
    }

    /// The engine's configuration at this moment.
    pub(crate) fn engine_config(&self) -> Result<Config, SettingsError> {
        self.config_for(&self.settings)
    }

    fn config_for(&self, settings: &Settings) -> Result<Config, SettingsError> {
        let policy = Policy::new(&settings.peers, self.own.clone(), Arc::clone(&self.relays));
        let surroundings = Surroundings {
            nonce_keys: self.nonce_keys.clone(),
            policy: Arc::new(policy),
            quota: Arc::clone(&self.quotas) as Arc<dyn turn::server::Quota>,
            relay_v4: self.relays.has(AddressFamily::V4),
            relay_v6: self.relays.has(AddressFamily::V6),
        };
        let mut config = settings.engine_config(&surroundings)?;
        config.offload = self.offload;
        if self.draining {
            config.max_allocations = 0;
        }
        Ok(config)
    }
}

type Ended = std::io::Result<WorkerStats>;

/// A running server. Dropping it shuts it down and waits for its threads.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<Ended>>,
    boxes: Arc<[Mailbox<Letter>]>,
    observer: Observer,
    live: Mutex<Live>,
    /// Holds the handle that counts entries.
    tables: Tables,
    /// Ends, and detaches the programs, after the workers.
    control: Option<Control>,
}

impl Running {
    pub(crate) fn spawn(made: Made, pin: bool) -> Result<Running, StartError> {
        let Made {
            workers,
            boxes,
            observer,
            live,
            tables,
            offload,
            kept,
        } = made;
        let control = offload
            .map(|offload| {
                let boxes = Arc::clone(&boxes);
                let on_tc = Box::new(move || {
                    for mailbox in boxes.iter() {
                        // One that is full belongs to a worker with other worries.
                        let _ = mailbox.post(Letter::Separate);
                    }
                });
                offload.start(observer.listeners(), kept, on_tc)
            })
            .transpose()
            .map_err(StartError::Thread)?;
        let cores = if pin {
            io::affinity::available().unwrap_or_default()
        } else {
            Vec::new()
        };
        let mut running = Running {
            threads: Vec::new(),
            boxes,
            observer,
            live: Mutex::new(live),
            tables,
            control,
        };
        for (number, worker) in workers.into_iter().enumerate() {
            let core = cores.get(number % cores.len().max(1)).copied();
            let observer = running.observer.clone();
            let body = move || {
                kept.by_worker();
                let _tenure = observer.board(number).begin();
                if let Some(Err(error)) = core.map(io::affinity::pin_current_thread) {
                    tracing::warn!(worker = number, %error, "not pinned to a core");
                }
                worker
                    .run()
                    .inspect_err(|error| tracing::error!(worker = number, %error, "worker stopped"))
            };
            // If one cannot start, dropping `running` ends those that have.
            let thread = std::thread::Builder::new()
                .name(format!("hairpin-{number}"))
                .spawn(body)
                .map_err(StartError::Thread)?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// The addresses listened on, in the order they were asked for, with the ports that were chosen for port 0.
    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        self.observer.listeners()
    }

    /// The addresses that SIP is served on, over UDP and TCP, likewise.
    #[must_use]
    pub fn sip_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_listeners()
    }

    /// The addresses relayed from, and what clients are told.
    #[must_use]
    pub fn relay_addresses(&self) -> Vec<RelayAddress> {
        self.live().relays.iter().collect()
    }

    /// How many workers serve.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// How new allocations find their worker.
    #[must_use]
    pub fn steering(&self) -> &SteeringInUse {
        &self.observer.features().steering
    }

    /// How many clients have an entry in the kernel's table of steered flows: those whose allocation was made on another worker
    /// than the hash would choose. Walks the table, a system call per entry.
    #[must_use]
    pub fn steered_flows(&self) -> usize {
        self.tables.flows.first().map_or(0, |flows| flows.count())
    }

    /// How many relayed addresses are held by clients now.
    #[must_use]
    pub fn relayed_addresses_held(&self) -> u32 {
        self.live().quotas.held()
    }

    /// The number of a worker that has ended although nobody asked it to; look from time to time.
    #[must_use]
    pub fn failed_worker(&self) -> Option<usize> {
        self.threads.iter().position(JoinHandle::is_finished)
    }

    /// The counts of all workers at this moment: each is asked to bring what it shows up to date. Of a worker that does not do
    /// so within a second, the counts are those that it showed last. [`Observer::stats`] asks nobody.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (reply, answers) = mpsc::channel();
        let deadline = Instant::now() + ANSWER;
        let asked = (0..self.boxes.len())
            .filter(|&worker| self.post_until(worker, Letter::Publish(reply.clone()), deadline));
        let asked = asked.count();
        for _ in 0..asked {
            let left = deadline.saturating_duration_since(Instant::now());
            if answers.recv_timeout(left).is_err() {
                break;
            }
        }
        self.observer.stats()
    }

    /// What other threads can look at, also when the server is gone: counts, health, features in use.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Replaces all live settings. Allocations stay; their peers are judged anew, and their credentials when they refresh.
    ///
    /// # Errors
    /// If the settings are wrong or the realm differs; then nothing has changed.
    pub fn reload(&self, settings: Settings) -> Result<(), ReloadError> {
        let mut live = self.live();
        if settings.realm != live.settings.realm {
            return Err(ReloadError::Realm);
        }
        live.own.host = host_addresses();
        let config = live.config_for(&settings)?;
        live.quotas.set_limits(settings.quota);
        let sip = Arc::new(settings.sip_orders(self.boxes.len()));
        if let Some(control) = &self.control {
            control.set_binding(settings.answered_by_kernel());
        }
        live.settings = settings;
        self.publish(config)?;
        self.order(|| Letter::Sip(Arc::clone(&sip)))
    }

    /// Issues nonces under a fresh key from now on; nonces under the key so far stay valid until the next rotation.
    ///
    /// # Errors
    /// If the kernel has no randomness, or a worker has ended.
    pub fn rotate_nonce_key(&self) -> Result<(), ReloadError> {
        let mut live = self.live();
        let key = random::seed().map_err(|_| ReloadError::Randomness)?;
        live.nonce_keys.rotate(&key);
        let config = live.engine_config()?;
        self.publish(config)
    }

    /// Admits no new allocations (508) and waits until the existing ones have ended, or until `patience` is over. Returns
    /// whether none is left. The server goes on serving those that are.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn drain(&self, patience: Duration) -> Result<bool, ReloadError> {
        let deadline = Instant::now() + patience;
        self.observer.set_draining();
        {
            let mut live = self.live();
            live.draining = true;
            let config = live.engine_config()?;
            self.publish(config)?;
        }
        while self.stats().allocations() > 0 {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(PAUSE * 10);
        }
        Ok(true)
    }

    /// Ends every allocation, with its log line, closes every socket and waits for the threads. Returns the final counts.
    ///
    /// # Errors
    /// If a worker had ended before.
    pub fn shutdown(mut self) -> Result<Stats, WorkerFailure> {
        self.order_shutdown();
        self.join_all()
    }

    /// Waits until the workers end, which they do only if they fail.
    ///
    /// # Errors
    /// Says which worker failed, and why.
    pub fn join(mut self) -> Result<Stats, WorkerFailure> {
        while self.failed_worker().is_none() {
            std::thread::sleep(ANSWER);
        }
        self.order_shutdown();
        self.join_all()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, config: Config) -> Result<(), ReloadError> {
        let config = Arc::new(config);
        self.order(|| Letter::Config(Arc::clone(&config)))
    }

    /// Posts a letter to every worker.
    fn order(&self, letter: impl Fn() -> Letter) -> Result<(), ReloadError> {
        for worker in 0..self.boxes.len() {
            let deadline = Instant::now() + ANSWER;
            if !self.post_until(worker, letter(), deadline) {
                return Err(ReloadError::WorkerGone(worker));
            }
        }
        Ok(())
    }

    /// Posts a letter, also to a mailbox that is full at first. `false` if the worker is gone or stays too busy.
    fn post_until(&self, worker: usize, letter: Letter, deadline: Instant) -> bool {
        let mut letter = letter;
        loop {
            if self.threads.get(worker).is_none_or(JoinHandle::is_finished) {
                return false;
            }
            match self.boxes[worker].post(letter) {
                Ok(()) => return true,
                Err(back) if Instant::now() < deadline => letter = back,
                Err(_) => return false,
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn order_shutdown(&self) {
        self.observer.set_draining();
        for worker in 0..self.threads.len() {
            // A worker empties its mailbox at every wake-up: a minute is for ever.
            self.post_until(worker, Letter::Shutdown, Instant::now() + 60 * ANSWER);
        }
    }

    fn join_all(&mut self) -> Result<Stats, WorkerFailure> {
        let mut stats = Stats::default();
        let mut failure = None;
        for (worker, thread) in self.threads.drain(..).enumerate() {
            match thread.join() {
                Ok(Ok(counts)) => stats.workers.push(counts),
                Ok(Err(source)) => {
                    failure = failure.or(Some(WorkerFailure::System { worker, source }))
                }
                Err(_) => failure = failure.or(Some(WorkerFailure::Panicked { worker })),
            }
        }
        failure.map_or(Ok(stats), Err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.order_shutdown();
        if let Err(failure) = self.join_all() {
            tracing::error!(%failure, "while shutting down");
        }
    }
}
