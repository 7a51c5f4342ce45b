//! The long-term credential mechanism (RFC 8489 §9.2.4).

use std::sync::Arc;

use hairpin_turn::server::DropReason;
use hairpin_turn::server::credentials::{AnyOf, RestCredentials, StaticCredentials, rest_password};
use stun::nonce::{LEN, NonceKeys, SecurityFeatures};
use stun::{
    Builder, Class, ErrorCode, FingerprintState, IntegrityAlgorithm, Method, Nonce,
    PasswordAlgorithm, PasswordAlgorithms, Realm, TransactionId, Userhash, Username, long_term_key,
};

use crate::world::{Client, REALM, START_UNIX_S, Signing, World, path};

const MODERN: PasswordAlgorithms<'_> = PasswordAlgorithms::SHA256_MD5;

fn bare(method: Method) -> Vec<u8> {
    let mut buffer = [0; 20];
    Builder::new(&mut buffer, Class::Request, method, &TransactionId([3; 12]))
        .unwrap()
        .finish()
        .to_vec()
}

#[test]
fn without_integrity_every_turn_method_is_challenged() {
    let mut world = World::new();
    let path = path("198.51.100.1:4000");
    for method in [
        Method::ALLOCATE,
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ] {
        let reply = world.ask(&path, &bare(method));
        assert_eq!((reply.method(), reply.code()), (method, 401));
        assert_eq!(reply.get::<Realm<'_>>(), Some(Realm(REALM)));
        assert_eq!(
            reply.get::<PasswordAlgorithms<'_>>().unwrap().as_bytes(),
            MODERN.as_bytes()
        );
        assert!(
            reply.get::<Username<'_>>().is_none()
                && reply.get::<Userhash>().is_none()
                && !reply.is_signed()
        );
        let nonce = reply.get::<Nonce<'_>>().unwrap().0;
        assert_eq!(
            SecurityFeatures::of_nonce(nonce),
            Some(SecurityFeatures {
                password_algorithms: true,
                username_anonymity: true
            })
        );
    }
    assert_eq!(world.server.stats().answers, 0, "nothing is kept");
    assert_eq!(world.server.stats().errors_with(401), 4);
    world.finish();
}

#[test]
fn two_clients_never_get_the_same_nonce_and_one_cannot_use_the_others() {
    let mut world = World::new();
    let nonce = Client::nonce(&mut world, &path("198.51.100.1:4000"));
    assert_ne!(nonce, Client::nonce(&mut world, &path("198.51.100.1:4001")));
    assert_ne!(nonce, Client::nonce(&mut world, &path("198.51.100.2:4000")));
    let mut thief = Client::new(&mut world, "alice", "198.51.100.2:4000");
    thief.signing.nonce = Some(nonce);
    assert_eq!(thief.try_allocate(&mut world, |_| {}).code(), 438);
    world.finish();
}

#[test]
fn a_request_lacking_a_credential_attribute_is_a_bad_request() {
    let mut world = World::new();
    let good = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let spoil: [fn(&mut Signing); 4] = [
        |signing| signing.username = None,
        |signing| signing.realm = None,
        |signing| signing.nonce = None,
        |signing| (signing.username, signing.realm, signing.nonce) = (None, None, None),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut client = Client {
            next_id: 100 * number as u64,
            ..good.clone()
        };
        spoil(&mut client.signing);
        let reply = client.try_allocate(&mut world, |_| {});
        assert_eq!(reply.code(), 400);
        assert!(!reply.is_signed());
        assert!(reply.get::<Nonce<'_>>().is_none() && reply.get::<Realm<'_>>().is_none());
    }
    world.finish();
}

#[test]
fn a_wrong_user_realm_or_password_is_unauthenticated() {
    let mut world = World::new();
    let good = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let nonce = good.signing.nonce.clone().unwrap();
    let signings = [
        Signing::legacy("nobody", "alice's password", &nonce),
        Signing::legacy("alice", "wrong", &nonce),
        Signing {
            realm: Some("elsewhere".to_owned()),
            ..good.signing.clone()
        },
        Signing::modern("nobody", "alice's password", &nonce),
        Signing::modern("alice", "wrong", &nonce),
    ];
    for signing in signings {
        let mut client = Client {
            signing,
            ..good.clone()
        };
        let reply = client.try_allocate(&mut world, |_| {});
        assert_eq!(reply.code(), 401);
        assert!(!reply.is_signed());
        assert!(reply.get::<Nonce<'_>>().is_some() && reply.get::<Realm<'_>>().is_some());
        assert!(reply.get::<PasswordAlgorithms<'_>>().is_some());
    }
    assert_eq!(world.server.stats().answers, 0, "nothing is kept");
    world.finish();
}

#[test]
fn a_truncated_integrity_is_refused() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    let key = client.signing.keys.remove(0);
    let mut request = client.request(Method::REFRESH, |_| {});
    let mut buffer = [0; 512];
    buffer[..request.len()].copy_from_slice(&request);
    let id = client.id();
    let mut builder = Builder::new(&mut buffer, Class::Request, Method::REFRESH, &id).unwrap();
    let unsigned = Signing {
        keys: Vec::new(),
        ..client.signing.clone()
    };
    crate::world::sign_into(&mut builder, &unsigned);
    builder.truncated_integrity(&key, 16).unwrap();
    request = builder.finish().to_vec();
    assert_eq!(world.ask(&client.path, &request).code(), 401);
    world.finish();
}

#[test]
fn the_answer_carries_the_integrity_of_its_request() {
    let mut world = World::new();
    let mut legacy = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let reply = legacy.try_allocate(&mut world, |_| {});
    world.expect_opened();
    assert_eq!(
        reply.message().has_integrity(),
        Some(IntegrityAlgorithm::Sha1)
    );
    assert!(reply.is_signed_with(legacy.key()));
    let mut modern = Client::modern(&mut world, "alice", "198.51.100.1:4001");
    let reply = modern.try_allocate(&mut world, |_| {});
    world.expect_opened();
    assert_eq!(
        reply.message().has_integrity(),
        Some(IntegrityAlgorithm::Sha256)
    );
    assert!(
        reply
            .message()
            .integrity(IntegrityAlgorithm::Sha1)
            .is_none()
    );
    assert!(reply.is_signed_with(modern.key()));
    world.finish();
}

#[test]
fn who_names_a_password_algorithm_always_gets_sha256() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    let key = long_term_key(
        PasswordAlgorithm::Sha256,
        "alice",
        REALM,
        "alice's password",
    )
    .unwrap();
    client.signing.keys = vec![key.hmac_sha1()];
    let reply = client.try_allocate(&mut world, |_| {});
    world.expect_opened();
    assert!(
        reply.is_signed_with(&key.hmac_sha256()),
        "RFC 8489 §9.2.4 demands it"
    );
    assert!(
        reply.is_signed_with(&key.hmac_sha1()),
        "and the client can check it"
    );
    client.signing.keys = vec![key.hmac_sha1(), key.hmac_sha256()];
    let reply = client.refresh(&mut world, 600);
    assert!(reply.is_signed_with(&key.hmac_sha256()));
    assert!(
        reply
            .message()
            .integrity(IntegrityAlgorithm::Sha1)
            .is_none()
    );
    world.finish();
}

