//! What an overloaded proxy has accepted is forwarded.

use std::time::Duration;

use sip::congestion::{Backlog, Config, WeightedSource};
use sip::flow::Transport;
use sip::{Mono, Now};

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request, value};
use crate::world::World;

/// A node without credentials, which has no dialog and is no trunk.
const STRANGER: usize = UAS + 1;

/// The wait at the proxy is 75 % of the tolerance: of what begins something, only requests of a class above, and those
/// of a source below its share, are accepted.
fn overload(world: &mut World) {
    let now = world.now;
    let engine = &mut world.nodes[PROXY].engine;
    engine.configure_congestion(Config {
        peers: vec![WeightedSource {
            address: address(UAC).ip(),
            prefix: 32,
            weight: 10_000,
        }],
        ..Config::default()
    });
    for _ in 0..200 {
        engine.observe_service(2_000, Duration::from_millis(200));
    }
    for ago in [1_000_000_000, 0] {
        let now = Now {
            mono: Mono(now.0 - ago),
            unix_s: 1_700_000_000,
        };
        let backlog = Backlog {
            messages: 1_502,
            ..Backlog::default()
        };
        engine.observe_backlog(now, backlog);
    }
    let wait = engine.expected_wait();
    assert!((150..152).contains(&wait.as_millis()), "{wait:?}");
    assert_eq!(engine.overload_state(), 2);
}

fn forwarded(world: &World, method: &str) -> usize {
    let heard = world.heard(UAS);
    heard.iter().filter(|what| **what == method).count()
}

#[test]
fn an_accepted_request_is_not_refused_when_it_is_forwarded() {
    let emergency = format!("{ALICE}Route: <sip:{};lr>\r\n", address(UAS));
    for (is_trunk, uri, extra) in [
        (true, "sip:bob@example.com", ""),
        (false, "sip:bob@example.com", ALICE),
        (false, "urn:service:sos", &emergency),
    ] {
        let mut world = World::new();
        world.bind_bob(&[None]);
        if !is_trunk {
            world.policy().trunks.clear();
        }
        world.run_until(2_000);
        overload(&mut world);
        for number in 1..=20 {
            let text = request("MESSAGE", uri, number, extra);
            world.send(UAC, Transport::Udp, &text);
        }
        world.run_until(2_400);
        let heard = world.heard(UAC);
        assert_eq!(forwarded(&world, "MESSAGE"), 20, "{uri}: {heard:?}");
        assert_eq!(heard, ["200 MESSAGE"; 20], "{uri}");
        let shed = world.nodes[PROXY].engine.stats().shed;
        assert_eq!((shed.refused, shed.from_tu), (0, 0), "{uri}");
    }
}

#[test]
fn a_source_above_its_share_is_refused_when_its_request_comes_in() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.policy().trunks.insert(address(STRANGER).ip());
    world.run_until(2_000);
    overload(&mut world);
    // While the peer sends as well, others have a ten-thousandth of what is accepted.
    let text = request("MESSAGE", "sip:bob@example.com", 1_000, "");
    world.send(UAC, Transport::Udp, &text);
    world.run_until(2_100);
    for number in 1..=400 {
        let text = request("MESSAGE", "sip:bob@example.com", number, "");
        world.send(STRANGER, Transport::Udp, &text);
    }
    world.run_until(2_400);
    let shed = world.nodes[PROXY].engine.stats().shed;
    let forwarded = forwarded(&world, "MESSAGE");
    assert!(shed.refused + shed.dropped > 0, "{shed:?}");
    assert!(forwarded > 0 && forwarded < 400, "{forwarded}");
    assert_eq!(shed.from_tu, 0, "{shed:?}");
}

