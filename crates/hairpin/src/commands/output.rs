//! Writing to stdout without falling over when the reader has gone (`hairpin check --effective | head -1`).

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
