//! The long-term credential mechanism (RFC 8489 §9.2.4).

use std::sync::Arc;

use hairpin_turn::server::credentials::{AnyOf, RestCredentials};
use hairpin_turn::server::{AuthFailure, DropReason};
use stun::nonce::SecurityFeatures;
use stun::{
    Builder, Class, ErrorCode, FingerprintState, IntegrityAlgorithm, Method, Nonce,
    PasswordAlgorithms, Realm, TransactionId, Userhash, Username,
};

use crate::world::{Client, REALM, Signing, World, bare, path};

const MODERN: PasswordAlgorithms<'_> = PasswordAlgorithms::SHA256_MD5;

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
    assert_eq!(world.server.stats().errors_with(401), 4);
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
    world.finish();
}

#[test]
fn a_truncated_integrity_is_refused_also_from_those_who_are_known() {
    let mut world = World::new();
    let mut client = Client::modern(&mut world, "alice", "198.51.100.1:4000");
    let truncated = |client: &mut Client| {
        let mut buffer = [0; 512];
        let id = client.id();
        let mut builder = Builder::new(&mut buffer, Class::Request, Method::REFRESH, &id).unwrap();
        let unsigned = Signing {
            keys: Vec::new(),
            ..client.signing.clone()
        };
        crate::world::sign_into(&mut builder, &unsigned);
        builder.truncated_integrity(client.key(), 16).unwrap();
        builder.finish().to_vec()
    };
    let request = truncated(&mut client);
    assert_eq!(world.ask(&client.path, &request).code(), 401);
    client.allocate(&mut world);
    let request = truncated(&mut client);
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

#[test]
fn each_failure_is_counted_and_logged_under_its_reason_and_responses_are_equal() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 60);
    let rest = RestCredentials::new(["secret"]);
    let both = AnyOf(vec![Arc::clone(&world.config.credentials), Arc::new(rest)]);
    world.reconfigure(|config| config.credentials = Arc::new(both));
    let mut good = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let nonce = good.signing.nonce.clone().unwrap();
    let realm = Some("elsewhere".to_owned());
    let wrong = [
        (
            Signing::legacy("nobody", "x", &nonce),
            AuthFailure::UnknownUser,
            "nobody",
        ),
        (
            Signing::legacy("alice", "wrong", &nonce),
            AuthFailure::WrongPassword,
            "alice",
        ),
        (
            Signing::legacy("1600000000:ann", "x", &nonce),
            AuthFailure::ExpiredCredential,
            "1600000000:ann",
        ),
        (
            Signing {
                realm,
                ..good.signing.clone()
            },
            AuthFailure::WrongRealm,
            "alice",
        ),
    ];
    let mut replies = Vec::new();
    for (signing, reason, name) in wrong {
        let mut client = Client {
            signing,
            ..good.clone()
        };
        let reply = client.try_allocate(&mut world, |_| {});
        let code: ErrorCode<'_> = reply.get().unwrap();
        replies.push((code.code, code.reason.to_owned(), reply.0.len()));
        assert_eq!(world.server.stats().auth_failed(reason), 1);
        assert_eq!(world.failures.pop(), Some((name.to_owned(), reason, 0)));
    }
    assert_eq!(replies[0].0, 401);
    assert!(
        replies.windows(2).all(|two| two[0] == two[1]),
        "{replies:?}"
    );
    let mut forger = good.clone();
    forger.signing.nonce.as_mut().unwrap()[20] = b'~';
    let forged = forger.try_allocate(&mut world, |_| {});
    assert_eq!((forged.code(), world.failures.len()), (438, 1));
    good.allocate(&mut world);
    let mut other = good.clone();
    other.signing = Signing::legacy("bob", "bob's password", &nonce);
    assert_eq!(other.refresh(&mut world, 600).code(), 441);
    world.failures.clear();
    world.pass_s(61);
    let stale = good.refresh(&mut world, 600);
    assert_eq!((stale.code(), stale.0.len()), (438, forged.0.len()));
    assert_eq!(world.failures, [], "every client meets that");
    expect_one_of_each(world);
}

/// Each reason was counted once, but for the one that requires a reload, and the one of access tokens.
fn expect_one_of_each(world: World) {
    let elsewhere = [AuthFailure::OutdatedOffer, AuthFailure::ForgedToken];
    for reason in AuthFailure::ALL {
        let expected = u64::from(!elsewhere.contains(reason));
        assert_eq!(
            world.server.stats().auth_failed(*reason),
            expected,
            "{reason:?}"
        );
    }
    world.finish();
}

#[test]
fn the_log_gets_one_failure_of_a_kind_a_second_with_the_number_of_the_others() {
    let mut world = World::new();
    let nonce = Client::nonce(&mut world, &path("198.51.100.1:4000"));
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.signing = Signing::legacy("nobody", "x", &nonce);
    for _ in 0..100 {
        client.try_allocate(&mut world, |_| {});
    }
    world.pass_s(1);
    client.try_allocate(&mut world, |_| {});
    let told: Vec<u64> = world.failures.iter().map(|failure| failure.2).collect();
    assert_eq!(told, [0, 99]);
    assert_eq!(
        world.server.stats().auth_failed(AuthFailure::UnknownUser),
        101
    );
    world.finish();
}
