//! Calls over UDP, from end to end.

use hairpin_sip::flow::Transport;

use crate::network::Weather;
use crate::world::{UAC, UAS, World, request, text};

fn world(script: &[(u64, u16)]) -> World {
    let mut world = World::new(Weather::FINE, 1);
    world.uas().script.invite = script.to_vec();
    world
}

#[test]
fn a_call_rings_is_answered_and_acknowledged() {
    let mut world = world(&[(50, 180), (3_000, 200)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(10_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(world.times(UAC, "INVITE"), [0]);
    assert_eq!(world.times(UAS, "SIP/2.0 200"), [3_010], "its ACK stops it");
    // Timers M and L: the Accepted states last 64*T1.
    world.run_until(35_009);
    assert_eq!(world.uas().engine.stats().servers, 1);
    world.run_until(35_020);
    assert_eq!(world.uas().engine.stats().servers, 0);
    assert_eq!(world.uac().engine.stats().clients, 0);
    world.nothing_is_left();
}

#[test]
fn a_100_is_built_only_when_it_is_due() {
    let mut world = world(&[(150, 180), (500, 486)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(5_000);
    assert_eq!(world.times(UAS, "SIP/2.0 100"), []);
    let mut slow = self::world(&[(900, 180), (1_000, 486)]);
    slow.send(Transport::Udp, &request("INVITE", 1, ""));
    slow.run_until(5_000);
    assert_eq!(slow.times(UAS, "SIP/2.0 100"), [210]);
    assert_eq!(slow.heard(UAC), ["100 INVITE", "180 INVITE", "486 INVITE"]);
    world.nothing_is_left();
    slow.nothing_is_left();
}

#[test]
fn a_refusal_is_acknowledged_by_the_transaction() {
    let mut world = world(&[(0, 486)]);
    world.send(
        Transport::Udp,
        &request("INVITE", 1, "Route: <sip:192.0.2.2;lr>\r\n"),
    );
    world.run_until(1_000);
    assert_eq!(world.heard(UAC), ["486 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE"], "the ACK is not the TU's");
    assert_eq!(world.times(UAC, "ACK"), [20]);
    let ack = text(&world.uac().last);
    // RFC 3261 §17.1.1.3: the INVITE's top Via and Route, the response's To.
    assert!(ack.contains("\r\nRoute: <sip:192.0.2.2;lr>\r\n"), "{ack}");
    assert!(ack.contains("\r\nCSeq: 1 ACK\r\n"), "{ack}");
    assert!(ack.contains(";tag=h"), "{ack}");
    assert_eq!(ack.matches("Via:").count(), 1);
    // Timer I at the server, timer D at the client.
    world.run_until(5_029);
    assert_eq!(world.uas().engine.stats().servers, 1);
    world.run_until(5_030);
    assert_eq!(world.uas().engine.stats().servers, 0);
    world.run_until(32_019);
    assert_eq!(world.uac().engine.stats().clients, 1);
    world.run_until(32_020);
    assert_eq!(world.uac().engine.stats().clients, 0);
    world.nothing_is_left();
}

#[test]
fn lost_acks_make_the_refusal_come_again_and_each_is_acknowledged() {
    let mut world = world(&[(0, 486)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(15);
    world.network.weather = Weather::DEAD;
    world.run_until(25);
    // The 486 is in progress; the ACK is lost.
    assert_eq!(world.times(UAC, "ACK"), [20]);
    world.network.weather = Weather::FINE;
    world.run_until(3_000);
    assert_eq!(world.times(UAS, "SIP/2.0 486"), [10, 510]);
    assert_eq!(world.times(UAC, "ACK"), [20, 520]);
    assert_eq!(world.heard(UAC), ["486 INVITE"]);
    world.nothing_is_left();
}

#[test]
fn without_any_ack_timers_g_and_h_run_their_course() {
    let mut world = world(&[(5, 486)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(12);
    world.network.weather = Weather::DEAD;
    world.run_until(60_000);
    let expected = [
        0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
    ];
    assert_eq!(world.times(UAS, "SIP/2.0 486"), expected.map(|ms| ms + 15));
    assert_eq!(
        world.heard(UAS),
        ["INVITE", "server failed: NoAck", "server ended"]
    );
    assert_eq!(
        world.times(UAC, "INVITE"),
        [0, 500, 1500, 3500, 7500, 15_500, 31_500]
    );
    assert_eq!(world.heard(UAC), ["timed out"]);
    world.nothing_is_left();
}

#[test]
fn a_2xx_whose_ack_is_lost_is_repeated_and_each_goes_to_the_tu() {
    let mut world = world(&[(5, 180), (20, 200)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(35);
    world.network.weather = Weather::DEAD;
    world.run_until(600);
    world.network.weather = Weather::FINE;
    world.run_until(4_000);
    assert_eq!(world.times(UAS, "SIP/2.0 200"), [30, 530, 1530]);
    assert_eq!(world.times(UAC, "ACK"), [40, 1540]);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    world.nothing_is_left();
}

#[test]
fn a_2xx_without_any_ack_is_given_up_after_64_t1() {
    let mut world = world(&[(5, 180), (20, 200)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(29);
    world.network.weather = Weather::DEAD;
    world.run_until(60_000);
    assert_eq!(world.times(UAS, "SIP/2.0 200").len(), 11);
    assert_eq!(
        world.heard(UAS),
        ["INVITE", "server failed: NoAck", "server ended"]
    );
    world.nothing_is_left();
}

#[test]
fn a_cancel_before_any_response_waits_for_the_first_one() {
    let mut world = world(&[(400, 180), (60_000, 200)]);
    let key = world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(50);
    world.cancel(key);
    world.run_until(200);
    assert_eq!(world.times(UAC, "CANCEL"), []);
    world.run_until(2_000);
    // The 100 left at 210 ms.
    assert_eq!(world.times(UAC, "CANCEL"), [220]);
    assert_eq!(world.times(UAC, "ACK"), [240]);
    assert_eq!(world.heard(UAC), ["100 INVITE", "487 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "CANCEL"]);
    world.nothing_is_left();
}

#[test]
fn a_cancel_has_its_reason_also_after_it_has_waited_rfc3326_2() {
    let most = format!("Reason: SIP ;cause=200 ;text=\"{}\"\r\n", "x".repeat(223));
    assert_eq!(most.len(), hairpin_sip::engine::MAX_REASON_BYTES);
    for (at, reason, is_sent) in [
        (50, "Reason: Q.850 ;cause=16\r\n", true),
        (450, "Reason: Q.850 ;cause=16\r\n", true),
        (50, &most[..], true),
        (50, &most.replace('x', "xx"), false),
        (450, &most.replace('x', "xx"), false),
        (450, "", false),
    ] {
        let mut world = world(&[(400, 180), (60_000, 200)]);
        let key = world.send(Transport::Udp, &request("INVITE", 1, ""));
        world.run_until(at);
        world.cancel_with_reason(key, reason);
        // Only the first one counts.
        world.cancel_with_reason(key, "Reason: SIP ;cause=999\r\n");
        // The 100 comes at 220 ms.
        world.run_until(at.max(225));
        let cancel = text(&world.uac().last);
        assert!(cancel.starts_with("CANCEL "), "{cancel}");
        assert_eq!(cancel.contains("\r\nReason: "), is_sent, "{cancel}");
        assert!(!is_sent || cancel.contains(reason), "{cancel}");
        assert!(!cancel.contains("=999"), "{cancel}");
        world.nothing_is_left();
    }
}

#[test]
fn a_cancel_and_its_invite_have_one_branch_and_one_to_tag() {
    let mut world = world(&[(50, 180), (60_000, 200)]);
    let key = world.send(
        Transport::Udp,
        &request("INVITE", 1, "Route: <sip:a;lr>\r\n"),
    );
    let invite = text(&world.uac().last);
    world.run_until(1_000);
    let ringing = text(&world.uas().last);
    world.cancel(key);
    let cancel = text(&world.uac().last);
    let line = |message: &str, start: &str| {
        let mut lines = message.lines();
        lines
            .find(|line| line.starts_with(start))
            .map(str::to_owned)
    };
    for start in ["Via:", "From:", "To:", "Call-ID:", "Route:"] {
        assert_eq!(line(&cancel, start), line(&invite, start));
    }
    assert!(cancel.contains("\r\nCSeq: 1 CANCEL\r\n"));
    assert!(cancel.starts_with("CANCEL sip:bob@192.0.2.2 SIP/2.0\r\n"));
    world.run_until(1_015);
    let answers: Vec<String> = vec![text(&world.uas().last)];
    let tag = line(&ringing, "To:");
    assert!(answers.iter().all(|answer| line(answer, "To:") == tag));
    world.nothing_is_left();
}

#[test]
fn a_cancel_that_loses_the_race_changes_nothing() {
    let mut world = world(&[(50, 180), (200, 200)]);
    let key = world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(205);
    world.cancel(key);
    world.run_until(2_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(
        world.times(UAC, "CANCEL"),
        [205],
        "answered by the other engine"
    );
    world.nothing_is_left();
}

#[test]
fn a_cancelled_call_without_a_final_response_is_given_up() {
    let mut world = world(&[(50, 180)]);
    world.uas().script.ignores_cancel = true;
    let key = world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(1_000);
    world.cancel(key);
    world.run_until(40_000);
    assert_eq!(
        world.nodes[UAC].heard.last(),
        Some(&(33_000, "timed out".to_owned()))
    );
    assert_eq!(world.uac().engine.stats().clients, 0);
    world.nothing_is_left();
}

#[test]
fn timer_c_cancels_a_call_that_rings_for_ever() {
    let mut world = world(&[(50, 180), (100_000, 183)]);
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(400_000);
    assert_eq!(world.times(UAC, "CANCEL")[0], 300_020);
    assert_eq!(world.heard(UAC).last(), Some(&"client ended"));
    assert!(world.heard(UAC).contains(&"487 INVITE"));
    world.nothing_is_left();
}

#[test]
fn a_tu_that_forgets_a_call_leaves_nothing_behind() {
    let mut world = world(&[(50, 180)]);
    world.uas().script.ignores_cancel = true;
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(901_000);
    assert!(world.heard(UAS).contains(&"server failed: Abandoned"));
    world.nothing_is_left();
}

#[test]
fn a_100_has_the_timestamp_of_its_request() {
    let mut world = world(&[(900, 486)]);
    world.send(Transport::Udp, &request("INVITE", 1, "Timestamp: 54\r\n"));
    world.run_until(215);
    let trying = text(&world.uas().last);
    assert!(trying.starts_with("SIP/2.0 100"), "{trying}");
    assert!(trying.contains("\r\nTimestamp: 54\r\n"), "{trying}");
    assert!(!trying.contains("tag=h"), "no tag of its own: {trying}");
    world.nothing_is_left();
}

#[test]
fn record_route_is_copied_into_what_begins_a_dialog() {
    let mut world = world(&[(5, 180), (20, 200)]);
    let routes = "Record-Route: <sip:p1;lr>,\r\n <sip:p2;lr>\r\nRecord-Route: <sip:p3;lr>\r\n";
    world.send(Transport::Udp, &request("INVITE", 1, routes));
    world.run_until(31);
    let ok = text(&world.uas().last);
    assert!(ok.starts_with("SIP/2.0 200"), "{ok}");
    assert!(ok.contains(routes), "{ok}");
    world.nothing_is_left();
}
