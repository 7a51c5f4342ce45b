//! What is refused, what is ignored, and what is found where.

use hairpin_stun as stun;
use stun::{
    AttributeError, AttributeType, Builder, ChannelNumber, Class, FingerprintState, HmacKey,
    IntegrityAlgorithm, IntegrityError, Lifetime, Message, Method, ParseError, Software,
    TransactionId, UnknownAttributes,
};

const ID: TransactionId = TransactionId(*b"transaction!");

/// A message from raw attributes, whatever their order.
fn raw(attributes: &[(AttributeType, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42];
    bytes.extend(ID.0);
    for (attribute_type, value) in attributes {
        bytes.extend(attribute_type.0.to_be_bytes());
        bytes.extend((value.len() as u16).to_be_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0xEE);
    }
    let length = (bytes.len() - stun::HEADER_LEN) as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn types(message: &Message<'_>) -> Vec<AttributeType> {
    message
        .attributes()
        .map(|attribute| attribute.attribute_type)
        .collect()
}

const SHA1: AttributeType = AttributeType::MESSAGE_INTEGRITY;
const SHA256: AttributeType = AttributeType::MESSAGE_INTEGRITY_SHA256;
const FINGERPRINT: AttributeType = AttributeType::FINGERPRINT;
const SOFTWARE: AttributeType = AttributeType::SOFTWARE;
const LIFETIME: AttributeType = AttributeType::LIFETIME;

#[test]
fn each_broken_header_has_its_name() {
    let good = raw(&[(LIFETIME, &[0, 0, 2, 88])]);
    let broken = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Message::parse(&bytes).err()
    };
    assert!(Message::parse(&good).is_ok());
    assert_eq!(broken(0, 0x40), Some(ParseError::FirstBits));
    assert_eq!(broken(0, 0x80), Some(ParseError::FirstBits));
    for at in 4..8 {
        assert_eq!(broken(at, 0xFF), Some(ParseError::MagicCookie));
    }
    for length in [0, 4, 7, 9, 12, 255] {
        assert_eq!(broken(3, length), Some(ParseError::Length), "{length}");
    }
    for end in 0..20 {
        assert_eq!(
            Message::parse(&good[..end]).err(),
            Some(ParseError::TooShort)
        );
    }
    for end in 20..good.len() {
        assert_eq!(Message::parse(&good[..end]).err(), Some(ParseError::Length));
    }
    for odd in 1..4 {
        let mut longer = [&good[..], &[0; 3][..odd]].concat();
        longer[3] += odd as u8;
        let error = Message::parse(&longer).err();
        assert_eq!(
            error,
            Some(ParseError::Length),
            "not a multiple of four, although they agree"
        );
    }
    let longer = [&good[..], &[0; 4]].concat();
    assert_eq!(
        Message::parse(&longer).err(),
        Some(ParseError::Length),
        "trailing bytes"
    );
}

#[test]
fn an_attribute_must_fit_with_its_padding() {
    let mut bytes = raw(&[(SOFTWARE, b"abcde")]);
    assert!(Message::parse(&bytes).is_ok());
    for length in 9..=255 {
        bytes[23] = length;
        assert_eq!(
            Message::parse(&bytes).err(),
            Some(ParseError::AttributeOverrun),
            "{length}"
        );
    }
    bytes[22] = 0xFF;
    assert_eq!(
        Message::parse(&bytes).err(),
        Some(ParseError::AttributeOverrun)
    );
    // A shorter length leaves four bytes, which are then an attribute of their own.
    bytes[22..24].copy_from_slice(&[0, 4]);
    assert_eq!(
        Message::parse(&bytes).err(),
        Some(ParseError::AttributeOverrun)
    );
}

#[test]
fn a_message_without_attributes_is_complete() {
    let bytes = raw(&[]);
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!((types(&message), message.has_integrity()), (vec![], None));
    assert_eq!(message.fingerprint(), FingerprintState::Absent);
    assert_eq!(message.as_bytes(), bytes);
    assert_eq!(message.transaction_id(), ID);
}

#[test]
fn the_first_of_a_type_wins_and_padding_is_not_its_value() {
    let bytes = raw(&[
        (SOFTWARE, b"first"),
        (SOFTWARE, b"second"),
        (LIFETIME, &[0, 0, 0, 1]),
    ]);
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(message.get(), Ok(Some(Software("first"))));
    assert_eq!(message.get(), Ok(Some(Lifetime(1))));
    assert_eq!(types(&message), [SOFTWARE, SOFTWARE, LIFETIME]);
    assert!(message.contains(SOFTWARE) && !message.contains(AttributeType::NONCE));
}

#[test]
fn absent_and_malformed_differ() {
    let bytes = raw(&[(AttributeType::CHANNEL_NUMBER, &[0x50, 0, 0, 0])]);
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(message.get::<ChannelNumber>(), Err(AttributeError::Value));
    assert_eq!(message.get::<Lifetime>(), Ok(None));
}

#[test]
fn types_far_from_the_usual_ones_are_found_too() {
    let far = [0x0040, 0x4000, 0x7FFF, 0x8040, 0xC001, 0xFFFF].map(AttributeType);
    let bytes = raw(&far.map(|attribute_type| (attribute_type, &[1, 2][..])));
    let message = Message::parse(&bytes).expect("well-formed");
    for attribute_type in far {
        assert_eq!(
            message.find(attribute_type).map(|a| a.value),
            Some(&[1, 2][..])
        );
    }
    assert_eq!(message.find(AttributeType(0x0041)), None);
    assert_eq!(message.find(AttributeType(0x8000)), None);
}

/// RFC 8489 §9: what follows MESSAGE-INTEGRITY is ignored, except -SHA256 and FINGERPRINT.
#[test]
fn nothing_behind_message_integrity_counts_but_sha256_and_fingerprint() {
    let tag = [7; 32];
    let bytes = raw(&[
        (SOFTWARE, b"a"),
        (SHA1, &tag[..20]),
        (LIFETIME, &[0; 4]),
        (SHA1, &[8; 20]),
        (SHA256, &tag),
        (SOFTWARE, b"b"),
        (SHA256, &[8; 32]),
        (AttributeType(0x7777), &[]),
        (FINGERPRINT, &[0; 4]),
    ]);
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(types(&message), [SOFTWARE, SHA1, SHA256, FINGERPRINT]);
    assert_eq!(message.get::<Lifetime>(), Ok(None));
    assert_eq!(
        message.integrity(IntegrityAlgorithm::Sha1).map(|i| i.value),
        Some(&tag[..20])
    );
    assert_eq!(
        message
            .integrity(IntegrityAlgorithm::Sha256)
            .map(|i| i.value),
        Some(&tag[..])
    );
    assert_eq!(message.find(SHA1).map(|a| a.value), Some(&tag[..20]));
    assert_eq!(message.find(SHA256).map(|a| a.value), Some(&tag[..]));
    assert_eq!(
        message.find(FINGERPRINT).map(|a| a.value),
        Some(&[0; 4][..])
    );
    assert_eq!(message.has_integrity(), Some(IntegrityAlgorithm::Sha256));
    assert_eq!(message.fingerprint(), FingerprintState::Invalid);
    assert_eq!(
        message.unknown_required(|_| false).count(),
        0,
        "an ignored attribute is not unknown"
    );
}

/// RFC 8489 §9: what follows MESSAGE-INTEGRITY-SHA256 is ignored, except FINGERPRINT.
#[test]
fn nothing_behind_sha256_counts_but_fingerprint() {
    let bytes = raw(&[
        (SHA256, &[7; 16]),
        (SHA1, &[8; 20]),
        (SOFTWARE, b"b"),
        (FINGERPRINT, &[0; 4]),
    ]);
    let message = Message::parse(&bytes).expect("well-formed");
    assert_eq!(types(&message), [SHA256, FINGERPRINT]);
    assert_eq!(message.integrity(IntegrityAlgorithm::Sha1), None);
    assert_eq!(
        message.verify(&HmacKey::sha1(b"k")),
        Err(IntegrityError::Missing)
    );
    assert_eq!(message.find(SOFTWARE), None);
}

/// RFC 8489 §14.7.
#[test]
fn fingerprint_must_be_the_last() {
    for behind in [SOFTWARE, SHA1, FINGERPRINT] {
        let bytes = raw(&[(FINGERPRINT, &[0; 4]), (behind, &[0; 4])]);
        assert_eq!(
            Message::parse(&bytes).err(),
            Some(ParseError::FingerprintNotLast),
            "{behind}"
        );
    }
    let bytes = raw(&[(SOFTWARE, b"a"), (FINGERPRINT, &[0; 8])]);
    let message = Message::parse(&bytes).expect("last");
    assert_eq!(
        message.fingerprint(),
        FingerprintState::Invalid,
        "of a wrong length"
    );
}

/// RFC 8489 §6.3.1: each unknown comprehension-required type is listed; optional ones never are.
#[test]
fn unknown_required_types_are_listed_once() {
    let unknown = AttributeType(0x4001);
    let other = AttributeType(0x0010);
    let optional = AttributeType(0xC001);
    let bytes = raw(&[
        (unknown, &[]),
        (SOFTWARE, b"x"),
        (optional, &[]),
        (other, &[1]),
        (unknown, &[2]),
        (SHA1, &[0; 20]),
    ]);
    let message = Message::parse(&bytes).expect("well-formed");
    let known = |attribute_type| attribute_type == LIFETIME;
    let list: UnknownAttributes = message.unknown_required(known).collect();
    assert_eq!(list.as_slice(), [unknown, other]);

    let mut buffer = [0; 64];
    let mut builder = Builder::new(&mut buffer, Class::Error, Method::BINDING, &ID).expect("room");
    builder.push(&list).expect("room");
    let answer = Message::parse(builder.finish()).expect("well-formed");
    assert_eq!(answer.get(), Ok(Some(list)));
}

#[test]
fn a_message_prints_its_types_but_no_values() {
    let bytes = raw(&[
        (AttributeType::USERNAME, b"secret"),
        (AttributeType(0x4001), b"secret"),
    ]);
    let text = format!("{:?}", Message::parse(&bytes).expect("well-formed"));
    assert!(
        text.contains("USERNAME") && text.contains("0x4001") && !text.contains("secret"),
        "{text}"
    );
}
