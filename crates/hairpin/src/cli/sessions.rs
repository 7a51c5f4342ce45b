//! `hairpin sessions`.

use clap::Subcommand;
use server::sessions::SessionId;

use super::control::Target;

const EXAMPLES: &str = "\
Examples:
  hairpin sessions --user alice
        the allocations of users whose name contains alice
  hairpin sessions --peer 192.0.2.7 --json | jq -r .id
        the IDs of sessions with this client or peer, one JSON object per line
  hairpin sessions kill 0-17-3
        end one session

The server sends the list in pages, so that a long list delays no datagram. The exit
status is 0, also if there is no session, and 1 if the server does not respond.";

const KILL: &str = "\
Examples:
  hairpin sessions kill 0-17-3
        end one session; `hairpin sessions` shows the IDs
  hairpin sessions kill --user alice
        end all sessions of alice, also with time-limited credentials (1735689600:alice),
        on all nodes of the cluster

The next request of the client gets 437, and the client may allocate again: to prevent
that, delete the user first. The exit status is 1 if no session was ended, and no other
node got the order.";

/// Arguments of `hairpin sessions`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Sessions {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) list: List,
}

/// What to do instead of a list.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// End sessions
    Kill(Kill),
}

/// Arguments of the list.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only sessions whose user name contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) user: Option<String>,
    /// Only sessions with this IP address of the client, of a permission, of a channel or of a data
    /// connection's peer
    #[arg(long, value_name = "IP")]
    pub(crate) peer: Option<std::net::IpAddr>,
    /// Print at most this number of sessions
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<usize>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin sessions kill`.
#[derive(Debug, clap::Args)]
#[command(after_help = KILL)]
#[group(id = "which", required = true, args = ["ids", "user"])]
pub(crate) struct Kill {
    #[command(flatten)]
    pub(crate) target: Target,
    /// IDs of sessions
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<SessionId>,
    /// All sessions of this user
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub(crate) user: Option<String>,
}
