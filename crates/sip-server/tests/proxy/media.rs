//! Media relays: whose session descriptions are rewritten for whom, and what happens if the relay does not answer.

use sip::flow::Transport;
use sip_server::proxy::{MediaCommand, MediaRequest, MediaResult};
use sip_server::routes::{Failures, Next};

use crate::node::{
    ALICE, PROXY, SDP, Script, UAC, UAS, address, answers, in_dialog, request, value, values,
    with_sdp,
};
use crate::policy::Contact;
use crate::trunks::{NUMBER, caller, on, route, trunk, world_of};
use crate::world::World;

pub(crate) const OFFER: &str = "v=0\r\nm=audio 1 RTP/AVP 0\r\n";
pub(crate) const WEB_OFFER: &str = "v=0\r\nm=audio 1 UDP/TLS/RTP/SAVPF 111\r\n";

/// What the relay of these tests makes of a session description: another length, and whom it is for.
pub(crate) fn rewritten(request: &MediaRequest) -> String {
    let sdp = String::from_utf8_lossy(&request.sdp);
    format!("{sdp}a=for {:?}\r\n", request.receiver)
}

/// A response with a session description.
pub(crate) fn answer(at: u64, code: u16) -> (u64, u16, String) {
    (at, code, format!("{SDP}v=0\r\nm=audio 2 RTP/AVP 0\r\n"))
}

pub(crate) fn script(responses: Vec<(u64, u16, String)>) -> Script {
    Script {
        invite: responses,
        ..Script::default()
    }
}

/// Two trunks with a route to both: the media of the first one go through a relay.
pub(crate) fn world(failures: Failures) -> World {
    let mut first = route("+49", &["a", "b"]);
    first.failures = failures;
    let mut with_relay = trunk("a", &[UAS]);
    with_relay.relays_media = true;
    world_of(vec![first], vec![with_relay, trunk("b", &[UAS + 1])])
}

pub(crate) fn call(world: &mut World, sdp: &str) -> sip::engine::ClientKey {
    let invite = with_sdp(&request("INVITE", NUMBER, 1, ALICE), sdp);
    world.send(UAC, Transport::Udp, &invite)
}

/// What the relay was asked, in words. Its sessions are numbered as they come.
pub(crate) fn asked(world: &World) -> Vec<String> {
    let mut sessions: Vec<&[u8]> = Vec::new();
    let mut words = Vec::new();
    for request in &world.media {
        let known = sessions.iter().position(|it| *it == &*request.session);
        let number = known.unwrap_or_else(|| {
            sessions.push(&request.session);
            sessions.len() - 1
        });
        let to_tag = request.to_tag.as_ref().map_or("none", |_| "tag");
        words.push(match (request.command, request.from_tag.is_empty()) {
            (MediaCommand::Delete, true) => format!("Delete s{number}"),
            (MediaCommand::Delete, false) => format!("Delete a dialog of s{number}"),
            (command, _) => format!(
                "{command:?} s{number} to {to_tag} for {:?}",
                request.receiver
            ),
        });
    }
    words
}

/// The body of a message, which must be as long as it says.
pub(crate) fn body(text: &str) -> &str {
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let length = value(text, "Content-Length").unwrap();
    assert_eq!(length, body.len().to_string(), "{text}");
    body
}

