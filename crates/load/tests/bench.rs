//! The benchmark measured by itself: a bare relay passes, a relay that damages or a server that
//! dies is told, and nothing is left behind, also after SIGKILL.
//!
//! These tests need root, two processors and Linux 5.18; without, they fail and say so. One
//! benchmark runs at a time on a machine, so they take turns.

// Helpers of tests: a failure there is a failure of the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hairpin_load::bench::report::{Measure, Outcome};
use hairpin_load::bench::{
    BenchOptions, Direction, FlowOrder, Programs, Report, Scenario, Side, SipWork, Sources,
    Transport, floor, generator_speed, run,
};

/// Name of the test below that is not a test: this binary is its own bare relay.
const ENTRY: &str = "entry_of_the_bare_relay";

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This binary, entering at [`ENTRY`]; what follows is passed on.
fn entry() -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    [
        own.to_str().unwrap(),
        "--ignored",
        "--exact",
        ENTRY,
        "--nocapture",
    ]
    .map(str::to_owned)
    .into()
}

#[test]
#[ignore = "not a test: the bare relay, run by the tests"]
fn entry_of_the_bare_relay() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[arguments.len() - 3..] {
        [_, kind, _] if kind == "forward" => forward(),
        [_, kind, _] if kind == "forget" => forget(),
        arguments => panic!("{:?}", floor::main(arguments)),
    }
}

/// A middlebox for four flows: what comes from a client goes to its peer as it is, and back.
fn forward() {
    let listener = UdpSocket::bind("10.99.1.1:3478").unwrap();
    let relays: Vec<UdpSocket> = (0..4)
        .map(|flow| UdpSocket::bind(("10.99.2.1", 20_000 + flow)).unwrap())
        .collect();
    for (flow, relay) in (0..).zip(&relays) {
        let (relay, back) = (relay.try_clone().unwrap(), listener.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok(length) = relay.recv(&mut buffer) {
                let _ = back.send_to(&buffer[..length], ("10.99.1.2", 40_000 + flow));
            }
        });
    }
    let mut buffer = [0; 2048];
    loop {
        let (length, client) = listener.recv_from(&mut buffer).unwrap();
        let flow = client.port().wrapping_sub(40_000);
        if let Some(relay) = relays.get(usize::from(flow)) {
            let _ = relay.send_to(&buffer[..length], ("10.99.2.2", 9_000 + flow));
        }
    }
}

/// A TURN server that allocates without credentials. It drops every 20th Allocate request without a response, and
/// sends something malformed before every 50th response.
fn forget() {
    let listener = UdpSocket::bind("10.99.1.1:3478").unwrap();
    let mut buffer = [0; 2048];
    let mut allocates = 0u64;
    loop {
        let (_, client) = listener.recv_from(&mut buffer).unwrap();
        let id: [u8; 12] = buffer[8..20].try_into().unwrap();
        let address = |kind: u8, port: u16, ip: [u8; 4]| {
            let cookie = [0x21, 0x12, 0xA4, 0x42];
            let port = (port ^ 0x2112).to_be_bytes();
            let ip: Vec<u8> = ip.iter().zip(cookie).map(|(a, b)| a ^ b).collect();
            [&[0, kind, 0, 8, 0, 1][..], &port, &ip].concat()
        };
        let lifetime = |low: [u8; 2]| [&[0, 0x0D, 0, 4, 0, 0][..], &low].concat();
        let mapped = address(0x20, client.port(), [10, 99, 1, 2]);
        let attributes = match buffer[1] {
            3 => {
                allocates += 1;
                if allocates.is_multiple_of(20) {
                    continue;
                }
                if allocates % 50 == 1 {
                    let _ = listener.send_to(&[0x40, 0, 0, 9, 1], client);
                }
                let relayed = address(0x16, 20_000, [10, 99, 2, 1]);
                [relayed, lifetime([2, 88]), mapped].concat()
            }
            4 => lifetime([0, 0]),
            _ => mapped,
        };
        let head = [
            1,
            buffer[1],
            0,
            attributes.len() as u8,
            0x21,
            0x12,
            0xA4,
            0x42,
        ];
        let _ = listener.send_to(&[&head[..], &id, &attributes].concat(), client);
    }
}

fn side(spec: &str) -> Side {
    let programs = Programs {
        hairpin: "hairpin".into(),
        coturn: "turnserver".into(),
        kamailio: "kamailio".into(),
        floor: entry(),
    };
    Side::parse(spec, &programs).unwrap()
}

