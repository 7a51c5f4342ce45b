//! Pages of the manual that are generated from the program: the command line and the operations of the API.
//!
//! `HAIRPIN_WRITE_PAGES=1 cargo test -p hairpin --bin hairpin -- reference the_page_lists` writes them; without the
//! variable, the tests compare.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};

use crate::cli::{Cli, escape, shown};

/// Columns of the help texts.
const HELP_COLUMNS: usize = 100;

const COMMANDS: &str = "\
# Commands

For administrators who look up a command or an option. Each section is the output of `hairpin COMMAND --help`. A test
compares this page with the program.
";

/// The page of this name in the folder of the manual.
pub(crate) fn path(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page)
}

/// Compares a page with its generated text, or writes it.
pub(crate) fn compare(page: &str, text: &str) {
    let path = path(page);
    if std::env::var_os("HAIRPIN_WRITE_PAGES").is_some() {
        std::fs::write(&path, text).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = written
        .lines()
        .zip(text.lines())
        .find(|(old, new)| old != new);
    assert!(
        written == text,
        "docs/{page} differs from the program: {differs:?}; write it with HAIRPIN_WRITE_PAGES=1 cargo test -p hairpin --bin hairpin -- reference the_page_lists"
    );
}

/// The sections of a command and of its subcommands.
fn sections(command: &Command, name: &str, page: &mut String) {
    // Set again, because clap does not hand it down to subcommands.
    let mut own = command.clone().term_width(HELP_COLUMNS);
    let help = shown(&own.render_long_help().to_string());
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    page.push_str(&format!(
        "\n## `{name}`\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    ));
    for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        sections(
            subcommand,
            &format!("{name} {}", subcommand.get_name()),
            page,
        );
    }
}

#[test]
fn the_page_of_commands_is_what_the_help_says() {
    let mut command = escape(Cli::command().disable_help_subcommand(true));
    command.build();
    let mut page = COMMANDS.to_owned();
    sections(&command, "hairpin", &mut page);
    assert!(page.matches("\n## ").count() > 20, "{page}");
    assert!(page.contains("--user 'u{n}:pw{n}'"), "{page}");
    compare("cli.md", &page);
}

#[test]
fn every_stun_error_code_is_explained() {
    let page = std::fs::read_to_string(path("error-codes.md")).expect("the page");
    for code in server::stats::ERROR_CODES {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {code} |")));
        let cells = row.map(|row| {
            row.split('|')
                .filter(|cell| !cell.trim().is_empty())
                .count()
        });
        assert_eq!(
            cells,
            Some(3),
            "{code}: no row with code, cause and what to do"
        );
    }
}
