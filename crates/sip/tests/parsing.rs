//! Messages are read as a whole, and each fault of their form has its name.

use hairpin_sip as sip;
use sip::header::Contact;
use sip::message::MAX_HEADERS;
use sip::{Framing, HeaderError, HeaderKind, Limits, Message, Method, ParseError, Spans};

const INVITE: &[u8] = b"\r\n\r\nINVITE sip:bob@biloxi.example SIP/2.0\r\n\
Via: SIP/2.0/UDP a.example;branch=z9hG4bK1, SIP/2.0/TCP b.example;branch=z9hG4bK2\r\n\
t: Bob\r\n\t<sip:bob@biloxi.example> \r\n\
X-Other :  a, b \r\n\
v: SIP/2.0/TLS c.example:5071\r\n\
FROM: \"Alice, A.\" <sip:alice@atlanta.example>;tag=88sja8x\r\n\
Max-Forwards: 70\r\n\
Call-ID: 987asjd97y7atg@a.example\r\n\
CSeq: 986759 INVITE\r\n\
Route: <sip:p1.example;lr>,<sip:p2.example;lr>\r\n\
route:\r\n <sip:p3.example;lr>\r\n\
m: <sip:alice@a.example>;q=0.7, sip:alice@b.example;expires=60\r\n\
Supported:\r\n\
k: path, 100rel\r\n\
Require: x\r\n\
Empty:\r\n\
l: 4\r\n\
\r\n\
v=0\ntrailing bytes";

#[test]
fn a_message_is_read_in_every_spelling() {
    let mut spans = Spans::new();
    let message = Message::parse(INVITE, &mut spans).expect("well-formed");
    assert_eq!(message.method(), Some(Method::Invite));
    assert_eq!(message.request_uri(), Some(&b"sip:bob@biloxi.example"[..]));
    assert_eq!(message.body(), b"v=0\n");
    assert!(message.as_bytes().starts_with(b"INVITE") && message.as_bytes().ends_with(b"v=0\n"));
    assert!(message.head().ends_with(b"l: 4\r\n\r\n"));
    assert_eq!(message.all_headers().count(), 16);
    let names: Vec<_> = message.headers_named(b"x-OTHER").collect();
    assert_eq!(names.len(), 1);
    assert_eq!(
        (names[0].name, names[0].value, names[0].line),
        (&b"X-Other"[..], &b"a, b"[..], &b"X-Other :  a, b \r\n"[..])
    );
    let empty = message.headers_named(b"Empty").next().expect("there");
    assert_eq!(empty.value, b"");
    assert!(!message.has(HeaderKind::Expires));
}

#[test]
fn typed_headers_are_read_across_fields_and_commas() {
    let mut spans = Spans::new();
    let message = Message::parse(INVITE, &mut spans).expect("well-formed");
    let branches: Vec<_> = message
        .vias()
        .map(|via| via.expect("well-formed").host.as_bytes())
        .collect();
    assert_eq!(branches, [&b"a.example"[..], b"b.example", b"c.example"]);
    assert_eq!(message.via().expect("there").branch, Some(&b"z9hG4bK1"[..]));
    assert_eq!(message.from().expect("there").tag, Some(&b"88sja8x"[..]));
    let to = message.to().expect("there");
    assert_eq!(
        (to.display, to.uri, to.tag),
        (&b"Bob"[..], &b"sip:bob@biloxi.example"[..], None)
    );
    assert_eq!(message.call_id(), Ok(&b"987asjd97y7atg@a.example"[..]));
    let cseq = message.cseq().expect("there");
    assert_eq!((cseq.number, cseq.method), (986_759, Method::Invite));
    assert_eq!(message.max_forwards(), Ok(Some(70)));
    assert_eq!(message.expires(), Ok(None));
    let routes: Vec<_> = message
        .routes()
        .map(|route| route.expect("well-formed").uri)
        .collect();
    assert_eq!(
        routes,
        [
            &b"sip:p1.example;lr"[..],
            b"sip:p2.example;lr",
            b"sip:p3.example;lr"
        ]
    );
    let contacts: Vec<_> = message.contacts().map(Result::unwrap).collect();
    let [Contact::Addr(first), Contact::Addr(second)] = contacts[..] else {
        panic!("two addresses")
    };
    assert_eq!((first.q(), second.expires()), (Some(700), Some(60)));
    assert_eq!(
        message.supported().collect::<Result<Vec<_>, _>>(),
        Ok(vec![&b"path"[..], b"100rel"])
    );
    assert_eq!(message.require().count(), 1);
    assert_eq!(message.content_length(), Some(4));
    assert_eq!(message.record_routes().count() + message.paths().count(), 0);
}

