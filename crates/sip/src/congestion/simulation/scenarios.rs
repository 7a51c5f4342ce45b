//! The loads of the simulation, each with what admission control must do.

use super::*;

fn one(_: usize) -> IpAddr {
    [192, 0, 2, 1].into()
}

fn hundred(number: usize) -> IpAddr {
    [198, 51, 100, (number % 100) as u8].into()
}

fn transport(_: usize) -> IpAddr {
    [203, 0, 113, 9].into()
}

/// A thousand forged addresses, in no order.
fn forged(number: usize) -> IpAddr {
    let spread = (number % 1000) as u32;
    std::net::Ipv4Addr::from_bits(0x0a00_0000 + spread.wrapping_mul(2_654_435_761) % 0x00ff_ffff)
        .into()
}

fn world(costs: Costs) -> World {
    World::new(costs, Config::default())
}

#[test]
fn goodput_waits_and_recovery_hold_at_2_5_and_10_times_the_load() {
    for (factor, source, tolerance_ms) in [
        (2.0, one as fn(usize) -> IpAddr, 200),
        (5.0, one, 200),
        (10.0, one, 200),
        (2.0, hundred, 200),
        (5.0, hundred, 200),
        (10.0, hundred, 200),
        (5.0, one, 80),
        (10.0, hundred, 80),
    ] {
        let tolerance = Duration::from_millis(tolerance_ms);
        let config = Config {
            tolerance,
            ..Config::default()
        };
        let mut world = World::new(WORK, config);
        world.run(&[Group { factor, source }]);
        let what = format!("{factor}x, {tolerance_ms} ms: {}", world.summary());
        println!("{what}");
        assert!(world.goodput() >= 0.9, "{what}");
        assert!(world.p99().iter().all(|p99| *p99 <= tolerance), "{what}");
        assert!(world.recovered() >= 0.98, "{what}");
    }
}

#[test]
fn cheap_requests_are_served_whoever_pays_for_the_filter() {
    let same = Costs {
        filter: 3 * US,
        ..CHEAP
    };
    for (costs, factor) in [
        (CHEAP, 1.1),
        (CHEAP, 1.5),
        (CHEAP, 2.0),
        (CHEAP, 4.0),
        (same, 1.5),
        (same, 2.0),
    ] {
        let mut world = world(costs);
        world.run(&[Group {
            factor,
            source: one,
        }]);
        let what = format!("{factor}x of {costs:?}: {}", world.summary());
        println!("{what}");
        assert!(world.goodput() >= 0.9 * world.left(), "{what}");
        assert!(world.recovered() >= 0.98, "{what}");
    }
}

#[test]
fn without_overload_nothing_is_refused() {
    let mut world = world(WORK);
    world.run(&[Group {
        factor: 0.8,
        source: hundred,
    }]);
    assert_eq!(world.controller.counts(), ShedCounts::default());
    assert!((0.78..0.82).contains(&world.goodput()));
    assert!(world.p99()[1] < Duration::from_millis(5));
}

#[test]
fn without_the_controller_everything_waits_as_long_as_the_buffer_is() {
    let off = Config {
        enabled: false,
        ..Config::default()
    };
    let mut world = World::new(WORK, off);
    world.run(&[Group {
        factor: 2.0,
        source: hundred,
    }]);
    assert!(world.p99()[0] > Duration::from_millis(390));
}

#[test]
fn every_refused_request_gets_its_503_while_they_fit_into_8_percent_of_the_time() {
    // 503s of 4 us: 20,000 a second, twice what can be served.
    let mut world = world(WORK);
    world.run(&[Group {
        factor: 2.5,
        source: hundred,
    }]);
    let what = world.summary();
    let [outcome] = world.outcomes[..] else {
        panic!("one group");
    };
    println!("{what}");
    assert_eq!((world.filtered, world.lost), (0, 0), "{what}");
    assert_eq!(world.controller.counts().dropped, 0, "{what}");
    let answered = outcome.served + outcome.refused;
    assert!(answered * 100 >= outcome.begun * 99, "{what}");
    // Beyond that some are dropped, and counted.
    let mut world = self::world(WORK);
    world.run(&[Group {
        factor: 5.0,
        source: hundred,
    }]);
    assert!(world.controller.counts().filtered > 0);
}

#[test]
fn a_flooder_takes_nothing_from_those_who_ask_for_little() {
    let mut world = world(WORK);
    world.run(&[
        Group {
            factor: 0.4,
            source: hundred,
        },
        Group {
            factor: 10.0,
            source: one,
        },
    ]);
    let what = world.summary();
    println!("{what}");
    let little = world.outcomes[0];
    assert!(little.served * 10 >= little.begun * 9, "{what}");
}

