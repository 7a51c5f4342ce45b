//! P-Asserted-Identity and Privacy (RFC 3325), and credentials of several proxies (RFC 3261 §22.3).

use sip::flow::Transport;

use crate::node::{ALICE, Script, UAC, UAS, address, request, value, values};
use crate::world::World;

const CLAIM: &str = "P-Asserted-Identity: <sip:ceo@example.com>\r\n";

fn forwarded(world: &mut World, uri: &str, extra: &str) -> String {
    let text = request("MESSAGE", uri, 1, extra);
    world.send(UAC, Transport::Udp, &text);
    world.run_until(500);
    world.last(UAS).to_owned()
}

fn bob() -> World {
    let mut world = World::new();
    world.bind_bob(&[None]);
    world.policy().trunks.clear();
    world
}

#[test]
fn identity_of_an_untrusted_sender_is_replaced_by_the_authenticated_one_rfc3325_5() {
    let mut world = bob();
    let claims = format!("{ALICE}{CLAIM}P-Asserted-Identity: <tel:+4930123>\r\n");
    let got = forwarded(&mut world, "sip:bob@example.com", &claims);
    assert_eq!(
        values(&got, "P-Asserted-Identity"),
        ["<sip:alice@example.com>"]
    );
    assert!(value(&got, "Proxy-Authorization").is_none(), "consumed");
}

#[test]
fn identity_asserted_by_a_trunk_stays() {
    let both = format!("{CLAIM}P-Asserted-Identity: <tel:+4930123>\r\n");
    for (privacy, identities) in [
        ("", &["<sip:ceo@example.com>", "<tel:+4930123>"][..]),
        (
            "Privacy: none\r\n",
            &["<sip:ceo@example.com>", "<tel:+4930123>"],
        ),
        // RFC 3325 §7: all values are removed.
        ("Privacy: id\r\n", &[]),
    ] {
        let mut world = bob();
        world.policy().trunks.insert(address(UAC).ip());
        let got = forwarded(
            &mut world,
            "sip:bob@example.com",
            &format!("{both}{privacy}"),
        );
        assert_eq!(values(&got, "P-Asserted-Identity"), identities, "{privacy}");
    }
}

#[test]
fn a_preferred_identity_is_a_hint_and_is_removed_rfc3325_6() {
    let mut world = bob();
    let prefers = format!("{ALICE}P-Preferred-Identity: \"Al\" <sips:alice@example.com;x=1>\r\n");
    let got = forwarded(&mut world, "sip:bob@example.com", &prefers);
    assert_eq!(
        values(&got, "P-Asserted-Identity"),
        ["<sips:alice@example.com>"]
    );
    assert!(value(&got, "P-Preferred-Identity").is_none());
    let mut world = bob();
    let prefers = format!("{ALICE}P-Preferred-Identity: <sip:ceo@example.com>\r\n");
    let got = forwarded(&mut world, "sip:bob@example.com", &prefers);
    assert_eq!(
        values(&got, "P-Asserted-Identity"),
        ["<sip:alice@example.com>"]
    );
}

#[test]
fn a_private_identity_goes_to_trusted_elements_alone_rfc3325_7() {
    for (privacy, to_phone) in [
        ("Privacy: id\r\n", false),
        ("Privacy: user; id;critical\r\n", false),
        ("Privacy: none\r\n", true),
        ("", true),
    ] {
        let extra = format!("{ALICE}{privacy}");
        let mut world = bob();
        let got = forwarded(&mut world, "sip:bob@example.com", &extra);
        let is_there = value(&got, "P-Asserted-Identity").is_some();
        assert_eq!(is_there, to_phone, "{privacy}");
        // A trunk gets it in any case.
        let mut world = bob();
        world.policy().trunks.insert(address(UAS).ip());
        let uri = format!("sip:x@{}", address(UAS));
        let got = forwarded(&mut world, &uri, &extra);
        assert!(value(&got, "P-Asserted-Identity").is_some(), "{privacy}");
        assert_eq!(value(&got, "Privacy").is_some(), !privacy.is_empty());
    }
}

#[test]
fn identity_asserted_by_a_phone_in_a_response_is_removed() {
    for is_trunk in [false, true] {
        let mut world = bob();
        if is_trunk {
            world.policy().trunks.insert(address(UAS).ip());
        }
        world.nodes[UAS].script = Script {
            other: vec![(10, 200, CLAIM.to_owned())],
            ..Script::default()
        };
        forwarded(&mut world, "sip:bob@example.com", ALICE);
        let got = world.last(UAC);
        assert_eq!(value(got, "P-Asserted-Identity").is_some(), is_trunk);
    }
}

#[test]
fn credentials_for_other_proxies_go_on_rfc3261_22_3() {
    let mut world = bob();
    let other = "Proxy-Authorization: Digest username=\"a\", realm=\"other\", x=1,y=2";
    let extra = format!("{other}\r\n{ALICE}");
    let got = forwarded(&mut world, "sip:bob@example.com", &extra);
    assert_eq!(
        values(&got, "Proxy-Authorization"),
        [&other["Proxy-Authorization: ".len()..]]
    );
}

#[test]
fn the_asserted_identity_is_the_address_of_record_alone_rfc3325_5() {
    for (from, wanted) in [
        ("sip:alice@example.com", "<sip:alice@example.com>"),
        ("sips:alice@example.com", "<sips:alice@example.com>"),
        (
            "sip:%61lice:secret@EXAMPLE.com:5060;user=phone;x=y?Subject=z",
            "<sip:alice@example.com>",
        ),
    ] {
        let mut world = bob();
        let text = request("MESSAGE", "sip:bob@example.com", 1, ALICE);
        let text = text.replace("From: <sip:alice@example.com>", &format!("From: <{from}>"));
        world.send(UAC, Transport::Udp, &text);
        world.run_until(500);
        assert_eq!(
            values(world.last(UAS), "P-Asserted-Identity"),
            [wanted],
            "{from}"
        );
    }
}
