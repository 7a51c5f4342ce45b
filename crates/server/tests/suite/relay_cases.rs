//! The in-kernel relay's cases through user space: of every datagram that XDP and tc relay, it makes the same payload,
//! between the same parties and with the same TOS. (Their TTL, which RFC 8656 would have decremented, a socket sets
//! anew.)

#[expect(
    dead_code,
    reason = "the table says more than sockets can send or hear: frames, link-layer addresses, damage"
)]
#[path = "../../../bpf/tests/relay/cases/mod.rs"]
mod cases;

use std::net::SocketAddr;

use crate::common::marked::Marked;
use crate::common::{Client, at, ip, loopback, start};
use cases::{CHANNEL, Case, Checksum, Expect, Family, OTHER_CHANNEL, Way};
use hairpin_server::Running;
use stun::{AddressFamily, RequestedAddressFamily};

/// The parties of the cases of two families and one TOS.
struct Parties {
    client: Client,
    relay: SocketAddr,
    other: Client,
    other_relay: SocketAddr,
    peer: Marked,
}

fn loopback_of(family: Family) -> SocketAddr {
    match family {
        Family::V4 => at("127.0.0.1:0"),
        Family::V6 => at("[::1]:0"),
    }
}

impl Parties {
    fn new(server: &Running, client: Family, peer: Family, tos: u8) -> Parties {
        let listener = *server
            .listeners()
            .iter()
            .find(|listener| listener.is_ipv4() == (client == Family::V4))
            .expect("of both families");
        let wish = RequestedAddressFamily(match peer {
            Family::V4 => AddressFamily::V4,
            Family::V6 => AddressFamily::V6,
        });
        let allocated = || {
            let mut client = Client::marked(listener, tos);
            let answer = client.allocate_with(&|builder| builder.push(&wish).map(drop));
            let relay = answer.relayed();
            (client, relay)
        };
        let ((client, relay), (other, other_relay)) = (allocated(), allocated());
        Parties {
            client,
            relay,
            other,
            other_relay,
            peer: Marked::new(loopback_of(peer), tos),
        }
    }

    /// Binds what the case's way needs; the table has one channel number for both.
    fn bind(&mut self, way: Way) {
        match way {
            Way::ToPeer | Way::ToClient => {
                assert_eq!(self.client.bind(CHANNEL, self.peer.local()), 0);
            }
            Way::Between => {
                assert_eq!(self.client.bind(CHANNEL, self.other_relay), 0);
                assert_eq!(self.other.bind(OTHER_CHANNEL, self.relay), 0);
            }
        }
    }

    /// Sends what arrives in the case, and says what left.
    fn relayed(&self, case: &Case) -> (Vec<u8>, u8) {
        let arriving = case.arriving().payload;
        match case.way {
            Way::ToPeer => {
                self.client.transmit(&arriving);
                let (payload, from, tos) = self.peer.receive();
                assert_eq!(from, self.relay, "{case}");
                (payload, tos)
            }
            Way::ToClient => {
                self.peer.send(&arriving, self.relay);
                (self.client.receive(), self.client.last_tos())
            }
            Way::Between => {
                self.client.transmit(&arriving);
                (self.other.receive(), self.other.last_tos())
            }
        }
    }
}

#[test]
fn user_space_relays_the_cases_as_the_kernel_does() {
    let server = start(loopback(1).listen(at("[::1]:0")).relay_address(ip("::1")));
    let relayed = cases::cases().into_iter().filter(|case| {
        // Without a checksum user space relays more than the kernel does; sockets have no say in it here.
        case.expect == Expect::Relayed && case.checksum == Checksum::Complete
    });
    // Those of the same parties together: each asks for two allocations.
    let parties = |case: &Case| (case.way == Way::Between, case.tos, case.client, case.peer);
    let mut relayed: Vec<Case> = relayed.collect();
    relayed.sort_by_key(parties);
    let mut seen = 0;
    for cases in relayed.chunk_by(|one, next| parties(one) == parties(next)) {
        let Case {
            client, peer, tos, ..
        } = cases[0];
        let mut parties = Parties::new(&server, client, peer, tos);
        parties.bind(cases[0].way);
        for case in cases {
            let (payload, heard) = parties.relayed(case);
            assert_eq!(payload, case.leaving(0).payload, "{case}");
            assert_eq!(heard, case.tos, "{case}");
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen} cases");
}
