//! What shared relay ports save: memory for each allocation, and processor time for each cycle of Allocate, ChannelBind
//! and release.
//!
//! ```text
//! cargo run --release -p hairpin-server --example shared_ports -- [ROUNDS] [ALLOCATIONS] [SECONDS]
//! ```
//! Prints the tables of docs/shared-ports.md. Rounds alternate between a port each and four shared ports; the first one
//! is thrown away. Each has a new server on loopback in a process of its own, so that no side finds memory that the
//! other one has left.

#[path = "../tests/common/mod.rs"]
mod common;

use common::local::Crowd;
use common::{Client, loopback, private_loopback, resident, start};
use hairpin_server::{Builder, Server};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Clients that allocate at the same time.
const CLIENTS: u16 = 4;

fn with_ports(builder: Builder, shared: bool) -> Builder {
    match shared {
        true => builder.relay_ports(20_000, 20_003).shared_ports(true),
        false => builder.relay_ports(20_000, 40_000),
    }
}

/// Resident bytes for each of so many allocations, each with a permission and a channel to a peer of its own.
fn memory(shared: bool, allocations: usize) -> f64 {
    let mut crowd = Crowd::of(with_ports(Server::builder(), shared));
    let mut run = |turn: &mut dyn FnMut()| turn();
    // Tables and buffers have their first size after that.
    crowd.allocate_apart(0..64, &mut run);
    let before = resident();
    crowd.allocate_apart(64..64 + allocations, &mut run);
    (resident() - before) as f64 / allocations as f64
}

/// Cycles in a second, and nanoseconds of the worker's processor time for each.
fn cycles(shared: bool, time: Duration) -> (f64, f64) {
    let server = start(with_ports(loopback(1), shared));
    // A client that is served proves that the worker runs and has said which thread it is.
    Client::new(server.listeners()[0]).allocate();
    let observer = server.observer();
    common::eventually("the worker says its thread", || {
        observer.threads()[0].is_some()
    });
    let thread = observer.threads()[0].expect("a worker");
    let count = &AtomicU64::new(0);
    let (began, before) = (Instant::now(), processor_time(thread));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = Client::new(server.listeners()[0]);
            let peer = SocketAddr::new(private_loopback(2), 5000 + number);
            scope.spawn(move || {
                while began.elapsed() < time {
                    client.allocate();
                    assert_eq!(client.bind(0x4000, peer), 0);
                    client.release();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let count = count.load(Ordering::Relaxed) as f64;
    let used = processor_time(thread) - before;
    (count / began.elapsed().as_secs_f64(), used as f64 / count)
}

/// Nanoseconds that a thread of this process has run (proc_pid_schedstat(5)).
fn processor_time(thread: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    let text = text.expect("a thread that runs");
    let first = text.split(' ').next().expect("three numbers");
    first.parse().expect("a number")
}

/// One side of a round, in another process: bytes, cycles per second, nanoseconds.
fn apart(shared: bool, arguments: [&str; 2]) -> [f64; 3] {
    let program = std::env::current_exe().expect("this program");
    let side = ["own", "shared"][usize::from(shared)];
    let output = Command::new(program).arg(side).args(arguments).output();
    let output = output.expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let numbers = text
        .split_whitespace()
        .map(|word| word.parse().expect("a number"));
    let numbers: Vec<f64> = numbers.collect();
    <[f64; 3]>::try_from(numbers).unwrap_or_else(|_| {
        panic!(
            "three numbers: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// The median, and the range.
fn summary(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let [first, median, last] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
    format!("{median:.digits$} ({first:.digits$} to {last:.digits$})")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument =
        |at: usize, default: &str| arguments.get(at).map_or(default, |text| text).to_owned();
    let (first, allocations, seconds) = (argument(0, "7"), argument(1, "4000"), argument(2, "3"));
    if let side @ ("own" | "shared") = first.as_str() {
        let shared = side == "shared";
        let bytes = memory(shared, allocations.parse().expect("a number"));
        let time = Duration::from_secs(seconds.parse().expect("seconds"));
        let (rate, nanoseconds) = cycles(shared, time);
        return println!("{bytes} {rate} {nanoseconds}");
    }
    let rounds: usize = first.parse().expect("a number of rounds");
    let mut sides = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for order in 0..2 {
            let side = (round + order) % 2;
            let found = apart(side == 1, [&allocations, &seconds]);
            if round > 0 {
                sides[side].push(found);
            }
        }
    }
    println!("| | a port each | four shared ports |\n|---|---|---|");
    let rows = [
        ("resident bytes per allocation", 0, 1.0),
        ("allocate cycles per second", 1, 1.0),
        ("processor time of the worker per cycle, µs", 2, 1e-3),
    ];
    for (name, at, factor) in rows {
        let [own, shared] = [&sides[0], &sides[1]].map(|side| {
            summary(
                side.iter().map(|found| found[at] * factor).collect(),
                usize::from(at == 2),
            )
        });
        println!("| {name} | {own} | {shared} |");
    }
}
