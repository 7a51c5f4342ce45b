//! Calls of ours.

use std::time::Duration;

use hairpin_sip::agent::{
    AuthProblem, CallError, Config, Content, EndCause, Event, Invite, RequestTarget,
};
use hairpin_sip::timer::Timers;
use hairpin_sip::tu::TransactionUser as _;

use crate::bed::{CONTACT, OFFER, TestBed, config, request, response, tag_of, value};

const ROUTES: &str = "Record-Route: <sip:192.0.2.20;lr>\r\nRecord-Route: <sip:192.0.2.9;lr>\r\n";

#[test]
fn a_call_is_answered_and_ended() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    assert_eq!(value(&invite, "Content-Type"), "application/sdp");
    assert_eq!(value(&invite, "Contact"), "<sip:alice@192.0.2.1:5060>");
    bed.receive(&response(&invite, "180 Ringing", "b1", CONTACT, ""));
    let progress = Event::Progress {
        call,
        code: 180,
        branch: b"b1".to_vec(),
        content: Content::none(),
    };
    assert_eq!(bed.event(), Some(progress));
    let lines = format!("{CONTACT}{ROUTES}");
    bed.receive(&response(&invite, "200 OK", "b1", &lines, OFFER));
    let answered = Event::Answered {
        call,
        branch: b"b1".to_vec(),
        content: Content::sdp(OFFER),
    };
    assert_eq!(bed.event(), Some(answered));
    let ack = bed.take_one();
    assert!(
        ack.starts_with("ACK sip:bob@192.0.2.9 SIP/2.0\r\n"),
        "{ack}"
    );
    // RFC 3261 §12.1.2: in reverse order.
    let routes = "Route: <sip:192.0.2.9;lr>\r\nRoute: <sip:192.0.2.20;lr>\r\n";
    assert!(ack.contains(routes), "{ack}");
    assert_eq!(value(&ack, "CSeq"), "1 ACK");
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    let bye = bed.take_one();
    assert!(
        bye.contains(routes) && bye.starts_with("BYE sip:bob@192.0.2.9 "),
        "{bye}"
    );
    assert_eq!(value(&bye, "CSeq"), "2 BYE");
    bed.receive(&response(&bye, "200 OK", "", "", ""));
    let cause = EndCause::HungUp;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    assert_eq!(
        bed.act(|agent, it| agent.hang_up(it, call)),
        Err(CallError::Gone)
    );
    // Nothing is kept when the time for further answers is over.
    bed.pass(Duration::from_secs(120));
    assert_eq!(bed.endpoint.user().poll_timeout(), None);
}

#[test]
fn the_first_branch_that_answers_has_the_call_and_the_others_are_ended_rfc3261_13_2_2_4() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    for tag in ["b1", "b2"] {
        bed.receive(&response(
            &invite,
            "183 Session Progress",
            tag,
            CONTACT,
            OFFER,
        ));
        let Some(Event::Progress {
            branch, code: 183, ..
        }) = bed.event()
        else {
            panic!("{tag}");
        };
        assert_eq!(branch, tag.as_bytes());
    }
    bed.receive(&response(&invite, "200 OK", "b2", CONTACT, OFFER));
    assert!(value(&bed.take_one(), "To").ends_with(";tag=b2"));
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
    let other = "Contact: <sip:bob@192.0.2.9:5099>\r\n";
    bed.receive(&response(&invite, "200 OK", "b1", other, OFFER));
    let sent = bed.take();
    let [ack, bye] = &sent[..] else {
        panic!("{sent:#?}");
    };
    for (message, start) in [
        (ack, "ACK sip:bob@192.0.2.9:5099 "),
        (bye, "BYE sip:bob@192.0.2.9:5099 "),
    ] {
        assert!(message.starts_with(start), "{message}");
        assert!(value(message, "To").ends_with(";tag=b1"), "{message}");
    }
    bed.receive(&response(bye, "200 OK", "", "", ""));
    // It is repeated until its ACK comes.
    bed.receive(&response(&invite, "200 OK", "b1", other, OFFER));
    assert_eq!(&bed.take_one(), ack);
    assert_eq!(bed.event(), None, "the call goes on");
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert!(value(&bed.take_one(), "To").ends_with(";tag=b2"));
}

