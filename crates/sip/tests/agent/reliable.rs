//! Reliable provisional responses and PRACK (RFC 3262), of both sides.

use std::time::Duration;

use hairpin_sip::agent::{CallError, CallKey, Config, Content, EndCause, Event, RULES_WITH_100REL};
use hairpin_sip::timer::Timers;
use hairpin_sip::tu::TransactionUser as _;

use crate::bed::{CONTACT, OFFER, TestBed, config, request, response, tag_of, value};

fn reliable() -> Config {
    let mut config = config();
    config.rules = RULES_WITH_100REL;
    config
}

/// A reliable response to the INVITE of this side, from this branch.
fn ringing(invite: &str, branch: &str, rseq: u32, body: &str) -> String {
    let lines = format!("{CONTACT}Require: 100rel\r\nRSeq: {rseq}\r\n");
    response(invite, "183 Session Progress", branch, &lines, body)
}

fn progress(bed: &mut TestBed) -> (Vec<u8>, Content) {
    match bed.event() {
        Some(Event::Progress {
            branch, content, ..
        }) => (branch, content),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reliable_ringing_gets_a_prack_once_and_in_order_rfc3262_4() {
    let mut bed = TestBed::new(reliable());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    assert_eq!(value(&invite, "Supported"), "100rel");
    assert!(value(&invite, "Allow").contains("PRACK"));
    bed.receive(&ringing(&invite, "b1", 700, OFFER));
    assert_eq!(progress(&mut bed).1, Content::sdp(OFFER));
    let prack = bed.take_one();
    assert!(prack.starts_with("PRACK sip:bob@192.0.2.9 "), "{prack}");
    assert_eq!(value(&prack, "RAck"), "700 1 INVITE");
    assert_eq!(value(&prack, "CSeq"), "2 PRACK");
    assert!(value(&prack, "To").ends_with(";tag=b1"), "{prack}");
    bed.receive(&response(&prack, "200 OK", "", "", ""));
    // A repetition, and one behind a gap: neither is acknowledged or passed on.
    for rseq in [700, 702] {
        bed.receive(&ringing(&invite, "b1", rseq, OFFER));
        assert_eq!(bed.take(), Vec::<String>::new(), "{rseq}");
        assert_eq!(bed.event(), None, "{rseq}");
    }
    bed.receive(&ringing(&invite, "b1", 701, ""));
    assert_eq!(progress(&mut bed).0, b"b1");
    assert_eq!(value(&bed.take_one(), "RAck"), "701 1 INVITE");
    // Each branch counts for itself.
    bed.receive(&ringing(&invite, "b2", 5, ""));
    let prack = bed.take_one();
    assert_eq!(value(&prack, "RAck"), "5 1 INVITE");
    assert!(value(&prack, "To").ends_with(";tag=b2"), "{prack}");
    assert_eq!(progress(&mut bed).0, b"b2");
    // The ACK has the number of the INVITE, and the BYE is behind the PRACKs.
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, ""));
    assert_eq!(value(&bed.take_one(), "CSeq"), "1 ACK");
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
    bed.receive(&response(&invite, "200 OK", "b2", CONTACT, ""));
    let sent = bed.take();
    assert_eq!(value(&sent[1], "CSeq"), "5 BYE", "{sent:#?}");
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert_eq!(value(&bed.take_one(), "CSeq"), "5 BYE");
}

#[test]
fn without_the_extension_no_provisional_response_gets_a_prack() {
    let mut bed = TestBed::new(config());
    let (_, invite) = bed.invite(Content::sdp(OFFER));
    assert!(!invite.contains("100rel"), "{invite}");
    bed.receive(&ringing(&invite, "b1", 700, ""));
    assert_eq!(bed.take(), Vec::<String>::new());
    // And a response that is not reliable gets none either way.
    let mut bed = TestBed::new(reliable());
    let (_, invite) = bed.invite(Content::sdp(OFFER));
    bed.receive(&response(&invite, "180 Ringing", "b1", CONTACT, ""));
    assert_eq!(bed.take(), Vec::<String>::new());
}

