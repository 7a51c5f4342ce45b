//! Single sentences of RFC 3261 §16, RFC 5626 §7 and RFC 5627 §6 that no other scenario shows.

use sip::flow::Transport;
use sip_server::proxy::{Config, Forking};
use sip_server::routes::{Forward, Forwards};

use crate::network::Weather;
use crate::node::{
    ALICE, HAS_TLS, PROXY, Script, UAC, UAS, address, answers, in_dialog, request, values,
};
use crate::policy::Contact;
use crate::world::World;

const INSTANCE: &str = "urn:uuid:1";
const GRUU: &str = "sip:bob@example.com;gr=urn:uuid:1";

fn answer(world: &mut World, text: &str) -> String {
    world.send(UAC, Transport::Udp, text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    world.heard(UAC).last().unwrap().to_string()
}

fn with(config: Config) -> World {
    World::with(Weather::FINE, 1, config)
}

/// The Request-URI of the last request that the TU of a node received.
fn request_uri(world: &World, node: usize) -> &str {
    world.last(node).split(' ').nth(1).unwrap()
}

fn contact(place: usize, reg_id: u32, updated: u64) -> Contact {
    let mut contact = Contact::at(&format!("sip:bob@{};n={place}", address(UAS + place)));
    contact.instance = INSTANCE.to_owned();
    contact.reg_id = reg_id;
    contact.updated = updated;
    contact
}

#[test]
fn a_maddr_that_names_this_server_is_removed_rfc3261_16_4() {
    for uri in [
        "sip:bob@example.com;maddr=192.0.2.2",
        "sip:bob@example.com;x=y;maddr=192.0.2.2;transport=tcp",
    ] {
        let mut world = World::new();
        world.bind_bob(&[None]);
        let text = request("MESSAGE", uri, 1, "");
        assert_eq!(answer(&mut world, &text), "200 MESSAGE", "{uri}");
    }
    // Without `maddr`, the host is the target. With it, the server would send the request to itself.
    let mut world = World::new();
    let uri = format!("sip:carol@{};maddr=192.0.2.2", address(UAS).ip());
    let text = request("MESSAGE", &uri, 1, ALICE);
    assert_eq!(answer(&mut world, &text), "200 MESSAGE");
    assert_eq!(request_uri(&world, UAS), "sip:carol@192.0.2.3");
    // A transport parameter goes with it.
    let uri = format!(
        "sip:carol@{};maddr=192.0.2.2;transport=tcp",
        address(UAS).ip()
    );
    world.send(UAC, Transport::Tcp, &request("MESSAGE", &uri, 3, ALICE));
    world.run_until(2_000);
    assert_eq!(request_uri(&world, UAS), "sip:carol@192.0.2.3");
    // A `maddr` that names another host is the target (§16.5).
    let uri = format!("sip:bob@example.com;maddr={}", address(UAS + 1).ip());
    let text = request("MESSAGE", &uri, 2, ALICE);
    assert_eq!(answer(&mut world, &text), "200 MESSAGE");
    assert_eq!(request_uri(&world, UAS + 1), uri);
    world.nothing_is_left();
}

#[test]
fn a_method_in_a_contact_is_not_in_the_request_uri_rfc3261_16_6_2() {
    let mut world = World::new();
    world.bind_bob(&[]);
    let uri = format!("sip:bob@{};method=INVITE;x=y?Subject=z", address(UAS));
    world.policy().bind("bob", &Contact::at(&uri));
    let text = request("MESSAGE", "sip:bob@example.com", 1, "");
    assert_eq!(answer(&mut world, &text), "200 MESSAGE");
    let wanted = format!("sip:bob@{};x=y", address(UAS));
    assert_eq!(request_uri(&world, UAS), wanted);
}

#[test]
fn a_record_route_value_comes_before_those_that_are_there_rfc3261_16_6_4() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    let there = "Record-Route: <sip:192.0.2.77;lr>\r\nRoute: <sip:192.0.2.2;lr>\r\n";
    let text = request("REFER", "sip:bob@example.com", 1, there);
    assert_eq!(answer(&mut world, &text), "200 REFER");
    let all = values(world.last(UAS), "Record-Route");
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("@192.0.2.2:5060;lr>"), "{all:?}");
    assert_eq!(all[1], "<sip:192.0.2.77;lr>");
}

