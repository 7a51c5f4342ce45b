//! A server that runs: look at it, change it, end it.

mod handover;
mod sip_handover;

use crate::addresses::RelayAddress;
use crate::alternates::Checks;
use crate::builder::PreparedServer;
use crate::certificates::CertificateWatch;
use crate::error::{ReloadError, StartError, WorkerFailure};
use crate::host_watch::HostWatch;
use crate::live::Changes;
use crate::mailbox::Mailbox;
use crate::observer::Observer;
use crate::offload::{Control, OnFallback};
use crate::pinning::Pinning;
use crate::sessions::Sessions;
use crate::settings::Settings;
use crate::stats::{Stats, WorkerStats};
use crate::steering::{SteeringInUse, Tables};
use crate::worker::{WorkerMessage, now};
use handover::Upgrade;
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a worker may take to answer a question before it is left out of a snapshot.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait before trying a full mailbox again, or looking at a drain.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Has every worker receive datagrams one by one. A worker whose mailbox is full gets it at the next call.
pub(crate) fn separate_all(boxes: Arc<[Mailbox<WorkerMessage>]>) -> OnFallback {
    let mut pending = Vec::new();
    Box::new(move || {
        if pending.is_empty() {
            pending = (0..boxes.len()).collect();
        }
        pending.retain(|worker: &usize| boxes[*worker].post(WorkerMessage::Separate).is_err());
        pending.is_empty()
    })
}

type Ended = std::io::Result<WorkerStats>;

/// A running server. Dropping it shuts it down and waits for its threads.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<Ended>>,
    boxes: Arc<[Mailbox<WorkerMessage>]>,
    observer: Observer,
    changes: Arc<Changes>,
    /// Holds the handle that counts entries.
    tables: Tables,
    /// Ends, and detaches the programs, after the workers.
    control: Option<Control>,
    /// Ends before the workers.
    host_watch: Option<HostWatch>,
    /// Ends before the workers.
    checks: Option<Checks>,
    _certificate_watches: Vec<CertificateWatch>,
    upgrade: Upgrade,
}

impl Running {
    /// Starts the threads of the workers and of the control thread, with the pinning of the settings.
    pub(crate) fn spawn(made: PreparedServer, pinning: Pinning) -> Result<Running, StartError> {
        let PreparedServer {
            workers,
            boxes,
            observer,
            changes,
            mut tables,
            open,
            shared_ports,
            sip,
            first_port,
            offload,
            kept,
            certificates,
        } = made;
        let control = offload
            .map(|offload| {
                let on_fallback = separate_all(Arc::clone(&boxes));
                offload.start(observer.listeners(), kept, on_fallback)
            })
            .transpose()
            .map_err(StartError::Thread)?;
        let cores = pinning.processors(observer.listeners());
        let mut running = Running {
            threads: Vec::new(),
            boxes,
            observer,
            host_watch: Some(HostWatch::start(Arc::clone(&changes), kept)?),
            checks: Some(Checks::start(Arc::clone(&changes), kept)?),
            _certificate_watches: certificates
                .into_iter()
                .map(CertificateWatch::start)
                .collect::<Result<_, _>>()?,
            changes,
            upgrade: Upgrade {
                numbering: tables.numbering,
                groups: Arc::new(Mutex::new(tables.groups.take())),
                open,
                shared_ports,
                sip: sip.map(Mutex::new),
                kept,
                first_port,
            },
            tables,
            control,
        };
        let takes_over = running.tables.foreign.is_some();
        for (number, worker) in workers.into_iter().enumerate() {
            let core = cores.get(number % cores.len().max(1)).copied();
            let observer = running.observer.clone();
            let body = move || {
                kept.restrict_worker_thread();
                let _running = observer.counters_of(number).begin(now().mono);
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
        running.start_sip_link().map_err(StartError::Thread)?;
        if takes_over {
            running.take_over_new_clients()?;
        }
        Ok(running)
    }

    /// The listener addresses in the order of the settings. Port 0 is replaced by the port that the kernel chose.
    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        self.observer.listeners()
    }

    /// The addresses listened on for TCP connections, likewise.
    #[must_use]
    pub fn tcp_listeners(&self) -> &[SocketAddr] {
        self.observer.tcp_listeners()
    }

    /// The addresses listened on for TLS connections, likewise.
    #[must_use]
    pub fn tls_listeners(&self) -> &[SocketAddr] {
        self.observer.tls_listeners()
    }

    /// The UDP addresses listened on for DTLS, likewise.
    #[must_use]
    pub fn dtls_listeners(&self) -> &[SocketAddr] {
        self.observer.dtls_listeners()
    }

    /// The addresses that SIP is served on, over UDP and TCP, likewise.
    #[must_use]
    pub fn sip_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_listeners()
    }

