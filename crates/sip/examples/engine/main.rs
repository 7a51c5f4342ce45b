//! Times the engine on whole transactions, sockets left out:
//!
//! ```text
//! cargo run --release -p hairpin-sip --example engine
//! ```
//!
//! The figures are medians of many short runs, in nanoseconds a transaction or call. `engine OPERATION COUNT` repeats
//! one operation, for a profiler.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads its arguments and the clock"
)]

extern crate hairpin_sip as sip;

mod bed;

use std::time::Instant;

use bed::{Operation, TestBed};

/// Operations per second of the engine's time: many transactions are alive.
const RATE: u64 = 10_000;
/// Transactions a run.
const RUN: u64 = 2_000;
/// Runs of each operation.
const RUNS: usize = 101;

/// Any of what can go wrong here.
type Failed = Box<dyn std::error::Error>;

/// The median time of one operation, in nanoseconds.
fn time(operation: Operation) -> Result<u64, Failed> {
    let mut bed = TestBed::new(operation, RATE)?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..RUN {
            bed.once()?;
        }
        runs.push(begun.elapsed().as_nanos() as u64 / RUN);
    }
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, count] = &arguments[..] {
        let known = Operation::ALL.iter().find(|(known, _)| known == name);
        let (_, operation) = known.ok_or("no such operation")?;
        let mut bed = TestBed::new(*operation, RATE)?;
        for _ in 0..count.parse::<u64>()? {
            bed.once()?;
        }
        return Ok(());
    }
    let compose = time(Operation::Compose)?;
    println!(
        "{:>18} {compose:>6} ns, taken off the others once",
        "compose"
    );
    for (name, operation) in Operation::ALL {
        println!(
            "{name:>18} {:>6} ns",
            time(operation)?.saturating_sub(compose)
        );
    }
    Ok(())
}
