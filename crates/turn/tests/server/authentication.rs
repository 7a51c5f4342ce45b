//! The long-term credential mechanism (RFC 8489 §9.2.4).

use hairpin_turn::server::DropReason;
use stun::nonce::SecurityFeatures;
use stun::{
    Builder, Class, FingerprintState, IntegrityAlgorithm, Method, Nonce, PasswordAlgorithms, Realm,
    TransactionId, Userhash, Username,
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
    assert_eq!(world.server.stats().answers, 0, "nothing is kept");
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
    assert_eq!(world.server.stats().answers, 0, "nothing is kept");
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
