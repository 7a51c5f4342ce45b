//! Trains of datagrams (GSO in, GRO at the server, GSO out): cut and joined without loss, in every direction.

use crate::common::marked::Marked;
use crate::common::{Client, Got, at, loopback, start};
use stun::channel_data;

/// Payloads of one length but for the last, which is shorter.
fn payloads(count: usize, length: usize, last: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| vec![i as u8; if i + 1 == count { last } else { length }])
        .collect()
}

fn framed(channel: u16, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frame = |payload: &Vec<u8>| {
        let length = u16::try_from(payload.len()).expect("short");
        let mut frame = channel_data::header(crate::common::channel(channel), length).to_vec();
        frame.extend_from_slice(payload);
        frame
    };
    payloads.iter().map(frame).collect()
}

const SHAPES: [(usize, usize, usize); 5] = [
    (2, 100, 100),
    (40, 160, 160),
    (40, 160, 7),
    (30, 1200, 1),
    (64, 33, 0),
];

#[test]
fn trains_pass_both_ways() {
    let server = start(loopback(1));
    let mut client = Client::marked(server.listeners()[0], 0);
    let peer = Marked::new(at("127.0.0.1:0"), 0);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4000, peer.local()), 0);
    let guest = Marked::new(at("127.0.0.1:0"), 0);
    for (count, length, last) in SHAPES {
        let payloads = payloads(count, length, last);
        client.send_train(&framed(0x4000, &payloads));
        for expected in &payloads {
            let (got, from, _) = peer.receive();
            assert_eq!((&got, from), (expected, relayed), "{count} x {length}");
        }
        peer.send_train(&payloads, relayed);
        for expected in &payloads {
            assert_eq!(
                client.got(),
                Got::Channel(0x4000, expected.clone()),
                "{count} x {length}"
            );
        }
        guest.send_train(&payloads, relayed);
        for expected in &payloads {
            assert_eq!(client.got(), Got::Data(guest.local(), expected.clone()));
        }
    }
}

#[test]
fn a_train_of_several_channels_is_split_by_peer() {
    let server = start(loopback(1));
    let mut client = Client::marked(server.listeners()[0], 0);
    let peers = [(); 3].map(|()| Marked::new(at("127.0.0.1:0"), 0));
    let relayed = client.allocate();
    for (number, peer) in (0x4000..).zip(&peers) {
        assert_eq!(client.bind(number, peer.local()), 0);
    }
    // One GSO train, in which runs of three, two and one change channels, and one channel is not bound.
    let order = [0, 0, 0, 1, 1, 2, 9, 2, 0, 1, 2, 2];
    let train: Vec<Vec<u8>> = (0_u8..)
        .zip(order)
        .flat_map(|(i, peer)| framed(0x4000 + peer, &[vec![i; 50]]))
        .collect();
    client.send_train(&train);
    for (i, peer) in (0_u8..).zip(order) {
        if let Some(peer) = peers.get(usize::from(peer)) {
            let (got, from, _) = peer.receive();
            assert_eq!((got, from), (vec![i; 50], relayed));
        }
    }
    let stats = server.stats();
    assert_eq!(stats.dropped(turn::server::DropReason::ChannelNotBound), 1);
}

#[test]
fn trains_pass_from_relay_to_relay() {
    for workers in [1, 2] {
        let server = start(loopback(workers));
        let mut one = Client::marked(server.listeners()[0], 0);
        let mut others: Vec<(Client, std::net::SocketAddr)> = Vec::new();
        let relayed = one.allocate();
        // Eight others: on two workers some are next door and some are away.
        for number in 0x4000..0x4008 {
            let mut other = Client::new(server.listeners()[0]);
            let at = other.allocate();
            assert_eq!((other.bind(0x4000, relayed), one.bind(number, at)), (0, 0));
            others.push((other, at));
        }
        for (number, (other, _)) in (0x4000..).zip(&others) {
            for (count, length, last) in SHAPES {
                let payloads = payloads(count, length, last);
                one.send_train(&framed(number, &payloads));
                for expected in &payloads {
                    assert_eq!(other.got(), Got::Channel(0x4000, expected.clone()));
                }
            }
        }
    }
}
