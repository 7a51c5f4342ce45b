//! turnserver.conf of coturn 4.17. The other files have tables with one row per option.

mod allowances;
mod credentials;
mod databases;
mod limits;
mod network;
mod older;
mod operation;
mod peers;
mod protocol;
mod tls;

#[cfg(test)]
mod tests;

use super::verdict::Fixed;
use super::{Draft, Imported, JudgedLine, Verdict};

/// A line with an option.
#[derive(Debug)]
struct Line {
    number: usize,
    name: String,
    value: String,
}

impl Line {
    /// Reads a line as coturn does: the name ends at a space, a tab or `=`. One pair of quotes around the value is
    /// removed.
    fn read(number: usize, text: &str) -> Line {
        let ends = |c: char| matches!(c, ' ' | '=' | '\t');
        let (name, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        let value = rest.trim_start_matches(ends);
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.strip_suffix('"').unwrap_or(quoted),
            None => value,
        };
        Line {
            number,
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }

    /// Whether the option is on; `None` if coturn would refuse to start.
    fn flag(&self) -> Option<bool> {
        match self.value.chars().next() {
            None | Some('y' | 'Y' | 't' | 'T' | '1'..='9') => Some(true),
            Some('0' | 'n' | 'N' | 'f' | 'F') => Some(false),
            _ if self.value.eq_ignore_ascii_case("on") => Some(true),
            _ if self.value.eq_ignore_ascii_case("off") => Some(false),
            _ => None,
        }
    }

    /// The number at the beginning of the value. coturn ignores what follows.
    fn number(&self) -> Option<u64> {
        let end = self.value.find(|c: char| !c.is_ascii_digit());
        self.value[..end.unwrap_or(self.value.len())].parse().ok()
    }

    /// The number, or the given default if there is no value.
    fn number_or(&self, usual: u64) -> Option<u64> {
        match self.value.is_empty() {
            true => Some(usual),
            false => self.number(),
        }
    }

    /// The number, if it is a port.
    fn port(&self) -> Option<u16> {
        let port = self.number().and_then(|number| number.try_into().ok());
        port.filter(|port| *port > 0)
    }

    /// The value without a comment after it.
    fn word(&self) -> &str {
        self.value.split_whitespace().next().unwrap_or_default()
    }
}

/// All options of a file.
struct File {
    lines: Vec<Line>,
    /// Whether users and secrets go to a database.
    has_database: bool,
}

impl File {
    fn all(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.name == name)
    }

    /// The last line with this option: the one that counts for options with one value.
    fn last(&self, name: &str) -> Option<&Line> {
        self.lines.iter().rfind(|line| line.name == name)
    }

    fn flag(&self, name: &str) -> bool {
        self.last(name).and_then(Line::flag) == Some(true)
    }

    fn port(&self, name: &str, default: u16) -> u16 {
        self.last(name).and_then(Line::port).unwrap_or(default)
    }
}

/// The kind of value of an option, and which lines count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// On or off.
    Flag,
    /// The last line counts.
    Value,
    /// The last line counts, and it may have no value.
    Number,
    /// Every line counts.
    List,
}

/// How the verdict about a line is found.
#[derive(Clone, Copy)]
enum Rule {
    /// The same verdict for each value.
    Always(Fixed),
    /// A function, which can add keys to the draft.
    Decide(fn(&Line, &File, &mut Draft) -> Verdict),
}

/// One option.
struct Row {
    name: &'static str,
    kind: Kind,
    rule: Rule,
}

/// An option that is on or off.
const fn flag(name: &'static str, rule: Rule) -> Row {
    let kind = Kind::Flag;
    Row { name, kind, rule }
}

/// An option with a value, of which the last line counts.
const fn value(name: &'static str, rule: Rule) -> Row {
    let kind = Kind::Value;
    Row { name, kind, rule }
}

/// An option with a number that may be left out, of which the last line counts.
const fn number(name: &'static str, rule: Rule) -> Row {
    let kind = Kind::Number;
    Row { name, kind, rule }
}

/// An option with a value, of which all lines count.
const fn list(name: &'static str, rule: Rule) -> Row {
    let kind = Kind::List;
    Row { name, kind, rule }
}

const fn replaced(by: &'static str) -> Rule {
    Rule::Always(Fixed::Replaced(by))
}

const fn unnecessary(why: &'static str) -> Rule {
    Rule::Always(Fixed::Unnecessary(why))
}

const fn unsupported(why: &'static str) -> Rule {
    Rule::Always(Fixed::Unsupported(why))
}

/// The options of coturn 4.17.
const TABLES: [&[Row]; 9] = [
    network::ROWS,
    allowances::ROWS,
    credentials::ROWS,
    databases::ROWS,
    limits::ROWS,
    peers::ROWS,
    protocol::ROWS,
    tls::ROWS,
    operation::ROWS,
];

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLES.into_iter().flatten().chain(older::ROWS)
}