#[test]
fn a_header_that_is_not_usable_says_so() {
    let text = b"OPTIONS sip:a SIP/2.0\r\nVia: SIP/2.0/UDP a, oops\r\nFrom: <sip:a>\r\nFrom: <sip:b>\r\nTo: \"a <sip:b>\r\n\
        CSeq: x\r\nExpires: 99999999999999999\r\nMax-Forwards: 256\r\nRoute: <sip:a>,\r\n\r\n";
    let mut spans = Spans::new();
    let message = Message::parse(text, &mut spans).expect("well-formed");
    use HeaderKind::{CSeq, CallId, From, MaxForwards, Route, To, Via};
    assert!(
        message.via().is_ok(),
        "values below the topmost are not looked at"
    );
    assert_eq!(message.vias().nth(1).map(|via| via.is_err()), Some(true));
    assert_eq!(message.vias().count(), 2, "an error is the last item");
    assert_eq!(message.from().err(), Some(HeaderError::Repeated(From)));
    assert_eq!(message.to().err(), Some(HeaderError::Malformed(To)));
    assert_eq!(message.call_id(), Err(HeaderError::Missing(CallId)));
    assert_eq!(message.cseq(), Err(HeaderError::Malformed(CSeq)));
    assert_eq!(message.expires(), Ok(Some(u32::MAX)));
    assert_eq!(
        message.max_forwards(),
        Err(HeaderError::Malformed(MaxForwards))
    );
    assert_eq!(
        message.routes().nth(1).map(|route| route.err()),
        Some(Some(HeaderError::Malformed(Route)))
    );
    assert_eq!(HeaderError::Malformed(Via).to_string(), "Via is malformed");
}

fn error(text: &str, framing: Framing, limits: &Limits) -> Option<ParseError> {
    Message::parse_with(text.as_bytes(), &mut Spans::new(), framing, limits).err()
}

#[test]
fn each_broken_form_has_its_name() {
    let start = "OPTIONS sip:a SIP/2.0\r\n";
    for (rest, expected) in [
        ("", ParseError::Unfinished),
        ("Via: x\r\n", ParseError::Unfinished),
        ("Via: x\r\n\r", ParseError::Unfinished),
        ("Via", ParseError::Unfinished),
        ("Via: x\n\r\n", ParseError::LineEnd),
        ("Via: x\r\r\n\r\n", ParseError::LineEnd),
        ("\n", ParseError::LineEnd),
        (": x\r\n\r\n", ParseError::HeaderName),
        ("Via\r\n\r\n", ParseError::HeaderName),
        (" Via: x\r\n\r\n", ParseError::HeaderName),
        ("V\0a: x\r\n\r\n", ParseError::HeaderName),
        ("l: -1\r\n\r\n", ParseError::ContentLength),
        ("l: \r\n\r\n", ParseError::ContentLength),
        (
            "l: 0\r\nContent-Length: 0\r\n\r\n",
            ParseError::ContentLength,
        ),
        ("l: 1\r\n\r\n", ParseError::BodyUnfinished),
        ("l: 65536\r\n\r\n", ParseError::BodyTooLong),
        ("l: 99999999999999999999\r\n\r\n", ParseError::BodyTooLong),
    ] {
        let text = format!("{start}{rest}");
        assert_eq!(
            error(&text, Framing::Datagram, &Limits::DEFAULT),
            Some(expected),
            "{rest:?}"
        );
    }
    assert_eq!(
        error("\r\n\r\n", Framing::Datagram, &Limits::DEFAULT),
        Some(ParseError::Empty)
    );
    assert_eq!(
        error("", Framing::Datagram, &Limits::DEFAULT),
        Some(ParseError::Empty)
    );
    let bare = format!("{start}\r\n");
    assert_eq!(
        error(&bare, Framing::Stream, &Limits::DEFAULT),
        Some(ParseError::ContentLengthMissing)
    );
    assert_eq!(error(&bare, Framing::Datagram, &Limits::DEFAULT), None);
}

#[test]
fn limits_hold_to_the_byte() {
    let text = "OPTIONS sip:a SIP/2.0\r\na: b\r\nc: d\r\n\r\nbody";
    let head = text.len() - 4;
    let tight = Limits {
        head_bytes: head,
        headers: 2,
        uri_bytes: 5,
        body_bytes: 4,
    };
    assert_eq!(error(text, Framing::Datagram, &tight), None);
    for (limits, expected) in [
        (
            Limits {
                head_bytes: head - 1,
                ..tight
            },
            ParseError::HeadTooLong,
        ),
        (
            Limits {
                head_bytes: 10,
                ..tight
            },
            ParseError::HeadTooLong,
        ),
        (
            Limits {
                headers: 1,
                ..tight
            },
            ParseError::TooManyHeaders,
        ),
        (
            Limits {
                uri_bytes: 4,
                ..tight
            },
            ParseError::UriTooLong,
        ),
        (
            Limits {
                body_bytes: 3,
                ..tight
            },
            ParseError::BodyTooLong,
        ),
    ] {
        assert_eq!(error(text, Framing::Datagram, &limits), Some(expected));
    }
    let many = |n: usize| format!("OPTIONS sip:a SIP/2.0\r\n{}\r\n", "a:\r\n".repeat(n));
    assert_eq!(
        error(&many(MAX_HEADERS), Framing::Datagram, &Limits::DEFAULT),
        None
    );
    assert_eq!(
        error(&many(MAX_HEADERS + 1), Framing::Datagram, &Limits::DEFAULT),
        Some(ParseError::TooManyHeaders)
    );
}

#[test]
fn a_value_of_folds_alone_is_empty() {
    let text =
        b"OPTIONS sip:a SIP/2.0\r\nSubject: \r\n \r\n\t\r\nTo:\r\n  \r\n <sip:b>\r\n \r\n\r\n";
    let mut spans = Spans::new();
    let message = Message::parse(text, &mut spans).expect("well-formed");
    assert_eq!(
        message
            .header(HeaderKind::Subject)
            .map(|subject| subject.value),
        Some(&b""[..])
    );
    assert_eq!(message.to().map(|to| to.uri), Ok(&b"sip:b"[..]));
}
