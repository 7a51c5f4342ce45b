//! Limits of calls over real sockets: users whose messages come to several workers.

use crate::sip_client::phone::{Phone, value};
use crate::sip_client::{LOOPBACK, example_com, with_users};
use hairpin_server::Running;
use hairpin_server::sip::{CallLimit, SipSettings};
use sip::Method;
use std::time::{Duration, Instant};

fn serve(calls: impl FnOnce(&mut SipSettings), workers: usize) -> Running {
    let mut settings = example_com();
    // A busy machine must not look like an overload.
    settings.tolerance = Duration::ZERO;
    calls(&mut settings);
    let server = with_users(LOOPBACK, settings, 8).workers(workers);
    server.start().expect("the server starts")
}

/// A call that is answered: its INVITE as the callee got it, and its 200.
fn call(caller: &mut Phone, callee: &mut Phone, id: &str) -> (String, String) {
    let uri = format!("sip:{}@example.com", callee.user);
    caller.ask(Method::Invite, &uri, id);
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    (invite, ok)
}

fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(5), "in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_users_calls_count_on_all_workers() {
    let server = serve(
        |settings| {
            settings.calls.per_user = CallLimit {
                concurrent: 2,
                per_second: 0,
            };
        },
        4,
    );
    let mut callees: Vec<Phone> = (1..4)
        .map(|number| Phone::udp(&server, &format!("user{number}")))
        .collect();
    callees.iter_mut().for_each(Phone::register);
    // Each from a port of its own, which another worker may serve.
    let mut callers: Vec<Phone> = (0..4).map(|_| Phone::udp(&server, "user0")).collect();
    let (first, _) = call(&mut callers[0], &mut callees[0], "c0");
    let (_, ok) = call(&mut callers[1], &mut callees[1], "c1");
    until(|| server.stats().sip().calls == 2);
    callers[2].ask(Method::Invite, "sip:user3@example.com", "c2");
    callers[2].expect("SIP/2.0 486 Too Many Calls");
    assert_eq!(server.stats().sip().calls_refused, [1, 0, 0, 0, 0, 0, 0]);
    // The BYE of the callee frees a place, and that of the caller as well.
    callees[0].hang_up(&first);
    let bye = callers[0].expect("BYE ");
    callers[0].respond(&bye, "200 OK");
    callees[0].expect("SIP/2.0 200");
    let (_, ok3) = call(&mut callers[3], &mut callees[2], "c3");
    for (caller, callee, ok) in [(1, 1, ok), (3, 2, ok3)] {
        callers[caller].in_dialog(&ok, "BYE");
        let bye = callees[callee].expect("BYE ");
        callees[callee].respond(&bye, "200 OK");
        callers[caller].expect("SIP/2.0 200");
    }
    until(|| server.stats().sip().calls == 0);
    assert_eq!(server.stats().sip().calls_expired, 0);
}

#[test]
fn a_domains_calls_count_together_and_forbidden_numbers_are_403() {
    let server = serve(
        |settings| {
            settings.calls.per_domain = CallLimit {
                concurrent: 1,
                per_second: 0,
            };
            settings.calls.forbidden_prefixes = vec!["+1900".to_owned()];
        },
        2,
    );
    let mut callee = Phone::udp(&server, "user3");
    callee.register();
    let mut callers: Vec<Phone> = (0..2)
        .map(|number| Phone::udp(&server, &format!("user{number}")))
        .collect();
    let (invite, ok) = call(&mut callers[0], &mut callee, "d0");
    // A session timer is asked for as long as calls are limited (RFC 4028).
    assert_eq!(value(&invite, "Session-Expires"), "1800");
    callers[1].ask(Method::Invite, "sip:user3@example.com", "d1");
    callers[1].expect("SIP/2.0 486 ");
    callers[0].in_dialog(&ok, "BYE");
    let bye = callee.expect("BYE ");
    callee.respond(&bye, "200 OK");
    callers[0].expect("SIP/2.0 200");
    call(&mut callers[1], &mut callee, "d2");
    callers[0].ask(Method::Invite, "sip:+1-900-5550199@192.0.2.1", "d3");
    callers[0].expect("SIP/2.0 403 Number Is Not Allowed");
    until(|| server.stats().sip().calls_refused == [0, 0, 1, 0, 1, 0, 0]);
}
