//! A stateful proxy as a TU: what the engine offers is enough for one, without a change.

use std::collections::BTreeMap;

use hairpin_sip::build::{Edits, forward};
use hairpin_sip::congestion::Class;
use hairpin_sip::engine::{ClientFailure, ClientKey, Mark, NewRequest, Outgoing, Reply, ServerKey};
use hairpin_sip::flow::{Destination, Flow, ListenerKey, Transport};
use hairpin_sip::{Message, Mono};

use crate::network::Weather;
use crate::world::{Node, PROXY, UAC, UAS, World, address, request, text};

/// What a proxy remembers of what it forwards.
#[derive(Default)]
pub(crate) struct Proxied {
    by_mark: BTreeMap<u64, (ServerKey, ClientKey)>,
    count: u64,
}

impl Node {
    fn next_hop(&self, flow: &Flow) -> Destination {
        Destination::new(
            flow.transport,
            address(self.script.proxy_to.unwrap()),
            ListenerKey(0),
        )
    }

    /// RFC 3261 §16.6.
    pub(crate) fn forward_request(&mut self, now: Mono, request: NewRequest<'_>) {
        let (message, stamp, flow) = (request.message, request.stamp(), request.flow);
        let check = self.engine.loop_check(&message, b"");
        if self.engine.has_looped(&message, check) {
            self.engine.answer(now, request, &Reply::new(482)).unwrap();
            return;
        }
        self.proxied.count += 1;
        let mark = Mark(self.proxied.count);
        let server = self.engine.accept(now, request, Some(mark)).unwrap();
        let edits = Edits {
            max_forwards: Some(69),
            stamp,
            drop_overload: true,
            ..Edits::default()
        };
        let mut scratch = [0; 1024];
        let forwarded = forward(&message, &edits, &mut scratch).unwrap();
        let out = Outgoing {
            to: self.next_hop(&flow),
            connection: None,
            pieces: forwarded.slices(),
            class: Class::New,
            mark: Some(mark),
            loop_check: Some(check),
        };
        let client = self.engine.request(now, &out).unwrap();
        self.proxied.by_mark.insert(mark.0, (server, client));
    }

    /// RFC 3261 §16.7: without our Via, and no 100.
    pub(crate) fn forward_response(&mut self, now: Mono, message: &Message<'_>, mark: Mark) {
        let code = message.status_code().unwrap();
        let (server, _) = self.proxied.by_mark[&mark.0];
        if code == 100 {
            return;
        }
        let edits = Edits {
            drop_top_via: true,
            drop_overload: true,
            ..Edits::default()
        };
        let mut scratch = [0; 1024];
        let forwarded = forward(message, &edits, &mut scratch).unwrap();
        let reply = Reply::forwarded(code, forwarded.slices());
        // A response that is late is not forwarded (RFC 4320 §4.3).
        let _ = self.engine.respond(now, server, &reply);
    }

    /// RFC 3261 §16.11: the ACK for a 2xx has no transaction.
    pub(crate) fn forward_ack(&mut self, now: Mono, message: &Message<'_>, flow: &Flow) {
        let edits = Edits {
            max_forwards: Some(69),
            ..Edits::default()
        };
        let mut scratch = [0; 1024];
        let forwarded = forward(message, &edits, &mut scratch).unwrap();
        let out = Outgoing {
            to: self.next_hop(flow),
            connection: None,
            pieces: forwarded.slices(),
            class: Class::Finishing,
            mark: None,
            loop_check: None,
        };
        self.engine.send_stateless(now, &out, now.0.into()).unwrap();
    }

    /// RFC 3261 §16.10.
    pub(crate) fn forward_cancel(&mut self, now: Mono, invite: ServerKey) {
        let pairs = self.proxied.by_mark.values();
        let client = pairs.clone().find(|(server, _)| *server == invite);
        if let Some((_, client)) = client.copied() {
            self.engine.cancel(now, client);
        }
    }

    pub(crate) fn proxy_failed(&mut self, now: Mono, mark: Mark, failure: ClientFailure) {
        let (server, _) = self.proxied.by_mark[&mark.0];
        let code = match failure {
            ClientFailure::TimedOut => 408,
            ClientFailure::TransportFailed => 503,
            ClientFailure::Cancelled => 487,
        };
        let _ = self.engine.respond(now, server, &Reply::new(code));
    }
}

fn world(weather: Weather, seed: u64) -> World {
    let mut world = World::new(weather, seed);
    world.nodes[PROXY].script.proxy_to = Some(UAS);
    world
}

