//! RFC 3261 §10.3, in its order.

use sip_server::location::Limits;
use sip_server::registrar::{Access, Config, ConfigError};

use crate::world::{World, request, request_to};

const PHONE: &str = "Contact: <sip:alice@198.51.100.1:5060>";

#[test]
fn step_1_a_request_for_another_domain_is_not_the_registrars_rfc3261_10_3() {
    let mut world = World::new();
    for uri in [
        "sip:example.net",
        "sip:sub.example.com",
        "tel:+1",
        "sip:192.0.2.2",
    ] {
        let reply = world.send(&request_to(uri, "sip:alice@example.com", "a", 1, PHONE));
        assert_eq!(reply.reason, "foreign", "{uri}");
    }
    for (call_id, uri) in [
        ("a", "sip:example.com"),
        ("b", "sip:EXAMPLE.org:5080;transport=tcp"),
        ("c", "sips:192.0.2.1"),
    ] {
        let reply = world.send(&request_to(uri, "sip:alice@example.com", call_id, 1, PHONE));
        assert_eq!(reply.code, 200, "{uri}");
    }
}

#[test]
fn step_2_an_unknown_extension_in_require_gets_420_rfc3261_10_3() {
    let mut world = World::new();
    let reply = world.register(
        "a",
        1,
        &format!("Require: path, foo\nRequire: Bar\n{PHONE}"),
    );
    assert_eq!(
        (reply.code, reply.values("Unsupported")),
        (420, vec!["foo, Bar"])
    );
    assert!(world.bindings().is_empty());
    let reply = world.register("a", 2, &format!("Require: Path, outbound, gruu\n{PHONE}"));
    assert_eq!(reply.code, 200);
}

#[test]
fn step_4_who_may_not_register_gets_403_before_the_address_is_looked_at_rfc3261_10_3() {
    let mut world = World::new();
    world.access = Access::Forbidden;
    assert_eq!(world.register("a", 1, PHONE).code, 403);
    let nobody = request_to("sip:example.com", "sip:a@elsewhere.example", "a", 2, PHONE);
    assert_eq!(world.send(&nobody).code, 403);
    assert!(world.location.is_empty());
}

#[test]
fn step_5_an_address_that_is_not_of_the_domain_gets_404_rfc3261_10_3() {
    let mut world = World::new();
    for to in ["sip:alice@elsewhere.example", "sip:alice@other.example"] {
        let reply = world.send(&request_to("sip:example.com", to, "a", 1, PHONE));
        assert_eq!(reply.code, 404, "{to}");
    }
    world.access = Access::NoSuchUser;
    assert_eq!(world.register("a", 1, PHONE).code, 404);
    assert!(world.location.is_empty());
}

#[test]
fn step_5_spellings_of_an_address_share_their_bindings_rfc3261_10_3() {
    let mut world = World::new();
    let spellings = [
        "sip:alice@example.com",
        "sip:%61lice@EXAMPLE.COM;user=phone",
        "sips:alice@example.org:5061",
    ];
    for (number, to) in spellings.into_iter().enumerate() {
        let contact = format!("Contact: <sip:phone{number}@198.51.100.1>");
        let reply = world.send(&request_to("sip:example.com", to, "a", 1, &contact));
        assert_eq!(reply.contacts().len(), number + 1, "{to}");
    }
    let other = request_to("sip:example.com", "sip:Alice@example.com", "a", 1, "");
    assert!(world.send(&other).contacts().is_empty());
}

#[test]
fn step_6_a_request_without_contact_asks_for_the_bindings_rfc3261_10_2_3() {
    let mut world = World::new();
    assert!(world.register("a", 1, "").contacts().is_empty());
    world.register("a", 2, PHONE);
    world.pass(10);
    let reply = world.register("a", 1, "Expires: 0");
    assert_eq!(
        reply.contacts(),
        ["<sip:alice@198.51.100.1:5060>;expires=3590"]
    );
    // Asking changes nothing, whatever its CSeq.
    assert_eq!(world.bindings()[0].cseq(), 2);
}

