//! The order of the checks: for each pair of things that are wrong at once, the code of the one that the RFC
//! looks at first.

use stun::{
    AddressFamily, AttributeType, Builder, DontFragment, EvenPort, Method, RequestedAddressFamily,
    RequestedTransport, ReservationToken, XorPeerAddress,
};

use crate::world::{Client, Signing, World, address};

type Spoil = fn(&mut Signing);
type Attributes = fn(&mut Builder<'_>);

const REMOTE: &str = "198.51.100.1:4000";

/// What can be wrong with the credentials, with the code: in the order of RFC 8489 §9.2.4, but that a nonce which is
/// not the server's is refused before anything is looked up.
const CREDENTIALS: [(&str, Spoil, u16); 5] = [
    ("no integrity", |signing| signing.keys.clear(), 401),
    (
        "no user name",
        |signing| (signing.username, signing.userhash) = (None, None),
        400,
    ),
    (
        "forged nonce",
        |signing| signing.nonce.as_mut().unwrap()[20] = b'~',
        438,
    ),
    (
        "no list of algorithms",
        |signing| signing.password_algorithms = None,
        400,
    ),
    (
        "unknown user",
        |signing| signing.userhash = Some([7; 32]),
        401,
    ),
];

#[test]
fn credentials_are_checked_in_the_order_of_rfc_8489() {
    for (earlier, (what, spoil, code)) in CREDENTIALS.iter().enumerate() {
        for (other, spoil_too, _) in &CREDENTIALS[earlier..] {
            let mut world = World::new();
            let mut client = Client::modern(&mut world, "alice", REMOTE);
            spoil_too(&mut client.signing);
            spoil(&mut client.signing);
            assert_eq!(
                client.try_allocate(&mut world, |_| {}).code(),
                *code,
                "{what} and {other}"
            );
            world.finish();
        }
    }
}

/// What can be wrong with an Allocate request, in the order of RFC 8489 §6.3.1 and RFC 8656 §7.2. Each is
/// written after a good REQUESTED-TRANSPORT unless it says otherwise; the first attribute of a type counts.
const ALLOCATE: [(&str, Attributes, u16); 12] = [
    (
        "unknown attribute",
        |request| {
            request.push_raw(AttributeType(0x7001), b"").unwrap();
        },
        420,
    ),
    ("5-tuple in use", |_| {}, 437),
    (
        "transport malformed",
        |request| {
            request
                .push_raw(AttributeType::REQUESTED_TRANSPORT, b"")
                .unwrap();
        },
        400,
    ),
    (
        "transport is TCP",
        |request| {
            request.push(&RequestedTransport::TCP).unwrap();
        },
        442,
    ),
    (
        "cannot set DF",
        |request| {
            request.push(&DontFragment).unwrap();
        },
        420,
    ),
    (
        "token with another wish",
        |request| {
            request
                .push(&ReservationToken([7, 0, 0, 0, 0, 0, 0, 0]))
                .unwrap()
                .push(&EvenPort { reserve: true })
                .unwrap();
        },
        400,
    ),
    (
        "invalid token",
        |request| {
            request.push(&ReservationToken([7; 8])).unwrap();
        },
        508,
    ),
    (
        "one family and both",
        |request| {
            request
                .push_raw(AttributeType::ADDITIONAL_ADDRESS_FAMILY, &[2, 0, 0, 0])
                .unwrap();
            request
                .push(&RequestedAddressFamily(AddressFamily::V6))
                .unwrap();
        },
        400,
    ),
    (
        "no such family",
        |request| {
            request
                .push(&RequestedAddressFamily(AddressFamily::V6))
                .unwrap();
        },
        440,
    ),
    (
        "even port malformed",
        |request| {
            request.push_raw(AttributeType::EVEN_PORT, b"").unwrap();
        },
        400,
    ),
    (
        "lifetime malformed",
        |request| {
            request.push_raw(AttributeType::LIFETIME, b"").unwrap();
        },
        400,
    ),
    ("quota", |_| {}, 486),
];

#[test]
fn allocate_is_checked_in_the_order_of_rfc_8656() {
    for (earlier, (what, spoil, code)) in ALLOCATE.iter().enumerate() {
        for (later, (other, spoil_too, _)) in ALLOCATE.iter().enumerate().skip(earlier) {
            // A token must stand alone, so whatever chooses an address is its own earlier mistake.
            if *what == "invalid token" && (7..=9).contains(&later) {
                continue;
            }
            let mut world =
                World::with(|config| (config.relay_v6, config.dont_fragment) = (false, false));
            let mut client = Client::new(&mut world, "alice", REMOTE);
            let wrong = |name: &str| *what == name || *other == name;
            if wrong("5-tuple in use") {
                client.allocate(&mut world);
            }
            if wrong("quota") {
                *world.quota.per_user.lock().unwrap() = 0;
            }
            let reply = client.ask(&mut world, Method::ALLOCATE, |request| {
                spoil(request);
                spoil_too(request);
                request.push(&RequestedTransport::UDP).unwrap();
            });
            assert_eq!(reply.code(), *code, "{what} and {other}");
            assert!(reply.is_signed_with(client.key()));
            world.finish();
        }
    }
}

/// What can be wrong with a ChannelBind request, in the order of RFC 8656 §5 and §12.2.
#[test]
fn channel_bind_is_checked_in_the_order_of_rfc_8656() {
    let bind = |number: [u8; 2], peer: &'static str| {
        move |request: &mut Builder<'_>| {
            request
                .push_raw(AttributeType::CHANNEL_NUMBER, &[number[0], number[1], 0, 0])
                .unwrap();
            request.push(&XorPeerAddress(address(peer))).unwrap();
        }
    };
    let mut world = World::with(|config| config.max_channels = 1);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let ask = |client: &mut Client, world: &mut World, number, peer| {
        client
            .ask(world, Method::CHANNEL_BIND, bind(number, peer))
            .code()
    };
    assert_eq!(
        ask(&mut client, &mut world, [0x30, 0], "10.0.0.1:1"),
        437,
        "no allocation comes before all"
    );
    client.allocate(&mut world);
    assert_eq!(ask(&mut client, &mut world, [0x40, 0], "198.51.100.7:1"), 0);
    let mut bob = Client::new(&mut world, "bob", REMOTE);
    assert_eq!(
        ask(&mut bob, &mut world, [0x30, 0], "10.0.0.1:1"),
        441,
        "then whose it is"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x30, 0], "[2001:db8::1]:25"),
        400,
        "the number"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x40, 0], "[2001:db8::1]:25"),
        400,
        "the number's peer"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x40, 1], "198.51.100.7:1"),
        400,
        "the peer's number"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x40, 1], "[2001:db8::1]:25"),
        443,
        "the family"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x40, 1], "10.0.0.1:1"),
        403,
        "the policy"
    );
    assert_eq!(
        ask(&mut client, &mut world, [0x40, 1], "198.51.100.8:1"),
        508,
        "the room"
    );
    world.finish();
}

