//! `hairpin probe`.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::tls::Tls;
use super::value;

const EXAMPLES: &str = "\
Examples:
  hairpin probe stun stun.example.org
        which address the Internet sees, and the round trip
  hairpin probe turn turn:turn.example.org:3478 --secret \"$SECRET\"
        make an allocation, send a packet through it and back, release it
  hairpin probe turn 127.0.0.1 --user alice:s3cret --json
        the same with a fixed password, for a script
  hairpin probe nat stun.example.org
        how the NAT in front of this machine behaves, and whether calls need a relay
  hairpin probe offload
        by which method the kernel of this machine could relay, on each interface

Status 0: the server works; 1: it does not; 2: wrong arguments.";

/// Arguments of `hairpin probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which protocol
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What to probe.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Send a Binding request: the mapped address and the round trip
    #[command(after_help = STUN_EXAMPLES)]
    Stun(Target),
    /// Make an allocation: the relayed address, and whether packets pass through it
    #[command(after_help = TURN_EXAMPLES)]
    Turn(Turn),
    /// Find out how the NAT in front of this machine behaves: mapping, filtering, hairpinning, binding lifetime
    #[command(after_help = NAT_EXAMPLES)]
    Nat(Nat),
    /// Ask this machine's kernel: how it can relay on each interface, or what prevents it
    #[command(after_help = OFFLOAD_EXAMPLES)]
    Offload(Offload),
}

const OFFLOAD_EXAMPLES: &str = "\
Examples:
  hairpin probe offload
  hairpin probe offload eth0 --json

It serves nothing and changes nothing. Status 0: the kernel can relay on every interface
listed; 1: not on all of them; 2: there is no such interface.";

/// Which interfaces.
#[derive(Debug, clap::Args)]
pub(crate) struct Offload {
    /// Only these interfaces; else all that are up and have an address
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Vec<String>,
    /// Log to stderr: error, warn, info or debug, which has the verifier's log of a program that the kernel rejects
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = value::log_level)]
    pub(crate) log_level: LevelFilter,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const NAT_EXAMPLES: &str = "\
Examples:
  hairpin probe nat stun.example.org
  hairpin probe nat 192.0.2.1:3478 --json
  hairpin probe nat stun.example.org --lifetime 2m
        also how long a binding lasts without traffic, up to 2 minutes; it takes as long
  hairpin probe nat stun:stun.example.org?transport=tcp
        the mapping over TCP, or with stuns: over TLS

A name without a port is a domain: its SRV records (_stun-behavior._udp, _stun-behavior._tcp,
_stun-behaviors._tcp) say where the server is, or else its addresses with the default port.
The server needs two addresses (RFC 5780): nat_discovery.udp of a hairpin, or coturn's
--rfc5780. A filter drops in silence, so the test may wait for --timeout several times.";

/// Which server, and how much.
#[derive(Debug, clap::Args)]
pub(crate) struct Nat {
    /// Where and how.
    #[command(flatten)]
    pub(crate) target: Target,
    /// Also test how long a binding lasts without traffic, up to this long (5s to 1h)
    #[arg(long, value_name = "TIME", value_parser = value::idle_time)]
    pub(crate) lifetime: Option<Duration>,
    /// Query this name server instead of those of the system
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) name_server: Option<SocketAddr>,
}

const STUN_EXAMPLES: &str = "\
Examples:
  hairpin probe stun stun.example.org
  hairpin probe stun stun:192.0.2.1:3478 --json
  hairpin probe stun stun:192.0.2.1?transport=tcp";

const TURN_EXAMPLES: &str = "\
Examples:
  hairpin probe turn turn.example.org --secret \"$SECRET\"
  hairpin probe turn 127.0.0.1:3478 --user alice:s3cret --json
  hairpin probe turn turn:turn.example.org?transport=tcp --secret \"$SECRET\"
        over TCP
  hairpin probe turn turns:turn.example.org --secret \"$SECRET\"
        over TLS on port 5349, with the root certificates of the system
  hairpin probe turn turns:127.0.0.1 --user alice:s3cret --ca cert.pem --server-name localhost
        with a certificate of one's own
  hairpin probe turn turns:turn.example.org?transport=udp --secret \"$SECRET\"
        over DTLS on port 5349
  hairpin probe turn turn:turn.example.org --also turn:turn.example.org?transport=tcp \\
        --also turns:turn.example.org --secret \"$SECRET\" --every 30s --exporter 127.0.0.1:9642
        a monitor for Prometheus: success, loss and delay over UDP, TCP and TLS";

/// Where and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// stun:, stuns:, turn: or turns: URI, ?transport=tcp for TCP (udp with turns: for DTLS), or `HOST[:PORT]` over UDP
    /// (port 3478 by default; 5349 with TLS and DTLS)
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Whom to trust.
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// Give up after this long
    #[arg(long, default_value = "5s", value_name = "TIME")]
    pub(crate) timeout: String,
    /// Only over IPv4
    #[arg(long, short = '4', conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Only over IPv6
    #[arg(long, short = '6')]
    pub(crate) ipv6: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where, how and as whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Turn {
    /// Where and how.
    #[command(flatten)]
    pub(crate) target: Target,
    /// User and password
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        conflicts_with = "secret",
        env = "HAIRPIN_PROBE_USER",
        hide_env_values = true
    )]
    pub(crate) user: Option<String>,
    /// Shared secret to make time-limited credentials from
    #[arg(long, env = "HAIRPIN_PROBE_SECRET", hide_env_values = true)]
    pub(crate) secret: Option<String>,
    /// Probe repeatedly, and serve the results to Prometheus at this address, path /metrics
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "json")]
    pub(crate) exporter: Option<SocketAddr>,
    /// With --exporter: time from one round to the next (5s to 1h)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        requires = "exporter"
    )]
    pub(crate) every: String,
    /// With --exporter: one more target, for example another transport; may be repeated
    #[arg(long, value_name = "TARGET", requires = "exporter")]
    pub(crate) also: Vec<String>,
}
