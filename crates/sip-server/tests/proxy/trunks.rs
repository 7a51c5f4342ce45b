//! Calls to trunks by routes: hunting, failures, an answer in time, and who may use them.

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::{Inbound, IsUser};
use sip_server::routes::{
    Action, Failures, HeaderRule, Next, NextHop, ProbeConfig, Route, Trunk, TrunkCounts,
};

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request, value, values};
use crate::policy::{CallPolicy, Contact};
use crate::world::World;

pub(crate) const NUMBER: &str = "sip:+49301234@example.com";

/// A trunk whose addresses are these nodes.
pub(crate) fn trunk(name: &str, nodes: &[usize]) -> Trunk {
    Trunk {
        name: name.to_owned(),
        to: nodes
            .iter()
            .map(|node| NextHop::new(&format!("sip:{}", address(*node))).unwrap())
            .collect(),
        ..Trunk::default()
    }
}

pub(crate) fn route(prefix: &str, trunks: &[&str]) -> Route {
    Route {
        name: format!("to {}", trunks.join(" and ")),
        prefixes: vec![prefix.to_owned()],
        action: Action::Trunks(trunks.iter().map(|&it| it.to_owned()).collect()),
        ..Route::default()
    }
}

pub(crate) fn on(busy: Next, no_answer: Next, unreachable: Next) -> Failures {
    Failures {
        busy,
        no_answer,
        unreachable,
    }
}

/// Three trunks, a, b and c, and a route to a and b.
pub(crate) fn world(failures: Failures) -> World {
    let mut world = World::new();
    let mut first = route("+49", &["a", "b"]);
    first.failures = failures;
    let trunks = vec![
        trunk("a", &[UAS]),
        trunk("b", &[UAS + 1]),
        trunk("c", &[UAS + 2]),
    ];
    let routes = vec![first, route("+", &["c"])];
    world.policy().set_routes(routes, trunks);
    world
}

pub(crate) fn world_of(routes: Vec<Route>, trunks: Vec<Trunk>) -> World {
    let mut world = World::new();
    world.policy().set_routes(routes, trunks);
    world
}

pub(crate) fn call(world: &mut World) {
    let invite = request("INVITE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
}

/// What the caller heard, but for the 100 that the proxy sends when it has waited for 200 ms.
pub(crate) fn caller(world: &World) -> Vec<&str> {
    let heard = world.heard(UAC).into_iter();
    heard.filter(|what| *what != "100 INVITE").collect()
}

pub(crate) fn counts(world: &mut World, trunk: u16) -> TrunkCounts {
    let now = world.now;
    world.policy().table.trunk(trunk).unwrap().1.counts(now)
}

#[test]
fn a_number_that_is_no_user_goes_to_the_first_trunk() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = answers(&[(50, 180), (900, 200)]);
    call(&mut world);
    world.run_until(1_500);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    let invite = &world.nodes[UAS].texts[0];
    let line = format!("INVITE sip:+49301234@{} SIP/2.0", address(UAS));
    assert!(invite.starts_with(&line), "{invite}");
    assert!(invite.contains("P-Asserted-Identity: <sip:alice@example.com>"));
    assert_eq!(world.heard(UAS + 1).len(), 0);
    world.in_dialog(UAC, "BYE");
    world.run_until(2_000);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    let counts = counts(&mut world, 0);
    assert_eq!((counts.calls, counts.responses[1]), (1, 1));
    world.nothing_is_left();
}

#[test]
fn a_user_here_is_never_routed_away() {
    let mut world = world(Failures::default());
    let contact = Contact::at(&format!("sip:bob@{}", address(UAS + 3)));
    world.policy().bind("+49301234", &contact);
    world.nodes[UAS + 3].script = answers(&[(20, 200)]);
    call(&mut world);
    world.run_until(500);
    assert_eq!(world.heard(UAS + 3), ["INVITE", "ACK"]);
    assert_eq!(world.heard(UAS).len(), 0);
    world.nothing_is_left();
}

