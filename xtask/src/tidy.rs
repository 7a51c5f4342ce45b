//! `cargo xtask tidy`: shows the longest files and functions, and refuses new giants and what must not be committed.
//!
//! A function may have at most [`FUNCTION_MAX`] lines, from its `fn` to its closing brace, unless a comment
//! `// long: WHY` stands directly above it (attributes and documentation may stand between). A file may have
//! at most [`FILE_MAX`] lines, unless `// long file: WHY` is among its first 30.

pub(crate) mod scan;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use crate::tally::Tally;
use crate::workspace;

/// Lines of a Rust file above which it needs a reason.
const FILE_MAX: usize = 1000;
/// Lines of a function above which it needs a reason.
const FUNCTION_MAX: usize = 70;
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

/// Macros that say that code is not written yet. Searched in code only, not in comments and strings.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!"];

/// Written by cargo itself, host and all.
const GENERATED: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

pub(crate) fn run(root: &Path) -> Result<Tally> {
    let sources = workspace::rust_files(root)?;
    let mut tally = Tally::default();
    tally.record("files", &judge_files(&sources));
    tally.record("functions", &judge_functions(&sources));
    tally.record("unfinished code", &judge_unfinished(&sources));
    tally.record("forbidden words", &judge_words(root)?);
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
    let giants: Vec<String> = files
        .iter()
        .filter(|(lines, _, reason)| *lines > FILE_MAX && !reason)
        .map(|(lines, path, _)| format!("{} has {lines} lines", path.display()))
        .collect();
    verdict(
        giants,
        &format!(
            "none of {} over {FILE_MAX} lines without a reason",
            files.len()
        ),
    )
}

fn has_file_reason(text: &str) -> bool {
    text.lines()
        .take(30)
        .any(|line| is_reason(line, "// long file:"))
}

fn is_reason(line: &str, mark: &str) -> bool {
    line.trim()
        .strip_prefix(mark)
        .is_some_and(|why| !why.trim().is_empty())
}

fn judge_functions(sources: &[(PathBuf, String)]) -> Result<String> {
    let mut functions: Vec<(scan::Function, &Path)> = sources
        .iter()
        .flat_map(|(path, text)| {
            scan::functions(text)
                .into_iter()
                .map(move |function| (function, path.as_path()))
        })
        .collect();
    functions
        .sort_by_key(|(function, path)| (std::cmp::Reverse(function.lines), *path, function.line));
    println!("  the longest functions:");
    for (function, path) in functions.iter().take(SHOWN) {
        println!(
            "  {:6}  {} ({}:{})",
            function.lines,
            function.name,
            path.display(),
            function.line
        );
    }
    let giants: Vec<String> = functions
        .iter()
        .filter(|(function, _)| function.lines > FUNCTION_MAX && !function.has_reason)
        .map(|(function, path)| {
            format!(
                "{}:{}: {} has {} lines",
                path.display(),
                function.line,
                function.name,
                function.lines
            )
        })
        .collect();
    verdict(
        giants,
        &format!(
            "none of {} over {FUNCTION_MAX} lines without a reason",
            functions.len()
        ),
    )
}

fn judge_unfinished(sources: &[(PathBuf, String)]) -> Result<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        for (index, line) in scan::code_only(text).lines().enumerate() {
            if let Some(word) = UNFINISHED.iter().find(|word| line.contains(*word)) {
                found.push(format!("{}:{}: {word}", path.display(), index + 1));
            }
        }
    }
    verdict(found, "none")
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

    fn function_of(lines: usize, above: &str) -> String {
        format!(
            "{above}\n/// Documented.\n#[inline]\nfn long() {{\n{}}}\n",
            "    work();\n".repeat(lines - 2)
        )
    }

    #[test]
    fn a_giant_function_needs_a_reason_beside_it() {
        assert!(judge_functions(&source(&function_of(FUNCTION_MAX, ""))).is_ok());
        assert!(judge_functions(&source(&function_of(FUNCTION_MAX + 1, ""))).is_err());
        assert!(
            judge_functions(&source(&function_of(
                FUNCTION_MAX + 1,
                "// long: one table"
            )))
            .is_ok()
        );
        assert!(judge_functions(&source(&function_of(FUNCTION_MAX + 1, "// long:"))).is_err());
    }

    #[test]
    fn a_giant_file_needs_a_reason_at_its_top() {
        let giant = "fn f() {}\n".repeat(FILE_MAX + 1);
        assert!(judge_files(&source(&giant)).is_err());
        assert!(
            judge_files(&source(&format!(
                "// long file: a generated table\n{giant}"
            )))
            .is_ok()
        );
    }

    #[test]
    fn unfinished_code_is_found_in_code_only() {
        assert!(judge_unfinished(&source(concat!("fn f() { to", "do!() }"))).is_err());
        assert!(
            judge_unfinished(&source("// todo! in a comment\nconst A: &str = \"todo!\";")).is_ok()
        );
    }
}
