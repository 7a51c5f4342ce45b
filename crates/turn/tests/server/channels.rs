//! ChannelBind requests and the lives of channels (RFC 8656 §12, §12.2).

use hairpin_turn::server::{ClientVerdict, DropReason, PeerVerdict};
use stun::{AttributeType, ChannelNumber, Method, XorPeerAddress};

use crate::world::{Client, RELAY_IP, SECOND, World, address, channel, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const OTHER: &str = "198.51.100.200:701";

#[test]
fn a_channel_carries_both_ways_and_brings_its_permission() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    let verdict = client.channel_data(&mut world, 0x4000, b"hello");
    let expected = ClientVerdict::ToPeer {
        covers: 1,
        relay,
        peer: address(PEER),
        payload: 4..9,
        dont_fragment: false,
    };
    assert_eq!(verdict, expected);
    let verdict = world.peer(relay, PEER, b"hello");
    assert_eq!(
        verdict,
        PeerVerdict::ChannelData {
            covers: 1,
            path: client.path,
            channel: channel(0x4000)
        }
    );
    // The permission is for the address: another port gets through, too, without a channel.
    assert_eq!(
        world.peer(relay, OTHER, b"x"),
        PeerVerdict::DataIndication {
            covers: 1,
            path: client.path
        }
    );
    world.finish();
}

#[test]
fn only_numbers_from_0x4000_to_0x4fff_can_be_bound() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    for number in [0, 0x3fff, 0x5000, 0x7fff, 0xffff] {
        assert_eq!(client.bind(&mut world, number, PEER), 400, "{number:#x}");
    }
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(client.bind(&mut world, 0x4fff, OTHER), 0);
    world.finish();
}

#[test]
fn a_client_of_rfc_5389_may_bind_the_numbers_of_rfc_5766() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    for number in [0, 0x3fff, 0x8000, 0xffff] {
        assert_eq!(client.bind(&mut world, number, PEER), 400, "{number:#x}");
    }
    assert_eq!(client.bind(&mut world, 0x7fff, PEER), 0);
    let to_peer = client.channel_data(&mut world, 0x7fff, b"hello");
    assert!(matches!(to_peer, ClientVerdict::ToPeer { payload, .. } if payload == (4..9)));
    let to_client = world.peer(relay, PEER, b"hello");
    assert!(
        matches!(to_client, PeerVerdict::ChannelData { channel, .. } if channel.get() == 0x7fff)
    );
    assert_eq!(
        client.channel_data(&mut world, 0x5000, b"x"),
        drop_of(DropReason::ChannelNotBound)
    );
    world.finish();
}

#[test]
fn the_numbers_of_rfc_5766_can_be_refused_to_all() {
    let mut world = World::with(|config| config.rfc5766_channels = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    for number in [0, 0x3fff, 0x5000, 0x7ffe, 0x7fff, 0xffff] {
        assert_eq!(client.bind(&mut world, number, PEER), 400, "{number:#x}");
    }
    assert_eq!(
        client.channel_data(&mut world, 0x5000, b"x"),
        drop_of(DropReason::ForeignProtocol)
    );
    world.finish();
}

#[test]
fn number_and_peer_must_both_be_there_and_well_formed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let only_number = client.ask(&mut world, Method::CHANNEL_BIND, |request| {
        request.push(&ChannelNumber::MIN).unwrap();
    });
    let only_peer = client.ask(&mut world, Method::CHANNEL_BIND, |request| {
        request.push(&XorPeerAddress(address(PEER))).unwrap();
    });
    let malformed = client.ask(&mut world, Method::CHANNEL_BIND, |request| {
        request.push(&ChannelNumber::MIN).unwrap();
        request
            .push_raw(AttributeType::XOR_PEER_ADDRESS, &[0, 1])
            .unwrap();
    });
    assert_eq!(
        [only_number.code(), only_peer.code(), malformed.code()],
        [400; 3]
    );
    world.finish();
}

#[test]
fn number_and_peer_are_tied_to_each_other_alone() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(
        client.bind(&mut world, 0x4000, OTHER),
        400,
        "the number has another peer"
    );
    assert_eq!(
        client.bind(&mut world, 0x4001, PEER),
        400,
        "the peer has another number"
    );
    assert_eq!(
        client.bind(&mut world, 0x4000, PEER),
        0,
        "the same again is a refresh"
    );
    assert_eq!(world.server.stats().channels, 1);
    assert_eq!(
        client.bind(&mut world, 0x4000, "[2001:db8::1]:1"),
        400,
        "the number counts before the family"
    );
    assert_eq!(client.bind(&mut world, 0x4001, "[2001:db8::1]:1"), 443);
    world.finish();
}

