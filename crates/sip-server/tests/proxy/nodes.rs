//! Phones at other nodes of a cluster: a token in Route lets the node of the phone know that another node has sent the
//! request.

use sip::flow::Transport;
use sip_server::proxy::{AtNodes, Config, Forking, NodeHop};
use std::time::Duration;

use crate::network::Weather;
use crate::node::{
    ALICE, HAS_PARTNER, PROXY, RUN, UAC, UAS, address, answers, request, value, values, with,
};
use crate::policy::Contact;
use crate::world::World;

/// Bob is a user without a phone here; the user agent at `UAS` stands for a node that has one.
fn with_node() -> World {
    let mut world = World::new();
    world.policy().user("bob");
    world.policy().nodes = AtNodes::Known(vec![hop(UAS, 1_000)]);
    world
}

/// The user agent at this place stands for a node.
fn hop(place: usize, q: u16) -> NodeHop {
    NodeHop {
        address: address(place),
        is_tls: false,
        q,
        load: 0,
        phones: Vec::new(),
    }
}

/// A node with a flow of this phone.
fn flow_at(place: usize, load: u64, phone: u64) -> NodeHop {
    NodeHop {
        load,
        phones: vec![phone],
        ..hop(place, 1_000)
    }
}

fn invite(world: &mut World, number: u32, extra: &str) {
    let text = request("INVITE", "sip:bob@example.com", number, extra);
    world.send(UAC, Transport::Udp, &text);
}

/// The INVITE that came to the user agent at `UAS`.
fn got(world: &World) -> String {
    let mut texts = world.nodes[UAS].texts.iter();
    texts.find(|it| it.starts_with("INVITE")).unwrap().clone()
}

/// The Route that a node gets for the first call of alice to bob.
fn route() -> String {
    let mut world = with_node();
    invite(&mut world, 1, ALICE);
    world.run_until(100);
    value(&got(&world), "Route").unwrap().to_owned()
}

