//! A new server takes over from a running one, and nobody loses an allocation.
//!
//! Both are in this process. The tests need root (CAP_BPF and CAP_NET_ADMIN).

use crate::common::dtls::DtlsLink;
use crate::common::stream::StreamLink;
use crate::common::take_over::take_over;
use crate::common::{Answer, Client, Got, at, eventually, loopback, socket};
use hairpin_server::handover::HandoverError;
use hairpin_server::quota::QuotaLimits;
use hairpin_server::{Builder, Running, StartError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use stun::{AttributeType, ConnectionId, Lifetime, Method, MobilityTicket};
use stun::{RequestedTransport, XorPeerAddress};

const CHANNEL: u16 = 0x4001;

/// The same listeners as the running server has.
fn on_the_same(old: &Running, workers: usize) -> Builder {
    let mut builder = hairpin_server::Server::builder()
        .relay_address(crate::common::ip("127.0.0.1"))
        .user(crate::common::USER, crate::common::PASSWORD)
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .workers(workers);
    for listener in old.listeners() {
        builder = builder.listen(*listener);
    }
    for listener in old.tcp_listeners() {
        builder = builder.listen_tcp(*listener);
    }
    builder
}

fn taken_over(old: &Arc<Running>, workers: usize) -> Running {
    let new = take_over(old, on_the_same(old, workers)).unwrap_or_else(|error| panic!("{error}"));
    old.stop_listening().expect("every worker responds");
    new
}

/// Data goes both ways between a client and the peer.
fn expect_both_ways(client: &Client, peer: &UdpSocket, relayed: SocketAddr) {
    let mut buffer = [0; 64];
    client.send(CHANNEL, b"up");
    let (length, from) = peer.recv_from(&mut buffer).expect("it arrives");
    assert_eq!((&buffer[..length], from), (&b"up"[..], relayed));
    peer.send_to(b"down", relayed).expect("sent");
    assert_eq!(client.got(), Got::Channel(CHANNEL, b"down".to_vec()));
}

fn with_channel(mut client: Client, peer: &UdpSocket) -> (Client, SocketAddr) {
    let relayed = client.allocate();
    assert_eq!(client.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
    (client, relayed)
}

fn end(server: Arc<Running>) {
    // The thread that hands messages over ends with the new server's workers, or has ended.
    eventually("nobody else has the server", || {
        Arc::strong_count(&server) == 1
    });
    let server = Arc::into_inner(server).expect("nobody else has it");
    server.shutdown().expect("no worker has failed");
}

fn clients_keep_their_process(old_workers: usize, new_workers: usize) {
    let builder = loopback(old_workers).listen_tcp(at("127.0.0.1:0"));
    let old = Arc::new(builder.start().expect("it starts"));
    let (udp, tcp) = (old.listeners()[0], old.tcp_listeners()[0]);
    let peer = socket("127.0.0.1:0");
    let mut clients: Vec<_> = (0..32)
        .map(|_| with_channel(Client::new(udp), &peer))
        .collect();
    clients.push(with_channel(Client::stream(StreamLink::tcp(tcp)), &peer));
    // One has its nonce from the old server, and has no allocation yet.
    let mut late = Client::new(udp);
    assert_eq!(late.request(Method::REFRESH, &|_| Ok(())).code(), 437);

    let new = taken_over(&old, new_workers);
    for (client, relayed) in &mut clients {
        expect_both_ways(client, &peer, *relayed);
        let refreshed = client.request(Method::REFRESH, &|request| {
            request.push(&Lifetime(600)).map(drop)
        });
        assert_eq!(refreshed.code(), 0);
        assert_eq!(client.permit(peer.local_addr().expect("bound")), 0);
    }
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (33, 0)
    );

    let mut newcomers: Vec<_> = (0..32)
        .map(|_| with_channel(Client::new(udp), &peer))
        .collect();
    newcomers.push(with_channel(Client::stream(StreamLink::tcp(tcp)), &peer));
    newcomers.push(with_channel(late, &peer));
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (33, 34)
    );
    for (client, relayed) in &newcomers {
        expect_both_ways(client, &peer, *relayed);
    }

    // The old process ends when its clients have gone; whoever comes back is the new one's.
    for (client, _) in &mut clients {
        client.release();
    }
    assert_eq!(old.stats().allocations(), 0);
    let relayed = clients[0].0.allocate();
    assert_ne!(relayed, clients[0].1);
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (0, 35)
    );
    clients[0].0.release();
    clients.clear();
    new.predecessor_ended().expect("every worker responds");
    end(old);
    for (client, relayed) in &mut newcomers {
        expect_both_ways(client, &peer, *relayed);
        client.release();
    }
    newcomers.clear();
    newcomers.push(with_channel(Client::new(udp), &peer));
    assert_eq!(new.stats().allocations(), 1);
    newcomers
        .iter_mut()
        .for_each(|(client, _)| client.release());
    eventually("no entry is left", || new.steered_flows() == 0);
    new.shutdown().expect("no worker has failed");
}

