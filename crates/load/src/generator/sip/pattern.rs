//! Texts in which the number of an AOR stands.

/// What stands for the number of the AOR in user names, passwords and AORs.
const NUMBER: &str = "{n}";

/// A text with the place of a number, or without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    before: String,
    /// `None` if there is no number.
    after: Option<String>,
    width: usize,
}

impl Pattern {
    /// Reads a text whose number has `width` digits.
    pub(super) fn new(text: &str, width: usize) -> Pattern {
        let (before, after) = match text.split_once(NUMBER) {
            Some((before, after)) => (before, Some(after.to_owned())),
            None => (text, None),
        };
        Pattern {
            before: before.to_owned(),
            after,
            width,
        }
    }

    /// The number stands between `before` and `after` of this text.
    pub(super) fn between(before: &str, of: &Pattern, after: &str) -> Pattern {
        let inner = of.after.as_ref();
        Pattern {
            before: match inner {
                Some(_) => format!("{before}{}", of.before),
                None => format!("{before}{}{after}", of.before),
            },
            after: inner.map(|inner| format!("{inner}{after}")),
            width: of.width,
        }
    }

    /// The text with `mark` in the place of the number.
    pub(super) fn with_mark(&self, mark: &str) -> String {
        match &self.after {
            None => self.before.clone(),
            Some(after) => format!("{}{mark}{after}", self.before),
        }
    }

    /// Appends the text of `number`.
    pub(super) fn write(&self, into: &mut String, number: u32) {
        use std::fmt::Write;
        into.push_str(&self.before);
        if let Some(after) = &self.after {
            // Writing to a string cannot fail.
            let _ = write!(into, "{number:0width$}{after}", width = self.width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_where_its_mark_was() {
        let user = Pattern::new("phone-{n}.x", 4);
        let uri = Pattern::between("sip:", &user, "@h");
        let text = |pattern: &Pattern| {
            let mut text = String::new();
            pattern.write(&mut text, 42);
            text
        };
        assert_eq!(text(&user), "phone-0042.x");
        assert_eq!(text(&uri), "sip:phone-0042.x@h");
        assert_eq!(uri.with_mark("#"), "sip:phone-#.x@h");
        let plain = Pattern::new("alice", 4);
        assert_eq!(text(&Pattern::between("sip:", &plain, "@h")), "sip:alice@h");
    }
}
