//! What `-h` and `--help` show. `-h` fits one screen. `--help` with `--workload` hides the flags of other workloads.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::{Arg, Command, CommandFactory, FromArgMatches};

use super::{Cli, load};

/// The placeholder for a number in help texts. clap would print it as a line end.
const NUMBER: &str = "{n}";
/// Stands for [`NUMBER`] while clap lays out the text. It has a word joiner, which has no width.
const STAND_IN: &str = "{\u{2060}n}";

/// Commands whose flags do not fit one screen, and the flags that `-h` shows. `--help` shows all.
const SHORT: [(&str, &[&str]); 7] = [
    (
        "load turn",
        &[
            "target", "workload", "user", "secret", "clients", "peer", "size", "rate", "closed",
            "find-max", "duration", "json", "fail-if",
        ],
    ),
    (
        "load stun",
        &[
            "target", "workload", "clients", "insecure", "rate", "closed", "find-max", "duration",
            "json", "fail-if",
        ],
    ),
    (
        "load sip",
        &[
            "target",
            "workload",
            "transport",
            "clients",
            "aors",
            "user",
            "hold",
            "sweep",
            "rate",
            "closed",
            "duration",
            "json",
            "fail-if",
        ],
    ),
    (
        "peer",
        &["listen", "sink", "source", "threads", "duration", "json"],
    ),
    (
        "probe turn",
        &[
            "target", "user", "secret", "insecure", "timeout", "json", "exporter",
        ],
    ),
    (
        "bench",
        &[
            "a",
            "b",
            "sip",
            "quick",
            "fail-below",
            "rounds",
            "scenarios",
            "sizes",
            "ipv6",
            "json",
            "html",
            "list",
        ],
    ),
    (
        "serve",
        &[
            "config",
            "dev",
            "listen",
            "relay-address",
            "external-ip",
            "user",
            "secret",
            "realm",
            "workers",
            "allow-peer",
            "admin",
            "log-level",
            "set",
        ],
    ),
];
/// Examples that `-h` shows.
const MAX_EXAMPLES: usize = 2;

/// Flags with the workloads that each belongs to. A flag that is not in the list belongs to all workloads.
type Only = &'static [(&'static str, &'static [&'static str])];

/// The command line. If `workload` is given, the help of a load shows only the flags of that workload. If `brief`, the
/// help of long commands is shortened to one screen, for `-h`.
fn command(workload: Option<&str>, brief: bool) -> Command {
    let loads = |command: Command| {
        [
            ("turn", load::turn::ONLY),
            ("stun", load::stun::ONLY),
            ("sip", load::sip::ONLY),
        ]
        .into_iter()
        .fold(command, |command, (name, only)| {
            command.mut_subcommand(name, |sub| hide_other_flags(sub, only, workload))
        })
    };
    let command = Cli::command().mut_subcommand("load", loads);
    escape(match brief {
        true => SHORT.iter().fold(command, |command, (path, flags)| {
            change_at(command, path, &|command| shorten(command, flags))
        }),
        false => command,
    })
}

/// Applies `change` to the subcommand at a path such as `load turn`.
fn change_at(command: Command, path: &str, change: &dyn Fn(Command) -> Command) -> Command {
    match path.split_once(' ') {
        Some((name, rest)) => command.mut_subcommand(name, |sub| change_at(sub, rest, change)),
        None => command.mut_subcommand(path, change),
    }
}

/// Hides the flags that belong to other workloads only. Without a workload, hides nothing.
fn hide_other_flags(command: Command, only: Only, workload: Option<&str>) -> Command {
    let Some(workload) = workload else {
        return command;
    };
    command.mut_args(|arg| {
        let name = arg.get_long().unwrap_or_default();
        let entry = only.iter().find(|(flag, _)| *flag == name);
        let is_of_others = entry.is_some_and(|(_, workloads)| !workloads.contains(&workload));
        match is_of_others {
            true => arg.hide(true),
            false => arg,
        }
    })
}

