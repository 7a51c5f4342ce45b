//! Allocate requests (RFC 8656 §7.2).

use hairpin_turn::server::{CloseReason, DropReason, OpenError, PortRequest};
use hairpin_turn::{Mono, Transport};
use stun::{
    AddressFamily, AttributeType, Builder, DontFragment, EvenPort, FingerprintState, Lifetime,
    Method, RequestedAddressFamily, RequestedTransport, UnknownAttributes, XorMappedAddress,
};

use crate::world::{Client, Event, RELAY_IP, RELAY_IP_V6, SECOND, World, drop_of, path_on};

const REMOTE: &str = "198.51.100.1:4000";

#[test]
fn success_says_where_the_relay_is_for_how_long_and_where_the_client_is() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |_| {});
    assert_eq!(reply.code(), 0);
    let relayed = reply.relayed();
    assert_eq!(relayed.len(), 1);
    assert_eq!(relayed[0].ip().to_string(), RELAY_IP);
    assert_eq!(reply.get::<Lifetime>(), Some(Lifetime(600)));
    assert_eq!(
        reply.get::<XorMappedAddress>(),
        Some(XorMappedAddress(client.path.five_tuple.remote))
    );
    assert!(reply.is_signed_with(client.key()));
    let event = world.event();
    let Event::Opened {
        user,
        path,
        relayed: logged,
        lifetime_s,
    } = event
    else {
        panic!("{event:?}")
    };
    assert_eq!(
        (user.as_str(), path, lifetime_s),
        ("alice", client.path, 600)
    );
    assert_eq!((logged.v4, logged.v6), (Some(relayed[0]), None));
    assert_eq!(world.server.stats().allocations, 1);
    world.finish();
}

#[test]
fn the_lifetime_is_between_the_default_and_the_maximum() {
    let mut world = World::new();
    for (number, (asked, granted)) in [
        (0, 600),
        (1, 600),
        (601, 601),
        (3600, 3600),
        (3601, 3600),
        (u32::MAX, 3600),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = Client::new(
            &mut world,
            "alice",
            &format!("198.51.100.1:{}", 4000 + number),
        );
        let reply = client.try_allocate(&mut world, |request| {
            request.push(&Lifetime(asked)).unwrap();
        });
        assert_eq!(reply.get::<Lifetime>(), Some(Lifetime(granted)));
        world.expect_opened();
    }
    world.finish();
}

#[test]
fn a_5_tuple_in_use_is_a_mismatch_whoever_asks() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let reply = client.try_allocate(&mut world, |_| {});
    assert_eq!(reply.code(), 437);
    assert!(
        reply.is_signed_with(client.key()),
        "errors after authentication are signed"
    );
    let mut bob = Client::new(&mut world, "bob", REMOTE);
    assert_eq!(bob.try_allocate(&mut world, |_| {}).code(), 437);
    world.finish();
}

#[test]
fn a_5_tuple_is_more_than_the_clients_address() {
    let mut world = World::new();
    for transport in [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Dtls,
    ] {
        Client::on(&mut world, "alice", path_on(transport, REMOTE)).allocate(&mut world);
    }
    assert_eq!(world.server.stats().allocations, 4);
    world.finish();
}

#[test]
fn requested_transport_must_be_there_and_be_udp() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let mut code = |attributes: &dyn Fn(&mut Builder<'_>)| {
        client
            .ask(&mut world, Method::ALLOCATE, |request| attributes(request))
            .code()
    };
    assert_eq!(code(&|_| {}), 400);
    let raw = |bytes: &'static [u8]| {
        move |request: &mut Builder<'_>| {
            request
                .push_raw(AttributeType::REQUESTED_TRANSPORT, bytes)
                .unwrap();
        }
    };
    assert_eq!(code(&raw(&[17])), 400);
    assert_eq!(code(&raw(&[17, 0, 0, 0, 0])), 400);
    assert_eq!(code(&raw(&[6, 0, 0, 0])), 442);
    assert_eq!(code(&raw(&[0, 0, 0, 0])), 442);
    world.finish();
}

