//! Access to trunks. Neither a phone nor a redirect may send other callers to a trunk. Route values are checked for
//! forbidden numbers. Calls in progress continue after a reload.

use crate::sip_client::phone::{PASSWORD, Phone, value};
use crate::sip_client::status;
use crate::sip_routes::{Carrier, Peer, route, serve, settings};
use hairpin_server::sip::{Inbound, SipSettings};
use sip::Method;
use std::time::{Duration, Instant};

/// Registers a phone with this Contact and these header fields.
fn register(phone: &mut Phone, call: &str, (contact, lines): (&str, &str)) {
    let (uri, own) = ("sip:example.com", phone.contact());
    let request = phone.request("REGISTER", uri, call, 1, "");
    phone.send(&request);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = sip::header::HeaderKind::Authorization;
    let line =
        crate::sip_client::phone::credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let request = phone.request("REGISTER", uri, call, 2, &format!("{line}{lines}"));
    let (old, new) = (
        format!("Contact: {own}\r\n"),
        format!("Contact: {contact}\r\n"),
    );
    phone.send(&request.replace(&old, &new));
    phone.expect("SIP/2.0 200");
}

/// The code of the final response to a request from this peer to user1.
fn code_of(peer: &Peer, method: &str, call: &str) -> u16 {
    peer.send(method, "sip:user1@example.com", call, "");
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let text = peer.receive().unwrap_or_default();
        if text.contains(call) && !text.starts_with("SIP/2.0 1") {
            return status(&text);
        }
        assert!(Instant::now() < end, "no response to {method} {call}");
    }
}

fn open(carrier: &Carrier) -> SipSettings {
    let mut settings = settings(vec![carrier.trunk("a")], vec![route("+", &["a"])]);
    settings.domains[0].inbound = Inbound::Anyone;
    settings
}

#[test]
fn a_registered_path_or_contact_never_leads_to_a_trunk() {
    let carrier = Carrier::new("127.0.0.51", &[(0, 200)]);
    let at = carrier.at();
    let server = serve(open(&carrier));
    let stranger = Peer::new("127.0.0.52", &server);
    let mut phone = Phone::udp(&server, "user1");
    let own = phone.contact();
    let own = own.trim_matches(['<', '>']);
    let path = |value: &str| format!("Path: {value}\r\nSupported: path\r\n");
    for (number, (contact, lines)) in [
        (format!("<sip:+4930@{at}>"), path(&format!("<sip:{at};lr>"))),
        (format!("<sip:+4930@{at}>"), path(&format!("<sip:{at}>"))),
        (format!("<{own};maddr={}>", at.ip()), String::new()),
    ]
    .into_iter()
    .enumerate()
    {
        register(&mut phone, &format!("reg{number}"), (&contact, &lines));
        for method in ["INVITE", "MESSAGE"] {
            let code = code_of(&stranger, method, &format!("{method}{number}"));
            assert_eq!(code, 480, "{method} {contact} {lines}");
        }
    }
    // Without its connection, the phone's Contact is the target.
    let mut phone = Phone::tcp(&server, "user1");
    register(&mut phone, "closed", (&format!("<sip:+4930@{at}>"), ""));
    drop(phone);
    assert_eq!(code_of(&stranger, "INVITE", "closed"), 480);
    assert_eq!(carrier.requests(), 0);
}

#[test]
fn only_users_follow_a_redirect_to_a_trunk_and_not_to_a_forbidden_number() {
    let carrier = Carrier::new("127.0.0.53", &[(0, 200)]);
    let at = carrier.at();
    let mut open = open(&carrier);
    open.recurse = true;
    open.calls.forbidden_prefixes = vec!["+1900".to_owned()];
    let server = serve(open);
    let stranger = Peer::new("127.0.0.54", &server);
    let trunk = Peer::new("127.0.0.53", &server);
    let mut phone = Phone::udp(&server, "user1");
    phone.register();
    let redirect = |phone: &mut Phone, number: &str| {
        let asked = phone.expect("MESSAGE ");
        let own = phone.contact();
        let moved = phone.response(&asked, "302 Moved Temporarily");
        phone.send(&moved.replace(&own, &format!("<sip:{number}@{at}>")));
    };
    for (peer, call) in [(&stranger, "stranger"), (&trunk, "trunk")] {
        peer.send("MESSAGE", "sip:user1@example.com", call, "");
        redirect(&mut phone, "+4930");
    }
    let end = Instant::now() + Duration::from_secs(10);
    let mut seen = String::new();
    while !seen.starts_with("SIP/2.0 302") {
        seen = stranger.receive().unwrap_or_default();
        assert!(Instant::now() < end, "no response");
    }
    let mut caller = Phone::udp(&server, "user1");
    for (number, code) in [("+1-900-555", "SIP/2.0 302"), ("+4930", "SIP/2.0 200")] {
        caller.ask(Method::Message, "sip:user1@example.com", number);
        redirect(&mut phone, number);
        caller.expect(code);
    }
    assert_eq!(carrier.requests(), 1);
}