/// Makes `-h` show only these flags, and the first [`MAX_EXAMPLES`] examples.
fn shorten(command: Command, shown: &[&str]) -> Command {
    let examples = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut few = String::new();
    let mut count = 0;
    for line in examples.lines() {
        count += usize::from(line.trim_start().starts_with("hairpin "));
        if count > MAX_EXAMPLES || line.is_empty() {
            break;
        }
        few += line;
        few.push('\n');
    }
    few += "All flags and more examples: --help";
    let command = command.after_help(few);
    command.mut_args(|arg| {
        let name = arg.get_long().unwrap_or(arg.get_id().as_str());
        let is_shown = shown.contains(&name);
        match is_shown {
            // All under one heading.
            true => shorten_flag_help(arg)
                .help_heading(None::<&str>)
                .hide_env(true),
            false => arg.hide_short_help(true),
        }
    })
}

/// Shortens a help text of more than 60 bytes for `-h`. It ends before the last comma, semicolon, colon, bracket or
/// full stop in the first 60 bytes, outside of brackets. If that would leave 15 bytes or less, the text stays.
fn shorten_flag_help(arg: Arg) -> Arg {
    let Some(help) = arg.get_help().map(ToString::to_string) else {
        return arg;
    };
    const MAX_TEXT_CHARS: usize = 60;
    if help.len() <= MAX_TEXT_CHARS {
        return arg;
    }
    let mut depth = 0;
    let mut end = None;
    for (at, mark) in help
        .char_indices()
        .take_while(|(at, _)| *at <= MAX_TEXT_CHARS)
    {
        if depth == 0 && matches!(mark, ',' | ';' | ':' | '[' | '(' | '.') {
            end = Some(at);
        }
        depth += i32::from(matches!(mark, '[' | '(')) - i32::from(matches!(mark, ']' | ')'));
    }
    let Some(end) = end.filter(|&end| end > 15) else {
        return arg;
    };
    arg.help(help[..end].trim_end().to_owned())
}

/// Replaces `{n}` in the help texts of a command and its subcommands, because clap would print it as a line end.
/// [`shown`] restores it in the output of clap.
pub(crate) fn escape(command: Command) -> Command {
    let escaped = |text: Option<&clap::builder::StyledStr>| {
        text.map(ToString::to_string)
            .filter(|text| text.contains(NUMBER))
            .map(|text| text.replace(NUMBER, STAND_IN))
    };
    let (after, after_long) = (
        escaped(command.get_after_help()),
        escaped(command.get_after_long_help()),
    );
    let mut command = command.mut_args(|arg| {
        let (help, long) = (escaped(arg.get_help()), escaped(arg.get_long_help()));
        let arg = match help {
            Some(help) => arg.help(help),
            None => arg,
        };
        match long {
            Some(long) => arg.long_help(long),
            None => arg,
        }
    });
    if let Some(after) = after {
        command = command.after_help(after);
    }
    if let Some(after) = after_long {
        command = command.after_long_help(after);
    }
    command.mut_subcommands(escape)
}

/// The value of `--workload` in the arguments, if there is one.
fn workload(args: &[OsString]) -> Option<String> {
    let words: Vec<&str> = args.iter().filter_map(|word| word.to_str()).collect();
    let place = words
        .iter()
        .position(|word| word.starts_with("--workload"))?;
    match words[place].strip_prefix("--workload=") {
        Some(value) => Some(value.to_owned()),
        None => words.get(place + 1).map(|value| (*value).to_owned()),
    }
}

/// Whether `-h` is among the arguments.
fn is_brief(args: &[OsString]) -> bool {
    args.iter().any(|word| word == "-h")
}

/// The text that clap prints. clap reports help and the version as errors, too.
fn text(error: &clap::Error, colours: bool) -> String {
    let rendered = error.render();
    let text = match colours {
        true => rendered.ansi().to_string(),
        false => rendered.to_string(),
    };
    shown(&text)
}

/// Restores each `{n}` that [`escape`] has replaced, in a text that clap has made.
pub(crate) fn shown(text: &str) -> String {
    text.replace(STAND_IN, NUMBER)
}

