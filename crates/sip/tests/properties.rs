//! What holds for any input: nothing panics, and what is written is read again.

use hairpin_sip as sip;
use proptest::prelude::*;
use sip::build::{Builder, Part};
use sip::{HeaderKind, Message, Method, Spans};

#[expect(
    unreachable_pub,
    reason = "the fuzz targets use it as a module of a library"
)]
#[path = "../../../fuzz/src/sip.rs"]
mod targets;

const INVITE: &[u8] = include_bytes!("torture/wsinv.dat");
const ODD: &[u8] = include_bytes!("torture/intmeth.dat");
const RESPONSE: &[u8] = include_bytes!("torture/bcast.dat");
const CREDENTIALS: &[u8] = b"Digest username=\"a\", realm=\"r\", nonce=\"n\", uri=\"sip:x\", response=\"0\", nc=00000001, qop=auth";

/// Bytes that mean something to a parser, more often than chance would have them.
fn telling_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => prop::sample::select(&b"\r\n \t\"\\<>,;:=@%[]()/?&*.0aSIP"[..]),
        1 => any::<u8>(),
    ]
}

/// A message with a few bytes replaced, left out or put in.
fn mutated(original: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let changes = (any::<prop::sample::Index>(), telling_byte(), 0_u8..3);
    prop::collection::vec(changes, 0..8).prop_map(move |changes| {
        let mut bytes = original.to_vec();
        for (index, byte, how) in changes {
            let at = index.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

/// A value without white space around it and without line ends.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(|mut bytes| {
        bytes.retain(|byte| !matches!(byte, b'\r' | b'\n'));
        bytes.trim_ascii().to_vec()
    })
}

fn header() -> impl Strategy<Value = (String, Vec<u8>)> {
    let named = prop::sample::select(HeaderKind::NAMED).prop_map(|kind| kind.name().to_owned());
    let name = prop_oneof![named, "[A-Za-z0-9!%*_+`'~.-]{1,20}", "[a-z]"];
    (name, value()).prop_filter("one Content-Length is ours", |(name, _)| {
        HeaderKind::of(name.as_bytes()) != HeaderKind::ContentLength
    })
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(telling_byte(), 0..400)) {
        targets::message(&bytes);
        targets::uri(&bytes);
        targets::stream(&bytes);
        targets::digest(&bytes);
    }

    #[test]
    fn no_mutation_of_a_message_panics(
        bytes in prop_oneof![mutated(INVITE), mutated(ODD), mutated(RESPONSE)],
    ) {
        targets::message(&bytes);
        targets::stream(&bytes);
    }

    #[test]
    fn no_mutation_of_a_uri_or_of_credentials_panics(
        uri in mutated(b"sips:u%20x:p@[2001:db8::1]:5061;transport=tcp;lr;x=%41?a=b&c=%20"),
        credentials in mutated(CREDENTIALS),
    ) {
        targets::uri(&uri);
        targets::digest(&credentials);
    }

    #[test]
    fn written_messages_are_read_again(
        headers in prop::collection::vec(header(), 0..20),
        body in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut buffer = vec![0; 8192];
        let mut builder = Builder::request(&mut buffer, Method::Other(b"X-y"), b"sip:a@b");
        for (name, value) in &headers {
            builder.named(name.as_bytes(), &[Part::Bytes(value)]);
        }
        let bytes = builder.finish_with(&body).expect("room");
        let mut spans = Spans::new();
        let message = Message::parse(bytes, &mut spans).expect("written by us");
        prop_assert_eq!(message.as_bytes(), bytes);
        prop_assert_eq!(message.method(), Some(Method::Other(b"X-y")));
        prop_assert_eq!(message.body(), &body[..]);
        let read: Vec<_> = message.all_headers().map(|header| (header.name, header.value)).collect();
        let written = headers.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
        let length = body.len().to_string();
        let last = (&b"Content-Length"[..], length.as_bytes());
        prop_assert_eq!(read, written.chain([last]).collect::<Vec<_>>());
        targets::message(bytes);
    }

    #[test]
    fn equal_uris_stay_equal_however_they_are_escaped(user in "[a-zA-Z0-9_.~-]{1,12}", host in "[a-z]{1,8}") {
        let escaped: String = user.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let plain = format!("sip:{user}@{host};a=b;c");
        let other = format!("SIP:{escaped}@{};C;A=B", host.to_uppercase());
        let parse = |text: &'static [u8]| sip::Uri::parse(text).expect("a URI");
        prop_assert!(parse(plain.into_bytes().leak()) == parse(other.into_bytes().leak()));
    }
}
