//! Admission control at the engine: who is refused, with what, and who is not.

use std::time::Duration;

use hairpin_sip::congestion::{Backlog, Class, ProofFields, RequestProof};
use hairpin_sip::engine::{Outgoing, RequestError};
use hairpin_sip::flow::{Destination, ListenerKey, Transport};
use hairpin_sip::verdict::Rules;
use hairpin_sip::{Message, Mono, Now, Spans};

use crate::network::Weather;
use crate::world::{UAC, UAS, World, address, request, text};

fn world() -> World {
    let mut world = World::with(Weather::FINE, 1, |_, config| {
        config.overload_control = true;
        config.congestion.refusal_permille = 1000;
    });
    world.uas().script.other = vec![(0, 200)];
    world.uas().script.invite = vec![(50, 180), (60_000, 200)];
    world
}

/// Makes a node believe that so many messages of 50 us wait.
fn congest(world: &mut World, node: usize, messages: u64) {
    let mono = world.now;
    let engine = &mut world.nodes[node].engine;
    // In batches, as workers report it: one long sample would be a stall of the processor.
    for _ in 0..500 {
        engine.observe_service(16, Duration::from_micros(16 * 50));
    }
    let backlog = Backlog {
        messages,
        ..Backlog::default()
    };
    for ago in [1_000_000_000, 0] {
        let now = Now {
            mono: Mono(mono.0 - ago),
            unix_s: 1_700_000_000,
        };
        engine.observe_backlog(now, backlog);
    }
}

fn incoming(world: &mut World, bytes: &[u8]) -> String {
    let now = world.now;
    let node = &mut world.nodes[UAS];
    let flow = node.flow(([198, 51, 100, 7], 4444).into(), None);
    let what = node.receive(now, &flow, bytes);
    world.drain();
    what
}

fn message(method: &str, number: u32, change: impl Fn(String) -> String) -> Vec<u8> {
    let via = format!("Via: SIP/2.0/UDP a.example;branch=z9hG4bKc{number};rport\r\n");
    change(text(&request(method, number, &via))).into_bytes()
}

fn same(message: String) -> String {
    message
}

#[test]
fn a_refusal_has_a_to_tag_the_right_via_and_a_retry_after() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 5_000);
    let invite = message("INVITE", 1, same);
    assert_eq!(incoming(&mut world, &invite), "Refused(503)");
    let refusal = text(&world.uas().last);
    assert!(refusal.starts_with("SIP/2.0 503 "), "{refusal}");
    assert!(refusal.contains(";received=198.51.100.7"), "{refusal}");
    assert!(refusal.contains(";rport=4444"), "{refusal}");
    assert!(
        refusal.contains("To: <sip:bob@192.0.2.2>;tag="),
        "{refusal}"
    );
    let after = refusal.split("Retry-After: ").nth(1).unwrap();
    let seconds: u32 = after.split('\r').next().unwrap().parse().unwrap();
    assert!((1..=3).contains(&seconds));
    // Nothing is kept, and its repetition gets the same tag.
    assert_eq!(world.uas().engine.stats().servers, 0);
    assert_eq!(incoming(&mut world, &invite), "Refused(503)");
    let tag = |text: &str| text.split(";tag=").nth(2).map(|rest| rest[..16].to_owned());
    assert_eq!(tag(&text(&world.uas().last)), tag(&refusal));
}

#[test]
fn known_and_final_requests_are_never_refused() {
    let mut world = world();
    world.run_until(2_000);
    let invite = message("INVITE", 1, same);
    assert_eq!(incoming(&mut world, &invite), "request INVITE");
    world.run_until(2_100);
    let tag = tag_of(&text(&world.uas().last));
    congest(&mut world, UAS, 50_000);
    assert_eq!(incoming(&mut world, &invite), "Absorbed", "it came again");
    let cancel = message("CANCEL", 1, same);
    assert_eq!(incoming(&mut world, &cancel), "cancel");
    let ack = message("ACK", 1, same);
    assert_eq!(incoming(&mut world, &ack), "Absorbed");
    let ack = message("ACK", 9, same);
    assert_eq!(incoming(&mut world, &ack), "ACK of nobody");
    let bye = message("BYE", 1, in_dialog(&tag));
    assert_eq!(incoming(&mut world, &bye), "request BYE");
    assert_eq!(
        incoming(&mut world, &message("OPTIONS", 3, same)),
        "Refused(503)"
    );
}

