//! Data through the server on loopback: every combination of families, framings and kinds of peers.

use crate::common::{Client, Got, at, clients_on_two_workers, ip, loopback, socket, start};
use hairpin_server::{AddressFamily, Server};
use stun::RequestedAddressFamily;
use turn::server::DropReason;

#[test]
fn binding_says_where_the_client_is() {
    let server = start(loopback(2));
    let mut client = Client::new(server.listeners()[0]);
    let answer = client.request(stun::Method::BINDING, &|_| Ok(()));
    let mapped: Option<stun::XorMappedAddress> = answer.message().get().expect("well formed");
    assert_eq!(mapped.map(|mapped| mapped.0), Some(client.local()));
}

#[test]
fn channel_data_goes_both_ways() {
    let server = start(loopback(1));
    let peer = socket("127.0.0.1:0");
    let peer_at = peer.local_addr().expect("bound");
    let mut client = Client::new(server.listeners()[0]);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4001, peer_at), 0);
    for length in [0, 1, 3, 4, 1200, 9000, 60_000] {
        let sent: Vec<u8> = (0..length).map(|i| i as u8).collect();
        client.send(0x4001, &sent);
        let mut buffer = vec![0; 65_536];
        let (got, from) = peer.recv_from(&mut buffer).expect("relayed");
        assert_eq!(
            (from, &buffer[..got]),
            (relayed, &sent[..]),
            "{length} bytes to the peer"
        );
        peer.send_to(&sent, relayed).expect("sent");
        assert_eq!(
            client.got(),
            Got::Channel(0x4001, sent),
            "{length} bytes to the client"
        );
    }
}

#[test]
fn indications_go_both_ways() {
    let server = start(loopback(1));
    let peer = socket("127.0.0.1:0");
    let peer_at = peer.local_addr().expect("bound");
    let mut client = Client::new(server.listeners()[0]);
    let relayed = client.allocate();
    assert_eq!(client.permit(peer_at), 0);
    for length in [0, 1, 2, 3, 4, 1200, 9001] {
        let sent = vec![7; length];
        client.indicate(peer_at, &sent);
        let mut buffer = vec![0; 65_536];
        let (got, from) = peer.recv_from(&mut buffer).expect("relayed");
        assert_eq!((from, &buffer[..got]), (relayed, &sent[..]));
        peer.send_to(&sent, relayed).expect("sent");
        assert_eq!(client.got(), Got::Data(peer_at, sent));
    }
}

#[test]
fn families_combine_freely() {
    let builder = loopback(2).listen(at("[::1]:0")).relay_address(ip("::1"));
    let server = start(builder);
    for listener in server.listeners() {
        for (family, peer_at) in [
            (AddressFamily::V4, "127.0.0.1:0"),
            (AddressFamily::V6, "[::1]:0"),
        ] {
            let peer = socket(peer_at);
            let peer_at = peer.local_addr().expect("bound");
            let mut client = Client::new(*listener);
            let wish = RequestedAddressFamily(family);
            let answer = client.allocate_with(&|builder| builder.push(&wish).map(drop));
            assert_eq!(answer.code(), 0, "{listener} {family:?}");
            let relayed = answer.relayed();
            assert_eq!(relayed.is_ipv4(), family == AddressFamily::V4);
            assert_eq!(client.bind(0x4000, peer_at), 0);
            client.send(0x4000, b"ping");
            let mut buffer = [0; 64];
            assert_eq!(peer.recv_from(&mut buffer).expect("relayed"), (4, relayed));
            peer.send_to(b"pong", relayed).expect("sent");
            assert_eq!(client.got(), Got::Channel(0x4000, b"pong".to_vec()));
        }
    }
}

