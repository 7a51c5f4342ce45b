//! Outputs that only report: what an embedder can learn, and that it learns nothing unless it asks.

use hairpin_turn::server::Config;
use stun::{AdditionalAddressFamily, AddressFamily, Lifetime, Method, RequestedAddressFamily};

use crate::world::{Client, SECOND, World, path};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const PEER_V6: &str = "[2001:db8:9::1]:700";

fn reporting(config: &mut Config) {
    config.report_changes = true;
}

fn reports(world: &mut World) -> Vec<String> {
    std::mem::take(&mut world.reports)
}

fn proven(method: Method) -> String {
    format!("alice proven: {method:?}")
}

#[test]
fn nothing_is_reported_unless_asked_for() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    client.bind(&mut world, 0x4000, PEER);
    world.pass_s(700);
    assert_eq!(world.reports, [""; 0]);
    world.finish();
}

#[test]
fn a_request_with_the_right_key_is_reported_and_a_challenged_one_is_not() {
    let mut world = World::with(reporting);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(reports(&mut world), [""; 0], "a challenge proves nothing");
    client.allocate(&mut world);
    assert_eq!(reports(&mut world), [proven(Method::ALLOCATE)]);
    // 403: who it is has been proven all the same.
    assert_eq!(client.permit(&mut world, &["10.0.0.1:1"]), 403);
    assert_eq!(reports(&mut world), [proven(Method::CREATE_PERMISSION)]);
    client.refresh(&mut world, 1200);
    assert_eq!(
        reports(&mut world),
        [proven(Method::REFRESH), "refreshed for 1200".to_owned()]
    );
    world.finish();
}

#[test]
fn a_wrong_password_is_no_success() {
    let mut world = World::with(reporting);
    let mut client = Client::new(&mut world, "mallory", REMOTE);
    let request = client.allocate_request(|_| {});
    assert_eq!(world.ask(&path(REMOTE), &request).code(), 401);
    assert_eq!(world.reports, [""; 0]);
    world.finish();
}

#[test]
fn the_end_of_a_permission_and_of_a_channel_is_reported_at_its_moment() {
    let mut world = World::with(reporting);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    reports(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    let bound = [
        proven(Method::CHANNEL_BIND),
        format!("channel 0x4000 {PEER}"),
    ];
    assert_eq!(reports(&mut world), bound);
    world.pass(300 * SECOND - 1);
    assert_eq!(world.reports, [""; 0]);
    world.pass(1);
    assert_eq!(reports(&mut world), ["permission 198.51.100.200 ended"]);
    world.pass(300 * SECOND - 1);
    assert_eq!(world.reports, [""; 0]);
    world.pass(1);
    assert_eq!(
        reports(&mut world),
        [format!("channel 0x4000 {PEER} ended")]
    );
    world.finish();
}

#[test]
fn a_refresh_ends_nothing() {
    let mut world = World::with(reporting);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.refresh(&mut world, 3600);
    for _ in 0..5 {
        client.permit(&mut world, &[PEER]);
        world.pass_s(299);
    }
    assert!(
        reports(&mut world)
            .iter()
            .all(|text| !text.contains("ended"))
    );
    world.finish();
}

/// Permissions and channels of one family end with its relay, though the allocation stays.
#[test]
fn permissions_and_channels_are_reported_if_only_their_family_ends() {
    let mut world = World::with(reporting);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    client.bind(&mut world, 0x4000, PEER);
    client.bind(&mut world, 0x4001, PEER_V6);
    reports(&mut world);
    let reply = client.ask(&mut world, Method::REFRESH, |request| {
        request
            .push(&RequestedAddressFamily(AddressFamily::V6))
            .unwrap()
            .push(&Lifetime(0))
            .unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.event();
    let ended = [
        proven(Method::REFRESH),
        format!("channel 0x4001 {PEER_V6} ended"),
        "permission 2001:db8:9::1 ended".to_owned(),
    ];
    assert_eq!(reports(&mut world), ended);
    assert_eq!(client.refresh(&mut world, 0).code(), 0);
    assert_eq!(reports(&mut world), [proven(Method::REFRESH)]);
    world.events.clear();
    world.finish();
}
