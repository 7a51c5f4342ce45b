//! Makes the report from the counts of the threads.

use std::collections::BTreeMap;

use io::clock;

use super::end::{End, ReceiveStats, SendStats};
use super::plan::{Plan, Work};
use super::receive_socket::ClientErrors;
use super::warnings;
use crate::Via;
use crate::measure::{Counter, Counters, Snapshot};
use crate::report::{Ending, LoadReport, OwnDelay, Pace, Sending, ThreadUse};

/// What is known before a run.
pub(super) fn head(plan: &Plan) -> LoadReport {
    let mut report = LoadReport::empty();
    let run = &mut report.run;
    run.argv = std::env::args().collect();
    run.version = env!("CARGO_PKG_VERSION").to_owned();
    run.kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default();
    run.cpus = std::thread::available_parallelism().map_or(1, usize::from);
    run.started_unix_s = clock::unix_s();
    run.target.clone_from(&plan.target);
    run.workload.clone_from(&plan.workload);
    run.settings.clone_from(&plan.settings);
    run.latency_is.clone_from(&plan.latency_is);
    run.warm_up_s = plan.warm_up.as_secs_f64();
    run.offered_rate = plan.offered_rate();
    run.pace = plan.pace();
    if let Some(closed) = plan.closed {
        let window = closed.window.to_string();
        run.settings.insert("closed loop".to_owned(), window);
    }
    report
}

/// Adds up what the threads of `plan` did.
pub(super) fn sum(report: &mut LoadReport, plan: &Plan, counters: &[Counters], ends: &[End]) {
    let mut came = ReceiveStats::default();
    let mut left = SendStats::default();
    let mut client_errors = ClientErrors::default();
    let mut warm_up_errors = ClientErrors::default();
    for end in ends {
        came.add(&end.came);
        left.add(&end.left);
        client_errors.add(&end.client_errors);
        warm_up_errors.add(&end.warm_up_errors);
    }
    let all = Snapshot::of(counters);
    totals(report, plan, &came, &left, &all);
    report.latency = came.latency.report().into();
    for (name, latency) in plan.part_names().into_iter().zip(&came.parts) {
        let part = latency.report();
        if part.count > 0 {
            report.parts.insert(name, part.into());
        }
    }
    let jitter: Vec<f64> = ends
        .iter()
        .flat_map(|end| &end.jitter_ns)
        .copied()
        .collect();
    // From zero up: the sum of nothing would be negative zero.
    let sum = jitter.iter().fold(0.0, |sum, one| sum + one);
    report.jitter_us = sum / (jitter.len().max(1) as f64) / 1e3;
    report.errors = came.errors;
    for (&code, count) in &client_errors.codes {
        *report.errors.entry(code).or_default() += count;
    }
    if report.run.pace == Pace::Open {
        report.own_delay = Some(OwnDelay::of(&left.delay));
    }
    report.own_wake_up = Some(OwnDelay::of(&came.unread)).filter(|own| own.percentiles.count > 0);
    report.sending = sending(plan.gso, &left);
    // The kernel also counts the errors that it has returned to our sockets.
    let told = left.flushed.would_block + left.flushed.no_buffers;
    report.kernel.send = report.kernel.send.saturating_sub(told);
    report.kernel.receive = report.kernel.receive.saturating_sub(report.total.overflow);
    if matches!(&plan.work, Work::Sip(sip) if sip.is_stream()) {
        report.sending.method = "writev".to_owned();
    }
    match plan.via() {
        Some(Via::Tcp | Via::Tls(_)) => report.sending.method = warnings::STREAMS.to_owned(),
        Some(Via::Dtls(_)) => report.sending.method = warnings::DTLS.to_owned(),
        Some(Via::Udp) | None => {}
    }
    report.threads = ends.iter().map(|end| thread(end, counters)).collect();
    for part in ends.iter().filter_map(|end| end.sip.as_deref()) {
        let sip = report.sip.get_or_insert_default();
        sip.add(part);
        sip.goodput = sip.completed as f64 / report.run.measured_s.max(1e-9);
    }
    if let Some(sip) = report.sip.as_deref_mut() {
        // A call that rang until it was cancelled is not lost.
        report.total.lost = report.total.lost.saturating_sub(sip.cancelled);
        sip.timeline.retain(|moment| moment.begun > 0);
        let seconds = report.run.measured_s;
        let completed = sip.completed.max(1) as f64;
        if let Some(server) = &mut sip.server {
            // One worker watched the server for all of them.
            server.cpu_us_per_unit = server.cpu * seconds * 1e6 / completed;
        }
    }
    report.ended_early = ended_early(report);
    report.warnings = warnings::of(report, &client_errors, &warm_up_errors);
}

