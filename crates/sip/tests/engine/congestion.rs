//! Congestion at the engine: who is refused, with what, and who is not.

use std::time::Duration;

use hairpin_sip::congestion::{Backlog, Class, Downstream, Feedback};
use hairpin_sip::engine::{Outgoing, RequestError};
use hairpin_sip::flow::{Carrier, Destination, ListenerKey};
use hairpin_sip::{Mono, Now};

use crate::network::Weather;
use crate::world::{UAC, UAS, World, address, request, text};

fn world() -> World {
    let mut world = World::with(Weather::FINE, 1, |_, config| {
        config.overload_control = true;
        config.congestion.rejecting_permille = 1000;
    });
    world.uas().script.other = vec![(0, 200)];
    world.uas().script.invite = vec![(50, 180), (60_000, 200)];
    world
}

/// Makes a node believe that so many messages of 50 us wait.
fn congest(world: &mut World, node: usize, messages: u64) {
    let mono = world.now;
    let engine = &mut world.nodes[node].engine;
    engine.observe_service(1000, Duration::from_millis(50));
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
fn what_is_known_or_finishes_something_is_never_refused() {
    let mut world = world();
    world.run_until(2_000);
    let invite = message("INVITE", 1, same);
    assert_eq!(incoming(&mut world, &invite), "request INVITE");
    congest(&mut world, UAS, 50_000);
    assert_eq!(incoming(&mut world, &invite), "Absorbed", "it came again");
    let cancel = message("CANCEL", 1, same);
    assert_eq!(incoming(&mut world, &cancel), "cancel");
    let ack = message("ACK", 1, same);
    assert_eq!(incoming(&mut world, &ack), "Absorbed");
    let ack = message("ACK", 9, same);
    assert_eq!(incoming(&mut world, &ack), "ACK of nobody");
    assert_eq!(
        incoming(&mut world, &message("BYE", 2, same)),
        "request BYE"
    );
    assert_eq!(
        incoming(&mut world, &message("OPTIONS", 3, same)),
        "Refused(503)"
    );
}

#[test]
fn dialogs_and_second_halves_of_challenges_outlast_new_work() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 3_600);
    // The source has had its share of this window.
    let mut number = 100;
    while incoming(&mut world, &message("OPTIONS", number, same)) != "Refused(503)" {
        number += 1;
        assert!(number < 10_000);
    }
    let in_dialog = |m: String| m.replace("bob@192.0.2.2>\r\n", "bob@192.0.2.2>;tag=x\r\n");
    let credentials =
        |m: String| m.replace("Max-Forwards", "Authorization: Digest x\r\nMax-Forwards");
    let emergency = |m: String| m.replace("sip:bob@192.0.2.2 SIP", "urn:service:sos SIP");
    let info = message("INFO", 1, in_dialog);
    assert_eq!(incoming(&mut world, &info), "request INFO");
    let register = message("REGISTER", 2, credentials);
    assert_eq!(incoming(&mut world, &register), "request REGISTER");
    let sos = message("INVITE", 3, emergency);
    assert_eq!(incoming(&mut world, &sos), "request INVITE");
    // A client of RFC 2543 is no exception.
    let old = |m: String| m.replace(";branch=z9hG4bKc4", "");
    let old = message("OPTIONS", 4, old);
    assert_eq!(incoming(&mut world, &old), "Refused(503)");
}