#[test]
fn step_6_a_star_goes_alone_and_with_expires_0_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 1, PHONE);
    for lines in [
        "Contact: *",
        "Contact: *\nExpires: 1",
        "Contact: *, <sip:b@198.51.100.1>\nExpires: 0",
        "Contact: *\nContact: *\nExpires: 0",
        "Contact: *\nExpires: none",
    ] {
        assert_eq!(world.register("a", 2, lines).code, 400, "{lines}");
    }
    assert_eq!(world.bindings().len(), 1);
}

#[test]
fn step_6_a_star_removes_all_bindings_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 5, PHONE);
    world.register("b", 1, "Contact: <sip:alice@198.51.100.2>");
    let reply = world.register("a", 6, "Contact: *\nExpires: 0");
    assert!(reply.contacts().is_empty());
    assert!(world.location.is_empty());
    // Where there is nothing to remove, that is no error.
    assert_eq!(world.register("a", 7, "Contact: *\nExpires: 0").code, 200);
}

#[test]
fn step_6_a_star_that_is_older_than_a_binding_removes_none_rfc3261_10_3() {
    let mut world = World::new();
    world.register("b", 1, "Contact: <sip:alice@198.51.100.2>");
    world.register("a", 5, PHONE);
    for cseq in [4, 5] {
        let reply = world.register("a", cseq, "Contact: *\nExpires: 0");
        assert_eq!(reply.code, 500);
        assert_eq!(world.bindings().len(), 2);
    }
}

#[test]
fn step_7_the_parameter_counts_before_the_header_and_the_default_comes_last_rfc3261_10_3() {
    for (lines, seconds) in [
        ("Contact: <sip:a@h>;expires=120\nExpires: 600", 120),
        ("Contact: <sip:a@h>\nExpires: 600", 600),
        ("Contact: <sip:a@h>", 3600),
        // §10.2.1.1: what is malformed counts as an hour, wherever it is.
        ("Contact: <sip:a@h>;expires=soon\nExpires: 600", 3600),
        ("Contact: <sip:a@h>;expires\nExpires: 600", 3600),
        ("Contact: <sip:a@h>\nExpires: soon", 3600),
        // A longer time is shortened.
        ("Contact: <sip:a@h>;expires=99999999999", 86_400),
        ("Contact: <sip:a@h>\nExpires: 86401", 86_400),
    ] {
        let reply = World::new().register("a", 1, lines);
        let expected = format!("<sip:a@h>;expires={seconds}");
        assert_eq!(reply.contacts(), [expected], "{lines}");
    }
}

#[test]
fn step_7_too_short_a_time_gets_423_with_min_expires_rfc3261_10_3() {
    let mut world = World::new();
    for lines in [
        "Contact: <sip:a@h>;expires=59",
        "Contact: <sip:a@h>\nExpires: 1",
        "Contact: <sip:b@h>, <sip:a@h>;expires=1",
    ] {
        let reply = world.register("a", 1, lines);
        assert_eq!((reply.code, reply.values("Min-Expires")), (423, vec!["60"]));
        assert!(world.location.is_empty());
    }
    assert_eq!(
        world.register("a", 1, "Contact: <sip:a@h>;expires=60").code,
        200
    );
    assert_eq!(
        world.register("a", 2, "Contact: <sip:a@h>;expires=0").code,
        200
    );
}

#[test]
fn an_hour_is_never_refused_and_times_must_be_in_order_rfc3261_10_3() {
    let config = |min, default, max| Config {
        min_expires: min,
        default_expires: default,
        max_expires: max,
        ..Config::default()
    };
    for (config, error) in [
        (config(3600, 3600, 3600), None),
        (config(3601, 7200, 9000), Some(ConfigError::MinAboveHour)),
        (config(60, 30, 90), Some(ConfigError::DefaultOutside)),
        (config(60, 91, 90), Some(ConfigError::DefaultOutside)),
    ] {
        assert_eq!(config.validate().err(), error, "{config:?}");
    }
    let mut world = World::with(config(3600, 3600, 3600), Limits::default());
    assert_eq!(
        world
            .register("a", 1, "Contact: <sip:a@h>;expires=3600")
            .code,
        200
    );
    assert_eq!(
        world
            .register("b", 1, "Contact: <sip:a@h>;expires=3599")
            .code,
        423
    );
}

