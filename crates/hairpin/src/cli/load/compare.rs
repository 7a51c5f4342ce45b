//! `hairpin load compare`.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hairpin load compare before.json after.json
        what differs in the settings, then every figure with its ratio, and whether b is better or worse
  hairpin load compare a1.json,a2.json,a3.json b1.json,b2.json,b3.json
        three rounds of each: a difference counts if it is larger than the rounds differ among themselves
  hairpin load turn 127.0.0.1 --secret \"$SECRET\" --json after.json && \\
  hairpin load compare before.json after.json

The files are what `hairpin load turn|stun --json FILE` wrote. Status 0; 1: a file is missing or something else; 2: wrong arguments.";

/// Arguments of `hairpin load compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The report that ratios are against; several rounds, separated by commas
    #[arg(value_name = "A.json,..", value_parser = files)]
    pub(crate) a: Files,
    /// The other report, or its rounds
    #[arg(value_name = "B.json,..", value_parser = files)]
    pub(crate) b: Files,
}

/// Reports of one side.
#[derive(Clone, Debug)]
pub(crate) struct Files(pub(crate) Vec<PathBuf>);

fn files(text: &str) -> Result<Files, String> {
    let all: Vec<PathBuf> = text.split(',').map(PathBuf::from).collect();
    match all.iter().any(|path| path.as_os_str().is_empty()) {
        true => Err("a name between commas is missing".to_owned()),
        false => Ok(Files(all)),
    }
}