    /// The addresses that SIP is served on, over TLS, likewise.
    #[must_use]
    pub fn sip_tls_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_tls_listeners()
    }

    /// The addresses that SIP is served on, over WebSocket, likewise.
    #[must_use]
    pub fn sip_ws_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_ws_listeners()
    }

    /// The addresses that SIP is served on, over WebSocket and TLS, likewise.
    #[must_use]
    pub fn sip_wss_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_wss_listeners()
    }

    /// Queries the state of SIP; `None` if the server has no SIP.
    #[must_use]
    pub fn sip_inspector(&self) -> Option<crate::sip::SipInspector> {
        let boxes = Arc::clone(&self.boxes);
        let inspector = || crate::sip::SipInspector::new(boxes, self.observer.clone());
        self.observer.serves_sip().then(inspector)
    }

    /// The addresses relayed from, and those that clients get.
    #[must_use]
    pub fn relay_addresses(&self) -> Vec<RelayAddress> {
        self.changes.live().relays.iter().collect()
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

    /// How many clients have an entry in the kernel's table of steered flows. These clients have their allocation on
    /// another worker than the hash selects. Walks the table, a system call per entry.
    #[must_use]
    pub fn steered_flows(&self) -> usize {
        self.tables.flows.first().map_or(0, |flows| flows.count())
    }

    /// How many relayed addresses are held by clients now.
    #[must_use]
    pub fn relayed_addresses_held(&self) -> u32 {
        self.changes.live().quotas.held()
    }

    /// The number of a worker that has ended by a failure; call it from time to time.
    #[must_use]
    pub fn failed_worker(&self) -> Option<usize> {
        self.threads.iter().position(JoinHandle::is_finished)
    }

    /// The counts of all workers at this moment: each is asked to bring what it shows up to date. Of a worker that does
    /// not do so within a second, the counts are those that it showed last. [`Observer::stats`] asks no worker.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (reply, answers) = mpsc::channel();
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let asked = (0..self.boxes.len()).filter(|&worker| {
            self.post_until(worker, WorkerMessage::Publish(reply.clone()), deadline)
        });
        let asked = asked.count();
        for _ in 0..asked {
            let left = deadline.saturating_duration_since(Instant::now());
            if answers.recv_timeout(left).is_err() {
                break;
            }
        }
        self.observer.stats()
    }

    /// Lists and ends sessions. The methods of the result block: do not call them on a worker's thread.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::new(Arc::clone(&self.boxes))
    }

    /// What other threads can look at, also when the server has ended: counts, health, features in use.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Replaces all live settings, for all workers or for none. Allocations stay; their peers are judged anew, and
    /// their credentials when they refresh. A worker applies the settings before it reads its next datagram.
    ///
    /// # Errors
    /// If the settings are wrong, the realm differs or a worker has ended; then nothing has changed.
    pub fn reload(&self, settings: Settings) -> Result<(), ReloadError> {
        self.all_run()?;
        self.changes.replace_settings(settings)?;
        self.observer.follow(&self.changes.live());
        if let Some(control) = &self.control {
            control.set_binding(self.changes.live().answered_by_kernel());
        }
        Ok(())
    }

    /// Makes all workers forget the keys of this user, or of all users: their source is asked again before an Allocate
    /// request with them succeeds. Allocations stay; with [`Settings::strict_expiry`] they can be refreshed only if the
    /// source still has the user.
    ///
    /// # Errors
    /// Names a worker that did not get the command within a second: call again.
    pub fn forget_users(&self, user: Option<&str>) -> Result<(), ReloadError> {
        self.all_run()?;
        let user = user.map(|user| prepared(user).into());
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        for worker in 0..self.boxes.len() {
            let message = WorkerMessage::ForgetUsers(user.clone());
            if !self.post_until(worker, message, deadline) {
                self.all_run()?;
                return Err(ReloadError::WorkerBusy(worker));
            }
        }
        Ok(())
    }

    /// Keeps clients from relaying to this address, regardless of the rules, as
    /// [`Builder::protect`](crate::Builder::protect) does: for a listener that the embedding program opens later.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn protect(&self, listener: SocketAddr) -> Result<(), ReloadError> {
        self.all_run()?;
        self.changes.protect(listener)
    }

    /// Tells clients and peers another address for this relay address from now on, as
    /// [`Builder::external_address`](crate::Builder::external_address) does at the start. Existing allocations keep the
    /// address that their clients got.
    ///
    /// # Errors
    /// If `local` is no relay address, or if a worker has ended. If `advertised` is of another family, belongs to
    /// another relay address, or is no unicast address. Then nothing has changed.
    pub fn set_external_address(
        &self,
        local: IpAddr,
        advertised: IpAddr,
    ) -> Result<(), ReloadError> {
        self.all_run()?;
        // Peers at the new address are this server's relays: the rules for peers are made anew.
        self.changes
            .make(|live| live.relays.advertise(local, advertised))
    }

    /// Issues nonces under a fresh key from now on; nonces under the key so far stay valid until the next rotation.
    ///
    /// # Errors
    /// If the kernel has no randomness, or a worker has ended.
    pub fn rotate_nonce_key(&self) -> Result<(), ReloadError> {
        self.all_run()?;
        self.changes
            .make(|live| live.rotate_nonce_key().map(|()| true))
    }

    /// In a cluster, issues nonces, tickets and SIP tokens with the keys that all nodes have at this time. Call it once
    /// per second. An epoch lasts a day or a year, and the keys of the epochs before and after it are valid as well.
    /// Without a cluster, this does nothing.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn follow_epoch(&self, now: SystemTime) -> Result<(), ReloadError> {
        let since = now.duration_since(UNIX_EPOCH);
        let unix_s = since.map_or(0, |since| since.as_secs());
        if !self.changes.live().is_epoch_over(unix_s) {
            return Ok(());
        }
        self.all_run()?;
        self.changes.make(|live| {
            live.follow_epoch(unix_s);
            Ok(true)
        })
    }

    /// Admits no new work and waits until what exists has ended, or until `limit` is over. New allocations get 508; SIP
    /// requests that belong to no transaction and no dialog get 503. SIP connections that have no transaction are
    /// closed, WebSockets with 1001. Returns whether no allocation, no SIP transaction and no SIP connection is left.
    /// The server goes on serving those that are.
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn drain(&self, limit: Duration) -> Result<bool, ReloadError> {
        let deadline = Instant::now() + limit;
        self.observer.set_draining(true);
        self.changes.set_draining(true)?;
        loop {
            self.all_run()?;
            let stats = self.stats();
            let sip = stats.sip();
            if stats.allocations() == 0 && sip.transactions == 0 && sip.connections == 0 {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(RETRY_INTERVAL * 10);
        }
    }

    /// Admits new work again after a [`drain`](Self::drain).
    ///
    /// # Errors
    /// If a worker has ended.
    pub fn end_drain(&self) -> Result<(), ReloadError> {
        self.all_run()?;
        self.changes.set_draining(false)?;
        self.observer.set_draining(false);
        Ok(())
    }

    /// Ends every allocation, with its log line, closes every socket and waits for the threads. Returns the final
    /// counts.
    ///
    /// # Errors
    /// If a worker had ended before.
    pub fn shutdown(mut self) -> Result<Stats, WorkerFailure> {
        self.request_shutdown();
        self.join_all()
    }

    /// Waits until the workers end, which they do only if they fail.
    ///
    /// # Errors
    /// Says which worker failed, and why.
    pub fn join(mut self) -> Result<Stats, WorkerFailure> {
        while self.failed_worker().is_none() {
            std::thread::sleep(RESPONSE_TIMEOUT);
        }
        self.request_shutdown();
        self.join_all()
    }

    fn all_run(&self) -> Result<(), ReloadError> {
        self.failed_worker()
            .map_or(Ok(()), |worker| Err(ReloadError::WorkerGone(worker)))
    }

    /// Posts a message to a worker. While its mailbox is full, retries until `deadline`. Returns `false` if the worker
    /// has ended, or if the mailbox is still full at `deadline`.
    fn post_until(&self, worker: usize, message: WorkerMessage, deadline: Instant) -> bool {
        let mut message = message;
        loop {
            if self.threads.get(worker).is_none_or(JoinHandle::is_finished) {
                return false;
            }
            match self.boxes[worker].post(message) {
                Ok(()) => return true,
                Err(back) if Instant::now() < deadline => message = back,
                Err(_) => return false,
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    fn request_shutdown(&mut self) {
        self.observer.set_draining(true);
        // From now on, changes have no effect.
        drop(self.host_watch.take());
        drop(self.checks.take());
        for worker in 0..self.threads.len() {
            // A worker empties its mailbox at every wake-up: a minute is forever.
            self.post_until(
                worker,
                WorkerMessage::Shutdown,
                Instant::now() + 60 * RESPONSE_TIMEOUT,
            );
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
                Err(panic) => {
                    let message = panic_message(&*panic);
                    failure = failure.or(Some(WorkerFailure::Panicked { worker, message }));
                }
            }
        }
        failure.map_or(Ok(stats), Err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.request_shutdown();
        if let Err(failure) = self.join_all() {
            tracing::error!(%failure, "error during shutdown");
        }
    }
}

/// A user name as USERNAME carries it. A name that no user can have stays as it is, and matches no user.
fn prepared(user: &str) -> std::borrow::Cow<'_, str> {
    stun::opaque_string(user).unwrap_or(user.into())
}

/// What a panic says: `panic!` gives a text, `panic_any` may give anything.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::Poller;

    #[test]
    fn a_worker_with_a_full_mailbox_is_notified_of_a_fallback_later_and_once() {
        let poller = Poller::new().expect("epoll");
        let mailbox = || Mailbox::new(1, &poller, 0).expect("eventfd");
        let boxes: Arc<[_]> = [mailbox(), mailbox()].into();
        let full = boxes[0].post(WorkerMessage::Shutdown);
        full.expect("there is room");
        let mut notify = separate_all(Arc::clone(&boxes));
        assert!(!notify(), "the first one does not know");
        let separate = |message| matches!(message, Some(WorkerMessage::Separate));
        assert!(separate(boxes[1].take()));
        assert!(!separate(boxes[0].take()), "what was there before");
        assert!(notify(), "all know");
        assert!(separate(boxes[0].take()) && boxes[1].take().is_none());
    }
}
