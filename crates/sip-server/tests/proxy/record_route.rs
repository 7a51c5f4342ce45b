//! When a copy must have Record-Route, and with which scheme (RFC 3261 §16.6 step 4), for targets of each kind.
//! `sip.record_route` is off.

use sip::flow::{Flow, Transport};
use sip_server::flow::FlowId;
use sip_server::proxy::Config;
use sip_server::routes::{Forward, Forwards};

use crate::network::Weather;
use crate::node::{
    ALICE, HAS_TLS, PROXY, UAC, UAS, address, answers, request, value, values, with,
};
use crate::policy::Contact;
use crate::world::World;

pub(crate) fn world(has_tls: bool) -> World {
    let config = Config {
        record_route: false,
        recurses: true,
        ..Config::default()
    };
    let make = || World::with(Weather::FINE, 1, config);
    let mut world = match has_tls {
        true => with(&HAS_TLS, make),
        false => make(),
    };
    world.bind_bob(&[]);
    world
}

/// The Record-Route schemes of the first INVITE that a node has got, the side of the callee first.
fn schemes(world: &World, node: usize) -> Vec<String> {
    let mut texts = world.nodes[node].texts.iter();
    let invite = texts.find(|text| text.starts_with("INVITE ")).unwrap();
    let routes = values(invite, "Record-Route").into_iter();
    routes
        .map(|route| {
            let scheme = route.trim_start_matches('<').split(':').next();
            scheme.unwrap().to_owned()
        })
        .collect()
}

#[test]
fn a_path_with_a_sips_uri_has_a_sips_record_route_rfc3261_16_6_4() {
    for (from, scheme, wanted) in [
        (Transport::Tls, "sips", ["sips", "sips"]),
        // A caller without TLS must be able to use the value of its side.
        (Transport::Tcp, "sips", ["sips", "sip"]),
        (Transport::Tls, "sip", ["sip", "sip"]),
        (Transport::Tcp, "sip", ["sip", "sip"]),
    ] {
        let mut world = world(true);
        let mut bound = Contact::at("sip:bob@192.0.2.9");
        bound.path = format!("<{scheme}:{};lr>", address(UAS));
        bound.flow = Some(world.phone_connects_by(Transport::Tls, UAS));
        world.policy().bind("bob", &bound);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        let invite = request("INVITE", "sip:bob@example.com", 1, "");
        world.send(UAC, from, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["486 INVITE"]);
        assert_eq!(schemes(&world, UAS), wanted, "{from:?} {scheme}");
        world.nothing_is_left();
    }
}

#[test]
fn a_topmost_route_with_a_sips_uri_requires_a_sips_record_route_rfc3261_16_6_4() {
    for (from, scheme, wanted) in [
        (Transport::Udp, "sips", &["sips", "sip"][..]),
        (Transport::Udp, "sip", &[]),
        (Transport::Tls, "sips", &[]),
        (Transport::Tls, "sip", &["sip", "sip"]),
    ] {
        let mut world = world(true);
        world.policy().trunks.clear();
        world.nodes[UAS].script = answers(&[(50, 486)]);
        let lines = format!("Route: <{scheme}:{};lr>\r\n{ALICE}", address(UAS));
        let invite = request("INVITE", "sip:carol@192.0.2.9", 1, &lines);
        world.send(UAC, from, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["486 INVITE"], "{from:?} {scheme}");
        assert_eq!(schemes(&world, UAS), wanted, "{from:?} {scheme}");
        world.nothing_is_left();
    }
}

#[test]
fn a_strict_router_leaves_the_next_route_on_top_rfc3261_16_6_4() {
    for (second, wanted) in [
        ("sips:192.0.2.77;lr", &["sips", "sip"][..]),
        ("sip:192.0.2.77;lr", &[]),
    ] {
        let mut world = world(false);
        world.policy().trunks.clear();
        world.nodes[UAS].script = answers(&[(50, 486)]);
        let lines = format!("Route: <sip:{}>, <{second}>\r\n{ALICE}", address(UAS));
        let invite = request("INVITE", "sip:carol@192.0.2.9", 1, &lines);
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["486 INVITE"], "{second}");
        assert_eq!(schemes(&world, UAS), wanted, "{second}");
        world.nothing_is_left();
    }
}

