//! What a cluster does when something fails. It takes four minutes, and prints the table of docs/cluster.md:
//! `cargo test -p hairpin --test suite -- --ignored --nocapture --test-threads=1 cluster_faults::`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::nodes::{Node, Redis, signal, soon, three, with_engine};
use crate::common::turn::Client;

const MAX_ALLOCATIONS: usize = 16;
const QUOTA: &str =
    "[limits]\nallocations_per_user = 16\nallocations_per_source = 100000\nallocations = 100000";

pub(crate) fn row(fault: &str, seen: &str) {
    println!("| {fault} | {seen} |");
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Waits until all these nodes know all names, and returns how long that took.
pub(crate) fn until_all_know(nodes: &[&Node], names: &[&str]) -> Duration {
    let started = Instant::now();
    for node in nodes {
        soon("all nodes", || node.names("serving") == names);
    }
    started.elapsed()
}

/// Nodes with the quota of one user used up on the first one.
fn full(nodes: &[Node; 3]) -> Vec<Client> {
    let mut held = Vec::new();
    nodes[0].fill_slowly(MAX_ALLOCATIONS, &mut held);
    soon("the second node refuses", || {
        nodes[1].fill(1, &mut held) == 0
    });
    held
}

/// The time of Allocate and Refresh to zero, of so many clients: median and 99th percentile.
fn time_of_allocate(node: &Node, count: usize) -> (Duration, Duration) {
    let mut client = node.client();
    assert_eq!(client.allocate().code, 0);
    assert_eq!(client.refresh(0).code, 0);
    let mut times: Vec<_> = (0..count)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(client.allocate().code, 0);
            let time = started.elapsed();
            assert_eq!(client.refresh(0).code, 0);
            time
        })
        .collect();
    times.sort_unstable();
    (times[count / 2], times[count * 99 / 100])
}

pub(crate) fn refresh_all(held: &mut [Client]) {
    for client in held {
        assert_eq!(client.refresh(600).code, 0, "what runs goes on");
    }
}

/// Stands between a node and the engine: it can delay what the node sends, and cut it off.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) delay_ms: Arc<AtomicU64>,
    is_cut: Arc<AtomicBool>,
}

