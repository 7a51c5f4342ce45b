//! The text of a configuration file as it may be shown: secrets and comments are masked.
//!
//! The text need not be valid TOML, because syntax errors are shown, too. The result has only names of keys, and values
//! that [`Key::may_show`](super::key::Key::may_show) permits. Everything else is masked. A mask has as many bytes as the
//! text, so columns stay right.

use super::includes;
use super::microseconds::OldKey;
use super::schema::{KEYS, key};

/// A longer path is cut. No key of [`KEYS`] has this many parts.
const MAX_DEPTH: usize = 8;

/// The text with a mask over everything that may be a secret.
pub(super) fn masked(text: &str) -> String {
    let mut masker = Masker {
        rest: text,
        shown: String::with_capacity(text.len()),
        section: Vec::new(),
        open: Vec::new(),
        key: Vec::new(),
        in_value: false,
        is_value_complete: false,
        is_broken: false,
    };
    masker.line_start();
    while let Some(first) = masker.rest.chars().next() {
        masker.step(first);
    }
    masker.shown
}

/// A list or an inline table that has begun.
struct Open {
    is_table: bool,
    /// The path of its key.
    path: Vec<String>,
    /// The key before it was opened.
    outer: Vec<String>,
}

/// A file that is being masked.
struct Masker<'a> {
    rest: &'a str,
    shown: String,
    /// The path in the last `[section]`.
    section: Vec<String>,
    open: Vec<Open>,
    /// The parts of the key in the section, or in the innermost table.
    key: Vec<String>,
    /// Whether a value comes next, not a key.
    in_value: bool,
    /// Whether the value is complete.
    is_value_complete: bool,
    /// Whether the rest of the line cannot be parsed, so all of it is masked.
    is_broken: bool,
}

