//! Times the decision about a call in a table of 10,000 prefixes:
//!
//! ```text
//! cargo run --release -p hairpin-sip-server --example routes
//! ```
//!
//! The figures are nanoseconds a decision: the median of the rounds, the fastest and the slowest. The program fails if the median is above
//! 2,000 ns. `cargo xtask budgets` counts the instructions of the same decisions.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads the clock"
)]

extern crate hairpin_sip_server as sip_server;

mod table;

use std::time::Instant;

use sip::{Message, Spans};
use table::{Bed, Failed, INVITE, PREFIXES};

/// The most nanoseconds of a decision, in the median.
const MOST_NS: u128 = 2_000;

fn main() -> Result<(), Failed> {
    let mut bed = Bed::new()?;
    let mut spans = Spans::new();
    let message = Message::parse(INVITE, &mut spans)?;
    let mut times = Vec::new();
    for _ in 0..51 {
        let begun = Instant::now();
        for _ in 0..PREFIXES {
            bed.once(&message)?;
        }
        times.push(begun.elapsed().as_nanos() / PREFIXES as u128);
    }
    times.sort_unstable();
    let (least, median, most) = (times[0], times[25], times[50]);
    println!(
        "a decision among {PREFIXES} prefixes: {median} ns (rounds of {PREFIXES}: {least} to {most} ns)"
    );
    if median > MOST_NS {
        return Err(format!("{median} ns are more than {MOST_NS} ns").into());
    }
    Ok(())
}
