//! The bare relays of the benchmark: a frame in, the frame that leaves.
//!
//! These tests need root (CAP_BPF and CAP_NET_ADMIN) and Linux 5.18; without, they fail and say so.

use std::net::SocketAddr;

use hairpin_bpf::floor::{Exit, Floor, Flow, Kind};
use hairpin_bpf::frame::{Mac, Path};

const CLIENT_MAC: Mac = [2, 0, 0, 0, 1, 2];
const SERVER_MAC: Mac = [2, 0, 0, 0, 1, 1];
const RELAY_MAC: Mac = [2, 0, 0, 0, 2, 1];
const PEER_MAC: Mac = [2, 0, 0, 0, 2, 2];
const CLIENT: &str = "192.0.2.2:40000";
const SERVER: &str = "192.0.2.1:3478";
const RELAY: &str = "198.51.100.1:50000";
const PEER: &str = "198.51.100.2:9000";

fn load(kind: Kind) -> Floor {
    let mut floor = Floor::load(kind, 1)
        .unwrap_or_else(|error| panic!("this test needs root and Linux 5.18: {error}"));
    let exit = |source_mac, destination_mac| Exit {
        if_index: 1,
        source_mac,
        destination_mac,
    };
    let flow = Flow {
        client: CLIENT.parse().expect("an address"),
        server: SERVER.parse().expect("an address"),
        channel: 0x4001,
        relay: RELAY.parse().expect("an address"),
        peer: PEER.parse().expect("an address"),
        to_client: exit(SERVER_MAC, CLIENT_MAC),
        to_peer: exit(RELAY_MAC, PEER_MAC),
    };
    floor.add([flow]).expect("room for a flow");
    floor
}

/// A frame as this project's frame builder makes it, which computes checksums from scratch.
fn frame(macs: (Mac, Mac), source: &str, destination: &str, payload: &[u8], ttl: u8) -> Vec<u8> {
    let path = Path {
        source_mac: macs.0,
        destination_mac: macs.1,
        source: address(source),
        destination: address(destination),
    };
    let mut frame = path.frame(payload).expect("one family");
    let patch = i32::from(frame[22]) - i32::from(ttl);
    // The TTL is the high byte of its word; the frame builder's is the higher one here.
    frame[22] = ttl;
    let sum = i32::from(u16::from_be_bytes([frame[24], frame[25]])) + (patch << 8);
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn channel_data(number: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("short").to_be_bytes();
    [&number.to_be_bytes()[..], &length, payload].concat()
}

#[test]
fn channel_data_leaves_as_a_datagram_and_a_datagram_as_channel_data() {
    for kind in [Kind::RelayXdp, Kind::RelayTc] {
        let mut floor = load(kind);
        for length in [16, 17, 120, 1200] {
            let payload: Vec<u8> = (0..length).map(|byte| (byte * 7) as u8).collect();
            let framed = channel_data(0x4001, &payload);
            let sent = frame((CLIENT_MAC, SERVER_MAC), CLIENT, SERVER, &framed, 64);
            let wanted = frame((RELAY_MAC, PEER_MAC), RELAY, PEER, &payload, 63);
            assert_eq!(floor.relay(&sent).expect("a run"), Some(wanted), "{kind:?}");
            let sent = frame((PEER_MAC, RELAY_MAC), PEER, RELAY, &payload, 64);
            let wanted = frame((SERVER_MAC, CLIENT_MAC), SERVER, CLIENT, &framed, 63);
            assert_eq!(floor.relay(&sent).expect("a run"), Some(wanted), "{kind:?}");
        }
    }
}

#[test]
fn packets_without_an_entry_pass_to_the_stack() {
    for kind in [Kind::RelayXdp, Kind::RelayTc] {
        let mut floor = load(kind);
        let other_channel = channel_data(0x4002, &[7; 40]);
        let sent = frame((CLIENT_MAC, SERVER_MAC), CLIENT, SERVER, &other_channel, 64);
        assert_eq!(floor.relay(&sent).expect("a run"), None, "{kind:?}");
        let sent = frame(
            (PEER_MAC, RELAY_MAC),
            "198.51.100.3:9000",
            RELAY,
            &[7; 40],
            64,
        );
        assert_eq!(floor.relay(&sent).expect("a run"), None, "{kind:?}");
    }
}

#[test]
fn a_bare_request_leaves_as_its_answer() {
    let mut floor = load(Kind::StunXdp);
    let transaction = [5; 12];
    let header = |kind: [u8; 2], length: u8| {
        [
            &kind[..],
            &[0, length, 0x21, 0x12, 0xa4, 0x42],
            &transaction,
        ]
        .concat()
    };
    let sent = frame(
        (CLIENT_MAC, SERVER_MAC),
        CLIENT,
        SERVER,
        &header([0, 1], 0),
        17,
    );
    let mut answer = header([1, 1], 12);
    // 40000 and 192.0.2.2, each combined with the magic cookie (RFC 8489 §14.2).
    let port = (40_000u16 ^ 0x2112).to_be_bytes();
    let ip = (0xc000_0202u32 ^ 0x2112_a442).to_be_bytes();
    answer.extend([&[0, 0x20, 0, 8, 0, 1], &port[..], &ip].concat());
    let wanted = frame((SERVER_MAC, CLIENT_MAC), SERVER, CLIENT, &answer, 64);
    assert_eq!(floor.relay(&sent).expect("a run"), Some(wanted));
}