#[test]
fn offers_and_answers_through_a_trunk_are_rewritten_and_a_bye_deletes_the_session() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 183), answer(900, 200)]);
    call(&mut world, WEB_OFFER);
    world.run_until(1_500);
    let answer = "Answer s0 to tag for WebRtc".to_owned();
    // The 200 has the session description of the 183.
    assert_eq!(asked(&world), ["Offer s0 to none for Rtp", &answer]);
    let name = String::from_utf8_lossy(&world.media[0].session).into_owned();
    let (call_id, digits) = name.split_once(';').unwrap();
    assert_eq!((call_id, digits.len()), ("1@192.0.2.1", 8));
    assert_eq!(&*world.media[0].from_tag, b"a1");
    assert!(world.media[..2].iter().all(|it| it.begins_dialog));
    assert_eq!(world.media[1].from_tag, world.media[0].from_tag);
    let invite = &world.nodes[UAS].texts[0];
    assert_eq!(body(invite), format!("{WEB_OFFER}a=for Rtp\r\n"));
    assert_eq!(caller(&world), ["183 INVITE", "200 INVITE"]);
    let ok = world.last(UAC).to_owned();
    assert!(body(&ok).ends_with("a=for WebRtc\r\n"), "{ok}");
    assert_eq!(values(&ok, "Record-Route").len(), 2);
    // A second offer of the caller.
    let again = with_sdp(&in_dialog(&ok, "INVITE"), WEB_OFFER);
    world.send(UAC, Transport::Udp, &again);
    world.run_until(3_000);
    let second = "Offer s0 to tag for Rtp".to_owned();
    assert_eq!(asked(&world)[2..4], [second, answer.clone()]);
    assert!(!world.media[2].begins_dialog);
    let update = with_sdp(&in_dialog(&ok, "UPDATE"), WEB_OFFER);
    let update = update.replace("2 UPDATE", "3 UPDATE");
    world.nodes[UAS].script.other = vec![(10, 200, format!("{SDP}{OFFER}"))];
    world.send(UAC, Transport::Udp, &update);
    world.run_until(4_000);
    assert_eq!(world.last(UAC).lines().next(), Some("SIP/2.0 200 OK"));
    assert!(body(world.last(UAC)).ends_with("a=for WebRtc\r\n"));
    assert_eq!(asked(&world).len(), 6);
    let bye = in_dialog(&ok, "BYE").replace("2 BYE", "4 BYE");
    world.nodes[UAS].script.other.clear();
    world.send(UAC, Transport::Udp, &bye);
    world.run_until(5_000);
    assert_eq!(asked(&world)[6..], ["Delete a dialog of s0"]);
    assert_eq!(&*world.media[6].from_tag, b"a1");
    world.nothing_is_left();
}

/// A request of the called side in the dialog of this INVITE.
pub(crate) fn of_callee(invite: &str, ok: &str, method: &str) -> String {
    let routes: Vec<&str> = values(invite, "Record-Route");
    let routes: Vec<String> = routes
        .iter()
        .map(|route| format!("Route: {route}\r\n"))
        .collect();
    let contact = value(invite, "Contact").unwrap();
    let contact = contact.trim_matches(['<', '>']);
    format!(
        "{method} {contact} SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 9 {method}\r\n\
         Max-Forwards: 70\r\nContact: <sip:uas@{}>\r\nContent-Length: 0\r\n\r\n",
        routes.concat(),
        value(ok, "To").unwrap(),
        value(ok, "From").unwrap(),
        value(ok, "Call-ID").unwrap(),
        address(UAS),
    )
}

#[test]
fn an_offer_of_the_trunk_within_the_dialog_is_for_the_side_of_the_caller() {
    for (offer, side) in [
        (WEB_OFFER.to_owned(), "WebRtc"),
        (OFFER.to_owned(), "RtpWithIce"),
        (OFFER.replace("AVP", "SAVP"), "SrtpSdes"),
        (WEB_OFFER.replace("SAVPF", "SAVP"), "SrtpDtls"),
    ] {
        let mut world = world(Failures::default());
        world.nodes[UAS].script = script(vec![answer(50, 200)]);
        call(&mut world, &offer);
        world.run_until(500);
        let (invite, ok) = (
            world.nodes[UAS].texts[0].clone(),
            world.last(UAC).to_owned(),
        );
        world.nodes[UAC].script = script(vec![answer(10, 200)]);
        let again = with_sdp(&of_callee(&invite, &ok, "INVITE"), OFFER);
        world.send(UAS, Transport::Udp, &again);
        world.run_until(1_000);
        let last = asked(&world).split_off(2);
        let wanted = [
            format!("Offer s0 to tag for {side}"),
            "Answer s0 to tag for Rtp".to_owned(),
        ];
        assert_eq!(last, wanted);
        assert_eq!(&*world.media[3].from_tag, &*world.media[2].from_tag);
        assert_ne!(&*world.media[2].from_tag, b"a1");
        let got = world.nodes[UAC].texts.iter().rev();
        let mut got = got.filter(|text| text.starts_with("INVITE"));
        assert!(body(got.next().unwrap()).ends_with(&format!("a=for {side}\r\n")));
        let bye = of_callee(&invite, &ok, "BYE").replace("9 BYE", "10 BYE");
        world.send(UAS, Transport::Udp, &bye);
        world.run_until(2_000);
        // The ACK of the trunk's engine has no Route, so the 200 is repeated. That asks for nothing.
        assert_eq!(asked(&world)[4..], ["Delete a dialog of s0"]);
        // The tag of the caller is the first one, whoever sends the BYE.
        assert_eq!(&*world.media[4].from_tag, b"a1");
        world.nothing_is_left();
    }
}

