//! Who may send where: never an open relay.

use sip::flow::Transport;
use sip_server::proxy::Inbound;

use crate::node::{ALICE, UAC, UAS, address, request, value};
use crate::world::World;

/// What a caller gets for a MESSAGE to this URI.
fn answer(world: &mut World, uri: &str, extra: &str) -> String {
    let text = request("MESSAGE", uri, 1, extra);
    answer_to(world, &text)
}

fn answer_to(world: &mut World, text: &str) -> String {
    world.send(UAC, Transport::Udp, text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    world.heard(UAC).last().unwrap().to_string()
}

/// Bob has a phone; nobody is a trunk.
fn with_bob() -> World {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.policy().trunks.clear();
    world
}

#[test]
fn an_unknown_user_must_show_a_password_for_everything() {
    let foreign = format!("sip:x@{}", address(UAS));
    for uri in [
        "sip:bob@example.com",
        &foreign,
        "sip:nobody@example.com",
        "tel:+4930123",
    ] {
        let mut world = with_bob();
        assert_eq!(answer(&mut world, uri, ""), "407 MESSAGE", "{uri}");
        assert!(value(world.last(UAC), "Proxy-Authenticate").is_some());
        assert!(world.heard(UAS).is_empty());
        // A challenge keeps nothing (RFC 3261 §26.3.2.4).
        assert_eq!(world.proxy().stats().challenged, 1);
        assert_eq!(world.nodes[1].engine.stats().servers, 0);
    }
}

#[test]
fn a_challenge_is_sent_once_and_leaves_nothing_rfc3261_26_3_2_4() {
    let mut world = with_bob();
    // Nobody acknowledges it.
    let via = format!(
        "Via: SIP/2.0/UDP {};branch=z9hG4bK1\r\nFrom:",
        address(UAS + 1)
    );
    let invite = request("INVITE", "sip:bob@example.com", 1, "").replacen("From:", &via, 1);
    world.send_raw(UAS + 1, &invite);
    world.run_until(40_000);
    let sent = &world.nodes[1].sent;
    let [(_, to, challenge)] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(*to, UAS + 1);
    assert!(challenge.starts_with("SIP/2.0 407 "), "{challenge}");
    world.nothing_is_left();
}

#[test]
fn an_authenticated_caller_reaches_local_users_and_allowed_targets() {
    let mut world = with_bob();
    assert_eq!(
        answer(&mut world, "sip:bob@example.com", ALICE),
        "200 MESSAGE"
    );
    let foreign = format!("sip:x@{}", address(UAS));
    assert_eq!(answer(&mut world, &foreign, ALICE), "200 MESSAGE");
    // Nobody has allowed that address.
    assert_eq!(
        answer(&mut world, "sip:x@198.51.100.1", ALICE),
        "403 MESSAGE"
    );
    assert_eq!(answer(&mut world, "tel:+4930123", ALICE), "404 MESSAGE");
    world.nothing_is_left();
}

#[test]
fn only_authenticated_callers_learn_which_users_exist() {
    for (extra, unknown, silent) in [(ALICE, "404", "480"), ("", "480", "480")] {
        let mut world = with_bob();
        world.policy().inbound = Inbound::Anyone;
        world.policy().user("carol");
        let from = |uri: &str| {
            let text = request("MESSAGE", uri, 1, extra);
            match extra {
                "" => text.replace("alice@example.com", "eve@elsewhere.example"),
                _ => text,
            }
        };
        let answered = answer_to(&mut world, &from("sip:nobody@example.com"));
        assert_eq!(answered, format!("{unknown} MESSAGE"));
        let answered = answer_to(&mut world, &from("sip:carol@example.com"));
        assert_eq!(answered, format!("{silent} MESSAGE"));
        let answered = answer_to(&mut world, &from("sip:bob@example.com"));
        assert_eq!(answered, "200 MESSAGE");
    }
}

#[test]
fn a_domain_may_be_open_and_local_names_are_still_their_owners() {
    let mut world = with_bob();
    world.policy().inbound = Inbound::Anyone;
    let stranger = |uri: &str| {
        let text = request("MESSAGE", uri, 1, "");
        text.replace("alice@example.com", "eve@elsewhere.example")
    };
    assert_eq!(
        answer_to(&mut world, &stranger("sip:bob@example.com")),
        "200 MESSAGE"
    );
    // As alice only alice.
    assert_eq!(answer(&mut world, "sip:bob@example.com", ""), "407 MESSAGE");
    // And nowhere else.
    let foreign = format!("sip:x@{}", address(UAS));
    assert_eq!(answer_to(&mut world, &stranger(&foreign)), "407 MESSAGE");
    let routed = stranger("sip:bob@example.com").replacen(
        "From:",
        &format!("Route: <sip:{};lr>\r\nFrom:", address(UAS)),
        1,
    );
    assert_eq!(answer_to(&mut world, &routed), "407 MESSAGE");
}

#[test]
fn a_trunk_reaches_local_users_and_no_other_trunk() {
    let mut world = with_bob();
    world.policy().trunks.insert(address(UAC).ip());
    world.policy().trunks.insert(address(UAS + 1).ip());
    assert_eq!(answer(&mut world, "sip:bob@example.com", ""), "200 MESSAGE");
    let other = format!("sip:x@{}", address(UAS + 1));
    assert_eq!(answer(&mut world, &other, ""), "403 MESSAGE");
    let route = format!("Route: <sip:{};lr>\r\n", address(UAS + 1));
    assert_eq!(
        answer(&mut world, "sip:bob@example.com", &route),
        "403 MESSAGE"
    );
    assert_eq!(world.policy().checks, 0);
}

#[test]
fn from_is_an_address_of_the_user() {
    let mut world = with_bob();
    let as_bob =
        request("MESSAGE", "sip:bob@example.com", 1, ALICE).replace("sip:alice@", "sip:bob@");
    assert_eq!(answer_to(&mut world, &as_bob), "403 MESSAGE");
    let elsewhere = request("MESSAGE", "sip:bob@example.com", 2, ALICE).replace(
        "From: <sip:alice@example.com>",
        "From: <sip:alice@elsewhere.example>",
    );
    assert_eq!(answer_to(&mut world, &elsewhere), "403 MESSAGE");
    let anonymous = request("MESSAGE", "sip:bob@example.com", 3, ALICE).replace(
        "From: <sip:alice@example.com>",
        "From: \"Anonymous\" <sip:anonymous@anonymous.invalid>",
    );
    assert_eq!(answer_to(&mut world, &anonymous), "200 MESSAGE");
}

#[test]
fn credentials_that_contradict_the_request_are_400() {
    let mut world = with_bob();
    let wrong = "Proxy-Authorization: Test user=mallory\r\n";
    assert_eq!(
        answer(&mut world, "sip:bob@example.com", wrong),
        "400 MESSAGE"
    );
}

#[test]
fn requests_for_the_server_itself_are_not_forwarded() {
    for uri in [
        "sip:192.0.2.2",
        "sip:example.com",
        "sip:192.0.2.2:5060;transport=udp",
    ] {
        let mut world = with_bob();
        let text = request("OPTIONS", uri, 1, "");
        world.send(UAC, Transport::Udp, &text);
        world.run_until(100);
        assert_eq!(world.heard(1), ["Own"], "{uri}");
    }
    let mut world = with_bob();
    assert_eq!(answer(&mut world, "sip:bob@192.0.2.2", ""), "404 MESSAGE");
}

#[test]
fn a_preloaded_route_to_this_server_is_removed_rfc3261_16_4() {
    for route in [
        "<sip:192.0.2.2;lr>",
        "<sip:example.com;lr>",
        "<sip:192.0.2.2:5060>",
    ] {
        let mut world = with_bob();
        let extra = format!("{ALICE}Route: {route}\r\n");
        assert_eq!(
            answer(&mut world, "sip:bob@example.com", &extra),
            "200 MESSAGE"
        );
        assert!(value(world.last(UAS), "Route").is_none());
    }
}

#[test]
fn another_worker_is_named_before_a_password_is_checked() {
    let mut world = with_bob();
    world.policy().elsewhere = Some(3);
    let text = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(100);
    assert_eq!(world.heard(1), ["Elsewhere(3)"]);
    assert_eq!(world.policy().checks, 0);
    assert_eq!(world.nodes[1].engine.stats().servers, 0);
}

#[test]
fn answers_of_others_may_come_later() {
    let mut world = with_bob();
    world.policy().is_authentication_pending = true;
    world.policy().is_location_pending = true;
    let text = request("MESSAGE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(300);
    world.policy().is_authentication_pending = false;
    world.resume();
    world.run_until(600);
    assert!(world.heard(UAS).is_empty());
    let checks = world.policy().checks;
    world.policy().is_location_pending = false;
    world.resume();
    world.run_until(900);
    assert_eq!(world.heard(UAC), ["200 MESSAGE"]);
    // Credentials count once: they are not checked again.
    assert_eq!(world.policy().checks, checks);
    world.nothing_is_left();
}

#[test]
fn an_answer_that_never_comes_is_504_and_a_cancel_does_not_wait_for_it() {
    let mut world = with_bob();
    world.policy().is_location_pending = true;
    let text = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(15_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "504 INVITE"]);
    world.nothing_is_left();
    let text = request("INVITE", "sip:bob@example.com", 2, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    let now = world.ms();
    world.run_until(now + 500);
    world.cancel(key);
    world.run_until(now + 1_000);
    assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
    world.nothing_is_left();
}