#[test]
fn a_wildcard_listener_answers_from_the_address_that_was_asked() {
    let builder = Server::builder()
        .listen(at("0.0.0.0:0"))
        .listen(at("[::]:0"))
        .user(crate::common::USER, crate::common::PASSWORD);
    let builder = builder
        .relay_address(ip("127.0.0.1"))
        .allow_peers("127.0.0.0/8".parse().expect("a network"));
    let server = start(builder.workers(2));
    let (v4, v6) = (server.listeners()[0].port(), server.listeners()[1].port());
    // The client asserts that every answer comes from the address it sent to.
    for asked in [
        format!("127.0.0.1:{v4}"),
        format!("127.0.0.2:{v4}"),
        format!("127.9.8.7:{v4}"),
        format!("[::1]:{v6}"),
    ] {
        let peer = socket("127.0.0.1:0");
        let mut client = Client::new(at(&asked));
        let relayed = client.allocate();
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        peer.send_to(b"hello", relayed).expect("sent");
        assert_eq!(
            client.got(),
            Got::Channel(0x4000, b"hello".to_vec()),
            "{asked}"
        );
    }
}

#[test]
fn own_listeners_and_dead_ports_are_no_peers() {
    let builder = loopback(2)
        .listen(at("127.0.0.3:0"))
        .listen(at("0.0.0.0:0"))
        .relay_address(ip("127.0.0.4"));
    let server = start(builder);
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    let wildcard_port = server.listeners()[2].port();
    for refused in [
        server.listeners()[0],
        server.listeners()[1],
        at(&format!("127.0.0.1:{wildcard_port}")),
        at(&format!("127.5.5.5:{wildcard_port}")),
    ] {
        assert_eq!(client.bind(0x4000, refused), 403, "{refused}");
        client.indicate(refused, b"to yourself");
    }
    let dropped = || {
        server.stats().dropped(DropReason::PeerNotAllowed)
            + server.stats().dropped(DropReason::NoPermission)
    };
    crate::common::eventually("the indications are dropped and counted", || dropped() == 4);
}

#[test]
fn private_peers_are_refused_unless_re_admitted() {
    let builder = Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"));
    let server = start(
        builder
            .user(crate::common::USER, crate::common::PASSWORD)
            .workers(1),
    );
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    for refused in [
        "10.0.0.1:80",
        "127.0.0.2:80",
        "169.254.169.254:80",
        "192.168.1.1:53",
        "255.255.255.255:9",
        "0.0.0.0:22",
    ] {
        assert_eq!(client.permit(at(refused)), 403, "{refused}");
        assert_eq!(client.bind(0x4000, at(refused)), 403, "{refused}");
    }
    assert_eq!(client.permit(at("198.51.100.1:80")), 0);
    // Its own relay address is loopback, so not admitted by rule; a permission is, a dead port is not.
    assert_eq!(client.permit(at("127.0.0.1:1")), 0);
    assert_eq!(client.bind(0x4000, at("127.0.0.1:60000")), 403);
}

fn exchange(one: &mut (Client, std::net::SocketAddr), other: &mut (Client, std::net::SocketAddr)) {
    assert_eq!(one.0.bind(0x4000, other.1), 0);
    assert_eq!(other.0.bind(0x4001, one.1), 0);
    for round in 0..50_u8 {
        one.0.send(0x4000, &[round; 100]);
        assert_eq!(other.0.got(), Got::Channel(0x4001, vec![round; 100]));
        other.0.send(0x4001, &[round; 33]);
        assert_eq!(one.0.got(), Got::Channel(0x4000, vec![round; 33]));
        one.0.indicate(other.1, &[round; 7]);
        assert_eq!(other.0.got(), Got::Channel(0x4001, vec![round; 7]));
    }
    one.0.send(0x4000, b"");
    assert_eq!(other.0.got(), Got::Channel(0x4001, Vec::new()));
}

/// Without any rule for loopback: relays reach each other although their address is special.
fn relays_only(workers: usize) -> hairpin_server::Builder {
    let builder = Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"));
    builder
        .user(crate::common::USER, crate::common::PASSWORD)
        .workers(workers)
}

#[test]
fn two_relays_of_one_worker_reach_each_other_inside() {
    let server = start(relays_only(1));
    let mut pair = [(); 2].map(|()| {
        let mut client = Client::new(server.listeners()[0]);
        let relayed = client.allocate();
        (client, relayed)
    });
    let [one, other] = &mut pair;
    exchange(one, other);
    let counters = server.stats().counters();
    assert_eq!(
        (counters.handed_over_here, counters.handed_over_away),
        (151, 0)
    );
    assert_eq!(
        counters.peer_datagrams, 0,
        "nothing went through the network"
    );
}

