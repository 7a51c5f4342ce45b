//! What the engine of a large cluster is asked: the real code of leases, of registrations and of the directory, with an
//! engine in memory and virtual time.
//!
//! ```console
//! cargo run --release -p hairpin-stores --example cluster_simulation -- [NODES] [ALLOCATIONS] [LIMIT PER USER] [COMMANDS PER SECOND OF THE ENGINE] [PHONES]
//! ```

mod registrations;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hairpin_stores::cluster::Seal;
use hairpin_stores::cluster::directory::{Directory, INTERVAL_MS, NodeInfo, TTL_MS};
use hairpin_stores::cluster::leases::{Acquired, LeaseKey, Leases, Request};
use hairpin_stores::cluster::model::Model;

/// Virtual time moves by this.
const TICK_MS: u64 = 100;
/// Leases of one request, as of a real node.
const BATCH: usize = 256;
/// How long an allocation lives on average: a call.
const LIFETIME_MS: u64 = 300_000;
/// Of these users, each has two allocations on average.
const PER_USER: usize = 2;
/// One attempt of this many is at another node than the user's usual one.
const ELSEWHERE: u64 = 10;
/// What one realm may have: nobody reaches it, but each node has a lease of it.
const REALM_LIMIT: u32 = 100_000_000;
const REALM: &str = "r:example.org";

struct World {
    now_ms: u64,
    engine: Model,
    nodes: Vec<Leases>,
    /// When allocations end: node and user.
    ends: BinaryHeap<Reverse<(u64, usize, usize)>>,
    users: usize,
    limit: u32,
    capacity: usize,
    seed: u64,
    refused: u64,
    /// Requests of each key.
    asked: HashMap<LeaseKey, u64>,
}

