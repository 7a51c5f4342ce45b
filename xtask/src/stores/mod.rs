//! Stores: real databases, filled by coturn's `turnadmin`, and hairpin serves their users; then the other way round.
//!
//! Each database runs as an unprivileged user, with its files in a folder of its own, on a free port of 127.0.0.1. A
//! client that authenticates is `hairpin probe turn`, which makes a whole allocation with data, and coturn's
//! `turnutils_uclient`.

mod checks;
mod databases;
mod events;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::tally::Tally;
use crate::{cargo, scratch};
use databases::Kind;

/// What to run.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only these databases.
    #[arg(long, value_name = "DATABASE")]
    only: Vec<Kind>,
    /// Use this binary instead of building hairpin.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the checks on each database.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize()?,
        None => cargo::release(root)?,
    };
    let logs = scratch(root, "stores")?;
    let wanted = |kind: &Kind| options.only.is_empty() || options.only.contains(kind);
    // They wait for timers most of the time, so they run side by side.
    std::thread::scope(|scope| {
        let threads: Vec<_> = Kind::ALL
            .into_iter()
            .enumerate()
            .filter(|(_, kind)| wanted(kind))
            .map(|(place, kind)| {
                let (binary, logs) = (&binary, &logs);
                scope.spawn(move || one(place, kind, binary, logs))
            })
            .collect();
        let mut total = Tally::default();
        if wanted(&Kind::Redis) {
            events::run((&binary, &logs), &mut total);
        }
        for thread in threads {
            total.add(thread.join().unwrap_or(Tally::FAILURE));
        }
        Ok(total)
    })
}

/// The checks of one database, the `place`th.
fn one(place: usize, kind: Kind, binary: &Path, logs: &Path) -> Tally {
    let (begun, name) = (Instant::now(), kind.name());
    let mut tally = Tally::default();
    match databases::start(kind, logs) {
        Ok(database) => checks::run(place, (binary, logs), database, &mut tally),
        Err(error) => tally.record(&format!("{name}: starts"), &Err(error)),
    }
    println!("        {name}: {:.1} s", begun.elapsed().as_secs_f32());
    tally
}
