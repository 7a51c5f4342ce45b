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

/// Which part of the requests of each class is accepted, in percent.
fn accepted(controller: &mut Controller, messages: u64) -> [u32; 4] {
    let now = at(1000);
    controller.observe_backlog(now, waiting(messages));
    CLASSES.map(|class| {
        let admit = |_: &u32| controller.admit(now, class, SOURCE) == Admission::Accept;
        (0..1000).filter(admit).count() as u32 / 10
    })
}

#[test]
fn more_and_more_of_a_class_is_refused_before_any_of_the_next() {
    let mut controller = controller();
    beyond_share(&mut controller, at(1000));
    assert_eq!(accepted(&mut controller, 900), [100; 4]);
    let half = accepted(&mut controller, 2000);
    assert!((45..55).contains(&half[0]), "{half:?}");
    assert_eq!(half[1..], [100; 3]);
    assert_eq!(controller.state(), 1);
    let [new, continuing, ..] = accepted(&mut controller, 4000);
    assert!(new == 0 && (45..55).contains(&continuing), "{continuing}");
    assert_eq!(controller.state(), 2);
    assert_eq!(accepted(&mut controller, 5100)[..2], [0, 0]);
    assert_eq!(accepted(&mut controller, 9000), [0, 0, 0, 100]);
    assert_eq!(accepted(&mut controller, u64::MAX), [0, 0, 0, 100]);
    assert_eq!(accepted(&mut controller, 0), [100; 4]);
    assert_eq!(controller.state(), 0);
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
        beyond_share(&mut controller, now);
        controller.observe_backlog(now, waiting(3600));
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
