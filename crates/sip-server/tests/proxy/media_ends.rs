//! A session at a media relay ends when its target fails, and with a BYE.

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::{Config, MediaProfile, MediaResult};
use sip_server::routes::{Failures, Next};

use crate::media::{OFFER, answer, asked, body, call, inbound, of_callee, script, world};
use crate::network::Weather;
use crate::node::{
    ALICE, PROXY, SDP, Script, UAC, UAS, address, answers, in_dialog, request, values, with_sdp,
};
use crate::policy::Contact;
use crate::push;
use crate::trunks::{NUMBER, caller, on, route, trunk};
use crate::world::World;

const DELETED: &str = "Delete s0";
const DIALOG_DELETED: &str = "Delete a dialog of s0";

/// How often this was asked.
fn count(world: &World, wanted: &str) -> usize {
    let asked = asked(world);
    asked.iter().filter(|it| *it == wanted).count()
}

#[test]
fn a_final_response_of_every_kind_deletes_the_session() {
    for code in [302, 404, 408, 486, 488, 500, 503, 600] {
        let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
        world.nodes[UAS].script = script(vec![answer(20, 183), (50, code, String::new())]);
        call(&mut world, OFFER);
        world.run_until(1_000);
        let wanted = [
            "Offer s0 to none for Rtp",
            "Answer s0 to tag for RtpWithIce",
            DELETED,
        ];
        assert_eq!(asked(&world), wanted, "{code}");
        world.nothing_is_left();
        assert_eq!(asked(&world).len(), 3, "{code}");
    }
}

#[test]
fn a_cancel_deletes_the_session_also_if_the_trunk_never_responds_again() {
    for is_silent in [false, true] {
        let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
        world.nodes[UAS].script = answers(&[(20, 180)]);
        let key = call(&mut world, OFFER);
        world.run_until(500);
        if is_silent {
            world.dead = vec![UAS];
        }
        world.cancel(key);
        world.nothing_is_left();
        assert_eq!(asked(&world), ["Offer s0 to none for Rtp", DELETED]);
    }
}

#[test]
fn a_trunk_that_is_silent_and_phones_that_nobody_answers_delete_their_sessions() {
    let mut silent = world(on(Next::Stop, Next::Stop, Next::Stop));
    silent.dead = vec![UAS];
    call(&mut silent, OFFER);
    silent.nothing_is_left();
    assert_eq!(asked(&silent), ["Offer s0 to none for Rtp", DELETED]);
    let config = Config {
        ring_time: Duration::from_secs(5),
        ..Config::default()
    };
    let mut world = World::with(Weather::FINE, 1, config);
    let mut carrier = trunk("carrier", &[UAC]);
    carrier.relays_media = true;
    world.policy().set_routes(Vec::new(), vec![carrier]);
    world.bind_bob(&[Some(1000), Some(500)]);
    for node in [UAS, UAS + 1] {
        world.nodes[node].script = answers(&[(20, 180)]);
    }
    let invite = with_sdp(&request("INVITE", "sip:bob@example.com", 1, ""), OFFER);
    let key = world.send(UAC, Transport::Udp, &invite);
    world.run_until(8_000);
    let wanted = [
        "Offer s0 to none for RtpWithIce",
        DELETED,
        "Offer s1 to none for RtpWithIce",
    ];
    assert_eq!(asked(&world), wanted);
    world.cancel(key);
    world.nothing_is_left();
    assert_eq!(asked(&world)[3..], ["Delete s1"]);
}

/// A call through the trunk that is answered. Gives the INVITE that the trunk has got, and the 200.
fn answered() -> (World, String, String) {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(500);
    assert_eq!(asked(&world).len(), 2);
    let (invite, ok) = (
        world.nodes[UAS].texts[0].clone(),
        world.last(UAC).to_owned(),
    );
    (world, invite, ok)
}

