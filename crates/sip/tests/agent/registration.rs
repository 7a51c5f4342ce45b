//! REGISTER: credentials, refreshes, and what is done after a failure.

use std::time::Duration;

use hairpin_sip::HashKey;
use hairpin_sip::agent::{
    AuthProblem, Config, ConfigError, Content, EndCause, Event, RegisterFailure, UserAgent,
};

use crate::bed::{TestBed, config, credentials, response, value};

fn challenge(nonce: &str, more: &str) -> String {
    format!(
        "WWW-Authenticate: Digest realm=\"r\", nonce=\"{nonce}\", algorithm=SHA-256, qop=\"auth\"{more}\r\n"
    )
}

fn registering() -> (TestBed, String) {
    let mut bed = TestBed::new(config());
    bed.act(UserAgent::register).expect("an account");
    let register = bed.take_one();
    (bed, register)
}

/// Registered for this time.
fn registered(granted: u32) -> (TestBed, String) {
    let (mut bed, register) = registering();
    let contacts = format!(
        "Contact: <sip:other@192.0.2.7>;expires=7\r\nContact: <sip:alice@192.0.2.1:5060>;expires={granted}\r\n"
    );
    bed.receive(&response(&register, "200 OK", "r", &contacts, ""));
    let expires = Duration::from_secs(granted.into());
    assert_eq!(bed.event(), Some(Event::Registered { expires }));
    (bed, register)
}

#[test]
fn it_registers_with_credentials_when_asked_rfc3261_22_2() {
    let (mut bed, register) = registering();
    assert!(
        register.starts_with("REGISTER sip:192.0.2.9 SIP/2.0\r\n"),
        "{register}"
    );
    assert_eq!(
        value(&register, "Contact"),
        "<sip:alice@192.0.2.1:5060>;expires=3600"
    );
    assert!(!register.contains("Authorization"));
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n1", ""),
        "",
    ));
    let again = bed.take_one();
    assert_eq!(value(&again, "CSeq"), "2 REGISTER");
    assert_eq!(value(&again, "Call-ID"), value(&register, "Call-ID"));
    let credentials = value(&again, "Authorization");
    for part in [
        "username=\"alice\"",
        "nonce=\"n1\"",
        "nc=00000001",
        "uri=\"sip:192.0.2.9\"",
    ] {
        assert!(credentials.contains(part), "{credentials}");
    }
    assert_eq!(bed.event(), None);
}

#[test]
fn it_refreshes_before_the_time_that_was_granted_rfc3261_10_2_4() {
    for (granted, wait) in [(60, 30), (1000, 500), (7200, 6600)] {
        let (mut bed, register) = registered(granted);
        bed.pass(Duration::from_secs(wait - 1));
        assert_eq!(bed.take(), Vec::<String>::new(), "{granted}");
        bed.pass(Duration::from_secs(1));
        let again = bed.take_one();
        assert_eq!(value(&again, "Call-ID"), value(&register, "Call-ID"));
        assert_eq!(value(&again, "CSeq"), "2 REGISTER");
    }
}

#[test]
fn a_refresh_has_credentials_at_once_and_counts_the_nonce() {
    let (mut bed, register) = registering();
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n1", ""),
        "",
    ));
    let again = bed.take_one();
    bed.receive(&response(&again, "200 OK", "r", "Expires: 60\r\n", ""));
    bed.pass(Duration::from_secs(30));
    let refresh = bed.take_one();
    assert!(
        value(&refresh, "Authorization").contains("nc=00000002"),
        "{refresh}"
    );
}

#[test]
fn other_servers_do_not_get_the_credentials() {
    let (mut bed, register) = registering();
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n1", ""),
        "",
    ));
    let again = bed.take_one();
    bed.receive(&response(&again, "200 OK", "r", "", ""));
    let (_, invite) = bed.invite(Content::none());
    assert!(!invite.contains("Authorization"), "{invite}");
}