#[test]
fn another_branch_is_ended_as_long_as_its_transaction_lives_whatever_t1_is_rfc6026_7_2() {
    for t1 in [Duration::from_millis(500), Duration::from_secs(2)] {
        let timers = Timers {
            t1,
            ..Timers::default()
        };
        let mut bed = TestBed::with_timers(config(), timers);
        let (_, invite, _) = bed.answered();
        bed.pass(63 * t1);
        bed.receive(&response(&invite, "200 OK", "b2", CONTACT, OFFER));
        let sent = bed.take();
        let is_ended =
            matches!(&sent[..], [ack, bye] if ack.starts_with("ACK ") && bye.starts_with("BYE "));
        assert!(is_ended, "{t1:?}: {sent:#?}");
    }
}

#[test]
fn a_repeated_2xx_gets_the_same_ack_rfc3261_13_2_2_4() {
    let mut bed = TestBed::new(config());
    let (_, invite, ack) = bed.answered();
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    assert_eq!(bed.take_one(), ack);
    assert_eq!(bed.event(), None);
}

const BROKEN: &str = "Record-Route: <sip:192.0.2.9;lr\r\n";

#[test]
fn a_malformed_2xx_of_another_branch_leaves_the_call_as_it_is_rfc3261_13_2_2_4() {
    let mut bed = TestBed::new(config());
    let (call, invite, _) = bed.answered();
    let lines = format!("{CONTACT}{BROKEN}");
    bed.receive(&response(&invite, "200 OK", "b2", &lines, OFFER));
    assert_eq!(bed.event(), None, "the call goes on");
    for message in bed.take() {
        assert!(value(&message, "To").ends_with(";tag=b2"), "{message}");
    }
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert!(value(&bed.take_one(), "To").ends_with(";tag=b1"));
}

#[test]
fn a_malformed_2xx_is_acknowledged_and_ended_with_bye_rfc3261_13_2_2_4() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    let lines = format!("{CONTACT}{BROKEN}");
    let answer = response(&invite, "200 OK", "b1", &lines, OFFER);
    bed.receive(&answer);
    let sent = bed.take();
    assert!(
        matches!(&sent[..], [ack, bye] if ack.starts_with("ACK ") && bye.starts_with("BYE ")),
        "{sent:#?}"
    );
    let cause = EndCause::Malformed;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    bed.receive(&response(&sent[1], "200 OK", "", "", ""));
    bed.receive(&answer);
    assert_eq!(bed.take_one(), sent[0]);
    bed.pass(Duration::from_secs(120));
    assert_eq!(bed.endpoint.user().poll_timeout(), None);
}

#[test]
fn a_bounded_number_of_further_branches_is_ended() {
    let mut bed = TestBed::new(config());
    let (call, invite, _) = bed.answered();
    for number in 0..100 {
        let tag = format!("other{number}");
        bed.receive(&response(&invite, "200 OK", &tag, CONTACT, OFFER));
    }
    let sent = bed.take();
    let of = |method: &str| sent.iter().filter(|it| it.starts_with(method)).count();
    // The branch that has the call is one of 32.
    assert_eq!((of("ACK "), of("BYE ")), (31, 31));
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert!(value(&bed.take_one(), "To").ends_with(";tag=b1"));
}

#[test]
fn a_call_whose_ack_could_not_be_sent_is_not_ended_when_the_2xx_comes_again() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    // No request can be sent there.
    let contact = "Contact: <tel:+15>\r\n";
    bed.receive(&response(&invite, "200 OK", "b1", contact, OFFER));
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    let sent = bed.take();
    assert!(!sent.iter().any(|it| it.starts_with("BYE ")), "{sent:#?}");
    assert_eq!(bed.event(), None);
    assert_eq!(bed.endpoint.user().calls(), 1, "{call:?}");
}

#[test]
fn folds_are_left_out_of_the_requests_of_a_dialog_rfc3261_7_3_1() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    let lines = format!("{CONTACT}Record-Route: \"P\"\r\n  <sip:192.0.2.9;lr>\r\n");
    let answer = response(&invite, "200 OK", "b1", &lines, OFFER);
    bed.receive(&answer.replace("To: <sip:bob", "To: \"Bob\"\r\n\t<sip:bob"));
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
    let ack = bed.take_one();
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    for (message, method) in [(ack, "ACK "), (bed.take_one(), "BYE ")] {
        assert!(message.starts_with(method), "{message}");
        assert_eq!(value(&message, "To"), "\"Bob\" <sip:bob@192.0.2.9>;tag=b1");
        assert_eq!(value(&message, "Route"), "\"P\" <sip:192.0.2.9;lr>");
    }
}

