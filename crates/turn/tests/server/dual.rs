//! Dual allocations: one IPv4 and one IPv6 address (RFC 8656 §7.2, 9, and §8).

use hairpin_turn::RelayKey;
use hairpin_turn::server::{ClientVerdict, CloseReason, DropReason, OpenError, PeerVerdict};
use stun::{
    AdditionalAddressFamily, AddressErrorCode, AddressFamily, AttributeType, EvenPort, Lifetime,
    Method, RequestedAddressFamily,
};

use crate::world::{Client, Event, Reply, World, address, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const PEER_V6: &str = "[2001:db8:9::1]:700";

fn ask(client: &mut Client, world: &mut World) -> Reply {
    client.try_allocate(world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    })
}

fn dual(world: &mut World) -> (Client, RelayKey, RelayKey) {
    let mut client = Client::new(world, "alice", REMOTE);
    let reply = ask(&mut client, world);
    assert_eq!(reply.code(), 0);
    let relayed = world.expect_opened();
    assert_eq!(reply.relayed(), [relayed.v4.unwrap(), relayed.v6.unwrap()]);
    let keys = reply
        .relayed()
        .into_iter()
        .map(|address| world.relay_at(address))
        .collect::<Vec<_>>();
    (client, keys[0], keys[1])
}

fn refresh(client: &mut Client, world: &mut World, family: AddressFamily, lifetime: u32) -> u16 {
    let reply = client.ask(world, Method::REFRESH, |request| {
        request
            .push(&RequestedAddressFamily(family))
            .unwrap()
            .push(&Lifetime(lifetime))
            .unwrap();
    });
    reply.code()
}

#[test]
fn both_families_are_granted_and_each_relays_its_own() {
    let mut world = World::new();
    let (mut client, v4, v6) = dual(&mut world);
    assert_eq!(
        (
            world.server.stats().allocations,
            world.server.stats().relays
        ),
        (1, 2)
    );
    assert_eq!(client.permit(&mut world, &[PEER, PEER_V6]), 0);
    assert!(
        matches!(client.send(&mut world, PEER, b"x"), ClientVerdict::ToPeer { relay, .. } if relay == v4)
    );
    assert!(
        matches!(client.send(&mut world, PEER_V6, b"x"), ClientVerdict::ToPeer { relay, .. } if relay == v6)
    );
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(
        client.bind(&mut world, 0x4000, PEER_V6),
        400,
        "numbers belong to the whole allocation"
    );
    assert_eq!(client.bind(&mut world, 0x4001, PEER_V6), 0);
    assert!(
        matches!(client.channel_data(&mut world, 0x4000, b"x"), ClientVerdict::ToPeer { relay, .. } if relay == v4)
    );
    assert!(
        matches!(client.channel_data(&mut world, 0x4001, b"x"), ClientVerdict::ToPeer { relay, .. } if relay == v6)
    );
    assert!(
        matches!(world.peer(v6, PEER_V6, b"x"), PeerVerdict::ChannelData { path, .. } if path == client.path)
    );
    assert_eq!(client.refresh(&mut world, 0).code(), 0);
    world.expect_closed(2, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn if_one_family_cannot_be_had_the_other_is_granted_with_the_reason() {
    for (error, code) in [
        (OpenError::NoPort, 508),
        (OpenError::FamilyUnsupported, 440),
        (OpenError::NoDescriptor, 508),
    ] {
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let mut world = World::new();
            match family {
                AddressFamily::V4 => world.refuse_v4 = Some(error),
                AddressFamily::V6 => world.refuse_v6 = Some(error),
            }
            let mut client = Client::new(&mut world, "alice", REMOTE);
            let reply = ask(&mut client, &mut world);
            assert_eq!(reply.code(), 0);
            assert_eq!(reply.relayed().len(), 1);
            let told: AddressErrorCode<'_> = reply.get().unwrap();
            assert_eq!((told.family, told.code), (family, code));
            assert_eq!(world.quota.held(), 1, "what was not granted does not count");
            let relayed = world.expect_opened();
            assert_eq!(relayed.v4.is_some(), family == AddressFamily::V6);
            assert_eq!(
                client.permit(
                    &mut world,
                    &[if family == AddressFamily::V4 {
                        PEER
                    } else {
                        PEER_V6
                    }]
                ),
                443
            );
            world.finish();
        }
    }
}

#[test]
fn if_neither_family_can_be_had_the_request_fails() {
    let mut world = World::new();
    (world.refuse_v4, world.refuse_v6) =
        (Some(OpenError::NoPort), Some(OpenError::FamilyUnsupported));
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = ask(&mut client, &mut world);
    assert_eq!(reply.code(), 508);
    assert!(reply.get::<AddressErrorCode<'_>>().is_none());
    assert_eq!((world.quota.held(), world.server.stats().relays), (0, 0));
    world.finish();
}

#[test]
fn a_server_without_ipv6_says_so_in_the_success() {
    let mut world = World::with(|config| config.relay_v6 = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (_, request, relays) = client.wait_for_relays(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    assert_eq!(relays.len(), 1, "nothing is opened in vain");
    let results = world.open(&relays);
    assert!(world.server.relays_opened(world.now, request, &results));
    world.drain();
    let reply = world.reply(&client.path);
    let told: AddressErrorCode<'_> = reply.get().unwrap();
    assert_eq!(
        (reply.code(), told.family, told.code),
        (0, AddressFamily::V6, 440)
    );
    world.expect_opened();
    world.finish();
}

#[test]
fn a_server_without_ipv4_does_not_support_it() {
    let mut world = World::with(|config| config.relay_v4 = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(ask(&mut client, &mut world).code(), 440, "RFC 8656 §7.2, 7");
    world.finish();
}

#[test]
fn combinations_that_make_no_sense_are_bad_requests() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let v4 = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V4))
            .unwrap();
    });
    let unknown = client.try_allocate(&mut world, |request| {
        request
            .push_raw(AttributeType::ADDITIONAL_ADDRESS_FAMILY, &[7, 0, 0, 0])
            .unwrap();
    });
    let with_requested = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
        request
            .push(&RequestedAddressFamily(AddressFamily::V4))
            .unwrap();
    });
    let with_reserve = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap()
            .push(&EvenPort { reserve: true })
            .unwrap();
    });
    for reply in [v4, unknown, with_requested, with_reserve] {
        assert_eq!(reply.code(), 400);
    }
    let even = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap()
            .push(&EvenPort { reserve: false })
            .unwrap();
    });
    assert!(
        even.relayed().iter().all(|address| address.port() % 2 == 0) && even.relayed().len() == 2
    );
    world.expect_opened();
    world.finish();
}

