//! What the SIP targets do with an input, shared with the test in crates/sip that replays the corpus.
//!
//! Besides not panicking, these check what must hold for any input.

use hairpin_sip as sip;
use sip::build::{Builder, Edits, Stamp, forward};
use sip::digest::{
    Challenge, Confirmation, Credentials, DigestResponse, NONCE_LEN, NonceCheck, NonceKeys,
};
use sip::frame::{Frame, Framer, Opened, Packet};
use sip::header::{Authorization, Contact, HeaderKind, NameAddr};
use sip::verdict::{Rules, Verdict, judge};
use sip::{Framing, HashKey, Limits, Message, Scan, Spans, Uri};

/// Parses a datagram, asks it everything, answers it and forwards it.
pub fn message(datagram: &[u8]) {
    verdicts(datagram);
    let scan = Scan::of(datagram, &Limits::DEFAULT);
    let mut spans = Spans::new();
    let Ok(message) = Message::parse(datagram, &mut spans) else {
        return;
    };
    assert_eq!(Packet::of(datagram), Packet::Sip);
    assert!(message.as_bytes().len() <= datagram.len());
    assert_eq!(
        message.head().len() + message.body().len(),
        message.as_bytes().len()
    );
    let fields: usize = message.all_headers().map(|header| header.line.len()).sum();
    let first_line = message.head().windows(2).position(|pair| pair == b"\r\n");
    assert_eq!(
        first_line.expect("a line") + 2 + fields + 2,
        message.head().len()
    );
    for header in message.all_headers() {
        assert!(header.line.starts_with(header.name));
        assert_eq!(HeaderKind::of(header.name), header.kind);
        assert!(message.headers(header.kind).any(|other| other == header));
    }
    agrees(&message, &scan.expect("tolerates more"));
    read_all(&message);
    forwarded(&message);
}

/// What was scanned is what was parsed.
fn agrees(message: &Message<'_>, scan: &Scan<'_>) {
    assert_eq!((scan.error, scan.head()), (None, message.head()));
    assert_eq!(
        (scan.method, scan.status_code),
        (message.method(), message.status_code())
    );
    let first = |kind| message.header(kind).map(|header| header.value);
    for (scanned, kind) in [
        (scan.via, HeaderKind::Via),
        (scan.from, HeaderKind::From),
        (scan.to, HeaderKind::To),
        (scan.call_id, HeaderKind::CallId),
        (scan.cseq, HeaderKind::CSeq),
    ] {
        assert_eq!(scanned, first(kind));
    }
    let (ours, theirs) = (message.answerable(), scan.answerable());
    assert_eq!(ours.is_some(), theirs.is_some());
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return;
    };
    let source = "192.0.2.1:5060".parse().expect("an address");
    let stamp = Stamp::of(ours.top_via(), source);
    let [mut one, mut other] = [0, 0].map(|byte| vec![byte; 70_000]);
    let one = Builder::response(&mut one, &ours, 400, b"", Some(b"t"), stamp).finish();
    let other = Builder::response(&mut other, &theirs, 400, b"", Some(b"t"), stamp).finish();
    assert_eq!(one, other);
    let mut spans = Spans::new();
    let answer = Message::parse(one.expect("room"), &mut spans).expect("written by us");
    assert_eq!(
        answer.vias().next().is_some(),
        message.vias().next().is_some()
    );
}

/// Reads every header as everything it may be; URIs and lists within, too.
fn read_all(message: &Message<'_>) {
    let _ = format!("{message:?}");
    let _ = (
        message.cseq(),
        message.call_id(),
        message.max_forwards(),
        message.expires(),
    );
    let _ = (
        message.min_expires(),
        message.retry_after(),
        message.content_type(),
    );
    for via in message.vias().flatten() {
        assert!(
            message
                .as_bytes()
                .windows(via.bytes.len())
                .any(|window| window == via.bytes)
        );
        let _ = (
            via.params.iter().count(),
            via.has_magic_cookie(),
            via.port_or_default(),
        );
    }
    for &kind in HeaderKind::NAMED {
        let _ = message.tokens(kind).count();
        let _ = message.address(kind).map(read_address);
        message.addresses(kind).flatten().for_each(read_address);
    }
    for contact in message.contacts().flatten() {
        if let Contact::Addr(address) = contact {
            read_address(address);
        }
    }
}

