//! Channels that are relayed below the engine: each of them is described at the right moment, with the moment at which
//! it ends, and taken back when it ends (RFC 8656 §9, §12).

use std::sync::Arc;

use hairpin_turn::server::{ClientVerdict, CloseReason, DropReason, Traffic};
use hairpin_turn::{ListenerKey, Mono, Transport};
use stun::{AdditionalAddressFamily, AddressFamily, Lifetime, Method, RequestedAddressFamily};

use crate::world::{Client, Event, Offloaded, SECOND, World, address, drop_of, path, path_on};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const SAME_HOST: &str = "198.51.100.200:701";
const OTHER_HOST: &str = "198.51.100.201:700";

fn offloading() -> World {
    World::with(|config| config.offload = true)
}

/// A world and a client with an allocation of an hour.
fn client_of_an_hour() -> (World, Client) {
    let mut world = offloading();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.refresh(&mut world, 3600).code(), 0);
    (world, client)
}

/// A world and a client with a relayed address of each family.
fn client_of_both_families() -> (World, Client) {
    let mut world = offloading();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    world.expect_opened();
    (world, client)
}

impl World {
    fn in_s(&self, seconds: u64) -> Mono {
        Mono(self.now.mono.0 + seconds * SECOND)
    }

    /// Expects these channels to be described, each until a moment, and nothing else to have happened.
    fn expect_offloads(&mut self, expected: &[(u16, Mono)]) {
        let mut got = Vec::new();
        while let Some(Event::Offload(offloaded)) = self.events.front() {
            got.push((offloaded.channel, offloaded.deadline));
            self.events.pop_front();
        }
        got.sort_unstable();
        assert_eq!(got, expected);
        assert_eq!(self.events, []);
    }

    /// Expects these channels to be taken back, in this order.
    fn expect_onloads(&mut self, expected: &[u16]) {
        for expected in expected {
            match self.event() {
                Event::StopOffload(offloaded) => assert_eq!(offloaded.channel, *expected),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_bound_channel_is_described_before_its_answer() {
    let (mut world, mut client) = client_of_an_hour();
    let (relayed, _) = (world.sockets[0].1, ());
    let request = client.request(Method::CHANNEL_BIND, |request| {
        request
            .push(&crate::world::channel(0x4000))
            .unwrap()
            .push(&stun::XorPeerAddress(address(PEER)))
            .unwrap();
    });
    world.client(&client.path, &request);
    let Event::Offload(offloaded) = world.event() else {
        panic!("first, the kernel learns of it")
    };
    let expected = Offloaded {
        path: client.path,
        relayed,
        peer: address(PEER),
        channel: 0x4000,
        own_relay: false,
        deadline: world.in_s(300),
        allocation: offloaded.allocation,
    };
    assert_eq!(offloaded, expected);
    assert_eq!(world.reply(&client.path).code(), 0);
    // A retransmission refreshes the channel (RFC 8656 §12.2).
    world.client(&client.path, &request);
    assert_eq!(world.event(), Event::Offload(expected));
    assert_eq!(world.reply(&client.path).code(), 0);
    assert_eq!(world.events, []);
    world.finish();
}

#[test]
fn every_move_of_the_end_is_told() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.pass_s(100);
    client.bind(&mut world, 0x4000, PEER);
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.pass_s(250);
    client.permit(&mut world, &["198.51.100.200:1"]);
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    // From here on the channel ends before its permission: at 700 s.
    world.pass_s(150);
    client.permit(&mut world, &[PEER]);
    world.expect_offloads(&[(0x4000, world.in_s(200))]);
    client.permit(&mut world, &[OTHER_HOST]);
    world.expect_offloads(&[]);
    world.finish();
}

#[test]
fn offloaded_channels_are_described_again_relay_by_relay() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, OTHER_HOST);
    world.pass_s(200);
    client.permit(&mut world, &[PEER]);
    world.pass_s(150);
    world.events.clear();
    // The second channel's permission has lapsed.
    let (mut next, mut calls) = (Some(0), 0);
    while let Some(first) = next {
        next = world.server.repeat_offloads(first, 16);
        world.drain();
        calls += 1;
    }
    world.expect_offloads(&[(0x4000, world.in_s(150))]);
    assert_eq!(calls, 4, "there is room for 64 relays");
    world.finish();
}

#[test]
fn a_permission_moves_all_channels_of_its_address() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, OTHER_HOST);
    world.events.clear();
    world.pass_s(10);
    client.bind(&mut world, 0x4002, SAME_HOST);
    let end = world.in_s(300);
    world.expect_offloads(&[(0x4000, end), (0x4002, end)]);
    world.pass_s(10);
    client.permit(&mut world, &[PEER, OTHER_HOST]);
    let end = world.in_s(300);
    world.expect_offloads(&[(0x4000, end), (0x4001, end), (0x4002, end)]);
    world.finish();
}

