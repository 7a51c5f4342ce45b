//! `hairpin load` as a user runs it: reports, thresholds and statuses; `faults` has what it says when something is
//! wrong.

mod faults;

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{Background, Serve, fails, json, run, stderr, stdout};
use serde_json::Value;

const SECRET: &str = "0123456789abcdef";

/// A server that admits peers on loopback, and its address.
fn server(more: &[&str]) -> (Serve, String) {
    let mut args = vec!["--listen", "127.0.0.1:0", "--relay-address", "127.0.0.1"];
    args.extend(["--secret", SECRET, "--user", "alice:s3cret"]);
    args.extend(more);
    let server = Serve::start(&args);
    let address = server.address().to_string();
    (server, address)
}

/// Runs `hairpin load` for a second against `target` and returns the report.
fn report(kind: &str, target: &str, more: &[&str]) -> Value {
    let output = load(kind, target, more);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{more:?}: {}",
        stderr(&output)
    );
    json(&output)
}

fn load(kind: &str, target: &str, more: &[&str]) -> Output {
    let mut args = vec!["load", kind, target, "--json", "-"];
    args.extend([
        "--duration",
        "700ms",
        "--warm-up",
        "200ms",
        "--linger",
        "500ms",
    ]);
    args.extend(more);
    run(&args)
}

#[test]
fn every_workload_runs_and_reports() {
    let (_server, target) = server(&["--dev"]);
    let secret = ["--secret", SECRET];
    let with = |more: &[&str]| report("turn", &target, &[&secret[..], more].concat());
    for (more, workload, latency_is) in [
        (&["--direction", "both"][..], "relay", "one way"),
        (
            &["--indications", "--peers", "3", "--size", "500"],
            "relay",
            "one way",
        ),
        (&["--pairs", "--clients", "4"], "relay", "one way"),
        (&["--reflector", "--closed", "5"], "relay", "round trip"),
        (
            &["--train", "8", "--burst", "16", "--gso", "--senders", "2"],
            "relay",
            "one way",
        ),
        (
            &["--workload", "allocate", "--rate", "50"],
            "allocate",
            "round trip",
        ),
        (
            &["--workload", "mixed", "--calls", "10", "--classic"],
            "mixed",
            "one way",
        ),
        (
            &["--workload", "garbage", "--rate", "2k"],
            "garbage",
            "round trip of honest requests",
        ),
    ] {
        let report = with(more);
        assert_eq!(report["run"]["workload"], workload, "{more:?}");
        assert_eq!(report["run"]["latency_is"], latency_is, "{more:?}");
        assert!(
            report["total"]["received"].as_u64() > Some(10),
            "{more:?}: {report}"
        );
        assert!(report["latency"]["count"].as_u64() > Some(10), "{more:?}");
        assert_eq!(report["total"]["corrupt"], 0, "{more:?}");
    }
    let report = report(
        "stun",
        &target,
        &["--clients", "3", "--ramp", "0:100,1s:2k"],
    );
    assert_eq!(report["total"]["sent"], report["total"]["received"]);
}

#[test]
fn a_reflector_elsewhere_is_reached_through_the_server() {
    let (_server, target) = server(&["--dev"]);
    let mut peer = Background::start(&["peer", "--listen", "127.0.0.1:0"]);
    let line = peer.wait_for("listening on ");
    let address = &line["listening on ".len()..];
    let report = report(
        "turn",
        &target,
        &["--user", "alice", "--password", "s3cret", "--peer", address],
    );
    assert_eq!(report["run"]["latency_is"], "round trip");
    assert_eq!(report["total"]["lost"], 0, "{report}");
}

#[test]
fn files_are_written_without_the_secret() {
    let (_server, target) = server(&["--dev"]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, csv, html) = (path("a.json"), path("a.csv"), path("a.html"));
    let mut args = vec![
        "load",
        "turn",
        &target,
        "--secret",
        SECRET,
        "--duration",
        "1500ms",
    ];
    args.extend(["--json", &json, "--csv", &csv, "--html", &html]);
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("p99.9"), "{}", stdout(&output));
    assert!(stderr(&output).contains("send_pps=") && stderr(&output).contains("p99_us="));
    let text = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(text(&csv).starts_with("at_s,") && text(&csv).lines().count() > 1);
    assert!(text(&html).contains("<svg"));
    for path in [&json, &csv, &html] {
        assert!(!text(path).contains(SECRET), "{path}");
    }
    let output = run(&["load", "compare", &json, &json]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("p99_us") && stdout(&output).contains("1.000"));
}

#[test]
fn every_second_is_reported() {
    let (_server, target) = server(&[]);
    let more = ["--warm-up", "1s", "--duration", "2s"];
    let output = run(&[&["load", "stun", &target, "--json", "-"][..], &more].concat());
    let report = json(&output);
    let seconds = report["seconds"].as_array().unwrap();
    let warm_up = seconds.iter().map(|second| second["warm_up"] == true);
    assert_eq!(warm_up.collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(stderr(&output).matches("send_pps=").count(), 3);
}

#[test]
fn compare_says_where_a_file_is_wrong() {
    let (_directory, path) = crate::common::file("{\n  \"schema_version\": 1,\n  oops\n}\n");
    let path = path.to_str().unwrap();
    fails(&run(&["load", "compare", path, path]), 1, "line 3");
    fails(
        &run(&["load", "compare", "/nonexistent/a.json", path]),
        1,
        "/nonexistent/a.json",
    );
}

#[test]
fn thresholds_decide_the_status() {
    let (_server, target) = server(&[]);
    let passing = ["--fail-if", "loss>50%", "--fail-if", "recv_pps<1"];
    let output = load("stun", &target, &passing);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("passed: fail if loss>50%"),
        "{}",
        stderr(&output)
    );
    let output = load(
        "stun",
        &target,
        &["--fail-if", "p50>0us", "--fail-if", "loss>50%"],
    );
    fails(&output, 99, "FAILED: fail if p50>0us");
    assert!(json(&output)["total"]["received"].as_u64() > Some(0));
}

