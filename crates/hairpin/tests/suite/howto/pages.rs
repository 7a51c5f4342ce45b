//! The pages of the book, and the commands in their blocks of code.

use std::path::{Path, PathBuf};

/// A page that is not a tutorial.
pub(super) struct Page {
    /// Its file, as the table of contents names it.
    pub(super) name: String,
    pub(super) commands: Vec<Command>,
    /// The blocks of TOML.
    pub(super) settings: Vec<String>,
    /// All of its text.
    pub(super) text: String,
}

/// A command of a page.
pub(super) struct Command {
    /// Its line, joined with those it continues in.
    pub(super) text: String,
    /// The output that the page shows for it.
    pub(super) shown: Option<String>,
}

/// The folder of the project.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the project.
pub(super) fn file(name: &str) -> String {
    let path = root().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The files of the table of contents, except tutorials.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    let mut is_tutorial = false;
    for line in file("docs/SUMMARY.md").lines() {
        if let Some(part) = line.strip_prefix("# ") {
            is_tutorial = part == "Tutorials";
        }
        let target = line
            .split_once("](")
            .and_then(|(_, rest)| rest.split_once(')'));
        if let Some((target, _)) = target
            && !is_tutorial
        {
            names.push(target.to_owned());
        }
    }
    names
}

/// Every page that is not a tutorial.
pub(super) fn all() -> Vec<Page> {
    let names = names();
    assert!(names.len() > 60, "only {} pages", names.len());
    names
        .into_iter()
        .map(|name| {
            let text = file(&format!("docs/{name}"));
            page(name, text)
        })
        .collect()
}

fn page(name: String, text: String) -> Page {
    let mut commands: Vec<Command> = Vec::new();
    let mut settings = Vec::new();
    // Whether nothing is between the last command and this block.
    let mut follows = false;
    for block in blocks(&text) {
        match block.kind {
            "sh" | "shell" | "bash" => {
                let lines = joined(&block.text);
                let lines = lines.lines().map(str::trim);
                let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
                commands.extend(lines.map(|line| command(line, None)));
                follows = true;
            }
            "console" => {
                commands.extend(prompts(&block.text));
                follows = false;
            }
            "toml" => settings.push(block.text),
            "text" if follows && !block.is_apart => {
                let last = commands.last_mut().expect("the command before");
                last.shown = Some(block.text);
                follows = false;
            }
            _ => follows = false,
        }
    }
    Page {
        name,
        commands,
        settings,
        text,
    }
}

fn command(text: &str, shown: Option<String>) -> Command {
    Command {
        text: text.to_owned(),
        shown,
    }
}

/// One line for each command.
fn joined(text: &str) -> String {
    let parts: Vec<&str> = text.split("\\\n").map(str::trim_start).collect();
    parts.join("")
}

/// The commands behind prompts, each with the lines until the next one.
fn prompts(text: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for line in joined(text).lines() {
        let typed = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        if let Some(typed) = typed {
            commands.push(command(typed, None));
        } else {
            let last = commands.last_mut().expect("a block begins with a prompt");
            let shown = last.shown.get_or_insert_default();
            shown.push_str(line);
            shown.push('\n');
        }
    }
    commands
}

struct Block<'a> {
    kind: &'a str,
    /// Without the indentation of a list.
    text: String,
    /// Text is between this block and the one before.
    is_apart: bool,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block<'_>, usize)> = None;
    let mut is_apart = true;
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => {
                let kind = info.split([' ', ',']).next().unwrap_or_default();
                let block = Block {
                    kind,
                    text: String::new(),
                    is_apart,
                };
                open = Some((block, line.len() - line.trim_start().len()));
            }
            (None, None) => is_apart |= !line.trim().is_empty(),
            (Some(_), Some(_)) => {
                blocks.extend(open.take().map(|(block, _)| block));
                is_apart = false;
            }
            (Some((block, indentation)), None) => {
                block
                    .text
                    .push_str(line.get(*indentation..).unwrap_or_default());
                block.text.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a block without an end");
    blocks
}

#[test]
fn commands_of_all_kinds_of_blocks_are_found() {
    let text = "\
        1. Step:\n\n   ```sh\n   # comment\n   one \\\n     --flag\n   two\n   ```\n\n   ```text\n   said\n   ```\n\
        ```console\n$ three\nshown\n# four\n```\n```toml\nkey = 1\n```\n";
    let page = page("page.md".to_owned(), text.to_owned());
    let found: Vec<_> = page
        .commands
        .iter()
        .map(|command| (&*command.text, command.shown.as_deref()))
        .collect();
    let expected = [
        ("one --flag", None),
        ("two", Some("said\n")),
        ("three", Some("shown\n")),
        ("four", None),
    ];
    assert_eq!(found, expected);
    assert_eq!(page.settings, ["key = 1\n"]);
}