#[test]
fn md5_can_be_chosen_by_name() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    let key = long_term_key(PasswordAlgorithm::Md5, "alice", REALM, "alice's password").unwrap();
    client.signing.password_algorithm = Some(vec![0, 1, 0, 0]);
    client.signing.keys = vec![key.hmac_sha256()];
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn both_integrities_are_there_and_the_stronger_one_counts() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    let right = long_term_key(
        PasswordAlgorithm::Sha256,
        "alice",
        REALM,
        "alice's password",
    )
    .unwrap();
    let wrong = long_term_key(PasswordAlgorithm::Sha256, "alice", REALM, "wrong").unwrap();
    client.signing.keys = vec![right.hmac_sha1(), wrong.hmac_sha256()];
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 401);
    client.signing.keys = vec![wrong.hmac_sha1(), right.hmac_sha256()];
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn bidding_down_is_noticed() {
    let mut world = World::new();
    let good = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    type Spoil = fn(&mut Signing);
    let cases: [(&str, Spoil, u16); 7] = [
        (
            "the list was cut short",
            |signing| signing.password_algorithms = Some(vec![0, 1, 0, 0]),
            400,
        ),
        (
            "the list was reordered",
            |signing| signing.password_algorithms = Some(vec![0, 1, 0, 0, 0, 2, 0, 0]),
            400,
        ),
        (
            "the list is missing",
            |signing| signing.password_algorithms = None,
            400,
        ),
        (
            "the choice is missing",
            |signing| signing.password_algorithm = None,
            400,
        ),
        (
            "the choice is not on the list",
            |signing| signing.password_algorithm = Some(vec![0, 3, 0, 0]),
            400,
        ),
        (
            "an attacker took the bit out of the nonce, and the client fell back to MD5",
            |signing| {
                let mut nonce = signing.nonce.clone().unwrap();
                nonce[9..13].copy_from_slice(b"AAAA");
                *signing = Signing::legacy("alice", "alice's password", &nonce);
            },
            438,
        ),
        (
            "an attacker took the anonymity bit out",
            |signing| {
                let nonce = signing.nonce.as_mut().unwrap();
                nonce[9..13].copy_from_slice(b"gAAA");
            },
            438,
        ),
    ];
    for (number, (what, spoil, code)) in cases.into_iter().enumerate() {
        let mut client = Client {
            next_id: 1000 * number as u64,
            ..good.clone()
        };
        spoil(&mut client.signing);
        assert_eq!(
            client.try_allocate(&mut world, |_| {}).code(),
            code,
            "{what}"
        );
    }
    world.finish();
}

