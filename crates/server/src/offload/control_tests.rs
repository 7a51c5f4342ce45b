//! The control thread against network namespaces: a gateway that nobody has talked to yet, a neighbour that goes, checksums that
//! are not finished. Needs root.

use super::attach::Wanted;
use super::choice::{Means, Obstacle};
use super::control::{Control, Prepared};
use super::next_hops::NextHopTable;
use super::part::Part;
use super::status::{OffloadStatus, Shown};
use super::{Offload, OffloadMode};
use crate::ports::PortRange;
use crate::privileges::Kept;
use bpf::relay::{FlowEntry, FlowKey};
use io::NetNs;
use io::netlink::{Netlink, VethEnd, interface_index};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(15);

/// Runs in a thread of its own, in a namespace whose `near` (192.0.2.1, 2001:db8::1) is wired to `far` (.2) in the other.
fn wired(test: impl FnOnce(NetNs) + Send + 'static) {
    let body = move || {
        let here = NetNs::unshare().unwrap_or_else(|error| panic!("this test needs root: {error}"));
        let mut netlink = Netlink::open().unwrap();
        let there = NetNs::unshare().unwrap();
        let end = |name, last, namespace| VethEnd {
            name,
            mac: [2, 0, 0, 0, 0, last],
            namespace,
        };
        netlink
            .create_veth(&end("near", 1, &here), &end("far", 2, &there))
            .unwrap();
        for (namespace, name, last) in [(&there, "far", 2), (&here, "near", 1)] {
            namespace.enter().unwrap();
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
            let mut netlink = Netlink::open().unwrap();
            let index = interface_index(name).unwrap();
            netlink.set_up(interface_index("lo").unwrap()).unwrap();
            netlink.set_up(index).unwrap();
            netlink
                .add_address(index, [192, 0, 2, last].into(), 24)
                .unwrap();
            let v6: IpAddr = format!("2001:db8::{last}").parse().unwrap();
            netlink.add_address(index, v6, 64).unwrap();
        }
        test(there);
    };
    std::thread::spawn(body).join().unwrap();
}

struct Running {
    _control: Control,
    next_hops: Arc<NextHopTable>,
    shown: Arc<Shown>,
    separated: Arc<AtomicBool>,
    part: Part,
}

/// Attaches under `mode`, and goes on under `then`.
fn start(mode: OffloadMode, then: OffloadMode) -> Running {
    let listeners = ["192.0.2.1:3478".parse().unwrap()];
    let wanted = Wanted {
        offload: Offload { mode, channels: 64 },
        binding: None,
        listeners: &listeners,
        relays: &[],
        ports: PortRange::DYNAMIC,
        allocations: 64,
    };
    let shown = Arc::new(Shown::default());
    let mut prepared = Prepared::new(&wanted, &shown).unwrap().unwrap();
    assert!(prepared.can_write_unprivileged(), "since Linux 5.19");
    prepared.mode = then;
    if then == OffloadMode::Auto {
        prepared.attachments.places[0].about.not_tc = None;
        prepared.relay.load_tc().unwrap();
    }
    let part = prepared.parts(1).unwrap().remove(0);
    let next_hops = Arc::clone(&prepared.next_hops);
    let separated = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&separated);
    let on_tc = Box::new(move || told.store(true, Ordering::Relaxed));
    let control = prepared
        .start(&listeners, Kept::needed(true), on_tc)
        .unwrap();
    Running {
        _control: control,
        next_hops,
        shown,
        separated,
        part,
    }
}

fn until(what: &str, shown: &Shown, mut good: impl FnMut(&OffloadStatus) -> bool) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if good(&shown.get()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("in vain: {what}: {:?}", shown.get());
}

#[test]
fn hops_are_found_behind_a_gateway_lost_with_it_and_found_again() {
    wired(|_there| {
        let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(forwards.trim(), "0", "a relay host does not forward");
        let running = start(OffloadMode::Tc, OffloadMode::Tc);
        let usable = |count| move |status: &OffloadStatus| status.next_hops_usable == count;
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let here = ip("192.0.2.1");
        let beyond = running.next_hops.acquire(here, ip("198.51.100.9"));
        let on_link = running.next_hops.acquire(here, ip("192.0.2.2"));
        let v6 = running
            .next_hops
            .acquire(ip("2001:db8::1"), ip("2001:db8::2"));
        until("what is on link", &running.shown, usable(2));
        // Nobody has sent anything: the control thread had the kernel ask. Now there is a way to the rest, too.
        let mut netlink = Netlink::open().unwrap();
        netlink.add_default_route(ip("192.0.2.2")).unwrap();
        until("the gateway", &running.shown, usable(3));

        let near = interface_index("near").unwrap();
        netlink.delete_neighbour(near, ip("192.0.2.2")).unwrap();
        until("the gateway is gone", &running.shown, usable(1));
        let other = running.next_hops.acquire(here, ip("198.51.100.10"));
        until("it is asked for again", &running.shown, usable(4));

        for index in [beyond, on_link, v6, other] {
            running.next_hops.release(index);
        }
        assert_eq!(running.next_hops.len(), 4, "kept for a while");
    });
}

#[test]
fn an_interface_that_goes_down_takes_its_hops_along() {
    wired(|there| {
        let running = start(OffloadMode::Tc, OffloadMode::Tc);
        let (here, peer) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        running.next_hops.acquire(here, peer);
        until("on link", &running.shown, |status| {
            status.next_hops_usable == 1
        });
        // Its other end goes with its namespace's interface.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                there.enter().unwrap();
                let far = interface_index("far").unwrap();
                Netlink::open().unwrap().delete_link(far).unwrap();
            });
        });
        until("it is gone", &running.shown, |status| {
            status.next_hops_usable == 0 && status.interfaces[0].means == Means::User
        });
    });
}

#[test]
fn xdp_is_given_up_where_checksums_are_left_to_the_hardware() {
    wired(|there| {
        let mut running = start(OffloadMode::Xdp, OffloadMode::Auto);
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (client, peer) = (address("192.0.2.2:9000"), address("192.0.2.2:9001"));
        let key = FlowKey {
            remote: client,
            local: address("192.0.2.1:3478"),
            channel: Some(0x4001),
        };
        let relay = address("192.0.2.1:50000");
        let entry = FlowEntry {
            source: relay,
            destination: peer,
            channel: None,
            own_relay: false,
            next_hop: running.next_hops.acquire(relay.ip(), peer.ip()),
            counter: 0,
            bucket: None,
            deadline_ns: u64::MAX,
        };
        running.part.table.insert(&key, &entry).unwrap();
        assert_eq!(running.shown.get().interfaces[0].means, Means::Xdp);
        let (shown, separated) = (&running.shown, &running.separated);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stop, there) = (&stop, &there);
            scope.spawn(move || {
                there.enter().unwrap();
                let socket = UdpSocket::bind(client).unwrap();
                // ChannelData. The kernel leaves its checksum to the "hardware" of the wire.
                let datagram = [0x40, 0x01, 0, 4, 1, 2, 3, 4];
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&datagram, "192.0.2.1:3478");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                until("the step down", shown, |status| {
                    status.interfaces[0].means == Means::Tc
                });
            }));
            stop.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        let interface = &shown.get().interfaces[0];
        assert_eq!(interface.reason(), Some(&Obstacle::PartialChecksums));
        assert!(separated.load(Ordering::Relaxed), "sockets are told");
    });
}
