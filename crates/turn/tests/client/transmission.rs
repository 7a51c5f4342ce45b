//! RFC 8489 §6.2: when requests are repeated, how many are in progress, and what ends them.

use std::net::IpAddr;
use std::time::Duration;

use stun::{AttributeType, Class, Method, XorMappedAddress};
use turn::Transport;
use turn::client::{
    Advice, AllocateOptions, ClientConfig, Event, Ignored, Received, RequestError, Retransmission,
};

use crate::script::{PASSWORD, Script, USER, answer, has, mapped, method, peer};

#[test]
fn a_binding_finds_out_the_mapped_address() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let request = script.request();
    assert_eq!(method(&request), Method::BINDING);
    script.advance(Duration::from_millis(12));
    script.succeed(&request, |response| {
        response.push(&XorMappedAddress(mapped())).expect("fits");
    });
    let Some(Event::Mapped(found)) = script.event() else {
        panic!("not mapped");
    };
    assert_eq!(found.address, mapped());
    assert_eq!(found.timing.elapsed, Duration::from_millis(12));
    assert_eq!(script.client.poll_timeout(), None);
}

#[test]
fn a_request_is_sent_seven_times_and_then_fails() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let first = script.request();
    let repeated = script.run_s(39);
    assert_eq!(repeated.len(), 6);
    assert!(
        repeated.iter().all(|request| *request == first),
        "a retransmission is the same message"
    );
    assert_eq!(script.event(), None);
    script.run_s(1);
    let Some(Event::BindingFailed(RequestError::TimedOut(timing))) = script.event() else {
        panic!("no timeout");
    };
    assert_eq!(timing.transmissions, 7);
    assert_eq!(timing.elapsed, Duration::from_millis(39_500));
}

#[test]
fn a_lost_allocate_advises_another_transport() {
    let mut script = Script::with_credentials();
    script
        .client
        .allocate(script.now, AllocateOptions::default())
        .expect("not allocated");
    script.run_s(40);
    let Some(Event::AllocateFailed { error, advice }) = script.event() else {
        panic!("no failure");
    };
    assert!(matches!(error, RequestError::TimedOut(_)));
    assert_eq!(advice, Advice::ChangeTransport);
}

#[test]
fn a_response_to_any_of_the_transmissions_counts_once() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let first = script.request();
    let repeated = script.run_s(2);
    assert_eq!(repeated.len(), 2);
    let response = answer(&first, Class::Success, |response| {
        response.push(&XorMappedAddress(mapped())).expect("fits");
    });
    assert_eq!(script.input(&response), Received::Handled);
    assert_eq!(
        script.input(&response),
        Received::Ignored(Ignored::UnknownTransaction)
    );
    assert!(matches!(script.event(), Some(Event::Mapped(_))));
    assert_eq!(script.event(), None);
    assert_eq!(script.run_s(60), Vec::<Vec<u8>>::new());
}

#[test]
fn over_a_stream_nothing_is_repeated() {
    let mut script = Script::new(ClientConfig {
        transport: Transport::Tls,
        ..ClientConfig::default()
    });
    script.client.binding(script.now);
    script.request();
    assert_eq!(script.run_s(39), Vec::<Vec<u8>>::new());
    assert_eq!(script.event(), None);
    script.run_s(1);
    assert!(matches!(
        script.event(),
        Some(Event::BindingFailed(RequestError::TimedOut(_)))
    ));
}

#[test]
fn the_schedule_can_be_changed() {
    let mut script = Script::new(ClientConfig {
        retransmission: Retransmission {
            timeout: Duration::from_millis(100),
            transmissions: 3,
            last_wait: 5,
            ..Retransmission::default()
        },
        ..ClientConfig::default()
    });
    script.client.binding(script.now);
    script.request();
    assert_eq!(script.run_s(1).len(), 2);
    let Some(Event::BindingFailed(RequestError::TimedOut(timing))) = script.event() else {
        panic!("no timeout");
    };
    assert_eq!(timing.elapsed, Duration::from_millis(100 + 200 + 500));
}

