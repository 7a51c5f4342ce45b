//! SIP servers that answer twice, to other requests, late, not at all or with 503: the report equals their own account.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "liars/sip.rs"]
mod liar;

use std::time::Duration;

use hairpin_load::generator::{Run, SipOptions, SipWorkload, Stopper, Target, sip};
use hairpin_load::measure::{Rate, Schedule};
use hairpin_load::report::LoadReport;
use liar::Liar;

/// What a server did.
#[derive(Default)]
struct Account {
    requests: u64,
    answered: u64,
    second: u64,
    wrong_cseq: u64,
    stray: u64,
    refused: u64,
    silent: u64,
    again: u64,
    seen: std::collections::HashSet<String>,
}

fn run(address: std::net::SocketAddr, workload: SipWorkload, rate: f64) -> LoadReport {
    let mut options = SipOptions::new(Target::admit(address, false).unwrap());
    options.workload = workload;
    options.obey = false;
    let mut plan = sip(&options, &Stopper::new()).unwrap();
    plan.warm_up = Duration::ZERO;
    plan.duration = Duration::from_secs(1);
    plan.linger = Duration::from_secs(2);
    plan.set_schedule(&Schedule::constant(Rate(rate)));
    Run::start(plan).unwrap().finish()
}

#[test]
fn answers_to_other_requests_and_second_ones_end_nothing() {
    let server = Liar::<Account>::start(|request, _, from, account, sends| {
        account.requests += 1;
        let good = request.answer("200 OK", "");
        let cseq = request.value("CSeq").to_owned();
        let with_cseq = |other: &str| good.replace(&cseq, other);
        match account.requests % 5 {
            0 => {
                account.wrong_cseq += 2;
                sends.now(from, with_cseq("77 OPTIONS"));
                sends.now(from, with_cseq(&cseq.replace("OPTIONS", "INVITE")));
            }
            1 => {
                account.stray += 1;
                sends.now(from, good.replace("branch=z9hG4bK", "branch=z9hG4bKother"));
            }
            2 => {
                account.second += 2;
                sends.after(Duration::from_millis(5), from, good.clone());
                sends.after(Duration::from_millis(10), from, good.clone());
            }
            _ => {}
        }
        account.answered += 1;
        sends.now(from, good);
    });
    let report = run(server.address, SipWorkload::Options, 500.0);
    let (sip, account) = (report.sip.as_deref().unwrap(), server.account());
    assert_eq!(report.total.received, account.answered, "{report}");
    // What came when the time was over is not of the measured part.
    let near = |found: u64, said: u64| said.abs_diff(found) <= 12;
    assert!(
        near(sip.second, account.second),
        "{} {report}",
        account.second
    );
    assert!(
        near(sip.wrong_cseq, account.wrong_cseq),
        "{} {report}",
        account.wrong_cseq
    );
    assert!(near(sip.stray, account.stray), "{} {report}", account.stray);
    let text = report.to_string();
    assert!(
        text.contains("another CSeq") && text.contains("repeated and late responses"),
        "{text}"
    );
}

#[test]
fn silence_costs_retransmissions_and_refusals_are_refusals() {
    let server = Liar::<Account>::start(|request, local, from, account, sends| {
        if request.method == "ACK" {
            return;
        }
        if request.method == "BYE" {
            return sends.now(from, request.answer("200 OK", ""));
        }
        let branch = request.value("Via").to_owned();
        if !account.seen.insert(branch) {
            account.again += 1;
            account.answered += 1;
            return sends.now(from, request.pick_up(local));
        }
        account.requests += 1;
        match account.requests % 4 {
            0 => {
                account.refused += 1;
                sends.now(from, request.answer("503 Service Unavailable", ""));
            }
            1 => account.silent += 1,
            _ => {
                account.answered += 1;
                sends.now(from, request.pick_up(local));
            }
        }
    });
    let report = run(server.address, SipWorkload::Call, 200.0);
    let (sip, account) = (report.sip.as_deref().unwrap(), server.account());
    assert_eq!(report.total.sent, account.requests, "{report}");
    assert_eq!(report.total.received, account.answered, "{report}");
    assert_eq!(report.errors[&503], account.refused, "{report}");
    assert_eq!(account.again, account.silent, "{report}");
    assert!(
        sip.retransmissions <= account.again && sip.retransmissions > 0,
        "{report}"
    );
    // What was answered at the second try took half a second: a quarter of all calls.
    assert!(report.latency.max_us > 450_000.0, "{report}");
}
