//! `hairpin bench`: what it says before it measures anything.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::{run, stderr, stdout};

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
fn seven_servers_are_too_many() {
    let mut args = vec!["bench", "--a", "floor"];
    args.extend(["--b", "floor"].repeat(6));
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("1 to 6"), "{}", stderr(&output));
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
    std::fs::copy(env!("CARGO_BIN_EXE_hairpin"), &copy).unwrap();
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
        .args(["bench", "--a", "floor", "--quick"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("needs root"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_measurement() {
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
