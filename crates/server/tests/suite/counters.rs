//! Counters: exact against a known exchange, live while it goes on, and free for the workers to be looked at.

use crate::common::marked::Marked;
use crate::common::{Client, Got, at, eventually, loopback, socket, start};
use hairpin_server::observer::WorkerFault;
use hairpin_server::stats::Stats;
use hairpin_server::{AddressFamily, Running};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stun::Method;
use turn::server::{AuthFailure, CloseReason, DropReason, METHODS, Traffic};

const TO_PEER: &[u8] = b"seven b";
const TO_CLIENT: &[u8] = b"eleven byte";
const ROUNDS: u64 = 20;

fn traffic(packets: u64, length: usize) -> Traffic {
    Traffic {
        packets,
        bytes: packets * length as u64,
    }
}

fn requests(stats: &Stats, method: Method) -> u64 {
    stats.sum(|worker| worker.engine.requests(method).packets)
}

fn auth_failures(stats: &Stats) -> u64 {
    let reasons = AuthFailure::ALL.iter();
    reasons
        .map(|&reason| stats.sum(|worker| worker.engine.auth_failed(reason)))
        .sum()
}

/// So many datagrams to a peer and back, each waited for.
fn echo(client: &Client, relayed: SocketAddr, peer: &std::net::UdpSocket) {
    let mut buffer = [0; 64];
    for _ in 0..ROUNDS {
        client.send(0x4000, TO_PEER);
        let (length, from) = peer.recv_from(&mut buffer).expect("relayed");
        assert_eq!((&buffer[..length], from), (TO_PEER, relayed));
        peer.send_to(TO_CLIENT, relayed).expect("sent");
        assert_eq!(client.got(), Got::Channel(0x4000, TO_CLIENT.to_vec()));
    }
}

/// A client with a channel to a peer.
fn client_and_peer(server: &Running) -> (Client, SocketAddr, std::net::UdpSocket) {
    let peer = socket("127.0.0.1:0");
    let mut client = Client::new(server.listeners()[0]);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    (client, relayed, peer)
}

#[test]
fn every_datagram_and_every_byte_of_an_exchange_is_counted() {
    let server = start(loopback(1));
    let (mut client, relayed, peer) = client_and_peer(&server);
    echo(&client, relayed, &peer);
    client.indicate(at("127.0.0.9:9"), b"not permitted");
    eventually("the drop is counted", || {
        server.stats().dropped(DropReason::NoPermission) == 1
    });

    let stats = server.stats();
    let [worker] = &stats.workers[..] else {
        panic!("one worker")
    };
    let (engine, counters) = (&worker.engine, &worker.counters);
    assert_eq!(engine.to_peers, traffic(ROUNDS, TO_PEER.len()));
    assert_eq!(engine.to_clients, traffic(ROUNDS, TO_CLIENT.len()));
    assert_eq!(engine.to_relays, Traffic::default());
    assert_eq!(
        (engine.allocations, engine.channels, engine.permissions),
        (1, 1, 1)
    );
    // Two Allocate requests (the first is challenged), one ChannelBind, the echoes and one Send indication.
    assert_eq!(counters.client_datagrams, 3 + ROUNDS + 1);
    assert_eq!(counters.peer_datagrams, ROUNDS);
    assert_eq!(counters.peer_bytes, ROUNDS * TO_CLIENT.len() as u64);
    assert_eq!(requests(&stats, Method::ALLOCATE), 2);
    assert_eq!(requests(&stats, Method::CHANNEL_BIND), 1);
    let successes = METHODS.iter().map(|(method, _)| engine.successes(*method));
    assert_eq!(successes.collect::<Vec<_>>(), [0, 1, 0, 0, 1, 0, 0]);
    assert_eq!((stats.errors_with(401), auth_failures(&stats)), (1, 0));
    assert_eq!(worker.sends.sent, 3 + 2 * ROUNDS);
    assert_eq!(worker.sends.per_call.sum, worker.sends.sent);
    assert_eq!(
        worker.received.datagrams,
        counters.client_datagrams + counters.peer_datagrams
    );
    assert_eq!(worker.received.per_call.sum, worker.received.datagrams);
    assert_eq!(counters.batches.sum, worker.received.datagrams);
    client.release();
    let engine = &server.stats().workers[0].engine;
    assert_eq!((engine.allocations, engine.allocations_opened), (0, 1));
    assert_eq!(engine.allocations_closed(CloseReason::Refreshed), 1);
}

