//! Allocations that come and go while datagrams are in transit: everything sent before leaves, nothing is left behind.

use crate::common::{Client, StopAtEnd, loopback, private_loopback, socket, start};
use hairpin_server::Running;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stun::{EvenPort, ReservationToken};

/// Nothing is held by anybody, and no socket is open.
fn assert_clean(server: Running) {
    crate::common::eventually("all relays are closed", || {
        server.stats().sum(|worker| worker.relays_open) == 0
    });
    assert_eq!(
        (server.failed_worker(), server.relayed_addresses_held()),
        (None, 0)
    );
    let stats = server.shutdown().expect("no worker failed");
    assert_eq!(stats.allocations(), 0);
    assert_eq!(
        stats.counters().relays_opened,
        stats.counters().relays_closed
    );
}

#[test]
fn data_sent_before_a_release_still_leaves() {
    let server = start(loopback(1));
    let peer = socket("127.0.0.1:0");
    let mut client = Client::new(server.listeners()[0]);
    for round in 0..300_u16 {
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        // The data and the Refresh are likely to be received as one batch.
        client.send(0x4000, &round.to_be_bytes());
        client.release();
        let mut buffer = [0; 16];
        assert_eq!(
            peer.recv_from(&mut buffer).expect("it has left"),
            (2, relayed)
        );
        assert_eq!(buffer[..2], round.to_be_bytes());
    }
    assert_clean(server);
}

#[test]
fn a_peer_that_goes_on_sending_disturbs_nobody() {
    let server = start(loopback(2));
    let target: Mutex<Option<SocketAddr>> = Mutex::new(None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stopper = StopAtEnd(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let peer = socket("127.0.0.1:0");
                while !stop.load(Ordering::Relaxed) {
                    let to = *target.lock().expect("no panic");
                    to.map(|to| peer.send_to(b"late", to));
                }
            });
        }
        let mut client = Client::new(server.listeners()[0]).flooded();
        for _ in 0..400 {
            let relayed = client.allocate();
            *target.lock().expect("no panic") = Some(relayed);
            assert_eq!(client.permit(relayed), 0);
            client.release();
        }
    });
    assert_clean(server);
}

/// One thread's share of the chaos. `known` are relayed addresses, live or not; `tokens` are reservations, claimed or
/// not.
fn chaos(
    server: &Running,
    seed: u64,
    until: Instant,
    known: &Mutex<Vec<SocketAddr>>,
    tokens: &Mutex<Vec<[u8; 8]>>,
) {
    let mut random = crate::common::Random(seed);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::new(server.listeners()[0])).collect();
    let mut allocated = vec![false; clients.len()];
    while Instant::now() < until {
        let number = (random.next() % clients.len() as u64) as usize;
        let client = &mut clients[number];
        if !allocated[number] {
            let token = tokens.lock().expect("no panic").pop();
            let answer = match (random.next() % 3, token) {
                (0, _) => client
                    .allocate_with(&|builder| builder.push(&EvenPort { reserve: true }).map(drop)),
                (_, Some(token)) => client
                    .allocate_with(&|builder| builder.push(&ReservationToken(token)).map(drop)),
                (_, None) => client.try_allocate(),
            };
            assert!(matches!(answer.code(), 0 | 508), "{}", answer.code());
            allocated[number] = answer.code() == 0;
            if allocated[number] {
                known.lock().expect("no panic").push(answer.relayed());
                tokens.lock().expect("no panic").extend(answer.try_token());
            }
            continue;
        }
        let known = known.lock().expect("no panic").clone();
        let peer = known[(random.next() % known.len() as u64) as usize];
        match random.next() % 8 {
            0 => {
                client.release();
                allocated[number] = false;
            }
            1 => drop(client.permit(peer)),
            2 => drop(client.bind(0x4000 + (random.next() % 4) as u16, peer)),
            3 => client.indicate(peer, &[1; 50]),
            _ => client.send(0x4000 + (random.next() % 4) as u16, &[2; 90]),
        }
    }
    for (client, _) in clients
        .iter_mut()
        .zip(allocated)
        .filter(|(_, allocated)| *allocated)
    {
        client.release();
    }
}

#[test]
fn chaos_on_four_workers_leaves_nothing_behind() {
    let relay = private_loopback(4);
    let builder = hairpin_server::Server::builder()
        .listen(crate::common::at("127.0.0.1:0"))
        .relay_address(relay);
    // Few ports, so that they run out, are taken from other workers, and come back.
    let builder = builder
        .user(crate::common::USER, crate::common::PASSWORD)
        .relay_ports(23_000, 23_039)
        .workers(4);
    let server = start(builder);
    let (known, tokens) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let until = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for seed in 1..=6 {
            let (server, known, tokens) = (&server, &known, &tokens);
            scope.spawn(move || chaos(server, seed, until, known, tokens));
        }
    });
    let stats = server.stats();
    let counters = stats.counters();
    assert!(
        counters.relays_given > 0 && counters.handed_over_away > 0 && counters.no_port > 0,
        "{counters:?}"
    );
    assert_eq!(stats.allocations(), 0);
    // What is still open are reservations that nobody has claimed.
    let reserved = stats.sum(|worker| worker.engine.reservations);
    crate::common::eventually("only reservations are open", || {
        server.stats().sum(|worker| worker.relays_open) == reserved
    });
    assert_eq!(u64::from(server.relayed_addresses_held()), reserved);
    let stats = server.shutdown().expect("no worker failed");
    assert_eq!(
        stats.counters().relays_opened,
        stats.counters().relays_closed
    );
    assert_eq!(stats.counters().open_failed, 0);
}