#[test]
fn credentials_are_for_their_realm_alone_rfc3261_22_1() {
    let mut bed = TestBed::new(Config {
        credentials: vec![credentials(Some("elsewhere")), credentials(Some("r"))],
        ..config()
    });
    bed.act(UserAgent::register).unwrap();
    let register = bed.take_one();
    let ask = challenge("n1", "");
    bed.receive(&response(&register, "401 Unauthorized", "r", &ask, ""));
    let again = bed.take_one();
    bed.receive(&response(&again, "200 OK", "r", "Expires: 60\r\n", ""));
    bed.event();
    // A callee asks for the same realm: the nonce of the registrar stays.
    let (_, invite) = bed.invite(Content::none());
    let ask = challenge("n2", "");
    bed.receive(&response(&invite, "401 Unauthorized", "b", &ask, ""));
    let again = bed.take().pop().unwrap();
    assert!(value(&again, "Authorization").contains("nonce=\"n2\""));
    // Another one asks for a realm of its own.
    let (call, invite) = bed.invite(Content::none());
    let ask = challenge("n3", "").replace("\"r\"", "\"mine\"");
    bed.receive(&response(&invite, "401 Unauthorized", "b", &ask, ""));
    assert!(bed.take_one().starts_with("ACK "));
    let cause = EndCause::Authentication(AuthProblem::NoCredentials);
    assert_eq!(bed.event(), Some(Event::Ended { call, cause }));
    bed.pass(Duration::from_secs(30));
    let sent = bed.take();
    let refresh = sent.iter().find(|it| it.starts_with("REGISTER "));
    let credentials = value(refresh.expect("a refresh"), "Authorization");
    assert!(
        credentials.contains("nonce=\"n1\"") && credentials.contains("nc=00000002"),
        "{credentials}"
    );
}

#[test]
fn a_password_is_not_printed() {
    let printed = format!("{:?}", config());
    assert!(
        printed.contains("alice") && !printed.contains("secret"),
        "{printed}"
    );
}

#[test]
fn a_wrong_password_is_said_and_not_tried_again() {
    let (mut bed, register) = registering();
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n1", ""),
        "",
    ));
    let again = bed.take_one();
    bed.receive(&response(
        &again,
        "401 Unauthorized",
        "r",
        &challenge("n2", ""),
        "",
    ));
    let failure = RegisterFailure::Authentication(AuthProblem::Rejected);
    let retry_after = None;
    assert_eq!(
        bed.event(),
        Some(Event::RegisterFailed {
            failure,
            retry_after
        })
    );
    bed.pass(Duration::from_secs(4000));
    assert_eq!(bed.take(), Vec::<String>::new());
}

#[test]
fn a_stale_nonce_is_replaced_a_bounded_number_of_times_rfc7616_3_3() {
    let (mut bed, register) = registering();
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n1", ""),
        "",
    ));
    let mut sent = 0;
    for nonce in 2..10 {
        let Some(again) = bed.take().pop() else { break };
        sent += 1;
        let stale = challenge(&format!("n{nonce}"), ", stale=true");
        bed.receive(&response(&again, "401 Unauthorized", "r", &stale, ""));
    }
    assert_eq!(sent, 3);
    assert!(matches!(
        bed.event(),
        Some(Event::RegisterFailed {
            retry_after: None,
            ..
        })
    ));
}

#[test]
fn an_unanswerable_challenge_is_reported() {
    for (lines, problem) in [
        (
            "WWW-Authenticate: Basic realm=\"r\"\r\n",
            AuthProblem::Unsupported,
        ),
        (
            "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", algorithm=NONE\r\n",
            AuthProblem::Unsupported,
        ),
        ("", AuthProblem::Unsupported),
    ] {
        let (mut bed, register) = registering();
        bed.receive(&response(&register, "401 Unauthorized", "r", lines, ""));
        let failure = RegisterFailure::Authentication(problem);
        let retry_after = None;
        assert_eq!(
            bed.event(),
            Some(Event::RegisterFailed {
                failure,
                retry_after
            }),
            "{lines}"
        );
    }
    let mut bed = TestBed::new(Config {
        credentials: Vec::new(),
        ..config()
    });
    bed.act(UserAgent::register).unwrap();
    let register = bed.take_one();
    bed.receive(&response(
        &register,
        "401 Unauthorized",
        "r",
        &challenge("n", ""),
        "",
    ));
    let failure = RegisterFailure::Authentication(AuthProblem::NoCredentials);
    let retry_after = None;
    assert_eq!(
        bed.event(),
        Some(Event::RegisterFailed {
            failure,
            retry_after
        })
    );
}

