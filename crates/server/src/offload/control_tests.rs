//! The control thread against network namespaces: a gateway that nobody has talked to yet, a neighbour that goes,
//! checksums that are not finished. Needs root.

use super::attach::OffloadConfig;
use super::choice::{Obstacle, OffloadMethod};
use super::control::{Control, Prepared};
use super::next_hops::NextHopTable;
use super::part::WorkerTables;
use super::status::{OffloadStatus, PublishedStatus};
use super::{Offload, OffloadMode};
use crate::ports::PortRange;
use crate::privileges::KeptCapabilities;
use crate::rates::TableSize;
use bpf::relay::{FlowEntry, FlowKey};
use io::NetNs;
use io::netlink::{Netlink, VethEnd, interface_index};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs in a separate thread, in a namespace whose `near` (192.0.2.1, 2001:db8::1) is wired to `far` (.2) in the other.
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
    published: Arc<PublishedStatus>,
    separated: Arc<AtomicBool>,
    part: WorkerTables,
}

fn start(mode: OffloadMode, then: OffloadMode) -> Running {
    let (prepared, published) = prepare(mode, then);
    let separated = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&separated);
    run(prepared, published, separated, move || {
        told.store(true, Ordering::Relaxed);
        true
    })
}

const LISTENER: &str = "192.0.2.1:3478";

/// Attaches under `mode`, and goes on under `then`.
fn prepare(mode: OffloadMode, then: OffloadMode) -> (Prepared, Arc<PublishedStatus>) {
    let listeners = [LISTENER.parse().unwrap()];
    let wanted = OffloadConfig {
        offload: Offload { mode, channels: 64 },
        binding: None,
        listeners: &listeners,
        relays: &[],
        ports: PortRange::DYNAMIC,
        rates: TableSize {
            allocations: 64,
            ..TableSize::default()
        },
        tcx: true,
        other: None,
    };
    let published = Arc::new(PublishedStatus::default());
    let mut prepared = Prepared::new(&wanted, &published).unwrap().unwrap();
    assert!(prepared.can_write_unprivileged(), "since Linux 5.19");
    prepared.mode = then;
    if then == OffloadMode::Auto {
        prepared.attachments.interfaces[0].about.not_tc = None;
        prepared.relay.load_tc().unwrap();
    }
    (prepared, published)
}

fn run(
    prepared: Prepared,
    published: Arc<PublishedStatus>,
    separated: Arc<AtomicBool>,
    on_fallback: impl FnMut() -> bool + Send + 'static,
) -> Running {
    let part = prepared.parts(1).remove(0);
    let next_hops = Arc::clone(&prepared.next_hops);
    let listeners = [LISTENER.parse().unwrap()];
    let control = prepared
        .start(
            &listeners,
            KeptCapabilities::needed(true),
            Box::new(on_fallback),
        )
        .unwrap();
    Running {
        _control: control,
        next_hops,
        published,
        separated,
        part,
    }
}

fn until(what: &str, published: &PublishedStatus, mut good: impl FnMut(&OffloadStatus) -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while Instant::now() < end {
        if good(&published.get()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("in vain: {what}: {:?}", published.get());
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
        until("what is on link", &running.published, usable(2));
        // Nobody has sent anything: the control thread had the kernel ask. Now there is a way to the rest, too.
        let mut netlink = Netlink::open().unwrap();
        netlink.add_default_route(ip("192.0.2.2")).unwrap();
        until("the gateway", &running.published, usable(3));

        let near = interface_index("near").unwrap();
        netlink.delete_neighbour(near, ip("192.0.2.2")).unwrap();
        until("the gateway is gone", &running.published, usable(1));
        let other = running.next_hops.acquire(here, ip("198.51.100.10"));
        until("it is asked for again", &running.published, usable(4));

        for index in [beyond, on_link, v6, other] {
            running.next_hops.release(index);
        }
        assert_eq!(running.next_hops.len(), 4, "kept for a while");
    });
}

#[test]
fn peers_behind_a_gateway_share_one_hop_until_routes_part_them() {
    wired(|_there| {
        let running = start(OffloadMode::Tc, OffloadMode::Tc);
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (here, gateway) = (ip("192.0.2.1"), ip("192.0.2.2"));
        let changes = || running.next_hops.changes();
        let wait = |what, before| until(what, &running.published, |_| changes() > before);
        let acquire = |peer: &str| running.next_hops.acquire(here, ip(peer));
        let on_link = acquire("192.0.2.2");
        until("what is on link", &running.published, |status| {
            status.next_hops_usable == 1
        });
        let before = changes();
        let mut netlink = Netlink::open().unwrap();
        netlink.add_default_route(gateway).unwrap();
        wait("the default route", before);
        let [one, two] = ["198.51.100.9", "203.0.113.9"].map(acquire);
        assert!(one == two && on_link != one);
        until("both hops", &running.published, |status| {
            (status.next_hops, status.next_hops_usable) == (2, 2)
        });
        // The first peer, whose route was asked for in the name of all, gets a route of its own.
        let before = changes();
        netlink
            .add_route(ip("198.51.100.0"), 24, &[gateway])
            .unwrap();
        wait("its own route", before);
        until(
            "the others are left without",
            &running.published,
            |status| status.next_hops_usable == 1,
        );
        let [first, second] = ["198.51.100.9", "203.0.113.9"].map(acquire);
        assert!(second == two && first != one);
        until("all three hops", &running.published, |status| {
            (status.next_hops, status.next_hops_usable) == (3, 3)
        });
        // By several gateways each peer goes its own way.
        let before = changes();
        netlink
            .add_route(ip("203.0.113.0"), 24, &[gateway, ip("192.0.2.3")])
            .unwrap();
        wait("several gateways", before);
        let [third, fourth] = ["203.0.113.9", "203.0.113.10"].map(acquire);
        assert!(third != second && third != fourth);
    });
}

