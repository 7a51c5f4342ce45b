//! The probe and the generator over TCP, TLS and DTLS, against coturn's server where it is installed.

#[path = "../../client/tests/certificate/mod.rs"]
mod certificate;
#[path = "../../client/tests/coturn/mod.rs"]
mod coturn;
#[path = "liars/udp.rs"]
#[allow(clippy::unwrap_used)] // helpers of tests
mod liar;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use certificate::Certificate;
use coturn::{PASSWORD, USER};
use hairpin_load as load;
use load::generator::{
    self, BindingOptions, ChurnOptions, Direction, Framing, Path, Plan, RelayOptions, Run, Stopper,
    Target, TurnClients,
};
use load::measure::{Rate, Schedule};
use load::probe::{self, Credentials, ProbeErrorKind};
use load::report::LoadReport;
use load::{ServerAddress, Tls, Via};

const NAME: &str = "turn.example.org";
const TIMEOUT: Duration = Duration::from_secs(5);

fn over(address: SocketAddr, via: Via) -> ServerAddress {
    ServerAddress { address, via }
}

fn tls(certificate: &Certificate, name: &str) -> Via {
    let roots = certificate.path("cert.pem");
    Via::Tls(Tls::with_root_file(name, &roots).expect("a configuration"))
}

fn dtls(certificate: &Certificate, name: &str) -> Via {
    let roots = certificate.path("cert.pem");
    Via::Dtls(Tls::with_root_file(name, &roots).expect("a configuration"))
}

