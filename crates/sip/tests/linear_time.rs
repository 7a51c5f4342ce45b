//! An adversary can make a message large, but not expensive beyond its size.

use core::hint::black_box;
use std::time::Duration;

use hairpin_sip as sip;
use sip::build::{Builder, Edits, Stamp, forward};
use sip::digest::Credentials;
use sip::frame::{Frame, Framer, Opened};
use sip::header::{Authorization, HeaderKind};
use sip::verdict::{Rules, judge};
use sip::{Framing, Limits, Message, Scan, Spans, Uri};

/// Bytes of a large message.
const LARGE: usize = 60_000;

/// Something repeated up to a length, in one field or in many.
fn adversaries() -> Vec<(&'static str, String, &'static str, &'static str)> {
    let list = [
        ("commas in a Via", "Via: SIP/2.0/UDP a", ",", ""),
        (
            "Vias in one field",
            "Via: SIP/2.0/UDP a",
            ",SIP/2.0/UDP a",
            "",
        ),
        (
            "Via fields",
            "",
            "Via: SIP/2.0/UDP a;branch=z9hG4bK1\r\n",
            "x: y",
        ),
        ("quotes", "To: ", "\"", ""),
        ("backslashes in quotes", "To: \"", "\\\\", ""),
        ("open quotes and brackets", "Route: ", "\"<", ""),
        ("routes", "Route: <sip:a>", ",<sip:a;lr>", ""),
        ("parameters", "From: <sip:a>", ";a=b", ""),
        ("valueless parameters", "Via: SIP/2.0/UDP a", ";r", ""),
        ("folds", "Subject: ", "\r\n ", "x"),
        ("white space", "CSeq: 1", " ", "INVITE"),
        ("folded separators", "Contact: <sip:a>", "\r\n ;\r\n a", ""),
        ("comments", "Retry-After: 1 ", "(", ""),
        ("escapes", "To: <sip:", "%41", "@a>"),
        ("URI parameters", "To: <sip:a", ";b=c", ">"),
        ("URI headers", "Contact: <sip:a?b=c", "&b=c", ">"),
        ("digits", "Content-Length: ", "0", ""),
        ("credentials", "Authorization: Digest a=b", ", a=b", ""),
        ("empty fields", "", "a:\r\n", "x: y"),
        ("a name without end", "", "a", ": x"),
        ("colons", "", "a::::", ": x"),
        ("tokens", "Require: a", ",a", ""),
        ("stars", "Contact: *", ",*", ""),
        ("display tokens", "From: ", "a ", "<sip:a>"),
        ("media ranges", "Accept: a/b", ", a/b;q=1", ""),
        ("brackets", "Via: SIP/2.0/UDP ", "[", ""),
        ("carriage returns", "Subject: ", "\r", ""),
        ("NULs", "Subject: ", "\0", ""),
    ];
    let fixed = "INVITE sip:b SIP/2.0\r\nCall-ID: a\r\n";
    list.into_iter()
        .map(|(name, start, again, end)| (name, format!("{fixed}{start}"), again, end))
        .collect()
}

fn message(start: &str, again: &str, end: &str, size: usize) -> Vec<u8> {
    let times = size.saturating_sub(start.len() + end.len() + 4) / again.len();
    format!("{start}{}{end}\r\n\r\n", again.repeat(times)).into_bytes()
}

