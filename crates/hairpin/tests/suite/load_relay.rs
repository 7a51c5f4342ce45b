//! The `relay` workload against hairpin itself.

use std::time::Duration;

use crate::load_common::{Server, clients, paced, run, user};
use load::generator::{
    Direction, Framing, Path, Plan, RelayOptions, SetupError, Stopper, Target, TurnClients, relay,
};
use load::measure::{Rate, Schedule};
use load::peer::{Peer, PeerOptions};

fn plan(server: &Server, change: impl FnOnce(&mut RelayOptions)) -> Plan {
    let mut options = RelayOptions::new(clients(server));
    change(&mut options);
    paced(relay(&options, &Stopper::new()).unwrap(), 4_000.0)
}

fn own_peers(direction: Direction, sockets: u32) -> Path {
    Path::Peers {
        direction,
        ip: None,
        sockets,
    }
}

#[test]
fn a_rate_below_capacity_is_kept_without_loss_and_everything_is_released() {
    let server = Server::start();
    let report = run(plan(&server, |options| options.clients = 20));
    assert_eq!(report.total.lost, 0, "{report}");
    assert_eq!(report.total.corrupt, 0, "{report}");
    let achieved = report.send_pps() / report.run.offered_rate.unwrap();
    assert!((achieved - 1.0).abs() < 0.005, "{report}");
    assert_eq!(report.run.latency_is, "one way");
    assert_eq!(server.allocations(), 0, "all were released");
}

#[test]
fn both_ways_with_many_peers_and_both_framings() {
    let server = Server::start();
    for framing in [Framing::Channels, Framing::Indications] {
        let report = run(plan(&server, |options| {
            (options.clients, options.peers, options.framing) = (5, 3, framing);
            options.path = own_peers(Direction::Both, 4);
            // Not a multiple of four: the attribute of an indication is padded.
            options.size = 121;
        }));
        assert_eq!(report.total.lost, 0, "{report}");
        assert_eq!(report.total.sent_bytes, report.total.sent * 121, "{report}");
        assert_eq!(report.total.received_bytes, report.total.sent_bytes);
        let parts: Vec<_> = report.parts.keys().map(String::as_str).collect();
        assert_eq!(parts, ["down", "up"]);
        let halves: Vec<_> = report.parts.values().map(|part| part.count).collect();
        assert!(halves[0].abs_diff(halves[1]) < 20, "{report}");
    }
}

#[test]
fn clients_are_kept_alive_while_they_send() {
    let server = Server::forgetful();
    for receivers in [1, 2] {
        let mut plan = plan(&server, |options| options.clients = 20);
        plan.duration = Duration::from_secs(6);
        plan.receivers = receivers;
        let report = run(plan);
        // Without a Refresh all would have been lost after four seconds.
        assert_eq!(report.total.lost, 0, "{report}");
        // Warnings are not looked at: on a busy machine some datagrams leave late.
        assert!(report.errors.is_empty(), "{report}");
        assert_eq!(server.allocations(), 0);
    }
}

#[test]
fn the_smallest_and_the_largest_payload_pass() {
    let server = Server::start();
    for size in [24, 1_200, 8_000] {
        let mut plan = plan(&server, |options| {
            options.size = size;
            options.path = own_peers(Direction::Both, 1);
        });
        // So few that all of them fit into any receive buffer on their way, however long a busy machine lets one wait.
        plan.set_schedule(&Schedule::constant(Rate(200.0)));
        plan.duration = Duration::from_millis(500);
        plan.linger = Duration::from_secs(1);
        let report = run(plan);
        assert!(report.total.received > 50, "{report}");
        assert_eq!(
            (report.total.lost, report.total.corrupt),
            (0, 0),
            "{report}"
        );
    }
}

#[test]
fn an_echo_peer_gives_round_trips_whether_it_is_ours_or_not() {
    let server = Server::start();
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let elsewhere = Target::admit(peer.addresses()[0], false).unwrap();
    let own = Path::Reflector {
        ip: None,
        threads: 1,
        ports: 2,
    };
    for path in [own, Path::Echo(vec![elsewhere])] {
        let report = run(plan(&server, |options| options.path = path));
        assert_eq!(report.total.lost, 0, "{report}");
        assert_eq!(report.run.latency_is, "round trip");
    }
    assert!(peer.snapshot().get(load::measure::Counter::Received) > 1_000);
}

#[test]
fn clients_reach_each_other_through_the_server() {
    let server = Server::start();
    let report = run(plan(&server, |options| {
        options.clients = 6;
        options.path = Path::Clients {
            direction: Direction::Both,
        };
    }));
    assert_eq!(report.total.lost, 0, "{report}");
    assert_eq!(
        report.threads.iter().filter(|one| one.received > 0).count(),
        1
    );
}