#[test]
fn a_2xx_to_a_reinvite_that_crosses_a_bye_is_acknowledged_rfc3261_13_2_2_4() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    let lines = format!("{CONTACT}{ROUTES}");
    bed.receive(&response(&invite, "200 OK", "b1", &lines, OFFER));
    bed.event();
    bed.take();
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    let again = bed.take_one();
    bed.receive(&in_dialog(&invite, "BYE", 1));
    assert!(bed.take_one().starts_with("SIP/2.0 200 "));
    let cause = EndCause::PeerHungUp;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    let other = "Contact: <sip:bob@192.0.2.9:5071>\r\n";
    bed.receive(&response(&again, "200 OK", "", other, OFFER));
    let ack = bed.take_one();
    assert!(ack.starts_with("ACK sip:bob@192.0.2.9:5071 "), "{ack}");
    assert_eq!(value(&ack, "CSeq"), "2 ACK");
    // Those of the dialog: the response has none.
    assert_eq!(value(&ack, "Route"), "<sip:192.0.2.9;lr>");
    assert_eq!(bed.event(), None);
}

#[test]
fn a_sips_uri_needs_a_sips_contact_rfc3261_8_1_1_8() {
    let mut bed = TestBed::new(config());
    let invite = Invite::new("sips:bob@192.0.2.9", Content::none());
    let made = bed.act(|agent, it| agent.invite(it, invite));
    assert_eq!(made, Err(CallError::Uri));
    let mut bed = TestBed::new(Config {
        outbound_proxy: Some("sips:192.0.2.9;lr".to_owned()),
        ..config()
    });
    let invite = Invite::new("sip:bob@192.0.2.9", Content::none());
    let made = bed.act(|agent, it| agent.invite(it, invite));
    assert_eq!(made, Err(CallError::Uri));
    assert_eq!(bed.endpoint.user().calls(), 0);
}

#[test]
fn a_call_that_rings_is_cancelled_rfc3261_9_1() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert_eq!(bed.take(), Vec::<String>::new(), "nothing has come yet");
    bed.receive(&response(&invite, "180 Ringing", "b1", CONTACT, ""));
    let cancel = bed.take_one();
    assert!(cancel.starts_with("CANCEL "), "{cancel}");
    assert_eq!(value(&cancel, "Via"), value(&invite, "Via"));
    bed.receive(&response(&cancel, "200 OK", "b1", "", ""));
    bed.receive(&response(&invite, "487 Request Terminated", "b1", "", ""));
    assert!(bed.take_one().starts_with("ACK "));
    let cause = EndCause::Cancelled;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    assert_eq!(bed.event(), None);
}

#[test]
fn an_answer_that_crosses_the_cancel_is_ended_with_bye_rfc3261_15() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::sdp(OFFER));
    bed.receive(&response(&invite, "180 Ringing", "b1", CONTACT, ""));
    bed.event();
    bed.act(|agent, it| agent.hang_up(it, call)).unwrap();
    assert!(bed.take_one().starts_with("CANCEL "));
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    let sent = bed.take();
    assert!(
        sent[0].starts_with("ACK ") && sent[1].starts_with("BYE "),
        "{sent:#?}"
    );
    bed.receive(&response(&sent[1], "200 OK", "", "", ""));
    let cause = EndCause::Cancelled;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn a_refusal_has_its_code_its_reason_and_where_else_to_call() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::none());
    let contacts = "Contact: <sip:bob@192.0.2.30>, <sip:desk@192.0.2.31>\r\n";
    bed.receive(&response(&invite, "302 Gone Elsewhere", "b1", contacts, ""));
    let cause = EndCause::Refused {
        code: 302,
        reason: "Gone Elsewhere".to_owned(),
        contacts: vec![
            "sip:bob@192.0.2.30".to_owned(),
            "sip:desk@192.0.2.31".to_owned(),
        ],
    };
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn a_call_without_any_response_ends() {
    let mut bed = TestBed::new(config());
    let (call, _) = bed.invite(Content::none());
    bed.pass(Duration::from_secs(33));
    let Some(Event::Ended {
        call: ended,
        cause: EndCause::NoResponse(_),
    }) = bed.event()
    else {
        panic!("it has ended");
    };
    assert_eq!(ended, call);
}