#[test]
fn an_invite_without_any_answer_moves_on_with_a_new_branch() {
    let mut world = world(Failures::default());
    world.dead = vec![UAS];
    world.nodes[UAS + 1].script = answers(&[(50, 180), (500, 200)]);
    call(&mut world);
    world.run_until(4_000);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    let first = world.sent(PROXY, "INVITE");
    let moved = first.iter().find(|(_, to)| *to == UAS + 1).unwrap().0;
    assert!((2_000..2_200).contains(&moved), "{moved}");
    let branch = |to: usize| {
        let sent = world.nodes[PROXY].sent.iter();
        let mut sent = sent.filter(|it| it.1 == to && it.2.starts_with("INVITE"));
        value(&sent.next().unwrap().2, "Via").unwrap().to_owned()
    };
    assert_ne!(branch(UAS), branch(UAS + 1));
    let first = counts(&mut world, 0);
    assert_eq!((first.silent, first.moved_on), (1, 1));
    world.nothing_is_left();
}

#[test]
fn a_100_is_an_answer() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::NextTrunk));
    // The agent's engine sends 100 by itself, and nothing more for five seconds.
    world.nodes[UAS].script = answers(&[(5_000, 180), (6_000, 200)]);
    call(&mut world);
    world.run_until(8_000);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS + 1).len(), 0);
    world.nothing_is_left();
}

#[test]
fn a_call_that_has_rung_stays_at_its_trunk() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = answers(&[(50, 180), (60_000, 500)]);
    world.nodes[UAS + 1].script = answers(&[(50, 200)]);
    call(&mut world);
    world.run_until(50_000);
    assert_eq!(caller(&world), ["180 INVITE"]);
    assert_eq!(world.heard(UAS + 1).len(), 0);
    world.nothing_is_left();
}

#[test]
fn a_late_200_of_the_first_trunk_is_forwarded_and_ends_the_second() {
    let mut world = world(Failures::default());
    // It hears the INVITE, and its first response comes after three seconds.
    world.nodes[UAS + 1].script = answers(&[(10, 180), (60_000, 200)]);
    world.dead = vec![UAS];
    call(&mut world);
    world.run_until(2_500);
    assert_eq!(caller(&world), ["180 INVITE"]);
    world.dead.clear();
    world.nodes[UAS].script = answers(&[(0, 200)]);
    world.run_until(8_000);
    assert_eq!(caller(&world).last(), Some(&"200 INVITE"));
    assert_eq!(world.heard(UAS + 1), ["INVITE", "CANCEL"]);
    world.nothing_is_left();
}

#[test]
fn each_failure_has_what_follows_it() {
    use Next::{NextRoute, NextTrunk, Stop};
    // The code, what follows, which node gets the call next, and what the caller hears in the end.
    let cases = [
        (503, on(Stop, Stop, NextTrunk), Some(UAS + 1), "200 INVITE"),
        (500, on(Stop, Stop, NextRoute), Some(UAS + 2), "200 INVITE"),
        (504, on(Stop, Stop, Stop), None, "504 INVITE"),
        (486, on(NextTrunk, Stop, Stop), Some(UAS + 1), "200 INVITE"),
        (486, on(Stop, NextTrunk, NextTrunk), None, "486 INVITE"),
        (480, on(Stop, NextRoute, Stop), Some(UAS + 2), "200 INVITE"),
        (408, on(Stop, NextTrunk, Stop), Some(UAS + 1), "200 INVITE"),
        (404, on(NextTrunk, NextTrunk, NextTrunk), None, "404 INVITE"),
        (603, on(NextTrunk, NextTrunk, NextTrunk), None, "603 INVITE"),
    ];
    for (code, failures, next, last) in cases {
        let mut world = world(failures);
        world.nodes[UAS].script = answers(&[(20, code)]);
        for other in [UAS + 1, UAS + 2] {
            world.nodes[other].script = answers(&[(20, 200)]);
        }
        call(&mut world);
        world.run_until(1_000);
        assert_eq!(caller(&world), [last], "{code} {failures:?}");
        for other in [UAS + 1, UAS + 2] {
            let is_called = !world.heard(other).is_empty();
            assert_eq!(is_called, next == Some(other), "{code} {failures:?}");
        }
        world.nothing_is_left();
    }
}

#[test]
fn behind_the_last_trunk_comes_the_next_route_that_matches() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = answers(&[(20, 503)]);
    world.nodes[UAS + 1].script = answers(&[(20, 502)]);
    world.nodes[UAS + 2].script = answers(&[(20, 200)]);
    call(&mut world);
    world.run_until(1_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(world.heard(UAS + 2), ["INVITE", "ACK"]);
    world.nothing_is_left();
}