#[test]
fn forbidden_peers_cannot_be_bound() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    for peer in ["10.1.2.3:700", "198.51.100.200:25", "198.51.100.200:0"] {
        assert_eq!(client.bind(&mut world, 0x4000, peer), 403, "{peer}");
    }
    assert_eq!(world.server.stats().permissions, 0);
    world.finish();
}

#[test]
fn tunnels_are_refused_as_peers() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.try_allocate(&mut world, |request| {
        request
            .push(&stun::RequestedAddressFamily(stun::AddressFamily::V6))
            .unwrap();
    });
    world.expect_opened();
    assert_eq!(client.bind(&mut world, 0x4000, "[2002:c000:204::1]:1"), 403);
    assert_eq!(
        client.bind(&mut world, 0x4000, "[2001:0:4136:e378::1]:1"),
        403
    );
    for peer in ["[2002:c000:204::1]:1", "[2001:0:4136:e378::1]:1"] {
        assert_eq!(client.permit(&mut world, &[peer]), 403, "{peer}");
        let sent = client.send(&mut world, peer, b"x");
        assert_eq!(sent, drop_of(DropReason::NoPermission), "{peer}");
    }
    assert_eq!(client.bind(&mut world, 0x4000, "[2001:db8::1]:1"), 0);
    world.finish();
}

#[test]
fn the_permission_lapses_before_its_channel_and_comes_back_with_a_refresh() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    world.pass(300 * SECOND - 1);
    assert!(matches!(
        client.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.pass(1);
    assert_eq!(
        (
            world.server.stats().permissions,
            world.server.stats().channels
        ),
        (0, 1)
    );
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::NoPermission)
    );
    assert_eq!(
        world.peer(relay, PEER, b"x"),
        drop_of(DropReason::PeerWithoutPermission)
    );
    // CreatePermission is enough: the channel is still bound.
    assert_eq!(client.permit(&mut world, &["198.51.100.200:1"]), 0);
    assert!(matches!(
        client.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    assert!(matches!(
        world.peer(relay, PEER, b"x"),
        PeerVerdict::ChannelData { .. }
    ));
    // The channel ends with its own 600 seconds, permission or not.
    world.pass(300 * SECOND - 1);
    client.permit(&mut world, &[PEER]);
    world.pass(1);
    assert_eq!(world.server.stats().channels, 0);
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::ChannelNotBound)
    );
    assert_eq!(
        world.peer(relay, PEER, b"x"),
        PeerVerdict::DataIndication {
            covers: 1,
            path: client.path
        }
    );
    world.finish();
}

/// aioice and werift refresh the channel every 500 seconds, the allocation in time, and nothing else.
#[test]
fn a_session_that_refreshes_only_its_channel_lives_for_20_minutes() {
    let mut world = World::with(|config| {
        config.channel_keeps_permission = true;
        config.offload = true;
    });
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    for quarter in 0..=12 {
        if quarter % 5 == 0 {
            assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
            assert_eq!(client.refresh(&mut world, 600).code(), 0);
        }
        // The kernel's deadline is the engine's: neither path ends before the next refresh.
        let kernel = world.offloaded.values().next().expect("offloaded");
        assert!(kernel.deadline > world.now.mono);
        let to_peer = client.channel_data(&mut world, 0x4000, b"x");
        assert!(matches!(to_peer, ClientVerdict::ToPeer { .. }), "{quarter}");
        let to_client = world.peer(relay, PEER, b"x");
        assert!(
            matches!(to_client, PeerVerdict::ChannelData { .. }),
            "{quarter}"
        );
        world.pass_s(100);
    }
    // Without another ChannelBind both end 600 seconds after the last one, at second 1,600.
    client.refresh(&mut world, 3600);
    world.pass(300 * SECOND - 1);
    assert!(matches!(
        client.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.pass(1);
    let stats = world.server.stats();
    assert_eq!((stats.permissions, stats.channels), (0, 0));
    world.events.clear();
    world.finish();
}

#[test]
fn a_create_permission_request_does_not_shorten_the_permission_of_a_channel() {
    let mut world = World::with(|config| config.channel_keeps_permission = true);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(client.permit(&mut world, &[PEER]), 0);
    world.pass_s(599);
    let to_client = world.peer(relay, PEER, b"x");
    assert!(matches!(to_client, PeerVerdict::ChannelData { .. }));
    world.pass_s(1);
    assert_eq!(
        world.peer(relay, PEER, b"x"),
        drop_of(DropReason::PeerWithoutPermission)
    );
    world.finish();
}

#[test]
fn a_refresh_keeps_channel_and_permission_alive() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    for _ in 0..10 {
        assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
        world.pass_s(299);
        assert!(matches!(
            client.channel_data(&mut world, 0x4000, b"x"),
            ClientVerdict::ToPeer { .. }
        ));
        let nonce = Client::nonce(&mut world, &client.path);
        client.signing.nonce = Some(nonce);
    }
    world.finish();
}

#[test]
fn an_unbound_number_and_peer_can_be_bound_anew() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    // Nobody has swept: what has expired does not stand in the way.
    world.oversleep_s(600);
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::ChannelNotBound)
    );
    let nonce = Client::nonce(&mut world, &client.path);
    client.signing.nonce = Some(nonce);
    assert_eq!(client.bind(&mut world, 0x4000, OTHER), 0);
    assert_eq!(client.bind(&mut world, 0x4001, PEER), 0);
    assert_eq!(world.server.stats().channels, 2);
    world.finish();
}

