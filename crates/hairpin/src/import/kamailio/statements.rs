//! Reads a script as statements, without comments and without lines that `#!ifdef` excludes.

use std::collections::HashSet;

use super::directives::{self, Directives};

/// The kind of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `#!define NAME VALUE`
    Define(String, String),
    /// `#!subst` and its relatives, which the import has applied.
    Substitution(String),
    /// A directive that the import does not evaluate, and why.
    NotRead(String, String),
    /// `name = value`
    Set(String, String),
    /// `loadmodule "name.so"`
    Module(String),
    /// `modparam("module", "name", value)`
    Parameter(String, String, String),
    /// `route[NAME] { ... }`
    Block(String),
    /// `include_file "name"`
    Include(String),
    /// Any other statement.
    Other(String),
}

/// A statement and the line in which it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) kind: Kind,
}

impl Statement {
    /// A short form for the report.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            Kind::Define(name, _) => format!("#!define {name}"),
            Kind::Set(name, _) => name.clone(),
            Kind::Module(name) => format!("loadmodule {name}"),
            Kind::Parameter(module, name, _) => format!("modparam {module} {name}"),
            Kind::Substitution(name)
            | Kind::NotRead(name, _)
            | Kind::Block(name)
            | Kind::Include(name)
            | Kind::Other(name) => name.clone(),
        }
    }
}

/// A script without its conditions.
pub(super) struct Script {
    pub(super) statements: Vec<Statement>,
    /// Names of `#!define` whose values are in a statement.
    pub(super) used: HashSet<String>,
}

/// Reads a script.
pub(super) fn read(text: &str) -> Script {
    let mut reader = Reader::default();
    for (line, text) in (1..).zip(text.lines()) {
        reader.line(line, text);
    }
    reader.end_directive();
    reader.end();
    let (open, used) = reader.directives.end();
    let mut statements = reader.statements;
    for (line, kind) in open {
        statements.push(Statement { line, kind });
    }
    Script { statements, used }
}

#[derive(Default)]
struct Reader {
    statements: Vec<Statement>,
    directives: Directives,
    in_comment: bool,
    /// A directive over several lines: its first line and its text.
    open_directive: Option<(usize, String)>,
    /// A statement over several lines: its first line and its text.
    open: Option<(usize, String)>,
}

impl Reader {
    fn line(&mut self, line: usize, text: &str) {
        let directive = match &self.open_directive {
            Some(_) => Some(text),
            None if self.in_comment => None,
            None => directives::start(text),
        };
        if let Some(directive) = directive {
            return self.directive(line, directive);
        }
        if self.directives.excludes() {
            return;
        }
        let text = self.without_comments(text);
        let text = text.trim();
        match &mut self.open {
            Some((_, open)) => {
                open.push(' ');
                open.push_str(text);
            }
            None if text.is_empty() => return,
            None => self.open = Some((line, text.to_owned())),
        }
        if self
            .open
            .as_ref()
            .is_some_and(|(_, text)| is_complete(text))
        {
            self.end();
        }
    }

    /// A line of a directive. A backslash at its end continues it.
    fn directive(&mut self, line: usize, text: &str) {
        let text = text.trim_end();
        let (part, is_continued) = match text.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (text, false),
        };
        let open = &mut self.open_directive.get_or_insert((line, String::new())).1;
        open.push_str(part);
        if !is_continued {
            self.end_directive();
        }
    }

    fn end_directive(&mut self) {
        let Some((line, text)) = self.open_directive.take() else {
            return;
        };
        if let Some(kind) = self.directives.read(line, &text) {
            self.statements.push(Statement { line, kind });
        }
    }

    fn without_comments(&mut self, text: &str) -> String {
        let mut kept = String::new();
        let mut quote = None;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if self.in_comment {
                match rest.split_once("*/") {
                    Some((_, after)) => (self.in_comment, rest) = (false, after),
                    None => break,
                }
                continue;
            }
            if quote.is_none() {
                if rest.starts_with("/*") {
                    (self.in_comment, rest) = (true, &rest[2..]);
                    continue;
                }
                if c == '#' || rest.starts_with("//") {
                    break;
                }
            }
            match (quote, c) {
                (None, '"' | '\'') => quote = Some(c),
                (Some(open), c) if open == c => quote = None,
                _ => {}
            }
            kept.push(c);
            rest = &rest[c.len_utf8()..];
        }
        kept
    }

    fn end(&mut self) {
        let Some((line, text)) = self.open.take() else {
            return;
        };
        let kind = kind(&text, &mut self.directives);
        self.statements.push(Statement { line, kind });
    }
}

/// Whether all brackets and braces are closed. A block can have its opening brace in the next line.
fn is_complete(text: &str) -> bool {
    let mut depth = 0_i32;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '(' | '{') => depth += 1,
            (None, ')' | '}') => depth -= 1,
            _ => {}
        }
    }
    depth <= 0 && (block_name(text).is_none() || text.contains('{'))
}

/// The name of a routing block.
fn block_name(text: &str) -> Option<String> {
    let name = text.split('{').next().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_whitespace()).collect();
    let kind = name.split('[').next().unwrap_or_default();
    (kind == "route" || kind.ends_with("_route")).then_some(name)
}

fn kind(text: &str, directives: &mut Directives) -> Kind {
    if let Some(name) = block_name(text).filter(|_| text.contains('{')) {
        return Kind::Block(name);
    }
    let mut value = |text: &str| {
        let text = directives.expand(text.trim().trim_end_matches(';').trim());
        text.trim_matches('"').to_owned()
    };
    let words = text.split_once(char::is_whitespace);
    match words {
        Some(("loadmodule" | "loadmodulex", name)) => {
            let name = value(name);
            let name = name.rsplit('/').next().unwrap_or_default();
            return Kind::Module(name.trim_end_matches(".so").to_owned());
        }
        Some(("import_file" | "include_file", name)) => {
            return Kind::Include(format!("include {}", value(name)));
        }
        _ => {}
    }
    if let Some(inside) = text
        .strip_prefix("modparam")
        .and_then(|rest| rest.trim().strip_prefix('('))
    {
        let inside = inside.trim_end_matches([';', ' ']).trim_end_matches(')');
        let mut parts = inside.splitn(3, ',').map(&mut value);
        if let (Some(module), Some(name), Some(value)) = (parts.next(), parts.next(), parts.next())
        {
            return Kind::Parameter(module, name, value);
        }
    }
    match text.split_once('=') {
        Some((name, rest))
            if name
                .trim()
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._".contains(c)) =>
        {
            // `group.id = "value" desc "description"`
            let rest = rest.split(" desc ").next().unwrap_or_default();
            Kind::Set(name.trim().to_owned(), value(rest))
        }
        _ => Kind::Other(text.to_owned()),
    }
}