/// The tag in To of a response, which comes after that in From.
fn tag_of(response: &str) -> String {
    let to = response.split("To: <sip:bob@192.0.2.2>;tag=").nth(1);
    to.unwrap().split('\r').next().unwrap().to_owned()
}

fn in_dialog(tag: &str) -> impl Fn(String) -> String {
    let to = format!("bob@192.0.2.2>;tag={tag}\r\n");
    move |message| message.replace("bob@192.0.2.2>\r\n", &to)
}

#[test]
fn a_to_tag_counts_only_with_its_mac_and_a_made_up_one_is_new_work() {
    let mut world = world();
    world.uas().engine.configure_rules(Rules::USER_AGENT);
    world.run_until(2_000);
    let invite = message("INVITE", 1, same);
    assert_eq!(incoming(&mut world, &invite), "request INVITE");
    world.run_until(2_100);
    let tag = tag_of(&text(&world.uas().last));
    congest(&mut world, UAS, 5_100);
    // The source has had its share, and nothing new is accepted.
    for number in 100..3_000 {
        incoming(&mut world, &message("OPTIONS", number, same));
    }
    let other = format!(
        "{}{}",
        &tag[..tag.len() - 1],
        if tag.ends_with('a') { 'b' } else { 'a' }
    );
    for (method, number, tag, expected) in [
        ("BYE", 1, Some(&*tag), "request BYE"),
        ("BYE", 2, Some(&*tag), "Refused(503)"),
        ("BYE", 1, Some(&*other), "Refused(503)"),
        ("BYE", 4, Some("made-up"), "Refused(503)"),
        ("INFO", 5, Some("made-up"), "Refused(503)"),
        ("PRACK", 6, Some("made-up"), "Refused(503)"),
        ("BYE", 7, None, "Refused(503)"),
        // Of no INVITE; that of one that is here is never refused.
        ("CANCEL", 8, None, "Refused(503)"),
        ("CANCEL", 1, None, "cancel"),
    ] {
        // Each has a branch of its own, but for the CANCEL.
        let unlike = format!("{method}{number}{}", tag.unwrap_or_default());
        let branch = |m: String| match method {
            "CANCEL" => m,
            _ => m.replace(";branch=z9hG4bKc", &format!(";branch=z9hG4bK{unlike}")),
        };
        let request = match tag {
            Some(tag) => message(method, number, |m| branch(in_dialog(tag)(m))),
            None => message(method, number, branch),
        };
        assert_eq!(incoming(&mut world, &request), expected, "{unlike}");
    }
}

/// Recognizes the requests of its dialogs by a Route that names the Call-ID, and its nonces by a word.
#[derive(Debug)]
struct TokenProof;

impl RequestProof for TokenProof {
    fn is_of_dialog(&self, request: &ProofFields<'_>) -> bool {
        let user = [b"<sip:of.", request.call_id].concat();
        assert!(!request.to_tag.is_empty());
        request.route.starts_with(&user)
    }

    fn has_fresh_nonce(&self, request: &ProofFields<'_>) -> bool {
        assert_eq!(request.unix_s, 1_700_000_000);
        assert!(request.source.is_some());
        request.credentials.contains(&Some(b"Digest ours"))
    }

    fn is_of_cluster(&self, request: &ProofFields<'_>) -> bool {
        request.uri.starts_with(b"sip:node@")
    }
}

fn with_token(message: String) -> String {
    let call = message.split("Call-ID: ").nth(1).unwrap();
    let call = call.split('\r').next().unwrap();
    let route = format!("Route: <sip:of.{call}@192.0.2.2;lr>\r\nMax-Forwards");
    message.replace("Max-Forwards", &route)
}

