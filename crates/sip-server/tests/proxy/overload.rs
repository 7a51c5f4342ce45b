//! What an overloaded proxy has accepted is forwarded.

use std::time::Duration;

use sip::congestion::{Backlog, Config, Peer};
use sip::flow::Transport;
use sip::{Mono, Now};

use crate::node::{ALICE, PROXY, UAC, UAS, address, request};
use crate::world::World;

/// A node without credentials, which has no dialog and is no trunk.
const STRANGER: usize = UAS + 1;

/// The wait at the proxy is 75 % of the tolerance: of what begins something, only requests of a class above, and those
/// of a source below its share, are accepted.
fn overload(world: &mut World) {
    let now = world.now;
    let engine = &mut world.nodes[PROXY].engine;
    engine.configure_congestion(Config {
        peers: vec![Peer {
            address: address(UAC).ip(),
            prefix: 32,
            weight: 100,
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
    // While the peer sends as well, others have a hundredth of the capacity.
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
