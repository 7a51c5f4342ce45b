//! repro.config of reSIProcate's repro: one row per key. Names of keys for transports and databases contain a number.

mod rows;

#[cfg(test)]
mod tests;

use super::{Imported, JudgedLine};

/// A line with a key.
struct Line {
    number: usize,
    name: String,
    value: String,
}

impl Line {
    fn read(number: usize, text: &str) -> Line {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Line {
            number,
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
        }
    }

    /// The key without its number: `Transport#Type`.
    fn pattern(&self) -> String {
        for family in ["Transport", "Database"] {
            if let Some(rest) = self.name.strip_prefix(family) {
                let bare = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                if bare.len() < rest.len() {
                    return format!("{family}#{bare}");
                }
            }
        }
        self.name.clone()
    }

    fn is_true(&self) -> bool {
        matches!(
            &*self.value.to_ascii_lowercase(),
            "true" | "yes" | "on" | "enable" | "1"
        )
    }

    /// Elements between commas.
    fn list(&self) -> impl Iterator<Item = &str> {
        self.value
            .split(',')
            .map(str::trim)
            .filter(|element| !element.is_empty())
    }
}

/// All lines of a file.
struct File(Vec<Line>);

impl File {
    fn find(&self, name: &str) -> Option<&Line> {
        self.0
            .iter()
            .rfind(|line| line.name == name && !line.value.is_empty())
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.find(name).map(|line| &*line.value)
    }
}

fn lines(text: &str) -> impl Iterator<Item = Line> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines
        .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        .map(|(number, text)| Line::read(number, text))
}

/// Whether most lines have a key of repro.
pub(super) fn is_recognized(text: &str) -> bool {
    let lines: Vec<_> = lines(text).collect();
    let known = lines
        .iter()
        .filter(|line| rows::find(&line.pattern()).is_some());
    known.count() * 2 > lines.len()
}

/// Finds the verdict of every line, and makes the configuration.
pub(super) fn read(text: &str, _has_database: bool, imported: &mut Imported) {
    let file = File(lines(text).collect());
    for line in &file.0 {
        imported.lines.push(JudgedLine {
            line: line.number,
            name: line.name.clone(),
            verdict: rows::judge(line, &file, &mut imported.draft),
        });
    }
    rows::finish(&file, imported);
    imported.notes.push("users, routes and the access list are in repro's database: replace the user `placeholder` of [[sip.domain]] with the users, write routes as [[sip.route]], and the access list as [[sip.trunk]]".to_owned());
}
