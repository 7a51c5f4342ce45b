//! The generator and the prober over TCP, TLS and DTLS against our own server.

use std::net::SocketAddr;
use std::time::Duration;

use crate::load_common::{Server, paced, run, target, user};
use load::generator::{
    self, BindingOptions, ChurnOptions, Direction, Framing, Path, RelayOptions, Stopper,
    TurnClients,
};
use load::probe::{self, ProbeErrorKind};
use load::report::LoadReport;
use load::{ServerAddress, Tls, Via};

/// Clients over TCP, TLS and DTLS.
fn clients(server: &Server) -> [TurnClients; 3] {
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
        over(running.tls_listeners()[0], Via::Tls(tls.clone())),
        over(running.dtls_listeners()[0], Via::Dtls(tls)),
    ]
}

fn complete(report: &LoadReport, at_least: u64) {
    let total = &report.total;
    let faults = (total.lost, total.corrupt, total.failed, total.not_sent);
    assert_eq!(faults, (0, 0, 0, 0), "{report}");
    // On a busy machine the generator sends less, and nothing of that may be lost.
    assert!(total.received >= at_least / 2, "{report}");
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

#[test]
fn a_probe_over_dtls_says_what_the_handshake_agreed_on() {
    let server = Server::streams();
    let address = server.running().dtls_listeners()[0];
    let over = |via| ServerAddress { address, via };
    let insecure = Via::Dtls(Tls::insecure("localhost").unwrap());
    let limit = Duration::from_secs(20);
    let stun = probe::stun(over(insecure.clone()), limit).unwrap();
    assert_eq!(stun.mapped, stun.local);
    let credentials = user("secret");
    let turn = probe::turn(over(insecure), Some(&credentials), limit).unwrap();
    assert!(turn.relayed_round_trip.is_ok(), "{turn:?}");
    let connected = turn.connected.unwrap();
    let (_, handshake) = connected.tls.unwrap();
    assert_eq!((connected.tcp, handshake.version), (None, "DTLS 1.2"));
    assert_eq!(handshake.alpn.as_deref(), Some("stun.turn"));
    assert_eq!(server.allocations(), 0);
    // The certificate is the server's own: no root certificate of this system has signed it.
    let verified = Via::Dtls(Tls::with_roots("localhost", other_roots()).unwrap());
    let error = probe::stun(over(verified), limit).unwrap_err();
    assert_eq!(error.kind(), ProbeErrorKind::Connection, "{error}");
    assert!(
        error.to_string().contains("certificate is rejected"),
        "{error}"
    );
}

fn other_roots() -> server::rustls::RootCertStore {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut roots = server::rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    roots
}

#[test]
fn a_port_without_dtls_is_named() {
    let server = Server::streams();
    let address = server.running().tcp_listeners()[0];
    let via = Via::Dtls(Tls::insecure("localhost").unwrap());
    // Nothing listens on UDP there: the system says so at once.
    let error = probe::stun(ServerAddress { address, via }, Duration::from_secs(20)).unwrap_err();
    assert_eq!(error.kind(), ProbeErrorKind::NothingListens, "{error}");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let via = Via::Dtls(Tls::insecure("localhost").unwrap());
    let limit = Duration::from_millis(300);
    let error = probe::stun(ServerAddress { address, via }, limit).unwrap_err();
    assert_eq!(error.kind(), ProbeErrorKind::NoAnswer, "{error}");
    assert!(error.to_string().contains("UDP"), "{error}");
}
