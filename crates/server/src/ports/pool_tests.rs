//! What the port pool promises: no port twice, none left behind, none back too soon, none to be guessed.

use super::*;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

fn pool(first: u16, last: u16, workers: usize) -> PortPool {
    PortPool::new(PortRange::new(first, last).expect("a valid range"), workers)
}

#[test]
fn ranges_are_checked() {
    assert_eq!(PortRange::new(2_000, 1_999), Err(PortRangeError::Reversed));
    assert_eq!(PortRange::new(1_023, 5_000), Err(PortRangeError::WellKnown));
    assert_eq!(PortRange::new(5_000, 5_000).map(PortRange::len), Ok(1));
    assert_eq!(PortRange::DYNAMIC.len(), 16_384);
}

#[test]
fn one_worker_gets_every_port_of_all_leases_and_then_none() {
    for (first, last, workers) in [
        (50_001, 50_001, 1),
        (50_001, 50_258, 4),
        (65_000, 65_535, 2),
        (49_152, 65_535, 8),
        (1_024, 1_030, 64),
    ] {
        let pool = pool(first, last, workers);
        let mut entropy = Entropy::new();
        let taken: HashSet<u16> =
            std::iter::from_fn(|| pool.take(workers - 1, PortSelection::Any, 0, &mut entropy))
                .collect();
        assert_eq!(
            taken,
            (first..=last).collect::<HashSet<_>>(),
            "{first}-{last} with {workers} workers"
        );
    }
}

/// The ports whose bits are in one cache line.
const LINE_PORTS: usize = 512;

#[test]
fn a_worker_prefers_its_lease() {
    let pool = pool(49_152, 65_535, 4);
    let mut entropy = Entropy::new();
    for _ in 0..4_096 {
        let port = pool
            .take(3, PortSelection::Any, 0, &mut entropy)
            .expect("a quarter of the ports is leased to worker 3");
        assert_eq!((usize::from(port) - 49_152) / LINE_PORTS % 4, 3);
    }
    let stolen = pool
        .take(3, PortSelection::Any, 0, &mut entropy)
        .expect("others have ports left");
    assert_ne!((usize::from(stolen) - 49_152) / LINE_PORTS % 4, 3);
}

#[test]
fn no_two_workers_write_to_one_cache_line() {
    let pool = pool(49_152, 65_535, 4);
    let mut entropy = Entropy::new();
    let mut workers = HashMap::new();
    for turn in 0..4 * 3_000 {
        let worker = turn % 4;
        let port = pool
            .take(worker, PortSelection::Any, 0, &mut entropy)
            .expect("ports are left");
        let line =
            std::ptr::from_ref(&pool.free[pool.place(port).expect("it is ours").0]).addr() / 64;
        assert_eq!(*workers.entry(line).or_insert(worker), worker);
    }
    assert_eq!(workers.len(), 32, "all lines are in use");
}

#[test]
fn with_more_workers_than_cache_lines_each_has_ports_of_its_own() {
    let pool = pool(50_176, 50_176 + 1_023, 5);
    let mut entropy = Entropy::new();
    for worker in 0..5 {
        let port = pool
            .take(worker, PortSelection::Any, 0, &mut entropy)
            .expect("ports are left");
        assert_eq!((usize::from(port) - 50_176) / LINE_PORTS, worker % 2);
    }
}

#[test]
fn even_ports_and_pairs() {
    let pool = pool(50_001, 50_010, 1);
    let mut entropy = Entropy::new();
    let even = pool
        .take(0, PortSelection::Even, 0, &mut entropy)
        .expect("five even ports are free");
    assert_eq!(even % 2, 0);
    let mut pairs = Vec::new();
    while let Some(pair) = pool.take(0, PortSelection::Pair, 0, &mut entropy) {
        assert_eq!(pair % 2, 0);
        pairs.push(pair);
    }
    // Five even ports: one is taken, and 50010 has no odd twin inside the range.
    let expected = if even == 50_010 { 4 } else { 3 };
    assert_eq!(pairs.len(), expected, "{pairs:?} after {even}");
    assert_eq!(
        std::iter::from_fn(|| pool.take(0, PortSelection::Any, 0, &mut entropy)).count(),
        10 - 1 - 2 * expected
    );
}

#[test]
fn a_freed_port_rests_while_others_are_free() {
    let pool = pool(50_000, 50_255, 2);
    let mut entropy = Entropy::new();
    let first = pool
        .take(0, PortSelection::Any, 100, &mut entropy)
        .expect("256 ports are free");
    pool.release(first);
    let freed = pool
        .take(0, PortSelection::Any, 100, &mut entropy)
        .expect("255 ports are free");
    pool.release(freed);
    let until_rested = 100 + PortPool::REST.as_secs() - 1;
    for _ in 0..250 {
        assert_ne!(
            pool.take(0, PortSelection::Any, until_rested, &mut entropy),
            Some(freed)
        );
    }
}

