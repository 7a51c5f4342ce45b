//! Not one heap allocation per relayed datagram, in any direction, nor per Binding or refused request, once buffers are
//! warm.
//!
//! The allocator counts for the whole process, so this file has one test, and the test itself allocates nothing while
//! it counts.

mod common;

use common::{Client, clients_on_two_workers, loopback, socket, start};
use hairpin_server::Running;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::net::{SocketAddr, UdpSocket};
use stun::{Builder, Class, Method, RequestedTransport, TransactionId};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Sends `message` and checks that something as long as `expected` says arrives at `to`.
fn pass(from: &UdpSocket, message: &[u8], via: SocketAddr, to: &UdpSocket, expected: usize) {
    let mut buffer = [0; 2048];
    from.send_to(message, via).expect("sent");
    let (length, _) = to.recv_from(&mut buffer).expect("relayed");
    assert_eq!(length, expected);
}

#[test]
fn relaying_allocates_nothing() {
    let server = start(loopback(2));
    let listener = server.listeners()[0];
    let [mut one, mut other] = clients_on_two_workers(&server);
    let peer = socket("127.0.0.1:0");
    let guest = socket("127.0.0.1:0");
    let stranger = socket("127.0.0.9:0");
    let peer_at = peer.local_addr().expect("bound");
    assert_eq!(one.0.bind(0x4000, peer_at), 0);
    assert_eq!(one.0.bind(0x4001, other.1), 0);
    assert_eq!(other.0.bind(0x4001, one.1), 0);
    assert_eq!(one.0.permit(guest.local_addr().expect("bound")), 0);
    let mut neighbour = same_worker_neighbour(&server, &one);
    assert_eq!(one.0.bind(0x4002, neighbour.1), 0);
    assert_eq!(neighbour.0.permit(one.1), 0);

    let payload = [5; 160];
    let data = |channel: u16| {
        let mut message = channel.to_be_bytes().to_vec();
        message.extend_from_slice(&160_u16.to_be_bytes());
        message.extend_from_slice(&payload);
        message
    };
    let (to_peer, across, next_door) = (data(0x4000), data(0x4001), data(0x4002));
    let send_indication = one.0.send_indication(peer_at, &payload);
    let (client, far, near) = (one.0.socket(), other.0.socket(), neighbour.0.socket());
    let indication = 20 + 12 + 4 + 160;
    let round = || {
        pass(client, &to_peer, listener, &peer, 160);
        pass(client, &send_indication, listener, &peer, 160);
        pass(&peer, &payload, one.1, client, 164);
        pass(&guest, &payload, one.1, client, indication);
        pass(client, &across, listener, far, 164);
        pass(client, &next_door, listener, near, 164);
        // What is refused must not cost an allocation either.
        stranger.send_to(&payload, other.1).expect("sent");
        client
            .send_to(&data_on_no_channel(), listener)
            .expect("sent");
        client.send_to(&[0xff; 40], listener).expect("sent");
    };
    let crowd = Crowd::new(&server, &peer);
    let before = server.stats().counters();
    (0..300).for_each(|_| round());
    (0..30).for_each(|_| crowd.round(listener, &peer));
    let region = Region::new(ALLOCATOR);
    (0..2_000).for_each(|_| round());
    (0..200).for_each(|_| crowd.round(listener, &peer));
    let change = region.change();
    assert_eq!(
        (
            change.allocations,
            change.reallocations,
            change.deallocations
        ),
        (0, 0, 0),
        "{change:?}"
    );

    let after = server.stats().counters();
    assert_eq!(after.handed_over_away - before.handed_over_away, 2_300);
    assert_eq!(after.handed_over_here - before.handed_over_here, 2_300);
}

/// Clients that take turns, so that batches mix flows, and strangers that are answered and forgotten.
struct Crowd {
    clients: Vec<(Client, SocketAddr)>,
    strangers: Vec<UdpSocket>,
    data: Vec<u8>,
    indication: Vec<u8>,
    binding: Vec<u8>,
    allocate: Vec<u8>,
}

impl Crowd {
    const MEMBERS: usize = 64;

    fn new(server: &Running, peer: &UdpSocket) -> Crowd {
        let peer_at = peer.local_addr().expect("bound");
        let clients: Vec<_> = (0..Crowd::MEMBERS)
            .map(|_| {
                let mut client = Client::new(server.listeners()[0]);
                let relayed = client.allocate();
                assert_eq!(client.bind(0x4000, peer_at), 0);
                (client, relayed)
            })
            .collect();
        let plain = |method, push: &dyn Fn(&mut Builder<'_>)| {
            let mut buffer = [0; 64];
            let id = TransactionId([3; 12]);
            let mut request = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
            push(&mut request);
            request.finish().to_vec()
        };
        let udp = |request: &mut Builder<'_>| {
            request.push(&RequestedTransport::UDP).expect("room");
        };
        Crowd {
            data: [&[0x40, 0, 0, 160][..], &[6; 160]].concat(),
            indication: clients[0].0.send_indication(peer_at, &[6; 160]),
            clients,
            strangers: (0..Crowd::MEMBERS).map(|_| socket("127.0.0.1:0")).collect(),
            binding: plain(Method::BINDING, &|_| {}),
            allocate: plain(Method::ALLOCATE, &udp),
        }
    }

    fn round(&self, listener: SocketAddr, peer: &UdpSocket) {
        let mut buffer = [0; 2048];
        let mut hear = |socket: &UdpSocket| socket.recv_from(&mut buffer).expect("relayed").0;
        for message in [&self.data, &self.indication] {
            for (client, _) in &self.clients {
                client.socket().send_to(message, listener).expect("sent");
            }
            self.clients
                .iter()
                .for_each(|_| assert_eq!(hear(peer), 160));
        }
        for (_, relayed) in &self.clients {
            peer.send_to(&[7; 160], relayed).expect("sent");
        }
        for (client, _) in &self.clients {
            assert_eq!(hear(client.socket()), 164);
        }
        for request in [&self.binding, &self.allocate] {
            for stranger in &self.strangers {
                stranger.send_to(request, listener).expect("sent");
            }
            for stranger in &self.strangers {
                assert!(hear(stranger) > 20, "an answer");
            }
        }
    }
}

/// A client with an allocation on the worker of `one`.
fn same_worker_neighbour(server: &Running, one: &(Client, SocketAddr)) -> (Client, SocketAddr) {
    loop {
        let mut client = Client::new(server.listeners()[0]);
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, one.1), 0);
        let before = server.stats().counters();
        client.send(0x4000, b"who is there");
        let mut here = 0;
        common::eventually("it is handed over, here or away", || {
            let counters = server.stats().counters();
            here = counters.handed_over_here - before.handed_over_here;
            here + counters.handed_over_away - before.handed_over_away > 0
        });
        // `one` has a permission for loopback, so it hears the question.
        one.0.got();
        if here > 0 {
            return (client, relayed);
        }
        client.release();
    }
}

fn data_on_no_channel() -> [u8; 8] {
    [0x4f, 0xff, 0, 4, 1, 2, 3, 4]
}
