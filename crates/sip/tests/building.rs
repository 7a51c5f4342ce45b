//! Responses copy what they must, forwarded messages change nothing else.

use std::net::SocketAddr;

use hairpin_sip as sip;
use sip::build::{BuildError, Builder, Edits, Part, Stamp, Tag, forward};
use sip::{HeaderKind, Limits, Message, Method, Scan, Spans};

const INVITE: &str = "INVITE sip:bob@b.example SIP/2.0\r\n\
v: SIP / 2.0/UDP p.example:5070 ;received=10.9.9.9; rport ;branch=z9hG4bK2 , SIP/2.0/UDP q.example\r\n\
Via: SIP/2.0/TCP\r\n a.example;branch=z9hG4bK1\r\n\
Max-Forwards:  9 \r\n\
f: <sip:a@a.example>;tag=1\r\n\
t: \"B\" <sip:bob@b.example>\r\n\
Route: <sip:p1.example;lr>, <sip:p2.example;lr>\r\n\
Call-ID: c@a\r\n\
Route: <sip:p3.example;lr>\r\n\
CSeq: 1 INVITE\r\n\
X: kept  as\r\n  it is\r\n\
\r\n\
body";

fn source() -> SocketAddr {
    "192.0.2.7:4444".parse().expect("an address")
}

fn response(request: &str, code: u16, tag: Option<&[u8]>) -> String {
    let mut spans = Spans::new();
    let message = Message::parse(request.as_bytes(), &mut spans).expect("well-formed");
    let stamp = Stamp::of(&message.via().expect("well-formed"), source());
    let answerable = message.answerable().expect("a request");
    let mut buffer = [0; 2048];
    let response = Builder::response(&mut buffer, &answerable, code, b"", tag, stamp);
    let parsed = String::from_utf8(response.finish().expect("room").to_vec()).expect("text");

    let scan = Scan::of(request.as_bytes(), &Limits::DEFAULT).expect("a request");
    let mut buffer = [0; 2048];
    let answerable = scan.answerable().expect("a request");
    let scanned = Builder::response(&mut buffer, &answerable, code, b"", tag, stamp);
    assert_eq!(
        scanned.finish(),
        Ok(parsed.as_bytes()),
        "a scan answers the same"
    );
    parsed
}

#[test]
fn a_response_copies_what_it_must_and_stamps_the_topmost_via() {
    let tag = Tag::new([0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]);
    assert_eq!(
        response(INVITE, 503, Some(tag.as_bytes())),
        "SIP/2.0 503 Service Unavailable\r\n\
Via: SIP / 2.0/UDP p.example:5070;rport=4444;branch=z9hG4bK2;received=192.0.2.7 , SIP/2.0/UDP q.example\r\n\
Via: SIP/2.0/TCP\r\n a.example;branch=z9hG4bK1\r\n\
From: <sip:a@a.example>;tag=1\r\n\
To: \"B\" <sip:bob@b.example>;tag=0123456789abcdef\r\n\
Call-ID: c@a\r\n\
CSeq: 1 INVITE\r\n\
Content-Length: 0\r\n\r\n"
    );
}

#[test]
fn a_tag_that_is_there_stays_and_a_100_gets_none() {
    let tagged = INVITE.replace("<sip:bob@b.example>\r\n", "<sip:bob@b.example>;tag=old\r\n");
    assert!(
        response(&tagged, 200, Some(b"new")).contains("To: \"B\" <sip:bob@b.example>;tag=old\r\n")
    );
    assert!(response(INVITE, 100, None).contains("To: \"B\" <sip:bob@b.example>\r\n"));
}

