//! What a builder writes, refuses and leaves alone.

use hairpin_stun as stun;
use stun::{
    AttributeError, AttributeType, BuildError, Builder, Class, Data, ErrorCode, FingerprintState,
    HmacKey, IntegrityAlgorithm, IntegrityError, Lifetime, Message, Method, Software,
    TransactionId, Username,
};

const ID: TransactionId = TransactionId(*b"transaction!");

fn start(buffer: &mut [u8]) -> Builder<'_> {
    Builder::new(buffer, Class::Success, Method::REFRESH, &ID).expect("room for a header")
}

#[test]
fn padding_is_zero_in_a_dirty_buffer() {
    for len in 0..9 {
        let mut buffer = [0xFF; 64];
        let mut builder = start(&mut buffer);
        builder.push(&Data(&[1; 9][..len])).expect("room");
        let bytes = builder.finish();
        assert_eq!(bytes.len(), 24 + len.next_multiple_of(4));
        assert!(bytes[24 + len..].iter().all(|&byte| byte == 0), "{len}");
    }
}

#[test]
fn a_full_buffer_leaves_the_message_as_it_was() {
    let key = HmacKey::sha256(b"key");
    for size in 20..=100 {
        let mut buffer = vec![0xFF; size];
        let mut builder = start(&mut buffer);
        let mut written = 0;
        written += usize::from(builder.push(&Lifetime(600)).is_ok());
        written += usize::from(builder.push(&Software("thirteen long")).is_ok());
        written += usize::from(builder.integrity(&key).is_ok());
        written += usize::from(builder.fingerprint().is_ok());
        let message = Message::parse(builder.finish()).expect("well-formed at any size");
        assert_eq!(message.attributes().count(), written, "{size}");
        assert_eq!(size >= 20 + 8 + 20 + 36 + 8, written == 4);
        assert_ne!(message.verify(&key), Err(IntegrityError::Mismatch));
        assert_ne!(message.fingerprint(), FingerprintState::Invalid);
    }
    for size in 0..20 {
        let mut buffer = vec![0; size];
        let refused = Builder::new(&mut buffer, Class::Request, Method::BINDING, &ID).err();
        assert_eq!(refused, Some(BuildError::BufferFull));
    }
}

#[test]
fn a_message_stays_within_its_length_field() {
    let payload = vec![1; 65_528];
    let mut buffer = vec![0; 100_000];
    let mut builder = start(&mut buffer);
    builder
        .push(&Data(&payload))
        .expect("exactly 65,532 bytes of attributes");
    assert_eq!(
        builder.push(&stun::DontFragment).err(),
        Some(BuildError::BufferFull)
    );
    assert_eq!(
        builder.push_raw(SOFTWARE, &vec![0; 70_000]).err(),
        Some(BuildError::BufferFull)
    );
    let bytes = builder.finish();
    assert_eq!((bytes.len(), &bytes[2..4]), (65_552, &[0xFF, 0xFC][..]));
    assert!(Message::parse(bytes).is_ok());
}

const SOFTWARE: AttributeType = AttributeType::SOFTWARE;

#[test]
fn a_bad_attribute_leaves_the_message_as_it_was() {
    let mut buffer = [0; 1024];
    let mut builder = start(&mut buffer);
    let too_long = "a".repeat(509);
    assert_eq!(
        builder.push(&Username(&too_long)).err(),
        Some(BuildError::Attribute(AttributeError::Length))
    );
    let no_code = ErrorCode {
        code: 200,
        reason: "OK",
    };
    assert_eq!(
        builder.push(&no_code).err(),
        Some(BuildError::Attribute(AttributeError::Value))
    );
    assert_eq!(builder.len(), 20);
    assert_eq!(builder.finish().len(), 20);
}

/// RFC 8489 §14.5 to §14.7: plain attributes, SHA-1, SHA-256, fingerprint, in this order.
#[test]
fn the_order_is_enforced() {
    let (sha1, sha256) = (HmacKey::sha1(b"key"), HmacKey::sha256(b"key"));
    let mut buffer = [0; 256];
    let mut builder = start(&mut buffer);
    builder.push(&Lifetime(1)).expect("first");
    builder.integrity(&sha1).expect("second");
    assert_eq!(builder.push(&Lifetime(1)).err(), Some(BuildError::Order));
    assert_eq!(
        builder.push_raw(SOFTWARE, b"").err(),
        Some(BuildError::Order)
    );
    assert_eq!(builder.integrity(&sha1).err(), Some(BuildError::Order));
    builder.integrity(&sha256).expect("third");
    assert_eq!(builder.integrity(&sha1).err(), Some(BuildError::Order));
    assert_eq!(builder.integrity(&sha256).err(), Some(BuildError::Order));
    builder.fingerprint().expect("last");
    assert_eq!(builder.fingerprint().err(), Some(BuildError::Order));
    assert_eq!(builder.integrity(&sha256).err(), Some(BuildError::Order));
    let message = Message::parse(builder.finish()).expect("well-formed");
    assert_eq!(
        (message.verify(&sha1), message.verify(&sha256)),
        (Ok(()), Ok(()))
    );
    assert_eq!(message.fingerprint(), FingerprintState::Valid);
    assert_eq!(message.attributes().count(), 4);
}

