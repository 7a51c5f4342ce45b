//! Phones that are registered at one node are called from others. The engine is a real Redis.

use std::time::{Duration, Instant};

use crate::cluster_calls::{
    call, invite, keys, next_of, register_flow, register_instance, registered, sip_of, written,
};
use crate::common::nodes::{Node, Redis, signal, soon, three_serving, with_engine};
use crate::sip_client::phone::Phone;
use crate::sip_client::status;

/// Three nodes that know each other.
fn nodes(redis: &Redis) -> [Node; 3] {
    three_serving(&with_engine(redis.port), &keys())
}

/// TLS connections between nodes with this result.
fn tls(result: &str) -> String {
    format!("hairpin_sip_node_tls_total{{result=\"{result}\"}}")
}

/// The final response to a call, and how long it took.
pub(crate) fn refused(caller: &mut Phone, user: &str, id: &str) -> (u16, Duration) {
    let asked = invite(caller, user, id);
    let started = Instant::now();
    let response = loop {
        let response = caller.expect("SIP/2.0 ");
        // The 407 comes again if its ACK was late.
        let is_of_call = response.contains(&format!("Call-ID: {id}@test"));
        if is_of_call && !matches!(status(&response), 100 | 407) {
            break response;
        }
    };
    let took = started.elapsed();
    caller.acknowledge(&asked, &response);
    (status(&response), took)
}

/// Calls a user all of whose phones are busy. Returns how many of these phones got the call.
fn ringing(caller: &mut Phone, user: &str, phones: &mut [&mut Phone], id: &str) -> usize {
    let rang = who_rings(caller, user, phones, id);
    rang.iter().filter(|rang| **rang).count()
}

/// The same. Returns for each phone whether it got the call.
fn who_rings(caller: &mut Phone, user: &str, phones: &mut [&mut Phone], id: &str) -> Vec<bool> {
    let asked = invite(caller, user, id);
    let call = format!("Call-ID: {id}@test");
    let mut rang = vec![false; phones.len()];
    let started = Instant::now();
    loop {
        for (phone, rang) in phones.iter_mut().zip(&mut rang) {
            let text = next_of(phone);
            if text.starts_with("INVITE ") {
                phone.respond(&text, "486 Busy Here");
                *rang |= text.contains(&call);
            }
        }
        let text = next_of(caller);
        let is_final = text.starts_with("SIP/2.0 480") || text.starts_with("SIP/2.0 486");
        if is_final && text.contains(&call) {
            caller.acknowledge(&asked, &text);
            return rang;
        }
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(60), "{id}: no response");
    }
}

/// Calls until the user's phone gets the call: what was known before is remembered for 2 s.
fn found(caller: &mut Phone, callee: &mut Phone, id: &str) {
    let mut attempts = 0;
    soon("the phone is found", || {
        attempts += 1;
        let user = callee.user.clone();
        ringing(caller, &user, &mut [callee], &format!("{id}{attempts}")) == 1
    });
}

#[test]
fn a_phone_of_one_node_is_called_from_another_over_udp_and_tcp() {
    let redis = Redis::start();
    let [a, b, c] = nodes(&redis);
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut eve = registered(Phone::tcp_at(sip_of(&c), "eve"), &c);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    call(&mut ann, &mut bob, "one");
    call(&mut ann, &mut eve, "two");
    call(&mut bob, &mut ann, "three");
    call(&mut eve, &mut bob, "four");
    assert!(b.metric("hairpin_cluster_sip_lookups_total{result=\"found\"}") >= 2.0);
    // Each node has spoken TLS with others, on either side, and no certificate was refused.
    for node in [&a, &b, &c] {
        assert!(node.metric(&tls("completed")) >= 2.0);
        assert_eq!(node.metric(&tls("refused")), 0.0);
        assert_eq!(node.metric(&tls("refused_by_other")), 0.0);
    }
    // Each node lists what it has.
    assert!(crate::common::stdout(&a.run(&["sip", "bindings"])).contains("bob"));
    assert!(!crate::common::stdout(&b.run(&["sip", "bindings"])).contains("bob"));
    // Each node knows how many bindings the others have.
    let total = serde_json::json!({ "nodes": 3, "allocations": 0, "bindings": 3 });
    soon("B knows all bindings", || b.nodes()["total"] == total);
    // A phone on each of two nodes: both ring.
    let mut second = registered(Phone::udp_at(sip_of(&c), "bob"), &c);
    let mut attempts = 0;
    soon("the cache has ended", || {
        attempts += 1;
        let id = format!("both{attempts}");
        ringing(&mut ann, "bob", &mut [&mut bob, &mut second], &id) == 2
    });
}

#[test]
fn a_phone_with_flows_at_two_nodes_is_called_by_the_less_loaded_one_and_else_by_the_other_rfc5626_7()
 {
    let redis = Redis::start();
    let [a, b, c] = nodes(&redis);
    let [mut at_a, mut at_b] = [&a, &b].map(|node| Phone::udp_at(sip_of(node), "bob"));
    register_flow(&mut at_a, (7, 1), "flow-a", &a);
    register_flow(&mut at_b, (7, 2), "flow-b", &b);
    let mut ann = registered(Phone::udp_at(sip_of(&c), "ann"), &c);
    let mut attempts = 0;
    let mut is_called_by =
        |ann: &mut Phone, at_a: &mut Phone, at_b: &mut Phone, expected: [bool; 2]| {
            attempts += 1;
            who_rings(ann, "bob", &mut [at_a, at_b], &format!("flow{attempts}")) == expected
        };
    // Two more registrations at one node: then a call goes to the other one.
    let _eve = registered(Phone::udp_at(sip_of(&a), "eve"), &a);
    let _too = registered(Phone::udp_at(sip_of(&a), "eve"), &a);
    soon("A is busier", || {
        is_called_by(&mut ann, &mut at_a, &mut at_b, [false, true])
    });
    let _more = ["ann", "ann", "eve", "eve"].map(|user| {
        let phone = Phone::udp_at(sip_of(&b), user);
        registered(phone, &b)
    });
    soon("B is busier", || {
        is_called_by(&mut ann, &mut at_a, &mut at_b, [true, false])
    });
    // A is there for the others, but silent.
    signal(a.serve.id(), "STOP");
    soon("the flow at B is tried", || {
        is_called_by(&mut ann, &mut at_a, &mut at_b, [false, true])
    });
    signal(a.serve.id(), "CONT");
}

