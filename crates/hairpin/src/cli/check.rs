//! `hairpin check`.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hairpin check hairpin.toml
        status 0 and a summary, or status 1 and every mistake with its line and what to do
  hairpin check --effective hairpin.toml
        the merged configuration: defaults, file and environment, each value with its origin
  hairpin check --effective
        the defaults";

/// Arguments of `hairpin check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(required_unless_present = "effective")]
    pub(crate) file: Option<PathBuf>,
    /// Print the merged configuration and where each value comes from
    #[arg(long)]
    pub(crate) effective: bool,
    /// With --effective: print secrets and passwords too
    #[arg(long, requires = "effective")]
    pub(crate) show_secrets: bool,
}
