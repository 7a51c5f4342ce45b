//! How callers behave: towards a callee that hangs up or only rings, and towards servers that refuse.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "liars/sip.rs"]
mod liar;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hairpin_load::generator::{
    Plan, Run, SipCredentials, SipOptions, SipWorkload, Stopper, Target, sip,
};
use hairpin_load::measure::{Rate, Schedule};
use hairpin_load::report::LoadReport;
use liar::Liar;

fn target(address: SocketAddr) -> Target {
    Target::admit(address, false).unwrap()
}

fn options(address: SocketAddr, workload: SipWorkload) -> SipOptions {
    let mut options = SipOptions::new(target(address));
    options.workload = workload;
    options.links = 4;
    options
}

fn plan(options: &SipOptions, rate: f64, measured: Duration) -> Plan {
    let mut plan = sip(options, &Stopper::new()).unwrap();
    plan.warm_up = Duration::from_millis(100);
    plan.duration = measured;
    plan.linger = Duration::from_millis(300);
    plan.set_schedule(&Schedule::constant(Rate(rate)));
    plan
}

fn report(plan: Plan) -> LoadReport {
    Run::start(plan).unwrap().finish()
}

const HALF: Duration = Duration::from_millis(500);

/// What a callee saw.
#[derive(Default)]
struct Seen {
    invites: u64,
    acks: u64,
    byes: u64,
    cancels: u64,
    /// 200s to the callee's own BYEs, and refusals of them.
    hung_up: u64,
    refused: u64,
}

#[test]
fn the_caller_answers_the_bye_of_the_callee() {
    let callee = Liar::<Seen>::start(|request, local, from, seen, sends| match request.method {
        "INVITE" => {
            seen.invites += 1;
            sends.now(from, request.pick_up(local));
            let own = |name: &str| request.value(name).to_owned();
            let bye = |tag: &str| {
                format!(
                    "BYE sip:hairpin@{from} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{}{tag}\r\n\
                     From: {};tag={tag}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 1 BYE\r\nContent-Length: 0\r\n\r\n",
                    own("Call-ID"),
                    own("To"),
                    own("From"),
                    own("Call-ID")
                )
            };
            // The first is in another dialog: it ends nothing.
            sends.after(Duration::from_millis(20), from, bye("nobody"));
            sends.after(Duration::from_millis(40), from, bye("liar"));
        }
        "ACK" => seen.acks += 1,
        "BYE" => seen.byes += 1,
        _ if request.text.starts_with("SIP/2.0 200") => seen.hung_up += 1,
        _ if request.text.starts_with("SIP/2.0 481") => seen.refused += 1,
        _ => {}
    });
    let mut options = options(callee.address, SipWorkload::Call);
    options.hold = Duration::from_secs(60);
    let report = report(plan(&options, 200.0, HALF));
    let sip = report.sip.as_deref().unwrap();
    // The last answers may still lie in its socket.
    let since = Instant::now();
    let settled = |seen: &Seen| seen.hung_up == seen.invites;
    while !settled(&callee.account()) && since.elapsed() < HALF {
        std::thread::sleep(Duration::from_millis(5));
    }
    let seen = callee.account();
    assert_eq!(report.total.received, report.total.sent, "{report}");
    assert_eq!((seen.byes, seen.acks), (0, seen.invites), "{report}");
    assert_eq!((seen.hung_up, seen.refused), (seen.invites, seen.invites));
    assert!(sip.hung_up.abs_diff(report.total.sent) <= 12, "{report}");
}

