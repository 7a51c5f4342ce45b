//! SIP servers side by side on one processor, hairpin's generator on the other: `cargo xtask sip-bench`.
//!
//! In each round every server is loaded with each workload by a closed loop, in an order that turns from round to round; then one worker of
//! hairpin and two, and testStack's runs. The first round is thrown away. What counts is the processor time of the server, with its
//! children, for each unit of work that succeeded. Then memory, and the overload sweep, once for each server. Kamailio runs with its
//! fast allocator (`-x fm`): its default one is for finding bugs, and four times as slow. A machine with one processor measures nothing
//! here.

mod machine;
mod memory;
mod overload;
mod report;
mod servers;
mod teststack;
mod transports;
mod workers;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::{self, Ended, Process};
use crate::{cargo, scratch};
use memory::Memory;
use report::{Outcome, Results};
use servers::Server;
use teststack::TestStack;
use transports::Transports;
use workers::Workers;

/// What is measured.
const WORKLOADS: [&str; 3] = ["options", "register", "call"];
/// Units of work under way in a closed loop.
const WINDOW: &str = "256";
/// The generator's processor, and those of what is not kept to one.
const GENERATOR_CPU: &str = "0";
const ALL_CPUS: &str = "0,1";
/// A run of the generator, at most: a whole sweep is nine loads of three seconds with their warm-up and stragglers, and the recovery.
const LIMIT: Duration = Duration::from_secs(150);

/// How it goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds, the first of which does not count
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=20))]
    rounds: u32,
    /// Seconds that each load is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=30))]
    seconds: u32,
    /// Leave the overload sweep out
    #[arg(long)]
    no_sweep: bool,
    /// Only the overload sweep
    #[arg(long, conflicts_with = "no_sweep")]
    only_sweep: bool,
    /// Leave out all but what the transactions cost beside Kamailio's, and the sweep
    #[arg(long)]
    only_cost: bool,
    /// Only registrations over TCP, TLS and WebSocket over TLS
    #[arg(long, conflicts_with_all = ["only_sweep", "only_cost", "overload"])]
    only_transports: bool,
    /// Only the overload report: calls and registrations with and without something to do for each, hairpin with and without its
    /// overload control, and Kamailio; about eight minutes
    #[arg(long, conflicts_with_all = ["no_sweep", "only_sweep", "only_cost"])]
    overload: bool,
    /// With --overload: write its page
    #[arg(long, value_name = "FILE", requires = "overload")]
    html: Option<PathBuf>,
    /// Workload of the sweep
    #[arg(long, default_value = "call", value_parser = WORKLOADS)]
    sweep: String,
    /// Let hairpin's test user agent server work so many microseconds on each request of the sweep, as one with something to do
    /// would. With 0, calls come so fast that the transactions which RFC 3261 keeps for 32 s fill the table (2,000,000) within a
    /// minute, and what is refused then is not overload control's doing
    #[arg(long, default_value_t = 50)]
    service_time_us: u32,
    /// A hairpin that is built already
    #[arg(long, value_name = "FILE")]
    hairpin: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures, prints a table, writes JSON.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cpus >= 2, "a server and a generator need a processor each");
    let binary = match &options.hairpin {
        Some(binary) => binary.clone(),
        None => cargo::release(root)?,
    };
    let bench = Bench {
        folder: scratch(root, "sip-bench")?,
        binary,
        options,
    };
    if options.overload {
        return bench.report_overload();
    }
    let started = Instant::now();
    let mut results = Results::default();
    let (mut workers, mut teststack) = (Workers::default(), TestStack::default());
    let (mut memory, mut transports) = (Memory::default(), Transports::default());
    if !options.only_sweep && !options.only_cost {
        for round in 0..options.rounds {
            transports.round(&bench, round)?;
        }
        print!("{}", transports.table());
    }
    if !options.only_sweep && !options.only_transports {
        for round in 0..options.rounds {
            bench.round(&mut results, round)?;
            if !options.only_cost {
                workers.round(&bench, round)?;
                teststack.round(&bench, round)?;
            }
        }
        print!("{}", results.table());
    }
    if !options.only_sweep && !options.only_cost && !options.only_transports {
        memory.measure(&bench)?;
        print!("{}{}{}", workers.table(), teststack.table(), memory.table());
    }
    if !options.no_sweep && !options.only_transports {
        bench.sweeps(&mut results)?;
        print!("{}", results.curves());
    }
    if let Some(file) = &options.json {
        let mut all = results.to_json();
        all["machine"] = machine::describe(&bench.binary);
        all["rounds"] = json!(options.rounds - 1);
        all["seconds"] = json!(options.seconds);
        all["elapsed_s"] = json!(started.elapsed().as_secs());
        all["workers"] = workers.to_json();
        all["teststack"] = teststack.to_json();
        all["transports"] = transports.to_json();
        all["memory"] = memory.to_json();
        let text = serde_json::to_string_pretty(&all)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

struct Bench<'a> {
    folder: PathBuf,
    binary: PathBuf,
    options: &'a Options,
}

