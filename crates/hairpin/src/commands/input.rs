//! Gathers what a configuration is made of: file, environment, flags.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::config::{Flag, Inputs};

/// A configuration of ten thousand users has less; more than this is some other file, given by mistake.
const MAX_FILE: u64 = 4 << 20;

/// Reads the file, if one is named, and the environment.
pub(crate) fn gather(file: Option<&PathBuf>, flags: Vec<Flag>) -> Result<Inputs> {
    let file = file
        .map(|path| Ok::<_, anyhow::Error>((path.display().to_string(), read(path)?)))
        .transpose()?;
    Ok(Inputs {
        file,
        environment: std::env::vars_os().collect(),
        flags,
    })
}

/// The text of a configuration file.
pub(crate) fn read(path: &Path) -> Result<String> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        bail!("{name} is a directory: name the file in it");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > MAX_FILE {
        bail!(
            "{name} is larger than {} MiB: that is no configuration file",
            MAX_FILE >> 20
        );
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
            + 1;
        anyhow::anyhow!("{name}, line {line}: not UTF-8; save the file as UTF-8")
    })
}

/// Whether stderr wants colours.
pub(crate) fn colour() -> bool {
    std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
