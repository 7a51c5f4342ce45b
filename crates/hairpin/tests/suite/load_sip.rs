//! `hairpin load sip` against `hairpin serve`, both as a user runs them.

use std::net::UdpSocket;
use std::process::Output;

use crate::common::{Background, Serve, fails, file, json, run, stderr};
use serde_json::Value;

const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

/// A server with a user agent server for tests on `host`, and that one's URI without a transport.
fn server(host: &str, more: &[&str]) -> (Serve, String) {
    let listen = format!("sip.listen={host}:0");
    let mut args = vec!["--dev", "--listen", "127.0.0.1:0"];
    args.extend(["--relay-address", "127.0.0.1", "--user", "alice:s3cret"]);
    for setting in [
        "server.workers=2",
        &listen,
        "sip.test_uas=true",
        // A machine that stands still for a while is no reason to refuse anything here.
        "sip.tolerance=0s",
    ] {
        args.extend(["--set", setting]);
    }
    for setting in more {
        args.extend(["--set", setting]);
    }
    let serve = Serve::start(&args);
    let (_, uri) = serve.value("sip").split_once("sip:").unwrap();
    let uri = format!("sip:test@{}", uri.split_whitespace().next().unwrap());
    (serve, uri)
}

/// Runs `hairpin load sip`. What was lost on a busy machine has time to be sent again.
fn load(target: &str, more: &[&str]) -> Output {
    let mut args = vec!["load", "sip", target, "--no-tui"];
    if !more.contains(&"--linger") {
        args.extend(["--linger", "15s"]);
    }
    args.extend(more);
    run(&args)
}

/// The report of a run that went well.
fn report(target: &str, more: &[&str]) -> Value {
    let output = load(target, &[more, &["--json", "-"]].concat());
    assert_eq!(
        output.status.code(),
        Some(0),
        "{more:?}: {}",
        stderr(&output)
    );
    json(&output)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"))
}

/// What must be true of every report in which nothing failed.
fn adds_up(report: &Value, requests_each: u64) {
    let (total, sip) = (&report["total"], &report["sip"]);
    let sent = number(&total["sent"]);
    assert!(sent > 0, "{report}");
    assert_eq!(number(&total["received"]), sent, "{report}");
    assert_eq!(number(&total["lost"]), 0, "{report}");
    assert_eq!(number(&report["latency"]["count"]), sent, "{report}");
    assert_eq!(number(&sip["requests"]), sent * requests_each, "{report}");
    for nothing in ["timed_out", "unfinished", "broken", "unavailable"] {
        assert_eq!(number(&sip[nothing]), 0, "{nothing}: {report}");
    }
    assert!(report["errors"].as_object().unwrap().is_empty(), "{report}");
    let timeline = sip["timeline"].as_array().unwrap();
    let sum = |what: &str| timeline.iter().map(|bin| number(&bin[what])).sum::<u64>();
    assert_eq!(sum("begun"), sum("succeeded"), "{report}");
    assert!(sum("begun") >= sent, "{report}");
    let goodput = sip["goodput"].as_f64().unwrap() * report["run"]["measured_s"].as_f64().unwrap();
    let completed = number(&sip["completed"]) as f64;
    assert!((goodput - completed).abs() < 1.0, "{report}");
}

#[test]
fn every_workload_in_an_open_loop_over_both_transports() {
    let (_server, uri) = server("127.0.0.1", &[]);
    for transport in TRANSPORTS {
        for (workload, requests, parts) in [
            ("options", 1, &["last try"][..]),
            ("register", 1, &["last try"]),
            ("call", 2, &["answer", "bye", "last try", "ringing"]),
        ] {
            let uri = format!("{uri};transport={transport}");
            let pace = ["--rate", "300", "--duration", "700ms", "--warm-up", "100ms"];
            let report = report(&uri, &[&["--workload", workload], &pace[..]].concat());
            adds_up(&report, requests);
            assert_eq!(report["run"]["workload"], workload);
            let found = report["parts"].as_object().unwrap().keys();
            assert_eq!(found.collect::<Vec<_>>(), parts, "{workload}");
            let sent = number(&report["total"]["sent"]);
            assert!((150..=211).contains(&sent), "{report}");
        }
    }
}

