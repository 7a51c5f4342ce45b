//! A 2xx that nobody acknowledges (RFC 3261 §13.3.1.4): the TU gets what it takes to end the dialog.

use hairpin_sip::engine::{Ack, Config, Engine, Output, Received, Reply};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::ua::Dialogs;
use hairpin_sip::{HashKey, Mono, Now, Spans};

const INVITE: &str = "INVITE sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bK1\r\n\
     Record-Route: <sip:p.example;lr>\r\nFrom: <sip:a@example.org>;tag=1\r\nTo: <sip:b@192.0.2.1>\r\n\
     Call-ID: 1@h\r\nCSeq: 1 INVITE\r\nContact: <sip:a@192.0.2.2>\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";

fn flow() -> Flow {
    Flow {
        transport: Transport::Udp,
        listener: ListenerKey(0),
        connection: None,
        local: ([192, 0, 2, 1], 5060).into(),
        remote: ([192, 0, 2, 2], 5060).into(),
    }
}

/// An INVITE is answered; returns the engine and its 200.
fn answered(reply: &Reply<'_>) -> (Engine, Vec<u8>) {
    let mut engine = Engine::new(Config::new(0, HashKey::new([7; 16])), 1);
    let mut spans = Spans::new();
    let now = Now::default();
    let received = engine.handle_message(now, &flow(), INVITE.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("a request");
    };
    let key = engine.accept(now.mono, request, None).unwrap();
    engine.respond(now.mono, key, reply).unwrap();
    let Some(Output::Send { bytes, .. }) = engine.poll_output() else {
        panic!("a response");
    };
    let bytes = bytes.to_vec();
    assert!(engine.poll_output().is_none());
    (engine, bytes)
}

#[test]
fn it_is_repeated_as_it_was_and_then_given_to_the_tu_with_the_remote_target() {
    let (mut engine, response) = answered(&Reply::new(200).until_ack_from(b"sip:a@192.0.2.2"));
    let mut repeated = 0;
    let mut given = 0;
    for _ in 0..100 {
        let Some(at) = engine.poll_timeout() else {
            break;
        };
        engine.handle_timeout(Now {
            mono: at,
            ..Now::default()
        });
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Send { bytes, .. } => {
                    assert_eq!(bytes, response);
                    repeated += 1;
                }
                Output::Unacknowledged {
                    flow: by,
                    response: kept,
                    remote_target,
                } => {
                    assert_eq!(
                        (by, kept, remote_target),
                        (flow(), &response[..], &b"sip:a@192.0.2.2"[..])
                    );
                    given += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((repeated, given), (10, 1));
    assert_eq!(
        (engine.stats().servers, engine.stats().message_bytes),
        (0, 0)
    );
}

#[test]
fn after_its_ack_nothing_is_kept_and_nothing_given() {
    let (mut engine, response) = answered(&Reply::new(200).until_ack_from(b"sip:a@192.0.2.2"));
    let response = String::from_utf8(response).unwrap();
    let to = response
        .lines()
        .find(|line| line.starts_with("To: "))
        .unwrap();
    let ack = INVITE
        .replace("INVITE", "ACK")
        .replace("z9hG4bK1", "z9hG4bK2")
        .replace("To: <sip:b@192.0.2.1>", to);
    let mut spans = Spans::new();
    let received = engine.handle_message(Now::default(), &flow(), ack.as_bytes(), &mut spans);
    assert!(matches!(
        received,
        Received::Ack(Ack {
            invite: Some(_),
            ..
        })
    ));
    assert_eq!(engine.stats().message_bytes, 0);
    while let Some(at) = engine.poll_timeout() {
        assert!(at <= Mono::default().plus_secs(40));
        engine.handle_timeout(Now {
            mono: at,
            ..Now::default()
        });
        assert!(engine.poll_output().is_none());
    }
}

#[test]
fn a_bye_before_the_ack_ends_the_repetition_of_the_2xx_rfc3261_15() {
    let (mut engine, response) = answered(&Reply::new(200).until_ack_from(b"sip:a@192.0.2.2"));
    let text = String::from_utf8_lossy(&response);
    let to = text.lines().find(|line| line.starts_with("To: "));
    let bye = INVITE
        .replace("INVITE", "BYE")
        .replace("z9hG4bK1", "z9hG4bK2")
        .replace("To: <sip:b@192.0.2.1>", to.expect("a To"));
    let mut spans = Spans::new();
    let received = engine.handle_message(Now::default(), &flow(), bye.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("{received:?}");
    };
    let dialog = Dialogs::new(HashKey::new([7; 16])).of(&request);
    let dialog = dialog.expect("a tag of ours");
    assert_eq!(dialog.unanswered(&mut engine), None);
    dialog.ended(&mut engine);
    assert_eq!(engine.stats().message_bytes, 0);
    while let Some(mono) = engine.poll_timeout() {
        engine.handle_timeout(Now { mono, unix_s: 0 });
        assert!(engine.poll_output().is_none());
    }
}
