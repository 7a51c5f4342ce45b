//! docs/log-events.md lists exactly the messages that the program can log, with their levels.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../../docs/log-events.md");
/// Of these, the page says what their text is: lines without a fixed message.
const VARIABLE: [&str; 2] = ["{line}", "{warning}"];

/// Level and message.
type Event = (String, String);

#[test]
fn the_page_lists_exactly_the_messages_of_the_program() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        rust_files(&entry.unwrap().path().join("src"), &mut files);
    }
    assert!(files.len() > 300, "{}", files.len());
    let mut logged = BTreeSet::new();
    for file in files {
        events_of(&fs::read_to_string(file).unwrap(), &mut logged);
    }
    let documented: BTreeSet<Event> = PAGE.lines().filter_map(row).collect();
    let missing: Vec<&Event> = logged.difference(&documented).collect();
    assert!(
        missing.is_empty(),
        "not in docs/log-events.md: {missing:#?}"
    );
    let gone: Vec<&Event> = documented.difference(&logged).collect();
    assert!(gone.is_empty(), "only in docs/log-events.md: {gone:#?}");
    assert!(logged.len() > 80, "{}", logged.len());
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            rust_files(&path, files);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// The calls of the macros in a source.
fn events_of(source: &str, events: &mut BTreeSet<Event>) {
    for level in ["info", "warn", "error"] {
        let call = format!("tracing::{level}!(");
        for (at, _) in source.match_indices(&call) {
            if let Some(message) = message(&source[at + call.len()..])
                && !VARIABLE.contains(&message.as_str())
            {
                events.insert((level.to_owned(), message));
            }
        }
    }
}

/// The message among the arguments of a macro: the text that is the value of no field.
fn message(arguments: &str) -> Option<String> {
    let mut rest = arguments;
    let mut depth = 1;
    let mut before = ' ';
    loop {
        let character = rest.chars().next()?;
        if character == '"' {
            let (text, after) = literal(&rest[1..])?;
            if depth == 1 && before != '=' {
                return Some(text);
            }
            rest = after;
            before = '"';
            continue;
        }
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return None;
        }
        if !character.is_whitespace() {
            before = character;
        }
        rest = &rest[character.len_utf8()..];
    }
}

/// A text up to its closing quotation mark, and what follows.
fn literal(source: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = source.char_indices();
    let mut is_continued = false;
    while let Some((at, character)) = characters.next() {
        is_continued &= character.is_whitespace();
        match character {
            _ if is_continued => {}
            '"' => return Some((text, &source[at + 1..])),
            '\\' => match characters.next()?.1 {
                // The text goes on at the first character of the next line.
                '\n' => is_continued = true,
                escaped => text.push(escaped),
            },
            _ => text.push(character),
        }
    }
    None
}

/// `| level | message | ...` of the page.
fn row(line: &str) -> Option<Event> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let level = cells
        .next()
        .filter(|level| ["info", "warn", "error"].contains(level))?;
    let message = cells.next()?.trim_matches('`').trim();
    Some((level.to_owned(), message.to_owned()))
}