fn read_address(address: NameAddr<'_>) {
    let _ = (address.expires(), address.q(), address.params.get(b"x"));
    uri(address.uri);
}

/// Whatever is forwarded is the same message, and stays it.
fn forwarded(message: &Message<'_>) {
    let mut scratch = vec![0; 70_000];
    let gather = forward(message, &Edits::default(), &mut scratch).expect("nothing to do");
    let mut buffer = vec![0; message.as_bytes().len() + 64];
    let copy = gather.copy_to(&mut buffer).expect("room");
    let mut spans = Spans::new();
    let again = Message::parse(copy, &mut spans);
    // A header as long as it may be has no room for the Content-Length that is added.
    let Ok(again) = again else {
        assert!(
            message.head().len() > 65_500
                || message.all_headers().count() == sip::message::MAX_HEADERS
        );
        return;
    };
    assert_eq!(
        (again.start_line(), again.body()),
        (message.start_line(), message.body())
    );
    assert!(
        again
            .all_headers()
            .map(|h| h.line)
            .take(message.all_headers().count())
            .eq(message.all_headers().map(|h| h.line))
    );
    let edits = Edits {
        request_uri: Some(b"sip:new.example"),
        on_top: b"Via: SIP/2.0/UDP us.example;branch=z9hG4bKus\r\n",
        max_forwards: Some(9),
        drop_routes: usize::from(message.routes().next().is_some_and(|route| route.is_ok())),
        ..Edits::default()
    };
    let mut scratch = vec![0; 70_000];
    let Ok(gather) = forward(message, &edits, &mut scratch) else {
        return;
    };
    let mut buffer = vec![0; message.as_bytes().len() + 512];
    let copy = gather.copy_to(&mut buffer).expect("room");
    let mut spans = Spans::new();
    if let Ok(again) = Message::parse(copy, &mut spans) {
        assert_eq!(again.via().expect("ours").branch, Some(&b"z9hG4bKus"[..]));
        assert_eq!(
            again.routes().count() + edits.drop_routes,
            message.routes().count()
        );
        assert_eq!(again.body(), message.body());
    }
}

/// Says what is to be done, as every element, and does it.
fn verdicts(bytes: &[u8]) {
    for rules in [&Rules::USER_AGENT, &Rules::PROXY] {
        for framing in [Framing::Datagram, Framing::Stream] {
            let mut spans = Spans::new();
            let verdict = judge(bytes, &mut spans, framing, &Limits::DEFAULT, rules);
            if let Verdict::Answer(answerable, refusal) = verdict {
                let mut buffer = vec![0; 140_000];
                let answer = refusal.write(&mut buffer, &answerable, rules, b"t", Stamp::default());
                let answer = answer.expect("room");
                assert!(answer.starts_with(b"SIP/2.0 ") && answer.ends_with(b"\r\n\r\n"));
            }
        }
    }
}

/// Reads a URI and compares it.
pub fn uri(text: &[u8]) {
    let Ok(uri) = Uri::parse(text) else {
        return;
    };
    let again = uri;
    assert!(uri == again);
    let mut plain = vec![0; text.len()];
    assert!(sip::uri::unescape(text, &mut plain).is_some() || uri.as_sip().is_none());
    if let Some(sip) = uri.as_sip() {
        let _ = (
            sip.transport(),
            sip.maddr(),
            sip.is_loose(),
            sip.port_or_default(),
        );
        let _ = (sip.params.iter().count(), sip.headers.iter().count());
        let user = sip.user.unwrap_or_default();
        let mut plain = vec![0; user.len()];
        let plain = sip::uri::unescape(user, &mut plain).expect("checked");
        let mut escaped = vec![0; plain.len() * 3];
        assert!(sip::uri::escape_user(plain, &mut escaped).is_some());
    }
}