impl World {
    fn new(nodes: u64, users: usize, limit: u64, capacity: u64) -> World {
        World {
            now_ms: 1_000,
            engine: Model::default(),
            nodes: (0..nodes).map(|_| Leases::default()).collect(),
            ends: BinaryHeap::new(),
            users,
            limit: u32::try_from(limit).expect("a limit"),
            capacity: usize::try_from(capacity).expect("a capacity"),
            seed: 0x9E37_79B9_7F4A_7C15,
            refused: 0,
            asked: HashMap::new(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64*
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % below
    }

    fn open(&mut self) {
        let user = self.random(self.users as u64) as usize;
        let nodes = self.nodes.len() as u64;
        let node = match self.random(ELSEWHERE) {
            0 => self.random(nodes) as usize,
            _ => user % self.nodes.len(),
        };
        let now = self.now_ms;
        let key = format!("u:example.org\n{user}");
        let limit = self.limit;
        let leases = &mut self.nodes[node];
        if leases.acquire(&key, limit, now, true) == Acquired::Refused {
            self.refused += 1;
            return;
        }
        let _ = leases.acquire(REALM, REALM_LIMIT, now, true);
        let lifetime = LIFETIME_MS / 2 + self.random(LIFETIME_MS);
        self.ends.push(Reverse((now + lifetime, node, user)));
    }

    fn close(&mut self) {
        while let Some(Reverse((end, node, user))) = self.ends.peek().copied()
            && end <= self.now_ms
        {
            self.ends.pop();
            self.nodes[node].release(&format!("u:example.org\n{user}"));
            self.nodes[node].release(REALM);
        }
    }

    /// One tick of the engine: nodes in turn, each with one request at a time. Returns leases and requests.
    fn lease(&mut self) -> (usize, usize) {
        let most = self.capacity * TICK_MS as usize / 1_000;
        let (mut leased, mut requests) = (0, 0);
        let mut batch: Vec<Request> = Vec::new();
        loop {
            let before = leased;
            for node in 0..self.nodes.len() {
                if leased >= most {
                    return (leased, requests);
                }
                batch.clear();
                self.nodes[node].collect(self.now_ms, BATCH.min(most - leased), &mut batch);
                requests += usize::from(!batch.is_empty());
                leased += batch.len();
                let holder = node.to_string();
                for request in &batch {
                    *self.asked.entry(request.key.clone()).or_insert(0) += 1;
                    let granted = self.engine.lease(&holder, request, self.now_ms);
                    self.nodes[node].granted(request, granted, self.now_ms);
                }
            }
            if leased == before {
                return (leased, requests);
            }
        }
    }

    /// The engine is started empty. Returns after how many seconds it gets no more leases than usual, and all leases
    /// until then. `None`: not within a minute.
    fn restart(&mut self, opens_per_s: u64, usual: u64) -> Option<(u64, usize)> {
        self.engine.restart();
        self.nodes.iter_mut().for_each(Leases::renew_all);
        let mut storm = 0;
        for second in 1..=60 {
            let (_, leased) = self.run(1, opens_per_s);
            storm += leased;
            if leased <= usual as usize * 2 {
                return Some((second, storm));
            }
        }
        None
    }

    /// Seconds of virtual time with so many new allocations per second. Returns average and most leases per second.
    fn run(&mut self, seconds: u64, opens_per_s: u64) -> (u64, usize) {
        let (mut all, mut most) = (0, 0);
        for _ in 0..seconds {
            let mut of_second = 0;
            for _ in 0..1_000 / TICK_MS {
                self.now_ms += TICK_MS;
                self.close();
                (0..opens_per_s * TICK_MS / 1_000).for_each(|_| self.open());
                of_second += self.lease().0;
            }
            all += of_second as u64;
            most = most.max(of_second);
        }
        (all / seconds.max(1), most)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        let text = arguments.next();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (nodes, allocations, limit, capacity) =
        (number(200), number(1_000_000), number(10), number(100_000));
    let phones = number(10_000_000);
    let users = allocations as usize / PER_USER;
    let mut world = World::new(nodes, users, limit, capacity);
    let opens = allocations * 1_000 / LIFETIME_MS;
    println!(
        "{nodes} nodes, {allocations} allocations of {users} users, limit {limit}, {opens} new allocations per second, an engine of {capacity} leases per second"
    );
    let (average, most) = world.run(2 * LIFETIME_MS / 1_000, opens);
    println!("filling, 600 s: {average} leases per second, at most {most}");
    world.asked.clear();
    let refused = world.refused;
    let seconds = 120;
    let (average, most) = world.run(seconds, opens);
    let held = world.ends.len();
    let leases: usize = world.nodes.iter().map(Leases::len).sum();
    println!(
        "steady, {seconds} s: {held} allocations, {leases} leases; {average} leases per second, at most {most}; refused {}",
        world.refused - refused
    );
    let rate = |count: u64| count as f64 / seconds as f64;
    let realm = world.asked.remove(REALM).unwrap_or(0);
    let user = world.asked.values().copied().max().unwrap_or(0);
    println!(
        "hottest keys: the realm {:.1} per second, a user {:.2} per second",
        rate(realm),
        rate(user)
    );

    match world.restart(opens, average) {
        Some((seconds, storm)) => println!(
            "engine restarted empty: all leases are back after {seconds} s, {storm} leases in all"
        ),
        None => println!("engine restarted empty: leases are not back within a minute"),
    }
    directory(nodes);
    // Each node exchanges once per second.
    let others = average + nodes;
    registrations::World::new(nodes, phones, capacity, others).run();
}

/// What the directory costs: each node publishes itself and reads all. Returns how many other nodes each one knows.
fn directory(count: u64) -> usize {
    let mut engine = Model::default();
    let seal = Seal::new(&[7; 32]);
    let own = |number: u64| NodeInfo {
        name: format!("node-{number}"),
        run: number,
        addresses: ["udp", "tcp", "tls"]
            .map(|transport| {
                (
                    transport.to_owned(),
                    "192.0.2.1:3478".parse().expect("an address"),
                )
            })
            .to_vec(),
        version: "0.1.0".to_owned(),
        ..NodeInfo::default()
    };
    let mut nodes: Vec<_> = (0..count)
        .map(|number| Directory::new(own(number), seal.clone()))
        .collect();
    let (mut bytes, mut exchanges) = (0, 0u64);
    let mut now = 0;
    // Each node at another moment of the interval.
    while now < 3 * INTERVAL_MS {
        for (number, node) in nodes.iter_mut().enumerate() {
            if now % INTERVAL_MS != (number as u64 * 37) % INTERVAL_MS {
                continue;
            }
            let text = node.publish(1_800_000_000, |own| own.load += 1);
            let all = engine.publish(&format!("node-{number}"), &text, TTL_MS, now);
            bytes += all.iter().map(String::len).sum::<usize>() as u64;
            exchanges += 1;
            node.learn(&all, now, 1_800_000_000);
        }
        now += 1;
    }
    let known = nodes
        .iter()
        .map(|node| node.live(now).count())
        .min()
        .unwrap_or(0);
    println!(
        "directory: {} exchanges per second, {} bytes per second; after 3 s each node knows {known} others",
        exchanges / 3,
        bytes / 3
    );
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_back_soon_after_the_engine_was_restarted_empty() {
        let (nodes, allocations, limit, engine) = (10, 10_000, 10, 20_000);
        let mut world = World::new(nodes, allocations / PER_USER, limit, engine);
        let opens = allocations as u64 * 1_000 / LIFETIME_MS;
        world.run(2 * LIFETIME_MS / 1_000, opens);
        let (usual, _) = world.run(60, opens);
        let held = world.ends.len();
        assert!((8_000..12_000).contains(&held), "{held} allocations");
        let (seconds, storm) = world.restart(opens, usual).expect("within a minute");
        assert!(seconds <= 10, "{seconds} s, {storm} leases");
        // No allocation ended because of it.
        assert!(world.ends.len() * 10 >= held * 9);
    }

    #[test]
    fn each_node_knows_all_others_after_three_seconds() {
        assert_eq!(directory(20), 19);
    }

    #[test]
    fn registrations_are_back_after_the_engine_was_restarted_empty() {
        let mut world = registrations::World::new(5, 20_000, 20_000, 100);
        let (unknown, seconds) = world.run();
        assert_eq!(unknown, 0);
        assert!(seconds <= 60, "{seconds} s");
    }
}
