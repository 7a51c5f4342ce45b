//! Requests within a dialog for a phone that has another flow than at its beginning: they go to the newer binding of the
//! same phone (RFC 5626 §5.3, RFC 3261 §16.5).

use sip::flow::Transport;
use sip_server::flow::FlowId;

use crate::media::of_callee;
use crate::node::{ALICE, PROXY, RUN, START, UAC, UAS, address, answers, request};
use crate::policy::Contact;
use crate::world::World;

/// Where bob's phone is after its move.
const LATER: usize = UAS + 1;

/// Bob's phone.
fn phone(flow: FlowId) -> Contact {
    let mut contact = Contact::at("sip:bob@10.0.0.7:40000");
    contact.flow = Some(flow);
    contact.call_id = "phone@bob".to_owned();
    contact
}

/// Alice, who has no phone that is registered, calls bob's phone with this binding. It is answered.
fn call(world: &mut World, contact: &Contact) {
    world.policy().bind("bob", contact);
    for node in [UAS, LATER, LATER + 1] {
        world.nodes[node].script = answers(&[(50, 200)]);
    }
    let invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    run_on(world);
    assert_eq!(world.heard(UAC), ["200 INVITE"]);
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    world.policy().have_moved = true;
}

fn run_on(world: &mut World) {
    let until = world.ms() + 1_000;
    world.run_until(until);
}

/// Replaces the bindings of a user.
fn register(world: &mut World, user: &str, contacts: &[Contact]) {
    world.policy().user(user).clear();
    for contact in contacts {
        let contact = Contact {
            updated: START + world.ms() * 1_000_000,
            ..contact.clone()
        };
        world.policy().bind(user, &contact);
    }
}

#[test]
fn a_bye_and_a_reinvite_with_its_ack_reach_a_phone_at_its_new_address() {
    let mut world = World::new();
    call(&mut world, &phone(World::datagrams_of(UAS)));
    register(&mut world, "bob", &[phone(World::datagrams_of(LATER))]);
    world.in_dialog(UAC, "INVITE");
    run_on(&mut world);
    assert_eq!(world.heard(LATER), ["INVITE", "ACK"]);
    // The Request-URI is still that of the dialog.
    let invite = &world.nodes[LATER].texts[0];
    let uri = format!("INVITE sip:uas@{} SIP/2.0\r\n", address(UAS));
    assert!(invite.starts_with(&uri), "{invite}");
    for method in ["UPDATE", "REFER", "BYE"] {
        world.in_dialog(UAC, method);
        run_on(&mut world);
        assert_eq!(world.heard(LATER).last(), Some(&method));
        let answer = format!("200 {method}");
        assert_eq!(world.heard(UAC).last(), Some(&&answer[..]));
    }
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert_eq!(world.proxy().stats().stray_acks, 0);
    world.nothing_is_left();
}

#[test]
fn a_bye_reaches_a_phone_whose_connection_broke_and_came_back() {
    // The old binding is there or not: other phones leave theirs behind.
    for (leaves_binding, instance, reg_id) in [
        (false, "", 0),
        (true, "", 0),
        (false, "urn:uuid:1", 1),
        (true, "urn:uuid:1", 0),
    ] {
        let mut world = World::new();
        let as_before = |flow| Contact {
            uri: "sip:bob@10.0.0.7:40000;transport=tcp".to_owned(),
            instance: instance.to_owned(),
            reg_id,
            ..phone(flow)
        };
        let old = as_before(world.phone_connects(UAS));
        call(&mut world, &old);
        world.disconnect(UAS);
        let new = Contact {
            uri: "sip:bob@10.0.0.7:40001;transport=tcp".to_owned(),
            // A phone with an instance may register with another Call-ID.
            call_id: format!("phone@bob{instance}"),
            ..as_before(world.phone_connects(UAS))
        };
        register(&mut world, "bob", &[new]);
        if leaves_binding {
            world.policy().bind("bob", &old);
        }
        world.in_dialog(UAC, "BYE");
        run_on(&mut world);
        let case = format!("{leaves_binding} {instance} {reg_id}");
        assert_eq!(world.heard(UAS).last(), Some(&"BYE"), "{case}");
        assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"), "{case}");
        world.nothing_is_left();
    }
}

#[test]
fn a_bye_reaches_a_phone_whose_connection_a_restart_has_closed() {
    let mut world = World::new();
    let old = phone(world.phone_connects(UAS));
    call(&mut world, &old);
    world.disconnect(UAS);
    let proxied = world.nodes[PROXY].proxied.as_mut().unwrap();
    let run = RUN + 1;
    proxied.set_run(run);
    // As long as the phone is not there: RFC 5626 §5.3.1.
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAC).last(), Some(&"430 BYE"));
    let flow = world.phone_connects(UAS);
    register(&mut world, "bob", &[phone(FlowId { run, ..flow })]);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
}

