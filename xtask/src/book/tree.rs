//! The copy of the tree that mdBook reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::{SUMMARY, markdown};
use crate::workspace;

/// Pages of `docs/` that are no chapters.
const NO_CHAPTERS: &[&str] = &[SUMMARY];

/// Deletes the folder `to`. Then writes the pages, the files that they link to, and the list of chapters into it.
pub(super) fn copy(root: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    let summary = read(root, Path::new(SUMMARY))?;
    let mut files: BTreeSet<PathBuf> = workspace::files(root)?
        .into_iter()
        .filter(|path| path.starts_with("docs") && !path.ends_with("book.toml"))
        .filter(|path| path != Path::new(SUMMARY))
        .collect();
    for chapter in chapters(&summary) {
        for link in markdown::links(&read(root, &chapter)?) {
            files.extend(markdown::file_of(root, &chapter, &link.target));
        }
        files.insert(chapter);
    }
    for path in files.iter().filter(|path| root.join(path).is_file()) {
        let target = to.join(path);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        let copied = if path.extension().is_some_and(|e| e == "md") {
            fs::write(&target, with_index(&read(root, path)?))
        } else {
            fs::copy(root.join(path), &target).map(drop)
        };
        copied.with_context(|| format!("cannot copy {}", path.display()))?;
    }
    fs::copy(root.join("docs/book.toml"), to.join("book.toml")).context("docs/book.toml")?;
    fs::write(to.join("SUMMARY.md"), from_root(&summary))?;
    Ok(())
}

/// The page with links to README.md as mdBook requires them: it makes index.html of each README.md, but leaves links to
/// it alone.
fn with_index(page: &str) -> String {
    page.replace("README.md)", "index.md)")
        .replace("README.md#", "index.md#")
}

/// The list of chapters with paths from the root instead of from `docs/`.
fn from_root(summary: &str) -> String {
    summary
        .replace("](", "](docs/")
        .replace("](docs/../", "](")
        .replace("](docs/)", "]()")
}

/// The files of the chapters, relative to the root.
pub(super) fn chapters(summary: &str) -> Vec<PathBuf> {
    markdown::links(&from_root(summary))
        .into_iter()
        .map(|link| PathBuf::from(link.target))
        .collect()
}

/// Each page of `docs/` is a chapter, and each chapter exists once.
pub(crate) fn check_chapters(root: &Path) -> Result<String> {
    let listed = chapters(&read(root, Path::new(SUMMARY))?);
    let set: BTreeSet<&PathBuf> = listed.iter().collect();
    ensure!(set.len() == listed.len(), "{SUMMARY} lists a page twice");
    let missing: Vec<String> = workspace::files(root)?
        .iter()
        .filter(|path| path.starts_with("docs") && path.extension().is_some_and(|e| e == "md"))
        .filter(|path| !NO_CHAPTERS.iter().any(|name| path == &Path::new(name)))
        .filter(|path| !set.contains(path))
        .map(|path| path.display().to_string())
        .collect();
    if !missing.is_empty() {
        bail!("not in {SUMMARY}: {}; add each page", missing.join(", "));
    }
    Ok(format!("{} pages in {SUMMARY}", listed.len()))
}

pub(super) fn read(root: &Path, path: &Path) -> Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_are_named_from_the_root() {
        let summary = "- [Start](a.md)\n- [Architecture](../ARCHITECTURE.md)\n";
        assert_eq!(
            chapters(summary),
            [PathBuf::from("docs/a.md"), PathBuf::from("ARCHITECTURE.md")]
        );
    }
}