#[test]
fn the_highest_rate_is_searched() {
    let (_server, target) = server(&[]);
    let search = [
        "load",
        "stun",
        &target,
        "--find-max",
        "--find-from",
        "200",
        "--find-to",
        "1k",
        "--max-loss",
        "50%",
    ];
    // Long steps: a machine that is busy with other tests stands still for a while now and then.
    let output = run(&[&search[..], &["--step", "1s", "--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = json(&output)["run"]["settings"]["search"].to_string();
    assert!(found.contains("highest rate: 1000/s"), "{found}");
    let steps = json(&output)["search"].as_array().unwrap().len();
    assert!(steps >= 4, "{steps}");
    // As lines, a table: a header, and a row as each step ends; then the summary has it again.
    let said = stderr(&output);
    assert_eq!(said.matches("verdict").count(), 2, "{said}");
    assert_eq!(said.matches("passed\n").count(), 2 * steps, "{said}");
}

/// A run of a minute against a server, two seconds of which are over.
fn long_run(target: &str, more: &[&str]) -> Background {
    let mut args = vec![
        "load",
        "turn",
        target,
        "--user",
        "alice:s3cret",
        "--json",
        "-",
    ];
    args.extend(["--duration", "60s"]);
    args.extend(more);
    let mut load = Background::start(&args);
    load.wait_for("at_s=2");
    load
}

#[test]
fn a_signal_stops_and_still_reports() {
    let (_server, target) = server(&["--dev"]);
    let load = long_run(&target, &[]);
    let asked = Instant::now();
    load.signal("INT");
    let (status, stdout, stderr) = load.wait();
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect(&stderr);
    assert_eq!(report["ended"], "stopped");
    assert!(report["total"]["received"].as_u64() > Some(100), "{report}");
}

#[test]
fn a_terminal_gets_a_picture_and_q_ends_it() {
    let (_server, target) = server(&[]);
    let load = format!(
        "stty rows 40 cols 120; {} load stun {target} --duration 60s",
        env!("CARGO_BIN_EXE_hairpin")
    );
    // script(1) runs it on a terminal of its own, and passes on what we type.
    let mut script = Command::new("script")
        .args(["-qec", &load, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let asked = Instant::now();
    script.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    let output = script.wait_with_output().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let (picture, after) = text.split_once("\x1b[?1049l").expect(&text);
    assert!(
        picture.contains("\x1b[?1049h") && picture.contains("p99"),
        "{text}"
    );
    assert!(after.contains("stopped by the user"), "{text}");
}

/// A STUN server that stops for a while, once.
fn stalling_server(stall: Duration) -> (SocketAddr, Arc<AtomicBool>, JoinHandle<()>) {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let thread = std::thread::spawn(move || {
        server
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let (mut started, mut stalled, mut buffer) = (None, false, [0; 2048]);
        while !stop.load(Ordering::Relaxed) {
            let Ok((length, from)) = server.recv_from(&mut buffer) else {
                continue;
            };
            let started = *started.get_or_insert_with(Instant::now);
            if !stalled && started.elapsed() > Duration::from_secs(1) {
                std::thread::sleep(stall);
                stalled = true;
            }
            let SocketAddr::V4(mapped) = from else {
                continue;
            };
            // A Binding success response with XOR-MAPPED-ADDRESS: RFC 8489 §5 and §14.2.
            buffer[..4].copy_from_slice(&[0x01, 0x01, 0, 12]);
            buffer[20..26].copy_from_slice(&[0, 0x20, 0, 8, 0, 1]);
            buffer[26..28].copy_from_slice(&(mapped.port() ^ 0x2112).to_be_bytes());
            let ip = mapped.ip().to_bits() ^ 0x2112_A442;
            buffer[28..32].copy_from_slice(&ip.to_be_bytes());
            server
                .send_to(&buffer[..length.min(20) + 12], from)
                .unwrap();
        }
    });
    (address, done, thread)
}

#[test]
fn a_stalled_server_shows_in_the_99th_percentile() {
    let (address, done, thread) = stalling_server(Duration::from_millis(200));
    let more = [
        "--duration",
        "2s",
        "--rate",
        "1k/s",
        "--fail-if",
        "p99>100ms",
    ];
    let mut args = vec!["load", "stun"];
    let target = address.to_string();
    args.extend([&target, "--warm-up", "200ms", "--json", "-"]);
    args.extend(more);
    let output = run(&args);
    done.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    // 200 of 2,000 requests were meant to leave while it slept, and waited up to 200 ms.
    fails(&output, 99, "FAILED: fail if p99>100ms");
    let latency = &json(&output)["latency"];
    assert!(latency["p99_us"].as_f64() > Some(150e3), "{latency}");
    assert!(latency["max_us"].as_f64() > Some(190e3), "{latency}");
    assert!(latency["p50_us"].as_f64() < Some(100e3), "{latency}");
}
