//! Requests within dialogs, by Record-Route and nothing else (RFC 3261 §16.6 step 4, §16.11; RFC 5658).

use sip::flow::Transport;
use sip_server::proxy::Config;

use crate::network::Weather;
use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, in_dialog, request, value, values};
use crate::policy::Contact;
use crate::world::World;

/// A call from alice, a phone with a password, to bob, a phone on UDP. It is answered.
fn call(world: &mut World, transport: Transport) {
    let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS)));
    contact.flow = Some(World::datagrams_of(UAS));
    world.policy().bind("bob", &contact);
    world.nodes[UAS].script = answers(&[(50, 180), (500, 200)]);
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, transport, &invite);
    let until = world.ms() + 1_000;
    world.run_until(until);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
}

/// The INVITE as the callee got it.
fn invite_of(world: &World) -> &str {
    let mut texts = world.nodes[UAS].texts.iter();
    texts.find(|text| text.starts_with("INVITE")).unwrap()
}

#[test]
fn ack_bye_and_reinvite_go_by_their_routes_both_ways() {
    let mut world = World::new();
    call(&mut world, Transport::Udp);
    // From the caller.
    world.nodes[UAS].script = answers(&[(10, 200)]);
    world.in_dialog(UAC, "INVITE");
    world.run_until(2_000);
    assert_eq!(world.heard(UAS)[2..], ["INVITE", "ACK"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(3_000);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
    world.nothing_is_left();
    // No context was there while the call lasted.
    assert_eq!(world.proxy().stats().stray_acks, 0);
}

#[test]
fn a_prack_goes_by_the_routes_of_the_reliable_response_rfc3262_4() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut world = World::new();
        let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS)));
        contact.flow = Some(World::datagrams_of(UAS));
        world.policy().bind("bob", &contact);
        let reliable = "Require: 100rel\r\nRSeq: 7\r\n".to_owned();
        world.nodes[UAS].script.invite = vec![(50, 183, reliable), (2_000, 200, String::new())];
        let lines = format!("{ALICE}Supported: 100rel\r\n");
        let invite = request("INVITE", "sip:bob@example.com", 1, &lines);
        world.send(UAC, transport, &invite);
        world.run_until(500);
        assert_eq!(value(invite_of(&world), "Supported"), Some("100rel"));
        let ringing = world.last(UAC).to_owned();
        assert!(ringing.starts_with("SIP/2.0 183 "), "{ringing}");
        let both = ["Require", "RSeq"].map(|name| value(&ringing, name));
        assert_eq!(both, [Some("100rel"), Some("7")]);
        // No credentials: the routes prove the dialog.
        let rack = "RAck: 7 1 INVITE\r\nContent-Length";
        let prack = in_dialog(&ringing, "PRACK").replace("Content-Length", rack);
        world.send(UAC, transport, &prack);
        world.run_until(1_000);
        assert_eq!(world.heard(UAS), ["INVITE", "PRACK"]);
        assert_eq!(value(world.last(UAS), "RAck"), Some("7 1 INVITE"));
        assert_eq!(world.heard(UAC), ["183 INVITE", "200 PRACK"]);
        world.run_until(3_000);
        assert_eq!(world.heard(UAC)[2..], ["200 INVITE"]);
        assert_eq!(world.heard(UAS)[2..], ["ACK"]);
        world.in_dialog(UAC, "BYE");
        world.run_until(4_000);
        assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
        world.nothing_is_left();
    }
}

#[test]
fn credentials_for_this_proxy_are_consumed_within_a_dialog_too_rfc3261_22_3() {
    let mut world = World::new();
    call(&mut world, Transport::Udp);
    let ok = world.nodes[UAC].texts.last().unwrap().clone();
    let other = "Proxy-Authorization: Digest username=\"a\", realm=\"other\"\r\n";
    let lines = format!("{ALICE}{other}Content-Length");
    let info = in_dialog(&ok, "INFO").replace("Content-Length", &lines);
    world.nodes[UAS].script = answers(&[(10, 200)]);
    world.send(UAC, Transport::Udp, &info);
    world.run_until(3_000);
    let got = world.last(UAS);
    assert!(got.starts_with("INFO "), "{got}");
    let credentials = values(got, "Proxy-Authorization");
    assert_eq!(credentials, ["Digest username=\"a\", realm=\"other\""]);
}