impl Proxy {
    /// At another port of the same address.
    pub(crate) fn start(address: Ipv4Addr, to: u16) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            delay_ms: Arc::default(),
            is_cut: Arc::default(),
        };
        let (delay, cut) = (Arc::clone(&proxy.delay_ms), Arc::clone(&proxy.is_cut));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect((address, to));
                let Ok(far) = far else { continue };
                for (from, to, delays) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (delay, cut) = (Arc::clone(&delay), Arc::clone(&cut));
                    std::thread::spawn(move || copy(from, to, &cut, delays.then_some(&*delay)));
                }
            }
        });
        proxy
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool, delay: Option<&AtomicU64>) {
    let mut buffer = [0; 65_536];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 || cut.load(Ordering::Relaxed) {
            break;
        }
        if let Some(delay) = delay {
            std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
#[ignore = "it takes a minute"]
fn the_engine_is_away_for_a_minute() {
    let redis = Redis::start();
    let nodes = three(&redis, QUOTA);
    let [a, b, c] = &nodes;
    until_all_know(&[a, b, c], &["a", "b", "c"]);
    let calm = time_of_allocate(c, 2_000);
    let mut held = full(&nodes);
    redis.signal("STOP");
    let away = Instant::now();
    let noticed = soon("a node says it", || {
        b.page("/readyz").contains("has not responded")
    });
    assert_eq!(b.fill(1, &mut held), 0, "the limit last known");
    let blind = soon("the lease has ended", || b.fill(1, &mut held) == 1);
    assert!(b.metric("hairpin_cluster_quota_attempts_total{outcome=\"blind\"}") >= 1.0);
    let during = time_of_allocate(c, 2_000);
    refresh_all(&mut held);
    assert_eq!(b.metric("hairpin_cluster_engine_up"), 0.0);
    std::thread::sleep(Duration::from_secs(60).saturating_sub(away.elapsed()));
    refresh_all(&mut held);
    redis.signal("CONT");
    let back = until_all_know(&[a, b, c], &["a", "b", "c"]);
    let refused = soon("all refuse again", || {
        nodes.iter().all(|node| node.fill(1, &mut held) == 0)
    });
    assert!(
        back + refused < Duration::from_secs(10),
        "{back:?} {refused:?}"
    );
    row(
        "engine away for 60 s (SIGSTOP)",
        &format!(
            "said by `/readyz` after {}; a refused user stayed refused for {} more, then the node applied its own limit; all allocations could be refreshed; back in {}, user refused on all nodes after {} more",
            seconds(noticed),
            seconds(blind),
            seconds(back),
            seconds(refused)
        ),
    );
    row(
        "the same: time of an Allocate transaction",
        &format!(
            "calm: median {:?}, p99 {:?}; engine away: median {:?}, p99 {:?}",
            calm.0, calm.1, during.0, during.1
        ),
    );
}

#[test]
#[ignore = "it takes half a minute"]
fn the_engine_is_restarted_empty() {
    let redis = Redis::start();
    let nodes = three(&redis, QUOTA);
    let [a, b, c] = &nodes;
    until_all_know(&[a, b, c], &["a", "b", "c"]);
    let mut held = full(&nodes);
    let port = redis.port;
    drop(redis);
    std::thread::sleep(Duration::from_secs(3));
    refresh_all(&mut held);
    let redis = Redis::at(port);
    let back = until_all_know(&[a, b, c], &["a", "b", "c"]);
    soon("each has noticed", || {
        nodes
            .iter()
            .all(|node| node.metric("hairpin_cluster_engine_restarts_total") == 1.0)
    });
    let refused = soon("all refuse", || {
        nodes.iter().all(|node| node.fill(1, &mut held) == 0)
    });
    let asked = redis.ask(&["info", "commandstats"]);
    let asked = asked
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let asked = asked
        .and_then(|text| text.split(',').next())
        .unwrap_or("0")
        .to_owned();
    assert!(back + refused < Duration::from_secs(10));
    refresh_all(&mut held);
    row(
        "engine killed, and started empty after 3 s",
        &format!(
            "nodes known again after {}, user refused on all nodes after {} more; {asked} requests to the engine until then",
            seconds(back),
            seconds(refused)
        ),
    );
}

#[test]
#[ignore = "it takes half a minute"]
fn the_engine_is_slow_or_cut_off_from_one_node() {
    let redis = Redis::start();
    let proxy = Proxy::start(Ipv4Addr::LOCALHOST, redis.port);
    let [direct, through] = [redis.port, proxy.port].map(with_engine);
    let nodes = [
        Node::start("a", &direct, QUOTA, None),
        Node::start("b", &through, QUOTA, None),
        Node::start("c", &direct, QUOTA, None),
    ];
    let [a, b, c] = &nodes;
    until_all_know(&[a, b, c], &["a", "b", "c"]);
    let mut held = full(&nodes);
    let calm = time_of_allocate(c, 500);
    held.drain(..).for_each(|mut client| {
        client.refresh(0);
    });
    proxy.delay_ms.store(500, Ordering::Relaxed);
    let slow = time_of_allocate(b, 500);
    assert_eq!(until_all_know(&[a, c], &["a", "b", "c"]).as_secs(), 0);
    row(
        "engine slow: 500 ms per request of one node",
        &format!(
            "the node stays in the list of the others; Allocate there: median {:?}, p99 {:?} (another node in calm: {:?}, {:?})",
            slow.0, slow.1, calm.0, calm.1
        ),
    );
    proxy.delay_ms.store(0, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(2));
    a.fill_slowly(MAX_ALLOCATIONS, &mut held);
    proxy.is_cut.store(true, Ordering::Relaxed);
    let gone = soon("the others miss it", || a.names("serving") == ["a", "c"]);
    let over = b.fill(MAX_ALLOCATIONS, &mut held);
    assert_eq!(over, MAX_ALLOCATIONS, "too much, never too little");
    assert_eq!(b.names("serving"), ["a", "b", "c"], "the nodes last known");
    proxy.is_cut.store(false, Ordering::Relaxed);
    let back = until_all_know(&[a, b, c], &["a", "b", "c"]);
    let refused = soon("all refuse", || {
        nodes.iter().all(|node| node.fill(1, &mut held) == 0)
    });
    assert!(back + refused < Duration::from_secs(10));
    refresh_all(&mut held);
    let blind = b.metric("hairpin_cluster_quota_attempts_total{outcome=\"blind\"}");
    row(
        "one node cut off from the engine",
        &format!(
            "the others miss it after {}; it gave a user at the limit {over} more (`blind`: {blind}); back in {}, user refused on all nodes after {} more",
            seconds(gone),
            seconds(back),
            seconds(refused)
        ),
    );
}

#[test]
#[ignore = "it takes a minute"]
fn a_node_is_killed_or_paused_or_has_another_clock() {
    let redis = Redis::start();
    let nodes = three(&redis, QUOTA);
    let [a, b, c] = &nodes;
    until_all_know(&[a, b, c], &["a", "b", "c"]);
    let mut held = Vec::new();
    c.fill_slowly(MAX_ALLOCATIONS, &mut held);
    soon("another node refuses", || b.fill(1, &mut held) == 0);
    let mut elsewhere = held.split_off(MAX_ALLOCATIONS);
    signal(c.serve.id(), "STOP");
    let paused = Instant::now();
    let gone = soon("the others miss it", || a.names("serving") == ["a", "b"]);
    let free = soon("its leases have ended", || b.fill(1, &mut elsewhere) == 1);
    std::thread::sleep(Duration::from_secs(30).saturating_sub(paused.elapsed()));
    signal(c.serve.id(), "CONT");
    let back = until_all_know(&[a, b, c], &["a", "b", "c"]);
    let refused = soon("all refuse", || {
        nodes.iter().all(|node| node.fill(1, &mut elsewhere) == 0)
    });
    refresh_all(&mut held);
    refresh_all(&mut elsewhere);
    assert!(back + refused < Duration::from_secs(10));
    row(
        "node paused for 30 s",
        &format!(
            "the others miss it after {}, and its lease ends {} later; back in {}, its allocations are there, user refused on all nodes after {} more",
            seconds(gone),
            seconds(free),
            seconds(back),
            seconds(refused)
        ),
    );
    signal(c.serve.id(), "KILL");
    let gone = soon("the others miss it", || a.names("serving") == ["a", "b"]);
    let again = Node::start("c", &with_engine(redis.port), QUOTA, Some("+60s"));
    let back = until_all_know(&[a, b, &again], &["a", "b", "c"]);
    assert!(back < Duration::from_secs(10));
    row(
        "node killed, and started again",
        &format!(
            "the others miss it after {}, and know it {} after its start",
            seconds(gone),
            seconds(back)
        ),
    );
    elsewhere.drain(..).for_each(|mut client| {
        client.refresh(0);
    });
    let mut client = a.client();
    soon("the user has units left", || client.allocate().code == 0);
    client.server = again.serve.address();
    assert_eq!(client.allocate().code, 0);
    assert_eq!(client.challenges, 1);
    let output = again.run(&["sessions", "kill", "--user", crate::common::turn::USER]);
    assert!(output.status.success());
    client.server = a.serve.address();
    let ended = soon("its order was obeyed", || client.refresh(600).code == 437);
    row(
        "clock 60 s ahead on one node (libfaketime)",
        &format!(
            "it is in all lists, its clients change nodes without a challenge, and its orders are obeyed ({})",
            seconds(ended)
        ),
    );
}
