//! SIP workloads against the answering side of this crate.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use hairpin_load::generator::{
    Plan, Run, SipCredentials, SipOptions, SipWorkload, Stopper, Target, check_server, sip,
};
use hairpin_load::measure::{Rate, Schedule};
use hairpin_load::report::LoadReport;
use hairpin_load::sip::{Transport, Uas, UasOptions};

const WORKLOADS: [SipWorkload; 3] = [
    SipWorkload::Options,
    SipWorkload::Register,
    SipWorkload::Call,
];

fn uas() -> Uas {
    Uas::start(&UasOptions::new(vec!["127.0.0.1:0".parse().unwrap()])).unwrap()
}

/// Two answering sides on one port would each get a part of the other's calls.
#[test]
fn a_port_in_use_is_an_error_also_if_another_answering_side_has_it() {
    let first = uas();
    let again = Uas::start(&UasOptions::new(vec![first.addresses()[0]]));
    let error = again.unwrap_err().to_string();
    assert!(error.contains("cannot listen on 127.0.0.1:"), "{error}");
}

fn options(target: SocketAddr, workload: SipWorkload, transport: Transport) -> SipOptions {
    let mut options = SipOptions::new(Target::admit(target, false).unwrap());
    options.workload = workload;
    options.transport = transport;
    options.links = 4;
    options.aors = 50;
    options
}

fn plan(options: &SipOptions) -> Plan {
    let mut plan = sip(options, &Stopper::new()).unwrap();
    plan.warm_up = Duration::from_millis(100);
    plan.duration = Duration::from_millis(600);
    plan
}

fn report(plan: Plan) -> LoadReport {
    Run::start(plan).unwrap().finish()
}

#[test]
fn an_open_loop_completes_everything_over_both_transports() {
    let uas = uas();
    for transport in [Transport::Udp, Transport::Tcp] {
        for workload in WORKLOADS {
            let mut plan = plan(&options(uas.addresses()[0], workload, transport));
            plan.set_schedule(&Schedule::constant(Rate(500.0)));
            let report = report(plan);
            let sip = report.sip.as_deref().unwrap();
            // Fewer where the machine was busy with something else.
            assert!((150..=300).contains(&report.total.sent), "{report}");
            assert_eq!(report.total.received, report.total.sent, "{report}");
            assert!(report.errors.is_empty() && sip.stray == 0, "{report}");
            assert_eq!(report.latency.count, report.total.sent, "{report}");
            assert!((150..=310).contains(&sip.completed), "{sip:?}");
        }
    }
    let told = uas.stop();
    assert!(
        told.invite >= 600 && told.bye == told.invite && told.ack == told.invite,
        "{told:?}"
    );
    assert_eq!((told.ignored, told.unacknowledged), (0, 0), "{told:?}");
}

#[test]
fn a_window_of_runs_ends_when_they_are_over() {
    let uas = uas();
    for workload in WORKLOADS {
        let mut options = options(uas.addresses()[0], workload, Transport::Udp);
        options.runs = Some(2000);
        let mut plan = plan(&options);
        plan.warm_up = Duration::ZERO;
        plan.duration = Duration::from_secs(60);
        plan.close_loop(100);
        let report = report(plan);
        assert_eq!(report.total.received, 2000, "{report}");
        assert!(report.run.measured_s < 30.0, "{report}");
    }
}

#[test]
fn a_run_that_is_refused_begins_anew_if_it_is_to() {
    for anew in [true, false] {
        let target = answering(|number| match number % 3 {
            0 => "503 Service Unavailable\r\nRetry-After: 0",
            _ => "200 OK",
        });
        let mut options = options(target, SipWorkload::Options, Transport::Udp);
        options.runs = Some(100);
        options.anew = anew;
        let mut plan = plan(&options);
        plan.warm_up = Duration::ZERO;
        plan.duration = Duration::from_secs(60);
        plan.close_loop(7);
        let report = report(plan);
        let completed = report.sip.as_deref().unwrap().completed;
        let refused = report.errors[&503];
        if anew {
            assert!(completed == 100 && refused >= 45, "{report}");
        } else {
            assert!(completed + refused == 100 && refused >= 30, "{report}");
        }
    }
}

#[test]
fn a_sweep_names_every_load_and_the_recovery() {
    let uas = uas();
    let options = options(uas.addresses()[0], SipWorkload::Options, Transport::Udp);
    let mut plan = sip(&options, &Stopper::new()).unwrap();
    plan.linger = Duration::from_millis(200);
    let mut sweep = hairpin_load::generator::SweepOptions::default();
    sweep.multiples = vec![0.5, 1.0];
    sweep.peak = Some(400.0);
    sweep.step = Duration::from_millis(500);
    sweep.warm_up = Duration::from_millis(100);
    sweep.recovery = Duration::from_millis(500);
    let report = hairpin_load::generator::sweep(plan, &sweep, |_| {}).unwrap();
    let found = report.sip.as_deref().unwrap().sweep.as_ref().unwrap();
    assert_eq!(found.steps.len(), 2, "{found}");
    assert!((300.0..500.0).contains(&found.steps[1].goodput), "{found}");
    assert!(found.steps[0].unanswered < 0.01, "{found}");
    assert!(
        found.recovery.as_ref().unwrap().seconds.is_some(),
        "{found}"
    );
    assert!(hairpin_load::report::to_html(&report).contains("Overload"));
}