#[test]
fn counters_are_live_for_an_observer_that_asks_nobody() {
    let server = start(loopback(2));
    let observer = server.observer();
    let (client, relayed, peer) = client_and_peer(&server);
    let mut fastest = Duration::MAX;
    for round in 1..=3 {
        echo(&client, relayed, &peer);
        let start = Instant::now();
        let packets = || {
            observer
                .stats()
                .sum(|worker| worker.engine.to_clients.packets)
        };
        eventually("the echoes are shown", || packets() == round * ROUNDS);
        fastest = fastest.min(start.elapsed());
    }
    // A worker publishes every 5 ms, but may wait for its processor.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    let ports = observer.ports(AddressFamily::V4).expect("IPv4 is relayed");
    assert_eq!((ports.in_use, observer.relayed_addresses().0), (1, 1));
    assert_eq!(observer.ports(AddressFamily::V6), None);
    drop(server);
    let total = observer
        .stats()
        .sum(|worker| worker.engine.to_clients.packets);
    assert_eq!(total, 3 * ROUNDS, "the last counts stay");
}

#[test]
fn looking_wakes_no_worker() {
    let server = start(loopback(2));
    let observer = server.observer();
    let wake_ups = || observer.stats().counters().wake_ups;
    let (before, start) = (wake_ups(), Instant::now());
    while start.elapsed() < Duration::from_millis(300) {
        std::hint::black_box(observer.stats());
        assert_eq!(observer.fault(Duration::from_secs(60)), None);
    }
    // Each worker turns its loop once a second on its own, and may have been busy starting.
    assert!(wake_ups() - before <= 8);
}

#[test]
fn data_between_two_relays_is_counted_apart() {
    let server = start(loopback(2));
    let [(mut one, at_one), (mut other, at_other)] = [(); 2].map(|()| {
        let mut client = Client::new(server.listeners()[0]);
        let relayed = client.allocate();
        (client, relayed)
    });
    assert_eq!((one.bind(0x4000, at_other), other.permit(at_one)), (0, 0));
    one.send(0x4000, TO_PEER);
    assert_eq!(other.got(), Got::Data(at_one, TO_PEER.to_vec()));
    let stats = server.stats();
    let sum = |part: fn(&turn::server::Stats) -> Traffic| {
        let packets = stats.sum(|worker| part(&worker.engine).packets);
        (packets, stats.sum(|worker| part(&worker.engine).bytes))
    };
    assert_eq!(sum(|engine| engine.to_relays), (1, 7));
    assert_eq!(sum(|engine| engine.to_clients), (1, 7));
    assert_eq!(sum(|engine| engine.to_peers), (0, 0));
}