#[test]
fn a_userhash_stands_for_the_user_name() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    assert!(client.signing.username.is_none());
    client.allocate(&mut world);
    // The same user by name: the allocation is still theirs.
    let mut named = client.clone();
    named.signing.userhash = None;
    named.signing.username = Some("alice".to_owned());
    assert_eq!(named.refresh(&mut world, 600).code(), 0);
    // Another user's hash: authenticated, but not the owner.
    client.next_id = named.next_id;
    let nonce = client.signing.nonce.clone().unwrap();
    client.signing = Signing::modern("bob", "bob's password", &nonce);
    assert_eq!(client.refresh(&mut world, 600).code(), 441);
    world.finish();
}

#[test]
fn without_userhashes_the_anonymity_bit_is_not_set() {
    let rest = RestCredentials::new([b"secret"]);
    let mut world = World::with(|config| config.credentials = Arc::new(rest));
    let nonce = Client::nonce(&mut world, &path("198.51.100.1:4000"));
    let features = SecurityFeatures::of_nonce(&nonce).unwrap();
    assert!(features.password_algorithms && !features.username_anonymity);
    world.finish();
}

#[test]
fn password_algorithms_can_be_left_out() {
    let mut world = World::with(|config| config.announce_password_algorithms = false);
    let reply = world.ask(&path("198.51.100.1:4000"), &bare(Method::ALLOCATE));
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_none());
    let features = SecurityFeatures::of_nonce(reply.get::<Nonce<'_>>().unwrap().0).unwrap();
    assert!(!features.password_algorithms);
    Client::new(&mut world, "alice", "198.51.100.1:4000").allocate(&mut world);
    world.finish();
}

#[test]
fn a_server_that_holds_md5_keys_only_does_not_announce_sha256() {
    let mut users = StaticCredentials::new(REALM);
    let key = long_term_key(PasswordAlgorithm::Md5, "carol", REALM, "pass").unwrap();
    users.add_key("carol", PasswordAlgorithm::Md5, key).unwrap();
    let mut world = World::with(|config| config.credentials = Arc::new(users));
    let reply = world.ask(&path("198.51.100.1:4000"), &bare(Method::ALLOCATE));
    assert_eq!(
        reply.get::<PasswordAlgorithms<'_>>().unwrap().as_bytes(),
        PasswordAlgorithms::MD5.as_bytes()
    );
    let mut client = Client::new(&mut world, "carol", "198.51.100.1:4000");
    client.signing = Signing::legacy("carol", "pass", &client.signing.nonce.clone().unwrap());
    client.allocate(&mut world);
    world.finish();
}

#[test]
fn a_nonce_grows_stale_and_the_answer_brings_a_fresh_one() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 60);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    world.pass_s(61);
    let reply = client.refresh(&mut world, 600);
    assert_eq!(reply.code(), 438);
    assert_eq!(reply.get::<Realm<'_>>(), Some(Realm(REALM)));
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_some());
    let fresh = reply.get::<Nonce<'_>>().unwrap().0.to_vec();
    assert_eq!(fresh.len(), LEN);
    assert_ne!(Some(&fresh), client.signing.nonce.as_ref());
    client.signing.nonce = Some(fresh);
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn wrong_credentials_with_a_stale_nonce_are_unauthenticated() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 60);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    world.pass_s(61);
    client.signing = Signing::legacy("alice", "wrong", &client.signing.nonce.clone().unwrap());
    assert_eq!(
        client.try_allocate(&mut world, |_| {}).code(),
        401,
        "the nonce is looked at last"
    );
    world.finish();
}

