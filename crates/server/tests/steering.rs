//! Allocations are made on the least loaded worker, and a client's datagrams find it, for as long as it lives.
//!
//! These tests need root (CAP_BPF and CAP_NET_ADMIN), but for those of the kernel's hash alone.

mod common;

use common::{Client, Got, StopAtEnd, at, loopback, private_loopback, socket, start};
use hairpin_server::{Running, Steering, SteeringInUse};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stun::{Builder, Class, Lifetime, Message, Method, RequestedTransport, TransactionId};
use turn::server::DropReason;

/// A server that steers.
fn steered(workers: usize) -> Running {
    let server = start(loopback(workers).steering(Steering::Bpf));
    assert_eq!(*server.steering(), SteeringInUse::Bpf);
    server
}

/// Allocations per worker.
fn spread(server: &Running) -> Vec<u64> {
    let stats = server.stats();
    stats
        .workers
        .iter()
        .map(|worker| worker.engine.allocations)
        .collect()
}

/// The kernel's table and the workers' own books agree.
fn entries(server: &Running) -> u64 {
    let entries = server.steered_flows() as u64;
    assert_eq!(entries, server.stats().sum(|worker| worker.flows_steered));
    entries
}

fn clients(server: &Running, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count)
        .map(|_| Client::new(server.listeners()[0]))
        .collect();
    clients.iter_mut().for_each(|client| {
        client.allocate();
    });
    clients
}

/// Each client sends so many datagrams to itself by way of a peer, and gets them back.
fn echo_through(clients: &[Client], peer: &UdpSocket, rounds: usize) {
    let mut buffer = [0; 64];
    for round in 0..rounds {
        for (number, client) in clients.iter().enumerate() {
            let text = format!("{number} {round}");
            client.send(0x4000, text.as_bytes());
            let (length, from) = peer.recv_from(&mut buffer).expect("relayed");
            peer.send_to(&buffer[..length], from).expect("sent");
            assert_eq!(client.got(), Got::Channel(0x4000, text.into_bytes()));
        }
    }
}

fn bind_all(clients: &mut [Client], peer: &UdpSocket) {
    let peer = peer.local_addr().expect("bound");
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(client.bind(0x4000, peer), 0));
}

/// What each worker has relayed from clients.
fn relayed(server: &Running) -> Vec<u64> {
    let stats = server.stats();
    let packets = stats.workers.iter();
    packets.map(|w| w.engine.to_peers.packets).collect()
}

#[test]
fn few_clients_are_spread_evenly_and_their_data_finds_them() {
    let peer = socket("127.0.0.1:0");
    for workers in [2, 4, 8] {
        for per_worker in [1, 4] {
            // A new one each time: what was relayed before would count as load.
            let server = steered(workers);
            let mut clients = clients(&server, workers * per_worker);
            assert_eq!(spread(&server), vec![per_worker as u64; workers]);
            bind_all(&mut clients, &peer);
            let before = relayed(&server);
            echo_through(&clients, &peer, 5);
            let after = relayed(&server);
            let packets: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
            assert_eq!(packets, vec![5 * per_worker as u64; workers]);
            clients.iter_mut().for_each(Client::release);
            assert_eq!(entries(&server), 0);
        }
    }
}

#[test]
fn many_clients_are_spread_nearly_evenly() {
    let server = steered(8);
    let clients = clients(&server, 400);
    let counts = spread(&server);
    assert!(
        counts.iter().all(|count| (43..=57).contains(count)),
        "{counts:?}"
    );
    let given = server.stats().counters().requests_given;
    assert_eq!(entries(&server), given);
    assert!(given > 50 && given < 300, "{given} were moved");
    drop(clients);
    // The end of the server ends the allocations; nothing is left to see.
    server.shutdown().expect("no worker failed");
}

#[test]
fn over_ipv6_and_behind_a_wildcard_too() {
    for (listen, server_ip) in [("[::]:0", "::1"), ("0.0.0.0:0", "127.0.0.1")] {
        let builder = hairpin_server::Server::builder()
            .listen(at(listen))
            .listen(at("127.0.0.1:0"))
            .relay_address(common::ip("127.0.0.1"))
            .user(common::USER, common::PASSWORD)
            .allow_peers("127.0.0.0/8".parse().expect("a network"))
            .workers(4)
            .steering(Steering::Bpf);
        let server = start(builder);
        let peer = socket("127.0.0.1:0");
        let to = SocketAddr::new(common::ip(server_ip), server.listeners()[0].port());
        let mut clients: Vec<Client> = (0..8).map(|_| Client::new(to)).collect();
        // Those of another group take their share of the same workers.
        clients.extend((0..8).map(|_| Client::new(server.listeners()[1])));
        clients.iter_mut().for_each(|client| {
            client.allocate();
        });
        assert_eq!(spread(&server), [4; 4]);
        bind_all(&mut clients, &peer);
        echo_through(&clients, &peer, 3);
        assert!(entries(&server) > 0);
        clients.iter_mut().for_each(Client::release);
        assert_eq!(entries(&server), 0);
    }
}

