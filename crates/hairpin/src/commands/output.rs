//! Writes to stdout. A closed pipe (`hairpin check --effective | head -1`) is no error.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes `text` as it is and flushes it.
pub(super) fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}

/// `text` with a question mark in place of each control character, because some of it comes from the network.
pub(crate) fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

/// Lines of a name and a value, with the values below each other. Programs may split at the first run of spaces.
#[derive(Debug, Default)]
pub(super) struct Lines(String);

impl Lines {
    /// Adds a line.
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        let value = printable(&value.to_string());
        self.0.push_str(&format!("{name:<12} {value}\n"));
    }

    /// Adds text as it is.
    pub(super) fn text(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.0
    }
}