#[test]
fn no_target_is_tried_twice_and_what_is_followed_is_removed_rfc3261_16_7_4() {
    let mut world = with(Config {
        recurses: true,
        ..Config::default()
    });
    world.bind_bob(&[None]);
    let (first, second) = (address(UAS), address(UAS + 1));
    // The first contact is equal to the contact that sent the 302. The proxy tries the second one. The third one is not
    // a SIP URI.
    let lines = format!(
        "Contact: <sip:bob@{first};X=y>, \"B, ob\" <sip:bob@{second}>\r\nContact: <mailto:bob@example.com>\r\n"
    );
    let uri = format!("sip:bob@{first};x=y");
    world.policy().user("bob").clear();
    world.policy().bind("bob", &Contact::at(&uri));
    world.nodes[UAS].script = Script {
        invite: vec![(50, 302, lines)],
        ..Script::default()
    };
    world.nodes[UAS + 1].script = answers(&[(50, 404)]);
    world.invite();
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["302 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE"]);
    assert_eq!(world.heard(UAS + 1), ["INVITE"]);
    let left = format!("<sip:bob@{first};X=y>, <mailto:bob@example.com>");
    assert_eq!(values(world.last(UAC), "Contact"), [left]);
    world.nothing_is_left();
}

#[test]
fn a_sips_call_is_not_redirected_to_sip_rfc3261_16_7_4() {
    let mut world = with(Config {
        recurses: true,
        ..Config::default()
    });
    world.bind_bob(&[]);
    // These nodes have no TLS, so the request can reach the SIPS contact only by the flow of its binding.
    let mut bound = Contact::at("sips:bob@192.0.2.9");
    bound.flow = Some(world.phone_connects_by(Transport::Tls, UAS));
    world.policy().bind("bob", &bound);
    let lines = format!("Contact: <sip:bob@{}>\r\n", address(UAS + 1));
    world.nodes[UAS].script.other = vec![(10, 302, lines)];
    let text = request("MESSAGE", "sips:bob@example.com", 1, "");
    assert_eq!(answer(&mut world, &text), "302 MESSAGE");
    assert!(world.heard(UAS + 1).is_empty());
    world.nothing_is_left();
}

#[test]
fn a_sip_call_is_not_redirected_to_sips_rfc5630_5_3() {
    let config = Config {
        recurses: true,
        ..Config::default()
    };
    let mut world = crate::node::with(&HAS_TLS, || with(config));
    world.bind_bob(&[None]);
    let contact = format!("<sips:bob@{}>", address(UAS + 1));
    world.nodes[UAS].script.other = vec![(10, 302, format!("Contact: {contact}\r\n"))];
    let text = request("MESSAGE", "sip:bob@example.com", 1, "");
    assert_eq!(answer(&mut world, &text), "302 MESSAGE");
    assert_eq!(values(world.last(UAC), "Contact"), [contact]);
    assert!(world.heard(UAS + 1).is_empty());
    world.nothing_is_left();
}

#[test]
fn contacts_of_a_3xx_that_cannot_be_tried_are_left_to_the_caller() {
    let forbidden = "<sip:bob@198.51.100.7>";
    let unknown = "<sip:bob@198.51.100.8;transport=foo>";
    let nowhere = "\"B, ob\" <sip:bob@nowhere.example>";
    let mailto = "<mailto:bob@example.com>";
    let tried = format!("<sip:bob@{}>", address(UAS + 1));
    for (contacts, code, left) in [
        (vec![forbidden], 302, vec![forbidden]),
        (vec![unknown], 302, vec![unknown]),
        (vec![nowhere], 302, vec![nowhere]),
        (vec![&tried], 404, vec![]),
        (
            vec![forbidden, &tried, unknown],
            302,
            vec![unknown, forbidden],
        ),
        (vec![forbidden, mailto], 302, vec![mailto, forbidden]),
    ] {
        let mut world = with(Config {
            recurses: true,
            ..Config::default()
        });
        world.bind_bob(&[None]);
        let lines = format!("Contact: {}\r\n", contacts.join(", "));
        world.nodes[UAS].script.other = vec![(10, 302, lines)];
        world.nodes[UAS + 1].script.other = vec![(10, 404, String::new())];
        let text = request("MESSAGE", "sip:bob@example.com", 1, "");
        assert_eq!(
            answer(&mut world, &text),
            format!("{code} MESSAGE"),
            "{contacts:?}"
        );
        let is_tried = contacts.contains(&&tried[..]);
        assert_eq!(world.heard(UAS + 1).is_empty(), !is_tried);
        let found = values(world.last(UAC), "Contact").join(", ");
        assert_eq!(found, left.join(", "));
        world.nothing_is_left();
    }
}

