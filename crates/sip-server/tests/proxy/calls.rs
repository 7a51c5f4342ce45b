//! Limits of calls, numbers that nobody may call, and session timers (RFC 4028).

use sip::Mono;
use sip::flow::Transport;
use sip_server::calls::{Limit, Numbers};
use sip_server::proxy::SessionTimer;

use crate::node::{ALICE, PROXY, START, UAC, UAS, address, answers, in_dialog, request, value};
use crate::policy::{CallPolicy, Contact};
use crate::world::World;

fn world(concurrent: u32, per_second: u32) -> World {
    let mut world = World::new();
    world.policy().calls = Some(CallPolicy {
        limit: Limit {
            concurrent,
            per_second,
        },
        ..CallPolicy::default()
    });
    for place in 0..2 {
        let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS + place)));
        contact.flow = Some(World::datagrams_of(UAS + place));
        world.policy().bind("bob", &contact);
        world.nodes[UAS + place].script = answers(&[(50, 486)]);
    }
    world.nodes[UAS].script = answers(&[(50, 180), (500, 200)]);
    world
}

/// Alice calls bob. The caller acknowledges 2xx by itself.
fn invite(world: &mut World, number: u32, extra: &str) {
    let lines = format!("{ALICE}{extra}");
    let invite = request("INVITE", "sip:bob@example.com", number, &lines);
    world.send(UAC, Transport::Udp, &invite);
    let until = world.ms() + 1_000;
    world.run_until(until);
}

fn calls_of_alice(world: &mut World) -> u32 {
    world.policy().calls.as_ref().unwrap().calls_of("alice")
}

fn dialogs(world: &mut World) -> u64 {
    world.policy().calls.as_ref().unwrap().dialogs.len()
}

/// The codes of final responses that the caller has got.
fn finals(world: &World) -> Vec<&str> {
    let heard = world.heard(UAC).into_iter();
    heard.filter(|what| !what.starts_with('1')).collect()
}

#[test]
fn a_call_counts_from_its_invite_to_its_bye() {
    let mut world = world(1, 0);
    let text = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(200);
    assert_eq!(calls_of_alice(&mut world), 1, "while it rings");
    world.run_until(1_000);
    assert_eq!(finals(&world), ["200 INVITE"]);
    invite(&mut world, 2, "");
    assert_eq!(finals(&world)[1..], ["486 INVITE"]);
    assert!(
        world
            .last(UAC)
            .starts_with("SIP/2.0 486 Too Many Calls\r\n")
    );
    // Long after the transaction of the INVITE has ended.
    world.run_until(300_000);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (1, 1));
    world.in_dialog(UAC, "BYE");
    world.run_until(301_000);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (0, 0));
    invite(&mut world, 3, "");
    assert_eq!(finals(&world).last(), Some(&"200 INVITE"));
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
    assert_eq!(calls_of_alice(&mut world), 0);
}

#[test]
fn the_bye_of_the_callee_ends_a_call_and_one_that_is_challenged_does_not() {
    let mut world = world(1, 0);
    invite(&mut world, 1, "");
    let mut texts = world.nodes[UAS].texts.iter();
    let text = texts.find(|text| text.starts_with("INVITE")).unwrap();
    let routes = crate::node::values(text, "Record-Route");
    let routes = routes.iter().map(|route| format!("Route: {route}\r\n"));
    let ok = world.last(UAC);
    let bye = format!(
        "BYE sip:alice@192.0.2.1 SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 9 BYE\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        routes.collect::<String>(),
        value(ok, "To").unwrap(),
        value(ok, "From").unwrap(),
        value(ok, "Call-ID").unwrap(),
    );
    world.nodes[UAC].script.other = vec![(10, 401, "WWW-Authenticate: Test x=y\r\n".to_owned())];
    world.send(UAS, Transport::Udp, &bye);
    world.run_until(2_000);
    assert_eq!(world.heard(UAS).last(), Some(&"401 BYE"));
    assert_eq!(calls_of_alice(&mut world), 1);
    world.nodes[UAC].script.other.clear();
    world.send(UAS, Transport::Udp, &bye.replace("CSeq: 9", "CSeq: 10"));
    world.run_until(3_000);
    assert_eq!(world.heard(UAS).last(), Some(&"200 BYE"));
    assert_eq!(calls_of_alice(&mut world), 0);
    world.nothing_is_left();
}

