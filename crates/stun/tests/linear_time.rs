//! An adversary can make a message large, but not expensive beyond its size.

use core::cell::Cell;
use core::hint::black_box;
use std::time::Duration;

use hairpin_stun as stun;
use stun::{
    AttributeType, FingerprintState, HmacKey, Message, Nonce, PasswordAlgorithms, UnknownAttributes,
};

/// The most attributes a message can hold: 65,532 bytes of four each.
const MAX_ATTRIBUTES: usize = 16_383;

/// A message of `count` attributes whose types and lengths `attribute` gives.
fn message(count: usize, attribute: impl Fn(usize) -> (u16, usize)) -> Vec<u8> {
    let mut bytes = vec![
        0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for n in 0..count {
        let (attribute_type, len) = attribute(n);
        bytes.extend(attribute_type.to_be_bytes());
        bytes.extend((len as u16).to_be_bytes());
        bytes.resize(bytes.len() + len.next_multiple_of(4), 0);
    }
    let length = u16::try_from(bytes.len() - 20).expect("fits a message");
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// All that a server does with a request, and more. Returns how often it asked whether a type is known.
fn everything(bytes: &[u8], keys: &[HmacKey; 2]) -> usize {
    let Ok(message) = Message::parse(bytes) else {
        return 0;
    };
    black_box(message.attributes().count());
    let asked = Cell::new(0);
    let unknown: UnknownAttributes = message
        .unknown_required(|attribute_type| {
            asked.set(asked.get() + 1);
            attribute_type.name().is_some()
        })
        .collect();
    black_box(unknown);
    for attribute_type in (0..64)
        .chain(0x8000..0x8040)
        .chain([0x7FFF, 0xFFFF])
        .map(AttributeType)
    {
        black_box(message.find(attribute_type));
    }
    black_box(
        (
            message.get::<Nonce<'_>>(),
            message.get::<PasswordAlgorithms<'_>>(),
        )
            .0
            .ok(),
    );
    for key in keys {
        black_box(message.verify(key).is_ok());
    }
    assert_ne!(message.fingerprint(), FingerprintState::Valid);
    asked.get()
}

/// Makes a message of about so many attributes.
type Adversary = fn(usize) -> Vec<u8>;

fn adversaries() -> Vec<(&'static str, Adversary)> {
    vec![
        ("distinct unknown types", |n| {
            message(n, |i| (0x4000 | i as u16, 0))
        }),
        ("one unknown type", |n| message(n, |_| (0x4000, 0))),
        ("63 unknown types in turn", |n| {
            message(n, |i| (0x4000 | (i % 63) as u16, 0))
        }),
        ("known types in turn", |n| {
            message(n, |i| ((i % 0x20) as u16 | 1, 0))
        }),
        ("optional types", |n| message(n, |i| (0x8000 | i as u16, 0))),
        ("integrity at the end", |n| {
            message(n - 6, |i| if i + 7 == n { (8, 20) } else { (0x4000, 0) })
        }),
        ("integrity over and over", |n| message(n / 6, |_| (8, 20))),
        ("a list of unknown types", |n| {
            message(1, |_| (0x000A, 4 * n - 4))
        }),
        ("a list of algorithms", |n| {
            message(1, |_| (0x8002, 4 * n - 4))
        }),
        ("an overrun at the end", |n| {
            let mut bytes = message(n, |_| (0x8000, 0));
            let last = bytes.len() - 2;
            bytes[last..].copy_from_slice(&[0, 1]);
            bytes
        }),
    ]
}

#[test]
fn each_attribute_is_asked_about_once() {
    let keys = [HmacKey::sha1(b"k"), HmacKey::sha256(b"k")];
    for (name, adversary) in adversaries() {
        for count in [100, 1000, MAX_ATTRIBUTES] {
            assert!(everything(&adversary(count), &keys) <= count, "{name}");
        }
    }
}

/// The best of several runs, so that other work on the machine does not count.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test measures real time"
)]
fn best_time(run: impl Fn()) -> Duration {
    let times = (0..15).map(|_| {
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
    let keys = [HmacKey::sha1(b"k"), HmacKey::sha256(b"k")];
    for (name, adversary) in adversaries() {
        let (small, large) = (adversary(MAX_ATTRIBUTES / 16), adversary(MAX_ATTRIBUTES));
        let time = |bytes: &[u8]| {
            best_time(|| {
                black_box(everything(bytes, &keys));
            })
        };
        let (small, large) = calmest(|| (time(&small), time(&large)));
        // Quadratic work would show a factor of 256. The rest is room for caches and a busy machine.
        assert!(
            large < small * 16 * 4 + Duration::from_micros(200),
            "{name}: {small:?} to {large:?}"
        );
        assert!(
            large < Duration::from_millis(50),
            "{name}: {large:?} for 64 kB"
        );
    }
}
