//! Push services of phones (RFC 8599 §5.6.1).

use sip_server::location::Limits;
use sip_server::registrar::Config;

use crate::world::World;

fn world(providers: &[&str]) -> World {
    let config = Config {
        push_providers: providers.iter().map(|it| (*it).to_owned()).collect(),
        ..Config::default()
    };
    World::with(config, Limits::default())
}

const FCM: &str = "*;+sip.pns=\"fcm\"";
const APNS: &str = "*;+sip.pns=\"apns\"";

#[test]
fn a_200_names_the_push_service_of_the_phone_rfc8599_8_2() {
    let mut world = world(&["apns", "fcm"]);
    let contact = "Contact: <sip:alice@192.0.2.9;pn-provider=FCM;pn-prid=t>";
    let reply = world.register("a", 1, contact);
    assert_eq!(reply.code, 200);
    assert_eq!(reply.values("Feature-Caps"), [FCM]);
    assert_eq!(reply.contacts().len(), 1);
    // Other phones are told nothing, and neither is one that goes.
    let reply = world.register("b", 1, "Contact: <sip:alice@192.0.2.10>");
    assert_eq!((reply.code, reply.values("Feature-Caps").len()), (200, 0));
    let reply = world.register("a", 2, &format!("{contact};expires=0"));
    assert_eq!((reply.code, reply.values("Feature-Caps").len()), (200, 0));
}

#[test]
fn a_push_service_that_is_not_supported_is_555_and_binds_nothing_rfc8599_8_1() {
    let mut world = world(&["apns", "fcm"]);
    let reply = world.register(
        "a",
        1,
        "Contact: <sip:alice@192.0.2.9;pn-provider=acme;pn-prid=t>",
    );
    assert_eq!(
        (reply.code, reply.reason),
        (555, "Push Notification Service Not Supported")
    );
    assert_eq!(reply.values("Feature-Caps"), [APNS, FCM]);
    assert!(world.bindings().is_empty());
}

#[test]
fn a_phone_may_ask_for_the_push_services_rfc8599_8_2() {
    let mut world = world(&["apns", "fcm"]);
    let reply = world.register("a", 1, "Contact: <sip:alice@192.0.2.9;pn-provider>");
    assert_eq!(reply.code, 200);
    assert_eq!(reply.values("Feature-Caps"), [APNS, FCM]);
}

#[test]
fn without_push_services_the_parameters_mean_nothing() {
    let mut world = world(&[]);
    let contact = "Contact: <sip:alice@192.0.2.9;pn-provider=acme;pn-prid=t>";
    let reply = world.register("a", 1, contact);
    assert_eq!((reply.code, reply.values("Feature-Caps").len()), (200, 0));
    assert_eq!(world.bindings().len(), 1);
}

#[test]
fn a_phone_that_refreshes_by_itself_is_told_when_rfc8599_5_6_1_1() {
    let mut world = world(&["apns", "fcm"]);
    let contact = "Contact: <sip:alice@192.0.2.9;pn-provider=fcm;pn-prid=t>;+sip.pnsreg";
    let reply = world.register("a", 1, contact);
    let with_time = "*;+sip.pns=\"fcm\";+sip.pnsreg=\"130\"";
    assert_eq!(reply.values("Feature-Caps"), [with_time]);
    // RFC 8599 §4.1.4: the contact in the response has the tag.
    assert!(reply.contacts()[0].contains(";+sip.pnsreg"));
    // It is a parameter of the contact, not of the URI, and means nothing without a token.
    for (cseq, other) in [
        (
            1,
            "<sip:alice@192.0.2.8;pn-provider=fcm;pn-prid=t;+sip.pnsreg>",
        ),
        (2, "<sip:alice@192.0.2.8;pn-provider=fcm>;+sip.pnsreg"),
    ] {
        let reply = world.register("b", cseq, &format!("Contact: {other}"));
        assert_eq!(reply.values("Feature-Caps"), [FCM], "{other}");
    }
}

#[test]
fn a_binding_that_ends_before_a_notification_is_promised_nothing_rfc8599_5_6_1_1() {
    let mut world = world(&["fcm"]);
    let contact = "Contact: <sip:alice@192.0.2.9;pn-provider=fcm;pn-prid=t>;+sip.pnsreg";
    for (cseq, expires, count) in [(1, 130, 0), (2, 131, 1)] {
        let reply = world.register("a", cseq, &format!("{contact};expires={expires}"));
        assert_eq!(reply.code, 200);
        assert_eq!(reply.values("Feature-Caps").len(), count, "{expires}");
    }
    // Who asks which services there are is told so in any case.
    let asks = "Contact: <sip:alice@192.0.2.9;pn-provider>;expires=60";
    let reply = world.register("c", 1, asks);
    assert_eq!(reply.values("Feature-Caps"), [FCM]);
}

#[test]
fn contacts_of_several_push_services_are_promised_each_its_own_rfc8599_8_2_rfc6809_4() {
    let mut world = world(&["apns", "fcm"]);
    let fcm = "<sip:alice@192.0.2.9;pn-provider=fcm;pn-prid=t>";
    let apns = "<sip:alice@192.0.2.9;pn-provider=apns;pn-prid=u>;+sip.pnsreg";
    let asks = "<sip:alice@192.0.2.9;pn-provider>";
    let short = "<sip:alice@192.0.2.9;pn-provider=fcm;pn-prid=t>;+sip.pnsreg;expires=100";
    let timed = "*;+sip.pns=\"apns\";+sip.pnsreg=\"130\"";
    for (cseq, contacts, wanted) in [
        // The phone that refreshes by itself is the one of the other service.
        (1, vec![fcm, apns], vec![FCM, timed]),
        (2, vec![apns, fcm], vec![timed, FCM]),
        // One that asks for all services takes nothing from the others, and adds nothing to them.
        (3, vec![apns, asks], vec![timed, FCM]),
        (4, vec![asks, fcm], vec![FCM, APNS]),
        // A service whose binding is too short is not named for another contact's sake.
        (5, vec![short, apns], vec![timed]),
        (6, vec![fcm, fcm], vec![FCM]),
    ] {
        let reply = world.register("a", cseq, &format!("Contact: {}", contacts.join(", ")));
        assert_eq!(reply.values("Feature-Caps"), wanted, "{contacts:?}");
    }
}
