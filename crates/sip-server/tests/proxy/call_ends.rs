//! Which BYE ends a call that counts: the one that the called party has sent or got. The caller alone frees no place.

use sip::flow::Transport;
use sip_server::calls::Limit;
use sip_server::proxy::{AtNodes, NodeHop};
use sip_server::routes::Trunk;

use crate::media::of_callee;
use crate::node::{ALICE, START, UAC, UAS, address, answers, in_dialog, request, value, values};
use crate::policy::{CallPolicy, Contact};
use crate::trunks::{NUMBER, counts, route, trunk, world_of};
use crate::world::World;

/// The caller may have one call.
fn limited(mut world: World) -> World {
    let limit = Limit {
        concurrent: 1,
        per_second: 0,
    };
    world.policy().calls = Some(CallPolicy {
        limit,
        ..CallPolicy::default()
    });
    world
}

/// A trunk with two addresses, which has room for one call.
fn with_trunk() -> World {
    let carrier = Trunk {
        max_calls: 1,
        ..trunk("carrier", &[UAS, UAS + 1])
    };
    let mut world = limited(world_of(vec![route("+49", &["carrier"])], vec![carrier]));
    world.policy().calls.as_mut().unwrap().records = true;
    world.nodes[UAS].script = answers(&[(50, 200)]);
    call(&mut world, NUMBER);
    assert_eq!(places(&mut world), [1, 1]);
    world
}

fn run_on(world: &mut World) {
    let until = world.ms() + 1_000;
    world.run_until(until);
}

/// Alice calls, and gets a 2xx.
fn call(world: &mut World, uri: &str) {
    world.send(UAC, Transport::Udp, &request("INVITE", uri, 1, ALICE));
    run_on(world);
    assert_eq!(world.heard(UAC).last(), Some(&"200 INVITE"));
    assert_eq!(calls_of_alice(world), 1);
}

fn calls_of_alice(world: &mut World) -> u32 {
    world.policy().calls.as_ref().unwrap().calls_of("alice")
}

/// The calls of alice, and those of the trunk.
fn places(world: &mut World) -> [u64; 2] {
    [calls_of_alice(world).into(), counts(world, 0).in_progress]
}

/// The 2xx that alice got, and the INVITE as the called party got it.
fn messages(world: &World) -> (String, String) {
    let find = |node: usize, start: &str| {
        let mut texts = world.nodes[node].texts.iter();
        texts.find(|text| text.starts_with(start)).unwrap().clone()
    };
    (find(UAC, "SIP/2.0 200"), find(UAS, "INVITE"))
}

/// The BYE of alice within the dialog.
fn bye_of_alice(world: &World) -> String {
    in_dialog(&messages(world).0, "BYE")
}

/// The BYE of the called party.
fn bye_of_callee(world: &World) -> String {
    let (ok, invite) = messages(world);
    of_callee(&invite, &ok, "BYE")
}

/// A BYE is sent from a node, and the last response there is this one.
fn send(world: &mut World, node: usize, bye: &str, response: &str) {
    world.send(node, Transport::Udp, bye);
    run_on(world);
    assert_eq!(world.heard(node).last(), Some(&response), "{bye}");
}

/// A BYE with this URI as its Request-URI.
fn to(bye: &str, uri: &str) -> String {
    let (_, rest) = bye.split_once("\r\n").unwrap();
    format!("BYE {uri} SIP/2.0\r\n{rest}")
}

/// A BYE with the last one of its Route values alone: that of the caller or of the called party.
fn with_one_route(bye: &str, number: usize) -> String {
    let routes = values(bye, "Route");
    let lines = bye.split_inclusive("\r\n");
    let others: String = lines.filter(|line| !line.starts_with("Route:")).collect();
    let line = format!("\r\nRoute: {}\r\nFrom: ", routes[number]);
    others.replacen("\r\nFrom: ", &line, 1)
}

#[test]
fn a_bye_that_the_caller_sends_to_itself_ends_no_call() {
    let mut world = with_trunk();
    let own = format!("sip:alice@{}", address(UAC));
    let bye = to(&bye_of_alice(&world), &own);
    send(&mut world, UAC, &bye, "200 BYE");
    assert!(world.heard(UAC).contains(&"BYE"), "it came back");
    assert_eq!(places(&mut world), [1, 1]);
    assert!(world.policy().ended_calls.is_empty());
    let second = request("INVITE", NUMBER, 2, ALICE);
    send(&mut world, UAC, &second, "486 INVITE");
    // By the flow of its own token, from another socket.
    let bye = bye_of_alice(&world);
    let count = values(&bye, "Route").len();
    assert_eq!(count, 2, "{bye}");
    for number in 0..count {
        let bye = with_one_route(&to(&bye, &own), number);
        let bye = bye.replace("CSeq: 2 ", &format!("CSeq: {} ", 20 + number));
        world.send(UAS + 3, Transport::Udp, &bye);
        run_on(&mut world);
        assert_eq!(places(&mut world), [1, 1], "{bye}");
    }
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
}

