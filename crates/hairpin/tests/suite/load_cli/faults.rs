//! Wrong arguments, dead targets, refusals, servers that die: a clear text, what was measured until then, the right
//! status.

use std::net::UdpSocket;
use std::process::{Command, Output};

use serde_json::Value;

use super::{fails, load, long_run, server};
use crate::common::{run, stderr, stdout};

#[test]
fn hosts_that_have_not_agreed_are_not_loaded() {
    // RFC 5737 and RFC 3849: addresses for documentation. Nothing is sent: that is what is tested.
    for target in ["192.0.2.1", "203.0.113.5:3478", "[2001:db8::1]:3478"] {
        for kind in ["turn", "stun"] {
            fails(
                &run(&["load", kind, target, "--duration", "1s"]),
                2,
                "--i-own-the-target",
            );
        }
    }
    let peer = ["load", "turn", "127.0.0.1", "--peer", "198.51.100.7:3480"];
    fails(&run(&peer), 2, "--i-own-the-target");
}

#[test]
fn a_server_that_dies_gives_a_partial_report() {
    a_server_that_goes_away("KILL");
}

#[test]
fn a_server_that_stalls_gives_a_partial_report() {
    a_server_that_goes_away("STOP");
}

fn a_server_that_goes_away(signal: &str) {
    let (server, target) = server(&["--dev"]);
    let load = long_run(&target, &["--silence", "1s", "--fail-if", "loss>0"]);
    server.signal(signal);
    let (status, stdout, stderr) = load.wait();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("silent") && stderr.contains("hairpin probe"),
        "{stderr}"
    );
    let report: Value = serde_json::from_str(&stdout).expect(&stderr);
    assert_eq!(report["ended"], "server-silent");
    assert!(report["total"]["received"].as_u64() > Some(100), "{report}");
}

#[test]
fn a_dead_target_is_named() {
    let free = UdpSocket::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .to_string();
    for (kind, more) in [
        ("stun", &[][..]),
        ("turn", &["--user", "a:b"]),
        ("turn", &["--user", "a:b", "--workload", "allocate"]),
        ("turn", &["--workload", "garbage"]),
    ] {
        let output = load(kind, &free, more);
        fails(&output, 1, "nothing listens");
        assert!(stderr(&output).contains(&free), "{}", stderr(&output));
    }
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    fails(&load("stun", &silent, &[]), 1, "nothing came back");
    fails(&load("turn", &silent, &["--timeout", "1s"]), 1, "no answer");
}

#[test]
fn a_machine_that_cannot_send_says_so() {
    // A network namespace whose loopback is down. Making one takes root.
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", env!("CARGO_BIN_EXE_hairpin")]);
    let args = [
        "load",
        "stun",
        "127.0.0.1",
        "--duration",
        "5s",
        "--silence",
        "1s",
    ];
    let output = unshare.args(args).output().unwrap();
    fails(&output, 1, "ENETUNREACH");
    assert!(stderr(&output).contains("ip route"), "{}", stderr(&output));
    assert!(stdout(&output).contains("not sent"), "{}", stdout(&output));
}

