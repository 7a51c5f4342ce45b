//! Who is refused at which load, and with what.

use super::*;

const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const CLASSES: [Class; 4] = [
    Class::New,
    Class::Continuing,
    Class::Priority,
    Class::Finishing,
];

fn at(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

/// A controller with a service time of 50 us, at which 4,000 messages are the tolerance.
fn controller() -> Controller {
    let mut controller = Controller::new(Config::default(), HashKey::new([3; 16]));
    for _ in 0..500 {
        controller.observe_service(32, Duration::from_micros(32 * 50));
    }
    controller
}

fn waiting(messages: u64) -> Backlog {
    Backlog {
        messages,
        ..Backlog::default()
    }
}

/// Lets the source have its share, so that what follows is decided by class.
fn beyond_share(controller: &mut Controller, now: Mono) {
    for _ in 0..5000 {
        controller.count_accepted(now, SOURCE);
    }
}

/// Which part of the requests of each class is accepted, in percent. They are too few for the bounds of the upper two
/// classes.
fn accepted(controller: &mut Controller, second: u64, messages: u64) -> [u32; 4] {
    // At the end of a window.
    let now = at(1000 * second - 1);
    beyond_share(controller, now);
    controller.observe_backlog(now, waiting(messages));
    CLASSES.map(|class| {
        let admit = |_: &u32| controller.admit(now, class, SOURCE) == Admission::Accept;
        (0..400).filter(admit).count() as u32 / 4
    })
}

#[test]
fn more_and_more_of_a_class_is_refused_before_any_of_the_next() {
    let mut controller = controller();
    assert_eq!(accepted(&mut controller, 1, 900), [100; 4]);
    let half = accepted(&mut controller, 2, 2000);
    assert!((45..55).contains(&half[0]), "{half:?}");
    assert_eq!(half[1..], [100; 3]);
    assert_eq!(controller.state(), 1);
    let [new, continuing, ..] = accepted(&mut controller, 3, 4000);
    assert!(new == 0 && (45..55).contains(&continuing), "{continuing}");
    assert_eq!(controller.state(), 2);
    assert_eq!(accepted(&mut controller, 4, 5100)[..2], [0, 0]);
    assert_eq!(accepted(&mut controller, 5, 9000), [0, 0, 0, 100]);
    assert_eq!(accepted(&mut controller, 6, u64::MAX), [0, 0, 0, 100]);
    assert_eq!(accepted(&mut controller, 7, 0), [100; 4]);
    assert_eq!(controller.state(), 0);
}

#[test]
fn an_estimate_that_refuses_everything_is_doubted_after_a_second() {
    let mut controller = controller();
    for _ in 0..8 {
        controller.observe_service(1, Duration::from_millis(100));
    }
    let accepted = (0..100).map(|tick| at(50 * tick)).find(|&now| {
        controller.observe_backlog(now, waiting(20));
        controller.admit(now, Class::Continuing, SOURCE) == Admission::Accept
    });
    let accepted_ms = accepted.expect("accepted within 5 s").0 / 1_000_000;
    assert!((1_000..1_500).contains(&accepted_ms), "{accepted_ms}");
}

#[test]
fn retransmissions_of_dropped_requests_are_not_in_the_share_that_is_reported() {
    let mut controller = controller();
    beyond_share(&mut controller, at(1000));
    controller.observe_backlog(at(1000), waiting(9000));
    let request = |number| format!("REGISTER sip:a.example SIP/2.0\r\nCall-ID: {number}\r\n");
    let mut dropped = Vec::new();
    for number in 0..100_000 {
        let request = request(number);
        let admission = controller.admit_filterable(at(1000), SOURCE, request.as_bytes());
        if admission == Admission::Drop {
            dropped.push(request);
        }
    }
    controller.observe_backlog(at(1050), waiting(9000));
    let percent = controller.shed_percent();
    assert!(dropped.len() > 1000 && percent > 10, "{percent}");
    // Only these come after the overload, for a second.
    for tick in 1..20 {
        let now = at(1050 + 50 * tick);
        controller.observe_backlog(now, waiting(0));
        let request = dropped.pop().expect("more than 20");
        let admission = controller.admit_filterable(now, SOURCE, request.as_bytes());
        assert_ne!(admission, Admission::Accept);
    }
    assert!(controller.shed_percent() < 2);
}

#[test]
fn retransmissions_of_dropped_requests_cause_doubt_only_while_messages_wait() {
    for (messages, is_doubted) in [(20, true), (0, false)] {
        let mut controller = controller();
        controller.configure(Config {
            refusal_permille: 0,
            ..Config::default()
        });
        for _ in 0..8 {
            controller.observe_service(1, Duration::from_millis(100));
        }
        let before = controller.service_time();
        controller.observe_backlog(at(0), waiting(20));
        for tick in 1..40 {
            let now = at(50 * tick);
            let admission = controller.admit_filterable(now, SOURCE, b"INVITE");
            assert_eq!(admission, Admission::Drop);
            controller.observe_backlog(now, waiting(messages));
        }
        assert_eq!(controller.service_time() < before, is_doubted);
    }
}

#[test]
fn a_tolerance_changed_live_counts_from_the_next_backlog_on() {
    let mut controller = controller();
    let mut state = |tolerance_ms, enabled| {
        controller.configure(Config {
            tolerance: Duration::from_millis(tolerance_ms),
            enabled,
            ..Config::default()
        });
        controller.observe_backlog(at(0), waiting(900));
        controller.state()
    };
    assert_eq!(state(200, true), 0);
    assert_eq!(state(50, true), 2);
    assert_eq!(state(50, false), 0);
}

#[test]
fn a_buffer_that_overflows_is_an_overload_whatever_the_estimate() {
    let mut controller = controller();
    let lost = Backlog {
        lost: 1,
        ..waiting(10)
    };
    controller.observe_backlog(at(0), lost);
    assert!(controller.is_overloaded());
}

#[test]
fn a_source_below_its_share_is_served_while_new_work_is_refused() {
    let mut controller = controller();
    let now = at(1000);
    beyond_share(&mut controller, now);
    controller.observe_backlog(now, waiting(3000));
    let quiet = [198, 51, 100, 9].into();
    assert_eq!(controller.admit(now, Class::New, quiet), Admission::Accept);
    assert_ne!(controller.admit(now, Class::New, SOURCE), Admission::Accept);
}

#[test]
fn retry_after_is_rounded_up_never_zero_and_not_the_same_for_all() {
    let mut controller = controller();
    let now = at(1000);
    beyond_share(&mut controller, now);
    controller.observe_backlog(now, waiting(3600));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        if let Admission::Refuse { retry_after_s } = controller.admit(now, Class::New, SOURCE) {
            seen.insert(retry_after_s);
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

/// Simulates 200,000 requests in one second, if a 503 takes this many microseconds.
fn refusals(cost_us: u64, admit: fn(&mut Controller, Mono) -> Admission) -> ShedCounts {
    let mut controller = controller();
    for ms in 1000..2000 {
        let now = at(ms);
        // So long that sources below their share are refused, too.
        controller.observe_backlog(now, waiting(5100));
        for _ in 0..200 {
            if let Admission::Refuse { .. } = admit(&mut controller, now) {
                controller.observe_refusals(1, Duration::from_micros(cost_us));
            }
        }
    }
    controller.counts()
}

#[test]
fn each_request_gets_its_503_up_to_8_percent_of_the_time_as_measured() {
    for (cost_us, most) in [(2, 60_000), (4, 26_000), (16, 9_000)] {
        let counts = refusals(cost_us, |controller, now| {
            controller.admit(now, Class::New, SOURCE)
        });
        // 8 % of a second, 20 ms that were saved up, and what was refused before the cost was known.
        let least = 80_000 / cost_us * 9 / 10;
        assert!(
            (least..most).contains(&counts.refused),
            "{cost_us}: {counts:?}"
        );
        assert_eq!(counts.dropped, 200_000 - counts.refused);
    }
}

#[test]
fn requests_of_streams_are_never_dropped() {
    let counts = refusals(4, |controller, now| {
        let admission = controller.admit_from_stream(now, Class::New, SOURCE);
        assert_ne!(admission, Admission::Drop);
        admission
    });
    assert_eq!(counts.dropped, 0);
    assert!((18_000..26_000).contains(&counts.refused), "{counts:?}");
}

#[test]
fn the_tus_own_requests_and_retransmissions_wait_too() {
    let mut controller = controller();
    assert!(controller.admit_from_tu(Class::New));
    assert!(!controller.defers_retransmission());
    controller.observe_backlog(at(0), waiting(2960));
    assert!((0..20).any(|_| !controller.admit_from_tu(Class::New)));
    assert!(controller.admit_from_tu(Class::Continuing));
    assert!(!controller.defers_retransmission());
    controller.observe_backlog(at(0), waiting(5100));
    assert!(!controller.admit_from_tu(Class::Continuing));
    assert!(controller.admit_from_tu(Class::Finishing));
    assert!(controller.defers_retransmission());
    assert!(controller.counts().from_tu > 1);
    assert_eq!(controller.counts().deferred, 1);
}

#[test]
fn a_slow_back_end_is_load_and_a_silent_one_is_too() {
    let mut controller = controller();
    let mut state = |ms, tu_waiting, tu_begun| {
        let backlog = Backlog {
            tu_waiting,
            tu_begun,
            ..Backlog::default()
        };
        controller.observe_backlog(at(ms), backlog);
        controller.state()
    };
    // One request in 5 ms, and two wait: 10 ms.
    for ms in (0..1000).step_by(5) {
        assert_eq!(state(ms, 2, 1), 0);
    }
    assert_eq!(state(1000, 20, 1), 1, "100 ms");
    assert_eq!(state(1005, 40, 1), 2, "200 ms");
    assert_eq!(state(1010, 0, 0), 0, "nothing waits");
    // It stops.
    state(1015, 1, 1);
    assert_eq!(state(1065, 1, 0), 1);
    assert_eq!(state(1215, 1, 0), 2);
}

/// How many of 10,000 requests of a class are accepted in the middle of a window, from so many sources in turns.
fn accepted_of(controller: &mut Controller, class: Class, sources: u8) -> usize {
    let now = at(1125);
    let admit = |at: &u32| {
        let source = numbered((at % u32::from(sources)) as u8);
        controller.admit(now, class, source) == Admission::Accept
    };
    (0..10_000).filter(admit).count()
}

fn numbered(number: u8) -> IpAddr {
    [198, 51, 100, number].into()
}

/// The sources have had their share, and the wait is so long that no request of a lower class is accepted.
fn overloaded(sources: u8) -> Controller {
    let mut controller = controller();
    for source in 0..sources {
        for _ in 0..5000 {
            controller.count_accepted(at(1125), numbered(source));
        }
    }
    controller.observe_backlog(at(1125), waiting(5100));
    controller
}

#[test]
fn emergency_calls_have_priority_in_a_quarter_of_the_capacity_and_one_source_in_half_of_that() {
    // Of 4,000 in 250 ms, in half of the time and a fiftieth.
    for (sources, expected) in [(1, 260..=261), (200, 520..=521)] {
        let mut controller = overloaded(sources);
        let accepted = accepted_of(&mut controller, Class::Priority, sources);
        assert!(
            expected.contains(&accepted),
            "{accepted}, {sources} sources"
        );
        // A trunk has its share also then.
        controller.configure(with_trunk(0));
        controller.observe_backlog(at(1125), waiting(2900));
        let quiet = [203, 0, 113, 1].into();
        let admission = controller.admit(at(1125), Class::Priority, quiet);
        assert_eq!(admission, Admission::Accept);
    }
}

#[test]
fn a_to_tag_that_is_repeated_in_a_flood_of_byes_takes_half_of_the_capacity() {
    let mut controller = overloaded(1);
    let accepted = accepted_of(&mut controller, Class::Finishing, 1);
    assert!((1040..=1041).contains(&accepted), "{accepted}");
    // In the next window, it begins anew.
    let now = at(1250);
    controller.observe_backlog(now, waiting(5100));
    let admission = controller.admit(now, Class::Finishing, SOURCE);
    assert_eq!(admission, Admission::Accept);
}

fn with_trunk(per_source: u32) -> Config {
    Config {
        per_source,
        peers: vec![WeightedSource {
            address: [203, 0, 113, 0].into(),
            prefix: 24,
            weight: 1,
        }],
        ..Config::default()
    }
}

fn limited(per_source: u32) -> Controller {
    let mut controller = controller();
    controller.configure(with_trunk(per_source));
    controller
}

#[test]
fn a_source_has_its_limit_of_requests_without_an_overload_and_trunks_have_none() {
    let mut controller = limited(1000);
    let count = |controller: &mut Controller, ms, source: IpAddr| {
        controller.observe_backlog(at(ms), waiting(10));
        let accepts = |_: &u32| controller.accepts_all(at(ms), source);
        (0..1000).filter(accepts).count()
    };
    // A quarter in 250 ms.
    assert_eq!(count(&mut controller, 1000, SOURCE), 250);
    assert_eq!(count(&mut controller, 1249, SOURCE), 0);
    assert_eq!(count(&mut controller, 1250, SOURCE), 250);
    assert_eq!(count(&mut controller, 1250, numbered(9)), 250);
    let trunk = [203, 0, 113, 7].into();
    assert_eq!(count(&mut controller, 1250, trunk), 1000);
    // One IPv6 /64 is one source.
    let host = |number: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, number);
    let accepts = |number: &u16| controller.accepts_all(at(1500), host(*number).into());
    assert_eq!((0..1000).filter(accepts).count(), 250);
    let mut none = limited(0);
    assert_eq!(count(&mut none, 1000, SOURCE), 1000);
}

#[test]
fn what_is_beyond_the_limit_gets_503_while_there_is_time_for_them_and_is_dropped_then() {
    let mut controller = limited(1000);
    controller.observe_backlog(at(1000), waiting(10));
    for _ in 0..250 {
        assert!(controller.accepts_all(at(1000), SOURCE));
    }
    for class in CLASSES {
        let exceeds = controller.exceeds_limit(at(1000), class, SOURCE, || false);
        assert_eq!(exceeds, class < Class::Priority, "{class:?}");
    }
    assert!(!controller.exceeds_limit(at(1000), Class::New, SOURCE, || true));
    // 20 ms of the time: 5,000 of 4 us.
    let mut refused = 0;
    while let Some(Admission::Refuse { retry_after_s }) = controller.shed_over_limit(false) {
        assert!((1..=3).contains(&retry_after_s));
        refused += 1;
    }
    assert_eq!(refused, 5000);
    assert_eq!(controller.shed_over_limit(false), Some(Admission::Drop));
    // What comes by a stream is not dropped.
    assert_eq!(controller.shed_over_limit(true), None);
    let counts = controller.counts();
    assert_eq!((counts.refused, counts.dropped), (5000, 2));
    assert_eq!(counts.over_limit, 5002);
    // Others need not send less (RFC 7339).
    controller.observe_backlog(at(1100), waiting(10));
    assert_eq!(controller.shed_percent(), 0);
}

#[test]
fn all_workers_count_the_requests_of_a_source_together() {
    let counts = SourceCounts::new(HashKey::new([8; 16]));
    let mut workers = [limited(1000), limited(1000)];
    for worker in &mut workers {
        worker.share_counts(counts.clone());
    }
    let mut accepted = 0;
    for number in 0..1000 {
        accepted += usize::from(workers[number % 2].accepts_all(at(1000), SOURCE));
    }
    assert_eq!(accepted, 250);
}
