//! SIPS contacts (RFC 5630 §5.2), and Service-Route (RFC 3608 §6.3).

use sip_server::registrar::{Config, Domains};

use crate::world::{World, domain, request_to};

fn register(world: &mut World, uri: &str, lines: &str) -> u16 {
    world
        .send(&request_to(uri, "sip:alice@example.com", "a", 1, lines))
        .code
}

#[test]
fn a_sips_contact_needs_sips_everywhere_rfc5630_5_2() {
    let path = |scheme| format!("Contact: <sips:a@h>\nSupported: path\nPath: <{scheme}:p;lr>");
    for (uri, lines, code) in [
        ("sip:example.com", "Contact: <sips:a@h>", 400),
        ("sips:example.com", "Contact: <sips:a@h>, <sip:b@h>", 400),
        ("sips:example.com", &path("sip"), 400),
        ("sips:example.com", &path("SIPS"), 200),
        ("sips:example.com", "Contact: <sips:a@h>", 200),
        ("sips:example.com", "Contact: <sip:a@h>", 200),
        ("sip:example.com", "Contact: <sip:a@h>", 200),
    ] {
        let mut world = World::new();
        assert_eq!(register(&mut world, uri, lines), code, "{uri} {lines}");
        assert_eq!(world.location.is_empty(), code != 200);
    }
}

#[test]
fn answers_have_the_service_route_of_the_domain_rfc3608_6_3() {
    let mut world = World::new();
    let mut with_routes = domain("example.com", &[]);
    with_routes.service_route = vec!["<sip:a.example;lr>".into(), "<sip:b.example;lr>".into()];
    let domains = Domains::new(vec![with_routes, domain("other.example", &[])]).unwrap();
    world
        .registrar
        .configure(Config::default(), domains)
        .unwrap();
    // Also where the request only asks for bindings.
    for lines in ["Contact: <sip:a@h>", ""] {
        let reply = world.register("a", 1, lines);
        assert_eq!(
            reply.values("Service-Route"),
            ["<sip:a.example;lr>, <sip:b.example;lr>"]
        );
    }
    let reply = world.send(&request_to(
        "sip:other.example",
        "sip:a@other.example",
        "a",
        1,
        "",
    ));
    assert_eq!((reply.code, reply.values("Service-Route").len()), (200, 0));
}
