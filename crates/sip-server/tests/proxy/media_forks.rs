//! Media relays and several dialogs of one call: copies of responses, forks, calls that hunt, and who has the media.

use sip::flow::Transport;
use sip_server::proxy::MediaCommand;
use sip_server::routes::{Failures, Next};

use crate::media::{
    OFFER, WEB_OFFER, answer, asked, body, call, inbound, of_callee, script, world,
};
use crate::node::{ALICE, SDP, UAC, UAS, address, in_dialog, request, values, with_sdp};
use crate::policy::Contact;
use crate::trunks::{NUMBER, caller, on, route, trunk, world_of};
use crate::world::World;

/// The newest message of a node that begins so.
fn newest(world: &World, node: usize, start: &str) -> String {
    let sent = world.nodes[node].sent.iter().rev();
    let mut sent = sent.filter(|(_, _, text)| text.starts_with(start));
    sent.next().expect("a message").2.clone()
}

/// The bodies of the responses that the caller has got with this code.
fn bodies(world: &World, code: u16) -> Vec<&str> {
    let start = format!("SIP/2.0 {code}");
    let texts = world.nodes[UAC].texts.iter();
    let texts = texts.filter(|text| text.starts_with(&start));
    texts.map(|text| body(text)).collect()
}

fn settle(world: &mut World) {
    let until = world.ms() + 50;
    world.run_until(until);
}

#[test]
fn copies_of_a_2xx_are_alike_and_go_to_the_relay_once_rfc3261_13_3_1_4() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(200);
    let ok = newest(&world, UAS, "SIP/2.0 200");
    for _ in 0..3 {
        world.send_raw(UAS, &ok);
        settle(&mut world);
    }
    assert_eq!(asked(&world).len(), 2);
    let bodies = bodies(&world, 200);
    assert_eq!(bodies.len(), 4);
    assert!(bodies.iter().all(|it| it.ends_with("a=for RtpWithIce\r\n")));
}

#[test]
fn copies_of_a_2xx_with_an_offer_make_no_new_offer() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    world.nodes[UAC].ack_sdp = OFFER;
    let invite = request("INVITE", NUMBER, 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(200);
    let ok = newest(&world, UAS, "SIP/2.0 200");
    for _ in 0..3 {
        world.send_raw(UAS, &ok);
        settle(&mut world);
    }
    let wanted = ["Offer s0 to tag for RtpWithIce", "Answer s0 to tag for Rtp"];
    assert_eq!(asked(&world), wanted);
    // All ACKs have the same session description as well.
    let acks = world.nodes[UAS].texts.iter();
    let acks: Vec<_> = acks.filter(|text| text.starts_with("ACK")).collect();
    assert_eq!(acks.len(), 4);
    let wanted = format!("{OFFER}a=for Rtp\r\n");
    assert!(acks.iter().all(|ack| body(ack) == wanted));
    world.nothing_is_left();
}

#[test]
fn copies_of_a_2xx_that_the_relay_has_refused_go_on_as_they_are() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(20);
    world.has_relay = false;
    world.run_until(200);
    let number = world.media[1].number;
    let _ = world.media_answered(number, None);
    let ok = newest(&world, UAS, "SIP/2.0 200");
    world.has_relay = true;
    world.send_raw(UAS, &ok);
    settle(&mut world);
    assert_eq!(asked(&world).len(), 2);
    let plain = "v=0\r\nm=audio 2 RTP/AVP 0\r\n";
    assert_eq!(bodies(&world, 200), [plain, plain]);
    world.nothing_is_left();
}

