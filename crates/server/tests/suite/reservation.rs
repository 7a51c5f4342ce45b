//! EVEN-PORT and RESERVATION-TOKEN (RFC 8656 §7.2), also where the two requests reach different workers.

use crate::common::{
    Client, Got, at, clients_on_two_workers, ip, loopback, socket, start, worker_that,
};
use hairpin_server::{Running, Server, Steering};
use stun::{EvenPort, ReservationToken};

/// Where a client's requests arrive does not change when it comes again.
fn by_hash(workers: usize) -> hairpin_server::Builder {
    loopback(workers).steering(Steering::Hash)
}

/// Clears the way for two clients whose workers are known to differ.
fn fresh_clients_on_two_workers(server: &Running) -> [Client; 2] {
    clients_on_two_workers(server).map(|(mut client, _)| {
        client.release();
        client
    })
}

fn reserve(client: &mut Client) -> (std::net::SocketAddr, [u8; 8]) {
    let answer =
        client.allocate_with(&|builder| builder.push(&EvenPort { reserve: true }).map(drop));
    assert_eq!(answer.code(), 0);
    (answer.relayed(), answer.token())
}

fn claim(client: &mut Client, token: [u8; 8]) -> crate::common::Answer {
    client.allocate_with(&|builder| builder.push(&ReservationToken(token)).map(drop))
}

#[test]
fn a_reserved_port_moves_to_the_worker_that_claims_it() {
    let server = start(by_hash(2));
    let [mut one, mut other] = fresh_clients_on_two_workers(&server);
    let (even, token) = reserve(&mut one);
    assert_eq!(even.port() % 2, 0);
    let answer = claim(&mut other, token);
    assert_eq!(answer.code(), 0);
    let odd = answer.relayed();
    assert_eq!((odd.ip(), odd.port()), (even.ip(), even.port() + 1));
    let counters = server.stats().counters();
    assert_eq!((counters.relays_given, counters.relays_received), (1, 1));

    // Both relays work, in both directions, and reach each other by mailbox.
    let peer = socket("127.0.0.1:0");
    for (client, relayed) in [(&mut one, even), (&mut other, odd)] {
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        client.send(0x4000, b"ping");
        assert_eq!(peer.recv_from(&mut [0; 16]).expect("relayed"), (4, relayed));
        peer.send_to(b"pong", relayed).expect("sent");
        assert_eq!(client.got(), Got::Channel(0x4000, b"pong".to_vec()));
    }
    assert_eq!((one.bind(0x4001, odd), other.bind(0x4001, even)), (0, 0));
    one.send(0x4001, b"across");
    assert_eq!(other.got(), Got::Channel(0x4001, b"across".to_vec()));
    assert_eq!(server.stats().counters().handed_over_away, 1);

    // A token is good once, and the ports come back.
    let mut third = Client::new(server.listeners()[0]);
    assert_eq!(claim(&mut third, token).code(), 508);
    one.release();
    other.release();
    crate::common::eventually("both sockets are closed", || {
        server.stats().sum(|worker| worker.relays_open) == 0
    });
    assert_eq!(server.relayed_addresses_held(), 0);
}

#[test]
fn a_token_is_worth_nothing_to_another_user_or_when_made_up() {
    let server = start(by_hash(2).user("bob", "hunter2"));
    let [mut one, other] = fresh_clients_on_two_workers(&server);
    let (_, token) = reserve(&mut one);
    let mut bob = other.with_user("bob", "hunter2");
    assert_eq!(claim(&mut bob, token).code(), 508);
    for first in [0, 1, 2, 7, 255] {
        let mut guess = token;
        (guess[0], guess[7]) = (first, !token[7]);
        assert_eq!(claim(&mut bob, guess).code(), 508, "worker {first}");
    }
    assert_eq!(server.stats().counters().relays_given, 0);
}

#[test]
fn reservations_take_pairs_and_say_508_when_none_is_left() {
    let builder = Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(crate::common::private_loopback(3))
        .relay_ports(22_001, 22_008);
    let server = start(
        builder
            .user(crate::common::USER, crate::common::PASSWORD)
            .workers(1),
    );
    let mut clients: Vec<Client> = (0..4).map(|_| Client::new(server.listeners()[0])).collect();
    // 22002+3, 22004+5, 22006+7 are pairs; 22001 and 22008 are left over.
    for client in &mut clients[..3] {
        reserve(client);
    }
    let none =
        clients[3].allocate_with(&|builder| builder.push(&EvenPort { reserve: true }).map(drop));
    assert_eq!(none.code(), 508);
    let even =
        clients[3].allocate_with(&|builder| builder.push(&EvenPort { reserve: false }).map(drop));
    assert_eq!((even.code(), even.relayed().port()), (0, 22_008));
    assert_eq!(server.stats().counters().no_port, 2, "both of the pair");
}

#[test]
fn a_claim_by_the_same_worker_needs_no_mailbox() {
    let server = start(loopback(1));
    let mut one = Client::new(server.listeners()[0]);
    let (even, token) = reserve(&mut one);
    let mut other = Client::new(server.listeners()[0]);
    let worker = worker_that(&server, || {
        let answer = claim(&mut other, token);
        assert_eq!(
            (answer.code(), answer.relayed().port()),
            (0, even.port() + 1)
        );
    });
    assert_eq!(worker, 0);
    assert_eq!(server.stats().counters().relays_given, 0);
}

#[test]
fn a_reserved_port_is_no_peer_until_it_is_claimed() {
    for workers in [1, 2] {
        // Without a rule for loopback, only live relays are reached there.
        let builder = Server::builder()
            .listen(at("127.0.0.1:0"))
            .relay_address(ip("127.0.0.1"));
        let server = start(
            builder
                .user(crate::common::USER, crate::common::PASSWORD)
                .workers(workers),
        );
        let mut one = Client::new(server.listeners()[0]);
        let (even, token) = reserve(&mut one);
        let odd = std::net::SocketAddr::new(even.ip(), even.port() + 1);
        let mut other = Client::new(server.listeners()[0]);
        other.allocate();
        assert_eq!(other.bind(0x4000, even), 0);
        assert_eq!(other.bind(0x4001, odd), 403, "nobody owns it yet");
        let mut third = Client::new(server.listeners()[0]);
        assert_eq!(claim(&mut third, token).code(), 0);
        assert_eq!(other.bind(0x4001, odd), 0);
    }
}
