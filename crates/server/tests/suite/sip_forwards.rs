//! Calls that go on to another user of this server, over real sockets and on several workers.

use crate::sip_client::phone::{Phone, value};
use crate::sip_client::{example_com, with_users};
use hairpin_server::Running;
use hairpin_server::sip::routes::Forward;
use hairpin_server::sip::{PreviewRequest, Previewer, SipSettings, Transport, Trunk};
use sip::Method;
use std::net::SocketAddr;
use std::time::Duration;

/// Listens at this address. Calls of user1 go on to user2, and those of user2 to user1.
fn serve(at: &str) -> Running {
    let mut settings = example_com();
    // A busy machine must not look like an overload.
    settings.tolerance = Duration::ZERO;
    let forward = |user: &str, to: &str| Forward {
        users: vec![user.to_owned()],
        busy: Some(format!("sip:{to}@example.com")),
        ..Forward::default()
    };
    settings.forwards = vec![forward("user1", "user2"), forward("user2", "user1")];
    let server = with_users(at, settings, 3).workers(4);
    server.start().expect("the server starts")
}

#[test]
fn a_busy_user_is_forwarded_to_another_user_of_any_worker() {
    for at in ["127.0.0.1:0", "0.0.0.0:0"] {
        let server = serve(at);
        let port = server.sip_listeners()[0].port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut phones: Vec<Phone> = (0..3)
            .map(|number| Phone::udp_at(address, &format!("user{number}")))
            .collect();
        phones.iter_mut().for_each(Phone::register);
        let [caller, busy, other] = &mut phones[..] else {
            panic!("three phones");
        };
        caller.ask(Method::Invite, "sip:user1@example.com", "call");
        let invite = busy.expect("INVITE ");
        busy.respond(&invite, "486 Busy Here");
        let invite = other.expect("INVITE sip:user2@");
        assert!(value(&invite, "Diversion").contains("<sip:user1@example.com>"));
        other.respond(&invite, "200 OK");
        let ok = caller.expect("SIP/2.0 200");
        caller.in_dialog(&ok, "ACK");
        other.expect("ACK ");
        // Requests of both directions find their way.
        other.hang_up(&invite);
        let bye = caller.expect("BYE ");
        caller.respond(&bye, "200 OK");
        other.expect("SIP/2.0 200");
        // Both are busy: the call does not go in circles.
        caller.ask(Method::Invite, "sip:user1@example.com", "again");
        let invite = busy.expect("INVITE ");
        busy.respond(&invite, "486 Busy Here");
        let invite = other.expect("INVITE ");
        other.respond(&invite, "486 Busy Here");
        caller.expect("SIP/2.0 486");
    }
}

#[test]
fn the_preview_explains_a_forward_to_a_user_and_a_trunk_with_a_certificate() {
    let mut settings = example_com();
    let busy = |to: &str| Forward {
        users: vec!["user1".to_owned()],
        busy: Some(to.to_owned()),
        ..Forward::default()
    };
    settings.trunks = vec![Trunk {
        name: "carrier".to_owned(),
        certificates: vec!["carrier.example".to_owned()],
        ..Trunk::default()
    }];
    let explain = |settings: &SipSettings, certificate| {
        let listener = "192.0.2.1:5060".parse().expect("an address");
        let previewer = Previewer::new(settings, &["user1", "user2"], &[listener]);
        let request = PreviewRequest {
            method: "INVITE",
            from: "sip:+4930@carrier.example",
            to: "sip:user1@example.com",
            source: "203.0.113.9:5061".parse().expect("an address"),
            transport: Transport::Tls,
            certificate,
            headers: &[],
            call_id: "1@preview",
            draw: 0,
        };
        let previewed = previewer.expect("settings").preview(&request);
        previewed.expect("a decision").steps.join("\n")
    };
    for (to, wanted) in [
        (
            "sip:user2@example.com",
            "  it goes to the phones of user2@example.com",
        ),
        (
            "sip:user1@example.com",
            "  it is the same user: the call is not forwarded",
        ),
        (
            "sips:user2@example.com",
            "  a SIPS URI cannot name a user here",
        ),
    ] {
        settings.forwards = vec![busy(to)];
        let steps = explain(&settings, Some("Carrier.example"));
        assert!(steps.contains(wanted), "{to}: {steps}");
        assert!(!steps.contains("cannot authenticate"), "{steps}");
    }
    let steps = explain(&settings, None);
    assert!(steps.contains("the source is no trunk"), "{steps}");
}
