//! The other workloads against hairpin itself, and what becomes of them when it goes away.

use std::time::{Duration, Instant};

use crate::common::Serve;
use crate::load_common::{Server, clients, paced, run, target, user};
use load::generator::{
    BindingOptions, ChurnOptions, FindMaxOptions, GarbageOptions, Limit, MixedOptions, Plan,
    Progress, RelayOptions, Run, Stopper, TurnClients, allocate, binding, find_max, garbage, mixed,
    relay,
};
use load::measure::Rate;
use load::report::Ending;

fn bindings(server: &Server) -> Plan {
    binding(&BindingOptions::new(target(server.address()))).unwrap()
}

#[test]
fn bindings_are_answered_at_a_fixed_rate_and_in_a_closed_loop() {
    let server = Server::start();
    let keeps_its_rate = || {
        let report = run(paced(bindings(&server), 5_000.0));
        assert_eq!(report.total.lost, 0, "{report}");
        let achieved = report.send_pps() / report.run.offered_rate.unwrap();
        assert!(achieved < 1.005, "{report}");
        achieved > 0.995
    };
    // A machine that is taken away for a quarter of a second makes it late, not each time.
    assert!((0..10).any(|_| keeps_its_rate()), "always late");
    let mut plan = paced(bindings(&server), 1.0);
    plan.close_loop(16);
    plan.senders = 2;
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    assert!(report.send_pps() > 5_000.0, "{report}");
    assert_eq!(report.threads.len(), 2);
}

#[test]
fn allocations_come_and_go_at_the_rate_they_should() {
    let server = Server::start();
    let plan = allocate(&ChurnOptions::new(clients(&server)), &Stopper::new()).unwrap();
    let report = run(paced(plan, 300.0));
    assert_eq!((report.total.lost, report.total.failed), (0, 0), "{report}");
    let achieved = report.send_pps() / 300.0;
    assert!((achieved - 1.0).abs() < 0.01, "{report}");
    // Allocate, Refresh and deletion.
    assert_eq!(report.total.succeeded, report.total.received * 3);
    let steps: Vec<_> = report.parts.keys().map(String::as_str).collect();
    assert_eq!(steps, ["allocate", "refresh", "release"]);
    assert!(report.parts["refresh"].p50_us < report.latency.p50_us);
    assert_eq!(server.allocations(), 0);
}

#[test]
fn allocations_in_a_closed_loop_are_shared_by_the_workers() {
    let server = Server::start();
    let mut plan = allocate(&ChurnOptions::new(clients(&server)), &Stopper::new()).unwrap();
    (plan.warm_up, plan.duration) = (Duration::from_millis(100), Duration::from_millis(700));
    plan.close_loop(5);
    plan.senders = 2;
    let report = run(plan);
    assert_eq!((report.total.lost, report.total.failed), (0, 0), "{report}");
    assert!(report.threads.iter().all(|one| one.sent > 20), "{report}");
    assert_eq!(server.allocations(), 0);
}

#[test]
fn refused_allocations_are_counted_by_code() {
    let server = Server::start();
    let mut options = ChurnOptions::new(clients(&server));
    options.turn.credentials = Some(user("wrong"));
    let report = run(paced(allocate(&options, &Stopper::new()).unwrap(), 200.0));
    assert_eq!(report.total.received, 0, "{report}");
    assert_eq!(report.errors[&401], report.total.failed, "{report}");
    // 200 if nothing else keeps this machine busy.
    assert!(report.total.failed >= 20, "{report}");
    assert_eq!(report.ended, Ending::Complete, "an error is an answer");
}