#[test]
fn without_an_answer_of_the_relay_the_caller_gets_503_or_the_next_trunk_the_call() {
    for (failures, last) in [
        (Failures::default(), "200 INVITE"),
        (on(Next::Stop, Next::Stop, Next::Stop), "503 INVITE"),
    ] {
        let mut world = world(failures);
        world.has_relay = false;
        world.nodes[UAS + 1].script = answers(&[(20, 200)]);
        call(&mut world, OFFER);
        world.run_until(1_900);
        assert_eq!(caller(&world).len(), 0);
        world.run_until(2_500);
        assert_eq!(caller(&world), [last]);
        assert_eq!(
            world.heard(UAS).len(),
            0,
            "the trunk of the relay gets no INVITE"
        );
        if last == "200 INVITE" {
            assert_eq!(body(&world.nodes[UAS + 1].texts[0]), OFFER);
        } else {
            assert_eq!(value(world.last(UAC), "Retry-After"), Some("1"));
        }
        let asked = asked(&world);
        assert_eq!(asked[1..], ["Delete s0"]);
        world.nothing_is_left();
    }
}

#[test]
fn a_late_answer_of_the_relay_and_one_to_nothing_are_ignored() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    world.has_relay = false;
    call(&mut world, OFFER);
    world.run_until(2_500);
    assert_eq!(caller(&world), ["503 INVITE"]);
    for number in [0, 1, 77, u64::MAX] {
        assert_eq!(
            world.media_answered(number, Some("v=0\r\n")),
            MediaResult::Late
        );
    }
    world.run_until(3_000);
    assert_eq!(world.heard(UAS).len(), 0);
    world.nothing_is_left();
}

#[test]
fn a_refused_offer_fails_at_once() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    world.has_relay = false;
    call(&mut world, OFFER);
    world.run_until(100);
    let _ = world.media_answered(0, None);
    world.run_until(200);
    assert_eq!(caller(&world), ["503 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_cancel_ends_a_call_that_waits_for_the_relay() {
    let mut world = world(Failures::default());
    world.has_relay = false;
    let key = call(&mut world, OFFER);
    world.run_until(300);
    world.cancel(key);
    world.run_until(600);
    assert_eq!(caller(&world), ["487 INVITE"]);
    assert_eq!(asked(&world)[1..], ["Delete s0"]);
    let _ = world.media_answered(0, Some("v=0\r\n"));
    world.run_until(3_000);
    assert_eq!((world.heard(UAS).len(), world.heard(UAS + 1).len()), (0, 0));
    world.nothing_is_left();
}

#[test]
fn a_call_that_fails_or_is_cancelled_deletes_its_session() {
    for codes in [&[(20, 486)][..], &[(20, 180)]] {
        let mut world = world(Failures::default());
        world.nodes[UAS].script = answers(codes);
        let key = call(&mut world, OFFER);
        world.run_until(500);
        world.cancel(key);
        world.run_until(1_500);
        assert_eq!(asked(&world)[1..], ["Delete s0"]);
        world.nothing_is_left();
    }
}

#[test]
fn a_response_waits_for_the_relay_and_is_forwarded_as_it_is_without_an_answer() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(20);
    world.has_relay = false;
    world.run_until(1_900);
    assert_eq!(caller(&world).len(), 0);
    // The repetitions of the 200 ask nothing more.
    assert!(world.sent(UAS, "SIP/2.0 200").len() > 1);
    assert_eq!(asked(&world).len(), 2);
    assert_eq!(world.heard(UAS + 1).len(), 0, "the trunk has answered");
    world.run_until(2_500);
    assert_eq!(caller(&world)[0], "200 INVITE");
    assert_eq!(body(world.last(UAC)), "v=0\r\nm=audio 2 RTP/AVP 0\r\n");
    world.has_relay = true;
    world.nothing_is_left();
}

