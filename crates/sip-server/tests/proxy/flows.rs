//! Requests that go by the flow of a phone (RFC 5626 §5.3), and Path (RFC 3327).

use sip::flow::Transport;

use crate::network::Weather;
use crate::node::{
    ALICE, IS_CLOSED, PROXY, UAC, UAS, address, answers, in_dialog, request, value, values, with,
};
use crate::policy::Contact;
use crate::world::World;

fn bound_by(world: &mut World, uri: &str, flow: sip_server::flow::FlowId, reg_id: u32) {
    world.policy().trunks.insert(address(UAC).ip());
    let mut contact = Contact::at(uri);
    contact.flow = Some(flow);
    contact.reg_id = reg_id;
    contact.instance = "urn:uuid:1".to_owned();
    world.policy().bind("bob", &contact);
}

#[test]
fn a_phone_behind_a_nat_is_reached_where_it_registered_from() {
    let mut world = World::new();
    let flow = World::datagrams_of(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000", flow, 0);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    // The Request-URI is what the phone calls itself.
    let invite = &world.nodes[UAS].texts[0];
    assert!(invite.starts_with("INVITE sip:bob@10.0.0.7:40000 SIP/2.0\r\n"));
    world.nothing_is_left();
}

#[test]
fn a_registered_udp_flow_stays_udp_whatever_the_size() {
    let mut world = World::new();
    let flow = World::datagrams_of(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000", flow, 0);
    world.bind_bob(&[]);
    let long = format!("X-Long: {}\r\n", "x".repeat(2_000));
    let message = request("MESSAGE", "sip:bob@example.com", 1, &long);
    world.send(UAC, Transport::Tcp, &message);
    world.run_until(500);
    assert!(world.last(UAS).contains("Via: SIP/2.0/UDP 192.0.2.2"));
    // To a next hop that was resolved it goes over TCP (RFC 3261 §18.1.1).
    let mut world = World::new();
    world.bind_bob(&[None]);
    let message = request("MESSAGE", "sip:bob@example.com", 1, &long);
    world.send(UAC, Transport::Tcp, &message);
    world.run_until(500);
    assert!(world.last(UAS).contains("Via: SIP/2.0/TCP 192.0.2.2"));
    world.nothing_is_left();
}

#[test]
fn a_phone_on_tcp_is_reached_by_its_connection_from_udp_and_back() {
    let mut world = World::new();
    let flow = world.phone_connects(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000;transport=tcp", flow, 0);
    world.nodes[UAS].script = answers(&[(50, 180), (500, 200)]);
    world.invite();
    world.run_until(2_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(3_000);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    let [callee, _] = values(&world.nodes[UAS].texts[0], "Record-Route")[..] else {
        panic!("one for each side");
    };
    assert!(callee.ends_with(";transport=tcp;lr>"));
    world.nothing_is_left();
}

#[test]
fn a_flow_that_is_gone_is_480_for_the_caller_and_its_binding_goes_rfc5626_5_3_1() {
    let mut world = World::new();
    let flow = world.phone_connects(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000;transport=tcp", flow, 1);
    world.disconnect(UAS);
    world.invite();
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["480 INVITE"]);
    assert_eq!(world.policy().failed.len(), 1);
    assert!(world.policy().user("bob").is_empty());
    world.nothing_is_left();
}

#[test]
fn a_flow_that_fails_while_a_call_is_under_way_is_480_at_once_rfc5626_5_3_1() {
    // No address is allowed but that of the flow, so the server can't connect to a private address behind a NAT.
    // Nothing was heard of the phone, its 100, its 180.
    for (script, failed_at) in [(&[][..], 100), (&[], 1_000), (&[(50, 180)], 1_000)] {
        for reg_id in [0, 1] {
            let mut world = with(&IS_CLOSED, World::new);
            let flow = world.phone_connects(UAS);
            let contact = "sip:bob@10.0.0.7:40000;transport=tcp";
            bound_by(&mut world, contact, flow, reg_id);
            world.nodes[UAS].script = answers(script);
            world.invite();
            world.run_until(failed_at);
            assert_eq!(world.heard(UAS), ["INVITE"]);
            world.disconnect(UAS);
            world.run_until(failed_at + 20);
            let case = format!("{script:?} {failed_at} {reg_id}");
            assert_eq!(world.heard(UAC).last(), Some(&"480 INVITE"), "{case}");
            assert_eq!(world.policy().failed.len(), 1, "{case}");
            assert!(world.policy().user("bob").is_empty(), "{case}");
            world.nothing_is_left();
        }
    }
}

#[test]
fn a_flow_that_fails_and_a_contact_that_the_dns_does_not_know_are_480_and_the_binding_stays() {
    let mut world = World::new();
    let flow = world.phone_connects(UAS);
    let contact = "sip:bob@phone.example;transport=tcp";
    bound_by(&mut world, contact, flow, 0);
    world.invite();
    world.run_until(100);
    world.disconnect(UAS);
    world.run_until(120);
    assert_eq!(world.heard(UAC).last(), Some(&"480 INVITE"));
    assert_eq!(world.policy().user("bob").len(), 1);
    world.nothing_is_left();
}

#[test]
fn a_flow_that_fails_while_a_request_by_its_token_is_under_way_is_430_rfc5626_5_3_1() {
    for failed_at in [600, 1_500] {
        let mut world = World::new();
        world.policy().own = vec![address(PROXY)];
        let registrar = format!("sip:{}", address(UAS));
        let lines = format!("{ALICE}Supported: path, outbound\r\n");
        let phone = request("REGISTER", &registrar, 1, &lines);
        world.send(UAC, Transport::Tcp, &phone);
        world.run_until(500);
        let path = value(world.last(UAS), "Path").unwrap().to_owned();
        let route = format!("Route: {path}\r\n");
        let invite = request("INVITE", "sip:alice@10.1.1.1", 2, &route);
        world.send(UAS, Transport::Udp, &invite);
        world.run_until(failed_at);
        assert_eq!(world.heard(UAC).last(), Some(&"INVITE"));
        world.disconnect(UAC);
        world.run_until(failed_at + 20);
        assert_eq!(world.heard(UAS).last(), Some(&"430 INVITE"), "{failed_at}");
        world.nothing_is_left();
    }
}

#[test]
fn a_connection_that_is_gone_is_made_anew_where_the_contact_takes_one() {
    let mut world = World::new();
    let flow = world.phone_connects(UAS);
    let uri = format!("sip:bob@{};transport=tcp", address(UAS));
    bound_by(&mut world, &uri, flow, 0);
    world.disconnect(UAS);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_dialog_goes_by_the_contact_if_the_connection_was_another_workers_and_is_gone() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut world = World::new();
        let mut flow = world.phone_connects(UAS);
        world.disconnect(UAS);
        flow.worker = 9;
        let contact = format!("sip:bob@{};transport=tcp", address(UAS));
        bound_by(&mut world, &contact, flow, 0);
        world.nodes[UAS].script = answers(&[(50, 200)]);
        let invite = request("INVITE", "sip:bob@example.com", 1, "");
        world.send(UAC, transport, &invite);
        world.run_until(15);
        // The other worker says that it has no such connection.
        let now = world.now;
        let gone = flow.flow.connection.unwrap();
        world.nodes[PROXY].engine.disconnected(now, gone);
        world.run_until(1_000);
        assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
        world.in_dialog(UAC, "INFO");
        world.run_until(2_000);
        assert_eq!(world.heard(UAC).last(), Some(&"200 INFO"));
        // The same when the new connection is gone as well.
        world.disconnect(UAS);
        world.in_dialog(UAC, "BYE");
        world.run_until(3_000);
        assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
        world.nothing_is_left();
    }
}

#[test]
fn a_call_that_is_cancelled_before_its_connection_is_known_to_be_gone_gets_487() {
    let mut world = World::new();
    let mut flow = world.phone_connects(UAS);
    world.disconnect(UAS);
    flow.worker = 9;
    bound_by(
        &mut world,
        &format!("sip:bob@{};transport=tcp", address(UAS)),
        flow,
        0,
    );
    world.policy().bind(
        "bob",
        &Contact::at(&format!("sip:bob@{}", address(UAS + 1))),
    );
    world.nodes[UAS + 1].script = answers(&[(20, 180)]);
    let key = world.invite();
    world.run_until(100);
    world.cancel(key);
    world.run_until(115);
    let now = world.now;
    let gone = flow.flow.connection.unwrap();
    world.nodes[PROXY].engine.disconnected(now, gone);
    world.run_until(5_000);
    assert_eq!(world.heard(UAC).last(), Some(&"487 INVITE"));
    assert!(world.heard(UAS).is_empty());
    world.nothing_is_left();
}

#[test]
fn phones_of_two_hosts_end_their_call_where_nothing_else_is_allowed() {
    for by_trunk in [false, true] {
        let mut world = with(&IS_CLOSED, World::new);
        // Its Contact has the address that it registered from, so the proxy uses the Contact.
        let flow = World::datagrams_of(UAS);
        bound_by(&mut world, &format!("sip:bob@{}", address(UAS)), flow, 0);
        if !by_trunk {
            world.policy().trunks.clear();
        }
        world.nodes[UAS].script = answers(&[(50, 200)]);
        let lines = if by_trunk { "" } else { ALICE };
        let invite = request("INVITE", "sip:bob@example.com", 1, lines);
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAS), ["INVITE", "ACK"], "{by_trunk}");
        world.in_dialog(UAC, "BYE");
        world.run_until(2_000);
        assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"), "{by_trunk}");
        world.nothing_is_left();
    }
}

#[test]
fn within_a_dialog_a_flow_that_is_gone_is_430_rfc5626_5_3_1() {
    let mut world = World::new();
    let flow = world.phone_connects(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000;transport=tcp", flow, 1);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    world.invite();
    world.run_until(1_000);
    world.disconnect(UAS);
    world.in_dialog(UAC, "BYE");
    world.run_until(3_000);
    assert_eq!(world.heard(UAC).last(), Some(&"430 BYE"));
    world.nothing_is_left();
}

#[test]
fn a_430_of_an_edge_in_between_removes_the_binding_rfc5626_7() {
    let mut world = World::new();
    let flow = World::datagrams_of(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000", flow, 1);
    world.nodes[UAS].script = answers(&[(50, 430)]);
    world.invite();
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["480 INVITE"]);
    assert_eq!(world.policy().failed.len(), 1);
    world.nothing_is_left();
}

#[test]
fn a_register_for_elsewhere_gets_a_path_that_leads_back_to_its_flow_rfc3327_5_2() {
    let mut world = World::new();
    world.policy().own = vec![address(PROXY)];
    let registrar = format!("sip:{}", address(UAS));
    let phone = request(
        "REGISTER",
        &registrar,
        1,
        &format!("{ALICE}Supported: path, outbound\r\n"),
    );
    world.send(UAC, Transport::Udp, &phone);
    world.run_until(500);
    assert_eq!(world.heard(UAC), ["200 REGISTER"]);
    let register = world.last(UAS).to_owned();
    let path = value(&register, "Path").unwrap().to_owned();
    assert!(path.ends_with("@192.0.2.2:5060;lr;ob>"), "{path}");
    assert!(value(&register, "Record-Route").is_none());
    // The registrar sends a request by it: no trunk, no password, and to this flow alone.
    let invite = request(
        "MESSAGE",
        "sip:alice@10.1.1.1",
        2,
        &format!("Route: {path}\r\n"),
    );
    world.send(UAS, Transport::Udp, &invite);
    world.run_until(1_000);
    assert_eq!(world.heard(UAC).last(), Some(&"MESSAGE"));
    assert!(
        world
            .last(UAC)
            .starts_with("MESSAGE sip:alice@10.1.1.1 SIP/2.0")
    );
    // The phone's own use of it is as if it were not there: a password is asked for.
    let out = request(
        "MESSAGE",
        "sip:bob@example.com",
        3,
        &format!("Route: {path}\r\n"),
    );
    world.send(UAC, Transport::Udp, &out);
    world.run_until(1_500);
    assert_eq!(world.heard(UAC).last(), Some(&"407 MESSAGE"));
    let forged = path.replacen("sip:A", "sip:B", 1);
    assert_ne!(forged, path);
    let invite = request(
        "MESSAGE",
        "sip:alice@10.1.1.1",
        4,
        &format!("Route: {forged}\r\n"),
    );
    world.send(UAS, Transport::Udp, &invite);
    world.run_until(2_000);
    assert_eq!(world.heard(UAS).last(), Some(&"403 MESSAGE"));
    // A phone that does not say it knows Path gets none.
    let phone = request("REGISTER", &registrar, 5, ALICE);
    world.send(UAC, Transport::Udp, &phone);
    world.run_until(2_500);
    assert!(value(world.last(UAS), "Path").is_none());
    world.nothing_is_left();
}

#[test]
fn a_register_that_came_through_another_proxy_gets_a_path_without_ob_rfc5626_5_1() {
    let mut world = World::new();
    let registrar = format!("sip:{}", address(UAS));
    let lines = format!("{ALICE}Supported: path, outbound\r\n");
    let text = request("REGISTER", &registrar, 1, &lines);
    let vias = "SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKedge, SIP/2.0/UDP 10.1.1.1;branch=z9hG4bKphone\r\n";
    world.send_raw(UAC, &text.replacen("SIP/2.0\r\n", vias, 1));
    world.run_until(500);
    let path = value(world.last(UAS), "Path").unwrap();
    assert!(path.ends_with("@192.0.2.2:5060;lr>"), "{path}");
}

#[test]
fn the_path_of_a_response_is_not_changed_rfc3327_5_2() {
    let mut world = World::new();
    let registrar = format!("sip:{}", address(UAS));
    let path = "<sip:other.example;lr>,   <sip:192.0.2.2:5060;lr;x=\"1\">";
    let line = format!("Path: {path}\r\n");
    world.nodes[UAS].script.other = vec![(10, 200, line)];
    let lines = format!("{ALICE}Supported: path\r\n");
    let text = request("REGISTER", &registrar, 1, &lines);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(500);
    assert_eq!(values(world.last(UAC), "Path"), [path]);
    world.nothing_is_left();
}

#[test]
fn a_binding_with_path_is_reached_by_it_rfc3327_5_4() {
    let mut world = World::new();
    world.bind_bob(&[]);
    let mut contact = Contact::at("sip:bob@10.9.9.9");
    contact.path = format!("<sip:{};lr>, <sip:inner.example;lr>", address(UAS));
    world.policy().bind("bob", &contact);
    let message = request("MESSAGE", "sip:bob@example.com", 1, "");
    world.send(UAC, Transport::Udp, &message);
    world.run_until(500);
    let got = world.last(UAS);
    assert!(got.starts_with("MESSAGE sip:bob@10.9.9.9 SIP/2.0\r\n"));
    assert_eq!(values(got, "Route"), [&contact.path]);
    world.nothing_is_left();
}

#[test]
fn a_dialog_survives_a_new_connection_of_the_phone_that_began_it() {
    let mut world = World::new();
    let flow = World::datagrams_of(UAS);
    bound_by(&mut world, "sip:bob@10.0.0.7:40000", flow, 0);
    world.policy().trunks.clear();
    world.nodes[UAS].script = answers(&[(50, 200)]);
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Tcp, &invite);
    world.run_until(1_000);
    world.disconnect(UAC);
    let ok = world.last(UAC).to_owned();
    world.send(UAC, Transport::Tcp, &in_dialog(&ok, "BYE"));
    world.run_until(2_000);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
    world.nothing_is_left();
}

#[test]
fn a_contact_with_ob_is_reached_by_its_flow_within_the_dialog_rfc5626_5_3_2() {
    for has_ob in [true, false] {
        let config = sip_server::proxy::Config {
            record_route: false,
            ..sip_server::proxy::Config::default()
        };
        let mut world = World::with(Weather::FINE, 1, config);
        world.bind_bob(&[None]);
        world.policy().trunks.clear();
        world.nodes[UAS].script = answers(&[(50, 200)]);
        // Nobody listens there: the phone is reached by its connection only.
        let contact = match has_ob {
            true => "Contact: <sip:alice@192.0.2.99:9;ob>",
            false => "Contact: <sip:alice@192.0.2.99:9>",
        };
        let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
        let invite = invite.replace("Contact: <sip:alice@192.0.2.1>", contact);
        world.send(UAC, Transport::Tcp, &invite);
        world.run_until(1_000);
        let texts = world.nodes[UAS].texts.clone();
        let got = texts
            .iter()
            .find(|text| text.starts_with("INVITE"))
            .unwrap();
        let routes = values(got, "Record-Route");
        assert_eq!(!routes.is_empty(), has_ob, "{got}");
        if !has_ob {
            continue;
        }
        let routes = routes.iter().map(|route| format!("Route: {route}\r\n"));
        let ok = world.nodes[UAC].texts.last().unwrap().clone();
        let bye = format!(
            "BYE sip:alice@192.0.2.99:9;ob SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\n\
             CSeq: 9 BYE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
            routes.collect::<String>(),
            value(&ok, "To").unwrap(),
            value(&ok, "From").unwrap(),
            value(&ok, "Call-ID").unwrap(),
        );
        world.send(UAS, Transport::Udp, &bye);
        world.run_until(3_000);
        assert_eq!(world.heard(UAC).last(), Some(&"BYE"));
        assert_eq!(world.heard(UAS).last(), Some(&"200 BYE"));
    }
}

#[test]
fn a_route_of_this_server_with_another_user_part_is_removed_outside_of_dialogs_rfc3261_16_4() {
    for (user, to_tag, code) in [
        ("orig", false, "200"),
        ("orig", true, "403"),
        // It has the form of a token of Path.
        (&"A".repeat(40)[..], false, "403"),
        // It has the form of a token of a dialog.
        (&format!("d{}", "A".repeat(20)), false, "403"),
    ] {
        let mut world = World::new();
        world.bind_bob(&[None]);
        let route = format!("Route: <sip:{user}@{};lr>\r\n", address(PROXY));
        let mut text = request("MESSAGE", "sip:bob@example.com", 1, &route);
        if to_tag {
            text = text.replace(
                "To: <sip:bob@example.com>",
                "To: <sip:bob@example.com>;tag=x",
            );
        }
        world.send(UAC, Transport::Udp, &text);
        world.run_until(1_000);
        assert_eq!(
            world.heard(UAC),
            [format!("{code} MESSAGE")],
            "{user} {to_tag}"
        );
        if code == "200" {
            assert!(value(world.last(UAS), "Route").is_none());
        }
        world.nothing_is_left();
    }
    // It gives no rights: a stranger must authenticate, and cannot send elsewhere.
    let mut world = World::new();
    let route = format!("Route: <sip:orig@{};lr>\r\n", address(PROXY));
    let text = request("MESSAGE", "sip:carol@192.0.2.3", 1, &route);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["407 MESSAGE"]);
    assert!(world.heard(UAS).is_empty());
    world.nothing_is_left();
}

#[test]
fn a_path_may_lead_to_where_the_register_came_from_rfc3327_5_2() {
    // The first hop of the Path, the source of the REGISTER, and whether the proxy calls the phone.
    for (hop, source, is_sent) in [(UAS, UAS, true), (UAS, UAS + 1, false)] {
        let mut world = with(&IS_CLOSED, World::new);
        world.bind_bob(&[]);
        let mut bound = Contact::at("sip:bob@10.1.1.1");
        bound.path = format!("<sip:{};lr>", address(hop));
        bound.flow = Some(World::datagrams_of(source));
        world.policy().bind("bob", &bound);
        world.nodes[UAS].script = answers(&[(50, 200)]);
        world.invite();
        world.run_until(2_000);
        let code = if is_sent { 200 } else { 480 };
        assert_eq!(world.heard(UAC).last(), Some(&&*format!("{code} INVITE")));
        assert_eq!(world.heard(UAS).is_empty(), !is_sent);
        if is_sent {
            // Requests of the dialog reach the same hop.
            assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
            world.in_dialog(UAC, "BYE");
            world.run_until(3_000);
            assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
        }
        world.nothing_is_left();
    }
}
