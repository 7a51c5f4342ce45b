//! `hairpin load sip`: transactions, registrations, calls, and the side that answers them.

mod target;
mod teststack;
mod uas;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use load::Tls;
use load::generator::{
    self, Plan, SipCredentials, SipOptions, SipWorkload, Stopper, SweepOptions, Target,
};
use load::measure::Rate;
use load::sip::Transport;

use super::run::{LoadRun, WARM_UP};
use super::{Fault, check_flags};
use crate::cli::load::sip::{self as cli, Args, Workload};
use crate::commands::via;
use target::SipAddress;

/// Units of work per second, unless said otherwise.
const RATE: Rate = Rate(1_000.0);
const CALL_RATE: Rate = Rate(100.0);
/// How long stragglers are waited for: two retransmissions of an OPTIONS.
const DEFAULT_DRAIN_TIME: Duration = Duration::from_secs(2);

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<ExitCode, Fault> {
    let name = match args.workload {
        Workload::Options => "options",
        Workload::Register => "register",
        Workload::Call => "call",
        Workload::Proxy => "proxy",
        Workload::Uas => "uas",
    };
    check(name, args)?;
    if args.special.teststack {
        return teststack::run(args);
    }
    let place = SipAddress::of(args)?;
    if args.workload == Workload::Uas {
        return uas::run(args, &place);
    }
    let target = super::place::admit(place.address, args.i_own_the_target)?;
    let options = options(args, &place, target)?;
    let order = LoadRun {
        title: format!(
            "{name} against sip:{};transport={}",
            place.address,
            options.transport.name()
        ),
        default_rate: Some(match args.workload {
            Workload::Call | Workload::Proxy => CALL_RATE,
            _ => RATE,
        }),
        one_sided: false,
        linger: DEFAULT_DRAIN_TIME,
        // A few runs would be over before a warm-up is.
        warm_up: match args.who.runs {
            Some(_) => Duration::ZERO,
            None => WARM_UP,
        },
        sweep: sweep(args),
        how: &args.how,
    };
    order.carry_out(|stopper| plan(&options, stopper))
}

/// Refuses flags that would do nothing.
fn check(workload: &str, args: &Args) -> Result<(), Fault> {
    const SENDING: &[&str] = &["options", "register", "call", "proxy"];
    const USERS: &[&str] = &["register", "call", "proxy"];
    let (who, how) = (&args.who, &args.how);
    check_flags(
        workload,
        &[
            ("--aors", who.aors.is_some(), USERS),
            ("--aor", who.aor.is_some(), USERS),
            ("--user", who.user.is_some(), USERS),
            ("--reuse-nonce", who.reuse_nonce, USERS),
            ("--hold", who.hold.is_some(), &["call", "proxy"]),
            ("--ring", who.ring.is_some(), &["proxy", "uas"]),
            ("--fail-over", !who.fail_over.is_empty(), SENDING),
            ("--obey", who.obey.is_some(), SENDING),
            ("--clients", who.clients.is_some(), SENDING),
            ("--sweep", args.special.sweep.is_some(), SENDING),
            ("--rate", how.pace.rate.is_some(), SENDING),
            ("--find-max", how.pace.find_max, SENDING),
            ("--html", how.results.html.is_some(), SENDING),
            ("--csv", how.results.csv.is_some(), SENDING),
        ],
    )?;
    let is_plain = |transport| matches!(transport, cli::Transport::Udp | cli::Transport::Tcp);
    let mistake = if workload == "uas" && !args.transport.is_none_or(is_plain) {
        "--transport: the answering side listens over UDP and TCP"
    } else if how.course.train.is_some() {
        "--train: requests leave one by one"
    } else if how.course.receivers != 1 && workload != "uas" {
        "--receivers: each sender receives its own answers; give more --senders"
    } else if workload == "proxy" && who.aors == Some(1) {
        "--aors: somebody must be there to be called; give 2 or more"
    } else if who.fail_over.len() > MAX_SERVERS {
        "--fail-over: at most 24 servers"
    } else if who.runs.is_some() && how.pace.closed.is_none() && !args.special.teststack {
        "--runs: give --closed N as well, how many are in flight at once"
    } else {
        return Ok(());
    };
    Err(Fault::Usage(anyhow!(mistake)))
}

/// Servers that a request may go on to: a letter in its branch distinguishes them.
const MAX_SERVERS: usize = 24;
/// Users of workload proxy, unless said otherwise: all of them register before the run.
const PROXY_AORS: u32 = 100;

