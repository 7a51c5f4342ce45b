//! The control thread: keeps next hops, interfaces and listeners of the programs true, and counts at hand.
//!
//! It wakes up when something changes in the network, when a worker wants a new next hop, and once a second. Nothing that it writes
//! is good for long, so that whatever happens to it, the programs stop sending within half a minute.

use super::OffloadMode;
use super::attach::{Place, binding_limit};
use super::choice::{Means, Obstacle};
use super::control::{OnTc, Orders, Watch};
use super::hops::{Entries, Exit, Hops};
use super::next_hops::{NextHopTable, Path};
use super::status::Shown;
use bpf::relay::{NextHop, NextHops, Relay};
use io::netlink::{Link, NetworkChange};
use io::{Events, Poller};
use std::collections::HashMap;
use std::io as std_io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How often everything is looked at, whether or not anything has happened.
const TICK: Duration = Duration::from_secs(1);

/// Ticks between renewals of entries, which are good for several of these.
const RENEWAL: u32 = 5;

/// Renewals that an unused next hop is kept for: about a minute.
const KEPT: u32 = 12;

/// Ticks between looks at all routes: not every change of a path's MTU is told.
const REROUTING: u32 = 30;

/// Changes of routes that come in a burst are answered together, after so long.
const BURST: Duration = Duration::from_millis(20);

/// So many unfinished checksums in a second are worth a thought: one datagram in 65,536 looks like one by chance.
const MANY_PARTIAL: u64 = 100;

/// And more than one in so many of what the program has relayed is no chance.
const PARTIAL_ONE_IN: u64 = 100;

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
    pub(super) orders: Arc<Orders>,
    pub(super) poller: Poller,
    pub(super) relay: Relay,
    pub(super) entries: Table,
    pub(super) places: Vec<Place>,
    pub(super) next_hops: Arc<NextHopTable>,
    pub(super) watch: Watch,
    pub(super) shown: Arc<Shown>,
    pub(super) mode: OffloadMode,
    pub(super) on_tc: OnTc,
    pub(super) hops: Hops,
    /// As bound, maybe to wildcards.
    pub(super) listeners: Vec<SocketAddr>,
    /// What Binding requests are answered for.
    pub(super) answering: Vec<SocketAddr>,
    /// Unfinished checksums seen so far, by interface.
    pub(super) partial: HashMap<u32, u64>,
    /// What the XDP program had relayed a tick ago.
    pub(super) relayed: u64,
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
    /// Of the time, asking for routes may take one part in so many.
    const SHARE: u64 = 16;

    fn want(&mut self) {
        let soon = io::clock::monotonic_ns() + BURST.as_nanos() as u64;
        self.due_ns.get_or_insert(soon.max(self.rest_until_ns));
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due| due <= now_ns)
    }

    fn done(&mut self, begun_ns: u64) {
        let now = io::clock::monotonic_ns();
        self.due_ns = None;
        self.rest_until_ns = now + now.saturating_sub(begun_ns) * Self::SHARE;
    }
}

/// What has changed since the last look.
#[derive(Debug, Default)]
struct News {
    links: bool,
    routes: bool,
    all: bool,
    stale: Vec<(u32, IpAddr)>,
}

