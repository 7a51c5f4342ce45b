//! RFC 8656 §7 and §8: obtaining an allocation, keeping it, losing it.

use std::time::Duration;

use stun::{
    AdditionalAddressFamily, AddressErrorCode, AddressFamily, AlternateDomain, AlternateServer,
    AttributeType, EvenPort, Lifetime, Method, RequestedAddressFamily, RequestedTransport,
    ReservationToken, Software, UnknownAttributes, XorMappedAddress, XorRelayedAddress,
};
use turn::client::{
    Advice, AllocateOptions, AllocationLoss, CallError, ClientConfig, Event, RequestError,
    RequestedPort, RequestedRelays,
};

use crate::script::{
    PASSWORD, Script, USER, get, has, mapped, method, parse, relayed, relayed_v6, sha1_key,
};

fn one(family: Option<AddressFamily>, port: RequestedPort) -> AllocateOptions {
    AllocateOptions {
        relay: RequestedRelays::One { family, port },
        ..AllocateOptions::default()
    }
}

fn request_of(options: AllocateOptions) -> (Script, Vec<u8>) {
    let mut script = Script::with_credentials();
    script
        .client
        .allocate(script.now, options)
        .expect("not allocated");
    let request = script.request();
    (script, request)
}

fn failure(script: &mut Script) -> (RequestError, Advice) {
    match script.event() {
        Some(Event::AllocateFailed { error, advice }) => (error, advice),
        other => panic!("expected AllocateFailed, got {other:?}"),
    }
}

#[test]
fn a_plain_request_asks_for_udp_and_nothing_else() {
    let (_, request) = request_of(AllocateOptions::default());
    assert_eq!(method(&request), Method::ALLOCATE);
    assert_eq!(get::<RequestedTransport>(&request), RequestedTransport::UDP);
    let types: Vec<_> = parse(&request)
        .attributes()
        .map(|attribute| attribute.attribute_type)
        .collect();
    assert_eq!(
        types,
        [AttributeType::SOFTWARE, AttributeType::REQUESTED_TRANSPORT]
    );
}

#[test]
fn every_wish_has_its_attribute() {
    let (_, request) = request_of(AllocateOptions {
        dont_fragment: true,
        lifetime_s: Some(1800),
        ..one(Some(AddressFamily::V6), RequestedPort::Even)
    });
    assert_eq!(get::<Lifetime>(&request), Lifetime(1800));
    assert!(has(&request, AttributeType::DONT_FRAGMENT));
    assert_eq!(
        get::<RequestedAddressFamily>(&request),
        RequestedAddressFamily(AddressFamily::V6)
    );
    assert_eq!(get::<EvenPort>(&request), EvenPort { reserve: false });

    let (_, request) = request_of(one(None, RequestedPort::EvenAndNext));
    assert_eq!(get::<EvenPort>(&request), EvenPort { reserve: true });
    assert!(!has(&request, AttributeType::REQUESTED_ADDRESS_FAMILY));

    let (_, request) = request_of(AllocateOptions {
        relay: RequestedRelays::Both { even_port: true },
        ..AllocateOptions::default()
    });
    assert_eq!(
        get::<AdditionalAddressFamily>(&request),
        AdditionalAddressFamily(AddressFamily::V6)
    );
    assert_eq!(get::<EvenPort>(&request), EvenPort { reserve: false });

    let (_, request) = request_of(AllocateOptions {
        relay: RequestedRelays::Reserved(*b"a token!"),
        ..AllocateOptions::default()
    });
    assert_eq!(
        get::<ReservationToken>(&request),
        ReservationToken(*b"a token!")
    );
    assert!(!has(&request, AttributeType::EVEN_PORT));
}

#[test]
fn the_event_has_all_that_was_granted() {
    let (mut script, request) = request_of(one(None, RequestedPort::EvenAndNext));
    script.advance(Duration::from_millis(30));
    script.succeed(&request, |response| {
        response
            .push(&XorRelayedAddress(relayed()))
            .expect("fits")
            .push(&XorMappedAddress(mapped()))
            .expect("fits")
            .push(&Lifetime(777))
            .expect("fits")
            .push(&ReservationToken([9; 8]))
            .expect("fits")
            .push(&Software("scripted"))
            .expect("fits");
    });
    let Some(Event::Allocated(allocated)) = script.event() else {
        panic!("not allocated");
    };
    assert_eq!(allocated.relayed, relayed());
    assert_eq!(allocated.mapped, mapped());
    assert_eq!(allocated.additional, None);
    assert_eq!(allocated.lifetime_s, 777);
    assert_eq!(allocated.reservation, Some([9; 8]));
    assert_eq!(allocated.software.as_deref(), Some("scripted"));
    assert_eq!(allocated.timing.elapsed, Duration::from_millis(30));
    assert_eq!(allocated.timing.transmissions, 1);
    assert_eq!(script.client.relayed(), Some(relayed()));
    assert_eq!(script.client.mapped(), Some(mapped()));
    let again = script
        .client
        .allocate(script.now, AllocateOptions::default());
    assert_eq!(again, Err(CallError::AlreadyAllocated));
}