#[test]
fn the_callee_reaches_the_caller_by_the_callers_flow() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut world = World::new();
        call(&mut world, transport);
        let invite = invite_of(&world);
        // What a callee makes of the INVITE and its own 200: the routes in their order.
        let routes = values(invite, "Record-Route");
        let routes = routes.iter().map(|route| format!("Route: {route}\r\n"));
        let ok = world.nodes[UAC].texts.last().unwrap().clone();
        let bye = format!(
            "BYE sip:alice@192.0.2.1 SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 9 BYE\r\n\
             Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
            routes.collect::<String>(),
            value(&ok, "To").unwrap(),
            value(&ok, "From").unwrap(),
            value(&ok, "Call-ID").unwrap(),
        );
        world.send(UAS, Transport::Udp, &bye);
        world.run_until(3_000);
        assert_eq!(world.heard(UAC).last(), Some(&"BYE"), "{transport:?}");
        let got = world.last(UAC);
        assert!(got.contains(&format!("Via: SIP/2.0/{} ", transport.via_name())));
        assert!(value(got, "Route").is_none(), "both own values are removed");
        assert_eq!(world.heard(UAS).last(), Some(&"200 BYE"));
        // Nobody was asked for a password.
        assert_eq!(world.policy().checks, 1);
        world.nothing_is_left();
    }
}

#[test]
fn there_is_a_record_route_for_each_side_and_transport_rfc5658_4_2() {
    let mut world = World::new();
    call(&mut world, Transport::Tcp);
    let [callee, caller] = values(invite_of(&world), "Record-Route")[..] else {
        panic!("two values: {}", invite_of(&world));
    };
    assert!(
        caller.ends_with("@192.0.2.2:5060;transport=tcp;lr>"),
        "{caller}"
    );
    assert!(callee.ends_with("@192.0.2.2:5060;lr>"), "{callee}");
}

#[test]
fn between_trunks_one_value_is_enough() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    assert_eq!(values(invite_of(&world), "Record-Route").len(), 1);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    // By TCP there are two again.
    let invite = request("INVITE", "sip:bob@example.com", 2, "");
    world.send(UAC, Transport::Tcp, &invite);
    world.run_until(2_000);
    let second = world.nodes[UAS].texts.iter().rev();
    let second = second.clone().find(|text| text.starts_with("INVITE"));
    assert_eq!(values(second.unwrap(), "Record-Route").len(), 2);
    assert_eq!(world.heard(UAS)[2..], ["INVITE", "ACK"]);
    world.nothing_is_left();
}

#[test]
fn without_record_route_the_proxy_is_not_in_the_way() {
    let config = Config {
        record_route: false,
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.bind_bob(&[None]);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    assert!(values(invite_of(&world), "Record-Route").is_empty());
    world.nothing_is_left();
}

#[test]
fn requests_within_a_dialog_and_those_that_begin_none_are_not_recorded() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    for method in ["MESSAGE", "OPTIONS", "SUBSCRIBE", "REFER", "UNHEARDOF"] {
        let text = request(method, "sip:bob@example.com", 1, "");
        world.send(UAC, Transport::Udp, &text);
        let until = world.ms() + 500;
        world.run_until(until);
        let is_recorded = !matches!(method, "MESSAGE" | "OPTIONS");
        let count = values(world.last(UAS), "Record-Route").len();
        assert_eq!(count, usize::from(is_recorded), "{method}");
    }
}

