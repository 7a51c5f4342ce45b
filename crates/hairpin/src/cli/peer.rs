//! `hairpin peer`.

use std::path::PathBuf;
use std::time::Duration;

use load::measure::Rate;

use super::value::{self, Endpoints};

const EXAMPLES: &str = "\
Examples:
  hairpin peer
        send back what arrives on 127.0.0.1:3480, until Ctrl-C
  hairpin peer --listen 10.0.0.5:3480-3487 --threads 4
        eight ports, four threads; for `hairpin load turn --peer 10.0.0.5:3480` and other generators
  hairpin peer --listen 10.0.0.5 --sink --payload-key 4711 --duration 30s --json -
        check and count what `hairpin load turn --payload-key 4711` sends, for half a minute; then one JSON object
  hairpin peer --source 50k/s --size 1200
        count what arrives, and send 50,000 datagrams of 1,200 B a second to everybody who speaks

A line a second goes to stderr, the sum to stdout. Status 0; 1: cannot listen; 2: wrong arguments.";

/// Arguments of `hairpin peer`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Listen here (repeatable; port 3480 by default; port 0 picks a free one)
    #[arg(long, value_name = "ADDRESS[:PORT[-PORT]]", value_parser = value::endpoints, default_value = "127.0.0.1:3480")]
    pub(crate) listen: Vec<Endpoints>,
    /// Number of threads, each with its own sockets on every port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Send nothing back: check and count
    #[arg(long, conflicts_with = "source")]
    pub(crate) sink: bool,
    /// Send a measured stream of this many datagrams per second to every address that has sent something within the
    /// last 10 s
    #[arg(long, value_name = "RATE")]
    pub(crate) source: Option<Rate>,
    /// With --source: payload of each datagram, in bytes
    #[arg(long, value_name = "BYTES", default_value = "120", value_parser = value::size, requires = "source")]
    pub(crate) size: usize,
    /// Key of the payloads that it checks or sends, as with `hairpin load turn --payload-key`
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) payload_key: u64,
    /// Receive and send datagrams one by one: no GRO, no GSO
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// Receive and send buffer of each socket; a number alone is in KiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = value::kibibytes)]
    pub(crate) buffer: u32,
    /// Stop after this long; else on Ctrl-C or SIGTERM
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(crate) duration: Option<Duration>,
    /// Write what was counted as JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