#[test]
fn a_lapsed_permission_takes_its_channels_back_and_a_new_one_gives_them_again() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, SAME_HOST);
    world.events.clear();
    world.pass(300 * SECOND - 1);
    assert_eq!(world.events, []);
    world.pass(1);
    world.expect_onloads(&[0x4000, 0x4001]);
    // Meanwhile a channel without permission is refreshed by nothing but a request.
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::NoPermission)
    );
    world.pass_s(100);
    client.permit(&mut world, &["198.51.100.200:9"]);
    let end = world.in_s(200);
    world.expect_offloads(&[(0x4000, end), (0x4001, end)]);
    world.pass_s(200);
    world.expect_onloads(&[0x4000, 0x4001]);
    world.finish();
}

#[test]
fn data_moves_no_end() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    let relay = world.sockets[0].0;
    world.events.clear();
    world.pass_s(299);
    client.channel_data(&mut world, 0x4000, b"x");
    world.peer(relay, PEER, b"x");
    client.send(&mut world, PEER, b"x");
    assert_eq!(world.events, []);
    world.pass_s(1);
    world.expect_onloads(&[0x4000]);
    world.finish();
}

#[test]
fn an_expired_channel_is_taken_back_also_by_an_engine_that_slept() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    world.events.clear();
    world.oversleep_s(600);
    let nonce = Client::nonce(&mut world, &client.path);
    client.signing.nonce = Some(nonce);
    // The number gets another peer: the old entry is gone before the new one comes.
    client.bind(&mut world, 0x4000, OTHER_HOST);
    world.expect_onloads(&[0x4000]);
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.finish();
}

#[test]
fn no_channel_outlives_its_allocation() {
    let mut world = offloading();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let end = world.in_s(600);
    world.pass_s(400);
    client.bind(&mut world, 0x4000, PEER);
    world.expect_offloads(&[(0x4000, end)]);
    // A Refresh moves the allocation's end beyond the permission's, and then it moves nothing more.
    let permission = world.in_s(300);
    client.refresh(&mut world, 700);
    world.expect_offloads(&[(0x4000, permission)]);
    client.refresh(&mut world, 800);
    world.expect_offloads(&[]);
    world.finish();
}

#[test]
fn the_end_of_an_allocation_takes_everything_back_first() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, OTHER_HOST);
    client.channel_data(&mut world, 0x4000, b"12345");
    world.events.clear();
    client.refresh(&mut world, 0);
    world.expect_onloads(&[0x4000, 0x4001]);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    // What the kernel had counted is in the log line: the tests' kernel relays one datagram of ten bytes to each peer
    // and two to the client for each of them.
    let Event::Closed {
        to_peers,
        to_client,
        reason: CloseReason::Refreshed,
        ..
    } = world.event()
    else {
        panic!("not closed")
    };
    let traffic = |packets, bytes| Traffic { packets, bytes };
    assert_eq!((to_peers, to_client), (traffic(3, 25), traffic(4, 40)));
    assert_eq!(
        world.server.stats().to_peers,
        traffic(1, 5),
        "what the engine has relayed"
    );
    world.finish();
}

#[test]
fn counts_of_a_channel_that_ended_before_are_kept() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    world.pass_s(600);
    world.events.clear();
    world.pass_s(3000);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    let closed = world.event();
    assert!(
        matches!(
            closed,
            Event::Closed {
                to_peers: Traffic {
                    packets: 1,
                    bytes: 10
                },
                ..
            }
        ),
        "{closed:?}"
    );
    world.finish();
}

#[test]
fn an_expired_allocation_takes_its_channels_back() {
    let mut world = offloading();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    world.pass_s(599);
    client.bind(&mut world, 0x4000, PEER);
    world.events.clear();
    world.pass_s(1);
    world.expect_onloads(&[0x4000]);
    world.expect_closed(1, CloseReason::Expired);
    world.finish();
}

#[test]
fn one_family_of_two_ends_alone() {
    let (mut world, mut client) = client_of_both_families();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, "[2001:db8:9::1]:7");
    let end = world.in_s(300);
    world.expect_offloads(&[(0x4000, end), (0x4001, end)]);
    client.ask(&mut world, Method::REFRESH, |request| {
        request
            .push(&Lifetime(0))
            .unwrap()
            .push(&RequestedAddressFamily(AddressFamily::V4))
            .unwrap();
    });
    world.expect_onloads(&[0x4000]);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    assert_eq!(world.offloaded.len(), 1);
    world.finish();
}

