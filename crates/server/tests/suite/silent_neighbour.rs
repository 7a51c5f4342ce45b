//! A client that is on the same link and answers no ARP any more: the kernel keeps what is sent to it, and charges that
//! to the socket by which the worker sends to all of its clients.

use crate::common::{Client, Got, at, eventually, ip, netns::Far, netns::with_wire, start};
use hairpin_server::{Running, Server};
use std::net::UdpSocket;
use std::process::Command;

fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("iproute2 is there").success(), "{arguments}");
}

/// A client at `address` in the far namespace with a channel to `peer`, and its relayed address.
fn client(
    far: &Far,
    address: &str,
    server: &Running,
    peer: &UdpSocket,
) -> (Client, std::net::SocketAddr) {
    let listener = server.listeners()[0];
    let peer = peer.local_addr().expect("bound");
    far.within(|| {
        let mut client = Client::from(&format!("{address}:0"), listener);
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, peer), 0);
        (client, relayed)
    })
}

#[test]
fn silent_neighbours_cost_other_clients_not_one_datagram() {
    const SILENT: [&str; 3] = ["10.7.7.51", "10.7.7.52", "10.7.7.53"];
    // What the kernel keeps for a neighbour, by far.
    const FLOOD: usize = 1000;
    const OTHERS: usize = 50;
    with_wire(|far| {
        let server = start(
            Server::builder()
                .listen(at("10.7.7.1:0"))
                .relay_address(ip("10.7.7.1"))
                .user(crate::common::USER, crate::common::PASSWORD)
                .allow_peers("10.0.0.0/8".parse().expect("a network"))
                .workers(1),
        );
        let peer = far.within(|| crate::common::socket("10.7.7.2:0"));
        let (other, to_other) = client(far, "10.7.7.2", &server, &peer);
        for address in SILENT {
            far.within(|| run(&format!("address add {address}/24 dev far")));
            let (_, relayed) = client(far, address, &server, &peer);
            far.within(|| run(&format!("address del {address}/24 dev far")));
            // Nothing is known of it any more: the kernel asks, and nobody answers.
            run("neigh flush dev near");
            let before = server.stats().counters().peer_datagrams;
            for number in 0..FLOOD {
                peer.send_to(&[b'x'; 100], relayed).expect("it leaves");
                // No more than the socket of a relay takes.
                if number % 100 == 99 {
                    eventually("the server reads", || {
                        let read = server.stats().counters().peer_datagrams - before;
                        read > number as u64
                    });
                }
            }
            for _ in 0..OTHERS {
                peer.send_to(b"for the other", to_other).expect("it leaves");
            }
            for _ in 0..OTHERS {
                assert_eq!(other.got(), Got::Channel(0x4000, b"for the other".to_vec()));
            }
        }
        assert_eq!(server.stats().sends().dropped(), 0);
    });
}