/// RFC 3261 §16.6 step 6: a Route value without `lr` becomes the Request-URI.
#[test]
fn a_forbidden_number_is_forbidden_in_route_too() {
    let carrier = Carrier::new("127.0.0.55", &[(0, 200)]);
    let at = carrier.at();
    let mut settings = settings(vec![carrier.trunk("a")], vec![route("+", &["a"])]);
    settings.calls.forbidden_prefixes = vec!["+1900".to_owned()];
    let server = serve(settings);
    let mut phone = Phone::udp(&server, "user1");
    let routes = [
        format!("<sip:+1900555@{at}>"),
        format!("<sip:example.com;lr>, <sip:+1-900-555@{at}>"),
        format!("<sip:{at};lr>, <sip:+1900555@{at}>"),
    ];
    for (number, routes) in routes.iter().enumerate() {
        let (uri, call) = ("sip:user2@example.com", format!("c{number}"));
        let routes = format!("Route: {routes}\r\n");
        let request = phone.request("INVITE", uri, &call, 1, &routes);
        phone.send(&request);
        let challenge = phone.expect("SIP/2.0 407");
        phone.acknowledge(&request, &challenge);
        let kind = sip::header::HeaderKind::ProxyAuthorization;
        let line =
            crate::sip_client::phone::credentials(&challenge, kind, "user1", Method::Invite, uri);
        let request = phone.request("INVITE", uri, &call, 2, &format!("{line}{routes}"));
        phone.send(&request);
        let refused = phone.expect("SIP/2.0 403 Number Is Not Allowed");
        phone.acknowledge(&request, &refused);
    }
    assert_eq!(carrier.requests(), 0);
}

#[test]
fn a_bye_reaches_a_trunk_that_a_reload_has_removed() {
    let carrier = Carrier::new("127.0.0.56", &[(0, 200)]);
    let later = Carrier::new("127.0.0.57", &[(0, 200)]);
    let with = |carrier: &Carrier, name: &str| {
        settings(vec![carrier.trunk(name)], vec![route("+", &[name])])
    };
    let server = serve(with(&carrier, "a"));
    let mut phone = Phone::udp(&server, "user1");
    phone.ask(Method::Invite, "sip:+49301@example.com", "call");
    let ok = phone.expect("SIP/2.0 200");
    let contact = value(&ok, "Contact").to_owned();
    let ok = ok.replace(&contact, &format!("<sip:carrier@{}>", carrier.at()));
    phone.in_dialog(&ok, "ACK");
    // Its address changes, then it is renamed.
    for (number, name) in [(1, "a"), (2, "b")] {
        let mut reloaded = hairpin_server::Settings::default();
        reloaded
            .users
            .push(("user1".to_owned(), PASSWORD.to_owned()));
        reloaded.sip = with(&later, name);
        server.reload(reloaded).expect("it reloads");
        phone.ask(
            Method::Invite,
            "sip:+49302@example.com",
            &format!("new{number}"),
        );
        phone.expect("SIP/2.0 200");
        assert_eq!((carrier.requests(), later.requests()), (1, number));
    }
    // Nothing new goes to the old address.
    let uri = format!("sip:x@{}", carrier.at());
    phone.ask(Method::Message, &uri, "old");
    phone.expect("SIP/2.0 403");
    phone.in_dialog(&ok, "BYE");
    phone.expect("SIP/2.0 200");
    assert_eq!(carrier.requests(), 2);
}
