//! Matrices: each response against each other, at each moment, over each transport. What must come out is said by a few
//! plain rules.

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::{Config, Forking};

use crate::network::Weather;
use crate::node::{PROXY, Script, UAC, UAS, address, answers, request, value};
use crate::policy::Contact;
use crate::world::World;

/// Final responses, the best first (RFC 3261 §16.7 step 6). A 2xx is none of them: it is forwarded at once.
const RANKED: [u16; 11] = [603, 302, 401, 484, 486, 480, 404, 487, 408, 500, 503];

/// What a caller hears in place of a response that is the best one.
fn as_forwarded(code: u16) -> u16 {
    match code {
        503 => 500,
        // RFC 5626 §11.5: endpoints receive no 430.
        430 => 480,
        code => code,
    }
}

fn rank(code: u16) -> usize {
    RANKED.iter().position(|ranked| *ranked == code).unwrap()
}

fn with(forking: Forking, agents: &[&[(u64, u16)]], qs: &[Option<u16>]) -> World {
    let config = Config {
        forking,
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.bind_bob(qs);
    for (place, script) in agents.iter().enumerate() {
        world.nodes[UAS + place].script = answers(script);
    }
    world
}

/// The final responses that the caller heard to requests with this method.
fn finals(world: &World, method: &str) -> Vec<u16> {
    let heard = world.heard(UAC).into_iter();
    let codes = heard.filter_map(|what| {
        let (code, of) = what.split_once(' ')?;
        (of == method).then(|| code.parse::<u16>().unwrap())
    });
    codes.filter(|code| *code >= 200).collect()
}

#[test]
fn a_final_response_of_the_only_branch_is_forwarded_as_it_is_rfc3261_16_7() {
    let codes = [
        200, 202, 300, 301, 302, 305, 380, 400, 401, 402, 403, 404, 405, 406, 407, 408, 410, 412,
        413, 414, 415, 416, 417, 420, 421, 422, 423, 428, 429, 430, 433, 436, 437, 438, 439, 440,
        469, 470, 480, 481, 482, 483, 484, 485, 486, 487, 488, 489, 491, 493, 494, 499, 500, 501,
        502, 503, 504, 505, 513, 580, 599, 600, 603, 604, 606, 607, 699,
    ];
    for code in codes {
        let mut world = with(Forking::ByQ, &[&[(50, 180), (200, code)]], &[None]);
        world.invite();
        world.run_until(3_000);
        assert_eq!(finals(&world, "INVITE"), [as_forwarded(code)], "{code}");
        assert_eq!(world.sent(PROXY, "INVITE").len(), 1, "{code}");
        world.nothing_is_left();
    }
}

#[test]
fn provisional_responses_but_100_are_forwarded_until_there_is_a_final_one_rfc3261_16_7_5() {
    for code in [101, 180, 181, 182, 183, 189, 199] {
        let script: &[(u64, u16)] = &[(50, 100), (60, code), (300, 200)];
        let mut world = with(Forking::ByQ, &[script], &[None]);
        world.invite();
        world.run_until(3_000);
        let wanted = [format!("{code} INVITE"), "200 INVITE".to_owned()];
        assert_eq!(world.heard(UAC), wanted, "{code}");
        world.nothing_is_left();
    }
}

#[test]
fn two_branches_at_a_time_have_one_final_response_rfc3261_16_7() {
    let all = [&[200][..], &RANKED].concat();
    for first in &all {
        for second in &all {
            let agents: [&[(u64, u16)]; 2] =
                [&[(20, 180), (100, *first)], &[(20, 180), (400, *second)]];
            let mut world = with(Forking::Parallel, &agents, &[None, None]);
            world.invite();
            world.run_until(5_000);
            let wanted = match (*first, *second) {
                // The second is cancelled.
                (200 | 603, _) => *first,
                (_, 200) => 200,
                (one, other) if rank(other) < rank(one) => other,
                (one, _) => one,
            };
            let got = finals(&world, "INVITE");
            assert_eq!(got, [as_forwarded(wanted)], "{first} {second}");
            let cancels = usize::from(matches!(first, 200 | 603));
            assert_eq!(
                world.sent(PROXY, "CANCEL").len(),
                cancels,
                "{first} {second}"
            );
            world.nothing_is_left();
        }
    }
}

#[test]
fn one_branch_after_the_other_has_one_final_response_rfc3261_16_6() {
    let all = [&[200][..], &RANKED].concat();
    for forking in [Forking::Sequential, Forking::ByQ] {
        for first in &all {
            for second in &all {
                let agents: [&[(u64, u16)]; 2] = [&[(100, *first)], &[(100, *second)]];
                let mut world = with(forking, &agents, &[Some(900), Some(100)]);
                world.invite();
                world.run_until(5_000);
                let is_over = matches!(first, 200 | 603);
                let wanted = match (*first, *second) {
                    (one, _) if is_over => one,
                    (_, 200) => 200,
                    (one, other) if rank(other) < rank(one) => other,
                    (one, _) => one,
                };
                let got = finals(&world, "INVITE");
                assert_eq!(got, [as_forwarded(wanted)], "{first} {second}");
                let tried = usize::from(!is_over);
                let heard = world.heard(UAS + 1);
                let second_tried = heard.iter().filter(|it| **it == "INVITE");
                assert_eq!(second_tried.count(), tried, "{first} {second}");
                assert!(world.sent(PROXY, "CANCEL").is_empty());
                world.nothing_is_left();
            }
        }
    }
}

#[test]
fn a_silent_branch_delays_the_others_and_hides_none_rfc3261_16_7() {
    for code in [200, 302, 404, 486, 500, 503, 603] {
        let agents: [&[(u64, u16)]; 2] = [&[], &[(100, code)]];
        let mut world = with(Forking::Parallel, &agents, &[None, None]);
        world.dead.push(UAS);
        world.invite();
        world.run_until(20_000);
        // A 2xx is forwarded at once. A branch without any response is not cancelled (RFC 3261 §9.1).
        let at_once: &[u16] = if code == 200 { &[200] } else { &[] };
        assert_eq!(finals(&world, "INVITE"), at_once, "{code}");
        world.run_until(40_000);
        // A 5xx is of a higher class than the 408 of the silent one.
        let wanted = if code / 100 == 5 { 408 } else { code };
        assert_eq!(finals(&world, "INVITE"), [wanted], "{code}");
        assert!(world.sent(PROXY, "CANCEL").is_empty());
        world.nothing_is_left();
    }
}

#[test]
fn three_branches_are_as_good_as_their_best_in_any_order_rfc3261_16_7() {
    let sets = [
        [302, 404, 500],
        [401, 486, 500],
        [484, 480, 503],
        [486, 404, 408],
        [480, 487, 503],
        [404, 408, 500],
    ];
    for set in sets {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let at = |place: usize| [(100 + 150 * place as u64, set[order[place]])];
            let scripts = [at(0), at(1), at(2)];
            let agents: Vec<&[(u64, u16)]> = scripts.iter().map(|it| &it[..]).collect();
            let mut world = with(Forking::Parallel, &agents, &[None, None, None]);
            world.invite();
            world.run_until(5_000);
            assert_eq!(finals(&world, "INVITE"), [set[0]], "{set:?} {order:?}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn a_cancel_at_any_moment_leaves_one_final_response_rfc3261_16_10() {
    for cancelled_at in [
        5, 15, 25, 45, 75, 100, 300, 500, 1_900, 1_985, 1_995, 2_005, 2_015, 2_025, 2_100,
    ] {
        for ignores_cancel in [false, true] {
            let mut world = World::new();
            world.bind_bob(&[None, None]);
            for place in 0..2 {
                world.nodes[UAS + place].script = Script {
                    ignores_cancel,
                    ..answers(&[(40, 180), (2_000, if place == 0 { 200 } else { 486 })])
                };
            }
            let key = world.invite();
            world.run_until(cancelled_at);
            world.cancel(key);
            world.run_until(10_000);
            let got = finals(&world, "INVITE");
            // Each hop takes 10 ms, so the 200 leaves at 2,020 ms; a CANCEL of 2,000 ms or later comes too late for it.
            let wanted = match (ignores_cancel, cancelled_at < 2_000) {
                (false, true) => 487,
                _ => 200,
            };
            assert_eq!(got, [wanted], "{cancelled_at} {ignores_cancel}");
            let acknowledged = world.heard(UAS).last() == Some(&"ACK");
            assert_eq!(acknowledged, wanted == 200, "{cancelled_at}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn timer_c_is_set_anew_by_what_is_forwarded_and_not_by_a_100_rfc3261_16_8() {
    for (again, resets) in [
        (100, false),
        (101, true),
        (180, true),
        (183, true),
        (199, true),
    ] {
        let script: &[(u64, u16)] = &[(50, 180), (150_000, again)];
        let mut world = with(Forking::ByQ, &[script], &[None]);
        world.invite();
        // More than three minutes are required.
        world.run_until(180_100);
        assert!(world.sent(PROXY, "CANCEL").is_empty(), "{again}");
        world.run_until(600_000);
        let cancelled = world.sent(PROXY, "CANCEL")[0].0;
        assert_eq!(cancelled > 330_000, resets, "{again}: {cancelled}");
        assert_eq!(finals(&world, "INVITE"), [487], "{again}");
        world.nothing_is_left();
    }
}

#[test]
fn timer_c_runs_for_each_branch_and_ends_none_of_the_others_rfc3261_16_8() {
    let agents: [&[(u64, u16)]; 2] = [&[(50, 180)], &[(50, 180), (100_000, 180), (250_000, 200)]];
    let mut world = with(Forking::Parallel, &agents, &[None, None]);
    world.invite();
    world.run_until(260_000);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    assert_eq!(finals(&world, "INVITE"), [200]);
    world.nothing_is_left();
}

#[test]
fn every_method_is_forwarded_whatever_it_is_rfc3261_16_3() {
    let methods = [
        "OPTIONS",
        "MESSAGE",
        "INFO",
        "SUBSCRIBE",
        "NOTIFY",
        "REFER",
        "PUBLISH",
        "UPDATE",
        "PRACK",
        "BYE",
        "FLY",
        "x-very.odd!method*_+`'~",
        "invite",
    ];
    for method in methods {
        for code in [200, 202, 302, 403, 489, 500, 606] {
            let mut world = World::new();
            world.bind_bob(&[None]);
            world.nodes[UAS].script.other = vec![(50, code, String::new())];
            let text = request(method, "sip:bob@example.com", 1, "");
            world.send(UAC, Transport::Udp, &text);
            world.run_until(3_000);
            assert_eq!(world.heard(UAS), [method]);
            let heard = world.heard(UAC);
            assert_eq!(heard, [format!("{code} {method}")], "{method}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn a_forked_request_that_is_no_invite_has_one_final_response_rfc3261_16_7() {
    // RFC 4320 §4.1: nobody sends a 408 for what is no INVITE.
    let mut all = [&[200][..], &RANKED].concat();
    all.retain(|code| *code != 408);
    for first in &all {
        for second in &all {
            let mut world = with(Forking::Parallel, &[], &[None, None]);
            world.nodes[UAS].script.other = vec![(100, *first, String::new())];
            world.nodes[UAS + 1].script.other = vec![(400, *second, String::new())];
            let text = request("MESSAGE", "sip:bob@example.com", 1, "");
            world.send(UAC, Transport::Udp, &text);
            world.run_until(40_000);
            let wanted = match (*first, *second) {
                (200, _) | (_, 200) => 200,
                (one, other) if rank(other) < rank(one) => other,
                (one, _) => one,
            };
            let got = finals(&world, "MESSAGE");
            assert_eq!(got, [as_forwarded(wanted)], "{first} {second}");
            assert!(
                world.sent(PROXY, "CANCEL").is_empty(),
                "it cannot be cancelled"
            );
            world.nothing_is_left();
        }
    }
}

/// The ways of both sides.
const WAYS: [(Transport, Transport); 4] = [
    (Transport::Udp, Transport::Udp),
    (Transport::Udp, Transport::Tcp),
    (Transport::Tcp, Transport::Udp),
    (Transport::Tcp, Transport::Tcp),
];

/// Bob by his contact, or by the connection of his registration.
fn bob_by(world: &mut World, transport: Transport, by_flow: bool) {
    let name = match transport {
        Transport::Udp => "udp",
        _ => "tcp",
    };
    let mut contact = Contact::at(&format!("sip:bob@{};transport={name}", address(UAS)));
    if by_flow {
        contact.flow = Some(match transport {
            Transport::Udp => World::datagrams_of(UAS),
            _ => world.phone_connects(UAS),
        });
    }
    world.policy().trunks.insert(address(UAC).ip());
    world.policy().bind("bob", &contact);
}

#[test]
fn calls_end_as_they_should_over_each_pair_of_transports() {
    for (caller, callee) in WAYS {
        for by_flow in [false, true] {
            for code in [200, 302, 407, 486, 503, 603] {
                let case = format!("{caller:?} {callee:?} {by_flow} {code}");
                let mut world = World::new();
                bob_by(&mut world, callee, by_flow);
                world.nodes[UAS].script = answers(&[(50, 180), (200, code)]);
                let text = request("INVITE", "sip:bob@example.com", 1, "");
                world.send(UAC, caller, &text);
                world.run_until(3_000);
                assert_eq!(finals(&world, "INVITE"), [as_forwarded(code)], "{case}");
                if code == 200 {
                    assert_eq!(world.heard(UAS), ["INVITE", "ACK"], "{case}");
                    world.in_dialog(UAC, "BYE");
                    world.run_until(6_000);
                    assert_eq!(world.heard(UAS).last(), Some(&"BYE"), "{case}");
                    assert_eq!(finals(&world, "BYE"), [200], "{case}");
                }
                world.nothing_is_left();
            }
        }
    }
}

#[test]
fn calls_are_cancelled_over_each_pair_of_transports() {
    for (caller, callee) in WAYS {
        for by_flow in [false, true] {
            let case = format!("{caller:?} {callee:?} {by_flow}");
            let mut world = World::new();
            bob_by(&mut world, callee, by_flow);
            world.nodes[UAS].script = answers(&[(50, 180)]);
            let text = request("INVITE", "sip:bob@example.com", 1, "");
            let key = world.send(UAC, caller, &text);
            world.run_until(1_000);
            world.cancel(key);
            world.run_until(4_000);
            assert_eq!(finals(&world, "INVITE"), [487], "{case}");
            assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"], "{case}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn every_request_of_a_dialog_goes_by_its_routes_over_each_pair_of_transports() {
    for (caller, callee) in WAYS {
        let mut world = World::new();
        bob_by(&mut world, callee, true);
        world.nodes[UAS].script = answers(&[(50, 180), (200, 200)]);
        let text = request("INVITE", "sip:bob@example.com", 1, "");
        world.send(UAC, caller, &text);
        world.run_until(2_000);
        // They are in its script no more than the first was.
        for (number, method) in ["INFO", "UPDATE", "REFER", "MESSAGE", "FLY", "BYE"]
            .iter()
            .enumerate()
        {
            world.in_dialog(UAC, method);
            world.run_until(3_000 + 1_000 * number as u64);
            assert_eq!(
                world.heard(UAS).last(),
                Some(method),
                "{caller:?} {callee:?}"
            );
            assert_eq!(
                finals(&world, method),
                [200],
                "{caller:?} {callee:?} {method}"
            );
            // RFC 3261 §16.6 step 4 asks for another Record-Route in dialogs; the route set is the first one's.
            assert_eq!(value(world.last(UAS), "Record-Route"), None);
        }
        world.nothing_is_left();
    }
}

#[test]
fn repetitions_of_a_request_are_forwarded_once_rfc3261_17_2() {
    for method in ["INVITE", "MESSAGE", "FLY"] {
        for copies in [2, 3, 8] {
            let mut world = World::new();
            world.bind_bob(&[None]);
            world.nodes[UAS].script = answers(&[(50, 180), (200, 486)]);
            let via = "SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKagain\r\n";
            let text = request(method, "sip:bob@example.com", 1, "");
            let text = text.replacen("SIP/2.0\r\n", via, 1);
            for copy in 0..copies {
                world.send_raw(UAC, &text);
                world.run_until(20 * (copy + 1));
            }
            world.run_until(3_000);
            assert_eq!(world.sent(PROXY, method).len(), 1, "{method} {copies}");
            // Nobody acknowledges what was sent as bytes, so it is repeated until Timer H.
            let late = Duration::from_secs(60).as_millis() as u64;
            world.run_until(late);
        }
    }
}

/// RFC 5626 §7: another flow of the instance is tried after a 408 or 430, or if there is no response; never after
/// another response.
#[test]
fn a_second_flow_of_an_instance_is_tried_after_408_or_430_alone_rfc5626_7() {
    for (code, goes_on) in [
        (430, true),
        (200, false),
        (302, false),
        (404, false),
        (408, true),
        (480, false),
        (486, false),
        (500, false),
        (503, false),
        (603, false),
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        for place in 0..2 {
            let flow = world.phone_connects(UAS + place);
            let mut contact = Contact::at(&format!("sip:bob@192.0.2.9;n={place}"));
            contact.flow = Some(flow);
            contact.instance = "urn:uuid:1".to_owned();
            contact.reg_id = place as u32 + 1;
            // The first is the latest.
            contact.updated = 9 - place as u64;
            world.policy().bind("bob", &contact);
        }
        world.nodes[UAS].script = answers(&[(50, code)]);
        world.nodes[UAS + 1].script = answers(&[(50, 200)]);
        world.invite();
        world.run_until(3_000);
        let wanted = if goes_on { 200 } else { as_forwarded(code) };
        assert_eq!(finals(&world, "INVITE"), [wanted], "{code}");
        assert_eq!(world.heard(UAS + 1).is_empty(), !goes_on, "{code}");
        world.nothing_is_left();
    }
}