#[test]
fn an_interface_that_goes_down_takes_its_hops_along() {
    wired(|there| {
        let running = start(OffloadMode::Tc, OffloadMode::Tc);
        let (here, peer) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        running.next_hops.acquire(here, peer);
        until("on link", &running.published, |status| {
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
        until("it is gone", &running.published, |status| {
            status.next_hops_usable == 0 && status.interfaces[0].method == OffloadMethod::User
        });
    });
}

#[test]
fn xdp_is_given_up_where_checksums_are_left_to_the_hardware() {
    wired(|there| {
        let mut running = start(OffloadMode::Xdp, OffloadMode::Auto);
        with_partial_checksums(&mut running, &there, |status| {
            status.interfaces[0].method == OffloadMethod::Tc
        });
        let interface = &running.published.get().interfaces[0];
        assert_eq!(interface.reason(), Some(&Obstacle::PartialChecksums));
        assert!(
            running.separated.load(Ordering::Relaxed),
            "sockets are told"
        );
    });
}

#[test]
fn when_the_control_thread_ends_everything_is_detached_and_said_to_be() {
    wired(|there| {
        let (prepared, published) = prepare(OffloadMode::Xdp, OffloadMode::Auto);
        let untold = Arc::new(AtomicBool::new(false));
        let mut running = run(prepared, published, untold, || panic!("of a test"));
        with_partial_checksums(&mut running, &there, |status| {
            status.interfaces[0].reason() == Some(&Obstacle::ControlThreadEnded)
        });
        let interface = &running.published.get().interfaces[0];
        assert_eq!(interface.method, OffloadMethod::User);
        assert_eq!(interface.reason_name(), "control_thread_ended");
        let interfaces = Netlink::open().unwrap().interfaces().unwrap();
        assert!(interfaces.iter().all(|interface| interface.xdp.is_none()));
        assert_eq!(bpf::relay::classifiers_at("near").unwrap(), 0);
    });
}

#[test]
fn xdp_is_given_up_where_packets_come_by_an_interface_that_it_does_not_know() {
    wired(|there| {
        let here = NetNs::current().unwrap();
        let end = |name, last, namespace| VethEnd {
            name,
            mac: [2, 0, 0, 0, 1, last],
            namespace,
        };
        let mut netlink = Netlink::open().unwrap();
        netlink
            .create_veth(&end("other", 1, &here), &end("opposite", 2, &there))
            .unwrap();
        let add = |name, last: u8| {
            let mut netlink = Netlink::open().unwrap();
            let index = interface_index(name).unwrap();
            netlink.set_up(index).unwrap();
            netlink
                .add_address(index, [198, 51, 100, last].into(), 24)
                .unwrap();
            index
        };
        let other = add("other", 1);
        let (mut prepared, published) = prepare(OffloadMode::Xdp, OffloadMode::Auto);
        // As if `other` were below `near`, and could not be told to the program.
        let _attached = prepared.relay.attach_xdp(other, [2, 0, 0, 0, 1, 1]);
        prepared.relay.forget_interface(other).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let running = run(prepared, published, told, || true);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (stop, there) = (&stop, &there);
            scope.spawn(move || {
                there.enter().unwrap();
                add("opposite", 2);
                let socket = UdpSocket::bind("198.51.100.2:0").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[0x40, 1, 0, 0], "198.51.100.1:3478");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                until("the fallback", &running.published, |status| {
                    status.interfaces[0].method == OffloadMethod::Tc
                });
            }));
            stop.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        let interface = &running.published.get().interfaces[0];
        assert_eq!(interface.reason(), Some(&Obstacle::UnknownInterface));
    });
}

/// Sends datagrams of a channel with checksums for the hardware until the status is good.
fn with_partial_checksums(
    running: &mut Running,
    there: &NetNs,
    good: impl FnMut(&OffloadStatus) -> bool,
) {
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
        bucket: None,
        deadline_ns: u64::MAX,
        settles: false,
    };
    running.part.table.insert(&key, &entry).unwrap();
    assert_eq!(
        running.published.get().interfaces[0].method,
        OffloadMethod::Xdp
    );
    let published = &running.published;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
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
            until("the fallback", published, good);
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}
