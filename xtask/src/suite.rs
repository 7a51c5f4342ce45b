//! `cargo xtask test`: the stages, in the order that finds a mistake soonest.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::tally::Tally;
use crate::{budgets, cargo, gate, interop, licences, rfc, tidy, tools};

/// A stage of the test command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// Install the programs that the tests run.
    Tools,
    /// `cargo fmt --check`.
    Fmt,
    /// Giants, leftovers, machine paths.
    Tidy,
    /// Licences of all dependencies.
    Licences,
    /// The requirement table names tests that exist, and its page is up to date.
    Rfc,
    /// The committed BPF objects are what their sources compile to.
    Bpf,
    /// `cargo clippy`, every warning an error.
    Clippy,
    /// Unit, integration and documentation tests of the workspace, the arrows between crates among them.
    Unit,
    /// The fuzz targets compile.
    Fuzz,
    /// `cargo doc`, every warning an error.
    Doc,
    /// What each operation costs in instructions and system calls, against its budget.
    Budgets,
    /// Clients that others wrote, against a release build.
    Interop,
    /// `hairpin bench --quick` of a release build: at least half of a bare relay in every scenario, every byte unharmed.
    Bench,
}

impl Stage {
    fn run(self, root: &Path) -> Result<Tally> {
        match self {
            Stage::Tools => tools::ensure(tools::ALL).map(|()| Tally::default()),
            Stage::Fmt => cargo::check(root, &["fmt", "--all", "--", "--check", "-l"], &[]),
            Stage::Tidy => tidy::run(root),
            Stage::Licences => licences::run(root),
            Stage::Rfc => rfc::check(root),
            Stage::Bpf => bpf_objects(root),
            Stage::Fuzz => {
                cargo::check(root, &["check", "--manifest-path", "fuzz/Cargo.toml"], &[])
            }
            Stage::Clippy => cargo::check(
                root,
                &[
                    "clippy",
                    "--locked",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ],
                &[],
            ),
            Stage::Unit => {
                cargo::test(root, &["test", "--locked", "--workspace", "--no-fail-fast"])
            }
            Stage::Doc => cargo::check(
                root,
                &["doc", "--locked", "--workspace", "--no-deps"],
                &[("RUSTDOCFLAGS", "-D warnings")],
            ),
            Stage::Budgets => budgets::run(root, false),
            Stage::Interop => interop::run(root, &interop::Options::default()),
            Stage::Bench => gate::run(root),
        }
    }
}

/// Runs the stages and says what each took. Never returns early without counting a failure.
pub(crate) fn run(root: &Path, only: &[Stage], keep_going: bool) -> Tally {
    let all = Stage::value_variants();
    let mut total = Tally::default();
    let mut times = Vec::new();
    for &stage in all
        .iter()
        .filter(|stage| only.is_empty() || only.contains(stage))
    {
        let name = format!("{stage:?}").to_lowercase();
        println!("=== {name}");
        let started = Instant::now();
        let tally = stage.run(root).unwrap_or_else(|error| {
            println!("  FAIL  {name}: {error:#}");
            Tally {
                passed: 0,
                failed: 1,
                skipped: 0,
            }
        });
        let seconds = started.elapsed().as_secs_f32();
        println!("=== {name}: {tally} in {seconds:.1} s");
        times.push(format!("{name} {seconds:.1} s"));
        total.add(tally);
        if tally.failed > 0 && !keep_going {
            println!(
                "=== stopped after {name}: later stages were not run (--keep-going runs them all the same)"
            );
            break;
        }
    }
    println!("=== {}", times.join(", "));
    total
}

fn bpf_objects(root: &Path) -> Result<Tally> {
    tools::ensure(&[tools::BPF])?;
    let status = Command::new("sh")
        .arg(root.join("crates/bpf/build-objects.sh"))
        .arg("--check")
        .status()?;
    ensure!(
        status.success(),
        "the committed BPF objects could not be compared, or differ"
    );
    Ok(Tally {
        passed: 1,
        failed: 0,
        skipped: 0,
    })
}
