//! Nothing on the way of a message touches the heap.

extern crate hairpin_sip as sip;

#[expect(
    dead_code,
    reason = "making requests up is for who takes its time off the others"
)]
#[path = "../examples/engine/bed.rs"]
mod bed;

use core::hint::black_box;

use bed::{Operation, TestBed};
use sip::build::{Builder, Edits, Stamp, Tag, forward};
use sip::digest::{
    Algorithm, Credentials, DigestRequest, Ha1, NONCE_LEN, NonceKeys, Policy, Replay, Server,
    challenge,
};
use sip::frame::{Framer, Opened};
use sip::verdict::{Rules, Verdict, judge};
use sip::{Framing, HashKey, HeaderKind, Limits, Message, Method, Scan, Spans, Uri};

const INVITE: &[u8] = include_bytes!("torture/wsinv.dat");
const LONG: &[u8] = include_bytes!("torture/longreq.dat");
const REGISTER: &[u8] = b"REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP a;rport;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:a@b>\r\n\
    Call-ID: a\r\nCSeq: 1 REGISTER\r\nContact: <sip:a@c;x>;expires=60\r\nAuthorization: Digest username=\"a\", realm=\"b\", nonce=\"c\",\
    uri=\"sip:example.com\", response=\"d\", qop=auth, nc=00000001, cnonce=\"e\"\r\nl: 0\r\n\r\n";

fn assert_no_allocation(run: impl FnOnce()) {
    let counted = allocation_counter::measure(run);
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(black_box(vec![1_u8; 100])));
    assert_eq!((counted.count_total, counted.bytes_total), (1, 100));
}

#[test]
fn parsing_and_reading_do_not_allocate() {
    let mut spans = Spans::new();
    assert_no_allocation(|| {
        for bytes in [INVITE, LONG, REGISTER] {
            let message = Message::parse(bytes, &mut spans).expect("well-formed");
            assert!(message.vias().all(|via| via.is_ok()));
            assert!(message.from().is_ok() && message.to().is_ok() && message.cseq().is_ok());
            assert!(message.contacts().all(|contact| contact.is_ok()));
            assert!(message.routes().all(|route| route.is_ok()));
            let uri = message.to().map(|to| to.parse_uri());
            assert!(uri.is_ok_and(|uri| uri.is_ok()));
            assert_eq!(message.headers_named(b"nothing").count(), 0);
        }
        assert!(Uri::parse(b"tel:+1-2;ext=3") == Uri::parse(b"tel:+12;ext=3"));
    });
}

#[test]
fn refusing_and_forwarding_do_not_allocate() {
    let (mut spans, mut buffer, mut scratch) = (Spans::new(), [0; 8192], [0; 1024]);
    assert_no_allocation(|| {
        let scan = Scan::of(INVITE, &Limits::DEFAULT).expect("a request");
        let request = scan.answerable().expect("a request");
        let source = "192.0.2.1:5060".parse().expect("an address");
        let stamp = Stamp::of(request.top_via(), source);
        let tag = Tag::new([1; 8]);
        let mut response =
            Builder::response(&mut buffer, &request, 503, b"", Some(tag.as_bytes()), stamp);
        response.number(HeaderKind::RetryAfter, 3);
        assert!(response.finish().is_ok());

        let verdict = judge(
            LONG,
            &mut spans,
            Framing::Datagram,
            &Limits::DEFAULT,
            &Rules::PROXY,
        );
        let Verdict::Accept(message) = verdict else {
            panic!("well-formed")
        };
        let edits = Edits {
            stamp,
            max_forwards: Some(5),
            on_top: b"Via: SIP/2.0/UDP x\r\n",
            ..Edits::default()
        };
        let gather = forward(&message, &edits, &mut scratch).expect("room");
        assert!(gather.copy_to(&mut buffer).is_ok());

        let bad = b"INVITE sip:a b SIP/2.0\r\nv: SIP/2.0/UDP a\r\n\r\n";
        let verdict = judge(
            bad,
            &mut spans,
            Framing::Datagram,
            &Limits::DEFAULT,
            &Rules::PROXY,
        );
        let Verdict::Answer(request, refusal) = verdict else {
            panic!("refused")
        };
        assert!(
            refusal
                .write(&mut buffer, &request, &Rules::PROXY, b"t", stamp)
                .is_ok()
        );
        assert!(
            Framer::new(Opened::ByPeer)
                .next(REGISTER, &Limits::DEFAULT)
                .is_ok()
        );
    });
}