#[test]
fn a_proxy_gives_the_priority_of_a_dialog_only_with_a_proof() {
    let mut world = world();
    world.uas().engine.set_proof(Box::new(TokenProof));
    world.run_until(2_000);
    congest(&mut world, UAS, 2_980);
    // The source has had its share of this window.
    let mut number = 100;
    while incoming(&mut world, &message("OPTIONS", number, same)) != "Refused(503)" {
        number += 1;
        assert!(number < 10_000);
    }
    let made_up = in_dialog("made-up");
    let other = |m: String| with_token(made_up(m)).replace("<sip:of.", "<sip:of.1");
    for (method, number) in [("BYE", 1), ("INFO", 2), ("INVITE", 3)] {
        let forged = message(method, number, &made_up);
        assert_eq!(incoming(&mut world, &forged), "Refused(503)", "{method}");
        let of_another = message(method, number, other);
        assert_eq!(incoming(&mut world, &of_another), "Refused(503)");
        let proven = message(method, number, |m| with_token(made_up(m)));
        let accepted = format!("request {method}");
        assert_eq!(incoming(&mut world, &proven), accepted);
    }
    // A Route without a To tag is of no dialog.
    let without = message("INFO", 9, with_token);
    assert_eq!(incoming(&mut world, &without), "Refused(503)");
    // At the wait at which some requests of dialogs are refused, a BYE is not an exception: it could be repeated.
    congest(&mut world, UAS, 50_000);
    let bye = message("BYE", 20, |m| with_token(made_up(m)));
    assert_eq!(incoming(&mut world, &bye), "Refused(503)");
}

#[test]
fn a_source_beyond_its_limit_gets_503_without_an_overload() {
    let mut world = World::with(Weather::FINE, 1, |_, config| {
        config.congestion.per_source = 40;
    });
    world.uas().script.other = vec![(0, 200)];
    world.uas().engine.set_proof(Box::new(TokenProof));
    world.run_until(2_000);
    congest(&mut world, UAS, 0);
    for number in 1..=10 {
        let options = message("OPTIONS", number, same);
        assert_eq!(incoming(&mut world, &options), "request OPTIONS");
        let again = incoming(&mut world, &options);
        assert_eq!(again, "Absorbed", "a retransmission does not count");
    }
    let options = message("OPTIONS", 11, same);
    assert_eq!(incoming(&mut world, &options), "Refused(503)");
    let refusal = text(&world.uas().last);
    assert!(refusal.contains("Retry-After: "), "{refusal}");
    // Exempt are emergency calls and other nodes.
    let to = |uri: &str| {
        let line = format!("{uri} SIP");
        move |m: String| m.replace("sip:bob@192.0.2.2 SIP", &line)
    };
    let sos = message("OPTIONS", 12, to("urn:service:sos"));
    assert_eq!(incoming(&mut world, &sos), "request OPTIONS");
    let node = message("OPTIONS", 13, to("sip:node@192.0.2.2"));
    assert_eq!(incoming(&mut world, &node), "request OPTIONS");
    // A proven dialog is not: its token could be repeated.
    let info = message("INFO", 14, |m| with_token(in_dialog("x")(m)));
    assert_eq!(incoming(&mut world, &info), "Refused(503)");
    let stats = world.uas().engine.stats();
    assert_eq!((stats.shed.refused, stats.shed.over_limit), (2, 2));
    world.run_until(2_300);
    let options = message("OPTIONS", 15, same);
    assert_eq!(incoming(&mut world, &options), "request OPTIONS");
}