/// Everything that is done with what was received, and more.
fn everything(bytes: &[u8], spans: &mut Spans, buffer: &mut [u8]) {
    let limits = Limits::DEFAULT;
    if let Ok(scan) = Scan::of(bytes, &limits)
        && let Some(request) = scan.answerable()
    {
        let stamp = Stamp {
            received: Some([127, 0, 0, 1].into()),
            rport: Some(1),
        };
        let response = Builder::response(buffer, &request, 503, b"", Some(b"t"), stamp);
        black_box(response.finish().is_ok());
    }
    for rules in [&Rules::PROXY, &Rules::USER_AGENT] {
        black_box(judge(bytes, spans, Framing::Datagram, &limits, rules));
    }
    let Ok(message) = Message::parse(bytes, spans) else {
        return;
    };
    black_box((
        message.vias().count(),
        message.routes().count(),
        message.contacts().count(),
    ));
    black_box((
        message.from().is_ok(),
        message.retry_after().is_ok(),
        message.cseq().is_ok(),
    ));
    if let Ok(Ok(uri)) = message.to().map(|to| to.parse_uri()) {
        let again = uri;
        black_box(uri == again);
    }
    for contact in message.contacts().flatten() {
        if let sip::header::Contact::Addr(addr) = contact {
            black_box(addr.parse_uri().is_ok_and(is_itself));
        }
    }
    black_box(message.tokens(HeaderKind::Require).count());
    let mut scratch = [0; 1024];
    black_box(
        forward(
            &message,
            &Edits {
                max_forwards: Some(1),
                drop_routes: 1,
                ..Edits::default()
            },
            &mut scratch,
        )
        .is_ok(),
    );
    for header in message.headers(HeaderKind::Authorization) {
        black_box(
            Authorization::parse(header.value)
                .and_then(|authorization| Credentials::of(&authorization))
                .is_some(),
        );
    }
}

fn is_itself(uri: Uri<'_>) -> bool {
    let again = uri;
    uri == again
}

/// The best of several runs, so that other work on the machine does not count.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test measures real time"
)]
fn best_time(mut run: impl FnMut()) -> Duration {
    let times = (0..9).map(|_| {
        let start = std::time::Instant::now();
        run();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

/// The times of a small and a large input whose ratio is acceptable, else those of the last attempt. Quadratic work
/// fails in every attempt; other work on the machine does not.
fn calmest(mut times: impl FnMut() -> (Duration, Duration)) -> (Duration, Duration) {
    let mut last = times();
    for _ in 0..20 {
        let (small, large) = last;
        if large < small * 16 * 4 + Duration::from_micros(200) {
            break;
        }
        last = times();
    }
    last
}

#[test]
fn sixteen_times_the_message_takes_no_more_than_sixteen_times_the_time() {
    let (mut spans, mut buffer) = (Spans::new(), vec![0; 140_000]);
    for (name, start, again, end) in adversaries() {
        let mut time = |size| {
            let bytes = message(&start, again, end, size);
            best_time(|| everything(&bytes, &mut spans, &mut buffer))
        };
        let (small, large) = calmest(|| (time(LARGE / 16), time(LARGE)));
        // Quadratic work would show a factor of 256. The rest is room for caches and a busy machine.
        assert!(
            large < small * 16 * 4 + Duration::from_micros(200),
            "{name}: {small:?} to {large:?}"
        );
        assert!(
            large < Duration::from_millis(200),
            "{name}: {large:?} for 60 kB"
        );
    }
}

#[test]
fn a_uri_of_64_kb_is_no_more_than_linear_either() {
    for (start, again) in [
        ("sip:a;b", ";b=c"),
        ("sip:", "%41"),
        ("sip:a?b=c", "&b=c"),
        ("tel:+1", "-1"),
        ("x:", "a"),
        ("sip:", ":"),
    ] {
        let time = |size: usize| {
            let text = format!("{start}{}", again.repeat(size / again.len()));
            best_time(|| {
                black_box(Uri::parse(black_box(text.as_bytes())).is_ok_and(is_itself));
            })
        };
        let (small, large) = calmest(|| (time(LARGE / 16), time(LARGE)));
        assert!(
            large < small * 16 * 4 + Duration::from_micros(200),
            "{start}: {small:?} to {large:?}"
        );
    }
}

#[test]
fn a_stream_that_comes_byte_by_byte_is_searched_once() {
    let bytes = message("INVITE sip:b SIP/2.0\r\nl: 0\r\nSubject: ", "x", "", LARGE);
    let time = best_time(|| {
        let mut framer = Framer::new(Opened::ByPeer);
        for end in 1..bytes.len() {
            let frame = framer.next(&bytes[..end], &Limits::DEFAULT);
            assert!(matches!(frame, Ok(Frame::Need(_))));
        }
        let len = bytes.len();
        assert_eq!(
            framer.next(&bytes, &Limits::DEFAULT),
            Ok(Frame::Message { len })
        );
    });
    // Searched again from the start for each byte, it would be seconds.
    assert!(time < Duration::from_millis(100), "{time:?}");
}
