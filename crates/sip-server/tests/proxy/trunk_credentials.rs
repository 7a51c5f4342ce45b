//! Trunks that ask for credentials, and what the caller hears of it.

use sip::flow::Transport;
use sip_server::routes::{Credentials, Failures, Trunk};

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request, value};
use crate::policy::CallPolicy;
use crate::trunks::{NUMBER, call, caller, counts, route, trunk, world, world_of};
use crate::world::World;

const CHALLENGE: &str =
    "WWW-Authenticate: Digest realm=\"carrier\", nonce=\"n1\", algorithm=MD5, qop=\"auth\"\r\n";

/// The credentials of this server at its trunks.
pub(crate) fn office() -> Credentials {
    Credentials {
        user: "office".to_owned(),
        password: "secret".to_owned(),
        realms: vec!["carrier".to_owned(), "Carrier.Example".to_owned()],
    }
}

/// A world whose first trunk asks for credentials with this code, and then answers with another one.
fn challenged(code: u16, then: u16) -> World {
    let mut world = world(Failures::default());
    world.policy().credentials = Some(office());
    world.nodes[UAS + 1].script = answers(&[(20, 200)]);
    let lines = match code {
        407 => CHALLENGE.replace("WWW", "Proxy"),
        _ => CHALLENGE.to_owned(),
    };
    world.nodes[UAS].script.invite = vec![(400, code, lines.clone())];
    call(&mut world);
    world.run_until(300);
    let lines = if then == code { lines } else { String::new() };
    world.nodes[UAS].script.invite = vec![(50, then, lines)];
    world
}

#[test]
fn a_challenge_of_a_trunk_is_answered_for_the_caller() {
    for (code, name) in [(401, "Authorization"), (407, "Proxy-Authorization")] {
        let mut world = challenged(code, 200);
        world.run_until(1_500);
        assert_eq!(caller(&world), ["200 INVITE"], "{code}");
        let invites: Vec<&String> = world.nodes[UAS].texts.iter().collect();
        let invites: Vec<_> = invites
            .into_iter()
            .filter(|it| it.starts_with("INVITE"))
            .collect();
        assert_eq!(invites.len(), 2);
        assert_eq!(value(invites[0], name), None);
        let credentials = value(invites[1], name).expect("credentials");
        assert!(
            credentials.starts_with("Digest username=\"office\", realm=\"carrier\", nonce=\"n1\"")
        );
        let uri = format!("uri=\"sip:+49301234@{}\"", address(UAS));
        assert!(credentials.contains(&uri), "{credentials}");
        // The same CSeq in another transaction: the caller's ACK and BYE fit.
        assert_eq!(value(invites[0], "CSeq"), value(invites[1], "CSeq"));
        assert_ne!(value(invites[0], "Via"), value(invites[1], "Via"));
        assert_eq!(world.heard(UAS).last(), Some(&"ACK"));
        assert_eq!(world.heard(UAS + 1).len(), 0);
        world.nothing_is_left();
    }
}

#[test]
fn wrong_credentials_do_not_reach_the_caller_as_a_challenge() {
    let mut world = challenged(401, 401);
    world.run_until(1_500);
    // The second trunk takes the call.
    assert_eq!(caller(&world), ["200 INVITE"]);
    assert_eq!(
        world
            .sent(PROXY, "INVITE")
            .iter()
            .filter(|it| it.1 == UAS)
            .count(),
        2
    );
    world.nothing_is_left();
    let mut world = world_of(vec![route("+49", &["a"])], vec![trunk("a", &[UAS])]);
    world.policy().credentials = Some(office());
    world.nodes[UAS].script.invite = vec![(20, 401, CHALLENGE.to_owned())];
    call(&mut world);
    world.run_until(1_000);
    assert_eq!(caller(&world), ["500 INVITE"]);
    assert_eq!(world.sent(PROXY, "INVITE").len(), 2);
    world.nothing_is_left();
}

