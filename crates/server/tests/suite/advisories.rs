//! What other TURN servers had to publish advisories for. Each test has the advisory's name, and shows that this server
//! differs. SECURITY.md lists them with those that other tests show.

use crate::common::{Answer, Client, PASSWORD, USER, at, eventually, ip, socket, start};
use hairpin_server::access_tokens::{TokenAlgorithm, TokenKey, TokenKeys};
use hairpin_server::certificates::Certificates;
use hairpin_server::quota::QuotaLimits;
use hairpin_server::{Builder, Server};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use stun::{
    AccessToken, AttributeType, Builder as MessageBuilder, Class, EvenPort, Lifetime, Message,
    Method, MobilityTicket, Nonce, RequestedTransport, TransactionId,
};

/// The defaults: no peer is allowed that is not by default.
fn defaults() -> Builder {
    Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"))
        .relay_address(ip("::1"))
        .user(USER, PASSWORD)
        .workers(1)
}

/// Whether a client may neither have a permission nor a channel for a peer. The relays' own addresses, which are
/// loopback addresses here, get permissions: clients may talk to each other's relays. No other port there gets a
/// datagram or a channel.
fn is_denied(client: &mut Client, peer: &str) -> bool {
    let peer: SocketAddr = at(peer);
    let is_relays_own = [ip("127.0.0.1"), ip("::1")].contains(&peer.ip());
    let permitted = client.permit(peer);
    client.indicate(peer, b"let me in");
    (permitted == 403 || is_relays_own) && client.bind(0x4000, peer) == 403
}

#[test]
fn cve_2018_4058_loopback_peers_are_denied_by_default() {
    let server = start(defaults());
    let victim = socket("127.0.0.1:0");
    let address = victim.local_addr().expect("bound").to_string();
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    assert!(is_denied(&mut client, &address));
    victim.set_nonblocking(true).expect("non-blocking");
    assert!(victim.recv_from(&mut [0; 16]).is_err(), "nothing arrives");
}

#[test]
fn cve_2020_26262_unspecified_addresses_do_not_lead_to_loopback() {
    let server = start(defaults());
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    for peer in ["0.0.0.0:9", "0.1.2.3:9", "127.255.255.254:9"] {
        assert!(is_denied(&mut client, peer), "{peer}");
    }
    let mut client = Client::new(server.listeners()[0]);
    client.allocate_with(&|request| {
        request
            .push(&stun::RequestedAddressFamily(stun::AddressFamily::V6))
            .map(drop)
    });
    for peer in ["[::]:9", "[::1]:9"] {
        assert!(is_denied(&mut client, peer), "{peer}");
    }
}

/// Also GHSA-w4hf-cr3w-6h79.
#[test]
fn cve_2026_27624_ipv4_addresses_inside_of_ipv6_ones_are_judged_as_ipv4() {
    let server = start(defaults().deny_peers("203.0.113.0/24".parse().expect("a network")));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate_with(&|request| {
        request
            .push(&stun::RequestedAddressFamily(stun::AddressFamily::V6))
            .map(drop)
    });
    for peer in [
        "[::ffff:127.0.0.1]:9",
        "[::ffff:203.0.113.7]:9",
        "[::ffff:169.254.169.254]:80",
        "[::127.0.0.1]:9",
        "[64:ff9b::127.0.0.1]:9",
    ] {
        assert!(is_denied(&mut client, peer), "{peer}");
    }
}

/// Coturn's advisory of 4.16: ranges of IPv6 addresses were compared byte by byte.
#[test]
fn ipv6_networks_are_denied_up_to_their_last_address() {
    let server = start(defaults().deny_peers("2600:1:2:7f00::/57".parse().expect("a network")));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate_with(&|request| {
        request
            .push(&stun::RequestedAddressFamily(stun::AddressFamily::V6))
            .map(drop)
    });
    for peer in [
        "[2600:1:2:7f00::]:9",
        "[2600:1:2:7f01::ff]:9",
        "[2600:1:2:7f7f:ffff:ffff:ffff:ffff]:9",
    ] {
        assert!(is_denied(&mut client, peer), "{peer}");
    }
    for peer in ["[2600:1:2:7f80::]:9", "[2600:1:2:7eff::1]:9"] {
        assert_eq!(client.permit(at(peer)), 0, "{peer}");
    }
}

