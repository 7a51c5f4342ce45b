//! Every chore of the workspace, one entry point: `cargo xtask --help`.
//!
//! `cargo xtask quick` is for the minutes between two edits, `cargo xtask test` is the whole test command. Both are
//! lists of stages ([`suite`]); most are modules here that can also be run alone. A [`tally::Tally`] counts what a
//! stage finds, and the command ends with one line that says how much passed, failed and was skipped.

#![forbid(unsafe_code)]

mod alerts;
mod arrows;
mod bench_report;
mod book;
mod budgets;
mod built;
mod cargo;
mod conformance;
mod deny;
mod dist;
mod fuzz;
mod gate;
mod image_files;
mod interop;
mod lints;
mod package;
mod packages;
mod process;
mod quick;
mod rfc;
mod stores;
mod suite;
mod tally;
mod tidy;
mod tools;
mod vm;
mod workflow;
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
    chore: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, clippy and unit tests of what changed, and of what depends on it: no root, no packages, three minutes.
    Quick(quick::Options),
    /// Run everything: checks, tests, documentation, clients of other projects.
    ///
    /// As root, installs from Debian what is missing. Stops at the first stage that fails.
    Test(suite::Options),
    /// Run one stage, without a forecast: what the test command does in the background.
    #[command(hide = true)]
    Stage { stage: suite::Stage },
    /// Run a fuzz target, or each of them, for some time.
    Fuzz(fuzz::Options),
    /// Show the ten longest files; refuse files over 1,000 lines, paths of one machine, registry hosts and dead links
    /// of pages.
    Tidy,
    /// Write docs/sip-conformance.md, and docs/rfc-coverage.md: which test shows which requirement, and which file
    /// obeys which section.
    Rfc {
        /// Only say whether the page is up to date.
        #[arg(long)]
        check: bool,
        /// Make docs/rfc-keywords.tsv anew from the texts rfc8489.txt and so on of this folder; verdicts are kept.
        #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
        texts: Option<PathBuf>,
    },
    /// Print which of our crates depends on which, as ARCHITECTURE.md draws it.
    Arrows,
    /// Check that every crate can be published.
    Package {
        /// Also compile what is in the packages; takes minutes.
        #[arg(long)]
        build: bool,
    },
    /// Make the packages: .deb, .rpm, tarball and bill of materials.
    ///
    /// Builds the program for glibc 2.31 with zig as the linker.
    Dist(dist::Options),
    /// Try the packages and the container image: built twice, checked, installed, upgraded and removed.
    ///
    /// As root; boots a Debian in a container.
    Packages(packages::Options),
    /// Check licences, banned crates and sources of all dependencies against deny.toml.
    Deny {
        /// Look for known vulnerabilities as well, with cargo-deny, which is built for it.
        #[arg(long)]
        advisories: bool,
    },
    /// Count what each operation costs in instructions, allocations and system calls, and hold it against
    /// crates/hairpin/budgets.toml.
    Budgets {
        /// Make what is counted the new budgets.
        #[arg(long)]
        write: bool,
    },
    /// Build the manual into target/book/html, and refuse dead links and pages that are hard to read.
    Book,
    /// Print how many long sentences and wide lines each page of the manual has.
    Readability,
    /// Drive clients that others wrote against a server: coturn's utilities, pion, Chromium.
    Interop(interop::Options),
    /// Have hairpin serve the users of real databases that coturn's turnadmin has filled.
    Stores(stores::Options),
    /// Make the benchmark reports in docs/benchmarks anew, and the tables in the pages that quote them.
    ///
    /// As root, on a machine with nothing else to do; some hours.
    BenchReport(bench_report::Options),
    /// Show that each gate of `hairpin bench --quick` fails when hairpin lacks what the gate is for.
    ///
    /// As root, on a machine with nothing else to do; about ten minutes. At the end, a table in Markdown has each gate.
    Gates,
    /// Boot Debian's kernels in QEMU and check hairpin on each.
    ///
    /// As root; needs no KVM. `--shell` looks around in a machine.
    Vm(vm::Options),
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

fn run(chore: Task) -> anyhow::Result<ExitCode> {
    let root = workspace::root();
    let tally = match chore {
        Task::Quick(options) => quick::run(&root, &options)?,
        Task::Test(options) => suite::run(&root, &options),
        Task::Stage { stage } => stage.run(&root),
        Task::Fuzz(options) => fuzz::run(&root, &options)?,
        Task::Tidy => tidy::run(&root)?,
        Task::Rfc { check: true, .. } => rfc::check(&root)?,
        Task::Rfc { texts, .. } => rfc::write(&root, texts.as_deref())?,
        Task::Arrows => {
            arrows::print(&root)?;
            return Ok(ExitCode::SUCCESS);
        }
        Task::Package { build } => package::run(&root, build)?,
        Task::Dist(options) => dist::run(&root, &options)?,
        Task::Packages(options) => packages::run(&root, &options)?,
        Task::Deny { advisories } => deny::run(&root, advisories)?,
        Task::Budgets { write } => budgets::run(&root, write)?,
        Task::Book => book::run(&root)?,
        Task::Readability => {
            book::readability::report(&root)?;
            return Ok(ExitCode::SUCCESS);
        }
        Task::Interop(options) => {
            tools::ensure(&[tools::INTEROP])?;
            interop::run(&root, &options)?
        }
        Task::Stores(options) => {
            tools::ensure(&[tools::STORES])?;
            stores::run(&root, &options)?
        }
        Task::BenchReport(options) => {
            bench_report::run(&root, &options)?;
            return Ok(ExitCode::SUCCESS);
        }
        Task::Gates => gate::prove(&root)?,
        Task::Vm(options) => vm::run(&root, &options)?,
        Task::Tools => {
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
