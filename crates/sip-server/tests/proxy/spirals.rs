//! What routes look at in a request decides whether it is a loop when it comes back (RFC 5393 §4.2.1).

use sip::flow::Transport;
use sip_server::routes::Route;

use crate::node::{ALICE, PROXY, UAC, UAS, address, request, values};
use crate::trunks::{NUMBER, answer_to, route, trunk, world_of};
use crate::world::World;

/// Calls of alice go to the trunk `a` at `UAS`, and calls of that trunk to `b` at `UAS + 1`.
fn world() -> World {
    let from_alice = Route {
        from_users: vec!["alice".to_owned()],
        ..route("+49", &["a"])
    };
    let back = Route {
        from_trunks: vec!["a".to_owned()],
        ..route("+49", &["b"])
    };
    let trunks = vec![trunk("a", &[UAS]), trunk("b", &[UAS + 1])];
    let mut world = world_of(vec![from_alice, back], trunks);
    world.policy().trunks.insert(address(UAS).ip());
    world.nodes[UAS].script.other = vec![(20_000, 200, String::new())];
    world.nodes[UAS + 1].script.other = vec![(20_000, 200, String::new())];
    let text = request("MESSAGE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(100);
    assert_eq!(world.heard(UAS), ["MESSAGE"]);
    world
}

/// A node sends a copy back with this From, and with the first Request-URI; the code of the server's answer.
fn send_back(world: &mut World, copy: &str, node: usize, from: &str) -> String {
    let sent = world.nodes[PROXY].sent.len();
    let branch = format!("z9hG4bKback{sent}");
    let via = format!("Via: SIP/2.0/UDP {};branch={branch}\r\n", address(node));
    let (_, rest) = copy.split_once("\r\n").unwrap();
    let lines = rest.split("\r\n").map(|line| match line {
        line if line.starts_with("From: ") => format!("From: <{from}>;tag=a1"),
        line => line.to_owned(),
    });
    let rest = lines.collect::<Vec<_>>().join("\r\n");
    let text = format!("MESSAGE {NUMBER} SIP/2.0\r\n{via}{rest}");
    world.send_raw(node, &text);
    let until = world.ms() + 500;
    world.run_until(until);
    answer_to(world, node, &branch)
}

#[test]
fn a_user_in_another_spelling_is_the_same_user_and_the_request_a_loop_rfc5393_4_2_1() {
    for (from, code) in [
        ("sip:alice@example.com", "482"),
        ("sip:%61lice@EXAMPLE.com;x=y", "482"),
        ("sips:alice@example.com", "482"),
        // The routes see another user, who must authenticate.
        ("sip:bob@example.com", "407"),
        ("sip:alice@example.net", "407"),
    ] {
        let mut world = world();
        let copy = world.nodes[UAS].texts[0].clone();
        // Another proxy, which is not a trunk.
        assert_eq!(send_back(&mut world, &copy, UAS + 2, from), code, "{from}");
    }
}

#[test]
fn routes_do_not_look_at_the_from_of_a_trunk_rfc5393_4_2_1() {
    let mut world = world();
    let first = world.nodes[UAS].texts[0].clone();
    // The trunk has other routes than alice.
    let from = "sip:anonymous@anonymous.invalid";
    assert_eq!(send_back(&mut world, &first, UAS, from), "");
    assert_eq!(world.heard(UAS + 1), ["MESSAGE"]);
    // The copy for `b` comes back from `a`, with another From.
    let second = world.nodes[UAS + 1].texts[0].clone();
    assert_eq!(values(&second, "Via").len(), 4);
    let code = send_back(&mut world, &second, UAS, "sip:+49170@192.0.2.3");
    assert_eq!(code, "482");
    assert_eq!(world.heard(UAS + 1).len(), 1);
}

#[test]
fn the_inputs_of_routes_are_asked_for_once_per_request() {
    let mut world = world();
    assert_eq!(world.policy().inputs_asked.get(), 1);
    // Also of a request that waits for a lookup.
    world.policy().user("bob");
    world.policy().bind(
        "bob",
        &crate::policy::Contact::at(&format!("sip:bob@{}", address(UAS + 2))),
    );
    world.policy().is_location_pending = true;
    let text = request("MESSAGE", "sip:bob@example.com", 2, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(200);
    assert!(world.heard(UAS + 2).is_empty(), "it waits");
    world.policy().is_location_pending = false;
    world.resume();
    world.run_until(300);
    assert_eq!(world.heard(UAS + 2), ["MESSAGE"]);
    assert_eq!(world.policy().inputs_asked.get(), 2);
    // It has the values of the time when it came, so it is a loop when it comes back.
    let copy = world.nodes[UAS + 2].texts[0].clone();
    let via = format!(
        "Via: SIP/2.0/UDP {};branch=z9hG4bKagain\r\n",
        address(UAS + 2)
    );
    let (_, rest) = copy.split_once("\r\n").unwrap();
    let text = format!("MESSAGE sip:bob@example.com SIP/2.0\r\n{via}{rest}");
    world.send_raw(UAS + 2, &text);
    world.run_until(800);
    assert_eq!(answer_to(&world, UAS + 2, "z9hG4bKagain"), "482");
}
