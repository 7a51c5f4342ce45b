//! What an unproven address gets is small: it may be somebody else's.

use hairpin_turn::server::DropReason;
use stun::nonce::SecurityFeatures;
use stun::{Builder, Class, ErrorCode, Method, Nonce, PasswordAlgorithms, Realm, TransactionId};

use crate::world::{World, bare, path};

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
