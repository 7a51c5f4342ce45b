//! `hairpin bench`: servers side by side, with the harness of [`load::bench`].

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use load::bench::{self, BenchError, BenchOptions, Gate, LoadKind, Programs, Scenario, Side};

use super::reports::Destinations;
use super::{output, status, stop};
use crate::cli::bench::{Args, Floor, Load};

/// The hidden command that leads to the bare relays.
pub(crate) const FLOOR: &str = "bench-floor";
/// What `--sip` compares without `--a`.
const SIP_SIDES: [&str; 3] = ["hairpin-sip", "kamailio", "floor-sip"];
/// Payloads that a relay scenario can have: a stamp has to fit in, and the datagram into a frame.
const SIZES: std::ops::RangeInclusive<u16> = 32..=1400;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        let text = match args.quick {
            true => gates(),
            false => list(),
        };
        output::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut options = match options(args) {
        Ok(options) => options,
        Err(error) => return Ok(status::usage(&error)),
    };
    let reports = Destinations::new(&[
        ("--json", args.json.as_deref()),
        ("--html", args.html.as_deref()),
    ])?;
    options.stop = stop_on_signals()?;
    let report = match bench::run(options) {
        Ok(report) => report,
        Err(error) if is_usage(&error) => return Ok(status::usage(&error.into())),
        Err(error) => return Err(error.into()),
    };
    reports.summary(&report.to_table())?;
    reports.write("--json", || Ok(report.to_json()))?;
    reports.write("--html", || Ok(report.to_html()))?;
    let violations = report.violations();
    for violation in &violations {
        eprintln!("gate: {violation}");
    }
    let damage = report.damage();
    for what in &damage {
        eprintln!("damage: {what}");
    }
    if !damage.is_empty() {
        return Ok(status::damaged());
    }
    let measured = report
        .cells
        .iter()
        .any(|cell| !matches!(cell.outcome, bench::report::Outcome::Failed { .. }));
    Ok(status::measured(measured, violations.is_empty()))
}

/// Runs the hidden command: a bare relay, until it is killed.
pub(crate) fn floor(args: &Floor) -> Result<ExitCode> {
    bench::floor::main(&args.words)?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let quick: Vec<Scenario> = Scenario::quick();
    let extra: Vec<Scenario> = Scenario::extra();
    let sip = Scenario::sip();
    let sip_extra: Vec<Scenario> = Scenario::sip_extra();
    let line = |scenario: &Scenario| {
        let name = scenario.to_string();
        let mark = if quick.contains(scenario) {
            "quick"
        } else if extra.contains(scenario) {
            "extra"
        } else if sip.contains(scenario) {
            "--sip"
        } else if sip_extra.contains(scenario) {
            "--sip, extra"
        } else {
            ""
        };
        format!("{name:<26} {mark:<12} {}\n", scenario.describe())
    };
    let standard = Scenario::standard();
    let all = standard.iter().chain(&extra).chain(&sip).chain(&sip_extra);
    all.map(line).collect()
}

/// Each gate of the quick mode in a line: scenario, kind, what it demands. `cargo xtask gates` reads it.
fn gates() -> String {
    let lines = Scenario::quick().into_iter().flat_map(|scenario| {
        let rules = Gate::Measured.rules(&scenario).into_iter();
        rules.map(move |(kind, demand)| {
            format!("{:<24} {kind:<14} {demand}\n", scenario.to_string())
        })
    });
    lines.collect()
}

fn options(args: &Args) -> Result<BenchOptions> {
    let programs = programs(args)?;
    let specs = args
        .a
        .iter()
        .chain(&args.b)
        .chain(&args.c)
        .chain(&args.d)
        .chain(&args.e)
        .chain(&args.f);
    let mut specs: Vec<&str> = specs.map(String::as_str).collect();
    if specs.is_empty() {
        specs.extend(SIP_SIDES);
    }
    let sides = specs
        .into_iter()
        .map(|spec| Side::parse(spec, &programs))
        .collect::<Result<Vec<_>, _>>()?;
    if sides.len() > BenchOptions::MAX_SIDES {
        bail!(BenchError::Sides(sides.len()));
    }
    let mut options = if args.quick {
        BenchOptions::quick(sides)
    } else {
        BenchOptions::new(sides)
    };
    if args.sip {
        options.scenarios = Scenario::sip();
        if args.scenarios.is_some() {
            options.scenarios.extend(Scenario::sip_extra());
        }
    } else if args.scenarios.is_some() {
        options.scenarios.extend(Scenario::extra());
    }
    options.scenarios = resized(options.scenarios, &args.sizes)?;
    if let Some(names) = &args.scenarios {
        options
            .select(names)
            .map_err(|error| anyhow!("--scenarios: {error}; `hairpin bench --list` prints them"))?;
    }
    options.rounds = args.rounds.unwrap_or(options.rounds);
    options.step = args.step.unwrap_or(options.step);
    options.preferred |= args.preferred;
    options.hold = args.hold.unwrap_or(options.hold);
    options.gate = args.fail_below.map(Gate::Share).or(options.gate);
    options.load = match args.load {
        Load::Frames => LoadKind::Frames,
        Load::Sockets => LoadKind::Sockets,
    };
    options.ipv6 = args.ipv6;
    (options.server_cpu, options.generator_cpu) = (args.server_cpu, args.generator_cpu);
    options.argv = std::env::args().collect();
    options.progress = |line| eprintln!("{line}");
    Ok(options)
}

