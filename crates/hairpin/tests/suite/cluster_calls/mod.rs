//! Phones of several nodes that call each other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sip::{HeaderKind, Method};

use crate::common::nodes::{Node, soon};
use crate::common::sip::sip_listener;
use crate::sip_client::phone::{Line, PASSWORD, Phone, credentials, value, values};

/// SIP for three users, who are the same at each node.
pub(crate) fn keys() -> String {
    let users = ["ann", "bob", "eve"];
    let users = users.map(|name| format!("{{ name = \"{name}\", password = \"{PASSWORD}\" }}"));
    format!(
        "[peers]\nallow_local = true\n[sip]\nlisten = [\"127.0.0.1:0\"]\ntolerance = \"0s\"\n\
         [[sip.domain]]\nname = \"example.com\"\nusers = [{}]\n",
        users.join(", ")
    )
}

pub(crate) fn sip_of(node: &Node) -> SocketAddr {
    sip_listener(&node.serve)
}

pub(crate) fn written(node: &Node) -> f64 {
    node.metric("hairpin_cluster_sip_writes_total{result=\"written\"}")
}

/// A phone that is registered, and that the engine has.
pub(crate) fn registered(mut phone: Phone, node: &Node) -> Phone {
    let before = written(node);
    phone.register();
    soon("the engine has it", || written(node) > before);
    phone
}

/// Registers a phone by its instance (RFC 5626 §4.2). The same instance at another node is the same phone.
pub(crate) fn register_instance(phone: &mut Phone, instance: u32, call: &str, node: &Node) {
    register_flow(phone, (instance, 1), call, node);
}

/// Registers one flow of an instance. With another reg-id at another node, the phone keeps both (RFC 5626 §4.2.1).
pub(crate) fn register_flow(
    phone: &mut Phone,
    (instance, reg_id): (u32, u32),
    call: &str,
    node: &Node,
) {
    let before = written(node);
    let uri = "sip:example.com";
    let params = format!(
        ";+sip.instance=\"<urn:uuid:00000000-0000-4000-8000-{instance:012}>\";reg-id={reg_id}\r\n"
    );
    let with_instance = |text: String| {
        let (head, rest) = text.split_once("Contact: ").unwrap();
        let (contact, rest) = rest.split_once("\r\n").unwrap();
        format!("{head}Supported: outbound\r\nContact: {contact}{params}{rest}")
    };
    let first = with_instance(phone.request("REGISTER", uri, call, 1, ""));
    phone.send(&first);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let second = with_instance(phone.request("REGISTER", uri, call, 2, &line));
    phone.send(&second);
    let ok = phone.expect("SIP/2.0 200");
    assert!(ok.contains(&format!("reg-id={reg_id}")), "{ok}");
    soon("the engine has it", || written(node) > before);
}

/// Calls, and answers the challenge. Gives the INVITE with credentials. Responses to earlier calls may be repeated in
/// between.
pub(crate) fn invite(caller: &mut Phone, user: &str, id: &str) -> String {
    let uri = format!("sip:{user}@example.com");
    let first = caller.request("INVITE", &uri, id, 1, "");
    caller.send(&first);
    let call = format!("Call-ID: {id}@test");
    let challenge = loop {
        let challenge = caller.expect("SIP/2.0 407");
        if challenge.contains(&call) {
            break challenge;
        }
    };
    caller.acknowledge(&first, &challenge);
    let kind = HeaderKind::ProxyAuthorization;
    let line = credentials(&challenge, kind, &caller.user, Method::Invite, &uri);
    let second = caller.request("INVITE", &uri, id, 2, &line);
    caller.send(&second);
    second
}

/// Calls until the callee gets the INVITE, and returns that. If the machine is busy, the engine may not respond in
/// time: then it is 480.
pub(crate) fn reached(caller: &mut Phone, callee: &mut Phone, id: &str) -> String {
    let started = Instant::now();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let id = format!("{id}x{attempt}");
        let asked = invite(caller, &callee.user.clone(), &id);
        let call = format!("Call-ID: {id}@test");
        loop {
            let text = next_of(callee);
            if text.starts_with("INVITE ") && text.contains(&call) {
                return text;
            }
            let text = next_of(caller);
            if text.starts_with("SIP/2.0 480") && text.contains(&call) {
                caller.acknowledge(&asked, &text);
                break;
            }
            let waited = started.elapsed();
            assert!(waited < Duration::from_secs(60), "{id}: no INVITE");
        }
    }
}

/// A whole call over two nodes with TLS between them, with a request of each side within the dialog.
pub(crate) fn call(caller: &mut Phone, callee: &mut Phone, id: &str) {
    call_over(true, caller, callee, id);
}

/// The same with TLS between the nodes, or without.
pub(crate) fn call_over(over_tls: bool, caller: &mut Phone, callee: &mut Phone, id: &str) {
    let invite = reached(caller, callee, id);
    let contact = callee.contact();
    let uri = contact.trim_matches(['<', '>']);
    assert!(invite.starts_with(&format!("INVITE {uri} ")), "{invite}");
    assert!(!invite.contains("Proxy-Authorization"), "{invite}");
    assert!(values(&invite, "Route").is_empty(), "{invite}");
    let identity = format!("<sip:{}@example.com>", caller.user);
    assert_eq!(value(&invite, "P-Asserted-Identity"), identity);
    // Both nodes are on the way, each with both of its sides.
    let routes = values(&invite, "Record-Route");
    let is_tls: Vec<_> = routes
        .iter()
        .map(|it| it.contains(";transport=tls"))
        .collect();
    assert_eq!(is_tls, [false, over_tls, over_tls, false], "{invite}");
    let vias = values(&invite, "Via");
    let between = if over_tls {
        "SIP/2.0/TLS "
    } else {
        "SIP/2.0/UDP "
    };
    assert!(vias[1].starts_with(between), "{invite}");
    callee.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    let ack = callee.expect("ACK ");
    assert!(values(&ack, "Route").is_empty(), "{ack}");
    caller.in_dialog(&ok, "INFO");
    let info = callee.expect("INFO ");
    callee.respond(&info, "200 OK");
    caller.expect("SIP/2.0 200");
    callee.hang_up(&invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    callee.expect("SIP/2.0 200");
}

/// The next message for a phone, if there is one soon.
pub(crate) fn next_of(phone: &mut Phone) -> String {
    let time = Duration::from_millis(50);
    let next = match &mut phone.line {
        Line::Udp(client) => client.answer_within(time),
        Line::Tcp(stream, _) => stream.answer_within(time),
        Line::Other(..) => None,
    };
    next.unwrap_or_default()
}