#[test]
fn proxies_of_two_realms_get_credentials_and_the_ack_has_them_too_rfc3261_22_3() {
    let mut bed = TestBed::new(config());
    let (_, invite) = bed.invite(Content::sdp(OFFER));
    let ask = |realm: &str| {
        format!("Proxy-Authenticate: Digest realm=\"{realm}\", nonce=\"n\", qop=\"auth\"\r\n")
    };
    bed.receive(&response(
        &invite,
        "407 Proxy Authentication Required",
        "p",
        &ask("one"),
        "",
    ));
    let sent = bed.take();
    assert!(sent[0].starts_with("ACK "));
    let second = &sent[1];
    assert_eq!(value(second, "CSeq"), "2 INVITE");
    assert_eq!(value(second, "From"), value(&invite, "From"));
    bed.receive(&response(
        second,
        "407 Proxy Authentication Required",
        "p",
        &ask("two"),
        "",
    ));
    let third = bed.take().pop().unwrap();
    let lines = |message: &str| -> Vec<String> {
        let lines = message
            .lines()
            .filter(|line| line.starts_with("Proxy-Authorization: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(lines(&third).len(), 2, "{third}");
    bed.receive(&response(&third, "200 OK", "b1", CONTACT, OFFER));
    let ack = bed.take_one();
    assert_eq!(lines(&ack), lines(&third));
    assert_eq!(value(&ack, "CSeq"), "3 ACK");
}

#[test]
fn a_password_that_a_proxy_rejects_ends_the_call() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::none());
    let ask = "Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n";
    bed.receive(&response(
        &invite,
        "407 Proxy Authentication Required",
        "p",
        ask,
        "",
    ));
    let second = bed.take().pop().unwrap();
    bed.receive(&response(
        &second,
        "407 Proxy Authentication Required",
        "p",
        ask,
        "",
    ));
    let cause = EndCause::Authentication(AuthProblem::Rejected);
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
}

#[test]
fn without_an_offer_the_program_acknowledges_with_the_answer_rfc3261_13_2_1() {
    let mut bed = TestBed::new(config());
    let (call, invite) = bed.invite(Content::none());
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    assert!(matches!(bed.event(), Some(Event::Answered { .. })));
    // The 2xx comes again meanwhile.
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    assert_eq!(bed.take(), Vec::<String>::new());
    assert_eq!(bed.event(), None);
    let again = bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)));
    assert_eq!(again, Err(CallError::OutOfPlace));
    bed.act(|agent, it| agent.acknowledge(it, call, Content::sdp("v=0\r\ns=x\r\n")))
        .unwrap();
    let ack = bed.take_one();
    assert!(
        ack.starts_with("ACK ") && ack.ends_with("v=0\r\ns=x\r\n"),
        "{ack}"
    );
    bed.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
    assert_eq!(bed.take_one(), ack);
    let twice = bed.act(|agent, it| agent.acknowledge(it, call, Content::none()));
    assert_eq!(twice, Err(CallError::OutOfPlace));
}

#[test]
fn a_reinvite_changes_the_session_and_the_target_rfc3261_14_1() {
    let mut bed = TestBed::new(config());
    let (call, ..) = bed.answered();
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    let again = bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)));
    assert_eq!(again, Err(CallError::OutOfPlace));
    let invite = bed.take_one();
    assert_eq!(value(&invite, "CSeq"), "2 INVITE");
    bed.receive(&response(
        &invite,
        "200 OK",
        "",
        "Contact: <sip:bob@192.0.2.9:5071>\r\n",
        OFFER,
    ));
    assert!(bed.take_one().starts_with("ACK sip:bob@192.0.2.9:5071 "));
    let content = Content::sdp(OFFER);
    assert_eq!(bed.event(), Some(Event::OfferAnswered { call, content }));
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    let invite = bed.take_one();
    bed.receive(&response(&invite, "488 Not Acceptable Here", "", "", ""));
    let code = 488;
    assert_eq!(bed.event(), Some(Event::OfferRefused { call, code }));
    assert_eq!(bed.event(), None, "the call goes on");
}

#[test]
fn a_dialog_that_the_peer_has_lost_ends_rfc3261_12_2_1_2() {
    let mut bed = TestBed::new(config());
    let (call, ..) = bed.answered();
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    let invite = bed.take_one();
    bed.receive(&response(&invite, "481 Call Does Not Exist", "", "", ""));
    let code = 481;
    assert_eq!(bed.event(), Some(Event::OfferRefused { call, code }));
    let bye = bed.take().pop().unwrap();
    assert!(bye.starts_with("BYE "), "{bye}");
    bed.receive(&response(&bye, "481 Call Does Not Exist", "", "", ""));
    assert!(matches!(
        bed.event(),
        Some(Event::Ended {
            cause: EndCause::Refused { code: 481, .. },
            ..
        })
    ));
}

