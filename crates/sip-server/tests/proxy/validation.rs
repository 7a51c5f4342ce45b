//! RFC 3261 §16.3 and §16.6 step 3: what is refused, in which order, and how many hops are left.

use sip::engine::DropReason;
use sip::flow::Transport;

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request, value, values};
use crate::policy::Contact;
use crate::world::World;

fn answer(world: &mut World, text: &str) -> String {
    world.send(UAC, Transport::Udp, text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    world.heard(UAC).last().unwrap().to_string()
}

fn with_bob() -> World {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world
}

fn message(number: u32, extra: &str) -> String {
    request("MESSAGE", "sip:bob@example.com", number, extra)
}

#[test]
fn each_check_has_its_code_and_comes_in_its_turn_rfc3261_16_3() {
    let hops = |text: &str, left: &str| text.replace("Max-Forwards: 70", left);
    let all_wrong = "Proxy-Require: teleport\r\nRoute: wrong\r\n";
    let syntax = message(1, all_wrong).replace("From: <sip:alice@example.com>", "From: <sip:>");
    let scheme = request("MESSAGE", "mailto:bob@example.com", 2, all_wrong);
    let no_hops = hops(&message(3, all_wrong), "Max-Forwards: 0");
    let extension = message(4, all_wrong);
    let route = message(5, "Route: wrong\r\nMax-Breadth: 1\r\n");
    let breadth = message(6, "Max-Breadth: many\r\n");
    let none = message(7, "Max-Breadth: 0\r\n");
    let twice = message(8, "Max-Breadth: 1\r\nMax-Breadth: 1\r\n");
    for (text, code) in [
        (hops(&syntax, "Max-Forwards: 0"), "400"),
        (hops(&scheme, "Max-Forwards: 0"), "416"),
        (no_hops, "483"),
        (extension, "420"),
        (route, "400"),
        (breadth, "400"),
        (none, "400"),
        (twice, "400"),
    ] {
        let mut world = with_bob();
        // Without an address of a trunk a password would be asked for, which comes last.
        world.policy().trunks.clear();
        assert_eq!(
            answer(&mut world, &text),
            format!("{code} MESSAGE"),
            "{text}"
        );
        if code == "420" {
            assert_eq!(value(world.last(UAC), "Unsupported"), Some("teleport"));
        }
    }
}

#[test]
fn an_emergency_call_goes_by_its_route_rfc5031() {
    let route = format!("{ALICE}Route: <sip:{};lr>\r\n", address(UAS));
    for (uri, extra, code) in [
        ("urn:service:sos", &route[..], "200"),
        ("URN:Service:sos.fire", &route, "200"),
        ("urn:service:sos", ALICE, "404"),
        ("urn:nena:service:sos", &route, "416"),
        ("tel:112", &route, "200"),
    ] {
        let mut world = with_bob();
        world.policy().trunks.clear();
        world.policy().trunks.insert(address(UAS).ip());
        let text = request("MESSAGE", uri, 1, extra);
        assert_eq!(
            answer(&mut world, &text),
            format!("{code} MESSAGE"),
            "{uri}"
        );
        if code == "200" {
            let got = world.last(UAS);
            assert!(got.starts_with(&format!("MESSAGE {uri} SIP/2.0")), "{got}");
        }
    }
}

#[test]
fn max_forwards_goes_down_by_one_or_begins_at_70_rfc3261_16_6_3() {
    for (line, wanted) in [
        ("Max-Forwards: 70\r\n", "69"),
        ("Max-Forwards: 1\r\n", "0"),
        ("Max-Forwards: 255\r\n", "254"),
        ("", "70"),
    ] {
        let mut world = with_bob();
        let text = message(1, "").replace("Max-Forwards: 70\r\n", line);
        answer(&mut world, &text);
        let (_, _, forwarded) = &world.nodes[PROXY].sent[0];
        assert_eq!(value(forwarded, "Max-Forwards"), Some(wanted));
    }
}

#[test]
fn two_users_who_lead_to_each_other_cost_ten_copies_and_get_482_rfc5393_4_1() {
    // The attack of RFC 5393 §3: each of two users has two contacts, which lead to both users.
    let mut world = World::new();
    world.bind_bob(&[]);
    world
        .policy()
        .trunks
        .insert(crate::node::address(PROXY).ip());
    for user in ["bob", "carol"] {
        for contact in ["bob", "carol"] {
            let uri = format!("sip:{contact}@example.com;maddr=192.0.2.2");
            world.policy().bind(user, &Contact::at(&uri));
        }
    }
    let text = request("INVITE", "sip:bob@example.com", 1, "");
    world.send(UAC, Transport::Udp, &text);
    world.run_until(10_000);
    assert_eq!(world.heard(UAC).last(), Some(&"482 INVITE"));
    // With `maddr` the Request-URI is another one, so the first round is a spiral. Each copy after that finds its own
    // URI in one of the Via fields, or that of the other user in none: 2, 4 and 4 copies.
    let copies = world.nodes[PROXY].sent.iter();
    let copies = copies.filter(|(_, to, text)| *to == PROXY && text.starts_with("INVITE"));
    let branches: std::collections::BTreeSet<&str> =
        copies.map(|(_, _, text)| values(text, "Via")[0]).collect();
    assert_eq!(branches.len(), 10, "{branches:?}");
    world.nothing_is_left();
}

#[test]
fn a_loop_through_another_proxy_is_482_and_a_spiral_is_none_rfc5393_4_2_2() {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.policy().trunks.insert(address(UAS).ip());
    let text = request("MESSAGE", "sip:bob@example.com", 1, "");
    world.nodes[UAS].script.other = vec![(20_000, 200, String::new())];
    world.send(UAC, Transport::Udp, &text);
    world.run_until(100);
    let copy = world.last(UAS).to_owned();
    let bobs = copy.split(' ').nth(1).unwrap().to_owned();
    // The next proxy sends it back, below a Via of its own, with and without another Request-URI.
    let back = |uri: &str, number: u32| {
        let via = format!(
            "SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bKback{number}\r\n",
            address(UAS)
        );
        let line = copy.replacen(&format!("MESSAGE {bobs} "), &format!("MESSAGE {uri} "), 1);
        line.replacen("SIP/2.0\r\n", &via, 1)
    };
    for (number, uri, code) in [
        (1, "sip:bob@example.com", "482"),
        (2, "sip:bob@example.com;x=y", "200"),
    ] {
        world.nodes[UAS].script.other = vec![(10, 200, String::new())];
        world.send_raw(UAS, &back(uri, number));
        let until = world.ms() + 500;
        world.run_until(until);
        let sent = world.nodes[PROXY].sent.iter();
        let branch = format!("z9hG4bKback{number}");
        let mut answers = sent.filter(|(_, to, text)| {
            *to == UAS && text.starts_with("SIP/2.0") && text.contains(&branch)
        });
        let (_, _, answer) = answers.next().expect("an answer");
        assert!(answer.starts_with(&format!("SIP/2.0 {code} ")), "{answer}");
    }
}

#[test]
fn each_copy_has_a_via_of_this_server_on_top_with_a_branch_of_its_own_rfc5393_4_2_1() {
    let mut world = World::new();
    world.bind_bob(&[None, None]);
    world.nodes[UAS].script = answers(&[(50, 486)]);
    let below = "Via: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bKa;x=\"y\"\r\n";
    let text = request("INVITE", "sip:bob@example.com", 1, below);
    let key = world.send(UAC, Transport::Udp, &text);
    world.run_until(300);
    world.cancel(key);
    world.run_until(2_000);
    let mut branches = Vec::new();
    for place in [UAS, UAS + 1] {
        let texts = &world.nodes[PROXY].sent;
        let to = |method: &str| -> Vec<&str> {
            let mut of = texts.iter();
            let found = of.find(|(_, to, text)| *to == place && text.starts_with(method));
            found.map_or(Vec::new(), |(_, _, text)| values(text, "Via"))
        };
        let vias = to("INVITE");
        assert_eq!(vias.len(), 3, "{vias:?}");
        for (via, host) in vias.iter().zip(["192.0.2.2", "192.0.2.1"]) {
            assert!(via.starts_with(&format!("SIP/2.0/UDP {host}")), "{via}");
            assert!(via.contains(";branch=z9hG4bK"), "{via}");
        }
        assert!(below.contains(vias[2]));
        branches.push(vias[0].to_owned());
        // One phone gets the ACK for its 486, the other a CANCEL. Both have the branch of the INVITE.
        let hop = if place == UAS { "ACK" } else { "CANCEL" };
        assert_eq!(to(hop), [vias[0]], "{hop}");
    }
    assert_ne!(branches[0], branches[1]);
    world.nothing_is_left();
}

#[test]
fn a_cancel_of_nothing_is_481_rfc3261_9_2() {
    let mut world = with_bob();
    let via = "SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKnothing\r\n";
    let text = request("CANCEL", "sip:bob@example.com", 1, "").replacen("SIP/2.0\r\n", via, 1);
    world.send_raw(UAC, &text);
    world.run_until(500);
    let answers = world.sent(PROXY, "SIP/2.0 481");
    assert_eq!(answers.len(), 1);
    world.nothing_is_left();
}

#[test]
fn merged_requests_are_no_error_for_a_proxy_rfc3261_16_3() {
    let mut world = with_bob();
    for branch in ["one", "two"] {
        let via = format!("SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK{branch}\r\n");
        world.send_raw(UAC, &message(1, "").replacen("SIP/2.0\r\n", &via, 1));
    }
    world.run_until(1_000);
    assert_eq!(world.sent(PROXY, "MESSAGE").len(), 2);
}

#[test]
fn a_tampered_via_of_ours_is_dropped_on_the_way_back() {
    let mut world = with_bob();
    let (_, _, forwarded) = {
        world.send(UAC, Transport::Udp, &message(1, ""));
        world.run_until(15);
        world.nodes[PROXY].sent[0].clone()
    };
    let branch = value(&forwarded, "Via")
        .unwrap()
        .split("branch=")
        .nth(1)
        .unwrap();
    let place = branch.len() - 20;
    let mut changed = branch.to_owned();
    let other = if &branch[place..=place] == "a" {
        "b"
    } else {
        "a"
    };
    changed.replace_range(place..=place, other);
    let lines: Vec<&str> = forwarded
        .split("\r\n")
        .filter(|line| {
            ["Via", "From", "To:", "Call", "CSeq"]
                .iter()
                .any(|it| line.starts_with(it))
        })
        .collect();
    let response = format!(
        "SIP/2.0 200 OK\r\n{}\r\nContent-Length: 0\r\n\r\n",
        lines.join("\r\n")
    );
    world.send_raw(UAS, &response.replace(branch, &changed));
    world.run_until(28);
    // The forgery came first and was dropped; the user agent's own answer comes through.
    assert!(world.heard(UAC).is_empty());
    world.run_until(500);
    assert_eq!(world.heard(UAC), ["200 MESSAGE"]);
    let dropped = world.nodes[PROXY].engine.stats().dropped;
    assert_eq!(dropped.iter().sum::<u64>(), 1);
}

/// The lines that a response copies from this request.
fn copied(forwarded: &str) -> Vec<&str> {
    let names = ["Via", "From", "To:", "Call", "CSeq"];
    let lines = forwarded.split("\r\n");
    lines
        .filter(|line| names.iter().any(|it| line.starts_with(it)))
        .collect()
}

#[test]
fn a_response_whose_only_via_is_this_servers_is_dropped_rfc3261_16_7_3() {
    for (method, code) in [
        ("MESSAGE", 200),
        ("MESSAGE", 404),
        ("INVITE", 200),
        ("INVITE", 180),
    ] {
        let mut world = with_bob();
        world.nodes[UAS].script = answers(&[(50, 200)]);
        let text = request(method, "sip:bob@example.com", 1, "");
        world.send(UAC, Transport::Udp, &text);
        world.run_until(15);
        let (_, _, forwarded) = world.nodes[PROXY].sent.last().unwrap().clone();
        assert!(forwarded.starts_with(method), "{forwarded}");
        let lines = copied(&forwarded);
        let vias = lines.iter().filter(|line| line.starts_with("Via"));
        assert_eq!(vias.count(), 2, "{lines:?}");
        // The topmost Via stays, and no other.
        let lines = [&lines[..1], &lines[2..]].concat().join("\r\n");
        let lines = lines.replace(
            "To: <sip:bob@example.com>",
            "To: <sip:bob@example.com>;tag=f",
        );
        let response = format!("SIP/2.0 {code} X\r\n{lines}\r\nContent-Length: 0\r\n\r\n");
        world.send_raw(UAS, &response);
        world.run_until(2_000);
        // It ends nothing, so the true response comes through.
        let heard = world.heard(UAC);
        let heard = heard.iter().filter(|it| !it.starts_with("100"));
        assert_eq!(heard.collect::<Vec<_>>(), [&format!("200 {method}")]);
        assert!(!world.last(UAC).contains("tag=f"));
        let stats = world.nodes[PROXY].engine.stats();
        let place = DropReason::ALL
            .iter()
            .position(|it| *it == DropReason::NoNextHop);
        assert_eq!(stats.dropped[place.unwrap()], 1);
        world.nothing_is_left();
    }
}

#[test]
fn a_full_proxy_says_503() {
    let config = sip_server::proxy::Config {
        most: 1,
        ..Default::default()
    };
    let mut world = World::with(crate::network::Weather::FINE, 1, config);
    world.bind_bob(&[None]);
    world.nodes[UAS].script = crate::node::answers(&[(50, 180)]);
    world.invite();
    world.run_until(300);
    assert_eq!(answer(&mut world, &message(2, ALICE)), "503 MESSAGE");
    assert_eq!(value(world.last(UAC), "Retry-After"), Some("1"));
    assert_eq!(world.heard(PROXY), ["NoRoom"]);
}

#[test]
fn a_target_that_is_malformed_gets_400_and_a_contact_that_is_no_target_480() {
    let label = format!("sip:z@{}.example", "a".repeat(300));
    for (uri, code) in [
        ("sip:z@192.0.2.3;transport=foo", 400),
        ("sip:z@a..b", 400),
        (&label, 400),
        ("mailto:z@192.0.2.3", 416),
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        world.policy().trunks.clear();
        let heard = answer(&mut world, &request("MESSAGE", uri, 1, ALICE));
        assert_eq!(heard, format!("{code} MESSAGE"), "{uri}");
        world.nothing_is_left();
    }
    for contact in [
        "tel:+123",
        "sip:bob@192.0.2.3;transport=foo",
        "sip:bob@198.51.100.7",
        "sip:bob@192.0.2.3;maddr=198.51.100.7",
    ] {
        let mut world = World::new();
        world.bind_bob(&[]);
        world.policy().bind("bob", &Contact::at(contact));
        world.invite();
        world.run_until(1_000);
        assert_eq!(world.heard(UAC).last(), Some(&"480 INVITE"), "{contact}");
        world.nothing_is_left();
    }
}

#[test]
fn a_request_that_is_too_long_with_the_fields_of_this_server_gets_513() {
    let mut world = World::new();
    world.bind_bob(&[]);
    let uri = format!("sip:bob@{};transport=tcp", address(UAS));
    world.policy().bind("bob", &Contact::at(&uri));
    for (padding, code) in [(65_000, 200), (65_200, 513)] {
        let lines = format!("X: {}\r\n", "x".repeat(padding - 60_000));
        let text = request("MESSAGE", "sip:bob@example.com", padding as u32, &lines);
        let text = text.replace("Content-Length: 0\r\n\r\n", "Content-Length: 60000\r\n\r\n");
        world.send(
            UAC,
            Transport::Tcp,
            &format!("{text}{}", "y".repeat(60_000)),
        );
        let until = world.ms() + 1_000;
        world.run_until(until);
        assert_eq!(
            world.heard(UAC).last(),
            Some(&&*format!("{code} MESSAGE")),
            "{padding}"
        );
    }
    world.nothing_is_left();
}
