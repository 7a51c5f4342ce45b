//! TCP: connections opened, shared, lost and refused.

use hairpin_sip::congestion::Class;
use hairpin_sip::engine::{ClientFailure, Event, Mark, Outgoing, Output};
use hairpin_sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};

use crate::network::Weather;
use crate::world::{UAC, UAS, World, request, text};

fn world() -> World {
    let mut world = World::new(Weather::FINE, 1);
    world.uas().script.other = vec![(0, 200)];
    world
}

#[test]
fn over_tcp_a_completed_request_leaves_nothing_on_either_side() {
    let mut world = world();
    world.send(Transport::Tcp, &request("REGISTER", 1, ""));
    let kept = world.uac().engine.stats().message_bytes;
    assert_eq!(kept, 0, "nothing is sent again over a stream");
    world.run_until(25);
    assert_eq!(world.heard(UAC), ["200 REGISTER", "client ended"]);
    for node in &world.nodes {
        let stats = node.engine.stats();
        assert_eq!((stats.servers, stats.clients, stats.timers), (0, 0, 0));
    }
    world.nothing_is_left();
}

#[test]
fn requests_to_one_address_share_a_connection() {
    let mut world = world();
    for number in 1..=5 {
        world.send(Transport::Tcp, &request("OPTIONS", number, ""));
    }
    world.run_until(100);
    assert_eq!(world.uac().engine.stats().connections, 1);
    assert_eq!(world.heard(UAC).len(), 10);
    world.nothing_is_left();
}

#[test]
fn our_idle_connections_are_closed_and_theirs_are_not() {
    let mut world = world();
    world.send(Transport::Tcp, &request("OPTIONS", 1, ""));
    world.run_until(299_000);
    assert_eq!(world.uac().engine.stats().connections, 1);
    world.run_until(330_000);
    assert_eq!(world.uac().engine.stats().connections, 0);
    assert_eq!(world.heard(UAC).last(), Some(&"close"));
    assert_eq!(world.uas().engine.stats().connections, 1);
}

#[test]
fn a_refused_connection_is_a_transport_failure() {
    let mut world = world();
    world.refuses_tcp = true;
    world.send(Transport::Tcp, &request("OPTIONS", 1, ""));
    assert_eq!(world.heard(UAC), ["transport failed"]);
    world.nothing_is_left();
}

#[test]
fn a_lost_connection_fails_requests_without_a_response_and_no_ringing_call() {
    let mut world = world();
    world.uas().script.other = vec![(60_000, 200)];
    world.uas().script.invite = vec![(50, 180), (1_000, 486)];
    world.send(Transport::Tcp, &request("INVITE", 1, ""));
    world.run_until(500);
    world.send(Transport::Tcp, &request("OPTIONS", 2, ""));
    world.run_until(600);
    world.disconnect();
    assert_eq!(world.heard(UAC), ["180 INVITE", "transport failed"]);
    world.run_until(2_000);
    // The server opens a connection to the port of sent-by (RFC 3261 §18.2.2).
    assert!(world.heard(UAC).contains(&"486 INVITE"));
    // And the ACK goes by a connection of ours.
    assert_eq!(world.times(UAC, "ACK").len(), 1);
    assert_eq!(world.uas().engine.stats().servers, 1, "the OPTIONS alone");
    world.nothing_is_left();
}

#[test]
fn a_large_request_goes_over_tcp_and_its_via_says_so() {
    let mut world = world();
    let padding = format!("Subject: {}\r\n", "x".repeat(1200));
    world.send(Transport::Udp, &request("MESSAGE", 1, &padding));
    let sent = text(&world.uac().last);
    assert!(
        sent.contains("\r\nVia: SIP/2.0/TCP 192.0.2.1:5060;"),
        "{sent}"
    );
    world.run_until(100);
    assert_eq!(world.uac().engine.stats().connections, 1);
    assert!(world.heard(UAC).contains(&"200 MESSAGE"));
    world.nothing_is_left();
}

