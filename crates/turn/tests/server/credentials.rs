//! Where keys come from: fixed users, time-limited ones, several sources at once.

use std::sync::Arc;

use hairpin_turn::server::credentials::{AnyOf, RestCredentials, StaticCredentials, rest_password};

use hairpin_turn::server::CloseReason;
use stun::Lifetime;

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
        world.pass_s(20);
        let granted: Lifetime = client.refresh(&mut world, 600).get().unwrap();
        assert_eq!(granted.0, if strict { 10 } else { 600 });
        world.pass_s(9);
        if !strict {
            world.pass_s(2);
            assert_eq!(client.refresh(&mut world, 600).code(), 0);
            world.finish();
            continue;
        }
        world.pass_s(1);
        world.expect_closed(1, CloseReason::Expired);
        assert_eq!(client.refresh(&mut world, 600).code(), 401);
        world.finish();
    }
}

#[test]
fn a_strict_server_grants_no_lifetime_beyond_the_credential_s_end() {
    let mut world = rest_world();
    world.reconfigure(|config| config.strict_expiry = true);
    let mut client = rest_client(&mut world, &format!("{}:alice", START_UNIX_S + 30), "new");
    let reply = client.try_allocate(&mut world, |request| {
        request.push(&Lifetime(3600)).unwrap();
    });
    world.expect_opened();
    assert_eq!(reply.get(), Some(Lifetime(30)));
    world.pass_s(30);
    world.expect_closed(1, CloseReason::Expired);
    world.finish();
}

#[test]
fn user_names_are_prepared_wherever_a_key_is_made() {
    // RFC 8265: é in two code points is é in one.
    let mut users = StaticCredentials::new(REALM);
    users.add_password("andre\u{301}", "pass").unwrap();
    let mut world = World::with(|config| config.credentials = Arc::new(users));
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let nonce = client.signing.nonce.clone().unwrap();
    for signing in [
        Signing::legacy("andr\u{e9}", "pass", &nonce),
        Signing::legacy("andre\u{301}", "pass", &nonce),
        Signing::modern("andr\u{e9}", "pass", &nonce),
    ] {
        client.signing = signing;
        client.allocate(&mut world);
        assert_eq!(client.refresh(&mut world, 0).code(), 0);
        world.expect_closed(1, CloseReason::Refreshed);
    }
    client.signing = Signing::legacy("andr\u{e9}", "wrong", &nonce);
    client.signing.username = Some("a\tb".to_owned());
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 401);
    world.finish();
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
