//! The admission scan finds what a refusal needs, in messages that are no messages too.

use hairpin_sip as sip;
use sip::build::{Builder, Stamp};
use sip::{Limits, Method, ParseError, Scan};

fn scan(text: &str) -> Result<Scan<'_>, ParseError> {
    Scan::of(text.as_bytes(), &Limits::DEFAULT)
}

const FIELDS: &str = "v: SIP/2.0/UDP a.example;branch=z9hG4bK1\r\nVia: SIP/2.0/UDP b.example\r\nf: <sip:a>;tag=1\r\nTo: <sip:b>;tag=2\r\n\
    i: x@y\r\nCSeq: 7 BYE\r\nProxy-Authorization: Digest p\r\nAuthorization: Digest a\r\nAuthorization: Digest b\r\n";

#[test]
fn it_finds_what_admission_decides_by() {
    let text = format!("\r\nBYE sip:b SIP/2.0\r\n{FIELDS}\r\nbody");
    let scan = scan(&text).expect("a request");
    assert_eq!(scan.method, Some(Method::Bye));
    assert_eq!(
        scan.top_via().expect("well-formed").branch,
        Some(&b"z9hG4bK1"[..])
    );
    assert_eq!(
        (scan.from_tag(), scan.to_tag()),
        (Some(&b"1"[..]), Some(&b"2"[..]))
    );
    assert_eq!(scan.valid_call_id(), Some(&b"x@y"[..]));
    assert_eq!(scan.typed_cseq().map(|cseq| cseq.number), Some(7));
    let credentials = [&b"Digest a"[..], b"Digest p"].map(Some);
    assert_eq!(scan.credentials, credentials);
    assert!(!scan.has_repeated, "each realm has its own credentials");
    assert!(scan.head().ends_with(b"\r\n\r\n"));
    assert!(scan.answerable().is_some());
    assert_eq!(scan.error, None);
}

#[test]
fn a_request_with_a_broken_line_can_still_be_answered() {
    for (line, error) in [
        ("BYE sip:b; lr SIP/2.0", None),
        ("BYE  sip:b  SIP/2.0", None),
        ("BYE sip:b SIP/7.0", None),
    ] {
        let text = format!("{line}\r\n{FIELDS}\r\n");
        let scan = scan(&text).expect("a request");
        assert!(scan.answerable().is_some(), "{line}");
        assert_eq!(scan.error, error);
    }
    let text = format!("BYE sip:b SIP/2.0\r\n{FIELDS}broken\r\n\r\n");
    let scan = scan(&text).expect("a request");
    assert_eq!(scan.error, Some(ParseError::HeaderName));
    assert!(scan.answerable().is_some());
}

#[test]
fn responses_ack_and_requests_without_an_origin_cannot_be_answered() {
    let text = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n");
    let is_answerable = |text: &str| scan(text).expect("something of SIP").answerable().is_some();
    assert!(!is_answerable(&text("SIP/2.0 200 OK", FIELDS)));
    assert!(!is_answerable(&text("ACK sip:b SIP/2.0", FIELDS)));
    // Nothing but the Via says where an answer goes (RFC 4475 §3.3.1).
    let only_via = "Via: SIP/2.0/UDP a.example;;,\r\n";
    assert!(is_answerable(&text("BYE sip:b SIP/2.0", only_via)));
    let no_via = FIELDS.replace("v: ", "x: ").replace("Via: ", "x: ");
    assert!(!is_answerable(&text("BYE sip:b SIP/2.0", &no_via)));
    assert_eq!(
        scan(&text("SIP/2.0 486 Busy", FIELDS))
            .expect("a response")
            .status_code,
        Some(486)
    );
}

#[test]
fn other_protocols_are_recognized_at_once() {
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "\0\u{1}\0\0",
        "INVITE",
        "{}\r\n\r\n",
        "hello\r\nworld\r\n\r\n",
    ] {
        assert_eq!(scan(text).err(), Some(ParseError::RequestLine), "{text:?}");
    }
    assert_eq!(scan("\r\n\r\n").err(), Some(ParseError::Empty));
}

#[test]
fn the_version_is_in_any_case_as_for_the_parser_rfc3261_7_1() {
    for version in ["SIP/2.0", "sip/2.0", "SiP/2.0", "sIp/3.0"] {
        let text = format!("BYE sip:b {version}\r\n{FIELDS}\r\n");
        let scanned = scan(&text).expect("a request");
        assert_eq!(scanned.method, Some(Method::Bye), "{version}");
        assert!(scanned.answerable().is_some(), "{version}");
    }
}

#[test]
fn it_is_bounded() {
    let text = format!("BYE sip:b SIP/2.0\r\n{}{FIELDS}\r\n", "a: b\r\n".repeat(40));
    let few = Limits {
        headers: 30,
        ..Limits::DEFAULT
    };
    let scan = Scan::of(text.as_bytes(), &few).expect("a request");
    assert_eq!(
        (scan.error, scan.via),
        (Some(ParseError::TooManyHeaders), None)
    );
    let short = Limits {
        head_bytes: 100,
        ..Limits::DEFAULT
    };
    let scan = Scan::of(text.as_bytes(), &short).expect("a request");
    assert_eq!(scan.error, Some(ParseError::HeadTooLong));
}

#[test]
fn an_answer_has_all_vias_however_many_there_are() {
    for count in [1, 8, 9, 40] {
        let vias: String = (0..count)
            .map(|n| format!("Via: SIP/2.0/UDP h{n}.example\r\n"))
            .collect();
        let text = format!("BYE sip:b SIP/2.0\r\n{vias}To: <sip:b>\r\n\r\n");
        let scan = scan(&text).expect("a request");
        let mut buffer = [0; 4096];
        let request = scan.answerable().expect("a request");
        let response = Builder::response(&mut buffer, &request, 503, b"", None, Stamp::default());
        let response = String::from_utf8_lossy(response.finish().expect("room")).into_owned();
        assert!(response.contains(&vias), "{count}");
        assert_eq!(response.matches("Via").count(), count);
    }
}
