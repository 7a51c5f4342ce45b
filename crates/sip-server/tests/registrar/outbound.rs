//! Outbound (RFC 5626 §6).

use sip_server::flow::{FlowAvailability, Runs};
use sip_server::location::Limits;
use sip_server::registrar::Config;

use crate::world::{World, request, tcp_flow, udp_flow};

const INSTANCE: &str = "+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-000A95A0E128>\"";
const OUTBOUND: &str = "Supported: path, outbound";

fn contact(uri: &str, reg_id: &str) -> String {
    format!("Contact: <{uri}>;reg-id={reg_id};{INSTANCE}\n{OUTBOUND}")
}

/// The request as it comes by way of a proxy that adds its Via and these lines.
fn through_proxy(text: &str, lines: &str) -> String {
    text.replacen(
        "Via:",
        &format!("{lines}Via: SIP/2.0/UDP p.example;branch=z9hG4bKp\r\nVia:"),
        1,
    )
}

#[test]
fn a_flow_is_replaced_by_instance_and_reg_id_for_every_uri_rfc5626_6() {
    let mut world = World::new();
    world.flow = tcp_flow(1);
    let reply = world.register("a", 1, &contact("sip:alice@192.168.1.2", "1"));
    assert_eq!(reply.values("Require"), ["outbound"]);
    assert_eq!(
        reply.contacts(),
        [format!(
            "<sip:alice@192.168.1.2>;expires=3600;reg-id=1;{INSTANCE}"
        )]
    );
    // The phone has crashed, and comes back with another address, call and connection.
    world.flow = tcp_flow(2);
    let reply = world.register("b", 1, &contact("sip:alice@192.168.1.3", "1"));
    assert_eq!(reply.contacts().len(), 1);
    assert_eq!(world.bindings()[0].uri(), b"sip:alice@192.168.1.3");
    assert_eq!(world.bindings()[0].flow(), Some(tcp_flow(2)));
    // An instance in another spelling is the same, another instance or reg-id is not.
    let lower = contact("sip:alice@192.168.1.4", "1").to_lowercase();
    assert_eq!(world.register("c", 1, &lower).contacts().len(), 1);
    let reply = world.register("c", 2, &contact("sip:alice@192.168.1.4", "2"));
    assert_eq!(reply.contacts().len(), 2);
    let other = contact("sip:alice@192.168.1.4", "2").replace("E128", "E129");
    assert_eq!(world.register("c", 3, &other).contacts().len(), 3);
}

#[test]
fn a_flow_is_removed_by_instance_and_reg_id_rfc5626_6() {
    let mut world = World::new();
    world.register("a", 1, &contact("sip:alice@192.168.1.2", "1"));
    world.register("b", 1, &contact("sip:alice@192.168.1.2", "2"));
    // A new flow may remove others at once.
    let lines = format!(
        "{}\nContact: <sip:x@192.168.1.9>;reg-id=2;{INSTANCE};expires=0",
        contact("sip:alice@192.168.1.3", "1")
    );
    assert_eq!(world.register("c", 1, &lines).contacts().len(), 1);
    let removal = contact("sip:elsewhere", "1").replace(";reg-id", ";expires=0;reg-id");
    assert_eq!(world.register("c", 1, &removal).code, 500, "out of order");
    let reply = world.register("c", 2, &removal);
    assert!(reply.contacts().is_empty());
    assert_eq!(reply.values("Require"), ["outbound"]);
}

#[test]
fn a_binding_of_a_uri_and_one_of_a_flow_stand_beside_each_other_rfc5626_6() {
    let mut world = World::new();
    world.register("a", 1, &contact("sip:alice@192.168.1.2", "1"));
    let plain = "Contact: <sip:alice@192.168.1.2>";
    assert_eq!(world.register("b", 1, plain).contacts().len(), 2);
    let removal = format!("{plain};expires=0");
    assert_eq!(world.register("b", 2, &removal).contacts().len(), 1);
    assert_eq!(world.bindings()[0].reg_id(), 1);
}

#[test]
fn require_outbound_is_for_those_who_support_it_rfc5626_6() {
    let config = Config {
        flow_timer: Some(120),
        ..Config::default()
    };
    let mut world = World::with(config, Limits::default());
    let lines = contact("sip:a@h", "1");
    let reply = world.register("a", 1, &lines);
    assert_eq!(reply.values("Require"), ["outbound"]);
    assert!(reply.values("Flow-Timer").is_empty(), "by UDP");
    world.flow = tcp_flow(1);
    let reply = world.register("a", 2, &lines);
    assert_eq!(reply.values("Require"), ["outbound"]);
    assert_eq!(reply.values("Flow-Timer"), ["120"]);
    for lines in [
        lines.replace("Supported: path, outbound", "Supported: path"),
        lines.replace(";reg-id=1", ""),
        lines.replace("+sip.instance", "+other"),
        String::new(),
    ] {
        let mut world = World::new();
        let reply = world.register("b", 1, &lines);
        assert_eq!(reply.code, 200, "{lines}");
        assert!(reply.values("Require").is_empty(), "{lines}");
        assert!(reply.values("Flow-Timer").is_empty(), "{lines}");
    }
}