#[test]
fn a_bye_with_any_outcome_deletes_the_dialog_but_not_one_that_is_challenged() {
    for (code, deletes) in [(200, 1), (481, 1), (500, 1), (401, 0), (407, 0)] {
        let (mut world, _, ok) = answered();
        world.nodes[UAS].script.other = vec![(10, code, String::new())];
        world.send(UAC, Transport::Udp, &in_dialog(&ok, "BYE"));
        world.run_until(2_000);
        assert_eq!(count(&world, DIALOG_DELETED), deletes, "{code}");
        world.nothing_is_left();
        assert_eq!(asked(&world).len(), 2 + deletes, "{code}");
    }
    // Nobody responds to it.
    let (mut world, _, ok) = answered();
    world.dead = vec![UAS];
    world.send(UAC, Transport::Udp, &in_dialog(&ok, "BYE"));
    world.nothing_is_left();
    assert_eq!(asked(&world)[2..], [DIALOG_DELETED]);
}

#[test]
fn a_bye_that_this_server_refuses_deletes_the_dialog_rfc3261_15_1_1() {
    // The caller's connection is gone: 430.
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    let invite = with_sdp(&request("INVITE", NUMBER, 1, ALICE), OFFER);
    world.send(
        UAC,
        Transport::Tcp,
        &invite.replace("SIP/2.0/UDP", "SIP/2.0/TCP"),
    );
    world.run_until(500);
    let (invite, ok) = (
        world.nodes[UAS].texts[0].clone(),
        world.last(UAC).to_owned(),
    );
    world.disconnect(UAC);
    world.dead = vec![UAC];
    world.send(UAS, Transport::Udp, &of_callee(&invite, &ok, "BYE"));
    world.run_until(1_000);
    assert_eq!(count(&world, DIALOG_DELETED), 1, "{:?}", asked(&world));
    // The proxy has no room: 503.
    let (mut world, _, ok) = answered();
    world.limit_contexts(0);
    world.send(UAC, Transport::Udp, &in_dialog(&ok, "BYE"));
    world.run_until(1_000);
    assert_eq!(world.heard(UAC).last(), Some(&"503 BYE"));
    assert_eq!(count(&world, DIALOG_DELETED), 1);
    // A BYE of no dialog that began here deletes nothing.
    let (mut world, _, ok) = answered();
    let bye = in_dialog(&ok, "BYE").replace("sip:d", "sip:dA");
    world.send(UAC, Transport::Udp, &bye);
    world.run_until(1_000);
    assert_eq!(count(&world, DIALOG_DELETED), 0);
}

#[test]
fn a_bye_with_a_session_description_does_not_wait_for_the_relay() {
    let (mut world, _, ok) = answered();
    world.has_relay = false;
    world.send(
        UAC,
        Transport::Udp,
        &with_sdp(&in_dialog(&ok, "BYE"), OFFER),
    );
    world.run_until(600);
    assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
    assert_eq!(asked(&world)[2..], [DIALOG_DELETED]);
    world.nothing_is_left();
}

#[test]
fn a_prack_goes_on_as_it_is_if_the_relay_is_silent_and_an_update_gets_503() {
    for (method, wanted) in [("PRACK", "200 PRACK"), ("UPDATE", "503 UPDATE")] {
        let (mut world, _, ok) = answered();
        world.has_relay = false;
        world.send(
            UAC,
            Transport::Udp,
            &with_sdp(&in_dialog(&ok, method), OFFER),
        );
        world.run_until(3_000);
        assert_eq!(world.heard(UAC).last(), Some(&wanted));
        let got = world.nodes[UAS].texts.iter();
        let got: Vec<_> = got.filter(|text| text.starts_with(method)).collect();
        assert_eq!(got.len(), usize::from(method == "PRACK"));
        assert!(got.iter().all(|text| body(text) == OFFER));
        world.has_relay = true;
        world.nothing_is_left();
    }
}

#[test]
fn a_refused_reinvite_keeps_the_session() {
    let (mut world, _, ok) = answered();
    world.nodes[UAS].script = script(vec![(10, 488, String::new())]);
    world.send(
        UAC,
        Transport::Udp,
        &with_sdp(&in_dialog(&ok, "INVITE"), OFFER),
    );
    world.run_until(1_000);
    assert_eq!(world.heard(UAC).last(), Some(&"488 INVITE"));
    world.nothing_is_left();
    assert_eq!(asked(&world)[2..], ["Offer s0 to tag for Rtp"]);
}

