//! Binding requests (RFC 8489 §12).

use hairpin_turn::server::{ClientVerdict, DropReason};
use stun::{
    AttributeType, Builder, Class, FingerprintState, Message, Method, Software, TransactionId,
    UnknownAttributes, XorMappedAddress,
};

use crate::world::{Client, World, path, sign_into};

const ID: TransactionId = TransactionId([9; 12]);

fn request(change: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buffer = [0; 512];
    let mut builder = Builder::new(&mut buffer, Class::Request, Method::BINDING, &ID).unwrap();
    change(&mut builder);
    builder.finish().to_vec()
}

#[test]
fn a_binding_request_is_answered_with_the_mapped_address_and_nothing_else() {
    let mut world = World::new();
    for remote in ["198.51.100.1:4000", "[2001:db8:5::1]:4001"] {
        let path = path(remote);
        let reply = world.ask(&path, &request(|_| {}));
        let mut expected = [0; 64];
        let mut builder =
            Builder::new(&mut expected, Class::Success, Method::BINDING, &ID).unwrap();
        builder
            .push(&XorMappedAddress(path.five_tuple.remote))
            .unwrap();
        assert_eq!(reply.0, builder.finish());
    }
    assert_eq!(world.server.stats().successes(Method::BINDING), 2);
    world.finish();
}

#[test]
fn a_fingerprint_is_answered_with_one_and_a_wrong_one_not_at_all() {
    let mut world = World::new();
    let path = path("198.51.100.1:4000");
    let mut good = request(|builder| {
        builder.fingerprint().unwrap();
    });
    let reply = world.ask(&path, &good);
    assert_eq!(reply.message().fingerprint(), FingerprintState::Valid);
    *good.last_mut().unwrap() ^= 1;
    assert_eq!(world.dropped(&path, &good), DropReason::WrongFingerprint);
    world.finish();
}

#[test]
fn an_unknown_required_attribute_is_listed_in_a_420() {
    let mut world = World::new();
    let path = path("198.51.100.1:4000");
    let reply = world.ask(
        &path,
        &request(|builder| {
            builder.push_raw(AttributeType(0x7001), b"").unwrap();
            builder
                .push_raw(AttributeType(0x9001), b"optional")
                .unwrap();
            builder
                .push_raw(AttributeType::CHANGE_REQUEST, &[0; 4])
                .unwrap();
            builder.fingerprint().unwrap();
        }),
    );
    assert_eq!(reply.code(), 420);
    let listed: UnknownAttributes = reply.get().unwrap();
    assert_eq!(
        listed.as_slice(),
        [AttributeType(0x7001), AttributeType::CHANGE_REQUEST]
    );
    assert_eq!(reply.message().fingerprint(), FingerprintState::Valid);
    assert!(!reply.is_signed());
    world.finish();
}

#[test]
fn requests_with_long_term_credentials_get_authenticated_responses() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let reply = client.ask(&mut world, Method::BINDING, |_| {});
    assert_eq!(reply.code(), 0);
    assert!(reply.is_signed_with(client.key()));
    assert_eq!(
        reply.get::<XorMappedAddress>().unwrap().0,
        client.path.five_tuple.remote
    );
    client.signing.username = Some("nobody".to_owned());
    assert_eq!(client.ask(&mut world, Method::BINDING, |_| {}).code(), 401);
    client.signing.username = None;
    assert_eq!(client.ask(&mut world, Method::BINDING, |_| {}).code(), 400);
    world.finish();
}

#[test]
fn credentials_of_another_mechanism_are_ignored() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.signing.realm = None;
    client.signing.nonce = None;
    let reply = client.ask(&mut world, Method::BINDING, |_| {});
    assert_eq!(reply.code(), 0);
    assert!(!reply.is_signed());
    world.finish();
}

#[test]
fn the_operator_can_ask_for_credentials() {
    let mut world = World::with(|config| config.authenticate_binding = true);
    let path = path("198.51.100.1:4000");
    assert_eq!(world.ask(&path, &request(|_| {})).code(), 401);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let reply = client.ask(&mut world, Method::BINDING, |_| {});
    assert!(reply.is_signed_with(client.key()));
    world.finish();
}