fn totals(
    report: &mut LoadReport,
    plan: &Plan,
    came: &ReceiveStats,
    left: &SendStats,
    all: &Snapshot,
) {
    let total = &mut report.total;
    total.sent = left.measured;
    total.sent_bytes = left.measured_bytes;
    total.sent_late = left.late;
    total.not_sent = left.not_sent;
    total.received = came.received;
    total.received_bytes = came.received_bytes;
    total.reordered = came.reordered;
    total.duplicates = came.duplicates;
    total.succeeded = came.succeeded;
    total.failed = came.failed;
    came.odd.add_to(total);
    total.overflow += all.get(Counter::Overflow);
    match &plan.work {
        Work::Flows(flows) if flows.one_sided => {
            // Garbage is not answered: what is measured beside it are requests that ought to be.
            total.succeeded = came.received;
            total.failed = left.requests.saturating_sub(came.received);
            total.received = came.answers + came.received;
            total.received_bytes = came.answer_bytes + came.received_bytes;
        }
        _ => {
            total.lost = total.sent.saturating_sub(total.received + total.late);
        }
    }
}

fn sending(asked_for_segments: bool, left: &SendStats) -> Sending {
    let flushed = &left.flushed;
    let method = match () {
        () if flushed.gso_segments > 0 => "UDP_SEGMENT",
        () if flushed.syscalls < flushed.sent => "sendmmsg",
        () => "sendto",
    };
    let reasons = [
        ("send buffer full (EAGAIN)", flushed.would_block),
        ("kernel out of buffers (ENOBUFS)", flushed.no_buffers),
        ("no route (ENETUNREACH)", flushed.unreachable),
        ("refused by a firewall (EPERM)", flushed.denied),
        ("too big (EMSGSIZE)", flushed.too_big),
        ("other errors", flushed.other_errors),
    ];
    let not_begun = left
        .not_begun
        .iter()
        .map(|(&reason, &count)| (reason, count));
    let not_sent: BTreeMap<String, u64> = reasons
        .into_iter()
        .chain(not_begun)
        .filter(|&(_, count)| count > 0)
        .map(|(reason, count)| (reason.to_owned(), count))
        .collect();
    Sending {
        method: method.to_owned(),
        datagrams: flushed.sent,
        calls: flushed.syscalls,
        gso_runs: flushed.gso_runs,
        gso_segments: flushed.gso_segments,
        gso_asked: asked_for_segments,
        gso_refused: flushed.gso_refused,
        not_sent,
    }
}

fn thread(end: &End, counters: &[Counters]) -> ThreadUse {
    let seconds = (end.wall_ns as f64 / 1e9).max(1e-9);
    let count = |counter| counters[end.place].get(counter);
    let (sent, received) = (count(Counter::Sent), count(Counter::Received));
    ThreadUse {
        name: end.name.clone(),
        sent,
        received,
        send_pps: sent as f64 / seconds,
        recv_pps: received as f64 / seconds,
        cpu: end.cpu_ns as f64 / end.wall_ns.max(1) as f64,
    }
}

fn ended_early(report: &LoadReport) -> Option<String> {
    let at = report.seconds.last().map_or(0.0, |second| second.at_s);
    match report.ended {
        Ending::Complete => None,
        Ending::Stopped => Some("stopped by the user".to_owned()),
        Ending::ServerSilent => {
            let heard = report.seconds.iter().rev().find(|one| one.recv_pps > 0.0);
            Some(match heard {
                Some(last) => format!(
                    "the server fell silent: nothing has come back since {:.0} s, and the run was given up at {at:.0} s",
                    last.at_s
                ),
                None => format!("nothing ever came back; the run was given up at {at:.0} s"),
            })
        }
        Ending::CannotSend => {
            let queue = (report.kernel.send > 0).then_some("interface queue full (ENOBUFS)");
            let reasons = report.sending.not_sent.keys().map(String::as_str);
            let reasons: Vec<_> = reasons.chain(queue).collect();
            Some(format!(
                "nothing leaves this machine any more: {}; the run was given up at {at:.0} s",
                reasons.join(", ")
            ))
        }
    }
}
