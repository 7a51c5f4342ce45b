//! `cargo xtask book`: the manual. mdBook makes it from the pages of `docs/`, and every link in it must lead somewhere.
//!
//! The pages also link to files outside `docs/`, such as sources and ARCHITECTURE.md. Therefore mdBook reads a copy of
//! the tree that has the pages and the linked files ([`tree`]). The finished HTML is checked as well as the
//! Markdown, because only the HTML shows what mdBook made of a link.

mod html;
pub(crate) mod markdown;
pub(crate) mod readability;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

pub(crate) use tree::check_chapters;

use crate::tally::Tally;
use crate::{built, scratch};

/// The list of chapters, relative to the root.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Builds the book and checks it.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    tally.record("links in Markdown", &markdown::check(root));
    tally.record("chapters", &check_chapters(root));
    tally.record("readability", &readability::check(root));
    let built = build(root);
    let checked = built.and_then(|folder| html::check(root, &folder));
    tally.record("links in HTML", &checked);
    Ok(tally)
}

/// Runs mdBook; returns the folder of the HTML.
fn build(root: &Path) -> Result<PathBuf> {
    let mdbook = built::MDBOOK.ensure(root)?;
    let folder = scratch(root, "book")?;
    let (source, output) = (folder.join("source"), folder.join("html"));
    tree::copy(root, &source)?;
    let status = Command::new(mdbook)
        .args(["build", "--dest-dir"])
        .args([&output, &source])
        // Its progress is of no interest; warnings are.
        .env("RUST_LOG", "warn")
        .status()
        .context("cannot run mdbook")?;
    ensure!(status.success(), "mdbook failed: {status}");
    Ok(output)
}