#[test]
fn a_rested_port_comes_back() {
    let pool = pool(50_000, 50_001, 1);
    let mut entropy = Entropy::new();
    let rest = PortPool::REST.as_secs();
    let first = pool
        .take(0, PortSelection::Any, 100, &mut entropy)
        .expect("two ports");
    pool.release(first);
    assert_eq!(
        pool.take(0, PortSelection::Any, 101, &mut entropy),
        Some(first ^ 1),
        "the freed one rests"
    );
    assert_eq!(
        pool.take(0, PortSelection::Any, 100 + 4 * rest, &mut entropy),
        Some(first)
    );
}

#[test]
fn resting_ports_are_better_than_none_and_the_longest_rested_comes_first() {
    let pool = pool(50_000, 50_063, 1);
    let mut entropy = Entropy::new();
    let all: Vec<u16> =
        std::iter::from_fn(|| pool.take(0, PortSelection::Any, 1, &mut entropy)).collect();
    let (early, late) = all.split_at(32);
    early.iter().for_each(|&port| pool.release(port));
    let again = pool
        .take(0, PortSelection::Any, 1, &mut entropy)
        .expect("resting ports are used when nothing else is left");
    assert!(early.contains(&again));
    late.iter().for_each(|&port| pool.release(port));
    for _ in 1..32 {
        let port = pool
            .take(0, PortSelection::Any, 1, &mut entropy)
            .expect("31 longer rested ports");
        assert!(early.contains(&port), "{port} had rested less");
    }
}

#[test]
fn churn_does_not_hand_a_port_on_at_once() {
    let pool = pool(49_152, 65_535, 2);
    let mut entropy = Entropy::new();
    let mut last_use: HashMap<u16, u32> = HashMap::new();
    let mut shortest = u32::MAX;
    for round in 0..100_000 {
        let port = pool
            .take(0, PortSelection::Any, 1, &mut entropy)
            .expect("ports rest, but are never lost");
        if let Some(before) = last_use.insert(port, round) {
            shortest = shortest.min(round - before);
        }
        pool.release(port);
    }
    assert!(
        shortest > 10_000,
        "a port came back after {shortest} others"
    );
}

#[test]
fn a_foreign_port_is_left_alone_for_a_while() {
    let pool = pool(50_000, 50_001, 1);
    let mut entropy = Entropy::new();
    let foreign = pool
        .take(0, PortSelection::Any, 1, &mut entropy)
        .expect("two ports");
    pool.give_back_foreign(foreign);
    let ours = pool
        .take(0, PortSelection::Any, 1, &mut entropy)
        .expect("one port");
    assert_eq!(
        pool.take(0, PortSelection::Any, 2, &mut entropy),
        None,
        "the foreign port is not tried although nothing else is left"
    );
    pool.release(ours);
    let later = 1 + 10 * PortPool::REST.as_secs();
    let again: HashSet<_> = (0..8)
        .filter_map(|i| pool.take(0, PortSelection::Any, later * (i + 1), &mut entropy))
        .collect();
    assert!(again.contains(&foreign), "it is tried again later");
}

#[test]
fn ports_are_spread_and_not_in_sequence() {
    let pool = pool(49_152, 65_535, 2);
    let mut entropy = Entropy::new();
    let ports: Vec<u16> = (0..1_000)
        .filter_map(|_| pool.take(1, PortSelection::Any, 0, &mut entropy))
        .collect();
    let near = ports
        .windows(2)
        .filter(|pair| pair[0].abs_diff(pair[1]) < 16)
        .count();
    assert!(near < 30, "{near} of 999 successive ports are neighbours");
    let halves = ports.iter().filter(|&&port| port < 57_344).count();
    assert!(
        (400..600).contains(&halves),
        "{halves} of 1000 are in the lower half"
    );
}

#[test]
fn concurrent_workers_share_without_doubles_and_without_false_shortage() {
    let pool = Arc::new(pool(50_000, 50_511, 4));
    let held_by_all = Arc::new(Mutex::new(HashSet::new()));
    let threads: Vec<_> = (0..4)
        .map(|worker| {
            let (pool, held_by_all) = (Arc::clone(&pool), Arc::clone(&held_by_all));
            std::thread::spawn(move || {
                let mut entropy = Entropy::new();
                let mut mine = Vec::new();
                for round in 0..20_000_u64 {
                    // 4 x 128 = all 512 ports: a thread with fewer than 128 must always find one.
                    if mine.len() < 128 {
                        let port = pool
                            .take(worker, PortSelection::Any, round / 1_000, &mut entropy)
                            .expect("a port must be left");
                        assert!(
                            held_by_all.lock().expect("no thread panics").insert(port),
                            "port {port} was handed out twice"
                        );
                        mine.push(port);
                    } else {
                        for port in mine.drain(..1 + entropy.below(127)) {
                            assert!(held_by_all.lock().expect("no thread panics").remove(&port));
                            pool.release(port);
                        }
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("the assertions hold"));
}
