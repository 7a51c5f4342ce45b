//! Many clients on several workers: every worker works, every client stays on its own, nothing is lost or mixed.

use crate::common::{Client, Got, StopAtEnd, loopback, socket, start};
use hairpin_server::Running;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use turn::server::DropReason;

/// Echoes until told to stop. Returns how many datagrams it saw.
fn echo(peer: &UdpSocket, stop: &AtomicBool) -> u64 {
    let mut buffer = [0; 2048];
    let mut seen = 0;
    peer.set_read_timeout(Some(Duration::from_millis(50)))
        .expect("a timeout");
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = peer.recv_from(&mut buffer) {
            peer.send_to(&buffer[..length], from).expect("echoed");
            seen += 1;
        }
    }
    seen
}

#[test]
fn sixty_four_clients_reach_all_of_four_workers_and_none_two() {
    const ROUNDS: u64 = 20;
    let server = start(loopback(4));
    let peer = socket("127.0.0.1:0");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopper = StopAtEnd(&stop);
        let echoing = scope.spawn(|| echo(&peer, &stop));
        let mut clients: Vec<Client> = (0..64)
            .map(|_| Client::new(server.listeners()[0]))
            .collect();
        for client in &mut clients {
            client.allocate();
            assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        }
        for round in 0..ROUNDS {
            for (number, client) in clients.iter().enumerate() {
                let message = format!("{number} {round}").into_bytes();
                client.send(0x4000, &message);
                assert_eq!(client.got(), Got::Channel(0x4000, message));
            }
        }
        drop(stopper);
        assert_eq!(echoing.join().expect("no panic"), 64 * ROUNDS);
    });
    let stats = server.stats();
    assert_eq!(stats.workers.len(), 4);
    for worker in &stats.workers {
        assert!(
            worker.engine.to_peers.packets > 0 && worker.engine.to_clients.packets > 0,
            "an idle worker: {stats:?}"
        );
        // A 5-tuple at a second worker would have no allocation there.
        assert_eq!(worker.engine.dropped(DropReason::NoAllocation), 0);
        assert_eq!(worker.engine.errors_with(437), 0);
    }
    assert_eq!(stats.sum(|worker| worker.engine.allocations_opened), 64);
    assert_eq!(
        stats.sum(|worker| worker.engine.to_peers.packets),
        64 * ROUNDS
    );
    assert_eq!(
        stats.sum(|worker| worker.engine.to_clients.packets),
        64 * ROUNDS
    );
}

const CLIENTS: usize = 200;
const THREADS: usize = 4;
const ROUNDS: u32 = 60;
/// Datagrams to the neighbour per round; few enough for a default receive buffer.
const BURST: u32 = 4;

const TO_PEER: u16 = 0x4000;
const TO_NEXT: u16 = 0x4001;
const TO_PREVIOUS: u16 = 0x4002;

fn message(kind: &str, sender: usize, round: u32, number: u32) -> Vec<u8> {
    // Lengths differ, so that runs are cut in every way.
    let padding = (sender * 7 + round as usize * 13 + number as usize) % 300;
    format!(
        "{kind} from {sender} in {round}, number {number}{}",
        ".".repeat(padding)
    )
    .into_bytes()
}

/// One round of one client: what it must receive, having sent its own.
fn collect(client: &Client, number: usize, round: u32) {
    let (previous, next) = ((number + CLIENTS - 1) % CLIENTS, (number + 1) % CLIENTS);
    let mut expected = vec![Got::Channel(TO_PEER, message("echo", number, round, 0))];
    for i in 0..BURST {
        expected.push(Got::Channel(
            TO_PREVIOUS,
            message("forward", previous, round, i),
        ));
        expected.push(Got::Channel(TO_NEXT, message("backward", next, round, i)));
    }
    let mut in_order = [0; 3];
    while !expected.is_empty() {
        let got = client.got();
        let place = expected.iter().position(|wanted| *wanted == got);
        let place = place.unwrap_or_else(|| panic!("client {number} in {round} got {got:?}"));
        let Got::Channel(channel, _) = expected.remove(place) else {
            unreachable!("only channels")
        };
        let waiting = |wanted: &&Got| matches!(wanted, Got::Channel(other, _) if *other == channel);
        assert!(
            expected[..place].iter().find(waiting).is_none(),
            "out of order on {channel:#x}"
        );
        in_order[usize::from(channel - TO_PEER)] += 1;
    }
    assert_eq!(in_order, [1, BURST, BURST]);
}

/// A barrier that fails instead of hanging when another thread has failed.
fn wait_for_all(arrived: &AtomicUsize, round: u32) {
    arrived.fetch_add(1, Ordering::AcqRel);
    crate::common::eventually("all threads have finished the round", || {
        arrived.load(Ordering::Acquire) >= (round as usize + 1) * THREADS
    });
}

/// One round of a thread's clients: everybody sends, then everybody receives.
fn one_round(clients: &[Client], first: usize, round: u32) {
    for (number, client) in (first..).zip(clients) {
        client.send(TO_PEER, &message("echo", number, round, 0));
        for i in 0..BURST {
            client.send(TO_NEXT, &message("forward", number, round, i));
            client.send(TO_PREVIOUS, &message("backward", number, round, i));
        }
    }
    for (number, client) in (first..).zip(clients) {
        collect(client, number, round);
    }
}

/// Clients with a channel each to one common peer and to their two neighbours in a ring.
fn ring(server: &Running, peer: SocketAddr) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|_| Client::new(server.listeners()[0]))
        .collect();
    let relayed: Vec<SocketAddr> = clients.iter_mut().map(Client::allocate).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let (next, previous) = ((number + 1) % CLIENTS, (number + CLIENTS - 1) % CLIENTS);
        assert_eq!(client.bind(TO_PEER, peer), 0);
        assert_eq!(client.bind(TO_NEXT, relayed[next]), 0);
        assert_eq!(client.bind(TO_PREVIOUS, relayed[previous]), 0);
    }
    clients
}

#[test]
fn two_hundred_clients_lose_and_mix_nothing() {
    let server = start(loopback(2));
    let peer = socket("127.0.0.1:0");
    let mut clients = ring(&server, peer.local_addr().expect("bound"));
    let (stop, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopper = StopAtEnd(&stop);
        let echoing = scope.spawn(|| echo(&peer, &stop));
        let share = CLIENTS / THREADS;
        let threads: Vec<_> = clients
            .chunks_mut(share)
            .enumerate()
            .map(|(thread, clients)| {
                let arrived = &arrived;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        one_round(clients, thread * share, round);
                        wait_for_all(arrived, round);
                    }
                })
            })
            .collect();
        let failed = threads
            .into_iter()
            .filter_map(|thread| thread.join().err())
            .count();
        drop(stopper);
        let echoed = echoing.join().expect("no panic");
        assert_eq!(
            failed,
            0,
            "something was lost or mixed: {:?}",
            server.stats()
        );
        assert_eq!(echoed, CLIENTS as u64 * u64::from(ROUNDS));
    });
    let stats = server.stats();
    let counters = stats.counters();
    let between = CLIENTS as u64 * u64::from(ROUNDS * BURST) * 2;
    assert_eq!(
        counters.handed_over_here + counters.handed_over_away,
        between
    );
    assert!(
        counters.handed_over_here > 0 && counters.handed_over_away > 0,
        "both ways"
    );
    assert_eq!(
        (
            counters.mailbox_full,
            counters.relay_not_live,
            counters.listener_overflow + counters.relay_overflow
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.sends().dropped(), 0);
}