/// The same for CreatePermission, RFC 8656 §10.2.
#[test]
fn create_permission_is_checked_in_the_order_of_rfc_8656() {
    let mut world = World::with(|config| config.max_permissions = 1);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let mut ask = |peers: &[&str], malformed: bool| {
        let reply = client.ask(&mut world, Method::CREATE_PERMISSION, |request| {
            for peer in peers {
                request.push(&XorPeerAddress(address(peer))).unwrap();
            }
            if malformed {
                request
                    .push_raw(AttributeType::XOR_PEER_ADDRESS, b"")
                    .unwrap();
            }
        });
        reply.code()
    };
    let (v6, denied) = ("[2001:db8::1]:1", "10.0.0.1:1");
    let (one, two) = ("198.51.100.7:1", "198.51.100.8:1");
    assert_eq!(ask(&[v6, denied, one, two], true), 400);
    assert_eq!(ask(&[denied, v6, one, two], false), 443);
    assert_eq!(ask(&[one, two, denied], false), 403);
    assert_eq!(ask(&[one, two], false), 508);
    assert_eq!(ask(&[one], false), 0);
    world.finish();
}

#[test]
fn authentication_comes_before_anything_of_turn() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.signing.keys.clear();
    for method in [
        Method::ALLOCATE,
        Method::REFRESH,
        Method::CREATE_PERMISSION,
        Method::CHANNEL_BIND,
    ] {
        let reply = client.ask(&mut world, method, |request| {
            request.push_raw(AttributeType(0x7001), b"").unwrap();
        });
        assert_eq!(reply.code(), 401);
    }
    world.finish();
}
