//! The generator over TCP and TLS against our own server.

#![allow(clippy::unwrap_used)] // helpers of tests

mod load_common;

use std::net::SocketAddr;

use load::generator::{
    self, BindingOptions, ChurnOptions, Direction, Framing, Path, RelayOptions, Stopper,
    TurnClients,
};
use load::report::LoadReport;
use load::{Tls, Via};
use load_common::{Server, paced, run, target, user};

/// Clients over TCP and over TLS.
fn clients(server: &Server) -> [TurnClients; 2] {
    let over = |address: SocketAddr, via: Via| {
        let mut clients = TurnClients::new(target(address));
        clients.credentials = Some(user("secret"));
        clients.via = via;
        clients
    };
    let running = server.running();
    let tls = Tls::insecure("localhost").unwrap();
    [
        over(running.tcp_listeners()[0], Via::Tcp),
        over(running.tls_listeners()[0], Via::Tls(tls)),
    ]
}

fn complete(report: &LoadReport, at_least: u64) {
    let total = &report.total;
    let faults = (total.lost, total.corrupt, total.failed, total.not_sent);
    assert_eq!(faults, (0, 0, 0, 0), "{report}");
    assert!(total.received >= at_least, "{report}");
}

#[test]
fn data_of_any_length_arrives_whole_in_both_framings() {
    let server = Server::streams();
    for turn in clients(&server) {
        for (size, framing) in [
            (121, Framing::Channels),
            (1200, Framing::Channels),
            (122, Framing::Indications),
        ] {
            let mut options = RelayOptions::new(turn.clone());
            (options.size, options.framing) = (size, framing);
            options.path = Path::Peers {
                direction: Direction::Both,
                ip: None,
                sockets: 4,
            };
            let plan = generator::relay(&options, &Stopper::new()).unwrap();
            complete(&run(paced(plan, 4_000.0)), 3_900);
        }
    }
    assert_eq!(server.allocations(), 0);
}

#[test]
fn a_thousand_connections_relay_and_are_released() {
    let server = Server::streams();
    for turn in clients(&server) {
        let mut options = RelayOptions::new(turn);
        options.clients = 1_000;
        let plan = generator::relay(&options, &Stopper::new()).unwrap();
        assert_eq!(server.running().stats().allocations(), 1_000);
        complete(&run(paced(plan, 5_000.0)), 4_900);
        assert_eq!(server.allocations(), 0);
    }
}

#[test]
fn allocations_and_binding_requests_come_and_go() {
    let server = Server::streams();
    for turn in clients(&server) {
        let mut binding = BindingOptions::new(turn.server);
        binding.via = turn.via.clone();
        complete(
            &run(paced(generator::binding(&binding).unwrap(), 2_000.0)),
            1_900,
        );
        let connect = generator::connect(&ChurnOptions::new(turn.clone()), &Stopper::new());
        complete(&run(paced(connect.unwrap(), 200.0)), 190);
        let plan = generator::allocate(&ChurnOptions::new(turn), &Stopper::new()).unwrap();
        complete(&run(paced(plan, 100.0)), 95);
    }
    assert_eq!(server.allocations(), 0);
}
