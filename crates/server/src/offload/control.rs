//! The control thread's beginning and end: what it is made of before any worker runs, and the handle that ends it.

use super::attach::{Attachments, InterfaceAttachment, OffloadConfig};
use super::choice::OffloadMethod;
use super::fallback::{Fallback, OnFallback};
use super::hops::Hops;
use super::machine::on;
use super::next_hops::NextHopTable;
use super::part::WorkerTables;
use super::redirects::note_redirects;
use super::status::PublishedStatus;
use super::thread::{Reroute, Table, Thread};
use super::upgrade::UpgradeStep;
use super::{KernelBinding, OffloadMode};
use crate::error::StartError;
use crate::handover::XdpPrograms;
use crate::privileges::{KeptCapabilities, works_without_capabilities};
use crate::rates::RateTable;
use bpf::relay::Relay;
use io::netlink::{Drivers, Ipsec, Netlink, NetworkChanges};
use io::{Interest, Poller, Waker};
use std::io as std_io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const CHANGES: u64 = 0;
pub(super) const WAKER: u64 = 1;

/// How long the thread may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The handle of the control thread. Dropping it ends the thread and detaches the programs.
#[derive(Debug)]
pub(crate) struct Control {
    settings: Arc<ControlSettings>,
    thread: Option<JoinHandle<()>>,
}

/// The settings of the thread.
#[derive(Debug)]
pub(super) struct ControlSettings {
    pub(super) waker: Arc<Waker>,
    stop: AtomicBool,
    /// Which Binding requests to answer from now on.
    binding: Mutex<Option<Option<KernelBinding>>>,
    /// What an upgrade requires.
    upgrade: Mutex<Vec<UpgradeStep>>,
}

impl ControlSettings {
    /// Steps of an upgrade since the last call.
    pub(super) fn take_upgrade(&self) -> Vec<UpgradeStep> {
        std::mem::take(&mut *self.upgrade())
    }

    fn upgrade(&self) -> MutexGuard<'_, Vec<UpgradeStep>> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A new value since the last call.
    pub(super) fn take_binding(&self) -> Option<Option<KernelBinding>> {
        self.binding().take()
    }

    fn binding(&self) -> MutexGuard<'_, Option<Option<KernelBinding>>> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything the control thread needs, made before any worker runs. Attached already.
#[derive(Debug)]
pub(crate) struct Prepared {
    poller: Poller,
    waker: Arc<Waker>,
    pub(super) attachments: Attachments,
    pub(super) relay: Relay,
    pub(super) next_hops: Arc<NextHopTable>,
    /// The rate limits, which the programs charge.
    pub(crate) rates: Arc<RateTable>,
    watch: Watch,
    published: Arc<PublishedStatus>,
    pub(super) mode: OffloadMode,
}

/// Its connections to the kernel.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) netlink: Netlink,
    pub(super) changes: NetworkChanges,
    pub(super) drivers: Option<Drivers>,
    /// `None` where the kernel has no IPsec.
    pub(super) ipsec: Option<Ipsec>,
}

impl Prepared {
    /// Attaches, and gets everything ready. `None` if nothing is attached.
    ///
    /// # Errors
    /// If an interface cannot have what is insisted on, or the system refuses a descriptor.
    pub(crate) fn new(
        wanted: &OffloadConfig<'_>,
        published: &Arc<PublishedStatus>,
    ) -> Result<Option<Prepared>, StartError> {
        let mut attachments = wanted.attach()?;
        let mut drivers = Drivers::open().ok();
        note_redirects(&mut attachments.interfaces, &mut drivers);
        let all = attachments.interfaces.iter();
        let about: Vec<_> = all.map(|attachment| attachment.about.clone()).collect();
        for interface in &about {
            tracing::info!(
                interface = interface.name,
                method = interface.method.name(),
                reason = interface.reason().map(tracing::field::display),
                "data path of an interface"
            );
        }
        published.change(|status| status.interfaces = about);
        Prepared::watched(attachments, wanted, published).map_err(StartError::Worker)
    }

    fn watched(
        mut attachments: Attachments,
        wanted: &OffloadConfig<'_>,
        published: &Arc<PublishedStatus>,
    ) -> std_io::Result<Option<Prepared>> {
        let Some(relay) = attachments.relay.take() else {
            return Ok(None);
        };
        let poller = Poller::new()?;
        let waker = Arc::new(Waker::new(&poller, WAKER)?);
        // First of all, so that no change is missed between looking and listening.
        let changes = NetworkChanges::open()?;
        poller.add(&changes, CHANGES, Interest::Read)?;
        Ok(Some(Prepared {
            next_hops: Arc::new(NextHopTable::new(
                wanted.next_hops(),
                Some(Arc::clone(&waker)),
            )),
            rates: Arc::new(RateTable::new(
                wanted.rates,
                relay.buckets().map_err(std_io::Error::other)?,
            )),
            watch: Watch {
                netlink: Netlink::open()?,
                changes,
                drivers: Drivers::open().ok(),
                ipsec: Ipsec::open().ok(),
            },
            poller,
            waker,
            attachments,
            relay,
            published: Arc::clone(published),
            mode: wanted.offload.mode,
        }))
    }

