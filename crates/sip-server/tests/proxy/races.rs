//! Orders of events that a network makes: CANCEL against 200, several 2xx, loss, silence.

use sip::flow::Transport;
use sip_server::proxy::{Config, Forking};

use crate::network::Weather;
use crate::node::{PROXY, Script, UAC, UAS, answers, request};
use crate::world::World;

#[test]
fn a_cancel_goes_to_every_branch_and_487_comes_back_rfc3261_16_10() {
    let mut world = World::new();
    world.bind_bob(&[None, None, Some(100)]);
    for place in 0..3 {
        world.nodes[UAS + place].script = answers(&[(50, 180), (60_000, 200)]);
    }
    let key = world.invite();
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(5_000);
    assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
    for place in 0..2 {
        assert_eq!(world.heard(UAS + place), ["INVITE", "CANCEL"]);
    }
    assert!(world.heard(UAS + 2).is_empty(), "nothing new is tried");
    world.nothing_is_left();
}

#[test]
fn a_200_that_crosses_a_cancel_is_forwarded_rfc3261_16_10() {
    for sent_at in [960, 980, 1_000, 1_010, 1_020, 1_030] {
        let mut world = World::new();
        world.bind_bob(&[None]);
        world.nodes[UAS].script = Script {
            ignores_cancel: true,
            ..answers(&[(50, 180), (sent_at, 200)])
        };
        let key = world.invite();
        world.run_until(1_000);
        world.cancel(key);
        world.run_until(5_000);
        assert_eq!(world.heard(UAC).last(), Some(&"200 INVITE"), "{sent_at}");
        assert_eq!(world.heard(UAS).last(), Some(&"ACK"), "{sent_at}");
        world.nothing_is_left();
    }
}

#[test]
fn a_branch_without_a_provisional_response_is_cancelled_when_it_has_one_rfc3261_9_1() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.nodes[UAS].script = answers(&[(2_000, 180)]);
    // The user agent's engine sends its own 100 at 200 ms.
    let key = world.invite();
    world.run_until(60);
    world.cancel(key);
    world.run_until(100);
    assert!(world.sent(PROXY, "CANCEL").is_empty());
    world.run_until(5_000);
    assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
    assert_eq!(world.sent(PROXY, "CANCEL").len(), 1);
    world.nothing_is_left();
}

#[test]
fn every_2xx_of_a_fork_is_forwarded_rfc3261_16_7_5() {
    let config = Config {
        forking: Forking::Parallel,
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.bind_bob(&[None, None, None]);
    for place in 0..3 {
        world.nodes[UAS + place].script = Script {
            ignores_cancel: true,
            ..answers(&[(50, 180), (1_000 + 300 * place as u64, 200)])
        };
    }
    world.invite();
    world.run_until(10_000);
    let heard = world.heard(UAC);
    let ok = heard.iter().filter(|what| **what == "200 INVITE");
    assert_eq!(ok.count(), 3, "{heard:?}");
    for place in 0..3 {
        assert_eq!(world.heard(UAS + place).last(), Some(&"ACK"));
    }
    world.nothing_is_left();
}

#[test]
fn a_final_response_behind_a_200_is_not_forwarded() {
    let config = Config {
        forking: Forking::Parallel,
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.bind_bob(&[None, None]);
    world.nodes[UAS].script = answers(&[(50, 180), (500, 200)]);
    world.nodes[UAS + 1].script = answers(&[(50, 180), (505, 486), (506, 180)]);
    world.invite();
    world.run_until(5_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn timer_c_cancels_a_phone_that_rings_too_long_rfc3261_16_8() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    // The second 180 sets the timer anew.
    world.nodes[UAS].script = answers(&[(50, 180), (100_000, 180)]);
    world.invite();
    world.run_until(299_000);
    assert!(world.sent(PROXY, "CANCEL").is_empty());
    world.run_until(302_000);
    let cancels = world.sent(PROXY, "CANCEL");
    assert!(cancels.len() == 1 && cancels[0].0 >= 300_000, "{cancels:?}");
    assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
    world.nothing_is_left();
}

#[test]
fn silence_is_a_408_for_an_invite_and_nothing_for_others_rfc3261_16_7_rfc4320_4_1() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.dead.push(UAS);
    world.invite();
    world.run_until(33_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "408 INVITE"]);
    let message = request("MESSAGE", "sip:bob@example.com", 2, "");
    world.send(UAC, Transport::Udp, &message);
    world.run_until(80_000);
    assert_eq!(world.heard(UAC).last(), Some(&"TimedOut"));
    world.nothing_is_left();
}

#[test]
fn a_branch_behind_a_dead_address_does_not_stop_the_others() {
    let mut world = World::new();
    world.bind_bob(&[None, None]);
    world.dead.push(UAS);
    world.nodes[UAS + 1].script = answers(&[(50, 180), (3_000, 200)]);
    world.invite();
    world.run_until(5_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn calls_end_in_any_weather() {
    let mut ended = 0;
    for seed in 1..60_u64 {
        let forking = match seed % 3 {
            0 => Forking::Parallel,
            1 => Forking::ByQ,
            _ => Forking::Sequential,
        };
        let config = Config {
            forking,
            ..Config::default()
        };
        let mut world = World::with(Weather::FOUL, seed, config);
        world.bind_bob(&[None, Some(500), None]);
        for place in 0..3 {
            let answer = if (seed + place) % 4 == 0 { 200 } else { 486 };
            let at = 1_000 + (seed * 37 + place * 411) % 2_000;
            world.nodes[UAS + place as usize].script = answers(&[(100, 180), (at, answer)]);
        }
        let key = world.invite();
        if seed % 5 == 0 {
            world.run_until(seed * 40);
            world.cancel(key);
        }
        world.run_until(400_000);
        let heard = world.heard(UAC);
        let is_final = |what: &&&str| what.ends_with("INVITE") && !what.starts_with('1');
        ended += usize::from(heard.iter().any(|what| is_final(&what)));
        world.nothing_is_left();
    }
    assert!(ended >= 57, "{ended} of 59");
}