#[test]
fn an_offer_in_a_reliable_response_is_answered_in_the_prack_rfc3262_5() {
    let mut bed = TestBed::new(reliable());
    let (call, invite) = bed.invite(Content::none());
    bed.receive(&ringing(&invite, "b1", 1, OFFER));
    let (branch, content) = progress(&mut bed);
    assert_eq!(content, Content::sdp(OFFER));
    assert_eq!(bed.take(), Vec::<String>::new(), "the program answers");
    let answer = || Content::sdp("v=answer\r\n");
    let other = bed.act(|agent, it| agent.answer_progress(it, call, b"b2", answer()));
    assert_eq!(other, Err(CallError::OutOfPlace));
    bed.act(|agent, it| agent.answer_progress(it, call, &branch, answer()))
        .unwrap();
    let prack = bed.take_one();
    assert!(prack.ends_with("v=answer\r\n"), "{prack}");
    assert_eq!(value(&prack, "RAck"), "1 1 INVITE");
    bed.receive(&response(&prack, "200 OK", "", "", ""));
    let again = bed.act(|agent, it| agent.answer_progress(it, call, &branch, answer()));
    assert_eq!(again, Err(CallError::OutOfPlace));
    // The 2xx repeats the session, which is no offer.
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    assert!(bed.take_one().starts_with("ACK "));
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
}

#[test]
fn a_challenged_prack_is_sent_with_credentials() {
    let mut bed = TestBed::new(reliable());
    let (_, invite) = bed.invite(Content::sdp(OFFER));
    bed.receive(&ringing(&invite, "b1", 9, ""));
    let prack = bed.take_one();
    let challenge = "Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n";
    bed.receive(&response(
        &prack,
        "407 Proxy Authentication Required",
        "",
        challenge,
        "",
    ));
    let again = bed.take_one();
    assert!(value(&again, "Proxy-Authorization").contains("username=\"alice\""));
    assert_eq!(value(&again, "CSeq"), "3 PRACK");
    assert_eq!(value(&again, "RAck"), "9 1 INVITE");
}

#[test]
fn a_reinvite_does_not_invite_reliable_responses() {
    let mut bed = TestBed::new(reliable());
    let (call, invite, _) = bed.answered();
    assert_eq!(value(&invite, "Supported"), "100rel");
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    let reinvite = bed.take_one();
    assert!(reinvite.starts_with("INVITE "), "{reinvite}");
    assert!(!reinvite.contains("100rel"), "{reinvite}");
    assert!(value(&reinvite, "Allow").contains("PRACK"));
}

#[test]
fn a_branch_that_answers_after_the_call_gets_a_bye_behind_its_pracks_rfc3261_12_2_1_1() {
    let mut bed = TestBed::new(reliable());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    for (rseq, cseq) in [(1, "2 PRACK"), (2, "3 PRACK"), (3, "4 PRACK")] {
        bed.receive(&ringing(&invite, "b2", rseq, ""));
        let prack = bed.take_one();
        assert_eq!(value(&prack, "CSeq"), cseq);
        bed.receive(&response(&prack, "200 OK", "", "", ""));
    }
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    bed.take();
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    let bye = bed.take_one();
    assert_eq!(value(&bye, "CSeq"), "5 BYE");
    bed.receive(&response(&bye, "200 OK", "", "", ""));
    assert_eq!(bed.endpoint.user().calls(), 0);
    bed.pass(Duration::from_secs(20));
    bed.receive(&response(&invite, "200 OK", "b2", CONTACT, OFFER));
    let sent = bed.take();
    let [ack, bye] = &sent[..] else {
        panic!("{sent:#?}");
    };
    assert_eq!(value(ack, "CSeq"), "1 ACK");
    assert_eq!(value(bye, "CSeq"), "6 BYE");
    assert!(value(bye, "To").ends_with(";tag=b2"), "{bye}");
}