#[test]
fn a_call_that_comes_to_nothing_does_not_count() {
    let mut world = world(1, 0);
    world.nodes[UAS].script = answers(&[(50, 180), (500, 603)]);
    invite(&mut world, 1, "");
    assert_eq!(calls_of_alice(&mut world), 0);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    let text = request("INVITE", "sip:bob@example.com", 2, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    let until = world.ms() + 500;
    world.run_until(until);
    assert_eq!(calls_of_alice(&mut world), 1);
    world.cancel(key);
    let until = world.ms() + 500;
    world.run_until(until);
    assert_eq!(calls_of_alice(&mut world), 0);
    assert_eq!(dialogs(&mut world), 0);
    world.nothing_is_left();
}

#[test]
fn each_dialog_of_a_forked_call_counts() {
    let mut world = world(3, 0);
    world.nodes[UAS + 1].script = answers(&[(500, 200)]);
    for place in 0..2 {
        world.nodes[UAS + place].script.ignores_cancel = true;
    }
    invite(&mut world, 1, "");
    assert_eq!(finals(&world), ["200 INVITE", "200 INVITE"]);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (2, 2));
    // A repeated 2xx counts once, also after the BYE.
    world.in_dialog(UAC, "BYE");
    world.run_until(60_000);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (1, 1));
}

/// The callee's 200 to the last INVITE that it got, as a user agent of RFC 2543 sends it: without a To tag.
fn answer_without_tag(world: &mut World) {
    let sent = world.nodes[PROXY].sent.iter().rev();
    let mut invites = sent.filter(|(_, to, text)| *to == UAS && text.starts_with("INVITE "));
    let (_, _, invite) = invites.next().unwrap();
    let copied = ["Via", "From", "To", "Call-ID", "CSeq", "Record-Route"];
    let lines = invite.split("\r\n");
    let lines = lines.filter(|line| copied.iter().any(|it| line.starts_with(&format!("{it}:"))));
    let lines: String = lines.map(|line| format!("{line}\r\n")).collect();
    assert!(!lines.contains("To: <sip:bob@example.com>;tag"));
    let contact = format!("Contact: <sip:bob@{}>\r\n", address(UAS));
    let ok = format!("SIP/2.0 200 OK\r\n{lines}{contact}Content-Length: 0\r\n\r\n");
    world.send_raw(UAS, &ok);
    let until = world.ms() + 1_000;
    world.run_until(until);
}

