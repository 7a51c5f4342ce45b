//! Calls that a user does not take, and that go on to a URI or a trunk.

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::NodeHop;
use sip_server::routes::{Forward, Forwards};

use crate::media::of_callee;
use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request, value};
use crate::policy::{CallPolicy, Contact};
use crate::trunks::{caller, route, trunk, world_of};
use crate::world::World;

/// A world in which the calls of bob go on to a voicemail server at `UAS + 1`, or by a number to a trunk at `UAS + 2`.
fn forwarding(is_registered: bool) -> World {
    let mut world = world_of(vec![route("+49", &["a"])], vec![trunk("a", &[UAS + 2])]);
    let voicemail = format!("sip:vm-bob@{}", address(UAS + 1));
    let forward = Forward {
        users: vec!["bob".to_owned()],
        busy: Some(voicemail.clone()),
        no_answer: Some("sip:+49170@example.com".to_owned()),
        unreachable: Some(voicemail.clone()),
        not_registered: Some(voicemail),
        ring_time: Duration::from_secs(5),
        ..Forward::default()
    };
    world.policy().forwards = Forwards::new(vec![forward]);
    if is_registered {
        let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS)));
        contact.flow = Some(World::datagrams_of(UAS));
        world.policy().bind("bob", &contact);
    } else {
        world
            .policy()
            .bindings
            .insert(b"bob@example.com".to_vec(), Vec::new());
    }
    world.nodes[UAS + 1].script = answers(&[(50, 200)]);
    world.nodes[UAS + 2].script = answers(&[(50, 180), (200, 200)]);
    world
}

fn call_bob(world: &mut World, until: u64) {
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(until);
}

/// The Diversion of the first INVITE that a node has got.
fn diversion(world: &World, node: usize) -> &str {
    let mut texts = world.nodes[node].texts.iter();
    let invite = texts.find(|text| text.starts_with("INVITE")).unwrap();
    value(invite, "Diversion").unwrap_or_default()
}

#[test]
fn a_busy_user_is_forwarded_to_a_uri_once() {
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 486)]);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(world.heard(UAS + 1), ["INVITE", "ACK"]);
    let reason = "<sip:bob@example.com>;reason=user-busy;counter=1";
    assert_eq!(diversion(&world, UAS + 1), reason);
    world.nothing_is_left();
    // The voicemail server is busy, too: the caller hears that, and nothing follows.
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 486)]);
    world.nodes[UAS + 1].script = answers(&[(50, 486)]);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["486 INVITE"]);
    assert_eq!(world.heard(UAS + 1), ["INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_user_who_does_not_answer_is_forwarded_through_the_routes_to_a_trunk() {
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 180), (60_000, 200)]);
    call_bob(&mut world, 4_900);
    assert_eq!(caller(&world), ["180 INVITE"]);
    assert_eq!(world.heard(UAS + 2).len(), 0);
    world.run_until(8_000);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    assert_eq!(caller(&world), ["180 INVITE", "180 INVITE", "200 INVITE"]);
    let invite = &world.nodes[UAS + 2].texts[0];
    assert!(invite.starts_with(&format!("INVITE sip:+49170@{}", address(UAS + 2))));
    assert!(diversion(&world, UAS + 2).contains("reason=no-answer"));
    world.nothing_is_left();
}

#[test]
fn a_user_who_cannot_be_reached_or_is_not_registered_is_forwarded() {
    let mut world = forwarding(true);
    world.dead = vec![UAS];
    call_bob(&mut world, 40_000);
    // The phone has the ring time, then the trunk has the call: it may be that the phone only does not answer.
    assert_eq!(caller(&world).last(), Some(&"200 INVITE"));
    world.nothing_is_left();
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 503)]);
    call_bob(&mut world, 2_000);
    assert!(diversion(&world, UAS + 1).contains("reason=unavailable"));
    world.nothing_is_left();
    let mut world = forwarding(false);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert!(diversion(&world, UAS + 1).contains("reason=unavailable"));
    world.nothing_is_left();
}

#[test]
fn declined_and_cancelled_calls_are_not_forwarded() {
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 603)]);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["603 INVITE"]);
    assert_eq!(world.heard(UAS + 1).len() + world.heard(UAS + 2).len(), 0);
    world.nothing_is_left();
    let mut world = forwarding(true);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(8_000);
    assert_eq!(caller(&world).last(), Some(&"487 INVITE"));
    assert_eq!(world.heard(UAS + 1).len() + world.heard(UAS + 2).len(), 0);
}

/// Calls of bob go on to carol if he is busy, and those of carol to bob. Carol is at `UAS + 3`.
fn to_another_user() -> World {
    let mut world = World::new();
    let forward = |user: &str, to: &str| Forward {
        users: vec![user.to_owned()],
        busy: Some(format!("sip:{to}@example.com")),
        not_registered: Some(format!("sip:{to}@example.com")),
        ..Forward::default()
    };
    world.policy().forwards = Forwards::new(vec![forward("bob", "carol"), forward("carol", "bob")]);
    world.policy().own_hop = Some(NodeHop {
        address: address(PROXY),
        is_tls: false,
        q: 1_000,
        load: 0,
        phones: Vec::new(),
    });
    world.policy().calls = Some(CallPolicy::default());
    for (user, node) in [("bob", UAS), ("carol", UAS + 3)] {
        let mut contact = Contact::at(&format!("sip:{user}@{}", address(node)));
        contact.flow = Some(World::datagrams_of(node));
        world.policy().bind(user, &contact);
    }
    world.nodes[UAS].script = answers(&[(50, 486)]);
    world.nodes[UAS + 3].script = answers(&[(50, 180), (200, 200)]);
    world
}

