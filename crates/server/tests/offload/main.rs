//! Channels that the kernel relays: on loopback, with the classifier, in a network namespace of the test's own.
//!
//! These tests need root (CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN), Linux 6.6 and iproute2; without, they say so and
//! pass.

#[path = "../common/mod.rs"]
mod common;
mod rates;

use common::netns::skipped;
use common::{Client, Got, at, eventually, ip, socket};
use hairpin_server::offload::{Offload, OffloadMode};
use hairpin_server::policy::PeerRule;
use hairpin_server::stats::{DropReason, Stats, Traffic};
use hairpin_server::{AddressFamily, Builder, Running, Server, Settings};
use io::NetNs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stun::RequestedAddressFamily;

const V4: &str = "10.9.9.1:0";
const V6: &str = "[fd09::1]:0";

/// Runs a test on a thread in a namespace of its own, whose loopback interface has the addresses above. Never ones of
/// 127.0.0.0/8: those are martians once a packet has lost the route it was sent by.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || match prepare() {
        Ok(()) => test(),
        Err(reason) => skipped(&reason),
    });
    thread.join().expect("the test passes");
}

fn prepare() -> Result<(), String> {
    match NetNs::unshare() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error.to_string()),
        made => drop(made.expect("a namespace")),
    }
    let commands = [
        "link set lo up",
        "address add 10.9.9.1/32 dev lo",
        "address add 10.9.9.2/32 dev lo",
        "address add fd09::1/128 dev lo nodad",
    ];
    commands.into_iter().try_for_each(|arguments| {
        let ran = Command::new("ip").args(arguments.split(' ')).status();
        match ran {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("ip {arguments}: {other:?}")),
        }
    })
}

fn builder() -> Builder {
    let mut offload = Offload::default();
    offload.mode = OffloadMode::Tc;
    Server::builder()
        .listen(at(V4))
        .listen(at(V6))
        .relay_address(ip("10.9.9.1"))
        .relay_address(ip("fd09::1"))
        .user(common::USER, common::PASSWORD)
        .allow_development_peers()
        .workers(2)
        .kernel_relay(offload)
}

/// A server that has the kernel relay; `None` on a kernel that cannot.
fn start(builder: Builder) -> Option<Running> {
    match builder.start() {
        Ok(server) => Some(server),
        Err(error) => {
            skipped(&error);
            None
        }
    }
}

/// A pause that shows that nothing of a flow waits in user space.
const SETTLED: Duration = Duration::from_millis(10);

/// The kernel's counts are never older.
const COUNTS_AGE: Duration = Duration::from_millis(1200);

/// A client with a channel to a peer.
struct Call {
    client: Client,
    peer: UdpSocket,
    relayed: SocketAddr,
    channel: u16,
}

impl Call {
    /// Over these families, on the client's side and on the peer's.
    fn new(server: &Running, client: AddressFamily, peer: AddressFamily) -> Call {
        let host = |family| match family {
            AddressFamily::V4 => V4,
            AddressFamily::V6 => V6,
        };
        let listeners = server.listeners().iter();
        let mut listeners = listeners.filter(|at| at.is_ipv4() == (client == AddressFamily::V4));
        let listener = *listeners.next().expect("one of each");
        let socket = socket(host(peer));
        let mut client = Client::from(host(client), listener);
        let family = RequestedAddressFamily(peer);
        let relayed = client
            .allocate_with(&|builder| builder.push(&family).map(drop))
            .relayed();
        let peer_at = socket.local_addr().expect("bound");
        assert_eq!(client.bind(0x4000, peer_at), 0);
        Call {
            client,
            peer: socket,
            relayed,
            channel: 0x4000,
        }
    }

    /// A new flow stays in user space until a packet comes after a pause.
    fn wait_for_flow(&self) {
        self.exchange(1);
        std::thread::sleep(SETTLED);
        self.exchange(1);
        std::thread::sleep(COUNTS_AGE);
    }

    /// Both ways, so many times, each datagram looked at.
    fn exchange(&self, rounds: usize) {
        let mut buffer = vec![0; 2048];
        for round in 0..rounds {
            let there = vec![round as u8; 1 + round * 7 % 1200];
            self.client.send(self.channel, &there);
            let (length, from) = self.peer.recv_from(&mut buffer).expect("relayed");
            assert_eq!((from, &buffer[..length]), (self.relayed, &there[..]));
            let back = vec![!round as u8; 1 + round * 11 % 1200];
            self.peer.send_to(&back, self.relayed).expect("sent");
            assert_eq!(self.client.got(), Got::Channel(self.channel, back));
        }
    }
}

