//! RFC 8489 §9.2.5: challenges, the choice of algorithms, and which responses to believe.

use stun::{
    AttributeType, Class, ErrorCode, HmacKey, Message, Nonce, PasswordAlgorithm,
    PasswordAlgorithms, Realm, Userhash, Username,
};
use turn::Transport;
use turn::client::{
    AllocateOptions, ClientConfig, DiscardReason, Discarded, Event, Ignored, Received,
    RequestError, Security,
};

use crate::script::{
    NONCE, NONCE_ALGORITHMS, NONCE_BOTH, PASSWORD, REALM, Script, USER, answer, get, has, key,
    method, parse, relayed, sha1_key, sha256_key,
};

/// Asks for an allocation and returns the first request.
fn first_request(script: &mut Script) -> Vec<u8> {
    script
        .client
        .allocate(script.now, AllocateOptions::default())
        .expect("not allocated");
    script.request()
}

/// A client that has been challenged once, and its signed request.
fn challenged(nonce: &[u8], algorithms: Option<PasswordAlgorithms<'_>>) -> (Script, Vec<u8>) {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    script.challenge(&first, 401, nonce, algorithms);
    let second = script.request();
    (script, second)
}

fn failure(script: &mut Script) -> RequestError {
    match script.event() {
        Some(Event::AllocateFailed { error, .. }) => error,
        other => panic!("expected AllocateFailed, got {other:?}"),
    }
}

fn is_allocated(script: &mut Script) -> bool {
    matches!(script.event(), Some(Event::Allocated(_)))
}

#[test]
fn the_first_request_carries_no_credentials() {
    let mut script = Script::with_credentials();
    let request = first_request(&mut script);
    for attribute in [
        AttributeType::USERNAME,
        AttributeType::USERHASH,
        AttributeType::REALM,
        AttributeType::NONCE,
        AttributeType::PASSWORD_ALGORITHM,
        AttributeType::PASSWORD_ALGORITHMS,
        AttributeType::MESSAGE_INTEGRITY,
        AttributeType::MESSAGE_INTEGRITY_SHA256,
    ] {
        assert!(!has(&request, attribute), "{attribute:?}");
    }
}

#[test]
fn an_rfc_5389_server_gets_md5_and_sha1() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    script.challenge(&first, 401, b"some old nonce", None);
    assert_eq!(script.received, Some(Received::Handled));
    let second = script.request();
    assert_ne!(
        parse(&first).transaction_id(),
        parse(&second).transaction_id()
    );
    assert_eq!(get::<Username<'_>>(&second).0, USER);
    assert_eq!(get::<Realm<'_>>(&second).0, REALM);
    assert_eq!(get::<Nonce<'_>>(&second).0, b"some old nonce");
    assert_eq!(parse(&second).verify(&sha1_key()), Ok(()));
    assert!(!has(&second, AttributeType::MESSAGE_INTEGRITY_SHA256));
    assert!(!has(&second, AttributeType::PASSWORD_ALGORITHM));
    script.key = Some(sha1_key());
    script.grant(&second, &[relayed()], 600);
    assert!(is_allocated(&mut script));
}

#[test]
fn the_strongest_algorithm_and_a_hashed_name_are_used_where_offered() {
    for list in [
        PasswordAlgorithms::SHA256_MD5,
        // RFC 8656 §6: SHA-256 even if the server would rather have MD5.
        PasswordAlgorithms::MD5_SHA256,
    ] {
        let (mut script, second) = challenged(NONCE_BOTH, Some(list));
        assert!(!has(&second, AttributeType::USERNAME));
        let hash = stun::userhash(USER, REALM).expect("plain ASCII");
        assert_eq!(get::<Userhash>(&second), Userhash(hash));
        assert_eq!(
            get::<PasswordAlgorithms<'_>>(&second).as_bytes(),
            list.as_bytes()
        );
        assert_eq!(get::<PasswordAlgorithm>(&second), PasswordAlgorithm::Sha256);
        assert!(!has(&second, AttributeType::MESSAGE_INTEGRITY));
        assert_eq!(parse(&second).verify_at_least(&sha256_key(), 32), Ok(()));
        script.key = Some(sha256_key());
        script.grant(&second, &[relayed()], 600);
        assert!(is_allocated(&mut script));
        let offer = script.client.offer().expect("challenged");
        assert!(offer.anonymous);
        assert_eq!(offer.realm, REALM);
        assert_eq!(offer.algorithms, Some((list, PasswordAlgorithm::Sha256)));
    }
}

#[test]
fn a_list_of_md5_alone_still_means_an_hmac_of_sha256() {
    let (_, second) = challenged(NONCE_ALGORITHMS, Some(PasswordAlgorithms::MD5));
    assert_eq!(get::<PasswordAlgorithm>(&second), PasswordAlgorithm::Md5);
    let hmac = key(PasswordAlgorithm::Md5).hmac_sha256();
    assert_eq!(parse(&second).verify_at_least(&hmac, 32), Ok(()));
}

#[test]
fn no_known_algorithm_means_no_retry() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    let list = PasswordAlgorithms::from_bytes(&[0, 9, 0, 0]).expect("well-formed");
    script.challenge(&first, 401, NONCE_ALGORITHMS, Some(list));
    script.no_request();
    assert_eq!(failure(&mut script), RequestError::NoCommonAlgorithm);
}

#[test]
fn a_challenge_without_its_promised_algorithms_is_not_answered() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    script.challenge(&first, 401, NONCE_ALGORITHMS, None);
    script.no_request();
    assert_eq!(failure(&mut script), RequestError::BidDown);
}

