//! Many nodes and one engine in virtual time.

use super::super::model::Model;
use super::*;

const KEY: &str = "u:example.org/alice";

/// What is on its way: when it arrives, and what was asked.
struct InFlight {
    at_ms: u64,
    node: usize,
    requests: Vec<Request>,
    /// Responses on their way back; `None` on the way to the engine.
    granted: Option<Vec<Option<u32>>>,
}

struct Node {
    leases: Leases,
    is_engine_up: bool,
    is_alive: bool,
    waits: bool,
    /// The engine does not reach it, nor it the engine.
    is_cut_off: bool,
    next_ms: u64,
}

struct World {
    now_ms: u64,
    engine: Model,
    is_engine_up: bool,
    /// The engine rejects requests of this key.
    bad: Option<LeaseKey>,
    nodes: Vec<Node>,
    flying: Vec<InFlight>,
    delay_ms: u64,
    asked: u64,
    seed: u64,
}

impl World {
    fn new(nodes: usize, delay_ms: u64) -> World {
        let node = |_| Node {
            leases: Leases::default(),
            is_engine_up: true,
            is_alive: true,
            waits: false,
            is_cut_off: false,
            next_ms: 0,
        };
        World {
            now_ms: 1_000,
            engine: Model::default(),
            is_engine_up: true,
            bad: None,
            nodes: (0..nodes).map(node).collect(),
            flying: Vec::new(),
            delay_ms,
            asked: 0,
            seed: 7,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.seed >> 33) % below
    }

    fn acquire(&mut self, node: usize, limit: u32) -> Acquired {
        let it = &mut self.nodes[node];
        it.leases.acquire(KEY, limit, self.now_ms, it.is_engine_up)
    }

    fn used(&self) -> u32 {
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        alive.map(|node| node.leases.used(KEY)).sum()
    }