#[test]
fn authentication_does_not_allocate() {
    let (mut spans, mut buffer) = (Spans::new(), [0; 2048]);
    // It grows when more clients come.
    let mut replay = Replay::new(16, 9);
    assert_no_allocation(|| {
        let keys = NonceKeys::new(HashKey::new([1; 16]));
        let policy = Policy {
            realm: b"b",
            algorithms: &Algorithm::ALL,
            nonce_lifetime_s: 9,
            takes_no_qop: false,
            takes_any_uri: false,
            offers_integrity: false,
            hashes_usernames: false,
        };
        let server = Server {
            policy: &policy,
            keys: &keys,
        };
        let mut nonce = [0; NONCE_LEN];
        keys.issue(b"b", b"", [1; 6], 1, &mut nonce);
        let mut response = Builder::status(&mut buffer, 401, b"Unauthorized");
        challenge(
            &mut response,
            HeaderKind::WwwAuthenticate,
            &policy,
            &nonce,
            false,
        );
        assert!(response.finish().is_ok());
        let message = Message::parse(REGISTER, &mut spans).expect("well-formed");
        let authorization = message
            .authorizations(HeaderKind::Authorization)
            .flatten()
            .next();
        let credentials = authorization
            .and_then(|authorization| Credentials::of(&authorization))
            .expect("whole");
        let ha1 = Ha1::of(Algorithm::Md5, b"a", b"b", b"p");
        let asked = DigestRequest {
            method: Method::Register,
            uri: b"sip:example.com",
            body: b"",
            source: b"",
        };
        assert!(server.check(&credentials, &asked, 1).is_err());
        let note = |id, issued, count| replay.note(id, issued, count);
        black_box(server.verify(&credentials, &asked, Some(&ha1), 1, note));
        assert!(matches!(
            credentials.name(),
            std::borrow::Cow::Borrowed(b"a")
        ));
    });
}

/// In an overload, this check comes before the message is parsed, and anybody can make credentials up.
#[test]
fn the_look_for_a_fresh_nonce_does_not_allocate() {
    let keys = NonceKeys::new(HashKey::new([1; 16]));
    let mut nonce = [0; NONCE_LEN];
    keys.issue(b"a \"realm\"", b"s", [1; 6], 1, &mut nonce);
    let nonce = std::str::from_utf8(&nonce).expect("digits");
    let with = |realm: &str| format!("Digest nonce=\"{nonce}\", realm=\"{realm}\"");
    let (ours, long) = (with("a \\\"realm\\\""), with(&"\\x".repeat(10_000)));
    assert_no_allocation(|| {
        assert!(keys.has_valid(ours.as_bytes(), b"s", 1, 9));
        assert!(!keys.has_valid(long.as_bytes(), b"s", 1, 9));
    });
}

#[test]
fn transactions_that_come_and_go_do_not_allocate() {
    for (name, operation) in Operation::ALL {
        // About 64 are alive at any time: what they take was taken in the beginning.
        let mut bed = TestBed::new(operation, 2).expect(name);
        let mut repeat = |count| {
            (0..count).for_each(|_| bed.once().expect(name));
        };
        repeat(5_000);
        let counted = allocation_counter::measure(|| repeat(1_000));
        assert_eq!(counted.count_total, 0, "{name}");
    }
}