/// Every byte in front of an integrity attribute is covered by it, and the length field up to it.
#[test]
fn one_flipped_bit_is_noticed() {
    let keys = [HmacKey::sha1(b"key"), HmacKey::sha256(b"key")];
    for key in &keys {
        let mut buffer = [0; 256];
        let mut builder = start(&mut buffer);
        builder
            .push(&Software(
                "a text that fills more than one block of the hash, for good measure",
            ))
            .expect("room");
        let covered = builder.len();
        builder.integrity(key).expect("room");
        let bytes = builder.finish();
        assert_eq!(Message::parse(bytes).map(|m| m.verify(key)), Ok(Ok(())));
        let mut noticed = 0;
        for bit in 0..covered * 8 {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(message) = Message::parse(&bytes) {
                assert_ne!(message.verify(key), Ok(()), "bit {bit}");
                noticed += 1;
            }
        }
        assert!(
            noticed > covered * 7,
            "most flips leave a well-formed message"
        );
    }
}

/// RFC 8489 §14.6: at most 32 bytes, at least 16, a multiple of 4; §14.5: exactly 20.
#[test]
fn truncation_is_honoured_within_its_limits() {
    let key = HmacKey::sha256(b"key");
    for len in 0..=40 {
        let mut buffer = [0; 128];
        let mut builder = start(&mut buffer);
        let allowed = matches!(len, 16 | 20 | 24 | 28 | 32);
        assert_eq!(
            builder.truncated_integrity(&key, len).is_ok(),
            allowed,
            "{len}"
        );
        let message = Message::parse(builder.finish()).expect("well-formed");
        let expected = if allowed {
            Ok(())
        } else {
            Err(IntegrityError::Missing)
        };
        assert_eq!(message.verify(&key), expected);
        assert_eq!(message.verify_at_least(&key, 32).is_ok(), len == 32);
    }
    let mut buffer = [0; 128];
    let refused = start(&mut buffer)
        .truncated_integrity(&HmacKey::sha1(b"key"), 16)
        .err();
    assert_eq!(
        refused,
        Some(BuildError::Attribute(AttributeError::Length)),
        "SHA-1 is never cut"
    );
}

#[test]
fn an_integrity_of_impossible_length_is_a_mismatch() {
    let keys = [HmacKey::sha1(b"key"), HmacKey::sha256(b"key")];
    for (key, attribute_type) in keys.iter().zip([
        AttributeType::MESSAGE_INTEGRITY,
        AttributeType::MESSAGE_INTEGRITY_SHA256,
    ]) {
        for len in [0, 1, 12, 15, 17, 19, 21, 33, 36, 64] {
            let mut buffer = [0; 128];
            let mut builder = start(&mut buffer);
            builder
                .push_raw(attribute_type, &[0; 64][..len])
                .expect("room");
            let message = Message::parse(builder.finish()).expect("well-formed");
            assert_eq!(
                message.verify(key),
                Err(IntegrityError::Mismatch),
                "{attribute_type} {len}"
            );
            assert_eq!(message.has_integrity(), Some(key.algorithm()));
        }
    }
    assert_eq!([20, 32], keys.map(|key| key.algorithm().tag_len()));
}

/// A mismatch of any byte of the tag is noticed, also of a truncated one.
#[test]
fn every_byte_of_the_tag_counts() {
    let key = HmacKey::sha256(b"key");
    let mut buffer = [0; 128];
    let mut builder = start(&mut buffer);
    builder.truncated_integrity(&key, 16).expect("allowed");
    let bytes = builder.finish().to_vec();
    for at in 24..40 {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        let message = Message::parse(&bytes).expect("well-formed");
        assert_eq!(message.verify(&key), Err(IntegrityError::Mismatch));
        assert_eq!(
            message
                .integrity(IntegrityAlgorithm::Sha256)
                .map(|i| i.value.len()),
            Some(16)
        );
    }
}

/// The right first bytes are not enough: an empty or a cut value would be easy to guess.
#[test]
fn a_right_value_of_an_impossible_length_is_a_mismatch_too() {
    for (key, attribute_type, full) in [
        (HmacKey::sha1(b"key"), AttributeType::MESSAGE_INTEGRITY, 20),
        (
            HmacKey::sha256(b"key"),
            AttributeType::MESSAGE_INTEGRITY_SHA256,
            32,
        ),
    ] {
        for len in 0..=full {
            let mut buffer = [0; 64];
            let mut builder = start(&mut buffer);
            builder
                .push_raw(attribute_type, &[0; 32][..len])
                .expect("room");
            let mut bytes = builder.finish().to_vec();
            // RFC 8489 §14.5: the HMAC sees a length up to the end of the attribute, here without its padding.
            let mut before = bytes[..20].to_vec();
            before[3] = 4 + len as u8;
            bytes[24..24 + len].copy_from_slice(&key.tag(&before).as_bytes()[..len]);
            let message = Message::parse(&bytes).expect("well-formed");
            let allowed = len == full || full == 32 && matches!(len, 16 | 20 | 24 | 28);
            let expected = if allowed {
                Ok(())
            } else {
                Err(IntegrityError::Mismatch)
            };
            assert_eq!(
                message.verify(&key),
                expected,
                "{attribute_type} of {len} bytes"
            );
            let least = message.verify_at_least(&key, 0);
            assert_eq!(least, expected, "16 is the least in any case");
        }
    }
}
