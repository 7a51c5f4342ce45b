//! `hairpin serve`: reads the configuration, starts the server, says where it is, and serves until a signal ends it.

mod banner;
mod binding_database;
mod changes;
mod cluster;
pub(super) mod databases;
mod denied;
mod endpoints;
mod explain;
mod kernel;
pub(super) mod log;
mod log_json;
mod names;
#[cfg(test)]
mod panic_tests;
mod plan;
mod privileges;
mod registrations;
mod reload;
mod running;
mod settings;
mod sip_tables;
mod sip_tls;
mod tables;
mod upgrade;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use server::InheritedSockets;
use server::signals::{Signal, Signals};
use stores::cluster::Cluster;

use super::creds;
use super::directory;
use super::ice::Ice;
use super::{input, output};
use crate::admin::Applied;
use crate::cli::serve::Args;
use crate::config::{self, Config, CurrentKey, ExternalIp, Loaded};
use crate::control::{self, ChangeSender, Inbox, Shared};
use crate::external_address;
use crate::metrics::Source;
use crate::systemd::Manager;
use crate::telemetry::Telemetry;
use banner::{Access, Banner};
use databases::Databases;
use denied::WatchedDenyFiles;
use endpoints::Endpoints;
use plan::Machine;
pub(crate) use plan::random_secret;
use running::{RunningServer, ServerParts, Sources};
pub(crate) use settings::sip_settings;
use upgrade::{InheritedProcess, PredecessorLink, Successor};

/// How long the credentials of the banner are good for.
const BANNER_CREDENTIALS: Duration = Duration::from_secs(86_400);
/// How long one key makes nonces. The one before stays good as long again, so this is not below the longest nonce
/// lifetime.
const NONCE_KEY_LIFETIME: Duration = Duration::from_secs(3_600);
/// How often a wait for signals looks whether a worker has failed.
const WORKER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it looks whether the server has stopped.
const STOP_LOOK: Duration = Duration::from_millis(5);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before anything else uses descriptors.
    let inherited = InheritedSockets::from_environment()?;
    let loaded = read(args)?;
    let Some(config) = usable(&loaded) else {
        return Ok(ExitCode::FAILURE);
    };
    let level = log::install(config.log_format, config.log_level)?;
    log::report_panics();
    // Before any thread starts, so that no signal is missed.
    let signals = Signals::install().context("cannot catch SIGINT, SIGTERM and SIGHUP")?;
    let telemetry = start_telemetry(&config, &loaded)?;
    let manager = Manager::from_environment();
    let machine = running::machine();
    let mut taken = args
        .take_over
        .then(|| InheritedProcess::begin(&config.control_socket))
        .transpose()?;
    let mut inherited = taken.as_mut().map_or(inherited, InheritedProcess::sockets);
    let mut made_up_secret = taken.as_ref().and_then(InheritedProcess::made_up_secret);
    let databases = open_databases(&config, &signals)?;
    let denied = WatchedDenyFiles::of(with_credentials(config, &mut made_up_secret, &databases)?);
    let mut config = denied.with_rules()?;
    let mut endpoints = Endpoints::bind(&config, &mut inherited, taken.as_mut())?;
    config.certificates.extend(endpoints.certificate());
    let listeners = plan::listeners(&config, &machine)?;
    let relays = plan::relays(&config, &machine)?;
    let external = find_external_addresses(&mut config, &relays)?;
    let sources = Sources {
        inherited,
        take_over: taken.as_mut().and_then(InheritedProcess::take_over),
        batch_limit: args.batch_limit,
    };
    let others = endpoints.addresses();
    let attached = ServerParts::new(&config, databases, telemetry)?;
    let running = RunningServer::start(&config, attached, &listeners, &others, &relays, sources)?;
    privileges::give_up(args.config.as_deref());
    kernel::warn(&running.features());
    let cluster = cluster::join(&config, &running, &machine, args.take_over)?;
    let source = Arc::new(source(&running, cluster.as_ref()));
    let mut banner = banner(args, &config, &running, &machine, made_up_secret.clone());
    banner.admin = endpoints.admin_address();
    banner.control = endpoints.control_path();
    let uris = banner.access.uris().to_vec();
    let known = applied(&config, uris.clone(), config::in_force(&loaded, &loaded))?;
    let shared = shared(args, &source, &endpoints, &running, known);
    let (changes, inbox) = control::channel(&signals).context("cannot make the control socket")?;
    endpoints.serve(&shared, &changes, running.certificates())?;
    show(&banner, made_up_secret.is_some())?;
    let take = |taken: InheritedProcess| taken.serving(changes.clone(), args.adopt_output);
    let predecessor = taken.map(take).transpose().inspect(|_| endpoints.own())?;
    Service {
        args,
        started: loaded,
        made_up_secret,
        level,
        signals,
        running,
        cluster,
        denied,
        source,
        endpoints,
        inbox,
        changes,
        shared,
        successor: None,
        predecessor,
        manager,
        external,
        drain: config.drain,
        uris,
    }
    .run()
}

