//! `hairpin import`.

use std::path::PathBuf;

use crate::import::Format;

const EXAMPLES: &str = "\
Examples:
  hairpin import /etc/turnserver.conf --output /etc/hairpin/hairpin.toml
        writes a configuration, and says what becomes of each line of the old one
  hairpin import turnserver.conf --database sqlite:/var/lib/hairpin/hairpin.db > hairpin.toml
        puts users and secrets into a database

The status is 0 if `hairpin check` accepts the configuration and every line was understood, else 1.";

/// Arguments of `hairpin import`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration of the other server
    pub(crate) file: PathBuf,
    /// The other server [default: found by the content of the file]
    #[arg(long, value_enum, value_name = "SERVER")]
    pub(crate) from: Option<Format>,
    /// Put users and secrets into the store with this URL
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// Write the configuration to this new file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