/// What the workers have relayed.
fn by_workers(server: &Running) -> [u64; 3] {
    let stats = server.stats();
    let sum = |of: fn(&hairpin_server::stats::WorkerStats) -> Traffic| {
        stats.sum(move |worker| of(worker).packets)
    };
    [
        sum(|worker| worker.engine.to_peers),
        sum(|worker| worker.engine.to_relays),
        sum(|worker| worker.engine.to_clients),
    ]
}

/// What the classifier has relayed: to peers, between relays, and to clients.
fn by_kernel(server: &Running) -> [u64; 3] {
    let tc = server.observer().offload().totals.tc;
    [tc.to_peer, tc.relay_to_relay, tc.to_client]
}

/// Waits until the next hops of all channels are known, from when on no worker sees their data.
fn ready(server: &Running) {
    eventually("next hops", || {
        let status = server.observer().offload();
        status.next_hops > 0 && status.next_hops_usable == status.next_hops
    });
}

fn channels(stats: &Stats) -> u64 {
    stats.sum(|worker| worker.channels_offloaded)
}

#[test]
fn all_families_are_carried_by_the_kernel_alone() {
    alone(|| {
        let Some(server) = start(builder()) else {
            return;
        };
        for client in [AddressFamily::V4, AddressFamily::V6] {
            for peer in [AddressFamily::V4, AddressFamily::V6] {
                let mut call = Call::new(&server, client, peer);
                assert_eq!(channels(&server.stats()), 1);
                ready(&server);
                call.wait_for_flow();
                let (workers, kernel) = (by_workers(&server), by_kernel(&server));
                call.exchange(500);
                // On loopback a packet keeps the route it was sent by, which is of its own family: user space relays
                // into the other one.
                let [out, back] = if client == peer { [500, 500] } else { [0, 0] };
                let expected = [workers[0] + 500 - out, workers[1], workers[2] + 500 - back];
                assert_eq!(by_workers(&server), expected, "{client:?} {peer:?}");
                let expected = [kernel[0] + out, kernel[1], kernel[2] + back];
                eventually("the kernel's counts", || by_kernel(&server) == expected);
                call.client.release();
                assert_eq!(channels(&server.stats()), 0);
            }
        }
    });
}

#[test]
fn two_relays_of_ours_meet_in_the_kernel() {
    alone(|| {
        let Some(server) = start(builder()) else {
            return;
        };
        let mut one = Client::from(V4, server.listeners()[0]);
        let mut two = Client::from(V4, server.listeners()[0]);
        let (at_one, at_two) = (one.allocate(), two.allocate());
        assert_eq!(one.bind(0x4001, at_two), 0);
        ready(&server);
        // Only one side has bound a channel: the other one's client gets indications, and user space makes them.
        assert_eq!(two.permit(at_one), 0);
        one.send(0x4001, b"hello");
        assert_eq!(two.got(), Got::Data(at_one, b"hello".to_vec()));
        assert_eq!(two.bind(0x4002, at_one), 0);
        ready(&server);
        let wait_for_flow = || {
            one.send(0x4001, b"settling");
            assert_eq!(two.got(), Got::Channel(0x4002, b"settling".to_vec()));
            two.send(0x4002, b"settling");
            assert_eq!(one.got(), Got::Channel(0x4001, b"settling".to_vec()));
            std::thread::sleep(SETTLED);
        };
        wait_for_flow();
        wait_for_flow();
        std::thread::sleep(COUNTS_AGE);
        let (workers, kernel) = (by_workers(&server), by_kernel(&server));
        for round in 0..100_u8 {
            one.send(0x4001, &[round; 100]);
            assert_eq!(two.got(), Got::Channel(0x4002, vec![round; 100]));
            two.send(0x4002, &[round; 33]);
            assert_eq!(one.got(), Got::Channel(0x4001, vec![round; 33]));
        }
        assert_eq!(by_workers(&server), workers);
        let expected = [kernel[0], kernel[1] + 200, kernel[2]];
        eventually("the kernel's counts", || by_kernel(&server) == expected);
        // The permission of both sides counts: when one is gone, so is the way.
        two.release();
        one.send(0x4001, b"nobody there");
        assert!(two.hears_nothing());
    });
}

#[test]
fn nothing_passes_once_the_allocation_is_over() {
    alone(|| {
        let Some(server) = start(builder()) else {
            return;
        };
        let mut call = Call::new(&server, AddressFamily::V4, AddressFamily::V4);
        ready(&server);
        call.exchange(10);
        call.client.release();
        let before = by_workers(&server);
        call.client.send(0x4000, b"late");
        assert!(hears_nothing(&call.peer));
        call.peer.send_to(b"late", call.relayed).expect("sent");
        assert!(call.client.hears_nothing());
        assert_eq!(by_workers(&server), before);
        eventually("a drop", || {
            server.stats().dropped(DropReason::NoAllocation) == 1
        });
    });
}