#[test]
fn the_contact_of_a_3xx_has_the_record_route_that_it_requires_rfc3261_16_6_4() {
    for (scheme, wanted) in [("sips", &["sips", "sips"][..]), ("sip", &[])] {
        let mut world = world(true);
        let bound = Contact::at(&format!("{scheme}:bob@{}", address(UAS)));
        world.policy().bind("bob", &bound);
        let lines = format!("Contact: <{scheme}:bob@{}>\r\n", address(UAS + 1));
        world.nodes[UAS].script.invite = vec![(50, 302, lines)];
        world.nodes[UAS + 1].script = answers(&[(50, 486)]);
        let invite = request("INVITE", &format!("{scheme}:bob@example.com"), 1, "");
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["486 INVITE"], "{scheme}");
        assert_eq!(schemes(&world, UAS), wanted, "{scheme}");
        assert_eq!(schemes(&world, UAS + 1), wanted, "{scheme}");
        world.nothing_is_left();
    }
}

#[test]
fn a_call_that_goes_on_has_the_record_route_that_its_target_requires_rfc3261_16_6_4() {
    for (from, scheme, wanted) in [
        (Transport::Tls, "sips", &["sip", "sip"][..]),
        (Transport::Tcp, "sip", &[]),
    ] {
        let mut world = world(false);
        let mut bound = Contact::at(&format!("{scheme}:bob@192.0.2.9"));
        bound.flow = Some(world.phone_connects_by(from, UAS));
        world.policy().bind("bob", &bound);
        world.policy().forwards = Forwards::new(vec![Forward {
            busy: Some(format!("sip:voicemail@{}", address(UAS + 1))),
            ..Forward::default()
        }]);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        world.nodes[UAS + 1].script = answers(&[(50, 486)]);
        let invite = request("INVITE", &format!("{scheme}:bob@example.com"), 1, "");
        world.send(UAC, from, &invite);
        world.run_until(1_000);
        assert_eq!(world.heard(UAC), ["486 INVITE"], "{scheme}");
        assert!(schemes(&world, UAS).is_empty(), "{scheme}");
        assert_eq!(schemes(&world, UAS + 1), wanted, "{scheme}");
        world.nothing_is_left();
    }
}

#[test]
fn a_sip_request_for_a_sips_contact_keeps_its_scheme_and_goes_by_tls_rfc5630_5_3() {
    // `None`: the contact is reached without the flow of its registration.
    for (by, path, code) in [
        (Some(Transport::Tls), false, 486),
        (Some(Transport::Tcp), false, 480),
        (Some(Transport::Udp), false, 480),
        (None, false, 486),
        (None, true, 486),
    ] {
        let mut world = world(true);
        let mut bound = Contact::at(&format!("SIPS:bob@{};x=y", address(UAS)));
        bound.reg_id = u32::from(by == Some(Transport::Tcp));
        bound.flow = by.map(|by| match by {
            Transport::Udp => FlowId {
                // The phone is behind a NAT, so its Contact is not used.
                flow: Flow {
                    remote: address(UAS + 1),
                    ..World::datagrams_of(UAS).flow
                },
                ..World::datagrams_of(UAS)
            },
            by => world.phone_connects_by(by, UAS),
        });
        if path {
            bound.path = format!("<sip:{};lr>", address(UAS));
        }
        world.policy().bind("bob", &bound);
        world.nodes[UAS].script = answers(&[(50, 486)]);
        let invite = request("INVITE", "sip:bob@example.com", 1, "");
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        let case = format!("{by:?} {path}");
        assert_eq!(
            world.heard(UAC).last(),
            Some(&&*format!("{code} INVITE")),
            "{case}"
        );
        let sent = world.nodes[PROXY].sent.iter();
        let sent: Vec<_> = sent
            .filter(|(_, _, text)| text.starts_with("INVITE"))
            .collect();
        assert_eq!(sent.len(), usize::from(code == 486), "{case}");
        for (_, _, invite) in sent {
            let uri = format!("INVITE sip:bob@{};x=y SIP/2.0\r\n", address(UAS));
            assert!(invite.starts_with(&uri), "{case}: {invite}");
            let via = value(invite, "Via").unwrap();
            assert!(via.starts_with("SIP/2.0/TLS"), "{case}: {via}");
            assert_eq!(schemes(&world, UAS), ["sip", "sip"], "{case}");
        }
        world.nothing_is_left();
    }
}
