//! Bad weather: what was asked for comes about all the same, and both sides agree in the end.

use std::collections::HashMap;
use std::net::SocketAddr;

use turn::client::{AllocateOptions, Event};

use crate::network::{Dice, Weather};
use crate::pair::{Pair, all_arrived};

fn peer(number: u64) -> SocketAddr {
    ([198, 51, 100, number as u8], 7000).into()
}

/// Repeats datagrams until each has come back once; retransmission is the business of those who send data.
fn exchange(pair: &mut Pair, client: usize, peers: &[SocketAddr]) {
    let mut wanted = HashMap::new();
    for (number, peer) in peers.iter().enumerate() {
        wanted.insert(format!("{client} {number}").into_bytes(), *peer);
    }
    let mut data = Vec::new();
    for _ in 0..60 {
        for (payload, peer) in &wanted {
            pair.send(client, *peer, payload);
        }
        pair.run_s(1);
        data.extend(pair.data(client));
        if all_arrived(&data, &wanted) {
            return;
        }
    }
    let heard =
        |(payload, from): &(&Vec<u8>, &SocketAddr)| data.contains(&(**from, payload.to_vec()));
    let missing: Vec<_> = wanted.iter().filter(|pair| !heard(pair)).collect();
    panic!("client {client} never heard from {missing:?}");
}

/// One request in a thousand is lost seven times in such weather: its owner asks again.
fn ask_again(pair: &mut Pair, clients: &[usize]) {
    for client in clients {
        for event in pair.events(*client) {
            pair.with(*client, |client, now| match event {
                Event::ChannelFailed { peer, .. } => {
                    client.bind_channel(now, peer).expect("allocated");
                }
                Event::PermissionFailed { peer, .. } => {
                    client.permit(now, &[peer]).expect("allocated");
                }
                _ => {}
            });
        }
    }
    pair.run_s(40);
}

#[test]
fn everything_comes_about_in_bad_weather() {
    for seed in 1..=20 {
        let mut pair = Pair::new(Weather::FOUL, seed);
        let clients: Vec<usize> = (0..4).map(|_| pair.add_default_client()).collect();
        for client in &clients {
            pair.with(*client, |client, now| {
                client
                    .allocate(now, AllocateOptions::default())
                    .expect("not allocated");
            });
        }
        pair.run_s(120);
        let peers: Vec<SocketAddr> = (10..18).map(peer).collect();
        for client in &clients {
            assert!(pair.clients[*client].relayed().is_some(), "seed {seed}");
            pair.with(*client, |client, now| {
                let (channelled, permitted) = peers.split_at(4);
                for peer in channelled {
                    client.bind_channel(now, *peer).expect("allocated");
                }
                let ips: Vec<_> = permitted.iter().map(SocketAddr::ip).collect();
                client.permit(now, &ips).expect("allocated");
            });
        }
        pair.run_s(120);
        ask_again(&mut pair, &clients);
        for client in &clients {
            exchange(&mut pair, *client, &peers);
        }
    }
}

#[test]
fn an_allocation_survives_hours_of_bad_weather() {
    for seed in 1..=5 {
        let mut pair = Pair::new(Weather::FOUL, seed);
        let client = pair.add_allocated();
        let peers: Vec<SocketAddr> = (10..14).map(peer).collect();
        pair.with(client, |client, now| {
            for peer in &peers {
                client.bind_channel(now, *peer).expect("allocated");
            }
        });
        for hour in 0..4u8 {
            pair.run_s(3600);
            pair.reconfigure(|config| config.nonce_keys.rotate(&[hour; 32]));
            exchange(&mut pair, client, &peers);
        }
        let events = pair.events(client);
        let lost = events.iter().find(|event| matches!(event, Event::Lost(_)));
        assert_eq!(lost, None, "seed {seed}");
        assert_eq!(pair.server.stats().allocations, 1);
    }
}

#[test]
fn a_network_that_comes_back_finds_everybody_agreed() {
    for seed in 1..=10 {
        let mut pair = Pair::new(Weather::FOUL, seed);
        let client = pair.add_allocated();
        pair.with(client, |client, now| {
            client.bind_channel(now, peer(10)).expect("allocated");
        });
        pair.run_s(60);
        // Nothing gets through for longer than an allocation lasts.
        pair.network.weather.loss = 1000;
        pair.run_s(1300);
        pair.network.weather = Weather::FOUL;
        assert_eq!(pair.server.stats().allocations, 0);
        assert_eq!(pair.clients[client].relayed(), None, "seed {seed}");
        assert!(matches!(pair.events(client).last(), Some(Event::Lost(_))));
        pair.allocate(client, AllocateOptions::default());
    }
}

/// Random wishes in random order under random weather: no panic, nothing endless, and when all is quiet the client
/// believes in exactly what the server has.
#[test]
fn client_and_server_agree_after_random_requests() {
    for seed in 1..=60 {
        let mut dice = Dice(seed * 7919);
        let mut pair = Pair::new(Weather::FOUL, seed);
        let clients: Vec<usize> = (0..3).map(|_| pair.add_default_client()).collect();
        for _ in 0..120 {
            let client = clients[dice.below(3) as usize];
            wish(&mut pair, client, &mut dice);
            pair.run_ms(dice.below(30_000));
        }
        pair.run_s(60);
        let held = clients
            .iter()
            .filter(|client| pair.clients[**client].relayed().is_some())
            .count();
        // A release that nobody confirmed, or a success that came too late, may leave the server one more for a while.
        pair.run_s(1300);
        assert_eq!(pair.server.stats().allocations, held as u64, "seed {seed}");
        for client in clients {
            pair.with(client, |client, now| _ = client.release(now, None));
        }
        pair.run_s(120);
        pair.run_s(1300);
        assert_eq!(pair.server.stats().allocations, 0, "seed {seed}");
    }
}

/// One random wish; wishes that make no sense at the moment are refused, which is as good a test.
fn wish(pair: &mut Pair, index: usize, dice: &mut Dice) {
    let to = peer(10 + dice.below(6));
    match dice.below(12) {
        0..3 => pair.with(index, |client, now| {
            _ = client.allocate(now, AllocateOptions::default());
        }),
        3 => pair.with(index, |client, now| _ = client.refresh(now, None)),
        4 => pair.with(index, |client, now| _ = client.release(now, None)),
        5 | 6 => pair.with(index, |client, now| _ = client.permit(now, &[to.ip()])),
        7 | 8 => pair.with(index, |client, now| _ = client.bind_channel(now, to)),
        9 => pair.with(index, |client, now| client.binding(now)),
        10 => pair.reconfigure(|config| config.nonce_keys.rotate(&[dice.below(256) as u8; 32])),
        _ => _ = pair.send(index, to, b"whatever"),
    }
}
