//! Clients that keep their allocation at another address (RFC 8016), with several workers.

use crate::common::dtls::DtlsLink;
use crate::common::stream::StreamLink;
use crate::common::{Answer, Client, Got, at, eventually, loopback, socket, start};
use hairpin_server::{Running, Steering};
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use stun::{AttributeType, Lifetime, Method, MobilityTicket};

const CHANNEL: u16 = 0x4001;

fn ticket_of(answer: &Answer) -> Vec<u8> {
    let ticket: Option<MobilityTicket<'_>> = answer.message().get().expect("well formed");
    ticket.expect("a ticket").0.to_vec()
}

fn allocate(client: &mut Client) -> Answer {
    client.allocate_with(&|request| {
        request
            .push_raw(AttributeType::MOBILITY_TICKET, &[])
            .map(drop)
    })
}

fn move_by(client: &mut Client, ticket: &[u8]) -> Answer {
    client.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(600))?;
        request.push(&MobilityTicket(ticket)).map(drop)
    })
}

/// Data goes both ways between a client and the peer.
fn expect_both_ways(client: &Client, peer: &UdpSocket, relayed: std::net::SocketAddr) {
    let mut buffer = [0; 64];
    client.send(CHANNEL, b"up");
    let (length, from) = peer.recv_from(&mut buffer).expect("it arrives");
    assert_eq!((&buffer[..length], from), (&b"up"[..], relayed));
    peer.send_to(b"down", relayed).expect("sent");
    assert_eq!(client.got(), Got::Channel(CHANNEL, b"down".to_vec()));
}

/// Allocates from one address, and goes on from another, which `arrive` makes. Returns the client there.
fn roam(mut old: Client, peer: &UdpSocket, arrive: &dyn Fn() -> Client) -> Client {
    let allocated = allocate(&mut old);
    assert_eq!(allocated.code(), 0);
    let relayed = allocated.relayed();
    let at_peer = peer.local_addr().expect("bound");
    assert_eq!(old.bind(CHANNEL, at_peer), 0);
    expect_both_ways(&old, peer, relayed);

    let mut new = arrive();
    let answer = move_by(&mut new, &ticket_of(&allocated));
    assert_eq!(answer.code(), 0);
    assert_ne!(ticket_of(&answer), ticket_of(&allocated));
    // Until the new address has sent data, the old one has it all.
    expect_both_ways(&old, peer, relayed);
    expect_both_ways(&new, peer, relayed);
    assert_eq!(new.permit(at_peer), 0);
    expect_both_ways(&new, peer, relayed);
    new
}

/// How many allocations have moved, on all workers.
fn moved(server: &Running) -> u64 {
    let stats = server.stats();
    let workers = stats.workers.iter();
    workers.map(|worker| worker.engine.allocations_moved).sum()
}

#[test]
fn clients_keep_their_allocation_whichever_worker_their_new_address_leads_to() {
    let server = start(loopback(3).listen_tcp(at("127.0.0.1:0")));
    if server.steering().name() != "bpf" {
        return assert!(!may_load_programs(), "{:?}", server.steering());
    }
    let peer = socket("127.0.0.1:0");
    let udp = server.listeners()[0];
    let tcp = server.tcp_listeners()[0];
    let mut clients = Vec::new();
    for _ in 0..12 {
        clients.push(roam(Client::new(udp), &peer, &|| Client::new(udp)));
        clients.push(roam(Client::new(udp), &peer, &|| {
            Client::stream(StreamLink::tcp(tcp))
        }));
        clients.push(roam(Client::stream(StreamLink::tcp(tcp)), &peer, &|| {
            Client::new(udp)
        }));
    }
    assert_eq!(moved(&server), 36);
    assert_eq!(server.stats().allocations(), 36);
    clients.iter_mut().for_each(Client::release);
    assert_eq!(server.stats().allocations(), 0);
    eventually("no entry leads to a worker", || server.steered_flows() == 0);
}

fn may_load_programs() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = u64::from_str_radix(line.expect("a line").trim(), 16).expect("hexadecimal");
    // CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN.
    bits >> 21 & 1 == 1 || bits >> 39 & 1 == 1 && bits >> 12 & 1 == 1
}

#[test]
fn a_client_of_one_worker_moves_without_any_capability() {
    let moves = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&moves);
    let server = start(loopback(1).on_event(move |event| {
        if let hairpin_server::hooks::Event::ClientMoved { client, from } = event {
            let both = (from.remote, client.five_tuple.remote);
            seen.lock().expect("not poisoned").push(both);
        }
    }));
    let udp = server.listeners()[0];
    let old = Client::new(udp);
    let from = old.local();
    let new = roam(old, &socket("127.0.0.1:0"), &|| Client::new(udp));
    assert_eq!(*moves.lock().expect("not poisoned"), [(from, new.local())]);
}

#[test]
fn without_steering_several_workers_forbid_mobility_rfc8016_3_1_2() {
    let server = start(loopback(2).steering(Steering::Hash));
    let mut client = Client::new(server.listeners()[0]);
    assert_eq!(allocate(&mut client).code(), 405);
    client.allocate();
    assert_eq!(move_by(&mut client, &[]).code(), 405);
}

#[test]
fn a_client_moves_to_a_dtls_session_of_the_same_worker() {
    let (certificates, config) = crate::common::dtls::configs();
    let builder = loopback(1).listen_dtls(at("127.0.0.1:0"));
    let server = start(builder.certificates(certificates));
    let (udp, dtls) = (server.listeners()[0], server.dtls_listeners()[0]);
    let peer = socket("127.0.0.1:0");
    let arrive = || Client::dtls(DtlsLink::new(socket("127.0.0.1:0"), dtls, &config));
    let new = roam(Client::new(udp), &peer, &arrive);
    // The session ends, and the allocation waits for its client.
    new.dtls_link().close();
    let mut next = Client::new(udp);
    assert_eq!(next.permit(peer.local_addr().expect("bound")), 437);
    assert_eq!(server.stats().allocations(), 1);
}

#[test]
fn a_connection_that_breaks_before_the_next_is_made_costs_no_allocation() {
    let server = start(loopback(2).listen_tcp(at("127.0.0.1:0")));
    if server.steering().name() != "bpf" {
        return assert!(!may_load_programs(), "{:?}", server.steering());
    }
    let tcp = server.tcp_listeners()[0];
    let peer = socket("127.0.0.1:0");
    for _ in 0..8 {
        let mut client = Client::stream(StreamLink::tcp(tcp));
        let allocated = allocate(&mut client);
        let (mut ticket, relayed) = (ticket_of(&allocated), allocated.relayed());
        assert_eq!(client.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
        for _ in 0..3 {
            let before = server.stats().streams().tcp_now;
            drop(client);
            eventually("the connection is closed", || {
                server.stats().streams().tcp_now < before
            });
            client = Client::stream(StreamLink::tcp(tcp));
            let answer = move_by(&mut client, &ticket);
            assert_eq!(answer.code(), 0);
            ticket = ticket_of(&answer);
            expect_both_ways(&client, &peer, relayed);
        }
        client.release();
    }
    assert_eq!(server.stats().allocations(), 0);
}