#[test]
fn one_worker_takes_over_from_one() {
    clients_keep_their_process(1, 1);
}

#[test]
fn three_workers_take_over_from_two() {
    clients_keep_their_process(2, 3);
}

#[test]
fn three_workers_take_over_from_one() {
    clients_keep_their_process(1, 3);
}

#[test]
fn three_servers_follow_one_another() {
    let first = Arc::new(loopback(2).start().expect("it starts"));
    let udp = first.listeners()[0];
    let peer = socket("127.0.0.1:0");
    let (mut client, relayed) = with_channel(Client::new(udp), &peer);
    let second = Arc::new(taken_over(&first, 2));
    expect_both_ways(&client, &peer, relayed);
    client.release();
    second.predecessor_ended().expect("every worker responds");
    end(first);
    let (mut client, relayed) = with_channel(Client::new(udp), &peer);
    let third = taken_over(&second, 2);
    expect_both_ways(&client, &peer, relayed);
    let (newcomer, at_third) = with_channel(Client::new(udp), &peer);
    expect_both_ways(&newcomer, &peer, at_third);
    assert_eq!(
        (second.stats().allocations(), third.stats().allocations()),
        (1, 1)
    );
    client.release();
    third.predecessor_ended().expect("every worker responds");
    end(second);
    expect_both_ways(&newcomer, &peer, at_third);
}

#[test]
fn the_old_server_serves_again_if_the_new_one_ends() {
    let old = Arc::new(
        loopback(2)
            .listen_tcp(at("127.0.0.1:0"))
            .start()
            .expect("it starts"),
    );
    let (udp, tcp) = (old.listeners()[0], old.tcp_listeners()[0]);
    let peer = socket("127.0.0.1:0");
    let mut clients: Vec<_> = (0..16)
        .map(|_| with_channel(Client::new(udp), &peer))
        .collect();
    for _ in 0..2 {
        let new = taken_over(&old, 2);
        let (mut lost, _) = with_channel(Client::new(udp), &peer);
        assert_eq!(new.stats().allocations(), 1);
        lost.release();
        drop(new);
        old.resume().expect("every worker responds");
        clients.extend((0..8).map(|_| with_channel(Client::new(udp), &peer)));
        clients.push(with_channel(Client::stream(StreamLink::tcp(tcp)), &peer));
        for (client, relayed) in &clients {
            expect_both_ways(client, &peer, *relayed);
        }
    }
    assert_eq!(old.stats().allocations(), 16 + 2 * 9);
    clients.iter_mut().for_each(|(client, _)| client.release());
    eventually("no entry is left", || old.steered_flows() == 0);
    end(old);
}

#[test]
fn a_connection_that_waits_to_be_accepted_is_not_lost() {
    let old = Arc::new(
        loopback(1)
            .listen_tcp(at("127.0.0.1:0"))
            .start()
            .expect("it starts"),
    );
    let tcp = old.tcp_listeners()[0];
    let new = taken_over(&old, 1);
    let peer = socket("127.0.0.1:0");
    let (client, relayed) = with_channel(Client::stream(StreamLink::tcp(tcp)), &peer);
    drop(client);
    // The socket is the one that the old process had, so whoever waits in it is served.
    let waiting = TcpStream::connect(tcp).expect("the backlog has room");
    eventually("it is accepted", || new.stats().streams().accepted == 2);
    drop((waiting, relayed));
}

