//! Phones that are woken by push notifications (RFC 8599), and their connections.

use crate::common::take_over::take_over;
use crate::sip_client::phone::{PASSWORD, Phone, credentials};
use hairpin_server::sip::{Domain, Push, PushHook, PushReason, PushSettings, SipSettings};
use hairpin_server::{Builder, Running, Server};
use sip::{HeaderKind, Method};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A server, and what it sends to phones.
fn serve(workers: usize) -> (Running, Receiver<Push>) {
    let (sender, receiver) = channel();
    let hook = PushHook::new(move |push| sender.send(push).is_ok());
    (
        serve_with(workers, Duration::from_secs(130), hook),
        receiver,
    )
}

/// A server that has phones refresh their registrations so long before these end.
fn serve_with(workers: usize, refresh: Duration, hook: PushHook) -> Running {
    let nowhere = "127.0.0.1:0".parse().expect("an address");
    server_at([nowhere; 2], workers, refresh, hook)
        .start()
        .expect("the server starts")
}

/// The server with these listeners for TURN and SIP.
fn server_at(
    [turn, sip]: [SocketAddr; 2],
    workers: usize,
    refresh: Duration,
    hook: PushHook,
) -> Builder {
    let mut settings = SipSettings::default();
    settings.registrar.min_expires = 1;
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.push = Some(PushSettings {
        providers: vec!["fcm".to_owned()],
        wait: Duration::from_secs(20),
        awake: Duration::from_secs(600),
        calls: 100,
        refresh,
        hook,
    });
    Server::builder()
        .listen(turn)
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen(sip)
        .user("ann", PASSWORD)
        .user("bob", PASSWORD)
        .sip(settings)
        .workers(workers)
}

/// Registers with Outbound if `params` says so, and with the parameters of a push service.
fn register(phone: &mut Phone, params: &str, mut cseq: u32) {
    let uri = "sip:example.com";
    let plain = phone.contact();
    let contact = plain.replace('>', ";pn-provider=fcm;pn-prid=token>") + params;
    let mut line = String::new();
    loop {
        let lines = format!("Supported: outbound, path\r\n{line}");
        let text = phone.request("REGISTER", uri, "push", cseq, &lines);
        let old = format!("Contact: {plain}\r\n");
        phone.send(&text.replace(&old, &format!("Contact: {contact}\r\n")));
        let response = phone.expect("SIP/2.0 ");
        if response.starts_with("SIP/2.0 200") {
            return;
        }
        assert!(response.starts_with("SIP/2.0 401"), "{response}");
        let kind = HeaderKind::Authorization;
        line = credentials(&response, kind, &phone.user, Method::Register, uri);
        cseq += 1;
    }
}

/// Waits until the server has closed so many connections.
fn wait_closed(server: &Running, before: u64) {
    let end = Instant::now() + Duration::from_secs(8);
    while server.stats().sip().connections >= before {
        assert!(Instant::now() < end, "the connection is closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_phone_whose_connection_ends_keeps_its_binding_and_is_woken_rfc8599_5_6_2() {
    let outbound = ";reg-id=1;+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-00000000000a>\"";
    for (workers, params) in [(1, outbound), (4, outbound), (4, "")] {
        let (server, pushes) = serve(workers);
        let mut phone = Phone::tcp(&server, "bob");
        register(&mut phone, params, 1);
        let before = server.stats().sip().connections;
        drop(phone);
        wait_closed(&server, before.max(1));
        assert_eq!(server.stats().sip().bindings, 1);
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Invite, "sip:bob@example.com", "wake");
        let push = pushes.recv_timeout(Duration::from_secs(8));
        assert_eq!(push.expect("a push notification").prid, "token");
        let mut phone = Phone::tcp(&server, "bob");
        register(&mut phone, params, 10);
        let invite = phone.expect("INVITE ");
        phone.respond(&invite, "486 Busy Here");
        ann.expect("SIP/2.0 486");
    }
}

#[test]
fn a_phone_is_woken_to_refresh_its_registration_and_stays_registered_rfc8599_5_5() {
    let (sender, pushes) = channel();
    let first = std::sync::atomic::AtomicBool::new(true);
    // The queue is full at first.
    let hook = PushHook::new(move |push| {
        let is_first = first.swap(false, std::sync::atomic::Ordering::Relaxed);
        sender.send(push).is_ok() && !is_first
    });
    let server = serve_with(2, Duration::from_secs(20), hook);
    let mut phone = Phone::udp(&server, "bob");
    for round in 0..3 {
        // One second after the REGISTER, the registration lasts 20 s.
        register(&mut phone, ";expires=21", 10 * round + 1);
        let push = pushes.recv_timeout(Duration::from_secs(15));
        let push = push.expect("a push notification");
        assert_eq!(push.reason, PushReason::Refresh);
        let names = (&push.provider[..], &push.prid[..], &push.aor[..]);
        assert_eq!(names, ("fcm", "token", "bob@example.com"));
        assert!(push.wait <= Duration::from_secs(21), "{push:?}");
        assert_eq!(server.stats().sip().bindings, 1);
        if round == 0 {
            let again = pushes.recv_timeout(Duration::from_secs(15));
            let again = again.expect("the notification again");
            assert!(again.reason == PushReason::Refresh && again.wait < push.wait);
        }
    }
    // Without a registration there is none.
    register(&mut phone, ";expires=0", 100);
    assert!(pushes.recv_timeout(Duration::from_secs(3)).is_err());
}

/// Needs root, as all upgrades do.
#[test]
fn after_an_upgrade_without_a_state_directory_only_the_new_process_wakes_phones() {
    let hook = || {
        let (sender, pushes) = channel();
        (PushHook::new(move |push| sender.send(push).is_ok()), pushes)
    };
    let ((old_hook, old_pushes), (new_hook, new_pushes)) = (hook(), hook());
    let refresh = Duration::from_secs(20);
    let old = Arc::new(serve_with(2, refresh, old_hook));
    let mut phone = Phone::udp(&old, "bob");
    // It is woken 10 s after the REGISTER, and again before its registration ends.
    register(&mut phone, ";expires=30", 1);
    let listeners = [old.listeners()[0], old.sip_listeners()[0]];
    let new = server_at(listeners, 2, refresh, new_hook);
    let new = take_over(&old, new).unwrap_or_else(|error| panic!("{error}"));
    old.stop_listening().expect("every worker responds");
    for _ in 0..2 {
        let push = new_pushes.recv_timeout(Duration::from_secs(25));
        let push = push.expect("the new process wakes the phone");
        assert_eq!(push.reason, PushReason::Refresh);
    }
    assert!(old_pushes.try_recv().is_err(), "the old one is silent");
    // If the new process ends, the old one wakes phones again.
    drop(new);
    old.resume().expect("every worker responds");
    let mut phone = Phone::udp(&old, "ann");
    register(&mut phone, ";expires=21", 1);
    let push = old_pushes.recv_timeout(Duration::from_secs(25));
    assert_eq!(
        push.expect("a push notification").reason,
        PushReason::Refresh
    );
}
