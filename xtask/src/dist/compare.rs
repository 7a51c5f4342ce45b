//! Builds a commit twice, in two folders with names of different length, and compares all bytes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{BuiltPackages, Options, Source, build, elf, make, output};
use crate::scratch;
use crate::tally::Tally;

/// Both folders. Their names differ in length, because a path in a program moves all that is behind it.
const FOLDERS: [&str; 2] = ["one", "the-other-one"];

/// Builds in both folders, and compares what is there.
pub(super) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let mut tally = Tally::default();
    let source = Source::of(root)?;
    let scratch = scratch(root, "compare")?;
    let binary = options.binary.as_deref().unwrap_or("hairpin");
    let mut programs = Vec::new();
    let mut packages = Vec::new();
    for name in FOLDERS {
        let results = scratch.join("results").join(name);
        fs::create_dir_all(&results)?;
        let copy = copy(&source, &scratch.join(name))?;
        let built = build::program(&copy, options, binary)?;
        let program = results.join(binary);
        fs::copy(&built, &program)?;
        if options.binary.is_none() {
            packages.push(make(&copy, &program, &results, &options.architecture)?);
        }
        programs.push(program);
        // Some gigabytes.
        fs::remove_dir_all(&copy.root)?;
    }
    tally.record("program", &same(&programs[0], &programs[1]));
    if let [one, two] = &packages[..] {
        for (name, of) in FILES {
            match (of(one), of(two)) {
                (Some(one), Some(two)) => tally.record(name, &same(one, two)),
                _ => tally.skip(name, "rpmbuild is not installed (Debian: rpm)"),
            }
        }
    }
    Ok(tally)
}

type File = (&'static str, fn(&BuiltPackages) -> Option<&Path>);

/// The files that are compared beside the program.
const FILES: [File; 4] = [
    (".deb", |made| Some(&made.deb)),
    ("tarball", |made| Some(&made.tarball)),
    ("bill of materials", |made| Some(&made.bill)),
    (".rpm", |made| made.rpm.as_deref()),
];

/// The files of the commit in a new folder. It has a target folder of its own, so that nothing built is shared.
fn copy(source: &Source, to: &Path) -> Result<Source> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    let archive = to.join("source.tar");
    let mut git = Command::new("git");
    git.current_dir(&source.root).args(["archive", "--output"]);
    output(git.arg(&archive).arg("HEAD"))?;
    output(
        Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(to),
    )?;
    fs::remove_file(archive)?;
    Ok(Source {
        root: to.to_owned(),
        target: to.join("target"),
        commit: source.commit.clone(),
        time: source.time.clone(),
    })
}

/// Compares two files.
fn same(one: &Path, two: &Path) -> Result<String> {
    let read = |path: &Path| -> Result<Vec<u8>> {
        fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (first, second) = (read(one)?, read(two)?);
    match difference(&first, &second) {
        None => Ok(format!("{} bytes are the same", first.len())),
        Some(text) => bail!("{} and {}: {text}", one.display(), two.display()),
    }
}

/// How two files differ: the first byte, and the sections if both are programs.
fn difference(one: &[u8], two: &[u8]) -> Option<String> {
    let length = match (one.len(), two.len()) {
        (len, other) if len == other => String::new(),
        (len, other) => format!("{len} and {other} bytes; "),
    };
    let mut pairs = one.iter().zip(two);
    let first = pairs.position(|(one, two)| one != two);
    let first = match first {
        Some(first) => first,
        None if length.is_empty() => return None,
        None => one.len().min(two.len()),
    };
    let sections = differing_sections(one, two);
    let sections = match sections.is_empty() {
        true => String::new(),
        false => format!(", in sections {}", sections.join(", ")),
    };
    Some(format!(
        "{length}they differ from byte {first} on{sections}"
    ))
}

/// The names of the sections with different bytes.
fn differing_sections(one: &[u8], two: &[u8]) -> Vec<String> {
    let bytes = |file: &[u8], section: &elf::Section| {
        let end = section.start.checked_add(section.len)?;
        file.get(section.start..end).map(<[u8]>::to_vec)
    };
    let others = elf::sections(two);
    let all = elf::sections(one).into_iter();
    let differing = all.filter(|section| {
        let other = others.iter().find(|it| it.name == section.name);
        bytes(one, section) != other.and_then(|other| bytes(two, other))
    });
    differing.map(|section| section.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_a_place_and_a_section() {
        assert_eq!(difference(b"same", b"same"), None);
        let text = difference(b"abc", b"abd").expect("they differ");
        assert_eq!(text, "they differ from byte 2 on");
        let text = difference(b"abc", b"abcd").expect("they differ");
        assert_eq!(text, "3 and 4 bytes; they differ from byte 3 on");
        let own = std::env::current_exe().expect("this program");
        let one = fs::read(own).expect("its file");
        let text = elf::sections(&one);
        let text = text.iter().find(|it| it.name == ".text").expect(".text");
        let mut two = one.clone();
        two[text.start + 7] ^= 1;
        let expected = format!(
            "they differ from byte {} on, in sections .text",
            text.start + 7
        );
        assert_eq!(difference(&one, &two), Some(expected));
    }

    #[test]
    fn two_files_with_one_different_byte_are_not_the_same() {
        let folder = std::env::temp_dir().join(format!("hairpin-compare-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let paths = ["one", "two"].map(|name| folder.join(name));
        for (path, bytes) in paths.iter().zip([b"abc", b"abd"]) {
            fs::write(path, bytes).expect("a file");
        }
        assert!(same(&paths[0], &paths[0]).is_ok());
        assert!(same(&paths[0], &paths[1]).is_err());
        assert!(same(&paths[0], &folder.join("three")).is_err());
        fs::remove_dir_all(folder).expect("the folder");
    }
}
