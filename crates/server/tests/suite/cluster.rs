//! Nodes of a cluster that exchange nothing: what one server has signed, at another one.

use crate::common::{Client, loopback, start};
use crate::sip_client::phone::{PASSWORD, Phone};
use hairpin_server::cluster_keys::ClusterKeys;
use hairpin_server::sip::Domain;
use hairpin_server::{Running, Settings};
use sip::build::Builder;
use sip::digest::{DigestResponse, choose};
use sip::{HeaderKind, Message, Method as SipMethod, Spans};
use std::time::{Duration, SystemTime};
use stun::{AttributeType, Lifetime, Method, MobilityTicket};

const SECRET: &[u8] = b"the secret of the cluster of this test";
const OTHER: &[u8] = b"the secret of another cluster, likewise";
const DAY: Duration = Duration::from_secs(86_400);
/// How long the keys of mobility tickets and SIP tokens are in use.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn node(secret: &[u8]) -> Running {
    let keys = ClusterKeys::new(secret).expect("it is long enough");
    start(loopback(1).cluster(keys))
}

/// How often a server has challenged: 401, and 438.
fn challenges(server: &Running) -> (u64, u64) {
    let stats = server.stats();
    let count = |code| stats.sum(|worker| worker.engine.errors_with(code));
    (count(401), count(438))
}

/// A client that has been challenged by the first server allocates at the second one, from the same address.
fn moves(first: &Running, second: &Running) -> u16 {
    let mut client = Client::new(first.listeners()[0]);
    client.allocate();
    client.server = second.listeners()[0];
    client.try_allocate().code()
}

#[test]
fn a_nonce_of_one_node_is_valid_on_another_one_in_the_epochs_around_its_own() {
    let first = node(SECRET);
    let second = node(SECRET);
    for (ahead, expected) in [
        (Duration::ZERO, 0),
        // Another epoch, as if the clock were ahead at the end of one.
        (DAY, 0),
        (2 * DAY, 1),
    ] {
        let (_, before) = challenges(&second);
        let there = SystemTime::now() + ahead;
        second.follow_epoch(there).expect("it serves");
        assert_eq!(moves(&first, &second), 0, "{ahead:?}");
        assert_eq!(challenges(&second), (0, before + expected), "{ahead:?}");
    }
    // Without a cluster there are no epochs.
    let alone = start(loopback(1).nonce_key([7; 32]));
    let there = SystemTime::now() + 9 * DAY;
    alone.follow_epoch(there).expect("it serves");
    let twin = start(loopback(1).nonce_key([7; 32]));
    assert_eq!((moves(&alone, &twin), challenges(&twin)), (0, (0, 0)));
}

#[test]
fn a_nonce_of_another_cluster_is_stale() {
    let (first, second) = (node(SECRET), node(OTHER));
    // The client repeats its request with the nonce of the 438.
    assert_eq!(moves(&first, &second), 0);
    assert_eq!(challenges(&second), (0, 1));
}

/// An allocation with a ticket.
fn allocate_with_ticket(owner: &Running) -> (Client, Vec<u8>) {
    let mut client = Client::new(owner.listeners()[0]);
    let allocated = client.allocate_with(&|request| {
        let ticket = AttributeType::MOBILITY_TICKET;
        request.push_raw(ticket, &[]).map(drop)
    });
    let ticket: Option<MobilityTicket<'_>> = allocated.message().get().expect("well formed");
    let ticket = ticket.expect("a ticket").0.to_vec();
    (client, ticket)
}

/// Refreshes an allocation by its ticket from a new address, and returns the response code.
fn use_ticket(ticket: &[u8], node: &Running) -> u16 {
    let mut elsewhere = Client::new(node.listeners()[0]);
    let refreshed = elsewhere.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(600))?;
        request.push(&MobilityTicket(ticket)).map(drop)
    });
    refreshed.code()
}

/// Moves an allocation by its ticket to a node, and returns the response code.
fn refresh_at(owner: &Running, node: &Running) -> u16 {
    let (_client, ticket) = allocate_with_ticket(owner);
    let code = use_ticket(&ticket, node);
    // Whatever the other node said, the allocation is still there.
    assert_eq!(owner.stats().allocations(), 1);
    code
}

#[test]
fn tickets_and_their_keys_change_with_the_epoch_and_the_one_before_is_valid() {
    for (ahead, expected) in [(Duration::ZERO, 0), (YEAR, 0), (2 * YEAR, 400)] {
        let owner = node(SECRET);
        let (_client, ticket) = allocate_with_ticket(&owner);
        owner
            .follow_epoch(SystemTime::now() + ahead)
            .expect("it serves");
        assert_eq!(use_ticket(&ticket, &owner), expected, "{ahead:?}");
    }
}