#[test]
fn cve_2020_4067_padding_is_zero() {
    let server = start(defaults().realm("five5"));
    let mut client = Client::new(server.listeners()[0]);
    let answers = [
        client.try_allocate(),
        client.request(Method::REFRESH, &|_| Ok(())),
    ];
    for answer in answers {
        let bytes = answer.message().as_bytes().to_vec();
        let mut at = stun::HEADER_LEN;
        while at < bytes.len() {
            let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
            let (end, next) = (at + 4 + length, at + 4 + length.next_multiple_of(4));
            assert!(bytes[end..next].iter().all(|byte| *byte == 0));
            at = next;
        }
    }
}

#[test]
fn cve_2025_69217_nonces_and_ports_cannot_be_predicted() {
    let server = start(defaults());
    let mut ports = Vec::new();
    let mut nonces = HashSet::new();
    for _ in 0..20 {
        let mut client = Client::new(server.listeners()[0]);
        let challenge = client.request(Method::ALLOCATE, &|_| Ok(()));
        let nonce = challenge.message().get::<Nonce<'_>>().expect("well formed");
        nonces.extend(nonce.map(|nonce| nonce.0.to_vec()));
        ports.push(i32::from(client.allocate().port()));
    }
    let steps: HashSet<i32> = ports.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.len() > 10, "{ports:?}");
    // The client's address is part of each nonce's MAC.
    assert!(nonces.len() != 1, "{nonces:?}");
}

#[test]
fn cve_2026_40613_messages_are_read_at_any_address_in_memory() {
    let mut buffer = [0; 64];
    let id = TransactionId([7; 12]);
    let mut builder =
        MessageBuilder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).expect("room");
    builder.push(&RequestedTransport::UDP).expect("room");
    builder.push(&Lifetime(600)).expect("room");
    let request = builder.finish().to_vec();
    for offset in 0..8 {
        let moved = [&vec![0; offset], &request[..]].concat();
        let message = Message::parse(&moved[offset..]).expect("well formed");
        assert_eq!(message.get::<Lifetime>(), Ok(Some(Lifetime(600))));
    }
}

#[test]
fn cve_2026_43994_access_tokens_of_any_length_are_refused() {
    let key = TokenKey {
        kid: USER.into(),
        algorithm: TokenAlgorithm::A256Gcm,
        key: vec![1; 32],
        realm: None,
    };
    let keys = TokenKeys::new("turn.example.org", [key]).expect("a good key");
    let server = start(defaults().access_tokens(Arc::new(keys)));
    for length in [0, 1, 15, 16, 100, 735] {
        let mut client = Client::new(server.listeners()[0]);
        let (nonce, block) = ([2; 12], vec![3; length]);
        let token = AccessToken {
            nonce: &nonce[..length.min(12)],
            encrypted_block: &block,
        };
        let answer = client.allocate_with(&|request| request.push(&token).map(drop));
        assert_eq!(answer.code(), 401, "{length}");
    }
    Client::new(server.listeners()[0]).allocate();
}

#[test]
fn ghsa_4g7c_p5wg_j4hp_user_names_are_no_formats() {
    let server = start(defaults());
    for name in ["%s%s%s%n", "%08x.%08x", "{}{0}", "'; DROP TABLE users; --"] {
        let mut client = Client::new(server.listeners()[0]).with_user(name, "x");
        assert_eq!(client.try_allocate().code(), 401, "{name}");
    }
    Client::new(server.listeners()[0]).allocate();
}

