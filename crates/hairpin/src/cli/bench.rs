//! `hairpin bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::value;

const EXAMPLES: &str = "\
Examples:
  hairpin bench --a hairpin --b coturn --b floor --quick
        is hairpin still fast? Under three minutes for two servers; status 99 if not
  hairpin bench --a coturn --b hairpin --json result.json --html result.html
        six rounds of everything, ratios against coturn, raw data and a page with plots
  hairpin bench --a hairpin --b 'old=turn:/opt/hairpin-0.1/hairpin serve --listen {listen} --relay-address {relay-ip} \\
        --user {user}:{password} --allow-peer {peer-ip}' --scenarios relay-64x1,binding --sizes 120
        two builds of one server, side by side, in some scenarios
  hairpin bench --sip
        hairpin, Kamailio and a bare SIP responder: cost of transactions, registrations and calls, and memory
  hairpin bench --sip --a hairpin-sip --b hairpin-sip-uncontrolled --b kamailio --scenarios sip-overload --rounds 2
        goodput at several times what each server holds, and how soon it recovers
  hairpin bench --list
        the names of all scenarios

A server is a preset (hairpin, hairpin-2, hairpin-spread, hairpin-sip, hairpin-sip-2, hairpin-sip-uncontrolled, kamailio, floor-sip, hairpin-xdp, hairpin-tc, hairpin-xdp-miss, hairpin-tc-miss, coturn, floor, floor-gro, floor-damage, floor-repeat, floor-tcp,
floor-tls, floor-stun, floor-xdp, floor-tc, floor-stun-xdp, program-xdp, program-tc) or [NAME=][KIND:]COMMAND. Kinds: turn or cmd, static
(relays flows that it knows), middlebox (the same without ChannelData), stun, sip; +p2c, +stun, +tcp, +tls, +wss, +proxy, +xdp and +two say more. {listen}, {sip-listen}, {sip-tls-listen}, {sip-wss-listen}, {listen-ip}, {port},
{relay-ip}, {client-ip}, {peer-ip}, {flows}, {user}, {password}, {realm}, {certificate} and {key} are filled in. How it measures: docs/benchmarking.md.
It needs root, two processors and Linux 5.18. Status 0; 1: not measured; 2: wrong arguments; 98: a server changed or repeated datagrams; 99: a gate failed.";

/// Arguments of `hairpin bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The first server: ratios are against it
    #[arg(long, value_name = "SERVER", required_unless_present_any = ["list", "sip"])]
    pub(crate) a: Option<String>,
    /// Another server (repeatable, up to ten servers in all)
    #[arg(long, value_name = "SERVER", visible_alias = "vs")]
    pub(crate) b: Vec<String>,
    /// The third server; the same as a second --b
    #[arg(long, value_name = "SERVER")]
    pub(crate) c: Option<String>,
    /// The fourth server
    #[arg(long, value_name = "SERVER")]
    pub(crate) d: Option<String>,
    /// The fifth server
    #[arg(long, value_name = "SERVER")]
    pub(crate) e: Option<String>,
    /// The sixth server
    #[arg(long, value_name = "SERVER")]
    pub(crate) f: Option<String>,
    /// Measure SIP servers; without --a: hairpin-sip, kamailio and floor-sip
    #[arg(long, conflicts_with_all = ["quick", "fail_below"])]
    pub(crate) sip: bool,
    /// Two short rounds of fewer scenarios, and the gates: for a test, not for publication
    #[arg(long)]
    pub(crate) quick: bool,
    /// Fail if the preset hairpin delivers less than this share of the preset floor in the same round of any
    /// scenario, twice [default: none, with --quick what each scenario is known to reach]
    #[arg(long, value_name = "SHARE", value_parser = value::share)]
    pub(crate) fail_below: Option<f64>,
    /// How often each server is restarted and measured; below 6 the spread says little [default: 6, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Only scenarios with one of these names, or parts of names, separated by commas (see --list); those marked extra
    /// run only when named here
    #[arg(long, value_name = "NAMES")]
    pub(crate) scenarios: Option<String>,
    /// Of the relay scenarios, only those with these payloads, in bytes, separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = value::payload)]
    pub(crate) sizes: Vec<u16>,
    /// Length of one step of the search for the best goodput [default: 250ms, with --quick 120ms]
    #[arg(long, value_name = "TIME", value_parser = value::run_time)]
    pub(crate) step: Option<Duration>,
    /// How long a server must hold a rate for it to be the best goodput [default: 2s, with --quick 250ms]. To hold a
    /// rate, it may lose at most 1 %, and its goodput must be at least 90 % of the rate
    #[arg(long, value_name = "TIME", value_parser = value::run_time)]
    pub(crate) hold: Option<Duration>,
    /// How the load is made
    #[arg(long, value_enum, default_value_t = Load::Frames)]
    pub(crate) load: Load,
    /// Give the measured network IPv6 addresses instead of IPv4 ones; not with --sip
    #[arg(long, conflicts_with = "sip")]
    pub(crate) ipv6: bool,
    /// Processor of the servers and of their network interfaces
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub(crate) server_cpu: usize,
    /// Processor of generator, counters and this program
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub(crate) generator_cpu: usize,
    /// Run servers and generator before other tasks, on a machine that has other work; always so with --quick
    #[arg(long)]
    pub(crate) preferred: bool,
    /// The hairpin binary that the preset uses [default: this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) hairpin: Option<PathBuf>,
    /// The turnserver binary that the preset coturn uses
    #[arg(long, value_name = "PATH", default_value = "turnserver")]
    pub(crate) coturn: PathBuf,
    /// The kamailio binary that the preset uses
    #[arg(long, value_name = "PATH", default_value = "kamailio")]
    pub(crate) kamailio: PathBuf,
    /// Write every measurement as JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with tables and plots; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print the names of the scenarios and what they are; with --quick, the gates of each
    #[arg(long)]
    pub(crate) list: bool,
}

/// How `hairpin bench` makes its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    /// Single frames below the socket layer, as a network card delivers them
    Frames,
    /// Datagrams from sockets, for comparison, client to peer only; a relay looks better than it is
    Sockets,
}

/// Arguments of the hidden `hairpin bench-floor`: a bare relay that `hairpin bench` starts.
#[derive(Debug, clap::Args)]
pub(crate) struct Floor {
    /// plain, damage, repeat, batch, gro, tcp, tls, sip, xdp, tc, stun-xdp, program-xdp or program-tc; the number of flows; ipv4 or
    /// ipv6
    #[arg(num_args = 3)]
    pub(crate) words: Vec<String>,
}