fn relay(flows: u16, direction: Direction) -> Scenario {
    Scenario::Relay {
        flows,
        train: 1,
        order: FlowOrder::Random,
        direction,
        payload: 120,
    }
}

fn measure(sides: Vec<Side>, scenarios: Vec<Scenario>) -> Report {
    let options = BenchOptions {
        scenarios,
        rounds: 1,
        step: Duration::from_millis(40),
        hold: Duration::from_millis(80),
        gate: None,
        ..BenchOptions::quick(sides)
    };
    run(options).unwrap_or_else(|error| {
        panic!("this test needs root, two processors and Linux 5.18: {error}")
    })
}

#[test]
fn bare_relays_pass_in_every_direction_with_every_byte_checked() {
    let _turn = in_turn();
    let scenarios = vec![
        relay(8, Direction::ClientToPeer),
        relay(8, Direction::PeerToClient),
        relay(8, Direction::Both),
        Scenario::Binding {
            clients: 8,
            sources: Sources::Spoofed,
        },
    ];
    let report = measure(
        [
            "floor",
            "floor-gro",
            "floor-stun",
            "floor-xdp",
            "floor-tc",
            "floor-stun-xdp",
            "program-xdp",
            "program-tc",
        ]
        .map(side)
        .into(),
        scenarios,
    );
    assert_eq!(
        report.cells.len(),
        2 * 4 + 4 * 3 + 2,
        "the STUN servers take part in one scenario, the relays in the kernel in the others"
    );
    for cell in &report.cells {
        let Outcome::Packets(packets) = &cell.outcome else {
            panic!("{cell:?}")
        };
        assert!(packets.best.delivered > 5_000.0, "{cell:?}");
        assert_eq!((packets.wrong, packets.duplicated), (0, 0), "{cell:?}");
        assert!(packets.best.loss <= 0.01, "{cell:?}");
        // None of these relays reorders a flow, and no step's numbers are held against those of the step before.
        assert_eq!(
            packets.best.reordered + packets.at_60.reordered,
            0,
            "{cell:?}"
        );
        let relayed = !matches!(cell.scenario, Scenario::Binding { .. });
        assert_eq!(packets.at_60.verified > 0, relayed, "{cell:?}");
        assert!(packets.at_60.cost_ns > 100.0, "{cell:?}");
        // It loses much only if something else had its processor.
        let disturbed = packets.at_60.foreign > 0.2;
        assert!(packets.at_60.loss < 0.5 || disturbed, "{cell:?}");
        assert!(packets.ramp.len() >= 3, "{cell:?}");
    }
    assert!(report.damage().is_empty());
}

#[test]
fn duplicates_are_no_goodput_and_are_reported() {
    let _turn = in_turn();
    let report = measure(
        vec![side("floor"), side("floor-repeat")],
        vec![relay(1, Direction::ClientToPeer)],
    );
    // It may lose more than 1 % at every rate besides, on a busy machine.
    if let Outcome::Packets(packets) = &report.cells.last().unwrap().outcome {
        assert!(packets.duplicated > 100, "{packets:?}");
        for (offered, delivered) in &packets.ramp {
            assert!(delivered <= offered, "{packets:?}");
        }
    }
    let damage = report.damage();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(
        damage[0].contains("arrived again") && !damage[0].contains(" 0 arrived again"),
        "{damage:?}"
    );
}

#[test]
fn a_middlebox_takes_part_with_datagrams_as_they_are() {
    let _turn = in_turn();
    let forwarding = format!("box=middlebox+p2c:{} forward 4", entry().join(" "));
    let scenarios = vec![
        relay(4, Direction::ClientToPeer),
        relay(4, Direction::PeerToClient),
    ];
    let report = measure(vec![side(&forwarding)], scenarios);
    assert_eq!(report.cells.len(), 2);
    for cell in &report.cells {
        let Outcome::Packets(packets) = &cell.outcome else {
            panic!("{cell:?}")
        };
        assert!(packets.best.delivered > 5_000.0, "{cell:?}");
        assert_eq!((packets.wrong, packets.duplicated), (0, 0), "{cell:?}");
        assert!(packets.at_60.verified > 0, "{cell:?}");
    }
}

