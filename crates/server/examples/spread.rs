//! How evenly clients are spread over workers: the busiest worker's packets as a multiple of the mean, beside the
//! kernel's hash.
//!
//! ```text
//! cargo run --release -p hairpin-server --example spread -- [REPETITIONS]
//! ```
//! Prints the table of docs/steering.md. Each repetition is a new server on loopback, clients from ports that the
//! kernel picks, and ten datagrams from each of them; what each worker relayed is what counts. It needs root, or
//! CAP_BPF and CAP_NET_ADMIN.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Client, loopback, socket, start};
use hairpin_server::Steering;

/// What each client sends.
const DATAGRAMS: u64 = 10;

/// The outcome of one repetition.
struct Spread {
    /// Packets of the busiest worker, by the mean of all.
    busiest: f64,
    /// Workers that had nothing to do.
    idle: usize,
    /// Clients with an entry.
    steered: usize,
}

fn once(steering: Steering, workers: usize, flows: usize) -> Spread {
    let server = start(loopback(workers).steering(steering));
    let peer = socket("127.0.0.1:0");
    let peer_at = peer.local_addr().expect("bound");
    let mut clients: Vec<Client> = (0..flows)
        .map(|_| Client::new(server.listeners()[0]))
        .collect();
    for client in &mut clients {
        client.allocate();
        assert_eq!(client.permit(peer_at), 0);
    }
    for client in &clients {
        (0..DATAGRAMS).for_each(|_| client.indicate(peer_at, b"a datagram"));
    }
    let all = flows as u64 * DATAGRAMS;
    common::eventually("all datagrams are relayed", || {
        server.stats().sum(|worker| worker.engine.to_peers.packets) == all
    });
    let stats = server.stats();
    let packets: Vec<u64> = stats
        .workers
        .iter()
        .map(|worker| worker.engine.to_peers.packets)
        .collect();
    Spread {
        busiest: *packets.iter().max().expect("a worker") as f64 * workers as f64 / all as f64,
        idle: packets.iter().filter(|packets| **packets == 0).count(),
        steered: server.steered_flows(),
    }
}

/// Repetitions in a row: mean and worst of the busiest, mean of the others.
fn cell(steering: Steering, workers: usize, flows: usize, repetitions: usize) -> [String; 3] {
    let spreads: Vec<Spread> = (0..repetitions)
        .map(|_| once(steering, workers, flows))
        .collect();
    let mean = |number: &dyn Fn(&Spread) -> f64| {
        spreads.iter().map(number).sum::<f64>() / repetitions as f64
    };
    let worst = spreads.iter().map(|one| one.busiest).fold(0.0, f64::max);
    [
        format!("{:.2}, worst {worst:.2}", mean(&|one| one.busiest)),
        format!("{:.1}", mean(&|one| one.idle as f64)),
        format!(
            "{:.0} %",
            100.0 * mean(&|one| one.steered as f64) / flows as f64
        ),
    ]
}

fn main() {
    let repetitions = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let repetitions: usize = repetitions.unwrap_or(50);
    println!(
        "| clients | workers | kernel's hash | its idle workers | hairpin | its idle workers | clients with an entry |"
    );
    println!("|---|---|---|---|---|---|---|");
    for flows in [8, 64, 1000] {
        // A thousand clients differ less from each other, and take longer.
        let repetitions = if flows == 1000 {
            repetitions.div_ceil(4)
        } else {
            repetitions
        };
        for workers in [2, 4, 8] {
            let [hash, hash_idle, _] = cell(Steering::Hash, workers, flows, repetitions);
            let [bpf, bpf_idle, steered] = cell(Steering::Bpf, workers, flows, repetitions);
            println!(
                "| {flows} | {workers} | {hash} | {hash_idle} | {bpf} | {bpf_idle} | {steered} |"
            );
        }
    }
}
