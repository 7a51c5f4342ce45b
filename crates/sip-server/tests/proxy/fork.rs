//! Forking and the best response (RFC 3261 §16.6, §16.7; RFC 5393).

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::{Config, Forking};

use crate::network::Weather;
use crate::node::{PROXY, Script, UAC, UAS, address, answers, in_dialog, request, value, values};
use crate::policy::Contact;
use crate::world::World;

fn with(forking: Forking) -> World {
    let config = Config {
        forking,
        ..Config::default()
    };
    World::with(Weather::FINE, 1, config)
}

/// The q of an agent, and what it answers.
type Agent<'a> = (Option<u16>, &'a [(u64, u16)]);

/// The world with user agents that follow these scripts, each bound with this q.
fn forked(forking: Forking, agents: &[Agent<'_>]) -> World {
    let mut world = with(forking);
    let qs: Vec<_> = agents.iter().map(|(q, _)| *q).collect();
    world.bind_bob(&qs);
    for (place, (_, script)) in agents.iter().enumerate() {
        world.nodes[UAS + place].script = answers(script);
    }
    world
}

#[test]
fn one_target_rings_and_answers() {
    let mut world = forked(Forking::ByQ, &[(None, &[(50, 180), (1000, 200)])]);
    world.invite();
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(world.proxy().stats().acks, 1);
    world.nothing_is_left();
}

#[test]
fn parallel_branches_ring_and_the_first_200_cancels_the_others_rfc3261_16_7_10() {
    let mut world = forked(
        Forking::Parallel,
        &[
            (Some(500), &[(50, 180), (60_000, 200)]),
            (None, &[(80, 183), (1_000, 200)]),
            (None, &[(60, 180), (60_000, 200)]),
        ],
    );
    world.invite();
    world.run_until(5_000);
    let heard = world.heard(UAC);
    assert_eq!(heard[..3], ["180 INVITE", "180 INVITE", "183 INVITE"]);
    assert_eq!(heard[3..], ["200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    assert_eq!(world.heard(UAS + 1), ["INVITE", "ACK"]);
    assert_eq!(world.heard(UAS + 2), ["INVITE", "CANCEL"]);
    world.nothing_is_left();
}

#[test]
fn groups_of_equal_q_are_tried_one_after_the_other_rfc3261_16_6() {
    let mut world = forked(
        Forking::ByQ,
        &[
            (Some(100), &[(10, 180), (500, 200)]),
            (None, &[(10, 180), (1_000, 486)]),
            (Some(1000), &[(10, 180), (2_000, 480)]),
        ],
    );
    world.invite();
    world.run_until(8_000);
    let first = |node: usize| world.nodes[node].heard[0].0;
    assert!(first(UAS + 1) < 100 && first(UAS + 2) < 100);
    // The last group's turn comes when both have ended.
    assert!((2_000..2_100).contains(&first(UAS)), "{}", first(UAS));
    assert_eq!(world.heard(UAC).last(), Some(&"200 INVITE"));
    world.nothing_is_left();
}

#[test]
fn sequential_forking_tries_one_at_a_time() {
    let mut world = forked(
        Forking::Sequential,
        &[
            (None, &[(500, 480)]),
            (None, &[(500, 486)]),
            (Some(900), &[(500, 404)]),
        ],
    );
    world.invite();
    world.run_until(5_000);
    let starts: Vec<u64> = (0..3)
        .map(|place| world.nodes[UAS + place].heard[0].0)
        .collect();
    assert!(
        starts[0].abs_diff(starts[1]) >= 500 && starts[2] >= 1_000,
        "{starts:?}"
    );
    assert_eq!(world.heard(UAC), ["100 INVITE", "486 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_group_that_only_rings_makes_way_for_the_next() {
    let config = Config {
        ring_time: Duration::from_secs(5),
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.bind_bob(&[None, Some(500)]);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    world.nodes[UAS + 1].script = answers(&[(50, 180), (1_000, 200)]);
    world.invite();
    world.run_until(10_000);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    let second = world.nodes[UAS + 1].heard[0].0;
    assert!((5_000..5_300).contains(&second), "{second}");
    assert_eq!(world.heard(UAC), ["180 INVITE", "180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

/// Each final response against each other one, in both orders.
#[test]
fn the_best_of_two_final_responses_is_forwarded_rfc3261_16_7_6() {
    let better_first = [
        (603, 302),
        (603, 486),
        (302, 404),
        (302, 500),
        (401, 486),
        (407, 404),
        (415, 486),
        (484, 480),
        (486, 480),
        (480, 404),
        (404, 408),
        (486, 500),
        (404, 503),
        (500, 503),
    ];
    for (better, worse) in better_first {
        for (one, other) in [(better, worse), (worse, better)] {
            let mut world = forked(
                Forking::Parallel,
                &[(None, &[(100, one)]), (None, &[(400, other)])],
            );
            world.invite();
            world.run_until(3_000);
            let wanted = format!("{better} INVITE");
            assert_eq!(world.heard(UAC).last(), Some(&&wanted[..]), "{one} {other}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn a_6xx_ends_all_branches_and_is_sent_when_they_have_ended_rfc3261_16_7_5() {
    let mut world = forked(
        Forking::ByQ,
        &[
            (None, &[(50, 180), (60_000, 200)]),
            (None, &[(200, 603)]),
            (Some(100), &[(50, 200)]),
        ],
    );
    world.invite();
    world.run_until(5_000);
    assert_eq!(world.heard(UAC).last(), Some(&"603 INVITE"));
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    assert!(world.heard(UAS + 2).is_empty(), "nothing new is tried");
    world.nothing_is_left();
}

#[test]
fn a_503_is_forwarded_as_500_rfc3261_16_7_6() {
    let mut world = forked(Forking::ByQ, &[(None, &[(50, 503)])]);
    world.invite();
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["500 INVITE"]);
    assert_eq!(value(world.last(UAC), "Retry-After"), None);
    world.nothing_is_left();
}

#[test]
fn challenges_of_all_branches_are_merged_rfc3261_16_7_7() {
    let mut world = with(Forking::Parallel);
    world.bind_bob(&[None, None, None]);
    for (place, code, name) in [(0, 401, "WWW"), (1, 407, "Proxy"), (2, 401, "WWW")] {
        let lines = format!("{name}-Authenticate: Digest realm=\"{place}\", nonce=\"n\"\r\n");
        world.nodes[UAS + place].script = Script {
            invite: vec![(100 + 50 * place as u64, code, lines)],
            ..Script::default()
        };
    }
    world.invite();
    world.run_until(3_000);
    assert_eq!(world.heard(UAC).last(), Some(&"401 INVITE"));
    let last = world.last(UAC);
    let realms = [0, 2].map(|place| format!("Digest realm=\"{place}\", nonce=\"n\""));
    assert_eq!(values(last, "WWW-Authenticate"), realms);
    assert_eq!(
        values(last, "Proxy-Authenticate"),
        ["Digest realm=\"1\", nonce=\"n\""]
    );
    world.nothing_is_left();
}

#[test]
fn a_single_challenge_comes_back_as_it_was() {
    let mut world = with(Forking::Parallel);
    world.bind_bob(&[None, None]);
    let line = "www-authenticate:   Digest realm=\"x\",nonce=\"n\"\r\n";
    world.nodes[UAS].script = Script {
        invite: vec![(50, 401, line.to_owned())],
        ..Script::default()
    };
    world.nodes[UAS + 1].script = answers(&[(100, 404)]);
    world.invite();
    world.run_until(3_000);
    assert!(world.last(UAC).contains(line), "{}", world.last(UAC));
}

#[test]
fn max_breadth_is_divided_and_never_exceeded_rfc5393_5_3() {
    let cases: [(&str, usize, &[&str]); 5] = [
        ("", 3, &["20", "20", "20"]),
        ("Max-Breadth: 5\r\n", 3, &["2", "2", "1"]),
        ("Max-Breadth: 1\r\n", 1, &["1"]),
        ("Max-Breadth: 99999999999\r\n", 2, &["30", "30"]),
        ("Max-Breadth: 3\r\n", 3, &["1", "1", "1"]),
    ];
    for (line, agents, wanted) in cases {
        let mut world = with(Forking::ByQ);
        world.bind_bob(&vec![None; agents]);
        let invite = request("INVITE", "sip:bob@example.com", 1, line);
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(50);
        let got: Vec<&str> = (0..agents)
            .map(|place| {
                let all = values(world.last(UAS + place), "Max-Breadth");
                assert_eq!(all.len(), 1, "one alone");
                all[0]
            })
            .collect();
        assert_eq!(got, wanted, "{line}");
    }
    // Too few for all that are to ring at once.
    let mut world = with(Forking::Parallel);
    world.bind_bob(&[None, None, None]);
    let invite = request("INVITE", "sip:bob@example.com", 1, "Max-Breadth: 2\r\n");
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["440 INVITE"]);
    assert!(
        world
            .last(UAC)
            .starts_with("SIP/2.0 440 Max-Breadth Exceeded\r\n")
    );
    // One after the other takes no more than one.
    let mut world = forked(
        Forking::Sequential,
        &[(None, &[(10, 404)]), (None, &[(10, 200)])],
    );
    let invite = request("INVITE", "sip:bob@example.com", 1, "Max-Breadth: 1\r\n");
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["200 INVITE"]);
}

#[test]
fn an_ack_has_one_max_breadth_as_well_rfc5393_5_3_3() {
    for (line, breadth) in [
        ("", "60"),
        ("Max-Breadth: 7\r\n", "7"),
        ("Max-Breadth: 600\r\n", "60"),
        ("Max-Breadth: 7\r\nMax-Breadth: 9\r\n", "60"),
    ] {
        let mut world = forked(Forking::Parallel, &[(None, &[(10, 200)])]);
        world.invite();
        world.run_until(500);
        let ok = world.last(UAC).to_owned();
        let via = format!(
            "SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bKack\r\n{line}",
            address(UAC)
        );
        let ack = in_dialog(&ok, "ACK").replacen("SIP/2.0\r\n", &via, 1);
        world.send_raw(UAC, &ack);
        world.run_until(1_000);
        assert!(world.last(UAS).starts_with("ACK "));
        assert_eq!(values(world.last(UAS), "Max-Breadth"), [breadth], "{line}");
    }
}

#[test]
fn a_request_that_is_no_invite_is_forked_and_its_first_2xx_forwarded() {
    let mut world = with(Forking::Parallel);
    world.bind_bob(&[None, None]);
    for place in 0..2 {
        world.nodes[UAS + place].script.other =
            vec![(100 + 200 * place as u64, 200, String::new())];
    }
    let message = request("MESSAGE", "sip:bob@example.com", 1, "");
    world.send(UAC, Transport::Udp, &message);
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["200 MESSAGE"]);
    world.nothing_is_left();
}

#[test]
fn a_3xx_is_forwarded_or_followed_if_configured_rfc3261_16_7_4() {
    for recurses in [false, true] {
        let config = Config {
            recurses,
            ..Config::default()
        };
        let mut world = World::with(Weather::FINE, 1, config);
        world.bind_bob(&[None]);
        let contact = format!("Contact: <sip:bob@{}?Subject=x>\r\n", address(UAS + 1));
        world.nodes[UAS].script = Script {
            invite: vec![(50, 302, contact)],
            ..Script::default()
        };
        // It sends the caller back, who was there.
        let back = format!("Contact: <sip:bob@{}>\r\n", address(UAS + 1));
        world.nodes[UAS + 1].script = Script {
            invite: vec![(50, 302, back)],
            ..Script::default()
        };
        world.invite();
        world.run_until(3_000);
        assert_eq!(world.heard(UAC), ["302 INVITE"]);
        // The 302 whose only contact was followed is not sent without it.
        assert_eq!(values(world.last(UAC), "Contact").len(), 1);
        let tried = world.heard(UAS + 1).len();
        assert_eq!(tried, usize::from(recurses));
        if recurses {
            let start = format!("INVITE sip:bob@{} SIP/2.0", address(UAS + 1));
            assert!(world.last(UAS + 1).starts_with(&start));
        }
        world.nothing_is_left();
    }
}

#[test]
fn a_call_ends_if_the_last_flow_of_an_instance_is_gone_too_rfc5626_7() {
    let mut world = World::new();
    world.bind_bob(&[]);
    let [first, second] = [UAS, UAS + 1].map(|node| world.phone_connects(node));
    for (reg_id, flow, updated) in [(1, second, 5), (2, first, 9)] {
        let mut contact = Contact::at("sip:bob@192.0.2.9");
        contact.flow = Some(flow);
        contact.instance = "urn:uuid:1".to_owned();
        contact.reg_id = reg_id;
        contact.updated = updated;
        world.policy().bind("bob", &contact);
    }
    world.nodes[UAS].script = answers(&[(2_000, 408)]);
    world.invite();
    world.run_until(1_000);
    world.disconnect(UAS + 1);
    world.run_until(5_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "480 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE"]);
    world.nothing_is_left();
}

#[test]
fn flows_of_one_instance_are_tried_one_at_a_time_rfc5626_7() {
    for (gone_id, alive_id) in [(1, 2), (2, 1)] {
        let mut world = World::new();
        world.bind_bob(&[]);
        let gone = world.phone_connects(UAS);
        let alive = world.phone_connects(UAS + 1);
        for (reg_id, flow, updated) in [(alive_id, alive, 5), (gone_id, gone, 9)] {
            // Both flows have the same contact, as in the examples of the RFC.
            let mut contact = Contact::at("sip:bob@192.0.2.9");
            contact.flow = Some(flow);
            contact.instance = "urn:uuid:1".to_owned();
            contact.reg_id = reg_id;
            contact.updated = updated;
            world.policy().bind("bob", &contact);
        }
        world.nodes[UAS].script = answers(&[(50, 486)]);
        world.nodes[UAS + 1].script = answers(&[(50, 200)]);
        // The latest flow is gone.
        world.disconnect(UAS);
        world.invite();
        world.run_until(3_000);
        assert_eq!(world.heard(UAC), ["200 INVITE"], "reg-id {gone_id} is gone");
        assert_eq!(world.policy().failed, ["sip:bob@192.0.2.9"]);
        let left = world.policy().user("bob");
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].flow(), Some(alive));
        world.nothing_is_left();
    }
}

/// The Reason fields of the CANCEL that the proxy has sent to a node.
fn reasons(world: &World, node: usize) -> Vec<&str> {
    let mut sent = world.nodes[PROXY].sent.iter();
    let cancel = sent.find(|(_, to, text)| *to == node && text.starts_with("CANCEL "));
    values(&cancel.unwrap().2, "Reason")
}

#[test]
fn phones_are_told_why_they_stop_ringing_rfc3326_3_1() {
    for (code, wanted) in [
        (200, "SIP ;cause=200 ;text=\"Call completed elsewhere\""),
        (603, "SIP ;cause=603"),
    ] {
        // The second phone has sent no response yet when the third one answers.
        let mut world = forked(
            Forking::Parallel,
            &[
                (None, &[(50, 180), (60_000, 200)]),
                (None, &[(900, 180), (60_000, 200)]),
                (None, &[(100, code)]),
            ],
        );
        world.invite();
        world.run_until(5_000);
        assert_eq!(reasons(&world, UAS), [wanted]);
        assert_eq!(reasons(&world, UAS + 1), [wanted]);
        world.nothing_is_left();
    }
}

#[test]
fn the_reason_of_a_cancel_goes_to_every_phone_rfc3326_2() {
    let lines = "Reason: Q.850 ;cause=16\r\nReason: SIP ;cause=200 ;text=\"Taken\"\r\n";
    for (lines, wanted) in [
        (
            lines,
            &["Q.850 ;cause=16", "SIP ;cause=200 ;text=\"Taken\""][..],
        ),
        ("", &[]),
    ] {
        let mut world = forked(
            Forking::Parallel,
            &[(None, &[(50, 180), (60_000, 200)]), (None, &[(50, 180)])],
        );
        let key = world.invite();
        world.run_until(500);
        world.cancel_with_reason(key, lines);
        world.run_until(5_000);
        assert_eq!(reasons(&world, UAS), wanted);
        assert_eq!(reasons(&world, UAS + 1), wanted);
        assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
        world.nothing_is_left();
    }
}