    /// What each worker gets.
    pub(crate) fn parts(&self, workers: usize) -> Vec<WorkerTables> {
        let part = |_| WorkerTables {
            table: self.relay.table(),
            next_hops: Arc::clone(&self.next_hops),
        };
        (0..workers).map(part).collect()
    }

    /// The addresses whose datagrams a classifier may see, joined ones as one. On loopback none are joined, but to an
    /// address on `lo` or a dummy interface datagrams come from elsewhere.
    pub(crate) fn addresses_at_tc(&self) -> Vec<IpAddr> {
        let attachments = &self.attachments.interfaces;
        let at_tc =
            |attachment: &&InterfaceAttachment| attachment.about.method == OffloadMethod::Tc;
        let indirect = attachments
            .iter()
            .filter(at_tc)
            .any(|attachment| attachment.indirect);
        let all = io::interfaces::addresses().unwrap_or_default().into_iter();
        all.filter(|one| {
            let own = attachments
                .iter()
                .find(|attachment| !one.loopback && on(&one.name, &attachment.about.name));
            own.map_or(indirect && !one.ip.is_loopback(), |attachment| {
                at_tc(&attachment)
            })
        })
        .map(|one| one.ip)
        .collect()
    }

    /// Whether the control thread can write the programs' maps without any capability. Workers write theirs as memory.
    pub(crate) fn can_write_unprivileged(&mut self) -> bool {
        let relay = &mut self.relay;
        works_without_capabilities(move || relay.set_relaying(true).is_ok())
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread or a descriptor.
    pub(crate) fn start(
        self,
        listeners: &[SocketAddr],
        kept: KeptCapabilities,
        on_fallback: OnFallback,
    ) -> std_io::Result<Control> {
        let settings = Arc::new(ControlSettings {
            waker: self.waker,
            stop: AtomicBool::new(false),
            binding: Mutex::new(None),
            upgrade: Mutex::default(),
        });
        let entries = self.relay.next_hops().map_err(std_io::Error::other)?;
        let mut thread = Thread {
            settings: Arc::clone(&settings),
            poller: self.poller,
            entries: Table(entries),
            relay: self.relay,
            attachments: self.attachments.interfaces,
            next_hops: self.next_hops,
            watch: self.watch,
            published: self.published,
            mode: self.mode,
            hops: Hops::default(),
            listeners: listeners.to_vec(),
            answering: Vec::new(),
            fallback: Fallback::new(on_fallback),
            reroute: Reroute::default(),
            may_ask: true,
            encrypted: false,
        };
        let thread = std::thread::Builder::new()
            .name("hairpin-offload".to_owned())
            .spawn(move || {
                kept.restrict_control_thread();
                thread.run();
            })?;
        Ok(Control {
            settings,
            thread: Some(thread),
        })
    }
}

impl Control {
    /// Changes which Binding requests the kernel answers.
    pub(crate) fn set_binding(&self, binding: Option<KernelBinding>) {
        *self.settings.binding() = Some(binding);
        self.settings.waker.wake();
    }

    /// The XDP attachments, for a process that takes over; `None` if there are none, or the thread does not respond.
    pub(crate) fn xdp_programs(&self) -> Option<XdpPrograms> {
        let (reply, answer) = mpsc::channel();
        self.send_step(UpgradeStep::Offer(reply));
        answer.recv_timeout(RESPONSE_TIMEOUT).ok().flatten()
    }

    /// The process that took over has ended: attaches the XDP program again where the other one was in front of it.
    pub(crate) fn replace_xdp(&self) {
        self.send_step(UpgradeStep::Resume);
    }

    /// The process that this one took over from has ended: its XDP program goes.
    pub(crate) fn forget_other_xdp(&self) {
        self.send_step(UpgradeStep::ForgetOther);
    }

    fn send_step(&self, step: UpgradeStep) {
        self.settings.upgrade().push(step);
        self.settings.waker.wake();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.settings.stop.store(true, Ordering::Relaxed);
        self.settings.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread of the in-kernel relay has panicked");
        }
    }
}
