//! The control thread: keeps the programs' next hops, interfaces and listeners up to date, and publishes the programs'
//! counters.
//!
//! It wakes up when something changes in the network, when a worker wants a new next hop, and once a second. Next hops
//! expire after half a minute. So the programs stop sending if the thread hangs.

use super::OffloadMode;
use super::attach::{InterfaceAttachment, binding_limit};
use super::cells::Cells;
use super::choice::{Obstacle, OffloadMethod};
use super::control::{ControlSettings, Watch};
use super::fallback::Fallback;
use super::hops::{Entries, Exit, Hops};
use super::machine::lower_devices;
use super::next_hops::{NextHopTable, Path};
use super::redirects::note_redirects;
use super::status::PublishedStatus;
use bpf::relay::{NextHop, NextHops, Relay};
use io::netlink::{NetworkChange, NetworkInterface};
use io::{Events, Poller};
use std::collections::HashMap;
use std::io as std_io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often everything is looked at, whether or not anything has happened.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Ticks between renewals of entries, which are good for several of these.
const RENEWAL_TICKS: u32 = 5;

/// Renewals that an unused next hop is kept for: about a minute.
const KEPT_RENEWALS: u32 = 12;

/// Ticks between checks of all routes: the kernel does not report every change of a path MTU.
const REROUTING_TICKS: u32 = 30;

/// Changes of routes that come in a burst are answered together, after this long.
const BURST_DELAY: Duration = Duration::from_millis(20);

/// The program's table of next hops. What cannot be written stays as it was, and ends by itself.
pub(super) struct Table(pub(super) NextHops);

impl Entries for Table {
    fn set(&mut self, index: u32, hop: &NextHop) {
        if let Err(error) = self.0.set(index, hop) {
            tracing::debug!(index, %error, "next hop not written");
        }
    }

    fn clear(&mut self, index: u32) {
        if let Err(error) = self.0.clear(index) {
            tracing::debug!(index, %error, "next hop not cleared");
        }
    }
}

pub(super) struct Thread {
    pub(super) settings: Arc<ControlSettings>,
    pub(super) poller: Poller,
    pub(super) relay: Relay,
    pub(super) entries: Table,
    pub(super) attachments: Vec<InterfaceAttachment>,
    pub(super) next_hops: Arc<NextHopTable>,
    pub(super) watch: Watch,
    pub(super) published: Arc<PublishedStatus>,
    pub(super) mode: OffloadMode,
    pub(super) hops: Hops,
    /// As bound, maybe to wildcards.
    pub(super) listeners: Vec<SocketAddr>,
    /// What Binding requests are answered for.
    pub(super) answering: Vec<SocketAddr>,
    pub(super) fallback: Fallback,
    pub(super) reroute: Reroute,
    /// It may have the kernel confirm neighbours.
    pub(super) may_ask: bool,
    /// There are IPsec policies.
    pub(super) encrypted: bool,
}

/// When to ask for all routes anew. Changes come in bursts, and on some hosts all the time.
#[derive(Debug, Default)]
pub(super) struct Reroute {
    due_ns: Option<u64>,
    rest_until_ns: u64,
}

impl Reroute {
    /// Queries for routes may use one part in this many of the time.
    const QUERY_TIME_DIVISOR: u64 = 16;

    fn want(&mut self) {
        let soon = io::clock::monotonic_ns() + BURST_DELAY.as_nanos() as u64;
        self.due_ns.get_or_insert(soon.max(self.rest_until_ns));
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due| due <= now_ns)
    }

    fn done(&mut self, begun_ns: u64) {
        let now = io::clock::monotonic_ns();
        self.due_ns = None;
        self.rest_until_ns = now + now.saturating_sub(begun_ns) * Self::QUERY_TIME_DIVISOR;
    }
}

/// What has changed since the last look.
#[derive(Debug, Default)]
struct PendingChanges {
    interfaces: bool,
    routes: bool,
    all: bool,
    stale: Vec<(u32, IpAddr)>,
}