/// A request of another caller with this To tag and Route, as it comes over UDP.
fn of_stranger(ok: &str, number: u32, (method, to_tag, route): (&str, &str, &str)) -> String {
    let call = value(ok, "Call-ID").unwrap();
    format!(
        "{method} sip:bob@{} SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bKs{number};rport\r\n{route}\
         From: {}\r\nTo: <sip:bob@example.com>{to_tag}\r\nCall-ID: {call}\r\nCSeq: {number} {method}\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        address(UAS),
        address(STRANGER),
        value(ok, "From").unwrap(),
    )
}

/// What the proxy has refused and dropped so far.
fn shed(world: &World) -> u64 {
    let shed = world.nodes[PROXY].engine.stats().shed;
    shed.refused + shed.dropped
}

#[test]
fn in_an_overload_a_to_tag_counts_with_the_token_of_its_dialog_only() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    let ok = world.nodes[UAC].texts.last().unwrap().clone();
    assert!(ok.starts_with("SIP/2.0 200"), "{ok}");
    let route = |route: &str| format!("Route: {route}\r\n");
    let own = value(&ok, "Record-Route").unwrap();
    let other = own.replacen("<sip:d", "<sip:dA", 1);
    let behind = format!("Route: <sip:{};lr>, {own}\r\n", address(PROXY));
    let strict = own.trim_matches(['<', '>']).to_owned();
    world.run_until(2_000);
    overload(&mut world);
    // While the peer sends as well, others have a ten-thousandth of what is accepted: one request in each window.
    let text = request("MESSAGE", "sip:bob@example.com", 1_000, "");
    world.send(UAC, Transport::Udp, &text);
    world.run_until(2_020);
    use_up_share(&mut world, &ok, 10_000);
    let before = shed(&world);
    let shed_all = world.nodes[PROXY].engine.stats();
    assert!(before > 0, "{shed_all:?}, {:?}", world.heard(STRANGER));
    for (number, method, to_tag, route, is_accepted) in [
        (1, "INFO", ";tag=x", route(own), true),
        (2, "BYE", ";tag=x", behind, true),
        (3, "INFO", ";tag=x", String::new(), false),
        (4, "BYE", ";tag=x", String::new(), false),
        (5, "INFO", ";tag=x", route(&other), false),
        (6, "INFO", "", route(own), false),
    ] {
        use_up_share(&mut world, &ok, 10_000 * (number + 1));
        let before = shed(&world);
        let text = of_stranger(&ok, number, (method, to_tag, &route));
        world.send_raw(STRANGER, &text);
        let until = world.ms() + 15;
        world.run_until(until);
        let now = shed(&world);
        assert_eq!(now == before, is_accepted, "{number} {method} {route}");
    }
    // The token of another call.
    use_up_share(&mut world, &ok, 80_000);
    let before = shed(&world);
    let text = of_stranger(&ok, 7, ("INFO", ";tag=x", &route(own)));
    let text = text.replacen("Call-ID: ", "Call-ID: 1", 1);
    world.send_raw(STRANGER, &text);
    let until = world.ms() + 15;
    world.run_until(until);
    assert_eq!(shed(&world), before + 1);
    // A strict router has the token in the Request-URI (RFC 3261 §16.4).
    let text = of_stranger(
        &ok,
        8,
        (
            "INFO",
            ";tag=x",
            &format!("Route: <sip:bob@{}>\r\n", address(UAS)),
        ),
    );
    let text = text.replacen(
        &format!("sip:bob@{} SIP", address(UAS)),
        &format!("{strict} SIP"),
        1,
    );
    world.send_raw(STRANGER, &text);
    world.run_until(2_240);
    assert_eq!(shed(&world), before + 1);
}

/// The stranger uses up its share of this window: most of these requests are refused.
fn use_up_share(world: &mut World, ok: &str, first: u32) {
    for number in first..first + 10 {
        let text = of_stranger(ok, number, ("INFO", ";tag=x", ""));
        world.send_raw(STRANGER, &text);
    }
    let until = world.ms() + 15;
    world.run_until(until);
}