/// The servers that follow the first.
fn other_targets(args: &Args, place: &SipAddress) -> Result<Vec<Target>, Fault> {
    let find = |text: &String| {
        let address = place.resolve_other(text)?;
        super::place::admit(address, args.i_own_the_target)
    };
    if args.who.fail_over.is_empty() {
        let further = place.further.iter().take(MAX_SERVERS);
        return further
            .map(|&address| super::place::admit(address, args.i_own_the_target))
            .collect();
    }
    args.who.fail_over.iter().map(find).collect()
}

fn options(args: &Args, place: &SipAddress, target: Target) -> Result<SipOptions, Fault> {
    let who = &args.who;
    let mut options = SipOptions::new(target);
    options.workload = match args.workload {
        Workload::Register => SipWorkload::Register,
        Workload::Call => SipWorkload::Call,
        Workload::Proxy => SipWorkload::Proxy,
        Workload::Options | Workload::Uas => SipWorkload::Options,
    };
    options.transport = place.transport;
    options.tls = tls(args, place)?;
    options.links = who
        .clients
        .unwrap_or(options.links)
        .max(args.how.course.senders.into());
    options.local = args.local;
    options.callee.clone_from(&place.user);
    options.domain = who.domain.clone().or_else(|| place.domain.clone());
    options.aors = who.aors.unwrap_or(match args.workload {
        Workload::Proxy => PROXY_AORS,
        _ => options.aors,
    });
    options.aor = who.aor.clone().unwrap_or(options.aor);
    options.further = other_targets(args, place)?;
    options.obey = match who.obey {
        Some(obey) => obey == cli::Switch::On,
        // The classic sweep offers the rates of the command line, and ignores what the server requests.
        None => args.special.sweep.is_none(),
    };
    options.ring = who.ring.unwrap_or_default();
    options.credentials = credentials(who)?;
    options.reuse_nonces = who.reuse_nonce;
    options.hold = who.hold.unwrap_or_default();
    options.in_flight = who.in_flight.unwrap_or(options.in_flight);
    options.server_process = who.server_pid;
    options.runs = who.runs.map(u64::from);
    Ok(options)
}

/// Whom to expect over TLS: the host as it was written (RFC 5922 §7.3).
fn tls(args: &Args, place: &SipAddress) -> Result<Option<Tls>, Fault> {
    let given = &args.tls;
    if !place.transport.is_secure() {
        let flags = [
            ("--ca", given.ca.is_some()),
            ("--insecure", given.insecure),
            ("--server-name", given.server_name.is_some()),
            ("--no-resumption", args.no_resumption),
        ];
        return match flags.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Fault::Usage(anyhow!(
                "{flag} has no effect over {}: it is for tls and wss",
                place.transport.in_via()
            ))),
            None => Ok(None),
        };
    }
    let tls = via::verify(&place.host, given).map_err(Fault::Usage)?;
    Ok(Some(match args.no_resumption {
        true => tls.without_resumption(),
        false => tls,
    }))
}

fn credentials(who: &cli::UserArgs) -> Result<Option<SipCredentials>, Fault> {
    let Some(user) = &who.user else {
        return Ok(None);
    };
    let (user, password) = match (&who.password, user.split_once(':')) {
        (Some(password), _) => (user.as_str(), password.as_str()),
        (None, Some((user, password))) => (user, password),
        (None, None) => {
            return Err(Fault::Usage(anyhow!(
                "--user: the password is missing: write --user NAME:PASSWORD, or give --password"
            )));
        }
    };
    Ok(Some(SipCredentials {
        user: user.to_owned(),
        password: password.to_owned(),
    }))
}

fn sweep(args: &Args) -> Option<SweepOptions> {
    let special = &args.special;
    let mut options = SweepOptions::default();
    options.multiples.clone_from(&special.sweep.as_ref()?.0);
    options.peak = special.peak.map(|rate| rate.0);
    options.step = special.sweep_step.unwrap_or(options.step);
    options.recovery = special.recovery.unwrap_or(options.recovery);
    options.warm_up = args.how.course.warm_up.unwrap_or(options.warm_up);
    Some(options)
}

fn plan(options: &SipOptions, stopper: &Stopper) -> Result<Plan, Fault> {
    generator::check_server(options, stopper)?;
    Ok(generator::sip(options, stopper)?)
}

impl From<cli::Transport> for Transport {
    fn from(transport: cli::Transport) -> Transport {
        match transport {
            cli::Transport::Udp => Transport::Udp,
            cli::Transport::Tcp => Transport::Tcp,
            cli::Transport::Tls => Transport::Tls,
            cli::Transport::Ws => Transport::Ws,
            cli::Transport::Wss => Transport::Wss,
        }
    }
}
