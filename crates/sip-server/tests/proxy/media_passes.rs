//! A call that passes this server twice, without another Record-Route between: each pass has a session at the relay.

use sip::flow::Transport;
use sip_server::routes::Route;

use crate::media::{OFFER, answer, asked, body, of_callee, script};
use crate::node::{
    ALICE, EXCLUDES_ITSELF, PROXY, UAC, UAS, address, answers, in_dialog, request, values, with,
    with_sdp,
};
use crate::trunks::{NUMBER, caller, route, trunk, world_of};
use crate::world::World;

/// A proxy behind the first trunk, which adds no Record-Route.
const BETWEEN: usize = UAS;
const CALLED: usize = UAS + 1;

/// Calls of alice go to the trunk `a`, and come back for the trunk `b`. These have a relay.
pub(crate) fn world(relays: [bool; 2]) -> World {
    let from_alice = Route {
        from_users: vec!["alice".to_owned()],
        ..route("+49", &["a"])
    };
    let back = Route {
        from_trunks: vec!["a".to_owned()],
        ..route("+49", &["b"])
    };
    let mut trunks = vec![trunk("a", &[BETWEEN]), trunk("b", &[CALLED])];
    for (trunk, relays) in trunks.iter_mut().zip(relays) {
        trunk.relays_media = relays;
    }
    let make = || world_of(vec![from_alice, back], trunks);
    let mut world = with(&EXCLUDES_ITSELF, make);
    world.policy().trunks.insert(address(BETWEEN).ip());
    world.nodes[BETWEEN].script = answers(&[(20_000, 486)]);
    world.nodes[CALLED].script = script(vec![answer(50, 200)]);
    world.nodes[UAC].script = script(vec![answer(50, 200)]);
    world
}

fn run(world: &mut World) {
    let until = world.ms() + 500;
    world.run_until(until);
}

/// Sets up the call. Returns the INVITE that the called side has got, and the 200 of the caller.
fn call(world: &mut World) -> (String, String) {
    let invite = with_sdp(&request("INVITE", NUMBER, 1, ALICE), OFFER);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(20);
    // The proxy between forwards the INVITE, and later the 200.
    let copy = world.nodes[BETWEEN].texts[0].clone();
    let (_, rest) = copy.split_once("\r\n").unwrap();
    let via = format!(
        "Via: SIP/2.0/UDP {};branch=z9hG4bKbetween\r\n",
        address(BETWEEN)
    );
    world.send_raw(BETWEEN, &format!("INVITE {NUMBER} SIP/2.0\r\n{via}{rest}"));
    world.run_until(200);
    let mut sent = world.nodes[PROXY].sent.iter();
    let ok = sent.find(|(_, to, text)| *to == BETWEEN && text.starts_with("SIP/2.0 200"));
    let ok = &ok.expect("a 200 for the proxy between").2;
    let (before, rest) = ok.split_once("Via: ").unwrap();
    let (_, rest) = rest.split_once("\r\n").unwrap();
    let ok = format!("{before}{rest}");
    world.send_raw(BETWEEN, &ok);
    run(world);
    assert_eq!(caller(world), ["200 INVITE"]);
    assert_eq!(world.heard(CALLED), ["INVITE", "ACK"]);
    let ok = world.last(UAC).to_owned();
    (world.nodes[CALLED].texts[0].clone(), ok)
}

/// The last request of a node with this method.
fn last<'w>(world: &'w World, node: usize, method: &str) -> &'w str {
    let mut texts = world.nodes[node].texts.iter().rev();
    let found = texts.find(|text| text.starts_with(method));
    found.expect("a request")
}