#[test]
fn a_sips_request_goes_over_tls_for_every_route_rfc3261_16_6_7() {
    for (uri, is_sent) in [
        ("sip:carol@192.0.2.9", true),
        ("sips:carol@192.0.2.9", false),
    ] {
        let mut world = World::new();
        let route = format!("Route: <sip:{};lr>\r\n{ALICE}", address(UAS));
        let text = request("MESSAGE", uri, 1, &route);
        let text = text.replace("From: <sip:", "From: <sips:");
        answer(&mut world, &text);
        // These nodes have no TLS, so the proxy cannot send the SIPS request.
        assert_eq!(world.sent(PROXY, "MESSAGE").len(), usize::from(is_sent));
        world.nothing_is_left();
    }
}

#[test]
fn a_sips_request_goes_by_no_flow_without_tls_rfc3261_16_6_7_rfc7118_9_2() {
    for (transport, reg_id, code) in [
        (Transport::Tls, 1, "200"),
        (Transport::Tls, 0, "200"),
        (Transport::Tcp, 1, "480"),
        // The Contact may take a TLS connection, but these nodes have no TLS to make one.
        (Transport::Tcp, 0, "480"),
        (Transport::Udp, 0, "480"),
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        let mut bound = contact(0, reg_id, 1);
        bound.uri = "sips:bob@192.0.2.9".to_owned();
        bound.flow = Some(match transport {
            Transport::Udp => World::datagrams_of(UAS),
            transport => world.phone_connects_by(transport, UAS),
        });
        world.policy().bind("bob", &bound);
        let text = request("MESSAGE", "sips:bob@example.com", 1, "");
        let wanted = format!("{code} MESSAGE");
        assert_eq!(answer(&mut world, &text), wanted, "{transport:?} {reg_id}");
        assert_eq!(world.heard(UAS).is_empty(), code != "200");
        world.nothing_is_left();
    }
}

#[test]
fn a_sips_request_goes_to_the_sips_contacts_of_an_instance_alone_rfc5630_5_3() {
    // The contact that was refreshed last is the first one.
    for (newest, code) in [("sip", "200"), ("sips", "480")] {
        let mut world = World::new();
        world.bind_bob(&[]);
        let mut secure = contact(0, 0, if newest == "sip" { 1 } else { 9 });
        secure.uri = "sips:bob@192.0.2.9".to_owned();
        if newest == "sip" {
            secure.flow = Some(world.phone_connects_by(Transport::Tls, UAS));
        }
        world.policy().bind("bob", &secure);
        world.policy().bind("bob", &contact(1, 0, 5));
        let text = request("MESSAGE", "sips:bob@example.com", 1, "");
        let heard = answer(&mut world, &text);
        let is_sent = world.heard(UAS) == ["MESSAGE"];
        assert_eq!(is_sent, newest == "sip", "{heard}");
        assert_eq!(heard.starts_with(code), is_sent, "{heard}");
        assert!(world.heard(UAS + 1).is_empty(), "{newest}");
        world.nothing_is_left();
    }
}

#[test]
fn the_route_between_tls_and_others_is_recorded_with_the_right_scheme_rfc3261_16_6_4() {
    for (from, scheme, record_route, count) in [
        (Transport::Tls, "sip", true, 2),
        (Transport::Tls, "sip", false, 2),
        (Transport::Tcp, "sip", false, 0),
        (Transport::Tcp, "sips", true, 2),
        (Transport::Tcp, "sips", false, 2),
        (Transport::Tls, "sips", true, 2),
        (Transport::Tls, "sips", false, 0),
    ] {
        let mut world = with(Config {
            record_route,
            ..Config::default()
        });
        world.bind_bob(&[]);
        let to = match scheme {
            "sips" => Transport::Tls,
            _ => Transport::Tcp,
        };
        let mut bound = Contact::at(&format!("{scheme}:bob@192.0.2.9"));
        bound.flow = Some(world.phone_connects_by(to, UAS));
        world.policy().bind("bob", &bound);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        let uri = format!("{scheme}:bob@example.com");
        world.send(UAC, from, &request("INVITE", &uri, 1, ""));
        world.run_until(1_000);
        let case = format!("{from:?} {scheme} {record_route}");
        assert_eq!(world.heard(UAC), ["486 INVITE"], "{case}");
        let mut texts = world.nodes[UAS].texts.iter();
        let invite = texts.find(|text| text.starts_with("INVITE ")).unwrap();
        let routes = values(invite, "Record-Route");
        assert_eq!(routes.len(), count, "{case}: {routes:?}");
        let start = format!("<{scheme}:");
        assert!(routes.iter().all(|it| it.starts_with(&start)), "{routes:?}");
        world.nothing_is_left();
    }
}

