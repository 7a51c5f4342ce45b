//! Calls of the peer.

use std::time::Duration;

use hairpin_sip::Method;
use hairpin_sip::agent::{CallError, CallKey, Config, Content, EndCause, Event, RULES};
use hairpin_sip::verdict::Rules;

use crate::bed::{CONTACT, OFFER, TestBed, config, request, response, tag_of, value};

/// An incoming call, and its key.
fn called() -> (TestBed, CallKey) {
    let mut bed = TestBed::new(config());
    bed.receive(&request("INVITE", "i1", 1, "", OFFER));
    let Some(Event::Incoming {
        call,
        from,
        to,
        content,
        ..
    }) = bed.event()
    else {
        panic!("a call");
    };
    assert_eq!(
        (&from[..], &to[..]),
        ("sip:bob@192.0.2.9", "sip:alice@192.0.2.1:5060")
    );
    assert_eq!(content, Content::sdp(OFFER));
    bed.take();
    (bed, call)
}

/// The same, answered and acknowledged; our To tag.
fn in_call() -> (TestBed, CallKey, String) {
    let (mut bed, call) = called();
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .expect("a call to answer");
    let tag = tag_of(&bed.take_one());
    bed.receive(&request("ACK", "a1", 1, &tag, ""));
    let content = Content::none();
    assert_eq!(bed.event(), Some(Event::Acknowledged { call, content }));
    (bed, call, tag)
}

