//! The verdict about one line of another server's configuration.

use std::fmt;

/// The result for a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The value is in the named keys of hairpin.
    Carried(String),
    /// hairpin has another setting or command for the same purpose.
    Replaced(String),
    /// hairpin behaves like this without a setting, or the line has no effect.
    Unnecessary(String),
    /// hairpin does not have this function.
    Unsupported(String),
    /// The line is not an option of this server, or its value is wrong.
    NotUnderstood(String),
}

impl Verdict {
    /// `carried over to KEY`.
    pub(crate) fn carried(to: impl Into<String>) -> Self {
        Self::Carried(to.into())
    }

    /// `not understood: WHY`.
    pub(crate) fn wrong(why: impl Into<String>) -> Self {
        Self::NotUnderstood(why.into())
    }

    /// `unnecessary because WHY`.
    pub(crate) fn unnecessary(why: impl Into<String>) -> Self {
        Self::Unnecessary(why.into())
    }

    /// `unsupported because WHY`.
    pub(crate) fn unsupported(why: impl Into<String>) -> Self {
        Self::Unsupported(why.into())
    }

    /// `replaced by WHAT`.
    pub(crate) fn replaced(what: impl Into<String>) -> Self {
        Self::Replaced(what.into())
    }

    /// The kinds, as a summary names them.
    pub(crate) const KINDS: [&str; 5] = [
        "carried over",
        "replaced",
        "unnecessary",
        "unsupported",
        "not understood",
    ];

    /// Which of the kinds it is.
    pub(crate) fn kind(&self) -> &'static str {
        let index = match self {
            Self::Carried(_) => 0,
            Self::Replaced(_) => 1,
            Self::Unnecessary(_) => 2,
            Self::Unsupported(_) => 3,
            Self::NotUnderstood(_) => 4,
        };
        Self::KINDS[index]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carried(to) => write!(f, "carried over to {to}"),
            Self::Replaced(by) => write!(f, "replaced by {by}"),
            Self::Unnecessary(why) => write!(f, "unnecessary because {why}"),
            Self::Unsupported(why) => write!(f, "unsupported because {why}"),
            Self::NotUnderstood(why) => write!(f, "not understood: {why}"),
        }
    }
}

/// A verdict that does not depend on the value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fixed {
    /// See [`Verdict::Replaced`].
    Replaced(&'static str),
    /// See [`Verdict::Unnecessary`].
    Unnecessary(&'static str),
    /// See [`Verdict::Unsupported`].
    Unsupported(&'static str),
}

impl From<Fixed> for Verdict {
    fn from(fixed: Fixed) -> Self {
        match fixed {
            Fixed::Replaced(text) => Self::Replaced(text.to_owned()),
            Fixed::Unnecessary(text) => Self::Unnecessary(text.to_owned()),
            Fixed::Unsupported(text) => Self::Unsupported(text.to_owned()),
        }
    }
}
