use super::*;
use crate::routes::config::NextHop;

const GOOD: Outcome = Outcome::Response(200, None);

fn at(ms: u64) -> Mono {
    Mono(1_000_000_000_000 + ms * 1_000_000)
}

fn health(probe: ProbeConfig) -> Health {
    Health::new(&Trunk {
        to: vec![NextHop::new("sip:192.0.2.7").unwrap()],
        probe,
        ..Trunk::default()
    })
}

#[test]
fn calls_from_a_trunk_have_limits_of_their_own() {
    let trunk = Trunk::default();
    let health = Health::new(&trunk);
    let at = |ms: u64| {
        Mono::default()
            .plus_secs(1_000)
            .plus(Duration::from_millis(ms))
    };
    let limit = Limit {
        concurrent: 2,
        per_second: 2,
    };
    let first = health.admit_from(limit, true, at(0)).unwrap();
    let second = health.admit_from(limit, true, at(0)).unwrap();
    assert!(first.is_some() && second.is_some());
    let more = health.admit_from(limit, true, at(5_000));
    assert_eq!(more.unwrap_err(), Exceeded::Concurrent);
    drop(first);
    // The rate is that of calls that begin: two at once, then one each 500 ms.
    drop(health.admit_from(limit, true, at(5_000)).unwrap());
    drop(health.admit_from(limit, true, at(5_000)).unwrap());
    let more = health.admit_from(limit, true, at(5_499));
    assert_eq!(more.unwrap_err(), Exceeded::Rate);
    assert!(health.admit_from(limit, true, at(5_500)).is_ok());
    // Calls to the trunk do not count there.
    let to = health.begin_call(1);
    let counts = health.counts(at(6_000));
    assert_eq!((counts.calls_from, counts.limited_from), (5, 2));
    assert_eq!((counts.in_progress, counts.in_progress_from), (1, 1));
    drop((to, second));
    // Without a limit and without a policy that counts, nothing is kept.
    assert!(
        health
            .admit_from(Limit::default(), false, at(6_000))
            .unwrap()
            .is_none()
    );
    assert_eq!(health.counts(at(6_000)).in_progress_from, 0);
}

#[test]
fn probes_have_hysteresis() {
    let health = health(ProbeConfig::default());
    assert!(!health.probed(0, at(0), Outcome::Silent));
    assert!(!health.probed(0, at(1), Outcome::Silent));
    // A success in between begins the count anew.
    assert!(!health.probed(0, at(2), GOOD));
    assert!(!health.probed(0, at(3), Outcome::Silent));
    assert!(!health.probed(0, at(4), Outcome::NotSent));
    assert!(health.is_available(0, at(4)));
    assert!(health.probed(0, at(5), Outcome::Response(503, None)));
    assert!(!health.is_available(0, at(5)));
    assert!(!health.probed(0, at(6), GOOD));
    assert!(
        !health.probed(0, at(7), Outcome::Silent),
        "it is down already"
    );
    assert!(!health.probed(0, at(8), GOOD));
    assert!(!health.is_available(0, at(8)));
    // 404 to OPTIONS: somebody is there.
    assert!(health.probed(0, at(9), Outcome::Response(404, None)));
    assert!(health.is_available(0, at(9)));
    let counts = health.counts(at(9));
    assert_eq!((counts.probes_answered, counts.probes_failed), (4, 6));
}

#[test]
fn an_address_that_has_come_back_starts_slowly() {
    let health = health(ProbeConfig::default());
    assert_eq!(health.share(0, at(0)), FULL_SHARE);
    for ms in 0..3 {
        health.probed(0, at(ms), Outcome::Silent);
    }
    health.probed(0, at(1000), GOOD);
    health.probed(0, at(2000), GOOD);
    assert_eq!(health.share(0, at(2000)), 0);
    assert_eq!(health.share(0, at(2000 + 15_000)), FULL_SHARE / 2);
    assert_eq!(health.share(0, at(2000 + 30_000)), FULL_SHARE);
}

