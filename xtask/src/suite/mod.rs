//! `cargo xtask test`: its stages, in the order that finds a mistake soonest.
//!
//! Some stages need processor time only and measure none. They run one after the other in the background, at idle
//! priority, while the stages in the foreground wait for timers and packets ([`background`]). The stage `stores` also
//! waits most of the time, but has deadlines. So it runs beside `interop`, at the same priority.

mod background;
mod bpf;
mod disk;
mod times;
mod unit;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use crate::built::{self, Built};
use crate::tally::Tally;
use crate::tools::{self, Tool};
use crate::{
    book, budgets, cargo, deny, fuzz, gate, interop, package, packages, rfc, stores, tidy, vm,
    workflow,
};
use background::Background;
use times::Times;

/// A stage of the test command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// `cargo fmt --check`.
    Fmt,
    /// Long files, paths of one machine, registry hosts and dead links in tracked files.
    Tidy,
    /// The tests that the requirement table names exist, and its page is up to date.
    Rfc,
    /// actionlint accepts the workflow of the hosted CI.
    Workflow,
    /// Each BPF program compiles; with clang 14, to the committed object.
    Bpf,
    /// `cargo clippy`, every warning an error; then the libraries without their optional features.
    Clippy,
    /// Release builds, which later stages use.
    Build,
    /// Instructions, heap allocations and system calls of each operation, against its budget.
    Budgets,
    /// Each crate can be published: `cargo package` accepts it, with README, licences and keywords.
    Package,
    /// Each fuzz target runs for a moment.
    Fuzz,
    /// `cargo doc`, every warning an error.
    Doc,
    /// The manual: mdBook builds it, each link leads somewhere, and its newer pages are easy to read.
    Book,
    /// Licences, banned crates and sources of all dependencies.
    Deny,
    /// Unit, integration and documentation tests of the workspace.
    Unit,
    /// The kernels that servers run, booted in QEMU.
    Vm,
    /// The .deb of a release build: lintian, and installed, upgraded and removed in a Debian that systemd has booted;
    /// the alert rules.
    Packages,
    /// Clients of other projects, against a release build.
    Interop,
    /// Databases that coturn's turnadmin has filled, against a release build.
    Stores,
    /// `hairpin bench --quick` of a release build: the gate of each scenario (docs/benchmarking.md), and every byte
    /// unharmed.
    Bench,
}

impl Stage {
    /// Runs the stage. If it cannot do its work, that is printed and counted as a failure.
    pub(crate) fn run(self, root: &Path) -> Tally {
        self.attempt(root).unwrap_or_else(|error| {
            println!("  FAIL  {}: {error:#}", self.name());
            Tally::FAILURE
        })
    }

    fn attempt(self, root: &Path) -> Result<Tally> {
        match self {
            Stage::Fmt => cargo::format(root),
            Stage::Tidy => tidy::run(root),
            Stage::Rfc => rfc::check(root),
            Stage::Workflow => workflow::check(root),
            Stage::Bpf => bpf::compare(root),
            Stage::Clippy => {
                let mut tally = cargo::clippy(root, &["--workspace"])?;
                tally.add(cargo::clippy_without_features(root)?);
                Ok(tally)
            }
            Stage::Package => package::run(root, false),
            Stage::Deny => deny::run(root, false),
            Stage::Build => {
                cargo::release(root).and_then(|_| budgets::build(root).map(|_| Tally::ONE))
            }
            Stage::Budgets => budgets::run(root, false),
            Stage::Fuzz => fuzz::smoke(root),
            Stage::Doc => cargo::check(
                root,
                &["doc", "--locked", "--workspace", "--no-deps"],
                &[("RUSTDOCFLAGS", "-D warnings")],
            ),
            Stage::Book => book::run(root),
            Stage::Unit => unit::run(root),
            Stage::Vm => vm::run(root, &vm::Options::quick()),
            Stage::Packages => packages::run(root, &packages::Options::default()),
            Stage::Interop => interop::run(root, &interop::Options::default()),
            Stage::Stores => stores::run(root, &stores::Options::default()),
            Stage::Bench => gate::run(root),
        }
    }