#[test]
fn dtls_clients_stay_where_their_session_is() {
    let (certificates, config) = crate::common::dtls::configs();
    let dtls = |builder: Builder, address: SocketAddr| {
        builder
            .certificates(certificates.clone())
            .listen_dtls(address)
    };
    let old = dtls(loopback(2), at("127.0.0.1:0"))
        .start()
        .expect("it starts");
    let old = Arc::new(old);
    let address = old.dtls_listeners()[0];
    let link = || DtlsLink::new(socket("127.0.0.1:0"), address, &config);
    let peer = socket("127.0.0.1:0");
    let mut clients: Vec<_> = (0..8)
        .map(|_| with_channel(Client::dtls(link()), &peer))
        .collect();
    // A session without an allocation yet.
    let idle = Client::dtls(link());
    let new = take_over(&old, dtls(on_the_same(&old, 2), address)).expect("it starts");
    old.stop_listening().expect("every worker responds");
    for (client, relayed) in &clients {
        expect_both_ways(client, &peer, *relayed);
    }
    clients.push(with_channel(idle, &peer));
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (9, 0)
    );
    let (newcomer, relayed) = with_channel(Client::dtls(link()), &peer);
    expect_both_ways(&newcomer, &peer, relayed);
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (9, 1)
    );
}

fn ticket_of(answer: &Answer) -> Vec<u8> {
    let ticket: Option<MobilityTicket<'_>> = answer.message().get().expect("well formed");
    ticket.expect("a ticket").0.to_vec()
}

#[test]
fn a_ticket_of_the_old_server_is_good_at_the_new_one_rfc8016() {
    let old = Arc::new(
        loopback(2)
            .listen_tcp(at("127.0.0.1:0"))
            .start()
            .expect("it starts"),
    );
    let (udp, tcp) = (old.listeners()[0], old.tcp_listeners()[0]);
    let peer = socket("127.0.0.1:0");
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = Client::new(udp);
        let answer = client.allocate_with(&|request| {
            request
                .push_raw(AttributeType::MOBILITY_TICKET, &[])
                .map(drop)
        });
        assert_eq!(client.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
        clients.push((client, answer));
    }
    let new = taken_over(&old, 2);
    for (number, (_old_address, answer)) in clients.iter().enumerate() {
        let mut client = match number % 2 {
            0 => Client::new(udp),
            _ => Client::stream(StreamLink::tcp(tcp)),
        };
        let moved = client.request(Method::REFRESH, &|request| {
            request.push(&Lifetime(600))?;
            request.push(&MobilityTicket(&ticket_of(answer))).map(drop)
        });
        assert_eq!(moved.code(), 0, "client {number}");
        expect_both_ways(&client, &peer, answer.relayed());
    }
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (6, 0)
    );
}

#[test]
fn a_ticket_of_the_old_server_is_good_over_tls_rfc8016() {
    let (config, client_config) = crate::common::stream::configs();
    let tls =
        |builder: Builder, address: SocketAddr| builder.tls(config.clone()).listen_tls(address);
    let builder = tls(loopback(2), at("127.0.0.1:0"));
    let old = Arc::new(builder.start().expect("it starts"));
    let (udp, address) = (old.listeners()[0], old.tls_listeners()[0]);
    let over_tls = || Client::stream(StreamLink::tls(address, &client_config));
    let peer = socket("127.0.0.1:0");
    let mut before = Client::new(udp);
    let answer = before.allocate_with(&|request| {
        request
            .push_raw(AttributeType::MOBILITY_TICKET, &[])
            .map(drop)
    });
    assert_eq!(before.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
    // Another client has a TCP allocation.
    let mut control = over_tls();
    let allocated = control.request(Method::ALLOCATE, &|request| {
        request.push(&RequestedTransport::TCP).map(drop)
    });
    assert_eq!(allocated.code(), 0);

    let new = take_over(&old, tls(on_the_same(&old, 2), address)).expect("it starts");
    old.stop_listening().expect("every worker responds");
    let mut client = over_tls();
    let moved = client.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(600))?;
        request.push(&MobilityTicket(&ticket_of(&answer))).map(drop)
    });
    assert_eq!(moved.code(), 0);
    for _ in 0..20 {
        expect_both_ways(&client, &peer, answer.relayed());
    }
    let refreshed = client.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(600)).map(drop)
    });
    assert_eq!(refreshed.code(), 0);
    // And a data connection (RFC 6062).
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_peer = listener.local_addr().expect("bound");
    let answer = control.request(Method::CONNECT, &|request| {
        request.push(&XorPeerAddress(at_peer)).map(drop)
    });
    let id: Option<ConnectionId> = answer.message().get().expect("well formed");
    let id = id.expect("an ID");
    let (mut stream, _) = listener.accept().expect("the server connects");
    let mut data = over_tls();
    let bound = data.request(Method::CONNECTION_BIND, &|request| {
        request.push(&id).map(drop)
    });
    assert_eq!(bound.code(), 0);
    data.connection().send(b"to the peer");
    let mut received = [0; 11];
    stream.read_exact(&mut received).expect("bytes");
    assert_eq!(&received, b"to the peer");
    stream.write_all(b"back").expect("written");
    assert_eq!(data.connection().exactly(4), b"back");
    assert_eq!(
        (old.stats().allocations(), new.stats().allocations()),
        (2, 0)
    );
    // Nothing of the two connections stays.
    drop((client, data, control));
    eventually("the old server has no connection", || {
        old.stats().streams().tcp_now == 0
    });
    eventually("nor has the new one", || new.stats().streams().tls_now == 0);
}

