//! Running cargo, and counting what `cargo test` says.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::tally::Tally;
use crate::workspace;

/// No cargo command of the suite may take longer: a test that hangs must fail, not hang CI.
const TIMEOUT_S: &str = "2400";

/// Runs one cargo command as one check.
pub(crate) fn check(
    root: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Tally> {
    let status = bounded(root, arguments, environment)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(Tally::ONE)
}

/// `cargo fmt --check` of the workspace.
pub(crate) fn format(root: &Path) -> Result<Tally> {
    check(root, &["fmt", "--all", "--", "--check", "-l"], &[])
}

/// `cargo clippy` of the packages that `selection` names, every warning an error.
pub(crate) fn clippy(root: &Path, selection: &[&str]) -> Result<Tally> {
    let mut arguments = vec!["clippy", "--locked", "--all-targets"];
    arguments.extend(selection);
    arguments.extend(["--", "-D", "warnings"]);
    check(root, &arguments, &[])
}

/// The libraries with optional features.
const WITH_FEATURES: [&str; 4] = ["stun", "turn", "client", "server"];

/// `cargo clippy` of the libraries that have optional features, without these, every warning an error.
pub(crate) fn clippy_without_features(root: &Path) -> Result<Tally> {
    let packages = WITH_FEATURES.map(|name| format!("--package=hairpin-{name}"));
    let mut arguments = vec!["clippy", "--locked", "--lib", "--no-default-features"];
    arguments.extend(packages.iter().map(String::as_str));
    arguments.extend(["--", "-D", "warnings"]);
    check(root, &arguments, &[])
}

/// Tells tests a file to write a line to for each that is skipped: what they print is kept from us when they pass.
pub(crate) const SKIPPED: &str = "HAIRPIN_TESTS_SKIPPED";

/// Runs `cargo test` and counts the tests themselves. Those that find no privileges to do what they test pass, and are
/// counted as skipped.
pub(crate) fn test(root: &Path, arguments: &[&str]) -> Result<Tally> {
    let list = workspace::target_dir(root).join("tests-skipped.txt");
    // Those of the last run.
    let _ = std::fs::remove_file(&list);
    let mut child = bounded(root, arguments, &[])
        .env(SKIPPED, &list)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some(counted) = test_result(&line) {
            tally.add(counted);
        }
    }
    let status = child.wait()?;
    count_skipped(&mut tally, &list);
    // A test binary that aborts, or code that does not compile, fails without any line that says so.
    if !status.success() && tally.failed == 0 {
        println!("  FAIL  `cargo {}`: {status}", arguments.join(" "));
        tally.failed = 1;
    }
    Ok(tally)
}

/// Counts the tests that the file names as skipped: each has passed by doing nothing.
pub(crate) fn count_skipped(tally: &mut Tally, list: &Path) {
    let skipped = std::fs::read_to_string(list).unwrap_or_default();
    for line in skipped.lines() {
        println!("  SKIP  {line}");
        tally.skipped += 1;
        tally.passed = tally.passed.saturating_sub(1);
    }
}

/// The sum of the result lines in the output of test binaries.
pub(crate) fn test_results(output: &str) -> Tally {
    let mut total = Tally::default();
    for tally in output.lines().filter_map(test_result) {
        total.add(tally);
    }
    total
}

/// Builds the hairpin that users get, and says where it is.
pub(crate) fn release(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--locked", "--release", "--package", "hairpin"];
    let status = workspace::cargo()
        .args(arguments)
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(workspace::target_dir(root).join("release/hairpin"))
}

/// A cargo command that is killed after [`TIMEOUT_S`].
pub(crate) fn bounded(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    // timeout(1) kills the whole process group: cargo's death alone would leave its test binaries running.
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", TIMEOUT_S])
        .arg(workspace::cargo().get_program())
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root)
        .stdin(Stdio::null());
    command
}

/// The counts of a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; ...`.
fn test_result(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        counts
            .split(';')
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u32>().ok())
    };
    Some(Tally {
        passed: count("passed")?,
        failed: count("failed")?,
        skipped: count("filtered out").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_line_of_a_test_binary() {
        let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.02s";
        assert_eq!(
            test_result(ok),
            Some(Tally {
                passed: 12,
                failed: 0,
                skipped: 3,
            })
        );
        let bad = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        assert_eq!(
            test_result(bad),
            Some(Tally {
                passed: 3,
                failed: 2,
                skipped: 0,
            })
        );
        assert_eq!(test_result("test permission_lapses ... ok"), None);
    }
}