#[test]
fn an_allocation_that_nobody_refreshes_ends_in_the_kernel_too() {
    alone(|| {
        let mut short = settings();
        short.default_lifetime = Duration::from_secs(2);
        let Some(server) = start(builder().settings(short)) else {
            return;
        };
        let call = Call::new(&server, AddressFamily::V4, AddressFamily::V4);
        ready(&server);
        call.exchange(10);
        eventually("the end", || server.stats().allocations() == 0);
        assert_eq!(channels(&server.stats()), 0);
        call.client.send(0x4000, b"late");
        assert!(hears_nothing(&call.peer));
    });
}

/// Settings as the builder above makes them.
fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.users = vec![(common::USER.to_owned(), common::PASSWORD.to_owned())];
    let own = ["10.9.9.1/32", "10.9.9.2/32", "fd09::1/128"];
    settings.peers.allow = own
        .map(|network| PeerRule::all_ports(network.parse().expect("a network")))
        .to_vec();
    settings
}

/// Whether nothing arrives at a socket for a short while.
fn hears_nothing(socket: &UdpSocket) -> bool {
    let timeout = Some(Duration::from_millis(150));
    socket.set_read_timeout(timeout).expect("a timeout");
    let silent = socket.recv_from(&mut [0; 2048]).is_err();
    let timeout = Some(Duration::from_secs(5));
    socket.set_read_timeout(timeout).expect("a timeout");
    silent
}

#[test]
fn a_peer_that_is_denied_by_a_reload_is_cut_off_at_once_and_comes_back() {
    alone(|| {
        let Some(server) = start(builder().settings(settings())) else {
            return;
        };
        let call = Call::new(&server, AddressFamily::V4, AddressFamily::V4);
        ready(&server);
        call.exchange(10);
        let mut denied = settings();
        denied.peers.allow.clear();
        server.reload(denied).expect("valid");
        eventually("no entry", || channels(&server.stats()) == 0);
        call.client.send(0x4000, b"denied");
        assert!(hears_nothing(&call.peer));
        call.peer.send_to(b"denied", call.relayed).expect("sent");
        assert!(call.client.hears_nothing());
        server.reload(settings()).expect("valid");
        eventually("an entry", || channels(&server.stats()) == 1);
        ready(&server);
        call.wait_for_flow();
        let before = by_workers(&server);
        call.exchange(10);
        assert_eq!(by_workers(&server), before);
    });
}

#[test]
fn a_wildcard_listener_has_entries_for_the_address_that_was_asked() {
    alone(|| {
        let mut offload = Offload::default();
        offload.mode = OffloadMode::Tc;
        let builder = Server::builder()
            .listen(at("0.0.0.0:0"))
            .relay_address(ip("10.9.9.1"))
            .settings(settings())
            .kernel_relay(offload);
        let Some(server) = start(builder) else {
            return;
        };
        let port = server.listeners()[0].port();
        let peer = socket(V4);
        let mut client = Client::from(V4, at(&format!("10.9.9.2:{port}")));
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        ready(&server);
        let call = Call {
            client,
            peer,
            relayed,
            channel: 0x4000,
        };
        call.wait_for_flow();
        let before = by_workers(&server);
        call.exchange(50);
        assert_eq!(by_workers(&server), before);
    });
}

#[test]
fn channels_beyond_what_fits_are_relayed_by_user_space() {
    const FIT: u64 = 64;
    alone(|| {
        let mut offload = Offload::default();
        (offload.mode, offload.channels) = (OffloadMode::Tc, FIT as u32);
        let Some(server) = start(builder().kernel_relay(offload)) else {
            return;
        };
        let mut client = Client::from(V4, server.listeners()[0]);
        let relayed = client.allocate();
        let peers: Vec<UdpSocket> = (0..FIT + 6).map(|_| socket(V4)).collect();
        for (number, peer) in (0x4000..).zip(&peers) {
            assert_eq!(client.bind(number, peer.local_addr().expect("bound")), 0);
        }
        assert_eq!(channels(&server.stats()), FIT);
        // Each is tried again when the permission for the address is refreshed, as the next one does.
        assert_eq!(
            server.stats().counters().offload_full,
            1 + 2 + 3 + 4 + 5 + 6
        );
        ready(&server);
        let to_all = |client: &Client| {
            for (number, peer) in (0x4000_u16..).zip(&peers) {
                client.send(number, &number.to_be_bytes());
                let mut buffer = [0; 64];
                let (length, from) = peer.recv_from(&mut buffer).expect("relayed");
                assert_eq!(
                    (&buffer[..length], from),
                    (&number.to_be_bytes()[..], relayed)
                );
            }
        };
        to_all(&client);
        std::thread::sleep(SETTLED);
        let before = by_workers(&server);
        to_all(&client);
        assert_eq!(by_workers(&server)[0], before[0] + 6);
        client.release();
        assert_eq!(channels(&server.stats()), 0);
    });
}