/// Runs a shell script in a network namespace of its own, whose loopback is up. `$0` is hairpin.
fn in_own_network(script: &str) -> Output {
    let script = format!("set -e; ip link set lo up; {script}");
    Command::new("unshare")
        .args(["--net", "--kill-child", "--fork", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_hairpin"))
        .output()
        .unwrap()
}

/// A Binding server in the background, and a queue of loopback that holds what `queue` says.
fn behind_a_queue(queue: &str, load: &str) -> Output {
    in_own_network(&format!(
        "\"$0\" serve --dev --listen 127.0.0.1:3478 >/dev/null 2>&1 & server=$!; \
         trap 'kill $server' EXIT; \
         \"$0\" load stun 127.0.0.1 --rate 100/s --warm-up 10ms --duration 100ms >/dev/null 2>&1 || sleep 2; \
         tc qdisc add dev lo root {queue}; \
         \"$0\" load stun 127.0.0.1 --json - {load}"
    ))
}

#[test]
fn losses_of_the_generator_are_reported() {
    // Two megabits a second are 3,600 Binding requests with their headers, without the answers.
    let output = behind_a_queue(
        "tbf rate 2mbit burst 4k limit 4k",
        "--rate 5k/s --duration 2s --warm-up 100ms --fail-if 'loss>1%'",
    );
    assert_eq!(output.status.code(), Some(99), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("ENOBUFS") && said.contains("not the server's loss"),
        "{said}"
    );
    let report: Value = serde_json::from_str(&stdout(&output)).expect(&said);
    assert_eq!(report["ended"], "complete");
    let count = |of: &str, name: &str| report[of][name].as_u64().unwrap();
    let (lost, dropped) = (count("total", "lost"), count("kernel", "send"));
    assert!(
        lost > 100 && dropped > 100,
        "{lost} lost, {dropped} dropped"
    );
    assert!(count("total", "received") > 100, "{said}");
}

#[test]
fn a_queue_that_takes_nothing_is_no_silent_server() {
    let output = behind_a_queue(
        "tbf rate 1mbit burst 4k limit 1",
        "--rate 1k/s --duration 20s --silence 1s",
    );
    fails(&output, 1, "interface queue full (ENOBUFS)");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["ended"], "cannot-send");
    assert!(report["kernel"]["send"].as_u64() > Some(500), "{report}");
}

#[test]
fn refusals_of_the_server_say_what_to_do() {
    let (_server, target) = server(&["--set", "limits.allocations_per_user=3"]);
    fails(&load("turn", &target, &[]), 1, "--secret");
    fails(
        &load("turn", &target, &["--user", "alice:wrong"]),
        1,
        "does not accept",
    );
    fails(
        &load("turn", &target, &["--secret", "another secret"]),
        1,
        "another secret",
    );
    // Peers on loopback are denied without --dev: 403.
    fails(
        &load(
            "turn",
            &target,
            &["--user", "alice:s3cret", "--clients", "1"],
        ),
        1,
        "--dev",
    );
    fails(
        &load(
            "turn",
            &target,
            &["--user", "alice:s3cret", "--clients", "9"],
        ),
        1,
        "486",
    );
}

#[test]
fn wrong_arguments_have_status_2() {
    for args in [
        &["turn"][..],
        &["smtp", "127.0.0.1"],
        &["turn", "https://example.org"],
        &["turn", "turns:127.0.0.1?transport=sctp"],
        &["turn", "turn:127.0.0.1?transport=tcp", "--insecure"],
        &["turn", "turn:127.0.0.1?transport=tcp", "--gso"],
        &["turn", "turn:127.0.0.1?transport=tcp", "--no-resumption"],
        &["stun", "127.0.0.1", "--workload", "connect"],
        &[
            "stun",
            "stun:127.0.0.1?transport=tcp",
            "--workload",
            "garbage",
        ],
        &["turn", "stun:127.0.0.1"],
        &["turn", "127.0.0.1", "--user", "no-password"],
        &["turn", "127.0.0.1", "--password", "no-user"],
        &["turn", "127.0.0.1", "--rate", "fast"],
        &["turn", "127.0.0.1", "--rate", "0"],
        &["turn", "127.0.0.1", "--rate", "1k", "--closed", "5"],
        &["turn", "127.0.0.1", "--rate", "1k", "--find-max"],
        &["turn", "127.0.0.1", "--find-from", "5"],
        &[
            "turn",
            "127.0.0.1",
            "--find-max",
            "--find-from",
            "5",
            "--find-to",
            "1",
        ],
        &["turn", "127.0.0.1", "--ramp", "5:1k"],
        &["turn", "127.0.0.1", "--duration", "0s"],
        &["turn", "127.0.0.1", "--duration", "10h"],
        &["turn", "127.0.0.1", "--fail-if", "p98>5ms"],
        &["turn", "127.0.0.1", "--fail-if", "p99>5"],
        &["turn", "127.0.0.1", "--calls", "5"],
        &["turn", "127.0.0.1", "--workload", "mixed", "--pairs"],
        &["turn", "127.0.0.1", "--workload", "mixed", "--burst", "5"],
        &["turn", "127.0.0.1", "--pairs", "--reflector"],
        &["turn", "127.0.0.1", "--size", "0"],
        &["turn", "127.0.0.1", "--pairs", "--clients", "3"],
        &["stun", "127.0.0.1", "--seed", "5"],
        &["stun", "127.0.0.1", "--clients", "0"],
        &["compare", "one.json"],
    ] {
        let output = run(&[&["load"][..], args].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    // Where reports go is seen before anything is sent.
    let nowhere = ["load", "stun", "127.0.0.1", "--json", "/nonexistent/a.json"];
    fails(&run(&nowhere), 1, "/nonexistent/a.json");
}