#[test]
fn a_thousand_forged_sources_do_not_shut_out_a_trunk() {
    let peer = WeightedSource {
        address: [203, 0, 113, 0].into(),
        prefix: 24,
        weight: 4,
    };
    let config = Config {
        peers: vec![peer],
        ..Config::default()
    };
    let groups = [
        Group {
            factor: 0.6,
            source: transport,
        },
        Group {
            factor: 10.0,
            source: forged,
        },
    ];
    let mut world = World::new(WORK, config);
    world.run(&groups);
    let what = world.summary();
    println!("{what}");
    let served = world.outcomes[0];
    assert!(served.served * 10 >= served.begun * 9, "{what}");
    // Unless it is configured, it is one of a thousand and one.
    let mut world = self::world(WORK);
    world.run(&groups);
    let served = world.outcomes[0];
    assert!(served.served * 2 < served.begun, "{}", world.summary());
}

#[test]
fn a_flood_of_emergency_calls_shuts_out_neither_others_nor_other_emergency_calls() {
    for flooding in [one as fn(usize) -> IpAddr, forged] {
        let classes = [Class::New, Class::Priority, Class::Priority];
        let world = flooded(flooding, classes, 0.4, &[0, 2]);
        assert!(world.outcomes[1].served > 0);
    }
}

#[test]
fn requests_of_dialogs_that_are_repeated_in_a_flood_leave_others_their_shares() {
    let classes = [Class::New, Class::Continuing, Class::New];
    flooded(one, classes, 0.25, &[0, 2]);
    // A thousand forged sources have most of the shares, and the filter cannot drop such requests.
    let trunk = flooded(forged, classes, 0.25, &[]).outcomes[2];
    assert!(trunk.served * 10 >= trunk.begun * 4, "{trunk:?}");
}

/// Five times what can be served comes from these sources. A hundred other sources ask for this part of it, and a trunk
/// for 2 %. These groups must be served nine times out of ten.
fn flooded(
    source: fn(usize) -> IpAddr,
    classes: [Class; 3],
    factor: f64,
    served: &[usize],
) -> World {
    let group = |factor, source| Group { factor, source };
    let groups = [
        group(factor, hundred),
        group(5.0, source),
        group(0.02, transport),
    ];
    let trunk = WeightedSource {
        address: [203, 0, 113, 0].into(),
        prefix: 24,
        weight: 1,
    };
    let config = Config {
        peers: vec![trunk],
        ..Config::default()
    };
    let mut world = World::new(WORK, config);
    world.classes = classes.to_vec();
    world.run(&groups);
    let what = world.summary();
    println!("{what}");
    for &group in served {
        let others = world.outcomes[group];
        assert!(others.served * 10 >= others.begun * 9, "{group}: {what}");
    }
    world
}

/// Messages of calls through a proxy, where the worker's processor also receives.
const PROXY: Costs = Costs {
    receive: 2 * US,
    serve: 9 * US,
    refuse: 5 * US,
    filter: 0,
    arrive: 4 * US,
    buffer: 20_000,
};

/// The 180 and the 200 of a call wait in the queue as its INVITE did, so a call waits twice.
#[test]
fn calls_through_a_proxy_keep_their_goodput_and_are_answered_within_200_ms() {
    let tolerance = Duration::from_millis(120);
    for (arrive, factor) in [(0, 1.5), (0, 3.0), (4 * US, 1.5), (4 * US, 2.0)] {
        let costs = Costs { arrive, ..PROXY };
        let config = Config {
            tolerance,
            ..Config::default()
        };
        let mut world = World::new(costs, config);
        world.calls = true;
        world.run(&[Group {
            factor,
            source: one,
        }]);
        let what = format!("{arrive} ns to receive, {factor}x: {}", world.summary());
        println!("{what}");
        // A refused call is an INVITE, a 503 and an ACK. If the worker's processor receives them, they take time from
        // the other calls.
        let refused = (2 * arrive + costs.refuse + costs.receive) as f64;
        let possible = match arrive {
            0 => 1.0,
            _ => (world.cost() - factor * refused) / (world.cost() - refused),
        };
        assert!(world.goodput() >= 0.9 * possible, "{what}");
        assert_eq!(world.failed, 0, "{what}");
        assert!(world.p99()[0] <= tolerance, "{what}");
        let answered = &world.since_first;
        assert!(
            answered[answered.len() * 9 / 10] <= 200 * MS,
            "{what}: {}",
            answered[answered.len() * 9 / 10]
        );
    }
}