#[test]
fn a_reg_id_without_an_instance_or_that_is_none_is_ignored_rfc5626_6() {
    for reg_id in ["0", "2147483648", "99999999999", "x", "\"1\""] {
        let mut world = World::new();
        world.register("a", 1, &contact("sip:a@h", reg_id));
        assert_eq!(world.bindings()[0].reg_id(), 0, "{reg_id}");
    }
    for reg_id in ["1", "2147483647"] {
        let mut world = World::new();
        world.register("a", 1, &contact("sip:a@h", reg_id));
        assert_eq!(world.bindings()[0].reg_id().to_string(), reg_id);
    }
    for instance in [
        "+sip.instance",
        "+sip.instance=\"urn:uuid:1\"",
        "+sip.instance=\"<>\"",
        "+x=y",
    ] {
        let mut world = World::new();
        let lines = contact("sip:a@h", "1").replace(INSTANCE, instance);
        let reply = world.register("a", 1, &lines);
        assert_eq!(reply.code, 200, "{instance}");
        assert_eq!(world.bindings()[0].reg_id(), 0, "{instance}");
        assert!(!reply.contacts()[0].contains("reg-id"), "{instance}");
    }
}

#[test]
fn a_registration_has_one_lasting_contact_if_any_is_a_flow_rfc5626_6() {
    let mut world = World::new();
    let second = format!("{}\nContact: <sip:b@h>", contact("sip:a@h", "1"));
    assert_eq!(world.register("a", 1, &second).code, 400);
    assert!(world.location.is_empty());
    let removal = second.replace("<sip:b@h>", "<sip:b@h>;expires=0");
    assert_eq!(world.register("a", 2, &removal).code, 200);
}

#[test]
fn a_first_hop_without_outbound_gets_439_or_the_reg_id_is_ignored_rfc5626_6() {
    for path in [
        "",
        "Path: <sip:p.example;lr>\r\n",
        "Path: <sip:q.example;lr;ob>, <sip:p.example;lr>\r\n",
    ] {
        let mut world = World::new();
        let text = through_proxy(&request("a", 1, &contact("sip:a@h", "1")), path);
        assert_eq!(world.send(&text).code, 439, "{path}");
        assert!(world.location.is_empty());
        // Whoever requires Outbound supports it (RFC 3261 §8.2.2.3).
        let supported = "Supported: path, outbound";
        let required = text.replace(supported, "Supported: path\r\nRequire: outbound");
        assert_eq!(world.send(&required).code, 439, "{path}");
        let text = text.replace("Supported: path, outbound", "Supported: path");
        let reply = world.send(&text);
        assert_eq!(reply.code, 200, "{path}");
        assert_eq!(world.bindings()[0].reg_id(), 0);
        assert!(!reply.contacts()[0].contains("reg-id"));
        assert!(reply.values("Require").is_empty());
    }
}

#[test]
fn a_first_hop_with_ob_in_its_path_is_as_good_as_none_rfc5626_6() {
    let mut world = World::new();
    let path = "Path: <sip:q.example;lr>, <sip:token@p.example;lr;ob>\r\n";
    let text = through_proxy(&request("a", 1, &contact("sip:a@h", "1")), path);
    assert_eq!(world.send(&text).values("Require"), ["outbound"]);
    let binding = &world.bindings()[0];
    assert_eq!(binding.reg_id(), 1);
    // The flow is the proxy's: the way to the phone is the path.
    assert_eq!(binding.flow(), None);
    assert_eq!(
        binding.path(),
        b"<sip:q.example;lr>, <sip:token@p.example;lr;ob>"
    );
}

#[test]
fn a_direct_flow_is_kept_and_a_refresh_brings_the_new_one_rfc5626_6() {
    let mut world = World::new();
    world.register("a", 1, &contact("sip:a@h", "1"));
    assert_eq!(world.bindings()[0].flow(), Some(world.flow));
    world.flow = udp_flow("198.51.100.1:61000");
    world.register("a", 2, &contact("sip:a@h", "1"));
    assert_eq!(world.bindings()[0].flow(), Some(world.flow));
    // A phone without Outbound behind a NAT is reached by the flow only.
    world.register("b", 1, "Contact: <sip:b@192.168.1.2>");
    let flow = world.bindings()[1].flow().unwrap();
    assert_eq!(flow, world.flow);
    assert_eq!(flow.state(Runs::of(8)), FlowAvailability::Datagrams);
}
