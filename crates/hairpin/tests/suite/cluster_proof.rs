//! Three nodes and their engine, each in a network namespace of its own. `cargo test -p hairpin --test suite --
//! --ignored --nocapture --test-threads=1 cluster_proof::` takes nine minutes, and prints the table of
//! docs/cluster.md: what TURN clients and phones see while something fails.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::cluster_calls::{call, keys, reached, register_instance, registered};
use crate::cluster_faults::{Proxy, refresh_all, row, seconds, until_all_know};
use crate::cluster_robust::{lists, moved};
use crate::cluster_sip::refused;
use crate::common::nodes::{Node, Redis, SECRET, signal, soon};
use crate::common::places::{Place, with_places};
use crate::common::turn::Client;
use crate::engines::{Engines, wait_until};
use crate::sip_client::phone::Phone;

const MAX_ALLOCATIONS: usize = 16;
const BLOCK: usize = 8;
const REDIS: u16 = 6379;
/// Proof: after a fault, each node has the state of all others again.
const HEALED: Duration = Duration::from_secs(10);
/// Proof: a user at the limit is refused this long after the first attempt at another node, at most.
const REFUSED: Duration = Duration::from_secs(1);
/// Other tests run on the same processors. What takes too long is measured again, at most so often.
const MEASURED: usize = 3;

fn sip_at(place: &Place) -> SocketAddr {
    SocketAddr::from((place.address, 5060))
}

fn phone(place: &Place, user: &str) -> Phone {
    let socket = UdpSocket::bind((place.clients, 0)).unwrap();
    let client = crate::sip_client::Client::of(socket, sip_at(place));
    Phone::of(client, user)
}

/// A node with SIP at port 5060 and a limit per user. Its bindings survive a restart.
fn node(place: &Place, name: &str, engine: &str, clock: Option<&str>) -> Node {
    let sip = keys().replace("127.0.0.1:0", &sip_at(place).to_string());
    let limits = format!(
        "[limits]\nallocations_per_user = {MAX_ALLOCATIONS}\nallocations_per_source = 100000\nallocations = 100000"
    );
    let cluster = format!("secret = \"{SECRET}\"\nengine = \"{engine}\"");
    let more = format!("{sip}{limits}");
    Node::start_there(place, (name, &cluster, &more), clock)
}

fn url(address: Ipv4Addr, port: u16) -> String {
    format!("redis://{address}:{port}/1")
}

/// The nodes A, B and C with this engine.
fn three(places: &[Place; 4], engine: &str) -> [Node; 3] {
    let [a, b, c, _] = places;
    let nodes = [(a, "a"), (b, "b"), (c, "c")];
    let nodes = nodes.map(|(place, name)| node(place, name, engine, None));
    all_know(&nodes);
    nodes
}

fn all_know(nodes: &[Node; 3]) -> Duration {
    until_all_know(&nodes.each_ref(), &["a", "b", "c"])
}

/// Uses up the quota at the first node. Returns the clients, how many the second one gave beyond it, and how long it
/// did so.
fn use_up(nodes: &[Node; 3]) -> (Vec<Client>, usize, Duration) {
    let [a, b, _] = nodes;
    let mut held = Vec::new();
    a.fill_slowly(MAX_ALLOCATIONS, &mut held);
    soon("the first node refuses", || a.fill(1, &mut held) == 0);
    let before = held.len();
    let first = Instant::now();
    soon("the second node refuses", || b.fill(1, &mut held) == 0);
    let took = first.elapsed();
    let over = held.len() - before;
    assert!(over <= BLOCK, "{over}");
    (held, over, took)
}

fn release(held: &mut Vec<Client>) {
    for mut client in held.drain(..) {
        assert_eq!(client.refresh(0).code, 0);
    }
}

/// How long it takes until all nodes refuse a user who is at the limit.
fn all_refuse(nodes: &[Node; 3], held: &mut Vec<Client>) -> Duration {
    soon("all refuse", || {
        nodes.iter().all(|node| node.fill(1, held) == 0)
    })
}