#[test]
fn a_phone_that_has_called_is_reached_at_its_new_address() {
    // What the proxy knows of the phone: the instance in its INVITE, its Contact, or the user of its Contact.
    for (instance, uri) in [
        ("urn:uuid:0A", "sip:other@10.0.0.9"),
        ("", "sip:alice@192.0.2.1"),
        ("", "sip:alice@10.0.0.9:40001"),
    ] {
        let mut world = World::new();
        world.policy().bind("bob", &phone(World::datagrams_of(UAS)));
        world.nodes[UAS].script = answers(&[(50, 200)]);
        let mut invite = request("INVITE", "sip:bob@example.com", 1, ALICE);
        if !instance.is_empty() {
            let contact = format!("<sip:alice@192.0.2.1>;+sip.instance=\"<{instance}>\"");
            invite = invite.replace("<sip:alice@192.0.2.1>", &contact);
        }
        let mut contact = Contact::at("sip:alice@192.0.2.1");
        contact.flow = Some(World::datagrams_of(UAC));
        register(&mut world, "alice", &[contact]);
        world.send(UAC, Transport::Udp, &invite);
        run_on(&mut world);
        let ok = world.last(UAC).to_owned();
        let got = world.nodes[UAS].texts[0].clone();
        let got = got.replace(&format!(";+sip.instance=\"<{instance}>\""), "");
        world.policy().have_moved = true;
        let mut contact = Contact::at(uri);
        contact.flow = Some(World::datagrams_of(LATER));
        contact.instance = instance.to_ascii_lowercase();
        register(&mut world, "alice", &[contact]);
        let bye = of_callee(&got, &ok, "BYE");
        world.send(UAS, Transport::Udp, &bye);
        run_on(&mut world);
        assert_eq!(world.heard(LATER), ["BYE"], "{instance} {uri}");
        assert_eq!(world.heard(UAS).last(), Some(&"200 BYE"));
        assert_eq!(world.heard(UAC), ["200 INVITE"]);
        world.nothing_is_left();
    }
}

#[test]
fn nothing_goes_to_another_phone_of_the_user() {
    let other = |change: fn(&mut Contact)| {
        let mut contact = phone(World::datagrams_of(LATER));
        contact.call_id = "other@bob".to_owned();
        contact.uri = "sip:bob@10.0.0.8:40000".to_owned();
        change(&mut contact);
        contact
    };
    let with_user_of_dialog = |contact: &mut Contact| contact.uri = "sip:uas@10.0.0.8".to_owned();
    let with_instance = |contact: &mut Contact| {
        contact.uri = format!("sip:uas@{}", address(UAS));
        contact.instance = "urn:uuid:2".to_owned();
    };
    let mut first = phone(World::datagrams_of(UAS));
    first.instance = "urn:uuid:1".to_owned();
    let cases = [
        // The phone has a binding still, which is not newer than its flow.
        vec![first.clone(), other(|_| {}), other(with_user_of_dialog)],
        vec![first.clone(), other(with_instance)],
        // It has none, and the others are others.
        vec![other(|_| {})],
        vec![other(with_instance)],
        // Two may be it.
        vec![other(with_user_of_dialog), other(with_user_of_dialog)],
        vec![],
    ];
    for (case, contacts) in cases.iter().enumerate() {
        let mut world = World::new();
        call(&mut world, &first);
        register(&mut world, "bob", contacts);
        world.in_dialog(UAC, "BYE");
        run_on(&mut world);
        assert_eq!(world.heard(UAS).last(), Some(&"BYE"), "{case}");
        assert!(world.heard(LATER).is_empty(), "{case}");
        world.nothing_is_left();
    }
}

#[test]
fn a_binding_that_is_older_than_the_dialog_is_no_later_flow_of_a_phone_without_a_name() {
    let mut world = World::new();
    call(&mut world, &phone(World::datagrams_of(UAS)));
    // It has the user of the Request-URI, and was refreshed before the call.
    let mut other = phone(World::datagrams_of(LATER));
    other.uri = "sip:uas@10.0.0.8".to_owned();
    other.call_id = "other@bob".to_owned();
    other.updated = START - 900_000_000_000;
    world.policy().user("bob").clear();
    world.policy().bind("bob", &other);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert!(world.heard(LATER).is_empty());
    // Refreshed since, it is.
    register(&mut world, "bob", &[other]);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(LATER), ["BYE"]);
}

