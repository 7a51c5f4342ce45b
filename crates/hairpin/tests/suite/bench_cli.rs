//! `hairpin bench`: what it says before it measures anything, and how it ends when it is told to.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{hairpin, run, stderr, stdout};

#[test]
fn wrong_arguments_have_status_2_and_a_reason() {
    for (args, part) in [
        (&[][..], "--a"),
        (&["--a", "hairpin", "--scenarios", "nosuch"], "--list"),
        (&["--a", "hairpin", "--sizes", "10"], "--sizes"),
        (
            &["--a", "hairpin", "--server-cpu", "0"],
            "different processors",
        ),
        (&["--a", "hairpin", "--server-cpu", "9999"], "9999"),
        (&["--a", "static:'open quote"], "quote"),
        (
            &["--a", "floor-stun", "--scenarios", "churn"],
            "none of the servers",
        ),
        (&["--a", "hairpin", "--quick"], "--b floor"),
        (&["--a", "floor", "--fail-below", "0.5"], "--b floor"),
        (&["--a", "hairpin", "--rounds", "0"], "rounds"),
        (&["--a", "hairpin", "--step", "0s"], "step"),
    ] {
        let output = run(&[&["bench"][..], args].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(part),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn eleven_servers_are_too_many() {
    let mut args = vec!["bench", "--a", "floor"];
    args.extend(["--b", "floor"].repeat(10));
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("1 to 10"), "{}", stderr(&output));
}

#[test]
fn scenarios_are_listed_without_privileges() {
    let output = run(&["bench", "--list"]);
    assert_eq!(output.status.code(), Some(0));
    let list = stdout(&output);
    assert!(
        list.contains("relay-64x8-c2p-120B") && list.contains("churn-64"),
        "{list}"
    );
}

#[test]
fn without_root_it_says_so() {
    // A copy where everybody can read it: the one that cargo built may lie in somebody's home.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("hairpin");
    // By another process: a child that another test forks meanwhile must not hold the copy open for writing ("text file
    // busy").
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_hairpin"))
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    for path in [directory.path(), &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    // Who is not root already cannot become somebody else, and need not.
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    let mut command = if is_root {
        command.arg(&copy);
        command
    } else {
        Command::new(&copy)
    };
    let output = command
        .args(["bench", "--a", "hairpin", "--b", "floor", "--quick"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("needs root"),
        "{}",
        stderr(&output)
    );
}

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running benchmark; killed if the test fails.
struct Bench {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    said: Vec<String>,
    /// One runs at a time on a machine.
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    /// Starts one in a process group of its own, as a shell does.
    fn start(args: &[&str]) -> Bench {
        let turn = in_turn();
        let mut child = hairpin(&[
            "bench",
            "--a",
            "floor",
            "--b",
            "floor-gro",
            "--hold",
            "40ms",
        ])
        .args([
            "--scenarios",
            "relay-1x1",
            "--rounds",
            "1000",
            "--step",
            "40ms",
        ])
        .args(args)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Bench {
            child,
            lines,
            said: Vec::new(),
            _turn: turn,
        }
    }

    /// Reads until it has measured the second server, and so is about to measure on.
    fn wait_until_it_measures(&mut self) {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let measured = line.contains("round 1:") && line.contains("floor-gro:");
            self.said.push(line);
            if measured {
                return;
            }
        }
        panic!(
            "this test needs root, two processors and Linux 5.18: {:#?}",
            self.said
        );
    }

    /// Signals the whole process group, as a terminal does at Ctrl-C, and returns the status.
    fn interrupt(&mut self) -> Option<i32> {
        let group = format!("-{}", self.child.id());
        let kill = Command::new("kill").args(["-INT", "--", &group]).status();
        assert!(kill.unwrap().success());
        self.said.extend(self.lines.by_ref().map_while(Result::ok));
        self.child.wait().unwrap().code()
    }

    fn has_said(&self, start: &str) -> bool {
        self.said.iter().any(|line| line.starts_with(start))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Both fail only if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_ends_it_in_order_with_a_report_of_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let mut bench = Bench::start(&["--json", json.to_str().unwrap()]);
    bench.wait_until_it_measures();
    assert_eq!(bench.interrupt(), Some(0), "{:#?}", bench.said);
    assert!(bench.has_said("stopping after this"), "{:#?}", bench.said);
    let report = std::fs::read_to_string(json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["stopped"], true);
    let cells = report["cells"].as_array().unwrap();
    assert!((2..=8).contains(&cells.len()), "{}", cells.len());
    // The servers were there until the end: the signal was not for them.
    for cell in cells {
        assert_eq!(cell["outcome"]["outcome"], "packets", "{cell}");
    }
}

#[test]
fn the_network_may_have_ipv6_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let mut bench = Bench::start(&["--ipv6", "--json", json.to_str().unwrap()]);
    bench.wait_until_it_measures();
    assert_eq!(bench.interrupt(), Some(0), "{:#?}", bench.said);
    let report = std::fs::read_to_string(json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["ipv6"], true);
    for cell in report["cells"].as_array().unwrap() {
        assert_eq!(cell["outcome"]["outcome"], "packets", "{cell}");
    }
}

#[test]
fn gates_that_were_not_reached_are_not_passed() {
    let mut bench = Bench::start(&["--quick", "--c", "hairpin"]);
    bench.wait_until_it_measures();
    assert_eq!(bench.interrupt(), Some(99), "{:#?}", bench.said);
    assert!(bench.has_said("gate: stopped"), "{:#?}", bench.said);
}

#[test]
fn a_side_that_damages_or_repeats_ends_it_with_status_98_and_is_named() {
    let _turn = in_turn();
    let output = run(&[
        "bench",
        "--a",
        "floor",
        "--b",
        "floor-damage",
        "--c",
        "floor-repeat",
        "--scenarios",
        "relay-1x1-c2p-120B",
        "--rounds",
        "1",
        "--step",
        "40ms",
        "--hold",
        "80ms",
    ]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(98), "{said}");
    let lines = said
        .lines()
        .filter_map(|line| line.strip_prefix("damage: "));
    let lines: Vec<&str> = lines.collect();
    let of = |side: &str| {
        let start = format!("{side} in round 1, relay-1x1-c2p-120B: ");
        lines.iter().find(|line| line.starts_with(&start))
    };
    assert!(of("floor-damage").is_some_and(|line| !line.contains(" 0 datagrams arrived changed")));
    assert!(of("floor-repeat").is_some_and(|line| !line.contains(" 0 arrived again")));
    assert_eq!(lines.len(), 2, "the bare relay is not named: {said}");
    let table = stdout(&output);
    assert!(
        table.contains("floor-damage") && table.contains("SO_RXQ_OVFL"),
        "{table}"
    );
}

#[test]
fn an_unwritable_report_is_an_error_before_the_measurement() {
    let output = run(&[
        "bench",
        "--a",
        "floor",
        "--json",
        "/nonexistent/report.json",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/nonexistent/report.json"),
        "{}",
        stderr(&output)
    );
    let output = run(&["bench", "--a", "floor", "--json", "-", "--html", "-"]);
    assert!(
        stderr(&output).contains("only one report"),
        "{}",
        stderr(&output)
    );
}