#[test]
fn a_call_goes_through_a_stateful_proxy() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut world = world(Weather::FINE, 1);
        world.uas().script.invite = vec![(50, 180), (2_000, 200)];
        world.send_to(PROXY, transport, &request("INVITE", 1, ""));
        world.run_until(5_000);
        // The 100 is the proxy's own.
        assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
        assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
        assert_eq!(world.times(UAS, "SIP/2.0 200").len(), 1);
        world.nothing_is_left();
    }
}

/// What two neighbours agree upon, nobody else sees; each answers for itself.
#[test]
fn overload_control_is_between_neighbours_rfc7339_5_4_5_6() {
    let mut world = World::with(Weather::FINE, 1, |_, config| {
        config.overload_control = true;
    });
    world.nodes[PROXY].script.proxy_to = Some(UAS);
    world.uas().script.invite = vec![(50, 180), (2_000, 200)];
    world.send_to(PROXY, Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(15);
    let forwarded = text(&world.nodes[PROXY].last);
    let vias = |message: &str| -> Vec<String> {
        let lines = message.lines().filter(|line| line.starts_with("Via: "));
        lines.map(str::to_owned).collect()
    };
    let [own, client] = &vias(&forwarded)[..] else {
        panic!("{forwarded}");
    };
    assert!(own.ends_with(";oc;oc-algo=\"loss,rate\""), "{own}");
    assert!(
        !client.contains("oc") && client.contains(";received="),
        "{client}"
    );
    world.run_until(75);
    let answer = vias(&text(&world.uas().last));
    assert!(answer[0].contains(";oc-validity=") && !answer[1].contains("oc"));
    // The proxy answers the client, which it has agreed with, for itself: with 180, and with 200.
    for until in [85, 2_035] {
        world.run_until(until);
        let [via] = &vias(&text(&world.nodes[PROXY].last))[..] else {
            panic!("one is left");
        };
        let told = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=";
        assert!(via.contains(told) && via.contains(";branch="), "{via}");
        assert_eq!(via.matches(";oc").count(), 4, "{via}");
    }
    world.run_until(5_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn a_request_that_comes_back_as_it_was_has_looped_and_with_another_uri_it_spirals_rfc5393_4_2() {
    for method in ["OPTIONS", "INVITE"] {
        let mut world = World::new(Weather::FINE, 1);
        world.nodes[PROXY].script.proxy_to = Some(PROXY);
        world.send_to(PROXY, Transport::Udp, &request(method, 1, ""));
        world.run_until(100);
        assert_eq!(world.heard(UAC), [format!("482 {method}")]);
        let sent = world.nodes[PROXY].sent.clone();
        let forwarded = sent.iter().filter(|(_, line)| line.starts_with(method));
        assert_eq!(forwarded.count(), 1, "{sent:?}");
        world.nothing_is_left();
    }
    // As the proxy gets it back, but for the URI, or the Via of another.
    let mut world = World::new(Weather::FINE, 1);
    world.nodes[PROXY].script.proxy_to = Some(UAS);
    world.send_to(PROXY, Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(15);
    let back = text(&world.nodes[PROXY].last);
    let has_looped = |message: &str| {
        let mut spans = hairpin_sip::Spans::new();
        let message = Message::parse(message.as_bytes(), &mut spans).unwrap();
        let engine = &world.nodes[PROXY].engine;
        engine.has_looped(&message, engine.loop_check(&message, b""))
    };
    assert!(has_looped(&back));
    assert!(has_looped(
        &back.to_uppercase().replace("SIP:BOB", "sip:bob")
    ));
    assert!(!has_looped(
        &back.replace("sip:bob@192.0.2.2 ", "sip:bob@192.0.2.9 ")
    ));
    assert!(!has_looped(
        &back.replace("UDP 192.0.2.3:5060", "UDP 192.0.2.4:5060")
    ));
}

#[test]
fn the_second_part_varies_with_what_decides_and_not_with_the_method_rfc5393_4_2_1() {
    let world = World::new(Weather::FINE, 1);
    let engine = &world.nodes[PROXY].engine;
    let route = "Route: <sip:192.0.2.7;lr>\r\n";
    let text = format!(
        "OPTIONS sip:bob@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\n{route}\
         From: <sip:a@192.0.2.1>;tag=1\r\nTo: <sip:b@192.0.2.2>\r\nCall-ID: one\r\nCSeq: 7 OPTIONS\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    let check = |text: &str, others: &[u8]| {
        let mut spans = hairpin_sip::Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        engine.loop_check(&message, others)
    };
    let first = check(&text, b"");
    for method in ["INVITE", "ACK", "CANCEL"] {
        assert!(
            check(&text.replace("OPTIONS", method), b"") == first,
            "{method}"
        );
    }
    for hop in [("70", "12"), ("z9hG4bK1", "z9hG4bK2")] {
        assert!(check(&text.replace(hop.0, hop.1), b"") == first, "{hop:?}");
    }
    for (from, to) in [
        ("sip:bob@192.0.2.2 ", "sip:bob@192.0.2.2;x "),
        (route, ""),
        (route, "Route: <sip:192.0.2.8;lr>\r\n"),
        ("\r\nRoute:", "\r\nRoute: <sip:192.0.2.8;lr>\r\nRoute:"),
        // §4.2.4: what collides by chance does not collide in the next request.
        ("Call-ID: one", "Call-ID: two"),
        ("CSeq: 7", "CSeq: 8"),
    ] {
        assert!(check(&text.replacen(from, to, 1), b"") != first, "{to}");
    }
    assert!(check(&text, b"trunk") != first);
}

#[test]
fn a_refusal_is_acknowledged_hop_by_hop() {
    let mut world = world(Weather::FINE, 1);
    world.uas().script.invite = vec![(400, 486)];
    world.send_to(PROXY, Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(5_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "486 INVITE"]);
    assert_eq!(world.times(PROXY, "ACK"), [430]);
    assert_eq!(world.times(UAC, "ACK"), [440]);
    world.nothing_is_left();
}

#[test]
fn a_cancel_goes_hop_by_hop_and_the_487_comes_back() {
    let mut world = world(Weather::FINE, 1);
    world.uas().script.invite = vec![(50, 180), (60_000, 200)];
    let key = world.send_to(PROXY, Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(3_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "487 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    let cancel = world.times(PROXY, "CANCEL");
    assert_eq!(cancel, [1_010]);
    world.nothing_is_left();
}

#[test]
fn a_next_hop_that_is_gone_gives_a_408() {
    let mut world = world(Weather::FINE, 1);
    world.nodes[PROXY].script.proxy_to = Some(7);
    world.send_to(PROXY, Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(60_000);
    let heard = world.heard(UAC);
    assert_eq!(heard[..2], ["100 INVITE", "408 INVITE"]);
    // RFC 4320 §4.2: to a request that is no INVITE there is no 408.
    world.send_to(PROXY, Transport::Udp, &request("OPTIONS", 2, ""));
    world.run_until(160_000);
    assert!(!world.heard(UAC).contains(&"408 OPTIONS"));
    world.nothing_is_left();
}

#[test]
fn an_icmp_error_is_a_transport_failure() {
    let mut world = world(Weather::DEAD, 1);
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    let datagram = world.uac().last.clone();
    assert!(text(&datagram).starts_with("OPTIONS"));
    let now = world.now;
    // The kernel gives back as much as the ICMP message had.
    world.uac().engine.unreachable(now, &datagram[..200]);
    world
        .uac()
        .engine
        .unreachable(now, b"OPTIONS x;branch=z9hG4bKh");
    world.drain();
    assert_eq!(world.heard(UAC), ["transport failed"]);
    world.nothing_is_left();
}

#[test]
fn calls_through_a_proxy_end_in_any_weather() {
    let mut answered = 0;
    for seed in 1..40u64 {
        let mut world = world(Weather::FOUL, seed);
        let answer = if seed % 2 == 0 { 200 } else { 486 };
        world.uas().script.invite = vec![(100, 180), (1_000 + seed * 50, answer)];
        let key = world.send_to(PROXY, Transport::Udp, &request("INVITE", 1, ""));
        if seed % 4 == 0 {
            world.run_until(seed * 40);
            world.cancel(key);
        }
        world.run_until(400_000);
        let heard = world.heard(UAC);
        let is_end = |what: &&&str| matches!(**what, "client ended" | "timed out");
        assert_eq!(heard.iter().filter(is_end).count(), 1, "{seed}: {heard:?}");
        let is_final = |what: &&str| what.ends_with("INVITE") && !what.starts_with('1');
        answered += usize::from(heard.iter().any(is_final));
        world.nothing_is_left();
    }
    assert!(answered >= 35, "{answered} of 39");
}