#[test]
fn a_2xx_without_a_to_tag_begins_a_dialog_that_counts_and_ends_rfc3261_12_1_2() {
    let mut world = world(2, 0);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    invite(&mut world, 1, "");
    answer_without_tag(&mut world);
    assert_eq!(finals(&world), ["200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (1, 1));
    // Another call with the same identifiers counts as well.
    let again = request("INVITE", "sip:bob@example.com", 1, ALICE);
    let again = again.replace("CSeq: 1 ", "CSeq: 2 ");
    world.send(UAC, Transport::Udp, &again);
    let until = world.ms() + 100;
    world.run_until(until);
    answer_without_tag(&mut world);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (2, 1));
    invite(&mut world, 3, "");
    assert_eq!(finals(&world).last(), Some(&"486 INVITE"));
    // The requests within the dialog have no To tag either. They need no credentials, as others within a dialog.
    let checks = world.policy().checks;
    world.in_dialog(UAC, "BYE");
    let until = world.ms() + 1_000;
    world.run_until(until);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(finals(&world).last(), Some(&"200 BYE"));
    assert_eq!(world.policy().checks, checks);
    assert_eq!((calls_of_alice(&mut world), dialogs(&mut world)), (0, 0));
}

#[test]
fn an_invented_to_tag_evades_no_limit() {
    let mut world = world(1, 0);
    invite(&mut world, 1, "");
    assert_eq!(finals(&world), ["200 INVITE"]);
    let second = request("INVITE", "sip:bob@example.com", 2, ALICE);
    let second = second.replace(
        "To: <sip:bob@example.com>",
        "To: <sip:bob@example.com>;tag=x",
    );
    world.send(UAC, Transport::Udp, &second);
    world.run_until(3_000);
    assert_eq!(finals(&world).last(), Some(&"486 INVITE"));
}

#[test]
fn calls_that_come_too_fast_are_480_with_retry_after() {
    let mut world = world(0, 2);
    for number in 1..=3 {
        let text = request("INVITE", "sip:bob@example.com", number, ALICE);
        world.send(UAC, Transport::Udp, &text);
    }
    world.run_until(400);
    assert_eq!(finals(&world), ["480 INVITE"]);
    assert_eq!(
        value(world.last(UAC), "Retry-After"),
        None,
        "the 180 came last"
    );
    let refusal = world.nodes[UAC].texts.iter();
    let mut refusal = refusal.filter(|text| text.starts_with("SIP/2.0 480"));
    assert_eq!(value(refusal.next().unwrap(), "Retry-After"), Some("1"));
    world.run_until(1_000);
    assert_eq!(finals(&world).len(), 3);
}

#[test]
fn nobody_calls_a_forbidden_number() {
    let mut world = world(0, 0);
    let list = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    world.policy().calls.as_mut().unwrap().numbers =
        Numbers::new(&list(&["+1900", "bob"]), &list(&["+1900555"]));
    world.nodes[UAS].script = answers(&[(10, 200)]);
    let ask = |world: &mut World, method: &str, user: &str, number: u32| {
        let uri = format!("sip:{user}@{}", address(UAS));
        world.send(UAC, Transport::Udp, &request(method, &uri, number, ALICE));
        let until = world.ms() + 300;
        world.run_until(until);
        world.heard(UAC).last().unwrap().to_string()
    };
    assert_eq!(ask(&mut world, "INVITE", "+1900123", 1), "403 INVITE");
    assert_eq!(ask(&mut world, "MESSAGE", "+1-900-123", 2), "403 MESSAGE");
    assert_eq!(ask(&mut world, "INVITE", "+1900555", 3), "200 INVITE");
    assert_eq!(ask(&mut world, "INVITE", "+49301", 4), "200 INVITE");
    assert_eq!(world.proxy().stats().refused, 2);
    // A local address is no number.
    world.policy().user("bob");
    invite(&mut world, 5, "");
    assert_eq!(finals(&world).last(), Some(&"200 INVITE"));
}

const TIMER: Option<SessionTimer> = Some(SessionTimer {
    expires: 600,
    min: 100,
});

fn expire(world: &mut World) -> u64 {
    let now = Mono(START + world.ms() * 1_000_000);
    let dialogs = &world.policy().calls.as_ref().unwrap().dialogs;
    dialogs.expire(now);
    dialogs.len()
}

#[test]
fn a_session_timer_is_asked_for_and_refreshed_rfc4028_8() {
    let mut world = world(1, 0);
    world.policy().calls.as_mut().unwrap().timer = TIMER;
    invite(&mut world, 1, "Supported: timer\r\n");
    let got = world.nodes[UAS].texts[0].clone();
    assert_eq!(value(&got, "Session-Expires"), Some("600"));
    assert_eq!(value(&got, "Min-SE"), None);
    // The callee knows nothing of timers, so the caller refreshes.
    let ok = world.last(UAC);
    assert_eq!(value(ok, "Session-Expires"), Some("600;refresher=uac"));
    assert_eq!(value(ok, "Require"), Some("timer"));
    world.run_until(500_000);
    assert_eq!(expire(&mut world), 1);
    world.nodes[UAS].script.invite =
        vec![(10, 200, "Session-Expires: 200;refresher=uas\r\n".to_owned())];
    world.in_dialog(UAC, "INVITE");
    world.run_until(600_000);
    assert_eq!(world.heard(UAC).last(), Some(&"200 INVITE"));
    let ok = world.last(UAC);
    assert_eq!(value(ok, "Session-Expires"), Some("200;refresher=uas"));
    world.run_until(650_000);
    assert_eq!(expire(&mut world), 1, "it was refreshed");
    // RFC 4028 §8.3: the state is removed, and no BYE is sent.
    world.run_until(702_000);
    assert_eq!(expire(&mut world), 0);
    assert_eq!(calls_of_alice(&mut world), 0);
    assert!(world.sent(crate::node::PROXY, "BYE").is_empty());
}

#[test]
fn a_session_interval_that_is_too_small_is_422_rfc4028_8_1() {
    let mut world = world(1, 0);
    world.policy().calls.as_mut().unwrap().timer = TIMER;
    invite(&mut world, 1, "Supported: timer\r\nSession-Expires: 95\r\n");
    assert_eq!(finals(&world), ["422 INVITE"]);
    assert_eq!(value(world.last(UAC), "Min-SE"), Some("100"));
    assert_eq!(calls_of_alice(&mut world), 0);
    // A caller that does not support timers is not refused: the callee may refresh.
    invite(&mut world, 2, "Session-Expires: 95\r\n");
    let got = world.nodes[UAS].texts[0].clone();
    assert_eq!(value(&got, "Session-Expires"), Some("100"));
    assert_eq!(value(&got, "Min-SE"), Some("100"));
    let ok = world.last(UAC);
    assert_eq!(
        (value(ok, "Session-Expires"), value(ok, "Require")),
        (None, None)
    );
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn without_limits_timers_and_intervals_pass_as_they_are() {
    let mut world = world(1, 0);
    world.policy().calls = None;
    invite(
        &mut world,
        1,
        "Supported: timer\r\nSession-Expires: 10;refresher=uac\r\nMin-SE: 5\r\n",
    );
    let got = &world.nodes[UAS].texts[0];
    assert_eq!(value(got, "Session-Expires"), Some("10;refresher=uac"));
    assert_eq!(value(got, "Min-SE"), Some("5"));
    let bye = in_dialog(world.last(UAC), "BYE");
    world.send(UAC, Transport::Udp, &bye);
    world.nothing_is_left();
}

fn records(world: &mut World) -> Vec<String> {
    world.policy().calls.as_mut().unwrap().records = true;
    std::mem::take(&mut world.policy().ended_calls)
}

#[test]
fn a_record_says_how_a_call_went_and_who_ended_it() {
    let mut world = world(0, 0);
    records(&mut world);
    invite(&mut world, 1, "");
    assert_eq!(finals(&world), ["200 INVITE"]);
    assert!(records(&mut world).is_empty(), "it has not ended");
    world.run_until(300_000);
    world.in_dialog(UAC, "BYE");
    world.run_until(301_000);
    let line = "200 alice>bob@example.com rang true answered true tried 2 by caller";
    assert_eq!(records(&mut world), [line]);
    world.nodes[UAS].script = answers(&[(50, 180), (500, 603)]);
    invite(&mut world, 2, "");
    let line = "603 alice>bob@example.com rang true answered false tried 2 by called";
    assert_eq!(records(&mut world), [line]);
    world.nothing_is_left();
}

#[test]
fn calls_that_are_refused_have_a_record_with_the_reason() {
    let mut world = world(0, 0);
    records(&mut world);
    let call = |world: &mut World, uri: &str, number: u32, lines: &str| {
        let text = request("INVITE", uri, number, lines);
        world.send(UAC, Transport::Udp, &text);
        let until = world.ms() + 1_000;
        world.run_until(until);
    };
    call(&mut world, "sip:nobody@example.com", 1, ALICE);
    assert_eq!(finals(&world).last(), Some(&"404 INVITE"));
    let line = "404 alice> rang false answered false tried 0 by proxy";
    assert_eq!(records(&mut world), [line]);
    world.policy().user("carol");
    call(&mut world, "sip:carol@example.com", 2, ALICE);
    let line = "480 alice> rang false answered false tried 0 by proxy";
    assert_eq!(records(&mut world), [line]);
    let lines = format!("{ALICE}Max-Breadth: 0\r\n");
    call(&mut world, "sip:bob@example.com", 3, &lines);
    let line = "400 > rang false answered false tried 0 by proxy (Malformed Max-Breadth)";
    assert_eq!(records(&mut world), [line]);
    // Who is challenged sends the call again, with credentials. Requests that are no calls have no record.
    call(&mut world, "sip:bob@example.com", 4, "");
    assert_eq!(finals(&world).last(), Some(&"407 INVITE"));
    let text = request("MESSAGE", "sip:nobody@example.com", 5, ALICE);
    world.send(UAC, Transport::Udp, &text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    assert_eq!(finals(&world).last(), Some(&"404 MESSAGE"));
    assert!(records(&mut world).is_empty());
    world.nothing_is_left();
}

#[test]
fn calls_that_wait_in_vain_have_a_record() {
    let mut world = world(0, 0);
    records(&mut world);
    world.policy().is_location_pending = true;
    invite(&mut world, 1, "");
    world.run_until(15_000);
    assert_eq!(finals(&world), ["504 INVITE"]);
    let line = "504 alice> rang false answered false tried 0 by proxy";
    assert_eq!(records(&mut world), [line]);
    let text = request("INVITE", "sip:bob@example.com", 2, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    world.run_until(15_500);
    world.cancel(key);
    world.run_until(16_500);
    let line = "487 alice> rang false answered false tried 0 by caller";
    assert_eq!(records(&mut world), [line]);
    // What waits and is refused after all.
    invite(&mut world, 3, "");
    world.policy().is_location_pending = false;
    world.policy().bindings.clear();
    world.resume();
    world.run_until(18_500);
    let line = "404 alice> rang false answered false tried 0 by proxy";
    assert_eq!(records(&mut world), [line]);
    world.nothing_is_left();
}

#[test]
fn calls_in_progress_are_taken_when_the_server_ends() {
    let mut world = world(0, 0);
    records(&mut world);
    invite(&mut world, 1, "");
    world.nodes[UAS].script = answers(&[(50, 180)]);
    invite(&mut world, 2, "");
    let ringing = world.take_calls();
    assert_eq!(ringing.len(), 1);
    let line = ringing[0].line(Mono(START));
    assert_eq!((line.source, line.code), (&b"alice"[..], 486));
    assert!(world.take_calls().is_empty());
    let dialogs = &world.policy().calls.as_ref().unwrap().dialogs;
    let mut codes = Vec::new();
    assert!(!dialogs.drain(10, &mut |record| codes.push(record.line(Mono(START)).code)));
    assert_eq!((codes, dialogs.len()), (vec![200], 0));
    assert_eq!(
        dialogs
            .next_deadline()
            .map(|_| dialogs.expire(Mono::NEVER).len()),
        Some(0)
    );
}

#[test]
fn a_record_names_a_limit_and_a_cancel() {
    let mut world = world(1, 0);
    records(&mut world);
    world.nodes[UAS].script = answers(&[(50, 180)]);
    let text = request("INVITE", "sip:bob@example.com", 1, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    world.run_until(500);
    invite(&mut world, 2, "");
    let line = "486 alice> rang false answered false tried 0 by proxy (Too Many Calls)";
    assert_eq!(records(&mut world), [line]);
    world.cancel(key);
    let until = world.ms() + 5_000;
    world.run_until(until);
    // The other phone has sent a 486, which is better than the 487 of the cancelled one (RFC 3261 §16.7).
    let line = "486 alice>bob@example.com rang true answered false tried 2 by caller";
    assert_eq!(records(&mut world), [line]);
}
