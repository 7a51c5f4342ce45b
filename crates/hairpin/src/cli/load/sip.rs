//! `hairpin load sip`.

use std::net::IpAddr;
use std::time::Duration;

use load::measure::Rate;

use super::course::How;
use crate::cli::tls::Tls;
use crate::cli::value;

const EXAMPLES: &str = "\
Examples:
  hairpin load sip 127.0.0.1
        1,000 OPTIONS a second over UDP from 10 sockets, for ten seconds
  hairpin load sip 'sip:10.0.0.5:5060;transport=tcp' --workload register --aors 100k --rate 20k/s --user 'u{n}:s3cret'
        registrations of 100,000 users, each challenged, over 10 connections
  hairpin load sip sip:bob@10.0.0.5 --workload call --hold 2s --rate 500/s --fail-if 'p99>200ms' --fail-if 'loss>0.1%'
        calls of two seconds; status 99 if the answers are slow or one call in a thousand fails
  hairpin load sip 10.0.0.5 --workload proxy --aors 1k --user 'u{n}:pw{n}' --domain example.org --rate 100/s
        1,000 users register and call each other through the server
  hairpin load sip sip:phone.example.org:8443 --transport wss --ca ca.crt --workload register
        registrations over ten WebSockets
  hairpin load sip 127.0.0.1:5070 --workload uas
        the other end: answers all requests, until Ctrl-C
  hairpin load sip 10.0.0.5 --workload call --sweep 0.5..10 --html overload.html
        what is left of its peak at up to ten times the load, and how soon it recovers
  hairpin load sip --teststack
        the runs of reSIProcate's testStack, both sides in this process

Status 0; 1: the run failed, the report is partial; 2: wrong arguments; 99: a --fail-if is true. `q` or Ctrl-C stops and still reports.";

/// Flags that not all workloads have.
pub(crate) const ONLY: &[(&str, &[&str])] = &[
    ("aors", USERS),
    ("aor", USERS),
    ("user", USERS),
    ("password", USERS),
    ("reuse-nonce", USERS),
    ("hold", &["call", "proxy"]),
    ("ring", &["proxy", "uas"]),
    ("clients", SENDING),
    ("fail-over", SENDING),
    ("obey", SENDING),
    ("domain", SENDING),
    ("runs", SENDING),
    ("in-flight", SENDING),
    ("server-pid", SENDING),
    ("sweep", SENDING),
    ("peak", SENDING),
    ("sweep-step", SENDING),
    ("recovery", SENDING),
    ("rate", SENDING),
    ("ramp", SENDING),
    ("burst", SENDING),
    ("closed", SENDING),
    ("flat-out", SENDING),
    ("find-max", SENDING),
    ("find-from", SENDING),
    ("find-to", SENDING),
    ("max-loss", SENDING),
    ("slo", SENDING),
    ("step", SENDING),
    ("precision", SENDING),
    ("csv", SENDING),
    ("html", SENDING),
    ("receivers", &["uas"]),
];
const SENDING: &[&str] = &["options", "register", "call", "proxy"];
const USERS: &[&str] = &["register", "call", "proxy"];

/// Arguments of `hairpin load sip`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// sip: or sips: URI, or `HOST[:PORT]` (port 5060 by default; 5061 with TLS, 80 and 443 with WebSockets); with
    /// --workload uas the address to listen on
    #[arg(value_name = "URI", required_unless_present = "teststack")]
    pub(crate) target: Option<String>,
    /// The server is mine: send to it although it is neither on this machine nor in a private network
    #[arg(long)]
    pub(crate) i_own_the_target: bool,
    /// Send from this address of this machine
    #[arg(long, value_name = "IP")]
    pub(crate) local: Option<IpAddr>,
    /// What to send
    #[arg(long, value_enum, default_value_t = Workload::Options)]
    pub(crate) workload: Workload,
    /// The transport [default: that of the URI, else what DNS says, else udp]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// Whom to trust.
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// TLS: complete every handshake in full, and resume no session
    #[arg(long, help_heading = "TLS")]
    pub(crate) no_resumption: bool,
    /// Who calls, registers and answers.
    #[command(flatten)]
    pub(crate) who: UserArgs,
    /// Overload, and testStack.
    #[command(flatten)]
    pub(crate) special: Special,
    /// How the run goes.
    #[command(flatten)]
    pub(crate) how: How,
}