#[test]
fn software_is_for_those_who_have_proven_themselves() {
    let mut world = World::with(|config| config.software = Some("hairpin".to_owned()));
    let path = path("198.51.100.1:4000");
    assert!(
        world
            .ask(&path, &request(|_| {}))
            .get::<Software<'_>>()
            .is_none()
    );
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    let reply = client.refresh(&mut world, 600);
    assert_eq!(reply.get::<Software<'_>>(), Some(Software("hairpin")));
    world.finish();
}

#[test]
fn a_binding_indication_is_taken_in_silence() {
    let mut world = World::new();
    let path = path("198.51.100.1:4000");
    let mut buffer = [0; 64];
    let indication = Builder::new(&mut buffer, Class::Indication, Method::BINDING, &ID)
        .unwrap()
        .finish();
    assert_eq!(
        world.client(&path, indication),
        ClientVerdict::Handled { covers: 1 }
    );
    let mut builder = Builder::new(&mut buffer, Class::Indication, Method::BINDING, &ID).unwrap();
    builder.push_raw(AttributeType(0x7001), b"").unwrap();
    let indication = builder.finish().to_vec();
    assert_eq!(
        world.dropped(&path, &indication),
        DropReason::UnknownAttribute
    );
    world.finish();
}

#[test]
fn foreign_messages_are_dropped_with_their_reason() {
    let mut world = World::new();
    let path = path("198.51.100.1:4000");
    let message = |class, method| {
        let mut buffer = [0; 64];
        Builder::new(&mut buffer, class, method, &ID)
            .unwrap()
            .finish()
            .to_vec()
    };
    let cases: Vec<(Vec<u8>, DropReason)> = vec![
        (Vec::new(), DropReason::EmptyDatagram),
        (vec![22, 3, 1], DropReason::ForeignProtocol),
        (vec![128; 40], DropReason::ForeignProtocol),
        (vec![255; 40], DropReason::ForeignProtocol),
        (vec![0; 20], DropReason::MalformedStun),
        (vec![1], DropReason::MalformedStun),
        (
            message(Class::Success, Method::BINDING),
            DropReason::UnexpectedClass,
        ),
        (
            message(Class::Error, Method::ALLOCATE),
            DropReason::UnexpectedClass,
        ),
        (
            message(Class::Indication, Method::ALLOCATE),
            DropReason::UnexpectedClass,
        ),
        (
            message(Class::Request, Method::SEND),
            DropReason::UnexpectedClass,
        ),
        (
            message(Class::Indication, Method::DATA),
            DropReason::UnexpectedClass,
        ),
        (
            message(Class::Request, Method::CONNECT),
            DropReason::UnsupportedMethod,
        ),
        (
            message(Class::Request, Method::new(0x077).unwrap()),
            DropReason::UnsupportedMethod,
        ),
        (vec![0x40, 0, 0, 9, 1], DropReason::MalformedChannelData),
        (vec![0x40, 0, 0], DropReason::MalformedChannelData),
        (vec![0x40, 0, 0, 1, 1], DropReason::NoAllocation),
    ];
    for (datagram, reason) in cases {
        assert_eq!(world.dropped(&path, &datagram), reason, "{datagram:?}");
    }
    world.finish();
}

#[test]
fn unauthenticated_binding_responses_are_at_most_twice_the_request() {
    let mut world = World::with(|config| config.software = Some("s".repeat(127)));
    for (remote, headers) in [("198.51.100.1:4000", 28), ("[2001:db8:5::1]:4001", 48)] {
        let path = path(remote);
        for request in [
            request(|_| {}),
            request(|builder| {
                builder.fingerprint().unwrap();
            }),
            request(|builder| {
                builder.push_raw(AttributeType(0x7001), b"").unwrap();
            }),
        ] {
            let reply = world.ask(&path, &request);
            assert!(
                reply.0.len() + headers <= 2 * (request.len() + headers),
                "{}",
                reply.0.len()
            );
        }
    }
    world.finish();
}

#[test]
fn attributes_after_the_integrity_are_ignored() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let mut buffer = [0; 512];
    let id = client.id();
    let mut builder = Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).unwrap();
    sign_into(&mut builder, &client.signing);
    let mut request = builder.finish().to_vec();
    request.extend_from_slice(&[0x70, 0x01, 0, 0]);
    let length = (request.len() - 20) as u16;
    request[2..4].copy_from_slice(&length.to_be_bytes());
    assert!(Message::parse(&request).is_ok());
    assert_eq!(
        world.ask(&client.path, &request).code(),
        0,
        "an attacker's attribute changes nothing"
    );
    world.finish();
}