#[test]
fn a_later_challenge_must_not_be_weaker() {
    let (mut script, second) = challenged(NONCE_BOTH, Some(PasswordAlgorithms::SHA256_MD5));
    script.challenge(&second, 438, NONCE, None);
    script.no_request();
    assert_eq!(failure(&mut script), RequestError::BidDown);
}

#[test]
fn a_server_that_stops_offering_anonymity_gets_the_user_name() {
    let list = PasswordAlgorithms::SHA256_MD5;
    let (mut script, second) = challenged(NONCE_BOTH, Some(list));
    assert!(has(&second, AttributeType::USERHASH));
    script.challenge(&second, 438, NONCE_ALGORITHMS, Some(list));
    let third = script.request();
    assert!(has(&third, AttributeType::USERNAME) && !has(&third, AttributeType::USERHASH));
    script.key = Some(sha256_key());
    script.grant(&third, &[relayed()], 600);
    assert!(is_allocated(&mut script));
    assert!(!script.client.offer().expect("challenged").anonymous);
}

#[test]
fn the_same_credentials_are_not_tried_twice() {
    let (mut script, second) = challenged(NONCE, None);
    script.challenge(&second, 401, b"obMatJos2AAAAanother", None);
    script.no_request();
    let realm = REALM.into();
    assert_eq!(
        failure(&mut script),
        RequestError::WrongCredentials { realm }
    );
}

