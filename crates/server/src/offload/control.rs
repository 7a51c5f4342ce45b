//! The control thread's beginning and end: what it is made of before any worker runs, and the handle that ends it.

use super::attach::{Attachments, Wanted};
use super::choice::Means;
use super::chunks::Chunks;
use super::hops::Hops;
use super::machine::on;
use super::next_hops::NextHopTable;
use super::part::Part;
use super::status::Shown;
use super::thread::{Reroute, Table, Thread};
use super::{KernelBinding, OffloadMode};
use crate::error::StartError;
use crate::privileges::{Kept, can_do_without};
use bpf::BpfError;
use bpf::relay::{Buckets, FlowEntry, FlowKey, Relay};
use io::netlink::{Drivers, Ipsec, Netlink, NetworkChanges};
use io::{Interest, Poller, Waker};
use std::collections::HashMap;
use std::io as std_io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub(super) const CHANGES: u64 = 0;
pub(super) const WAKER: u64 = 1;

/// The handle of the control thread. Dropping it ends the thread and detaches the programs.
#[derive(Debug)]
pub(crate) struct Control {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) waker: Arc<Waker>,
    stop: AtomicBool,
    /// Which Binding requests to answer from now on.
    binding: Mutex<Option<Option<KernelBinding>>>,
}

impl Orders {
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An order since the last call.
    pub(super) fn take_binding(&self) -> Option<Option<KernelBinding>> {
        self.binding().take()
    }

    fn binding(&self) -> MutexGuard<'_, Option<Option<KernelBinding>>> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread does when an interface goes from XDP to tc: sockets must not join datagrams any more.
pub(crate) type OnTc = Box<dyn Fn() + Send>;

/// Everything the control thread needs, made before any worker runs. Attached already.
#[derive(Debug)]
pub(crate) struct Prepared {
    poller: Poller,
    waker: Arc<Waker>,
    pub(super) attachments: Attachments,
    pub(super) relay: Relay,
    pub(super) next_hops: Arc<NextHopTable>,
    buckets: Buckets,
    channels: Arc<Chunks>,
    rates: Arc<Chunks>,
    watch: Watch,
    shown: Arc<Shown>,
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
        wanted: &Wanted<'_>,
        shown: &Arc<Shown>,
    ) -> Result<Option<Prepared>, StartError> {
        let attachments = wanted.attach()?;
        let places = attachments.places.iter();
        let about: Vec<_> = places.map(|place| place.about.clone()).collect();
        for interface in &about {
            tracing::info!(
                interface = interface.name,
                means = interface.means.name(),
                reason = interface.reason().map(tracing::field::display),
                "offload"
            );
        }
        shown.change(|status| status.interfaces = about);
        Prepared::watched(attachments, wanted, shown).map_err(StartError::Worker)
    }

    fn watched(
        mut attachments: Attachments,
        wanted: &Wanted<'_>,
        shown: &Arc<Shown>,
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
            buckets: relay.buckets().map_err(std_io::Error::other)?,
            channels: Arc::new(Chunks::new(wanted.channels())),
            rates: Arc::new(Chunks::new(wanted.allocations())),
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
            shown: Arc::clone(shown),
            mode: wanted.offload.mode,
        }))
    }

    /// What each worker gets.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn parts(&self, workers: usize) -> Result<Vec<Part>, StartError> {
        let part = |_| {
            Ok(Part {
                table: self.relay.table()?,
                buckets: self.buckets.clone(),
                next_hops: Arc::clone(&self.next_hops),
                channels: Arc::clone(&self.channels),
                rates: Arc::clone(&self.rates),
            })
        };
        let parts: Result<_, BpfError> = (0..workers).map(part).collect();
        parts.map_err(|error| StartError::Worker(std_io::Error::other(error)))
    }

    /// The addresses of the interfaces whose classifier would see joined datagrams as one. On loopback none are joined.
    pub(crate) fn addresses_at_tc(&self) -> Vec<IpAddr> {
        let places = self.attachments.places.iter();
        let at_tc: Vec<&str> = places
            .filter(|place| place.about.means == Means::Tc)
            .map(|place| place.about.name.as_str())
            .collect();
        let all = io::interfaces::addresses().unwrap_or_default().into_iter();
        let is_at_tc = |label: &str| at_tc.iter().any(|name| on(label, name));
        all.filter(|one| !one.loopback && is_at_tc(&one.name))
            .map(|one| one.ip)
            .collect()
    }

    /// Whether the workers' tables can be written without any capability. Nothing is relayed yet.
    pub(crate) fn can_write_unprivileged(&mut self) -> bool {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let key = FlowKey {
            remote: nowhere,
            local: nowhere,
            channel: None,
        };
        let entry = FlowEntry {
            source: nowhere,
            destination: nowhere,
            channel: None,
            own_relay: false,
            next_hop: NextHopTable::NONE,
            counter: 0,
            bucket: None,
            deadline_ns: 0,
        };
        let Ok(mut table) = self.relay.table() else {
            return false;
        };
        can_do_without(move || table.insert(&key, &entry).is_ok() && table.remove(&key))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread or a descriptor.
    pub(crate) fn start(
        self,
        listeners: &[SocketAddr],
        kept: Kept,
        on_tc: OnTc,
    ) -> std_io::Result<Control> {
        let orders = Arc::new(Orders {
            waker: self.waker,
            stop: AtomicBool::new(false),
            binding: Mutex::new(None),
        });
        let entries = self.relay.next_hops().map_err(std_io::Error::other)?;
        let mut thread = Thread {
            orders: Arc::clone(&orders),
            poller: self.poller,
            entries: Table(entries),
            relay: self.relay,
            places: self.attachments.places,
            next_hops: self.next_hops,
            watch: self.watch,
            shown: self.shown,
            mode: self.mode,
            on_tc,
            hops: Hops::default(),
            listeners: listeners.to_vec(),
            answering: Vec::new(),
            partial: HashMap::new(),
            relayed: 0,
            reroute: Reroute::default(),
            may_ask: true,
            encrypted: false,
        };
        let thread = std::thread::Builder::new()
            .name("hairpin-offload".to_owned())
            .spawn(move || {
                kept.by_control();
                thread.run();
            })?;
        Ok(Control {
            orders,
            thread: Some(thread),
        })
    }
}

impl Control {
    /// Changes which Binding requests the kernel answers.
    pub(crate) fn set_binding(&self, binding: Option<KernelBinding>) {
        *self.orders.binding() = Some(binding);
        self.orders.waker.wake();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Relaxed);
        self.orders.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread of the in-kernel relay has panicked");
        }
    }
}