/// The server's address in its URI that begins so: `wss://`.
fn address_of(server: &Serve, scheme: &str) -> String {
    let banner = server.banner();
    let rest = banner
        .split_once(&format!(" {scheme}"))
        .map(|(_, rest)| rest);
    let rest = rest.unwrap_or_else(|| panic!("no {scheme}: {banner}"));
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn every_workload_over_tls_and_websockets() {
    let more = ["tls", "ws", "wss"].map(|of| format!("sip.listen_{of}=127.0.0.1:0"));
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let (server, _) = server("127.0.0.1", &[&more[..], &["sip.challenge=true"]].concat());
    for (transport, scheme) in [("tls", "sips:"), ("ws", "ws://"), ("wss", "wss://")] {
        let uri = format!("sip:test@{}", address_of(&server, scheme));
        for (workload, requests) in [("options", 1), ("register", 2), ("call", 2)] {
            let mut arguments = vec!["--workload", workload, "--transport", transport];
            arguments.extend(["--rate", "200", "--duration", "500ms", "--warm-up", "100ms"]);
            if transport != "ws" {
                arguments.push("--insecure");
            }
            if workload == "register" {
                arguments.extend(["--user", "alice:s3cret"]);
            }
            adds_up(&report(&uri, &arguments), requests);
        }
    }
    // Nobody trusts the certificate that the server has made itself, and plain TCP is no TLS.
    let uri = format!("sip:test@{}", address_of(&server, "sips:"));
    let output = load(&uri, &["--transport", "tls"]);
    fails(&output, 1, "proves nothing that is trusted");
    let plain = format!("sip:test@{}", address_of(&server, "sip:"));
    let output = load(&plain, &["--transport", "tls", "--insecure"]);
    fails(&output, 1, "during the handshake");
    let output = load(&plain, &["--transport", "tcp", "--insecure"]);
    fails(&output, 2, "--insecure has no effect over TCP");
}

/// A registrar and proxy of users `u0` to `u5`, with every transport.
fn proxy() -> (tempfile::TempDir, Serve) {
    let users: String = (0..6)
        .map(|number| format!("{{ name = \"u{number}\", password = \"s3cret\" }},"))
        .collect();
    let listen: String = ["listen", "listen_tls", "listen_ws", "listen_wss"]
        .iter()
        .map(|key| format!("{key} = [\"127.0.0.1:0\"]\n"))
        .collect();
    let (folder, config) = file(&format!(
        "[auth]\nrealm = \"example.org\"\nusers = [{users}]\n[sip]\n{listen}tolerance = \"0s\"\n\
         [[sip.domain]]\nname = \"example.org\"\n"
    ));
    let config = format!("--config={}", config.display());
    let args = [
        "--dev",
        &config,
        "--listen=127.0.0.1:0",
        "--relay-address=127.0.0.1",
    ];
    let more = ["--offload=off", "--set=server.workers=2"];
    (folder, Serve::start(&[&args[..], &more].concat()))
}

#[test]
fn proxied_calls_over_udp_tls_and_wss() {
    let (_folder, server) = proxy();
    for (transport, scheme) in [("udp", "sip:"), ("tls", "sips:"), ("wss", "wss://")] {
        let uri = format!("sip:{}", address_of(&server, scheme));
        let mut arguments = vec!["--workload", "proxy", "--transport", transport];
        arguments.extend(["--aors", "6", "--clients", "3", "--domain", "example.org"]);
        arguments.extend(["--user", "u{n}:s3cret", "--rate", "100"]);
        arguments.extend(["--duration", "500ms", "--warm-up", "100ms"]);
        if ["tls", "wss"].contains(&transport) {
            arguments.push("--insecure");
        }
        let report = report(&uri, &arguments);
        // Each INVITE is challenged.
        adds_up(&report, 3);
        let callees = &report["sip"]["callees"];
        assert_eq!(number(&callees["registered"]), 6, "{report}");
        assert_eq!(number(&callees["left"]), 6, "{report}");
        let answered = &callees["answered"];
        // Those of the warm-up included.
        assert!(number(&answered["invite"]) >= number(&report["total"]["sent"]));
        assert_eq!(answered["invite"], answered["ack"], "{report}");
        assert_eq!(answered["invite"], answered["bye"], "{report}");
    }
    // With another password nobody is there to be called.
    let uri = format!("sip:{}", address_of(&server, "wss://"));
    let more = [
        "--user",
        "u{n}:guess",
        "--aors",
        "2",
        "--rate",
        "10",
        "--insecure",
    ];
    let common = [
        "--workload",
        "proxy",
        "--transport",
        "wss",
        "--domain",
        "example.org",
    ];
    fails(&load(&uri, &[&common[..], &more].concat()), 1, "callees");
}

#[test]
fn a_window_of_runs_and_several_threads() {
    let (server, uri) = server("127.0.0.1", &[]);
    let pid = server.id().to_string();
    for transport in TRANSPORTS {
        // Long enough for the kernel's clock of processor time, which counts 10 ms.
        let mut arguments = vec!["--workload", "call", "--window", "30", "--runs", "6000"];
        arguments.extend(["--transport", transport, "--senders", "2"]);
        arguments.extend(["--warm-up", "0s", "--duration", "60s", "--server-pid", &pid]);
        let report = report(&uri, &arguments);
        adds_up(&report, 2);
        assert_eq!(number(&report["total"]["sent"]), 6000);
        assert_eq!(report["threads"].as_array().unwrap().len(), 2);
        let server = &report["sip"]["server"];
        assert_eq!(number(&server["processes"]), 1, "{report}");
        assert!(server["cpu_us_per_unit"].as_f64() > Some(0.1), "{report}");
    }
}

#[test]
fn registrations_are_challenged_each_time_or_when_the_nonce_is_new() {
    let (_server, uri) = server("127.0.0.1", &["sip.challenge=true"]);
    let register = ["--workload", "register", "--user", "alice:s3cret"];
    let runs = ["--aors", "5", "--closed", "1", "--runs", "100"];
    let course = ["--warm-up", "0s", "--duration", "60s"];
    let common = [&register[..], &runs[..], &course[..]].concat();
    for transport in TRANSPORTS {
        let with = |more: &[&str]| {
            let more = [&common[..], &["--transport", transport], more].concat();
            let report = report(&uri, &more);
            assert_eq!(number(&report["total"]["received"]), 100, "{report}");
            let sip = &report["sip"];
            (number(&sip["challenges"]), number(&sip["requests"]))
        };
        assert_eq!(with(&[]), (100, 200));
        // One for each AOR; a machine that stands still for longer than a nonce lives sees more.
        let (challenges, requests) = with(&["--reuse-nonce"]);
        assert!((5..50).contains(&challenges), "{challenges}");
        assert_eq!(requests, 100 + challenges);
    }
    let wrong = load(&uri, &["--workload", "register", "--user", "alice:wrong"]);
    fails(&wrong, 1, "does not accept this user name and password");
    let nobody = load(&uri, &["--workload", "register"]);
    fails(&nobody, 1, "asks for a user name and a password (401)");
    let useless = load(&uri, &["--reuse-nonce", "--user", "alice:s3cret"]);
    fails(&useless, 2, "--user");
}

#[test]
fn the_answering_side_over_both_protocols_and_families() {
    for host in ["127.0.0.1", "[::1]"] {
        let listen = format!("{host}:0");
        let mut args = vec!["load", "sip", &listen, "--workload", "uas"];
        args.extend(["--ring", "5ms"]);
        let mut uas = Background::start(&args);
        let line = uas.wait_for("answering on ");
        let address = line["answering on ".len()..].split(',').next().unwrap();
        for transport in TRANSPORTS {
            let uri = format!("sip:bob@{address};transport={transport}");
            let mut arguments = vec!["--workload", "call", "--rate", "100"];
            arguments.extend(["--duration", "300ms", "--warm-up", "0s"]);
            let report = report(&uri, &arguments);
            adds_up(&report, 2);
            let rings = report["latency"]["min_us"].as_f64().unwrap();
            assert!(rings >= 5_000.0, "{report}");
        }
        uas.signal("TERM");
        let (status, summary, _) = uas.wait();
        assert!(status.success(), "{summary}");
        assert!(summary.contains("calls without ACK 0"), "{summary}");
    }
}

#[test]
fn ipv6_and_names_lead_to_a_server() {
    let (_server, uri) = server("[::1]", &[]);
    let (_server, named) = server("127.0.0.1", &[]);
    let named = named.replace("127.0.0.1", "localhost");
    for uri in [uri, named] {
        for transport in TRANSPORTS {
            let uri = format!("{uri};transport={transport}");
            let mut arguments = vec!["--workload", "call", "--closed", "5", "--runs", "50"];
            arguments.extend(["--warm-up", "0s", "--duration", "60s"]);
            let report = report(&uri, &arguments);
            adds_up(&report, 2);
        }
    }
}

#[test]
fn teststack_with_a_server_of_its_own_and_against_another() {
    let (_server, uri) = server("127.0.0.1", &[]);
    let (_, address) = uri.split_once('@').unwrap();
    let preset = ["load", "sip", "--teststack", "--runs", "200", "--json", "-"];
    for more in [&["--closed", "20"][..], &["--closed", "200"], &[address]] {
        let output = run(&[&preset[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let runs = json(&output);
        let runs = runs.as_array().unwrap();
        assert_eq!(runs.len(), 8, "{more:?}");
        for run in runs {
            assert_eq!(number(&run["completed"]), 200, "{more:?}: {run}");
            assert!(run["rate"].as_f64() > Some(1.0), "{run}");
        }
        // testStack's own words.
        let line = "200 registrations performed in";
        assert!(stderr(&output).contains(line), "{}", stderr(&output));
    }
}

#[test]
fn thresholds_and_silence_have_their_statuses() {
    let (_server, uri) = server("127.0.0.1", &[]);
    let short = ["--rate", "100", "--duration", "300ms", "--warm-up", "0s"];
    let with = |target: &str, more: &[&str]| load(target, &[&short[..], more].concat());
    let exceeded = with(&uri, &["--fail-if", "p50>1us"]);
    assert_eq!(exceeded.status.code(), Some(99), "{}", stderr(&exceeded));
    let kept = with(&uri, &["--fail-if", "loss>99%"]);
    assert_eq!(kept.status.code(), Some(0), "{}", stderr(&kept));
    // Bound, and never read.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let lost = with(&address, &["--linger", "0s", "--fail-if", "loss>50%"]);
    fails(&lost, 1, "nothing came back");
    drop(silent);
    for transport in TRANSPORTS {
        let nobody = with(&address, &["--transport", transport]);
        fails(&nobody, 1, "nothing listens on");
    }
}

#[test]
fn unsupported_options_are_reported() {
    for (target, part) in [
        ("sips:127.0.0.1;transport=udp", "never goes over UDP"),
        ("sip:127.0.0.1;transport=sctp", "transport=sctp"),
        ("sip:127.0.0.1;ttl=3", "ttl=3"),
    ] {
        fails(&load(target, &[]), 2, part);
    }
    fails(&load("127.0.0.1", &["--hold", "1s"]), 2, "--hold");
    fails(&load("127.0.0.1", &["--runs", "5"]), 2, "--closed");
}
