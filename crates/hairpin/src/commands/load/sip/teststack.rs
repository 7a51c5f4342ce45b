//! The runs of testStack, one after the other: the generator, and a server of this program with its transactions.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use load::generator::{Stopper, Target, TestStack};
use server::sip::SipSettings;
use server::{Running, Server};

use super::target::SipAddress;
use super::{Fault, check_flags};
use crate::cli::load::sip::{Args, Workload};
use crate::commands::load::{live, place};
use crate::commands::reports::Destinations;
use crate::commands::{output, status, stop};

/// testStack's own defaults.
const RUNS: u32 = 10_000;
const WINDOW: u32 = 100;

/// Carries all of them out and prints each as it ends.
pub(super) fn run(args: &Args) -> Result<ExitCode, Fault> {
    let results = &args.how.results;
    check_flags(
        "--teststack",
        &[
            ("--workload", args.workload != Workload::Options, &[]),
            ("--html", results.html.is_some(), &[]),
            ("--csv", results.csv.is_some(), &[]),
            ("--fail-if", !results.fail_if.is_empty(), &[]),
        ],
    )?;
    let places = Destinations::new(&[("--json", results.json.as_deref())])?;
    let elsewhere = match &args.target {
        None => None,
        Some(_) => {
            let address = SipAddress::of(args)?.address;
            Some(place::admit(address, args.i_own_the_target)?)
        }
    };
    let stopper = Stopper::new();
    let stop_run = stopper.clone();
    stop::on_signals(move || stop_run.stop(), live::restore_terminal)?;
    let runs = args.who.runs.unwrap_or(RUNS).into();
    let window = args.how.pace.closed.unwrap_or(WINDOW);
    let mut all = Vec::new();
    for test in TestStack::all() {
        if stopper.is_stopped() {
            break;
        }
        // The server lives as long as its run.
        let own = match elsewhere {
            Some(_) => None,
            None => Some(serve(&test)?),
        };
        let servers = match &own {
            None => elsewhere.into_iter().collect(),
            Some(own) => targets(own)?,
        };
        let report = test
            .carry_out(runs, window, &servers, &stopper)
            .map_err(|error| Fault::Run(anyhow!("{}: {error}", test.name)))?;
        if places.take_stdout() {
            eprint!("{report}");
        } else {
            output::print(&report.to_string())?;
        }
        all.push(report);
    }
    let complete = all.iter().all(|report| report.completed == report.runs);
    places.write("--json", || {
        serde_json::to_string_pretty(&all).context("cannot write the report")
    })?;
    Ok(status::measured(complete, true))
}

/// Transactions that the server may hold: over UDP each is remembered for half a minute.
const TRANSACTIONS: u32 = 4_000_000;

/// A server on loopback for one run, with as many workers as testStack has threads on that side.
fn serve(test: &TestStack) -> Result<Running, Fault> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut settings = SipSettings::default();
    settings.test_uas = true;
    settings.transactions = TRANSACTIONS;
    let mut builder = Server::builder()
        .workers(test.threads.1)
        .listen(any)
        .sip(settings);
    for _ in 0..test.ports {
        builder = builder.sip_listen(any);
    }
    let started = builder.start();
    started.map_err(|error| Fault::Run(anyhow!("{}: {error}", test.name)))
}

fn targets(server: &Running) -> Result<Vec<Target>, Fault> {
    let addresses = server.sip_listeners().iter();
    addresses
        .map(|&address| place::admit(address, false))
        .collect()
}
