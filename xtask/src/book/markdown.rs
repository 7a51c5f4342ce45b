//! Links of Markdown pages: to files of the tree, and to headings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};

use super::tree::read;
use crate::workspace;

/// A link with the line that it is in, from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// The links of a page, images too, outside of code. A target has no title.
pub(crate) fn links(page: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, text) in prose(page) {
        let text = without_code(text);
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let target = target.split(' ').next().unwrap_or_default();
            if !target.is_empty() {
                found.push(Link {
                    line,
                    target: target.to_owned(),
                });
            }
        }
    }
    found
}

/// The lines outside of fenced code, each with its number from 1.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((index + 1, line))
    })
}

/// The text without its code spans. Code in the text of a link goes, its target stays.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// The file or folder of a link of `page`, relative to the root; none if the link is external or within the page.
pub(crate) fn file_of(root: &Path, page: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split('#').next().unwrap_or_default();
    if path.is_empty() || is_external(target) {
        return None;
    }
    let folder = page.parent().unwrap_or(Path::new(""));
    let mut plain = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    root.join(&plain).exists().then_some(plain)
}

fn is_external(target: &str) -> bool {
    ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| target.starts_with(scheme))
}

/// The anchors of a page's headings, as mdBook and hosting sites make them.
pub(crate) fn anchors(page: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (_, line) in prose(page) {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ') else {
            continue;
        };
        if !line.starts_with('#') {
            continue;
        }
        let name = anchor(heading);
        let count = counts.entry(name.clone()).or_default();
        all.insert(if *count == 0 {
            name
        } else {
            format!("{name}-{count}")
        });
        *count += 1;
    }
    all
}

fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// Every Markdown file of the tree that people read: pages, and the files at the root.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = workspace::files(root)?;
    pages.retain(|path| {
        let is_markdown = path.extension().is_some_and(|e| e == "md");
        is_markdown && (path.starts_with("docs") || path.components().count() == 1)
    });
    Ok(pages)
}

/// Refuses links to files and headings that do not exist.
pub(crate) fn check(root: &Path) -> Result<String> {
    let (mut dead, mut count) = (Vec::new(), 0);
    for page in pages(root)? {
        let text = read(root, &page)?;
        for link in links(&text)
            .iter()
            .filter(|link| !is_external(&link.target))
        {
            count += 1;
            if let Some(why) = fault(root, &page, &text, &link.target) {
                let line = link.line;
                dead.push(format!("{}:{line}: {}: {why}", page.display(), link.target));
            }
        }
    }
    if !dead.is_empty() {
        bail!("\n        {}", dead.join("\n        "));
    }
    Ok(format!("{count} lead somewhere"))
}

fn fault(root: &Path, page: &Path, text: &str, target: &str) -> Option<&'static str> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let other = if path.is_empty() {
        text.to_owned()
    } else {
        let Some(file) = file_of(root, page, target) else {
            return Some("no such file");
        };
        if heading.is_empty() {
            return None;
        }
        read(root, &file).ok()?
    };
    (!heading.is_empty() && !anchors(&other).contains(heading)).then_some("no such heading")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let page = "See [a](a.md#b) and `[no](x.md)`.\n```\n[no](y.md)\n```\n![`i`](i.png)\n";
        let targets: Vec<_> = links(page).into_iter().map(|link| link.target).collect();
        assert_eq!(targets, ["a.md#b", "i.png"]);
    }

    #[test]
    fn anchors_are_made_of_headings() {
        let page =
            "# The `sip.advertise` key\n\n## Why, and how?\n\n## Why, and how?\n```\n# no\n```\n";
        let all = anchors(page);
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        assert_eq!(
            all,
            ["the-sipadvertise-key", "why-and-how", "why-and-how-1"]
        );
    }

    #[test]
    fn a_link_to_nothing_is_a_fault() {
        let root = workspace::root();
        let page = Path::new("docs/sample.md");
        let text = "# Here\n";
        let of = |target| fault(&root, page, text, target);
        assert_eq!(of("../README.md"), None);
        assert_eq!(of("#here"), None);
        assert_eq!(of("#there"), Some("no such heading"));
        assert_eq!(of("../ARCHITECTURE.md#nowhere"), Some("no such heading"));
        assert_eq!(of("nothing.md"), Some("no such file"));
    }
}