/// RFC 3489: no cookie, a transaction ID of 16 bytes.
fn classic(attributes: &[u8]) -> Vec<u8> {
    let head = [0, 1, 0, attributes.len() as u8];
    [&head[..], b"sixteen bytes ID", attributes].concat()
}

#[test]
fn a_classic_binding_request_gets_its_mapped_address() {
    let mut world = World::new();
    for (remote, length) in [("198.51.100.1:4000", 32), ("[2001:db8:5::1]:4001", 44)] {
        let path = path(remote);
        let reply = world.ask(&path, &classic(&[]));
        assert_eq!(reply.0.len(), length, "as long as a modern response");
        assert_eq!(reply.0[..2], [1, 1]);
        assert_eq!(&reply.0[4..20], b"sixteen bytes ID");
        assert_eq!(reply.0[20..22], [0, 1], "MAPPED-ADDRESS");
        let port = u16::from_be_bytes([reply.0[26], reply.0[27]]);
        assert_eq!(port, path.five_tuple.remote.port());
    }
    // CHANGE-REQUEST is not supported: 420.
    let reply = world.ask(
        &path("198.51.100.1:4000"),
        &classic(&[0, 3, 0, 4, 0, 0, 0, 6]),
    );
    assert_eq!(reply.0[..2], [1, 0x11]);
    assert_eq!(reply.0[26..28], [4, 20]);
    let stats = world.server.stats();
    assert_eq!(
        (stats.successes(Method::BINDING), stats.errors_with(420)),
        (2, 1)
    );
    world.finish();
}

#[test]
fn a_classic_request_over_dtls_gets_500_rfc8489_11() {
    let mut world = World::new();
    let path = crate::world::path_on(hairpin_turn::Transport::Dtls, "198.51.100.1:4000");
    let reply = world.ask(&path, &classic(&[]));
    assert_eq!(reply.0[..4], [1, 0x11, 0, 20]);
    assert_eq!(&reply.0[4..20], b"sixteen bytes ID");
    assert_eq!(
        reply.0[20..],
        *b"\x00\x09\x00\x10\x00\x00\x05\x00Server Error"
    );
    let mut indication = classic(&[]);
    indication[1] = 0x11;
    assert_eq!(world.dropped(&path, &indication), DropReason::MalformedStun);
    assert_eq!(world.server.stats().errors(Method::BINDING, 500), 1);
    world.finish();
}

#[test]
fn classic_requests_are_dropped_if_configured_so() {
    let path = path("198.51.100.1:4000");
    let off: [fn(&mut hairpin_turn::server::Config); 2] = [
        |config| config.classic_stun = false,
        |config| config.authenticate_binding = true,
    ];
    for off in off {
        let mut world = World::with(off);
        let dropped = world.dropped(&path, &classic(&[]));
        assert_eq!(dropped, DropReason::ClassicStun);
        world.finish();
    }
    let mut world = World::new();
    let over_tcp = crate::world::path_on(hairpin_turn::Transport::Tcp, "198.51.100.1:4000");
    for (path, request) in [(over_tcp, classic(&[])), (path, classic(&[0, 3, 0, 9]))] {
        let dropped = world.dropped(&path, &request);
        assert_eq!(dropped, DropReason::MalformedStun);
    }
    world.finish();
}