#[test]
fn a_2xx_without_a_session_description_keeps_the_session() {
    let mut world = world(Failures::default());
    // The answer was in a reliable 183.
    world.nodes[UAS].script = script(vec![answer(20, 183), (50, 200, String::new())]);
    call(&mut world, OFFER);
    world.run_until(500);
    assert_eq!(caller(&world), ["183 INVITE", "200 INVITE"]);
    let ok = world.last(UAC).to_owned();
    world.run_until(60_000);
    assert_eq!(asked(&world).len(), 2);
    world.send(UAC, Transport::Udp, &in_dialog(&ok, "BYE"));
    world.nothing_is_left();
    assert_eq!(asked(&world)[2..], [DIALOG_DELETED]);
}

/// A 200 of the trunk to this INVITE.
fn success_of(invite: &str) -> String {
    let mut lines = String::from("SIP/2.0 200 OK\r\n");
    for name in ["Via", "Record-Route", "From", "Call-ID", "CSeq"] {
        for value in values(invite, name) {
            lines += &format!("{name}: {value}\r\n");
        }
    }
    let to = values(invite, "To")[0];
    let sdp = "v=0\r\nm=audio 2 RTP/AVP 0\r\n";
    format!(
        "{lines}To: {to};tag=late\r\nContact: <sip:uas@{}>\r\n{SDP}Content-Length: {}\r\n\r\n{sdp}",
        address(UAS),
        sdp.len()
    )
}

#[test]
fn a_late_2xx_of_a_trunk_that_was_given_up_has_its_session() {
    let mut world = world(Failures::default());
    world.dead = vec![UAS];
    world.nodes[UAS + 1].script = answers(&[(20, 180)]);
    call(&mut world, OFFER);
    world.run_until(2_300);
    assert_eq!(world.heard(UAS + 1), ["INVITE"], "the call goes on");
    world.has_relay = false;
    let invites = world.nodes[PROXY].sent.iter();
    let invite = invites
        .map(|(_, _, text)| text)
        .find(|text| text.starts_with("INVITE"));
    let ok = success_of(invite.expect("an INVITE"));
    world.send_raw(UAS, &ok);
    world.run_until(3_000);
    // The other trunk is cancelled. The call must not end before the 200 is forwarded.
    assert_eq!(world.heard(UAS + 1), ["INVITE", "CANCEL"]);
    assert_eq!(caller(&world), ["180 INVITE"]);
    assert_eq!(world.media[1].receiver, MediaProfile::RtpWithIce);
    let number = world.media[1].number;
    let _ = world.media_answered(number, Some("v=0\r\n"));
    world.run_until(3_500);
    assert_eq!(caller(&world).last(), Some(&"200 INVITE"));
    assert_eq!(body(world.last(UAC)), "v=0\r\n");
    world.has_relay = true;
    world.nothing_is_left();
    assert_eq!(asked(&world).len(), 2);
}

#[test]
fn the_time_of_a_trunk_begins_when_its_request_is_sent() {
    // The relay needs nearly as long as the trunk may.
    let mut world = world(Failures::default());
    world.has_relay = false;
    world.nodes[UAS].script = script(vec![answer(1_500, 200)]);
    call(&mut world, OFFER);
    world.run_until(1_500);
    let number = world.media[0].number;
    world.has_relay = true;
    let _ = world.media_answered(number, Some(OFFER));
    world.run_until(3_400);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(world.heard(UAS + 1).len(), 0);
}