#[test]
fn two_reinvites_that_cross_get_491_rfc3261_14_2() {
    let mut bed = TestBed::new(config());
    let (call, invite, _) = bed.answered();
    bed.act(|agent, it| agent.reinvite(it, call, Content::sdp(OFFER)))
        .unwrap();
    bed.take();
    let crossing = in_dialog(&invite, "INVITE", 1);
    bed.receive(&crossing);
    assert!(bed.take_one().starts_with("SIP/2.0 491 "));
    assert_eq!(bed.event(), None);
}

/// A request of the callee in the dialog of this INVITE.
fn in_dialog(invite: &str, method: &str, cseq: u32) -> String {
    let local = value(invite, "From");
    request(method, &format!("p{cseq}{method}"), cseq, "", "")
        .replace("To: <sip:alice@192.0.2.9>", &format!("To: {local}"))
        .replace(";tag=b\r\n", ";tag=b1\r\n")
        .replace(
            "Call-ID: in@192.0.2.9",
            &format!("Call-ID: {}", value(invite, "Call-ID")),
        )
}

#[test]
fn the_callee_hangs_up() {
    let mut bed = TestBed::new(config());
    let (call, invite, _) = bed.answered();
    let stranger = in_dialog(&invite, "BYE", 1).replace(";tag=b1\r\n", ";tag=b9\r\n");
    bed.receive(&stranger);
    assert!(
        bed.take_one().starts_with("SIP/2.0 481 "),
        "another From tag"
    );
    bed.receive(&in_dialog(&invite, "BYE", 2));
    let ok = bed.take_one();
    assert!(ok.starts_with("SIP/2.0 200 "), "{ok}");
    assert_eq!(
        tag_of(&ok),
        value(&invite, "From")[value(&invite, "From").find(";tag=").unwrap()..]
    );
    let cause = EndCause::PeerHungUp;
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    bed.receive(&in_dialog(&invite, "BYE", 3));
    assert!(
        bed.take_one().starts_with("SIP/2.0 481 "),
        "there is no dialog any more"
    );
}

#[test]
fn other_requests_go_to_the_peer_of_a_call_or_to_a_uri() {
    let mut bed = TestBed::new(config());
    let (call, ..) = bed.answered();
    let target = RequestTarget::Call(call);
    let refer = b"Refer-To: <sip:carol@192.0.2.9>\r\n";
    let id = bed
        .act(|agent, it| agent.request(it, target, "REFER", refer, Content::none()))
        .unwrap();
    let request = bed.take_one();
    assert_eq!(value(&request, "Refer-To"), "<sip:carol@192.0.2.9>");
    assert!(value(&request, "To").ends_with(";tag=b1"), "{request}");
    bed.receive(&response(&request, "202 Accepted", "", "", ""));
    let accepted = Event::Response {
        id,
        code: 202,
        reason: "Accepted".to_owned(),
        content: Content::none(),
    };
    assert_eq!(bed.event(), Some(accepted));
    let target = RequestTarget::Uri("sip:bob@192.0.2.9");
    bed.act(|agent, it| agent.request(it, target, "OPTIONS", b"", Content::none()))
        .unwrap();
    assert!(bed.take_one().starts_with("OPTIONS sip:bob@192.0.2.9 "));
}

#[test]
fn texts_of_the_program_cannot_break_a_message() {
    let mut bed = TestBed::new(config());
    for uri in ["", "bob", "tel:+1", "sip:bob@h\r\nX: y", "sip:bob@h>;tag=1"] {
        let invite = Invite::new(uri, Content::none());
        let made = bed.act(|agent, it| agent.invite(it, invite));
        assert_eq!(made, Err(CallError::Uri), "{uri:?}");
    }
    let mut invite = Invite::new("sip:bob@192.0.2.9", Content::none());
    invite.lines = b"Subject: a\r\n\r\nINVITE";
    let made = bed.act(|agent, it| agent.invite(it, invite));
    assert_eq!(made, Err(CallError::Lines));
    let mut content = Content::sdp(OFFER);
    content.media_type = "application/sdp\r\nX: y".to_owned();
    let made = bed.act(|agent, it| agent.invite(it, Invite::new("sip:bob@192.0.2.9", content)));
    assert_eq!(made, Err(CallError::Lines));
    let target = RequestTarget::Uri("sip:bob@192.0.2.9");
    let made = bed.act(|agent, it| agent.request(it, target, "BYE", b"", Content::none()));
    assert_eq!(made, Err(CallError::OutOfPlace));
    let made = bed.act(|agent, it| agent.request(it, target, "A B", b"", Content::none()));
    assert!(matches!(made, Err(CallError::Build(_))), "{made:?}");
    assert_eq!(bed.take(), Vec::<String>::new());
}