#[test]
fn a_call_that_rings_is_no_silence_and_is_cancelled_at_the_end() {
    let callee = Liar::<Seen>::start(|request, local, from, seen, sends| match request.method {
        "INVITE" => {
            seen.invites += 1;
            sends.now(from, request.answer("180 Ringing", ""));
        }
        "CANCEL" => {
            seen.cancels += 1;
            assert!(!request.value("To").contains("tag="), "{}", request.text);
            sends.now(from, request.answer("200 OK", ""));
            // Every tenth is picked up at the same moment.
            let invite = request.text.replace("CANCEL", "INVITE");
            let invite = liar::Request {
                text: &invite,
                method: "INVITE",
            };
            sends.now(
                from,
                match seen.cancels % 10 {
                    0 => invite.pick_up(local),
                    _ => invite.answer("487 Request Terminated", ""),
                },
            );
        }
        "ACK" => seen.acks += 1,
        "BYE" => {
            seen.byes += 1;
            sends.now(from, request.answer("200 OK", ""));
        }
        _ => {}
    });
    let mut plan = plan(&options(callee.address, SipWorkload::Call), 100.0, 2 * HALF);
    plan.warm_up = Duration::ZERO;
    plan.silence = Duration::from_millis(400);
    let report = report(plan);
    let sip = report.sip.as_deref().unwrap();
    let seen = callee.account();
    assert_eq!(report.ended_early, None, "{report}");
    let picked_up = seen.cancels / 10;
    assert_eq!(
        (seen.cancels, seen.acks),
        (seen.invites, seen.invites),
        "{report}"
    );
    assert_eq!(seen.byes, picked_up, "{report}");
    assert_eq!(sip.cancelled, seen.invites - picked_up, "{report}");
    assert_eq!(
        (report.total.received, sip.unfinished),
        (picked_up, 0),
        "{report}"
    );
    let total = &report.total;
    assert_eq!(
        total.sent,
        total.received + total.lost + sip.cancelled,
        "{report}"
    );
}

/// What a server that refuses saw.
#[derive(Default)]
struct Refusals {
    requests: u64,
    branches: HashSet<String>,
    /// When requests came while the server was to be spared, sockets each for itself.
    disobeyed: u64,
    until: std::collections::HashMap<SocketAddr, Instant>,
}

/// A server that always says 503, and how long it is to be spared.
fn refusing(retry_after: u64) -> Liar<Refusals> {
    Liar::start(
        move |request: &liar::Request<'_>, _, from, seen: &mut Refusals, sends| {
            if request.method == "ACK" {
                return;
            }
            seen.requests += 1;
            let branch = request.value("Via").split("branch=").nth(1).unwrap();
            seen.branches.insert(branch.to_owned());
            let now = Instant::now();
            // What was on its way when the answer left is no disobedience.
            let spared = seen.until.get(&from).is_some_and(|until| {
                let since = *until - Duration::from_secs(retry_after);
                now < *until && now > since + Duration::from_millis(50)
            });
            seen.disobeyed += u64::from(spared);
            seen.until
                .entry(from)
                .or_insert(now + Duration::from_secs(retry_after));
            let lines = format!("Retry-After: {retry_after}\r\n");
            sends.now(from, request.answer("503 Service Unavailable", &lines));
        },
    )
}

#[test]
fn a_caller_goes_on_to_the_next_server_and_spares_the_one_that_refused() {
    let first = refusing(60);
    let second = Liar::<Refusals>::start(|request, local, from, seen, sends| {
        if request.method != "ACK" {
            seen.requests += u64::from(request.method == "INVITE");
            sends.now(from, request.pick_up(local));
        }
    });
    let mut options = options(first.address, SipWorkload::Call);
    options.further = vec![target(second.address)];
    let report = report(plan(&options, 200.0, HALF));
    let sip = report.sip.as_deref().unwrap();
    let (refused, seen) = (first.account(), second.account());
    assert_eq!(report.total.received, report.total.sent, "{report}");
    assert_eq!((refused.disobeyed, sip.withheld), (0, 0), "{report}");
    // One from each socket, and what was on its way.
    assert!(
        (4..=8).contains(&refused.requests),
        "{} {report}",
        refused.requests
    );
    assert!(seen.requests >= 100, "{report}");
    assert!(report.errors.is_empty(), "{report}");
}