#[test]
fn dialogs_and_second_halves_of_challenges_outlast_new_work() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 2_980);
    // The source has had its share of this window.
    let mut number = 100;
    while incoming(&mut world, &message("OPTIONS", number, same)) != "Refused(503)" {
        number += 1;
        assert!(number < 10_000);
    }
    let credentials = |field: &str| {
        let fields = format!("{field}\r\nMax-Forwards");
        move |m: String| m.replace("Max-Forwards", &fields)
    };
    let emergency = |m: String| m.replace("sip:bob@192.0.2.2 SIP", "urn:service:sos SIP");
    // Of a dialog that the TU knows.
    world.uas().engine.set_proof(Box::new(TokenProof));
    let info = message("INFO", 1, |m| with_token(in_dialog("x")(m)));
    assert_eq!(incoming(&mut world, &info), "request INFO");
    let info = message("INFO", 5, in_dialog("x"));
    assert_eq!(incoming(&mut world, &info), "Refused(503)");
    for (number, field, expected) in [
        (20, "Authorization: Digest ours", "request REGISTER"),
        (21, "Proxy-Authorization: Digest ours", "request REGISTER"),
        // Anybody can make them up.
        (22, "Authorization: Digest x", "Refused(503)"),
        (23, "Proxy-Authorization: Digest x", "Refused(503)"),
    ] {
        let register = message("REGISTER", number, credentials(field));
        assert_eq!(incoming(&mut world, &register), expected, "{field}");
    }
    let sos = message("INVITE", 3, emergency);
    assert_eq!(incoming(&mut world, &sos), "request INVITE");
    // A client of RFC 2543 is no exception.
    for (number, extra, expected) in [
        (4, "", "Refused(503)"),
        (6, "Authorization: Digest x\r\n", "Refused(503)"),
        (7, "Authorization: Digest ours\r\n", "request OPTIONS"),
    ] {
        let old = message("OPTIONS", number, |m| {
            let branch = format!(";branch=z9hG4bKc{number}");
            let fields = format!("{extra}Max-Forwards");
            m.replace(&branch, "").replace("Max-Forwards", &fields)
        });
        assert_eq!(incoming(&mut world, &old), expected, "{extra}");
    }
}

#[test]
fn the_tus_own_requests_are_refused_and_retransmissions_put_off() {
    let mut world = world();
    world.network.weather = Weather::DEAD;
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    congest(&mut world, UAC, 5_000);
    world.run_until(2_000);
    assert_eq!(world.times(UAC, "OPTIONS"), [0], "put off");
    let bytes = request("OPTIONS", 2, "");
    let out = Outgoing {
        to: Destination::new(Transport::Udp, address(UAS), ListenerKey(0)),
        connection: None,
        pieces: &[&bytes],
        class: Class::New,
        mark: None,
        loop_check: None,
    };
    let now = world.now;
    let refused = world.uac().engine.request(now, &out);
    assert_eq!(refused, Err(RequestError::Congested));
    congest(&mut world, UAC, 0);
    world.run_until(4_000);
    assert_eq!(world.times(UAC, "OPTIONS"), [0, 3500], "the timers went on");
    let shed = world.uac().engine.stats().shed;
    assert_eq!((shed.from_tu, shed.deferred), (1, 2));
    world.nothing_is_left();
}

#[test]
fn what_a_proxy_forwards_was_judged_when_it_came_in() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAC, 5_000);
    let bytes = request("OPTIONS", 1, "");
    let mut spans = Spans::new();
    let message = Message::parse(&bytes, &mut spans).unwrap();
    let loop_check = Some(world.uac().engine.loop_check(&message, b""));
    let out = Outgoing {
        to: Destination::new(Transport::Udp, address(UAS), ListenerKey(0)),
        connection: None,
        pieces: &[&bytes],
        class: Class::New,
        mark: None,
        loop_check,
    };
    let now = world.now;
    let forwarded = world.uac().engine.request(now, &out);
    assert!(forwarded.is_ok(), "{forwarded:?}");
    assert_eq!(world.uac().engine.stats().shed.from_tu, 0);
}