fn programs(args: &Args) -> Result<Programs> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(Programs {
        hairpin: args.hairpin.clone().unwrap_or_else(|| own.clone()),
        coturn: args.coturn.clone(),
        kamailio: args.kamailio.clone(),
        floor: vec![own.to_string_lossy().into_owned(), FLOOR.to_owned()],
    })
}

/// The relay scenarios with each of `sizes` as their payload, in place of those they have; all others as they are.
fn resized(scenarios: Vec<Scenario>, sizes: &[u16]) -> Result<Vec<Scenario>> {
    if sizes.is_empty() {
        return Ok(scenarios);
    }
    let wrong = |size: &&u16| !SIZES.contains(*size) || !size.is_multiple_of(2);
    if let Some(size) = sizes.iter().find(wrong) {
        bail!(
            "--sizes: {size} bytes are not measured; choose an even number from {} to {}",
            SIZES.start(),
            SIZES.end()
        );
    }
    let mut seen = BTreeSet::new();
    let with = |scenario: Scenario, size: u16| match scenario {
        Scenario::Relay {
            flows,
            train,
            order,
            direction,
            ..
        } => Scenario::Relay {
            flows,
            train,
            order,
            direction,
            payload: size,
        },
        Scenario::Connections {
            transport,
            connections,
            direction,
            ..
        } => Scenario::Connections {
            transport,
            connections,
            direction,
            payload: size,
        },
        other => other,
    };
    Ok(sizes
        .iter()
        .flat_map(|&size| scenarios.iter().map(move |&scenario| with(scenario, size)))
        .filter(|scenario| seen.insert(scenario.to_string()))
        .collect())
}

/// What the user has to change on the command line.
fn is_usage(error: &BenchError) -> bool {
    matches!(
        error,
        BenchError::NoSuchCpu(_)
            | BenchError::SameCpu(_)
            | BenchError::Sides(_)
            | BenchError::NoScenarios
            | BenchError::NothingToCompare
            | BenchError::Spec { .. }
            | BenchError::UnknownScenario(_)
    )
}

/// Stops the benchmark after the current measurement.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let first = move || {
        eprintln!("stopping after this measurement; once more stops at once");
        flag.store(true, Ordering::Relaxed);
    };
    stop::on_signals(first, || ())?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_replaced_and_nothing_is_run_twice() {
        let names = |sizes: &[u16]| -> Vec<String> {
            resized(Scenario::standard(), sizes)
                .unwrap()
                .iter()
                .map(Scenario::to_string)
                .collect()
        };
        let some = names(&[60, 500]);
        assert!(some.contains(&"relay-64x1-c2p-60B".to_owned()));
        assert!(some.contains(&"relay-64x1-c2p-500B".to_owned()));
        assert!(!some.iter().any(|name| name.ends_with("-120B")));
        assert_eq!(some.iter().filter(|name| *name == "binding-1").count(), 1);
        assert_eq!(names(&[]).len(), Scenario::standard().len());
        assert!(resized(Scenario::standard(), &[10]).is_err());
        assert!(resized(Scenario::standard(), &[121]).is_err());
    }

    #[test]
    fn bare_relays_have_what_hairpin_has() {
        use load::bench::floor;
        assert_eq!(floor::LISTENER_BUFFER, server::RECEIVE_BUFFER);
        assert_eq!(floor::LISTENER_BUFFER, server::SEND_BUFFER);
        assert_eq!(floor::BATCH_LIMIT, server::BATCH_LIMIT);
    }

    #[test]
    fn every_quick_scenario_has_a_gate() {
        let gates = gates();
        for scenario in Scenario::quick() {
            let name = format!("{scenario} ");
            assert!(gates.lines().any(|line| line.starts_with(&name)), "{gates}");
        }
        assert!(
            gates.contains("churn-64                 cycle-cost "),
            "{gates}"
        );
    }

    #[test]
    fn the_list_names_every_scenario() {
        let list = list();
        assert!(
            Scenario::standard()
                .iter()
                .chain(&Scenario::extra())
                .chain(&Scenario::sip())
                .chain(&Scenario::sip_extra())
                .all(|scenario| list.contains(&scenario.to_string()))
        );
    }
}