impl Thread {
    /// Works until it is told to stop.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(4);
        self.look_at_links();
        self.look_at_neighbours();
        self.answer_at_own_addresses();
        let mut next_tick = io::clock::monotonic_ns();
        let mut ticks = 0_u32;
        while !self.orders.stops() {
            let now = io::clock::monotonic_ns();
            if now >= next_tick {
                next_tick = now + TICK.as_nanos() as u64;
                self.tick(ticks.is_multiple_of(RENEWAL));
                if ticks.is_multiple_of(REROUTING) {
                    self.reroute.want();
                }
                ticks = ticks.wrapping_add(1);
            }
            if self.reroute.is_due(now) {
                self.reroute();
            }
            let wake_at = self.reroute.due_ns.unwrap_or(next_tick).min(next_tick);
            let patience = Duration::from_nanos(wake_at.saturating_sub(now));
            if let Err(error) = self.poller.wait(&mut events, Some(patience)) {
                tracing::error!(%error, "the control thread of the in-kernel relay stops: user space will relay");
                return;
            }
            self.orders.waker.acknowledge();
            self.obey();
            let news = self.read_changes();
            self.take_in(news);
            self.resolve_new();
        }
    }

    /// Does what has to be done now and then.
    fn tick(&mut self, renewal: bool) {
        self.watch_checksums();
        if renewal {
            let mut unused = Vec::new();
            self.next_hops.withdraw_unused(KEPT, &mut unused);
            for index in &unused {
                self.hops.forget(*index, &mut self.entries);
            }
            self.next_hops.free(unused);
            // With some drivers, what can be redirected to depends on what is attached to others.
            self.look_at_links();
            let stale = self
                .hops
                .renew(io::clock::monotonic_ns(), &mut self.entries);
            self.ask_about(&stale);
        }
        self.show();
    }

    fn obey(&mut self) {
        if let Some(binding) = self.orders.take_binding()
            && let Err(error) = self.relay.set_binding(binding.and_then(binding_limit))
        {
            tracing::error!(%error, "the kernel goes on answering Binding requests as before");
        }
    }

    fn read_changes(&mut self) -> News {
        let mut news = News::default();
        let now = io::clock::monotonic_ns();
        let (hops, entries) = (&mut self.hops, &mut self.entries);
        let outcome = self.watch.changes.read(|change| match change {
            NetworkChange::Link => news.links = true,
            NetworkChange::Route => news.routes = true,
            NetworkChange::Neighbour(seen) => {
                if hops.neighbour(&seen, now, entries) {
                    news.stale.push((seen.index, seen.address));
                }
            }
            _ => news.all = true,
        });
        if let Err(error) = outcome {
            tracing::debug!(%error, "changes of the network not read");
            news.all = true;
        }
        news
    }

    fn take_in(&mut self, news: News) {
        if news.links || news.all {
            self.look_at_links();
        }
        if news.all {
            self.look_at_neighbours();
        }
        if news.routes || news.links || news.all {
            self.reroute.want();
        }
        self.ask_about(&news.stale);
    }

    /// Asks for every route anew.
    fn reroute(&mut self) {
        let begun = io::clock::monotonic_ns();
        self.answer_at_own_addresses();
        for (index, path) in self.hops.paths() {
            self.route(index, path);
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

    fn route(&mut self, index: u32, path: Path) {
        let route = self.watch.netlink.route(path.local, path.to);
        let now = io::clock::monotonic_ns();
        let ask = self
            .hops
            .route(index, path, route.ok(), now, &mut self.entries);
        self.ask_about(ask.as_slice());
    }

    /// Has the kernel find or confirm these neighbours.
    fn ask_about(&mut self, places: &[(u32, IpAddr)]) {
        for (index, address) in places.iter().filter(|_| self.may_ask) {
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

    fn look_at_links(&mut self) {
        let Ok(links) = self.watch.netlink.links() else {
            return;
        };
        self.look_at_ipsec();
        self.leave_those_gone(&links);
        let over_xdp: Vec<u32> = self.at(Means::Xdp).map(|place| place.about.index).collect();
        let loopback = self.at(Means::Tc).any(|place| {
            let of_place = |link: &&Link| link.index == place.about.index;
            links
                .iter()
                .find(of_place)
                .is_some_and(|link| link.loopback)
        });
        let drivers = &mut self.watch.drivers;
        let may_leave = |link: &&Link| link.up && !self.encrypted;
        let exits = links.iter().filter(may_leave).map(|link| {
            // A program sends out of the interface that it runs on in any case; elsewhere the driver has to agree.
            let alone = over_xdp == [link.index];
            let mut agrees = || {
                let features = drivers.as_mut().and_then(|of| of.xdp(link.index).ok());
                features.is_some_and(|features| features.target)
            };
            let exit = Exit {
                mac: link.mac.unwrap_or_default(),
                mtu: link.mtu,
                loopback: link.loopback,
                xdp: !over_xdp.is_empty() && link.ethernet && (alone || agrees()),
                tc: link.ethernet || link.loopback && loopback,
            };
            (link.index, exit)
        });
        self.hops.set_exits(exits.collect());
        for link in links.iter().filter(|link| over_xdp.contains(&link.index)) {
            // Frames to another address than the interface's are not for it.
            let _ = self
                .relay
                .set_interface(link.index, link.mac.unwrap_or_default());
        }
        self.hops
            .write_all(io::clock::monotonic_ns(), &mut self.entries);
    }

    /// What has to be encrypted, or may have to, is none of the programs' business: then user space relays everything.
    fn look_at_ipsec(&mut self) {
        let ipsec = self.watch.ipsec.as_mut();
        let encrypted = ipsec.is_some_and(|ipsec| ipsec.has_policies().unwrap_or(false));
        if encrypted && !self.encrypted {
            tracing::warn!(
                "there are IPsec policies, which programs would bypass: user space relays"
            );
        }
        self.encrypted = encrypted;
    }

    /// Of an interface that is gone, nothing is left to detach.
    fn leave_those_gone(&mut self, links: &[Link]) {
        for place in &mut self.places {
            let index = place.about.index;
            if place.attached.is_some() && links.iter().all(|link| link.index != index) {
                let gone = Obstacle::Refused("the interface is gone".to_owned());
                place.detach(&mut self.relay);
                (place.about.not_xdp, place.about.not_tc) = (Some(gone.clone()), Some(gone));
            }
        }
    }

    fn look_at_neighbours(&mut self) {
        if let Ok(all) = self.watch.netlink.neighbours() {
            let now = io::clock::monotonic_ns();
            let stale = self.hops.all_neighbours(&all, now, &mut self.entries);
            self.ask_about(&stale);
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

    fn at(&self, means: Means) -> impl Iterator<Item = &Place> {
        self.places
            .iter()
            .filter(move |place| place.about.means == means)
    }

    /// Takes XDP from an interface where datagrams arrive with checksums that were left to the hardware, far more than by chance.
    fn watch_checksums(&mut self) {
        let totals = self.relay.totals().unwrap_or_default().xdp;
        let relayed = totals.to_peer + totals.to_client + totals.relay_to_relay + totals.binding;
        let passed = relayed - std::mem::replace(&mut self.relayed, relayed).min(relayed);
        let over_xdp: Vec<u32> = self.at(Means::Xdp).map(|place| place.about.index).collect();
        for index in over_xdp {
            let count = self.relay.partial_checksums(index);
            let before = self.partial.insert(index, count).unwrap_or(0);
            let partial = count.saturating_sub(before);
            if partial >= MANY_PARTIAL && partial > passed / PARTIAL_ONE_IN {
                self.step_down(index, partial);
            }
        }
    }

    fn step_down(&mut self, index: u32, partial: u64) {
        let Some(place) = self.places.iter_mut().find(|one| one.about.index == index) else {
            return;
        };
        let interface = place.about.name.clone();
        if self.mode == OffloadMode::Xdp {
            tracing::warn!(
                interface,
                partial,
                "datagrams with unfinished checksums, which XDP leaves to user space: tc would relay them"
            );
            return;
        }
        place.about.not_xdp = Some(Obstacle::PartialChecksums);
        place.attach_tc(&mut self.relay);
        tracing::warn!(
            interface,
            partial,
            means = place.about.means.name(),
            "datagrams arrive with unfinished checksums: XDP is given up here"
        );
        (self.on_tc)();
        self.look_at_links();
    }

    fn show(&self) {
        let totals = self.relay.totals().unwrap_or_default();
        let places = self.places.iter().map(|place| place.about.clone());
        let (next_hops, usable) = (self.next_hops.len(), self.hops.usable());
        self.shown.change(|status| {
            status.interfaces = places.collect();
            status.totals = totals;
            (status.next_hops, status.next_hops_usable) = (next_hops, usable);
        });
    }
}
