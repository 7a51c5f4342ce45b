//! The messages printed in RFC 5769 and in RFC 8489, appendix B.

use hairpin_stun as stun;
use stun::{
    AttributeType, Builder, Class, FingerprintState, HmacKey, IceControlled, IntegrityAlgorithm,
    IntegrityError, LongTermKey, Message, Method, Nonce, PasswordAlgorithm, Priority, Realm,
    Software, Userhash, Username, XorMappedAddress, long_term_key, short_term_key_sha1, userhash,
};

/// Reads one of the files beside this test.
fn vector(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect()
}

/// RFC 5769 §2.1 to §2.3 share a short-term password.
const PASSWORD: &str = "VOkJxbRl1RmTxUk/WvJxBt";
/// RFC 5769 §2.4 and RFC 8489 §B.1 share user name, realm and prepared password.
const USERNAME: &str = "\u{30DE}\u{30C8}\u{30EA}\u{30C3}\u{30AF}\u{30B9}";
const REALM: &str = "example.org";
const PREPARED_PASSWORD: &str = "TheMatrIX";

fn long_term(algorithm: PasswordAlgorithm) -> LongTermKey {
    long_term_key(algorithm, USERNAME, REALM, PREPARED_PASSWORD).expect("allowed")
}

#[test]
fn rfc5769_2_1_sample_request() {
    let bytes = vector(include_str!("vectors/rfc5769-2.1-request.hex"));
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(
        (message.class(), message.method()),
        (Class::Request, Method::BINDING)
    );
    assert_eq!(
        message.transaction_id().to_string(),
        "b7e7a701bc34d686fa87dfae"
    );
    assert_eq!(message.get(), Ok(Some(Software("STUN test client"))));
    assert_eq!(message.get(), Ok(Some(Priority(0x6E00_01FF))));
    assert_eq!(
        message.get(),
        Ok(Some(IceControlled(0x932F_F9B1_5126_3B36)))
    );
    assert_eq!(message.get(), Ok(Some(Username("evtj:h6vY"))));
    let key = short_term_key_sha1(PASSWORD).expect("allowed");
    assert_eq!(message.verify(&key), Ok(()));
    assert_eq!(
        message.verify(&HmacKey::sha1(b"another")),
        Err(IntegrityError::Mismatch)
    );
    assert_eq!(
        message.verify(&HmacKey::sha256(PASSWORD.as_bytes())),
        Err(IntegrityError::Missing)
    );
    assert_eq!(message.has_integrity(), Some(IntegrityAlgorithm::Sha1));
    assert_eq!(message.fingerprint(), FingerprintState::Valid);
}

#[test]
fn rfc5769_2_2_and_2_3_sample_responses() {
    let v4 = vector(include_str!("vectors/rfc5769-2.2-response-ipv4.hex"));
    let v6 = vector(include_str!("vectors/rfc5769-2.3-response-ipv6.hex"));
    let expected = [
        (v4, "192.0.2.1:32853"),
        (v6, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"),
    ];
    for (bytes, address) in expected {
        let message = Message::parse(&bytes).expect("well-formed");
        assert_eq!(
            (message.class(), message.method()),
            (Class::Success, Method::BINDING)
        );
        assert_eq!(message.get(), Ok(Some(Software("test vector"))));
        assert_eq!(
            message.get(),
            Ok(Some(XorMappedAddress(address.parse().expect("an address"))))
        );
        assert_eq!(
            message.verify(&short_term_key_sha1(PASSWORD).expect("allowed")),
            Ok(())
        );
        assert_eq!(message.fingerprint(), FingerprintState::Valid);
    }
}

#[test]
fn rfc5769_2_4_long_term_request() {
    let bytes = vector(include_str!("vectors/rfc5769-2.4-long-term.hex"));
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(message.get(), Ok(Some(Username(USERNAME))));
    assert_eq!(message.get(), Ok(Some(Realm(REALM))));
    assert_eq!(
        message.get(),
        Ok(Some(Nonce(b"f//499k954d6OL34oL9FSTvy64sA")))
    );
    assert_eq!(
        message.verify(&long_term(PasswordAlgorithm::Md5).hmac_sha1()),
        Ok(())
    );
    assert_eq!(
        message.verify(&long_term(PasswordAlgorithm::Sha256).hmac_sha1()),
        Err(IntegrityError::Mismatch)
    );
    assert_eq!(message.fingerprint(), FingerprintState::Absent);
}

/// The padding of RFC 5769 is spaces here and zeros there, which a receiver ignores but the HMAC covers; with zero
/// padding the builder writes §2.4 byte by byte.
#[test]
fn the_builder_writes_rfc5769_2_4() {
    let bytes = vector(include_str!("vectors/rfc5769-2.4-long-term.hex"));
    let id = Message::parse(&bytes)
        .expect("well-formed")
        .transaction_id();
    let mut buffer = [0xFF; 200];
    let mut builder =
        Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).expect("room");
    let written = builder
        .push(&Username(USERNAME))
        .and_then(|b| b.push(&Nonce(b"f//499k954d6OL34oL9FSTvy64sA")))
        .and_then(|b| b.push(&Realm(REALM)))
        .and_then(|b| b.integrity(&long_term(PasswordAlgorithm::Md5).hmac_sha1()));
    assert!(written.is_ok());
    assert_eq!(builder.finish(), bytes);
}

