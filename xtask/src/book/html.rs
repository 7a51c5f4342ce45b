//! Links of the finished book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::SUMMARY;
use super::tree::{chapters, read};

/// Refuses links of chapters that lead to no file or to no element of the book. `folder` has the HTML.
pub(super) fn check(root: &Path, folder: &Path) -> Result<String> {
    let pages: Vec<PathBuf> = chapters(&read(root, Path::new(SUMMARY))?)
        .iter()
        .map(|chapter| page_of(chapter))
        .collect();
    let mut ids = Ids {
        folder,
        known: BTreeMap::new(),
    };
    let (mut dead, mut count) = (BTreeSet::new(), 0);
    for page in &pages {
        let text = std::fs::read_to_string(folder.join(page))
            .with_context(|| format!("mdBook did not make {}", page.display()))?;
        let here = page.parent().unwrap_or(Path::new(""));
        for target in attributes(&text, &[" href=\"", " src=\""]) {
            // The page of the next chapter and so on have no scheme either: these are checked, too.
            if target.contains(':') || target.starts_with("//") {
                continue;
            }
            count += 1;
            let (path, id) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path.split('?').next().unwrap_or_default() {
                "" => page.clone(),
                path => here.join(path),
            };
            if !ids.contains(&file, id) {
                dead.insert(format!("{}: {target}", page.display()));
            }
        }
    }
    if !dead.is_empty() {
        let dead: Vec<String> = dead.into_iter().collect();
        bail!("\n        {}", dead.join("\n        "));
    }
    Ok(format!("{count} in {} pages lead somewhere", pages.len()))
}

/// The page that mdBook makes of a chapter: README.md becomes index.html.
fn page_of(chapter: &Path) -> PathBuf {
    if chapter.file_name().is_some_and(|name| name == "README.md") {
        return chapter.with_file_name("index.html");
    }
    chapter.with_extension("html")
}

/// The elements of files, read when somebody asks for the first time.
struct Ids<'a> {
    folder: &'a Path,
    known: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Ids<'_> {
    /// Whether the file exists and, unless `id` is empty, has an element with it.
    fn contains(&mut self, file: &Path, id: &str) -> bool {
        let path = self.folder.join(file);
        if id.is_empty() {
            return path.exists();
        }
        let ids = self.known.entry(file.to_path_buf()).or_insert_with(|| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            attributes(&text, &[" id=\""]).collect()
        });
        ids.contains(id)
    }
}

/// The values of attributes in HTML.
fn attributes<'a>(text: &'a str, starts: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    starts.iter().flat_map(move |start| {
        text.split(start).skip(1).map(|rest| {
            let value = rest.split('"').next().unwrap_or_default();
            value.replace("&amp;", "&").replace("%20", " ")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found() {
        let text = r#"<a class="x" href="a.html#b&amp;c">t</a> <img src="i.png">"#;
        let all: Vec<_> = attributes(text, &[" href=\"", " src=\""]).collect();
        assert_eq!(all, ["a.html#b&c", "i.png"]);
    }

    #[test]
    fn a_readme_is_an_index() {
        assert_eq!(
            page_of(Path::new("docs/benchmarks/README.md")),
            Path::new("docs/benchmarks/index.html")
        );
        assert_eq!(
            page_of(Path::new("docs/tls.md")),
            Path::new("docs/tls.html")
        );
    }
}