#[test]
fn an_offer_in_the_200_is_answered_in_the_ack() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    world.nodes[UAC].ack_sdp = OFFER;
    let invite = request("INVITE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    let wanted = ["Offer s0 to tag for RtpWithIce", "Answer s0 to tag for Rtp"];
    assert_eq!(asked(&world), wanted);
    assert_eq!(world.media[0].from_tag, world.media[1].from_tag);
    assert_eq!(world.media[1].to_tag.as_deref(), Some(&b"a1"[..]));
    assert!(body(world.last(UAC)).ends_with("a=for RtpWithIce\r\n"));
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(body(world.last(UAS)), format!("{OFFER}a=for Rtp\r\n"));
    world.nothing_is_left();
}

#[test]
fn an_ack_goes_on_as_it_is_if_the_relay_is_silent() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    world.nodes[UAC].ack_sdp = OFFER;
    let invite = request("INVITE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(40);
    world.has_relay = false;
    world.run_until(300);
    let number = world.media[0].number;
    let _ = world.media_answered(number, Some(OFFER));
    world.run_until(1_000);
    assert_eq!(world.heard(UAS), ["INVITE"]);
    world.run_until(3_000);
    assert_eq!(world.heard(UAS)[..2], ["INVITE", "ACK"]);
    assert_eq!(body(world.last(UAS)), OFFER);
    world.has_relay = true;
    world.nothing_is_left();
}

/// The caller is a trunk with a relay; bob has a phone and a browser.
pub(crate) fn inbound() -> World {
    let mut carrier = trunk("carrier", &[UAC]);
    carrier.relays_media = true;
    let mut world = world_of(Vec::new(), vec![carrier]);
    world.bind_bob(&[None]);
    world
}

#[test]
fn a_call_of_a_trunk_has_an_offer_for_each_kind_of_phone_and_one_session_stays() {
    let mut world = inbound();
    let mut browser = Contact::at(&format!("sip:bob@{};transport=ws", address(UAS + 1)));
    browser.flow = Some(world.browser_connects(UAS + 1));
    world.policy().bind("bob", &browser);
    world.nodes[UAS].script = script(vec![answer(300, 180)]);
    world.nodes[UAS + 1].script = script(vec![answer(400, 200)]);
    let invite = with_sdp(&request("INVITE", "sip:bob@example.com", 1, ""), OFFER);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(1_000);
    let mut offers = asked(&world)[..2].to_vec();
    offers.sort();
    let wanted = [
        "Offer s0 to none for RtpWithIce",
        "Offer s1 to none for WebRtc",
    ];
    assert_eq!(offers, wanted);
    assert!(body(&world.nodes[UAS].texts[0]).ends_with("a=for RtpWithIce\r\n"));
    assert!(body(&world.nodes[UAS + 1].texts[0]).ends_with("a=for WebRtc\r\n"));
    let rest = [
        "Answer s0 to tag for Rtp",
        "Answer s1 to tag for Rtp",
        "Delete s0",
    ];
    assert_eq!(asked(&world)[2..], rest);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(2_000);
    assert_eq!(asked(&world)[5..], ["Delete a dialog of s1"]);
    world.nothing_is_left();
}