#[test]
fn a_closed_loop_keeps_its_window_and_loses_nothing() {
    let server = Server::start();
    let mut plan = plan(&server, |options| {
        options.path = Path::Reflector {
            ip: None,
            threads: 1,
            ports: 1,
        };
    });
    plan.close_loop(7);
    plan.senders = 2;
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    assert!(report.total.received > 1_000, "{report}");
    assert_eq!(report.run.offered_rate, None);
    assert_eq!(report.run.settings["closed loop"], "7");
}

#[test]
fn errors_say_what_to_do() {
    let server = Server::start();
    let fails = |change: &dyn Fn(&mut RelayOptions)| {
        let mut options = RelayOptions::new(clients(&server));
        change(&mut options);
        relay(&options, &Stopper::new()).unwrap_err()
    };
    let wrong = fails(&|options| options.turn.credentials = Some(user("nonsense")));
    assert!(
        wrong
            .to_string()
            .contains("does not accept this user name and password")
    );
    let none = fails(&|options| options.turn.credentials = None);
    assert!(none.to_string().contains("asks for a user name"), "{none}");
    let size = fails(&|options| options.size = 10);
    assert!(
        size.is_usage() && size.to_string().contains("choose 24 to"),
        "{size}"
    );
    let peers = fails(&|options| options.peers = 2);
    assert!(peers.is_usage(), "{peers}");
    let odd = fails(&|options| {
        options.clients = 3;
        options.path = Path::Clients {
            direction: Direction::Up,
        };
    });
    assert!(odd.to_string().contains("even number"), "{odd}");
    assert_eq!(server.allocations(), 0, "what failed was cleaned up");
}

#[test]
fn a_dead_server_is_noticed_at_once() {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let target = Target::admit(address, false).unwrap();
    let started = std::time::Instant::now();
    let options = RelayOptions::new(TurnClients::new(target));
    let error = relay(&options, &Stopper::new()).unwrap_err();
    assert!(error.to_string().contains("nothing listens"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn peers_that_the_server_denies_are_explained() {
    let server = Server::strict();
    let error = relay(&RelayOptions::new(clients(&server)), &Stopper::new()).unwrap_err();
    assert!(matches!(error, SetupError::PeerDenied { .. }));
    assert!(error.to_string().contains("--dev"), "{error}");
    assert_eq!(server.allocations(), 0, "what failed was cleaned up");
}

#[test]
fn too_many_allocations_are_refused_and_it_is_said_how_many_there_were() {
    let server = Server::limited(3);
    let mut options = RelayOptions::new(clients(&server));
    options.clients = 10;
    let error = relay(&options, &Stopper::new()).unwrap_err().to_string();
    assert!(
        error.contains("of 10 clients ready") && error.contains("486"),
        "{error}"
    );
    assert_eq!(server.allocations(), 0, "what failed was cleaned up");
}

#[test]
fn a_stop_releases_everything_and_still_reports() {
    let server = Server::start();
    let mut plan = plan(&server, |options| options.clients = 50);
    plan.duration = Duration::from_secs(60);
    let stopper = plan.stopper.clone();
    let mut run = load::generator::Run::start(plan).unwrap();
    run.next_second().unwrap();
    assert_eq!(server.allocations(), 50);
    stopper.stop();
    let report = run.finish();
    assert_eq!(report.ended, load::report::Ending::Stopped);
    assert_eq!(report.total.lost, 0, "{report}");
    assert_eq!(server.allocations(), 0);
}

#[test]
fn a_stop_while_clients_are_set_up_is_obeyed() {
    let server = Server::start();
    let stopper = Stopper::new();
    stopper.stop();
    let mut options = RelayOptions::new(clients(&server));
    options.clients = 500;
    let error = relay(&options, &stopper).unwrap_err();
    assert!(matches!(error, SetupError::Stopped));
    assert_eq!(server.allocations(), 0);
}

#[test]
fn ipv6_is_relayed_like_ipv4() {
    let server = Server::v6();
    let v6 = ::server::AddressFamily::V6;
    for framing in [Framing::Channels, Framing::Indications] {
        let report = run(plan(&server, |options| {
            options.turn.family = Some(v6);
            options.framing = framing;
            options.path = own_peers(Direction::Both, 1);
        }));
        assert_eq!(report.total.lost, 0, "{report}");
        assert!(report.run.target.contains("[::1]"));
        assert_eq!(server.allocations(), 0);
    }
}

#[test]
fn a_run_that_is_dropped_releases_everything() {
    let server = Server::start();
    let run = load::generator::Run::start(plan(&server, |_| ())).unwrap();
    drop(run);
    assert_eq!(server.allocations(), 0);
}