#[test]
fn a_train_is_counted_as_one_and_as_all_its_datagrams() {
    const TRAIN: usize = 32;
    let server = start(loopback(1));
    let features = server.observer().features().clone();
    if !(features.gro && features.gso) {
        return println!("this kernel has no trains");
    }
    let mut client = Client::marked(server.listeners()[0], 0);
    let peer = Marked::new(at("127.0.0.1:0"), 0);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4000, peer.local()), 0);
    // A relay begins to look for trains with the first one.
    peer.send_train(&vec![TO_CLIENT.to_vec(); TRAIN], relayed);
    (0..TRAIN).for_each(|_| assert_eq!(client.got(), Got::Channel(0x4000, TO_CLIENT.to_vec())));
    let before = server.stats();

    let length = TO_PEER.len() as u8;
    let framed = [&[0x40, 0, 0, length], TO_PEER].concat();
    client.send_train(&vec![framed; TRAIN]);
    (0..TRAIN).for_each(|_| assert_eq!(peer.receive().0, TO_PEER));
    peer.send_train(&vec![TO_CLIENT.to_vec(); TRAIN], relayed);
    (0..TRAIN).for_each(|_| assert_eq!(client.got(), Got::Channel(0x4000, TO_CLIENT.to_vec())));

    let stats = server.stats();
    let (received, sends) = (stats.received(), stats.sends());
    let trains = received.gro_trains - before.received().gro_trains;
    let segments = received.gro_segments - before.received().gro_segments;
    assert_eq!((trains, segments), (2, 64));
    let runs = sends.gso_runs - before.sends().gso_runs;
    let segments = sends.gso_segments - before.sends().gso_segments;
    assert_eq!((runs, segments), (2, 64));
    assert_eq!(sends.gso_refused, 0);
    // 32 to 63 is the sixth class, of receive calls, of send calls and of wake-ups.
    let counters = stats.counters();
    for (sizes, earlier) in [
        (received.per_call, before.received().per_call),
        (sends.per_call, before.sends().per_call),
        (counters.batches, before.counters().batches),
    ] {
        assert_eq!(sizes.buckets[5] - earlier.buckets[5], 2, "{sizes:?}");
        assert_eq!(sizes.sum - earlier.sum, 64);
    }
}

#[test]
fn a_wrong_password_is_a_failure_and_a_first_request_is_none() {
    let server = start(loopback(1));
    let mut stranger = Client::new(server.listeners()[0]).with_user(crate::common::USER, "guess");
    assert_eq!(stranger.try_allocate().code(), 401);
    let stats = server.stats();
    assert_eq!(stats.errors_with(401), 2);
    assert_eq!(auth_failures(&stats), 1);
}

#[test]
fn receive_overflows_count_each_datagram() {
    // No more than a few datagrams fit, so a burst loses some on any machine.
    let server = start(loopback(1).receive_buffer(2304));
    let granted = server.observer().features().listeners[0].receive_buffer;
    assert!(!granted.is_capped(), "{granted:?}");
    let sender = socket("127.0.0.1:0");
    let mut sent = 0;
    let counted = || {
        let stats = server.stats();
        let handled = stats.dropped(DropReason::ForeignProtocol);
        (handled, stats.counters().listener_overflow)
    };
    let burst = |sent: &mut u64| {
        for _ in 0..2000 {
            sender
                .send_to(&[0xff; 900], server.listeners()[0])
                .expect("sent");
            *sent += 1;
        }
    };
    eventually("a burst overflows the buffer", || {
        burst(&mut sent);
        counted().1 > 0
    });
    // The kernel reports what it has dropped along with the next datagram that it delivers.
    eventually("all are accounted for", || {
        sender
            .send_to(&[0xff], server.listeners()[0])
            .expect("sent");
        sent += 1;
        std::thread::sleep(Duration::from_millis(2));
        let (handled, lost) = counted();
        handled + lost == sent
    });
}

#[test]
fn a_worker_with_nothing_to_do_turns_its_loop_all_the_same() {
    let server = start(loopback(2));
    let observer = server.observer();
    std::thread::sleep(Duration::from_millis(2500));
    let idle: Vec<_> = observer.idle().into_iter().flatten().collect();
    assert_eq!(idle.len(), 2);
    assert!(
        idle.iter().all(|idle| *idle < Duration::from_secs(2)),
        "{idle:?}"
    );
    // With a limit of zero, each worker counts as stuck.
    let fault = observer.fault(Duration::ZERO);
    assert!(
        matches!(fault, Some(WorkerFault::Stuck { worker: 0, .. })),
        "{fault:?}"
    );
}

#[test]
fn a_server_that_has_ended_ails() {
    let server = start(loopback(2));
    let observer = server.observer();
    assert_eq!(observer.fault(Duration::from_secs(10)), None);
    assert!(!observer.is_draining());
    server.shutdown().expect("no worker failed");
    assert!(observer.is_draining());
    assert_eq!(
        observer.fault(Duration::from_secs(10)),
        Some(WorkerFault::Ended { worker: 0 })
    );
}
