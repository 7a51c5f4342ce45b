//! Every chore of the workspace, one entry point: `cargo xtask --help`.
//!
//! `cargo xtask test` is the whole test command, and all that CI runs. It is a list of stages ([`suite`]); each
//! stage is a module here that can also be run alone. What a stage finds is counted in a [`tally::Tally`], and
//! the command ends with one line that says how much passed and failed.

#![forbid(unsafe_code)]

mod arrows;
mod budgets;
mod cargo;
mod conformance;
mod gate;
mod interop;
mod licences;
mod lints;
mod process;
mod rfc;
mod sip_bench;
mod suite;
mod tally;
mod tidy;
mod tools;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Every chore of the hairpin workspace",
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run everything that proves hairpin: checks, tests, documentation, interoperability.
    ///
    /// As root, installs from Debian what is missing. Stops at the first stage that fails.
    Test {
        /// Run only this stage (may be repeated).
        #[arg(long, value_name = "STAGE")]
        only: Vec<suite::Stage>,
        /// Go on after a stage that failed, to see everything that is wrong at once.
        #[arg(long)]
        keep_going: bool,
    },
    /// Show the ten longest files and functions, and refuse new giants, leftovers and machine paths.
    Tidy,
    /// Write docs/sip-conformance.md, and docs/rfc-coverage.md: which test shows which requirement, and which file obeys which section.
    Rfc {
        /// Only say whether the page is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Print which of our crates depends on which, as ARCHITECTURE.md draws it.
    Arrows,
    /// Check the licence of every crate that hairpin is built from.
    Licences,
    /// Count what each operation costs in instructions, allocations and system calls, and hold it against crates/server/budgets.toml.
    Budgets {
        /// Make what is counted the new budgets.
        #[arg(long)]
        write: bool,
    },
    /// Drive clients that others wrote against a server: coturn's utilities, pion, Chromium.
    Interop(interop::Options),
    /// Compare hairpin as a SIP server with Kamailio: processor time for each transaction, and overload.
    ///
    /// Servers on processor 1, the generator on processor 0; about ten minutes.
    SipBench(sip_bench::Options),
    /// Install from Debian what the tests need (as root), or say what is missing.
    Tools,
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> anyhow::Result<ExitCode> {
    let root = workspace::root();
    let tally = match chore {
        Chore::Test { only, keep_going } => suite::run(&root, &only, keep_going),
        Chore::Tidy => tidy::run(&root)?,
        Chore::Rfc { check: true } => rfc::check(&root)?,
        Chore::Rfc { check: false } => rfc::write(&root)?,
        Chore::Arrows => {
            arrows::print(&root)?;
            return Ok(ExitCode::SUCCESS);
        }
        Chore::Licences => licences::run(&root)?,
        Chore::Budgets { write } => budgets::run(&root, write)?,
        Chore::Interop(options) => {
            tools::ensure(&[tools::INTEROP])?;
            interop::run(&root, &options)?
        }
        Chore::SipBench(options) => {
            sip_bench::run(&root, &options)?;
            return Ok(ExitCode::SUCCESS);
        }
        Chore::Tools => {
            tools::ensure(tools::ALL)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    // Alone on the last line: what reads the output of a test command looks for exactly this.
    println!("{tally}");
    Ok(if tally.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Where the files of a run go that a person may want to read afterwards.
fn scratch(root: &std::path::Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = workspace::target_dir(root).join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
