//! GRUUs (RFC 5627 §5).

use sip_server::location::{Limits, Location};
use sip_server::registrar::Config;

use crate::world::{World, request_to};

const UUID: &str = "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

fn contact(uri: &str) -> String {
    format!("Contact: <{uri}>;+sip.instance=\"<{UUID}>\"\nSupported: gruu")
}

/// Whether a temporary GRUU leads to somebody.
fn leads(world: &mut World, temp: &str) -> bool {
    let user = temp
        .strip_prefix("sip:")
        .unwrap()
        .split('@')
        .next()
        .unwrap();
    let number = world.registrar.read_temp_gruu(user.as_bytes());
    let (key, gruu) = number.unwrap();
    world.location.find_gruu(key, gruu).is_some()
}

fn temp(world: &mut World, call_id: &str, cseq: u32, lines: &str) -> String {
    let reply = world.register(call_id, cseq, lines);
    let (_, uri) = lines.split_once("Contact: ").unwrap();
    let uri = uri.split('>').next().unwrap();
    let mut contacts = reply.contacts().into_iter();
    let place = contacts.position(|contact| contact.starts_with(uri));
    reply.param(place.unwrap(), "temp-gruu").unwrap().to_owned()
}

#[test]
fn a_public_gruu_is_the_address_with_the_instance_rfc5627_5_1() {
    let mut world = World::new();
    let reply = world.register("a", 1, &contact("sip:alice@192.168.1.2"));
    let public = format!("sip:alice@example.com;gr={UUID}");
    assert_eq!(reply.param(0, "pub-gruu"), Some(&public[..]));
    // It stays, whatever the call and the contact.
    let reply = world.register("b", 1, &contact("sip:alice@192.168.1.3"));
    assert_eq!(reply.param(0, "pub-gruu"), Some(&public[..]));
    assert_eq!(reply.param(1, "pub-gruu"), Some(&public[..]));
    // RFC 5630 §5.2.1: a SIPS contact has SIPS GRUUs.
    let lines = contact("sips:alice@192.168.1.2");
    let text = request_to(
        "sips:example.com",
        "sip:%61lic%65%20@example.com",
        "c",
        1,
        &lines,
    );
    let reply = world.send(&text);
    let public = format!("sips:alice%20@example.com;gr={UUID}");
    assert_eq!(reply.param(0, "pub-gruu"), Some(&public[..]));
    assert!(
        reply
            .param(0, "temp-gruu")
            .unwrap()
            .starts_with("sips:tgruu.")
    );
}

#[test]
fn gruus_are_for_contacts_with_an_instance_and_those_who_support_them_rfc5627_5_2() {
    let mut world = World::new();
    let unsupported = contact("sip:a@h").replace("Supported: gruu", "Supported: path");
    let reply = world.register("a", 1, &unsupported);
    assert_eq!(reply.param(0, "pub-gruu"), None);
    assert_eq!(reply.param(0, "temp-gruu"), None);
    // The instance itself is told to everybody.
    assert_eq!(
        reply.param(0, "+sip.instance"),
        Some(&format!("<{UUID}>")[..])
    );
    let reply = world.register("b", 1, "Contact: <sip:b@h>\nSupported: gruu");
    let gruus: Vec<bool> = (0..2)
        .map(|n| reply.param(n, "pub-gruu").is_some())
        .collect();
    assert_eq!(gruus.iter().filter(|has| **has).count(), 1, "{reply:?}");
    // §5.2: the response has `gruu` in neither Require nor Supported.
    assert!(reply.values("Require").is_empty() && reply.values("Supported").is_empty());
}

#[test]
fn a_user_agent_cannot_bring_gruus_of_its_own_rfc5627_5_1() {
    let mut world = World::new();
    let own = ";pub-gruu=\"sip:mine@h;gr\";temp-gruu=\"sip:mine@h;gr\"\n";
    let lines = contact("sip:a@h").replacen('\n', own, 1);
    let reply = world.register("a", 1, &lines);
    assert_eq!(reply.code, 200);
    assert!(!reply.contacts()[0].contains("mine"));
}

#[test]
fn each_refresh_brings_a_new_temporary_gruu_and_the_old_ones_stay_rfc5627_5_1() {
    let mut world = World::new();
    let first = temp(&mut world, "a", 1, &contact("sip:a@h"));
    world.pass(60);
    let second = temp(&mut world, "a", 2, &contact("sip:a@h"));
    assert_ne!(first, second);
    assert!(first.ends_with("@example.com;gr"));
    assert!(leads(&mut world, &first) && leads(&mut world, &second));
}

#[test]
fn another_call_ends_all_temporary_gruus_of_the_instance_rfc5627_5_1() {
    let mut world = World::new();
    let first = temp(&mut world, "a", 1, &contact("sip:a@h"));
    let other = contact("sip:b@h").replace("6bf6", "6bf7");
    let of_other = temp(&mut world, "o", 1, &other);
    world.pass(1);
    let second = temp(&mut world, "b", 1, &contact("sip:a@h"));
    assert!(!leads(&mut world, &first));
    assert!(leads(&mut world, &second));
    assert!(leads(&mut world, &of_other), "another instance's stay");
}