    /// The programs that the stage runs.
    fn tools(self) -> &'static [&'static [Tool]] {
        match self {
            Stage::Bpf => &[tools::BPF],
            Stage::Budgets => &[tools::COUNTING],
            Stage::Fuzz => &[tools::FUZZ],
            Stage::Interop => &[tools::INTEROP],
            Stage::Stores => &[tools::STORES],
            Stage::Workflow => &[tools::WORKFLOW],
            Stage::Unit => &[tools::UNIT],
            // Without root it is skipped, and needs nothing.
            Stage::Vm if tools::is_root() => &[tools::VM],
            Stage::Packages if tools::is_root() => &[tools::PACKAGES],
            _ => &[],
        }
    }

    /// The program without a Debian package that the stage builds first.
    fn built(self) -> Option<&'static Built> {
        match self {
            Stage::Deny => Some(&built::CARGO_DENY),
            Stage::Workflow => Some(&built::ACTIONLINT),
            Stage::Book => Some(&built::MDBOOK),
            _ => None,
        }
    }

    /// Whether the stage takes seconds: these run before anything else starts.
    fn is_short(self) -> bool {
        matches!(
            self,
            Stage::Fmt | Stage::Tidy | Stage::Rfc | Stage::Workflow | Stage::Bpf
        )
    }

    /// Whether the stage uses processor time but measures none: then it may run beside other stages.
    fn runs_in_background(self) -> bool {
        matches!(
            self,
            Stage::Package
                | Stage::Deny
                | Stage::Build
                | Stage::Budgets
                | Stage::Fuzz
                | Stage::Doc
                | Stage::Book
        )
    }

    /// Whether the stage may run beside `interop`. Both wait for timers and packets most of the time.
    fn runs_beside_interop(self) -> bool {
        matches!(self, Stage::Stores)
    }

    /// As on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn about(self) -> String {
        self.to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }
}

/// Which stages to run, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this stage (may be repeated).
    #[arg(long = "stage", alias = "only", value_name = "STAGE")]
    stages: Vec<Stage>,
    /// Go on after a stage that failed, to see everything that is wrong at once.
    #[arg(long)]
    keep_going: bool,
}

/// Runs the stages, and says before and after each what it does and how long it took.
pub(crate) fn run(root: &Path, options: &Options) -> Tally {
    let stages: Vec<Stage> = Stage::value_variants()
        .iter()
        .copied()
        .filter(|stage| options.stages.is_empty() || options.stages.contains(stage))
        .collect();
    let mut times = Times::read(root);
    let tools: Vec<&[Tool]> = stages
        .iter()
        .flat_map(|stage| stage.tools())
        .copied()
        .collect();
    announce(root, &stages, &times, &tools);
    let started = Instant::now();
    let mut total = Tally::default();
    let is_whole = options.stages.is_empty();
    let requirements = [
        ("disk", if is_whole { disk::check(root) } else { Ok(()) }),
        ("tools", tools::ensure(&tools)),
    ];
    for (name, outcome) in requirements {
        if let Err(error) = outcome {
            println!("  FAIL  {name}: {error:#}");
            total.add(Tally::FAILURE);
        }
    }
    if total.failed > 0 && !options.keep_going {
        return total;
    }
    total.add(run_stages(root, &stages, options.keep_going, &mut times));
    let seconds = started.elapsed().as_secs_f32();
    println!("=== all of it: {:.1} min", seconds / 60.0);
    if is_whole && total.is_clean() {
        times.note("everything", seconds);
    }
    times.write();
    total
}