#[test]
fn a_longer_registration_is_asked_for_after_a_423_rfc3261_10_2_8() {
    let mut bed = TestBed::new(Config {
        expires: 10,
        ..config()
    });
    bed.act(UserAgent::register).unwrap();
    let register = bed.take_one();
    bed.receive(&response(
        &register,
        "423 Interval Too Brief",
        "r",
        "Min-Expires: 90\r\n",
        "",
    ));
    let again = bed.take_one();
    assert!(value(&again, "Contact").ends_with(";expires=90"), "{again}");
    // A registrar that wants no more than was asked for is wrong, and is not asked at once again.
    bed.receive(&response(
        &again,
        "423 Interval Too Brief",
        "r",
        "Min-Expires: 90\r\n",
        "",
    ));
    assert_eq!(bed.take(), Vec::<String>::new());
    assert!(matches!(bed.event(), Some(Event::RegisterFailed { .. })));
}

#[test]
fn it_tries_again_later_if_the_failure_may_pass_rfc5626_4_5() {
    for (status, lines, least, most) in [
        ("503 Service Unavailable", "Retry-After: 100\r\n", 100, 100),
        ("503 Service Unavailable", "", 30, 60),
        ("408 Request Timeout", "", 30, 60),
    ] {
        let (mut bed, register) = registering();
        bed.receive(&response(&register, status, "r", lines, ""));
        let Some(Event::RegisterFailed {
            retry_after: Some(wait),
            ..
        }) = bed.event()
        else {
            panic!("{status}");
        };
        assert!(
            (least..=most).contains(&wait.as_secs()),
            "{status}: {wait:?}"
        );
        bed.pass(wait + Duration::from_millis(1));
        assert!(bed.take_one().starts_with("REGISTER "), "{status}");
    }
    let (mut bed, register) = registering();
    bed.receive(&response(&register, "403 Forbidden", "r", "", ""));
    assert!(matches!(
        bed.event(),
        Some(Event::RegisterFailed {
            retry_after: None,
            ..
        })
    ));
}

#[test]
fn no_response_is_a_failure_that_may_pass() {
    let (mut bed, _) = registering();
    bed.pass(Duration::from_secs(33));
    assert!(matches!(
        bed.event(),
        Some(Event::RegisterFailed {
            failure: RegisterFailure::NoResponse(_),
            retry_after: Some(_)
        })
    ));
}

#[test]
fn it_unregisters_and_stays_so() {
    let (mut bed, _) = registered(600);
    bed.act(UserAgent::unregister).unwrap();
    let register = bed.take_one();
    assert!(
        value(&register, "Contact").ends_with(";expires=0"),
        "{register}"
    );
    bed.receive(&response(&register, "200 OK", "r", "", ""));
    assert_eq!(bed.event(), Some(Event::Unregistered));
    bed.pass(Duration::from_secs(4000));
    assert_eq!(bed.take(), Vec::<String>::new());
}

#[test]
fn a_change_of_mind_waits_for_the_response_rfc3261_10_2() {
    let (mut bed, register) = registering();
    bed.act(UserAgent::unregister).unwrap();
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.receive(&response(&register, "200 OK", "r", "Expires: 600\r\n", ""));
    let second = bed.take_one();
    assert!(
        value(&second, "Contact").ends_with(";expires=0"),
        "{second}"
    );
}

#[test]
fn calls_go_by_the_service_route_rfc3608_6_1() {
    let (mut bed, register) = registering();
    let lines = "Expires: 600\r\nService-Route: <sip:192.0.2.50;lr>\r\n";
    bed.receive(&response(&register, "200 OK", "r", lines, ""));
    let (_, invite) = bed.invite(Content::none());
    assert_eq!(value(&invite, "Route"), "<sip:192.0.2.50;lr>");
    assert!(invite.starts_with("INVITE sip:bob@192.0.2.9 SIP/2.0\r\n"));
}

#[test]
fn a_configuration_that_cannot_be_written_is_refused() {
    let key = HashKey::new([1; 16]);
    let refused = |config: Config| UserAgent::new(config, key).err();
    for uri in [
        "",
        "alice",
        "tel:+1",
        "sip:a@h\r\nX: y",
        "sip:a@h> <sip:b@h",
    ] {
        let error = ConfigError::Uri(uri.to_owned());
        let identity = Config {
            identity: uri.to_owned(),
            ..config()
        };
        assert_eq!(refused(identity), Some(error.clone()), "{uri}");
        let proxy = Config {
            outbound_proxy: Some(uri.to_owned()),
            ..config()
        };
        assert_eq!(refused(proxy), Some(error), "{uri}");
    }
    let name = "a\r\nX: b".to_owned();
    let error = ConfigError::LineEnd(name.clone());
    assert_eq!(
        refused(Config {
            display_name: name,
            ..config()
        }),
        Some(error)
    );
}