#[test]
fn a_trunk_that_rings_too_long_counts_as_no_answer() {
    let mut world = world(on(Next::Stop, Next::NextTrunk, Next::Stop));
    world.nodes[UAS].script = answers(&[(20, 180)]);
    world.nodes[UAS + 1].script = answers(&[(20, 200)]);
    call(&mut world);
    world.run_until(29_000);
    assert_eq!(caller(&world), ["180 INVITE"]);
    world.run_until(31_000);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    world.nothing_is_left();
}

#[test]
fn a_cancel_of_the_caller_ends_the_hunt() {
    let mut world = world(on(Next::NextTrunk, Next::NextTrunk, Next::NextTrunk));
    world.nodes[UAS].script = answers(&[(20, 180)]);
    let invite = request("INVITE", NUMBER, 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(5_000);
    assert_eq!(caller(&world), ["180 INVITE", "487 INVITE"]);
    assert_eq!(world.heard(UAS + 1).len(), 0);
    world.nothing_is_left();
}

/// The responses of a trunk with their times, the responses that the caller gets, and the end of the test in ms.
type Case<'c> = (&'c [(u64, u16)], &'c [&'c str], u64);

/// The trunk may respond to a CANCEL in any way. The caller gets one final response in time, no other trunk is tried,
/// and no state is left.
#[test]
fn a_trunk_may_answer_a_cancel_late_never_or_with_a_200() {
    let cases: [Case<'_>; 5] = [
        // Late.
        (
            &[(20, 180), (9_000, 487)],
            &["180 INVITE", "487 INVITE"],
            9_500,
        ),
        (
            &[(20, 180), (9_000, 503)],
            &["180 INVITE", "500 INVITE"],
            9_500,
        ),
        // Never: 64*T1 after the CANCEL, the proxy and the caller both end the INVITE (RFC 3261 §9.1).
        (&[(20, 180)], &["180 INVITE", "TimedOut"], 34_000),
        // The 200 and the CANCEL cross.
        (
            &[(20, 180), (1_020, 200)],
            &["180 INVITE", "200 INVITE"],
            1_500,
        ),
        (
            &[(20, 180), (9_000, 200)],
            &["180 INVITE", "200 INVITE"],
            9_500,
        ),
    ];
    for (script, wanted, until) in cases {
        let mut world = world(on(Next::NextTrunk, Next::NextTrunk, Next::NextTrunk));
        world.nodes[UAS].script = answers(script);
        world.nodes[UAS].script.ignores_cancel = true;
        let invite = request("INVITE", NUMBER, 1, ALICE);
        let key = world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        world.cancel(key);
        world.run_until(until);
        assert_eq!(caller(&world), wanted, "{script:?}");
        if wanted[1] == "TimedOut" {
            assert!(!world.sent(PROXY, "SIP/2.0 487").is_empty());
        }
        let is_answered = wanted[1].starts_with("200");
        let acks = world.heard(UAS).iter().filter(|it| **it == "ACK").count();
        assert_eq!(acks, usize::from(is_answered), "{script:?}");
        assert_eq!(world.heard(UAS + 1).len(), 0);
        world.nothing_is_left();
    }
}