/// Coturn's advisory of 4.15: attributes behind MESSAGE-INTEGRITY were obeyed.
#[test]
fn attributes_behind_the_integrity_are_ignored() {
    let server = start(defaults());
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    let mut request = client.write(Method::REFRESH, &|request| {
        request.push(&Lifetime(700)).map(drop)
    });
    // LIFETIME 0 would delete the allocation.
    request.extend([0, 13, 0, 4, 0, 0, 0, 0]);
    let length = u16::try_from(request.len() - stun::HEADER_LEN).expect("short");
    request[2..4].copy_from_slice(&length.to_be_bytes());
    client.transmit(&request);
    let answer = client.receive();
    let message = Message::parse(&answer).expect("well formed");
    assert_eq!(message.get::<Lifetime>(), Ok(Some(Lifetime(700))));
    assert_eq!(server.stats().allocations(), 1);
}

/// Also GHSA-f6hc-79w3-p8pq: a client that moves again and again (RFC 8016) has one allocation, which counts once.
#[test]
fn ghsa_hpq3_g7x4_h7xx_moves_leave_no_session_and_evade_no_quota() {
    let mut limits = QuotaLimits::default();
    limits.per_user = 2;
    let server = start(defaults().workers(1).quota(limits));
    let ticket_of = |answer: &Answer| {
        let ticket: Option<MobilityTicket<'_>> = answer.message().get().expect("well formed");
        ticket.expect("a ticket").0.to_vec()
    };
    let mut client = Client::new(server.listeners()[0]);
    let answer = client.allocate_with(&|request| {
        request
            .push_raw(AttributeType::MOBILITY_TICKET, &[])
            .map(drop)
    });
    let mut ticket = ticket_of(&answer);
    let used_up = ticket.clone();
    for _ in 0..20 {
        client = Client::new(server.listeners()[0]);
        let answer = client.request(Method::REFRESH, &|request| {
            request.push(&MobilityTicket(&ticket)).map(drop)
        });
        assert_eq!(answer.code(), 0);
        ticket = ticket_of(&answer);
    }
    let mut thief = Client::new(server.listeners()[0]);
    let answer = thief.request(Method::REFRESH, &|request| {
        request.push(&MobilityTicket(&used_up)).map(drop)
    });
    assert_eq!(answer.code(), 400);
    assert_eq!(server.stats().allocations(), 1);
    let mut second = Client::new(server.listeners()[0]);
    second.allocate();
    let mut third = Client::new(server.listeners()[0]);
    assert_eq!(third.try_allocate().code(), 486);
    client.release();
    second.release();
    assert_eq!(server.stats().allocations(), 0);
    assert_eq!(server.relayed_addresses_held(), 0);
}

#[test]
fn ghsa_847g_qmc6_6m4r_even_port_without_reservation_takes_one_port() {
    // Below the ports that the kernel gives to other tests.
    let first = 24_000 + (std::process::id() % 1_000) as u16 * 4;
    let server = start(defaults().relay_ports(first, first + 3));
    for _ in 0..20 {
        let mut client = Client::new(server.listeners()[0]);
        let even = EvenPort { reserve: false };
        let answer = client.allocate_with(&|request| request.push(&even).map(drop));
        assert_eq!((answer.code(), answer.relayed().port() % 2), (0, 0));
        client.release();
    }
    eventually("all ports are free", || server.stats().allocations() == 0);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::new(server.listeners()[0])).collect();
    let ports: HashSet<u16> = clients
        .iter_mut()
        .map(|client| client.allocate().port())
        .collect();
    assert_eq!(ports.len(), 4);
}

#[test]
fn ghsa_5x2p_4vqj_f6m4_dtls_keeps_nothing_before_the_cookie() {
    let (certificates, config): (Certificates, _) = crate::common::dtls::configs();
    let server = start(
        defaults()
            .listen_dtls(at("127.0.0.1:0"))
            .certificates(certificates),
    );
    let address = server.dtls_listeners()[0];
    // Each is the first ClientHello of a client that never comes back.
    for _ in 0..200 {
        drop(crate::common::dtls::DtlsLink::begin(
            socket("127.0.0.1:0"),
            address,
            &config,
        ));
    }
    eventually("the hellos are answered", || {
        server.stats().dtls().cookies_sent == 200
    });
    let dtls = server.stats().dtls();
    assert_eq!((dtls.handshakes_now, dtls.connections_now), (0, 0));
}
