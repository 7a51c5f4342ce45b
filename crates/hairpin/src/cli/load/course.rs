//! What all load runs have in common: where, when, how fast, and where the report goes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use load::measure::{Rate, Schedule};
use load::report::Threshold;

use crate::cli::tls::Tls;
use crate::cli::value;

/// Which server.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadTarget {
    /// stun:, stuns:, turn: or turns: URI, ?transport=tcp for TCP (udp with turns: for DTLS), or `HOST[:PORT]` over UDP
    /// (port 3478 by default; 5349 with TLS and DTLS)
    #[arg(value_name = "URI")]
    pub(crate) target: String,
    /// Whom to trust.
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// The server, and every --peer, is mine: send to it although it is neither on this machine nor in a private
    /// network
    #[arg(long)]
    pub(crate) i_own_the_target: bool,
    /// Send from this address of this machine
    #[arg(long, value_name = "IP")]
    pub(crate) local: Option<IpAddr>,
    /// turns:, stuns: complete every handshake in full, and resume no session
    #[arg(long, help_heading = "TLS")]
    pub(crate) no_resumption: bool,
    /// Process of the server on this machine: report what it spends for each datagram delivered, its children included
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
    /// Only over IPv4
    #[arg(long, short = '4', conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Only over IPv6
    #[arg(long, short = '6')]
    pub(crate) ipv6: bool,
}

/// How a run goes.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// When each datagram leaves.
    #[command(flatten)]
    pub(crate) pace: Pace,
    /// How long, and by which threads.
    #[command(flatten)]
    pub(crate) course: TimingArgs,
    /// Where the results go.
    #[command(flatten)]
    pub(crate) results: Results,
}

/// When each datagram leaves.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rate")]
pub(crate) struct Pace {
    /// Sends per second of all clients together, on a fixed schedule that does not depend on the server: 500, 50k/s,
    /// 1.5M/s [default: 1k/s; allocate 100/s; call 100/s; garbage 10k/s; mixed what its calls send]
    #[arg(long, value_name = "RATE", conflicts_with_all = ["ramp", "closed", "flat_out", "find_max"])]
    pub(crate) rate: Option<Rate>,
    /// A rate that changes linearly between times since the start, warm-up included: 0:1k,30s:50k
    #[arg(long, value_name = "TIME:RATE,..", value_parser = Schedule::ramp, conflicts_with_all = ["closed", "flat_out", "find_max"])]
    pub(crate) ramp: Option<Schedule>,
    /// Give this many sends the same intended time, at the same average rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536), conflicts_with_all = ["closed", "flat_out"])]
    pub(crate) burst: u64,
    /// Closed loop: keep this many sends in flight, and send the next one after each response; latency then hides what
    /// a stalled server did not get
    #[arg(long, visible_alias = "window", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["flat_out", "find_max"])]
    pub(crate) closed: Option<u32>,
    /// Send as fast as this machine can: says what arrives, not how long it takes
    #[arg(long, conflicts_with = "find_max")]
    pub(crate) flat_out: bool,
    /// Search the highest rate that --max-loss and every --slo allow; the report is of the best step
    #[arg(long)]
    pub(crate) find_max: bool,
    /// With --find-max: the rate to begin with
    #[arg(
        long,
        value_name = "RATE",
        default_value = "1k/s",
        requires = "find_max"
    )]
    pub(crate) find_from: Rate,
    /// With --find-max: never offer more than this
    #[arg(
        long,
        value_name = "RATE",
        default_value = "10M/s",
        requires = "find_max"
    )]
    pub(crate) find_to: Rate,
    /// With --find-max: the highest loss that passes, as a share: 0.1% or 0.001
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = value::share, requires = "find_max")]
    pub(crate) max_loss: f64,
    /// With --find-max: a step also fails if this is true (repeatable; the metrics of --fail-if)
    #[arg(long, value_name = "EXPR", requires = "find_max")]
    pub(crate) slo: Vec<Threshold>,
    /// With --find-max: how long each rate is measured, after --warm-up
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::run_time, requires = "find_max")]
    pub(crate) step: Duration,
    /// With --find-max: stop when the result is exact to this share of its value
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = value::share, requires = "find_max")]
    pub(crate) precision: f64,
}

/// How long, and by which threads.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Course")]
pub(crate) struct TimingArgs {
    /// Length of the measured part
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::run_time, conflicts_with = "find_max")]
    pub(crate) duration: Duration,
    /// Send this long before anything is measured [default: 1s; with --find-max 300ms before each step]
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(crate) warm_up: Option<Duration>,
    /// Wait this long for datagrams in flight after the last send [default: 500ms; sip 2s]
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(crate) linger: Option<Duration>,
    /// End the run if nothing was received, or nothing could be sent, for this long; 0s never ends it
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = value::duration)]
    pub(crate) silence: Duration,
    /// Threads that send, each with its share of the clients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) senders: u16,
    /// Threads that receive, each with its share of the sockets
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) receivers: u16,
    /// Send this many datagrams of one client in a row before the next client's turn [default: 1; mixed: what its media
    /// have]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) train: Option<u64>,
    /// Hand trains and bursts to the kernel as one send (UDP_SEGMENT): more load, but not what real clients do
    #[arg(long, overrides_with = "no_gso")]
    pub(crate) gso: bool,
    /// Send datagrams one by one, many with one system call; this is the default
    #[arg(long, overrides_with = "gso")]
    pub(crate) no_gso: bool,
}

/// Where the results go.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct Results {
    /// Write the report as JSON, for programs and `load compare`; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a line of figures for each second; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a page with charts that needs nothing else; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// End with status 99 if this is true at the end (repeatable): 'p99>5ms', 'loss>0.1%', 'recv_pps<50k'; times in us,
    /// ms or s
    ///
    /// Metrics: p50 p90 p99 p99.9 p99.99 max mean jitter loss sent-late late reordered duplicates truncated corrupt
    /// damaged other-run misdelivered foreign unknown-ids untrusted unbound wrong-addresses overflow failed errors
    /// goodput retransmissions 503 send_pps recv_pps
    #[arg(long, value_name = "EXPR")]
    pub(crate) fail_if: Vec<Threshold>,
    /// A line a second instead of the live view
    #[arg(long)]
    pub(crate) no_tui: bool,
}