#[test]
fn a_bye_with_the_tags_of_the_called_party_ends_no_call_of_the_caller() {
    let mut world = with_trunk();
    let bye = bye_of_callee(&world);
    for (node, uri) in [
        (UAC, format!("sip:alice@{}", address(UAC))),
        (UAS + 3, format!("sip:alice@{}", address(UAC))),
    ] {
        let bye = to(&bye, &uri).replace("CSeq: 9 ", &format!("CSeq: {} ", 10 + node));
        send(&mut world, node, &bye, "200 BYE");
        assert_eq!(places(&mut world), [1, 1]);
    }
    // The called party responds that it knows no such dialog.
    world.nodes[UAS].script.other = vec![(10, 481, String::new())];
    let (ok, _) = messages(&world);
    let (from, to) = (value(&ok, "From").unwrap(), value(&ok, "To").unwrap());
    let bye = bye_of_alice(&world);
    let bye = bye.replace(&format!("From: {from}"), "From: x");
    let bye = bye.replace(&format!("To: {to}"), &format!("To: {from}"));
    let bye = bye.replace("From: x", &format!("From: {to}"));
    send(&mut world, UAC, &bye, "481 BYE");
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(places(&mut world), [1, 1]);
}

#[test]
fn a_bye_that_the_called_party_refuses_ends_no_call() {
    // RFC 3261 §12.2.2: 500 for a CSeq that is too low; §8.2.2.3: 420 for an extension that is not supported.
    for code in [420, 500, 400, 403, 483, 401] {
        let mut world = with_trunk();
        world.nodes[UAS].script.other = vec![(10, code, String::new())];
        let bye = bye_of_alice(&world);
        send(&mut world, UAC, &bye, &format!("{code} BYE"));
        assert_eq!(places(&mut world), [1, 1], "{code}");
        world.nodes[UAS].script.other.clear();
        let bye = bye.replace("CSeq: 2 ", "CSeq: 3 ");
        send(&mut world, UAC, &bye, "200 BYE");
        assert_eq!(places(&mut world), [0, 0], "{code}");
        world.nothing_is_left();
    }
}

#[test]
fn a_bye_without_a_response_ends_the_call_if_it_went_to_the_called_party() {
    for (is_own, left) in [(false, [0, 0]), (true, [1, 1])] {
        let mut world = with_trunk();
        let mut bye = bye_of_alice(&world);
        if is_own {
            bye = to(&bye, &format!("sip:alice@{}", address(UAS + 3)));
        }
        world.dead = vec![UAS, UAS + 3];
        world.send(UAC, Transport::Udp, &bye);
        let until = world.ms() + 40_000;
        world.run_until(until);
        assert_eq!(places(&mut world), left, "{is_own}");
    }
    // The called party knows the dialog no longer.
    let mut world = with_trunk();
    world.nodes[UAS].script.other = vec![(10, 481, String::new())];
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(places(&mut world), [0, 0]);
}

#[test]
fn a_bye_from_any_address_of_the_trunk_and_to_any_of_them_ends_the_call() {
    for node in [UAS, UAS + 1] {
        let mut world = with_trunk();
        let bye = bye_of_callee(&world);
        send(&mut world, node, &bye, "200 BYE");
        assert_eq!(places(&mut world), [0, 0], "{node}");
        let line = "200 alice>carrier rang false answered true tried 1 by called";
        assert_eq!(world.policy().ended_calls, [line]);
        let mut world = with_trunk();
        let uri = format!("sip:uas@{}", address(node));
        let bye = to(&bye_of_alice(&world), &uri);
        send(&mut world, UAC, &bye, "200 BYE");
        assert_eq!(world.heard(node).last(), Some(&"BYE"));
        assert_eq!(places(&mut world), [0, 0], "{node}");
        let line = "200 alice>carrier rang false answered true tried 1 by caller";
        assert_eq!(world.policy().ended_calls, [line]);
    }
    // The caller's phone has gone, or refuses the BYE: the called party has hung up all the same.
    let mut world = with_trunk();
    world.nodes[UAC].script.other = vec![(10, 500, String::new())];
    let bye = bye_of_callee(&world);
    send(&mut world, UAS, &bye, "500 BYE");
    assert_eq!(places(&mut world), [0, 0]);
}

