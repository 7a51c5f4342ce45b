//! `hairpin sip`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;

use super::control::Target;
use super::remote::Remote;

const EXAMPLES: &str = "\
Examples:
  hairpin sip route --config /etc/hairpin.toml --from sip:alice@example.org --to sip:+49301234@example.org
        where a call of alice goes, and why
  hairpin sip route --config /etc/hairpin.toml --source 192.0.2.7 --from sip:+4930@carrier.example --to sip:bob@example.org
        the same for a call that comes from a trunk
  hairpin sip bindings --aor alice@example.org
        where the phones of alice are registered
  hairpin sip remove alice@example.org --contact sip:alice@192.0.2.7:5060
        remove one binding, for example of a phone that was lost
  hairpin sip trunks
        the state and the last error of each address of a trunk";

const BINDINGS: &str = "\
Examples:
  hairpin sip bindings --aor alice@example.org
        the bindings of one address of record
  hairpin sip bindings --json | jq -r .contact
        all bindings, one JSON object per line

The server sends the list in parts, so that a long list delays no call. The exit status
is 0, also if there is no binding, and 1 if the server does not respond.";

const REMOVE: &str = "\
Examples:
  hairpin sip remove alice@example.org
        remove all bindings of one address of record
  hairpin sip remove alice@example.org --contact sip:alice@192.0.2.7:5060
        remove the binding with this contact, as hairpin sip bindings shows it

A phone that still runs registers again when it refreshes: to prevent that, delete its
user first. The exit status is 1 if there is no such binding.";

const CALLS: &str = "\
Examples:
  hairpin sip calls
        the calls in progress: those that ring, then those that are answered
  hairpin sip calls --json | jq -r 'select(.target == \"carrier\") | .call_id'
        the Call-IDs of the calls to a trunk, one JSON object per line

Requires sip.call_log = true. Without it, the server stores no details of calls, and the
command prints only how many there are.";

const TRUNKS: &str = "\
Examples:
  hairpin sip trunks
        the state of each address: up, slow_start, down, probing or paused
  hairpin sip trunks --json | jq 'select(.addresses[].state == \"down\") | .name'
        the names of trunks with an address that is down, one JSON object per line

The exit status is 1 if a trunk has addresses but none of them gets calls, else 0.";

const TRACE: &str = "\
Examples:
  hairpin sip trace a84b4c76e66710@pc33
        the messages of the call as a ladder
  hairpin sip trace a84b4c76e66710@pc33 --pcap call.pcap
        the same messages in a file for Wireshark, tshark, tcpdump or sngrep
  hairpin sip trace a84b4c76e66710@pc33 --json | jq -r .message
        the messages themselves

Requires sip.trace_memory. The messages have digests, numbers and the text of messages.
The exit status is 1 if the server has no message with this Call-ID.";

const ROUTE: &str = "\
Examples:
  hairpin sip route --config /etc/hairpin.toml --from sip:alice@example.org --to sip:+49301234@example.org
        where a call of alice goes, and why
  hairpin sip route --config /etc/hairpin.toml --from sip:alice@example.org --to tel:+49301234 --header 'X-Tenant: 7' --json
        the same for a telephone number with a header field, for programs
  hairpin sip route --api http://127.0.0.1:9641 --from sip:alice@example.org --to sip:info@example.org
        the decision of a running server, with the routes and aliases of its stores

Nothing is sent, and every trunk counts as available. Without --api, no server and no
store is asked. Status 0 if the request would be forwarded, 1 if it would be refused.";

/// Arguments of `hairpin sip`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Explain where the proxy would send a request, step by step, without sending it
    Route(Route),
    /// List registration bindings of a running server
    Bindings(Bindings),
    /// Remove registration bindings of one address of record
    Remove(Remove),
    /// List the calls in progress of a running server
    Calls(Calls),
    /// Show the state of each address of trunks, and counters of trunks
    Trunks(Trunks),
    /// Show the SIP messages of a call
    Trace(Trace),
}

/// Arguments of `hairpin sip bindings`.
#[derive(Debug, clap::Args)]
#[command(after_help = BINDINGS)]
pub(crate) struct Bindings {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only the bindings of this address of record, USER@DOMAIN
    #[arg(long, value_name = "AOR")]
    pub(crate) aor: Option<String>,
    /// Only bindings whose address of record, contact or user agent contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) search: Option<String>,
    /// Print at most this number of bindings
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<usize>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin sip remove`.
#[derive(Debug, clap::Args)]
#[command(after_help = REMOVE)]
pub(crate) struct Remove {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The address of record, USER@DOMAIN
    #[arg(value_name = "AOR")]
    pub(crate) aor: String,
    /// Only the binding with this contact
    #[arg(long, value_name = "URI")]
    pub(crate) contact: Option<String>,
}

/// Arguments of `hairpin sip calls`.
#[derive(Debug, clap::Args)]
#[command(after_help = CALLS)]
pub(crate) struct Calls {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print at most this number of calls
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<usize>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin sip trunks`.
#[derive(Debug, clap::Args)]
#[command(after_help = TRUNKS)]
pub(crate) struct Trunks {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin sip trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = TRACE)]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The Call-ID
    #[arg(value_name = "CALL-ID")]
    pub(crate) call_id: String,
    /// Print JSON, one object per message
    #[arg(long, conflicts_with = "pcap")]
    pub(crate) json: bool,
    /// Write the messages to this file, as packets
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
}

/// Arguments of `hairpin sip route`.
#[derive(Debug, clap::Args)]
#[command(after_help = ROUTE)]
pub(crate) struct Route {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The URI in From
    #[arg(long, value_name = "URI")]
    pub(crate) from: String,
    /// The Request-URI
    #[arg(long, value_name = "URI")]
    pub(crate) to: String,
    /// The address that the request comes from
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) source: IpAddr,
    /// The domain in the client certificate of the sender, for trunks with `certificates`
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) certificate: Option<String>,
    /// A further header field (repeatable)
    #[arg(long, value_name = "'NAME: VALUE'")]
    pub(crate) header: Vec<String>,
    /// The method
    #[arg(long, default_value = "INVITE")]
    pub(crate) method: String,
    /// The Call-ID, for routes that hunt by hash
    #[arg(long, value_name = "ID", default_value = "1@preview")]
    pub(crate) call_id: String,
    /// Print the decision for programs
    #[arg(long)]
    pub(crate) json: bool,
}