#[test]
fn step_7_a_contact_is_found_by_the_comparison_of_uris_rfc3261_19_1_4() {
    let mut world = World::new();
    world.register("a", 1, "Contact: <sip:alice@Host.example;transport=TCP>");
    let same = "Contact: \"Alice\" <sip:%61lice@hOST.example;transport=tcp;x=1>;expires=100";
    let reply = world.register("a", 2, same);
    assert_eq!(
        reply.contacts(),
        ["<sip:%61lice@hOST.example;transport=tcp;x=1>;expires=100"]
    );
    let other = "Contact: <sip:alice@host.example>";
    assert_eq!(world.register("a", 3, other).contacts().len(), 2);
}

#[test]
fn step_7_a_request_that_is_not_newer_fails_as_a_whole_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 10, PHONE);
    let before = world.bindings();
    for cseq in [10, 9, 1] {
        let lines = format!("Contact: <sip:other@198.51.100.9>\n{PHONE};expires=0");
        assert_eq!(world.register("a", cseq, &lines).code, 500);
        let lines = format!("{PHONE};expires=77, <sip:other@198.51.100.9>");
        assert_eq!(world.register("a", cseq, &lines).code, 500);
        assert_eq!(world.bindings(), before);
    }
    assert_eq!(
        world.register("a", 11, &format!("{PHONE};expires=0")).code,
        200
    );
    assert!(world.location.is_empty());
}

#[test]
fn step_7_a_request_of_another_call_is_always_newer_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 10, PHONE);
    let reply = world.register("b", 1, &format!("{PHONE};expires=100"));
    assert_eq!(
        reply.contacts(),
        ["<sip:alice@198.51.100.1:5060>;expires=100"]
    );
    let binding = &world.bindings()[0];
    assert_eq!((binding.call_id(), binding.cseq()), (&b"b"[..], 1));
    // What the new call has made is not changed by an older request of it, and the old call counts as another one.
    assert_eq!(world.register("b", 1, PHONE).code, 500);
    assert_eq!(world.register("a", 2, PHONE).code, 200);
}

#[test]
fn step_7_sequence_numbers_compare_up_to_the_last_rfc3261_10_3() {
    let mut world = World::new();
    assert_eq!(world.register("a", u32::MAX - 1, PHONE).code, 200);
    assert_eq!(world.register("a", u32::MAX, PHONE).code, 200);
    assert_eq!(world.register("a", 0, PHONE).code, 500);
}

#[test]
fn step_7_one_request_adds_refreshes_and_removes_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 1, "Contact: <sip:1@h>, <sip:2@h>\nContact: <sip:3@h>");
    world.pass(100);
    let lines =
        "Contact: <sip:1@h>;expires=0, <sip:4@h>, <sip:2@h>;expires=60, <sip:9@h>;expires=0";
    let reply = world.register("a", 2, lines);
    let mut contacts = reply.contacts();
    contacts.sort_unstable();
    assert_eq!(
        contacts,
        [
            "<sip:2@h>;expires=60",
            "<sip:3@h>;expires=3500",
            "<sip:4@h>;expires=3600"
        ]
    );
}

#[test]
fn step_7_of_a_contact_that_comes_twice_the_later_one_counts_rfc3261_10_3() {
    let mut world = World::new();
    let reply = world.register(
        "a",
        1,
        "Contact: <sip:1@h>;expires=60, <sip:1@H>;expires=90",
    );
    assert_eq!(reply.contacts(), ["<sip:1@H>;expires=90"]);
    let reply = world.register("a", 2, "Contact: <sip:1@h>;expires=0, <sip:1@h>;expires=70");
    assert_eq!(reply.contacts(), ["<sip:1@h>;expires=70"]);
    let reply = world.register("a", 3, "Contact: <sip:1@h>, <sip:1@h>;expires=0");
    assert!(reply.contacts().is_empty());
}

