//! Calls that rang at a trunk and then failed, and where nothing else follows. They are counted.

use sip_server::routes::{Failures, Next, NextHop};

use crate::node::{UAS, address, answers};
use crate::trunks::{call, caller, counts, on, route, trunk, world, world_of};

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

#[test]
fn a_call_that_rang_is_counted_if_the_connection_is_lost_or_no_final_response_comes() {
    // The connection of a trunk over TCP is lost while it rings.
    let mut over_tcp = trunk("a", &[]);
    over_tcp.to = vec![NextHop::new(&format!("sip:{};transport=tcp", address(UAS))).unwrap()];
    let trunks = vec![over_tcp, trunk("b", &[UAS + 1])];
    let mut world = world_of(vec![route("+49", &["a", "b"])], trunks);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    call(&mut world);
    world.run_until(1_000);
    assert_eq!(caller(&world), ["180 INVITE"]);
    world.disconnect(UAS);
    world.dead = vec![UAS];
    // The trunk may respond by another connection (RFC 3261 §18.2.2).
    world.run_until(20_000);
    assert_eq!(caller(&world), ["180 INVITE"]);
    world.run_until(400_000);
    assert_eq!(caller(&world).len(), 2, "{:?}", caller(&world));
    assert_eq!(
        world.heard(UAS + 1).len(),
        0,
        "a call that rang does not move on"
    );
    assert_eq!(counts(&mut world, 0).rung_and_failed, 1);
    // The trunk is gone after the 180, and Timer C ends the call (RFC 3261 §16.8).
    let mut world = crate::trunks::world(Failures::default());
    world.nodes[UAS].script = answers(&[(50, 180)]);
    call(&mut world);
    world.run_until(1_000);
    world.dead = vec![UAS];
    world.run_until(400_000);
    assert_eq!(caller(&world)[0], "180 INVITE");
    assert_eq!(caller(&world).len(), 2, "{:?}", caller(&world));
    assert_eq!(counts(&mut world, 0).rung_and_failed, 1);
    assert_eq!(world.heard(UAS + 1).len(), 0);
}
