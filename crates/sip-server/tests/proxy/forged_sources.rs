//! Who knows the tokens of a dialog can forge a source address: the owner of the address gets little.

use sip::flow::Transport;

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, in_dialog, request, value, values};
use crate::policy::Contact;
use crate::world::World;

/// A node that is in no dialog.
const VICTIM: usize = UAS + 1;

/// A call from alice to bob, phones over UDP. It is answered; each refuses what comes then.
fn world() -> World {
    let mut world = World::new();
    world.nodes[PROXY].engine.configure_trust(true);
    let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS)));
    contact.flow = Some(World::datagrams_of(UAS));
    world.policy().bind("bob", &contact);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    for phone in [UAC, UAS] {
        world.nodes[phone].script = answers(&[(10, 486)]);
    }
    world
}

/// An INVITE within the dialog, as this phone makes it.
fn reinvite_of(world: &World, phone: usize) -> String {
    let ok = world.nodes[UAC].texts.last().unwrap();
    if phone == UAC {
        return in_dialog(ok, "INVITE");
    }
    let mut texts = world.nodes[UAS].texts.iter();
    let invite = texts.find(|text| text.starts_with("INVITE")).unwrap();
    let routes = values(invite, "Record-Route");
    let routes = routes.iter().map(|route| format!("Route: {route}\r\n"));
    format!(
        "INVITE sip:alice@{} SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 9 INVITE\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        address(UAC),
        routes.collect::<String>(),
        value(ok, "To").unwrap(),
        value(ok, "From").unwrap(),
        value(ok, "Call-ID").unwrap(),
    )
}

/// Sends the INVITE of a phone with a source address, and lets timer H pass without an ACK. Returns its length and the
/// number of bytes that the source gets, both with the headers of IP and UDP.
fn bytes_for(phone: usize, source: usize) -> (usize, usize) {
    let mut world = world();
    let via = format!("Via: SIP/2.0/UDP {};rport;branch=z9hG4bKf", address(source));
    let text = reinvite_of(&world, phone).replacen("\r\n", &format!("\r\n{via}\r\n"), 1);
    let before = world.nodes[PROXY].sent.len();
    world.send_raw(source, &text);
    world.run_until(60_000);
    let callee = if phone == UAC { UAS } else { UAC };
    assert!(world.heard(callee).contains(&"INVITE"), "it is forwarded");
    let sent = world.nodes[PROXY].sent[before..].iter();
    let sent = sent.filter(|(_, to, text)| *to == source && text.starts_with("SIP/2.0 "));
    let bytes = sent.map(|(_, _, text)| text.len() + 28).sum();
    (text.len() + 28, bytes)
}

#[test]
fn an_invite_in_a_dialog_gets_at_most_two_and_a_half_times_its_bytes_at_a_forged_source() {
    for phone in [UAC, UAS] {
        let (asked, sent) = bytes_for(phone, VICTIM);
        assert!(sent > 0, "the source gets a response");
        assert!(sent * 2 <= asked * 5, "{sent} for {asked} from {phone}");
    }
}

#[test]
fn a_phone_of_the_dialog_gets_all_repetitions_rfc3261_17_2_1() {
    for phone in [UAC, UAS] {
        let (asked, sent) = bytes_for(phone, phone);
        assert!(sent * 2 > asked * 5, "{sent} for {asked} from {phone}");
    }
}