#[test]
fn a_copy_of_a_2xx_that_waits_is_dropped_also_if_an_earlier_response_is_answered() {
    let mut world = world(Failures::default());
    let later = format!("{SDP}v=0\r\nm=audio 4 RTP/AVP 0\r\n");
    world.nodes[UAS].script = script(vec![answer(50, 183), (60, 200, later)]);
    call(&mut world, OFFER);
    world.run_until(20);
    world.has_relay = false;
    world.run_until(200);
    assert_eq!(asked(&world).len(), 3);
    let (first, second) = (world.media[1].number, world.media[2].number);
    let _ = world.media_answered(first, Some("v=0\r\na=first\r\n"));
    let ok = newest(&world, UAS, "SIP/2.0 200");
    world.send_raw(UAS, &ok);
    settle(&mut world);
    assert_eq!(asked(&world).len(), 3);
    let _ = world.media_answered(second, Some("v=0\r\na=second\r\n"));
    settle(&mut world);
    // The call is answered: the provisional response comes too late.
    assert_eq!(bodies(&world, 200), ["v=0\r\na=second\r\n"]);
    world.has_relay = true;
    world.nothing_is_left();
}

/// Bob has two phones, and a trunk with a relay calls him.
fn two_phones() -> World {
    let mut world = inbound();
    let second = Contact::at(&format!("sip:bob@{}", address(UAS + 1)));
    world.policy().bind("bob", &second);
    world
}

fn call_bob(world: &mut World) -> sip::engine::ClientKey {
    let invite = with_sdp(&request("INVITE", "sip:bob@example.com", 1, ""), OFFER);
    world.send(UAC, Transport::Udp, &invite)
}

#[test]
fn phones_that_ring_at_the_same_time_have_sessions_of_their_own() {
    let mut world = two_phones();
    world.nodes[UAS].script = script(vec![answer(50, 183), answer(500, 200)]);
    world.nodes[UAS + 1].script = script(vec![answer(100, 183)]);
    call_bob(&mut world);
    world.run_until(1_000);
    let wanted = [
        "Offer s0 to none for RtpWithIce",
        "Offer s1 to none for RtpWithIce",
        "Answer s0 to tag for Rtp",
        "Answer s1 to tag for Rtp",
        "Delete s1",
    ];
    assert_eq!(asked(&world), wanted);
    assert_eq!(world.heard(UAS + 1), ["INVITE", "CANCEL"]);
    world.in_dialog(UAC, "BYE");
    world.run_until(1_500);
    assert_eq!(asked(&world)[5..], ["Delete a dialog of s0"]);
    world.nothing_is_left();
    assert_eq!(asked(&world).len(), 6);
}

#[test]
fn a_late_provisional_response_does_not_take_the_media_of_an_answered_call() {
    let mut world = two_phones();
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    let mut second = script(vec![answer(52, 183)]);
    second.ignores_cancel = true;
    world.nodes[UAS + 1].script = second;
    call_bob(&mut world);
    world.run_until(500);
    let before = asked(&world).len();
    // A copy of it comes still later.
    let late = newest(&world, UAS + 1, "SIP/2.0 183");
    world.send_raw(UAS + 1, &late);
    settle(&mut world);
    assert_eq!(asked(&world).len(), before);
    let answers = asked(&world);
    let answers = answers.iter().filter(|it| it.starts_with("Answer"));
    assert_eq!(answers.count(), 1);
    assert_eq!(caller(&world), ["200 INVITE"]);
}

