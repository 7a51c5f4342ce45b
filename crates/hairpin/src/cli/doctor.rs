//! `hairpin doctor`.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  sudo hairpin doctor --config /etc/hairpin/hairpin.toml
        what is wrong on this machine for a server with this configuration, and how to fix it
  hairpin doctor --json
        the same for the defaults, as one JSON object, for a script
  hairpin doctor --only ports --only conntrack

It changes nothing. Without root it cannot read the rules of the firewall; other checks that
require a missing program (ethtool, nft, timedatectl) are skipped, and say so.
Status 0: nothing is wrong; 1: something is; 2: the configuration or an argument is wrong.";

/// Arguments of `hairpin doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration file of the server
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The network interface of the server [default: those of the default routes]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Vec<String>,
    /// Run only this check; may be repeated
    #[arg(long, value_name = "CHECK")]
    pub(crate) only: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Read /proc, /sys, /etc and the output of programs below this directory, for tests
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    pub(crate) root: Option<PathBuf>,
}
