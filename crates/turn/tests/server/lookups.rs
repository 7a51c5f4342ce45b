//! Sources of credentials that answer later: what waits for them, for how long, and how much of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hairpin_turn::server::credentials::{
    AnyOf, Claim, Credentials, KeyLookup, KeyQuery, KnownUser, OwnedKeyQuery, StaticCredentials,
    UserKey,
};
use hairpin_turn::server::{AuthFailure, ClientVerdict, CloseReason, DropReason, UsersToForget};
use hairpin_turn::{ClientPath, LookupKey, Transport};
use stun::{Lifetime, Method, PasswordAlgorithm, long_term_key};

use crate::world::{Client, Event, REALM, START_UNIX_S, Signing, World, address, path, path_on};

const REMOTE: &str = "198.51.100.1:4000";

/// Answers later, whatever is asked.
#[derive(Debug)]
struct Later;

impl Credentials for Later {
    fn find(&self, _: &KeyQuery<'_>) -> KeyLookup {
        KeyLookup::Pending
    }

    fn knows_userhash(&self) -> bool {
        true
    }
}

fn world() -> World {
    World::with(|config| config.credentials = Arc::new(Later))
}

/// Has alice and a name of nobody in its cache. Its database may be down.
#[derive(Debug, Default)]
struct Caching {
    is_down: AtomicBool,
}

impl Credentials for Caching {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        match query.claim {
            Claim::Username("alice") => KeyLookup::Known(known(&query.to_owned())),
            Claim::Username("nobody") => KeyLookup::Unknown,
            _ => KeyLookup::Pending,
        }
    }

    fn is_available(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }
}

/// What a source knows of users whose password is "`name`'s password".
fn known(query: &OwnedKeyQuery) -> KnownUser {
    let query = query.query();
    let name = match query.claim {
        Claim::Username(name) => name,
        Claim::Userhash(_) => "alice",
    };
    let password = format!("{name}'s password");
    let key = long_term_key(query.algorithm, name, REALM, &password).unwrap();
    KnownUser::with_key(name, key)
}

/// Good for so long, by the server's clock and by the credential's.
fn lasting(query: &OwnedKeyQuery, ttl_s: Option<u32>, expires_unix_s: Option<u64>) -> KeyLookup {
    let mut user = known(query);
    for key in &mut user.keys {
        (key.ttl_s, key.expires_unix_s) = (ttl_s, expires_unix_s);
    }
    KeyLookup::Known(user)
}

impl World {
    /// Sends a request that is looked up.
    fn looked_up(&mut self, path: &ClientPath, request: &[u8]) -> (LookupKey, OwnedKeyQuery) {
        assert_eq!(
            self.client(path, request),
            ClientVerdict::Handled { covers: 1 }
        );
        match self.event() {
            Event::FindKeys(lookup, query) => (lookup, query),
            other => panic!("not looked up: {other:?}"),
        }
    }

    fn found(&mut self, lookup: LookupKey, found: KeyLookup) -> bool {
        let is_known = self.server.keys_found(self.now, lookup, found);
        self.drain();
        is_known
    }
}

#[test]
fn a_request_waits_for_its_user_and_goes_on_as_if_it_came_then() {
    let mut world = world();
    for mut client in [
        Client::new(&mut world, "alice", REMOTE),
        Client::modern(&mut world, "alice", "[2001:db8:5::1]:4000"),
    ] {
        let request = client.allocate_request(|_| {});
        let (lookup, query) = world.looked_up(&client.path, &request);
        let asked = query.query();
        assert_eq!((asked.realm, asked.client), (REALM, client.path));
        assert_eq!(asked.unix_s, world.now.unix_s);
        assert_eq!(world.server.stats().lookups, 1);
        world.pass_s(3);
        assert!(world.found(lookup, KeyLookup::Known(known(&query))));
        let reply = world.reply(&client.path);
        assert_eq!(reply.code(), 0);
        assert!(reply.is_signed_with(client.key()));
        world.expect_opened();
        // The key is known from now on, for this allocation and for others.
        assert_eq!(client.refresh(&mut world, 600).code(), 0);
        assert_eq!(client.refresh(&mut world, 0).code(), 0);
        world.expect_closed(1, CloseReason::Refreshed);
        client.allocate(&mut world);
        assert!(!world.found(lookup, KeyLookup::Unknown), "answered before");
    }
    assert_eq!(world.server.stats().lookups_begun, 2);
    world.finish();
}