#[test]
fn a_next_hop_with_rfc_7339_gets_oc_and_its_limit_applies() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 5_000);
    // Some requests are refused, so that there is a share to report.
    for number in 1..200 {
        incoming(&mut world, &message("OPTIONS", number, same));
    }
    world.run_until(2_200);
    congest(&mut world, UAS, 5_000);
    world.send(Transport::Udp, &request("BYE", 1, ""));
    let asked = text(&world.uac().last);
    assert!(asked.contains(";oc;oc-algo=\"loss,rate\"\r\n"), "{asked}");
    world.run_until(2_215);
    let told = text(&world.uas().last);
    assert!(
        told.contains(";oc-algo=\"loss\";oc-validity=500;oc-seq="),
        "{told}"
    );
    assert!(!told.contains(";oc;"), "{told}");
    let share = told.split(";oc=").nth(1).unwrap();
    let share: u32 = share.split(';').next().unwrap().parse().unwrap();
    assert!((1..=100).contains(&share), "{share}");
    world.run_until(2_225);
    assert!(world.heard(UAC).contains(&"503 BYE"), "of no dialog");
    // Four in five requests are of those that may be held back, until the mix is known (§7.2).
    let now = world.now;
    let mut held = 0;
    for number in 10..1010 {
        let bytes = request("OPTIONS", number, "");
        let out = Outgoing {
            to: Destination::new(Transport::Udp, address(UAS), ListenerKey(0)),
            connection: None,
            pieces: &[&bytes],
            class: Class::New,
            mark: None,
            loop_check: None,
        };
        held += u32::from(world.uac().engine.request(now, &out) == Err(RequestError::HeldBack));
    }
    let expected = (share * 100 / 8).min(1000);
    assert!(held.abs_diff(expected) < 80, "{held} of 1000 at {share} %");
}

#[test]
fn a_refusal_to_a_client_with_rfc_7339_has_no_retry_after() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 5_000);
    let speaks = |m: String| m.replace(";rport", ";rport;oc;oc-algo=\"loss\"");
    let invite = message("INVITE", 1, speaks);
    assert_eq!(incoming(&mut world, &invite), "Refused(503)");
    let refusal = text(&world.uas().last);
    assert!(!refusal.contains("Retry-After"), "{refusal}");
    assert!(refusal.contains(";oc="), "{refusal}");
}

#[test]
fn senders_that_offer_overload_control_get_oc_0_without_an_overload_rfc7339_5_1() {
    let mut world = world();
    world.run_until(2_000);
    let answer_to = |world: &mut World, number: u32, offer: &str| {
        let with = format!(";rport{offer}");
        let asked = message("OPTIONS", number, |m| m.replace(";rport", &with));
        assert_eq!(incoming(world, &asked), "request OPTIONS");
        text(&world.uas().last)
    };
    for (number, offer) in (1..).zip([
        ";oc;oc-algo=\"loss\"",
        ";oc;oc-algo=\"loss,rate\"",
        ";oc;oc-algo=\"rate,loss\"",
        ";OC ; Oc-Algo=\"LOSS,x\"",
        "; oc",
    ]) {
        let answer = answer_to(&mut world, number, offer);
        let calm = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=";
        assert!(answer.contains(calm), "{offer}: {answer}");
        assert_eq!(
            answer.to_ascii_lowercase().matches(";oc").count(),
            4,
            "{answer}"
        );
    }
    // Who offers nothing, or not the algorithm that RFC 7339 §4.2 has every client know, gets its parameters back.
    for (number, offer) in (11..).zip(["", ";oc;oc-algo=\"rate\"", ";ocean=1"]) {
        let answer = answer_to(&mut world, number, offer);
        assert!(!answer.contains("oc-seq"), "{offer}: {answer}");
        assert!(answer.contains(offer), "{offer}: {answer}");
    }
}

#[test]
fn the_ack_of_a_refusal_is_part_of_it_unless_the_invite_was_accepted_since_rfc3261_17_2_3() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 5_000);
    let invite = message("INVITE", 1, same);
    assert_eq!(incoming(&mut world, &invite), "Refused(503)");
    let tag = tag_of(&text(&world.uas().last));
    let ack = message("ACK", 1, in_dialog(&tag));
    assert_eq!(incoming(&mut world, &ack), "AckOfRefusal");
    let other = message("ACK", 2, in_dialog(&tag));
    assert_eq!(incoming(&mut world, &other), "ACK of nobody");
    // It is sent again, and accepted.
    world.run_until(60_000);
    congest(&mut world, UAS, 0);
    assert_eq!(incoming(&mut world, &invite), "request INVITE");
    congest(&mut world, UAS, 5_000);
    assert_eq!(incoming(&mut world, &ack), "Absorbed");
}