#[test]
fn both_halves_draw_on_one_rate_limit() {
    const RATE: u64 = 100_000;
    const SENT: u64 = 500;
    alone(|| {
        let mut limited = settings();
        limited.allocation_rate = RATE;
        let Some(server) = start(builder().settings(limited)) else {
            return;
        };
        let mut call = Call::new(&server, AddressFamily::V4, AddressFamily::V4);
        let unbound = socket(V4);
        let unbound_at = unbound.local_addr().expect("bound");
        assert_eq!(call.client.permit(unbound_at), 0);
        ready(&server);
        call.wait_for_flow();
        let all = || by_kernel(&server)[0] + by_workers(&server)[0];
        let settled = all();
        let begin = Instant::now();
        for number in 0..SENT {
            // In turns by the kernel, over the channel, and by user space.
            if number % 2 == 0 {
                call.client.send(0x4000, &[1; 1000]);
            } else {
                call.client.indicate(unbound_at, &[1; 1000]);
            }
        }
        let dropped = || {
            let by_kernel = server.observer().offload().totals.tc.rate_dropped;
            let by_workers = server.stats().dropped(DropReason::OverRate);
            (by_kernel, by_workers)
        };
        let relayed = || all() - settled;
        eventually("all of them", || {
            let (by_kernel, by_workers) = dropped();
            relayed() + by_kernel + by_workers == SENT
        });
        let (by_kernel, by_workers) = dropped();
        assert!(by_kernel > 0 && by_workers > 0, "{by_kernel} {by_workers}");
        let allowed = RATE + RATE * begin.elapsed().as_millis() as u64 / 1000;
        assert!(relayed() >= 100 && (relayed() - 1) * 1000 <= allowed);
        call.client.release();
    });
}

#[test]
fn a_port_that_is_used_again_has_nothing_of_its_last_tenant() {
    alone(|| {
        let one_port = builder().workers(1).relay_ports(50_000, 50_001);
        let Some(server) = start(one_port) else {
            return;
        };
        let mut last: Option<(Client, UdpSocket)> = None;
        for _ in 0..10 {
            let mut call = Call::new(&server, AddressFamily::V4, AddressFamily::V4);
            ready(&server);
            call.exchange(5);
            if let Some((client, peer)) = &last {
                // Its peer goes on sending, and gets nowhere: neither to the last client nor to the new one.
                client.send(0x4000, b"late");
                assert!(hears_nothing(peer) && client.hears_nothing());
                // The new client has a permission for that address, but no channel to that port.
                peer.send_to(b"late", call.relayed).expect("sent");
                let peer_at = peer.local_addr().expect("bound");
                assert_eq!(call.client.got(), Got::Data(peer_at, b"late".to_vec()));
                assert!(hears_nothing(&call.peer));
            }
            call.client.release();
            last = Some((call.client, call.peer));
        }
    });
}

#[test]
fn the_close_report_counts_both_paths() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    alone(move || {
        let Some(server) = start(builder().user("reporter", "its password")) else {
            return;
        };
        let peer = socket(V4);
        let client = Client::from(V4, server.listeners()[0]);
        let mut client = client.with_user("reporter", "its password");
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        let mut call = Call {
            client,
            peer,
            relayed,
            channel: 0x4000,
        };
        // At first perhaps by user space, then by the kernel, with a refresh in between.
        call.exchange(7);
        ready(&server);
        call.exchange(100);
        let peer_at = call.peer.local_addr().expect("bound");
        assert_eq!(call.client.bind(0x4000, peer_at), 0);
        call.exchange(100);
        call.client.release();
        let bytes = |step: usize| -> usize {
            let sizes = |rounds: usize| (0..rounds).map(move |round| 1 + round * step % 1200);
            sizes(7).chain(sizes(100)).chain(sizes(100)).sum()
        };
        let text = String::from_utf8(log.0.lock().expect("no writer panics").clone());
        let text = text.expect("UTF-8");
        let mut lines = text.lines();
        let closed = lines
            .find(|line| line.contains("allocation closed") && line.contains("reporter"))
            .expect("a line");
        for part in [
            "to_peers_packets=207".to_owned(),
            "to_client_packets=207".to_owned(),
            format!("to_peers_bytes={} ", bytes(7)),
            format!("to_client_bytes={} ", bytes(11)),
        ] {
            assert!(closed.contains(&part), "{part} is missing: {closed}");
        }
    });
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut all = self.0.lock().expect("no writer panics");
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