#[test]
fn there_are_only_so_many_channels() {
    let mut world = World::with(|config| (config.max_channels, config.max_permissions) = (2, 1));
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(
        client.bind(&mut world, 0x4001, "198.51.100.9:1"),
        508,
        "no room for the permission"
    );
    assert_eq!(
        client.bind(&mut world, 0x4001, OTHER),
        0,
        "the same address needs no other permission"
    );
    assert_eq!(client.bind(&mut world, 0x4002, "198.51.100.200:702"), 508);
    assert_eq!(
        client.bind(&mut world, 0x4001, OTHER),
        0,
        "a refresh needs no room"
    );
    assert_eq!(
        (
            world.server.stats().channels,
            world.server.stats().permissions
        ),
        (2, 1)
    );
    world.finish();
}

#[test]
fn channels_of_one_allocation_are_nothing_to_another() {
    let mut world = World::new();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    let (relay_one, _) = one.allocate(&mut world);
    let (relay_two, _) = two.allocate(&mut world);
    assert_eq!(one.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(two.bind(&mut world, 0x4000, OTHER), 0);
    let ClientVerdict::ToPeer { relay, peer, .. } = one.channel_data(&mut world, 0x4000, b"x")
    else {
        panic!()
    };
    assert_eq!((relay, peer), (relay_one, address(PEER)));
    let ClientVerdict::ToPeer { relay, peer, .. } = two.channel_data(&mut world, 0x4000, b"x")
    else {
        panic!()
    };
    assert_eq!((relay, peer), (relay_two, address(OTHER)));
    world.finish();
}

#[test]
fn another_relay_of_ours_is_reached_inside_the_process() {
    let mut world = World::new();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    let (relay_one, address_one) = one.allocate(&mut world);
    let (relay_two, address_two) = two.allocate(&mut world);
    let dead = format!("{RELAY_IP}:1");
    world
        .policy
        .live
        .lock()
        .unwrap()
        .extend([address_one, address_two]);
    assert_eq!(
        one.bind(&mut world, 0x4000, &dead),
        403,
        "no live relay has this port"
    );
    assert_eq!(one.bind(&mut world, 0x4000, &address_two.to_string()), 0);
    let verdict = one.channel_data(&mut world, 0x4000, b"hello");
    let expected = ClientVerdict::ToRelay {
        covers: 1,
        from: address_one,
        peer: address_two,
        payload: 4..9,
    };
    assert_eq!(verdict, expected);
    // The other side's permission counts as well.
    assert_eq!(
        world.peer(relay_two, &address_one.to_string(), b"hello"),
        drop_of(DropReason::PeerWithoutPermission)
    );
    assert_eq!(two.permit(&mut world, &[&address_one.to_string()]), 0);
    assert!(matches!(
        world.peer(relay_two, &address_one.to_string(), b"hello"),
        PeerVerdict::DataIndication { .. }
    ));
    // And to itself.
    assert_eq!(one.bind(&mut world, 0x4001, &address_one.to_string()), 0);
    assert!(matches!(
        one.channel_data(&mut world, 0x4001, b"x"),
        ClientVerdict::ToRelay { .. }
    ));
    assert!(matches!(
        world.peer(relay_one, &address_one.to_string(), b"x"),
        PeerVerdict::ChannelData { .. }
    ));
    world.finish();
}
