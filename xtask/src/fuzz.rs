//! `cargo xtask fuzz`: builds the fuzz targets with libFuzzer and runs them.
//!
//! The coverage counters that libFuzzer reads are a pass of LLVM, which the pinned compiler has: neither a nightly
//! compiler nor cargo-fuzz is needed. The sanitizers are left out: the crates that are fuzzed have no unsafe code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::tools;
use crate::workspace;

/// What `cargo fuzz` passes to the compiler, without a sanitizer.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions";

/// One input may take this long, in seconds.
const INPUT_LIMIT: u32 = 10;
/// How long the test command runs each target.
const SMOKE: Duration = Duration::from_secs(1);

/// What to fuzz, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A file of fuzz/fuzz_targets without its ending; `all` runs one after the other.
    #[arg(default_value = "all")]
    target: String,
    /// How long each target runs: seconds, or a number with s, m or h.
    #[arg(default_value = "60s", value_parser = duration)]
    time: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(['s', 'm', 'h']);
    let unit = match &text[number.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => return Err(format!("unknown unit `{other}`: use s, m or h")),
    };
    let seconds = number.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    match seconds {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
        _ => Err("a time such as 90, 90s, 5m or 2h".to_owned()),
    }
}

/// Runs one target or all of them in the foreground. Each is one check.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    tools::ensure(&[tools::FUZZ])?;
    let mut targets = targets(root)?;
    if options.target != "all" {
        let known = targets.join(", ");
        targets.retain(|target| *target == options.target);
        ensure!(
            !targets.is_empty(),
            "no fuzz target `{}`; there are: all, {known}",
            options.target
        );
    }
    let folder = build(root)?;
    let mut tally = Tally::default();
    for target in &targets {
        println!("=== {target} for {:?}", options.time);
        let status = command(root, &folder, target, options.time)?.status();
        let outcome = match status {
            Ok(status) if status.success() => Ok("no crash".to_owned()),
            Ok(status) => Err(failure(target, &status.to_string())),
            Err(error) => Err(error.into()),
        };
        tally.record(target, &outcome);
    }
    Ok(tally)
}

/// Runs every target for some seconds. Checks that it builds, passes its committed corpus, and reports coverage.
pub(crate) fn smoke(root: &Path) -> Result<Tally> {
    let folder = build(root)?;
    let logs = crate::scratch(root, "fuzz")?;
    let mut tally = Tally::default();
    for target in targets(root)? {
        let command = command(root, &folder, &target, SMOKE)?;
        let mut process = Process::start(&target, command, logs.join(format!("{target}.log")))?;
        let outcome = match process.wait(Duration::from_secs(120))? {
            Ended::Exited(status) if status.success() => covered(&process.output()),
            ended => Err(failure(&target, &format!("{ended:?}{}", process.tail()))),
        };
        tally.record(&target, &outcome);
    }
    Ok(tally)
}

/// libFuzzer counts the edges that its inputs have reached. Without instrumentation there are none.
fn covered(output: &str) -> Result<String> {
    let edges = output.lines().rev().find_map(|line| {
        line.split_once("cov: ")?
            .1
            .split(' ')
            .next()?
            .parse::<u32>()
            .ok()
    });
    match edges {
        Some(edges) if edges > 0 => Ok(format!("{edges} edges")),
        _ => bail!("libFuzzer saw no coverage: the target is not instrumented"),
    }
}

fn failure(target: &str, how: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{how}; the input is in fuzz/artifacts/{target}: fix the defect and add the input to fuzz/corpus/{target}"
    )
}

/// The targets by name, in order.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

/// Builds all targets, and says where they are.
fn build(root: &Path) -> Result<PathBuf> {
    let host = host()?;
    let folder = workspace::target_dir(root).join("fuzz");
    let status = workspace::cargo()
        .args([
            "build",
            "--locked",
            "--release",
            "--manifest-path",
            "fuzz/Cargo.toml",
        ])
        // With a target named, build scripts and macros are compiled without the flags.
        .args(["--target", &host, "--target-dir"])
        .arg(&folder)
        .env("RUSTFLAGS", RUSTFLAGS)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the fuzz targets do not build: {status}");
    Ok(folder.join(host).join("release"))
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let text = workspace::output_of(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

/// One run. New inputs go below `target`, so that a run leaves the committed corpus alone.
fn command(root: &Path, folder: &Path, target: &str, time: Duration) -> Result<Command> {
    let found = crate::scratch(root, &format!("fuzz/corpus/{target}"))?;
    let artifacts = root.join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&artifacts)?;
    let mut command = process::command(folder.join(target));
    command
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-timeout={INPUT_LIMIT}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(found)
        .arg(root.join("fuzz/corpus").join(target))
        .current_dir(root);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_seconds() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "0", "s", "5mm", "-1", "1d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_target_without_instrumentation_is_a_failure() {
        assert_eq!(
            covered("#2 INITED cov: 7 ft: 8\n#9 DONE   cov: 12 ft: 15\n").unwrap(),
            "12 edges"
        );
        assert!(covered("#9 DONE   cov: 0 ft: 1\n").is_err());
        assert!(covered("INFO: seed\n").is_err());
    }
}