#[test]
fn retry_after_is_heeded_with_one_server_too_unless_it_is_not_to_be() {
    let heard = |obey: bool| {
        let server = refusing(60);
        let mut options = options(server.address, SipWorkload::Options);
        options.obey = obey;
        let report = report(plan(&options, 200.0, HALF));
        let sip = report.sip.as_deref().unwrap();
        let seen = server.account();
        let total = &report.total;
        assert_eq!(total.received, 0, "{report}");
        if obey {
            assert_eq!((seen.disobeyed, total.sent), (0, 0), "{report}");
            assert_eq!(sip.withheld, total.not_sent, "{report}");
            assert!(sip.withheld >= 90, "{report}");
            assert!(
                report.to_string().contains("every server said Retry-After"),
                "{report}"
            );
        } else {
            assert_eq!(sip.withheld, 0, "{report}");
            assert!(total.sent >= 90 && seen.requests >= 100, "{report}");
            assert_eq!(report.errors[&503], total.sent, "{report}");
        }
    };
    heard(true);
    heard(false);
}

#[test]
fn a_silent_server_is_left_for_the_next_when_it_does_not_answer() {
    // Nobody listens: ICMP says so, and a connection fails at once.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = nobody.local_addr().unwrap();
    let uas = hairpin_load::sip::Uas::start(&hairpin_load::sip::UasOptions::new(vec![
        "127.0.0.1:0".parse().unwrap(),
    ]))
    .unwrap();
    let mut options = options(uas.addresses()[0], SipWorkload::Options);
    options.transport = hairpin_load::sip::Transport::Tcp;
    drop(nobody);
    // The further server is down: that hinders nobody.
    options.further = vec![target(dead)];
    let report = report(plan(&options, 200.0, HALF));
    assert_eq!(report.total.received, report.total.sent, "{report}");
    assert!(report.total.sent >= 90, "{report}");
}

#[test]
fn few_runs_are_not_swallowed_by_the_warm_up() {
    let server = Liar::<Refusals>::start(|request, _, from, seen, sends| {
        seen.requests += 1;
        sends.now(from, request.answer("200 OK", ""));
    });
    for runs in [1, 7] {
        let mut options = options(server.address, SipWorkload::Options);
        options.runs = Some(runs);
        let mut plan = plan(&options, 1.0, Duration::from_secs(30));
        plan.close_loop(3);
        let report = report(plan);
        assert_eq!(
            (report.total.sent, report.total.received),
            (runs, runs),
            "{report}"
        );
        assert!(report.run.measured_s < 10.0, "{report}");
    }
    assert!(server.account().requests > 8, "the warm-up is not a run");
}

/// The requests at a server whose first nonce is stale.
#[derive(Default)]
struct Challenged {
    invites: u64,
    byes: u64,
    /// The topmost Via of each, so that retransmissions do not count.
    vias: HashSet<String>,
    /// CSeq number of the last request of each call.
    last: HashMap<String, u32>,
    /// Requests whose CSeq number is not higher than the one before.
    not_higher: u64,
}

/// Calls at a server that challenges a request without credentials, and credentials with the nonce "old". The second
/// challenge has `parameters`.
fn calls_with_two_challenges(parameters: &'static str) -> (LoadReport, Liar<Challenged>) {
    let callee = Liar::<Challenged>::start(move |request, local, from, seen, sends| {
        if !matches!(request.method, "INVITE" | "BYE") {
            return;
        }
        if seen.vias.insert(request.value("Via").to_owned()) {
            match request.method {
                "BYE" => seen.byes += 1,
                _ => seen.invites += 1,
            }
            let cseq = request.value("CSeq").split(' ').next().unwrap();
            let cseq = cseq.parse().unwrap();
            let call = request.value("Call-ID").to_owned();
            let before = seen.last.insert(call, cseq).unwrap_or_default();
            seen.not_higher += u64::from(cseq <= before);
        }
        let credentials = request.value("Proxy-Authorization");
        let challenge = |parameters: &str| {
            let line =
                format!("Proxy-Authenticate: Digest realm=\"r\", qop=\"auth\", {parameters}\r\n");
            request.answer("407 Proxy Authentication Required", &line)
        };
        let answer = match credentials {
            "" => challenge("nonce=\"old\""),
            _ if credentials.contains("nonce=\"old\"") => challenge(parameters),
            _ if parameters.contains("always") => challenge(parameters),
            _ => request.pick_up(local),
        };
        sends.now(from, answer);
    });
    let mut options = options(callee.address, SipWorkload::Call);
    options.credentials = Some(SipCredentials {
        user: "u{n}".to_owned(),
        password: "p".to_owned(),
    });
    let report = report(plan(&options, 100.0, HALF));
    (report, callee)
}