#[test]
fn nobody_there_is_said_at_once() {
    // A socket that was bound and is gone: nobody listens there.
    let gone = std::net::UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let options = options(gone, SipWorkload::Call, transport);
        let error = check_server(&options, &Stopper::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("nothing listens"), "{error}");
    }
}

/// A server that answers every request with the same lines.
fn stubborn(status: &'static str) -> SocketAddr {
    answering(move |_| status)
}

/// A server that answers request number n with these lines.
fn answering(status: impl Fn(u32) -> &'static str + Send + 'static) -> SocketAddr {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut buffer = [0; 4096];
        let mut number = 0;
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let request = String::from_utf8_lossy(&buffer[..length]);
            if request.starts_with("ACK") {
                continue;
            }
            let names = ["Via", "From", "To", "Call-ID", "CSeq"];
            let kept = |line: &&str| {
                names
                    .iter()
                    .any(|name| line.starts_with(&format!("{name}:")))
            };
            let lines: Vec<_> = request.split("\r\n").filter(kept).collect();
            let status = status(number);
            number += 1;
            let answer = format!(
                "SIP/2.0 {status}\r\n{}\r\nContent-Length: 0\r\n\r\n",
                lines.join("\r\n")
            );
            let _ = socket.send_to(answer.as_bytes(), from);
        }
    });
    address
}

#[test]
fn refusals_are_explained() {
    let challenge =
        "401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"";
    let refusal = |status, workload, user: Option<&str>| {
        let mut options = options(stubborn(status), workload, Transport::Udp);
        options.credentials = user.map(|user| SipCredentials {
            user: user.to_owned(),
            password: "wrong".to_owned(),
        });
        check_server(&options, &Stopper::new()).map_err(|error| error.to_string())
    };
    for (status, workload, user, part) in [
        (
            challenge,
            SipWorkload::Register,
            None,
            "asks for a user name",
        ),
        (
            challenge,
            SipWorkload::Register,
            Some("u{n}"),
            "does not accept",
        ),
        ("404 Not Found", SipWorkload::Call, None, "INVITE with 404"),
        ("405 No", SipWorkload::Options, None, "method"),
    ] {
        let error = refusal(status, workload, user).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    refusal("503 Service Unavailable", SipWorkload::Options, None).unwrap();
}

#[test]
fn a_server_that_is_always_busy_is_counted_as_such() {
    let target = stubborn("503 Service Unavailable\r\nRetry-After: 7");
    let mut options = options(target, SipWorkload::Call, Transport::Udp);
    options.obey = false;
    let mut plan = plan(&options);
    plan.set_schedule(&Schedule::constant(Rate(100.0)));
    let report = report(plan);
    let sip = report.sip.as_deref().unwrap();
    assert_eq!((report.total.received, sip.completed), (0, 0), "{report}");
    assert!(sip.unavailable >= 60, "{report}");
    let after = sip.retry_after.unwrap();
    assert_eq!((after.least_s, after.most_s), (7, 7), "{report}");
    assert!(
        report.to_string().contains("Retry-After 7 to 7 s"),
        "{report}"
    );
}

/// A request of one call over UDP; the transaction of a CANCEL is that of its INVITE.
fn call_request(method: &str, branch: &str, from: SocketAddr) -> String {
    format!(
        "{method} sip:bob@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\n\
         From: <sip:alice@127.0.0.1>;tag=a\r\nTo: <sip:bob@127.0.0.1>\r\nCall-ID: {branch}@127.0.0.1\r\n\
         CSeq: 1 {method}\r\nContact: <sip:alice@{from}>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// RFC 3261 §9.2.
#[test]
fn the_answering_side_ends_a_call_that_rings_on_a_cancel() {
    let mut ringing = UasOptions::new(vec!["127.0.0.1:0".parse().unwrap()]);
    ringing.ring = Duration::from_secs(60);
    let uas = Uas::start(&ringing).unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let own = socket.local_addr().unwrap();
    let send = |method, branch| {
        let request = call_request(method, branch, own);
        socket
            .send_to(request.as_bytes(), uas.addresses()[0])
            .unwrap();
    };
    let next = || {
        let mut buffer = [0; 2048];
        let length = socket.recv(&mut buffer).unwrap();
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let cseq = text.lines().find(|line| line.starts_with("CSeq:"));
        (text[8..11].to_owned(), cseq.unwrap()[6..].to_owned())
    };
    let response = |status: &str, cseq: &str| (status.to_owned(), cseq.to_owned());
    // There is no such call.
    send("CANCEL", "unknown");
    assert_eq!(next(), response("481", "1 CANCEL"));
    send("INVITE", "known");
    let mut ringing = next();
    while ringing.0 == "100" {
        ringing = next();
    }
    assert_eq!(ringing, response("180", "1 INVITE"));
    send("CANCEL", "known");
    let mut ends = [next(), next()];
    ends.sort();
    let wanted = [response("200", "1 CANCEL"), response("487", "1 INVITE")];
    assert_eq!(ends, wanted);
    send("ACK", "known");
    let told = uas.stop();
    assert_eq!((told.cancel, told.cancelled), (2, 1), "{told:?}");
}

/// Real callers heed Retry-After (RFC 3261 §21.5.4).
#[test]
fn callers_heed_retry_after_unless_they_are_told_otherwise() {
    let target = Target::admit("127.0.0.1:5060".parse().unwrap(), false).unwrap();
    assert!(SipOptions::new(target).obey);
}
