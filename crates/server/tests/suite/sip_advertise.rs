//! What the server calls itself in Via, Record-Route and Contact (RFC 3261 §18.1.1): what a listener is bound to, what
//! a message came to, or what the operator has told.

use crate::sip_client::phone::{Line, Phone, value, values};
use crate::sip_client::{Client, example_com, status, test_uas, with_users};
use hairpin_server::Running;
use hairpin_server::sip::{Advertised, SipSettings};
use sip::Method;
use std::net::SocketAddr;
use std::time::Duration;

fn proxy() -> SipSettings {
    let mut settings = example_com();
    settings.t1 = Duration::from_millis(100);
    settings
}

fn serve(settings: SipSettings, listen: &str) -> Running {
    with_users(listen, settings, 2)
        .workers(2)
        .start()
        .expect("the server starts")
}

fn advertised(host: &str, of: Option<&str>) -> Advertised {
    Advertised {
        host: host.to_owned(),
        port: None,
        of: of.map(|of| of.parse().expect("an address")),
        of_port: None,
    }
}

/// A phone that knows the server by this address.
fn phone(server: &Running, user: &str, ip: &str) -> Phone {
    let port = server.sip_listeners()[0].port();
    let mut phone = Phone::udp(server, user);
    let at = SocketAddr::new(ip.parse().expect("an address"), port);
    phone.line = Line::Udp(Client::of_all_addresses(at));
    phone.register();
    phone
}

/// Rings from the first phone to the second; the INVITE that came.
fn invite(caller: &mut Phone, callee: &mut Phone, call: &str) -> String {
    let uri = format!("sip:{}@example.com", callee.user);
    caller.ask(Method::Invite, &uri, call);
    callee.expect("INVITE ")
}