#[test]
fn a_number_that_moves_to_the_other_family_is_taken_back_first() {
    let (mut world, mut client) = client_of_both_families();
    client.refresh(&mut world, 3600);
    client.bind(&mut world, 0x4000, PEER);
    world.events.clear();
    world.oversleep_s(600);
    let nonce = Client::nonce(&mut world, &client.path);
    client.signing.nonce = Some(nonce);
    client.bind(&mut world, 0x4000, "[2001:db8:9::1]:7");
    world.expect_onloads(&[0x4000]);
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.finish();
}

#[test]
fn shutdown_takes_everything_back() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    world.events.clear();
    world
        .server
        .close_all(world.now, CloseReason::ServerShutdown);
    world.catch_up();
    world.expect_onloads(&[0x4000]);
    world.expect_closed(1, CloseReason::ServerShutdown);
    world.finish();
}

#[test]
fn a_new_policy_holds_in_the_kernel_at_once() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, OTHER_HOST);
    world.events.clear();
    let policy = Arc::clone(&world.policy);
    policy.denied.lock().unwrap().insert(address(PEER).ip());
    world.reconfigure(|_| {});
    world.drain();
    world.expect_onloads(&[0x4000]);
    assert_eq!(world.events, [], "the other is as it was");
    assert_eq!(
        client.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::PeerNotAllowed)
    );
    // A denied peer is not described by a refreshed Refresh either.
    client.refresh(&mut world, 100);
    let end = world.in_s(300);
    world.expect_offloads(&[]);
    policy.denied.lock().unwrap().clear();
    world.reconfigure(|_| {});
    world.drain();
    world.expect_offloads(&[(0x4000, end)]);
    world.finish();
}

#[test]
fn another_relay_of_ours_is_marked_as_one() {
    let mut world = offloading();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    one.allocate(&mut world);
    let (_, address_two) = two.allocate(&mut world);
    world.policy.live.lock().unwrap().insert(address_two);
    one.bind(&mut world, 0x4000, &address_two.to_string());
    let Event::Offload(offloaded) = world.event() else {
        panic!("not offloaded")
    };
    assert!(offloaded.own_relay && offloaded.peer == address_two);
    // The relay is gone, and the policy with it that knew it.
    world.policy.live.lock().unwrap().clear();
    world.reconfigure(|_| {});
    world.drain();
    world.expect_onloads(&[0x4000]);
    world.finish();
}

#[test]
fn only_udp_clients_are_offloaded() {
    for transport in [Transport::Tcp, Transport::Tls, Transport::Dtls] {
        let mut world = offloading();
        let mut client = Client::on(&mut world, "alice", path_on(transport, REMOTE));
        client.allocate(&mut world);
        assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
        assert_eq!(world.events, []);
        world.finish();
    }
}

#[test]
fn it_is_off_unless_asked_for_and_can_be_turned_on_and_off() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    assert_eq!(world.events, []);
    world.reconfigure(|config| config.offload = true);
    world.drain();
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.reconfigure(|config| config.offload = false);
    world.drain();
    world.expect_onloads(&[0x4000]);
    assert_eq!(world.events, []);
    world.finish();
}

#[test]
fn where_a_limit_appears_channels_are_described_again() {
    let (mut world, mut client) = client_of_an_hour();
    client.bind(&mut world, 0x4000, PEER);
    world.events.clear();
    world.reconfigure(|config| config.allocation_rate = 1_000_000);
    world.drain();
    world.expect_offloads(&[(0x4000, world.in_s(300))]);
    world.reconfigure(|config| config.allocation_rate = 2_000_000);
    world.drain();
    world.expect_offloads(&[]);
    world.finish();
}

#[test]
fn clients_of_one_address_are_distinguished() {
    let mut world = offloading();
    let mut second = path(REMOTE);
    second.listener = ListenerKey(2);
    second.five_tuple.local = address("192.0.2.2:3478");
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::on(&mut world, "bob", second);
    for client in [&mut one, &mut two] {
        client.allocate(&mut world);
        client.bind(&mut world, 0x4000, PEER);
        world.events.clear();
    }
    assert_eq!(world.offloaded.len(), 2);
    let places: Vec<u32> = world
        .offloaded
        .values()
        .map(|one| one.allocation.index)
        .collect();
    assert_ne!(places[0], places[1]);
    assert!(matches!(
        two.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.finish();
}