#[test]
fn the_hash_alone_needs_no_entry() {
    let server = start(loopback(4).steering(Steering::Hash));
    assert_eq!(*server.steering(), SteeringInUse::Hash { because: None });
    let peer = socket("127.0.0.1:0");
    let mut clients = clients(&server, 32);
    bind_all(&mut clients, &peer);
    echo_through(&clients, &peer, 3);
    assert_eq!(entries(&server), 0);
    assert_eq!(server.stats().counters().requests_given, 0);
    assert_eq!(*start(loopback(1)).steering(), SteeringInUse::OneWorker);
}

/// Requests that are refused, released at once, retransmitted, or make allocations that expire.
#[test]
fn churn_leaves_no_entry_behind() {
    let quota = hairpin_server::quota::QuotaLimits::default().per_user(40);
    let server = start(
        loopback(4)
            .quota(quota)
            .user("bob", "hunter2")
            .steering(Steering::Bpf),
    );
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let (name, password) =
                    [("bob", "hunter2"), (common::USER, common::PASSWORD)][thread % 2];
                let mut random = common::Random(thread as u64 + 1);
                let mut held = Vec::new();
                for _ in 0..400 {
                    let mut client = Client::new(server.listeners()[0]).with_user(name, password);
                    let answer = client.try_allocate();
                    assert!(matches!(answer.code(), 0 | 486), "{}", answer.code());
                    if answer.code() == 0 {
                        held.push(client);
                    }
                    while held.len() as u64 > random.next() % 40 {
                        let place = (random.next() % held.len() as u64) as usize;
                        held.swap_remove(place).release();
                    }
                }
                held.iter_mut().for_each(Client::release);
            });
        }
    });
    let stats = server.stats();
    let counters = stats.counters();
    assert_eq!(stats.allocations(), 0);
    assert!(counters.requests_given > 100, "{counters:?}");
    assert_eq!(counters.requests_given, counters.requests_taken);
    assert_eq!(server.relayed_addresses_held(), 0);
    assert_eq!(entries(&server), 0);
    assert!(
        stats.errors_with(486) > 0,
        "some were refused where they were taken"
    );
    // No worker believes that another still has what is gone. By then they may give requests away again, and have
    // measured that they are idle, which they do once a second.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let clients = clients(&server, 8);
    assert_eq!(spread(&server), [2; 4]);
    drop(clients);
}

/// An Allocate request with a transaction of its own, signed as `client` would.
fn again(client: &mut Client, request: &[u8], times: usize) -> Vec<SocketAddr> {
    (0..times).for_each(|_| {
        client
            .socket()
            .send_to(request, client.server)
            .map(drop)
            .expect("sent")
    });
    let mut relayed = Vec::new();
    for _ in 0..times {
        let answer = client.next_answer();
        assert_eq!(answer.code(), 0);
        relayed.push(answer.relayed());
    }
    relayed
}

#[test]
fn a_retransmitted_allocate_gets_the_same_answer_wherever_it_arrives() {
    let server = steered(4);
    let mut moved = 0;
    // The port of a socket that is closed may be the next one's: a 5-tuple that has an allocation.
    let mut held = Vec::new();
    for round in 0..40 {
        let mut client = Client::new(server.listeners()[0]);
        let before = server.stats().counters().requests_given;
        // All three are in the receive buffer of the first worker before it has read one.
        let request = client.signed(Method::ALLOCATE, &|builder: &mut Builder<'_>| {
            builder
                .push(&RequestedTransport(RequestedTransport::UDP.0))
                .map(drop)
        });
        let relayed = again(&mut client, &request, 3);
        assert!(relayed.iter().all(|address| *address == relayed[0]));
        moved += server.stats().counters().requests_given - before;
        // Once the allocation is gone, the worker that had it drops the request.
        if round % 2 == 1 {
            client.release();
            client.transmit(&request);
        }
        held.push(client);
    }
    assert!(moved > 0);
    common::eventually("late retransmissions are dropped", || {
        server.stats().dropped(DropReason::AllocationDeleted) == 20
    });
    let stats = server.stats();
    assert_eq!(stats.sum(|w| w.engine.allocations_opened), 40);
    assert!(entries(&server) <= stats.allocations());
}

