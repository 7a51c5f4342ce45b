//! Phones that sleep are woken for a call (RFC 8599 §5.6.2).

use std::time::Duration;

use sip::flow::Transport;
use sip_server::proxy::PushConfig;
use sip_server::routes::{Forward, Forwards};

use crate::node::{ALICE, UAC, UAS, address, answers, request};
use crate::policy::Contact;
use crate::world::World;

pub(crate) fn config() -> PushConfig {
    PushConfig {
        providers: ["fcm".to_owned()].into(),
        wait: Duration::from_secs(20),
        awake: Duration::from_secs(10),
        most: 2,
    }
}

/// A phone of bob that can be woken by this token, at a node.
pub(crate) fn mobile(node: usize, prid: &str) -> Contact {
    let at = address(node);
    let uri = format!("sip:bob@{at};pn-provider=fcm;pn-prid={prid};pn-param=p");
    Contact {
        flow: Some(World::datagrams_of(node)),
        ..Contact::at(&uri)
    }
}

/// A desk phone of bob at a node.
fn desk(node: usize) -> Contact {
    let mut desk = Contact::at(&format!("sip:bob@{}", address(node)));
    desk.flow = Some(World::datagrams_of(node));
    desk
}

/// Bob has these phones, all of which registered long ago.
fn world(contacts: &[Contact]) -> World {
    let mut world = World::new();
    world.policy().push = Some(config());
    for contact in contacts {
        world.policy().bind("bob", contact);
    }
    for node in [UAS, UAS + 1, UAS + 2] {
        world.nodes[node].script = answers(&[(50, 180), (500, 200)]);
    }
    world
}