#[test]
fn both_sessions_get_each_offer_and_end_with_the_call() {
    let mut world = world([true, true]);
    let (invite, ok) = call(&mut world);
    assert_eq!(values(&invite, "Record-Route").len(), 4);
    let to_trunk = |session: usize, to: &str| format!("Offer s{session} to {to} for Rtp");
    let first = [
        to_trunk(0, "none"),
        to_trunk(1, "none"),
        "Answer s1 to tag for Rtp".to_owned(),
        "Answer s0 to tag for RtpWithIce".to_owned(),
    ];
    assert_eq!(asked(&world), first);
    // A second offer of the caller.
    let again = with_sdp(&in_dialog(&ok, "INVITE"), OFFER);
    world.send(UAC, Transport::Udp, &again);
    run(&mut world);
    let second = [to_trunk(0, "tag"), to_trunk(1, "tag")];
    assert_eq!(asked(&world)[4..6], second);
    assert_eq!(asked(&world)[6..], first[2..]);
    let twice = format!("{OFFER}a=for Rtp\r\na=for Rtp\r\n");
    assert_eq!(body(last(&world, CALLED, "INVITE")), twice);
    assert!(body(world.last(UAC)).ends_with("a=for Rtp\r\na=for RtpWithIce\r\n"));
    // One of the called side.
    let again = with_sdp(&of_callee(&invite, &ok, "INVITE"), OFFER);
    world.send(CALLED, Transport::Udp, &again);
    run(&mut world);
    let third = ["Offer s1 to tag for Rtp", "Offer s0 to tag for RtpWithIce"];
    assert_eq!(asked(&world)[8..10], third);
    assert!(body(last(&world, UAC, "INVITE")).ends_with("a=for Rtp\r\na=for RtpWithIce\r\n"));
    let before = asked(&world).len();
    let bye = in_dialog(&ok, "BYE").replace("2 BYE", "3 BYE");
    world.send(UAC, Transport::Udp, &bye);
    run(&mut world);
    let mut ends = asked(&world).split_off(before);
    ends.sort();
    assert_eq!(ends, ["Delete a dialog of s0", "Delete a dialog of s1"]);
    assert!(world.heard(CALLED).contains(&"BYE"));
    world.nothing_is_left();
}

#[test]
fn a_pass_without_a_relay_takes_no_session_from_the_other_one() {
    let mut world = world([false, true]);
    let (invite, ok) = call(&mut world);
    let exchange = ["Offer s0 to tag for Rtp", "Answer s0 to tag for Rtp"];
    assert_eq!(asked(&world).len(), 2);
    let again = with_sdp(&in_dialog(&ok, "INVITE"), OFFER);
    world.send(UAC, Transport::Udp, &again);
    run(&mut world);
    assert_eq!(asked(&world)[2..], exchange);
    let again = with_sdp(&of_callee(&invite, &ok, "INVITE"), OFFER);
    world.send(CALLED, Transport::Udp, &again);
    run(&mut world);
    assert_eq!(asked(&world)[4..], exchange);
    let bye = in_dialog(&ok, "BYE").replace("2 BYE", "3 BYE");
    world.send(UAC, Transport::Udp, &bye);
    run(&mut world);
    assert_eq!(asked(&world)[6..], ["Delete a dialog of s0"]);
    world.nothing_is_left();
}

/// With the tokens of both passes in turns, a request would pass this server for each of them.
#[test]
fn a_route_through_this_server_too_often_is_a_loop_rfc3261_16_3() {
    let mut world = world([true, true]);
    let (_, ok) = call(&mut world);
    let update = in_dialog(&ok, "UPDATE");
    let is_route = |line: &&str| line.starts_with("Route: ");
    let routes: Vec<&str> = update.split_inclusive("\r\n").filter(is_route).collect();
    assert_eq!(routes.len(), 4);
    for (times, code) in [(3, "482"), (15, "482"), (1, "200")] {
        let before = world.sent(PROXY, "UPDATE").len();
        let all = routes.concat();
        let again = update.replace(&all, &all.repeat(times));
        world.send(UAC, Transport::Udp, &again);
        run(&mut world);
        let last = world.heard(UAC).last().copied();
        assert_eq!(last, Some(&format!("{code} UPDATE")[..]), "{times}");
        let passes = world.sent(PROXY, "UPDATE").len() - before;
        assert_eq!(passes, if times == 1 { 2 } else { 0 }, "{times}");
    }
}

/// A token proves nothing about the host beside it.
#[test]
fn a_value_with_another_host_is_no_second_pass() {
    let mut world = world([true, true]);
    let (_, ok) = call(&mut world);
    let before = asked(&world).len();
    let again = with_sdp(&in_dialog(&ok, "INVITE"), OFFER);
    let forged: Vec<String> = again
        .split("\r\n")
        .scan(0, |routes, line| {
            *routes += u32::from(line.starts_with("Route: "));
            let is_second = line.starts_with("Route: ") && *routes > 2;
            Some(match is_second {
                true => line.replace("@192.0.2.2", "@192.0.2.99"),
                false => line.to_owned(),
            })
        })
        .collect();
    world.send(UAC, Transport::Udp, &forged.join("\r\n"));
    run(&mut world);
    let sent = world.nodes[PROXY].sent.iter();
    let to_nobody = sent.filter(|(_, to, _)| *to == crate::node::NODES);
    assert_eq!(to_nobody.count(), 0, "nothing goes to the other host");
    assert_eq!(asked(&world).len() - before, 2);
}