#[test]
fn relays_of_two_workers_reach_each_other_by_mailbox() {
    let server = start(relays_only(2));
    let [mut one, mut other] = clients_on_two_workers(&server);
    exchange(&mut one, &mut other);
    let counters = server.stats().counters();
    assert_eq!(
        (counters.handed_over_here, counters.handed_over_away),
        (0, 151)
    );
    assert_eq!(
        (
            counters.peer_datagrams,
            counters.mailbox_full,
            counters.relay_not_live
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_relay_without_permission_of_the_other_receives_nothing() {
    let server = start(relays_only(2));
    let [mut one, mut other] = clients_on_two_workers(&server);
    assert_eq!(one.0.bind(0x4000, other.1), 0);
    one.0.send(0x4000, b"unwanted");
    assert!(other.0.hears_nothing());
    assert_eq!(server.stats().dropped(DropReason::PeerWithoutPermission), 1);
    // Once the other relay is gone, what is sent there is dropped and counted.
    other.0.release();
    one.0.send(0x4000, b"into the void");
    crate::common::eventually("the datagram is counted", || {
        server.stats().counters().relay_not_live == 1
    });
}

#[test]
fn the_external_address_is_advertised_and_accepted() {
    let builder = Server::builder()
        .listen(at("127.0.0.1:0"))
        .external_address(ip("203.0.113.9"), Some(ip("127.0.0.1")));
    let server = start(
        builder
            .user(crate::common::USER, crate::common::PASSWORD)
            .workers(2),
    );
    let [mut one, mut other] = clients_on_two_workers(&server);
    assert_eq!(
        (one.1.ip(), other.1.ip()),
        (ip("203.0.113.9"), ip("203.0.113.9"))
    );
    // Between two clients the public address works without any NAT that hairpins.
    exchange(&mut one, &mut other);
}

#[test]
fn a_new_external_address_is_for_new_allocations_and_the_old_one_still_works() {
    let server = start(loopback(2).external_address(ip("203.0.113.9"), Some(ip("127.0.0.1"))));
    let [mut one, mut other] = clients_on_two_workers(&server);
    let [local, new] = ["127.0.0.1", "203.0.113.10"].map(ip);
    server.set_external_address(local, new).expect("all run");
    let advertised = |server: &hairpin_server::Running| {
        let mut relays = server.relay_addresses().into_iter();
        relays
            .find(|relay| relay.local == local)
            .map(|relay| relay.advertised)
    };
    assert_eq!(advertised(&server), Some(new));
    crate::common::eventually("a new allocation is told", || {
        let mut client = Client::new(server.listeners()[0]);
        client.allocate().ip() == new
    });
    exchange(&mut one, &mut other);
    // A client of before and one of now reach each other as well.
    let mut third = Client::new(server.listeners()[0]);
    let relayed = third.allocate();
    one.0.release();
    other.0.release();
    let [mut fourth, _fifth] = clients_on_two_workers(&server);
    exchange(&mut fourth, &mut (third, relayed));
    let refused = server.set_external_address(ip("127.0.0.77"), new);
    assert!(refused.is_err(), "no such relay address");
}

#[test]
fn listeners_of_the_embedding_program_are_protected_also_those_that_appear_later() {
    let (first, later) = (
        crate::common::at("127.0.0.1:9641"),
        crate::common::at("127.0.0.1:9642"),
    );
    let server = start(loopback(2).protect(first));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    assert_eq!(client.bind(0x4000, first), 403);
    assert_eq!(client.bind(0x4001, later), 0);
    server.protect(later).expect("all workers run");
    crate::common::eventually("the listener is protected", || {
        client.bind(0x4001, later) == 403
    });
    assert_eq!(client.bind(0x4002, crate::common::at("127.0.0.1:9643")), 0);
    server.shutdown().expect("it ends");
}
