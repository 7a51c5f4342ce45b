//! What the server costs, for `cargo xtask budgets`: the same datagrams over and over, in one thread, so that the only
//! thing that varies from run to run is the code.
//!
//! Each scenario is warmed up, then measured between two marks. A mark is a function, and callgrind dumps its counters
//! when it is called. A mark is also a system call in a trace: a look at a file that does not exist. Only what happens
//! inside `Local::turn`, or for an engine alone inside `engine_turn` or `proxy_turn`, or what reads a message or decides
//! about a call, is the server's; the rest is this program.
//!
//! Prints one line per scenario: its name and how many operations were measured.

mod client;
mod engine;
mod over_sockets;
mod routes;
mod sip_dialog;
mod sip_engine;
mod sip_over_sockets;

use std::error::Error;
use std::hint::black_box;
use std::path::Path;

/// What a part of this program may fail with.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Datagrams of one flow that arrive together in a hot flow.
pub(crate) const TRAIN: usize = 32;
/// Flows that take turns, one datagram each.
pub(crate) const FLOWS: usize = 64;
/// Application data in each relayed datagram, in bytes: 20 ms of good audio.
pub(crate) const PAYLOAD: usize = 160;

/// Rounds before counting starts: the server's buffers have grown, and it has seen whether trains come.
const WARM_UP: usize = 24;
/// Rounds counted.
const ROUNDS: usize = 32;

/// One thing to measure: does it once and returns how many operations that were.
pub(crate) type Round<'a> = &'a mut dyn FnMut() -> Outcome<usize>;

/// Begins or ends a measured part.
#[inline(never)]
fn mark(name: &str) {
    let path = format!("/hairpin-mark/{}", black_box(name));
    black_box(Path::new(&path).exists());
}

/// Measures one scenario and prints its line.
pub(crate) fn measure(name: &str, round: Round<'_>) -> Outcome<()> {
    for _ in 0..WARM_UP {
        round()?;
    }
    mark(name);
    let mut operations = 0;
    for _ in 0..ROUNDS {
        operations += round()?;
    }
    mark("end");
    println!("{name}\t{operations}");
    Ok(())
}

fn main() -> Outcome<()> {
    engine::run()?;
    sip_engine::run()?;
    sip_dialog::run()?;
    routes::run()?;
    over_sockets::run()?;
    sip_over_sockets::run()
}
