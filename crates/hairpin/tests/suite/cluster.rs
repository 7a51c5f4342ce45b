//! Several servers as one. The engine is a real Redis. `-- --ignored` runs what takes minutes.

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::common::nodes::{Node, Redis, SECRET, soon, three};
use crate::common::turn::{Answer, Client, USER};
use crate::common::{stderr, stdout};
use serde_json::Value;

const OK: Answer = Answer {
    code: 0,
    alternate: None,
};

#[test]
fn processes_with_one_secret_accept_each_others_nonces_also_with_another_clock() {
    let secret = format!("secret = \"{SECRET}\"");
    let first = Node::start("a", &secret, "", None);
    let other = "secret = \"another secret of another cluster\"";
    for (second, challenges) in [
        (Node::start("b", &secret, "", None), 1),
        (Node::start("c", &secret, "", Some("+60s")), 1),
        (Node::start("d", &secret, "", Some("-60s")), 1),
        (Node::start("e", other, "", None), 2),
    ] {
        let mut client = first.client();
        assert_eq!(client.allocate(), OK);
        client.server = second.serve.address();
        assert_eq!(client.allocate(), OK);
        assert_eq!(client.challenges, challenges);
    }
    let output = first.run(&["nodes"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("set cluster.engine"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn each_node_knows_all_others_and_sends_clients_there_while_it_drains() {
    let redis = Redis::start();
    let [a, b, c] = three(&redis, "");
    for node in [&a, &b, &c] {
        // Tests of `stores::cluster` show in virtual time how soon.
        soon("all nodes", || node.names("serving") == ["a", "b", "c"]);
    }
    let text = stdout(&b.run(&["nodes"]));
    assert!(
        text.contains("b (this node)  serving  0 allocations"),
        "{text}"
    );
    assert!(
        text.contains(&format!("udp {}", a.serve.address())),
        "{text}"
    );
    let api: Value = serde_json::from_str(&a.page("/api/v1/nodes")).unwrap();
    assert_eq!(api["nodes"].as_array().unwrap().len(), 3);

    let mut before = a.client();
    assert_eq!(before.allocate(), OK);
    assert!(a.run(&["drain"]).status.success());
    let others = [b.serve.address(), c.serve.address()];
    let mut seen = std::collections::HashSet::new();
    for _ in 0..40 {
        let mut client = a.client();
        let answer = client.allocate();
        assert_eq!(answer.code, 300);
        let there = answer.alternate.unwrap();
        assert!(others.contains(&there));
        seen.insert(there);
        client.server = there;
        assert_eq!(client.allocate(), OK);
        // The nonce of the first node is good on the second one.
        assert_eq!(client.challenges, 1);
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(before.refresh(600), OK, "what is there stays");
    soon("the others see it", || c.names("draining") == ["a"]);
    // A node that drains gets nobody.
    assert!(b.run(&["drain"]).status.success());
    soon("the others see it", || a.names("draining") == ["a", "b"]);
    for _ in 0..8 {
        assert_eq!(a.client().allocate().alternate, Some(c.serve.address()));
    }
}

#[test]
fn the_sessions_of_a_user_end_on_all_nodes() {
    let redis = Redis::start();
    let [a, b, c] = three(&redis, "");
    soon("all nodes", || a.names("serving").len() == 3);
    let mut clients: Vec<_> = [&a, &b, &b, &c].map(Node::client).into();
    for client in &mut clients {
        assert_eq!(client.allocate(), OK);
    }
    let output = a.run(&["sessions", "kill", "--user", USER]);
    assert_eq!(
        stdout(&output),
        "1 session ended; 2 other nodes ordered to do the same\n",
        "{}",
        stderr(&output)
    );
    for node in [&b, &c] {
        soon("no session", || stdout(&node.run(&["sessions"])).is_empty());
        assert_eq!(node.metric("hairpin_cluster_orders_total"), 1.0);
    }
    for client in &mut clients {
        assert_eq!(client.refresh(600).code, 437);
    }
    // Who can write to the engine but has not the secret orders nothing.
    assert_eq!(clients[1].allocate(), OK);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ends = since.unwrap().as_millis() + 30_000;
    let forged = format!("{ends} {}{{}}", "0".repeat(64));
    redis.ask(&["-n", "1", "hincrby", "{hairpin}:state", "sequence", "1"]);
    redis.ask(&["-n", "1", "zadd", "{hairpin}:messages", "2", &forged]);
    redis.ask(&["-n", "1", "hset", "{hairpin}:nodes", "evil", &forged]);
    soon("it was seen", || {
        b.metric("hairpin_cluster_forged_texts_total") > 0.0
    });
    assert_eq!(b.names("serving"), ["a", "b", "c"]);
    assert_eq!(clients[1].refresh(600), OK);
}

/// `limits.allocations_per_user` of the tests, and the block that follows from it.
const MAX_ALLOCATIONS: usize = 16;
const BLOCK: usize = 8;
const QUOTA: &str = "[limits]\nallocations_per_user = 16";

/// However long the engine takes to respond, a node without an answer gives at most one block more, and then refuses.
#[test]
fn a_user_at_the_limit_on_one_node_is_refused_on_the_others() {
    let redis = Redis::start();
    let [a, b, c] = three(&redis, QUOTA);
    soon("all nodes", || a.names("serving").len() == 3);
    let mut held = Vec::new();
    a.fill_slowly(MAX_ALLOCATIONS, &mut held);
    assert_eq!(a.fill(1, &mut held), 0);
    for node in [&b, &c] {
        let mut got = 0;
        while node.fill(1, &mut held) == 1 {
            got += 1;
            assert!(got <= BLOCK, "{got}");
        }
        for _ in 0..10 {
            assert_eq!(node.fill(1, &mut held), 0);
        }
    }
    // What is released there can be used here.
    let most = held.len();
    for client in held.drain(..) {
        let mut client = client;
        assert_eq!(client.refresh(0), OK);
    }
    soon("it is free again", || b.fill(1, &mut held) == 1);
    soon(&format!("all of {most} are free again"), || {
        b.fill(1, &mut held);
        held.len() == MAX_ALLOCATIONS
    });
    assert_eq!(b.fill(1, &mut held), 0);
    assert!(b.metric("hairpin_cluster_quota_attempts_total{outcome=\"refused\"}") >= 1.0);
}

/// A realm with its own users and limit.
const REALM: &str = "[[auth.realms]]
name = \"shop.example\"
origins = [\"https://shop.example\"]
users = [{ name = \"bob\", password = \"pw of bob\" }, { name = \"eve\", password = \"pw of eve\" }]
allocations = 16";

/// A new client of a user of this realm tries to allocate at the node.
fn allocate_in_realm(node: &Node, user: &str, held: &mut Vec<Client>) -> u16 {
    let password = format!("pw of {user}");
    let local = Ipv4Addr::LOCALHOST.into();
    let mut client = Client::of(node.serve.address(), local, user, &password);
    client.origin = Some("https://shop.example");
    let code = client.allocate().code;
    assert!(matches!(code, 0 | 486), "{code}");
    if code == 0 {
        held.push(client);
    }
    code
}

#[test]
fn a_realm_at_its_limit_on_one_node_is_refused_on_the_others_and_other_realms_are_not() {
    let redis = Redis::start();
    let [a, b, c] = three(&redis, REALM);
    soon("all nodes", || a.names("serving").len() == 3);
    let mut held = Vec::new();
    while held.len() < MAX_ALLOCATIONS {
        soon("an allocation", || {
            allocate_in_realm(&a, "bob", &mut held) == 0
        });
    }
    assert_eq!(allocate_in_realm(&a, "bob", &mut held), 486);
    for node in [&b, &c] {
        let (first, before) = (Instant::now(), held.len());
        // Another user of the realm, who has no allocation.
        while allocate_in_realm(node, "eve", &mut held) == 0 {
            assert!(held.len() - before <= BLOCK, "{}", held.len());
        }
        let over = held.len() - before;
        eprintln!(
            "refused {:?} after the first attempt, with {over} more",
            first.elapsed()
        );
        for user in ["bob", "eve", "bob"] {
            assert_eq!(allocate_in_realm(node, user, &mut held), 486, "{user}");
        }
        assert_eq!(node.client().allocate(), OK, "another realm");
    }
    // What is released at one node can be used at another one.
    for mut client in held.drain(..) {
        assert_eq!(client.refresh(0), OK);
    }
    soon("it is free again", || {
        allocate_in_realm(&c, "eve", &mut held) == 0
    });
}
