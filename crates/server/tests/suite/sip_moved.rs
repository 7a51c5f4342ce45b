//! Requests within a dialog for phones that have registered again from another address or by another connection. The
//! bindings may be those of another worker than the one that gets the request.

use crate::sip_client::phone::{PASSWORD, Phone, credentials};
use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};

fn serve(workers: usize) -> Running {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    let nowhere = "127.0.0.1:0".parse().expect("an address");
    Server::builder()
        .listen(nowhere)
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen(nowhere)
        .user("ann", PASSWORD)
        .user("bob", PASSWORD)
        .sip(settings)
        .workers(workers)
        .start()
        .expect("the server starts")
}

/// Registers with this Call-ID, from the second CSeq `cseq` on. The instance is that of the user.
fn register(phone: &mut Phone, call: &str, cseq: u32) {
    let uri = "sip:example.com";
    let contact = phone.contact();
    let instance = format!(";+sip.instance=\"<urn:x:{}>\"", phone.user);
    let ask = |phone: &mut Phone, cseq, line: &str| {
        let text = phone.request("REGISTER", uri, call, cseq, line);
        let old = format!("Contact: {contact}\r\n");
        phone.send(&text.replace(&old, &format!("Contact: {contact}{instance}\r\n")));
    };
    ask(phone, cseq, "");
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    ask(phone, cseq + 1, &line);
    phone.expect("SIP/2.0 200");
}

fn phone(server: &Running, is_tcp: bool, user: &str) -> Phone {
    match is_tcp {
        true => Phone::tcp(server, user),
        false => Phone::udp(server, user),
    }
}

#[test]
fn the_other_side_reaches_a_phone_that_has_moved_at_any_worker() {
    for (workers, is_tcp) in [(1, false), (1, true), (4, false), (4, true)] {
        let server = serve(workers);
        // Each call has other sockets, so that other workers get its messages.
        for round in 0..8 {
            let case = format!("{workers} {is_tcp} {round}");
            let mut ann = phone(&server, is_tcp, "ann");
            let mut bob = phone(&server, is_tcp, "bob");
            register(&mut ann, &format!("ra{round}"), 1);
            register(&mut bob, &format!("rb{round}"), 1);
            ann.ask(
                Method::Invite,
                "sip:bob@example.com",
                &format!("c{case}").replace(' ', "-"),
            );
            let invite = bob.expect("INVITE ");
            bob.respond(&invite, "200 OK");
            let ok = ann.expect("SIP/2.0 200");
            ann.in_dialog(&ok, "ACK");
            bob.expect("ACK ");
            // Its old socket or connection is gone, or nobody reads it.
            let mut later = phone(&server, is_tcp, "bob");
            register(&mut later, &format!("rb{round}"), 10);
            drop(bob);
            ann.in_dialog(&ok, "INVITE");
            let again = later.expect("INVITE ");
            later.respond(&again, "200 OK");
            ann.expect("SIP/2.0 200");
            // The routes are those of the first 200.
            ann.in_dialog(&ok.replace("CSeq: 2 ", "CSeq: 3 "), "ACK");
            later.expect("ACK ");
            // Now the caller moves, and the called side hangs up.
            let mut elsewhere = phone(&server, is_tcp, "ann");
            register(&mut elsewhere, &format!("ra{round}"), 10);
            drop(ann);
            later.hang_up(&invite);
            let bye = elsewhere.expect("BYE ");
            elsewhere.respond(&bye, "200 OK");
            later.expect("SIP/2.0 200");
            register_nothing(&mut elsewhere, &case);
            register_nothing(&mut later, &case);
        }
    }
}

/// Removes all bindings of the user.
fn register_nothing(phone: &mut Phone, case: &str) {
    let uri = "sip:example.com";
    let call = format!("end{}", case.replace(' ', "-"));
    let contact = format!("Contact: {}\r\n", phone.contact());
    let mut line = String::new();
    for cseq in [1, 2] {
        let text = phone.request("REGISTER", uri, &call, cseq, &line);
        phone.send(&text.replace(&contact, "Contact: *\r\nExpires: 0\r\n"));
        let response = phone.expect("SIP/2.0 ");
        if response.starts_with("SIP/2.0 200") {
            return;
        }
        let kind = HeaderKind::Authorization;
        line = credentials(&response, kind, &phone.user, Method::Register, uri);
    }
    panic!("{case}: the bindings stay");
}