#[test]
fn other_phones_stop_ringing_when_a_2xx_waits_rfc3261_16_7() {
    let mut world = two_phones();
    world.nodes[UAS].script = script(vec![answer(300, 200)]);
    world.nodes[UAS + 1].script = script(vec![(50, 180, String::new()), answer(900, 200)]);
    call_bob(&mut world);
    world.run_until(100);
    world.has_relay = false;
    world.run_until(700);
    assert_eq!(caller(&world), ["180 INVITE"], "the 2xx waits");
    assert_eq!(world.heard(UAS + 1), ["INVITE", "CANCEL"]);
    assert_eq!(world.media[2].command, MediaCommand::Answer);
    let number = world.media[2].number;
    let _ = world.media_answered(number, Some("v=0\r\n"));
    settle(&mut world);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn the_time_of_a_group_ends_when_a_2xx_waits() {
    let config = sip_server::proxy::Config {
        ring_time: std::time::Duration::from_secs(1),
        ..sip_server::proxy::Config::default()
    };
    let mut world = World::with(crate::network::Weather::FINE, 1, config);
    let mut carrier = trunk("carrier", &[UAC]);
    carrier.relays_media = true;
    world.policy().set_routes(Vec::new(), vec![carrier]);
    world.bind_bob(&[Some(1000), Some(500)]);
    world.nodes[UAS].script = script(vec![answer(300, 200)]);
    call_bob(&mut world);
    world.run_until(100);
    world.has_relay = false;
    world.run_until(1_900);
    assert_eq!(world.heard(UAS), ["INVITE"], "no CANCEL");
    assert_eq!(world.heard(UAS + 1).len(), 0, "nobody else is called");
    world.run_until(2_500);
    assert_eq!(caller(&world), ["200 INVITE"]);
    world.has_relay = true;
    world.nothing_is_left();
}

#[test]
fn two_phones_that_answer_at_once_both_have_media() {
    let mut world = two_phones();
    for node in [UAS, UAS + 1] {
        world.nodes[node].script = script(vec![answer(50, 200)]);
    }
    call_bob(&mut world);
    world.run_until(500);
    assert_eq!(caller(&world), ["200 INVITE", "200 INVITE"]);
    let bodies = bodies(&world, 200);
    assert!(bodies.iter().all(|it| it.ends_with("a=for Rtp\r\n")));
    let wanted = [
        "Offer s0 to none for RtpWithIce",
        "Offer s1 to none for RtpWithIce",
        "Answer s0 to tag for Rtp",
        "Answer s1 to tag for Rtp",
    ];
    assert_eq!(asked(&world), wanted, "neither session is deleted");
    world.nothing_is_left();
    assert_eq!(asked(&world).len(), 4);
}

#[test]
fn the_first_phone_behind_a_trunk_has_the_media_of_a_call_that_the_trunk_has_forked() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 183), answer(400, 200)]);
    call(&mut world, WEB_OFFER);
    world.run_until(200);
    // The tag of another phone, and other session descriptions.
    let tag = |text: &str| {
        let to = values(text, "To")[0].to_owned();
        text.replace(&to, "<sip:+49301234@example.com>;tag=second")
    };
    let second = tag(&newest(&world, UAS, "SIP/2.0 183"));
    world.send_raw(UAS, &second);
    settle(&mut world);
    let answers = |world: &World| {
        let tags = world.media[1..].iter().filter_map(|it| it.to_tag.clone());
        tags.map(|tag| &*tag == b"second").collect::<Vec<bool>>()
    };
    assert_eq!(answers(&world), [false, true]);
    // The first phone answers: the relay must know that it has the media now, though the session description is known.
    world.run_until(600);
    assert_eq!(answers(&world), [false, true, false]);
    let second = tag(&newest(&world, UAS, "SIP/2.0 200"));
    world.send_raw(UAS, &second);
    settle(&mut world);
    assert_eq!(
        answers(&world),
        [false, true, false],
        "the other 2xx does not"
    );
    assert_eq!(bodies(&world, 200).len(), 2);
}

#[test]
fn a_second_2xx_of_a_copy_does_not_overtake_the_first_one_that_waits() {
    let mut world = world(Failures::default());
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(20);
    world.has_relay = false;
    world.run_until(200);
    let first = newest(&world, UAS, "SIP/2.0 200");
    let to = values(&first, "To")[0].to_owned();
    let second = first.replace(&to, "<sip:+49301234@example.com>;tag=second");
    world.send_raw(UAS, &second);
    settle(&mut world);
    assert_eq!(caller(&world).len(), 0);
    assert_eq!(asked(&world).len(), 2);
    let number = world.media[1].number;
    let _ = world.media_answered(number, Some("v=0\r\na=first\r\n"));
    world.send_raw(UAS, &second);
    settle(&mut world);
    let plain = "v=0\r\nm=audio 2 RTP/AVP 0\r\n";
    assert_eq!(bodies(&world, 200), ["v=0\r\na=first\r\n", plain]);
    world.has_relay = true;
}