#[test]
fn the_status_of_an_address_says_why_it_gets_no_calls() {
    let health = health(ProbeConfig::default());
    let status = |ms| health.addresses(at(ms))[0];
    assert_eq!(
        (status(0).state, status(0).last_error),
        (AddressState::Up, None)
    );
    health.concluded(0, at(0), Outcome::Response(503, Some(20)));
    let paused = status(1_000);
    assert_eq!(
        (paused.state, paused.share, paused.pause),
        (AddressState::Paused, 0, Duration::from_secs(19))
    );
    let error = (AddressError::Code(503), Duration::from_secs(1));
    assert_eq!(paused.last_error, Some(error));
    assert_eq!(status(35_000).state, AddressState::SlowStart);
    assert_eq!(status(35_000).share, 500);
    for ms in 0..3 {
        health.probed(0, at(60_000 + ms), Outcome::Silent);
    }
    let down = status(60_002);
    assert_eq!((down.state, down.failures), (AddressState::Down, 3));
    let error = (AddressError::Silent, Duration::ZERO);
    assert_eq!(down.last_error, Some(error));
    // A 404 to a call is no failure of the address.
    health.concluded(0, at(60_003), Outcome::Response(404, None));
    assert_eq!(
        status(60_003).last_error.map(|(error, _)| error),
        Some(AddressError::Silent)
    );
    health.probed(0, at(61_000), GOOD);
    assert_eq!(status(61_000).state, AddressState::Probing);
    health.probed(0, at(62_000), GOOD);
    assert_eq!(status(62_000).state, AddressState::SlowStart);
    assert_eq!(status(92_000).state, AddressState::Up);
}

#[test]
fn retry_after_is_heeded_and_bounded() {
    let health = health(ProbeConfig::default());
    health.concluded(0, at(0), Outcome::Response(503, None));
    health.concluded(0, at(0), Outcome::Response(503, Some(0)));
    health.concluded(0, at(0), Outcome::Response(486, Some(9)));
    assert!(health.is_available(0, at(0)));
    health.concluded(0, at(0), Outcome::Response(503, Some(20)));
    assert!(!health.is_available(0, at(19_999)));
    assert!(health.is_available(0, at(20_000)));
    assert_eq!(health.share(0, at(20_000)), 0, "it starts slowly");
    health.concluded(0, at(0), Outcome::Response(503, Some(u32::MAX)));
    assert!(health.is_available(0, at(3_600_000)));
    assert_eq!(health.counts(at(0)).responses, [0, 0, 0, 1, 4, 0]);
}

#[test]
fn calls_without_a_response_count_like_probes() {
    let probed = health(ProbeConfig::default());
    probed.concluded(0, at(0), Outcome::Silent);
    probed.concluded(0, at(0), Outcome::Response(404, None));
    for _ in 0..2 {
        probed.concluded(0, at(0), Outcome::Silent);
    }
    assert!(
        probed.is_available(0, at(0)),
        "a response began the count anew"
    );
    probed.concluded(0, at(0), Outcome::Silent);
    assert!(!probed.is_available(0, at(0)));
    assert!(
        !probed.is_available(0, at(10_000_000)),
        "only probes bring it back"
    );
    let unprobed = health(ProbeConfig {
        interval: Duration::ZERO,
        ..ProbeConfig::default()
    });
    for _ in 0..3 {
        unprobed.concluded(0, at(0), Outcome::Silent);
    }
    assert!(!unprobed.is_available(0, at(31_999)));
    assert!(unprobed.is_available(0, at(32_000)));
}

#[test]
fn the_limit_holds_for_each_second_and_lets_jitter_pass() {
    let health = health(ProbeConfig::default());
    let passed = |second: u64| {
        (0..1000)
            .filter(|ms| health.admit(50, at(second * 1000 + ms)))
            .count()
    };
    let first = passed(0);
    assert!((50..=56).contains(&first), "{first}");
    assert_eq!(passed(1), 50);
    assert_eq!(passed(100), first, "what was not used is not saved up");
    assert!((0..1000).all(|_| health.admit(0, at(0))));
}