/// A Via, where its request came from, and what it says then.
const STAMPS: [(&str, &str, &str); 9] = [
    (
        "SIP/2.0/UDP 192.0.2.7:5060",
        "192.0.2.7:9",
        "SIP/2.0/UDP 192.0.2.7:5060",
    ),
    (
        "SIP/2.0/UDP 192.0.2.7",
        "[::ffff:192.0.2.7]:9",
        "SIP/2.0/UDP 192.0.2.7",
    ),
    (
        "SIP/2.0/UDP 192.0.2.8",
        "192.0.2.7:9",
        "SIP/2.0/UDP 192.0.2.8;received=192.0.2.7",
    ),
    (
        "SIP/2.0/UDP a.example ;x=\"; ,\"",
        "[2001:db8::1]:9",
        "SIP/2.0/UDP a.example ;x=\"; ,\";received=2001:db8::1",
    ),
    (
        "SIP/2.0/UDP [2001:DB8::1]",
        "[2001:db8::1]:9",
        "SIP/2.0/UDP [2001:DB8::1]",
    ),
    (
        "SIP/2.0/UDP 192.0.2.7;rport",
        "192.0.2.7:9",
        "SIP/2.0/UDP 192.0.2.7;rport=9;received=192.0.2.7",
    ),
    (
        "SIP/2.0/UDP h;RPORT=1;Received=1.1.1.1;z",
        "192.0.2.7:9",
        "SIP/2.0/UDP h;RPORT=9;z;received=192.0.2.7",
    ),
    (
        "SIP/2.0/UDP h;Rport;z, SIP/2.0/TCP b;rport",
        "192.0.2.7:9",
        "SIP/2.0/UDP h;Rport=9;z;received=192.0.2.7, SIP/2.0/TCP b;rport",
    ),
    (
        "SIP/2.0/UDP h ; rport = ; z",
        "192.0.2.7:9",
        "SIP/2.0/UDP h;rport=9;z;received=192.0.2.7",
    ),
];

#[test]
fn the_stamp_says_only_what_sent_by_does_not() {
    let stamp = |via: &str, source: &str| {
        let text = format!("OPTIONS sip:a SIP/2.0\r\nVia: {via}\r\n\r\n");
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).expect("well-formed");
        let stamp = Stamp::of(
            &message.via().expect("well-formed"),
            source.parse().expect("an address"),
        );
        let mut scratch = [0; 512];
        let edits = Edits {
            stamp,
            ..Edits::default()
        };
        let gather = forward(&message, &edits, &mut scratch).expect("room");
        let mut buffer = [0; 512];
        let text = gather.copy_to(&mut buffer).expect("room");
        let line = String::from_utf8_lossy(text)
            .lines()
            .nth(1)
            .expect("a Via")
            .to_owned();
        line.strip_prefix("Via: ").expect("a Via").to_owned()
    };
    for (via, source, expected) in STAMPS {
        assert_eq!(stamp(via, source), expected);
    }
}

#[test]
fn requests_without_a_return_path_get_no_response() {
    for (from, to) in [
        ("INVITE sip:bob", "ACK sip:bob"),
        ("v: SIP / 2.0/UDP p", "v: SIP/2.0 p"),
    ] {
        let text = INVITE.replace(from, to);
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).expect("well-formed");
        assert!(message.answerable().is_none(), "{to}");
        let scan = Scan::of(text.as_bytes(), &Limits::DEFAULT).expect("a request");
        assert!(scan.answerable().is_none(), "{to}");
    }
}

fn forwarded(text: &str, edits: &Edits<'_>) -> Result<(String, usize), BuildError> {
    let mut spans = Spans::new();
    let message = Message::parse(text.as_bytes(), &mut spans).expect("well-formed");
    let mut scratch = [0; 1024];
    let gather = forward(&message, edits, &mut scratch)?;
    let mut buffer = [0; 4096];
    let copy = gather.copy_to(&mut buffer)?;
    assert_eq!(copy.len(), gather.byte_len());
    assert!(gather.slices().iter().all(|slice| !slice.is_empty()));
    assert_eq!(
        gather.clone().copy_to(&mut vec![0; copy.len() - 1]),
        Err(BuildError::NoRoom)
    );
    Ok((
        String::from_utf8_lossy(copy).into_owned(),
        gather.slices().len(),
    ))
}