#[test]
fn a_trunk_that_has_sent_early_media_and_failed_leaves_its_session() {
    let mut world = world_of(vec![route("+49", &["a", "b"])], {
        let with_relay = |name: &str, node: usize| sip_server::routes::Trunk {
            relays_media: true,
            ..trunk(name, &[node])
        };
        vec![with_relay("a", UAS), with_relay("b", UAS + 1)]
    });
    world.nodes[UAS].script = script(vec![answer(50, 183), (100, 503, String::new())]);
    world.nodes[UAS + 1].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(1_000);
    assert_eq!(caller(&world), ["183 INVITE", "200 INVITE"]);
    let wanted = [
        "Offer s0 to none for Rtp",
        "Answer s0 to tag for RtpWithIce",
        "Delete s0",
        "Offer s1 to none for Rtp",
        "Answer s1 to tag for RtpWithIce",
    ];
    assert_eq!(asked(&world), wanted);
    world.nothing_is_left();
    assert_eq!(asked(&world).len(), 5);
}

#[test]
fn a_relay_that_has_failed_is_asked_once_per_call() {
    let with_relay = |name: &str, node: usize| sip_server::routes::Trunk {
        relays_media: true,
        ..trunk(name, &[node])
    };
    let trunks = vec![
        with_relay("a", UAS),
        with_relay("b", UAS + 1),
        trunk("c", &[UAS + 2]),
    ];
    let mut world = world_of(vec![route("+49", &["a", "b", "c"])], trunks);
    world.has_relay = false;
    world.nodes[UAS + 2].script = script(vec![answer(50, 200)]);
    call(&mut world, OFFER);
    world.run_until(3_000);
    assert_eq!(caller(&world), ["200 INVITE"]);
    let wanted = ["Offer s0 to none for Rtp", "Delete s0"];
    assert_eq!(asked(&world), wanted);
    world.nothing_is_left();
}

#[test]
fn a_trunk_without_room_costs_the_relay_nothing() {
    let mut carrier = trunk("a", &[UAS]);
    (carrier.relays_media, carrier.calls_per_second) = (true, 1);
    let mut first = route("+49", &["a"]);
    first.failures = on(Next::Stop, Next::Stop, Next::Stop);
    let mut world = world_of(vec![first], vec![carrier]);
    world.nodes[UAS].script = script(vec![answer(10, 200)]);
    for number in 1..=4 {
        let invite = with_sdp(&request("INVITE", NUMBER, number, ALICE), OFFER);
        world.send(UAC, Transport::Udp, &invite);
    }
    world.run_until(500);
    let offers = asked(&world);
    let offers = offers.iter().filter(|it| it.starts_with("Offer"));
    assert_eq!(
        offers.count(),
        world.sent(crate::node::PROXY, "INVITE").len()
    );
    assert!(caller(&world).contains(&"503 INVITE"));
    world.nothing_is_left();
}

#[test]
fn both_sides_are_recorded_when_a_trunk_calls_a_phone_without_a_flow() {
    let mut world = inbound();
    world.nodes[UAS].script = script(vec![answer(50, 200)]);
    call_bob(&mut world);
    world.run_until(500);
    let (invite, ok) = (
        world.nodes[UAS].texts[0].clone(),
        world.last(UAC).to_owned(),
    );
    assert_eq!(values(&ok, "Record-Route").len(), 2);
    // The phone gets an offer for a phone, and the trunk one for a trunk.
    let again = with_sdp(&in_dialog(&ok, "INVITE"), OFFER);
    world.send(UAC, Transport::Udp, &again);
    settle(&mut world);
    assert_eq!(asked(&world)[2], "Offer s0 to tag for RtpWithIce");
    let again = with_sdp(&of_callee(&invite, &ok, "INVITE"), OFFER);
    world.send(UAS, Transport::Udp, &again);
    settle(&mut world);
    assert!(asked(&world).contains(&"Offer s0 to tag for Rtp".to_owned()));
}