/// The configuration; `None` after its mistakes have been shown.
fn usable(loaded: &Loaded) -> Option<Config> {
    if loaded.config.is_none() {
        eprint!("{}", loaded.diagnostics(input::colour()));
        eprintln!("{}; nothing was started", loaded.count());
    }
    loaded.config.clone()
}

fn open_databases(config: &Config, signals: &Signals) -> Result<Databases> {
    let waker = signals.waker().context("cannot watch the stores")?;
    Databases::open(config, waker)
}

/// What metrics are made of.
fn source(running: &RunningServer, cluster: Option<&Cluster>) -> Source {
    let stores = running.databases().sources().cloned().collect();
    let attached = running.attached();
    Source::new(running.observer())
        .with_stores(stores)
        .with_events(attached.events.status())
        .with_telemetry(attached.telemetry.status())
        .with_cluster(cluster.map(Cluster::handle))
}

/// What the control socket sees of the server.
fn shared(
    args: &Args,
    source: &Arc<Source>,
    endpoints: &Endpoints,
    running: &RunningServer,
    applied: Applied,
) -> Arc<Shared> {
    Arc::new(Shared {
        source: Arc::clone(source),
        config_file: args.config.clone(),
        sip: running.sip_inspector(),
        admin: endpoints.admin_address(),
        stopping: AtomicBool::new(false),
        predecessor: Mutex::new(None),
        upgrade: control::upgrade::Upgrade::default(),
        routing: running.routing(),
        sessions: running.sessions(),
        applied: Mutex::new(Arc::new(applied)),
    })
}

/// The part of a configuration that the API uses.
fn applied(config: &Config, uris: Vec<String>, keys: Vec<CurrentKey>) -> Result<Applied> {
    Ok(Applied {
        tokens: config.admin_tokens.clone(),
        realm: config.realm.clone(),
        secret: config.secrets.first().cloned(),
        uris,
        store: directory::writable(config)?,
        keys,
    })
}

/// Adds the external addresses that the configuration leaves open.
fn find_external_addresses(
    config: &mut Config,
    relays: &[IpAddr],
) -> Result<Option<external_address::Watch>> {
    let found = external_address::find(config, relays)?;
    Ok(found.map(|(external, watch)| {
        config.external_ip.extend(external);
        watch
    }))
}

fn read(args: &Args) -> Result<Loaded> {
    Ok(config::load(&input::gather(
        args.config.as_ref(),
        args.flags(),
    )?))
}

/// Starts the export of log events. The first ones are the warnings of the configuration.
fn start_telemetry(config: &Config, loaded: &Loaded) -> Result<Telemetry> {
    let telemetry = Telemetry::start(config.telemetry.as_ref())?;
    log_warnings(loaded);
    Ok(telemetry)
}

/// What is hardly meant, as log lines: the form of the log is the user's choice.
fn log_warnings(loaded: &Loaded) {
    for warning in loaded.one_line_each() {
        tracing::warn!("{warning}");
    }
}

/// A server without users, secrets, keys of access tokens, realms and stores gets a random secret, the same one in each
/// call. So a client can always authenticate, and the relay is never open.
fn with_credentials(
    mut config: Config,
    made_up_secret: &mut Option<String>,
    databases: &Databases,
) -> Result<Config> {
    let has_none = config.users.is_empty() && config.secrets.is_empty();
    if has_none
        && !databases.has_possible_user()
        && config.token_keys.is_empty()
        && config.realms.is_empty()
    {
        let secret = made_up_secret.take().map_or_else(random_secret, Ok)?;
        config.secrets.push(secret.clone());
        *made_up_secret = Some(secret);
    }
    Ok(config)
}

