//! `hairpin import`.

use std::path::PathBuf;

use crate::import::Format;

const EXAMPLES: &str = "\
Examples:
  hairpin import /etc/turnserver.conf --output hairpin.toml
        write a configuration of hairpin, and report the result for each line of the old one
  hairpin import turnserver.conf --database sqlite:/var/lib/hairpin/hairpin.db > hairpin.toml
        write users and secrets into a database

The exit status is 0 if `hairpin check` accepts the configuration and every line was understood, else 1.";

/// Arguments of `hairpin import`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Configuration file of the other server
    pub(crate) file: PathBuf,
    /// The other server [default: detected from the content of the file]
    #[arg(long, value_enum, value_name = "SERVER")]
    pub(crate) from: Option<Format>,
    /// Write users and secrets into the store with this URL
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// Write the configuration to this file, which must not exist [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
