//! `hairpin load compare`.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hairpin load compare before.json after.json
        what differs in the settings, then every figure with its ratio
  hairpin load turn 127.0.0.1 --secret \"$SECRET\" --json after.json && \\
  hairpin load compare before.json after.json

The files are what `hairpin load turn|stun --json FILE` wrote. Status 0; 1: a file is missing or something else; 2: wrong arguments.";

/// Arguments of `hairpin load compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The report that ratios are against
    #[arg(value_name = "A.json")]
    pub(crate) a: PathBuf,
    /// The other report
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,
}