/// An INVITE is cancelled while its connection is being made, which then comes to be, or not.
fn cancelled_before_it_is_sent(transport: Transport, padding: &str, is_refused: bool) {
    let mut world = world();
    let (now, remote) = (world.now, ([192, 0, 2, 9], 5060).into());
    let invite = request("INVITE", 1, padding);
    let out = Outgoing {
        to: Destination::new(transport, remote, ListenerKey(0)),
        connection: None,
        pieces: &[&invite],
        class: Class::New,
        mark: Some(Mark(1)),
        loop_check: None,
    };
    let engine = &mut world.uac().engine;
    let client = engine.request(now, &out).expect("it waits");
    let Some(Output::Connect { key, .. }) = engine.poll_output() else {
        panic!("a connection is to be made")
    };
    engine.cancel(now, client);
    let told = engine.poll_output();
    let is_cancelled = matches!(
        told,
        Some(Output::Event(Event::ClientFailed {
            failure: ClientFailure::Cancelled,
            ..
        }))
    );
    assert!(is_cancelled, "{told:?}");
    if is_refused {
        engine.connect_failed(now, key);
    } else {
        let flow = Flow {
            transport: Transport::Tcp,
            listener: ListenerKey(0),
            connection: Some(ConnectionKey(99)),
            local: ([192, 0, 2, 1], 5060).into(),
            remote,
        };
        engine.connected(now, key, &flow);
    }
    let sent = engine.poll_output();
    assert!(sent.is_none(), "{sent:?}");
    let stats = engine.stats();
    assert_eq!((stats.clients, stats.message_bytes), (0, 0));
}

#[test]
fn a_call_that_is_cancelled_before_its_connection_is_up_is_never_sent_rfc3261_9_1() {
    let long = format!("Subject: {}\r\n", "x".repeat(1200));
    for is_refused in [false, true] {
        cancelled_before_it_is_sent(Transport::Tcp, "", is_refused);
        // One that would go over UDP where there is no TCP.
        cancelled_before_it_is_sent(Transport::Udp, &long, is_refused);
    }
}

#[test]
fn all_requests_of_a_lost_connection_fail_once() {
    let mut world = world();
    world.uas().script.other = vec![(60_000, 200)];
    for number in 1..=5 {
        world.send(Transport::Tcp, &request("OPTIONS", number, ""));
    }
    for number in 6..=8 {
        world.send_to(2, Transport::Tcp, &request("OPTIONS", number, ""));
    }
    world.run_until(100);
    world.disconnect();
    let heard = world.heard(UAC);
    let failed = heard.iter().filter(|told| **told == "transport failed");
    assert_eq!(failed.count(), 8);
    world.nothing_is_left();
}

#[test]
fn a_large_request_falls_back_to_udp_where_there_is_no_tcp() {
    let mut world = world();
    world.refuses_tcp = true;
    let padding = format!("Subject: {}\r\n", "x".repeat(1200));
    world.send(Transport::Udp, &request("MESSAGE", 1, &padding));
    let sent = text(&world.uac().last);
    assert!(
        sent.contains("\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;"),
        "{sent}"
    );
    world.run_until(600);
    assert_eq!(world.heard(UAC), ["200 MESSAGE"]);
    assert_eq!(world.times(UAS, "SIP/2.0 200").len(), 1);
    world.nothing_is_left();
}

/// Sends an ACK of more than 1,300 bytes without a transaction, and returns it as it was sent last.
fn large_ack(world: &mut World) -> String {
    let padding = format!("Subject: {}\r\n", "x".repeat(1200));
    let ack = request("ACK", 1, &padding);
    let out = Outgoing {
        to: Destination::new(
            Transport::Udp,
            ([192, 0, 2, 2], 5060).into(),
            ListenerKey(0),
        ),
        connection: None,
        pieces: &[&ack],
        class: Class::Finishing,
        mark: None,
        loop_check: None,
    };
    let now = world.now;
    world.uac().engine.send_stateless(now, &out, 7).unwrap();
    world.run_until(100);
    assert_eq!(world.times(UAC, "ACK").len(), 1);
    text(&world.uac().last)
}

/// The ACK for a 2xx is large if it has the SDP answer.
#[test]
fn a_large_ack_goes_over_tcp_and_over_udp_where_there_is_no_tcp() {
    let mut world = world();
    let sent = large_ack(&mut world);
    assert!(
        sent.contains("\r\nVia: SIP/2.0/TCP 192.0.2.1:5060;"),
        "{sent}"
    );
    world.nothing_is_left();
    let mut world = self::world();
    world.refuses_tcp = true;
    let sent = large_ack(&mut world);
    assert!(
        sent.contains("\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;"),
        "{sent}"
    );
    world.nothing_is_left();
}

#[test]
fn a_call_over_tcp_keeps_its_key_until_h_l_or_m() {
    let mut world = world();
    world.uas().script.invite = vec![(50, 180), (100, 200)];
    world.send(Transport::Tcp, &request("INVITE", 1, ""));
    world.run_until(200);
    for node in &world.nodes[..2] {
        let stats = node.engine.stats();
        assert_eq!(stats.servers + stats.clients, 1);
        assert_eq!(stats.message_bytes, 0, "only the key");
    }
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    world.run_until(32_130);
    assert_eq!(world.uas().engine.stats().timers, 0);
    world.nothing_is_left();
}
