//! DSCP and ECN pass through in both directions (RFC 8656 §15), as seen by sockets that report them.

use crate::common::marked::Marked;
use crate::common::{Client, Got, at, ip, loopback, start};
use stun::{AddressFamily, RequestedAddressFamily};

/// Expedited forwarding and ECT(0); AF41 and CE.
const TO_PEER: u8 = 0xba;
const TO_CLIENT: u8 = 0x8b;

#[test]
fn dscp_and_ecn_pass_both_ways() {
    let server = start(loopback(1).listen(at("[::1]:0")).relay_address(ip("::1")));
    for (listener, any, family) in [
        (server.listeners()[0], at("127.0.0.1:0"), AddressFamily::V4),
        (server.listeners()[1], at("[::1]:0"), AddressFamily::V6),
    ] {
        let peer = Marked::new(any, TO_CLIENT);
        let mut client = Client::marked(listener, TO_PEER);
        let wish = RequestedAddressFamily(family);
        let relayed = client
            .allocate_with(&|builder| builder.push(&wish).map(drop))
            .relayed();
        for number in [None, Some(0x4000)] {
            match number {
                None => {
                    assert_eq!(client.permit(peer.local()), 0);
                    client.indicate(peer.local(), b"marked");
                }
                Some(number) => {
                    assert_eq!(client.bind(number, peer.local()), 0);
                    client.send(number, b"marked");
                }
            }
            assert_eq!(
                peer.receive(),
                (b"marked".to_vec(), relayed, TO_PEER),
                "{family:?}"
            );
            peer.send(b"back", relayed);
            let expected = match number {
                None => Got::Data(peer.local(), b"back".to_vec()),
                Some(number) => Got::Channel(number, b"back".to_vec()),
            };
            assert_eq!(
                (client.got(), client.last_tos()),
                (expected, TO_CLIENT),
                "{family:?}"
            );
        }
    }
}