impl Masker<'_> {
    /// Takes one token.
    fn step(&mut self, first: char) {
        match first {
            '\n' => {
                self.show(1);
                self.line_start();
            }
            '#' => {
                self.show(1);
                self.mask(line_length(self.rest));
            }
            '[' if self.open.is_empty() && !self.in_value && !self.is_broken => self.header(),
            '[' | '{' => {
                self.show(1);
                self.is_broken |= self.is_value_complete;
                let (path, outer) = (self.path(), std::mem::take(&mut self.key));
                let is_table = first == '{';
                self.open.push(Open {
                    is_table,
                    path,
                    outer,
                });
                (self.in_value, self.is_value_complete) = (!is_table, false);
            }
            ']' | '}' => {
                self.show(1);
                let matches_bracket = |open: &mut Open| open.is_table == (first == '}');
                if let Some(open) = self.open.pop_if(matches_bracket) {
                    self.key = open.outer;
                    (self.in_value, self.is_value_complete) = (true, true);
                }
            }
            ',' => {
                self.show(1);
                match self.open.last() {
                    Some(open) if open.is_table => self.next_key(),
                    Some(_) => self.is_value_complete = false,
                    None => {}
                }
            }
            '=' => {
                self.show(1);
                self.in_value = true;
            }
            '"' | '\'' => self.quoted(first),
            blank if is_blank(blank) => self.show(blank.len_utf8()),
            _ => self.bare_word(),
        }
    }

    /// The first character of a line.
    fn line_start(&mut self) {
        self.is_broken = false;
        if !self.open.is_empty() && self.is_statement() {
            self.open.clear();
        }
        if self.open.last().is_none_or(|open| open.is_table) {
            self.next_key();
        }
        self.is_value_complete = false;
    }

    /// Forgets the key.
    fn next_key(&mut self) {
        self.key.clear();
        (self.in_value, self.is_value_complete) = (false, false);
    }

    /// Whether the line begins a known section or sets a known key. If so, an open list before it lacks its end.
    fn is_statement(&self) -> bool {
        let line = &self.rest[..line_length(self.rest)];
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[') {
            let name = name.trim_matches(|char| char == '[' || char == ']');
            let name = name.split('.').next().unwrap_or_default().trim();
            return line.ends_with(']') && KEYS.iter().any(|key| key.section == name);
        }
        let (name, after) = line.split_at(line.find('=').unwrap_or(line.len()));
        let section = self.section.first().map_or("", String::as_str);
        begins_value(after) && key(section, name.trim()).is_some()
    }

    /// `[section]` or `[[section.key]]`.
    fn header(&mut self) {
        let end = self.rest.find([']', '\n']).unwrap_or(self.rest.len());
        let name = self.rest[..end].trim_start_matches('[');
        let brackets = end - name.len();
        let is_name = |char: char| is_bare(char) || char == '.' || is_blank(char);
        self.next_key();
        self.section.clear();
        self.show(brackets);
        match name.chars().all(is_name) {
            true => {
                self.section = parts(name);
                self.show(name.len());
            }
            false => self.mask(name.len()),
        }
        let brackets = self.rest.len() - self.rest.trim_start_matches(']').len();
        self.show(brackets);
    }

    /// A text in quotes.
    fn quoted(&mut self, quote: char) {
        let triple = if quote == '"' { "\"\"\"" } else { "'''" };
        if self.rest.starts_with(triple) {
            let end = self.rest[3..].find(triple).map(|at| at + 6);
            self.value(end.unwrap_or(self.rest.len()), false);
            return;
        }
        let mut is_escaped = false;
        let end = self.rest[1..].find(|char| {
            let is_end = char == '\n' || char == quote && !is_escaped;
            is_escaped = char == '\\' && quote == '"' && !is_escaped;
            is_end
        });
        let end = end.unwrap_or(self.rest.len() - 1);
        if !self.rest[end + 1..].starts_with(quote) {
            let is_plain = self.in_value && self.is_plain() && !self.is_in_secret();
            self.show(1);
            self.value(end, is_plain);
            self.is_broken = true;
            return;
        }
        let is_key = !self.in_value && !self.is_broken && begins_value(&self.rest[end + 2..]);
        if is_key {
            self.key.push(self.rest[1..=end].to_owned());
            self.show(end + 2);
            return;
        }
        // With a quotation mark in it, it may consist of parts of two strings.
        let is_doubtful = self.rest[1..=end].contains(['"', '\'']) && self.is_in_secret();
        let is_plain = self.in_value && self.is_plain() && !is_doubtful;
        self.show(1);
        self.value(end, is_plain);
        self.show(1);
    }

    /// A word without quotes: a key, a number, or a text that should be in quotes.
    fn bare_word(&mut self) {
        let is_end = |char: char| is_blank(char) || "\n,[]{}=#\"'".contains(char);
        let length = self.rest.find(is_end).unwrap_or(self.rest.len());
        if self.in_value || self.is_broken {
            let is_plain = self.in_value && self.is_plain();
            self.value(length, is_plain);
            return;
        }
        let name = self.rest[..length].trim_end_matches(|char| !is_bare(char));
        let is_key = begins_value(&self.rest[length..]);
        match is_key || is_known(name) {
            true => self.show(length),
            false => self.mask(length),
        }
        self.key.extend(parts(name));
        self.in_value = !is_key;
    }

    /// A value, or a part of it.
    fn value(&mut self, length: usize, is_plain: bool) {
        // A second value follows: a quotation mark is probably missing. What comes next cannot be assigned to a key.
        self.is_broken |= self.is_value_complete;
        match is_plain && !self.is_broken {
            true => self.show(length),
            false => self.mask(length),
        }
        (self.in_value, self.is_value_complete) = (true, true);
    }

    /// The path of the key whose value comes next.
    fn path(&self) -> Vec<String> {
        let base = self.open.last().map_or(&self.section, |open| &open.path);
        let parts = base.iter().chain(&self.key);
        parts.take(MAX_DEPTH).cloned().collect()
    }

    /// Whether [`KEYS`] allows to show the value of this path.
    fn is_plain(&self) -> bool {
        let path = self.path();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path[..] {
            [includes::KEY] => true,
            [section, name, ref fields @ ..] => {
                let fields = fields.join(".");
                key(section, name).map_or(OldKey::find(section, name).is_some(), |key| {
                    key.may_show(&fields)
                })
            }
            _ => false,
        }
    }

    /// Whether the key of the section is secret, even if this field is not.
    fn is_in_secret(&self) -> bool {
        let path = self.path();
        let found = path.first().zip(path.get(1));
        let found = found.and_then(|(section, name)| key(section, name));
        found.is_some_and(|key| key.secret)
    }

    fn show(&mut self, length: usize) {
        let (now, rest) = self.rest.split_at(length);
        self.shown.push_str(now);
        self.rest = rest;
    }

    fn mask(&mut self, length: usize) {
        let (now, rest) = self.rest.split_at(length);
        self.shown.extend(now.chars().map(star));
        self.rest = rest;
    }
}

/// The parts of a key, without the dots.
fn parts(name: &str) -> Vec<String> {
    let parts = name.split('.').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether each part of the name is the name of a section or of a key.
fn is_known(name: &str) -> bool {
    let is_one = |part: &str| {
        let mut keys = KEYS.iter();
        keys.any(|key| key.section == part || key.name == part)
    };
    name == includes::KEY || name.split('.').all(is_one)
}

/// Whether `=` and a value come next in the line. Base64 padding is also `=`, but no value follows it.
fn begins_value(after: &str) -> bool {
    let value = after.trim_start_matches(is_blank).strip_prefix('=');
    value.is_some_and(|value| {
        let value = value.trim_start_matches(is_blank);
        !value.is_empty() && !value.starts_with(['\n', '=', ',', ']', '}'])
    })
}

fn line_length(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

fn is_bare(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-'
}

fn is_blank(char: char) -> bool {
    // A byte order mark can be at the beginning of a file.
    char != '\n' && char.is_whitespace() || char == '\u{feff}'
}

/// A mask that has as many bytes as the character.
fn star(char: char) -> char {
    match (char, char.len_utf8()) {
        ('\n' | '\r', _) => char,
        (_, 1) => '*',
        (_, 2) => '\u{b7}',
        (_, 3) => '\u{2022}',
        _ => '\u{1f784}',
    }
}