#[test]
fn the_source_of_credentials_decides_the_response() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let wrong_algorithm = |query: &OwnedKeyQuery| {
        let key = long_term_key(
            PasswordAlgorithm::Sha256,
            "alice",
            REALM,
            "alice's password",
        );
        KeyLookup::Known(KnownUser::with_key(&known(query).username, key.unwrap()))
    };
    type Say = fn(&OwnedKeyQuery) -> KeyLookup;
    let cases: [(Say, u16, Option<AuthFailure>); 7] = [
        (|_| KeyLookup::Unknown, 401, Some(AuthFailure::UnknownUser)),
        (
            |_| KeyLookup::Expired,
            401,
            Some(AuthFailure::ExpiredCredential),
        ),
        (wrong_algorithm, 401, Some(AuthFailure::UnknownUser)),
        (|_| KeyLookup::Unavailable, 500, None),
        (|_| KeyLookup::Pending, 500, None),
        (
            |query| {
                let key = long_term_key(query.query().algorithm, "alice", REALM, "other").unwrap();
                KeyLookup::Known(KnownUser::with_key("alice", key))
            },
            401,
            Some(AuthFailure::WrongPassword),
        ),
        (
            |query| lasting(query, None, Some(START_UNIX_S)),
            401,
            Some(AuthFailure::ExpiredCredential),
        ),
    ];
    for (say, code, failure) in cases {
        let request = client.allocate_request(|_| {});
        let (lookup, query) = world.looked_up(&client.path, &request);
        let before = world.server.stats().clone();
        assert!(world.found(lookup, say(&query)));
        assert_eq!(world.reply(&client.path).code(), code);
        if let Some(failure) = failure {
            let after = world.server.stats().auth_failed(failure);
            assert_eq!(after, before.auth_failed(failure) + 1, "{failure:?}");
        }
    }
    assert_eq!(world.server.stats().lookups_failed, 2);
    assert_eq!(world.server.stats().allocations, 0);
    world.finish();
}

#[test]
fn while_a_source_is_not_available_no_code_tells_who_is_a_user_rfc8489_9_2_4() {
    let source = Arc::new(Caching::default());
    let mut world = World::with(|config| config.credentials = Arc::clone(&source) as _);
    let mut right = Client::new(&mut world, "alice", REMOTE);
    let wrong = |name: &str, world: &mut World, later: KeyLookup| {
        let mut client = Client::new(world, "alice", "198.51.100.1:4001");
        client.signing = Signing::legacy(name, "wrong", &client.signing.nonce.clone().unwrap());
        let request = client.allocate_request(|_| {});
        world.client(&client.path, &request);
        if matches!(world.events.front(), Some(Event::FindKeys(..))) {
            let Event::FindKeys(lookup, _) = world.event() else {
                panic!("not looked up")
            };
            world.found(lookup, later);
        }
        let reply = world.reply(&client.path);
        (reply.code(), reply.is_signed())
    };
    for name in ["alice", "nobody", "bob"] {
        let seen = wrong(name, &mut world, KeyLookup::Unknown);
        assert_eq!(seen, (401, false), "{name}");
    }
    source.is_down.store(true, Ordering::Relaxed);
    for name in ["alice", "nobody", "bob"] {
        let seen = wrong(name, &mut world, KeyLookup::Unavailable);
        assert_eq!(seen, (500, false), "{name}");
    }
    let stats = world.server.stats();
    assert_eq!(stats.lookups_failed, 1, "bob was looked up");
    // The counters and the log know of guesses also during this time.
    assert_eq!(stats.auth_failed(AuthFailure::WrongPassword), 2);
    assert_eq!(stats.auth_failed(AuthFailure::UnknownUser), 3);
    // Who has the right password of a user in the cache is served.
    right.allocate(&mut world);
    source.is_down.store(false, Ordering::Relaxed);
    let seen = wrong("alice", &mut world, KeyLookup::Unknown);
    assert_eq!(seen, (401, false));
    world.finish();
}

#[test]
fn a_retransmission_of_a_request_that_waits_is_absorbed() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    for _ in 0..5 {
        let dropped = world.dropped(&client.path, &request);
        assert_eq!(dropped, DropReason::RequestPending);
    }
    assert_eq!(world.server.stats().lookups_begun, 1);
    world.found(lookup, KeyLookup::Known(known(&query)));
    let first = world.reply(&client.path);
    world.expect_opened();
    assert_eq!(world.ask(&client.path, &request), first);
    world.finish();
}