#[test]
fn a_trunk_without_a_relay_that_calls_one_with_a_relay_gets_what_it_offers() {
    for (offer, side) in [(OFFER, "Rtp"), (WEB_OFFER, "WebRtc")] {
        let mut carrier = trunk("a", &[UAS]);
        carrier.relays_media = true;
        let trunks = vec![carrier, trunk("x", &[UAC])];
        let mut first = route("+49", &["a"]);
        first.from_trunks = vec!["x".to_owned()];
        let mut world = world_of(vec![first], trunks);
        world.policy().trunks.insert(address(UAC).ip());
        world.nodes[UAS].script = script(vec![answer(50, 200)]);
        let invite = with_sdp(&request("INVITE", NUMBER, 1, ""), offer);
        world.send(UAC, Transport::Udp, &invite);
        world.run_until(500);
        let wanted = [
            "Offer s0 to none for Rtp".to_owned(),
            format!("Answer s0 to tag for {side}"),
        ];
        assert_eq!(asked(&world), wanted);
    }
}

#[test]
fn passes_of_one_call_through_this_server_have_sessions_of_their_own() {
    let mut world = world(Failures::default());
    for (number, tag) in [(1, "a1"), (1, "b1")] {
        let invite = with_sdp(&request("INVITE", NUMBER, number, ALICE), OFFER);
        let invite = invite.replace("branch=z9hG4bK", &format!("branch=z9hG4bK{tag}"));
        world.send(
            UAC,
            Transport::Udp,
            &invite.replace(";tag=a1", &format!(";tag={tag}")),
        );
    }
    world.run_until(300);
    let wanted = ["Offer s0 to none for Rtp", "Offer s1 to none for Rtp"];
    assert_eq!(asked(&world), wanted);
    let call_ids = world
        .media
        .iter()
        .map(|it| it.session.split(|b| *b == b';').next());
    let call_ids: Vec<_> = call_ids.collect();
    assert_eq!(call_ids[0], call_ids[1]);
}

#[test]
fn a_provisional_response_that_waits_is_dropped_if_its_phone_refuses_meanwhile() {
    let mut world = two_phones();
    world.nodes[UAS].script = script(vec![answer(50, 183), (100, 486, String::new())]);
    world.nodes[UAS + 1].script = script(vec![(60, 180, String::new()), answer(900, 200)]);
    call_bob(&mut world);
    world.run_until(20);
    world.has_relay = false;
    world.run_until(300);
    assert_eq!(world.media[2].command, MediaCommand::Answer);
    let number = world.media[2].number;
    let _ = world.media_answered(number, Some("v=0\r\n"));
    world.has_relay = true;
    world.run_until(1_500);
    assert_eq!(caller(&world), ["180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_copy_for_another_flow_does_not_begin_the_time_of_its_group_anew() {
    let config = sip_server::proxy::Config {
        ring_time: std::time::Duration::from_secs(1),
        ..sip_server::proxy::Config::default()
    };
    let mut world = World::with(crate::network::Weather::FINE, 1, config);
    let mut carrier = trunk("carrier", &[UAC]);
    carrier.relays_media = true;
    world.policy().set_routes(Vec::new(), vec![carrier]);
    world.policy().trunks.insert(address(UAC).ip());
    // Two flows of one phone, and another phone that is called later.
    for (node, reg_id) in [(UAS, 1), (UAS + 1, 2)] {
        let mut contact = Contact::at(&format!("sip:bob@{};transport=tcp", address(node)));
        contact.flow = Some(world.phone_connects(node));
        (contact.reg_id, contact.q) = (reg_id, Some(1000));
        contact.instance = "urn:uuid:1".to_owned();
        world.policy().bind("bob", &contact);
        world.nodes[node].script = script(vec![(800, 430, String::new())]);
    }
    let mut second = Contact::at(&format!("sip:bob@{}", address(UAS + 2)));
    second.q = Some(500);
    world.policy().bind("bob", &second);
    world.nodes[UAS + 2].script = script(vec![answer(100, 200)]);
    call_bob(&mut world);
    world.run_until(3_000);
    let invites = world.sent(crate::node::PROXY, "INVITE");
    assert_eq!(invites.len(), 3, "{invites:?}");
    let (at, to) = invites[2];
    assert!(to == UAS + 2 && (1_000..1_300).contains(&at), "{invites:?}");
    assert_eq!(caller(&world), ["200 INVITE"]);
    world.nothing_is_left();
}