/// Cuts a stream as it arrives byte by byte and as a whole: the same.
pub fn stream(bytes: &[u8]) {
    let limits = Limits::DEFAULT;
    let (mut whole, mut piecewise) = (Framer::new(Opened::ByUs), Framer::new(Opened::ByUs));
    let (mut start, mut end) = (0, 0);
    loop {
        let rest = &bytes[start..];
        let expected = whole.next(rest, &limits);
        end = end.max(start);
        let found = loop {
            match piecewise.next(&bytes[start..end], &limits) {
                Ok(Frame::Need(need)) if end < bytes.len() => {
                    assert!(need > end - start);
                    end += 1;
                }
                other => break other,
            }
        };
        match (expected, found) {
            (Ok(Frame::Message { len }), Ok(Frame::Message { len: same })) => {
                assert_eq!(len, same);
                message(&rest[..len]);
                let mut spans = Spans::new();
                let parsed =
                    Message::parse_with(&rest[..len], &mut spans, Framing::Stream, &limits);
                assert!(
                    parsed.is_ok_and(|parsed| parsed.as_bytes().len() == len)
                        || is_start_line_wrong(&rest[..len])
                );
                start += len;
            }
            (Ok(Frame::LineEnd { len }), Ok(Frame::LineEnd { len: same })) => {
                assert_eq!(len, same);
                start += len;
            }
            (Ok(Frame::Need(_)), Ok(Frame::Need(_))) => return,
            (expected, found) => {
                assert!(
                    expected.is_err() && found.is_err(),
                    "{expected:?} {found:?}"
                );
                return;
            }
        }
    }
}

/// Framing does not look into the first line, nor for line ends that stand alone in it, nor count fields.
fn is_start_line_wrong(frame: &[u8]) -> bool {
    let mut spans = Spans::new();
    use sip::ParseError::{LineEnd, RequestLine, StatusLine, TooManyHeaders, UriTooLong, Version};
    matches!(
        Message::parse(frame, &mut spans),
        Err(LineEnd | RequestLine | StatusLine | TooManyHeaders | UriTooLong | Version)
    )
}

/// Reads credentials and challenges; no input is a nonce of ours.
pub fn digest(bytes: &[u8]) {
    let mut keys = NonceKeys::new(HashKey::new([0x5A; 16]));
    keys.rotate(HashKey::new([0xA5; 16]));
    assert_eq!(
        keys.check(bytes, b"realm", b"", 0, u64::MAX),
        NonceCheck::Forged
    );
    let mut nonce = [0; NONCE_LEN];
    keys.issue(bytes, bytes, [0; 6], 0, &mut nonce);
    assert!(matches!(
        keys.check(&nonce, bytes, bytes, 0, 0),
        NonceCheck::Valid { .. }
    ));
    let Some(authorization) = Authorization::parse(bytes) else {
        return;
    };
    let _ = authorization.params.iter().count();
    let _ = Confirmation::parse(bytes);
    if let Some(challenge) = Challenge::of(&authorization) {
        answered(&challenge);
    }
    if let Some(credentials) = Credentials::of(&authorization) {
        assert!(credentials.name().len() <= credentials.username.len());
        let names = ["username", "USERNAME"].map(|name| authorization.params.get(name.as_bytes()));
        assert!(names[0].is_some_and(|name| name.len() >= credentials.username.len()));
        assert_eq!(names[0], names[1]);
    }
}

/// What answers a challenge are credentials for it.
fn answered(challenge: &Challenge<'_>) {
    let (name, ha1) = (&br#"a"b\c"#[..], challenge.ha1(b"a", b"p"));
    let answer = DigestResponse {
        challenge,
        username: name,
        ha1: &ha1,
        method: sip::Method::Register,
        uri: b"sip:a",
        body: b"",
        count: 1,
        cnonce: b"c",
    };
    let mut buffer = vec![0; 140_000];
    let mut request = Builder::request(&mut buffer, sip::Method::Register, b"sip:a");
    answer.write(&mut request, HeaderKind::Authorization);
    // A folded challenge cannot be sent back.
    let Ok(request) = request.finish() else {
        return;
    };
    let mut spans = Spans::new();
    let Ok(message) = Message::parse(request, &mut spans) else {
        return;
    };
    let authorization = message.authorizations(HeaderKind::Authorization).next();
    let authorization = authorization.expect("written").expect("well-formed");
    let credentials = Credentials::of(&authorization).expect("whole");
    assert_eq!(credentials.realm, challenge.realm);
    assert_eq!(credentials.nonce, challenge.nonce);
    assert_eq!(credentials.is_hashed, challenge.hashes_username);
    assert!(credentials.is_hashed || *credentials.name() == *name);
}
