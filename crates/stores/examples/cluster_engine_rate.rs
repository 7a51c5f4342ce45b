//! How many commands per second a real engine carries: the scripts of leases and registrations, in batches as nodes
//! send them.
//!
//! ```console
//! cargo run --release -p hairpin-stores --example cluster_engine_rate -- redis://127.0.0.1:6379/0 [NODES] [SECONDS]
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hairpin_stores::cluster::engine::{BindRequest, Publication};
use hairpin_stores::cluster::leases::Request;
use hairpin_stores::cluster::{ClusterBindings, Engine, RedisEngine, Seal, SharedBinding, Writer};
use hairpin_stores::{Options, StoreError};

const BATCH: usize = 256;
/// Users and phones of each node.
const EACH: usize = 10_000;
/// Bytes of what a node publishes.
const TEXT: usize = 600;

#[derive(Clone, Copy)]
enum What {
    Lease,
    Bind,
    Find,
    Exchange,
}

/// A node: what it asks is made before the measurement.
struct Node {
    name: String,
    engine: RedisEngine,
    leases: Vec<Vec<Request>>,
    binds: Vec<Vec<BindRequest>>,
    finds: Vec<Vec<Box<[u8]>>>,
}

impl Node {
    fn new(url: &str, number: usize) -> Result<Node, StoreError> {
        let options = Options {
            url: url.to_owned(),
            ..Options::default()
        };
        let name = format!("node-{number}");
        let bindings = Arc::new(ClusterBindings::default());
        let writer = Writer::new(name.clone(), Seal::new(&[7; 32]), Arc::clone(&bindings));
        let users: Vec<usize> = (0..EACH).map(|user| number * EACH + user).collect();
        let lease = |user: &usize| Request {
            key: format!("u:example.org\n{user}").into(),
            used: 1,
            block: 8,
            limit: 10,
            ttl_ms: 60_000,
        };
        let aor = |user: &usize| format!("u{user}@example.com").into_bytes();
        for user in &users {
            let id = *user as u64;
            let binding = SharedBinding {
                id,
                has_reg_id: false,
                phone: 0,
                call: id,
                cseq: 1,
                q: 1_000,
                age_ms: 0,
                ttl_ms: 600_000,
            };
            bindings.publish(&aor(user), vec![binding]);
        }
        let binds = std::iter::repeat_with(|| writer.begin(1_800_000_000_000));
        let chunks = users.chunks(BATCH);
        Ok(Node {
            engine: RedisEngine::new(&options, "hairpin-rate")?,
            name,
            leases: chunks
                .clone()
                .map(|users| users.iter().map(lease).collect())
                .collect(),
            binds: binds.take_while(|requests| !requests.is_empty()).collect(),
            finds: chunks
                .map(|users| users.iter().map(|user| aor(user).into()).collect())
                .collect(),
        })
    }

    /// One request of many commands. Returns how many were accepted.
    async fn ask(&self, what: What, round: usize) -> Result<usize, StoreError> {
        Ok(match what {
            What::Lease => {
                let batch = &self.leases[round % self.leases.len()];
                let all = self.engine.lease(&self.name, batch).await?;
                all.iter().filter(|one| one.is_ok()).count()
            }
            What::Bind => {
                let batch = &self.binds[round % self.binds.len()];
                let all = self.engine.bind(&self.name, batch).await?;
                all.iter().filter(|one| one.is_ok()).count()
            }
            What::Find => {
                let batch = &self.finds[round % self.finds.len()];
                let all = self.engine.find_bindings(batch).await?;
                all.iter().filter(|one| one.is_ok()).count()
            }
            What::Exchange => {
                let own = Publication {
                    name: self.name.clone(),
                    text: Some("x".repeat(TEXT)),
                    ttl_ms: 60_000,
                    after: None,
                };
                self.engine.exchange(&own).await?.nodes.len().min(1)
            }
        })
    }

    /// Returns how many commands were accepted, how many requests failed, and how long the longest one took.
    async fn repeat(&self, what: What, until: Instant) -> (usize, usize, Duration) {
        let (mut count, mut failed, mut round, mut longest) = (0, 0, 0, Duration::ZERO);
        while Instant::now() < until {
            let started = Instant::now();
            match self.ask(what, round).await {
                Ok(done) => count += done,
                Err(_) => failed += 1,
            }
            longest = longest.max(started.elapsed());
            round += 1;
        }
        (count, failed, longest)
    }
}

fn main() -> Result<(), StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(measure())
}

async fn measure() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the URL of an engine");
    let mut number = |default: u64| {
        let text = arguments.next();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (nodes, seconds) = (number(8), number(5));
    let nodes: Result<Vec<Node>, StoreError> = (0..nodes as usize)
        .map(|number| Node::new(&url, number))
        .collect();
    let nodes = nodes?;
    for (name, what) in [
        ("leases, batches of 256", What::Lease),
        ("registrations, batches of 256", What::Bind),
        ("look-ups, batches of 256", What::Find),
        ("exchanges, one at a time", What::Exchange),
    ] {
        let started = Instant::now();
        let until = started + Duration::from_secs(seconds);
        let all = join_all(nodes.iter().map(|node| node.repeat(what, until))).await;
        let count: usize = all.iter().map(|(count, ..)| count).sum();
        let failed: usize = all.iter().map(|(_, failed, _)| failed).sum();
        let longest = all.iter().map(|(.., longest)| *longest).max();
        println!(
            "{name}: {:.0} per second from {} nodes; {failed} requests failed, the longest took {:?}",
            count as f64 / started.elapsed().as_secs_f64(),
            nodes.len(),
            longest.unwrap_or_default()
        );
    }
    Ok(())
}
