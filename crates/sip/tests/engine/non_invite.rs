//! Requests other than INVITE over UDP, from end to end.

use hairpin_sip::flow::Transport;

use crate::network::Weather;
use crate::world::{Script, UAC, UAS, World, fail, request};

fn world(script: &[(u64, u16)]) -> World {
    let mut world = World::new(Weather::FINE, 1);
    world.uas().script.other = script.to_vec();
    world
}

#[test]
fn a_request_is_answered_and_both_sides_forget_it() {
    let mut world = world(&[(0, 200)]);
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(100);
    assert_eq!(world.heard(UAC), ["200 OPTIONS"]);
    let stats = world.uas().engine.stats();
    assert_eq!((stats.servers, stats.timers), (1, 1));
    // Timer K: T4 after the response, which came at 20 ms; timer J: 64*T1 after it was sent at 10 ms.
    world.run_until(5_019);
    assert_eq!(world.uac().engine.stats().clients, 1);
    world.run_until(5_020);
    assert_eq!(world.uac().engine.stats().clients, 0);
    world.run_until(32_009);
    assert_eq!(world.uas().engine.stats().servers, 1);
    world.run_until(32_010);
    assert_eq!(world.uas().engine.stats().servers, 0);
    assert_eq!(world.heard(UAC), ["200 OPTIONS", "client ended"]);
    world.nothing_is_left();
}

#[test]
fn nobody_answers_and_timer_f_ends_it() {
    let mut world = World::new(Weather::DEAD, 1);
    world.send(Transport::Udp, &request("REGISTER", 1, ""));
    world.run_until(60_000);
    let expected = [
        0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
    ];
    assert_eq!(world.times(UAC, "REGISTER"), expected);
    assert_eq!(world.nodes[UAC].heard, [(32_000, "timed out".to_owned())]);
    world.nothing_is_left();
}

#[test]
fn a_slow_tu_is_covered_by_a_100_and_answers_later() {
    let mut world = world(&[(6_000, 200)]);
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(40_000);
    // RFC 4320 §4.1: not before 3.5 s, and then at once.
    assert_eq!(world.times(UAS, "SIP/2.0 100"), [3_510]);
    assert_eq!(world.times(UAC, "OPTIONS"), [0, 500, 1500, 3500]);
    assert_eq!(
        world.heard(UAC),
        ["100 OPTIONS", "200 OPTIONS", "client ended"]
    );
    world.nothing_is_left();
}

#[test]
fn a_tu_that_never_responds_is_notified_and_no_408_is_sent() {
    let mut world = world(&[(9_000, 408), (50_000, 200)]);
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(60_000);
    assert_eq!(world.times(UAS, "SIP/2.0 408"), []);
    assert_eq!(world.times(UAS, "SIP/2.0 200"), []);
    let mut heard = world.heard(UAC);
    heard.dedup();
    assert_eq!(heard, ["100 OPTIONS", "timed out"]);
    assert_eq!(
        world.heard(UAS),
        ["OPTIONS", "server failed: Abandoned", "server ended"]
    );
    world.nothing_is_left();
}

#[test]
fn a_lost_answer_is_repeated_for_the_repeated_request() {
    let mut world = world(&[(0, 200)]);
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(5);
    world.network.weather = Weather::DEAD;
    world.run_until(400);
    world.network.weather = Weather::FINE;
    world.run_until(1_000);
    assert_eq!(world.times(UAS, "SIP/2.0 200"), [10, 510]);
    assert_eq!(world.heard(UAS), ["OPTIONS"], "the TU saw it once");
    assert_eq!(world.heard(UAC), ["200 OPTIONS"]);
    assert_eq!(world.uas().engine.stats().retransmissions_received, 1);
    world.nothing_is_left();
}

#[test]
fn a_stateless_answer_keeps_nothing_and_is_the_same_each_time() {
    let mut world = World::new(Weather::FINE, 1);
    world.uas().script = Script {
        stateless: true,
        ..Script::default()
    };
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(15);
    assert_eq!(world.uas().engine.stats().servers, 0);
    let first = world.uas().last.clone();
    let again = world.uac().last.clone();
    let flow = world.uas().flow(crate::world::address(UAC), None);
    let now = world.now;
    world.uas().receive(now, &flow, &again);
    world.drain();
    assert_eq!(world.uas().last, first);
    world.nothing_is_left();
}

#[test]
fn a_transport_error_reaches_the_tu_at_once() {
    let mut world = World::new(Weather::DEAD, 1);
    let key = world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(700);
    fail(&mut world, UAC, key);
    assert_eq!(world.heard(UAC), ["transport failed"]);
    world.nothing_is_left();
}
