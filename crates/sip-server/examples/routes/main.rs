//! Times the decision about a call in a table of 10,000 prefixes:
//!
//! ```text
//! cargo run --release -p hairpin-sip-server --example routes
//! ```
//!
//! The first figure is the processor time of a decision, as the kernel counts it for the thread. Other programs on the
//! machine hardly change it. The program fails if it is above 2,000 ns. The other figures are times of the clock: the
//! median of the rounds, the fastest and the slowest. `cargo xtask budgets` counts the instructions of the same
//! decisions.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads the clock"
)]

extern crate hairpin_sip_server as sip_server;

mod table;

use std::time::Instant;

use sip::{Message, Spans};
use table::{Failed, INVITE, PREFIXES, TestBed};

/// The most nanoseconds of processor time of a decision.
const MAX_NS: u64 = 2_000;

/// Rounds of one decision per prefix.
const ROUNDS: usize = 101;

/// The processor time of this thread in nanoseconds. The kernel updates it at each tick, so only long times are exact.
fn processor_time() -> Result<u64, Failed> {
    let counters = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let time = counters.split(' ').next().ok_or("no time")?;
    Ok(time.parse()?)
}

fn main() -> Result<(), Failed> {
    let mut bed = TestBed::new()?;
    let mut spans = Spans::new();
    let message = Message::parse(INVITE, &mut spans)?;
    let mut times = Vec::new();
    let before = processor_time()?;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..PREFIXES {
            bed.once(&message)?;
        }
        times.push(begun.elapsed().as_nanos() / PREFIXES as u128);
    }
    let time = (processor_time()? - before) / (ROUNDS * PREFIXES) as u64;
    times.sort_unstable();
    let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
    println!(
        "a decision among {PREFIXES} prefixes: {time} ns of processor time (by the clock {median} ns, rounds of {least} to {most} ns)"
    );
    if time > MAX_NS {
        return Err(format!("{time} ns are more than {MAX_NS} ns").into());
    }
    Ok(())
}
