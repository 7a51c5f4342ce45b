//! Commands of pages that this test does not run, and why.

use super::pages::{self, Page};
use Reason::*;

/// Why a command is not run here. A text in a file of the project shows that something else runs it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    /// `cargo xtask packages` runs it, in a system of its own or in a container.
    RunByPackagesStage(&'static str, &'static str),
    /// A gate, another test or a committed report has run it, or its parts: it lasts for minutes.
    RunByGatesOrBench(&'static str, &'static str),
    /// The report in this file of `docs/benchmarks` has been made by this command.
    ReportIsCommitted(&'static str),
    /// It builds a program of the project as a release, and measures for minutes. The program exists; no stage runs
    /// this command.
    LongMeasurement(&'static str, &'static str),
    /// It configures a network card and its interrupts, or limits of the whole machine.
    NeedsHardware,
    /// It requires a name or a host that others can reach.
    NeedsPublicServer,
    /// It is the work of another program, which the project does not have.
    OtherProgram,
}

pub(super) struct Exception {
    page: &'static str,
    /// How the command begins.
    command: &'static str,
    pub(super) reason: Reason,
}

const fn except(page: &'static str, command: &'static str, reason: Reason) -> Exception {
    Exception {
        page,
        command,
        reason,
    }
}

const RUN_SH: &str = "interop/packages/run.sh";
const CONTAINERS: &str = "xtask/src/packages/containers.rs";
const RELAY_REPORT: &str = "docs/benchmarks/report-relay.json";

