//! Refresh requests (RFC 8656 §8.2).

use hairpin_turn::server::{
    ClientVerdict, CloseReason, DropReason, PeerVerdict, RelayedAddresses, Traffic,
};
use stun::{AddressFamily, AttributeType, Lifetime, Method, RequestedAddressFamily};

use crate::world::{Client, Event, World, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

#[test]
fn without_an_allocation_every_request_is_a_mismatch() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    for method in [
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ] {
        let reply = client.ask(&mut world, method, |_| {});
        assert_eq!(reply.code(), 437);
        assert!(reply.is_signed_with(client.key()));
    }
    world.finish();
}

#[test]
fn anybody_but_the_owner_has_the_wrong_credentials() {
    let mut world = World::new();
    Client::new(&mut world, "alice", REMOTE).allocate(&mut world);
    let mut bob = Client::new(&mut world, "bob", REMOTE);
    for method in [
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ] {
        let reply = bob.ask(&mut world, method, |_| {});
        assert_eq!(reply.code(), 441, "also where the request is malformed");
        assert!(reply.is_signed_with(bob.key()));
    }
    assert_eq!(bob.refresh(&mut world, 0).code(), 441);
    assert_eq!(world.server.stats().allocations, 1);
    world.finish();
}

#[test]
fn the_lifetime_starts_anew_between_the_default_and_the_maximum() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    for (asked, granted) in [(1, 600), (599, 600), (700, 700), (9999, 3600), (5, 600)] {
        assert_eq!(
            client.refresh(&mut world, asked).get::<Lifetime>(),
            Some(Lifetime(granted))
        );
    }
    let reply = client.ask(&mut world, Method::REFRESH, |_| {});
    assert_eq!(reply.get::<Lifetime>(), Some(Lifetime(600)));
    world.pass_s(599);
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.pass_s(599);
    assert_eq!(world.server.stats().allocations, 1);
    world.pass_s(1);
    world.expect_closed(1, CloseReason::Expired);
    assert_eq!(client.refresh(&mut world, 600).code(), 437);
    world.finish();
}

#[test]
fn a_shorter_refresh_shortens() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.refresh(&mut world, 3600).code(), 0);
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.pass_s(600);
    world.expect_closed(1, CloseReason::Expired);
    world.finish();
}

#[test]
fn zero_deletes_at_once_and_the_record_says_what_was_relayed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, relayed) = client.allocate(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    client.channel_data(&mut world, 0x4000, b"12345");
    client.send(&mut world, PEER, b"123");
    world.peer(relay, PEER, b"1234567");
    world.pass_s(12);
    let reply = client.refresh(&mut world, 0);
    assert_eq!(
        (reply.code(), reply.get::<Lifetime>()),
        (0, Some(Lifetime(0)))
    );
    assert_eq!(world.event(), Event::CloseRelay(relay));
    let record = Event::Closed {
        user: "alice".to_owned(),
        relayed: RelayedAddresses {
            v4: Some(relayed),
            v6: None,
        },
        to_peers: Traffic {
            packets: 2,
            bytes: 8,
        },
        to_client: Traffic {
            packets: 1,
            bytes: 7,
        },
        seconds: 12,
        reason: CloseReason::Refreshed,
    };
    assert_eq!(world.event(), record);
    let stats = world.server.stats();
    assert_eq!(
        (stats.allocations, stats.permissions, stats.channels),
        (0, 0, 0)
    );
    assert_eq!(
        world.peer(relay, PEER, b"late"),
        drop_of(DropReason::StaleRelay)
    );
    let late = client.channel_data(&mut world, 0x4000, b"late");
    assert_eq!(late, drop_of(DropReason::NoAllocation));
    world.finish();
}

#[test]
fn the_5_tuple_is_free_again_and_old_keys_are_stale() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (old, _) = client.allocate(&mut world);
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    let (new, _) = client.allocate(&mut world);
    assert_eq!(old.index, new.index, "the slot is used again");
    assert_ne!(old.generation, new.generation);
    client.permit(&mut world, &[PEER]);
    assert_eq!(world.peer(old, PEER, b"x"), drop_of(DropReason::StaleRelay));
    assert!(matches!(
        world.peer(new, PEER, b"x"),
        PeerVerdict::DataIndication { covers: 1, .. }
    ));
    world.finish();
}

#[test]
fn a_family_that_the_allocation_does_not_have_is_a_mismatch() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let mut refresh = |number: u8, lifetime: u32| {
        client
            .ask(&mut world, Method::REFRESH, |request| {
                request
                    .push_raw(AttributeType::REQUESTED_ADDRESS_FAMILY, &[number, 0, 0, 0])
                    .unwrap();
                request.push(&Lifetime(lifetime)).unwrap();
            })
            .code()
    };
    assert_eq!(refresh(2, 600), 443);
    assert_eq!(refresh(2, 0), 443);
    assert_eq!(refresh(9, 600), 443);
    assert_eq!(refresh(1, 600), 0);
    let reply = client.ask(&mut world, Method::REFRESH, |request| {
        request
            .push(&RequestedAddressFamily(AddressFamily::V4))
            .unwrap()
            .push(&Lifetime(0))
            .unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn malformed_attributes_are_bad_requests() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    for (attribute, bytes) in [
        (AttributeType::LIFETIME, &[0; 3][..]),
        (AttributeType::REQUESTED_ADDRESS_FAMILY, &[1, 0][..]),
    ] {
        let reply = client.ask(&mut world, Method::REFRESH, |request| {
            request.push_raw(attribute, bytes).unwrap();
        });
        assert_eq!(reply.code(), 400);
    }
    world.finish();
}

#[test]
fn data_does_not_refresh() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    for _ in 0..9 {
        world.pass_s(66);
        client.permit(&mut world, &[PEER]);
        assert!(matches!(
            client.channel_data(&mut world, 0x4000, b"x"),
            ClientVerdict::ToPeer { .. }
        ));
        assert!(matches!(
            world.peer(relay, PEER, b"x"),
            PeerVerdict::ChannelData { .. }
        ));
    }
    world.pass_s(6);
    world.expect_closed(1, CloseReason::Expired);
    world.finish();
}
