//! What belongs to a call, and what does not, seen from outside.

use crate::sip_client::{Client, Stream, serve, status, test_uas};
use hairpin_server::Running;
use std::time::Duration;

/// A request of the call `id`, with this branch, CSeq and tag of To.
fn request(id: &str, branch: &str, method: &str, cseq: u32, to_tag: &str) -> String {
    format!(
        "{method} sip:test@127.0.0.1 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1:5060;rport;branch=z9hG4bK{branch}\r\n\
         From: <sip:a@example.org>;tag=caller\r\nTo: <sip:test@127.0.0.1>{to_tag}\r\n\
         Call-ID: {id}\r\nCSeq: {cseq} {method}\r\nMax-Forwards: 70\r\n\
         Contact: <sip:a@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

fn to_tag(answer: &str) -> String {
    let to = answer.lines().find(|line| line.starts_with("To: "));
    let tag = to.and_then(|to| to.find(";tag=").map(|at| to[at..].to_owned()));
    tag.expect("a tag")
}

fn client(server: &Running) -> Client {
    Client::new(server.sip_listeners()[0])
}

/// The 200 to this INVITE, behind its 180.
fn taken(client: &Client, invite: &str) -> String {
    assert_eq!(status(&client.ask(invite)), 180);
    let answer = client.answer();
    assert_eq!(status(&answer), 200);
    answer
}

#[test]
fn the_ack_of_an_invite_within_a_call_ends_the_repetition_of_its_200_rfc3261_13_3_1_4() {
    let server = serve(test_uas(), 1);
    let client = client(&server);
    let first = taken(&client, &request("call", "1", "INVITE", 1, ""));
    let tag = to_tag(&first);
    client.send(request("call", "2", "ACK", 1, &tag).as_bytes());
    let again = taken(&client, &request("call", "3", "INVITE", 2, &tag));
    assert_eq!(to_tag(&again), tag, "the dialog is the same");
    assert_eq!(client.answer(), again, "there was no ACK yet");
    // An ACK of the INVITE before is none of this one.
    client.send(request("call", "4", "ACK", 1, &tag).as_bytes());
    assert_eq!(client.answer(), again);
    client.send(request("call", "5", "ACK", 2, &tag).as_bytes());
    assert!(client.hears_nothing(Duration::from_millis(2500)));
    assert_eq!(server.stats().sip().stray_acks, 0);
}

#[test]
fn a_tag_is_of_no_use_in_another_call_rfc3261_12_2_2() {
    let server = serve(test_uas(), 2);
    let client = client(&server);
    let tag = to_tag(&taken(&client, &request("call", "1", "INVITE", 1, "")));
    client.send(request("call", "2", "ACK", 1, &tag).as_bytes());
    for (number, (old, new)) in [
        ("Call-ID: call", "Call-ID: other"),
        ("tag=caller", "tag=another"),
        (&*tag, ";tag=made-up"),
        (&*tag, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let bye = request("call", &format!("bye{number}"), "BYE", 2, &tag);
        let answer = client.ask(&bye.replace(old, new));
        assert_eq!(status(&answer), 481, "{new}");
        assert_eq!(client.ask(&bye.replace(old, new)), answer, "again the same");
    }
    let stranger = request("call", "6", "INVITE", 2, &tag).replace("tag=caller", "tag=another");
    assert_eq!(status(&client.ask(&stranger)), 481);
    client.send(request("call", "6", "ACK", 2, &tag).as_bytes());
    let bye = request("call", "7", "BYE", 3, &tag);
    assert_eq!(status(&client.ask(&bye)), 200);
}

#[test]
fn a_call_over_tcp_is_to_be_continued_over_tcp() {
    let server = serve(test_uas(), 1);
    let mut stream = Stream::new(server.sip_listeners()[0]);
    let invite = request("call", "1", "INVITE", 1, "").replace("/UDP", "/TCP");
    stream.send(invite.as_bytes());
    for code in [180, 200] {
        let answer = stream.answer();
        assert_eq!(status(&answer), code);
        assert!(answer.contains(";transport=tcp>\r\n"), "{answer}");
    }
}

#[test]
fn a_packed_body_is_not_taken_unless_it_is_optional_rfc3261_8_2_3() {
    let server = serve(test_uas(), 1);
    let client = client(&server);
    let with = |branch: &str, lines: &str| {
        let more =
            format!("Content-Type: application/sdp\r\n{lines}Content-Length: 5\r\n\r\nv=0\r\n");
        request("call", branch, "OPTIONS", 1, "").replace("Content-Length: 0\r\n\r\n", &more)
    };
    for (branch, lines) in [
        ("1", "Content-Encoding: gzip\r\n"),
        ("2", "e: identity, gzip\r\n"),
    ] {
        let answer = client.ask(&with(branch, lines));
        assert_eq!(status(&answer), 415, "{lines}");
        assert!(answer.contains("Accept-Encoding: identity\r\n"), "{answer}");
    }
    let optional = "e: gzip\r\nContent-Disposition: render;handling=optional\r\n";
    for (branch, lines) in [
        ("3", "Content-Encoding: Identity\r\n"),
        ("4", "e:\r\n"),
        ("5", optional),
    ] {
        assert_eq!(status(&client.ask(&with(branch, lines))), 200, "{lines}");
    }
}

#[test]
fn a_cancel_without_an_invite_gets_481_with_and_without_a_uas_rfc3261_9_2() {
    for settings in [test_uas(), Default::default()] {
        let server = serve(settings, 1);
        let answer = client(&server).ask(&request("call", "1", "CANCEL", 1, ""));
        assert_eq!(status(&answer), 481);
        assert_eq!(server.stats().sip().transactions, 0, "nothing is kept");
    }
}

#[test]
fn a_call_that_nobody_takes_ends_when_its_invite_expires_rfc3261_13_3_1() {
    let server = serve(test_uas(), 1);
    let client = client(&server);
    let ring = |id: &str, expires: &str| {
        let invite = request(id, id, "INVITE", 1, "").replace("sip:test@", "sip:ring@");
        invite.replace(
            "Max-Forwards",
            &format!("Expires: {expires}\r\nMax-Forwards"),
        )
    };
    assert_eq!(status(&client.ask(&ring("long", "7200"))), 180);
    assert_eq!(status(&client.ask(&ring("short", "1"))), 180);
    assert_eq!(status(&client.ask(&ring("never", "0"))), 180);
    let call_of = |answer: &str| {
        assert_eq!(status(answer), 487, "{answer}");
        let line = answer.lines().find(|line| line.starts_with("Call-ID: "));
        line.expect("a Call-ID").to_owned()
    };
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let call = call_of(&client.answer());
        // Without an ACK each comes again.
        if !ended.contains(&call) {
            ended.push(call);
        }
    }
    assert_eq!(ended, ["Call-ID: never", "Call-ID: short"]);
    let cancel = ring("long", "7200").replace("INVITE", "CANCEL");
    client.send(cancel.as_bytes());
    let mut codes = Vec::new();
    while codes.len() < 2 {
        let answer = client.answer();
        if answer.contains("Call-ID: long") {
            codes.push(status(&answer));
        }
    }
    codes.sort_unstable();
    assert_eq!(codes, [200, 487]);
}

#[test]
fn draining_refuses_what_is_new_and_waits_for_transactions_rfc3261_21_5_4() {
    let server = serve(test_uas(), 2);
    let client = client(&server);
    let invite = request("ringing", "1", "INVITE", 1, "").replace("sip:test@", "sip:ring@");
    assert_eq!(status(&client.ask(&invite)), 180);
    let call = to_tag(&taken(&client, &request("call", "2", "INVITE", 1, "")));
    client.send(request("call", "3", "ACK", 1, &call).as_bytes());
    assert_eq!(
        server.drain(Duration::from_millis(100)),
        Ok(false),
        "a call rings"
    );
    for (number, method) in ["INVITE", "REGISTER", "OPTIONS"].into_iter().enumerate() {
        let new = request("new", &format!("new{number}"), method, 1, "");
        let answer = client.ask(&new);
        assert_eq!(status(&answer), 503, "{method}");
        assert!(answer.contains("\r\nRetry-After: 5\r\n"), "{answer}");
    }
    // What has begun goes on: the dialog, and the transaction that rings.
    let bye = request("call", "4", "BYE", 2, &call);
    assert_eq!(status(&client.ask(&bye)), 200);
    let cancel = request("ringing", "1", "CANCEL", 1, "").replace("sip:test@", "sip:ring@");
    client.send(cancel.as_bytes());
    let mut answers = [status(&client.answer()), status(&client.answer())];
    answers.sort_unstable();
    assert_eq!(answers, [200, 487]);
    server.end_drain().expect("every worker runs");
    let again = request("again", "again", "REGISTER", 1, "");
    assert_eq!(status(&client.ask(&again)), 200);
}

#[test]
fn a_drain_ends_when_the_last_transaction_does() {
    let mut settings = test_uas();
    // 64*T1, for which a transaction lives on to know retransmissions, are 640 ms.
    settings.t1 = Duration::from_millis(10);
    let server = serve(settings, 2);
    let client = client(&server);
    let register = request("register", "1", "REGISTER", 1, "");
    assert_eq!(status(&client.ask(&register)), 200);
    assert_eq!(server.drain(Duration::from_millis(10)), Ok(false));
    assert_eq!(server.drain(Duration::from_secs(20)), Ok(true));
}
