//! Where keys come from: fixed users, time-limited ones, several sources at once.

use std::sync::Arc;

use hairpin_turn::server::credentials::{AnyOf, RestCredentials, StaticCredentials, rest_password};

use crate::world::{Client, REALM, START_UNIX_S, Signing, World};

fn rest_world() -> World {
    World::with(|config| config.credentials = Arc::new(RestCredentials::new(["old", "new"])))
}

fn rest_client(world: &mut World, username: &str, secret: &str) -> Client {
    let mut client = Client::new(world, "alice", "198.51.100.1:4000");
    let nonce = client.signing.nonce.clone().unwrap();
    client.signing = Signing::legacy(
        username,
        &rest_password(secret.as_bytes(), username),
        &nonce,
    );
    client
}

#[test]
fn time_limited_names_work_with_every_secret_until_they_expire() {
    let mut world = rest_world();
    let later = START_UNIX_S + 30;
    for username in [
        format!("{later}:alice"),
        format!("{later}"),
        format!("{later}:"),
    ] {
        for secret in ["old", "new"] {
            let mut client = rest_client(&mut world, &username, secret);
            client.allocate(&mut world);
            assert_eq!(client.refresh(&mut world, 0).code(), 0);
            world.expect_closed(1, hairpin_turn::server::CloseReason::Refreshed);
        }
        assert_eq!(
            rest_client(&mut world, &username, "wrong")
                .try_allocate(&mut world, |_| {})
                .code(),
            401
        );
    }
    world.pass_s(30);
    let reply =
        rest_client(&mut world, &format!("{later}:alice"), "old").try_allocate(&mut world, |_| {});
    assert_eq!(
        reply.code(),
        401,
        "a key that is known already expires, too"
    );
    world.finish();
}

#[test]
fn names_that_are_not_time_limited_are_no_rest_users() {
    let mut world = rest_world();
    for username in [
        "alice",
        "alice:1800000000",
        ":alice",
        "+1800000000:alice",
        "18000000000000000000000:a",
        "1800000000 :a",
    ] {
        let reply = rest_client(&mut world, username, "old").try_allocate(&mut world, |_| {});
        assert_eq!(reply.code(), 401, "{username}");
    }
    world.finish();
}

#[test]
fn another_separator_can_be_chosen() {
    let rest = RestCredentials::new(["old"]).with_separator('-');
    let mut world = World::with(|config| config.credentials = Arc::new(rest));
    let later = START_UNIX_S + 30;
    rest_client(&mut world, &format!("{later}-alice"), "old").allocate(&mut world);
    assert_eq!(
        rest_client(&mut world, &format!("{later}:alice"), "old")
            .try_allocate(&mut world, |_| {})
            .code(),
        401
    );
    world.finish();
}

#[test]
fn an_allocation_outlives_its_credential_unless_the_operator_is_strict() {
    for strict in [false, true] {
        let mut world = rest_world();
        world.reconfigure(|config| config.strict_expiry = strict);
        let mut client = rest_client(&mut world, &format!("{}:alice", START_UNIX_S + 30), "new");
        client.allocate(&mut world);
        world.pass_s(31);
        assert_eq!(
            client.refresh(&mut world, 600).code(),
            if strict { 401 } else { 0 }
        );
        world.finish();
    }
}

#[test]
fn fixed_and_time_limited_users_live_side_by_side() {
    let mut users = StaticCredentials::new(REALM);
    users.add_password("alice", "alice's password").unwrap();
    let both = AnyOf(vec![
        Arc::new(users),
        Arc::new(RestCredentials::new(["old"])),
    ]);
    let mut world = World::with(|config| config.credentials = Arc::new(both));
    Client::modern(&mut world, "alice", "198.51.100.7:4000").allocate(&mut world);
    rest_client(&mut world, &format!("{}:alice", START_UNIX_S + 30), "old").allocate(&mut world);
    world.finish();
}

#[test]
fn a_key_is_derived_once() {
    let mut world = rest_world();
    let username = format!("{}:alice", START_UNIX_S + 3000);
    let mut client = rest_client(&mut world, &username, "new");
    for _ in 0..5 {
        client.allocate(&mut world);
        assert_eq!(client.refresh(&mut world, 0).code(), 0);
        world.expect_closed(1, hairpin_turn::server::CloseReason::Refreshed);
    }
    assert_eq!(world.server.stats().keys_derived, 1);
    world.finish();
}
