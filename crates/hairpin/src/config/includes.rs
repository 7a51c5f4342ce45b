//! Further files that a configuration file includes: `include = ["conf.d/*.toml"]`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::schema::Settings;
use super::setting::wrong_type;
use super::source::{Layer, Located, SourceId, Sources};
use super::walk::{self, Context};

/// The key, outside of any section.
pub(super) const KEY: &str = "include";
/// A configuration of ten thousand users has less.
const MAX_FILE: u64 = 4 << 20;
/// Files of one directory. More is some other directory, given by mistake.
const MAX_FILES: usize = 1_000;
const HELP: &str = "write it like include = [\"conf.d/*.toml\"]";

/// Reads the configuration file, and the files that it includes.
pub(super) fn read(
    (name, text): (&str, &str),
    environment: &[(OsString, OsString)],
    settings: &mut Settings,
    sources: &mut Sources,
    report: &mut Report,
) {
    let first = sources.add(Layer::File, name, text);
    let mut context = Context {
        environment,
        files: vec![first],
    };
    let patterns = walk::file(first, text, &context, settings, report);
    for pattern in patterns {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        let paths = match matches(folder, &pattern.value) {
            Ok(paths) => paths,
            Err(why) => {
                report.push(Diagnostic::error(&pattern.at, why).help(HELP));
                continue;
            }
        };
        for path in paths {
            let text = match text_of(&path) {
                Ok(text) => text,
                Err(why) => {
                    report.error(
                        &pattern.at,
                        format!("cannot read {}: {why}", path.display()),
                    );
                    continue;
                }
            };
            let source = sources.add(Layer::File, path.display().to_string(), &*text);
            let deeper = walk::file(source, &text, &context, settings, report);
            for pattern in deeper {
                let message = "a file that is included cannot include others";
                report.push(
                    Diagnostic::error(&pattern.at, message)
                        .help(format!("include it in {name} itself")),
                );
            }
            context.files.push(source);
        }
    }
}

/// Takes the patterns out of the root of a document.
pub(super) fn take(
    source: SourceId,
    root: &mut DeTable<'_>,
    report: &mut Report,
) -> Vec<Located<String>> {
    let Some(value) = root.remove(KEY) else {
        return Vec::new();
    };
    let node = Node::toml(source, &value);
    if matches!(value.get_ref(), DeValue::Table(_)) {
        report.push(wrong_type(&node, "a list of files").help(HELP));
        return Vec::new();
    }
    let Some(items) = node.items() else {
        report.push(wrong_type(&node, "a list of files").help(HELP));
        return Vec::new();
    };
    let mut patterns = Vec::new();
    for item in &items {
        match item.text() {
            Some(text) => patterns.push(Located {
                value: text.to_owned(),
                at: item.at.clone(),
            }),
            None => report.push(wrong_type(item, "a file").help(HELP)),
        }
    }
    patterns
}

/// The files that a pattern names, sorted by name. Only the last part of a pattern can have a `*`.
fn matches(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = folder.join(pattern);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("`{pattern}` names no file"))?;
    let Some((before, after)) = name.split_once('*') else {
        return Ok(vec![path]);
    };
    let parent = path.parent().unwrap_or(Path::new(""));
    if after.contains('*') || parent.to_string_lossy().contains('*') {
        return Err(format!("`{pattern}`: only one `*`, in the name of a file"));
    }
    let parent = match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    };
    let entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        // A package may make the directory later.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot list {}: {error}", parent.display())),
    };
    let fits = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| {
            name.len() >= before.len() + after.len()
                && name.starts_with(before)
                && name.ends_with(after)
                && (!name.starts_with('.') || before.starts_with('.'))
        })
    };
    let entries = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = entries.filter(fits).collect();
    if found.len() > MAX_FILES {
        return Err(format!(
            "`{pattern}` matches {} files, more than {MAX_FILES}",
            found.len()
        ));
    }
    found.sort();
    Ok(found)
}

fn text_of(path: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    if metadata.len() > MAX_FILE {
        return Err(format!("it is larger than {} MiB", MAX_FILE >> 20));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