#[test]
fn a_dual_allocation_may_be_granted_by_half() {
    let options = AllocateOptions {
        relay: RequestedRelays::Both { even_port: false },
        ..AllocateOptions::default()
    };
    let (mut script, request) = request_of(options);
    script.grant(&request, &[relayed(), relayed_v6()], 600);
    assert!(matches!(script.event(), Some(Event::Allocated(_))));
    assert_eq!(script.client.additional_relayed(), Some(relayed_v6()));

    let (mut script, request) = request_of(options);
    script.succeed(&request, |response| {
        let refused = AddressErrorCode {
            family: AddressFamily::V6,
            code: 440,
            reason: "",
        };
        response
            .push(&XorRelayedAddress(relayed()))
            .expect("fits")
            .push(&XorMappedAddress(mapped()))
            .expect("fits")
            .push(&Lifetime(600))
            .expect("fits")
            .push(&refused)
            .expect("fits");
    });
    let Some(Event::Allocated(allocated)) = script.event() else {
        panic!("not allocated");
    };
    assert_eq!(allocated.refused_family, Some((AddressFamily::V6, 440)));
    assert_eq!(allocated.additional, None);
}

#[test]
fn one_family_of_a_dual_allocation_can_be_released() {
    let (mut script, request) = request_of(AllocateOptions {
        relay: RequestedRelays::Both { even_port: false },
        ..AllocateOptions::default()
    });
    script.grant(&request, &[relayed(), relayed_v6()], 600);
    script.event();
    let v4 = Some(AddressFamily::V4);
    script.client.release(script.now, v4).expect("allocated");
    let request = script.request();
    assert_eq!(get::<Lifetime>(&request), Lifetime(0));
    assert_eq!(
        get::<RequestedAddressFamily>(&request),
        RequestedAddressFamily(AddressFamily::V4)
    );
    script.succeed(&request, |response| {
        response.push(&Lifetime(0)).expect("fits");
    });
    assert!(matches!(
        script.event(),
        Some(Event::Released {
            family: Some(AddressFamily::V4),
            ..
        })
    ));
    assert_eq!(script.client.relayed(), Some(relayed_v6()));
    assert_eq!(
        script.client.release(script.now, v4),
        Err(CallError::PeerFamily)
    );
    // What is left is kept alive.
    assert_eq!(method(&script.run_s(541)[0]), Method::REFRESH);
}

#[test]
fn an_allocation_of_the_wrong_family_is_deleted() {
    let (mut script, request) = request_of(one(Some(AddressFamily::V6), RequestedPort::Any));
    script.grant(&request, &[relayed()], 600);
    assert_eq!(
        failure(&mut script),
        (RequestError::WrongFamily, Advice::GiveUp)
    );
    let delete = script.request();
    assert_eq!(method(&delete), Method::REFRESH);
    assert_eq!(get::<Lifetime>(&delete), Lifetime(0));
    assert_eq!(script.client.relayed(), None);
}

#[test]
fn a_success_without_its_addresses_is_a_failure() {
    let (mut script, request) = request_of(AllocateOptions::default());
    script.succeed(&request, |response| {
        response
            .push(&XorMappedAddress(mapped()))
            .expect("fits")
            .push(&Lifetime(600))
            .expect("fits");
    });
    assert_eq!(failure(&mut script).0, RequestError::Malformed);
}

#[test]
fn an_alternate_server_is_passed_on() {
    let (mut script, request) = request_of(AllocateOptions::default());
    let other = ([192, 0, 2, 99], 3479).into();
    script.refuse_with(&request, 300, |response| {
        response
            .push(&AlternateServer(other))
            .expect("fits")
            .push(&AlternateServer(relayed_v6()))
            .expect("fits")
            .push(&AlternateDomain("other.example.org"))
            .expect("fits");
    });
    let (error, advice) = failure(&mut script);
    assert_eq!(error.code(), Some(300));
    let Advice::TryAlternate(alternate) = advice else {
        panic!("unexpected advice {advice:?}");
    };
    assert_eq!(*alternate.servers, [other, relayed_v6()]);
    assert_eq!(alternate.domain.as_deref(), Some("other.example.org"));
}

#[test]
fn three_local_addresses_are_tried_after_437() {
    let mut script = Script::with_credentials();
    for advice in [
        Advice::ChangePort,
        Advice::ChangePort,
        Advice::Wait(Duration::from_secs(120)),
    ] {
        script
            .client
            .allocate(script.now, AllocateOptions::default())
            .expect("not allocated");
        let request = script.request();
        script.refuse(&request, 437);
        assert_eq!(failure(&mut script).1, advice);
        script.client.restart();
    }
}

