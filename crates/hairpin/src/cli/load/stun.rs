//! `hairpin load stun`.

use super::course::{How, LoadTarget};
use super::turn::Garbage;

const EXAMPLES: &str = "\
Examples:
  hairpin load stun 127.0.0.1
        1,000 Binding requests a second from 10 sockets, for ten seconds
  hairpin load stun stun:10.0.0.5:3478 --rate 200k/s --clients 1000 --senders 2 --fail-if 'p99>5ms' --fail-if 'loss>0.1%'
        a gate for a test: status 99 if it is slower than that
  hairpin load stun 127.0.0.1 --find-max --slo 'p99>2ms' --json -
        the highest rate with at most 0.1 % of loss and a 99th percentile below 2 ms
  hairpin load stun 127.0.0.1 --workload garbage --rate 100k/s
        malformed datagrams from many sources, and whether honest ones still get through

  hairpin load stun stuns:127.0.0.1 --insecure --workload connect --closed 32 --no-resumption
        TLS handshakes per second, 32 at a time

Status 0; 1: the run failed, the report is partial; 2: wrong arguments; 99: a --fail-if is true. `q` or Ctrl-C stops and still reports.";

/// Flags that not all workloads have.
pub(crate) const ONLY: &[(&str, &[&str])] = &[
    ("clients", &["binding"]),
    ("sources", GARBAGE),
    ("ports", GARBAGE),
    ("honest", GARBAGE),
    ("seed", GARBAGE),
];
const GARBAGE: &[&str] = &["garbage"];

/// Arguments of `hairpin load stun`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which server.
    #[command(flatten)]
    pub(crate) to: LoadTarget,
    /// What to send
    #[arg(long, value_enum, default_value_t = Workload::Binding)]
    pub(crate) workload: Workload,
    /// binding: sockets that send, each with its own port [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) clients: Option<u32>,
    /// Workload garbage.
    #[command(flatten)]
    pub(crate) garbage: Garbage,
    /// How the run goes.
    #[command(flatten)]
    pub(crate) how: How,
}

/// What `hairpin load stun` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Binding requests; latency is the round trip
    Binding,
    /// Connections over TCP, TLS or DTLS that come and go, with one Binding request each; latency is from the first
    /// packet to its response
    Connect,
    /// Random, malformed and unauthenticated datagrams from many sources
    Garbage,
}