#[test]
fn a_phone_that_wakes_up_waits_for_its_own_offer() {
    let mut world = inbound();
    world.policy().push = Some(push::config());
    let phone = push::mobile(UAS + 1, "t1");
    world.policy().bind("bob", &phone);
    world.nodes[UAS].script = answers(&[(20, 180)]);
    world.nodes[UAS + 1].script = script(vec![answer(20, 200)]);
    // The phone has registered long ago.
    world.run_until(30_000);
    let at = Contact::at(&format!("sip:bob@{}", crate::node::address(UAS)));
    world.registered("bob", &at);
    let invite = with_sdp(&request("INVITE", "sip:bob@example.com", 1, ""), OFFER);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(30_500);
    assert_eq!(asked(&world), ["Offer s0 to none for RtpWithIce"]);
    world.has_relay = false;
    world.registered("bob", &phone);
    world.run_until(30_800);
    assert_eq!(asked(&world)[1..], ["Offer s1 to none for RtpWithIce"]);
    assert_eq!(world.heard(UAS + 1).len(), 0);
    let number = world.media[1].number;
    world.has_relay = true;
    let _ = world.media_answered(number, Some("v=0\r\n"));
    world.run_until(31_500);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    assert_eq!(asked(&world)[2..], ["Answer s1 to tag for Rtp", DELETED]);
    world.nothing_is_left();
}

#[test]
fn a_session_description_that_is_too_long_is_refused_at_once_and_counted() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    let long = format!("{OFFER}a=x:{}\r\n", "y".repeat(17 << 10));
    let invite = with_sdp(&request("INVITE", NUMBER, 1, ALICE), &long);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(100);
    assert_eq!(caller(&world), ["503 INVITE"]);
    assert_eq!(
        (asked(&world).len(), world.proxy().stats().media_full),
        (0, 1)
    );
    world.nothing_is_left();
}

#[test]
fn what_waits_too_long_is_counted() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    world.has_relay = false;
    call(&mut world, OFFER);
    world.run_until(3_000);
    assert_eq!(world.proxy().stats().media_silent, 1);
    world.has_relay = true;
    world.nothing_is_left();
}

#[test]
fn a_call_without_a_relay_is_sent_in_the_same_step() {
    let mut world = world(Failures::default());
    world
        .policy()
        .set_routes(vec![route("+49", &["b"])], vec![trunk("b", &[UAS + 1])]);
    world.nodes[UAS + 1].script = Script {
        invite: vec![(10, 200, format!("{SDP}{OFFER}"))],
        ..Script::default()
    };
    call(&mut world, OFFER);
    world.run_until(200);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(asked(&world).len(), 0);
    world.nothing_is_left();
}

/// A result with which no message is valid.
fn too_long() -> String {
    format!("v=0\r\na=x:{}\r\n", "y".repeat(70_000))
}

#[test]
fn an_offer_fails_if_the_result_makes_no_valid_message() {
    let mut world = world(on(Next::Stop, Next::Stop, Next::Stop));
    world.has_relay = false;
    call(&mut world, OFFER);
    world.run_until(50);
    let result = world.media_answered(world.media[0].number, Some(&too_long()));
    assert_eq!(result, MediaResult::Malformed);
    world.run_until(100);
    assert_eq!(caller(&world), ["503 INVITE"]);
    assert_eq!(world.heard(UAS).len(), 0);
    world.has_relay = true;
    world.nothing_is_left();
}

#[test]
fn a_response_and_an_ack_go_on_as_they_are_if_the_result_makes_no_valid_message() {
    let mut world = world(Failures::default());
    let plain = "v=0\r\nm=audio 2 RTP/AVP 0\r\n";
    world.nodes[UAS].script = script(vec![answer(20, 200)]);
    world.nodes[UAC].ack_sdp = OFFER;
    world.has_relay = false;
    let invite = request("INVITE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(100);
    assert_eq!(caller(&world).len(), 0);
    let result = world.media_answered(world.media[0].number, Some(&too_long()));
    assert_eq!(result, MediaResult::Malformed);
    world.run_until(200);
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(body(world.last(UAC)), plain);
    assert_eq!(world.heard(UAS), ["INVITE"], "the ACK waits");
    let result = world.media_answered(world.media[1].number, Some(&too_long()));
    assert_eq!(result, MediaResult::Malformed);
    world.run_until(400);
    assert_eq!(world.heard(UAS)[..2], ["INVITE", "ACK"]);
    assert_eq!(body(world.last(UAS)), OFFER);
    world.has_relay = true;
    world.nothing_is_left();
}
