//! `cargo xtask tidy`: checks that no common tool makes. It shows the longest files. It refuses files over [`FILE_MAX`]
//! lines, unless `// long file: WHY` is among the first 30. It also refuses words that must not be committed, links of
//! pages that lead nowhere, and pages that the manual does not list. The two files that make the container image must
//! agree, and each alert needs a test and a section of the runbook. clippy checks long functions and `todo!`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use crate::alerts;
use crate::book;
use crate::image_files;
use crate::tally::Tally;
use crate::workspace;

/// Lines of a Rust file above which it needs a reason.
const FILE_MAX: usize = 1000;
/// How many of the longest are shown.
const SHOWN: usize = 10;

/// What no tracked file may contain, and why. Written in two halves so that this file does not contain it either.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("FIX", "ME"), "finish it, or file it"),
    (
        concat!("crates", ".io"),
        "a registry's host: mirrors exist, let cargo decide",
    ),
    (concat!("proxy.gol", "ang.org"), "a registry's host"),
    (concat!("sum.gol", "ang.org"), "a registry's host"),
    (concat!("registry.npm", "js.org"), "a registry's host"),
    (concat!("deb.deb", "ian.org"), "a registry's host"),
    (concat!("py", "pi.org"), "a registry's host"),
];

/// Written by cargo itself, host and all.
const GENERATED: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

pub(crate) fn run(root: &Path) -> Result<Tally> {
    let sources = workspace::rust_files(root)?;
    let mut tally = Tally::default();
    tally.record("files", &judge_files(&sources));
    tally.record("forbidden words", &judge_words(root)?);
    tally.record("links of pages", &book::markdown::check(root));
    tally.record("chapters", &book::check_chapters(root));
    tally.record("alerts", &alerts::check(root));
    tally.record("container image", &image_files::check(root));
    Ok(tally)
}

fn judge_files(sources: &[(PathBuf, String)]) -> Result<String> {
    let mut files: Vec<(usize, &Path, bool)> = sources
        .iter()
        .map(|(path, text)| (text.lines().count(), path.as_path(), has_file_reason(text)))
        .collect();
    files.sort_by_key(|&(lines, path, _)| (std::cmp::Reverse(lines), path));
    println!("  the longest files:");
    for (lines, path, _) in files.iter().take(SHOWN) {
        println!("  {lines:6}  {}", path.display());
    }
    let too_long: Vec<String> = files
        .iter()
        .filter(|(lines, _, reason)| *lines > FILE_MAX && !reason)
        .map(|(lines, path, _)| format!("{} has {lines} lines", path.display()))
        .collect();
    verdict(
        too_long,
        &format!(
            "none of {} over {FILE_MAX} lines without a reason",
            files.len()
        ),
    )
}

fn has_file_reason(text: &str) -> bool {
    text.lines()
        .take(30)
        .filter_map(|line| line.trim().strip_prefix("// long file:"))
        .any(|why| !why.trim().is_empty())
}

fn judge_words(root: &Path) -> Result<Result<String>> {
    let mut found = Vec::new();
    let files = workspace::files(root)?;
    for path in files.iter().filter(|path| {
        !GENERATED
            .iter()
            .any(|name| Path::new(name) == path.as_path())
    }) {
        let bytes = std::fs::read(root.join(path))?;
        // Not only text: a debug section of an object file names the folder it was built in.
        let text = String::from_utf8_lossy(&bytes);
        for (index, line) in text.lines().enumerate() {
            for (word, why) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
                found.push(format!("{}:{}: {word} ({why})", path.display(), index + 1));
            }
        }
    }
    Ok(verdict(found, &format!("none in {} files", files.len())))
}

fn verdict(complaints: Vec<String>, fine: &str) -> Result<String> {
    if complaints.is_empty() {
        return Ok(fine.to_owned());
    }
    let shown = complaints
        .iter()
        .take(SHOWN)
        .map(|line| format!("\n        {line}"))
        .collect::<String>();
    match complaints.len().saturating_sub(SHOWN) {
        0 => Err(anyhow!("{shown}")),
        more => bail!("{shown}\n        and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Vec<(PathBuf, String)> {
        vec![(PathBuf::from("sample.rs"), text.to_owned())]
    }

    #[test]
    fn a_long_file_needs_a_reason_at_its_top() {
        let long = "fn f() {}\n".repeat(FILE_MAX + 1);
        assert!(judge_files(&source(&long)).is_err());
        assert!(judge_files(&source(&format!("// long file: a generated table\n{long}"))).is_ok());
    }
}
