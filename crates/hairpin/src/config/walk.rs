//! Walks a TOML document by the schema and reports everything that does not fit, instead of stopping at the first
//! error.

use std::collections::HashSet;
use std::ffi::OsString;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::diagnostics::{Diagnostic, Report};
use super::microseconds::{OldKey, is_set_by_both_names};
use super::node::Node;
use super::schema::{KEYS, Settings, key, names, sections};
use super::setting::wrong_type;
use super::source::{Located, Location, SourceId};
use super::suggest::nearest;
use super::{expand, includes, unclosed};

/// What the reader of a file requires beside the text of the file.
pub(super) struct Context<'a> {
    /// The environment of the process, for references.
    pub(super) environment: &'a [(OsString, OsString)],
    /// The files that were read before this one.
    pub(super) files: Vec<SourceId>,
}

/// Reads a whole document into `settings`.
pub(crate) fn document(source: SourceId, text: &str, settings: &mut Settings, report: &mut Report) {
    let context = Context {
        environment: &[],
        files: Vec::new(),
    };
    file(source, text, &context, settings, report);
}

/// Reads a file into `settings`. Returns the patterns of files that it includes.
pub(super) fn file(
    source: SourceId,
    text: &str,
    context: &Context<'_>,
    settings: &mut Settings,
    report: &mut Report,
) -> Vec<Located<String>> {
    let (mut root, mut errors) = DeTable::parse_recoverable(text);
    let line_ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |offset| line_ends.partition_point(|end| *end < offset);
    let mut broken_lines = HashSet::new();
    let place = |error: &toml::de::Error| error.span().unwrap_or(0..0).start;
    let unclosed = errors
        .iter()
        .find(|error| unclosed::is_reported_by(error.message()))
        .and_then(|error| unclosed::beginning(text, root.get_ref(), place(error)));
    if let Some(start) = unclosed {
        errors.retain(|error| place(error) < start);
        report.push(unclosed::error(source, text, start));
        report.set_incomplete();
    }
    let is_readable = |at| unclosed.is_none_or(|start| line(at) < line(start));
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        broken_lines.insert(line(span.start));
        let is_word = text
            .get(span.start..)
            .is_some_and(|rest| rest.starts_with(char::is_alphabetic));
        report.push(syntax_error(
            &Location { source, span },
            error.message(),
            is_word,
        ));
    }
    let mut found = Report::default();
    expand::table(source, root.get_mut(), context.environment, &mut found);
    let included = includes::take(source, root.get_mut(), &mut found);
    for (name, value) in root.get_ref().iter() {
        section((source, context), name, value, settings, &mut found);
    }
    // The parser guesses what a line with a syntax error means. So a second error for such a line would mislead.
    for diagnostic in found.sorted() {
        let at = diagnostic.at.span.start;
        if is_readable(at) && !broken_lines.contains(&line(at)) {
            report.push(diagnostic.clone());
        }
    }
    included
}

/// The error for text that is not TOML. `is_word`: there is a letter at the place of the error.
fn syntax_error(at: &Location, message: &str, is_word: bool) -> Diagnostic {
    let help = match message {
        m if m.starts_with("duplicate key") => "keep one of them",
        // The parser takes the `i` of `info` for the beginning of `inf`, the `t` of `text` for `true`, and so on.
        m if is_word && m.starts_with("invalid") => "texts stand in quotes: key = \"value\"",
        m if m.contains("quoted") || m.contains("string") => {
            "texts stand in quotes: key = \"value\""
        }
        _ => "every line is [section], key = value or a # comment",
    };
    Diagnostic::error(at, format!("not valid TOML: {message}")).help(help)
}

/// Reads one section of a document into `settings`, and reports each mistake.
fn section(
    (source, context): (SourceId, &Context<'_>),
    name: &Spanned<DeString<'_>>,
    value: &Spanned<DeValue<'_>>,
    settings: &mut Settings,
    report: &mut Report,
) {
    let section = name.get_ref().as_ref();
    let names = names(section);
    if names.is_empty() {
        report.push(unknown_section(source, name, value.get_ref().is_table()));
        return;
    }
    let DeValue::Table(table) = value.get_ref() else {
        let node = Node::toml(source, value);
        report.push(
            wrong_type(&node, "a section").help(format!("write [{section}] and its keys below")),
        );
        return;
    };
    for (name, value) in table.iter() {
        let old = OldKey::find(section, name.get_ref());
        let Some(key) = key(section, name.get_ref()).or(old.map(OldKey::key)) else {
            report.push(unknown_key(
                source,
                name,
                &format!("[{section}]"),
                &names,
                &sections_with_key(name.get_ref()),
            ));
            continue;
        };
        let node = Node::toml(source, value);
        let is_file = |at: &Location| at.source == source || context.files.contains(&at.source);
        let before = (key.slot)(settings).place().filter(is_file);
        let name = (&node.at, old.is_some());
        if is_set_by_both_names(key, name, before.as_ref(), settings, report) {
            continue;
        }
        match (old, before) {
            (Some(old), before) => old.read(&node, before.as_ref(), settings, report),
            (None, Some(before)) => (key.slot)(settings).read_more(&node, &before, report),
            (None, None) => (key.slot)(settings).read(&node, report),
        }
    }
}

/// The sections that have a key of this name.
fn sections_with_key(name: &str) -> Vec<&'static str> {
    KEYS.iter()
        .filter(|key| key.name == name)
        .map(|key| key.section)
        .collect()
}

/// The error for a name at the top of a document that is no section. If `is_table` is false, the name is a key outside
/// of any section. If a section has such a key, the help names that section.
fn unknown_section(source: SourceId, name: &Spanned<DeString<'_>>, is_table: bool) -> Diagnostic {
    let at = Location {
        source,
        span: name.span(),
    };
    let word = name.get_ref().as_ref();
    let sections = sections();
    if !is_table && let Some(home) = sections_with_key(word).first() {
        return Diagnostic::error(&at, format!("`{word}` stands outside of any section"))
            .help(format!("it belongs to [{home}]"));
    }
    let what = if is_table { "section" } else { "key" };
    let misspelt_key = nearest(word, KEYS.iter().map(|key| key.name)).filter(|_| !is_table);
    let help = match (misspelt_key, nearest(word, sections.iter().copied())) {
        (Some(near), _) => format!(
            "did you mean `{near}`? It belongs to [{}]",
            sections_with_key(near).join("] or [")
        ),
        (None, Some(near)) => format!("did you mean [{near}]?"),
        (None, None) => format!("the sections are {}", sections.join(", ")),
    };
    Diagnostic::error(&at, format!("unknown {what} `{word}`")).help(help)
}

/// The error `unknown key x in y`. `known` are the keys of `place`, and `elsewhere` are the sections that have this
/// key. The help names such a section, or the most similar known key.
pub(crate) fn unknown_key(
    source: SourceId,
    name: &Spanned<DeString<'_>>,
    place: &str,
    known: &[&'static str],
    elsewhere: &[&'static str],
) -> Diagnostic {
    let word = name.get_ref().as_ref();
    let help = match (elsewhere.first(), nearest(word, known.iter().copied())) {
        (Some(section), _) => format!("it belongs to [{section}]"),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => format!("known here: {}", known.join(", ")),
    };
    Diagnostic::error(
        &Location {
            source,
            span: name.span(),
        },
        format!("unknown key `{word}` in {place}"),
    )
    .help(help)
}