#[test]
fn step_7_a_user_has_so_many_bindings_and_the_rest_is_refused_whole_rfc3261_10_3() {
    let limits = Limits {
        per_user: 2,
        total: 3,
    };
    let mut world = World::with(Config::default(), limits);
    world.register("a", 1, "Contact: <sip:1@h>");
    let reply = world.register(
        "a",
        2,
        "Contact: <sip:1@h>;expires=60, <sip:2@h>, <sip:3@h>",
    );
    assert_eq!(reply.code, 403);
    assert_eq!(
        world.register("a", 3, "").contacts(),
        ["<sip:1@h>;expires=3600"]
    );
    // In the place of one that is removed another one may come.
    world.register("a", 3, "Contact: <sip:2@h>");
    let reply = world.register("a", 4, "Contact: <sip:1@h>;expires=0, <sip:3@h>");
    assert_eq!(reply.contacts().len(), 2);
    // For everybody together there is a limit, too.
    let bob = |lines| request_to("sip:example.com", "sip:bob@example.com", "b", 1, lines);
    assert_eq!(world.send(&bob("Contact: <sip:1@h>, <sip:2@h>")).code, 503);
    assert_eq!(world.send(&bob("Contact: <sip:1@h>")).code, 200);
    let reply = world.register("a", 5, "Contact: <sip:3@h>");
    assert_eq!(reply.code, 200, "a refresh needs no room");
}

#[test]
fn step_7_what_has_ended_makes_room_and_is_not_there_rfc3261_10_3() {
    let limits = Limits {
        per_user: 1,
        total: 1,
    };
    let mut world = World::with(Config::default(), limits);
    world.register("a", 5, "Contact: <sip:1@h>;expires=60");
    world.pass(59);
    assert_eq!(
        world.register("a", 1, "").contacts(),
        ["<sip:1@h>;expires=1"]
    );
    world.pass(1);
    // No timer has fired yet, and the binding has ended all the same: even its Call-ID and CSeq count no more.
    assert!(world.register("a", 1, "").contacts().is_empty());
    let reply = world.register("a", 1, "Contact: <sip:1@h>;expires=60");
    assert_eq!(reply.contacts(), ["<sip:1@h>;expires=60"]);
    assert_eq!(world.location.len(), 1);
}

#[test]
fn step_8_every_binding_is_listed_with_its_parameters_the_preferred_first_rfc3261_10_3() {
    let mut world = World::new();
    world.register("a", 1, "Contact: <sip:1@h>;q=0.5;audio;x=\"a, b\"");
    world.pass(1);
    world.register("a", 2, "Contact: <sip:2@h>;Expires=60;q=0.750");
    world.pass(1);
    world.register("a", 3, "Contact: <sip:3@h>;q=0.5");
    let reply = world.register("a", 4, "Contact: <mailto:alice@example.com>;q=huge");
    assert_eq!(
        reply.contacts(),
        [
            "<mailto:alice@example.com>;expires=3600",
            "<sip:2@h>;q=0.75;expires=59",
            "<sip:3@h>;q=0.5;expires=3600",
            "<sip:1@h>;q=0.5;expires=3598;audio;x=\"a, b\"",
        ]
    );
    assert_eq!(reply.values("Date"), ["Fri, 13 Nov 2026 12:00:02 GMT"]);
}

#[test]
fn step_8_a_fold_within_a_parameter_is_a_space_in_the_answer_rfc3261_7_3_1() {
    let mut world = World::new();
    let text = request("a", 1, PHONE).replace(PHONE, &format!("{PHONE};x=\"a\r\n b\""));
    let reply = world.send(&text);
    assert_eq!(
        reply.contacts(),
        ["<sip:alice@198.51.100.1:5060>;expires=3600;x=\"a   b\""]
    );
}

#[test]
fn record_route_has_no_effect_rfc3261_10_3() {
    let mut world = World::new();
    let reply = world.register(
        "a",
        1,
        &format!("Record-Route: <sip:p.example;lr>\n{PHONE}"),
    );
    assert_eq!(reply.code, 200);
    assert!(reply.values("Record-Route").is_empty());
    assert!(world.bindings()[0].path().is_empty());
}