#[test]
fn a_rotation_of_the_nonce_keys_loses_nobody_and_the_second_one_does() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    world.reconfigure(|config| config.nonce_keys.rotate(&[8; 32]));
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.reconfigure(|config| config.nonce_keys.rotate(&[9; 32]));
    let reply = client.refresh(&mut world, 600);
    assert_eq!(reply.code(), 438);
    client.signing.nonce = Some(reply.get::<Nonce<'_>>().unwrap().0.to_vec());
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn any_worker_takes_the_nonce_of_another() {
    let mut one = World::new();
    let mut two = World::with(|config| config.nonce_keys = NonceKeys::new(&[1; 32]));
    let mut client = Client::new(&mut one, "alice", "198.51.100.1:4000");
    client.allocate(&mut two);
    one.finish();
    two.finish();
}

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

#[test]
fn challenges_are_at_most_three_times_the_request() {
    for realm_len in [1, 7, 16, 24, 32, 48, 127] {
        let realm = "r".repeat(realm_len);
        let mut world = World::with(|config| {
            config.realm = realm.clone();
            config.software = Some("s".repeat(100));
        });
        for (remote, headers) in [("198.51.100.1:4000", 28), ("[2001:db8:5::1]:4001", 48)] {
            let path = path(remote);
            for padding in [0, 8, 40, 400] {
                let mut buffer = [0; 512];
                let id = TransactionId([padding as u8; 12]);
                let mut builder =
                    Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
                if padding > 0 {
                    builder
                        .push_raw(stun::AttributeType::SOFTWARE, &vec![b'x'; padding - 4])
                        .unwrap();
                }
                let request = builder.finish().to_vec();
                world.client(&path, &request);
                if world.events.is_empty() {
                    assert!(realm_len > 32 && padding <= 8, "{realm_len} {padding}");
                    continue;
                }
                let reply = world.reply(&path);
                assert!(
                    reply.0.len() + headers <= 3 * (request.len() + headers),
                    "{realm_len} {padding}"
                );
                assert_eq!(reply.get::<Realm<'_>>(), Some(Realm(&realm)));
                let announced = reply.get::<PasswordAlgorithms<'_>>().is_some();
                let features =
                    SecurityFeatures::of_nonce(reply.get::<Nonce<'_>>().unwrap().0).unwrap();
                assert_eq!(features.password_algorithms, announced);
                assert!(
                    "Unauthenticated".starts_with(reply.get::<ErrorCode<'_>>().unwrap().reason)
                );
                if realm_len <= 16 {
                    assert!(announced);
                    assert_eq!(
                        reply.get::<ErrorCode<'_>>(),
                        Some(ErrorCode::UNAUTHENTICATED)
                    );
                }
            }
        }
        world.finish();
    }
}

#[test]
fn a_challenge_that_cannot_be_short_enough_is_not_sent() {
    let mut world = World::with(|config| config.realm = "r".repeat(127));
    let dropped = world.dropped(&path("198.51.100.1:4000"), &bare(Method::ALLOCATE));
    assert_eq!(dropped, DropReason::Amplification);
    assert_eq!(world.server.stats().errors_with(401), 0);
    world.finish();
}

#[test]
fn a_challenge_is_fingerprinted_if_the_request_was() {
    let mut world = World::new();
    let mut buffer = [0; 64];
    let mut builder = Builder::new(
        &mut buffer,
        Class::Request,
        Method::ALLOCATE,
        &TransactionId([1; 12]),
    )
    .unwrap();
    builder.fingerprint().unwrap();
    let request = builder.finish().to_vec();
    let path = path("198.51.100.1:4000");
    assert_eq!(
        world.ask(&path, &request).message().fingerprint(),
        FingerprintState::Valid
    );
    assert_eq!(
        world
            .ask(&path, &bare(Method::ALLOCATE))
            .message()
            .fingerprint(),
        FingerprintState::Absent
    );
    let mut spoilt = request;
    *spoilt.last_mut().unwrap() ^= 1;
    assert_eq!(world.dropped(&path, &spoilt), DropReason::WrongFingerprint);
    world.finish();
}