#[test]
fn a_slow_path_waits_longer_before_it_repeats() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let request = script.request();
    script.advance(Duration::from_millis(400));
    script.succeed(&request, |response| {
        response.push(&XorMappedAddress(mapped())).expect("fits");
    });
    script.event();
    script.client.binding(script.now);
    script.request();
    // RFC 6298 §2.2: 400 ms and four times 200 ms.
    let deadline = script.client.poll_timeout().expect("pending");
    assert_eq!(deadline.since(script.now.mono), Duration::from_millis(1200));
}

#[test]
fn no_more_than_ten_requests_are_under_way() {
    let mut script = Script::allocated();
    for port in 1..=25 {
        script
            .client
            .bind_channel(script.now, peer(1, port))
            .expect("allocated");
    }
    let mut requests: Vec<_> = std::iter::from_fn(|| script.poll_request()).collect();
    assert_eq!(requests.len(), 10);
    let mut bound = 0;
    while let Some(request) = requests.pop() {
        script.succeed(&request, |_| ());
        requests.extend(std::iter::from_fn(|| script.poll_request()));
        assert!(requests.len() <= 10);
        bound += 1;
    }
    assert_eq!(bound, 25);
    let events = std::iter::from_fn(|| script.event()).count();
    assert_eq!(events, 25);
}

#[test]
fn an_unreachable_server_fails_what_is_under_way() {
    let mut script = Script::with_credentials();
    script
        .client
        .allocate(script.now, AllocateOptions::default())
        .expect("not allocated");
    script.request();
    script.client.handle_unreachable(script.now);
    let Some(Event::AllocateFailed { error, .. }) = script.event() else {
        panic!("no failure");
    };
    assert_eq!(error, RequestError::Unreachable);
    assert_eq!(script.client.poll_timeout(), None);
}

#[test]
fn a_fingerprint_is_added_and_checked() {
    let mut script = Script::new(ClientConfig {
        fingerprint: true,
        ..ClientConfig::default()
    });
    script.client.binding(script.now);
    let request = script.request();
    assert!(has(&request, AttributeType::FINGERPRINT));
    let mut response = answer(&request, Class::Success, |response| {
        response
            .push(&XorMappedAddress(mapped()))
            .expect("fits")
            .fingerprint()
            .expect("fits");
    });
    let last = response.len() - 1;
    response[last] ^= 1;
    assert_eq!(
        script.input(&response),
        Received::Ignored(Ignored::Malformed)
    );
    response[last] ^= 1;
    assert_eq!(script.input(&response), Received::Handled);
}

#[test]
fn an_unknown_required_attribute_fails_the_transaction() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let request = script.request();
    script.succeed(&request, |response| {
        response
            .push(&XorMappedAddress(mapped()))
            .expect("fits")
            .push_raw(AttributeType(0x7ff0), b"what")
            .expect("fits");
    });
    assert_eq!(
        script.event(),
        Some(Event::BindingFailed(RequestError::Malformed))
    );
}

#[test]
fn an_error_without_its_code_fails_the_transaction() {
    let mut script = Script::new(ClientConfig::default());
    script.client.binding(script.now);
    let request = script.request();
    let response = answer(&request, Class::Error, |_| ());
    assert_eq!(script.input(&response), Received::Handled);
    assert_eq!(
        script.event(),
        Some(Event::BindingFailed(RequestError::Malformed))
    );
}

#[test]
fn the_same_seed_and_the_same_inputs_give_the_same_bytes() {
    let transcript = || {
        let mut script = Script::new(ClientConfig::with_credentials(USER, PASSWORD));
        script.allocate(AllocateOptions::default());
        let ips: [IpAddr; 1] = [peer(1, 0).ip()];
        script.client.permit(script.now, &ips).expect("allocated");
        script.run_s(700)
    };
    assert_eq!(transcript(), transcript());
}
