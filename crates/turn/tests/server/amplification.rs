//! What an unproven address gets is small: it may be somebody else's.

use hairpin_turn::server::{Config, ConfigError, DropReason, MAX_REALM_BYTES};
use stun::nonce::SecurityFeatures;
use stun::{Builder, Class, ErrorCode, Method, Nonce, PasswordAlgorithms, Realm, TransactionId};

use crate::world::{World, path};

#[test]
fn challenges_are_at_most_three_times_the_request() {
    for realm_len in [1, 7, 16, 24, 32, MAX_REALM_BYTES] {
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

/// With this, nothing of any kind that an unproven address gets is longer than what it sent.
#[test]
fn a_strict_server_never_sends_more_than_it_got() {
    let mut world = World::with(|config| {
        config.strict_amplification = true;
        config.software = Some("a server".into());
    });
    let path = path("198.51.100.1:4000");
    let id = TransactionId([7; 12]);
    let mut answered = 0;
    for method in [Method::BINDING, Method::ALLOCATE, Method::REFRESH] {
        for padding in (0..200).step_by(4) {
            // Answered with success, 401, 420, and 400 for credentials without a nonce.
            for more in [
                &[][..],
                &[0x7f, 0x01, 0, 0],
                &[0, 6, 0, 4, b'b', b'o', b'b', b'!'],
            ] {
                let mut buffer = [0; 512];
                let mut builder = Builder::new(&mut buffer, Class::Request, method, &id).unwrap();
                let text = vec![b'x'; padding];
                builder
                    .push_raw(stun::AttributeType::SOFTWARE, &text)
                    .unwrap();
                if let [high, low, _, _, value @ ..] = more {
                    let kind = stun::AttributeType(u16::from_be_bytes([*high, *low]));
                    builder.push_raw(kind, value).unwrap();
                }
                let request = builder.finish().to_vec();
                world.client(&path, &request);
                while let Some(event) = world.events.pop_front() {
                    let crate::world::Event::Sent { bytes, .. } = event else {
                        panic!("{event:?}");
                    };
                    assert!(
                        bytes.len() <= request.len(),
                        "{method:?} {padding} {more:?}"
                    );
                    answered += 1;
                }
            }
        }
    }
    // A short Binding request gets no answer, and a padded one does.
    let short = world.dropped(&path, &crate::world::bare(Method::BINDING));
    assert_eq!(short, DropReason::Amplification);
    assert!(answered > 200, "{answered}");
    let classic = [&[0, 1, 0, 0][..], &[9; 16]].concat();
    let dropped = world.dropped(&path, &classic);
    assert_eq!(dropped, DropReason::Amplification);
    // Over TCP, the handshake has proven the address.
    let mut tcp = path;
    tcp.five_tuple.transport = hairpin_turn::Transport::Tcp;
    assert_eq!(
        world.ask(&tcp, &crate::world::bare(Method::BINDING)).code(),
        0
    );
    world.finish();
}

#[test]
fn a_realm_that_is_too_long_for_the_shortest_challenge_is_rejected() {
    let world = World::new();
    let error = |realm: &str| {
        let mut config: Config = world.config.clone();
        config.realm = realm.to_owned();
        config.validate().err()
    };
    assert_eq!(error(&"r".repeat(MAX_REALM_BYTES)), None);
    let too_long = error(&"r".repeat(45)).unwrap();
    assert_eq!(too_long, ConfigError::LongRealm(45));
    assert!(too_long.to_string().contains("at most 44"), "{too_long}");
    // Bytes, not characters.
    assert_eq!(error(&"é".repeat(23)), Some(ConfigError::LongRealm(46)));
    assert_eq!(
        (error(""), error("a\tb")),
        (Some(ConfigError::Realm), Some(ConfigError::Realm))
    );
    world.finish();
}
