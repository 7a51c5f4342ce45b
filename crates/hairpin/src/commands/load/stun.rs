//! `hairpin load stun`: Binding requests and garbage.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use load::generator::{
    self, BindingOptions, ChurnOptions, GarbageOptions, Plan, Stopper, Target, TurnClients,
};
use load::measure::Rate;
use load::probe::{self, ProbeErrorKind};
use load::uri::Scheme;

use super::place::ServerUnderLoad;
use super::run::{DEFAULT_DRAIN_TIME, LoadRun, WARM_UP};
use super::{Fault, check_flags, check_transport, place};
use crate::cli::load::stun::{Args, Workload};
use crate::cli::load::turn::Garbage;

/// Datagrams of a flood per second, unless said otherwise.
pub(super) const GARBAGE_RATE: Rate = Rate(10_000.0);
/// Requests per second, unless said otherwise.
const RATE: Rate = Rate(1_000.0);
/// Connections per second, unless said otherwise.
const CONNECT_RATE: Rate = Rate(100.0);
/// Source addresses of a flood on loopback, unless said otherwise.
const LOOPBACK_SOURCES: u32 = 256;

/// How long a first request is waited for.
const CHECK_TIMEOUT: Duration = Duration::from_millis(400);

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<ExitCode, Fault> {
    let workload = match args.workload {
        Workload::Binding => "binding",
        Workload::Connect => "connect",
        Workload::Garbage => "garbage",
    };
    check_flags(
        workload,
        &[("--clients", args.clients.is_some(), &["binding"])],
    )?;
    check_garbage(workload, &args.garbage)?;
    let place = place::server(&args.to, Scheme::Stun)?;
    if args.workload == Workload::Connect && !place.via.has_connections() {
        return Err(Fault::Usage(anyhow!(
            "--workload connect is for TCP, TLS and DTLS: write stun:HOST?transport=tcp, stuns:HOST or stuns:HOST?transport=udp"
        )));
    }
    check_transport(workload, &place.via, &args.how.course)?;
    let order = LoadRun {
        title: format!("{workload} against {}", place.uri("stun")),
        default_rate: Some(match args.workload {
            Workload::Binding => RATE,
            Workload::Connect => CONNECT_RATE,
            Workload::Garbage => GARBAGE_RATE,
        }),
        one_sided: args.workload == Workload::Garbage,
        linger: DEFAULT_DRAIN_TIME,
        warm_up: WARM_UP,
        sweep: None,
        how: &args.how,
    };
    order.carry_out(|stopper| plan(args, place, stopper))
}

fn plan(args: &Args, place: ServerUnderLoad, stopper: &Stopper) -> Result<Plan, Fault> {
    let ServerUnderLoad { target, via } = place;
    if !via.has_connections() {
        // Over TCP, TLS and DTLS, opening the connections shows it.
        check_listens(target)?;
    }
    let mut plan = match args.workload {
        Workload::Binding => {
            let mut options = BindingOptions::new(target);
            options.clients = args.clients.unwrap_or(options.clients);
            options.local = args.to.local;
            options.via = via;
            generator::binding(&options)?
        }
        Workload::Connect => {
            let mut clients = TurnClients::new(target);
            (clients.local, clients.via) = (args.to.local, via);
            generator::connect(&ChurnOptions::new(clients), stopper)?
        }
        Workload::Garbage => generator::garbage(&garbage(&args.garbage, target))?,
    };
    plan.stopper = stopper.clone();
    plan.server_pid = args.to.server_pid;
    Ok(plan)
}

/// Checks once whether anything listens there, because a run without a listener would notice it late. Silence means
/// nothing yet.
pub(super) fn check_listens(target: Target) -> Result<(), Fault> {
    match probe::stun(target.address(), CHECK_TIMEOUT) {
        Err(error) if error.kind() == ProbeErrorKind::NothingListens => {
            Err(Fault::Run(anyhow!("{error}")))
        }
        _ => Ok(()),
    }
}

/// The options of a flood.
pub(super) fn garbage(args: &Garbage, target: Target) -> GarbageOptions {
    let mut options = GarbageOptions::new(target);
    let ip = target.address().ip();
    if ip.is_loopback() && ip.is_ipv4() {
        options.sources = LOOPBACK_SOURCES;
    }
    options.sources = args.sources.unwrap_or(options.sources);
    options.ports = args.ports.unwrap_or(options.ports);
    options.honest = args.honest.unwrap_or(options.honest);
    options.seed = args.seed.unwrap_or(options.seed);
    options
}

/// Refuses the flags of a flood with any other workload.
pub(super) fn check_garbage(workload: &str, args: &Garbage) -> Result<(), Fault> {
    const GARBAGE: &[&str] = &["garbage"];
    check_flags(
        workload,
        &[
            ("--sources", args.sources.is_some(), GARBAGE),
            ("--ports", args.ports.is_some(), GARBAGE),
            ("--honest", args.honest.is_some(), GARBAGE),
            ("--seed", args.seed.is_some(), GARBAGE),
        ],
    )
}