/// Says what the run will do, how long each part took last time, and what it will install.
fn announce(root: &Path, stages: &[Stage], times: &Times, tools: &[&[Tool]]) {
    let last = |name: &str| {
        times.last(name).map_or_else(
            || "not timed yet".to_owned(),
            |seconds| format!("last: {seconds:.0} s"),
        )
    };
    println!("=== the stages (* in the background, + beside interop)");
    for &stage in stages {
        let mark = match (stage.runs_in_background(), stage.runs_beside_interop()) {
            (true, _) => '*',
            (_, true) => '+',
            _ => ' ',
        };
        let name = stage.name();
        println!("  {mark} {name:9} {:14} {}", last(&name), stage.about());
    }
    println!("    together: {}", last("everything"));
    println!("    installs: {}", installs(root, stages, tools));
    if !tools::is_root() {
        println!(
            "    not root: tests that need network namespaces or BPF are counted as skipped, and the stage bench fails"
        );
    }
}

/// The Debian packages and the built programs that are not there yet.
fn installs(root: &Path, stages: &[Stage], tools: &[&[Tool]]) -> String {
    let packages = tools::missing(tools).into_iter().map(str::to_owned);
    let built = stages
        .iter()
        .filter_map(|stage| stage.built())
        .filter(|program| program.is_missing(root))
        .map(ToString::to_string);
    let all: Vec<String> = packages.chain(built).collect();
    if all.is_empty() {
        "nothing".to_owned()
    } else {
        all.join(", ")
    }
}

/// Runs the foreground stages here and the others beside them. Stops after a failure unless `keep_going`.
fn run_stages(root: &Path, stages: &[Stage], keep_going: bool, times: &mut Times) -> Tally {
    // What is asked for alone runs where its output can be watched.
    let alone = stages.len() == 1;
    let (behind, ahead): (Vec<_>, Vec<_>) = stages
        .iter()
        .copied()
        .partition(|stage| stage.runs_in_background() && !alone);
    let mut total = Tally::default();
    let (beside, ahead) = beside_interop(ahead);
    let mut background = Background::new(root, behind, true);
    let mut beside = Background::new(root, beside, false);
    for stage in ahead {
        if !stage.is_short() {
            background.start();
        }
        if stage == Stage::Interop {
            beside.start();
        }
        if stage == Stage::Bench {
            // It measures time, so nothing may run beside it.
            total.add(beside.finish(times));
            total.add(background.finish(times));
        }
        if total.failed > 0 && !keep_going {
            break;
        }
        let name = stage.name();
        println!("=== {name}");
        let started = Instant::now();
        let tally = stage.run(root);
        report(&name, tally, started.elapsed().as_secs_f32(), times);
        total.add(tally);
        total.add(beside.collect(times));
        total.add(background.collect(times));
    }
    if total.failed > 0 && !keep_going {
        println!("=== stopped: later stages were not run (--keep-going runs them all the same)");
        beside.stop();
        background.stop();
    } else {
        total.add(beside.finish(times));
        total.add(background.finish(times));
    }
    total
}

/// Those that run beside `interop`, and the others in their order. Without `interop`, all run one after the other.
fn beside_interop(stages: Vec<Stage>) -> (Vec<Stage>, Vec<Stage>) {
    let has_interop = stages.contains(&Stage::Interop);
    stages
        .into_iter()
        .partition(|stage| has_interop && stage.runs_beside_interop())
}

fn report(name: &str, tally: Tally, seconds: f32, times: &mut Times) {
    println!("=== {name}: {tally} in {seconds:.1} s");
    if tally.failed == 0 {
        times.note(name, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_runs_beside_interop_and_alone_without_it() {
        let all = vec![Stage::Vm, Stage::Interop, Stage::Stores, Stage::Bench];
        let (beside, ahead) = beside_interop(all);
        assert_eq!(beside, [Stage::Stores]);
        assert_eq!(ahead, [Stage::Vm, Stage::Interop, Stage::Bench]);
        let (beside, ahead) = beside_interop(vec![Stage::Stores, Stage::Bench]);
        assert_eq!(beside, []);
        assert_eq!(ahead, [Stage::Stores, Stage::Bench]);
    }
}
