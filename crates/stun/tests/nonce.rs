//! What a nonce proves, and to whom.

use core::net::SocketAddr;

use hairpin_stun as stun;
use stun::nonce::{LEN, NonceKeys, SecurityFeatures};

const FEATURES: SecurityFeatures = SecurityFeatures {
    password_algorithms: true,
    username_anonymity: true,
};
const NOW: u64 = 1_790_000_000;
const MAX_AGE: u64 = 600;

fn client() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 7], 50_000))
}

/// What a nonce is worth.
#[derive(Debug, PartialEq)]
enum NonceCheck {
    Valid,
    Stale,
    Forged,
}

fn check(keys: &NonceKeys, nonce: &[u8], client: SocketAddr, now: u64, max_age: u64) -> NonceCheck {
    match keys.check(nonce, client) {
        None => NonceCheck::Forged,
        Some(issued) if issued.age_s(now) > max_age => NonceCheck::Stale,
        Some(_) => NonceCheck::Valid,
    }
}

fn issue(keys: &NonceKeys, features: SecurityFeatures, client: SocketAddr) -> [u8; LEN] {
    let mut nonce = [0; LEN];
    keys.issue(features, 5, client, NOW, &mut nonce);
    nonce
}

#[test]
fn a_nonce_has_the_cookie_and_no_character_that_needs_quoting() {
    let nonce = issue(&NonceKeys::new(&[1; 32]), FEATURES, client());
    assert!(nonce.starts_with(b"obMatJos2wAAA"));
    assert!(
        nonce
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    );
    assert_eq!(
        LEN, 36,
        "at most 44 bytes, or a 401 grows beyond three times its request"
    );
}

#[test]
fn features_are_read_from_the_left() {
    let keys = NonceKeys::new(&[1; 32]);
    for (password_algorithms, username_anonymity, bits) in [
        (false, false, b"AAAA"),
        (true, false, b"gAAA"),
        (false, true, b"QAAA"),
        (true, true, b"wAAA"),
    ] {
        let features = SecurityFeatures {
            password_algorithms,
            username_anonymity,
        };
        let nonce = issue(&keys, features, client());
        assert_eq!(&nonce[9..13], bits);
        assert_eq!(SecurityFeatures::of_nonce(&nonce), Some(features));
        assert_eq!(
            check(&keys, &nonce, client(), NOW, MAX_AGE),
            NonceCheck::Valid
        );
    }
    // Bits that mean nothing yet are ignored; what is no cookie says nothing.
    assert_eq!(
        SecurityFeatures::of_nonce(b"obMatJos2////x"),
        Some(FEATURES)
    );
    for other in [
        &b"obMatJos2"[..],
        b"obMatJos2AAA",
        b"obMatJos1AAAA",
        b"obMatJos2AA=A",
        b"",
        b"f//499k954d6OL34",
    ] {
        assert_eq!(SecurityFeatures::of_nonce(other), None);
    }
}

#[test]
fn another_address_or_port_makes_it_a_forgery() {
    let keys = NonceKeys::new(&[1; 32]);
    let nonce = issue(&keys, FEATURES, client());
    assert_eq!(
        check(&keys, &nonce, client(), NOW, MAX_AGE),
        NonceCheck::Valid
    );
    let others = [
        "203.0.113.8:50000",
        "203.0.113.7:50001",
        "[::ffff:203.0.113.7]:50000",
        "[cb00:7107::]:50000",
    ];
    for other in others {
        let other = other.parse().expect("an address");
        assert_eq!(
            check(&keys, &nonce, other, NOW, MAX_AGE),
            NonceCheck::Forged,
            "{other}"
        );
        assert_ne!(issue(&keys, FEATURES, other), nonce);
    }
}

#[test]
fn an_ipv6_address_counts_to_its_last_bit() {
    let keys = NonceKeys::new(&[1; 32]);
    let address: SocketAddr = "[2001:db8::1]:50000".parse().expect("an address");
    let nonce = issue(&keys, FEATURES, address);
    assert_eq!(
        check(&keys, &nonce, address, NOW, MAX_AGE),
        NonceCheck::Valid
    );
    let next = "[2001:db8::2]:50000".parse().expect("an address");
    assert_eq!(check(&keys, &nonce, next, NOW, MAX_AGE), NonceCheck::Forged);
}