#[test]
fn a_refresh_that_the_caller_responds_to_makes_no_call_shorter() {
    let mut world = with_trunk();
    world.policy().calls.as_mut().unwrap().timer = Some(sip_server::proxy::SessionTimer {
        expires: 600,
        min: 90,
    });
    let invite = in_dialog(&messages(&world).0, "INVITE");
    let invite = invite.split_once("\r\n").unwrap().1;
    let invite = format!("INVITE sip:alice@{} SIP/2.0\r\n{invite}", address(UAC));
    world.nodes[UAC].script.invite =
        vec![(10, 200, "Session-Expires: 90;refresher=uas\r\n".to_owned())];
    world.send(UAC, Transport::Udp, &invite);
    run_on(&mut world);
    assert!(world.heard(UAC).contains(&"INVITE"), "it came back");
    let now = sip::Mono(START + 1_000_000_000 * 1_000);
    world.policy().calls.as_ref().unwrap().dialogs.expire(now);
    assert_eq!(places(&mut world), [1, 1]);
}

/// Bob's phone.
fn phone(node: usize) -> Contact {
    let mut contact = Contact::at("sip:bob@10.0.0.7:40000");
    contact.flow = Some(World::datagrams_of(node));
    contact.call_id = "phone@bob".to_owned();
    contact
}

/// Alice has called bob's phone, which may register at another address.
fn with_phone() -> World {
    let mut world = limited(World::new());
    world.policy().bind("bob", &phone(UAS));
    world.nodes[UAS].script = answers(&[(50, 200)]);
    call(&mut world, "sip:bob@example.com");
    world
}

/// The phone of a user has registered at another node.
fn moves(world: &mut World, user: &str, mut contact: Contact) {
    contact.updated = START + world.ms() * 1_000_000;
    world.policy().user(user).clear();
    world.policy().bind(user, &contact);
    world.policy().have_moved = true;
}

#[test]
fn the_bye_from_and_to_a_phone_that_has_moved_ends_the_call() {
    for moved in [false, true] {
        let place = if moved { UAS + 1 } else { UAS };
        for is_of_callee in [false, true] {
            let mut world = with_phone();
            if moved {
                moves(&mut world, "bob", phone(place));
            }
            let bye = match is_of_callee {
                true => bye_of_callee(&world),
                false => bye_of_alice(&world),
            };
            let sender = if is_of_callee { place } else { UAC };
            send(&mut world, sender, &bye, "200 BYE");
            let receiver = if is_of_callee { UAC } else { place };
            assert_eq!(world.heard(receiver).last(), Some(&"BYE"));
            assert_eq!(calls_of_alice(&mut world), 0, "{moved} {is_of_callee}");
        }
    }
    // The phone of the caller.
    let mut world = with_phone();
    let mut contact = Contact::at("sip:alice@192.0.2.1");
    contact.flow = Some(World::datagrams_of(UAS + 2));
    moves(&mut world, "alice", contact);
    let bye = bye_of_alice(&world);
    send(&mut world, UAS + 2, &bye, "200 BYE");
    assert_eq!(calls_of_alice(&mut world), 0);
}

#[test]
fn a_bye_that_claims_to_come_from_a_phone_ends_no_call() {
    for moved in [false, true] {
        let mut world = with_phone();
        if moved {
            moves(&mut world, "bob", phone(UAS + 1));
        }
        for node in [UAC, UAS + 3] {
            let bye = bye_of_callee(&world);
            let bye = bye.replace("CSeq: 9 ", &format!("CSeq: {} ", 10 + node));
            let bye = to(&bye, &format!("sip:alice@{}", address(UAC)));
            send(&mut world, node, &bye, "200 BYE");
            assert_eq!(calls_of_alice(&mut world), 1, "{moved} {node}");
        }
    }
}

#[test]
fn the_bye_from_and_to_another_node_ends_the_call() {
    for is_of_callee in [false, true] {
        let mut world = limited(World::new());
        world.policy().user("bob");
        world.policy().nodes = AtNodes::Known(vec![NodeHop {
            address: address(UAS),
            is_tls: false,
            q: 1_000,
            load: 0,
            phones: Vec::new(),
        }]);
        world.nodes[UAS].script = answers(&[(50, 200)]);
        call(&mut world, "sip:bob@example.com");
        let (sender, bye) = match is_of_callee {
            true => (UAS, bye_of_callee(&world)),
            false => (UAC, bye_of_alice(&world)),
        };
        send(&mut world, sender, &bye, "200 BYE");
        assert_eq!(calls_of_alice(&mut world), 0, "{is_of_callee}");
    }
}