impl Bench<'_> {
    fn report_overload(&self) -> Result<()> {
        let started = Instant::now();
        let mut results = Results::default();
        let machine = machine::describe(&self.binary);
        let write = |file: &Path, text: String| {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        // After every sweep: what was measured before something failed is worth a report, too.
        self.overload(&mut results, |results| {
            if let Some(file) = &self.options.html {
                let page = overload::page(results.sweeps(), &results.curves(), &machine);
                write(file, page)?;
            }
            if let Some(file) = &self.options.json {
                let mut all = results.to_json();
                all["machine"] = machine.clone();
                all["elapsed_s"] = json!(started.elapsed().as_secs());
                write(file, serde_json::to_string_pretty(&all)?)?;
            }
            Ok(())
        })?;
        print!("{}", results.curves());
        Ok(())
    }

    fn round(&self, results: &mut Results, round: u32) -> Result<()> {
        let servers = Server::for_cost(&self.binary);
        for turn in 0..servers.len() {
            let server = &servers[(turn + round as usize) % servers.len()];
            let running = server.start(&self.folder)?;
            for workload in WORKLOADS {
                let outcome = self.closed(server, &running, workload)?;
                eprintln!("round {round} {} {workload}: {outcome}", server.name);
                if round > 0 {
                    results.add(server.name, workload, outcome);
                }
            }
        }
        Ok(())
    }

    /// One closed loop.
    fn closed(&self, server: &Server, running: &Process, workload: &str) -> Result<Outcome> {
        let duration = format!("{}s", self.options.seconds);
        let arguments = ["--workload", workload, "--closed", WINDOW];
        let arguments = [&arguments[..], &["--duration", &duration]].concat();
        let report = self.load(server, running, GENERATOR_CPU, &arguments)?;
        Outcome::of(&report)
    }

    fn sweeps(&self, results: &mut Results) -> Result<()> {
        let workload = self.options.sweep.as_str();
        for server in Server::for_overload(&self.binary, self.options.service_time_us) {
            let running = server.start(&self.folder)?;
            let arguments = ["--workload", workload, "--sweep", "0.5..10"];
            let arguments = [&arguments[..], &["--sweep-step", "3s"]].concat();
            let report = self.load(&server, &running, GENERATOR_CPU, &arguments)?;
            eprintln!("sweep of {} is done", server.name);
            results.add_sweep(server.name, workload, &report["sip"]["sweep"]);
        }
        Ok(())
    }

    /// Loads a server and reads the report.
    fn load(
        &self,
        server: &Server,
        running: &Process,
        cpus: &str,
        arguments: &[&str],
    ) -> Result<Value> {
        let target = format!("127.0.0.1:{}", server.port);
        let process = running.id().to_string();
        let about = [&target, "--no-tui", "--server-pid", &process];
        self.generate(cpus, &[&about[..], arguments].concat())
            .with_context(|| format!("against {}", server.name))
    }

    /// Runs the generator on these processors and reads its report.
    fn generate(&self, cpus: &str, arguments: &[&str]) -> Result<Value> {
        let file = self.folder.join("report.json");
        // What an earlier run left must not pass for this one's.
        let _ = std::fs::remove_file(&file);
        let mut command = process::command("taskset");
        command
            .args(["-c", cpus])
            .arg(&self.binary)
            .args(["load", "sip"])
            .args(arguments)
            .arg("--json")
            .arg(&file);
        let log = self.folder.join("load.log");
        let mut load = Process::start("hairpin load", command, log)?;
        if let Ended::Killed = load.wait(LIMIT)? {
            bail!("not finished within {LIMIT:?}; its output: {}", load.tail());
        }
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("no report; its output: {}", load.tail()))?;
        serde_json::from_str(&text).context("the report is not JSON")
    }
}
