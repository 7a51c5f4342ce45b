//! A list without `]`, or a table in braces without `}`. The TOML parser treats all lines below as part of the value,
//! and reports an error for nearly each of them.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::Diagnostic;
use super::source::{Location, SourceId};

/// The offset in `text` where a value begins that has no end. `at`: where the parser says that the end is missing.
pub(super) fn beginning(text: &str, root: &DeTable<'_>, at: usize) -> Option<usize> {
    let values = root.iter().map(|(_, value)| value);
    values.filter_map(|value| within(text, value, at)).min()
}

/// The same for a value and the values inside of it; the outermost one counts.
fn within(text: &str, value: &Spanned<DeValue<'_>>, at: usize) -> Option<usize> {
    let span = value.span();
    // The header of a section has brackets, too, but no `=` before it in its line.
    let is_value = text
        .get(..span.start)
        .is_some_and(|before| before.trim_end_matches([' ', '\t']).ends_with('='));
    let (end, inside) = match value.get_ref() {
        DeValue::Array(items) => {
            let found = items.iter().filter_map(|item| within(text, item, at));
            (']', found.min())
        }
        DeValue::Table(table) => ('}', beginning(text, table, at)),
        _ => return None,
    };
    // Without its end, the parser ends a table where it no longer understands the text, and a list at the end of the
    // file.
    let has_end = text.get(span.clone()).is_some_and(|it| it.ends_with(end));
    match is_value && (span.end >= at || !has_end) {
        true => Some(span.start),
        false => inside,
    }
}

/// Whether this message of the parser says that the end of a value is missing.
pub(super) fn is_reported_by(message: &str) -> bool {
    message.starts_with("unclosed array,") || message.starts_with("unclosed inline table,")
}

/// The error for a value that begins at `start`.
pub(super) fn error(source: SourceId, text: &str, start: usize) -> Diagnostic {
    let at = Location {
        source,
        span: start..start + 1,
    };
    let (what, end) = match text.get(start..).is_some_and(|rest| rest.starts_with('[')) {
        true => ("list", ']'),
        false => ("table", '}'),
    };
    let message = format!("not valid TOML: this {what} has no end");
    Diagnostic::error(&at, message).help(format!(
        "end it with `{end}`. Until then, hairpin does not check the lines below it. Above it, hairpin checks only the syntax and each value"
    ))
}
