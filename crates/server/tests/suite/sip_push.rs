//! Phones that are woken by push notifications (RFC 8599), and their connections.

use crate::sip_client::phone::{PASSWORD, Phone, credentials};
use hairpin_server::sip::{Domain, Push, PushHook, PushSettings, SipSettings};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A server, and what it sends to phones.
fn serve(workers: usize) -> (Running, Receiver<Push>) {
    let (sender, receiver) = channel();
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.push = Some(PushSettings {
        providers: vec!["fcm".to_owned()],
        wait: Duration::from_secs(20),
        awake: Duration::from_secs(600),
        calls: 100,
        hook: PushHook::new(move |push| sender.send(push).is_ok()),
    });
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .user("ann", PASSWORD)
        .user("bob", PASSWORD)
        .sip(settings)
        .workers(workers)
        .start()
        .expect("the server starts");
    (server, receiver)
}

/// Registers with Outbound if `params` says so, and with the parameters of a push service.
fn register(phone: &mut Phone, params: &str, mut cseq: u32) {
    let uri = "sip:example.com";
    let plain = phone.contact();
    let contact = plain.replace('>', ";pn-provider=fcm;pn-prid=token>") + params;
    let mut line = String::new();
    loop {
        let lines = format!("Supported: outbound, path\r\n{line}");
        let text = phone.request("REGISTER", uri, "push", cseq, &lines);
        let old = format!("Contact: {plain}\r\n");
        phone.send(&text.replace(&old, &format!("Contact: {contact}\r\n")));
        let response = phone.expect("SIP/2.0 ");
        if response.starts_with("SIP/2.0 200") {
            return;
        }
        assert!(response.starts_with("SIP/2.0 401"), "{response}");
        let kind = HeaderKind::Authorization;
        line = credentials(&response, kind, &phone.user, Method::Register, uri);
        cseq += 1;
    }
}

/// Waits until the server has closed so many connections.
fn wait_closed(server: &Running, before: u64) {
    let end = Instant::now() + Duration::from_secs(8);
    while server.stats().sip().connections >= before {
        assert!(Instant::now() < end, "the connection is closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_phone_whose_connection_ends_keeps_its_binding_and_is_woken_rfc8599_5_6_2() {
    let outbound = ";reg-id=1;+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-00000000000a>\"";
    for (workers, params) in [(1, outbound), (4, outbound), (4, "")] {
        let (server, pushes) = serve(workers);
        let mut phone = Phone::tcp(&server, "bob");
        register(&mut phone, params, 1);
        let before = server.stats().sip().connections;
        drop(phone);
        wait_closed(&server, before.max(1));
        assert_eq!(server.stats().sip().bindings, 1);
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Invite, "sip:bob@example.com", "wake");
        let push = pushes.recv_timeout(Duration::from_secs(8));
        assert_eq!(push.expect("a push notification").prid, "token");
        let mut phone = Phone::tcp(&server, "bob");
        register(&mut phone, params, 10);
        let invite = phone.expect("INVITE ");
        phone.respond(&invite, "486 Busy Here");
        ann.expect("SIP/2.0 486");
    }
}