    /// One millisecond.
    fn step(&mut self) {
        self.now_ms += 1;
        let (now, delay) = (self.now_ms, self.delay_ms);
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            if !node.is_alive || node.waits || node.next_ms > now {
                continue;
            }
            let mut requests = Vec::new();
            node.leases.collect(now, 64, &mut requests);
            if requests.is_empty() {
                continue;
            }
            node.waits = true;
            self.asked += requests.len() as u64;
            self.flying.push(InFlight {
                at_ms: now + delay,
                node: number,
                requests,
                granted: None,
            });
        }
        let flying = std::mem::take(&mut self.flying);
        let (due, later): (Vec<_>, Vec<_>) = flying.into_iter().partition(|it| it.at_ms <= now);
        self.flying = later;
        for flight in due {
            self.arrive(flight);
        }
    }

    fn arrive(&mut self, mut flight: InFlight) {
        let now = self.now_ms;
        let node = &mut self.nodes[flight.node];
        if !node.is_alive {
            return;
        }
        match flight.granted.take() {
            None if self.is_engine_up && !node.is_cut_off => {
                let name = flight.node.to_string();
                let grant = |request: &Request| {
                    let is_bad = self.bad.as_ref() == Some(&request.key);
                    (!is_bad).then(|| self.engine.lease(&name, request, now))
                };
                flight.granted = Some(flight.requests.iter().map(grant).collect());
                flight.at_ms = now + self.delay_ms;
                self.flying.push(flight);
            }
            None => {
                node.waits = false;
                node.is_engine_up = false;
                node.next_ms = now + 500;
                for request in &flight.requests {
                    node.leases.failed(request, now + 500);
                }
            }
            Some(granted) => {
                node.waits = false;
                node.is_engine_up |= granted.iter().any(Option::is_some);
                for (request, granted) in flight.requests.iter().zip(granted) {
                    match granted {
                        Some(granted) => node.leases.granted(request, granted, now),
                        None => node.leases.failed(request, now + 500),
                    }
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }
}

#[test]
fn one_node_gets_the_whole_limit_and_nothing_beyond() {
    for limit in [1, 2, 3, 10, 100, 1_000] {
        let mut world = World::new(3, 2);
        let mut got = 0;
        for _ in 0..limit * 3 {
            got += u32::from(world.acquire(0, limit) != Acquired::Refused);
            world.run(10);
        }
        assert_eq!(got, limit, "of {limit}");
    }
}

#[test]
fn a_user_at_the_limit_gets_at_most_a_block_more_per_node_and_is_refused_within_a_second() {
    let limit = 100;
    let mut world = World::new(5, 40);
    for _ in 0..limit {
        assert_ne!(world.acquire(0, limit), Acquired::Refused);
        world.run(100);
    }
    for node in 1..5 {
        let mut more = 0;
        while world.acquire(node, limit) != Acquired::Refused {
            more += 1;
            assert!(more <= block(limit), "node {node} gave {more}");
        }
        world.run(1_000);
        for _ in 0..20 {
            assert_eq!(world.acquire(node, limit), Acquired::Refused);
            world.run(50);
        }
    }
    assert!(world.used() <= limit + 4 * block(limit));
}

#[test]
fn a_node_can_use_released_quota_of_another_within_a_second() {
    let limit = 16;
    let mut world = World::new(2, 5);
    for _ in 0..limit {
        assert_ne!(world.acquire(0, limit), Acquired::Refused);
        world.run(50);
    }
    let _ = world.acquire(1, limit);
    world.run(1_000);
    assert_eq!(world.acquire(1, limit), Acquired::Refused);
    // The overdraft and three more.
    for _ in 0..limit {
        world.nodes[0].leases.release(KEY);
    }
    let mut refused = 0;
    while world.acquire(1, limit) == Acquired::Refused {
        world.run(50);
        refused += 1;
        assert!(refused <= 20, "a second is over");
    }
    let mut got = world.used();
    for _ in 0..200 {
        got += u32::from(world.acquire(1, limit) != Acquired::Refused);
        world.run(20);
    }
    assert_eq!((got, world.used()), (limit, limit));
}

#[test]
fn random_use_of_many_nodes_stays_near_the_limit_and_returns_all_leases() {
    let (limit, nodes) = (64, 8);
    let mut world = World::new(nodes, 3);
    for _ in 0..20_000 {
        let node = usize::try_from(world.random(nodes as u64)).unwrap();
        if world.random(100) < 55 {
            let _ = world.acquire(node, limit);
        } else if world.nodes[node].leases.used(KEY) > 0 {
            world.nodes[node].leases.release(KEY);
        }
        assert!(world.used() <= limit + nodes as u32 * block(limit));
        world.step();
    }
    for node in 0..nodes {
        while world.nodes[node].leases.used(KEY) > 0 {
            world.nodes[node].leases.release(KEY);
        }
    }
    world.run(2_000);
    assert_eq!(world.engine.leased(KEY, world.now_ms), 0);
    assert_eq!(world.engine.keys(), 0);
    assert!(world.nodes.iter().all(|node| node.leases.is_empty()));
}

#[test]
fn the_units_of_a_dead_node_are_free_after_the_time_to_live() {
    let limit = 40;
    let mut world = World::new(2, 5);
    for _ in 0..limit {
        let _ = world.acquire(0, limit);
        world.run(20);
    }
    assert_eq!(world.used(), limit);
    world.nodes[0].is_alive = false;
    let died = world.now_ms;
    let mut got = 0;
    while got < limit {
        got += u32::from(world.acquire(1, limit) != Acquired::Refused);
        world.run(50);
        assert!(world.now_ms < died + 15_000, "{got} after 15 s");
    }
}

#[test]
fn without_an_engine_the_last_answer_holds_for_its_time_and_then_nobody_is_refused() {
    let limit = 8;
    let mut world = World::new(2, 5);
    for _ in 0..limit {
        let _ = world.acquire(0, limit);
        world.run(50);
    }
    let _ = world.acquire(1, limit);
    world.run(500);
    assert_eq!(world.acquire(1, limit), Acquired::Refused);
    world.is_engine_up = false;
    world.run(1_000);
    assert_eq!(
        world.acquire(1, limit),
        Acquired::Refused,
        "the limit last known"
    );
    world.run(TTL_MS);
    // Too much, never too little.
    for _ in 0..limit {
        assert_eq!(world.acquire(1, limit), Acquired::Blind);
    }
    let used = world.used();
    world.is_engine_up = true;
    world.run(2_000);
    for node in [0, 1] {
        assert_eq!(world.acquire(node, limit), Acquired::Refused);
    }
    assert_eq!(world.used(), used, "what runs goes on");
    assert_eq!(world.engine.leased(KEY, world.now_ms), used);
}

#[test]
fn an_engine_that_was_restarted_empty_knows_all_again_without_a_storm() {
    let limit = 1_000;
    let mut world = World::new(4, 5);
    for number in 0..400 {
        let key = format!("u:r/{number}");
        for node in 0..4 {
            let it = &mut world.nodes[node];
            let _ = it.leases.acquire(&key, limit, world.now_ms, true);
        }
    }
    world.run(1_000);
    let before = world.engine.leased("u:r/7", world.now_ms);
    assert!(before >= 4);
    world.engine.restart();
    for node in &mut world.nodes {
        node.leases.renew_all();
    }
    let asked = world.asked;
    world.run(1_000);
    assert_eq!(world.asked - asked, 4 * 400, "each lease once");
    assert!(world.engine.leased("u:r/7", world.now_ms) >= 4);
    assert_eq!(world.engine.keys(), 400);
    // 400 keys are renewed twice in the time to live of a small lease.
    let asked = world.asked;
    world.run(60_000);
    let renewed = world.asked - asked;
    assert!(renewed <= 4 * 400 * 3, "{renewed}");
}

#[test]
fn a_node_that_is_cut_off_gives_too_much_and_all_is_counted_when_it_is_back() {
    let limit = 24;
    let mut world = World::new(2, 5);
    for _ in 0..limit {
        let _ = world.acquire(0, limit);
        world.run(20);
    }
    world.nodes[1].is_cut_off = true;
    let _ = world.acquire(1, limit);
    world.run(2_000);
    for _ in 0..10 {
        assert_eq!(world.acquire(1, limit), Acquired::Blind);
        world.run(10);
    }
    world.nodes[1].is_cut_off = false;
    world.run(2_000);
    assert_eq!(world.engine.leased(KEY, world.now_ms), limit + 11);
    assert_eq!(world.acquire(1, limit), Acquired::Refused);
    assert_eq!(world.acquire(0, limit), Acquired::Refused);
}

#[test]
fn a_key_that_the_engine_rejects_limits_nobody_and_other_keys_keep_their_limit() {
    let limit = 16;
    let mut world = World::new(1, 5);
    world.bad = Some(KEY.into());
    let _ = world.acquire(0, limit);
    world.run(100);
    for _ in 0..3 * limit {
        assert_ne!(world.acquire(0, limit), Acquired::Refused);
        world.run(10);
    }
    let mut got = 0;
    for _ in 0..3 * limit {
        let (node, now) = (&mut world.nodes[0], world.now_ms);
        let acquired = node
            .leases
            .acquire("u:r/other", limit, now, node.is_engine_up);
        got += u32::from(acquired != Acquired::Refused);
        world.run(30);
    }
    assert_eq!(got, limit);
    // It is repaired.
    world.bad = None;
    world.run(1_000);
    assert_eq!(world.acquire(0, limit), Acquired::Refused);
}

#[test]
fn a_small_lease_refuses_nobody_while_the_engine_is_away() {
    let limit = 100;
    let mut world = World::new(1, 5);
    let _ = world.acquire(0, limit);
    world.run(1_000);
    world.is_engine_up = false;
    world.nodes[0].is_engine_up = false;
    for attempt in 0..limit {
        assert_ne!(world.acquire(0, limit), Acquired::Refused, "{attempt}");
        world.run(10);
    }
}

#[test]
fn leases_that_nobody_uses_do_not_pile_up_while_the_engine_is_away() {
    let limit = 100;
    let mut world = World::new(1, 5);
    for number in 0..50 {
        let key = format!("u:r/{number}");
        let now = world.now_ms;
        let _ = world.nodes[0].leases.acquire(&key, limit, now, true);
    }
    world.run(1_000);
    world.is_engine_up = false;
    for number in 0..50 {
        world.nodes[0].leases.release(&format!("u:r/{number}"));
    }
    for number in 50..100 {
        let key = format!("u:r/{number}");
        let now = world.now_ms;
        let _ = world.nodes[0].leases.acquire(&key, limit, now, false);
        world.run(100);
        world.nodes[0].leases.release(&key);
    }
    world.run(SMALL_TTL_MS);
    assert_eq!(world.nodes[0].leases.len(), 0);
}