#[test]
fn the_phones_of_a_dead_node_are_480_at_once_and_are_found_at_the_next_one() {
    let redis = Redis::start();
    let [a, b, c] = nodes(&redis);
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    call(&mut ann, &mut bob, "before");
    // It is there for the others, but silent.
    signal(a.serve.id(), "STOP");
    let (code, took) = refused(&mut ann, "bob", "silent");
    assert_eq!(code, 480);
    // Timer B is 32 s (RFC 3261 §17.1.1.2).
    assert!(took < Duration::from_secs(15), "{took:?}");
    eprintln!("a node that is silent: 480 after {took:?}");
    signal(a.serve.id(), "KILL");
    let (code, took) = refused(&mut ann, "bob", "killed");
    assert_eq!(code, 480);
    assert!(took < Duration::from_secs(15), "{took:?}");
    eprintln!("a node that was killed: 480 after {took:?}");
    soon("the others miss it", || b.names("serving") == ["b", "c"]);
    let (code, took) = refused(&mut ann, "bob", "missed");
    assert_eq!(code, 480);
    eprintln!("a node that is missed: 480 after {took:?}");
    let mut bob = registered(Phone::udp_at(sip_of(&c), "bob"), &c);
    found(&mut ann, &mut bob, "moved");
    call(&mut ann, &mut bob, "after");
}

#[test]
fn without_the_engine_phones_of_this_node_are_called_and_all_others_again_when_it_is_back() {
    let redis = Redis::start();
    let [a, b, _c] = nodes(&redis);
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut eve = registered(Phone::udp_at(sip_of(&b), "eve"), &b);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    let port = redis.port;
    drop(redis);
    invite(&mut ann, "eve", "local");
    let got = eve.expect("INVITE ");
    eve.respond(&got, "200 OK");
    let ok = ann.expect("SIP/2.0 200");
    ann.in_dialog(&ok, "ACK");
    eve.expect("ACK ");
    let (code, took) = refused(&mut ann, "bob", "away");
    assert_eq!(code, 480);
    assert!(took < Duration::from_secs(15), "{took:?}");
    let unavailable = "hairpin_cluster_sip_lookups_total{result=\"unavailable\"}";
    assert!(b.metric(unavailable) >= 2.0);
    // A REGISTER does not wait for it.
    Phone::udp_at(sip_of(&a), "eve").register();
    // It is back, with nothing: nodes publish all bindings again.
    let before = written(&a);
    let redis = Redis::at(port);
    soon("they are published again", || written(&a) > before);
    soon("the others know it", || b.names("serving").len() == 3);
    soon("the engine has the phone again", || {
        let key = "hairpin:sip:bob@example.com";
        redis.ask(&["-n", "1", "exists", key]).trim() == "1"
    });
    soon("the engine is up again", || {
        b.metric("hairpin_cluster_engine_up") == 1.0
    });
    found(&mut ann, &mut bob, "back");
    call(&mut ann, &mut bob, "again");
}

#[test]
fn a_phone_that_moves_to_another_node_leaves_no_binding_behind_rfc5626_6() {
    let redis = Redis::start();
    let [a, b, c] = nodes(&redis);
    let lists = |node: &Node, phone: &Phone| {
        let contact = phone.contact();
        let list = crate::common::stdout(&node.run(&["sip", "bindings"]));
        list.contains(contact.trim_matches(['<', '>']))
    };
    let moved = |node: &Node| node.metric("hairpin_sip_bindings_moved_total");
    let mut old = Phone::udp_at(sip_of(&a), "bob");
    register_instance(&mut old, 1, "mobile1", &a);
    let mut desk = Phone::udp_at(sip_of(&a), "bob");
    register_instance(&mut desk, 2, "desk", &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    assert!(lists(&a, &old) && lists(&a, &desk));
    let mut new = Phone::udp_at(sip_of(&c), "bob");
    register_instance(&mut new, 1, "mobile2", &c);
    soon("the binding at A is removed", || !lists(&a, &old));
    assert!(lists(&a, &desk) && lists(&c, &new));
    assert_eq!((moved(&a), moved(&c)), (1.0, 0.0));
    let mut attempts = 0;
    soon("both phones ring", || {
        attempts += 1;
        let id = format!("moved{attempts}");
        ringing(&mut ann, "bob", &mut [&mut desk, &mut new], &id) == 2
    });
    assert_eq!(next_of(&mut old), "", "nobody is there any more");
    // It comes back, and A keeps that.
    register_instance(&mut old, 1, "mobile3", &a);
    soon("the binding at C is removed", || !lists(&c, &new));
    assert!(lists(&a, &old) && lists(&a, &desk));
    assert_eq!((moved(&a), moved(&c)), (1.0, 1.0));
}
