//! `hairpin nodes`.

use super::control::Target;

const EXAMPLES: &str = "\
Examples:
  hairpin nodes
        the nodes of the cluster, as the server knows them
  hairpin nodes --json | jq -r '.nodes[] | select(.state == \"serving\") | .name'
        the names of those that admit clients

The exit status is 1 if the server does not respond, or if it knows no other nodes
because cluster.engine is not set.";

/// Arguments of `hairpin nodes`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Nodes {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
