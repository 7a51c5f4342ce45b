//! What other threads can see of a server without work for its workers: counts, health, ports, features in use.

use crate::addresses::RelayAddresses;
use crate::alternates::AlternateSettings;
use crate::certificates::Certificates;
use crate::features::Features;
use crate::live::LiveSettings;
use crate::offload::{OffloadStatus, PublishedStatus};
use crate::ports::PortCounts;
use crate::published::PublishedCounters;
use crate::quota::Quotas;
use crate::stats::Stats;
use crate::worker::now;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stun::AddressFamily;

/// A view of a running server, for the thread that serves metrics and health checks. Clones share it. It keeps nothing
/// running: of a server that has ended it shows the last counts.
#[derive(Debug, Clone)]
pub struct Observer {
    view: Arc<View>,
}

#[derive(Debug)]
struct View {
    published_counters: Arc<[PublishedCounters]>,
    listeners: Listeners,
    relays: Arc<RelayAddresses>,
    quotas: Arc<Quotas>,
    features: Features,
    offload: Arc<PublishedStatus>,
    certificates: Option<Certificates>,
    alternates: Mutex<AlternateSettings>,
    sip_routes: Mutex<Arc<crate::sip::routes::Table>>,
    draining: AtomicBool,
}

/// Where clients reach the server.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(crate) udp: Vec<SocketAddr>,
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) tls: Vec<SocketAddr>,
    pub(crate) dtls: Vec<SocketAddr>,
    /// SIP, over UDP and TCP.
    pub(crate) sip: Vec<SocketAddr>,
    pub(crate) sip_tls: Vec<SocketAddr>,
    pub(crate) sip_ws: Vec<SocketAddr>,
    pub(crate) sip_wss: Vec<SocketAddr>,
}

impl Listeners {
    /// All of them, which are no peers.
    pub(crate) fn all(&self) -> Vec<SocketAddr> {
        let turn = [&self.udp[..], &self.tcp, &self.tls, &self.dtls];
        let sip = [&self.sip[..], &self.sip_tls, &self.sip_ws, &self.sip_wss];
        [turn.concat(), sip.concat()].concat()
    }

    /// Whether any of them serves SIP.
    pub(crate) fn has_sip(&self) -> bool {
        let sip = [&self.sip, &self.sip_tls, &self.sip_ws, &self.sip_wss];
        sip.iter().any(|list| !list.is_empty())
    }
}

/// A worker that does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFault {
    /// Its thread has ended.
    #[error("worker {worker} has ended")]
    Ended {
        /// Its number.
        worker: usize,
    },
    /// Its loop does not turn, which it does at least once a second.
    #[error("worker {worker} has not turned its loop for {} s", idle.as_secs())]
    Stuck {
        /// Its number.
        worker: usize,
        /// For how long.
        idle: Duration,
    },
}

impl Observer {
    pub(crate) fn new(
        published_counters: Arc<[PublishedCounters]>,
        listeners: Listeners,
        relays: Arc<RelayAddresses>,
        quotas: Arc<Quotas>,
        features: Features,
        offload: Arc<PublishedStatus>,
        certificates: Option<Certificates>,
    ) -> Observer {
        Observer {
            view: Arc::new(View {
                published_counters,
                listeners,
                relays,
                quotas,
                features,
                offload,
                certificates,
                alternates: Mutex::default(),
                sip_routes: Mutex::default(),
                draining: AtomicBool::new(false),
            }),
        }
    }