#[test]
fn a_client_that_starts_anew_on_its_5_tuple_reaches_its_new_allocation() {
    let server = steered(4);
    let peer = socket("127.0.0.1:0");
    let _others = clients(&server, 6);
    for _ in 0..60 {
        let mut client = Client::new(server.listeners()[0]);
        client.allocate();
        // The end of the old one and the new one, in one batch.
        let release = client.signed(Method::REFRESH, &|builder: &mut Builder<'_>| {
            builder.push(&Lifetime(0)).map(drop)
        });
        let allocate = client.signed(Method::ALLOCATE, &|builder: &mut Builder<'_>| {
            builder
                .push(&RequestedTransport(RequestedTransport::UDP.0))
                .map(drop)
        });
        for request in [&release, &allocate] {
            client
                .socket()
                .send_to(request, client.server)
                .expect("sent");
        }
        let answers = [client.next_answer(), client.next_answer()];
        assert!(answers.iter().all(|answer| answer.code() == 0));
        let mut client = [client];
        bind_all(&mut client, &peer);
        echo_through(&client, &peer, 1);
        client[0].release();
    }
    assert_eq!(server.stats().allocations(), 6);
    assert!(entries(&server) <= 6);
}

/// Strangers from ever new addresses send what costs most.
fn flood(server: SocketAddr, last: u8, stop: &AtomicBool, sent: &AtomicU64) {
    let mut random = common::Random(u64::from(last) + 7);
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        let ip = std::net::Ipv4Addr::from(0x7f60_0000 | (random.next() as u32 & 0xf_ffff));
        let Ok(stranger) = UdpSocket::bind((ip, 0)) else {
            continue;
        };
        for kind in 0..8 {
            let id = TransactionId([kind; 12]);
            let mut request =
                Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).expect("room");
            request
                .push(&RequestedTransport(RequestedTransport::UDP.0))
                .expect("room");
            let request = request.finish();
            let _ = match kind % 3 {
                0 => stranger.send_to(request, server),
                1 => stranger.send_to(&[0x40, 0, 0, 4, 1, 2, 3, 4], server),
                _ => stranger.send_to(&request[..19], server),
            };
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_flood_from_many_sources_moves_no_flow_and_makes_no_entry() {
    let server = steered(4);
    let peer = socket("127.0.0.1:0");
    let mut clients = clients(&server, 24);
    bind_all(&mut clients, &peer);
    let before = (spread(&server), relayed(&server), entries(&server));
    assert!(before.2 > 0);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    const ROUNDS: usize = 60;
    std::thread::scope(|scope| {
        let _stopper = StopAtEnd(&stop);
        for last in 0..2 {
            let (stop, sent, to) = (&stop, &sent, server.listeners()[0]);
            scope.spawn(move || flood(to, last, stop, sent));
        }
        common::eventually("the flood has begun", || {
            sent.load(Ordering::Relaxed) > 1000
        });
        echo_through(&clients, &peer, ROUNDS);
        common::eventually("it has been a flood", || {
            sent.load(Ordering::Relaxed) > 20_000
        });
    });
    assert_eq!(
        (spread(&server), entries(&server)),
        (before.0.clone(), before.2)
    );
    // Each worker relayed what its clients sent: none was elsewhere for a single datagram. On a slow machine, it may
    // have one client more or less than six.
    let packets: Vec<u64> = relayed(&server)
        .iter()
        .zip(before.1)
        .map(|(after, before)| after - before)
        .collect();
    let clients_of_each = before.0.iter();
    let expected: Vec<u64> = clients_of_each
        .map(|clients| clients * ROUNDS as u64)
        .collect();
    assert_eq!(packets, expected);
}

#[test]
fn a_full_table_leaves_allocations_where_they_are() {
    let quota = hairpin_server::quota::QuotaLimits::default().total(8);
    let builder = hairpin_server::Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(private_loopback(9))
        .relay_ports(24_000, 24_100)
        .user(common::USER, common::PASSWORD)
        .quota(quota)
        .workers(4)
        .steering(Steering::Bpf);
    let server = start(builder);
    // The limit grows, the table does not: it has room for as many again, for a process that takes over.
    let mut settings = hairpin_server::Settings::default();
    settings.users = vec![(common::USER.to_owned(), common::PASSWORD.to_owned())];
    server.reload(settings).expect("good settings");
    let mut clients = clients(&server, 80);
    assert_eq!(server.stats().allocations(), 80);
    assert_eq!(entries(&server), 16);
    clients.iter_mut().for_each(Client::release);
    assert_eq!(entries(&server), 0);
}

#[test]
fn answers_of_requests_that_moved_come_from_where_they_were_sent() {
    let server = steered(8);
    for client in &mut clients(&server, 16) {
        // `Client` checks the address of each answer.
        let message = client.signed(Method::REFRESH, &|_| Ok(()));
        assert!(Message::parse(&message).is_ok());
        client.release();
    }
    assert_eq!(entries(&server), 0);
}
