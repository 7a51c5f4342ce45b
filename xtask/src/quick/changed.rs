//! Which packages a change reaches.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::{Package, output_of};

/// The packages to check, and why these.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    pub(super) reason: String,
    pub(super) packages: Vec<&'a Package>,
}

/// Files outside of the packages that tests of packages read. A change of any other file outside reaches every package.
const READERS: &[(&str, &[&str])] = &[
    ("docs", &["hairpin", "xtask"]),
    ("deploy", &["hairpin"]),
    (
        "fuzz",
        &["hairpin-stun", "hairpin-sip", "hairpin-dtls", "xtask"],
    ),
    ("interop", &["xtask"]),
    (".github", &["xtask"]),
    ("ARCHITECTURE.md", &["xtask"]),
    ("CHANGELOG.md", &["xtask"]),
    ("CONTRIBUTING.md", &["xtask"]),
    ("README.md", &["xtask"]),
    ("deny.toml", &["xtask"]),
];

impl<'a> Selection<'a> {
    pub(super) fn all(packages: &'a [Package], reason: &str) -> Selection<'a> {
        Selection {
            reason: reason.to_owned(),
            packages: packages.iter().collect(),
        }
    }
}

/// What differs from the merge base with `base`, or with the main branch.
pub(super) fn select<'a>(
    root: &Path,
    packages: &'a [Package],
    base: Option<&str>,
) -> Result<Selection<'a>> {
    let Some(base) = merge_base(root, base)? else {
        return Ok(Selection::all(
            packages,
            "no branch main or origin/main to compare with: everything",
        ));
    };
    let files = changed_files(root, &base)?;
    let short = base.get(..10).unwrap_or(&base);
    if files.is_empty() {
        let reason = format!("nothing differs from {short} (main): everything");
        return Ok(Selection::all(packages, &reason));
    }
    let reason = format!("{} files differ from {short}", files.len());
    let Some(changed) = owners(root, packages, &files) else {
        return Ok(Selection::all(
            packages,
            &format!("{reason}, some of them used by every package"),
        ));
    };
    Ok(Selection {
        reason,
        packages: with_dependents(packages, changed),
    })
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    output_of(Command::new("git").args(arguments).current_dir(root))
}

/// The commit where this branch left `base`; an error only if `base` was asked for.
fn merge_base(root: &Path, base: Option<&str>) -> Result<Option<String>> {
    let find =
        |name: &str| git(root, &["merge-base", "HEAD", name]).map(|text| text.trim().to_owned());
    if let Some(base) = base {
        return find(base).map(Some);
    }
    Ok(find("main").or_else(|_| find("origin/main")).ok())
}

/// The files that differ from the commit, in commits, in the index or in the working tree, and new files.
fn changed_files(root: &Path, commit: &str) -> Result<Vec<PathBuf>> {
    // Without renames, so that the old place of a file counts, too.
    let differing = git(root, &["diff", "--name-only", "--no-renames", "-z", commit])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let names = differing.split('\0').chain(new.split('\0'));
    Ok(names
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .collect())
}

/// The packages that the files belong to, or whose tests read them. `None`: every package.
fn owners<'a>(root: &Path, packages: &'a [Package], files: &[PathBuf]) -> Option<Vec<&'a Package>> {
    let mut found = Vec::new();
    for file in files {
        let owner = packages.iter().find(|package| {
            package
                .folder
                .strip_prefix(root)
                .is_ok_and(|folder| file.starts_with(folder))
        });
        if let Some(owner) = owner {
            found.push(owner);
            continue;
        }
        let (_, readers) = READERS
            .iter()
            .find(|(prefix, _)| file.starts_with(prefix))?;
        found.extend(
            packages
                .iter()
                .filter(|package| readers.contains(&package.name.as_str())),
        );
    }
    Some(found)
}

/// The packages, and all that depend on them directly or not, in the order of `packages`.
fn with_dependents<'a>(packages: &'a [Package], changed: Vec<&'a Package>) -> Vec<&'a Package> {
    let mut names: Vec<&str> = changed
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let mut next = 0;
    while let Some(&name) = names.get(next) {
        next += 1;
        for package in packages {
            let depends = package
                .dependencies
                .iter()
                .any(|dependency| dependency == name);
            if depends && !names.contains(&package.name.as_str()) {
                names.push(&package.name);
            }
        }
    }
    packages
        .iter()
        .filter(|package| names.contains(&package.name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            has_library: true,
            folder: Path::new("/tree").join(folder),
            dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn packages() -> Vec<Package> {
        vec![
            package("hairpin", "crates/hairpin", &["hairpin-server", "clap"]),
            package(
                "hairpin-server",
                "crates/server",
                &["hairpin-stun", "hairpin-io"],
            ),
            package("hairpin-io", "crates/io", &["libc"]),
            package("hairpin-stun", "crates/stun", &[]),
            package("hairpin-sip", "crates/sip", &[]),
            package("xtask", "xtask", &["clap"]),
        ]
    }

    fn reached(files: &[&str]) -> Option<Vec<String>> {
        let packages = packages();
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let owners = owners(Path::new("/tree"), &packages, &files)?;
        Some(
            with_dependents(&packages, owners)
                .into_iter()
                .map(|package| package.name.clone())
                .collect(),
        )
    }

    #[test]
    fn a_change_reaches_what_depends_on_it() {
        assert_eq!(
            reached(&["crates/io/src/lib.rs"]).unwrap(),
            ["hairpin", "hairpin-server", "hairpin-io"]
        );
        assert_eq!(
            reached(&["crates/hairpin/src/main.rs"]).unwrap(),
            ["hairpin"]
        );
        assert_eq!(
            reached(&["xtask/src/main.rs", "crates/sip/tests/a.rs"]).unwrap(),
            ["hairpin-sip", "xtask"]
        );
    }

    #[test]
    fn a_file_outside_of_the_packages_reaches_those_that_read_it_or_all() {
        assert_eq!(
            reached(&["docs/load.md", "README.md"]).unwrap(),
            ["hairpin", "xtask"]
        );
        assert!(
            reached(&["fuzz/corpus/stun_message/a"])
                .unwrap()
                .contains(&"hairpin-stun".to_owned())
        );
        assert_eq!(reached(&["Cargo.lock"]), None);
        assert_eq!(reached(&["docs/load.md", "clippy.toml"]), None);
    }
}