#[test]
fn other_calls_bodies_and_dialogs_ask_for_nothing() {
    // A trunk without a relay.
    let mut world = world(Failures::default());
    world.dead = vec![UAS];
    world.nodes[UAS + 1].script = script(vec![answer(10, 200)]);
    call(&mut world, OFFER);
    world.run_until(4_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(body(world.last(UAC)), "v=0\r\nm=audio 2 RTP/AVP 0\r\n");
    assert_eq!(body(&world.nodes[UAS + 1].texts[0]), OFFER);
    assert_eq!(asked(&world), ["Offer s0 to none for Rtp"]);
    let ok = world.last(UAC).to_owned();
    let again = with_sdp(&in_dialog(&ok, "INVITE"), OFFER);
    world.send(UAC, Transport::Udp, &again);
    world.run_until(5_000);
    assert_eq!(asked(&world).len(), 1, "no token says so");
    world.nothing_is_left();
    // A late 2xx of the first trunk would need the session, until its transaction ends.
    assert_eq!(asked(&world)[1..], ["Delete s0"]);
    // Bodies that are no session description.
    for kind in [
        "multipart/mixed;boundary=x",
        "application/isup",
        "application/sdp\r\nContent-Encoding: gzip",
    ] {
        let mut world = self::world(Failures::default());
        world.nodes[UAS].script = script(vec![answer(20, 200)]);
        let invite = with_sdp(&request("INVITE", NUMBER, 1, ALICE), OFFER);
        let invite = invite.replace("application/sdp", kind);
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(1_000);
        assert_eq!(caller(&world), ["200 INVITE"]);
        assert_eq!(body(&world.nodes[UAS].texts[0]), OFFER, "{kind}");
        // The session description of the 200 is an answer to an offer that the relay does not know.
        assert_eq!(body(world.last(UAC)), "v=0\r\nm=audio 2 RTP/AVP 0\r\n");
        assert_eq!(asked(&world).len(), 0, "{kind}");
        world.nothing_is_left();
    }
    // No relay at all: a MESSAGE with this type is not touched either.
    let mut world = inbound();
    let message = with_sdp(&request("MESSAGE", "sip:bob@example.com", 1, ""), OFFER);
    world.send(UAC, Transport::Udp, &message);
    world.run_until(500);
    assert_eq!(body(&world.nodes[UAS].texts[0]), OFFER);
    assert_eq!(asked(&world).len(), 0);
    world.nothing_is_left();
}

#[test]
fn a_dialog_with_a_relay_comes_by_this_server_also_without_record_route() {
    let config = sip_server::proxy::Config {
        record_route: false,
        ..sip_server::proxy::Config::default()
    };
    for (relays_media, routes) in [(false, 0), (true, 2)] {
        let mut world = World::with(crate::network::Weather::FINE, 1, config.clone());
        let mut carrier = trunk("a", &[UAS]);
        carrier.relays_media = relays_media;
        world
            .policy()
            .set_routes(vec![route("+49", &["a"])], vec![carrier]);
        world.nodes[UAS].script = script(vec![answer(10, 200)]);
        call(&mut world, OFFER);
        world.run_until(1_000);
        assert_eq!(values(world.last(UAC), "Record-Route").len(), routes);
        assert_eq!(asked(&world).is_empty(), !relays_media);
    }
}

#[test]
fn each_address_of_a_call_that_hunts_has_a_session_and_the_credentials_fit() {
    let mut world = world_of(vec![route("+49", &["a"])], {
        let mut carrier = trunk("a", &[UAS, UAS + 1]);
        carrier.relays_media = true;
        vec![carrier]
    });
    world.policy().credentials = Some(crate::trunk_credentials::office());
    world.dead = vec![UAS];
    let challenge =
        "WWW-Authenticate: Digest realm=\"c\", nonce=\"n1\", algorithm=MD5, qop=\"auth-int\"\r\n";
    world.nodes[UAS + 1].script.invite = vec![(50, 401, challenge.to_owned())];
    call(&mut world, OFFER);
    world.run_until(2_100);
    world.nodes[UAS + 1].script = script(vec![answer(10, 200)]);
    world.run_until(3_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    let wanted = [
        "Offer s0 to none for Rtp",
        "Offer s1 to none for Rtp",
        "Answer s1 to tag for RtpWithIce",
    ];
    assert_eq!(asked(&world), wanted);
    let invites = world.nodes[PROXY].sent.iter();
    let invites: Vec<_> = invites.filter(|it| it.2.starts_with("INVITE")).collect();
    assert!(invites.len() >= 3);
    let rewritten = format!("{OFFER}a=for Rtp\r\n");
    assert!(invites.iter().all(|it| body(&it.2) == rewritten));
    world.nothing_is_left();
    assert_eq!(asked(&world)[3..], ["Delete s0"]);
}
