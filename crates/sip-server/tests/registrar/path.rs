//! Path (RFC 3327 §5.3).

use sip_server::location::Limits;
use sip_server::registrar::Config;

use crate::world::World;

const PATHS: &str =
    "Path: <sip:p3.example;lr>,<sip:p1.example;lr>;x=1\nPath: \"P 0\" <sip:p0.example;lr>";
const VECTOR: &str = "<sip:p3.example;lr>, <sip:p1.example;lr>;x=1, \"P 0\" <sip:p0.example;lr>";

#[test]
fn the_path_is_stored_in_its_order_and_copied_to_the_answer_rfc3327_5_3() {
    let mut world = World::new();
    let reply = world.register(
        "a",
        1,
        &format!("Contact: <sip:a@h>\nSupported: path\n{PATHS}"),
    );
    assert_eq!((reply.code, reply.values("Path")), (200, vec![VECTOR]));
    assert_eq!(world.bindings()[0].path(), VECTOR.as_bytes());
    // The proxy may send requests to the first hop if the REGISTER came from there.
    assert!(world.bindings()[0].source().is_some());
    assert!(world.bindings()[0].flow().is_none());
    // A refresh by another way has another path.
    world.register("a", 2, "Contact: <sip:a@h>");
    assert_eq!(world.bindings()[0].path(), b"");
}

#[test]
fn a_path_that_the_user_agent_does_not_support_gets_420_rfc3327_5_3() {
    let mut world = World::new();
    let lines = format!("Contact: <sip:a@h>\nSupported: gruu\n{PATHS}");
    let reply = world.register("a", 1, &lines);
    assert_eq!(
        (reply.code, reply.values("Unsupported")),
        (420, vec!["path"])
    );
    assert!(world.location.is_empty());
    let config = Config {
        path_without_support: true,
        ..Config::default()
    };
    let mut lenient = World::with(config, Limits::default());
    assert_eq!(lenient.register("a", 1, &lines).values("Path"), [VECTOR]);
}

#[test]
fn a_path_that_is_none_gets_400_rfc3327_4() {
    let mut world = World::new();
    for path in ["Path: nonsense", "Path: <sip:>", "Path: <sip:a;lr>, <"] {
        let lines = format!("Contact: <sip:a@h>\nSupported: path\n{path}");
        assert_eq!(world.register("a", 1, &lines).code, 400, "{path}");
    }
    assert!(world.location.is_empty());
}