/// What `hairpin load sip` sends, or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// OPTIONS requests
    Options,
    /// REGISTER requests, challenged if --user is given
    Register,
    /// Calls: INVITE, 180, 200, ACK, BYE, 200
    Call,
    /// Calls between users of this process: all register, and call each other through the server
    Proxy,
    /// The answering side: 180 and 200 to INVITE, 200 to the others
    Uas,
}

/// What carries SIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Datagrams, sent again by timers A and E
    Udp,
    /// Connections
    Tcp,
    /// TLS, also for sips: URIs
    Tls,
    /// WebSockets (RFC 7118)
    Ws,
    /// WebSockets over TLS
    Wss,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    /// It is
    On,
    /// It is not
    Off,
}

/// Who calls, registers and answers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "SIP")]
pub(crate) struct UserArgs {
    /// Local sockets, or connections, all threads together [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) clients: Option<u32>,
    /// register, proxy: users that take turns: 10000 or 10k [default: 10k; proxy 100]
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) aors: Option<u32>,
    /// User part of AORs; {n} is their number, padded with zeros [default: u{n}]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) aor: Option<String>,
    /// Answer challenges as this user; {n} is the AOR's number in the name and in the password. call: From is the AOR
    /// then
    #[arg(
        long,
        value_name = "NAME[:PASSWORD]",
        env = "HAIRPIN_LOAD_USER",
        hide_env_values = true
    )]
    pub(crate) user: Option<String>,
    /// Password of --user; {n} is the AOR's number
    #[arg(
        long,
        requires = "user",
        env = "HAIRPIN_LOAD_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) password: Option<String>,
    /// Use the last challenge for each request, with a rising nonce count, until the server sends another one; else
    /// each request is challenged
    #[arg(long, requires = "user")]
    pub(crate) reuse_nonce: bool,
    /// Another server for requests that URI refuses with a 503 or does not answer (repeatable; HOST or HOST:PORT, same
    /// transport)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) fail_over: Vec<String>,
    /// Wait as Retry-After says, and use --fail-over after a 503; each socket or connection is a client [default: on;
    /// with --sweep off]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    pub(crate) obey: Option<Switch>,
    /// Host part of request URIs and AORs [default: the host and port that are sent to]
    #[arg(long, value_name = "HOST")]
    pub(crate) domain: Option<String>,
    /// call, proxy: how long a call lasts from its ACK to its BYE [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(crate) hold: Option<Duration>,
    /// proxy, uas: time from 180 to 200 [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(crate) ring: Option<Duration>,
    /// End after this many transactions, registrations or calls: 10000 or 10k (with --closed; no warm-up unless
    /// --warm-up says so)
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) runs: Option<u32>,
    /// Transactions in flight at once: what begins beyond that counts as not sent [default: 1M]
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) in_flight: Option<u32>,
    /// Process of the server on this machine: report what it spends for each transaction, its children included
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
}

/// Overload, and testStack.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Presets")]
pub(crate) struct Special {
    /// Offer multiples of the peak, from the first to the last or those named (1,2,1,5 goes back to the peak in
    /// between), then let the load fall: 0.5..10 or 0.5,1,2,5
    #[arg(long, value_name = "FROM..TO", value_parser = value::multiples, conflicts_with_all = ["rate", "ramp", "closed", "flat_out", "find_max", "teststack", "runs"])]
    pub(crate) sweep: Option<value::RateMultiples>,
    /// With --sweep: the peak, instead of measuring it by a closed loop
    #[arg(long, value_name = "RATE", requires = "sweep")]
    pub(crate) peak: Option<Rate>,
    /// With --sweep: how long each load is measured [default: 4s]
    #[arg(long, value_name = "TIME", value_parser = value::run_time, requires = "sweep")]
    pub(crate) sweep_step: Option<Duration>,
    /// With --sweep: how long recovery is observed after the highest load; 0s leaves it out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, requires = "sweep")]
    pub(crate) recovery: Option<Duration>,
    /// The seven runs of reSIProcate's testStack and INVITE over UDP: 10,000 runs (--runs), 100 at a time (--closed),
    /// both sides in this process, or against URI
    #[arg(long, conflicts_with_all = ["rate", "ramp", "flat_out", "find_max"])]
    pub(crate) teststack: bool,
}
