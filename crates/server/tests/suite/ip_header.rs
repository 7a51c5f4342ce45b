//! What is in the IP headers of relayed datagrams, as seen on the wire (RFC 8656 §13 and §14). The table of
//! docs/ip-header.md, row by row.

use crate::common::marked::Marked;
use crate::common::netns::{Ear, Far, Heard, with_wire};
use crate::common::{Client, at, ip, socket, start};
use hairpin_server::{Running, Server};
use std::net::SocketAddr;
use stun::{AddressFamily, RequestedAddressFamily};

/// Best effort; expedited forwarding with ECT(0); AF41 with CE; CS1 with ECT(1).
const MARKS: [u8; 4] = [0, 0xba, 0x8b, 0x21];

fn server() -> Running {
    let server = Server::builder()
        .listen(at("10.7.7.1:0"))
        .listen(at("[fd07::1]:0"))
        .relay_address(ip("10.7.7.1"))
        .relay_address(ip("fd07::1"))
        .user(crate::common::USER, crate::common::PASSWORD)
        .allow_peers("10.7.7.2/32".parse().expect("a network"))
        .allow_peers("fd07::2/128".parse().expect("a network"))
        .workers(1);
    start(server)
}

/// From a client of one family to a peer of another.
struct Pair {
    listener: SocketAddr,
    peer: &'static str,
    family: AddressFamily,
}

/// All pairs of families of client and peer.
fn pairs(server: &Running) -> Vec<Pair> {
    let listeners = server.listeners().iter();
    let pair = |listener: &SocketAddr| {
        [
            ("10.7.7.2:0", AddressFamily::V4),
            ("[fd07::2]:0", AddressFamily::V6),
        ]
        .map(|(peer, family)| Pair {
            listener: *listener,
            peer,
            family,
        })
    };
    listeners.flat_map(pair).collect()
}

impl Pair {
    fn allocate(&self, client: &mut Client) -> SocketAddr {
        let family = RequestedAddressFamily(self.family);
        client
            .allocate_with(&|builder| builder.push(&family).map(drop))
            .relayed()
    }
}

/// What is the same for every datagram that this server sends.
fn assert_is_our_own(heard: &Heard) {
    assert_eq!(heard.ttl(), 64, "the system's default");
    if heard.is_v4() {
        assert_eq!(heard.header_len(), 20, "no options");
        assert!(!heard.dont_fragment());
    } else {
        // UDP follows at once, or it would not have been heard as such.
        assert_ne!(
            heard.flow_label(),
            0,
            "the kernel makes one for the 5-tuple"
        );
    }
}

#[test]
fn dscp_and_ecn_are_kept_and_all_else_is_set_anew() {
    with_wire(|far: &Far| {
        let server = server();
        let (mut near_ear, mut far_ear) = (Ear::open(), far.within(Ear::open));
        for pair in pairs(&server) {
            for mark in MARKS {
                let peer = far.within(|| Marked::new(at(pair.peer), mark ^ 0x40));
                let mut client = Client::marked(pair.listener, mark);
                let relayed = pair.allocate(&mut client);
                assert_eq!(client.permit(peer.local()), 0);
                for channel in [false, true] {
                    let text = format!("{mark:02x} {channel:5} there");
                    match channel {
                        true => {
                            assert_eq!(client.bind(0x4000, peer.local()), 0);
                            client.send(0x4000, text.as_bytes());
                        }
                        false => client.indicate(peer.local(), text.as_bytes()),
                    }
                    let heard = far_ear.hear(peer.local().port(), text.as_bytes());
                    assert_eq!(heard.tos(), mark);
                    assert_is_our_own(&heard);
                    let text = format!("{mark:02x} {channel:5} aback");
                    peer.send(text.as_bytes(), relayed);
                    let heard = near_ear.hear(client.local().port(), text.as_bytes());
                    assert_eq!(heard.tos(), mark ^ 0x40);
                    assert_is_our_own(&heard);
                }
            }
        }
    });
}

/// What arrives with DF leaves without it (the alternate behaviour: a socket is not told), except on demand.
#[test]
fn df_is_set_on_demand_and_only_between_ipv4_and_ipv4() {
    with_wire(|far: &Far| {
        let server = server();
        let (mut near_ear, mut far_ear) = (Ear::open(), far.within(Ear::open));
        for pair in pairs(&server) {
            // Plain sockets send with DF.
            let peer = far.within(|| socket(pair.peer));
            let peer_at = peer.local_addr().expect("bound");
            let mut client = Client::new(pair.listener);
            let relayed = pair.allocate(&mut client);
            assert_eq!(client.permit(peer_at), 0);
            client.indicate(peer_at, b"the usual way");
            assert_is_our_own(&far_ear.hear(peer_at.port(), b"the usual way"));
            client.indicate_whole(peer_at, b"or in one piece");
            let heard = far_ear.hear(peer_at.port(), b"or in one piece");
            if heard.is_v4() {
                assert_eq!(heard.dont_fragment(), pair.listener.is_ipv4());
            }
            peer.send_to(b"and the way back", relayed).expect("sent");
            let heard = near_ear.hear(relayed.port(), b"and the way back");
            assert!(!heard.is_v4() || heard.dont_fragment(), "it comes with DF");
            let heard = near_ear.hear(client.local().port(), b"and the way back");
            assert_is_our_own(&heard);
        }
    });
}

/// The link's MTU is 1,500.
#[test]
fn datagrams_too_large_for_the_link_are_fragmented() {
    with_wire(|far: &Far| {
        let server = server();
        for pair in pairs(&server) {
            let peer = far.within(|| socket(pair.peer));
            let peer_at = peer.local_addr().expect("bound");
            let mut client = Client::new(pair.listener);
            let relayed = pair.allocate(&mut client);
            assert_eq!(client.bind(0x4000, peer_at), 0);
            let large = [6; 3000];
            let mut buffer = [0; 4096];
            client.send(0x4000, &large);
            assert_eq!(peer.recv_from(&mut buffer).expect("whole").0, 3000);
            client.indicate(peer_at, &large);
            assert_eq!(peer.recv_from(&mut buffer).expect("whole").0, 3000);
            if !(pair.listener.is_ipv4() && peer_at.is_ipv4()) {
                // RFC 8656 §13: DONT-FRAGMENT is ignored.
                client.indicate_whole(peer_at, &large);
                assert_eq!(peer.recv_from(&mut buffer).expect("whole").0, 3000);
            }
            peer.send_to(&large, relayed).expect("sent");
            assert_eq!(
                client.got(),
                crate::common::Got::Channel(0x4000, large.to_vec())
            );
        }
    });
}
