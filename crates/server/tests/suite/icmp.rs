//! ICMP errors about what was relayed to a peer reach the client (RFC 8656 §11.5).

use crate::common::{Client, at, ip, loopback, socket, start};
use hairpin_server::Server;
use std::net::SocketAddr;
use stun::{AddressFamily, Icmp, Message, RequestedAddressFamily, XorPeerAddress};

/// The next indication, which must be about ICMP: peer, type, code and data.
fn told(client: &Client) -> (SocketAddr, u8, u8, u32) {
    let datagram = client.receive();
    let message = Message::parse(&datagram).expect("a STUN message");
    let peer: Option<XorPeerAddress> = message.get().expect("well formed");
    let icmp: Option<Icmp> = message.get().expect("well formed");
    let icmp = icmp.expect("an ICMP attribute");
    let peer = peer.expect("a peer").0;
    (peer, icmp.icmp_type, icmp.icmp_code, icmp.error_data)
}

fn of_family(family: AddressFamily) -> RequestedAddressFamily {
    RequestedAddressFamily(family)
}

#[test]
fn a_closed_port_is_reported_to_the_client() {
    let server = start(loopback(1).relay_address(ip("::1")));
    for (any, family, expected) in [
        ("127.0.0.1:0", AddressFamily::V4, (3, 3, 0)),
        ("[::1]:0", AddressFamily::V6, (1, 4, 0)),
    ] {
        let mut client = Client::new(server.listeners()[0]);
        client.allocate_with(&|builder| builder.push(&of_family(family)).map(drop));
        let closed = socket(any).local_addr().expect("bound");
        let open = socket(any);
        assert_eq!(client.bind(0x4000, open.local_addr().expect("bound")), 0);
        let (kind, code, data) = expected;
        for _ in 0..3 {
            client.indicate(closed, b"is anybody there?");
            assert_eq!(told(&client), (closed, kind, code, data));
        }
        // Nobody else loses anything, whatever waits in the error queue.
        for number in 0..50_u8 {
            client.indicate(closed, b"is anybody there?");
            client.send(0x4000, &[number]);
            let mut buffer = [0; 8];
            // A process that was stopped and continued gets EINTR.
            let received = loop {
                match open.recv_from(&mut buffer) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    other => break other.expect("relayed").0,
                }
            };
            assert_eq!(received, 1);
            assert_eq!(buffer[0], number);
        }
        for _ in 0..50 {
            assert_eq!(told(&client), (closed, kind, code, data));
        }
        // With a channel to the closed port, too.
        assert_eq!(client.bind(0x4001, closed), 0);
        client.send(0x4001, b"is anybody there?");
        assert_eq!(told(&client), (closed, kind, code, data));
    }
    let counters = server.stats().counters();
    assert_eq!((counters.icmp_errors, counters.receive_errors), (108, 0));
}

/// The worker's thread is idle again once the errors have been fetched.
#[test]
fn errors_do_not_keep_the_worker_awake() {
    let server = start(loopback(1));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    let closed = socket("127.0.0.1:0").local_addr().expect("bound");
    assert_eq!(client.permit(closed), 0);
    for _ in 0..20 {
        client.indicate(closed, b"is anybody there?");
        told(&client);
    }
    let before = server.stats().counters();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let after = server.stats().counters();
    let woken = after.wake_ups - before.wake_ups;
    assert!(woken < 30, "{woken} wake-ups while nothing happened");
}

/// A router on the way has a link that the datagram does not fit; the client set DF, or it is IPv6.
#[test]
fn a_path_that_is_too_narrow_is_reported_with_its_mtu() {
    crate::common::netns::with_wire(|_| {
        let server = Server::builder()
            .listen(at("10.7.7.1:0"))
            .relay_address(ip("10.7.7.1"))
            .relay_address(ip("fd07::1"))
            .user(crate::common::USER, crate::common::PASSWORD)
            .allow_peers("10.8.8.0/24".parse().expect("a network"))
            .allow_peers("fd08::/64".parse().expect("a network"))
            .workers(1);
        let server = start(server);
        let payload = [1; 1400];
        for (peer, family, expected) in [
            (at("10.8.8.9:700"), AddressFamily::V4, (3, 4, 1300)),
            (at("[fd08::9]:700"), AddressFamily::V6, (2, 0, 1300)),
        ] {
            let mut client = Client::new(server.listeners()[0]);
            client.allocate_with(&|builder| builder.push(&of_family(family)).map(drop));
            assert_eq!(client.permit(peer), 0);
            let (kind, code, mtu) = expected;
            client.indicate_whole(peer, &payload);
            assert_eq!(told(&client), (peer, kind, code, mtu));
            // Too big for the first link even: said by this machine, which does not know the port.
            if peer.is_ipv4() {
                client.indicate_whole(peer, &[1; 1600]);
                let (to, kind, code, mtu) = told(&client);
                assert_eq!((to.ip(), kind, code, mtu), (peer.ip(), 3, 4, 1500));
            }
        }
    });
}