#[test]
fn after_a_challenge_the_numbers_of_a_branch_begin_anew_rfc3262_4() {
    let mut bed = TestBed::new(reliable());
    let (_, invite) = bed.invite(Content::sdp(OFFER));
    bed.receive(&ringing(&invite, "b1", 700, ""));
    progress(&mut bed);
    let prack = bed.take_one();
    bed.receive(&response(&prack, "200 OK", "", "", ""));
    let challenge = "Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n";
    let status = "407 Proxy Authentication Required";
    bed.receive(&response(&invite, status, "b1", challenge, ""));
    let sent = bed.take();
    let again = sent.iter().find(|it| it.starts_with("INVITE "));
    let again = again.expect("the INVITE with credentials");
    assert_eq!(value(again, "CSeq"), "3 INVITE");
    // The same To tag, and another first number.
    bed.receive(&ringing(again, "b1", 9, ""));
    assert_eq!(progress(&mut bed).0, b"b1");
    let prack = bed.take_one();
    assert_eq!(value(&prack, "RAck"), "9 3 INVITE");
    assert_eq!(value(&prack, "CSeq"), "4 PRACK");
}

/// An incoming call whose INVITE has these lines.
fn called(lines: &str, body: &str) -> (TestBed, CallKey) {
    called_with(Timers::default(), lines, body)
}

fn called_with(timers: Timers, lines: &str, body: &str) -> (TestBed, CallKey) {
    let mut bed = TestBed::with_timers(reliable(), timers);
    let invite =
        request("INVITE", "i1", 1, "", body).replace(CONTACT, &format!("{CONTACT}{lines}"));
    bed.receive(&invite);
    let Some(Event::Incoming { call, .. }) = bed.event() else {
        panic!("a call");
    };
    bed.take();
    (bed, call)
}

/// The PRACK for this response.
fn prack(response: &str, branch: &str, cseq: u32, body: &str) -> String {
    let rack = format!("RAck: {} 1 INVITE\r\n", value(response, "RSeq"));
    request("PRACK", branch, cseq, &tag_of(response), body)
        .replace(CONTACT, &format!("{CONTACT}{rack}"))
}

