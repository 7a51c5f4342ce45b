//! The examples that end by themselves do so, with success.

use std::path::PathBuf;
use std::process::Command;

const EXAMPLES: [&str; 12] = [
    "all_transports",
    "minimal",
    "stun_only",
    "rest_credentials",
    "permission_filter",
    "quotas",
    "addresses_and_ports",
    "events_and_metrics",
    "sans_io",
    "open_sockets",
    "async_users",
    "in_tokio",
];

/// Cargo builds the examples beside the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let target = test.ancestors().nth(2).expect("target/debug");
    target.join("examples").join(name)
}

#[test]
fn every_example_is_short() {
    for name in EXAMPLES {
        let file = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let lines = std::fs::read_to_string(file)
            .expect("the example")
            .lines()
            .count();
        assert!(lines < 80, "{name} has {lines} lines");
    }
}

#[test]
fn every_example_ends_with_success_and_says_something() {
    for name in EXAMPLES {
        let program = program(name);
        assert!(
            program.exists(),
            "{} is missing: `cargo build -p hairpin-server --examples` makes it",
            program.display()
        );
        let output = Command::new(program).output().expect("the example runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}");
        assert!(!output.stdout.is_empty(), "{name} says nothing");
    }
}
