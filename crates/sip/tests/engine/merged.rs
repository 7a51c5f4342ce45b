//! Requests that come by two ways (RFC 3261 §8.2.2.2).

use hairpin_sip::verdict::Rules;

use crate::network::Weather;
use crate::world::{UAS, World, request, text};

fn world(rules: Rules<'static>) -> World {
    let mut world = World::with(Weather::FINE, 1, |_, config| config.rules = rules);
    world.uas().script.invite = vec![(50, 180), (5_000, 200)];
    world.uas().script.other = vec![(3_000, 200)];
    world
}

/// The same request by the way of this branch, perhaps changed.
fn by(branch: &str, method: &str, change: impl Fn(String) -> String) -> Vec<u8> {
    let via = format!("Via: SIP/2.0/UDP {branch}.example;branch=z9hG4bK{branch};rport\r\n");
    change(text(&request(method, 7, &via))).into_bytes()
}

fn same(message: String) -> String {
    message
}

fn incoming(world: &mut World, bytes: &[u8]) -> String {
    let now = world.now;
    let node = &mut world.nodes[UAS];
    let flow = node.flow(([198, 51, 100, 7], 4444).into(), None);
    let what = node.receive(now, &flow, bytes);
    world.drain();
    what
}

#[test]
fn a_request_that_comes_by_another_way_is_482_rfc3261_8_2_2_2() {
    let mut world = world(Rules::USER_AGENT);
    for method in ["INVITE", "OPTIONS"] {
        let first = by("one", method, same);
        assert_eq!(incoming(&mut world, &first), format!("request {method}"));
        assert_eq!(incoming(&mut world, &first), "Absorbed", "the same way");
        let second = by("two", method, same);
        assert_eq!(incoming(&mut world, &second), "Refused(482)");
        let refusal = text(&world.uas().last);
        assert!(
            refusal.starts_with("SIP/2.0 482 Loop Detected\r\n"),
            "{refusal}"
        );
        // It has a transaction of its own, with which nothing is merged.
        assert_eq!(incoming(&mut world, &second), "Absorbed");
        assert_eq!(
            incoming(&mut world, &by("three", method, same)),
            "Refused(482)"
        );
    }
    let ack = by("two", "ACK", same);
    assert_eq!(incoming(&mut world, &ack), "Absorbed", "of the 482");
    for (from, to) in [
        (";tag=a7", ";tag=other"),
        ("Call-ID: 7@", "Call-ID: 8@"),
        ("CSeq: 7", "CSeq: 8"),
        ("bob@192.0.2.2>\r\n", "bob@192.0.2.2>;tag=in-a-dialog\r\n"),
    ] {
        let branch = format!("other{}", to.len());
        let other = by(&branch, "INVITE", |message| {
            assert!(message.contains(from), "{from} is not in {message}");
            message.replace(from, to)
        });
        assert_eq!(incoming(&mut world, &other), "request INVITE", "{to}");
    }
}

#[test]
fn a_request_that_was_answered_at_once_is_known_by_another_way_as_well_until_its_transaction_ends()
{
    let mut world = world(Rules::USER_AGENT);
    world.uas().script.other = vec![(0, 200)];
    for method in ["REGISTER", "OPTIONS"] {
        let first = by("one", method, same);
        assert_eq!(incoming(&mut world, &first), format!("request {method}"));
        assert_eq!(
            incoming(&mut world, &by("two", method, same)),
            "Refused(482)"
        );
    }
    let ended = world.ms() + 33_000;
    world.run_until(ended);
    let late = by("three", "REGISTER", same);
    assert_eq!(incoming(&mut world, &late), "request REGISTER");
    world.nothing_is_left();
}

#[test]
fn when_a_transaction_has_ended_nothing_is_merged_with_it() {
    let mut world = world(Rules::USER_AGENT);
    let first = by("one", "OPTIONS", same);
    assert_eq!(incoming(&mut world, &first), "request OPTIONS");
    world.run_until(60_000);
    assert_eq!(world.uas().engine.stats().servers, 0);
    let second = by("two", "OPTIONS", same);
    assert_eq!(incoming(&mut world, &second), "request OPTIONS");
    world.run_until(120_000);
    world.nothing_is_left();
}

#[test]
fn a_proxy_merges_nothing_rfc3261_16_3() {
    let mut world = world(Rules::PROXY);
    for branch in ["one", "two"] {
        let request = by(branch, "INVITE", same);
        assert_eq!(incoming(&mut world, &request), "request INVITE");
    }
}