#[test]
fn without_edits_only_a_content_length_is_added() {
    let (text, slices) = forwarded(INVITE, &Edits::default()).expect("room");
    assert_eq!(
        text,
        INVITE.replace("\r\n\r\nbody", "\r\nContent-Length: 4\r\n\r\nbody")
    );
    assert!(slices <= 6);
    let with_length = text;
    let (text, _) = forwarded(&with_length, &Edits::default()).expect("room");
    assert_eq!(text, with_length);
}

#[test]
fn overload_control_is_left_out_of_every_via_and_nothing_else_is() {
    let edits = Edits {
        drop_overload: true,
        ..Edits::default()
    };
    let vias = |edits: &Edits<'_>, vias: &str| {
        let request = format!(
            "OPTIONS sip:bob@example.com SIP/2.0\r\n{vias}From: <sip:a@b>;tag=1\r\n\
             To: <sip:b@b>\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        let (text, _) = forwarded(&request, edits).expect("room");
        let from = text.find("From:").expect("From");
        let start = text.find("\r\n").expect("a line") + 2;
        text[start..from].to_owned()
    };
    for (given, left) in [
        (
            "Via: SIP/2.0/UDP a;branch=z9hG4bK1;oc;oc-algo=\"loss,rate\"\r\n",
            "Via: SIP/2.0/UDP a;branch=z9hG4bK1\r\n",
        ),
        (
            "v: SIP/2.0/UDP a ; OC ;branch=z9hG4bK1; Oc-Algo = \"loss\" ;x , SIP/2.0/TCP b;oc=3\r\n\
             Via: SIP/2.0/UDP c;oc-seq=1.2;oc-validity=5, SIP/2.0/UDP d;ocean;y=\";oc\"\r\n",
            "v: SIP/2.0/UDP a  ;branch=z9hG4bK1 ;x , SIP/2.0/TCP b\r\n\
             Via: SIP/2.0/UDP c, SIP/2.0/UDP d;ocean;y=\";oc\"\r\n",
        ),
        ("Via: SIP/2.0/UDP a\r\n", "Via: SIP/2.0/UDP a\r\n"),
    ] {
        assert_eq!(vias(&edits, given), left);
    }
    let stamp = Stamp {
        received: Some([192, 0, 2, 1].into()),
        rport: None,
    };
    let stamped = Edits { stamp, ..edits };
    assert_eq!(
        vias(
            &stamped,
            "Via: SIP/2.0/UDP a;oc;branch=z9hG4bK1 , SIP/2.0/UDP b;oc\r\nVia: SIP/2.0/UDP c;oc=1\r\n"
        ),
        "Via: SIP/2.0/UDP a;branch=z9hG4bK1;received=192.0.2.1 , SIP/2.0/UDP b\r\nVia: SIP/2.0/UDP c\r\n"
    );
    let dropped = Edits {
        drop_top_via: true,
        ..edits
    };
    for given in [
        "Via: SIP/2.0/UDP a;oc=1, SIP/2.0/UDP b;oc=1;x\r\n",
        "Via: SIP/2.0/UDP a;oc=1\r\nVia: SIP/2.0/UDP b;oc=1;x\r\n",
    ] {
        assert_eq!(vias(&dropped, given), "Via: SIP/2.0/UDP b;x\r\n");
    }
    // As many as anybody cares to write must not keep a message from being forwarded.
    let many = "Via: SIP/2.0/UDP a;oc;x;oc\r\n".repeat(60);
    assert_eq!(vias(&edits, &many).matches(";oc").count(), 112);
}