#[test]
fn a_second_flow_with_a_call_of_its_own_ends_no_gruu_and_a_new_call_of_a_flow_all_rfc5627_5_1() {
    let mut world = World::new();
    let flow = |reg_id| contact("sip:a@h").replace(">;", &format!(">;reg-id={reg_id};"));
    let first = temp(&mut world, "a", 1, &flow(1));
    let second = temp(&mut world, "b", 1, &flow(2));
    assert!(leads(&mut world, &first) && leads(&mut world, &second));
    world.pass(1);
    let third = temp(&mut world, "c", 1, &flow(1));
    assert!(!leads(&mut world, &first) && !leads(&mut world, &second));
    assert!(leads(&mut world, &third));
    let numbers: Vec<u64> = world
        .bindings()
        .iter()
        .map(|binding| binding.gruu())
        .collect();
    assert_eq!(numbers.len(), 2);
    assert_eq!(numbers[0], numbers[1], "both flows are of one instance");
}

#[test]
fn temporary_gruus_end_with_the_last_contact_of_the_instance_rfc5627_5_3() {
    let mut world = World::new();
    let first = temp(&mut world, "a", 1, &contact("sip:a@h"));
    let second = temp(&mut world, "a", 2, &contact("sip:b@h"));
    world.register("a", 3, "Contact: <sip:a@h>;expires=0");
    assert!(leads(&mut world, &first) && leads(&mut world, &second));
    world.register("a", 4, "Contact: *\nExpires: 0");
    assert!(!leads(&mut world, &first) && !leads(&mut world, &second));
    let third = temp(&mut world, "a", 5, &contact("sip:a@h"));
    assert!(leads(&mut world, &third) && !leads(&mut world, &first));
    // A contact that times out ends as well.
    world.pass(7200);
    while world.location.expire(world.now.mono).is_some() {}
    assert!(!leads(&mut world, &third));
}

#[test]
fn gruus_of_other_addresses_or_instances_are_different_uris_rfc5627_5_4() {
    let mut world = World::new();
    let (one, other) = (
        contact("sip:a@h"),
        contact("sip:b@h").replace("6bf6", "6bf7"),
    );
    world.register("a", 1, &one);
    let alice = world.register("b", 1, &other);
    let bob = request_to("sip:example.com", "sip:bob@example.com", "c", 1, &one);
    let bob = world.send(&bob);
    // RFC 2141 §5: an instance in upper case is the same one.
    let upper = request_to(
        "sip:example.com",
        "sip:bob@example.com",
        "c",
        2,
        &one.replace(UUID, &UUID.to_ascii_uppercase()),
    );
    let upper = world.send(&upper);
    let mut all = Vec::new();
    for (user, reply) in [("alice", &alice), ("bob", &bob), ("bob", &upper)] {
        for place in 0..reply.contacts().len() {
            let instance = reply.param(place, "+sip.instance").unwrap();
            let owner = (user, instance.to_ascii_lowercase());
            for name in ["pub-gruu", "temp-gruu"] {
                all.push((owner.clone(), reply.param(place, name).unwrap()));
            }
        }
    }
    assert_eq!(all.len(), 8, "{all:?}");
    for (owner, uri) in &all {
        for (other_owner, other) in &all {
            let (uri, other) = (uri.as_bytes(), other.as_bytes());
            let are_equal = sip::Uri::parse(uri).unwrap() == sip::Uri::parse(other).unwrap();
            assert!(owner == other_owner || !are_equal, "{all:?}");
        }
    }
    let public: Vec<_> = all.iter().filter(|(_, uri)| uri.contains("gr=")).collect();
    let public_of_bob = public.iter().filter(|((user, _), _)| *user == "bob");
    let of_bob: Vec<_> = public_of_bob
        .map(|(_, uri)| sip::Uri::parse(uri.as_bytes()).unwrap())
        .collect();
    assert!(of_bob.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_temporary_gruu_is_no_address_of_record_rfc5627_5_4() {
    let mut world = World::new();
    let own = temp(&mut world, "a", 1, &contact("sip:a@h"));
    let escaped = own.replacen("tgruu.", "%74gruu%2E", 1);
    for to in [&own, &escaped] {
        let text = request_to("sip:example.com", to, "b", 1, "Contact: <sip:b@h>");
        assert_eq!(world.send(&text).code, 404, "{to}");
    }
    // A user part that only begins like one.
    let to = "sip:tgruu.mallory@example.com";
    let text = request_to("sip:example.com", to, "b", 1, "Contact: <sip:b@h>");
    assert_eq!(world.send(&text).code, 200);
}

#[test]
fn looping_and_non_sip_contacts_get_403_rfc5627_5_1() {
    let mut world = World::new();
    let own = temp(&mut world, "a", 1, &contact("sip:a@h"));
    let bob = |lines: &str| request_to("sip:example.com", "sip:bob@example.com", "b", 1, lines);
    let escaped = own.replacen("tgruu.", "tgruu%2E", 1);
    let public = format!("sip:alice@example.com;gr={UUID}");
    for uri in [
        &own[..],
        &escaped,
        &public,
        "tel:+15551234",
        "mailto:alice@example.com",
    ] {
        assert_eq!(world.register("a", 2, &contact(uri)).code, 403, "{uri}");
    }
    // Of another address a GRUU is a contact like any other.
    assert_eq!(world.send(&bob(&contact(&own))).code, 200);
    assert_eq!(world.bindings().len(), 1);
}

#[test]
fn all_contacts_of_an_instance_have_one_temporary_gruu_in_an_answer_rfc5627_5_2() {
    let mut world = World::with(Config::default(), Limits::default());
    world.register("a", 1, &contact("sip:a@h"));
    let other = contact("sip:o@h").replace("6bf6", "6bf7");
    world.register("o", 1, &other);
    let reply = world.register("a", 2, &contact("sip:b@h"));
    let mut gruus: Vec<&str> = (0..3)
        .map(|n| reply.param(n, "temp-gruu").unwrap())
        .collect();
    gruus.sort_unstable();
    gruus.dedup();
    assert_eq!(gruus.len(), 2, "{reply:?}");
}
