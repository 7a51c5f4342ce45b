//! Stores: real databases, filled by coturn's `turnadmin`, and hairpin serves their users; then the other way round.
//!
//! Each database runs as an unprivileged user, with its files in a folder of its own, on a free port of 127.0.0.1. A client that authenticates is
//! `hairpin probe turn`, which makes a whole allocation with data, and coturn's `turnutils_uclient`.

mod checks;
mod databases;

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
    let mut tally = Tally::default();
    for kind in Kind::ALL {
        if !options.only.is_empty() && !options.only.contains(&kind) {
            continue;
        }
        let begun = Instant::now();
        let name = kind.name();
        match databases::start(kind, &logs) {
            Ok(database) => checks::run(&binary, &logs, database, &mut tally),
            Err(error) => tally.record(&format!("{name}: starts"), &Err(error)),
        }
        println!("        {name}: {:.1} s", begun.elapsed().as_secs_f32());
    }
    Ok(tally)
}