/// RFC 3261 §9.1: the proxy sends no CANCEL before a provisional response.
#[test]
fn a_cancelled_call_to_a_silent_trunk_ends_and_goes_nowhere_else() {
    let mut world = world(on(Next::NextTrunk, Next::NextTrunk, Next::NextTrunk));
    world.dead = vec![UAS];
    let invite = request("INVITE", NUMBER, 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(40_000);
    assert_eq!(caller(&world).len(), 1, "{:?}", caller(&world));
    assert!(world.sent(PROXY, "CANCEL").is_empty());
    assert_eq!(world.heard(UAS + 1).len(), 0);
    world.nothing_is_left();
}

#[test]
fn the_calls_of_a_trunk_go_to_a_trunk_only_where_a_route_names_it() {
    let mut world = world(Failures::default());
    world.policy().trunks.insert(address(UAS + 2).ip());
    world.nodes[UAS].script = answers(&[(20, 200)]);
    // A trunk that no route names gets 404 for a number that is nobody here.
    let invite = request("INVITE", NUMBER, 1, "");
    world.send(UAS + 2, Transport::Udp, &invite);
    world.run_until(500);
    assert_eq!(world.heard(UAS + 2), ["404 INVITE"]);
    let foreign = request("INVITE", "sip:+49301234@other.example", 2, "");
    world.send(UAS + 2, Transport::Udp, &foreign);
    world.run_until(1_000);
    assert_eq!(world.heard(UAS + 2).last(), Some(&"403 INVITE"));
    assert_eq!(world.heard(UAS).len(), 0);
    let mut named = route("+49", &["a"]);
    named.from_trunks = vec!["c".to_owned()];
    let trunks = vec![trunk("a", &[UAS]), trunk("c", &[UAS + 2])];
    world.policy().set_routes(vec![named], trunks);
    let invite = request("INVITE", NUMBER, 3, "");
    world.send(UAS + 2, Transport::Udp, &invite);
    world.run_until(1_500);
    assert_eq!(world.heard(UAS + 2).last(), Some(&"200 INVITE"));
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    // The route that names a trunk is not for users.
    let invite = request("INVITE", NUMBER, 4, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(2_000);
    assert_eq!(caller(&world), ["404 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn unauthenticated_callers_never_reach_a_trunk() {
    for inbound in [Inbound::Known, Inbound::Anyone] {
        let mut world = world(Failures::default());
        world.policy().inbound = inbound;
        let mut stranger = request("INVITE", NUMBER, 1, "");
        stranger = stranger.replace("sip:alice@example.com", "sip:mallory@other.example");
        world.send(UAC, Transport::Udp, &stranger);
        let local = request("INVITE", NUMBER, 2, "");
        world.send(UAC, Transport::Udp, &local);
        let foreign = stranger.replace("@example.com", "@elsewhere.example");
        let foreign = foreign.replace("1@192.0.2.1", "3@192.0.2.1");
        world.send(UAC, Transport::Udp, &foreign);
        world.run_until(1_000);
        let first = match inbound {
            Inbound::Known => "407 INVITE",
            Inbound::Anyone => "480 INVITE",
        };
        assert_eq!(caller(&world), [first, "407 INVITE", "407 INVITE"]);
        for node in UAS..UAS + 3 {
            assert_eq!(world.heard(node).len(), 0);
        }
        world.nothing_is_left();
    }
}

#[test]
fn a_trunk_reaches_users_by_a_route_that_rewrites_the_number() {
    let mut world = World::new();
    let inbound = Route {
        prefixes: vec!["+4930".to_owned()],
        from_trunks: vec!["a".to_owned()],
        replace: Some("bob".to_owned()),
        action: Action::Domain("example.com".to_owned()),
        ..Route::default()
    };
    let blocked = Route {
        prefixes: vec!["+4931".to_owned()],
        action: Action::Reject {
            code: 403,
            reason: "Not From Here".to_owned(),
        },
        ..Route::default()
    };
    world.bind_bob(&[None]);
    world.policy().trunks.clear();
    world.policy().trunks.insert(address(UAS + 2).ip());
    world
        .policy()
        .set_routes(vec![inbound, blocked], vec![trunk("a", &[UAS + 2])]);
    world.nodes[UAS].script = answers(&[(20, 200)]);
    // To the address of this server, as carriers send it.
    let uri = format!("sip:+49301234@{}", address(PROXY));
    world.send(UAS + 2, Transport::Udp, &request("INVITE", &uri, 1, ""));
    world.run_until(500);
    assert_eq!(world.heard(UAS + 2), ["200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    let uri = format!("sip:+49311234@{}", address(PROXY));
    world.send(UAS + 2, Transport::Udp, &request("INVITE", &uri, 2, ""));
    world.run_until(1_000);
    assert_eq!(world.heard(UAS + 2).last(), Some(&"403 INVITE"));
    assert!(world.last(UAS + 2).starts_with("SIP/2.0 403 Not From Here"));
    world.nothing_is_left();
}

#[test]
fn a_telephone_number_reaches_a_trunk() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = answers(&[(20, 200)]);
    let invite = request("INVITE", "tel:+49-30-1234", 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(500);
    assert_eq!(caller(&world), ["200 INVITE"]);
    let line = format!("INVITE sip:+49301234@{} SIP/2.0", address(UAS));
    assert!(world.nodes[UAS].texts[0].starts_with(&line));
    world.nothing_is_left();
}

#[test]
fn retry_after_and_the_limit_of_calls_send_calls_elsewhere() {
    let mut world = world(Failures::default());
    let mut trunks = vec![trunk("a", &[UAS]), trunk("b", &[UAS + 1])];
    trunks[0].calls_per_second = 1;
    world
        .policy()
        .set_routes(vec![route("+49", &["a", "b"])], trunks.clone());
    world.nodes[UAS].script = answers(&[(10, 200)]);
    world.nodes[UAS + 1].script = answers(&[(10, 200)]);
    for number in 1..=3 {
        let invite = request("INVITE", NUMBER, number, ALICE);
        world.send(UAC, Transport::Udp, &invite);
    }
    world.run_until(200);
    let invites = |world: &World, node| {
        world
            .heard(node)
            .iter()
            .filter(|it| **it == "INVITE")
            .count()
    };
    assert_eq!((invites(&world, UAS), invites(&world, UAS + 1)), (1, 2));
    assert_eq!(counts(&mut world, 0).limited, 2);
    trunks[0].calls_per_second = 0;
    trunks[0].probe = ProbeConfig {
        slow_start: Duration::ZERO,
        ..ProbeConfig::default()
    };
    world
        .policy()
        .set_routes(vec![route("+49", &["a", "b"])], trunks);
    let busy = vec![(10, 503, "Retry-After: 20\r\n".to_owned())];
    world.nodes[UAS].script.invite = busy;
    for (number, ms) in [(4, 1_000), (5, 2_000), (6, 22_000)] {
        world.run_until(ms);
        world.send(
            UAC,
            Transport::Udp,
            &request("INVITE", NUMBER, number, ALICE),
        );
    }
    world.run_until(23_000);
    // The second call did not even try it.
    assert_eq!((invites(&world, UAS), invites(&world, UAS + 1)), (3, 5));
    world.nothing_is_left();
}

#[test]
fn without_a_trunk_that_is_available_there_is_a_503() {
    let mut world = world(Failures::default());
    for trunk in 0..3 {
        for _ in 0..3 {
            let now = world.now;
            let health = world.policy().table.trunk(trunk).unwrap().1;
            health.probed(0, now, sip_server::routes::Outcome::Silent);
        }
    }
    call(&mut world);
    world.run_until(500);
    assert_eq!(caller(&world), ["503 INVITE"]);
    assert!(value(world.last(UAC), "Retry-After").is_some());
    world.nothing_is_left();
}

#[test]
fn if_the_callee_cannot_be_looked_up_the_request_waits_or_gets_503() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.policy().other_users = IsUser::Unavailable;
    call(&mut world);
    world.run_until(500);
    assert_eq!(caller(&world), ["503 INVITE"]);
    world.policy().other_users = IsUser::Pending;
    let checks = world.policy().checks;
    let invite = request("INVITE", NUMBER, 2, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_500);
    assert_eq!(caller(&world), ["503 INVITE"]);
    world.policy().other_users = IsUser::No;
    world.resume();
    world.run_until(2_500);
    assert_eq!(caller(&world)[1..], ["200 INVITE"]);
    // The proxy checks the credentials only once, not again after the lookup.
    assert_eq!(world.policy().checks, checks + 1);
}

#[test]
fn a_trunk_with_all_its_calls_gets_no_more_until_one_ends() {
    let small = |name: &str, node: usize| Trunk {
        max_calls: 1,
        ..trunk(name, &[node])
    };
    let mut world = world_of(
        vec![route("+49", &["a", "b"])],
        vec![small("a", UAS), small("b", UAS + 1)],
    );
    world.policy().calls = Some(CallPolicy::default());
    for node in [UAS, UAS + 1] {
        world.nodes[node].script = answers(&[(50, 180), (200, 200)]);
    }
    let in_progress = |world: &mut World| [0, 1].map(|trunk| counts(world, trunk).in_progress);
    let invite = |world: &mut World, number: u32| {
        let invite = request("INVITE", NUMBER, number, ALICE);
        world.send(UAC, Transport::Udp, &invite);
        let until = world.ms() + 500;
        world.run_until(until);
    };
    invite(&mut world, 1);
    assert_eq!(in_progress(&mut world), [1, 0]);
    invite(&mut world, 2);
    assert_eq!(
        in_progress(&mut world),
        [1, 1],
        "the next trunk of the route"
    );
    invite(&mut world, 3);
    assert_eq!(caller(&world).last(), Some(&"503 INVITE"));
    let heard = world.nodes[UAC].texts.last().unwrap();
    assert_eq!(value(heard, "Retry-After"), Some("1"), "{heard}");
    assert_eq!(in_progress(&mut world), [1, 1]);
    assert_eq!(counts(&mut world, 0).limited, 2);
    // The BYE of the last call that was answered.
    world.in_dialog(UAC, "BYE");
    let until = world.ms() + 500;
    world.run_until(until);
    assert_eq!(in_progress(&mut world), [1, 0]);
    world.nodes[UAS + 1].script = answers(&[(50, 486)]);
    invite(&mut world, 4);
    assert_eq!(caller(&world).last(), Some(&"486 INVITE"));
    assert_eq!(
        in_progress(&mut world),
        [1, 0],
        "a call that failed has ended"
    );
    let table = &world.policy().table;
    let codes = table.trunk(1).unwrap().1.codes();
    assert_eq!(codes, [("INVITE", 200, 1), ("INVITE", 486, 1)]);
}

/// The server's answer to a request of a node with this branch.
pub(crate) fn answer_to(world: &World, node: usize, branch: &str) -> String {
    let mut sent = world.nodes[PROXY].sent.iter();
    let found = sent
        .find(|(_, to, text)| *to == node && text.starts_with("SIP/2.0 ") && text.contains(branch));
    found.map_or(String::new(), |(_, _, text)| text[8..11].to_owned())
}

#[test]
fn what_a_route_looks_at_makes_a_spiral_of_a_loop_rfc5393_4_2_1() {
    for (rule, line) in [("trunk", ""), ("header", "X-Screened: yes\r\n")] {
        let mut back = route("+49", &["b"]);
        back.priority = 1;
        back.from_trunks = vec!["a".to_owned()];
        if rule == "header" {
            back.headers.push(HeaderRule {
                name: "x-screened".to_owned(),
                value: "yes".to_owned(),
                is_prefix: false,
            });
        }
        let trunks = vec![trunk("a", &[UAS]), trunk("b", &[UAS + 1])];
        let mut world = world_of(vec![back, route("+", &["a"])], trunks);
        world.policy().trunks.insert(address(UAS).ip());
        let text = request("MESSAGE", NUMBER, 1, ALICE);
        world.nodes[UAS].script.other = vec![(20_000, 200, String::new())];
        world.send(UAC, Transport::Udp, &text);
        world.run_until(100);
        // The trunk is a server that screens calls. It sends the request back as it was, or with a mark.
        let mut vias = String::new();
        let send_back = |world: &mut World, vias: &str, number: u32| {
            let copy = world.nodes[UAS].texts[0].clone();
            let (_, rest) = copy.split_once("\r\n").unwrap();
            let via = format!(
                "Via: SIP/2.0/UDP {};branch=z9hG4bKback{number}\r\n",
                address(UAS)
            );
            let text = format!("MESSAGE {NUMBER} SIP/2.0\r\n{via}{vias}{line}{rest}");
            world.send_raw(UAS, &text);
            let until = world.ms() + 500;
            world.run_until(until);
            answer_to(world, UAS, &format!("z9hG4bKback{number}"))
        };
        assert_eq!(send_back(&mut world, &vias, 1), "200", "{rule}");
        assert_eq!(world.heard(UAS + 1), ["MESSAGE"], "{rule}");
        // The same comes back once more, now with the Via of the second round: a loop.
        let second = world.nodes[UAS + 1].texts[0].clone();
        for via in &values(&second, "Via")[..2] {
            vias += &format!("Via: {via}\r\n");
        }
        assert_eq!(send_back(&mut world, &vias, 2), "482", "{rule}");
        assert_eq!(world.heard(UAS + 1).len(), 1, "{rule}");
    }
}

#[test]
fn the_record_of_a_call_has_each_failed_attempt_in_order() {
    let small = Trunk {
        max_calls: 1,
        ..trunk("full", &[UAS + 3])
    };
    let mut all = route("+49", &["a", "slow", "full", "b"]);
    all.failures.busy = Next::NextTrunk;
    let trunks = vec![
        trunk("a", &[UAS]),
        trunk("slow", &[UAS + 1]),
        small,
        trunk("b", &[UAS + 2]),
    ];
    let mut world = world_of(vec![all], trunks);
    world.policy().calls = Some(CallPolicy {
        records: true,
        ..CallPolicy::default()
    });
    let taken = world.policy().table.trunk(2).unwrap().1.begin_call(1);
    world.dead = vec![UAS + 1];
    world.nodes[UAS].script = answers(&[(50, 486)]);
    world.nodes[UAS + 2].script = answers(&[(50, 200)]);
    call(&mut world);
    world.run_until(4_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(5_000);
    let line = "200 alice>b rang false answered true tried 3 by caller failed [a:486 slow:silent full:limited]";
    assert_eq!(world.policy().ended_calls, [line]);
    drop(taken);
}