    /// The counts of all workers, as last published. A worker publishes every 5 ms while it is busy, and within 50 ms
    /// of any change. This costs the workers nothing, however often it is asked.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            workers: self
                .view
                .published_counters
                .iter()
                .map(PublishedCounters::read)
                .collect(),
        }
    }

    /// The first worker that has ended, or whose loop has not turned for `limit` (take several seconds).
    #[must_use]
    pub fn fault(&self, limit: Duration) -> Option<WorkerFault> {
        let now = now().mono;
        let published_counters = self.view.published_counters.iter().enumerate();
        published_counters
            .into_iter()
            .find_map(|(worker, counters)| {
                if counters.has_ended() {
                    return Some(WorkerFault::Ended { worker });
                }
                let idle = counters.since_turn(now).filter(|idle| *idle >= limit)?;
                Some(WorkerFault::Stuck { worker, idle })
            })
    }

    /// How long ago each worker's loop turned, which it does at least once a second; `None` before its thread began.
    #[must_use]
    pub fn idle(&self) -> Vec<Option<Duration>> {
        let now = now().mono;
        let published_counters = self.view.published_counters.iter();
        published_counters
            .map(|counters| counters.since_turn(now))
            .collect()
    }

    /// The number of each worker's thread, for `/proc/self/task`; `None` of one that does not run yet.
    #[must_use]
    pub fn threads(&self) -> Vec<Option<u32>> {
        self.view
            .published_counters
            .iter()
            .map(PublishedCounters::thread)
            .collect()
    }

    /// What the kernel does for relaying, by interface, and what its programs have counted: up to about a second old.
    /// Nothing if that was not asked for.
    #[must_use]
    pub fn offload(&self) -> OffloadStatus {
        self.view.offload.get()
    }

    /// The certificates of TLS listeners, if there are any.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.view.certificates.as_ref()
    }

    /// The other servers that clients may be sent to, and when, as the settings of this moment have them: what the
    /// checks have found, too.
    #[must_use]
    pub fn alternates(&self) -> AlternateSettings {
        self.alternates_of_now().clone()
    }

    /// Whether the server admits no new allocations because it drains or is about to end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.view.draining.load(Ordering::Relaxed)
    }

    /// The UDP addresses listened on, in the order they were asked for.
    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.udp
    }

    /// The addresses listened on for TCP connections.
    #[must_use]
    pub fn tcp_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.tcp
    }

    /// The addresses listened on for TLS connections.
    #[must_use]
    pub fn tls_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.tls
    }

    /// The UDP addresses listened on for DTLS.
    #[must_use]
    pub fn dtls_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.dtls
    }

    /// The addresses that SIP is served on, over UDP and TCP.
    #[must_use]
    pub fn sip_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.sip
    }

    /// The addresses that SIP is served on, over TLS.
    #[must_use]
    pub fn sip_tls_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.sip_tls
    }

    /// The addresses that SIP is served on, over WebSocket.
    #[must_use]
    pub fn sip_ws_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.sip_ws
    }

    /// The addresses that SIP is served on, over WebSocket and TLS.
    #[must_use]
    pub fn sip_wss_listeners(&self) -> &[SocketAddr] {
        &self.view.listeners.sip_wss
    }

    /// Whether SIP is served at all.
    #[must_use]
    pub fn serves_sip(&self) -> bool {
        self.view.listeners.has_sip()
    }

    /// The relay ports of all relay addresses of a family, added up; `None` if there is no such address.
    #[must_use]
    pub fn ports(&self, family: AddressFamily) -> Option<PortCounts> {
        let pools = self.view.relays.of_family(family);
        let counts = pools.map(|relay| self.view.relays.pool(relay).counts());
        counts.reduce(|mut sum, more| {
            sum += more;
            sum
        })
    }

    /// How many relayed addresses are held by clients now, and how many may be.
    #[must_use]
    pub fn relayed_addresses(&self) -> (u32, u32) {
        (self.view.quotas.held(), self.view.quotas.total_limit())
    }

    /// What the kernel does for this server.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.view.features
    }

    /// The SIP trunks of the current settings that have a name, and their current state.
    #[must_use]
    pub fn sip_trunks(&self) -> Vec<(String, crate::sip::routes::TrunkCounts)> {
        let now = now().mono;
        let routes = self.sip_routes();
        let trunks = routes.trunks();
        let all = trunks.map(|(trunk, health)| (trunk.name.clone(), health.counts(now)));
        all.filter(|(name, _)| !name.is_empty()).collect()
    }

    /// Final responses of each SIP trunk that has a name: method, code and count. Codes without a response are left
    /// out.
    #[must_use]
    pub fn sip_trunk_codes(&self) -> Vec<(String, crate::sip::routes::CodeCounts)> {
        let routes = self.sip_routes();
        let trunks = routes.trunks();
        let all = trunks.map(|(trunk, health)| (trunk.name.clone(), health.codes()));
        all.filter(|(name, _): &(String, _)| !name.is_empty())
            .collect()
    }

    /// The trunks of SIP at which this server registers, and whether they accept that now.
    #[must_use]
    pub fn sip_registrations(&self) -> Vec<(String, bool)> {
        let routes = self.sip_routes();
        let trunks = routes.trunks();
        let registered = trunks.filter(|(trunk, _)| trunk.register.is_some());
        let all = registered.map(|(trunk, health)| (trunk.name.clone(), health.is_registered()));
        all.filter(|(name, _)| !name.is_empty()).collect()
    }

    pub(crate) fn sip_routes(&self) -> Arc<crate::sip::routes::Table> {
        let routes = self.view.sip_routes.lock();
        // Nothing panics while it holds the lock.
        Arc::clone(&routes.unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings are these from now on.
    pub(crate) fn follow(&self, live: &LiveSettings) {
        *self.alternates_of_now() = live.settings.alternates.clone();
        let routes = self.view.sip_routes.lock();
        *routes.unwrap_or_else(PoisonError::into_inner) = live.sip_routes();
    }

    fn alternates_of_now(&self) -> MutexGuard<'_, AlternateSettings> {
        let alternates = &self.view.alternates;
        // Nothing panics while it holds the lock.
        alternates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server admits no new work, or does so again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.view.draining.store(draining, Ordering::Relaxed);
    }

    pub(crate) fn counters_of(&self, worker: usize) -> &PublishedCounters {
        &self.view.published_counters[worker]
    }
}
