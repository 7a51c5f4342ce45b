//! NAT behaviour discovery (RFC 5780 §6): which address a response leaves from, and what it says of it.

use hairpin_turn::server::{DiscoveryListeners, DropReason, MAX_PADDING};
use hairpin_turn::{ClientPath, ListenerKey, Transport};
use stun::{
    AttributeType, Builder, ChangeRequest, Class, MappedAddress, Method, OtherAddress, Padding,
    ResponseOrigin, ResponsePort, TransactionId, UnknownAttributes, XorMappedAddress,
};

use crate::world::{Client, World, address, path_on, sign_into};

const IPS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const PORTS: [u16; 2] = [3478, 3479];

fn listeners(transport: Transport, external: [&str; 2]) -> DiscoveryListeners {
    DiscoveryListeners {
        transport,
        ips: IPS.map(|ip| ip.parse().unwrap()),
        external: external.map(|ip| ip.parse().unwrap()),
        ports: PORTS,
        listeners: [[1, 2], [3, 4]].map(|ports| ports.map(ListenerKey)),
    }
}

fn world(padding: bool) -> World {
    World::with(|config| {
        config.discovery.listeners = vec![
            listeners(Transport::Udp, IPS),
            listeners(Transport::Tcp, IPS),
        ];
        config.discovery.padding = padding;
    })
}

/// The path of the test's client to one of the four listeners.
fn to(ip: usize, port: usize) -> ClientPath {
    let mut path = path_on(Transport::Udp, "198.51.100.1:4000");
    path.five_tuple.local = address(&format!("{}:{}", IPS[ip], PORTS[port]));
    path.listener = ListenerKey((2 * ip + port + 1) as u32);
    path
}

fn request(change: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let id = TransactionId([9; 12]);
    let mut builder = Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).unwrap();
    change(&mut builder);
    builder.finish().to_vec()
}

fn change(change_ip: bool, change_port: bool) -> Vec<u8> {
    let change = ChangeRequest {
        change_ip,
        change_port,
    };
    request(|builder| _ = builder.push(&change).unwrap())
}

/// The response to `bytes`, which came by `from` and leaves by `by`.
fn response(
    world: &mut World,
    from: &ClientPath,
    by: &ClientPath,
    bytes: &[u8],
) -> crate::world::Reply {
    world.client(from, bytes);
    world.reply(by)
}

#[test]
fn a_response_leaves_from_where_change_request_says_rfc5780_6_1() {
    let mut world = world(false);
    for (ip, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for (change_ip, change_port) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let from = to(ip, port);
            let by = to(ip ^ usize::from(change_ip), port ^ usize::from(change_port));
            let reply = response(&mut world, &from, &by, &change(change_ip, change_port));
            let mapped = from.five_tuple.remote;
            assert_eq!(reply.get(), Some(MappedAddress(mapped)));
            assert_eq!(reply.get(), Some(XorMappedAddress(mapped)));
            assert_eq!(reply.get(), Some(ResponseOrigin(by.five_tuple.local)));
            let other = to(1 - ip, 1 - port).five_tuple.local;
            assert_eq!(reply.get(), Some(OtherAddress(other)));
        }
    }
    assert_eq!(world.server.stats().successes(Method::BINDING), 16);
    world.finish();
}

#[test]
fn a_request_without_attributes_gets_the_addresses_too_rfc5780_6_1() {
    let mut world = world(false);
    let reply = world.ask(&to(0, 0), &request(|_| {}));
    let types: Vec<AttributeType> = reply
        .message()
        .attributes()
        .map(|a| a.attribute_type)
        .collect();
    assert_eq!(
        types,
        [
            AttributeType::MAPPED_ADDRESS,
            AttributeType::XOR_MAPPED_ADDRESS,
            AttributeType::RESPONSE_ORIGIN,
            AttributeType::OTHER_ADDRESS,
        ]
    );
    world.finish();
}

#[test]
fn behind_a_nat_the_public_addresses_are_advertised() {
    let mut world = World::with(|config| {
        config.discovery.listeners =
            vec![listeners(Transport::Udp, ["203.0.113.1", "203.0.113.2"])];
    });
    let reply = response(&mut world, &to(0, 0), &to(1, 0), &change(true, false));
    assert_eq!(
        reply.get(),
        Some(ResponseOrigin(address("203.0.113.2:3478")))
    );
    assert_eq!(reply.get(), Some(OtherAddress(address("203.0.113.2:3479"))));
    world.finish();
}