#[test]
fn a_transport_error_is_as_if_there_had_been_a_503_rfc3261_16_9() {
    // Nobody takes a connection there. §16.7 step 6 makes a 500 of the 503.
    let mut world = World::new();
    world.bind_bob(&[]);
    let uri = format!("sip:bob@{};transport=tcp", address(UAS));
    world.policy().bind("bob", &Contact::at(&uri));
    world.dead.push(UAS);
    world.invite();
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["500 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn contacts_of_an_instance_are_tried_one_at_a_time_rfc5627_6_1() {
    for (reg_ids, code, goes_on) in [
        ([0, 0], 408, true),
        ([1, 0], 408, true),
        ([1, 2], 408, true),
        ([0, 0], 486, false),
        ([0, 1], 480, false),
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        for (place, reg_id) in reg_ids.into_iter().enumerate() {
            let bound = contact(place, reg_id, 9 - place as u64);
            world.policy().bind("bob", &bound);
        }
        world.nodes[UAS].script = answers(&[(50, code)]);
        world.nodes[UAS + 1].script = answers(&[(50, 200)]);
        world.invite();
        world.run_until(40);
        assert!(world.heard(UAS + 1).is_empty(), "one at a time");
        world.run_until(3_000);
        let wanted = if goes_on { 200 } else { code };
        assert_eq!(
            world.heard(UAC),
            [format!("{wanted} INVITE")],
            "{reg_ids:?}"
        );
        assert_eq!(world.heard(UAS + 1).is_empty(), !goes_on);
        world.nothing_is_left();
    }
}

#[test]
fn a_silent_contact_of_an_instance_makes_way_for_the_next_rfc5627_6_1() {
    let mut world = World::new();
    world.bind_bob(&[]);
    for place in 0..2 {
        world
            .policy()
            .bind("bob", &contact(place, 0, 9 - place as u64));
    }
    world.dead.push(UAS);
    world.nodes[UAS + 1].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(40_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn of_equal_q_the_latest_binding_comes_first() {
    let mut world = with(Config {
        forking: Forking::Sequential,
        ..Config::default()
    });
    world.bind_bob(&[]);
    for (place, q, updated) in [
        (0, None, 1),
        (1, None, 3),
        (2, Some(1000), 2),
        (3, Some(999), 9),
    ] {
        let mut bound = Contact::at(&format!("sip:bob@{}", address(UAS + place)));
        (bound.q, bound.updated) = (q, updated);
        world.policy().bind("bob", &bound);
        world.nodes[UAS + place].script = answers(&[(10, 404)]);
    }
    world.invite();
    world.run_until(3_000);
    let tried: Vec<usize> = world
        .sent(PROXY, "INVITE")
        .iter()
        .map(|sent| sent.1)
        .collect();
    assert_eq!(tried, [UAS + 1, UAS + 2, UAS, UAS + 3]);
}

/// A trunk calls Bob, whose phone has a connection. The Contact of its 200 is Bob's GRUU.
fn call_with_gruu(world: &mut World) {
    world.bind_bob(&[]);
    let mut bound = contact(0, 1, 1);
    bound.flow = Some(world.phone_connects(UAS));
    world.policy().bind("bob", &bound);
    world.nodes[UAS].script = Script {
        invite: vec![(50, 200, format!("Contact: <{GRUU}>\r\n"))],
        ..Script::default()
    };
    world.invite();
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["200 INVITE"]);
}

#[test]
fn a_request_within_a_dialog_to_a_gruu_reaches_the_instance_rfc5627_6_1() {
    let mut world = World::new();
    call_with_gruu(&mut world);
    let uri = format!("sip:bob@{};n=0", address(UAS));
    // The ACK reaches the instance as well.
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(request_uri(&world, UAS), uri);
    // The phone has a new connection. The flow of the dialog is gone, so the proxy uses the flow of the instance.
    world.disconnect(UAS);
    let mut bound = contact(0, 1, 2);
    bound.uri = "sip:bob@192.0.2.9;n=2".to_owned();
    bound.flow = Some(world.phone_connects(UAS));
    world.policy().user("bob").clear();
    world.policy().bind("bob", &bound);
    world.in_dialog(UAC, "INFO");
    world.run_until(2_000);
    assert_eq!(world.heard(UAC).last(), Some(&"200 INFO"));
    assert_eq!(request_uri(&world, UAS), "sip:bob@192.0.2.9;n=2");
    // 480: the instance has no contact. 404: the address of record does not exist.
    world.policy().user("bob").clear();
    world.in_dialog(UAC, "INFO");
    world.run_until(3_000);
    assert_eq!(world.heard(UAC).last(), Some(&"480 INFO"));
    world.policy().bindings.clear();
    world.in_dialog(UAC, "INFO");
    world.run_until(4_000);
    assert_eq!(world.heard(UAC).last(), Some(&"404 INFO"));
    world.nothing_is_left();
}

#[test]
fn within_a_dialog_the_path_of_a_gruu_is_discarded_rfc5627_6_1() {
    let mut world = World::new();
    call_with_gruu(&mut world);
    let mut bound = contact(0, 1, 2);
    bound.path = "<sip:192.0.2.99;lr>".to_owned();
    world.policy().user("bob").clear();
    world.policy().bind("bob", &bound);
    let ok = world.last(UAC).to_owned();
    let edge = address(UAS + 1);
    let info = in_dialog(&ok, "INFO");
    // An edge proxy between this server and the phone has recorded its route.
    let info = info.replacen("From: ", &format!("Route: <sip:{edge};lr>\r\nFrom: "), 1);
    assert_eq!(answer(&mut world, &info), "200 INFO");
    assert_eq!(request_uri(&world, UAS + 1), contact(0, 1, 2).uri);
    let routes = values(world.last(UAS + 1), "Route");
    assert_eq!(routes, [format!("<sip:{edge};lr>")]);
    // Another worker has the bindings.
    world.policy().elsewhere = Some(3);
    world.in_dialog(UAC, "BYE");
    world.run_until(3_000);
    assert_eq!(world.heard(PROXY)[0], "Elsewhere(3)");
}

#[test]
fn a_gruu_of_another_user_in_contact_is_403_rfc5627_6_2() {
    for (uri, method, code) in [
        ("sip:alice@example.com;gr=urn:uuid:7", "REFER", "200"),
        ("sip:bob@example.com;gr=urn:uuid:7", "REFER", "403"),
        ("sip:bob@example.com;gr=urn:uuid:7", "MESSAGE", "200"),
        // The user part of a temporary GRUU does not name a user.
        ("sip:tgruu.abc@example.com;gr", "REFER", "200"),
        ("sip:bob@example.org;gr=urn:uuid:7", "REFER", "200"),
    ] {
        let mut world = World::new();
        world.bind_bob(&[None]);
        world.policy().trunks.clear();
        let text = request(method, "sip:bob@example.com", 1, ALICE);
        let text = text.replace("<sip:alice@192.0.2.1>", &format!("<{uri}>"));
        let wanted = format!("{code} {method}");
        assert_eq!(answer(&mut world, &text), wanted, "{uri}");
    }
}

#[test]
fn a_response_keeps_fields_of_other_hops_rfc3261_16_7() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    let before = "Via: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bKa;received=192.0.2.200;rport=7\r\n";
    let text = request("MESSAGE", "sip:bob@example.com", 1, before);
    assert_eq!(answer(&mut world, &text), "200 MESSAGE");
    let (_, _, sent) = world.nodes[PROXY].sent.last().unwrap();
    let vias = values(sent, "Via");
    assert_eq!(vias.len(), 2, "{sent}");
    assert!(before.contains(vias[1]), "{sent}");
}

#[test]
fn a_call_for_a_gruu_or_within_a_dialog_does_not_go_on_to_another_user_rfc5627_6_1() {
    for (uri, goes_on) in [("sip:bob@example.com", true), (GRUU, false)] {
        let mut world = World::new();
        world.bind_bob(&[]);
        let bound = contact(0, 0, 1);
        world.policy().bind("bob", &bound);
        world.policy().forwards = Forwards::new(vec![busy_forward()]);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        world.nodes[UAS + 1].script = answers(&[(50, 200)]);
        let invite = request("INVITE", uri, 1, "");
        let wanted = if goes_on { "200" } else { "486" };
        let heard = answer(&mut world, &invite);
        assert_eq!(heard, format!("{wanted} INVITE"), "{uri}");
    }
    // The second INVITE of a call to a GRUU is refused by a phone that is busy.
    let mut world = World::new();
    call_with_gruu(&mut world);
    world.policy().forwards = Forwards::new(vec![busy_forward()]);
    world.nodes[UAS].script = answers(&[(50, 486)]);
    world.nodes[UAS + 1].script = answers(&[(50, 200)]);
    world.in_dialog(UAC, "INVITE");
    world.run_until(3_000);
    assert_eq!(world.heard(UAC).last(), Some(&"486 INVITE"));
}

/// Calls for a busy user go on to the second user agent.
fn busy_forward() -> Forward {
    Forward {
        busy: Some(format!("sip:voicemail@{}", address(UAS + 1))),
        ..Forward::default()
    }
}

#[test]
fn without_record_route_it_is_still_there_where_gruus_need_it_rfc5627_6_2() {
    let config = Config {
        record_route: false,
        ..Config::default()
    };
    let routes = |world: &mut World, extra: &str, own: &str| {
        let invite = request("INVITE", "sip:bob@example.com", 1, extra);
        let invite = invite.replace("Contact: <sip:alice@192.0.2.1>", own);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        assert_eq!(answer(world, &invite), "486 INVITE");
        let mut texts = world.nodes[UAS].texts.iter();
        let got = texts.find(|text| text.starts_with("INVITE")).unwrap();
        values(got, "Record-Route").len()
    };
    let edge = "Record-Route: <sip:192.0.2.77;lr>\r\n";
    let gruu = "Contact: <sip:alice@example.com;gr=urn:uuid:2>";
    let plain = "Contact: <sip:alice@192.0.2.1>";
    for (extra, own, path, count) in [
        ("", plain, false, 0),
        (edge, plain, false, 1),
        ("", gruu, false, 0),
        (edge, gruu, false, 2),
        (
            edge,
            "Contact: <sip:alice@192.0.2.9;gr=urn:uuid:2>",
            false,
            1,
        ),
        ("", plain, true, 1),
    ] {
        let mut world = with(config.clone());
        world.bind_bob(&[]);
        let mut bound = contact(0, 0, 1);
        if path {
            bound.path = format!("<sip:{};lr>", address(UAS));
        }
        world.policy().bind("bob", &bound);
        assert_eq!(
            routes(&mut world, extra, own),
            count,
            "{extra} {own} {path}"
        );
    }
}

#[test]
fn a_sips_request_for_a_phone_without_sips_gets_a_warning_rfc5630_5_3() {
    // A stranger does not learn whether there is a phone.
    for (is_known, contact, has_warning) in [
        (true, Some("sip:bob@192.0.2.3"), true),
        (true, Some("SIPS:bob@192.0.2.3"), false),
        (true, None, false),
        (false, Some("sip:bob@192.0.2.3"), false),
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        if !is_known {
            world.policy().trunks.clear();
            world.policy().inbound = sip_server::proxy::Inbound::Anyone;
        }
        world.policy().user("bob");
        if let Some(contact) = contact {
            world.policy().bind("bob", &Contact::at(contact));
        }
        let text = request("MESSAGE", "sips:bob@example.com", 1, "");
        let text = text.replace("From: <sip:alice@example.com>", "From: <sip:a@b.example>");
        let heard = answer(&mut world, &text);
        let warning = values(world.last(UAC), "Warning");
        assert_eq!(
            !warning.is_empty(),
            has_warning,
            "{contact:?} {is_known} {heard}"
        );
        if has_warning {
            assert_eq!(
                (&heard[..], &warning[..]),
                ("480 MESSAGE", &["380 hairpin \"SIPS Not Allowed\""][..])
            );
        }
        world.nothing_is_left();
    }
}
