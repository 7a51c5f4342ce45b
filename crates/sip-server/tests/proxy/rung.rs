//! Calls that rang at a trunk and then failed, and where nothing else follows. They are counted.

use sip_server::routes::{Failures, Next};

use crate::node::{UAS, answers};
use crate::trunks::{call, counts, on, world};

#[test]
fn a_call_that_rang_and_gets_a_503_is_counted_if_no_other_trunk_follows() {
    for (failures, nodes, counted) in [
        (on(Next::Stop, Next::Stop, Next::Stop), 1, 1),
        (Failures::default(), 2, 0),
    ] {
        let mut world = world(failures);
        world.nodes[UAS].script = answers(&[(50, 180), (300, 503)]);
        world.nodes[UAS + 1].script = answers(&[(50, 200)]);
        call(&mut world);
        world.run_until(2_000);
        let counts = counts(&mut world, 0);
        assert_eq!(counts.rung_and_failed, counted, "{failures:?}");
        assert_eq!(counts.moved_on, 1 - counted);
        let asked = [UAS, UAS + 1].map(|node| world.heard(node).contains(&"INVITE"));
        assert_eq!(asked.iter().filter(|it| **it).count(), nodes);
        world.nothing_is_left();
    }
}

#[test]
fn a_call_that_did_not_ring_is_not_counted() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    world.nodes[UAS].script = answers(&[(300, 503)]);
    call(&mut world);
    world.run_until(2_000);
    assert_eq!(counts(&mut world, 0).rung_and_failed, 0);
}