/// How long a caller waits until the phone of another node gets the call. If it is not found at first, he calls again.
fn time_of_call(caller: &mut Phone, callee: &mut Phone, id: &str) -> Duration {
    let started = Instant::now();
    let invite = reached(caller, callee, id);
    let took = started.elapsed();
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    callee.hang_up(&invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    callee.expect("SIP/2.0 200");
    took
}

/// Bob has a phone at the first node, Ann at the second one.
fn bob_and_ann(places: &[Place; 4], nodes: &[Node; 3]) -> (Phone, Phone) {
    let bob = registered(phone(&places[0], "bob"), &nodes[0]);
    let ann = registered(phone(&places[1], "ann"), &nodes[1]);
    (bob, ann)
}

#[test]
fn nodes_in_namespaces_share_a_quota_and_phones_and_a_killed_node_comes_back() {
    with_places(|places: [Place; 4]| {
        let engine = &places[3];
        let _redis = Redis::there(engine, REDIS);
        let mut nodes = three(&places, &url(engine.address, REDIS));
        let (mut held, over, took) = use_up(&nodes);
        eprintln!("refused {took:?} after the first attempt there, with {over} more");
        if took >= REFUSED {
            let first = Instant::now();
            soon("the third node refuses", || {
                nodes[2].fill(1, &mut held) == 0
            });
            let took = first.elapsed();
            assert!(took < REFUSED, "{took:?} at the third node");
        }
        refresh_all(&mut held);
        let (mut bob, mut ann) = bob_and_ann(&places, &nodes);
        call(&mut ann, &mut bob, "before");
        let of_a = |nodes: &[Node; 3]| nodes[1].nodes()["nodes"][0]["allocations"].clone();
        soon("B knows the load of A", || of_a(&nodes) == MAX_ALLOCATIONS);
        let mut restarted = || {
            nodes[0].kill();
            soon("B misses A", || nodes[1].names("serving") == ["b", "c"]);
            let again = Instant::now();
            nodes[0].start_again();
            all_know(&nodes);
            let took = again.elapsed();
            eprintln!("all nodes know it {took:?} after its start");
            took
        };
        assert!((0..MEASURED).any(|_| restarted() < HEALED));
        assert_eq!(of_a(&nodes), 0);
        assert!(lists(&nodes[0], &bob));
        call(&mut ann, &mut bob, "after");
    });
}

/// Times of one kind, in windows with the same number of times.
#[derive(Default)]
struct Times(Vec<Vec<Duration>>);

/// This percentile of the times.
fn percentile(mut all: Vec<Duration>, percent: usize) -> Duration {
    all.sort_unstable();
    all[(all.len() * percent / 100).min(all.len() - 1)]
}

impl Times {
    fn all(&self, percent: usize) -> Duration {
        percentile(self.0.concat(), percent)
    }

    fn p99_over(&self, other: &Times) -> f64 {
        self.all(99).as_secs_f64() / other.all(99).as_secs_f64()
    }

    /// The 99th percentile of each window.
    fn windows(&self) -> Vec<Duration> {
        let windows = self.0.iter();
        windows
            .map(|window| percentile(window.clone(), 99))
            .collect()
    }

    /// Whether p99 is within the noise: the median over the windows is at most the greatest p99 of a window in `calm`.
    /// Other programs on the machine make some windows slow, but not half of all windows in this minute only.
    fn is_within_noise_of(&self, calm: [&Times; 2]) -> bool {
        let slowest = calm.iter().flat_map(|times| times.windows()).max();
        slowest.is_some_and(|slowest| percentile(self.windows(), 50) <= slowest)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, p99] = [50, 99].map(|percent| self.all(percent).as_secs_f64() * 1_000.0);
        write!(f, "median {median:.2} ms, p99 {p99:.2} ms")
    }
}