#[test]
fn a_call_goes_to_the_node_that_has_the_phone_and_its_dialog_passes_through_this_one() {
    let mut world = with_node();
    world.nodes[UAS].script = answers(&[(10, 180), (50, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(200);
    let got = got(&world);
    assert!(got.starts_with("INVITE sip:bob@example.com "), "{got}");
    let routes = values(&got, "Route");
    let [route] = routes[..] else {
        panic!("{got}");
    };
    assert!(route.ends_with(&format!("@{};lr>", address(UAS))), "{got}");
    assert!(value(&got, "Proxy-Authorization").is_none());
    assert!(value(&got, "P-Asserted-Identity").is_some());
    assert_eq!(values(&got, "Record-Route").len(), 2, "{got}");
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(400);
    let heard = world.heard(UAS);
    assert_eq!(heard[heard.len() - 2..], ["ACK", "BYE"], "{heard:?}");
    world.nothing_is_left();
}

#[test]
fn a_node_with_tls_gets_the_call_and_its_dialog_over_tls_and_nobody_else_is_reached_so() {
    let mut world = with(&HAS_PARTNER, with_node);
    if let AtNodes::Known(nodes) = &mut world.policy().nodes {
        nodes[0].is_tls = true;
    }
    world.nodes[UAS].script = answers(&[(10, 180), (50, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(200);
    let got = got(&world);
    let end = format!("@{};transport=tls;lr>", address(UAS));
    assert!(value(&got, "Route").unwrap().ends_with(&end), "{got}");
    assert!(value(&got, "Via").unwrap().starts_with("SIP/2.0/TLS "));
    let is_tls = |route: &&str| route.contains(";transport=tls");
    let routes = values(&got, "Record-Route");
    let routes: Vec<_> = routes.iter().map(is_tls).collect();
    assert_eq!(routes, [true, false], "{got}");
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(400);
    let heard = world.heard(UAS);
    assert_eq!(heard[heard.len() - 2..], ["ACK", "BYE"], "{heard:?}");
    // Another address has no TLS, whatever a URI says.
    let mut world = with(&HAS_PARTNER, with_node);
    world.policy().trunks.insert(address(UAC).ip());
    let uri = format!("sip:bob@{};transport=tls", address(UAS + 1));
    let text = request("OPTIONS", &uri, 1, "");
    world.send(UAC, Transport::Udp, &text);
    world.run_until(400);
    assert!(world.sent(PROXY, "OPTIONS").is_empty());
    assert!(world.heard(UAC).last().unwrap().starts_with(['4', '5']));
}

#[test]
fn who_shows_the_token_of_another_node_needs_no_password_for_this_call_alone() {
    // This server is the node that the token is for.
    let (node, own) = (address(UAS).to_string(), address(PROXY).to_string());
    let line = format!("Route: {}\r\n", route().replace(&node, &own));
    let of = |world: &mut World, uri: &str, number: u32| {
        let text = request("INVITE", uri, number, &line);
        world.send(UAC, Transport::Udp, &text);
        let until = world.ms() + 2_000;
        world.run_until(until);
        world.heard(UAC).last().unwrap().to_string()
    };
    let with_phone = || {
        let mut world = with_node();
        let uri = format!("sip:bob@{}", address(UAS));
        world.policy().bind("bob", &Contact::at(&uri));
        world.policy().bind("carol", &Contact::at(&uri));
        world.nodes[UAS].script = answers(&[(10, 200)]);
        world
    };
    let mut world = with_phone();
    assert_eq!(of(&mut world, "sip:bob@example.com", 1), "200 INVITE");
    assert_eq!(world.policy().nodes_asked, 0, "the other node has asked");
    let got = got(&world);
    assert!(values(&got, "Route").is_empty(), "{got}");
    assert_eq!(values(&got, "Record-Route").len(), 2, "{got}");
    // Of another call, for another user, and long ago.
    let mut world = with_phone();
    assert_eq!(of(&mut world, "sip:bob@example.com", 2), "403 INVITE");
    let mut world = with_phone();
    assert_eq!(of(&mut world, "sip:carol@example.com", 1), "403 INVITE");
    let mut world = with_phone();
    world.unix_s += 181;
    assert_eq!(of(&mut world, "sip:bob@example.com", 1), "403 INVITE");
    let mut world = with_phone();
    world.unix_s -= 180;
    assert_eq!(of(&mut world, "sip:bob@example.com", 1), "200 INVITE");
    // For another request of the same call.
    for (old, new) in [
        ("CSeq: 1 ", "CSeq: 2 "),
        (";tag=a1", ";tag=a2"),
        ("INVITE", "MESSAGE"),
    ] {
        let mut world = with_phone();
        let text = request("INVITE", "sip:bob@example.com", 1, &line);
        world.send(UAC, Transport::Udp, &text.replace(old, new));
        world.run_until(2_000);
        let heard = world.heard(UAC);
        assert!(
            heard.last().unwrap().starts_with("403 "),
            "{new}: {heard:?}"
        );
    }
    // A server without other nodes believes none.
    let mut world = with_phone();
    world.policy().has_nodes = false;
    assert_eq!(of(&mut world, "sip:bob@example.com", 1), "403 INVITE");
    // If nodes speak TLS only, a stranger who has seen the token cannot use it.
    for (transport, code) in [(Transport::Udp, "403"), (Transport::Tls, "200")] {
        let mut world = with_phone();
        world.policy().only_tls = true;
        let text = request("INVITE", "sip:bob@example.com", 1, &line);
        world.send(UAC, transport, &text);
        world.run_until(2_000);
        let heard = world.heard(UAC);
        assert!(heard.last().unwrap().starts_with(code), "{heard:?}");
    }
    // Without a phone here, no further node is asked. The one that has asked may know another flow of the phone.
    let mut world = with_node();
    assert_eq!(of(&mut world, "sip:bob@example.com", 1), "430 INVITE");
    assert_eq!(world.policy().nodes_asked, 0);
    // Nobody can make such a token.
    let mut world = with_phone();
    let forged = line.replacen("<sip:d", "<sip:dA", 1);
    let text = request("INVITE", "sip:bob@example.com", 1, &forged);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(2_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "403 INVITE");
}

#[test]
fn phones_here_and_at_other_nodes_ring_together() {
    let mut world = with_node();
    let uri = format!("sip:bob@{}", address(UAS + 1));
    world.policy().bind("bob", &Contact::at(&uri));
    world.nodes[UAS].script = answers(&[(10, 180)]);
    world.nodes[UAS + 1].script = answers(&[(10, 180), (50, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(1_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    assert_eq!(world.sent(PROXY, "CANCEL").len(), 1);
    world.nothing_is_left();
}

#[test]
fn a_node_that_is_silent_is_480_after_three_seconds() {
    let mut world = with_node();
    world.dead.push(UAS);
    invite(&mut world, 1, ALICE);
    world.run_until(2_900);
    assert_eq!(world.heard(UAC), ["100 INVITE"]);
    world.run_until(4_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "480 INVITE"]);
    world.nothing_is_left();
    // One that rings has time.
    let mut world = with_node();
    world.nodes[UAS].script = answers(&[(10, 180), (9_000, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(10_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
}

#[test]
fn a_phone_with_flows_at_two_nodes_is_called_by_the_less_loaded_one_alone_rfc5626_7() {
    for (loads, called, other) in [([5, 9], UAS, UAS + 1), ([9, 5], UAS + 1, UAS)] {
        let mut world = with_node();
        let nodes = vec![flow_at(UAS, loads[0], 7), flow_at(UAS + 1, loads[1], 7)];
        world.policy().nodes = AtNodes::Known(nodes);
        world.nodes[called].script = answers(&[(10, 180), (50, 486)]);
        invite(&mut world, 1, ALICE);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["180 INVITE", "486 INVITE"], "{loads:?}");
        assert!(world.nodes[other].texts.is_empty(), "{loads:?}");
        world.nothing_is_left();
    }
}

#[test]
fn the_other_node_is_asked_if_a_flow_has_failed_or_its_node_is_silent_rfc5626_7() {
    for code in [Some(430), Some(408), Some(503), None] {
        let mut world = with_node();
        let nodes = vec![flow_at(UAS, 5, 7), flow_at(UAS + 1, 9, 7)];
        world.policy().nodes = AtNodes::Known(nodes);
        match code {
            Some(code) => world.nodes[UAS].script = answers(&[(10, code)]),
            None => world.dead.push(UAS),
        }
        world.nodes[UAS + 1].script = answers(&[(10, 180), (50, 200)]);
        invite(&mut world, 1, ALICE);
        world.run_until(2_900);
        let is_asked = !world.nodes[UAS + 1].texts.is_empty();
        assert_eq!(is_asked, code.is_some(), "a node has three seconds");
        world.run_until(5_000);
        assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE", "{code:?}");
        // The Route is for the second node.
        let texts = &world.nodes[UAS + 1].texts;
        let end = format!("@{};only=7;lr>", address(UAS + 1));
        assert!(value(&texts[0], "Route").unwrap().ends_with(&end));
        world.nothing_is_left();
    }
    // Both have failed: the caller never gets a 430 (RFC 5626 §11.5).
    let mut world = with_node();
    let nodes = vec![flow_at(UAS, 5, 7), flow_at(UAS + 1, 9, 7)];
    world.policy().nodes = AtNodes::Known(nodes);
    for place in [UAS, UAS + 1] {
        world.nodes[place].script = answers(&[(10, 430)]);
    }
    invite(&mut world, 1, ALICE);
    world.run_until(1_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "480 INVITE");
    world.nothing_is_left();
}

#[test]
fn of_two_silent_nodes_each_has_another_one_even_if_the_first_of_these_cannot_be_reached() {
    let mut world = with_node();
    let mut nowhere = flow_at(UAS + 3, 9, 7);
    nowhere.address.set_port(0);
    world.policy().nodes = AtNodes::Known(vec![
        flow_at(UAS, 5, 7),
        flow_at(UAS + 1, 5, 8),
        nowhere,
        flow_at(UAS + 2, 9, 8),
    ]);
    world.dead.extend([UAS, UAS + 1]);
    world.nodes[UAS + 2].script = answers(&[(10, 180), (50, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(5_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    world.nothing_is_left();
}

#[test]
fn a_flow_of_this_node_comes_before_one_of_another_node_rfc5626_7() {
    for code in [486, 430] {
        let mut world = with_node();
        let mut contact = Contact::at("sip:bob@10.0.0.7:40000");
        contact.instance = "urn:uuid:1".to_owned();
        contact.reg_id = 1;
        contact.flow = Some(World::datagrams_of(UAS));
        let phone = contact.phone();
        world.policy().bind("bob", &contact);
        let nodes = vec![flow_at(UAS + 1, 0, phone), flow_at(UAS + 2, 0, phone + 1)];
        world.policy().nodes = AtNodes::Known(nodes);
        world.nodes[UAS].script = answers(&[(10, code)]);
        for place in [UAS + 1, UAS + 2] {
            world.nodes[place].script = answers(&[(10, 486)]);
        }
        invite(&mut world, 1, ALICE);
        world.run_until(1_000);
        assert_eq!(*world.heard(UAC).last().unwrap(), "486 INVITE");
        let is_asked = |place: usize| !world.nodes[place].texts.is_empty();
        assert_eq!(is_asked(UAS + 1), code == 430, "the flow here has failed");
        assert!(is_asked(UAS + 2), "another phone rings beside this one");
        world.nothing_is_left();
    }
}

/// Of each INVITE to this node, the parameter of its Route that says which phones it is for. An example is `only=7`.
fn asked_at(world: &World, place: usize) -> Vec<String> {
    let texts = world.nodes[place].texts.iter();
    let texts = texts.filter(|it| it.starts_with("INVITE"));
    let asked = texts.map(|text| {
        let route = value(text, "Route").unwrap();
        let (_, end) = route.split_once(&address(place).to_string()).unwrap();
        end.trim_matches(';').trim_end_matches(";lr>").to_owned()
    });
    asked.collect()
}

#[test]
fn if_a_flow_has_failed_its_phone_is_asked_for_elsewhere_while_others_ring_rfc5626_7() {
    // The second node has both phones.
    let nodes = |loads: [u64; 2]| {
        let mut both = flow_at(UAS + 1, loads[1], 7);
        both.phones.push(8);
        AtNodes::Known(vec![flow_at(UAS, loads[0], 7), both])
    };
    let mut world = with_node();
    world.policy().nodes = nodes([5, 9]);
    world.nodes[UAS].script = answers(&[(100, 430)]);
    world.nodes[UAS + 1].script = answers(&[(10, 180), (9_000, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(50);
    assert_eq!(asked_at(&world, UAS), ["only=7"]);
    assert_eq!(asked_at(&world, UAS + 1), ["without=7"]);
    world.run_until(1_000);
    assert_eq!(asked_at(&world, UAS + 1), ["without=7", "only=7"]);
    world.run_until(10_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    world.nothing_is_left();
    // The node with both is less loaded. It has no flow to phone 7 any more.
    for (code, is_asked, result) in [(430, true, "200 INVITE"), (486, false, "486 INVITE")] {
        let mut world = with_node();
        world.policy().nodes = nodes([9, 5]);
        world.nodes[UAS].script = answers(&[(10, 200)]);
        world.nodes[UAS + 1].script = answers(&[(10, code)]);
        invite(&mut world, 1, ALICE);
        world.run_until(1_000);
        assert_eq!(asked_at(&world, UAS + 1), ["without=7", "only=7"], "{code}");
        assert_eq!(!asked_at(&world, UAS).is_empty(), is_asked, "{code}");
        assert_eq!(*world.heard(UAC).last().unwrap(), result);
        world.nothing_is_left();
    }
}

/// A phone of bob by a flow from this place.
fn phone_at(place: usize) -> Contact {
    let mut contact = Contact::at(&format!("sip:bob@10.0.0.{place}:40000"));
    contact.instance = format!("urn:uuid:{place}");
    contact.reg_id = 1;
    contact.flow = Some(World::datagrams_of(place));
    contact
}

#[test]
fn a_node_calls_the_phones_that_it_is_asked_for_and_says_430_if_the_flow_of_one_has_failed() {
    let (node, own) = (address(UAS).to_string(), address(PROXY).to_string());
    let route = route().replace(&node, &own);
    let (one, two) = (phone_at(UAS), phone_at(UAS + 1));
    let (only, without) = (
        |it: u64| format!(";only={it:x}"),
        |it: u64| format!(";without={it:x}.1"),
    );
    for (param, is_called, result) in [
        (String::new(), [true, true], "486 INVITE"),
        (only(one.phone()), [true, false], "430 INVITE"),
        (only(two.phone()), [false, true], "486 INVITE"),
        (without(one.phone()), [false, true], "486 INVITE"),
        (without(two.phone()), [true, false], "430 INVITE"),
        (only(1), [false, false], "430 INVITE"),
        (";only=x".to_owned(), [false, false], "400 INVITE"),
    ] {
        let mut world = with_node();
        world.policy().bind("bob", &one);
        world.policy().bind("bob", &two);
        world.nodes[UAS].script = answers(&[(10, 430)]);
        world.nodes[UAS + 1].script = answers(&[(10, 486)]);
        let line = format!(
            "Route: {}\r\n",
            route.replace(";lr>", &format!("{param};lr>"))
        );
        invite(&mut world, 1, &line);
        world.run_until(1_000);
        let called = [UAS, UAS + 1].map(|place| !world.nodes[place].texts.is_empty());
        assert_eq!(called, is_called, "{param}");
        assert_eq!(*world.heard(UAC).last().unwrap(), result, "{param}");
        world.nothing_is_left();
    }
}

#[test]
fn a_node_is_asked_only_for_the_phone_whose_flow_here_has_failed_rfc5626_7() {
    let mut world = with_node();
    let (one, two) = (phone_at(UAS), phone_at(UAS + 1));
    let mut both = flow_at(UAS + 2, 0, one.phone());
    both.phones.push(two.phone());
    world.policy().nodes = AtNodes::Known(vec![both]);
    world.policy().bind("bob", &one);
    world.policy().bind("bob", &two);
    world.nodes[UAS].script = answers(&[(10, 430)]);
    world.nodes[UAS + 1].script = answers(&[(10, 180), (1_000, 486)]);
    world.nodes[UAS + 2].script = answers(&[(10, 180), (2_000, 200)]);
    invite(&mut world, 1, ALICE);
    world.run_until(3_000);
    let expected = format!("only={:x}", one.phone());
    assert_eq!(asked_at(&world, UAS + 2), [expected]);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    world.nothing_is_left();
}

#[test]
fn a_node_that_is_overloaded_is_no_answer_of_the_phone_rfc5626_7() {
    let mut world = with_node();
    let nodes = vec![flow_at(UAS, 5, 7), flow_at(UAS + 1, 9, 7)];
    world.policy().nodes = AtNodes::Known(nodes);
    world.nodes[UAS].script.invite = vec![(10, 503, "Retry-After: 20\r\n".to_owned())];
    world.nodes[UAS + 1].script = answers(&[(10, 200)]);
    // The second call comes while the first node is left alone, as it has asked.
    for number in 1..=2 {
        invite(&mut world, number, ALICE);
        let until = world.ms() + 1_000;
        world.run_until(until);
        assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE", "{number}");
        assert_eq!(asked_at(&world, UAS).len(), 1);
        assert_eq!(asked_at(&world, UAS + 1).len(), number as usize);
    }
    world.nothing_is_left();
    // If all nodes are, the caller gets no 503.
    let mut world = with_node();
    world.policy().nodes = AtNodes::Known(vec![flow_at(UAS, 5, 7), flow_at(UAS + 1, 9, 7)]);
    for place in [UAS, UAS + 1] {
        world.nodes[place].script = answers(&[(10, 503)]);
    }
    invite(&mut world, 1, ALICE);
    world.run_until(1_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "500 INVITE");
    assert_eq!(asked_at(&world, UAS + 1).len(), 1);
    world.nothing_is_left();
}

#[test]
fn each_node_has_its_own_time_to_respond() {
    let config = Config {
        forking: Forking::ByQ,
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    world.policy().user("bob");
    world.policy().nodes = AtNodes::Known(vec![hop(UAS, 1_000), hop(UAS + 1, 500)]);
    world.nodes[UAS].script = answers(&[(10, 180), (2_900, 486)]);
    world.dead.push(UAS + 1);
    invite(&mut world, 1, ALICE);
    // Both have had less than 3 s.
    world.run_until(4_000);
    world.dead.clear();
    world.nodes[UAS + 1].script = answers(&[(10, 180), (50, 200)]);
    world.run_until(8_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    world.nothing_is_left();
}

#[test]
fn a_node_that_was_given_up_does_not_end_the_call_of_other_phones() {
    let mut world = with_node();
    let uri = format!("sip:bob@{}", address(UAS + 1));
    world.policy().bind("bob", &Contact::at(&uri));
    world.nodes[UAS + 1].script = answers(&[(10, 180), (9_000, 200)]);
    world.dead.push(UAS);
    invite(&mut world, 1, ALICE);
    world.run_until(3_200);
    // It gets the INVITE that is repeated after 3.5 s.
    world.dead.clear();
    world.nodes[UAS].script = answers(&[(0, 603)]);
    world.run_until(10_000);
    assert!(!world.heard(UAS).is_empty() || !world.nodes[UAS].texts.is_empty());
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_call_that_is_cancelled_while_a_node_is_silent_gets_487_rfc3261_16_10() {
    let mut world = with_node();
    world.dead.push(UAS);
    let text = request("INVITE", "sip:bob@example.com", 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    world.run_until(500);
    world.cancel(key);
    world.run_until(4_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "487 INVITE");
    world.nothing_is_left();
}

#[test]
fn the_token_for_a_node_is_as_new_as_its_request_when_others_have_rung_before() {
    let config = Config {
        forking: Forking::ByQ,
        ring_time: Duration::from_secs(150),
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    let uri = format!("sip:bob@{}", address(UAS + 1));
    world.policy().bind("bob", &Contact::at(&uri));
    world.policy().nodes = AtNodes::Known(vec![hop(UAS, 500)]);
    world.nodes[UAS + 1].script = answers(&[(10, 180)]);
    invite(&mut world, 1, ALICE);
    world.run_until(160_000);
    let route = value(&got(&world), "Route").unwrap().to_owned();
    let (node, own) = (address(UAS).to_string(), address(PROXY).to_string());
    let line = format!("Route: {}\r\n", route.replace(&node, &own));
    let mut world = with_node();
    let uri = format!("sip:bob@{}", address(UAS));
    world.policy().bind("bob", &Contact::at(&uri));
    world.nodes[UAS].script = answers(&[(10, 200)]);
    // The clock of that node is ahead.
    world.unix_s += 160 + 100;
    invite(&mut world, 1, &line);
    world.run_until(2_000);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
}

#[test]
fn a_call_waits_for_the_answer_about_other_nodes_and_goes_on_without_one() {
    let mut world = with_node();
    let nodes = std::mem::replace(&mut world.policy().nodes, AtNodes::Pending);
    invite(&mut world, 1, ALICE);
    world.run_until(100);
    assert!(world.heard(UAS).is_empty());
    world.policy().nodes = nodes;
    world.nodes[UAS].script = answers(&[(10, 200)]);
    world.resume();
    world.run_until(300);
    assert_eq!(*world.heard(UAC).last().unwrap(), "200 INVITE");
    // What is registered here goes on.
    for (has_phone, code) in [(true, "200 INVITE"), (false, "480 INVITE")] {
        let mut world = with_node();
        world.policy().other_users = sip_server::proxy::IsUser::Yes;
        world.policy().nodes = AtNodes::Unavailable;
        if has_phone {
            let uri = format!("sip:bob@{}", address(UAS + 1));
            world.policy().bind("bob", &Contact::at(&uri));
            world.nodes[UAS + 1].script = answers(&[(10, 200)]);
        }
        invite(&mut world, 1, ALICE);
        world.run_until(300);
        assert_eq!(*world.heard(UAC).last().unwrap(), code);
    }
}

#[test]
fn a_sips_call_does_not_go_to_other_nodes_because_there_is_no_tls_rfc5630_3_1_2() {
    let mut world = with_node();
    let text = request("INVITE", "sips:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(300);
    assert_eq!(*world.heard(UAC).last().unwrap(), "480 INVITE");
    assert!(world.heard(UAS).is_empty());
}

#[test]
fn a_route_to_another_node_and_back_is_a_loop_rfc3261_16_3() {
    let routes_of = |run: u32| {
        let mut world = with_node();
        world.nodes[PROXY].proxied.as_mut().unwrap().set_run(run);
        invite(&mut world, 1, ALICE);
        world.run_until(100);
        let got = got(&world);
        let routes = values(&got, "Record-Route").into_iter().rev();
        routes
            .map(|route| format!("Route: {route}\r\n"))
            .collect::<String>()
    };
    let (own, others) = (routes_of(RUN), routes_of(RUN + 1));
    // The values of the other node have another address. The one that leads back to this node comes first.
    let others = others.replace(&address(PROXY).to_string(), &address(UAS).to_string());
    let mut others: Vec<_> = others.split_inclusive("\r\n").collect();
    others.reverse();
    let others = others.concat();
    for (routes, code) in [
        ([&own[..], &others].concat(), "200"),
        ([&own[..], &others, &own].concat(), "482"),
        ([&own[..], &others, &own, &others].concat(), "482"),
    ] {
        let mut world = with_node();
        let text = request("INFO", "sip:bob@192.0.2.99", 1, &routes);
        let text = text.replace("To: <sip:bob@192.0.2.99>", "To: <sip:bob@192.0.2.99>;tag=1");
        world.send(UAC, Transport::Udp, &text);
        world.run_until(500);
        let wanted = format!("{code} INFO");
        assert_eq!(world.heard(UAC).last(), Some(&&wanted[..]), "{routes}");
        let is_sent = !world.heard(UAS).is_empty();
        assert_eq!(is_sent, code == "200", "{routes}");
    }
}
