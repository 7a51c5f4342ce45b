//! Stores: real databases, filled by coturn's `turnadmin`, and hairpin serves their users; then the other way round.
//!
//! Each database runs as an unprivileged user, with its files in a folder of its own, on a free port of 127.0.0.1. A
//! client that authenticates is `hairpin probe turn`, which makes a whole allocation with data, and coturn's
//! `turnutils_uclient`.

mod bindings;
mod checks;
mod databases;
mod events;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::tally::Tally;
use crate::{cargo, scratch};
use databases::DatabaseKind;

/// The options of `cargo xtask stores`.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only these databases.
    #[arg(long, value_name = "DATABASE")]
    only: Vec<DatabaseKind>,
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
    // They wait for timers most of the time, so they run side by side.
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let (binary, logs) = (&binary, &logs);
        let threads: Vec<_> = parts(options)
            .map(|part| scope.spawn(move || part.run(binary, logs)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Tally::FAILURE))
            .collect()
    });
    let mut total = Tally::default();
    let mut repeated = 0;
    for (part, tally) in parts(options).zip(tallies) {
        if tally.failed == 0 || repeated == MAX_REPEATED {
            total.add(tally);
            continue;
        }
        repeated += 1;
        total.add(part.run_again(&binary, &logs));
    }
    Ok(total)
}

/// The maximum number of parts that run once more, alone, after a failure. If more fail, it is no accident.
const MAX_REPEATED: usize = 2;

/// A part that runs in parallel with others: the checks of one database, or those of events.
#[derive(Clone, Copy)]
enum Part {
    /// The database has this place in [`DatabaseKind::ALL`].
    Database(usize, DatabaseKind),
    Events,
}

/// The parts that the options want.
fn parts(options: &Options) -> impl Iterator<Item = Part> {
    let wanted = |kind: &DatabaseKind| options.only.is_empty() || options.only.contains(kind);
    let databases = DatabaseKind::ALL.into_iter().enumerate();
    let databases = databases.filter(move |(_, kind)| wanted(kind));
    let events = wanted(&DatabaseKind::Redis).then_some(Part::Events);
    databases
        .map(|(place, kind)| Part::Database(place, kind))
        .chain(events)
}

impl Part {
    fn run(self, binary: &Path, logs: &Path) -> Tally {
        let begun = Instant::now();
        let mut tally = Tally::default();
        match self {
            Part::Database(place, kind) => match databases::start(kind, logs) {
                Ok(database) => checks::run(place, (binary, logs), database, &mut tally),
                Err(error) => {
                    tally.record(&format!("{}: starts", kind.name()), &Err(error));
                }
            },
            Part::Events => events::run((binary, logs), &mut tally),
        }
        println!(
            "        {}: {:.1} s",
            self.name(),
            begun.elapsed().as_secs_f32()
        );
        tally
    }

    fn run_again(self, binary: &Path, logs: &Path) -> Tally {
        println!("--- {}, once more after a failure", self.name());
        // The logs of the run that failed stay.
        let again = logs.join("again");
        if let Err(error) = std::fs::create_dir_all(&again) {
            let mut tally = Tally::default();
            tally.record(&format!("{}: runs again", self.name()), &Err(error.into()));
            return tally;
        }
        let tally = self.run(binary, &again);
        if tally.is_clean() {
            println!(
                "  UNSTEADY  {}: failed, and passed when it ran again",
                self.name()
            );
        }
        tally
    }

    fn name(self) -> &'static str {
        match self {
            Part::Database(_, kind) => kind.name(),
            Part::Events => "events",
        }
    }
}