/// Asks until somebody listens there: coturn opens its sockets one after the other.
fn stun(server: &ServerAddress) -> probe::StunReport {
    let start = Instant::now();
    loop {
        match probe::stun(server.clone(), TIMEOUT) {
            Ok(report) => return report,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_turn_server_is_tried_out_over_tcp_tls_and_dtls() {
    let certificate = Certificate::new("probe", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let user = Credentials::new(USER, PASSWORD);
    for server in [
        over(coturn.address, Via::Tcp),
        over(coturn.tls, tls(&certificate, NAME)),
        over(coturn.tls, dtls(&certificate, NAME)),
    ] {
        let is_tls = server.via != Via::Tcp;
        let is_dtls = matches!(server.via, Via::Dtls(_));
        let stun = stun(&server);
        assert_eq!(stun.mapped, stun.local);
        let report = probe::turn(server, Some(&user), TIMEOUT).expect("it works");
        let connected = report.connected.expect("a connection");
        assert_eq!(connected.tls.is_some(), is_tls);
        if let Some((_, handshake)) = connected.tls {
            let version = if is_dtls { "DTLS 1.2" } else { "TLS 1.2" };
            assert_eq!(handshake.version, version);
            if !is_dtls {
                assert_eq!(handshake.alpn.as_deref(), Some("stun.turn"));
            }
        }
        // coturn 4.6 knows ADDITIONAL-ADDRESS-FAMILY only by the number of a draft, and grants one address.
        let dual = report.dual.expect_err("one address");
        assert_eq!(dual.kind(), ProbeErrorKind::Ignored, "{dual}");
        let trip = report.relayed_round_trip.expect("data flows");
        assert_eq!((trip.sent, trip.returned), (5, 5));
    }
    let wrong = over(coturn.tls, tls(&certificate, "other.example.org"));
    let error = probe::stun(wrong, TIMEOUT).expect_err("another name");
    assert_eq!(error.kind(), ProbeErrorKind::Connection);
    assert!(error.to_string().contains("not valid for name"), "{error}");
    let wrong = over(coturn.address, Via::Tcp);
    let error = probe::turn(wrong, None, TIMEOUT).expect_err("it wants credentials");
    assert_eq!(error.kind(), ProbeErrorKind::CredentialsNeeded);
}

/// A listener that reads once, sends `answer`, and closes unless it is to stay.
fn listener(answer: &'static [u8], stay: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let mut request = [0; 2048];
            let _ = socket.read(&mut request);
            let _ = socket.write_all(answer);
            while stay && socket.read(&mut request).is_ok_and(|count| count > 0) {}
        }
    });
    address
}

#[test]
fn stream_failures_are_distinguished() {
    let any = || Via::Tls(Tls::insecure(NAME).expect("a configuration"));
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let closed = closed.expect("loopback");
    let short = Duration::from_millis(300);
    let (sip, hang_up, mute) = (
        listener(b"SIP/2.0 400 No\r\n\r\n", true),
        listener(b"", false),
        listener(b"", true),
    );
    for (address, via, kind, part) in [
        (
            closed,
            Via::Tcp,
            ProbeErrorKind::NothingListens,
            "refused the connection",
        ),
        (
            closed,
            any(),
            ProbeErrorKind::NothingListens,
            "its port for TLS",
        ),
        (
            sip,
            Via::Tcp,
            ProbeErrorKind::Connection,
            "does not support STUN",
        ),
        (
            sip,
            any(),
            ProbeErrorKind::Connection,
            "does not support TLS",
        ),
        (
            hang_up,
            Via::Tcp,
            ProbeErrorKind::Connection,
            "it closed the connection. Is this its port for TCP?",
        ),
        (
            hang_up,
            any(),
            ProbeErrorKind::Connection,
            "during the TLS handshake",
        ),
        (
            mute,
            Via::Tcp,
            ProbeErrorKind::NoAnswer,
            "did not answer the Binding request",
        ),
        (
            mute,
            any(),
            ProbeErrorKind::NoAnswer,
            "handshake did not end in time",
        ),
    ] {
        let error = probe::stun(over(address, via), short).expect_err(part);
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// The clients of both transports.
fn both(coturn: &coturn::Coturn, certificate: &Certificate) -> [TurnClients; 2] {
    let clients = |address, via| {
        let mut clients = TurnClients::new(Target::admit(address, false).expect("loopback"));
        clients.credentials = Some(Credentials::new(USER, PASSWORD));
        clients.via = via;
        clients
    };
    [
        clients(coturn.address, Via::Tcp),
        clients(coturn.tls, tls(certificate, NAME)),
    ]
}

fn run(mut plan: Plan, rate: Option<f64>) -> LoadReport {
    plan.duration = Duration::from_millis(500);
    plan.warm_up = Duration::from_millis(100);
    match rate {
        Some(rate) => plan.set_schedule(&Schedule::constant(Rate(rate))),
        None => plan.close_loop(16),
    }
    let mut run = Run::start(plan).expect("threads");
    while run.next_second().is_some() {}
    run.finish()
}

#[test]
fn relayed_data_of_any_length_arrives_whole_over_tcp_and_tls() {
    let certificate = Certificate::new("relay", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    for turn in both(&coturn, &certificate) {
        // Every length of padding; the longest is a record of TLS with others.
        for (size, framing) in [
            (121, Framing::Channels),
            (122, Framing::Indications),
            (123, Framing::Channels),
            (1200, Framing::Channels),
        ] {
            let mut options = RelayOptions::new(turn.clone());
            (options.size, options.framing) = (size, framing);
            options.path = Path::Peers {
                direction: Direction::Both,
                ip: None,
                sockets: 4,
            };
            let plan = generator::relay(&options, &Stopper::new()).expect("a plan");
            let report = run(plan, Some(4_000.0));
            let total = &report.total;
            assert_eq!(
                (total.lost, total.corrupt, total.not_sent),
                (0, 0, 0),
                "{report}"
            );
            assert!(total.received > 1_500, "{report}");
            assert_eq!(report.sending.method, "send, gathered");
            assert!(
                report
                    .warnings
                    .iter()
                    .all(|warning| !warning.contains("allocations")),
                "{report}"
            );
        }
    }
}

#[test]
fn messages_due_together_leave_in_one_write() {
    let certificate = Certificate::new("gather", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    for turn in both(&coturn, &certificate) {
        let mut options = RelayOptions::new(turn);
        options.clients = 2;
        let mut plan = generator::relay(&options, &Stopper::new()).expect("a plan");
        plan.set_train(16);
        plan.duration = Duration::from_millis(500);
        plan.set_schedule(&Schedule::constant(Rate(6_400.0)).with_burst(32));
        let mut run = Run::start(plan).expect("threads");
        while run.next_second().is_some() {}
        let report = run.finish();
        assert_eq!(report.total.lost, 0, "{report}");
        let per_call = report.sending.datagrams as f64 / report.sending.calls as f64;
        assert!(per_call > 8.0, "{per_call}: {report}");
    }
}

/// What a middlebox did with the records that carry payloads.
#[derive(Default)]
struct Records {
    whole: u64,
    changed: u64,
}

/// RFC 6347 §4.1.2: a record that is repeated, changed or cut is discarded.
#[test]
fn a_middlebox_can_only_lose_what_dtls_protects() {
    const SIZE: usize = 600;
    const APPLICATION_DATA: u8 = 23;
    let certificate = Certificate::new("middlebox", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    stun(&over(coturn.tls, dtls(&certificate, NAME)));
    let far = coturn.tls;
    let (mut client, mut number) = (far, 0u64);
    let middlebox = liar::Liar::<Records>::start(move |_, bytes, from, records, sends| {
        if from != far {
            client = from;
            return sends.now(far, bytes);
        }
        // Only records with payloads are so long, after the handshake.
        if bytes[0] != APPLICATION_DATA || bytes.len() < SIZE {
            return sends.now(client, bytes);
        }
        number += 1;
        let mut changed = bytes.to_vec();
        match number % 5 {
            0 => sends.now(client, bytes),
            1 => changed[40 + number as usize % 500] ^= 8,
            2 => changed.truncate(400),
            _ => {}
        }
        if number % 5 == 1 || number % 5 == 2 {
            records.changed += 1;
        } else {
            records.whole += 1;
        }
        sends.now(client, &changed);
    });
    let mut turn = TurnClients::new(Target::admit(middlebox.address, false).expect("loopback"));
    turn.credentials = Some(Credentials::new(USER, PASSWORD));
    turn.via = dtls(&certificate, NAME);
    let mut options = RelayOptions::new(turn);
    (options.clients, options.size) = (1, SIZE);
    options.path = Path::Peers {
        direction: Direction::Down,
        ip: None,
        sockets: 1,
    };
    let mut plan = generator::relay(&options, &Stopper::new()).expect("a plan");
    plan.warm_up = Duration::ZERO;
    plan.duration = Duration::from_secs(1);
    plan.set_schedule(&Schedule::constant(Rate(500.0)));
    let report = Run::start(plan).expect("threads").finish();
    let (total, records) = (&report.total, middlebox.account());
    assert!(records.changed > 100, "{report}");
    assert_eq!(
        (total.received, total.lost),
        (records.whole, records.changed),
        "{report}"
    );
    let lies = total.duplicates + total.truncated + total.corrupt + total.damaged;
    assert_eq!(lies, 0, "{report}");
}

#[test]
fn allocations_come_and_go_over_tcp_and_tls() {
    let certificate = Certificate::new("churn", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    for turn in both(&coturn, &certificate) {
        let plan = generator::allocate(&ChurnOptions::new(turn), &Stopper::new()).expect("a plan");
        let report = run(plan, Some(100.0));
        assert_eq!((report.total.lost, report.total.failed), (0, 0), "{report}");
        assert!(report.total.received >= 45, "{report}");
    }
}

#[test]
fn connections_come_and_go_with_and_without_resumption() {
    let certificate = Certificate::new("connect", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let [tcp, secure] = both(&coturn, &certificate);
    let mut full = secure.clone();
    let Via::Tls(tls) = secure.via.clone() else {
        panic!("the second is TLS");
    };
    full.via = Via::Tls(tls.without_resumption());
    for (turn, resumption) in [(tcp, None), (secure, Some("yes")), (full, Some("no"))] {
        let mut plan =
            generator::connect(&ChurnOptions::new(turn), &Stopper::new()).expect("a plan");
        assert_eq!(
            plan.settings.get("resumption").map(String::as_str),
            resumption
        );
        plan.server_pid = Some(coturn.pid());
        let report = run(plan, Some(100.0));
        assert_eq!((report.total.lost, report.total.failed), (0, 0), "{report}");
        assert!(report.total.received >= 45, "{report}");
        let server = report.server.expect("its process is known");
        assert!(
            server.cpu_us_per_unit > 0.0 && server.resident_after > 0,
            "{report}"
        );
    }
}

#[test]
fn binding_requests_are_answered_over_tcp_and_tls() {
    let certificate = Certificate::new("binding", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    for turn in both(&coturn, &certificate) {
        let mut options = BindingOptions::new(turn.server);
        (options.via, options.clients) = (turn.via, 100);
        for rate in [Some(2_000.0), None] {
            let report = run(generator::binding(&options).expect("a plan"), rate);
            assert_eq!(report.total.lost, 0, "{report}");
            assert!(report.total.received > 900, "{report}");
        }
    }
}

/// A STUN server over TCP that answers one Binding request, and reads nothing from later connections.
fn server_that_stops_reading() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut first, _) = listener.accept().expect("a connection");
        let mut request = [0; 512];
        let count = first.read(&mut request).expect("a request");
        let request = stun::Message::parse(&request[..count]).expect("a request");
        let id = request.transaction_id();
        let mut buffer = [0; 64];
        let mut answer = stun::Builder::new(
            &mut buffer,
            stun::Class::Success,
            stun::Method::BINDING,
            &id,
        )
        .expect("room");
        let mapped = stun::XorMappedAddress(address);
        answer.push(&mapped).expect("room");
        first.write_all(answer.finish()).expect("sent");
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept() {
            held.push(connection);
        }
    });
    address
}

#[test]
fn unread_data_counts_as_not_sent() {
    let target = Target::admit(server_that_stops_reading(), false).expect("loopback");
    let mut options = BindingOptions::new(target);
    (options.via, options.clients) = (Via::Tcp, 1);
    let mut plan = generator::binding(&options).expect("a plan");
    plan.flat_out();
    plan.duration = Duration::from_secs(2);
    plan.linger = Duration::from_millis(50);
    let mut run = Run::start(plan).expect("threads");
    while run.next_second().is_some() {}
    let report = run.finish();
    assert_eq!(report.total.received, 0, "{report}");
    assert!(report.total.not_sent > 0, "{report}");
    let reasons: Vec<_> = report.sending.not_sent.keys().collect();
    assert_eq!(reasons, ["send buffer full (EAGAIN)"], "{report}");
}

#[test]
fn a_server_that_stops_is_named_in_a_warning() {
    let certificate = Certificate::new("stop", &[NAME]);
    let Some(mut coturn) = certificate.coturn(&[]) else {
        return;
    };
    let [_, turn] = both(&coturn, &certificate);
    let mut options = RelayOptions::new(turn.clone());
    options.clients = 3;
    let mut plan = generator::relay(&options, &Stopper::new()).expect("a plan");
    plan.duration = Duration::from_millis(500);
    plan.set_schedule(&Schedule::constant(Rate(100.0)));
    let mut run = Run::start(plan).expect("threads");
    coturn.stop();
    while run.next_second().is_some() {}
    let report = run.finish();
    let named = |warning: &String| warning.starts_with("3 connections to the server ended");
    assert!(report.warnings.iter().any(named), "{report}");
    let error = generator::relay(&RelayOptions::new(turn), &Stopper::new()).expect_err("no server");
    assert!(
        error.to_string().contains("nothing listens on TCP"),
        "{error}"
    );
}
