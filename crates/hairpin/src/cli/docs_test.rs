//! What pages and help texts say about the command line has to be true.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};

use super::Cli;

const UCLIENT: &str = include_str!("../../../../docs/load-from-uclient.md");

/// A page of the manual with its name.
macro_rules! page {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../docs/", $name)))
    };
}

/// Pages whose commands and flags must exist.
const PAGES: &[(&str, &str)] = &[
    ("load-from-uclient.md", UCLIENT),
    page!("load.md"),
    page!("load-sip.md"),
    page!("benchmarking.md"),
    page!("credentials.md"),
    page!("doctor.md"),
    page!("operation.md"),
    page!("how-to/behind-nat.md"),
    page!("how-to/postgresql.md"),
    page!("how-to/public-server.md"),
    page!("how-to/sip-trunk.md"),
    page!("how-to/troubleshooting.md"),
    page!("how-to/tuning.md"),
    page!("how-to/upgrade.md"),
    page!("how-to/webrtc-phones.md"),
    page!("tutorials/measure.md"),
];

/// What `turnutils_uclient -h` of coturn 4.6.1 lists, and the long flags of newer versions.
const UCLIENT_FLAGS: &str =
    "t b T P S U v s y h c x X g D N R O M I G B Z J l i k E p n d L m e r z u w W C F o a Y K";
const UCLIENT_LONG_FLAGS: [&str; 3] = ["--sender-threads", "--listener-threads", "--no-even-port"];

/// The command at the end of a path such as `load turn`.
fn command(path: &str) -> clap::Command {
    let find = |command: clap::Command, name: &str| {
        command
            .find_subcommand(name)
            .unwrap_or_else(|| panic!("there is no command {name}"))
            .clone()
    };
    path.split(' ').fold(Cli::command(), find)
}

/// The pieces of code in a piece of Markdown.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Cells of the rows of all tables.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    page.lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// Checks every flag in a piece of code, and its value where only some are possible.
fn check_flags(code: &str, commands: &[clap::Command]) -> usize {
    let words: Vec<_> = code.split_whitespace().collect();
    let mut found = 0;
    for (at, word) in words.iter().enumerate() {
        let Some(name) = word.strip_prefix("--") else {
            continue;
        };
        let named = |argument: &&clap::Arg| {
            let aliases = argument.get_visible_aliases().unwrap_or_default();
            argument.get_long() == Some(name) || aliases.contains(&name)
        };
        // Commands may give one flag different values.
        let arguments = commands.iter().flat_map(clap::Command::get_arguments);
        let arguments: Vec<_> = arguments.filter(named).collect();
        assert!(!arguments.is_empty(), "`{code}`: there is no {word}");
        let takes = |argument: &&clap::Arg, value: &str| {
            let values = argument.get_possible_values();
            let free = values.is_empty() || !argument.get_action().takes_values();
            free || values.iter().any(|known| known.matches(value, false))
        };
        let value = words.get(at + 1).filter(|value| !value.starts_with('-'));
        if let Some(value) = value {
            let known = arguments.iter().any(|argument| takes(argument, value));
            assert!(known, "`{code}`: {word} does not take {value}");
        }
        found += 1;
    }
    found
}

#[test]
fn every_flag_of_uclient_is_mapped_to_flags_that_exist() {
    let commands = ["load turn", "load stun", "peer"].map(command);
    let mut named = BTreeSet::new();
    let mut ours = 0;
    for row in rows(UCLIENT).filter(|row| row.len() == 3) {
        named.extend(spans(row[0]).filter_map(|code| code.split(' ').next()));
        ours += spans(row[2])
            .map(|code| check_flags(code, &commands))
            .sum::<usize>();
    }
    assert!(ours > 20, "only {ours} of our flags were found");
    let letters = UCLIENT_FLAGS.split(' ').map(|letter| format!("-{letter}"));
    let missing: Vec<_> = letters
        .chain(UCLIENT_LONG_FLAGS.map(str::to_owned))
        .filter(|flag| !named.contains(flag.as_str()))
        .collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}

/// A command with all its subcommands.
fn every(command: &clap::Command, all: &mut Vec<clap::Command>) {
    all.push(command.clone());
    command.get_subcommands().for_each(|sub| every(sub, all));
}

#[test]
fn flags_that_pages_mention_exist() {
    let mut all = Vec::new();
    every(&Cli::command(), &mut all);
    // Of other programs, in the same pages.
    let foreign = ["--allow-loopback-peers", "--allowed-peer-ip"];
    for (name, page) in PAGES
        .iter()
        .filter(|(name, _)| *name != "load-from-uclient.md")
    {
        for code in spans(&without_code_blocks(page)).filter(|code| code.starts_with("--")) {
            let flag = code.split(' ').next().unwrap_or_default();
            if !foreign.contains(&flag) {
                assert!(check_flags(code, &all) > 0, "{name}: {code}");
            }
        }
    }
}

/// The page without its blocks of code.
fn without_code_blocks(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Lines that call hairpin, with those they continue in.
fn calls(text: &str) -> Vec<String> {
    let joined: Vec<&str> = text.split("\\\n").map(str::trim_start).collect();
    let joined = joined.join(" ");
    let lines = joined.lines().map(str::trim);
    lines
        .map(|line| line.strip_prefix("sudo ").unwrap_or(line))
        .filter(|line| line.starts_with("hairpin ") && !line.starts_with("hairpin COMMAND"))
        .map(str::to_owned)
        .collect()
}

/// Splits a call as a shell would, up to a pipe, a redirection or the next command.
fn words(call: &str) -> Vec<String> {
    let words = shlex::split(call).unwrap_or_else(|| panic!("an open quote: {call}"));
    let ends = |word: &String| matches!(word.as_str(), "|" | "&" | "&&" | "<" | ">" | ";");
    words.into_iter().take_while(|word| !ends(word)).collect()
}

fn parses(place: &str, call: &str) {
    // Help texts describe a call in the same line, after some blanks.
    let call = call.split("   ").next().unwrap_or(call);
    if let Err(error) = Cli::try_parse_from(words(call)) {
        assert!(!error.use_stderr(), "{place}: {call}\n{error}");
    }
}

#[test]
fn examples_of_pages_are_accepted() {
    let mut count = 0;
    for (name, page) in PAGES {
        for block in page.split("```sh\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            for call in calls(block) {
                parses(name, &call);
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} examples were found");
}

#[test]
fn examples_of_help_texts_are_accepted() {
    fn visit(command: &clap::Command, count: &mut usize) {
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        for call in calls(&help) {
            parses(command.get_name(), &call);
            *count += 1;
        }
        command.get_subcommands().for_each(|sub| visit(sub, count));
    }
    let mut count = 0;
    visit(&Cli::command(), &mut count);
    assert!(count > 30, "only {count} examples were found");
}

#[test]
fn load_peer_and_bench_give_three_examples() {
    for path in [
        "load",
        "load turn",
        "load stun",
        "load sip",
        "peer",
        "bench",
    ] {
        let help = command(path)
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(calls(&help).len() >= 3, "{path}");
    }
}