#[test]
fn one_rotation_keeps_it_and_the_second_does_not() {
    let mut keys = NonceKeys::new(&[1; 32]);
    let nonce = issue(&keys, FEATURES, client());
    keys.rotate(&[2; 32]);
    assert_eq!(
        check(&keys, &nonce, client(), NOW, MAX_AGE),
        NonceCheck::Valid
    );
    let newer = issue(&keys, FEATURES, client());
    assert_ne!(newer, nonce);
    keys.rotate(&[3; 32]);
    assert_eq!(
        check(&keys, &nonce, client(), NOW, MAX_AGE),
        NonceCheck::Forged
    );
    assert_eq!(
        check(&keys, &newer, client(), NOW, MAX_AGE),
        NonceCheck::Valid
    );
}

#[test]
fn it_ages_and_does_not_mind_a_clock_set_back() {
    let mut keys = NonceKeys::new(&[1; 32]);
    let nonce = issue(&keys, FEATURES, client());
    assert_eq!(
        check(&keys, &nonce, client(), NOW + MAX_AGE, MAX_AGE),
        NonceCheck::Valid
    );
    assert_eq!(
        check(&keys, &nonce, client(), NOW + MAX_AGE + 1, MAX_AGE),
        NonceCheck::Stale
    );
    assert_eq!(
        check(&keys, &nonce, client(), NOW - 60, MAX_AGE),
        NonceCheck::Valid
    );
    assert_eq!(
        check(&keys, &nonce, client(), u64::MAX, MAX_AGE),
        NonceCheck::Stale
    );
    keys.rotate(&[2; 32]);
    assert_eq!(
        check(&keys, &nonce, client(), NOW + MAX_AGE + 1, MAX_AGE),
        NonceCheck::Stale
    );
}

#[test]
fn any_changed_or_missing_byte_makes_it_a_forgery() {
    let keys = NonceKeys::new(&[1; 32]);
    let nonce = issue(&keys, FEATURES, client());
    for at in 0..LEN {
        for byte in [b'A', b'B', b'!', b'=', 0, 0xFF]
            .into_iter()
            .filter(|&byte| byte != nonce[at])
        {
            let mut changed = nonce;
            changed[at] = byte;
            assert_eq!(
                check(&keys, &changed, client(), NOW, MAX_AGE),
                NonceCheck::Forged,
                "{byte} at {at}"
            );
        }
    }
    for end in 0..LEN {
        assert_eq!(
            check(&keys, &nonce[..end], client(), NOW, MAX_AGE),
            NonceCheck::Forged
        );
    }
    let longer = [&nonce[..], b"A"].concat();
    assert_eq!(
        check(&keys, &longer, client(), NOW, MAX_AGE),
        NonceCheck::Forged
    );
}

#[test]
fn two_nodes_with_one_key_honour_each_other() {
    let (one, other) = (NonceKeys::new(&[1; 32]), NonceKeys::new(&[1; 32]));
    let nonce = issue(&one, FEATURES, client());
    assert_eq!(
        check(&other, &nonce, client(), NOW, MAX_AGE),
        NonceCheck::Valid
    );
}

#[test]
fn it_says_what_its_issuer_noted_and_nobody_can_change_that() {
    let keys = NonceKeys::new(&[1; 32]);
    for note in 0..16 {
        let mut nonce = [0; LEN];
        keys.issue(FEATURES, note, client(), NOW, &mut nonce);
        let issued = keys.check(&nonce, client()).expect("ours");
        assert_eq!(
            (issued.note, issued.features, issued.unix_s),
            (note, FEATURES, NOW)
        );
    }
}

#[test]
fn nodes_that_rotate_at_different_times_honour_each_other() {
    // One node has rotated its keys, the other has started with the new one.
    for first in 0..64 {
        let mut old = NonceKeys::new(&[first; 32]);
        let before = issue(&old, FEATURES, client());
        old.rotate(&[100; 32]);
        let young = NonceKeys::new(&[100; 32]);
        let nonce = issue(&old, FEATURES, client());
        assert!(young.check(&nonce, client()).is_some());
        assert!(
            old.check(&issue(&young, FEATURES, client()), client())
                .is_some()
        );
        assert!(old.check(&before, client()).is_some() && young.check(&before, client()).is_none());
    }
}
