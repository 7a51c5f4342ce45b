//! What a call costs: while it is in progress, and after that.

use allocation_counter::measure;
use sip::flow::Transport;
use sip_server::calls::Limit;

use crate::node::{ALICE, PROXY, UAC, UAS, address, answers, request};
use crate::policy::{CallPolicy, Contact};
use crate::world::World;

const CALLS: u32 = 512;
/// What the project promises for a call in progress, and for a dialog that counts.
const MAX_IN_PROGRESS: i64 = 4096;
/// An answered call has its transactions for 32 s, but no messages any more.
const MAX_ANSWERED: i64 = 1536;
const MAX_PER_DIALOG: i64 = 512;

fn world(is_counted: bool) -> World {
    let mut world = World::new();
    let mut contact = Contact::at(&format!("sip:bob@{}", address(UAS)));
    contact.flow = Some(World::datagrams_of(UAS));
    world.policy().bind("bob", &contact);
    world.nodes[UAS].script = answers(&[(50, 180), (20_000, 200)]);
    if is_counted {
        world.policy().calls = Some(CallPolicy {
            limit: Limit {
                concurrent: 1_000_000,
                per_second: 0,
            },
            ..CallPolicy::default()
        });
    }
    world
}

fn begin(world: &mut World, first: u32) {
    for number in first..first + CALLS {
        let body = "Supported: timer, 100rel, outbound\r\nAllow: INVITE, ACK, CANCEL, BYE\r\nUser-Agent: phone\r\n";
        let text = request(
            "INVITE",
            "sip:bob@example.com",
            number,
            &format!("{ALICE}{body}"),
        );
        world.send(UAC, Transport::Udp, &text);
    }
    let until = world.ms() + 1_000;
    world.run_until(until);
}

/// Forgets what the tests keep of messages, and the user agents.
fn forget(world: &mut World) {
    for node in &mut world.nodes {
        (node.texts, node.heard, node.sent) = Default::default();
    }
    world.network = crate::network::Network::new(crate::network::Weather::FINE, 1);
}

/// Bytes of the proxy's node that go when it is dropped.
fn bytes_of_proxy(mut world: World) -> i64 {
    forget(&mut world);
    let node = world.nodes.remove(PROXY);
    -measure(move || drop(node)).bytes_current
}

#[test]
fn a_call_in_progress_costs_at_most_4_kb() {
    let idle = bytes_of_proxy(world(false));
    let mut ringing = world(false);
    begin(&mut ringing, 1);
    assert_eq!(ringing.proxy().stats().contexts, CALLS as usize);
    let each = (bytes_of_proxy(ringing) - idle) / i64::from(CALLS);
    let mut other = world(false);
    other.policy().follows_phones = false;
    begin(&mut other, 1);
    let without = (bytes_of_proxy(other) - idle) / i64::from(CALLS);
    println!("{} of them for phones in tokens", each - without);
    println!(
        "{each} bytes for each call that rings: both transactions, the context and the dispatcher's part"
    );
    assert!(each > 500, "{each}: nothing was measured");
    assert!(each <= MAX_IN_PROGRESS, "{each}");
}

#[test]
fn an_answered_call_whose_transactions_are_kept_costs_at_most_1536_bytes() {
    let answered = || {
        let mut world = world(false);
        world.nodes[UAS].script = answers(&[(50, 180), (100, 200)]);
        begin(&mut world, 1);
        world
    };
    let mut few = answered();
    let mut many = answered();
    begin(&mut many, 1 + CALLS);
    for (world, calls) in [(&mut few, CALLS), (&mut many, 2 * CALLS)] {
        assert_eq!(world.proxy().stats().contexts, calls as usize);
    }
    // What all calls share, such as room for messages, does not count.
    let each = (bytes_of_proxy(many) - bytes_of_proxy(few)) / i64::from(CALLS);
    println!("{each} bytes for each call that was answered: its transactions and the context");
    assert!(each > 500, "{each}: nothing was measured");
    assert!(each <= MAX_ANSWERED, "{each}");
}

/// Bytes that the proxy's node has after so many calls were answered, and their transactions have ended. No BYE has
/// come.
fn after_answers(is_counted: bool, rounds: u32) -> i64 {
    let mut world = world(is_counted);
    world.nodes[UAS].script = answers(&[(50, 200)]);
    for round in 0..rounds {
        begin(&mut world, 1 + round * CALLS);
        let until = world.ms() + 100_000;
        world.run_until(until);
    }
    assert_eq!(world.proxy().stats().contexts, 0);
    if let Some(calls) = &world.policy().calls {
        assert_eq!(calls.dialogs.len(), u64::from(rounds * CALLS));
    }
    bytes_of_proxy(world)
}

#[test]
fn a_dialog_costs_nothing_without_limits_and_at_most_512_bytes_with_them() {
    // Tables keep their room: what is more after a second round is what dialogs cost.
    let each = |is_counted| {
        let more = after_answers(is_counted, 3) - after_answers(is_counted, 1);
        more / i64::from(2 * CALLS)
    };
    let (without, with) = (each(false), each(true));
    println!("{without} bytes for each dialog without limits, {with} with them");
    // A few bytes are rounding of tables: no entry fits in that.
    assert!(without < 8, "{without}");
    assert!(with > 32, "{with}: nothing was measured");
    assert!(with <= MAX_PER_DIALOG, "{with}");
}