#[test]
fn a_look_up_that_is_not_answered_in_time_ends_with_500() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    world.pass_s(4);
    assert_eq!(world.events.len(), 0);
    world.pass_s(1);
    let reply = world.reply(&client.path);
    assert_eq!((reply.code(), reply.is_signed()), (500, false));
    let stats = world.server.stats();
    assert_eq!((stats.lookups, stats.lookups_timed_out), (0, 1));
    assert!(
        !world.found(lookup, KeyLookup::Known(known(&query))),
        "too late"
    );
    world.finish();
}

#[test]
fn a_flood_of_forged_nonces_is_not_looked_up_once() {
    let mut world = world();
    let mut forger = Client::new(&mut world, "alice", REMOTE);
    let genuine = forger.signing.nonce.clone().unwrap();
    for number in 0..10_000_u32 {
        let mut nonce = genuine.clone();
        // Of its own making, or another client's.
        let at = 13 + number as usize % 23;
        nonce[at] = if nonce[at] == b'A' { b'B' } else { b'A' };
        forger.signing.nonce = Some(nonce);
        if number % 2 == 0 {
            forger.signing.nonce = Some(genuine.clone());
            forger.path = path(&format!(
                "198.51.{}.1:{}",
                1 + number % 99,
                1 + number % 60_000
            ));
        }
        let reply = forger.try_allocate(&mut world, |_| {});
        assert_eq!(reply.code(), 438);
    }
    let stats = world.server.stats();
    assert_eq!((stats.lookups_begun, stats.keys_derived), (0, 0));
    assert_eq!(stats.auth_failed(AuthFailure::ForgedNonce), 10_000);
    world.finish();
}

#[test]
fn random_names_from_one_prefix_fill_their_share_and_no_more() {
    let mut world = world();
    let mut of_prefix = 0;
    // One network with genuine nonces and ever new names, whose source does not answer.
    for number in 0..2_000_u32 {
        let remote = format!("198.51.100.{}:{}", number % 250, 1000 + number);
        let mut flooder = Client::new(&mut world, &format!("name{number}"), &remote);
        let request = flooder.allocate_request(|_| {});
        match world.client(&flooder.path, &request) {
            ClientVerdict::Handled { .. } => of_prefix += 1,
            verdict => assert_eq!(
                verdict,
                crate::world::drop_of(DropReason::LookupsOfPrefix),
                "{number}"
            ),
        }
    }
    // Half as many as there are places left for others, which is a third of all.
    assert_eq!(of_prefix, (world.config.max_lookups + 1) / 3);
    world.events.clear();
    // Another network's clients all get their allocations.
    for number in 0..100 {
        let mut honest = Client::new(&mut world, "alice", &format!("203.0.113.{number}:4000"));
        honest.signing = Signing::legacy(
            &format!("user{number}"),
            &format!("user{number}'s password"),
            &honest.signing.nonce.clone().unwrap(),
        );
        let request = honest.allocate_request(|_| {});
        let (lookup, query) = world.looked_up(&honest.path, &request);
        world.found(lookup, KeyLookup::Known(known(&query)));
        assert_eq!(world.reply(&honest.path).code(), 0);
        world.expect_opened();
    }
    world.pass_s(5);
    world.events.clear();
    world.finish();
}

#[test]
fn users_behind_one_nat_wait_at_once_and_none_is_dropped() {
    let mut world = world();
    let mut waiting = Vec::new();
    for number in 0..200_u16 {
        let remote = format!("198.51.100.1:{}", 4000 + number);
        let mut client = Client::new(&mut world, &format!("user{number}"), &remote);
        let request = client.allocate_request(|_| {});
        let (lookup, query) = world.looked_up(&client.path, &request);
        waiting.push((client, lookup, query));
    }
    assert_eq!(world.server.stats().lookups, 200);
    world.pass_s(2);
    for (client, lookup, query) in waiting {
        assert!(world.found(lookup, KeyLookup::Known(known(&query))));
        assert_eq!(world.reply(&client.path).code(), 0);
        world.expect_opened();
    }
    world.finish();
}

#[test]
fn prefixes_that_flood_together_leave_each_other_network_its_minimum() {
    let mut world = world();
    let (all, minimum) = (
        world.config.max_lookups,
        world.config.max_lookups_per_prefix,
    );
    // All at once.
    let floods = u32::try_from(all / minimum - 1).unwrap();
    for number in 0..4_096 {
        let remote = format!("198.51.{}.1:{}", number % floods, 1_000 + number / floods);
        let mut flooder = Client::new(&mut world, &format!("name{number}"), &remote);
        let request = flooder.allocate_request(|_| {});
        world.client(&flooder.path, &request);
    }
    world.events.clear();
    for number in 0..minimum {
        let remote = format!("203.0.113.1:{}", 4_000 + number);
        let mut honest = Client::new(&mut world, &format!("user{number}"), &remote);
        let request = honest.allocate_request(|_| {});
        world.looked_up(&honest.path, &request);
    }
    assert!(world.server.stats().lookups <= u64::try_from(all).unwrap());
    world.pass_s(5);
    world.events.clear();
    world.finish();
}

