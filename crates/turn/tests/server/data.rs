//! Runs of datagrams, from peers to clients and from clients to peers, and ICMP errors.

use std::net::SocketAddr;

use hairpin_turn::server::{
    Arrival, ClientVerdict, DropReason, IcmpError, PeerVerdict, Server, Traffic,
};
use hairpin_turn::{RelayKey, Run};
use stun::{Class, Data, Icmp, Message, Method, XorPeerAddress};

use crate::world::{Client, Event, World, address, channel, channel_header, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

fn ready(world: &mut World) -> (Client, RelayKey) {
    let mut client = Client::new(world, "alice", REMOTE);
    let (relay, _) = client.allocate(world);
    assert_eq!(client.bind(world, 0x4000, PEER), 0);
    (client, relay)
}

#[test]
fn a_run_of_channel_data_gets_one_verdict_per_channel() {
    let mut world = World::new();
    let (mut client, relay) = ready(&mut world);
    assert_eq!(client.bind(&mut world, 0x4001, "198.51.100.200:701"), 0);
    let mut bytes = Vec::new();
    for number in [0x4000, 0x4000, 0x4000, 0x4001, 0x4002, 0x4002] {
        bytes.extend(channel_header(number, 100));
        bytes.resize(bytes.len() + 100, 7);
    }
    bytes.extend(channel_header(0x4001, 9));
    bytes.resize(bytes.len() + 9, 7);
    let mut run = Some(Run {
        bytes: &bytes,
        stride: 104,
        tos: 0,
    });
    let mut verdicts = Vec::new();
    while let Some(rest) = run {
        let verdict = world.server.handle_client(world.now, &client.path, rest);
        run = rest.skip(verdict.covers());
        verdicts.push(verdict);
    }
    let to_peer = |covers, port, payload| ClientVerdict::ToPeer {
        covers,
        relay,
        peer: address(&format!("198.51.100.200:{port}")),
        payload,
        dont_fragment: false,
    };
    let expected = [
        to_peer(3, 700, 4..104),
        to_peer(1, 701, 4..104),
        ClientVerdict::Drop {
            covers: 2,
            reason: DropReason::ChannelNotBound,
        },
        to_peer(1, 701, 4..13),
    ];
    assert_eq!(verdicts, expected);
    assert_eq!(
        world.server.stats().to_peers,
        Traffic {
            packets: 5,
            bytes: 409
        }
    );
    assert_eq!(world.server.stats().dropped(DropReason::ChannelNotBound), 2);
    world.finish();
}

#[test]
fn a_run_of_stun_messages_is_taken_one_by_one() {
    let mut world = World::new();
    let (mut client, _) = ready(&mut world);
    let one = client.request(Method::REFRESH, |_| {});
    let two = client.request(Method::REFRESH, |_| {});
    let bytes = [one.clone(), two].concat();
    let run = Run {
        bytes: &bytes,
        stride: one.len(),
        tos: 0,
    };
    assert_eq!(
        world.server.handle_client(world.now, &client.path, run),
        ClientVerdict::Handled { covers: 1 }
    );
    world.drain();
    assert_eq!(world.reply(&client.path).code(), 0);
    assert_eq!(run.skip(1).unwrap().count(), 1);
    world.finish();
}

#[test]
fn padding_behind_channel_data_is_not_data() {
    let mut world = World::new();
    let (client, _) = ready(&mut world);
    let mut datagram = channel_header(0x4000, 5).to_vec();
    datagram.extend_from_slice(b"12345\0\0\0");
    assert!(
        matches!(world.client(&client.path, &datagram), ClientVerdict::ToPeer { payload, .. } if payload == (4..9))
    );
    let empty = channel_header(0x4000, 0);
    assert!(
        matches!(world.client(&client.path, &empty), ClientVerdict::ToPeer { payload, .. } if payload == (4..4))
    );
    let short = channel_header(0x4000, 1);
    assert_eq!(
        world.dropped(&client.path, &short),
        DropReason::MalformedChannelData
    );
    world.finish();
}

#[test]
fn a_run_from_a_peer_goes_to_the_client_as_a_whole() {
    let mut world = World::new();
    let (client, relay) = ready(&mut world);
    let bytes = [9; 250];
    let run = Run {
        bytes: &bytes,
        stride: 100,
        tos: 0,
    };
    let verdict = world
        .server
        .handle_peer(world.now, relay, address(PEER), run);
    assert_eq!(
        verdict,
        PeerVerdict::ChannelData {
            covers: 3,
            path: client.path,
            channel: channel(0x4000)
        }
    );
    let verdict = world
        .server
        .handle_peer(world.now, relay, address("198.51.100.200:1"), run);
    assert_eq!(
        verdict,
        PeerVerdict::DataIndication {
            covers: 3,
            path: client.path
        }
    );
    let verdict = world
        .server
        .handle_peer(world.now, relay, address("198.51.100.9:1"), run);
    assert_eq!(
        verdict,
        PeerVerdict::Drop {
            covers: 3,
            reason: DropReason::PeerWithoutPermission
        }
    );
    assert_eq!(
        world.server.stats().to_clients,
        Traffic {
            packets: 6,
            bytes: 500
        }
    );
    assert_eq!(
        world
            .server
            .stats()
            .dropped(DropReason::PeerWithoutPermission),
        3
    );
    world.finish();
}

#[test]
fn datagrams_too_long_for_a_header_are_dropped() {
    let mut world = World::new();
    let (_, relay) = ready(&mut world);
    let long = vec![0; 65_507];
    let plain = "198.51.100.200:1";
    assert_eq!(world.peer(relay, PEER, &long), drop_of(DropReason::TooLong));
    assert!(matches!(
        world.peer(relay, PEER, &long[..65_503]),
        PeerVerdict::ChannelData { .. }
    ));
    assert_eq!(
        world.peer(relay, plain, &long[..65_460]),
        drop_of(DropReason::TooLong)
    );
    assert!(matches!(
        world.peer(relay, plain, &long[..65_456]),
        PeerVerdict::DataIndication { .. }
    ));
    world.finish();
}

#[test]
fn the_head_of_a_data_indication_makes_a_message_with_its_payload() {
    let mut world = World::new();
    let mut seen = Vec::new();
    for peer in [PEER, "[2001:db8::9]:9"] {
        for payload in [&b""[..], b"1", b"12345", &[3; 1200]] {
            let mut head = [0; 64];
            let length =
                world
                    .server
                    .write_data_indication(address(peer), payload.len(), &mut head);
            let mut datagram = head[..length].to_vec();
            datagram.extend_from_slice(payload);
            datagram.resize(datagram.len().next_multiple_of(4), 0);
            let message = Message::parse(&datagram).unwrap();
            assert_eq!(
                (message.class(), message.method()),
                (Class::Indication, Method::DATA)
            );
            assert_eq!(
                message.get::<XorPeerAddress>(),
                Ok(Some(XorPeerAddress(address(peer))))
            );
            assert_eq!(message.get::<Data<'_>>(), Ok(Some(Data(payload))));
            assert!(
                !seen.contains(&message.transaction_id()),
                "each has an ID of its own"
            );
            seen.push(message.transaction_id());
        }
    }
    world.finish();
}

fn icmp(kind: u8, code: u8, mtu: u32) -> IcmpError {
    IcmpError { kind, code, mtu }
}

/// Reports an ICMP error and returns the message that the client gets, or why it gets none.
fn report(
    world: &mut World,
    relay: RelayKey,
    peer: &str,
    error: IcmpError,
) -> Result<Vec<u8>, DropReason> {
    world
        .server
        .handle_icmp(world.now, relay, address(peer), error)?;
    world.drain();
    match world.event() {
        Event::Sent { bytes, .. } => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn icmp_errors_about_a_peer_that_a_reload_has_denied_are_dropped() {
    let mut world = World::new();
    let (_, relay) = ready(&mut world);
    world
        .policy
        .denied
        .lock()
        .unwrap()
        .insert(address(PEER).ip());
    world.reconfigure(|_| {});
    world.events.clear();
    let told = report(&mut world, relay, PEER, icmp(3, 1, 0));
    assert_eq!(told, Err(DropReason::PeerNotAllowed));
    world.finish();
}

/// This host's own error about a datagram that is too long names the peer's address, and port 0.
#[test]
fn icmp_errors_of_an_unknown_port_are_reported() {
    let mut world = World::new();
    let (_, relay) = ready(&mut world);
    let unknown_port = SocketAddr::new(address(PEER).ip(), 0);
    let too_long = icmp(3, 4, 1500);
    let bytes = report(&mut world, relay, &unknown_port.to_string(), too_long).unwrap();
    let message = Message::parse(&bytes).unwrap();
    let peer = message.get::<XorPeerAddress>();
    assert_eq!(peer, Ok(Some(XorPeerAddress(unknown_port))));
    world
        .policy
        .denied
        .lock()
        .unwrap()
        .insert(address(PEER).ip());
    world.reconfigure(|_| {});
    world.events.clear();
    let told = report(&mut world, relay, &unknown_port.to_string(), too_long);
    assert_eq!(told, Err(DropReason::PeerNotAllowed));
    world.finish();
}

#[test]
fn icmp_errors_become_data_indications() {
    let mut world = World::new();
    let (_, relay) = ready(&mut world);
    for (error, error_data) in [
        (icmp(3, 4, 1400), 1400),
        (icmp(3, 3, 1400), 0),
        (icmp(11, 0, 0), 0),
    ] {
        let bytes = report(&mut world, relay, PEER, error).unwrap();
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(
            (message.class(), message.method()),
            (Class::Indication, Method::DATA)
        );
        assert_eq!(
            message.get::<XorPeerAddress>(),
            Ok(Some(XorPeerAddress(address(PEER))))
        );
        assert!(message.get::<Data<'_>>().unwrap().is_none());
        let told = Icmp {
            icmp_type: error.kind,
            icmp_code: error.code,
            error_data,
        };
        assert_eq!(message.get::<Icmp>(), Ok(Some(told)));
    }
    world.finish();
}

#[test]
fn icmp_messages_of_other_types_unknown_sources_and_closed_relays_are_ignored() {
    let mut world = World::new();
    let (_, relay) = ready(&mut world);
    for error in [icmp(5, 0, 0), icmp(0, 0, 0), icmp(2, 0, 1300)] {
        assert_eq!(
            report(&mut world, relay, PEER, error),
            Err(DropReason::IcmpNotRelayed)
        );
    }
    let unreachable = icmp(3, 3, 0);
    let stranger = report(&mut world, relay, "198.51.100.9:1", unreachable);
    assert_eq!(stranger, Err(DropReason::PeerWithoutPermission));
    let gone = RelayKey {
        generation: relay.generation + 1,
        ..relay
    };
    assert_eq!(
        report(&mut world, gone, PEER, unreachable),
        Err(DropReason::StaleRelay)
    );
    world.finish();
}

#[test]
fn icmpv6_has_other_types() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |request| {
        request
            .push(&stun::RequestedAddressFamily(stun::AddressFamily::V6))
            .unwrap();
    });
    world.expect_opened();
    let relay = world.relay_at(reply.relayed()[0]);
    let peer = "[2001:db8::9]:9";
    client.permit(&mut world, &[peer]);
    for (kind, mtu, error_data) in [(1, 1280, 0), (2, 1280, 1280), (3, 5, 0)] {
        let bytes = report(&mut world, relay, peer, icmp(kind, 0, mtu)).unwrap();
        let told: Icmp = Message::parse(&bytes).unwrap().get().unwrap().unwrap();
        assert_eq!((told.icmp_type, told.error_data), (kind, error_data));
    }
    for kind in [4, 11] {
        assert_eq!(
            report(&mut world, relay, peer, icmp(kind, 0, 0)),
            Err(DropReason::IcmpNotRelayed)
        );
    }
    world.finish();
}

#[test]
fn reading_ahead_names_the_relays_and_changes_nothing() {
    let mut world = World::new();
    let (client, relay) = ready(&mut world);
    let mut other = Client::new(&mut world, "bob", "198.51.100.2:4000");
    let (other_relay, _) = other.allocate(&mut world);
    let unknown = Client::new(&mut world, "bob", "198.51.100.3:4000");
    let arrivals = [
        Arrival::Client(other.path.five_tuple),
        Arrival::Other,
        Arrival::Peer(relay),
        Arrival::Client(client.path.five_tuple),
        // It has no bound channel and no relay that is in use.
        Arrival::Client(unknown.path.five_tuple),
        Arrival::Peer(RelayKey {
            index: 7000,
            generation: 0,
        }),
    ];
    let before = world.server.stats().clone();
    let relays = world.server.read_ahead(arrivals.into_iter());
    let expected = [other_relay.index, u32::MAX, relay.index, relay.index];
    assert_eq!(relays[..4], expected);
    assert!(relays[6..].iter().all(|relay| *relay == u32::MAX));
    assert_eq!(*world.server.stats(), before);
    // More than fit are left out.
    let many = std::iter::repeat_n(Arrival::Peer(relay), Server::READ_AHEAD + 1);
    let relays = world.server.read_ahead(many);
    assert_eq!(relays, [relay.index; Server::READ_AHEAD]);
    assert!(
        !world.server.reads_ahead(),
        "it costs, and few allocations are in the caches anyway"
    );
}