#[test]
fn an_ipv6_address_can_be_had_from_ipv4_and_the_other_way_round() {
    let mut world = World::new();
    for remote in [REMOTE, "[2001:db8:5::1]:4000"] {
        let mut client = Client::new(&mut world, "alice", remote);
        let reply = client.try_allocate(&mut world, |request| {
            request
                .push(&RequestedAddressFamily(AddressFamily::V6))
                .unwrap();
        });
        assert_eq!(reply.relayed()[0].ip().to_string(), RELAY_IP_V6);
        world.expect_opened();
    }
    // RFC 8656 §7.2, 7: without the attribute it is IPv4, also for a client on IPv6.
    let mut client = Client::new(&mut world, "alice", "[2001:db8:5::1]:4001");
    let (_, relayed) = client.allocate(&mut world);
    assert!(relayed.is_ipv4());
    world.finish();
}

#[test]
fn a_family_that_is_not_there_is_not_supported() {
    let family = |number: u8| {
        move |request: &mut Builder<'_>| {
            request
                .push_raw(AttributeType::REQUESTED_ADDRESS_FAMILY, &[number, 0, 0, 0])
                .unwrap();
        }
    };
    let mut world = World::with(|config| config.relay_v6 = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(client.try_allocate(&mut world, family(2)).code(), 440);
    assert_eq!(client.try_allocate(&mut world, family(3)).code(), 440);
    world.finish();
    let mut world = World::with(|config| config.relay_v4 = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 440);
    assert_eq!(client.try_allocate(&mut world, family(1)).code(), 440);
    assert_eq!(client.try_allocate(&mut world, family(2)).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn dont_fragment_is_an_unknown_attribute_to_a_server_that_cannot() {
    let mut world = World::with(|config| config.dont_fragment = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |request| {
        request.push(&DontFragment).unwrap();
    });
    assert_eq!(reply.code(), 420);
    let unknown: UnknownAttributes = reply.get().unwrap();
    assert_eq!(unknown.as_slice(), [AttributeType::DONT_FRAGMENT]);
    // RFC 8656 §7.2: the transport is looked at before.
    let reply = client.ask(&mut world, Method::ALLOCATE, |request| {
        request.push(&DontFragment).unwrap();
    });
    assert_eq!(reply.code(), 400);
    world.finish();
}

#[test]
fn an_even_port_can_be_asked_for() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (_, request, relays) = client.wait_for_relays(&mut world, |request| {
        request.push(&EvenPort { reserve: false }).unwrap();
    });
    assert_eq!(relays.len(), 1);
    assert_eq!(
        (relays[0].family, relays[0].port),
        (AddressFamily::V4, PortRequest::Even)
    );
    let results = world.open(&relays);
    assert!(world.server.relays_opened(world.now, request, &results));
    world.drain();
    assert_eq!(world.reply(&client.path).relayed()[0].port() % 2, 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn success_comes_only_after_the_socket_is_open() {
    let mut world = World::new();

    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (request, key, relays) = client.wait_for_relays(&mut world, |_| {});
    assert!(world.events.is_empty());
    assert_eq!(
        (
            world.server.stats().pending,
            world.server.stats().allocations
        ),
        (1, 0)
    );
    // A retransmission and the 5-tuple's other requests change nothing.
    assert_eq!(
        world.dropped(&client.path, &request),
        DropReason::RequestPending
    );
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 437);
    assert_eq!(client.refresh(&mut world, 600).code(), 437);
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::NoAllocation)
    );
    assert_eq!(
        world.peer(relays[0].key, "198.51.100.9:9", b"x"),
        drop_of(DropReason::RelayNotInUse)
    );
    let results = world.open(&relays);
    assert!(world.server.relays_opened(world.now, key, &results));
    assert!(
        !world.server.relays_opened(world.now, key, &results),
        "once is enough"
    );
    world.drain();
    assert_eq!(world.reply(&client.path).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn a_socket_that_cannot_be_opened_is_insufficient_capacity() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    for (error, code) in [
        (OpenError::NoPort, 508),
        (OpenError::NoDescriptor, 508),
        (OpenError::Other, 508),
        (OpenError::FamilyUnsupported, 440),
    ] {
        world.refuse_v4 = Some(error);
        let reply = client.try_allocate(&mut world, |_| {});
        assert_eq!(reply.code(), code);
        assert!(reply.is_signed_with(client.key()));
        assert_eq!((world.server.stats().pending, world.quota.held()), (0, 0));
    }
    world.refuse_v4 = None;
    client.allocate(&mut world);
    world.finish();
}

#[test]
fn an_embedder_that_says_nothing_costs_the_client_5_seconds() {
    let mut world = World::new();

    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (_request, key, relays) = client.wait_for_relays(&mut world, |_| {});
    assert_eq!(
        world.server.poll_timeout(),
        Some(Mono(world.now.mono.0 + 5 * SECOND))
    );
    world.pass(5 * SECOND - 1);
    assert!(world.events.is_empty());
    world.pass(1);
    assert_eq!(world.event(), Event::CloseRelay(relays[0].key));
    assert_eq!(world.reply(&client.path).code(), 508);
    let results = world.open(&relays);
    assert!(
        !world.server.relays_opened(world.now, key, &results),
        "too late: the embedder closes it"
    );
    world.sockets.clear();
    assert_eq!(world.server.stats().pending, 0);
    world.finish();
}

#[test]
fn there_are_only_so_many_allocations_and_requests_in_the_making() {
    let mut world = World::with(|config| (config.max_allocations, config.max_pending) = (3, 2));
    world.auto_open = false;
    let mut codes = Vec::new();
    for number in 0..3 {
        let mut client = Client::new(
            &mut world,
            "alice",
            &format!("198.51.100.1:{}", 4000 + number),
        );
        let request = client.allocate_request(|_| {});
        world.client(&client.path, &request);
        match world.event() {
            Event::OpenRelays { .. } => codes.push(0),
            event => {
                world.events.push_front(event);
                codes.push(world.reply(&client.path).code());
            }
        }
    }
    assert_eq!(codes, [0, 0, 508]);
    world
        .server
        .close_all(world.now, CloseReason::ServerShutdown);
    world.catch_up();
    world.events.clear();
    world.auto_open = true;
    let mut codes = Vec::new();
    for number in 0..5 {
        let mut client = Client::new(
            &mut world,
            "alice",
            &format!("198.51.100.1:{}", 5000 + number),
        );
        codes.push(client.try_allocate(&mut world, |_| {}).code());
    }
    assert_eq!(codes, [0, 0, 0, 508, 508]);
    world.events.clear();
    world.finish();
}

#[test]
fn tunnelled_clients_are_forbidden() {
    let mut world = World::new();
    for remote in ["[2002:c000:204::1]:4000", "[2001:0:4136:e378::1]:4000"] {
        let mut client = Client::new(&mut world, "alice", remote);
        assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 403);
    }
    Client::new(&mut world, "alice", "[2001:db8::5]:4000").allocate(&mut world);
    world.finish();
}

#[test]
fn the_answer_is_fingerprinted_if_the_request_was() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let mut buffer = [0; 512];
    let id = client.id();
    let mut builder =
        Builder::new(&mut buffer, stun::Class::Request, Method::ALLOCATE, &id).unwrap();
    builder.push(&RequestedTransport::UDP).unwrap();
    crate::world::sign_into(&mut builder, &client.signing);
    builder.fingerprint().unwrap();
    let request = builder.finish().to_vec();
    let reply = world.ask(&client.path, &request);
    assert_eq!(
        (reply.code(), reply.message().fingerprint()),
        (0, FingerprintState::Valid)
    );
    world.expect_opened();
    world.finish();
}
