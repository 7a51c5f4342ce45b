//! The host's own addresses are none of the peers that clients may reach, also those that come while the server runs.

use crate::common::{Client, at, eventually, ip, netns::with_wire, start};
use hairpin_server::Server;
use std::process::Command;

fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("iproute2 is there").success(), "{arguments}");
}

#[test]
fn addresses_that_come_and_go_while_the_server_runs_are_known_where_nothing_is_offloaded() {
    with_wire(|_| {
        let server = start(
            Server::builder()
                .listen(at("10.7.7.1:0"))
                .relay_address(ip("10.7.7.1"))
                .user(crate::common::USER, crate::common::PASSWORD)
                // Peers in these networks are admitted, but for the host's own addresses.
                .allow_peers("10.0.0.0/8".parse().expect("a network"))
                .workers(2),
        );
        let mut client = Client::new(server.listeners()[0]);
        client.allocate();
        let peer = at("10.7.7.77:4000");
        assert_eq!(client.permit(peer), 0, "an address of nobody's");
        run("address add 10.7.7.77/32 dev lo");
        eventually("an address of this host is refused", || {
            client.permit(peer) == 403
        });
        // An interface that is down takes its addresses with it.
        run("link add spare type veth peer name other");
        run("address add 10.7.7.78/32 dev spare");
        assert_eq!(client.permit(at("10.7.7.78:4000")), 0);
        run("link set spare up");
        eventually("an address of an interface that came up is refused", || {
            client.permit(at("10.7.7.78:4000")) == 403
        });
        run("address del 10.7.7.77/32 dev lo");
        eventually("an address that is gone is admitted", || {
            client.permit(peer) == 0
        });
        assert_eq!(server.failed_worker(), None);
    });
}