#[test]
fn a_dialog_that_did_not_begin_here_is_none() {
    let mut world = World::new();
    call(&mut world, Transport::Udp);
    let ok = world.last(UAC).to_owned();
    let bye = in_dialog(&ok, "BYE");
    let route = value(&bye, "Route").unwrap();
    let at = bye.find(route).unwrap() + "<sip:d".len();
    let mut changed = bye.clone();
    let other = if &changed[at + 5..at + 6] == "B" {
        "C"
    } else {
        "B"
    };
    changed.replace_range(at + 5..at + 6, other);
    let routes_gone: String = bye
        .split_inclusive("\r\n")
        .filter(|line| !line.starts_with("Route"))
        .collect();
    let other_call = bye.replace("Call-ID: 1@", "Call-ID: 2@");
    let plain = bye.replacen(route, "<sip:192.0.2.2;lr>", 1);
    for (wrong, code) in [
        // Changed, or of another call: forged.
        (&changed, "403"),
        (&other_call, "403"),
        // Not there: as any other request, of somebody who must show a password.
        (&routes_gone, "407"),
    ] {
        world.send(UAC, Transport::Udp, wrong);
        let until = world.ms() + 500;
        world.run_until(until);
        let wanted = format!("{code} BYE");
        assert_eq!(world.heard(UAC).last(), Some(&&wanted[..]), "{wrong}");
        assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
        // An ACK is dropped.
        let ack = wrong
            .replacen("BYE ", "ACK ", 1)
            .replace(" BYE\r\n", " ACK\r\n");
        let via = format!("SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK{until}\r\n");
        world.send_raw(UAC, &ack.replacen("SIP/2.0\r\n", &via, 1));
        let until = world.ms() + 500;
        world.run_until(until);
        assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    }
    assert_eq!(world.proxy().stats().stray_acks, 3);
    // One value replaced by a route of one's own: the other still says where to.
    world.send(UAC, Transport::Udp, &plain);
    let until = world.ms() + 500;
    world.run_until(until);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    world.nothing_is_left();
}

#[test]
fn a_strict_router_in_front_gets_its_request_through_rfc3261_16_4() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    let ok = world.last(UAC).to_owned();
    let bye = in_dialog(&ok, "BYE");
    // As a strict router writes it: the route in the Request-URI, the target at the end.
    let route = value(&bye, "Route").unwrap();
    let own = route.trim_matches(['<', '>']);
    let target = value(&ok, "Contact").unwrap();
    let strict = bye
        .replacen(target.trim_matches(['<', '>']), own, 1)
        .replacen(&format!("Route: {route}"), &format!("Route: {target}"), 1);
    world.send(UAC, Transport::Udp, &strict);
    world.run_until(2_000);
    let got = world.last(UAS);
    assert!(got.starts_with(&format!(
        "BYE {} SIP/2.0\r\n",
        target.trim_matches(['<', '>'])
    )));
    assert!(value(got, "Route").is_none());
    world.nothing_is_left();
}

#[test]
fn a_strict_router_behind_gets_its_request_rfc3261_16_6_6() {
    let mut world = World::new();
    world.bind_bob(&[]);
    let next = format!("sip:{}", address(UAS));
    let mut contact = Contact::at("sip:bob@192.0.2.200");
    contact.path = format!("<{next}>, <sip:192.0.2.99;lr>");
    world.policy().bind("bob", &contact);
    let message = request("MESSAGE", "sip:bob@example.com", 1, "");
    world.send(UAC, Transport::Udp, &message);
    world.run_until(500);
    let got = world.last(UAS);
    assert!(
        got.starts_with(&format!("MESSAGE {next} SIP/2.0\r\n")),
        "{got}"
    );
    assert_eq!(
        values(got, "Route"),
        ["<sip:192.0.2.99;lr>, <sip:bob@192.0.2.200>"]
    );
}

#[test]
fn an_ack_is_forwarded_byte_by_byte_the_same_when_it_comes_again() {
    let mut world = World::new();
    call(&mut world, Transport::Udp);
    let acks: Vec<String> = world.nodes[UAC]
        .sent
        .iter()
        .filter(|(_, _, text)| text.starts_with("ACK"))
        .map(|(_, _, text)| text.clone())
        .collect();
    world.send_raw(UAC, &acks[0]);
    let until = world.ms() + 500;
    world.run_until(until);
    let forwarded: Vec<&String> = world.nodes[PROXY]
        .sent
        .iter()
        .filter(|(_, _, text)| text.starts_with("ACK"))
        .map(|(_, _, text)| text)
        .collect();
    assert_eq!(forwarded.len(), 2);
    assert_eq!(forwarded[0], forwarded[1]);
    world.nothing_is_left();
}