#[test]
fn a_server_without_dont_fragment_is_recognised() {
    let (mut script, request) = request_of(AllocateOptions {
        dont_fragment: true,
        ..AllocateOptions::default()
    });
    script.refuse_with(&request, 420, |response| {
        let unknown: UnknownAttributes = [AttributeType::DONT_FRAGMENT].into_iter().collect();
        response.push(&unknown).expect("fits");
    });
    let (error, advice) = failure(&mut script);
    assert_eq!(advice, Advice::OmitDontFragment);
    assert_eq!(
        error.to_string(),
        "the server answered 420 (no), unknown attributes 0x001a"
    );
}

#[test]
fn an_allocation_is_refreshed_a_minute_before_it_expires() {
    let mut script = Script::allocated();
    assert_eq!(script.run_s(539), Vec::<Vec<u8>>::new());
    let requests = script.run_s(1);
    assert_eq!(requests.len(), 1);
    assert_eq!(method(&requests[0]), Method::REFRESH);
    assert!(!has(&requests[0], AttributeType::LIFETIME));
    script.succeed(&requests[0], |response| {
        response.push(&Lifetime(300)).expect("fits");
    });
    assert!(matches!(
        script.event(),
        Some(Event::Refreshed {
            lifetime_s: 300,
            ..
        })
    ));
    assert_eq!(script.run_s(239), Vec::<Vec<u8>>::new());
    assert_eq!(script.run_s(1).len(), 1);
}

#[test]
fn a_refresh_that_gets_no_answer_is_repeated_until_time_is_up() {
    let mut script = Script::allocated();
    let requests = script.run_s(541 + 39);
    assert_eq!(requests.len(), 7, "the first refresh");
    assert!(matches!(
        script.event(),
        Some(Event::RefreshFailed(RequestError::TimedOut(_)))
    ));
    assert!(!script.run_s(10).is_empty(), "the second refresh");
    assert_eq!(script.event(), None);
    script.run_s(15);
    assert_eq!(script.event(), Some(Event::Lost(AllocationLoss::Expired)));
    assert_eq!(script.client.relayed(), None);
    assert_eq!(script.client.poll_timeout(), None);
}

#[test]
fn an_allocation_the_server_has_forgotten_is_lost() {
    let mut script = Script::allocated();
    script
        .client
        .permit(script.now, &[relayed().ip()])
        .expect("allocated");
    script.request();
    script.client.refresh(script.now, None).expect("allocated");
    let refresh = script.request();
    script.refuse(&refresh, 437);
    assert_eq!(script.event(), Some(Event::Lost(AllocationLoss::Forgotten)));
    assert_eq!(script.event(), None);
    assert!(!script.client.is_busy(), "nothing waits for the permission");
    assert_eq!(
        script.client.refresh(script.now, None),
        Err(CallError::NoAllocation)
    );
}

#[test]
fn releasing_ends_everything() {
    let mut script = Script::allocated();
    script.client.release(script.now, None).expect("allocated");
    let request = script.request();
    assert_eq!(get::<Lifetime>(&request), Lifetime(0));
    script.succeed(&request, |response| {
        response.push(&Lifetime(0)).expect("fits");
    });
    assert!(matches!(
        script.event(),
        Some(Event::Released { family: None, .. })
    ));
    assert_eq!(script.client.poll_timeout(), None);
    assert_eq!(script.client.relayed(), None);
}

#[test]
fn a_release_of_what_is_gone_already_is_a_success() {
    let mut script = Script::allocated();
    script.client.release(script.now, None).expect("allocated");
    let request = script.request();
    script.refuse(&request, 437);
    assert!(matches!(script.event(), Some(Event::Released { .. })));
    assert_eq!(script.event(), None);
}

#[test]
fn without_keep_alive_the_allocation_lapses() {
    let mut script = Script::allocated_with(ClientConfig {
        keep_alive: false,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    assert_eq!(script.run_s(599), Vec::<Vec<u8>>::new());
    assert_eq!(script.event(), None);
    script.run_s(1);
    assert_eq!(script.event(), Some(Event::Lost(AllocationLoss::Expired)));
}

#[test]
fn a_wished_lifetime_is_wished_again() {
    let mut script = Script::with_credentials();
    script.allocate(AllocateOptions {
        lifetime_s: Some(1200),
        ..AllocateOptions::default()
    });
    script.event();
    script.key = Some(sha1_key());
    let requests = script.run_s(540);
    assert_eq!(get::<Lifetime>(&requests[0]), Lifetime(1200));
}