#[test]
fn response_port_changes_the_port_and_never_the_address_rfc5780_7_5() {
    let mut world = world(false);
    let bytes = request(|builder| {
        builder.push(&ResponsePort(5555)).unwrap();
        let change_port = ChangeRequest {
            change_ip: false,
            change_port: true,
        };
        builder.push(&change_port).unwrap();
    });
    let mut by = to(0, 1);
    by.five_tuple.remote.set_port(5555);
    let reply = response(&mut world, &to(0, 0), &by, &bytes);
    let mapped = to(0, 0).five_tuple.remote;
    assert_eq!(reply.get(), Some(XorMappedAddress(mapped)));
    assert_eq!(reply.get(), Some(MappedAddress(mapped)));
    let zero = request(|builder| _ = builder.push(&ResponsePort(0)).unwrap());
    assert_eq!(world.ask(&to(0, 0), &zero).code(), 400);
    world.finish();
}

#[test]
fn padding_is_answered_with_no_more_padding_and_at_most_an_mtu_rfc5780_7_6() {
    let mut world = world(true);
    for (asked, given) in [
        (0, 0),
        (1, 4),
        (400, 400),
        (1500, 1500),
        (3000, MAX_PADDING),
    ] {
        let bytes = vec![7; asked];
        let bytes = request(|builder| _ = builder.push(&Padding(&bytes)).unwrap());
        let reply = world.ask(&to(0, 0), &bytes);
        assert_eq!(reply.get::<Padding<'_>>().unwrap().0.len(), given);
        // RFC 8489 allows a response to be larger than the request by its addresses: with headers less than three times
        // as large.
        assert!(reply.0.len() + 28 <= 3 * (bytes.len() + 28));
    }
    world.finish();
}

#[test]
fn padding_and_response_port_together_are_refused_rfc5780_6_1() {
    let mut world = world(true);
    let bytes = request(|builder| {
        builder.push(&Padding(&[0; 64])).unwrap();
        builder.push(&ResponsePort(5555)).unwrap();
    });
    let reply = world.ask(&to(0, 0), &bytes);
    assert_eq!(reply.code(), 400);
    world.finish();
}

#[test]
fn a_prefix_that_has_had_its_padding_waits_for_the_next_second() {
    let mut world = world(true);
    let padded = request(|builder| _ = builder.push(&Padding(&[0; 1500])).unwrap());
    for _ in 0..32 {
        world.ask(&to(0, 0), &padded);
    }
    let dropped = world.dropped(&to(0, 0), &padded);
    assert_eq!(dropped, DropReason::PaddingOverLimit);
    assert_eq!(world.ask(&to(0, 0), &request(|_| {})).code(), 0);
    world.pass_s(1);
    assert_eq!(world.ask(&to(0, 0), &padded).code(), 0);
    world.finish();
}

#[test]
fn no_response_is_three_times_as_large_as_its_request() {
    let mut world = World::with(|config| {
        let mut v6 = listeners(Transport::Udp, IPS);
        v6.ips = ["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse().unwrap());
        v6.external = v6.ips;
        config.discovery.listeners = vec![listeners(Transport::Udp, IPS), v6];
    });
    for (remote, headers) in [("198.51.100.1:4000", 28), ("[2001:db8:5::1]:4001", 48)] {
        let bytes = request(|_| {});
        let reply = world.ask(&path_on(Transport::Udp, remote), &bytes);
        assert!(reply.get::<OtherAddress>().is_some());
        assert!(reply.0.len() + headers <= 3 * (bytes.len() + headers));
    }
    world.finish();
}

/// The types that a 420 lists.
fn unknown(world: &mut World, path: &ClientPath, bytes: &[u8]) -> Vec<AttributeType> {
    let reply = world.ask(path, bytes);
    assert_eq!(reply.code(), 420);
    reply
        .get::<UnknownAttributes>()
        .unwrap()
        .as_slice()
        .to_vec()
}

#[test]
fn without_two_addresses_the_attributes_are_unknown_rfc5780_6() {
    let all = request(|builder| {
        builder
            .push_raw(AttributeType::CHANGE_REQUEST, &[0; 4])
            .unwrap();
        builder.push(&Padding(&[0; 8])).unwrap();
        builder.push(&ResponsePort(5555)).unwrap();
    });
    let types = [
        AttributeType::CHANGE_REQUEST,
        AttributeType::PADDING,
        AttributeType::RESPONSE_PORT,
    ];
    let mut plain = World::new();
    assert_eq!(unknown(&mut plain, &to(0, 0), &all), types);
    let reply = plain.ask(&to(0, 0), &request(|_| {}));
    assert!(reply.get::<OtherAddress>().is_none() && reply.get::<ResponseOrigin>().is_none());
    plain.finish();

    let mut world = world(false);
    // PADDING is off by default.
    assert_eq!(
        unknown(&mut world, &to(0, 0), &all),
        [AttributeType::PADDING]
    );
    // Another listener of the same server has no other address.
    let mut elsewhere = to(0, 0);
    elsewhere.five_tuple.local.set_port(5349);
    assert_eq!(unknown(&mut world, &elsewhere, &all), types);
    let reply = world.ask(&elsewhere, &request(|_| {}));
    assert!(reply.get::<OtherAddress>().is_none());
    world.finish();
}

#[test]
fn a_connection_has_other_address_and_one_path_only_rfc5780_6() {
    let mut world = world(true);
    let tcp = path_on(Transport::Tcp, "198.51.100.1:4000");
    let reply = world.ask(&tcp, &request(|_| {}));
    assert_eq!(reply.get(), Some(ResponseOrigin(address("192.0.2.1:3478"))));
    assert_eq!(reply.get(), Some(OtherAddress(address("192.0.2.2:3479"))));
    let listed = unknown(&mut world, &tcp, &change(true, true));
    assert_eq!(listed, [AttributeType::CHANGE_REQUEST]);
    world.finish();
}

#[test]
fn malformed_attributes_are_refused() {
    let mut world = world(true);
    for (attribute, value) in [
        (AttributeType::CHANGE_REQUEST, &[0; 3][..]),
        (AttributeType::RESPONSE_PORT, &[1][..]),
    ] {
        let bytes = request(|builder| _ = builder.push_raw(attribute, value).unwrap());
        assert_eq!(world.ask(&to(0, 0), &bytes).code(), 400);
    }
    world.finish();
}

#[test]
fn an_authenticated_request_gets_an_authenticated_response_from_the_other_address_rfc5780_6_1() {
    let mut world = World::with(|config| {
        config.authenticate_binding = true;
        config.discovery.listeners = vec![listeners(Transport::Udp, IPS)];
    });
    let challenge = world.ask(&to(0, 0), &change(true, true));
    assert_eq!(challenge.code(), 401);
    assert!(challenge.get::<OtherAddress>().is_none());
    let client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let signed = request(|builder| {
        let both = ChangeRequest {
            change_ip: true,
            change_port: true,
        };
        builder.push(&both).unwrap();
        sign_into(builder, &client.signing);
    });
    let reply = response(&mut world, &to(0, 0), &to(1, 1), &signed);
    assert!(reply.is_signed_with(client.key()));
    assert_eq!(reply.get(), Some(ResponseOrigin(to(1, 1).five_tuple.local)));
    world.finish();
}

#[test]
fn a_strict_server_sends_no_more_than_it_got() {
    let mut world = World::with(|config| {
        config.strict_amplification = true;
        config.discovery.listeners = vec![listeners(Transport::Udp, IPS)];
    });
    let short = change(true, true);
    world.client(&to(0, 0), &short);
    assert_eq!(world.server.stats().dropped(DropReason::Amplification), 1);
    let long = request(|builder| {
        let both = ChangeRequest {
            change_ip: true,
            change_port: true,
        };
        builder.push(&both).unwrap();
        builder
            .push_raw(AttributeType::SOFTWARE, &[b'x'; 60])
            .unwrap();
    });
    let reply = response(&mut world, &to(0, 0), &to(1, 1), &long);
    assert!(reply.0.len() <= long.len());
    world.finish();
}
