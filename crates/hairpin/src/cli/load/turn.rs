//! `hairpin load turn`.

use std::net::IpAddr;
use std::time::Duration;

use load::measure::Rate;

use super::course::{How, LoadTarget};
use crate::cli::value::{self, Endpoints};

const EXAMPLES: &str = "\
Examples:
  hairpin load turn 127.0.0.1 --secret \"$SECRET\"
        10 allocations relay 1,000 datagrams of 120 B a second to sockets of this machine; latency is one way
  hairpin load turn turn:10.0.0.5:3478 --user alice:s3cret --clients 200 --rate 50k/s --direction both --senders 2
        both ways, two sender threads
  hairpin load turn 10.0.0.5 --secret \"$SECRET\" --peer 10.0.0.9:3480 --size 1200 --find-max
        through the server to `hairpin peer` on another machine and back; the highest rate that loses at most 0.1 %
  hairpin load turn 10.0.0.5 --secret \"$SECRET\" --pairs --clients 100 --indications
        from client to client, both relayed, in Send indications
  hairpin load turn 10.0.0.5 --secret \"$SECRET\" --workload allocate --rate 500/s --fail-if 'p99>50ms'
        allocate, refresh and release, 500 times a second; status 99 if that is slow
  hairpin load turn 10.0.0.5 --secret \"$SECRET\" --workload mixed --calls 2000 --duration 60s --html calls.html
        2,000 calls, as many of them with video as --video-share says

Status 0; 1: the run failed, the report is partial; 2: wrong arguments; 99: a --fail-if is true. `q` or Ctrl-C stops and
still reports. The server has to admit the peers: hairpin serve --dev or --allow-peer, turnserver --allow-loopback-peers.";

/// Flags that not all workloads have.
pub(crate) const ONLY: &[(&str, &[&str])] = &[
    ("clients", RELAY),
    ("peers", RELAY),
    ("peer", RELAY),
    ("reflector", RELAY),
    ("pairs", RELAY),
    ("direction", RELAY),
    ("indications", RELAY),
    ("size", RELAY),
    ("payload-key", RELAY),
    ("peer-ip", &["relay", "mixed"]),
    ("peer-ports", &["relay", "mixed"]),
    ("refreshes", &["allocate"]),
    ("calls", &["mixed"]),
    ("video-share", &["mixed"]),
    ("sources", GARBAGE),
    ("ports", GARBAGE),
    ("honest", GARBAGE),
    ("seed", GARBAGE),
];
const RELAY: &[&str] = &["relay"];
const GARBAGE: &[&str] = &["garbage"];

/// Arguments of `hairpin load turn`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which server.
    #[command(flatten)]
    pub(crate) to: LoadTarget,
    /// What to send
    #[arg(long, value_enum, default_value_t = Workload::Relay)]
    pub(crate) workload: Workload,
    /// As whom.
    #[command(flatten)]
    pub(crate) credentials: Credentials,
    /// The allocations.
    #[command(flatten)]
    pub(crate) setup: Setup,
    /// Workload relay.
    #[command(flatten)]
    pub(crate) relay: Relay,
    /// Workloads allocate and mixed.
    #[command(flatten)]
    pub(crate) others: Others,
    /// Workload garbage.
    #[command(flatten)]
    pub(crate) garbage: Garbage,
    /// How the run goes.
    #[command(flatten)]
    pub(crate) how: How,
}

/// What `hairpin load turn` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Allocations that relay measured datagrams
    Relay,
    /// Allocate, refresh, release, each time from a fresh port
    Allocate,
    /// Calls: 50 packets of 120 B a second each way, some with trains of video
    Mixed,
    /// Random, malformed and unauthenticated datagrams from many sources
    Garbage,
}

/// As whom.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Credentials")]
pub(crate) struct Credentials {
    /// User, with the password behind a colon or in --password; with --secret the name in the time-limited credentials
    #[arg(
        long,
        value_name = "NAME[:PASSWORD]",
        env = "HAIRPIN_LOAD_USER",
        hide_env_values = true
    )]
    pub(crate) user: Option<String>,
    /// Password of --user
    #[arg(
        long,
        requires = "user",
        conflicts_with = "secret",
        env = "HAIRPIN_LOAD_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) password: Option<String>,
    /// Shared secret to make time-limited credentials from
    #[arg(long, env = "HAIRPIN_LOAD_SECRET", hide_env_values = true)]
    pub(crate) secret: Option<String>,
}