#[test]
fn the_tus_own_requests_are_refused_and_retransmissions_put_off() {
    let mut world = world();
    world.network.weather = Weather::DEAD;
    world.send(Carrier::Udp, &request("OPTIONS", 1, ""));
    congest(&mut world, UAC, 5_000);
    world.run_until(2_000);
    assert_eq!(world.times(UAC, "OPTIONS"), [0], "put off");
    let bytes = request("OPTIONS", 2, "");
    let out = Outgoing {
        to: Destination::new(Carrier::Udp, address(UAS), ListenerKey(0)),
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
fn a_next_hop_that_speaks_rfc_7339_is_told_and_obeyed() {
    let mut world = world();
    world.run_until(2_000);
    congest(&mut world, UAS, 5_000);
    // Some requests are refused, so that there is a share to report.
    for number in 1..200 {
        incoming(&mut world, &message("OPTIONS", number, same));
    }
    world.run_until(2_200);
    congest(&mut world, UAS, 5_000);
    world.send(Carrier::Udp, &request("BYE", 1, ""));
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
    assert!(world.heard(UAC).contains(&"200 BYE"));
    // Four in five requests are of those that may be held back, until the mix is known (§7.2).
    let now = world.now;
    let mut held = 0;
    for number in 10..1010 {
        let bytes = request("OPTIONS", number, "");
        let out = Outgoing {
            to: Destination::new(Carrier::Udp, address(UAS), ListenerKey(0)),
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
fn a_refusal_to_one_that_speaks_rfc_7339_has_no_retry_after() {
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
fn who_offers_overload_control_hears_in_calm_that_there_is_nothing_to_hold_back_rfc7339_5_1() {
    let mut world = world();
    world.run_until(2_000);
    let answer_to = |world: &mut World, number: u32, offer: &str| {
        let with = format!(";rport{offer}");
        let asked = message("OPTIONS", number, |m| m.replace(";rport", &with));
        assert_eq!(incoming(world, &asked), "request OPTIONS");
        text(&world.uas().last)
    };
    for (number, (offer, chosen)) in (1..).zip([
        (";oc;oc-algo=\"loss\"", "loss"),
        (";oc;oc-algo=\"loss,rate\"", "loss"),
        (";oc;oc-algo=\"rate,loss\"", "rate"),
        // RFC 7339 §4.2 has every client know loss; who does not say so is not answered with it.
        (";oc;oc-algo=\"rate\"", "rate"),
        (";OC ; Oc-Algo=\"LOSS,x\"", "loss"),
        ("; oc", "loss"),
    ]) {
        let answer = answer_to(&mut world, number, offer);
        let calm = format!(";oc=0;oc-algo=\"{chosen}\";oc-validity=0;oc-seq=");
        assert!(answer.contains(&calm), "{offer}: {answer}");
        assert_eq!(
            answer.to_ascii_lowercase().matches(";oc").count(),
            4,
            "{answer}"
        );
    }
    // Who offers nothing, or nothing that could be agreed upon, gets its parameters back.
    for (number, offer) in (11..).zip(["", ";oc;oc-algo=\"window\"", ";ocean=1"]) {
        let answer = answer_to(&mut world, number, offer);
        assert!(!answer.contains("oc-seq"), "{offer}: {answer}");
        assert!(answer.contains(offer), "{offer}: {answer}");
    }
}

/// One upstream that knows the rate algorithm asks for twice of what can be served, another one for a little; both are told the
/// same, and the first keeps to it.
#[test]
fn upstreams_that_prefer_the_rate_algorithm_share_what_can_be_served_rfc7415_3_4() {
    let mut world = world();
    let speaks = |m: String| m.replace(";rport", ";rport;oc;oc-algo=\"rate,loss\"");
    let hop = address(UAS);
    let mut client = Downstream::new(7);
    let (mut number, mut passed, mut waiting, mut last) = (1, 0, 0.0, String::new());
    // 1000 a second can be served; steps of 10 ms, and the last 5 of 30 seconds are looked at.
    for step in 0..3_000_u64 {
        world.run_until(step * 10);
        let engine = &mut world.uas().engine;
        let served = f64::min(waiting, 10.0);
        engine.observe_service(served as u32, Duration::from_millis(served as u64));
        waiting -= served;
        let backlog = Backlog {
            messages: waiting as u64,
            ..Backlog::default()
        };
        let now = Now {
            mono: Mono(1_000_000_000_000 + step * 10_000_000),
            unix_s: 1_700_000_000 + step / 100,
        };
        engine.observe_backlog(now, backlog);
        let wanted = if step < 50 { 10 } else { 20 };
        for source in (0..wanted).map(|_| 7).chain([8]) {
            if source == 7 && !client.admit(now.mono, hop, Class::New) {
                continue;
            }
            number += 1;
            let flow = world
                .uas()
                .flow(([198, 51, 100, source], 4444).into(), None);
            let bytes = message("OPTIONS", number, speaks);
            let mono = world.now;
            let what = world.uas().receive(mono, &flow, &bytes);
            waiting += f64::from(u8::from(what.starts_with("request")));
            passed += u32::from(source == 7 && step >= 2_500);
            world.drain();
            last = text(&world.uas().last);
            let mut feedback = Feedback::default();
            let top = last.split("Via: ").nth(1).unwrap().lines().next().unwrap();
            for param in top.split(';') {
                let (name, value) = param.split_once('=').unwrap_or((param, ""));
                feedback.note(name.as_bytes(), Some(value.as_bytes()));
            }
            assert!(feedback.rate, "{last}");
            if source == 7 {
                client.learn(now.mono, hop, feedback);
            }
        }
    }
    // The other one has 100 of the 1000.
    let each = passed / 5;
    assert!((700..1_050).contains(&each), "{each} a second");
    assert!(waiting < 250.0, "{waiting} ms");
    assert!(last.contains(";oc-algo=\"rate\";"), "{last}");
}