#[test]
fn a_stale_nonce_adds_one_request_and_fails_no_call() {
    let (report, callee) = calls_with_two_challenges("nonce=\"new\", stale=true");
    let sip = report.sip.as_deref().unwrap();
    let seen = callee.account();
    assert!(report.total.sent >= 20, "{report}");
    assert_eq!(report.total.received, report.total.sent, "{report}");
    assert_eq!(sip.stale * 2, sip.challenges, "{report}");
    let requests = 3 * seen.last.len() as u64;
    let seen = (seen.invites, seen.byes, seen.not_higher);
    assert_eq!(seen, (requests, requests, 0), "{report}");
}

#[test]
fn a_second_challenge_is_a_refusal_unless_the_nonce_is_stale() {
    for (parameters, requests) in [
        ("nonce=\"new\"", 2),
        ("nonce=\"always old\", stale=true", 3),
    ] {
        let (report, callee) = calls_with_two_challenges(parameters);
        let seen = callee.account();
        let calls = seen.last.len() as u64;
        assert!(calls >= 20 && report.total.received == 0, "{report}");
        assert_eq!(report.errors[&407], report.total.sent, "{report}");
        assert_eq!((seen.invites, seen.byes), (calls * requests, 0), "{report}");
    }
}

/// RFC 3261 §10.2: the CSeq numbers of an AOR rise, also if two servers challenge each REGISTER.
#[test]
fn cseq_numbers_rise_at_two_servers_that_challenge() {
    let numbers = Arc::new(Mutex::new(Vec::new()));
    let server = |parameters: &'static str, last: &'static str| {
        let numbers = Arc::clone(&numbers);
        Liar::<u64>::start(move |request, _, from, _, sends| {
            let cseq = request.value("CSeq").split(' ').next().unwrap();
            let cseq: u32 = cseq.parse().unwrap();
            let mut numbers = numbers.lock().unwrap();
            // A retransmission has the number of its request.
            if numbers.last() != Some(&cseq) {
                numbers.push(cseq);
            }
            let challenge = |parameters: &str| {
                let line =
                    format!("WWW-Authenticate: Digest realm=\"r\", qop=\"auth\", {parameters}\r\n");
                request.answer("401 Unauthorized", &line)
            };
            let answer = match request.value("Authorization") {
                "" => challenge("nonce=\"old\""),
                line if line.contains("nonce=\"old\"") => challenge(parameters),
                _ => request.answer(last, "Retry-After: 0\r\n"),
            };
            sends.now(from, answer);
        })
    };
    let first = server("nonce=\"new\", stale=true", "503 Service Unavailable");
    let second = server("nonce=\"new\", stale=true", "200 OK");
    let mut options = options(first.address, SipWorkload::Register);
    options.further = vec![target(second.address)];
    options.aors = 1;
    options.links = 1;
    options.runs = Some(5);
    options.credentials = Some(SipCredentials {
        user: "u".to_owned(),
        password: "p".to_owned(),
    });
    let mut plan = plan(&options, 1.0, Duration::from_secs(30));
    plan.warm_up = Duration::ZERO;
    plan.close_loop(1);
    let report = report(plan);
    assert_eq!(report.total.received, 5, "{report}");
    let numbers = numbers.lock().unwrap();
    // Each server gets three requests. The second server first gets the number that the first one refused, so five of
    // the six numbers differ.
    assert!(numbers.len() >= 5 * 5, "{numbers:?}");
    let rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(rising, "{numbers:?}");
}