#[test]
fn one_family_can_be_deleted_and_takes_only_its_own_with_it() {
    let mut world = World::new();
    let (mut client, v4, v6) = dual(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, PEER_V6);
    assert_eq!(refresh(&mut client, &mut world, AddressFamily::V4, 0), 0);
    assert_eq!(world.event(), Event::CloseRelay(v4));
    let stats = world.server.stats();
    assert_eq!(
        (
            stats.allocations,
            stats.relays,
            stats.permissions,
            stats.channels
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(world.quota.held(), 1);
    assert!(
        matches!(client.channel_data(&mut world, 0x4001, b"x"), ClientVerdict::ToPeer { relay, .. } if relay == v6)
    );
    let gone = client.channel_data(&mut world, 0x4000, b"x");
    assert_eq!(gone, drop_of(DropReason::ChannelNotBound));
    assert_eq!(
        refresh(&mut client, &mut world, AddressFamily::V4, 600),
        443
    );
    assert_eq!(client.permit(&mut world, &[PEER]), 443);
    assert_eq!(client.bind(&mut world, 0x4002, PEER), 443);
    assert_eq!(refresh(&mut client, &mut world, AddressFamily::V6, 0), 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn each_family_expires_by_itself() {
    let mut world = World::new();
    let (mut client, v4, v6) = dual(&mut world);
    world.pass_s(300);
    assert_eq!(refresh(&mut client, &mut world, AddressFamily::V6, 600), 0);
    world.pass_s(300);
    assert_eq!(world.event(), Event::CloseRelay(v4));
    assert_eq!(world.server.stats().allocations, 1);
    world.pass_s(300);
    assert_eq!(world.event(), Event::CloseRelay(v6));
    assert!(matches!(
        world.event(),
        Event::Closed {
            reason: CloseReason::Expired,
            seconds: 900,
            ..
        }
    ));
    world.finish();
}

#[test]
fn both_families_expire_together_in_one_record() {
    let mut world = World::new();
    let (_, _, _) = dual(&mut world);
    world.pass_s(600);
    world.expect_closed(2, CloseReason::Expired);
    world.finish();
}

#[test]
fn one_expired_family_is_gone_before_the_next_request_is_looked_at() {
    let mut world = World::new();
    let (mut client, v4, _) = dual(&mut world);
    assert_eq!(refresh(&mut client, &mut world, AddressFamily::V6, 3600), 0);
    world.oversleep_s(600);
    let nonce = Client::nonce(&mut world, &client.path);
    client.signing.nonce = Some(nonce);
    assert_eq!(
        refresh(&mut client, &mut world, AddressFamily::V4, 600),
        443
    );
    assert_eq!(world.event(), Event::CloseRelay(v4));
    assert_eq!(
        client.permit(&mut world, &[&address(PEER_V6).to_string()]),
        0
    );
    world.finish();
}

#[test]
fn clients_of_the_draft_get_attributes_with_its_numbers() {
    let ask = |client: &mut Client, world: &mut World| {
        client.try_allocate(world, |request| {
            request
                .push_raw(AttributeType(0x8032), &[2, 0, 0, 0])
                .unwrap();
        })
    };
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(ask(&mut client, &mut world).relayed().len(), 2);
    world.expect_opened();
    world.refuse_v6 = Some(OpenError::NoPort);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4001");
    let reply = ask(&mut client, &mut world);
    assert!(reply.get::<AddressErrorCode<'_>>().is_none());
    let told = reply.message().find(AttributeType(0x8033)).unwrap();
    assert_eq!(told.value, b"\x02\0\x05\x08Insufficient Capacity");
    world.expect_opened();
    // Only where the operator lets them.
    world.reconfigure(|config| config.draft_dual_allocation = false);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4002");
    let reply = ask(&mut client, &mut world);
    assert_eq!((reply.code(), reply.relayed().len()), (0, 1));
    world.expect_opened();
    world.finish();
}