/// Prints the banner, but not to the journal: the banner may have credentials, and many users can read a journal.
fn show(banner: &Banner, has_made_up_secret: bool) -> Result<()> {
    if !log::is_the_journal(&std::io::stdout()) {
        return output::print(&banner.render());
    }
    if has_made_up_secret {
        tracing::warn!(
            "no client can authenticate: the random secret of this start is not shown in the journal, set auth.secrets"
        );
    }
    Ok(())
}

fn banner(
    args: &Args,
    config: &Config,
    running: &RunningServer,
    machine: &Machine,
    made_up_secret: Option<String>,
) -> Banner {
    let listeners = plan::Listeners {
        udp: running.listeners(),
        tcp: running.tcp_listeners(),
        tls: running.tls_listeners(),
        dtls: running.dtls_listeners(),
    };
    let certificates = running.certificates();
    let name_at = |listener| names::at(certificates.as_ref()?, config, listener);
    let uris = plan::uris(&listeners, &config.external_ip, machine, &name_at);
    let access = match &args.config {
        Some(file) => {
            let has_secret = !config.secrets.is_empty() && made_up_secret.is_none();
            Access::FromFile {
                file: file.display().to_string(),
                uris,
                has_secret,
            }
        }
        None => {
            let (ice, expires) = example_credentials(config, uris);
            Access::Quick {
                ice,
                expires,
                made_up_secret,
            }
        }
    };
    Banner {
        listeners,
        sip: running.sip_listeners(),
        sip_streams: running.sip_streams(),
        test_uas: config.sip.test_uas,
        relays: running.relays(),
        relay_ports: config.relay_ports.clone(),
        workers: running.workers(),
        steering: running.steering(),
        realm: config.realm.clone(),
        local_peers: config.peers_allow_local,
        kernel: kernel::lines(&running.features()),
        offload: running.offload(),
        admin: None,
        control: None,
        access,
    }
}

/// Credentials that the server admits, and whether they expire.
fn example_credentials(config: &Config, uris: Vec<String>) -> (Ice, bool) {
    if let Some(secret) = config.secrets.first() {
        let expires = creds::now_unix_s() + BANNER_CREDENTIALS.as_secs();
        return (creds::make(secret, "demo", expires, uris), true);
    }
    let user = config.users.first();
    let (username, password) = user
        .map(|user| (user.name.clone(), user.password.clone()))
        .unwrap_or_default();
    (
        Ice {
            uris,
            username,
            password,
        },
        false,
    )
}

/// A server that runs, and what a reload needs.
struct Service<'a> {
    args: &'a Args,
    started: Loaded,
    made_up_secret: Option<String>,
    level: log::Level,
    signals: Signals,
    running: RunningServer,
    /// The other nodes, if there may be some.
    cluster: Option<Cluster>,
    denied: WatchedDenyFiles,
    source: Arc<Source>,
    /// The endpoints respond until the end, so that a probe sees the server stop.
    endpoints: Endpoints,
    /// What the control socket has the main thread do.
    inbox: Inbox,
    changes: ChangeSender,
    shared: Arc<Shared>,
    /// The process that takes over.
    successor: Option<Successor>,
    /// The process that this one has taken over from, while it is there.
    predecessor: Option<PredecessorLink>,
    /// Gets the state of the server.
    manager: Manager,
    /// Asks for external addresses that are not configured.
    external: Option<external_address::Watch>,
    /// How long to wait for allocations and SIP transactions to end.
    drain: Duration,
    /// `turn:` URIs of this server.
    uris: Vec<String>,
}