#[test]
fn nothing_goes_to_a_phone_of_another_user() {
    let mut world = World::new();
    let mut mine = phone(World::datagrams_of(UAS));
    mine.instance = "urn:uuid:1".to_owned();
    call(&mut world, &mine);
    register(&mut world, "bob", &[]);
    // All that is known of a phone is equal.
    let mut contact = phone(World::datagrams_of(LATER));
    contact.instance = "urn:uuid:1".to_owned();
    contact.uri = format!("sip:uas@{}", address(UAS));
    register(&mut world, "carol", &[contact]);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert!(world.heard(LATER).is_empty());
    world.nothing_is_left();
}

#[test]
fn a_connection_that_is_there_is_used_although_the_only_binding_is_another() {
    for is_broken in [false, true] {
        let mut world = World::new();
        let mut old = phone(world.phone_connects(UAS));
        old.uri = format!("sip:uas@{};transport=tcp", address(UAS));
        call(&mut world, &old);
        let mut only = phone(World::datagrams_of(LATER));
        only.uri = "sip:uas@10.0.0.8".to_owned();
        only.call_id = "other@bob".to_owned();
        register(&mut world, "bob", &[only]);
        if is_broken {
            world.disconnect(UAS);
        }
        world.in_dialog(UAC, "BYE");
        run_on(&mut world);
        let reached = if is_broken { LATER } else { UAS };
        assert_eq!(world.heard(reached).last(), Some(&"BYE"), "{is_broken}");
        assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"), "{is_broken}");
        world.nothing_is_left();
    }
}

#[test]
fn the_next_binding_of_a_phone_is_tried_if_the_connection_of_the_newest_is_gone() {
    let mut world = World::new();
    let mut contact = phone(World::datagrams_of(UAS));
    contact.instance = "urn:uuid:1".to_owned();
    call(&mut world, &contact);
    let second = Contact {
        flow: Some(World::datagrams_of(LATER)),
        uri: "sip:bob@10.0.0.8".to_owned(),
        reg_id: 2,
        ..contact.clone()
    };
    let mut first = second.clone();
    (first.flow, first.reg_id) = (Some(world.phone_connects(LATER + 1)), 1);
    register(&mut world, "bob", &[second]);
    run_on(&mut world);
    first.updated = START + world.ms() * 1_000_000;
    world.policy().bind("bob", &first);
    world.disconnect(LATER + 1);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(LATER), ["BYE"]);
    assert_eq!(world.policy().failed.len(), 1, "its binding is removed");
    world.nothing_is_left();
}

#[test]
fn the_flow_of_the_dialog_is_tried_if_the_connection_of_a_later_binding_is_gone() {
    let mut world = World::new();
    let mut contact = phone(World::datagrams_of(UAS));
    contact.instance = "urn:uuid:1".to_owned();
    call(&mut world, &contact);
    run_on(&mut world);
    let later = Contact {
        flow: Some(world.phone_connects(LATER)),
        uri: "sip:bob@10.0.0.8".to_owned(),
        updated: START + world.ms() * 1_000_000,
        ..contact.clone()
    };
    world.policy().bind("bob", &later);
    world.disconnect(LATER);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert_eq!(world.heard(UAC).last(), Some(&"200 BYE"));
    world.nothing_is_left();
}

#[test]
fn the_worker_with_the_bindings_gets_the_request_and_the_ack() {
    let mut world = World::new();
    call(&mut world, &phone(World::datagrams_of(UAS)));
    register(&mut world, "bob", &[phone(World::datagrams_of(LATER))]);
    world.policy().elsewhere = Some(5);
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(PROXY).first(), Some(&"Elsewhere(5)"));
    assert_eq!(world.heard(UAS), ["INVITE", "ACK"]);
    assert!(world.heard(LATER).is_empty());
}

#[test]
fn a_request_waits_for_a_location_that_asks_elsewhere() {
    let mut world = World::new();
    call(&mut world, &phone(World::datagrams_of(UAS)));
    register(&mut world, "bob", &[phone(World::datagrams_of(LATER))]);
    world.policy().is_location_pending = true;
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert!(world.heard(LATER).is_empty());
    world.policy().is_location_pending = false;
    world.resume();
    run_on(&mut world);
    assert_eq!(world.heard(LATER), ["BYE"]);
    world.nothing_is_left();
}

#[test]
fn as_long_as_no_phone_has_moved_a_request_goes_by_the_flow_of_its_token() {
    let mut world = World::new();
    call(&mut world, &phone(World::datagrams_of(UAS)));
    register(&mut world, "bob", &[phone(World::datagrams_of(LATER))]);
    world.policy().have_moved = false;
    world.in_dialog(UAC, "BYE");
    run_on(&mut world);
    assert_eq!(world.heard(UAS).last(), Some(&"BYE"));
    assert!(world.heard(LATER).is_empty());
    world.nothing_is_left();
}