#[test]
fn nine_prefixes_that_flood_one_after_the_other_leave_room_for_a_tenth() {
    let mut world = world();
    for number in 0..9 * 1_024 {
        let remote = format!("198.51.{}.1:{}", number / 1_024, 1_000 + number % 1_024);
        let mut flooder = Client::new(&mut world, &format!("name{number}"), &remote);
        let request = flooder.allocate_request(|_| {});
        world.client(&flooder.path, &request);
    }
    world.events.clear();
    for number in 0..world.config.max_lookups_per_prefix {
        let remote = format!("203.0.113.1:{}", 4_000 + number);
        let mut honest = Client::new(&mut world, &format!("user{number}"), &remote);
        let request = honest.allocate_request(|_| {});
        world.looked_up(&honest.path, &request);
    }
    world.pass_s(5);
    world.events.clear();
    world.finish();
}

#[test]
fn the_table_has_room_for_so_many_and_so_long_requests() {
    let mut world = World::with(|config| {
        config.credentials = Arc::new(Later);
        config.max_lookups = 3;
    });
    for number in 0..3 {
        let mut client = Client::new(&mut world, "alice", &format!("198.51.{number}.1:4000"));
        let request = client.allocate_request(|_| {});
        world.looked_up(&client.path, &request);
    }
    let mut fourth = Client::new(&mut world, "alice", "203.0.113.1:4000");
    let request = fourth.allocate_request(|_| {});
    assert_eq!(world.dropped(&fourth.path, &request), DropReason::Lookups);
    let mut on_tcp = Client::on(&mut world, "alice", path_on(Transport::Tcp, REMOTE));
    assert_eq!(on_tcp.try_allocate(&mut world, |_| {}).code(), 500);
    world.pass_s(5);
    world.events.clear();
    let request = fourth.allocate_request(|request| {
        request
            .push_raw(stun::AttributeType::SOFTWARE, &[b'x'; 5000])
            .unwrap();
    });
    assert_eq!(world.dropped(&fourth.path, &request), DropReason::Lookups);
    world.finish();
}

#[test]
fn a_stream_is_not_read_while_its_request_waits() {
    let mut world = world();
    let mut client = Client::on(&mut world, "alice", path_on(Transport::Tcp, REMOTE));
    let request = client.allocate_request(|_| {});
    assert_eq!(
        world.client(&client.path, &request),
        ClientVerdict::Handled { covers: 1 }
    );
    assert_eq!(world.event(), Event::Pause(client.path));
    let Event::FindKeys(lookup, query) = world.event() else {
        panic!("not looked up")
    };
    world.found(lookup, KeyLookup::Known(known(&query)));
    assert_eq!(world.event(), Event::Resume(client.path));
    assert_eq!(world.reply(&client.path).code(), 0);
    world.expect_opened();
    // A connection that closes takes its request along.
    let mut other = Client::on(
        &mut world,
        "alice",
        path_on(Transport::Tcp, "198.51.100.9:1"),
    );
    other.signing = Signing::legacy(
        "bob",
        "bob's password",
        &other.signing.nonce.clone().unwrap(),
    );
    let request = other.allocate_request(|_| {});
    world.client(&other.path, &request);
    let (_, Event::FindKeys(lookup, _)) = (world.event(), world.event()) else {
        panic!("not looked up")
    };
    world
        .server
        .client_closed(world.now, &other.path.five_tuple);
    assert!(!world.found(lookup, KeyLookup::Unknown));
    assert_eq!(world.server.stats().lookups, 0);
    world.finish();
}