#[test]
fn a_proxy_changes_a_few_lines_and_nothing_else() {
    let mut on_top = [0; 256];
    let mut fields = Builder::fields(&mut on_top);
    fields
        .header(
            HeaderKind::Via,
            b"SIP/2.0/UDP proxy.example;branch=z9hG4bKp",
        )
        .header_of(
            HeaderKind::RecordRoute,
            &[Part::Bytes(b"<sip:proxy.example;lr>")],
        );
    let edits = Edits {
        request_uri: Some(b"sip:bob@192.0.2.9"),
        on_top: fields.finish_fields().expect("room"),
        at_end: b"P-Asserted-Identity: <sip:a@a.example>\r\n",
        max_forwards: Some(8),
        drop_routes: 1,
        ..Edits::default()
    };
    let (text, slices) = forwarded(INVITE, &edits).expect("room");
    let expected = INVITE
        .replace(
            "INVITE sip:bob@b.example SIP/2.0\r\n",
            "INVITE sip:bob@192.0.2.9 SIP/2.0\r\nVia: SIP/2.0/UDP proxy.example;branch=z9hG4bKp\r\nRecord-Route: <sip:proxy.example;lr>\r\n",
        )
        .replace("Max-Forwards:  9 ", "Max-Forwards:  8 ")
        .replace("Route: <sip:p1.example;lr>, ", "Route: ")
        .replace("\r\n\r\nbody", "\r\nP-Asserted-Identity: <sip:a@a.example>\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(text, expected);
    assert!(slices <= 16, "{slices}");
}

#[test]
fn routes_are_left_out_across_fields() {
    for (n, left) in [(1, vec!["p2", "p3"]), (2, vec!["p3"]), (3, vec![])] {
        let (text, _) = forwarded(
            INVITE,
            &Edits {
                drop_routes: n,
                ..Edits::default()
            },
        )
        .expect("room");
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).expect("well-formed");
        let routes: Vec<_> = message
            .routes()
            .map(|route| route.expect("well-formed").uri)
            .collect();
        let expected: Vec<_> = left
            .iter()
            .map(|name| format!("sip:{name}.example;lr").into_bytes())
            .collect();
        assert_eq!(routes, expected);
    }
    assert_eq!(
        forwarded(
            INVITE,
            &Edits {
                drop_routes: 4,
                ..Edits::default()
            }
        ),
        Err(BuildError::Malformed)
    );
}

#[test]
fn a_response_loses_its_topmost_via_and_only_that() {
    let drop = Edits {
        drop_top_via: true,
        ..Edits::default()
    };
    let ok = INVITE.replace("INVITE sip:bob@b.example SIP/2.0", "SIP/2.0 200 OK");
    let (once, _) = forwarded(&ok, &drop).expect("room");
    assert!(once.contains("\r\nv: SIP/2.0/UDP q.example\r\nVia: SIP/2.0/TCP"));
    let (twice, _) = forwarded(&once, &drop).expect("room");
    assert!(twice.starts_with("SIP/2.0 200 OK\r\nVia: SIP/2.0/TCP"));
    let (thrice, _) = forwarded(&twice, &drop).expect("room");
    assert!(thrice.starts_with("SIP/2.0 200 OK\r\nMax-Forwards"));
    assert_eq!(forwarded(&thrice, &drop), Err(BuildError::Malformed));
}

#[test]
fn commas_in_quoted_strings_separate_no_values() {
    let drop = Edits {
        drop_top_via: true,
        drop_overload: true,
        ..Edits::default()
    };
    let rest = "Via: SIP/2.0/UDP b;branch=2\r\nContent-Length: 0\r\n\r\n";
    let top = "Via: SIP/2.0/UDP a;branch=1;oc;oc-algo=\"loss,rate\"";
    for (top, left) in [
        (top.to_owned(), ""),
        (format!("{top},SIP/2.0/UDP c"), "Via: SIP/2.0/UDP c\r\n"),
        (
            format!("{top} , SIP/2.0/UDP c;oc=1;x=\"a,b\""),
            "Via: SIP/2.0/UDP c;x=\"a,b\"\r\n",
        ),
    ] {
        let text = format!("SIP/2.0 200 OK\r\n{top}\r\n{rest}");
        let (made, _) = forwarded(&text, &drop).expect("room");
        assert_eq!(made, format!("SIP/2.0 200 OK\r\n{left}{rest}"));
    }
    let drop_route = Edits {
        drop_routes: 1,
        ..Edits::default()
    };
    for (route, left) in [
        ("<sip:a,b@h>", Some("")),
        ("\"a,b\" <sip:h;lr>", Some("")),
        (
            "<sip:a\"b@h>, <sip:c\"d@h>",
            Some("Route: <sip:c\"d@h>\r\n"),
        ),
        ("", None),
    ] {
        let text = format!("OPTIONS sip:b SIP/2.0\r\nRoute: {route}\r\n{rest}");
        let made = forwarded(&text, &drop_route).map(|(made, _)| made);
        let expected = left.map(|left| format!("OPTIONS sip:b SIP/2.0\r\n{left}{rest}"));
        assert_eq!(made, expected.ok_or(BuildError::Malformed), "{route}");
    }
    let open = format!("SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;x=\"b\r\n{rest}");
    assert_eq!(forwarded(&open, &drop), Err(BuildError::Malformed));
}