#[test]
fn one_slow_window_is_noise_and_a_wait_in_each_window_is_not() {
    let times = |slow: &[u64]| {
        let window = |slow: &u64| {
            let slow = [*slow; 3].into_iter();
            let all = (0..97).map(|_| 1).chain(slow);
            all.map(Duration::from_millis).collect()
        };
        Times(slow.iter().map(window).collect())
    };
    let (calm, again) = (times(&[3, 4, 5, 9, 3]), times(&[3, 6, 4, 4, 3]));
    let away = |slow: &[u64]| times(slow).is_within_noise_of([&calm, &again]);
    assert!(away(&[3, 5, 4, 3, 900]));
    assert!(!away(&[3, 10, 10, 4, 10]));
    assert!(!away(&[250, 250, 250, 250, 250]));
    assert!(!times(&[3]).is_within_noise_of([&Times::default(), &Times::default()]));
}

/// Round trips of a window. It has a fifth as many Allocate transactions.
const WINDOW: usize = 1_000;
/// Windows of a minute, at least.
const WINDOWS: usize = 5;

/// A client with a channel to a peer that sends everything back, and one that allocates again and again.
struct Load {
    relay: Client,
    other: Client,
    number: u32,
}

impl Load {
    fn new(place: &Place, node: &Node) -> Load {
        let peer = UdpSocket::bind((place.clients, 0)).unwrap();
        let address = peer.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = peer.recv_from(&mut buffer) {
                let _ = peer.send_to(&buffer[..length], from);
            }
        });
        // Another node may still have units that its clients have just released.
        let mut held = Vec::new();
        node.fill_slowly(BLOCK, &mut held);
        release(&mut held);
        let [mut relay, mut other] = [node.client(), node.client()];
        assert_eq!(relay.allocate().code, 0);
        assert_eq!(relay.bind_channel(address).code, 0);
        assert_eq!(other.allocate().code, 0);
        assert_eq!(other.refresh(0).code, 0);
        Load {
            relay,
            other,
            number: 0,
        }
    }

    /// The times of relayed round trips and of Allocate, for so long.
    fn run(&mut self, time: Duration) -> [Times; 2] {
        let started = Instant::now();
        let [mut relayed, mut allocated] = [Times::default(), Times::default()];
        while started.elapsed() < time || relayed.0.len() < WINDOWS {
            let [of_relay, of_allocate] = self.window();
            relayed.0.push(of_relay);
            allocated.0.push(of_allocate);
        }
        [relayed, allocated]
    }

    fn window(&mut self) -> [Vec<Duration>; 2] {
        let (mut relayed, mut allocated) = (Vec::new(), Vec::new());
        while relayed.len() < WINDOW {
            self.number += 1;
            relayed.push(self.relay.round_trip(self.number).expect("it comes back"));
            if self.number.is_multiple_of(5) {
                let begun = Instant::now();
                assert_eq!(self.other.allocate().code, 0);
                allocated.push(begun.elapsed());
                assert_eq!(self.other.refresh(0).code, 0);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        [relayed, allocated]
    }
}

#[test]
#[ignore = "it takes three minutes"]
fn the_engine_is_away_or_restarted_empty() {
    with_places(|places: [Place; 4]| {
        let engine = &places[3];
        let redis = Redis::there(engine, REDIS);
        let nodes = three(&places, &url(engine.address, REDIS));
        let (mut held, over, took) = use_up(&nodes);
        row(
            "none",
            &format!(
                "a user at the limit on A is refused on B {} after the first attempt there, with {over} more",
                seconds(took)
            ),
        );
        release(&mut held);
        let (mut bob, mut ann) = bob_and_ann(&places, &nodes);
        let mut eve = registered(phone(&places[1], "eve"), &nodes[1]);
        call(&mut ann, &mut bob, "calm");
        let took = time_of_call(&mut ann, &mut bob, "time");
        row(
            "none",
            &format!(
                "a phone at A gets the call of a phone at B after {}",
                seconds(took)
            ),
        );
        away_for_a_minute(&places, &nodes, [&mut ann, &mut bob, &mut eve]);
        let (mut held, ..) = use_up(&nodes);
        drop(redis);
        std::thread::sleep(Duration::from_secs(3));
        refresh_all(&mut held);
        let _redis = Redis::there(engine, REDIS);
        let known = all_know(&nodes);
        let refused = all_refuse(&nodes, &mut held);
        let called = time_of_call(&mut ann, &mut bob, "empty");
        assert!(known + refused + called < HEALED);
        refresh_all(&mut held);
        row(
            "engine killed, and started empty after 3 s",
            &format!(
                "all allocations stay; nodes are known again after {}, the user is refused on all nodes {} later, and a phone at A gets a call from B {} later",
                seconds(known),
                seconds(refused),
                seconds(called)
            ),
        );
    });
}

/// The link of the engine is down: it neither responds nor refuses anything.
fn away_for_a_minute(places: &[Place; 4], nodes: &[Node; 3], phones: [&mut Phone; 3]) {
    let [ann, bob, eve] = phones;
    let minute = Duration::from_secs(60);
    let mut load = Load::new(&places[2], &nodes[2]);
    let up = || {
        nodes
            .each_ref()
            .map(|node| node.metric("hairpin_cluster_engine_up"))
    };
    let without_lease =
        || nodes[2].metric("hairpin_cluster_quota_attempts_total{outcome=\"blind\"}");
    let before = load.run(minute);
    assert_eq!((up(), without_lease()), ([1.0; 3], 0.0));
    places[3].shell("ip link set eth down");
    let during = load.run(minute);
    assert_eq!(up(), [0.0; 3]);
    assert!(
        without_lease() > 0.0,
        "Allocate used the limits of the node alone"
    );
    let local = time_of_call(ann, eve, "local");
    let (code, took) = refused(ann, "bob", "away");
    assert_eq!(code, 480);
    places[3].shell("ip link set eth up");
    let known = all_know(nodes);
    let called = time_of_call(ann, bob, "back");
    assert!(known + called < HEALED, "{known:?} {called:?}");
    let after = load.run(minute);
    assert_eq!(up(), [1.0; 3]);
    assert_eq!(load.relay.refresh(0).code, 0);
    row(
        "engine away for 60 s (link down)",
        &format!(
            "calls between phones of one node work ({}); a call to another node gets 480 after {}; nodes are known again after {}, and a phone at A gets a call from B {} later",
            seconds(local),
            seconds(took),
            seconds(known),
            seconds(called)
        ),
    );
    for (what, number) in [("a relayed round trip", 0), ("an Allocate transaction", 1)] {
        let [before, during, after] = [&before, &during, &after].map(|all| &all[number]);
        row(
            &format!("the same: time of {what}"),
            &format!(
                "calm: {before}; engine away: {during}; calm again: {after}; p99 over calm: {:.2} away, {:.2} calm again",
                during.p99_over(before),
                after.p99_over(before)
            ),
        );
        assert!(during.is_within_noise_of([before, after]), "{what}");
    }
}

#[test]
#[ignore = "it takes a minute"]
fn the_engine_is_slow_or_cut_off_from_one_node() {
    with_places(|places: [Place; 4]| {
        let engine = &places[3];
        let _redis = Redis::there(engine, REDIS);
        let proxy = engine.within(|| Proxy::start(engine.address, REDIS));
        let nodes = three(&places, &url(engine.address, proxy.port));
        let (mut bob, mut ann) = bob_and_ann(&places, &nodes);
        proxy.delay_ms.store(500, Ordering::Relaxed);
        let (mut held, over, refused_after) = use_up(&nodes);
        assert_eq!(all_know(&nodes).as_secs(), 0);
        let called = time_of_call(&mut ann, &mut bob, "slow");
        row(
            "engine slow: 500 ms for each request",
            &format!(
                "all nodes stay in all lists; a user at the limit on A is refused on B after {}, with {over} more; a phone at A gets a call from B after {}",
                seconds(refused_after),
                seconds(called)
            ),
        );
        proxy.delay_ms.store(0, Ordering::Relaxed);
        refresh_all(&mut held);
        cut_off(&places, &nodes, &mut held, [&mut ann, &mut bob]);
    });
}

/// A firewall drops what the second node and the engine send each other. Nodes and clients reach it.
fn cut_off(
    places: &[Place; 4],
    nodes: &[Node; 3],
    held: &mut Vec<Client>,
    [ann, bob]: [&mut Phone; 2],
) {
    let [a, b, _] = nodes;
    let engine = places[3].address;
    places[1].shell(&format!(
        "nft add table ip cut; nft add chain ip cut out '{{ type filter hook output priority 0; }}'; \
         nft add rule ip cut out ip daddr {engine} drop"
    ));
    let gone = soon("the others miss it", || a.names("serving") == ["a", "c"]);
    let before = held.len();
    soon("its lease has ended", || b.fill(1, held) == 1);
    b.fill(MAX_ALLOCATIONS, held);
    let over = held.len() - before;
    assert!(over <= MAX_ALLOCATIONS, "{over}");
    // A call from C goes to nobody, although B serves.
    let (code, took) = refused(ann, "bob", "cut");
    assert_eq!(code, 480);
    places[1].shell("nft delete table ip cut");
    let known = all_know(nodes);
    let refused = all_refuse(nodes, held);
    let called = time_of_call(ann, bob, "healed");
    assert!(known + refused + called < HEALED, "{known:?} {called:?}");
    refresh_all(held);
    row(
        "B cut off from the engine (firewall)",
        &format!(
            "the others miss it after {}; it gave a user at the limit {over} more; its callers get 480 for a phone at A after {}; it is back in {}, the user is refused on all nodes {} later, and a phone at A gets a call from B {} later",
            seconds(gone),
            seconds(took),
            seconds(known),
            seconds(refused),
            seconds(called)
        ),
    );
}

#[test]
#[ignore = "it takes half a minute"]
fn another_master_takes_over_as_sentinels_decide() {
    with_places(|places: [Place; 4]| {
        let engines = Engines::sentinel_at(&places[0].clients.to_string());
        let fault = "master killed, and another one elected by Sentinels";
        another_master_takes_over(&places, engines, 0, fault);
    });
}

#[test]
#[ignore = "it takes half a minute"]
fn another_master_takes_over_in_a_redis_cluster() {
    with_places(|places: [Place; 4]| {
        let engines = Engines::cluster_at(&places[0].clients.to_string(), 1);
        let master = engines.master_of("{hairpin}:nodes");
        let fault = "Redis Cluster of three masters: the one with the nodes killed";
        another_master_takes_over(&places, engines, master, fault);
    });
}

fn another_master_takes_over(
    places: &[Place; 4],
    mut engines: Engines,
    master: usize,
    fault: &str,
) {
    let nodes = three(places, &engines.url());
    let (mut held, over, took) = use_up(&nodes);
    row(
        fault,
        &format!(
            "before it: a user at the limit on A is refused on B {} after the first attempt there, with {over} more",
            seconds(took)
        ),
    );
    let (mut bob, mut ann) = bob_and_ann(places, &nodes);
    call(&mut ann, &mut bob, "calm");
    engines.servers[master].kill();
    let killed = Instant::now();
    let up = |node: &Node| node.metric("hairpin_cluster_engine_up");
    wait_until("a node notices it", || up(&nodes[0]) == 0.0);
    refresh_all(&mut held);
    wait_until("the new master responds", || {
        nodes.iter().all(|node| up(node) == 1.0)
    });
    let responds = killed.elapsed();
    let known = all_know(&nodes);
    let before = held.len();
    let refused = all_refuse(&nodes, &mut held);
    let over = held.len() - before;
    let called = time_of_call(&mut ann, &mut bob, "after");
    assert!(known + refused + called < HEALED, "{known:?} {called:?}");
    refresh_all(&mut held);
    row(
        fault,
        &format!(
            "all allocations stay; the new master responds to all nodes {} after the end of the old one; nodes are known again {} later, the user is refused on all nodes {} later, with {over} more, and a phone at A gets a call from B {} later",
            seconds(responds),
            seconds(known),
            seconds(refused),
            seconds(called)
        ),
    );
}

#[test]
#[ignore = "it takes three minutes"]
fn a_node_is_killed_or_paused() {
    with_places(|places: [Place; 4]| {
        let engine = &places[3];
        let _redis = Redis::there(engine, REDIS);
        let mut nodes = three(&places, &url(engine.address, REDIS));
        let (mut bob, mut ann) = bob_and_ann(&places, &nodes);
        call(&mut ann, &mut bob, "calm");
        nodes[0].kill();
        let gone = soon("B misses A", || nodes[1].names("serving") == ["b", "c"]);
        let (code, took) = refused(&mut ann, "bob", "killed");
        assert_eq!(code, 480);
        let again = Instant::now();
        nodes[0].start_again();
        all_know(&nodes);
        let known = again.elapsed();
        assert!(known < HEALED, "{known:?}");
        assert!(lists(&nodes[0], &bob));
        row(
            "A killed, and started again",
            &format!(
                "B misses it after {}; then a call for its phone gets 480 after {}; all nodes know it {} after its start, and it has its bindings",
                seconds(gone),
                seconds(took),
                seconds(known)
            ),
        );
        for pause in [30, 70] {
            paused(&places, &nodes, pause, &mut ann);
        }
    });
}

/// While the first node is paused, a phone of it registers at the third one.
fn paused(places: &[Place; 4], nodes: &[Node; 3], pause: u64, ann: &mut Phone) {
    let [a, b, c] = nodes;
    let [mut old, mut new] = [phone(&places[0], "eve"), phone(&places[2], "eve")];
    let call_id = |number: u32| format!("paused{pause}at{number}");
    register_instance(&mut old, 1, &call_id(1), a);
    let (mut held, ..) = use_up(nodes);
    let removed = moved(a);
    // The engine says nothing of REGISTERs that come within 2 s.
    std::thread::sleep(Duration::from_secs(3));
    signal(a.serve.id(), "STOP");
    let started = Instant::now();
    let gone = soon("B misses A", || b.names("serving") == ["b", "c"]);
    register_instance(&mut new, 1, &call_id(2), c);
    let elsewhere = time_of_call(ann, &mut new, &call_id(3));
    std::thread::sleep(Duration::from_secs(pause).saturating_sub(started.elapsed()));
    signal(a.serve.id(), "CONT");
    let known = all_know(nodes);
    let refused = all_refuse(nodes, &mut held);
    let dropped = soon("A removes the binding", || moved(a) == removed + 1.0);
    assert!(!lists(a, &old) && lists(c, &new));
    assert!(known + refused + dropped < HEALED, "{known:?} {dropped:?}");
    refresh_all(&mut held);
    row(
        &format!("A paused for {pause} s (SIGSTOP)"),
        &format!(
            "B misses it after {}; a phone that registers at C meanwhile gets a call after {}; A is back in {}, its allocations are there, the user is refused on all nodes {} later, and A removes the binding of the phone {} later",
            seconds(gone),
            seconds(elsewhere),
            seconds(known),
            seconds(refused),
            seconds(dropped)
        ),
    );
    release(&mut held);
}

#[test]
#[ignore = "it takes half a minute"]
fn the_clock_of_a_node_is_wrong() {
    for clock in ["+60s", "-60s"] {
        with_places(move |places: [Place; 4]| {
            let [a, b, c, engine] = &places;
            let _redis = Redis::there(engine, REDIS);
            let url = url(engine.address, REDIS);
            let nodes = [
                node(a, "a", &url, None),
                node(b, "b", &url, None),
                node(c, "c", &url, Some(clock)),
            ];
            let known = all_know(&nodes);
            let (mut held, over, took) = use_up(&nodes);
            let refused = all_refuse(&nodes, &mut held);
            let mut client = nodes[0].client();
            release(&mut held);
            soon("the user has units left", || client.allocate().code == 0);
            client.server = nodes[2].serve.address();
            soon("there, too", || client.allocate().code == 0);
            assert_eq!(client.challenges, 1);
            let mut bob = registered(phone(a, "bob"), &nodes[0]);
            let mut eve = registered(phone(c, "eve"), &nodes[2]);
            call(&mut eve, &mut bob, "from");
            call(&mut bob, &mut eve, "to");
            row(
                &format!("clock of C {clock} (libfaketime)"),
                &format!(
                    "all nodes know it after {}; a user at the limit on A is refused on B after {}, with {over} more, and on C {} later; a client of A has no new challenge at C; phones of A and C call each other",
                    seconds(known),
                    seconds(took),
                    seconds(refused)
                ),
            );
        });
    }
}