#[test]
fn a_key_is_good_for_as_long_as_its_source_says() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    world.found(lookup, lasting(&query, Some(60), None));
    assert_eq!(world.reply(&client.path).code(), 0);
    world.expect_opened();
    let mut other = Client::new(&mut world, "alice", "198.51.100.1:4001");
    world.pass_s(59);
    other.allocate(&mut world);
    world.pass_s(1);
    let mut third = Client::new(&mut world, "alice", "198.51.100.1:4002");
    let request = third.allocate_request(|_| {});
    let (lookup, _) = world.looked_up(&third.path, &request);
    world.found(lookup, KeyLookup::Unknown);
    assert_eq!(world.reply(&third.path).code(), 401);
    // An allocation stays with the key that it was made with.
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn a_forgotten_user_gets_no_new_allocation_and_strictly_no_refresh() {
    for strict in [false, true] {
        for which in [
            UsersToForget::User("alice"),
            UsersToForget::Realm(REALM),
            UsersToForget::All,
        ] {
            let mut world = World::with(|config| {
                config.credentials = Arc::new(Later);
                config.strict_expiry = strict;
            });
            let mut client = Client::new(&mut world, "alice", REMOTE);
            let request = client.allocate_request(|_| {});
            let (lookup, query) = world.looked_up(&client.path, &request);
            world.found(lookup, KeyLookup::Known(known(&query)));
            assert_eq!(world.reply(&client.path).code(), 0);
            world.expect_opened();
            world.server.forget_users(UsersToForget::User("bob"));
            world.server.forget_users(UsersToForget::Realm("elsewhere"));
            assert_eq!(
                client.refresh(&mut world, 600).code(),
                0,
                "others were forgotten"
            );
            world.server.forget_users(which);
            let mut again = Client::new(&mut world, "alice", "198.51.100.1:4001");
            let request = again.allocate_request(|_| {});
            let (lookup, _) = world.looked_up(&again.path, &request);
            world.found(lookup, KeyLookup::Unknown);
            assert_eq!(world.reply(&again.path).code(), 401);
            if strict {
                let request = client.request(Method::REFRESH, |request| {
                    request.push(&Lifetime(600)).unwrap();
                });
                let (lookup, _) = world.looked_up(&client.path, &request);
                world.found(lookup, KeyLookup::Unknown);
                assert_eq!(world.reply(&client.path).code(), 401);
            } else {
                assert_eq!(client.refresh(&mut world, 600).code(), 0);
            }
            world.finish();
        }
    }
}

#[test]
fn an_answer_of_before_the_user_was_forgotten_is_asked_for_again() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    world.server.forget_users(UsersToForget::User("alice"));
    assert!(world.found(lookup, KeyLookup::Known(known(&query))));
    let Event::FindKeys(lookup, _) = world.event() else {
        panic!("not looked up again")
    };
    world.found(lookup, KeyLookup::Unknown);
    assert_eq!(world.reply(&client.path).code(), 401);
    world.finish();
}

#[test]
fn a_reload_or_a_rotation_while_a_request_waits_is_no_end_of_it() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, _) = world.looked_up(&client.path, &request);
    world.reconfigure(|config| config.nonce_keys.rotate(&[7; 32]));
    world.reconfigure(|config| config.nonce_keys.rotate(&[8; 32]));
    world.found(lookup, KeyLookup::Unknown);
    assert_eq!(world.reply(&client.path).code(), 438, "as if it came now");
    world.finish();
}

#[test]
fn sources_that_answer_at_once_are_not_waited_for_beside_others_that_do_not() {
    let mut users = StaticCredentials::new(REALM);
    users.add_password("alice", "alice's password").unwrap();
    let both = AnyOf(vec![Arc::new(Later), Arc::new(users)]);
    let mut world = World::with(|config| config.credentials = Arc::new(both));
    Client::new(&mut world, "alice", REMOTE).allocate(&mut world);
    let mut bob = Client::new(&mut world, "bob", "198.51.100.1:4001");
    let request = bob.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&bob.path, &request);
    world.found(lookup, KeyLookup::Known(known(&query)));
    assert_eq!(world.reply(&bob.path).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn an_authenticated_binding_request_waits_too() {
    let mut world = World::with(|config| {
        config.credentials = Arc::new(Later);
        config.authenticate_binding = true;
    });
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.request(Method::BINDING, |_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    world.found(lookup, KeyLookup::Known(known(&query)));
    let reply = world.reply(&client.path);
    assert_eq!(reply.get(), Some(stun::XorMappedAddress(address(REMOTE))));
    world.finish();
}

#[test]
fn several_keys_are_tried_in_turn() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    let (lookup, query) = world.looked_up(&client.path, &request);
    let mut user = known(&query);
    let other = long_term_key(PasswordAlgorithm::Md5, "alice", REALM, "other").unwrap();
    user.keys.insert(
        0,
        UserKey {
            key: other,
            expires_unix_s: None,
            ttl_s: None,
        },
    );
    world.found(lookup, KeyLookup::Known(user));
    assert_eq!(world.reply(&client.path).code(), 0);
    world.expect_opened();
    world.finish();
}