#[test]
fn the_token_of_a_dialog_is_valid_in_the_epoch_after_its_own() {
    let mut settings = Settings::default();
    settings.sip.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    let users = ["user0", "user1"].map(|name| (name.to_owned(), PASSWORD.to_owned()));
    settings.users = users.to_vec();
    let keys = ClusterKeys::new(SECRET).expect("it is long enough");
    let builder = loopback(1).settings(settings).cluster(keys);
    let server = start(builder.sip_listen(crate::common::at("127.0.0.1:0")));
    let [mut caller, mut callee] = ["user0", "user1"].map(|user| Phone::udp(&server, user));
    caller.register();
    callee.register();
    caller.ask(SipMethod::Invite, "sip:user1@example.com", "long");
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    for ahead in [Duration::ZERO, YEAR] {
        let then = SystemTime::now() + ahead;
        server.follow_epoch(then).expect("it serves");
        caller.in_dialog(&ok, "INFO");
        let info = callee.expect("INFO ");
        callee.respond(&info, "200 OK");
        caller.expect("SIP/2.0 200");
    }
    let then = SystemTime::now() + 2 * YEAR;
    server.follow_epoch(then).expect("it serves");
    caller.in_dialog(&ok, "INFO");
    caller.expect("SIP/2.0 403");
}

#[test]
fn a_ticket_of_another_node_names_no_allocation_here_rfc8016_3_2_2() {
    let mismatch = 437;
    assert_eq!(refresh_at(&node(SECRET), &node(SECRET)), mismatch);
    // Another cluster cannot know that the ticket is genuine.
    assert_eq!(refresh_at(&node(SECRET), &node(OTHER)), 400);
    // Not even the first allocation of a second process has the tickets of the first process.
    let (first, second) = (node(SECRET), node(SECRET));
    let mut there = Client::new(second.listeners()[0]);
    there.allocate_with(&|request| {
        let ticket = AttributeType::MOBILITY_TICKET;
        request.push_raw(ticket, &[]).map(drop)
    });
    assert_eq!(refresh_at(&first, &second), mismatch);
    assert_eq!(second.stats().allocations(), 1);
}

fn sip_node() -> Running {
    let mut settings = Settings::default();
    settings.sip = crate::sip_client::test_uas();
    settings.sip.challenge = true;
    settings.users = vec![("alice".to_owned(), "secret".to_owned())];
    let keys = ClusterKeys::new(SECRET).expect("it is long enough");
    let builder = loopback(1).settings(settings).cluster(keys);
    start(builder.sip_listen(crate::common::at("127.0.0.1:0")))
}

/// The Authorization line for the challenge in a 401.
fn authorization(unauthorized: &str) -> String {
    let mut spans = Spans::new();
    let message = Message::parse(unauthorized.as_bytes(), &mut spans).expect("well-formed");
    let challenge = choose(&message, HeaderKind::WwwAuthenticate).expect("a challenge");
    let answer = DigestResponse {
        challenge: &challenge,
        username: b"alice",
        ha1: &challenge.ha1(b"alice", b"secret"),
        method: SipMethod::Register,
        uri: b"sip:test@127.0.0.1",
        body: b"",
        count: 1,
        cnonce: b"c1",
    };
    let mut buffer = [0; 2048];
    let mut line = Builder::fields(&mut buffer);
    answer.write(&mut line, HeaderKind::Authorization);
    String::from_utf8(line.finish_fields().expect("room").to_vec()).expect("text")
}

#[test]
fn a_sip_nonce_of_another_node_is_stale_because_each_node_counts_its_own() {
    let (first, second) = (sip_node(), sip_node());
    let [mut here, mut there] =
        [&first, &second].map(|node| crate::sip_client::Client::new(node.sip_listeners()[0]));
    let ask = |client: &mut crate::sip_client::Client, id: &str, line: &str| {
        let asked = crate::sip_client::options(id, "UDP", "").replace("OPTIONS", "REGISTER");
        client.ask(&asked.replace("Max-Forwards", &format!("{line}Max-Forwards")))
    };
    let challenge = ask(&mut here, "a", "");
    assert_eq!(crate::sip_client::status(&challenge), 401);
    let refused = ask(&mut there, "b", &authorization(&challenge));
    assert_eq!(crate::sip_client::status(&refused), 401);
    assert!(refused.contains("stale=true"), "{refused}");
    let accepted = ask(&mut there, "c", &authorization(&refused));
    assert_eq!(crate::sip_client::status(&accepted), 200);
    // The first node has not counted the nonce as used.
    let accepted = ask(&mut here, "d", &authorization(&challenge));
    assert_eq!(crate::sip_client::status(&accepted), 200);
}