#[test]
fn a_call_rings_is_answered_and_ended_by_the_caller() {
    let (mut bed, call) = called();
    bed.act(|agent, it| agent.ring(it, call, 180, &Content::none()))
        .unwrap();
    let ringing = bed.take_one();
    assert!(ringing.starts_with("SIP/2.0 180 "), "{ringing}");
    assert_eq!(value(&ringing, "Contact"), "<sip:alice@192.0.2.1:5060>");
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    let ok = bed.take_one();
    assert_eq!(tag_of(&ok), tag_of(&ringing), "one dialog");
    assert!(ok.ends_with(OFFER));
    let late = bed.act(|agent, it| agent.ring(it, call, 180, &Content::none()));
    assert_eq!(late, Err(CallError::OutOfPlace));
    bed.receive(&request("ACK", "a1", 1, &tag_of(&ok), ""));
    assert!(matches!(bed.event(), Some(Event::Acknowledged { .. })));
    bed.pass(Duration::from_secs(40));
    assert_eq!(
        bed.take(),
        Vec::<String>::new(),
        "the 200 is not repeated any more"
    );
    bed.receive(&request("BYE", "b1", 2, &tag_of(&ok), ""));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    let cause = EndCause::PeerHungUp;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn it_ends_a_call_with_bye_along_the_route_set_rfc3261_12_1_1() {
    let mut bed = TestBed::new(config());
    let routes = "Record-Route: <sip:192.0.2.9;lr>\r\nRecord-Route: <sip:192.0.2.20;lr>\r\n";
    let invite =
        request("INVITE", "i1", 1, "", OFFER).replace(CONTACT, &format!("{CONTACT}{routes}"));
    bed.receive(&invite);
    let Some(Event::Incoming { call, .. }) = bed.event() else {
        panic!("a call");
    };
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    let ok = bed.take_one();
    assert!(ok.contains(routes), "{ok}");
    // RFC 3261 §15: no BYE before the ACK.
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.receive(&request("ACK", "a1", 1, &tag_of(&ok), ""));
    let bye = bed.take_one();
    let routes = "Route: <sip:192.0.2.9;lr>\r\nRoute: <sip:192.0.2.20;lr>\r\n";
    assert!(
        bye.starts_with("BYE sip:bob@192.0.2.9 ") && bye.contains(routes),
        "{bye}"
    );
    assert_eq!(value(&bye, "To"), "<sip:bob@192.0.2.9>;tag=b");
    bed.receive(&response(&bye, "200 OK", "", "", ""));
    let cause = EndCause::HungUp;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn without_an_ack_the_call_is_ended_with_bye_rfc3261_13_3_1_4() {
    let (mut bed, call) = called();
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    bed.pass(Duration::from_secs(33));
    let sent = bed.take();
    assert!(sent.len() > 3, "the 200 was repeated");
    let bye = sent.last().unwrap();
    assert!(bye.starts_with("BYE sip:bob@192.0.2.9 "), "{bye}");
    bed.receive(&response(bye, "200 OK", "", "", ""));
    let cause = EndCause::NotAcknowledged;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn a_call_is_cancelled_by_the_caller_rfc3261_9_2() {
    let (mut bed, call) = called();
    bed.receive(&request("CANCEL", "i1", 1, "", ""));
    let sent = bed.take();
    let codes: Vec<_> = sent.iter().map(|it| &it[8..11]).collect();
    assert_eq!(codes, ["200", "487"]);
    let cause = EndCause::Cancelled;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    let late = bed.act(|agent, it| agent.answer(it, call, &Content::none()));
    assert_eq!(late, Err(CallError::Gone));
}

#[test]
fn a_call_is_rejected_and_the_program_gets_the_event() {
    let (mut bed, call) = called();
    let bad = bed.act(|agent, it| agent.reject(it, call, 200));
    assert_eq!(bad, Err(CallError::OutOfPlace));
    bed.act(|agent, it| agent.reject(it, call, 603)).unwrap();
    assert!(bed.take_one().starts_with("SIP/2.0 603 Decline"));
    let cause = EndCause::Rejected(603);
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn a_reinvite_of_the_peer_is_the_programs_to_answer_rfc3261_14_2() {
    let (mut bed, call, tag) = in_call();
    bed.receive(&request("INVITE", "i2", 2, &tag, OFFER));
    let content = Content::sdp(OFFER);
    assert_eq!(bed.event(), Some(Event::Offer { call, content }));
    // A second one before the answer.
    bed.receive(&request("INVITE", "i3", 3, &tag, OFFER));
    let busy = bed.take().pop().unwrap();
    assert!(busy.starts_with("SIP/2.0 500 "), "{busy}");
    value(&busy, "Retry-After").parse::<u32>().unwrap();
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    bed.receive(&request("ACK", "a2", 2, &tag, ""));
    assert!(matches!(bed.event(), Some(Event::Acknowledged { .. })));
    bed.receive(&request("INVITE", "i4", 4, &tag, OFFER));
    assert!(matches!(bed.event(), Some(Event::Offer { .. })));
    bed.act(|agent, it| agent.reject(it, call, 488)).unwrap();
    assert!(bed.take_one().starts_with("SIP/2.0 488 "));
    assert_eq!(bed.event(), None, "the call goes on");
    bed.receive(&request("INVITE", "i5", 5, &tag, OFFER));
    assert!(matches!(bed.event(), Some(Event::Offer { .. })));
    bed.receive(&request("CANCEL", "i5", 5, &tag, ""));
    assert_eq!(bed.event(), Some(Event::OfferCancelled { call }));
}

#[test]
fn requests_of_no_dialog_or_of_the_past_are_refused_rfc3261_12_2_2() {
    let (mut bed, call, tag) = in_call();
    bed.receive(&request("BYE", "b1", 1, ";tag=none", ""));
    assert!(bed.take_one().starts_with("SIP/2.0 481 "));
    bed.receive(&request("BYE", "b2", 2, &tag, "").replace("in@192.0.2.9", "other@192.0.2.9"));
    assert!(
        bed.take_one().starts_with("SIP/2.0 481 "),
        "another Call-ID"
    );
    bed.receive(&request("OPTIONS", "o1", 9, &tag, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    bed.receive(&request("BYE", "b3", 8, &tag, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 500 "), "an older CSeq");
    assert_eq!(bed.event(), None);
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert!(bed.take_one().starts_with("BYE "));
}

#[test]
fn an_invite_without_contact_or_without_room_is_refused() {
    let mut bed = TestBed::new(Config {
        most_calls: 1,
        ..config()
    });
    bed.receive(&request("INVITE", "i1", 1, "", OFFER).replace(CONTACT, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 400 Missing Contact"));
    bed.receive(&request("INVITE", "i2", 1, "", OFFER).replace("in@", "in2@"));
    assert!(matches!(bed.event(), Some(Event::Incoming { .. })));
    bed.receive(&request("INVITE", "i3", 1, "", OFFER).replace("in@", "in3@"));
    let refused = bed.take().pop().unwrap();
    assert!(refused.starts_with("SIP/2.0 486 "), "{refused}");
    let invite = hairpin_sip::agent::Invite::new("sip:b@192.0.2.9", Content::none());
    assert_eq!(
        bed.act(|agent, it| agent.invite(it, invite)),
        Err(CallError::Full)
    );
    bed.receive(&request("INVITE", "i4", 4, "", OFFER).replace("Max", "Require: 100rel\r\nMax"));
    let refused = bed.take().pop().unwrap();
    assert!(refused.starts_with("SIP/2.0 420 "), "{refused}");
    assert_eq!(value(&refused, "Unsupported"), "100rel");
}

#[test]
fn options_say_what_it_can_do_rfc3261_11_2() {
    let mut bed = TestBed::new(config());
    bed.receive(&request("OPTIONS", "o1", 1, "", ""));
    let ok = bed.take_one();
    assert_eq!(value(&ok, "Allow"), "INVITE, ACK, BYE, CANCEL, OPTIONS");
    assert_eq!(value(&ok, "Accept"), "application/sdp");
    bed.receive(&request("INFO", "x1", 1, "", ""));
    assert!(bed.take_one().starts_with("SIP/2.0 405 "));
}

const WITH_INFO: Rules<'static> = Rules {
    methods: &[
        Method::Invite,
        Method::Ack,
        Method::Bye,
        Method::Cancel,
        Method::Options,
        Method::Info,
    ],
    ..RULES
};

#[test]
fn further_methods_are_the_programs_to_answer() {
    let mut bed = TestBed::new(Config {
        rules: WITH_INFO,
        ..config()
    });
    bed.endpoint.engine_mut().configure_rules(WITH_INFO);
    bed.receive(&request("INFO", "x1", 1, "", OFFER));
    let Some(Event::Request {
        id,
        call: None,
        method,
        content,
        ..
    }) = bed.event()
    else {
        panic!("a request");
    };
    assert_eq!((&method[..], content), ("INFO", Content::sdp(OFFER)));
    let early = bed.act(|agent, it| agent.respond(it, id, 180, b"", &Content::none()));
    assert_eq!(early, Err(CallError::OutOfPlace));
    bed.act(|agent, it| agent.respond(it, id, 200, b"X-A: b\r\n", &Content::none()))
        .unwrap();
    assert_eq!(value(&bed.take_one(), "X-A"), "b");
    let twice = bed.act(|agent, it| agent.respond(it, id, 200, b"", &Content::none()));
    assert_eq!(twice, Err(CallError::Gone));
}

#[test]
fn options_within_a_call_get_200_also_if_there_is_no_room_rfc3261_11_2() {
    let mut bed = TestBed::new(Config {
        most_calls: 1,
        ..config()
    });
    bed.receive(&request("INVITE", "i1", 1, "", OFFER));
    let Some(Event::Incoming { call, .. }) = bed.event() else {
        panic!("a call");
    };
    bed.take();
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    let tag = tag_of(&bed.take_one());
    bed.receive(&request("ACK", "a1", 1, &tag, ""));
    bed.receive(&request("OPTIONS", "o1", 2, &tag, ""));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    bed.receive(&request("OPTIONS", "o2", 1, "", ""));
    assert!(bed.take_one().starts_with("SIP/2.0 486 "));
}

#[test]
fn an_ack_of_an_earlier_invite_acknowledges_nothing_rfc3261_13_2_2_4() {
    let (mut bed, call, tag) = in_call();
    bed.receive(&request("INVITE", "i2", 2, &tag, OFFER));
    assert!(matches!(bed.event(), Some(Event::Offer { .. })));
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    bed.receive(&request("ACK", "a1", 1, &tag, ""));
    assert_eq!(bed.event(), None);
    bed.take();
    bed.pass(Duration::from_secs(2));
    let sent = bed.take();
    assert!(
        sent.first()
            .is_some_and(|it| it.starts_with("SIP/2.0 200 ")),
        "it is repeated: {sent:#?}"
    );
    // Other requests come between INVITE and ACK.
    bed.receive(&request("OPTIONS", "o1", 3, &tag, ""));
    bed.receive(&request("ACK", "a2", 2, &tag, ""));
    let content = Content::none();
    assert_eq!(bed.event(), Some(Event::Acknowledged { call, content }));
}

#[test]
fn a_caller_with_a_folded_from_gets_a_bye_rfc3261_7_3_1() {
    let mut bed = TestBed::new(config());
    let folded = |message: String| message.replace("From: <", "From: \"Bob\"\r\n <");
    bed.receive(&folded(request("INVITE", "i1", 1, "", OFFER)));
    let Some(Event::Incoming { call, .. }) = bed.event() else {
        panic!("a call");
    };
    bed.take();
    bed.act(|agent, it| agent.answer(it, call, &Content::sdp(OFFER)))
        .unwrap();
    let tag = tag_of(&bed.take_one());
    bed.receive(&request("ACK", "a1", 1, &tag, ""));
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    let bye = bed.take_one();
    assert_eq!(value(&bye, "To"), "\"Bob\" <sip:bob@192.0.2.9>;tag=b");
}