#[test]
fn a_reliable_response_is_repeated_until_its_prack_rfc3262_3() {
    let (mut bed, call) = called("Supported: 100rel\r\n", OFFER);
    bed.act(|agent, it| agent.ring_reliably(it, call, 183, &Content::sdp(OFFER)))
        .unwrap();
    let first = bed.take_one();
    assert!(first.starts_with("SIP/2.0 183 "), "{first}");
    assert_eq!(value(&first, "Require"), "100rel");
    let rseq: u32 = value(&first, "RSeq").parse().unwrap();
    assert!((1..1 << 31).contains(&rseq), "{rseq}");
    // Neither another one nor a 2xx before the PRACK.
    let more = bed.act(|agent, it| agent.ring_reliably(it, call, 180, &Content::none()));
    assert_eq!(more, Err(CallError::OutOfPlace));
    let early = bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)));
    assert_eq!(early, Err(CallError::OutOfPlace));
    // After 0.5, 1.5 and 3.5 s.
    bed.pass(Duration::from_millis(3_600));
    assert_eq!(bed.take(), [&first[..]; 3]);
    // Another number gets 481.
    let wrong = prack(&first, "p0", 2, "").replace(&format!(" {rseq} 1 "), " 0 1 ");
    bed.receive(&wrong);
    assert!(bed.take_one().starts_with("SIP/2.0 481 "));
    assert_eq!(bed.event(), None);
    bed.receive(&prack(&first, "p1", 3, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    let content = Content::none();
    assert_eq!(
        bed.event(),
        Some(Event::ProgressAcknowledged { call, content })
    );
    bed.pass(Duration::from_secs(20));
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.act(|agent, it| agent.ring_reliably(it, call, 180, &Content::none()))
        .unwrap();
    let second = bed.take_one();
    assert_eq!(value(&second, "RSeq"), (rseq + 1).to_string());
    // Without a session description, the 2xx may come first. Then the 180 is not repeated.
    bed.act(|agent, it| agent.answer(it, call, &Content::none()))
        .unwrap();
    let ok = bed.take_one();
    bed.receive(&request("ACK", "a1", 1, &tag_of(&ok), ""));
    bed.receive(&prack(&second, "p2", 4, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    bed.pass(Duration::from_secs(60));
    assert_eq!(bed.take(), Vec::<String>::new());
}

#[test]
fn a_caller_that_requires_it_gets_reliable_responses_and_others_do_not_rfc3262_3() {
    for (lines, is_reliable) in [
        ("Require: 100rel\r\n", true),
        ("Supported: 100rel\r\n", false),
        ("", false),
    ] {
        let (mut bed, call) = called(lines, OFFER);
        bed.act(|agent, it| agent.ring(it, call, 180, &Content::none()))
            .unwrap();
        assert_eq!(bed.take_one().contains("RSeq"), is_reliable, "{lines}");
    }
    let (mut bed, call) = called("", OFFER);
    let refused = bed.act(|agent, it| agent.ring_reliably(it, call, 180, &Content::none()));
    assert_eq!(refused, Err(CallError::OutOfPlace));
}

#[test]
fn without_a_prack_the_call_is_refused_rfc3262_3() {
    let (mut bed, call) = called("Supported: 100rel\r\n", OFFER);
    bed.act(|agent, it| agent.ring_reliably(it, call, 180, &Content::none()))
        .unwrap();
    bed.pass(Duration::from_secs(33));
    let sent = bed.take();
    let repeated = sent.iter().filter(|it| it.starts_with("SIP/2.0 180 "));
    assert_eq!(repeated.count(), 7, "{sent:#?}");
    assert!(sent.iter().any(|it| it.starts_with("SIP/2.0 500 ")));
    let cause = EndCause::NotAcknowledged;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn a_prack_has_the_answer_or_an_offer_for_the_program_rfc3262_5() {
    // The response has the offer.
    let (mut bed, call) = called("Supported: 100rel\r\n", "");
    bed.act(|agent, it| agent.ring_reliably(it, call, 183, &Content::sdp(OFFER)))
        .unwrap();
    let ringing = bed.take_one();
    bed.receive(&prack(&ringing, "p1", 2, "v=answer\r\n"));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    let content = Content::sdp("v=answer\r\n");
    let acknowledged = Event::ProgressAcknowledged { call, content };
    assert_eq!(bed.event(), Some(acknowledged));
    // The PRACK has another offer: the program makes the answer.
    let (mut bed, call) = called("Supported: 100rel\r\n", OFFER);
    bed.act(|agent, it| agent.ring_reliably(it, call, 183, &Content::sdp(OFFER)))
        .unwrap();
    let ringing = bed.take_one();
    bed.receive(&prack(&ringing, "p1", 2, "v=other\r\n"));
    assert!(matches!(
        bed.event(),
        Some(Event::ProgressAcknowledged { .. })
    ));
    let Some(Event::Request {
        id,
        method,
        content,
        ..
    }) = bed.event()
    else {
        panic!("a PRACK");
    };
    assert_eq!(
        (&method[..], content),
        ("PRACK", Content::sdp("v=other\r\n"))
    );
    let answer = Content::sdp("v=answer\r\n");
    bed.act(|agent, it| agent.respond(it, id, 200, b"", &answer))
        .unwrap();
    let ok = bed.take_one();
    assert!(
        ok.starts_with("SIP/2.0 200 ") && ok.ends_with("v=answer\r\n"),
        "{ok}"
    );
}

#[test]
fn the_times_of_a_reliable_response_follow_t1_rfc3262_3() {
    let timers = Timers {
        t1: Duration::from_millis(100),
        ..Timers::default()
    };
    let (mut bed, call) = called_with(timers, "Supported: 100rel\r\n", OFFER);
    bed.act(|agent, it| agent.ring_reliably(it, call, 180, &Content::none()))
        .unwrap();
    let first = bed.take_one();
    // After 0.1, 0.3 and 0.7 s.
    bed.pass(Duration::from_millis(710));
    assert_eq!(bed.take(), [&first[..]; 3]);
    bed.pass(Duration::from_millis(5_600));
    assert_eq!(bed.event(), None);
    bed.pass(Duration::from_millis(100));
    let cause = EndCause::NotAcknowledged;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn after_the_answer_in_a_prack_a_later_prack_has_an_offer_rfc3262_5() {
    let (mut bed, call) = called("Supported: 100rel\r\n", "");
    bed.act(|agent, it| agent.ring_reliably(it, call, 183, &Content::sdp(OFFER)))
        .unwrap();
    let progress = bed.take_one();
    bed.receive(&prack(&progress, "p1", 2, "v=answer\r\n"));
    bed.take();
    let content = Content::sdp("v=answer\r\n");
    let acknowledged = Event::ProgressAcknowledged { call, content };
    assert_eq!(bed.event(), Some(acknowledged));
    for (number, body) in [(3, OFFER), (4, "")] {
        let body = match body {
            "" => Content::none(),
            body => Content::sdp(body),
        };
        bed.act(|agent, it| agent.ring_reliably(it, call, 180, &body))
            .unwrap();
        let ringing = bed.take_one();
        bed.receive(&prack(&ringing, &format!("p{number}"), number, "v=new\r\n"));
        let content = Content::none();
        let acknowledged = Event::ProgressAcknowledged { call, content };
        assert_eq!(bed.event(), Some(acknowledged));
        let Some(Event::Request { id, content, .. }) = bed.event() else {
            panic!("the program answers the offer");
        };
        assert_eq!(content, Content::sdp("v=new\r\n"));
        let answer = Content::sdp("v=third\r\n");
        bed.act(|agent, it| agent.respond(it, id, 200, b"", &answer))
            .unwrap();
        let ok = bed.take_one();
        assert!(
            ok.starts_with("SIP/2.0 200 ") && ok.ends_with("v=third\r\n"),
            "{ok}"
        );
    }
}

#[test]
fn without_an_offer_the_first_reliable_response_has_it_rfc3262_5() {
    let (mut bed, call) = called("Require: 100rel\r\n", "");
    let none = Content::none();
    let ringing = bed.act(|agent, it| agent.ring_reliably(it, call, 180, &none));
    assert_eq!(ringing, Err(CallError::OutOfPlace));
    let ringing = bed.act(|agent, it| agent.ring(it, call, 180, &none));
    assert_eq!(ringing, Err(CallError::OutOfPlace));
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.act(|agent, it| agent.ring(it, call, 183, &Content::sdp(OFFER)))
        .unwrap();
    let progress = bed.take_one();
    bed.receive(&prack(&progress, "p1", 2, "v=answer\r\n"));
    bed.take();
    // The next one may be without.
    bed.act(|agent, it| agent.ring(it, call, 180, &none))
        .unwrap();
    assert!(bed.take_one().starts_with("SIP/2.0 180 "));
}

/// How a call ends in which a reliable response has no PRACK.
type Refusal = fn(&mut TestBed, CallKey);

#[test]
fn a_prack_after_a_refusal_gets_200_once_rfc3262_3() {
    let refusals: [(&str, Refusal); 3] = [
        ("486", |bed, call| {
            bed.act(|agent, it| agent.reject(it, call, 486)).unwrap();
        }),
        ("487", |bed, _| {
            bed.receive(&request("CANCEL", "i1", 1, "", ""));
        }),
        ("500", |bed, _| bed.pass(Duration::from_millis(32_100))),
    ];
    for (code, refuse) in refusals {
        // The time after the refusal, and what the PRACK gets.
        for (time, result) in [(0, "200"), (31, "200"), (33, "481")] {
            let (mut bed, call) = called("Supported: 100rel\r\n", OFFER);
            bed.act(|agent, it| agent.ring_reliably(it, call, 183, &Content::sdp(OFFER)))
                .unwrap();
            let progress = bed.take_one();
            refuse(&mut bed, call);
            let sent = bed.take();
            let is_refusal = |it: &String| it.starts_with(&format!("SIP/2.0 {code} "));
            assert!(sent.iter().any(is_refusal), "{sent:#?}");
            assert!(matches!(bed.event(), Some(Event::Ended { .. })));
            bed.pass(Duration::from_secs(time));
            bed.take();
            let right = prack(&progress, "p1", 2, "");
            let wrong = right.replace(" 1 INVITE", " 7 INVITE");
            bed.receive(&wrong.replace("p1", "p0"));
            assert!(bed.take_one().starts_with("SIP/2.0 481 "), "{code}");
            bed.receive(&right);
            let start = format!("SIP/2.0 {result} ");
            assert!(bed.take_one().starts_with(&start), "{code} {time}");
            bed.receive(&right.replace("p1", "p2"));
            assert!(bed.take_one().starts_with("SIP/2.0 481 "), "{code}");
            assert_eq!(bed.event(), None, "{code}");
            bed.pass(Duration::from_secs(120));
            assert_eq!(bed.endpoint.user().poll_timeout(), None, "{code}");
        }
    }
}