/// The whole table. An entry is for all commands of its page that begin so.
pub(super) const EXCEPTIONS: &[Exception] = &[
    // Packages and services.
    except(
        "how-to/public-server.md",
        "apt install ./hairpin_",
        RunByPackagesStage(RUN_SH, "check install install first.deb"),
    ),
    except(
        "how-to/public-server.md",
        "systemctl restart hairpin",
        RunByPackagesStage(RUN_SH, "systemctl restart hairpin"),
    ),
    except(
        "how-to/upgrade.md",
        "apt install ./hairpin_",
        RunByPackagesStage(RUN_SH, "check upgrade install second.deb"),
    ),
    except(
        "how-to/upgrade.md",
        "systemctl restart hairpin",
        RunByPackagesStage(RUN_SH, "systemctl restart hairpin"),
    ),
    except(
        "how-to/postgresql.md",
        "systemctl restart hairpin",
        RunByPackagesStage(RUN_SH, "systemctl restart hairpin"),
    ),
    except(
        "operation.md",
        "systemctl stop hairpin",
        RunByPackagesStage(RUN_SH, "stops when removed"),
    ),
    except(
        "packages.md",
        "tar -x -C /",
        RunByPackagesStage("xtask/src/packages/archives.rs", "Command::new(\"tar\")"),
    ),
    except(
        "packages.md",
        "deploy/container/build-image.sh",
        RunByPackagesStage(CONTAINERS, "deploy/container/build-image.sh"),
    ),
    except(
        "packages.md",
        "podman load --input",
        RunByPackagesStage(CONTAINERS, ".arg(\"load\")"),
    ),
    except(
        "packages.md",
        "podman run --network=host --read-only --health-cmd",
        RunByPackagesStage(CONTAINERS, ".args(HEALTH_OPTIONS)"),
    ),
    except(
        "packages.md",
        "podman run --network=host --read-only --volume",
        RunByPackagesStage(CONTAINERS, "--volume=hairpin-run:/run/hairpin"),
    ),
    except(
        "packages.md",
        "helm install turn",
        RunByPackagesStage("xtask/src/packages/helm.rs", "\"template\", \"test\""),
    ),
    // The machine, and the world around it.
    except("tls.md", "certbot certonly", NeedsPublicServer),
    except("live-page.md", "ssh -L", NeedsPublicServer),
    except("how-to/tuning.md", "sysctl -w net.core", NeedsHardware),
    except("how-to/tuning.md", "ethtool -", NeedsHardware),
    except(
        "how-to/tuning.md",
        "systemctl disable --now irqbalance",
        NeedsHardware,
    ),
    except("how-to/tuning.md", "echo ", NeedsHardware),
    except("events.md", "nats sub", OtherProgram),
    except("../CONTRIBUTING.md", "git clone REPOSITORY", OtherProgram),
    // What takes minutes.
    except(
        "../README.md",
        "cargo xtask test",
        RunByGatesOrBench(".ci/run", "exec cargo xtask test"),
    ),
    except(
        "../CONTRIBUTING.md",
        "cargo xtask quick",
        RunByGatesOrBench(".github/workflows/ci.yml", "cargo xtask quick"),
    ),
    except(
        "operation.md",
        "cargo test --release",
        LongMeasurement("crates/hairpin/tests/suite/upgrade.rs", "fn ten_upgrades"),
    ),
    except(
        "cluster.md",
        "cargo run --release -p hairpin-stores --example cluster_simulation",
        LongMeasurement(
            "crates/stores/examples/cluster_simulation/main.rs",
            "fn main",
        ),
    ),
    except(
        "cluster.md",
        "cargo run --release -p hairpin-stores --example cluster_engine_rate",
        LongMeasurement("crates/stores/examples/cluster_engine_rate.rs", "fn main"),
    ),
    except(
        "benchmarks/tcp-allocations.md",
        "cargo run --release -p hairpin-load --example tcp_bulk",
        LongMeasurement("crates/load/examples/tcp_bulk.rs", "fn main"),
    ),
    except(
        "benchmarks/sip-parser.md",
        "cargo run --release -p hairpin-sip --example parser",
        LongMeasurement("crates/sip/examples/parser/main.rs", "fn main"),
    ),
    except(
        "benchmarks/sip-parser.md",
        "cd interop/sip-parsers && cargo run",
        LongMeasurement("interop/sip-parsers/src/main.rs", "fn main"),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a hairpin --b coturn --b floor --b floor-gro",
        RunByGatesOrBench(
            RELAY_REPORT,
            r#""--a","hairpin","--b","coturn","--b","floor","--b","floor-gro""#,
        ),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a hairpin --b floor --c hairpin-spread --quick",
        RunByGatesOrBench(
            "xtask/src/gate.rs",
            r#""bench", "--quick", "--a", "hairpin", "--b", "floor""#,
        ),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a hairpin --b coturn --b floor --ipv6",
        RunByGatesOrBench(
            "crates/hairpin/tests/suite/bench_cli.rs",
            "Bench::start(&[\"--ipv6\"",
        ),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --sip --json",
        RunByGatesOrBench("docs/benchmarks/report-sip.json", r#""bench","--sip""#),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --sip --a hairpin-sip --b kamailio --scenarios sip-overload",
        RunByGatesOrBench(
            "docs/benchmarks/report-sip-overload.json",
            r#""--scenarios","sip-overload""#,
        ),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a coturn --b 'new=turn:",
        RunByGatesOrBench("crates/load/tests/bench.rs", "=turn:"),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a hairpin --b \"coturn-4.17.1=cmd:$COTURN\"",
        RunByGatesOrBench(RELAY_REPORT, "coturn-4.17.1-gso=cmd:"),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a hairpin --b 'pion=cmd:",
        RunByGatesOrBench(
            RELAY_REPORT,
            "pion=cmd:/opt/pion/simple-multithreaded -public-ip {relay-ip} -port {port}",
        ),
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a floor --b 'mine=static+p2c:",
        OtherProgram,
    ),
    except(
        "benchmarking.md",
        "sudo hairpin bench --a 'box=middlebox+p2c:",
        RunByGatesOrBench("crates/load/tests/bench.rs", "box=middlebox+p2c:"),
    ),
    except(
        "data-path.md",
        "sudo hairpin bench --a floor-xdp",
        RunByGatesOrBench(
            "docs/benchmarks/report-in-kernel.json",
            r#""--b","floor-xdp","--b","floor-tc""#,
        ),
    ),
    except(
        "data-path.md",
        "sudo hairpin bench --a hairpin --b hairpin-xdp-miss",
        RunByGatesOrBench("docs/benchmarks/report-in-kernel.json", "hairpin-xdp-miss"),
    ),
    except(
        "benchmarks/README.md",
        "hairpin bench --a hairpin --b",
        ReportIsCommitted("2026-11-22.json"),
    ),
    except(
        "benchmarks/README.md",
        "hairpin bench --a hairpin-xdp",
        ReportIsCommitted("in-kernel-2026-11-22.json"),
    ),
    except(
        "benchmarks/tcp.md",
        "hairpin bench",
        ReportIsCommitted("tcp-2026-11-23.json"),
    ),
    except(
        "benchmarks/tls.md",
        "hairpin bench",
        ReportIsCommitted("tls-2026-11-23.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --a hairpin --b coturn --b floor --b",
        ReportIsCommitted("report-relay.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --preferred --a hairpin-xdp",
        ReportIsCommitted("report-in-kernel.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --a hairpin --b hairpin-2",
        ReportIsCommitted("report-two-workers.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --a hairpin --b coturn --b floor-tcp",
        ReportIsCommitted("report-tcp.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --a hairpin --b coturn --b floor-tls",
        ReportIsCommitted("report-tls.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --sip --step 500ms --rounds 2",
        ReportIsCommitted("report-sip.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --sip --a hairpin-sip --b kamailio --scenarios",
        ReportIsCommitted("report-sip-connections.json"),
    ),
    except(
        "benchmarks/figures.md",
        "hairpin bench --sip --a hairpin-sip --b hairpin-sip-uncontrolled",
        ReportIsCommitted("report-sip-overload.json"),
    ),
];

/// The entry of a command.
pub(super) fn find(page: &str, command: &str) -> Option<&'static Exception> {
    let mut entries = EXCEPTIONS.iter();
    entries.find(|entry| entry.page == page && command.starts_with(entry.command))
}

/// Entries without a command, and proofs that are not there.
pub(super) fn mistakes(pages: &[Page]) -> Vec<String> {
    let mut mistakes = Vec::new();
    for entry in EXCEPTIONS {
        let known = pages.iter().filter(|page| page.name == entry.page);
        let mut commands = known
            .flat_map(|page| &page.commands)
            .map(|command| &*command.text);
        let is_used = commands.any(|command| {
            find(entry.page, command).is_some_and(|found| std::ptr::eq(found, entry))
        });
        if !is_used {
            mistakes.push(format!(
                "{}: no such command: {}",
                entry.page, entry.command
            ));
        }
    }
    for page in pages {
        for command in &page.commands {
            let fault =
                find(&page.name, &command.text).and_then(|entry| entry.reason.fault(&command.text));
            mistakes.extend(fault.map(|fault| format!("{}: {}: {fault}", page.name, command.text)));
        }
    }
    mistakes
}

impl Reason {
    /// Without its proof.
    pub(super) fn name(self) -> String {
        let text = format!("{self:?}");
        text.split('(').next().unwrap_or_default().to_owned()
    }

    /// Why the reason does not hold for a command.
    fn fault(self, command: &str) -> Option<String> {
        match self {
            RunByPackagesStage(file, text)
            | RunByGatesOrBench(file, text)
            | LongMeasurement(file, text) => {
                (!pages::file(file).contains(text)).then(|| format!("{file} has no `{text}`"))
            }
            ReportIsCommitted(file) => {
                let report = pages::file(&format!("docs/benchmarks/{file}"));
                let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
                let measured = &report["argv"];
                let is_word = |word: &str| {
                    measured
                        .to_string()
                        .split([' ', '"', ','])
                        .any(|known| known == word)
                };
                let mut words = command.split([' ', ',']);
                let word = words.find(|word| !is_word(word))?;
                Some(format!("{file} was measured without `{word}`: {measured}"))
            }
            NeedsHardware | NeedsPublicServer | OtherProgram => None,
        }
    }
}