#[test]
fn a_challenge_of_another_realm_is_for_the_caller_rfc3261_22_1() {
    for code in [401, 407] {
        let mut world = world(Failures::default());
        world.policy().credentials = Some(office());
        // The trunk forwards the challenge of the called party.
        let name = if code == 401 { "WWW" } else { "Proxy" };
        let lines = CHALLENGE.replace("carrier", "called").replace("WWW", name);
        world.nodes[UAS].script.invite = vec![(20, code, lines)];
        call(&mut world);
        world.run_until(1_000);
        assert_eq!(caller(&world), [format!("{code} INVITE")]);
        assert!(world.last(UAC).contains("realm=\"called\""));
        assert_eq!(world.sent(PROXY, "INVITE").len(), 1);
        world.nothing_is_left();
    }
    // Of two challenges, only that of the trunk gets a response. Realms that are host names have no case.
    let mut world = world(Failures::default());
    world.policy().credentials = Some(office());
    let lines = [("called", "n0"), ("carrier.example", "n1")];
    let lines = lines.map(|(realm, nonce)| {
        let line = CHALLENGE.replace("\"carrier\"", &format!("\"{realm}\""));
        line.replace("n1", nonce)
    });
    world.nodes[UAS].script.invite = vec![(400, 401, lines.concat())];
    call(&mut world);
    world.run_until(300);
    world.nodes[UAS].script.invite = vec![(20, 200, String::new())];
    world.run_until(1_500);
    assert_eq!(caller(&world), ["200 INVITE"]);
    let mut invites = world.nodes[UAS].texts.iter();
    let second = invites.rfind(|it| it.starts_with("INVITE")).unwrap();
    let credentials = value(second, "Authorization").unwrap();
    assert!(credentials.contains("realm=\"carrier.example\", nonce=\"n1\""));
}

#[test]
fn without_a_realm_every_challenge_gets_a_response() {
    let mut world = world(Failures::default());
    let realms = Vec::new();
    world.policy().credentials = Some(Credentials { realms, ..office() });
    let lines = CHALLENGE.replace("carrier", "asterisk");
    world.nodes[UAS].script.invite = vec![(400, 401, lines)];
    call(&mut world);
    world.run_until(300);
    world.nodes[UAS].script.invite = vec![(20, 200, String::new())];
    world.run_until(1_500);
    assert_eq!(caller(&world), ["200 INVITE"]);
}

#[test]
fn after_a_reload_a_call_under_way_uses_nothing_of_the_new_trunks() {
    let mut world = challenged(401, 200);
    // The first trunk has another number now, and its challenge comes afterwards.
    let trunks = vec![trunk("b", &[UAS + 1]), trunk("a", &[UAS])];
    world
        .policy()
        .set_routes(vec![route("+49", &["b"])], trunks);
    world.run_until(2_000);
    assert_eq!(caller(&world), ["401 INVITE"]);
    assert_eq!(counts(&mut world, 0).calls, 0);
    world.nothing_is_left();
}

#[test]
fn without_credentials_the_caller_gets_the_challenge() {
    let mut world = challenged(407, 407);
    world.policy().credentials = None;
    let invite = request("INVITE", NUMBER, 9, ALICE);
    world.send(UAC, Transport::Udp, &invite);
    world.run_until(3_000);
    assert!(caller(&world).contains(&"407 INVITE"));
    world.nothing_is_left();
}

#[test]
fn a_call_that_a_trunk_asks_credentials_for_is_one_call() {
    let limited = Trunk {
        max_calls: 1,
        ..trunk("a", &[UAS])
    };
    let mut world = world_of(vec![route("+49", &["a"])], vec![limited]);
    world.policy().calls = Some(CallPolicy::default());
    world.policy().credentials = Some(office());
    world.nodes[UAS].script.invite = vec![(400, 401, CHALLENGE.to_owned())];
    call(&mut world);
    world.run_until(300);
    world.nodes[UAS].script.invite = vec![(50, 200, String::new())];
    world.run_until(1_500);
    assert_eq!(caller(&world).last(), Some(&"200 INVITE"));
    assert_eq!(counts(&mut world, 0).in_progress, 1);
    world.in_dialog(UAC, "BYE");
    world.run_until(2_000);
    assert_eq!(counts(&mut world, 0).in_progress, 0);
}