fn row(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.name == name)
}

/// Whether most lines are options of coturn.
pub(super) fn is_recognized(text: &str) -> bool {
    let lines: Vec<_> = options(text).collect();
    let known = lines.iter().filter(|line| row(&line.name).is_some());
    known.count() * 2 > lines.len()
}

/// The lines that are neither empty nor comments.
fn options(text: &str) -> impl Iterator<Item = Line> {
    let numbered = (1..).zip(text.lines().map(str::trim));
    numbered
        .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        .map(|(number, text)| Line::read(number, text))
}

/// Finds the verdict of every line, and makes the configuration.
pub(super) fn read(text: &str, has_database: bool, imported: &mut Imported) {
    let file = File {
        lines: options(text).collect(),
        has_database,
    };
    let draft = &mut imported.draft;
    for line in &file.lines {
        imported.lines.push(JudgedLine {
            line: line.number,
            name: shown(line),
            verdict: judge(line, &file, draft),
        });
    }
    network::finish(&file, draft);
    tls::finish(&file, draft);
    credentials::finish(&file, imported);
    limits::finish(&file, &mut imported.draft);
    imported.notes.extend(notes(&file));
}

/// The option, or the whole line if it is not an option.
fn shown(line: &Line) -> String {
    match row(&line.name) {
        Some(row) => row.name.to_owned(),
        None if line.value.is_empty() => line.name.clone(),
        None => format!("{} {}", line.name, line.value),
    }
}

fn judge(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let Some(row) = row(&line.name) else {
        let names = rows().map(|row| row.name);
        return Verdict::wrong(match super::nearest(&line.name, names) {
            Some(name) => format!("no option of coturn; did you mean `{name}`?"),
            None => "no option of coturn".to_owned(),
        });
    };
    match row.kind {
        Kind::Flag => match line.flag() {
            None => return Verdict::wrong("write 1 or 0"),
            Some(false) => {
                return Verdict::unnecessary("the value turns the option off");
            }
            Some(true) => {}
        },
        Kind::Value | Kind::Number => match file.last(&line.name) {
            Some(last) if last.number != line.number => {
                let number = last.number;
                return Verdict::unnecessary(format!("line {number} replaces it"));
            }
            _ if row.kind == Kind::Value && line.value.is_empty() => {
                return Verdict::wrong("the value is missing");
            }
            _ => {}
        },
        Kind::List if line.value.is_empty() => return Verdict::wrong("the value is missing"),
        Kind::List => {}
    }
    match row.rule {
        Rule::Always(fixed) => fixed.into(),
        Rule::Decide(decide) => decide(line, file, draft),
    }
}

/// Options whose values end at the end of the line.
const WHOLE_LINE: [&str; 6] = [
    "realm",
    "user",
    "static-auth-secret",
    "server-name",
    "cert",
    "pkey",
];

/// Values that look like comments or variables, and are neither for coturn.
fn notes_on_values(file: &File) -> impl Iterator<Item = String> {
    file.lines.iter().filter_map(|line| {
        let (number, name) = (line.number, &line.name);
        let is_whole = WHOLE_LINE.contains(&&**name);
        if is_whole && (line.value.contains(" #") || line.value.contains("\t#")) {
            return Some(format!("line {number}: coturn has no comments behind a value, so the text behind # is a part of the value of {name}, here and in the new configuration"));
        }
        (row(name).is_some() && line.value.contains("${")).then(|| {
            format!("line {number}: coturn reads ${{...}} of {name} literally, but hairpin replaces it by an environment variable. If the file is a template, import the file that is made from it")
        })
    })
}

/// Differences between the servers that no line of the file shows.
fn notes(file: &File) -> Vec<String> {
    let mut notes: Vec<_> = notes_on_values(file).collect();
    if credentials::is_open(file) {
        notes.push("the file has no users, no secret and no lt-cred-mech: coturn then relays for everybody. hairpin always requires credentials: set auth.users or auth.secrets".to_owned());
    }
    if file.last("realm").is_none() {
        notes.push("the file has no realm: coturn uses the domain name of its host. If a database has keys of users, set auth.realm to this name".to_owned());
    }
    if !file.flag("no-auth") && databases::is_default(file) {
        notes.push("the file names no database: coturn then reads /var/lib/turn/turndb if it exists. If this database has users, add [[auth.stores]] with url = \"sqlite:/var/lib/turn/turndb\"".to_owned());
    }
    if tls::pair(file).is_some() && file.last("dtls").or(file.last("no-dtls")).is_none() {
        notes.push("DTLS is off, as in coturn 4.17; older versions of coturn serve DTLS unless no-dtls is set. If clients use DTLS, remove listen.dtls from the new configuration".to_owned());
    }
    notes.push("coturn relays to private addresses unless the file denies them; hairpin denies them by default. If peers have private addresses, add their networks to peers.allow".to_owned());
    notes
}