#[test]
fn a_data_connection_finds_its_tcp_allocation_rfc6062() {
    let old = Arc::new(
        loopback(2)
            .listen_tcp(at("127.0.0.1:0"))
            .start()
            .expect("it starts"),
    );
    let tcp = old.tcp_listeners()[0];
    let mut client = Client::stream(StreamLink::tcp(tcp));
    let answer = client.request(Method::ALLOCATE, &|request| {
        request.push(&RequestedTransport::TCP).map(drop)
    });
    assert_eq!(answer.code(), 0);
    let new = taken_over(&old, 2);
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_peer = peer.local_addr().expect("bound");
    let answer = client.request(Method::CONNECT, &|request| {
        request.push(&XorPeerAddress(at_peer)).map(drop)
    });
    let id: Option<ConnectionId> = answer.message().get().expect("well formed");
    let id = id.expect("an ID");
    let (mut stream, _) = peer.accept().expect("the server connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    // This connection is accepted by the new server.
    let mut data = Client::stream(StreamLink::tcp(tcp));
    let bound = data.request(Method::CONNECTION_BIND, &|request| {
        request.push(&id).map(drop)
    });
    assert_eq!(bound.code(), 0);
    data.connection().send(b"to the peer");
    let mut received = [0; 11];
    stream.read_exact(&mut received).expect("bytes");
    assert_eq!(&received, b"to the peer");
    stream.write_all(b"back").expect("written");
    assert_eq!(data.connection().exactly(4), b"back");
    assert_eq!(new.stats().allocations(), 0);
}

#[test]
fn relays_of_the_two_servers_reach_each_other() {
    let external = crate::common::private_loopback(9);
    for (workers, advertised) in [(1, None), (2, Some(external))] {
        let with = |builder: Builder| match advertised {
            Some(address) => builder.external_address(address, None),
            None => builder,
        };
        let old = Arc::new(with(loopback(workers)).start().expect("it starts"));
        let udp = old.listeners()[0];
        let mut first = Client::new(udp);
        let at_first = first.allocate();
        let new = take_over(&old, with(on_the_same(&old, workers))).expect("it starts");
        old.stop_listening().expect("every worker responds");
        let mut second = Client::new(udp);
        let at_second = second.allocate();
        assert_eq!(new.stats().allocations(), 1);
        assert_eq!(first.bind(CHANNEL, at_second), 0);
        assert_eq!(second.bind(CHANNEL, at_first), 0);
        for _ in 0..3 {
            first.send(CHANNEL, b"there");
            assert_eq!(second.got(), Got::Channel(CHANNEL, b"there".to_vec()));
            second.send(CHANNEL, b"and back");
            assert_eq!(first.got(), Got::Channel(CHANNEL, b"and back".to_vec()));
        }
    }
}

#[test]
fn a_refused_handover_says_why() {
    let shared = loopback(1).relay_ports(40_000, 40_003).shared_ports(true);
    let old = shared.start().expect("it starts");
    assert!(matches!(old.offer(), Err(HandoverError::SharedPorts)));
    let old = Arc::new(loopback(1).start().expect("it starts"));
    // A listener that another program has.
    let other = socket("127.0.0.1:0");
    let builder = on_the_same(&old, 1).listen(other.local_addr().expect("bound"));
    let refused = take_over(&old, builder).expect_err("the port is in use");
    assert!(matches!(refused, StartError::Bind { .. }), "{refused}");
    // It goes on after that.
    old.resume().expect("every worker responds");
    let peer = socket("127.0.0.1:0");
    let (client, relayed) = with_channel(Client::new(old.listeners()[0]), &peer);
    expect_both_ways(&client, &peer, relayed);
}

#[test]
fn a_quota_counts_what_both_servers_have_given() {
    let limits = |builder: Builder, user, total| {
        let limits = QuotaLimits::default().per_user(user).total(total);
        builder.quota(limits)
    };
    for (user, total, refusal) in [(3, 100, 486), (100, 3, 508)] {
        let old = limits(loopback(2), user, total);
        let old = Arc::new(old.start().expect("it starts"));
        let udp = old.listeners()[0];
        let allocate = |client: &mut Client| {
            client
                .request(Method::ALLOCATE, &|request| {
                    request.push(&RequestedTransport::UDP).map(drop)
                })
                .code()
        };
        let mut before: Vec<_> = (0..2).map(|_| Client::new(udp)).collect();
        for client in &mut before {
            client.allocate();
        }
        let builder = limits(on_the_same(&old, 2), user, total);
        let new = take_over(&old, builder).expect("it starts");
        old.stop_listening().expect("every worker responds");
        let mut after: Vec<_> = (0..2).map(|_| Client::new(udp)).collect();
        assert_eq!(allocate(&mut after[0]), 0);
        assert_eq!(allocate(&mut after[1]), refusal, "two there and one here");
        before[0].release();
        assert_eq!(allocate(&mut after[1]), 0, "one there and one here");
        let mut third = Client::new(udp);
        assert_eq!(allocate(&mut third), refusal);
        after[0].release();
        assert_eq!(allocate(&mut third), 0);
        // An old server that is gone counts no more, whatever it had.
        new.predecessor_ended().expect("every worker responds");
        assert_eq!(allocate(&mut after[0]), 0);
        let mut fourth = Client::new(udp);
        assert_eq!(allocate(&mut fourth), refusal);
        drop(new);
        // Nor does a new one.
        old.resume().expect("every worker responds");
        let mut here: Vec<_> = (0..3).map(|_| Client::new(udp)).collect();
        let codes: Vec<u16> = here.iter_mut().map(allocate).collect();
        assert_eq!(codes, [0, 0, refusal], "one was there before");
    }
}

#[test]
fn a_user_has_one_rate_at_both_servers() {
    const RATE: u64 = 20_000;
    let limited = |builder: Builder| {
        let mut settings = hairpin_server::Settings::default();
        settings.users = vec![(
            crate::common::USER.to_owned(),
            crate::common::PASSWORD.to_owned(),
        )];
        let network = "127.0.0.0/8".parse().expect("a network");
        settings.peers.allow = vec![hairpin_server::policy::PeerRule::all_ports(network)];
        settings.rates.per_user = RATE;
        builder.settings(settings)
    };
    let old = Arc::new(limited(loopback(1)).start().expect("it starts"));
    let udp = old.listeners()[0];
    let peer = socket("127.0.0.1:0");
    let (first, _) = with_channel(Client::new(udp), &peer);
    let new = take_over(&old, limited(on_the_same(&old, 1))).expect("it starts");
    old.stop_listening().expect("every worker responds");
    let (second, _) = with_channel(Client::new(udp), &peer);
    for server in [&old, &new] {
        server.share_rates();
    }
    // A burst of a second's worth passes, and then what the rate allows.
    let begun = std::time::Instant::now();
    for _ in 0..60 {
        first.send(CHANNEL, &[1; 1000]);
        second.send(CHANNEL, &[2; 1000]);
    }
    peer.set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a timeout");
    let mut bytes = [0; 3];
    let mut buffer = [0; 2000];
    while let Ok(length) = peer.recv(&mut buffer) {
        bytes[usize::from(buffer[0])] += length as u64;
    }
    let most = RATE + RATE * begun.elapsed().as_millis() as u64 / 1000 + 2_000;
    assert!(bytes[1] + bytes[2] <= most, "{bytes:?}, not {most}");
    assert!(bytes[1] >= 9_000 && bytes[2] >= 9_000, "{bytes:?}");
}