impl Thread {
    /// Works until it gets the command to stop.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(4);
        self.check_links();
        self.check_neighbours();
        self.answer_at_own_addresses();
        self.update_cells();
        let mut next_tick = io::clock::monotonic_ns();
        let mut ticks = 0_u32;
        while !self.settings.stops() {
            let now = io::clock::monotonic_ns();
            if now >= next_tick {
                next_tick = now + TICK_INTERVAL.as_nanos() as u64;
                self.tick(ticks.is_multiple_of(RENEWAL_TICKS));
                if ticks.is_multiple_of(REROUTING_TICKS) {
                    self.reroute.want();
                }
                ticks = ticks.wrapping_add(1);
            }
            if self.reroute.is_due(now) {
                self.reroute();
            }
            let wake_at = self.reroute.due_ns.unwrap_or(next_tick).min(next_tick);
            let poll_timeout = Duration::from_nanos(wake_at.saturating_sub(now));
            if let Err(error) = self.poller.wait(&mut events, Some(poll_timeout)) {
                tracing::error!(%error, "the control thread of the in-kernel relay cannot wait for events");
                return;
            }
            self.settings.waker.acknowledge();
            self.apply_settings();
            let changes = self.read_changes();
            self.take_in(changes);
            self.resolve_new();
        }
    }

    /// Does the periodic work.
    fn tick(&mut self, renewal: bool) {
        self.watch_xdp();
        self.fallback.notify_workers();
        if renewal {
            let mut unused = Vec::new();
            self.next_hops.withdraw_unused(KEPT_RENEWALS, &mut unused);
            for index in &unused {
                self.hops.forget(*index, &mut self.entries);
            }
            self.next_hops.free(unused);
            // With some drivers, what can be redirected to depends on what is attached to others.
            self.check_links();
            let stale = self
                .hops
                .renew(io::clock::monotonic_ns(), &mut self.entries);
            self.confirm_neighbours(&stale);
        }
        self.publish();
    }

    fn apply_settings(&mut self) {
        self.upgrade();
        if let Some(binding) = self.settings.take_binding()
            && let Err(error) = self.relay.set_binding(binding.and_then(binding_limit))
        {
            tracing::error!(%error, "cannot change how the kernel answers Binding requests");
        }
    }

    fn read_changes(&mut self) -> PendingChanges {
        let mut changes = PendingChanges::default();
        let now = io::clock::monotonic_ns();
        let (hops, entries) = (&mut self.hops, &mut self.entries);
        let outcome = self.watch.changes.read(|change| match change {
            NetworkChange::Interface => changes.interfaces = true,
            NetworkChange::Route => changes.routes = true,
            NetworkChange::Neighbour(seen) => {
                if hops.neighbour(&seen, now, entries) {
                    changes.stale.push((seen.index, seen.address));
                }
            }
            _ => changes.all = true,
        });
        if let Err(error) = outcome {
            tracing::debug!(%error, "changes of the network not read");
            changes.all = true;
        }
        changes
    }

    fn take_in(&mut self, changes: PendingChanges) {
        if changes.interfaces || changes.all {
            self.check_links();
        }
        if changes.all {
            self.check_neighbours();
        }
        if changes.routes || changes.interfaces || changes.all {
            self.reroute.want();
        }
        self.confirm_neighbours(&changes.stale);
    }

    /// Asks for every route anew.
    fn reroute(&mut self) {
        let begun = io::clock::monotonic_ns();
        self.answer_at_own_addresses();
        let changed = self.update_cells();
        for (index, path) in self.hops.paths() {
            self.route(index, path);
        }
        if changed {
            self.next_hops.notify_workers();
        }
        self.reroute.done(begun);
    }

    fn resolve_new(&mut self) {
        let mut new = Vec::new();
        self.next_hops.take_new(&mut new);
        for (index, path) in new {
            self.route(index, path);
        }
    }

    /// Finds out which destinations are routed alike. Returns whether that has changed.
    fn update_cells(&mut self) -> bool {
        let prefixes = self.watch.netlink.route_prefixes(Cells::MAX_PREFIXES);
        // Without a result, each destination has a next hop of its own.
        let cells = Arc::new(Cells::new(&prefixes.unwrap_or_default()));
        let changed = self.hops.set_cells(&cells);
        if changed {
            self.next_hops.set_cells(cells);
        }
        changed
    }

    fn route(&mut self, index: u32, path: Path) {
        let netlink = &mut self.watch.netlink;
        let route = if !self.hops.has_route_of_its_cell(&path) {
            self.next_hops.lost_destination(index);
            Err(std_io::ErrorKind::NotFound.into())
        } else if path.cell.is_shared() {
            netlink.table_route(path.local, path.to)
        } else {
            netlink.route(path.local, path.to)
        };
        let now = io::clock::monotonic_ns();
        let ask = self
            .hops
            .route(index, path, route.ok(), now, &mut self.entries);
        self.confirm_neighbours(ask.as_slice());
    }

    /// Has the kernel find or confirm these neighbours.
    fn confirm_neighbours(&mut self, neighbours: &[(u32, IpAddr)]) {
        for (index, address) in neighbours.iter().filter(|_| self.may_ask) {
            if let Err(error) = self.watch.netlink.use_neighbour(*index, *address)
                && error.kind() == std_io::ErrorKind::PermissionDenied
            {
                tracing::warn!(
                    "neighbours are not confirmed ahead of time: CAP_NET_ADMIN is missing"
                );
                self.may_ask = false;
                return;
            }
        }
    }

    /// Reads the interfaces again: forgets removed ones, and updates which interfaces packets may leave by.
    pub(super) fn check_links(&mut self) {
        let Ok(interfaces) = self.watch.netlink.interfaces() else {
            return;
        };
        self.check_ipsec();
        self.drop_removed_interfaces(&interfaces);
        let over_xdp: Vec<u32> = self
            .at(OffloadMethod::Xdp)
            .map(|attachment| attachment.about.index)
            .collect();
        let loopback = self.at(OffloadMethod::Tc).any(|attachment| {
            let of_place =
                |interface: &&NetworkInterface| interface.index == attachment.about.index;
            interfaces
                .iter()
                .find(of_place)
                .is_some_and(|interface| interface.loopback)
        });
        let drivers = &mut self.watch.drivers;
        let may_leave = |interface: &&NetworkInterface| interface.up && !self.encrypted;
        let exits: HashMap<u32, Exit> = interfaces
            .iter()
            .filter(may_leave)
            .map(|interface| {
                // A program sends back by the interface that it runs on in any case; elsewhere the driver has to agree.
                let mut agrees = || {
                    let features = drivers.as_mut().and_then(|of| of.xdp(interface.index).ok());
                    features.is_some_and(|features| features.target)
                };
                let exit = Exit {
                    mac: interface.mac.unwrap_or_default(),
                    mtu: interface.mtu,
                    loopback: interface.loopback,
                    xdp: !over_xdp.is_empty() && interface.ethernet && agrees(),
                    xdp_tx: over_xdp.contains(&interface.index),
                    tc: interface.ethernet || interface.loopback && loopback,
                };
                (interface.index, exit)
            })
            .collect();
        self.hops.set_exits(exits);
        note_redirects(&mut self.attachments, &mut self.watch.drivers);
        self.set_link_addresses(&interfaces);
        self.hops
            .write_all(io::clock::monotonic_ns(), &mut self.entries);
    }

    /// Frames to another address than the interface's are not for it, also where they arrive on a device below it.
    fn set_link_addresses(&mut self, interfaces: &[NetworkInterface]) {
        let over_xdp =
            |attachment: &&mut InterfaceAttachment| attachment.about.method == OffloadMethod::Xdp;
        for attachment in self.attachments.iter_mut().filter(over_xdp) {
            let index = attachment.about.index;
            let Some(interface) = interfaces.iter().find(|interface| interface.index == index)
            else {
                continue;
            };
            let mac = interface.mac.unwrap_or_default();
            let lower: Vec<NetworkInterface> = lower_devices(index, interfaces).cloned().collect();
            let set = self.relay.set_interface(index, index, mac);
            if let Err(error) =
                set.and_then(|()| attachment.set_lower(interface, &lower, &mut self.relay))
            {
                tracing::warn!(interface = interface.name, %error, "XDP leaves packets of this interface to user space");
            }
        }
    }

    /// With IPsec policies, packets may require encryption, which the programs do not do. Then user space relays all.
    fn check_ipsec(&mut self) {
        let ipsec = self.watch.ipsec.as_mut();
        let encrypted = ipsec.is_some_and(|ipsec| ipsec.has_policies().unwrap_or(false));
        if encrypted && !self.encrypted {
            tracing::warn!(
                "this host has IPsec policies, which the programs would bypass: user space relays"
            );
        }
        self.encrypted = encrypted;
    }

    /// A deleted interface has nothing to detach.
    fn drop_removed_interfaces(&mut self, interfaces: &[NetworkInterface]) {
        for attachment in &mut self.attachments {
            let index = attachment.about.index;
            if attachment.attached.is_some()
                && interfaces.iter().all(|interface| interface.index != index)
            {
                let gone = Obstacle::Refused("the interface is gone".to_owned());
                attachment.end(&mut self.relay, &gone);
            }
        }
    }

    fn check_neighbours(&mut self) {
        if let Ok(all) = self.watch.netlink.neighbours() {
            let now = io::clock::monotonic_ns();
            let stale = self.hops.all_neighbours(&all, now, &mut self.entries);
            self.confirm_neighbours(&stale);
        }
    }

    /// Binding requests are answered where a listener would get them: at each address of this host, for a wildcard.
    fn answer_at_own_addresses(&mut self) {
        let host = crate::addresses::host_addresses();
        let mut wanted: Vec<SocketAddr> = Vec::new();
        for listener in &self.listeners {
            if listener.ip().is_unspecified() {
                let same = host.iter().filter(|ip| ip.is_ipv4() == listener.is_ipv4());
                wanted.extend(same.map(|ip| SocketAddr::new(*ip, listener.port())));
            } else {
                wanted.push(*listener);
            }
        }
        let gone = self.answering.iter().filter(|one| !wanted.contains(one));
        for address in gone {
            let _ = self.relay.set_listener(*address, false);
        }
        for address in wanted.iter().filter(|one| !self.answering.contains(one)) {
            if let Err(error) = self.relay.set_listener(*address, true) {
                tracing::debug!(%address, %error, "user space answers Binding requests here");
            }
        }
        self.answering = wanted;
    }

    pub(super) fn at(&self, method: OffloadMethod) -> impl Iterator<Item = &InterfaceAttachment> {
        self.attachments
            .iter()
            .filter(move |attachment| attachment.about.method == method)
    }

    fn publish(&self) {
        // If the counters cannot be read, those of before stay, with their time.
        let totals = self.relay.totals().ok().map(|it| (it, Instant::now()));
        let attachments = self
            .attachments
            .iter()
            .map(|attachment| attachment.about.clone());
        let (next_hops, usable) = (self.next_hops.len(), self.hops.usable());
        self.published.change(|status| {
            status.interfaces = attachments.collect();
            if let Some((totals, at)) = totals {
                (status.totals, status.totals_at) = (totals, Some(at));
            }
            (status.next_hops, status.next_hops_usable) = (next_hops, usable);
        });
    }
}

impl Drop for Thread {
    /// The thread ends, perhaps by an error or a panic: detaches the programs, because nothing keeps them current, and
    /// reports it.
    fn drop(&mut self) {
        if self.settings.stops() {
            return;
        }
        for attachment in &mut self.attachments {
            attachment.end(&mut self.relay, &Obstacle::ControlThreadEnded);
        }
        self.publish();
        tracing::error!(
            "the control thread of the in-kernel relay has ended: its programs are detached, and user space relays; \
             restart the server to offload again"
        );
    }
}