/// RFC 8489 §B.1 is misprinted, in four ways:
///
/// - its length field, 0x009c, is that of the whole message: 156 bytes with the header, where RFC 8489 §5 wants the 136
///   without. A receiver has to discard it.
/// - its HMAC was computed over that wrong length, so it does not hold for the corrected message.
/// - its key is that of the SHA-256 password algorithm although there is no PASSWORD-ALGORITHM in the request, which by
///   RFC 8489 §9.2.4 makes it MD5.
/// - its nonce cookie ends in "AAAC", which sets bit 22, not bit 1 ("QAAA"), for the user name anonymity it shows; and
///   the password it starts from holds U+00AD, which OpaqueString refuses (RFC 8265 §4.2) rather than removes.
///
/// What it does show: the USERHASH, and by the second point that the HMAC is over the right bytes with the right key.
#[test]
fn rfc8489_b_1_is_misprinted_and_this_is_how() {
    let printed = vector(include_str!("vectors/rfc8489-b.1-request.hex"));
    assert_eq!((printed.len(), printed[3]), (156, 0x9C));
    assert_eq!(
        Message::parse(&printed).err(),
        Some(stun::ParseError::Length)
    );

    let mut corrected = printed.clone();
    corrected[3] = 0x88;
    let message = Message::parse(&corrected).expect("well-formed now");
    assert_eq!(
        message.get(),
        Ok(Some(Userhash(userhash(USERNAME, REALM).expect("allowed"))))
    );
    assert_eq!(message.get(), Ok(Some(Realm(REALM))));
    assert_eq!(
        message.get(),
        Ok(Some(Nonce(b"obMatJos2AAACf//499k954d6OL34oL9FSTvy64sA")))
    );
    assert_eq!(
        stun::nonce::SecurityFeatures::of_nonce(b"obMatJos2AAAC"),
        Some(Default::default())
    );
    assert_eq!(stun::opaque_string("The\u{AD}M\u{AA}tr\u{2168}"), None);

    let integrity = message
        .integrity(IntegrityAlgorithm::Sha256)
        .expect("there");
    let before = printed.len() - 4 - integrity.value.len();
    let holds = |key: &LongTermKey| {
        key.hmac_sha256()
            .tag(&printed[..before])
            .starts_with(integrity.value)
    };
    assert!(
        holds(&long_term(PasswordAlgorithm::Sha256)),
        "over the printed length"
    );
    assert!(!holds(&long_term(PasswordAlgorithm::Md5)));
    for algorithm in [PasswordAlgorithm::Md5, PasswordAlgorithm::Sha256] {
        assert_eq!(
            message.verify(&long_term(algorithm).hmac_sha256()),
            Err(IntegrityError::Mismatch)
        );
    }
}

/// What RFC 8489 §B.1 should have been, so that the codec is held to a SHA-256 request too.
#[test]
fn rfc8489_b_1_as_it_should_be() {
    let mut buffer = [0; 200];
    let id = stun::TransactionId([
        0x78, 0xAD, 0x34, 0x33, 0xC6, 0xAD, 0x72, 0xC0, 0x29, 0xDA, 0x41, 0x2E,
    ]);
    let key = long_term(PasswordAlgorithm::Sha256);
    let mut builder =
        Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).expect("room");
    let written = builder
        .push(&Userhash(userhash(USERNAME, REALM).expect("allowed")))
        .and_then(|b| b.push(&Nonce(b"obMatJos2AAACf//499k954d6OL34oL9FSTvy64sA")))
        .and_then(|b| b.push(&Realm(REALM)))
        .and_then(|b| b.integrity(&key.hmac_sha256()));
    assert!(written.is_ok());
    let bytes = builder.finish();
    // All but the length field and the HMAC is as printed.
    let printed = vector(include_str!("vectors/rfc8489-b.1-request.hex"));
    assert_eq!(bytes[4..124], printed[4..124]);
    let message = Message::parse(bytes).expect("well-formed");
    assert_eq!(message.verify(&key.hmac_sha256()), Ok(()));
    let last = message
        .attributes()
        .last()
        .map(|attribute| attribute.attribute_type);
    assert_eq!(last, Some(AttributeType::MESSAGE_INTEGRITY_SHA256));
}
