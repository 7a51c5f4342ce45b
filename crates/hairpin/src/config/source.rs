//! Where a configuration value was written.
//!
//! Every layer (the defaults, the file, the environment, the command line) is a piece of text with a name. A value
//! keeps the [`Location`] of its text. So a message long after parsing, or about two values of two layers, can show the
//! text that the user has written.

use std::ops::Range;

use super::mask::masked;

/// Names one text of a [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceId(usize);

/// A span of bytes in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The text it lies in.
    pub(crate) source: SourceId,
    /// Byte range in that text.
    pub(crate) span: Range<usize>,
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    /// The value itself.
    pub(crate) value: T,
    /// Where it was written.
    pub(crate) at: Location,
}

/// The layer a text belongs to; later ones win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Built into the program.
    Default,
    /// The configuration file.
    File,
    /// One environment variable.
    Environment,
    /// One command-line flag.
    Flag,
}

/// One text that settings were read from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Which layer it belongs to.
    pub(crate) layer: Layer,
    /// What to call it: a path, or the name of the layer.
    pub(crate) name: String,
    /// The text that outputs may show: secrets are masked. A mask has the same bytes, so columns stay correct.
    pub(crate) text: String,
}

/// All texts of one load, in the order they were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<Source>);

impl Sources {
    /// Adds a text and names it.
    pub(crate) fn add(
        &mut self,
        layer: Layer,
        name: impl Into<String>,
        text: impl Into<String>,
    ) -> SourceId {
        let text = text.into();
        self.0.push(Source {
            layer,
            name: name.into(),
            text: match layer {
                Layer::File => masked(&text),
                _ => text,
            },
        });
        SourceId(self.0.len() - 1)
    }

    /// The text behind a name that [`Sources::add`] gave out.
    pub(crate) fn get(&self, id: SourceId) -> &Source {
        &self.0[id.0]
    }

    /// `name:line:column`, both counted from 1, the column in characters.
    pub(crate) fn describe(&self, at: &Location) -> String {
        let source = self.get(at.source);
        match source.layer {
            Layer::Default => "default".to_owned(),
            Layer::File => {
                let (line, column) = line_and_column(&source.text, at.span.start);
                format!("{}:{line}:{column}", source.name)
            }
            Layer::Environment | Layer::Flag => {
                let subject = source.text.split(['=', ' ']).next().unwrap_or_default();
                format!("{} {subject}", source.name)
            }
        }
    }
}

/// Line and column of a byte offset, both from 1; the column counts characters.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before
        .iter()
        .rposition(|&b| b == b'\n')
        .map_or(0, |at| at + 1);
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    let column = String::from_utf8_lossy(&before[line_start..])
        .chars()
        .count()
        + 1;
    (line, column)
}

/// The nearest span inside `text` that starts and ends on character boundaries.
pub(crate) fn clamp(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_not_bytes() {
        assert_eq!(
            line_and_column("a\nä = 1", 3),
            (2, 2),
            "in the middle of the umlaut"
        );
        assert_eq!(line_and_column("a\nä = 1", 4), (2, 2));
        assert_eq!(line_and_column("", 7), (1, 1));
    }

    #[test]
    fn a_span_beyond_the_text_is_clamped() {
        assert_eq!(clamp("ä", &(1..9)), 0..2);
        let (late, early) = (2, 1);
        assert_eq!(clamp("abc", &(late..early)), 2..2);
    }
}
