//! Password algorithms, and attempts to bid them down (RFC 8489 §9.2.1, §9.2.4).

use std::sync::Arc;

use hairpin_turn::server::AuthFailure;
use hairpin_turn::server::credentials::{RestCredentials, StaticCredentials};
use stun::nonce::SecurityFeatures;
use stun::{
    IntegrityAlgorithm, Method, Nonce, PasswordAlgorithm, PasswordAlgorithms, long_term_key,
};

use crate::world::{Client, REALM, Signing, World, bare, path};

#[test]
fn a_client_that_names_a_password_algorithm_gets_sha256() {
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
fn without_a_password_algorithm_the_answer_carries_message_integrity_only() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let key = long_term_key(PasswordAlgorithm::Md5, "alice", REALM, "alice's password").unwrap();
    client.signing.keys = vec![key.hmac_sha256()];
    let reply = client.try_allocate(&mut world, |_| {});
    world.expect_opened();
    assert!(reply.is_signed_with(&key.hmac_sha1()), "RFC 8489 §9.2.4");
    let sha256 = reply.message().integrity(IntegrityAlgorithm::Sha256);
    assert!(sha256.is_none(), "used instead");
    world.finish();
}

#[test]
fn a_nonce_of_another_offer_is_answered_with_438_and_the_offer_of_now() {
    type Change = fn(&mut hairpin_turn::server::Config);
    let rest: Change = |config| config.credentials = Arc::new(RestCredentials::new([b"secret"]));
    let silent: Change = |config| config.announce_password_algorithms = false;
    for (change, list, anonymity) in [
        (rest, Some(PasswordAlgorithms::SHA256_MD5), false),
        (silent, None, true),
    ] {
        let mut world = World::new();
        let before = world.config.clone();
        let mut modern = Client::modern(&mut world, "alice", "198.51.100.1:4000");
        let mut legacy = Client::new(&mut world, "alice", "198.51.100.1:4001");
        world.reconfigure(change);
        for client in [&mut modern, &mut legacy] {
            let reply = client.try_allocate(&mut world, |_| {});
            assert_eq!(reply.code(), 438);
            let sent: Option<PasswordAlgorithms<'_>> = reply.get();
            assert_eq!(
                sent.map(|list| list.as_bytes().to_vec()),
                list.map(|list| list.as_bytes().to_vec())
            );
            let nonce = reply.get::<Nonce<'_>>().unwrap().0;
            let features = SecurityFeatures::of_nonce(nonce).unwrap();
            assert_eq!(features.username_anonymity, anonymity);
        }
        // Once it is as it was, the nonce is good again.
        world.reconfigure(|config| *config = before);
        modern.allocate(&mut world);
        assert_eq!(
            world.server.stats().auth_failed(AuthFailure::OutdatedOffer),
            2
        );
        world.finish();
    }
}

#[test]
fn a_nonce_whose_offer_was_left_out_for_want_of_room_is_good() {
    let mut world = World::with(|config| config.realm = "r".repeat(44));
    let path = path("198.51.100.1:4000");
    let reply = world.ask(&path, &bare(Method::REFRESH));
    let nonce = reply.get::<Nonce<'_>>().unwrap().0.to_vec();
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_none());
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.signing = Signing::legacy("alice", "alice's password", &nonce);
    client.signing.realm = Some("r".repeat(44));
    client.allocate(&mut world);
    world.finish();
}