#[test]
fn bare_relays_over_tcp_and_tls_pass_both_ways() {
    let _turn = in_turn();
    let over = |transport, direction| Scenario::Connections {
        transport,
        connections: 4,
        direction,
        payload: 120,
    };
    let scenarios = vec![
        relay(4, Direction::ClientToPeer),
        over(Transport::Tcp, Direction::ClientToPeer),
        over(Transport::Tcp, Direction::PeerToClient),
        over(Transport::Tls, Direction::ClientToPeer),
        over(Transport::Tls, Direction::PeerToClient),
    ];
    let report = measure(vec![side("floor-tcp"), side("floor-tls")], scenarios);
    assert_eq!(report.cells.len(), 4, "they take no datagrams of clients");
    for cell in &report.cells {
        let Outcome::Packets(packets) = &cell.outcome else {
            panic!("{cell:?}")
        };
        assert!(packets.best.delivered > 1_000.0, "{cell:?}");
        assert_eq!(packets.wrong, 0, "{cell:?}");
        assert!(packets.at_60.verified > 0, "{cell:?}");
        assert!(packets.at_60.cost_ns > 100.0, "{cell:?}");
    }
}

#[test]
fn dropped_requests_and_malformed_messages_of_a_churn_are_counted() {
    let _turn = in_turn();
    let forgetful = format!("liar=turn:{} forget 1", entry().join(" "));
    let report = measure(
        vec![side(&forgetful)],
        vec![Scenario::Churn { in_flight: 8 }],
    );
    let Outcome::Churn(churn) = &report.cells[0].outcome else {
        panic!("{:?}", report.cells)
    };
    assert!(churn.rate > 0.0 && churn.errors > 0, "{churn:?}");
    assert!(churn.wrong > 0, "{churn:?}");
    let damage = report.damage();
    assert!(damage[0].contains("malformed"), "{damage:?}");
}

#[test]
fn handshakes_are_counted() {
    let _turn = in_turn();
    let scenarios = [false, true].map(|resumed| Scenario::Handshakes {
        resumed,
        in_flight: 8,
    });
    let report = measure(vec![side("floor-tls")], scenarios.to_vec());
    assert_eq!(report.cells.len(), 2);
    for cell in &report.cells {
        let Outcome::Churn(churn) = &cell.outcome else {
            panic!("{cell:?}")
        };
        assert!(churn.rate > 50.0 && churn.errors == 0, "{cell:?}");
        assert!(churn.cost_ns > 10_000.0, "{cell:?}");
    }
}

#[test]
fn sip_servers_are_measured_at_their_peak_and_far_beyond_it() {
    let _turn = in_turn();
    let work = SipWork::Options;
    let over = hairpin_load::sip::Transport::Udp;
    let scenarios = vec![
        Scenario::Sip { work, over },
        Scenario::SipOverload {
            work,
            service_us: 0,
        },
    ];
    let report = measure(vec![side("floor-sip")], scenarios);
    assert_eq!(report.cells.len(), 2);
    let Outcome::Packets(packets) = &report.cells[0].outcome else {
        panic!("{:?}", report.cells[0])
    };
    assert!(packets.best.delivered > 1_000.0, "{packets:?}");
    assert!(packets.at_60.cost_ns > 100.0, "{packets:?}");
    let Outcome::Overload(overload) = &report.cells[1].outcome else {
        panic!("{:?}", report.cells[1])
    };
    let sweep = &overload.sweep;
    let multiples: Vec<f64> = sweep.steps.iter().map(|step| step.multiple).collect();
    assert_eq!(multiples, [1.0, 1.25, 1.0, 1.5, 1.0, 2.0]);
    assert_eq!(sweep.peak, overload.best.offered);
    assert!(
        overload.base() > 0.0 && overload.kept().is_some(),
        "{overload:?}"
    );
    for step in &sweep.steps {
        // Its process is known, and it has used its processor.
        assert!(step.server_cpu.is_some_and(|cpu| cpu > 0.0), "{step:?}");
        assert!(
            step.server_memory.is_some_and(|bytes| bytes > 0),
            "{step:?}"
        );
    }
    assert!(sweep.recovery.is_some(), "{sweep:?}");
    let row = report.row(&report.scenarios[1], 0).unwrap();
    assert_eq!(row.overload.map(|found| found.loads.len()), Some(4));
}

