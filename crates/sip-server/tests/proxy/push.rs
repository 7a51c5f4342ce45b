//! Phones that sleep are woken for a call (RFC 8599 §5.3.2).

use std::time::Duration;

use sip::flow::Carrier;
use sip_server::proxy::PushConfig;
use sip_server::routes::{Forward, Forwards};

use crate::node::{ALICE, UAC, UAS, address, answers, request};
use crate::policy::Contact;
use crate::world::World;

const CONFIG: PushConfig = PushConfig {
    wait: Duration::from_secs(20),
    awake: Duration::from_secs(10),
    most: 2,
};

/// A phone of bob that can be woken by this token, at a node.
fn mobile(node: usize, prid: &str) -> Contact {
    let at = address(node);
    let uri = format!("sip:bob@{at};pn-provider=fcm;pn-prid={prid};pn-param=p");
    Contact {
        flow: Some(World::datagrams_of(node)),
        ..Contact::at(&uri)
    }
}

/// Bob has these phones, all of which registered long ago.
fn world(contacts: &[Contact]) -> World {
    let mut world = World::new();
    world.policy().push = Some(CONFIG);
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
    let key = world.send(UAC, Carrier::Udp, &text);
    let until = world.ms() + 1_000;
    world.run_until(until);
    key
}

fn finals(world: &World) -> Vec<&str> {
    let heard = world.heard(UAC).into_iter();
    heard.filter(|what| !what.starts_with('1')).collect()
}

#[test]
fn an_invite_waits_until_the_phone_has_registered_rfc8599_5_3_2() {
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
fn a_phone_that_does_not_register_is_480_and_a_cancel_does_not_wait_rfc8599_5_3_2() {
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
    world.send(UAC, Carrier::Udp, &text);
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
