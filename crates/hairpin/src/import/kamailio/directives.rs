//! Lines that begin with `#!` or `!!`: definitions, substitutions and conditions.

use std::collections::{HashMap, HashSet};

use super::super::nearest;
use super::statements::Kind;

/// Directives that the import reads, and those that it only shows.
const NAMES: &[&str] = &[
    "ifdef",
    "ifndef",
    "ifexp",
    "else",
    "endif",
    "define",
    "trydef",
    "redef",
    "subst",
    "substdef",
    "substdefs",
    "defenv",
    "defenvs",
    "trydefenv",
    "trydefenvs",
    "defexp",
    "defexps",
];

/// Marks of a whole file.
const MARKS: &[&str] = &["KAMAILIO", "SER", "OPENSER", "MAXCOMPAT", "ALL"];

const ENVIRONMENT: &str =
    "the import does not read the environment: write `#!define NAME VALUE` instead";
const EXPRESSION: &str =
    "the import does not evaluate expressions: write `#!define NAME VALUE` instead";
const CONDITION: &str = "the import does not evaluate expressions: it reads these lines, and not those after `#!else`. Write `#!ifdef NAME` instead";
const PATTERN: &str = "the import replaces plain words only, without regular expressions";
const UNPAIRED: &str = "the file has no `#!ifdef` for it";
const NOT_CLOSED: &str = "the file has no `#!endif` for it";

/// The text after `#!` or `!!`, if the line is a directive.
pub(super) fn start(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line
        .strip_prefix("#!")
        .or_else(|| line.strip_prefix("!!"))?;
    // Not `#!/usr/sbin/kamailio`.
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        .then_some(text)
}

/// A word that is replaced in quoted texts.
#[derive(Debug)]
struct Substitution {
    word: String,
    value: String,
    is_global: bool,
}

/// An open `#!ifdef`.
#[derive(Debug)]
struct Condition {
    line: usize,
    text: String,
    is_included: bool,
}

/// What the directives so far have set.
#[derive(Debug, Default)]
pub(super) struct Directives {
    defined: HashMap<String, String>,
    substitutions: Vec<Substitution>,
    conditions: Vec<Condition>,
    /// Names whose values are in a statement.
    used: HashSet<String>,
}

impl Directives {
    /// Whether the lines are excluded.
    pub(super) fn excludes(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| !condition.is_included)
    }

    /// Reads a directive. Returns the statement that the report shows, if there is one.
    pub(super) fn read(&mut self, line: usize, text: &str) -> Option<Kind> {
        let text = text.trim();
        let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let name = rest.split_whitespace().next().unwrap_or_default();
        let is_defined = self.defined.contains_key(name);
        let is_excluded = self.excludes();
        let not_read = |why: &str| Some(Kind::NotRead(format!("#!{text}"), why.to_owned()));
        match command {
            "ifdef" => self.open(line, text, is_defined),
            "ifndef" => self.open(line, text, !is_defined),
            "ifexp" => {
                self.open(line, text, true);
                return (!is_excluded).then(|| not_read(CONDITION)).flatten();
            }
            "else" => match self.conditions.last_mut() {
                Some(last) => last.is_included = !last.is_included,
                None => return not_read(UNPAIRED),
            },
            "endif" if self.conditions.pop().is_none() => return not_read(UNPAIRED),
            "endif" => {}
            _ if is_excluded => {}
            "define" | "def" | "trydefine" | "trydef" | "redefine" | "redef" => {
                return Some(self.define(command, name, rest));
            }
            "subst" | "substdef" | "substdefs" => {
                return match self.substitute(command, rest) {
                    Some(()) => Some(Kind::Substitution(format!("#!{text}"))),
                    None => not_read(PATTERN),
                };
            }
            "defenv" | "defenvs" | "trydefenv" | "trydefenvs" | "defexp" | "defexps" => {
                let name = name.split('=').next().unwrap_or_default();
                // A name without a known value is defined, and stands for itself.
                self.defined.insert(name.to_owned(), name.to_owned());
                let is_environment = command.contains("env");
                return not_read(if is_environment {
                    ENVIRONMENT
                } else {
                    EXPRESSION
                });
            }
            _ if MARKS.contains(&command) => {}
            _ => {
                return not_read(&match nearest(command, NAMES.iter().copied()) {
                    Some(name) => format!("no directive of Kamailio; did you mean `#!{name}`?"),
                    None => "no directive of Kamailio".to_owned(),
                });
            }
        }
        None
    }

    fn open(&mut self, line: usize, text: &str, is_included: bool) {
        self.conditions.push(Condition {
            line,
            text: format!("#!{text}"),
            is_included,
        });
    }

    fn define(&mut self, command: &str, name: &str, rest: &str) -> Kind {
        let value = rest.strip_prefix(name).unwrap_or_default().trim();
        let value = value.trim_matches('"').to_owned();
        let is_attempt = command.starts_with("try");
        if !is_attempt || !self.defined.contains_key(name) {
            self.defined.insert(name.to_owned(), value.clone());
        }
        Kind::Define(name.to_owned(), value)
    }

    /// `"/WORD/VALUE/FLAGS"`, with any separator. `None` for what only a regular expression can do.
    fn substitute(&mut self, command: &str, text: &str) -> Option<()> {
        let text = text.strip_prefix('"')?.strip_suffix('"')?;
        let separator = text.chars().next()?;
        let mut parts = text[separator.len_utf8()..].split(separator);
        let (word, value, flags) = (parts.next()?, parts.next()?, parts.next()?);
        let is_plain = |text: &str| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            !text.is_empty() && text.chars().all(is_word)
        };
        let is_literal = !value.contains(['\\', '$', '&']);
        if parts.next().is_some() || !is_plain(word) || !is_literal || flags.contains('i') {
            return None;
        }
        if command != "subst" {
            self.defined.insert(word.to_owned(), value.to_owned());
        }
        self.substitutions.push(Substitution {
            word: word.to_owned(),
            value: value.to_owned(),
            is_global: flags.contains('g'),
        });
        Some(())
    }

    /// Replaces defined names outside of quotes, and applies substitutions inside.
    pub(super) fn expand(&mut self, text: &str) -> String {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let length = match c {
                '"' | '\'' => match rest[1..].find(c) {
                    Some(end) => end + 2,
                    None => rest.len(),
                },
                c if is_of_name(c) => rest.find(|c| !is_of_name(c)).unwrap_or(rest.len()),
                c => c.len_utf8(),
            };
            let (token, after) = rest.split_at(length);
            match (c, self.defined.get(token)) {
                ('"' | '\'', _) => expanded.push_str(&self.substituted(token)),
                (_, Some(value)) => {
                    self.used.insert(token.to_owned());
                    expanded.push_str(value);
                }
                (_, None) => expanded.push_str(token),
            }
            rest = after;
        }
        expanded
    }

    fn substituted(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for Substitution {
            word,
            value,
            is_global,
        } in &self.substitutions
        {
            text = match is_global {
                true => text.replace(word, value),
                false => text.replacen(word, value, 1),
            };
        }
        text
    }

    /// The conditions that the file does not close, each with its line, and the names that statements use.
    pub(super) fn end(self) -> (Vec<(usize, Kind)>, HashSet<String>) {
        let conditions = self.conditions.into_iter();
        let open = conditions.map(|open| {
            let kind = Kind::NotRead(open.text, NOT_CLOSED.to_owned());
            (open.line, kind)
        });
        (open.collect(), self.used)
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