#[test]
fn kinds_are_left_out_and_max_forwards_is_added() {
    let edits = Edits {
        drop_kinds: &[HeaderKind::Route, HeaderKind::MaxForwards],
        ..Edits::default()
    };
    let (text, _) = forwarded(INVITE, &edits).expect("room");
    assert!(!text.contains("Route") && !text.contains("Max-Forwards"));
    let (text, _) = forwarded(
        &text,
        &Edits {
            max_forwards: Some(70),
            ..Edits::default()
        },
    )
    .expect("room");
    assert!(text.contains("it is\r\nContent-Length: 4\r\nMax-Forwards: 70\r\n\r\nbody"));
}

#[test]
fn a_request_is_built_from_nothing() {
    let mut buffer = [0; 512];
    let mut request = Builder::request(&mut buffer, Method::Register, b"sip:example.com");
    request
        .header(HeaderKind::Via, b"SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1")
        .number(HeaderKind::MaxForwards, 70)
        .header(HeaderKind::From, b"<sip:a@example.com>;tag=1")
        .header(HeaderKind::To, b"<sip:a@example.com>")
        .header(HeaderKind::CallId, b"1@192.0.2.1")
        .header_of(
            HeaderKind::CSeq,
            &[Part::Number(1), Part::Bytes(b" REGISTER")],
        );
    let bytes = request.finish_with(b"text").expect("room");
    let mut spans = Spans::new();
    let message = Message::parse(bytes, &mut spans).expect("well-formed");
    assert_eq!(message.cseq().map(|cseq| cseq.method), Ok(Method::Register));
    assert_eq!(message.body(), b"text");
}

#[test]
fn a_forwarded_message_has_the_version_in_upper_case_rfc3261_7_1() {
    let fields = "Via: SIP/2.0/UDP a\r\nContent-Length: 0\r\n\r\n";
    for (line, uri, wanted) in [
        ("MESSAGE sip:x sip/2.0", None, "MESSAGE sip:x SIP/2.0"),
        (
            "MESSAGE sip:x Sip/2.0",
            Some(&b"sip:y"[..]),
            "MESSAGE sip:y SIP/2.0",
        ),
        ("MESSAGE sip:x SIP/2.0", None, "MESSAGE sip:x SIP/2.0"),
        ("sip/2.0 200 OK", None, "SIP/2.0 200 OK"),
    ] {
        let bytes = format!("{line}\r\n{fields}");
        let mut spans = Spans::default();
        let message = Message::parse(bytes.as_bytes(), &mut spans).unwrap();
        let edits = Edits {
            request_uri: uri,
            on_top: b"X: y\r\n",
            ..Edits::default()
        };
        let mut scratch = [0; 512];
        let forwarded = forward(&message, &edits, &mut scratch).unwrap();
        let text = String::from_utf8(forwarded.slices().concat()).unwrap();
        assert_eq!(text, format!("{wanted}\r\nX: y\r\n{fields}"));
    }
}