impl Service<'_> {
    fn run(mut self) -> Result<ExitCode> {
        let mut rotate_at = Instant::now() + NONCE_KEY_LIFETIME;
        let observer = self.running.observer();
        let look = self
            .manager
            .interval()
            .map_or(WORKER_CHECK_INTERVAL, |often| {
                often.min(WORKER_CHECK_INTERVAL)
            });
        self.manager.ready(&self.serving());
        loop {
            self.manager.tick(&observer);
            match self
                .signals
                .wait(Some(look))
                .context("cannot wait for signals")?
            {
                Some(Signal::Interrupt | Signal::Terminate) => return self.stop(),
                Some(Signal::Hangup) => drop(self.reload()),
                _ => {}
            }
            self.apply_changes();
            if self.has_handed_over() || self.shared.stopping.load(Ordering::Relaxed) {
                return self.stop();
            }
            self.read_changed_deny_files();
            self.follow_databases();
            self.follow_external_addresses();
            if self.running.has_failed() {
                // Says which worker, and why: the process ends, and its supervisor starts a whole one.
                self.running.stop()?;
                bail!("a worker has stopped by itself; the log says why");
            }
            if let Err(error) = self.running.follow_epoch() {
                tracing::error!("the keys of the cluster stay as they are: {error:#}");
            }
            if Instant::now() >= rotate_at {
                rotate_at += NONCE_KEY_LIFETIME;
                if let Err(error) = self.running.rotate_nonce_key() {
                    tracing::error!("the nonce key was not replaced: {error:#}");
                }
            }
        }
    }

    /// What the server does, for `systemctl status`.
    fn serving(&self) -> String {
        let workers = config::plural(self.running.workers(), "worker");
        format!("Serving on {workers}")
    }

    /// Drains if that is wanted, and stops cleanly; a second signal meanwhile ends the process at once.
    fn stop(mut self) -> Result<ExitCode> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(predecessor) = &self.predecessor {
            predecessor.stop();
        }
        match self.successor {
            None => self.manager.stopping(),
            Some(_) => tracing::info!("drained: no client is left"),
        }
        let (running, drain) = (self.running, self.drain);
        let observer = running.observer();
        let drained_by = Instant::now() + drain;
        if drain.is_zero() {
            tracing::info!("stopping; a second signal stops at once");
        } else {
            let drain = config::write_seconds(drain.as_secs());
            tracing::info!(
                "draining for {drain} at most: no new allocations, no new SIP transactions; a second signal stops at once"
            );
        }
        let stopping = std::thread::spawn(move || {
            if !drain.is_zero() {
                match running.drain(drain) {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::warn!(
                            "drain time is over: some allocations or SIP transactions have not ended"
                        );
                    }
                    // A worker has failed: the end says why.
                    Err(error) => tracing::warn!("not drained: {error:#}"),
                }
            }
            running.stop()
        });
        while !stopping.is_finished() {
            if let Some(Signal::Interrupt | Signal::Terminate) =
                self.signals.wait(Some(STOP_LOOK)).unwrap_or(None)
            {
                tracing::warn!("stopped at once");
                return Ok(ExitCode::FAILURE);
            }
            self.manager.tick(&observer);
            if Instant::now() < drained_by {
                self.manager
                    .draining(|| changes::describe_remaining(&observer));
            }
            while let Some(asked) = self.inbox.next() {
                let (change, waiting) = asked.split();
                waiting.reply(changes::reply_while_stopping(&change));
            }
        }
        let stopped = stopping
            .join()
            .map_err(|_| anyhow!("the server failed while it stopped"))?;
        drop(self.endpoints);
        stopped.map(|()| ExitCode::SUCCESS)
    }

    /// Advertises external addresses that have changed.
    fn follow_external_addresses(&self) {
        let checks = self.external.iter().flat_map(|watch| watch.checks());
        let counters = &self.source.external_address;
        for check in checks {
            let outcome = check.and_then(|found| {
                let known = self.running.relays();
                let is_new = |external: &&ExternalIp| {
                    let pair = external.private.map(|private| (private, external.public));
                    pair.is_some_and(|pair| !known.contains(&pair))
                };
                let new: Vec<_> = found.iter().filter(is_new).collect();
                new.iter()
                    .try_for_each(|external| self.running.advertise(external))?;
                Ok(new.len())
            });
            let counter = match outcome {
                Ok(0) => &counters.same,
                Ok(_) => &counters.changed,
                Err(error) => {
                    tracing::warn!("external address not checked, the last one stays: {error}");
                    &counters.failed
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Applies the deny files if one has changed; files with mistakes change nothing.
    fn read_changed_deny_files(&mut self) {
        if !self.denied.have_changed() {
            return;
        }
        let outcome = self.denied.with_rules().and_then(|config| {
            self.running.reload_settings(&config)?;
            Ok(config.peers_deny.len())
        });
        match outcome {
            Ok(rules) => tracing::info!(rules, "deny files read again"),
            Err(error) => tracing::error!("deny files refused, the old rules stay: {error:#}"),
        }
    }
}