fn call(world: &mut World, number: u32) -> sip::engine::ClientKey {
    let text = request("INVITE", "sip:bob@example.com", number, ALICE);
    let key = world.send(UAC, Transport::Udp, &text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    key
}

fn finals(world: &World) -> Vec<&str> {
    let heard = world.heard(UAC).into_iter();
    heard.filter(|what| !what.starts_with('1')).collect()
}

#[test]
fn an_invite_waits_until_the_phone_has_registered_rfc8599_5_6_2() {
    let phone = mobile(UAS, "t1");
    let mut world = world(std::slice::from_ref(&phone));
    call(&mut world, 1);
    assert_eq!(world.heard(UAC), ["100 INVITE"]);
    assert!(world.heard(UAS).is_empty());
    let pushes = std::mem::take(&mut world.policy().pushes);
    let [(aor, params)] = &pushes[..] else {
        panic!("{pushes:?}");
    };
    assert_eq!(
        (&aor[..], params.prid.as_deref()),
        ("bob@example.com", Some("t1"))
    );
    assert_eq!(params.param.as_deref(), Some("p"));
    // The binding of somebody else, and a change without this phone, mean nothing.
    world.registered("carol", &Contact::at("sip:carol@192.0.2.9"));
    world.run_until(4_000);
    assert!(world.heard(UAS).is_empty());
    world.registered("bob", &phone);
    world.run_until(6_000);
    assert_eq!(world.heard(UAC), ["100 INVITE", "180 INVITE", "200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn a_phone_that_does_not_register_is_480_and_a_cancel_does_not_wait_rfc8599_5_6_2() {
    let mut world = world(&[mobile(UAS, "t1")]);
    call(&mut world, 1);
    world.run_until(19_500);
    assert!(finals(&world).is_empty());
    world.run_until(20_500);
    assert_eq!(finals(&world), ["480 INVITE"]);
    world.nothing_is_left();
    let key = call(&mut world, 2);
    world.cancel(key);
    let until = world.ms() + 500;
    world.run_until(until);
    assert_eq!(finals(&world)[1..], ["487 INVITE"]);
    // Who registers too late gets nothing.
    world.registered("bob", &mobile(UAS, "t1"));
    assert!(world.heard(UAS).is_empty());
    world.nothing_is_left();
}

#[test]
fn other_phones_ring_at_once_and_the_woken_one_joins_them() {
    let phone = mobile(UAS + 1, "t1");
    let mut desk = Contact::at(&format!("sip:bob@{}", address(UAS)));
    desk.flow = Some(World::datagrams_of(UAS));
    let mut world = world(&[desk.clone(), phone.clone()]);
    world.nodes[UAS].script = answers(&[(50, 180), (9_000, 486)]);
    call(&mut world, 1);
    assert_eq!(world.heard(UAC).last(), Some(&"180 INVITE"));
    assert!(world.heard(UAS + 1).is_empty());
    world.run_until(3_000);
    world.registered("bob", &phone);
    world.run_until(5_000);
    assert_eq!(finals(&world), ["200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
    // The desk phone is busy at once: the call still waits for the other one.
    world.policy().bindings.clear();
    world.policy().bind("bob", &desk);
    world.policy().bind("bob", &phone);
    world.nodes[UAS].script = answers(&[(50, 486)]);
    let begin = world.ms();
    call(&mut world, 2);
    world.run_until(begin + 15_000);
    assert_eq!(finals(&world).last(), Some(&"200 BYE"));
    world.run_until(begin + 21_000);
    assert_eq!(finals(&world).last(), Some(&"486 INVITE"));
    world.nothing_is_left();
}

#[test]
fn a_phone_that_has_just_registered_is_not_woken() {
    let phone = mobile(UAS, "t1");
    let mut world = world(&[]);
    world.policy().user("bob");
    world.run_until(1_000);
    world.registered("bob", &phone);
    call(&mut world, 1);
    assert_eq!(finals(&world), ["200 INVITE"]);
    assert!(world.policy().pushes.is_empty());
    // Requests that begin no call do not wait.
    world.in_dialog(UAC, "BYE");
    world.run_until(30_000);
    let text = request("MESSAGE", "sip:bob@example.com", 2, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(31_000);
    assert_eq!(finals(&world).last(), Some(&"200 MESSAGE"));
    assert!(world.policy().pushes.is_empty());
    world.nothing_is_left();
}

#[test]
fn no_more_calls_wait_than_may_and_none_without_a_push() {
    let phone = mobile(UAS, "t1");
    let mut world = world(std::slice::from_ref(&phone));
    for number in 1..=2 {
        call(&mut world, number);
    }
    assert!(finals(&world).is_empty());
    call(&mut world, 3);
    assert_eq!(finals(&world), ["480 INVITE"]);
    assert_eq!(world.policy().pushes.len(), 2);
    world.run_until(30_000);
    assert_eq!(finals(&world), ["480 INVITE"; 3]);
    // Those places are free again. The push service does not take it.
    world.policy().can_push = false;
    call(&mut world, 4);
    assert_eq!(finals(&world), ["480 INVITE"; 4]);
    world.nothing_is_left();
}

#[test]
fn a_call_that_nobody_wakes_up_for_goes_on_as_configured() {
    let mut world = world(&[mobile(UAS, "t1")]);
    let voicemail = format!("sip:vm@{}", address(UAS + 1));
    let forward = Forward {
        users: vec!["bob".to_owned()],
        unreachable: Some(voicemail),
        ..Forward::default()
    };
    world.policy().forwards = Forwards::new(vec![forward]);
    call(&mut world, 1);
    world.run_until(22_000);
    assert_eq!(finals(&world), ["200 INVITE"]);
    assert!(!world.heard(UAS + 1).is_empty());
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn a_woken_phone_rings_on_after_the_time_to_wake_it() {
    let phone = mobile(UAS, "t1");
    let mut world = world(std::slice::from_ref(&phone));
    world.nodes[UAS].script = answers(&[(50, 180), (12_000, 200)]);
    call(&mut world, 1);
    world.run_until(15_000);
    world.registered("bob", &phone);
    world.run_until(28_000);
    assert_eq!(finals(&world), ["200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn the_time_to_wake_a_phone_and_that_of_a_group_are_two() {
    // The desk phone of the first group is busy; that of the second one rings on.
    let (mut first, mut second) = (desk(UAS), desk(UAS + 1));
    (first.q, second.q) = (Some(1000), Some(500));
    let mut sleeping = world(&[first.clone(), second.clone(), mobile(UAS + 2, "t1")]);
    sleeping.nodes[UAS].script = answers(&[(50, 486)]);
    sleeping.nodes[UAS + 1].script = answers(&[(50, 180), (15_000, 486)]);
    call(&mut sleeping, 1);
    sleeping.run_until(19_000);
    assert!(finals(&sleeping).is_empty());
    sleeping.run_until(21_000);
    assert_eq!(finals(&sleeping), ["486 INVITE"]);
    sleeping.nothing_is_left();
    // The first group rings for its whole time, 30 s, though the time to wake the phone ends before.
    let mut world = world(&[first, second, mobile(UAS + 2, "t1")]);
    world.nodes[UAS].script = answers(&[(50, 180), (100_000, 200)]);
    call(&mut world, 1);
    world.run_until(29_000);
    assert!(world.heard(UAS + 1).is_empty());
    assert!(!world.heard(UAS).contains(&"CANCEL"));
    world.run_until(32_000);
    assert_eq!(finals(&world), ["200 INVITE"]);
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn the_response_of_a_woken_phone_is_forwarded() {
    for (code, response) in [
        (403, "403 INVITE"),
        (404, "404 INVITE"),
        (500, "500 INVITE"),
    ] {
        let phone = mobile(UAS, "t1");
        let mut world = world(std::slice::from_ref(&phone));
        world.nodes[UAS].script = answers(&[(50, 180), (500, code)]);
        call(&mut world, 1);
        world.registered("bob", &phone);
        world.run_until(4_000);
        assert_eq!(finals(&world), [response]);
        world.nothing_is_left();
    }
    let phone = mobile(UAS, "t1");
    let mut world = world(std::slice::from_ref(&phone));
    world.nodes[UAS].script = answers(&[(50, 180), (100_000, 200)]);
    let key = call(&mut world, 1);
    world.registered("bob", &phone);
    world.run_until(3_000);
    world.cancel(key);
    world.run_until(4_000);
    assert_eq!(finals(&world), ["487 INVITE"]);
    world.nothing_is_left();
}

/// The same phone once more, with a connection of a run before this one.
fn with_lost_flow(contact: &Contact, transport: Transport) -> Contact {
    let mut lost = contact.clone();
    if let Some(id) = &mut lost.flow {
        id.run = id.run.wrapping_sub(1);
        id.flow.transport = transport;
        id.flow.connection = Some(sip::flow::ConnectionKey(7));
    }
    lost
}

#[test]
fn a_phone_whose_connection_is_gone_is_woken_rfc8599_5_6_2() {
    for (transport, reg_id) in [
        (Transport::Tls, 1),
        (Transport::Wss, 0),
        (Transport::Tcp, 0),
    ] {
        let mut phone = mobile(UAS, "t1");
        (phone.instance, phone.reg_id) = ("urn:uuid:1".to_owned(), reg_id);
        let mut lost = with_lost_flow(&phone, transport);
        let mut world = world(&[]);
        world.run_until(15_000);
        // It has registered just before the restart.
        lost.updated = World::new().now().mono.0 + 14_000_000_000;
        world.policy().bind("bob", &lost);
        call(&mut world, 1);
        assert_eq!(world.policy().pushes.len(), 1);
        world.registered("bob", &phone);
        world.run_until(18_000);
        assert_eq!(finals(&world), ["200 INVITE"], "{transport:?}");
        world.in_dialog(UAC, "BYE");
        world.nothing_is_left();
    }
}

#[test]
fn a_phone_gets_one_copy_whatever_contacts_it_has() {
    // Two contacts that sleep are one phone.
    let (old, new) = (mobile(UAS, "t1"), mobile(UAS + 1, "t1"));
    let mut asleep = world(&[old.clone(), new.clone()]);
    call(&mut asleep, 1);
    assert_eq!(asleep.policy().pushes.len(), 1);
    // One REGISTER refreshes both.
    let at = asleep.now().mono.0;
    asleep.policy().bindings.clear();
    let refreshed = Contact {
        updated: at,
        ..old.clone()
    };
    asleep.policy().bind("bob", &refreshed);
    asleep.registered("bob", &new);
    asleep.run_until(4_000);
    let invites = |world: &World, node| {
        let heard = world.heard(node).into_iter();
        heard.filter(|it| *it == "INVITE").count()
    };
    assert_eq!(invites(&asleep, UAS) + invites(&asleep, UAS + 1), 1);
    asleep.in_dialog(UAC, "BYE");
    asleep.nothing_is_left();
    // One contact is awake: the other one is not woken, by token or by instance.
    for (prid, instance) in [("t1", ""), ("t2", "urn:uuid:1")] {
        let mut phones = [mobile(UAS, "t1"), mobile(UAS + 1, prid)];
        for phone in &mut phones {
            phone.instance = instance.to_owned();
        }
        let [old, new] = phones;
        let mut world = world(std::slice::from_ref(&old));
        world.run_until(20_000);
        world.registered("bob", &new);
        call(&mut world, 1);
        assert!(world.policy().pushes.is_empty(), "{prid}");
        assert_eq!(finals(&world), ["200 INVITE"]);
        assert_eq!(invites(&world, UAS), 0);
        world.in_dialog(UAC, "BYE");
        world.nothing_is_left();
    }
}

#[test]
fn a_contact_with_another_push_service_is_awake() {
    let mut phone = mobile(UAS, "t1");
    phone.uri = phone.uri.replace("fcm", "acme");
    let mut world = world(&[phone]);
    call(&mut world, 1);
    assert_eq!(finals(&world), ["200 INVITE"]);
    assert!(world.policy().pushes.is_empty());
    world.in_dialog(UAC, "BYE");
    world.nothing_is_left();
}

#[test]
fn a_woken_contact_must_be_one_that_the_uri_means_rfc5627_5_1_rfc5630_5_2() {
    // Another instance with the token gets no call for this one.
    let mut phone = mobile(UAS, "t1");
    phone.instance = "urn:uuid:1".to_owned();
    let mut asleep = world(std::slice::from_ref(&phone));
    let uri = "sip:bob@example.com;gr=urn:uuid:1";
    let text = request("INVITE", uri, 1, ALICE);
    asleep.send(UAC, Transport::Udp, &text);
    asleep.run_until(1_000);
    assert_eq!(asleep.policy().pushes.len(), 1);
    asleep.policy().bindings.clear();
    let mut other = phone.clone();
    other.instance = "urn:uuid:2".to_owned();
    asleep.registered("bob", &other);
    asleep.run_until(30_000);
    assert!(asleep.heard(UAS).is_empty());
    assert_eq!(finals(&asleep), ["480 INVITE"]);
    asleep.nothing_is_left();
    // A SIPS call leads to SIPS contacts alone: the phone is not woken for its other contact.
    let mut world = world(&[mobile(UAS, "t1")]);
    let text = request("INVITE", "sips:bob@example.com", 1, ALICE);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(1_000);
    assert!(world.policy().pushes.is_empty());
    assert_eq!(finals(&world), ["480 INVITE"]);
    world.nothing_is_left();
}