/// Reads the command line. If it asks for help or the version, or has an error, prints the text and exits. The status
/// of an error is 2.
pub(crate) fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    let command = command(workload(&args).as_deref(), is_brief(&args));
    let matches = command.try_get_matches_from(&args);
    let error = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => return cli,
        Err(error) => error,
    };
    // Write errors are ignored: a pager may close the pipe before the end.
    let _ = match error.use_stderr() {
        true => {
            let mut out = std::io::stderr().lock();
            let colours = out.is_terminal();
            out.write_all(text(&error, colours).as_bytes())
        }
        false => {
            let mut out = std::io::stdout().lock();
            let colours = out.is_terminal();
            out.write_all(text(&error, colours).as_bytes())
        }
    };
    std::process::exit(error.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a screen without scrolling.
    const SCREEN_LINES: usize = 40;

    fn rendered(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command(workload(&words).as_deref(), is_brief(&words))
            .try_get_matches_from(&words)
            .unwrap_err();
        text(&error, false)
    }

    #[test]
    fn short_help_fits_one_screen() {
        let mut paths = vec![String::new()];
        let mut checked = 0;
        while let Some(path) = paths.pop() {
            let help = rendered(&format!("hairpin{path} -h"));
            let lines = help.lines().count();
            assert!(lines <= SCREEN_LINES, "{path}: {lines} lines\n{help}");
            let whole = Cli::command();
            let command = path.split_whitespace().fold(&whole, |command, name| {
                command.find_subcommand(name).unwrap()
            });
            let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            paths.extend(shown.map(|sub| format!("{path} {}", sub.get_name())));
            checked += 1;
        }
        assert!(checked > 20, "{checked}");
    }

    #[test]
    fn every_flag_of_the_tables_exists() {
        let whole = Cli::command();
        let find = |path: &str| {
            path.split(' ').fold(&whole, |command, name| {
                command.find_subcommand(name).unwrap()
            })
        };
        let has = |command: &Command, name: &str| {
            let mut all = command.get_arguments();
            all.any(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()) == name)
        };
        for (path, flags) in SHORT {
            for flag in flags {
                assert!(has(find(path), flag), "{path} has no {flag}");
            }
        }
        let tables = [
            ("turn", load::turn::ONLY),
            ("stun", load::stun::ONLY),
            ("sip", load::sip::ONLY),
        ];
        for (name, only) in tables {
            let command = find(&format!("load {name}"));
            let workloads = command
                .get_arguments()
                .find(|arg| arg.get_id() == "workload")
                .unwrap()
                .get_possible_values();
            for (flag, belongs) in only {
                assert!(has(command, flag), "{name} has no {flag}");
                for one in *belongs {
                    let known = workloads.iter().any(|value| value.matches(one, false));
                    assert!(known, "{name} has no workload {one}");
                }
            }
        }
    }

    #[test]
    fn help_with_a_workload_shows_only_its_flags() {
        let call = rendered("hairpin load sip --workload call --help");
        assert!(
            call.contains("--hold <TIME>") && !call.contains("--ring <TIME>"),
            "{call}"
        );
        let uas = rendered("hairpin load sip --workload=uas --help");
        assert!(
            uas.contains("--ring <TIME>") && !uas.contains("--hold <TIME>"),
            "{uas}"
        );
        let all = rendered("hairpin load sip --help");
        assert!(
            all.contains("--ring <TIME>") && all.contains("--hold <TIME>"),
            "{all}"
        );
        let garbage = rendered("hairpin load turn --workload garbage --help");
        assert!(
            garbage.contains("--seed <N>") && !garbage.contains("--video-share <SHARE>"),
            "{garbage}"
        );
    }

    #[test]
    fn braces_are_shown_and_break_no_line() {
        let help = rendered("hairpin load sip --help");
        for part in ["'u{n}:pw{n}'", "[default: u{n}]", "{n} is the AOR's number"] {
            assert!(help.contains(part), "{part}: {help}");
        }
        assert!(!help.contains('\u{2060}'), "{help}");
    }
}