#[test]
fn a_mix_of_calls_keeps_the_rate_of_each_kind() {
    let server = Server::start();
    let mut options = MixedOptions::new(clients(&server));
    (options.calls, options.video_share) = (40, 0.25);
    let mut plan = mixed(&options, &Stopper::new()).unwrap();
    (plan.warm_up, plan.duration) = (Duration::from_millis(200), Duration::from_secs(2));
    (plan.senders, plan.receivers) = (2, 2);
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    // 40 calls, 50/s of sound each way; 10 of them 30/s of 8 datagrams each way.
    let expected = [
        ("audio up", 4_000),
        ("audio down", 4_000),
        ("video up", 4_800),
        ("video down", 4_800),
    ];
    for (name, count) in expected {
        let found = report.parts[name].count;
        assert!(
            found.abs_diff(count) <= count / 50,
            "{name}: {found}\n{report}"
        );
    }
    let bytes = 2 * (4_000 * 120 + 4_800 * 1_100);
    let off = report.total.sent_bytes.abs_diff(bytes);
    assert!(off < bytes / 50, "{report}");
    assert_eq!(server.allocations(), 0);
}

#[test]
fn garbage_is_counted_and_honest_requests_get_through_it() {
    let server = Server::start();
    let mut options = GarbageOptions::new(target(server.address()));
    (options.sources, options.ports) = (1_000, 4);
    let report = run(paced(garbage(&options).unwrap(), 20_000.0));
    assert!((19_000..=21_000).contains(&report.total.sent), "{report}");
    assert_eq!(report.total.lost, 0, "garbage has no right to an answer");
    assert!(
        report.total.received > 1_000,
        "some of it is answered: {report}"
    );
    assert_eq!(report.total.failed, 0, "{report}");
    assert!((95..=105).contains(&report.total.succeeded), "{report}");
    assert_eq!(report.latency.count, report.total.succeeded);
    assert_eq!(server.allocations(), 0);
}

#[test]
fn garbage_from_many_addresses_stays_on_loopback() {
    let far = load::generator::Target::admit("10.0.0.1:3478".parse().unwrap(), false).unwrap();
    let mut options = GarbageOptions::new(far);
    options.sources = 2;
    let error = garbage(&options).unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("127.0.0.0/8"),
        "{error}"
    );
}

#[test]
fn the_search_for_the_highest_rate_converges() {
    let server = Server::start();
    let mut options = RelayOptions::new(clients(&server));
    options.clients = 4;
    let plan = relay(&options, &Stopper::new()).unwrap();
    let mut search = FindMaxOptions::default();
    // What this machine can do today is not this test's business: it stops below that.
    (search.from, search.to) = (Rate(2_000.0), Rate(16_000.0));
    search.max_loss = 0.05;
    search.step = Duration::from_millis(400);
    search.warm_up = Duration::from_millis(100);
    let mut seen = 0;
    let found = find_max(plan, &search, |progress| {
        seen += u32::from(matches!(progress, Progress::End(_)));
    });
    let found = found.unwrap();
    assert_eq!(found.steps.len(), seen as usize);
    assert_eq!(
        (found.limit, found.best),
        (Limit::Ceiling, Some(16_000.0)),
        "{found}"
    );
    assert_eq!(server.allocations(), 0, "the search has cleaned up");
}

#[test]
fn a_server_that_dies_ends_the_run_with_a_report() {
    let serve = Serve::start(&[
        "--dev",
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--user",
        "ann:secret",
    ]);
    let mut turn = TurnClients::new(target(serve.address()));
    turn.credentials = Some(user("secret"));
    let mut plan = paced(
        relay(&RelayOptions::new(turn), &Stopper::new()).unwrap(),
        1_000.0,
    );
    plan.duration = Duration::from_secs(60);
    plan.silence = Duration::from_secs(1);
    let mut run = Run::start(plan).unwrap();
    run.next_second().unwrap();
    let dead = Instant::now();
    serve.signal("KILL");
    while run.next_second().is_some() {}
    let report = run.finish();
    assert!(dead.elapsed() < Duration::from_secs(6), "{report}");
    assert_eq!(report.ended, Ending::ServerSilent);
    let reason = report.ended_early.as_deref().unwrap();
    assert!(reason.contains("fell silent"), "{reason}");
    assert!(
        report.total.received > 500 && report.total.lost > 500,
        "{report}"
    );
    assert!(
        report
            .warnings
            .iter()
            .any(|one| one.contains("not confirmed")),
        "{report}"
    );
}