#[test]
fn damage_and_crashes_are_reported_and_do_not_end_the_benchmark() {
    let _turn = in_turn();
    let sides = vec![
        side("floor"),
        side("floor-damage"),
        side("static:/bin/echo farewell"),
        side("/no/such/server"),
    ];
    let report = measure(sides, vec![relay(1, Direction::ClientToPeer)]);
    let outcomes: Vec<&Outcome> = (0..4)
        .map(|side| {
            &report
                .cells
                .iter()
                .find(|cell| cell.side == side)
                .unwrap()
                .outcome
        })
        .collect();
    assert!(outcomes[0].value(Measure::Main).is_some());
    let reason = |outcome: &Outcome| match outcome {
        Outcome::Failed { reason, .. } => reason.clone(),
        Outcome::Packets(packets) => format!("{} wrong", packets.wrong),
        other => panic!("{other:?}"),
    };
    // The counter notices it, or the payload check before the measurement, if one of its 16 datagrams is among the
    // damaged ones.
    let damage = reason(outcomes[1]);
    assert!(
        damage.ends_with(" wrong") && damage != "0 wrong" || damage.starts_with("payload check:"),
        "{:?}",
        outcomes[1]
    );
    assert!(
        reason(outcomes[2]).contains("farewell"),
        "{}",
        reason(outcomes[2])
    );
    assert!(
        reason(outcomes[3]).contains("/no/such/server"),
        "{}",
        reason(outcomes[3])
    );
}

#[test]
fn the_generator_outruns_any_server() {
    let _turn = in_turn();
    let speed = generator_speed(0, 1, 120, Duration::from_millis(200)).unwrap_or_else(|error| {
        panic!("this test needs root, two processors and Linux 5.18: {error}")
    });
    // Four million and more on a quiet machine; this only notices that it fell to what sockets can
    // do.
    assert!(speed.injected > 1e6, "{speed:?}");
    assert!(
        speed.delivered > 0.5e6 && speed.delivered <= speed.injected,
        "{speed:?}"
    );
}

/// Network namespaces that some process is in, and the interfaces' polling threads.
fn namespaces_and_threads() -> (BTreeSet<String>, BTreeSet<u32>) {
    let processes = || {
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let namespace = |process| {
        fs::read_link(format!("/proc/{process}/ns/net"))
            .ok()
            .map(|link| link.to_string_lossy().into_owned())
    };
    let polls = |process: &u32| {
        fs::read_to_string(format!("/proc/{process}/comm"))
            .is_ok_and(|name| name.starts_with("napi/"))
    };
    (
        processes().filter_map(namespace).collect(),
        processes().filter(polls).collect(),
    )
}

/// Starts a benchmark in a process of its own and waits until it measures.
fn start_measuring() -> Child {
    let own = std::env::current_exe().unwrap();
    let mut child = Command::new(own)
        .args([
            "--ignored",
            "--exact",
            "entry_of_a_long_benchmark",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines
            .map_while(Result::ok)
            .any(|line| line.contains("8x1-c2p-120B floor")),
        "it did not get to measuring"
    );
    child
}

#[test]
#[ignore = "not a test: a benchmark to be killed by the test below"]
fn entry_of_a_long_benchmark() {
    let options = BenchOptions {
        scenarios: vec![relay(8, Direction::ClientToPeer)],
        rounds: 1000,
        step: Duration::from_millis(40),
        hold: Duration::from_millis(80),
        gate: None,
        progress: |line| println!("{line}"),
        ..BenchOptions::quick(vec![side("floor"), side("floor-gro")])
    };
    run(options).unwrap();
}

#[test]
fn nothing_is_left_after_sigkill() {
    let _turn = in_turn();
    let (namespaces, threads) = namespaces_and_threads();
    let mut child = start_measuring();
    let (busy_namespaces, busy_threads) = namespaces_and_threads();
    assert!(
        busy_namespaces.difference(&namespaces).count() >= 2,
        "servers run in namespaces of their own"
    );
    assert!(
        busy_threads.difference(&threads).count() >= 8,
        "four interfaces of each network are polled"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel takes namespaces down in the background.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (now_namespaces, now_threads) = namespaces_and_threads();
        let left = now_namespaces
            .intersection(&(&busy_namespaces - &namespaces))
            .count()
            + now_threads
                .intersection(&(&busy_threads - &threads))
                .count();
        if left == 0 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{left} namespaces or kernel threads are still there"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