/// The allocations.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub(crate) struct Setup {
    /// relay: allocations, each of a socket of its own; with --pairs, two make a pair [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) clients: Option<u32>,
    /// Ask for relayed addresses of this family [default: what the server gives: IPv4]
    #[arg(long, value_enum)]
    pub(crate) relay_family: Option<Family>,
    /// Use HMAC-SHA1 and MD5, as clients of RFC 5389 do
    #[arg(long)]
    pub(crate) classic: bool,
    /// Lifetime to ask for [default: the server's]
    #[arg(long, value_name = "TIME", value_parser = value::seconds)]
    pub(crate) lifetime: Option<u32>,
    /// Allocations in flight at once: while the clients are set up; allocate: cycles, and what is due beyond that
    /// counts as not sent [default: 64; allocate 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) in_flight: Option<u32>,
    /// Give up on a request after this long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = value::run_time)]
    pub(crate) timeout: Duration,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Family {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
}

/// Workload relay.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload relay")]
pub(crate) struct Relay {
    /// Peers of each client, with a channel or a permission for each [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) peers: Option<u32>,
    /// Send to these reflectors (`hairpin peer`, turnutils_peer; port 3480 by default) and measure the round trip
    /// (repeatable: clients take turns)
    #[arg(long, value_name = "ADDRESS[:PORT[-PORT]]", value_parser = value::endpoints, conflicts_with_all = ["pairs", "reflector", "direction"])]
    pub(crate) peer: Vec<Endpoints>,
    /// Send to a reflector inside this process and measure the round trip
    #[arg(long, conflicts_with_all = ["pairs", "direction"])]
    pub(crate) reflector: bool,
    /// Send from client to client: through the server twice, one way
    #[arg(long)]
    pub(crate) pairs: bool,
    /// Which way [default: up]
    #[arg(long, value_enum)]
    pub(crate) direction: Option<Direction>,
    /// relay, mixed: the address of the peers in this process; the server has to reach it [default: this machine's way
    /// to the relayed addresses]
    #[arg(long, value_name = "IP", conflicts_with_all = ["peer", "pairs"])]
    pub(crate) peer_ip: Option<IpAddr>,
    /// relay, mixed: ports of the peers in this process, which the clients share [default: enough for --peers and
    /// --receivers; mixed 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with_all = ["peer", "pairs"])]
    pub(crate) peer_ports: Option<u32>,
    /// Send indications instead of ChannelData
    #[arg(long)]
    pub(crate) indications: bool,
    /// Payload of each datagram, in bytes, 24 to 65503 [default: 120]
    #[arg(long, value_name = "BYTES", value_parser = value::size)]
    pub(crate) size: Option<usize>,
    /// Key of the payloads, for `hairpin peer --sink` with the same one [default: a random one]
    #[arg(long, value_name = "NUMBER", requires = "peer")]
    pub(crate) payload_key: Option<u64>,
}

/// Which way measured datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// From the clients to the peers
    Up,
    /// From the peers to the clients
    Down,
    /// Half of the rate each way
    Both,
}

/// Workloads allocate and mixed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workloads allocate and mixed")]
pub(crate) struct Others {
    /// allocate: Refresh requests of each allocation before it is released [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) refreshes: Option<u32>,
    /// mixed: calls at a time, each of one allocation [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) calls: Option<u32>,
    /// mixed: the share of calls with video: 10% or 0.1 [default: 10%]
    #[arg(long, value_name = "SHARE", value_parser = value::share)]
    pub(crate) video_share: Option<f64>,
}

/// Workload garbage.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload garbage")]
pub(crate) struct Garbage {
    /// garbage: source addresses; more than 1 only against 127.0.0.0/8 [default: 256 there, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) sources: Option<u32>,
    /// garbage: source ports [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) ports: Option<u16>,
    /// garbage: valid Binding requests per second at the same time: these are measured [default: 100/s]
    #[arg(long, value_name = "RATE")]
    pub(crate) honest: Option<Rate>,
    /// garbage: the same seed sends the same garbage [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}
