//! `cargo xtask quick`: format, clippy and unit tests of what changed and of what depends on it.
//!
//! What changed is told by git: the files that differ from the merge base with `main`, committed or not. What depends
//! on it is told by `cargo metadata`. Tests that open sockets, need root or take minutes are left to
//! `cargo xtask test`.

mod changed;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::cargo;
use crate::tally::Tally;
use crate::tidy;
use crate::workspace::{self, Package};

/// Crates whose integration tests need neither sockets nor privileges: the sans-IO crates.
const SANS_IO: &[&str] = &[
    "hairpin-stun",
    "hairpin-turn",
    "hairpin-sip",
    "hairpin-sip-server",
];

/// Part of the name of every module whose unit tests need root.
const NEEDS_ROOT: &str = "needs_root";
/// The same for unit tests that start programs of Debian packages.
const NEEDS_PACKAGES: &str = "needs_packages";

/// What to compare with.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Check what changed since the merge base with this commit [default: main, else origin/main].
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
    /// Check every package.
    #[arg(long, conflicts_with = "base")]
    all: bool,
}

/// Stops at the first part that fails, like a compiler.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let packages = workspace::packages(root)?;
    let selection = if options.all {
        changed::Selection::all(&packages, "--all")
    } else {
        changed::select(root, &packages, options.base.as_deref())?
    };
    println!("=== quick: {}", selection.reason);
    let names: Vec<&str> = selection
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    println!("    checks {}", names.join(", "));
    let started = Instant::now();
    let mut total = Tally::default();
    let parts: [(&str, &dyn Fn() -> Result<Tally>); 4] = [
        ("fmt", &|| cargo::format(root)),
        ("tidy", &|| tidy::run(root)),
        ("clippy", &|| cargo::clippy(root, &flags(&names))),
        ("unit tests", &|| unit_tests(root, &selection.packages)),
    ];
    for (name, part) in parts {
        println!("=== {name}");
        let began = Instant::now();
        let tally = part()?;
        println!(
            "=== {name}: {tally} in {:.1} s",
            began.elapsed().as_secs_f32()
        );
        total.add(tally);
        if tally.failed > 0 {
            break;
        }
    }
    println!("=== quick: {:.0} s", started.elapsed().as_secs_f32());
    println!(
        "    left to `cargo xtask test`: unit tests in modules named *needs_root* or *needs_packages*; integration tests of io, bpf, server, load and hairpin; BPF objects; fuzz targets; documentation; \
         budgets; clients of other projects; the benchmark"
    );
    Ok(total)
}

fn flags<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["--package", name]).collect()
}

/// Unit tests of all packages but those that need root, which are counted as skipped, and the integration tests of the
/// sans-IO crates among them.
fn unit_tests(root: &Path, packages: &[&Package]) -> Result<Tally> {
    let (engines, others): (Vec<&Package>, Vec<&Package>) = packages
        .iter()
        .copied()
        .partition(|package| SANS_IO.contains(&package.name.as_str()));
    let mut total = Tally::default();
    for (packages, targets) in [
        (engines, ["--lib", "--tests"]),
        (others, ["--lib", "--bins"]),
    ] {
        if packages.is_empty() {
            continue;
        }
        let names: Vec<&str> = packages
            .iter()
            .map(|package| package.name.as_str())
            .collect();
        let mut arguments = vec!["test", "--locked", "--quiet", "--no-fail-fast"];
        arguments.extend(flags(&names));
        // cargo refuses --lib if none of the packages has one.
        let has_library = packages.iter().any(|package| package.has_library);
        arguments.extend(
            targets
                .iter()
                .filter(|target| has_library || **target != "--lib"),
        );
        arguments.extend(["--", "--skip", NEEDS_ROOT, "--skip", NEEDS_PACKAGES]);
        total.add(cargo::test(root, &arguments)?);
    }
    Ok(total)
}