/// The second phone answers, and the first ends the call.
fn finish(caller: &mut Phone, callee: &mut Phone, invite: &str) {
    callee.respond(invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    caller.in_dialog(&ok, "BYE");
    let bye = callee.expect("BYE ");
    callee.respond(&bye, "200 OK");
    caller.expect("SIP/2.0 200");
}

/// The host and port of each Record-Route value.
fn route_hosts(message: &str) -> Vec<String> {
    let routes = values(message, "Record-Route").into_iter();
    let hosts = routes.map(|route| {
        let host = route.split('@').nth(1).expect("a user").split([';', '>']);
        host.take(1).collect()
    });
    hosts.collect()
}

#[test]
fn a_listener_on_all_addresses_is_called_by_the_one_that_a_message_came_to() {
    let server = serve(proxy(), "0.0.0.0:0");
    let port = server.sip_listeners()[0].port();
    let mut caller = phone(&server, "user0", "127.0.0.3");
    let mut callee = phone(&server, "user1", "127.0.0.4");
    let invite = invite(&mut caller, &mut callee, "wild");
    let sides = [format!("127.0.0.4:{port}"), format!("127.0.0.3:{port}")];
    assert_eq!(route_hosts(&invite), sides);
    assert!(
        value(&invite, "Via").starts_with(&format!("SIP/2.0/UDP 127.0.0.4:{port};")),
        "{invite}"
    );
    assert!(!invite.contains("0.0.0.0"), "{invite}");
    finish(&mut caller, &mut callee, &invite);
}

#[test]
fn a_request_without_a_flow_is_signed_with_the_address_that_the_kernel_sends_from() {
    let mut settings = proxy();
    settings.trunks = vec![hairpin_server::sip::Trunk {
        addresses: vec!["127.0.0.7/32".parse().expect("a network")],
        ..hairpin_server::sip::Trunk::default()
    }];
    let server = serve(settings, "0.0.0.0:0");
    let port = server.sip_listeners()[0].port();
    let trunk = std::net::UdpSocket::bind("127.0.0.7:0").expect("a socket");
    let timeout = Some(Duration::from_secs(10));
    trunk.set_read_timeout(timeout).expect("an option");
    let at = trunk.local_addr().expect("an address");
    let mut caller = phone(&server, "user0", "127.0.0.3");
    caller.ask(Method::Message, &format!("sip:1@{at}"), "trunk");
    let mut buffer = vec![0; 65_536];
    let (len, from) = trunk.recv_from(&mut buffer).expect("a message in time");
    let message = String::from_utf8_lossy(&buffer[..len]).into_owned();
    let via = format!("SIP/2.0/UDP {}:{port};", from.ip());
    assert!(value(&message, "Via").starts_with(&via), "{message}");
}

#[test]
fn via_and_record_route_have_the_advertised_address() {
    let mut settings = proxy();
    settings.advertise = vec![advertised("sip.example.net", None)];
    let server = serve(settings, "127.0.0.1:0");
    let port = server.sip_listeners()[0].port();
    let mut caller = phone(&server, "user0", "127.0.0.1");
    let mut callee = phone(&server, "user1", "127.0.0.1");
    let invite = invite(&mut caller, &mut callee, "named");
    let outside = format!("sip.example.net:{port}");
    assert_eq!(route_hosts(&invite), [outside.clone(), outside.clone()]);
    let via = format!("SIP/2.0/UDP {outside};");
    assert!(value(&invite, "Via").starts_with(&via), "{invite}");
    finish(&mut caller, &mut callee, &invite);
    // A phone that has the server as its outbound proxy by that name.
    let route = format!("Route: <sip:{outside};lr>\r\n");
    let uri = "sip:user1@example.com";
    let text = caller.request("MESSAGE", uri, "preloaded", 1, &route);
    caller.send(&text);
    caller.expect("SIP/2.0 407");
    let ping = caller.request("OPTIONS", &format!("sip:{outside}"), "ping", 1, "");
    caller.send(&ping);
    assert_eq!(status(&caller.receive()), 200, "it is the server itself");
}

#[test]
fn each_interface_has_its_name_and_networks_inside_see_the_address() {
    let mut settings = proxy();
    settings.advertise = vec![
        advertised("203.0.113.5", Some("127.0.0.3")),
        advertised("inside.example.net", Some("127.0.0.4")),
    ];
    let server = serve(settings, "0.0.0.0:0");
    let port = server.sip_listeners()[0].port();
    let mut outside = phone(&server, "user0", "127.0.0.3");
    let mut inside = phone(&server, "user1", "127.0.0.4");
    let invite = invite(&mut outside, &mut inside, "two");
    assert_eq!(
        route_hosts(&invite),
        [
            format!("inside.example.net:{port}"),
            format!("203.0.113.5:{port}")
        ]
    );
    finish(&mut outside, &mut inside, &invite);
}

#[test]
fn networks_inside_see_the_address_of_the_listener() {
    let mut settings = proxy();
    settings.advertise = vec![advertised("203.0.113.5", None)];
    settings.local_networks = vec!["127.0.0.1/32".parse().expect("a network")];
    let server = serve(settings, "127.0.0.1:0");
    let own = server.sip_listeners()[0].to_string();
    let mut caller = phone(&server, "user0", "127.0.0.1");
    let mut callee = phone(&server, "user1", "127.0.0.1");
    let invite = invite(&mut caller, &mut callee, "inside");
    assert_eq!(route_hosts(&invite), [own.clone(), own]);
    finish(&mut caller, &mut callee, &invite);
}

#[test]
fn the_contact_of_a_user_agent_server_is_what_is_advertised() {
    let mut settings = test_uas();
    settings.advertise = vec![advertised("sip.example.net", None)];
    let server = serve(settings, "127.0.0.1:0");
    let port = server.sip_listeners()[0].port();
    let client = Client::new(server.sip_listeners()[0]);
    let at = client.local();
    let invite = format!(
        "INVITE sip:ring@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {at};rport;branch=z9hG4bK1\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:ring@127.0.0.1>\r\nCall-ID: 1@test\r\nCSeq: 1 INVITE\r\n\
         Max-Forwards: 70\r\nContact: <sip:a@{at}>\r\nContent-Length: 0\r\n\r\n"
    );
    let ringing = client.ask(&invite);
    assert_eq!(status(&ringing), 180, "{ringing}");
    let contact = format!("<sip:sip.example.net:{port}>");
    assert_eq!(value(&ringing, "Contact"), contact);
}