fn calls_of_alice(world: &mut World) -> u32 {
    world.policy().calls.as_ref().unwrap().calls_of("alice")
}

#[test]
fn a_call_goes_on_to_another_user_here_and_counts_once() {
    let mut world = to_another_user();
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS + 3), ["INVITE", "ACK"]);
    assert!(diversion(&world, UAS + 3).contains("<sip:bob@example.com>;reason=user-busy"));
    let got = world.nodes[UAS + 3].texts[0].clone();
    assert!(
        got.contains("P-Asserted-Identity: <sip:alice@example.com>"),
        "{got}"
    );
    assert_eq!(calls_of_alice(&mut world), 1);
    // The BYE passes this server once: its Route values are removed together.
    let before = world.sent(PROXY, "BYE").len();
    world.in_dialog(UAC, "BYE");
    world.run_until(3_000);
    assert_eq!(world.heard(UAS + 3).last(), Some(&"BYE"));
    assert_eq!(world.sent(PROXY, "BYE").len(), before + 1);
    assert_eq!(calls_of_alice(&mut world), 0);
    world.nothing_is_left();
    // The called party ends the call.
    let mut world = to_another_user();
    call_bob(&mut world, 2_000);
    let first = |node: usize, start: &str| {
        let mut texts = world.nodes[node].texts.iter();
        texts.find(|text| text.starts_with(start)).unwrap().clone()
    };
    let (ok, invite) = (first(UAC, "SIP/2.0 200"), first(UAS + 3, "INVITE"));
    let bye = of_callee(&invite, &ok, "BYE");
    world.send(UAS + 3, Transport::Udp, &bye);
    world.run_until(3_000);
    assert_eq!(world.heard(UAC).last(), Some(&"BYE"));
    assert_eq!(world.heard(UAS + 3).last(), Some(&"200 BYE"));
    assert_eq!(calls_of_alice(&mut world), 0);
    world.nothing_is_left();
}

/// Ends the call of alice, and returns the records of all calls.
fn records_at_the_end(world: &mut World) -> Vec<String> {
    world.in_dialog(UAC, "BYE");
    let until = world.ms() + 1_000;
    world.run_until(until);
    std::mem::take(&mut world.policy().ended_calls)
}

#[test]
fn the_record_of_a_call_names_whom_it_has_reached() {
    let recorded = |mut world: World| {
        let calls = CallPolicy {
            records: true,
            ..CallPolicy::default()
        };
        world.policy().calls = Some(calls);
        world
    };
    // Bob is busy, and carol takes the call. The pass of the server to itself has no record.
    let mut world = recorded(to_another_user());
    call_bob(&mut world, 2_000);
    let line = "200 alice>carol@example.com rang true answered true tried 2 by caller";
    assert_eq!(records_at_the_end(&mut world), [line]);
    // Carol is busy, too.
    let mut world = recorded(to_another_user());
    world.nodes[UAS + 3].script = answers(&[(50, 486)]);
    call_bob(&mut world, 2_000);
    let line = "486 alice>bob@example.com rang false answered false tried 2 by called";
    assert_eq!(world.policy().ended_calls, [line]);
    // Carol has no phone: the server refuses its own copy, and the call has one record.
    let mut world = recorded(to_another_user());
    let carol = b"carol@example.com".to_vec();
    world.policy().bindings.insert(carol, Vec::new());
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["486 INVITE"]);
    let line = "486 alice>bob@example.com rang false answered false tried 2 by called";
    assert_eq!(world.policy().ended_calls, [line]);
    // A voicemail server elsewhere, and a trunk.
    let mut world = recorded(forwarding(true));
    world.nodes[UAS].script = answers(&[(50, 486)]);
    call_bob(&mut world, 2_000);
    let name = format!("vm-bob@{}", address(UAS + 1));
    let line = format!("200 alice>{name} rang false answered true tried 2 by caller");
    assert_eq!(records_at_the_end(&mut world), [line]);
    let mut world = recorded(forwarding(true));
    world.nodes[UAS].script = answers(&[(50, 480)]);
    call_bob(&mut world, 2_000);
    let line = "200 alice>a rang true answered true tried 2 by caller";
    assert_eq!(records_at_the_end(&mut world), [line]);
}

#[test]
fn a_call_goes_on_to_one_user_only_and_not_in_circles() {
    let mut world = to_another_user();
    world.nodes[UAS + 3].script = answers(&[(50, 486)]);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["486 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE"]);
    assert_eq!(world.heard(UAS + 3), ["INVITE"]);
    assert_eq!(calls_of_alice(&mut world), 0);
    world.nothing_is_left();
    // A user who is not registered, and one whose forward leads to the same user.
    let mut world = to_another_user();
    world
        .policy()
        .bindings
        .insert(b"bob@example.com".to_vec(), Vec::new());
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world).last(), Some(&"200 INVITE"));
    let mut world = to_another_user();
    let own = Forward {
        busy: Some("sip:bob@example.com".to_owned()),
        ..Forward::default()
    };
    world.policy().forwards = Forwards::new(vec![own]);
    call_bob(&mut world, 2_000);
    assert_eq!(caller(&world), ["486 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE"]);
}

#[test]
fn a_call_that_goes_on_to_another_user_can_be_cancelled() {
    let mut world = to_another_user();
    world.nodes[UAS + 3].script = answers(&[(50, 180)]);
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    assert_eq!(caller(&world), ["180 INVITE"]);
    world.cancel(key);
    world.run_until(3_000);
    assert_eq!(world.heard(UAS + 3), ["INVITE", "CANCEL"]);
    assert_eq!(calls_of_alice(&mut world), 0);
}
