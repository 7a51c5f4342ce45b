//! A new configuration for a running server.

use std::sync::Arc;

use hairpin_turn::server::credentials::StaticCredentials;
use hairpin_turn::server::{
    ClientIdentity, ClientVerdict, CloseReason, DropReason, PeerClass, PeerPolicy, PeerVerdict,
};

use crate::world::{Client, FakeQuota, REALM, World, address, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

#[test]
fn a_peer_that_is_denied_from_now_on_gets_nothing_more() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    client.permit(&mut world, &["198.51.100.201:1"]);
    let denied = [address(PEER).ip(), address("198.51.100.201:1").ip()];
    world.policy.denied.lock().unwrap().extend(denied);
    assert!(
        matches!(
            client.channel_data(&mut world, 0x4000, b"x"),
            ClientVerdict::ToPeer { .. }
        ),
        "not asked per datagram"
    );
    world.reconfigure(|_| {});
    for verdict in [
        client.channel_data(&mut world, 0x4000, b"x"),
        client.send(&mut world, PEER, b"x"),
    ] {
        assert_eq!(verdict, drop_of(DropReason::PeerNotAllowed));
    }
    for peer in [PEER, "198.51.100.201:1"] {
        let verdict = world.peer(relay, peer, b"x");
        assert_eq!(verdict, drop_of(DropReason::PeerNotAllowed));
    }
    assert_eq!(client.permit(&mut world, &[PEER]), 403);
    world.policy.denied.lock().unwrap().clear();
    world.reconfigure(|_| {});
    assert!(matches!(
        client.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    assert!(matches!(
        world.peer(relay, "198.51.100.201:1", b"x"),
        PeerVerdict::DataIndication { .. }
    ));
    world.finish();
}

/// The same users but alice, who has another password.
fn new_users(world: &mut World) {
    let mut users = StaticCredentials::new(REALM);
    users.add_password("alice", "another").unwrap();
    world.reconfigure(|config| config.credentials = Arc::new(users));
}

#[test]
fn a_changed_password_holds_for_new_allocations_and_leaves_the_old_ones() {
    let mut world = World::new();
    let mut old = Client::new(&mut world, "alice", REMOTE);
    old.allocate(&mut world);
    new_users(&mut world);
    assert_eq!(old.refresh(&mut world, 600).code(), 0);
    let mut late = Client::new(&mut world, "alice", "198.51.100.1:4001");
    assert_eq!(late.try_allocate(&mut world, |_| {}).code(), 401);
    // The new password is as good, for the old allocation too: it is the user that counts (RFC 8656 §5).
    let nonce = old.signing.nonce.clone().unwrap();
    old.signing = crate::world::Signing::legacy("alice", "another", &nonce);
    assert_eq!(old.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn a_strict_server_asks_for_the_new_password_at_once() {
    let mut world = World::with(|config| config.strict_expiry = true);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    new_users(&mut world);
    assert_eq!(client.refresh(&mut world, 600).code(), 401);
    world.finish();
}

#[test]
fn lower_limits_hold_for_what_is_added() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(
        client.permit(&mut world, &["198.51.100.2:1", "198.51.100.3:1"]),
        0
    );
    world.reconfigure(|config| config.max_permissions = 1);
    assert_eq!(client.permit(&mut world, &["198.51.100.4:1"]), 508);
    assert_eq!(
        client.permit(&mut world, &["198.51.100.2:1"]),
        508,
        "there are more than allowed"
    );
    assert_eq!(world.server.stats().permissions, 2);
    world.finish();
}

#[test]
fn units_are_released_to_the_quota_that_counted_them() {
    let mut world = World::new();
    let first = Arc::clone(&world.quota);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let second = Arc::new(FakeQuota::default());
    world.quota = Arc::clone(&second);
    world.reconfigure(|config| config.quota = second);
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    first.expect_all_released();
    // Nothing is held: the new one takes over with the next configuration.
    world.reconfigure(|_| {});
    client.allocate(&mut world);
    assert_eq!((first.held(), world.quota.held()), (0, 1));
    world.finish();
}

#[test]
fn a_new_policy_reaches_the_kernel_in_bounded_steps() {
    const CLIENTS: u16 = 300;
    let mut world = World::with(|config| config.offload = true);
    for number in 0..CLIENTS {
        let remote = format!("198.51.100.1:{}", 4000 + number);
        let mut client = Client::new(&mut world, "alice", &remote);
        client.allocate(&mut world);
        client.bind(&mut world, 0x4000, PEER);
        world.events.clear();
    }
    let peer = address(PEER).ip();
    world.policy.denied.lock().unwrap().insert(peer);
    let config = world.config.clone().validate().unwrap();
    world.server.set_config(world.now, config);
    assert!(!world.server.has_outputs(), "nothing at once");
    let mut calls = 0;
    while !world.offloaded.is_empty() {
        assert_eq!(world.server.poll_timeout(), Some(world.now.mono));
        world.server.handle_timeout(world.now);
        let before = world.offloaded.len();
        world.drain();
        assert!(before - world.offloaded.len() <= 64);
        calls += 1;
    }
    assert_eq!(calls, CLIENTS.div_ceil(64));
    world.events.clear();
    world.finish();
}

#[test]
fn policy_and_quota_see_the_client() {
    let world = World::with(|config| config.policy = std::sync::Arc::new(OnlyBob));
    let mut world = world;
    let mut alice = Client::new(&mut world, "alice", REMOTE);
    let mut bob = Client::new(&mut world, "bob", "198.51.100.1:4001");
    for (client, code) in [(&mut alice, 403), (&mut bob, 0)] {
        client.allocate(&mut world);
        assert_eq!(client.permit(&mut world, &[PEER]), code);
        assert_eq!(client.bind(&mut world, 0x4000, PEER), code);
    }
    world.finish();
}

/// Allows peers to Bob, at one address, alone.
#[derive(Debug)]
struct OnlyBob;

impl PeerPolicy for OnlyBob {
    fn classify(&self, client: &ClientIdentity<'_>, _: std::net::IpAddr) -> PeerClass {
        if client.user == "bob" && client.five_tuple.remote == address("198.51.100.1:4001") {
            PeerClass::Peer
        } else {
            PeerClass::Denied
        }
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: std::net::SocketAddr) -> PeerClass {
        self.classify(client, peer.ip())
    }
}