#[test]
fn another_realm_is_worth_another_try() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    let challenge = |request: &[u8], realm: &str| {
        answer(request, Class::Error, |response| {
            response
                .push(&ErrorCode::UNAUTHENTICATED)
                .expect("fits")
                .push(&Realm(realm))
                .expect("fits")
                .push(&Nonce(NONCE))
                .expect("fits");
        })
    };
    let answer = challenge(&first, "old");
    let _ = script.input(&answer);
    let second = script.request();
    assert_eq!(get::<Realm<'_>>(&second).0, "old");
    let answer = challenge(&second, REALM);
    let _ = script.input(&answer);
    let third = script.request();
    assert_eq!(get::<Realm<'_>>(&third).0, REALM);
    assert_eq!(parse(&third).verify(&sha1_key()), Ok(()));
}

#[test]
fn a_stale_nonce_is_replaced_and_the_request_repeated() {
    let mut script = Script::allocated();
    script.client.refresh(script.now, None).expect("allocated");
    let refresh = script.request();
    assert_eq!(get::<Nonce<'_>>(&refresh).0, NONCE);
    script.challenge(&refresh, 438, b"obMatJos2AAAAfresh", None);
    let again = script.request();
    assert_eq!(method(&again), stun::Method::REFRESH);
    assert_eq!(get::<Nonce<'_>>(&again).0, b"obMatJos2AAAAfresh");
    assert_eq!(parse(&again).verify(&sha1_key()), Ok(()));
}

#[test]
fn endless_challenges_end() {
    let mut script = Script::with_credentials();
    let mut request = first_request(&mut script);
    script.challenge(&request, 401, NONCE, None);
    let mut challenges = 1;
    while let Some(next) = script.poll_request() {
        request = next;
        script.challenge(&request, 438, NONCE, None);
        challenges += 1;
    }
    assert_eq!(challenges, 5);
    assert_eq!(failure(&mut script), RequestError::TooManyChallenges);
}

#[test]
fn without_credentials_a_challenge_is_the_end() {
    let mut script = Script::new(ClientConfig::default());
    let first = first_request(&mut script);
    script.challenge(&first, 401, NONCE, None);
    script.no_request();
    let realm = REALM.into();
    assert_eq!(failure(&mut script), RequestError::NoCredentials { realm });
}

#[test]
fn a_classic_client_ignores_what_rfc_8489_added() {
    let mut script = Script::new(ClientConfig {
        security: Security::Classic,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    let first = first_request(&mut script);
    script.challenge(
        &first,
        401,
        NONCE_BOTH,
        Some(PasswordAlgorithms::SHA256_MD5),
    );
    let second = script.request();
    assert_eq!(get::<Username<'_>>(&second).0, USER);
    assert!(!has(&second, AttributeType::PASSWORD_ALGORITHMS));
    assert_eq!(parse(&second).verify(&sha1_key()), Ok(()));
}

/// A signed request, and what a response signed by `key` comes to.
fn believed(key: Option<HmacKey>, class: Class) -> Script {
    let (mut script, second) = challenged(NONCE_ALGORITHMS, Some(PasswordAlgorithms::SHA256_MD5));
    script.key = key;
    match class {
        Class::Success => script.grant(&second, &[relayed()], 600),
        _ => script.refuse(&second, 400),
    }
    script
}

#[test]
fn a_response_must_prove_knowledge_of_the_password() {
    let wrong = HmacKey::sha256(b"guessed");
    for (key, class, reason) in [
        (None, Class::Success, DiscardReason::NotAuthenticated),
        (
            Some(wrong.clone()),
            Class::Success,
            DiscardReason::BadIntegrity,
        ),
        // RFC 8489 §9.2.5: MESSAGE-INTEGRITY-SHA256 only, once the server has listed algorithms.
        (
            Some(sha1_key()),
            Class::Success,
            DiscardReason::NotAuthenticated,
        ),
        (None, Class::Error, DiscardReason::NotAuthenticated),
        (Some(wrong), Class::Error, DiscardReason::BadIntegrity),
    ] {
        let code = (class == Class::Error).then_some(400);
        let mut script = believed(key, class);
        let untrusted = Received::Ignored(Ignored::Untrusted);
        assert_eq!(script.received, Some(untrusted));
        assert_eq!(script.event(), None);
        script.run_s(40);
        let discarded = Discarded { code, reason };
        assert_eq!(
            failure(&mut script),
            RequestError::IntegrityViolated(discarded)
        );
    }
}

#[test]
fn a_truncated_integrity_proves_nothing() {
    let (mut script, second) = challenged(NONCE_ALGORITHMS, Some(PasswordAlgorithms::SHA256));
    let truncated = answer(&second, Class::Success, |response| {
        response
            .truncated_integrity(&sha256_key(), 16)
            .expect("fits");
    });
    assert_eq!(
        script.input(&truncated),
        Received::Ignored(Ignored::Untrusted)
    );
}

#[test]
fn an_honest_response_still_counts_after_a_forged_one() {
    let mut script = believed(None, Class::Success);
    script.advance_s(1);
    let again = script.request();
    script.key = Some(sha256_key());
    script.grant(&again, &[relayed()], 600);
    assert!(is_allocated(&mut script));
}

#[test]
fn over_a_stream_a_forged_response_ends_the_request() {
    let mut script = Script::new(ClientConfig {
        transport: Transport::Tcp,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    let first = first_request(&mut script);
    script.challenge(&first, 401, NONCE, None);
    let second = script.request();
    script.grant(&second, &[relayed()], 600);
    let discarded = Discarded {
        code: None,
        reason: DiscardReason::NotAuthenticated,
    };
    assert_eq!(
        failure(&mut script),
        RequestError::IntegrityViolated(discarded)
    );
}

#[test]
fn a_400_to_an_unauthenticated_request_counts() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    script.refuse(&first, 400);
    assert_eq!(failure(&mut script).code(), Some(400));
}

#[test]
fn a_response_whose_algorithms_were_removed_is_ignored() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    let stripped = answer(&first, Class::Error, |response| {
        response
            .push(&ErrorCode::FORBIDDEN)
            .expect("fits")
            .push(&Nonce(NONCE_ALGORITHMS))
            .expect("fits");
    });
    assert_eq!(
        script.input(&stripped),
        Received::Ignored(Ignored::Untrusted)
    );
    assert_eq!(script.event(), None);
}

#[test]
fn a_binding_carries_credentials_only_when_the_server_insists() {
    let mut script = Script::allocated();
    script.client.binding(script.now);
    let plain = script.request();
    assert!(!has(&plain, AttributeType::MESSAGE_INTEGRITY));
    script.challenge(&plain, 401, NONCE, None);
    let signed = script.request();
    assert_eq!(method(&signed), stun::Method::BINDING);
    assert_eq!(parse(&signed).verify(&sha1_key()), Ok(()));
}

#[test]
fn credentials_are_prepared_as_rfc_8265_says() {
    // RFC 8265 §4.2.2: a non-ASCII space becomes an ASCII one; §4.2.1 composes (NFC).
    for (username, password) in [
        ("us\u{a0}er", PASSWORD),
        ("re\u{301}my", "pass\u{2003}e\u{301}"),
    ] {
        let prepared = stun::opaque_string(username).expect("allowed");
        let key = |algorithm| {
            stun::long_term_key(algorithm, &prepared, REALM, password).expect("allowed")
        };
        let mut script = Script::new(ClientConfig::with_credentials(username, password));
        let first = first_request(&mut script);
        script.challenge(&first, 401, NONCE, None);
        let second = script.request();
        assert_eq!(get::<Username<'_>>(&second).0, prepared);
        assert_eq!(
            parse(&second).verify(&key(PasswordAlgorithm::Md5).hmac_sha1()),
            Ok(())
        );

        let mut script = Script::new(ClientConfig::with_credentials(username, password));
        let first = first_request(&mut script);
        script.challenge(
            &first,
            401,
            NONCE_BOTH,
            Some(PasswordAlgorithms::SHA256_MD5),
        );
        let second = script.request();
        let hash = stun::userhash(&prepared, REALM).expect("allowed");
        assert_eq!(get::<Userhash>(&second), Userhash(hash));
        let sha256 = key(PasswordAlgorithm::Sha256).hmac_sha256();
        assert_eq!(parse(&second).verify_at_least(&sha256, 32), Ok(()));
    }
}

#[test]
fn credentials_that_rfc_8265_refuses_fail_the_request() {
    for (username, password) in [
        ("us\u{7}er", PASSWORD),
        (USER, "pass\u{7}word"),
        ("", PASSWORD),
    ] {
        let mut script = Script::new(ClientConfig::with_credentials(username, password));
        let first = first_request(&mut script);
        script.challenge(&first, 401, NONCE, None);
        assert_eq!(failure(&mut script), RequestError::UnusableCredentials);
    }
}

#[test]
fn a_challenge_without_a_nonce_is_malformed() {
    let mut script = Script::with_credentials();
    let first = first_request(&mut script);
    script.refuse(&first, 401);
    assert_eq!(failure(&mut script), RequestError::Malformed);
}

#[test]
fn a_request_that_fits_no_message_fails_at_once() {
    let mut script = Script::new(ClientConfig::with_credentials(&"u".repeat(508), PASSWORD));
    let first = first_request(&mut script);
    let nonce = [b'n'; 760];
    let realm = "r".repeat(760);
    let mut buffer = [0; 2048];
    let id = Message::parse(&first).expect("valid").transaction_id();
    let mut response =
        stun::Builder::new(&mut buffer, Class::Error, stun::Method::ALLOCATE, &id).expect("fits");
    response
        .push(&ErrorCode::UNAUTHENTICATED)
        .expect("fits")
        .push(&Realm(&realm))
        .expect("fits")
        .push(&Nonce(&nonce))
        .expect("fits");
    let answer = response.finish().to_vec();
    let _ = script.input(&answer);
    script.no_request();
    assert_eq!(failure(&mut script), RequestError::TooLong);
}