#[test]
fn a_contact_that_leads_back_to_the_address_gets_403_rfc5627_5_1() {
    let mut world = World::new();
    for contact in [
        "sip:alice@example.com",
        "sips:%61lice@EXAMPLE.org;transport=tls",
        "sip:alice@example.com;gr=urn:uuid:1",
    ] {
        let reply = world.register("a", 1, &format!("Contact: <{contact}>"));
        assert_eq!(reply.code, 403, "{contact}");
    }
    // Another user, and a phone on the very host that the domain is named after.
    for contact in ["sip:bob@example.com", "sip:alice@192.0.2.1:5070"] {
        let reply = world.register("a", 1, &format!("Contact: <{contact}>"));
        assert_eq!(reply.code, 200, "{contact}");
    }
    assert!(world.bindings().len() == 2);
}

#[test]
fn texts_have_limits_and_what_is_longer_is_refused() {
    let mut world = World::new();
    let long = "x".repeat(1100);
    for lines in [
        format!("Contact: <sip:{long}@h>"),
        format!("Contact: <sip:a@h>;x={long}"),
        format!("Contact: <sip:a@h>\nSupported: path\nPath: <sip:{long}@p;lr>"),
    ] {
        assert_eq!(world.register("a", 1, &lines).code, 400);
    }
    assert_eq!(world.register(&"x".repeat(256), 1, PHONE).code, 400);
    let many: String = (0..33).map(|n| format!("Contact: <sip:{n}@h>\n")).collect();
    assert_eq!(world.register("a", 1, &many).code, 400);
    assert!(world.location.is_empty());
}

#[test]
fn an_answer_without_room_changes_nothing() {
    use sip_server::registrar::{Examined, Outcome, Request};
    let mut world = World::new();
    let text = request("a", 1, PHONE);
    let mut spans = sip::Spans::new();
    let message = sip::Message::parse(text.as_bytes(), &mut spans).unwrap();
    let Examined::Aor(aor) = world.registrar.examine(&message, &mut []) else {
        panic!("ours")
    };
    let request = Request {
        message: &message,
        aor,
        flow: world.flow,
        access: Access::Granted,
    };
    for room in [0, 10, 40, 70] {
        let mut buffer = vec![0; room];
        let location = &mut world.location;
        let outcome = world
            .registrar
            .register(world.now, &request, location, &mut buffer);
        assert!(matches!(outcome, Outcome::Response(answer) if answer.code == 500));
        assert!(world.location.is_empty());
    }
}

#[test]
fn no_answer_is_a_6xx_rfc3261_10_3() {
    let contact = "Contact: <sip:alice@192.0.2.1>";
    let lines = [
        String::new(),
        contact.to_owned(),
        "Contact: *\nExpires: 0".to_owned(),
        "Contact: *\nExpires: 5".to_owned(),
        format!("{contact};expires=1"),
        format!("{contact};expires=soon;q=7"),
        "Contact: <sip:alice@example.com>".to_owned(),
        "Contact: <tel:+1>".to_owned(),
        "Contact: <sips:alice@192.0.2.1>".to_owned(),
        format!("{contact}\nRequire: teleport"),
        format!("{contact}\nPath: <sip:p.example;lr>"),
        format!("{contact};reg-id=1;+sip.instance=\"<urn:x>\"\nSupported: outbound"),
        (0..40)
            .map(|n| format!("Contact: <sip:{n}@192.0.2.1>\n"))
            .collect(),
    ];
    let mut world = World::new();
    for (uri, to) in [
        ("sip:example.com", "sip:alice@example.com"),
        ("sip:example.com", "sip:alice@elsewhere.example"),
        ("sip:elsewhere.example", "sip:alice@elsewhere.example"),
        ("sips:example.com", "sips:alice@example.com"),
    ] {
        for (number, lines) in lines.iter().enumerate() {
            let lines = lines.trim_end();
            let reply = world.send(&request_to(uri, to, "a", 1 + number as u32 % 3, lines));
            assert!(reply.code < 600, "{uri} {to} {lines}: {}", reply.code);
        }
    }
}
