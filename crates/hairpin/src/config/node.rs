//! One value as the user wrote it, from any layer.
//!
//! A file gives typed TOML values; the environment and flags give plain text, whose type is that of the key
//! (`HAIRPIN_SERVER__WORKERS=4`, `--listen A --listen B`). A [`Node`] hides the difference from the readers in
//! `setting`.

use toml::Spanned;
use toml::de::DeValue;

use super::source::{Location, SourceId};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    /// What was written.
    pub(crate) raw: Raw<'a>,
    /// Where.
    pub(crate) at: Location,
}

/// What was written.
#[derive(Clone, Debug)]
pub(crate) enum Raw<'a> {
    /// A value of a TOML document.
    Toml(&'a DeValue<'a>),
    /// Untyped text of the environment or of a flag.
    Plain(&'a str),
    /// The values of a flag that may be repeated.
    Many(Vec<Node<'a>>),
}

impl<'a> Node<'a> {
    /// A value of a TOML document.
    pub(crate) fn toml(source: SourceId, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            raw: Raw::Toml(value.get_ref()),
            at: Location {
                source,
                span: value.span(),
            },
        }
    }

    /// The value as a text; `None` if it is a list, or a TOML value of another type.
    pub(crate) fn text(&self) -> Option<&'a str> {
        match &self.raw {
            Raw::Toml(value) => value.as_str(),
            Raw::Plain(text) => Some(text),
            Raw::Many(_) => None,
        }
    }

    /// The value as an integer; `None` if it is none, and `Err` if it does not fit 64 bits.
    pub(crate) fn integer(&self) -> Option<Result<i64, ()>> {
        match &self.raw {
            Raw::Toml(value) => {
                let integer = value.as_integer()?;
                Some(i64::from_str_radix(integer.as_str(), integer.radix()).map_err(|_| ()))
            }
            Raw::Plain(text) if is_number(text) => Some(text.parse().map_err(|_| ())),
            _ => None,
        }
    }

    /// The value as a boolean; `None` if it is none. Plain text: `true`, `1`, `yes` or `on`, and `false`, `0`, `no` or
    /// `off`.
    pub(crate) fn boolean(&self) -> Option<bool> {
        match &self.raw {
            Raw::Toml(value) => value.as_bool(),
            Raw::Plain("true" | "1" | "yes" | "on") => Some(true),
            Raw::Plain("false" | "0" | "no" | "off") => Some(false),
            _ => None,
        }
    }

    /// The value as a list; `None` if it is a TOML value of another type. Plain text is split at its commas.
    pub(crate) fn items(&self) -> Option<Vec<Node<'a>>> {
        match &self.raw {
            Raw::Toml(value) => Some(
                value
                    .as_array()?
                    .iter()
                    .map(|item| Node::toml(self.at.source, item))
                    .collect(),
            ),
            Raw::Many(items) => Some(items.clone()),
            Raw::Plain(text) => Some(self.split(text)),
        }
    }

    /// The elements of a plain list: separated by commas; an empty text is an empty list.
    fn split(&self, text: &'a str) -> Vec<Node<'a>> {
        // A masked secret is shown as `***`, whose length says nothing about where its parts are.
        let masked = self.at.span.len() != text.len();
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|_| !text.trim().is_empty());
        items
            .map(|item| {
                let start = self.at.span.start + (item.as_ptr() as usize - text.as_ptr() as usize);
                let span = if masked {
                    self.at.span.clone()
                } else {
                    start..start + item.len()
                };
                Node {
                    raw: Raw::Plain(item),
                    at: Location {
                        source: self.at.source,
                        span,
                    },
                }
            })
            .collect()
    }

    /// What it is, for "expected .., found ..".
    pub(crate) fn kind(&self) -> String {
        match &self.raw {
            Raw::Toml(value) => match value.type_str() {
                vowel @ ("integer" | "array") => format!("an {vowel}"),
                other => format!("a {other}"),
            },
            Raw::Plain(text) => format!("`{text}`"),
            Raw::Many(_) => "a list".to_owned(),
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}
