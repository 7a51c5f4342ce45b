//! `hairpin probe` against our own server, and against none.

use std::net::UdpSocket;

use std::time::Instant;

use crate::common::{Serve, TEST_TIMEOUT, file, hairpin, run, stderr, stdout};

const SECRET: &str = "0123456789abcdef";

/// A server whose relays are on loopback, so that it does not matter what else the machine has.
fn server() -> Serve {
    Serve::start(&[
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--secret",
        SECRET,
        "--user",
        "alice:s3cret",
        "--realm",
        "example.org",
    ])
}

fn json(output: &std::process::Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {} {}", stdout(output), stderr(output)))
}

#[test]
fn stun_says_what_the_server_sees() {
    let server = server();
    let output = run(&["probe", "stun", &server.address().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("mapped       127.0.0.1:"),
        "{}",
        stdout(&output)
    );
    assert!(stdout(&output).contains("no NAT"));
    let value = json(&run(&[
        "probe",
        "stun",
        &format!("stun:{}", server.address()),
        "--json",
    ]));
    assert_eq!(value["ok"], true);
    assert_eq!(value["mapped"], value["local"]);
    assert!(value["round_trip_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn turn_relays_with_time_limited_credentials() {
    let server = server();
    let output = run(&[
        "probe",
        "turn",
        &server.address().to_string(),
        "--secret",
        SECRET,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("relayed      127.0.0.1:") && text.contains("relaying     works"),
        "{text}"
    );
    assert!(text.contains("realm \"example.org\""), "{text}");
}

#[test]
fn turn_relays_with_a_fixed_password() {
    let server = server();
    let output = run(&[
        "probe",
        "turn",
        &format!("turn:{}?transport=udp", server.address()),
        "--user",
        "alice:s3cret",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let value = json(&output);
    assert_eq!(value["ok"], true);
    assert!(value["relayed"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(value["relayed_round_trip_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(value["lifetime_s"], 600);
}

#[test]
fn a_wrong_password_differs_from_a_dead_server() {
    let server = server();
    let target = server.address().to_string();
    let output = run(&["probe", "turn", &target, "--user", "alice:wrong", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["ok"], false);
    assert!(stderr(&output).contains("password"), "{}", stderr(&output));
    let output = run(&["probe", "turn", &target]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--secret"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = UdpSocket::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .to_string();
    let output = run(&["probe", "stun", &free]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&free), "{}", stderr(&output));
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let output = run(&[
        "probe",
        "stun",
        &silent.local_addr().unwrap().to_string(),
        "--timeout",
        "1s",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
}

#[test]
fn wrong_arguments_have_status_2() {
    for args in [
        &["stun", "https://example.org"][..],
        &["stun", "127.0.0.1", "--timeout", "soon"],
        &["turn", "127.0.0.1", "--user", "no-colon"],
        &["turn", "turns:127.0.0.1?transport=sctp"],
        &["turn", "127.0.0.1", "--user", "a:b", "--secret", "c"],
        &["turn"],
        &["smtp", "127.0.0.1"],
    ] {
        let output = hairpin(&["probe"]).args(args).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_reload_changes_secrets_without_a_gap() {
    let write = |path: &std::path::Path, secrets: &str| {
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nsecrets = [{secrets}]\n"
        );
        std::fs::write(path, text).expect("the file can be written");
    };
    let (_directory, path) = file("");
    write(&path, "\"the-first-secret\"");
    let server = Serve::start(&["--config", path.to_str().unwrap()]);
    let target = server.address().to_string();
    let works = |secret: &str| {
        run(&["probe", "turn", &target, "--secret", secret])
            .status
            .success()
    };
    assert!(works("the-first-secret") && !works("the-second-secret"));
    write(&path, "\"the-second-secret\", \"the-first-secret\"");
    server.signal("HUP");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !works("the-second-secret") {
        assert!(Instant::now() < deadline, "the reload does nothing");
    }
    assert!(works("the-first-secret"));
    write(&path, "\"the-second-secret\"");
    server.signal("HUP");
    while works("the-first-secret") {
        assert!(Instant::now() < deadline, "the old secret stays");
    }
    assert!(works("the-second-secret"));
}

#[test]
fn software_is_sent_to_clients_with_credentials_if_it_is_set() {
    let (_directory, path) = file(
        "[server]\nsoftware = \"relay of example.org\"\n[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nsecrets = [\"0123456789abcdef\"]\n",
    );
    let server = Serve::start(&["--config", path.to_str().unwrap()]);
    let target = server.address().to_string();
    let secret = ["--secret", "0123456789abcdef"];
    let turn = json(&run(&[
        "probe", "turn", &target, secret[0], secret[1], "--json",
    ]));
    let stun = json(&run(&["probe", "stun", &target, "--json"]));
    let wanted: serde_json::Value = "relay of example.org".into();
    assert_eq!(turn["software"], wanted, "{turn}");
    assert!(!stun.to_string().contains("relay of"), "{stun}");
}

#[test]
fn possible_offload_modes_are_reported_with_reasons_and_a_status() {
    let output = run(&["probe", "offload", "lo", "--json"]);
    let value = json(&output);
    let lo = &value["interfaces"][0];
    assert_eq!(lo["interface"], "lo");
    assert_eq!(lo["xdp"]["possible"], false);
    assert!(lo["xdp"]["text"].is_string());
    let possible = lo["tc"]["possible"] == true;
    assert_eq!(
        (&lo["auto"], &value["ok"]),
        (
            &if possible { "tc" } else { "user" }.into(),
            &possible.into()
        )
    );
    assert_eq!(output.status.code(), Some(i32::from(!possible)));
    let output = run(&["probe", "offload"]);
    assert!(
        stdout(&output).starts_with("interface"),
        "{}",
        stderr(&output)
    );
    let output = run(&["probe", "offload", "nosuch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nosuch: no interface"));
}

#[test]
fn the_banner_says_who_relays_on_each_interface() {
    let server = server();
    assert!(server.value("offload").starts_with("lo: "));
    let off = Serve::start(&["--listen", "127.0.0.1:0", "--offload", "off"]);
    assert!(off.value("offload").starts_with("off: "));
    let output = run(&["serve", "--offload", "fast"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("\"xdp\""), "{}", stderr(&output));
}

/// Over UDP, TCP, TLS and DTLS.
#[test]
fn every_uri_that_a_development_server_prints_works() {
    let server = Serve::start(&[
        "--dev",
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--user",
        "alice:s3cret",
    ]);
    let banner = server.banner();
    let line = banner
        .lines()
        .find(|line| line.starts_with("{\"iceServers\""))
        .unwrap_or_else(|| panic!("no iceServers in {banner}"));
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let uris = value["iceServers"][0]["urls"].as_array().unwrap();
    let mut versions = Vec::new();
    for uri in uris.iter().map(|uri| uri.as_str().unwrap()) {
        let mut args = vec!["probe", "turn", uri, "--user", "alice:s3cret", "--json"];
        if uri.starts_with("turns:") {
            args.push("--insecure");
        }
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{uri}: {}", stderr(&output));
        let tls = &json(&output)["connection"]["tls"]["version"];
        versions.push(tls.as_str().unwrap_or("none").to_owned());
    }
    assert_eq!(versions, ["none", "none", "TLS 1.3", "DTLS 1.2"]);
    let dtls = uris[3].as_str().unwrap();
    let (_folder, path) = file("no certificate is in here");
    let output = run(&["probe", "turn", dtls, "--ca", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// The samples of a page of metrics.
fn samples(address: &str) -> Vec<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("the exporter listens");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it responds");
    let (_, page) = text.split_once("\r\n\r\n").expect("a body");
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// The value of the sample of this metric whose labels contain these texts.
fn value(samples: &[String], name: &str, labels: [&str; 2]) -> Option<f64> {
    let is_it = |line: &&String| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    };
    let line = samples.iter().find(is_it)?;
    line.rsplit_once(' ')
        .and_then(|(_, value)| value.parse().ok())
}

fn rounds(samples: &[String], target: &str, outcome: &str) -> f64 {
    value(samples, "hairpin_probe_rounds_total", [target, outcome]).unwrap_or(0.0)
}

/// The samples after two rounds over UDP, one over TCP, and one with a server that is not there.
fn after_some_rounds(address: &str, nobody: &str) -> Vec<String> {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let now = samples(address);
        let is_done = rounds(&now, "\"udp\"", "\"success\"") >= 2.0
            && rounds(&now, "\"tcp\"", "\"success\"") >= 1.0
            && rounds(&now, nobody, "\"unreachable\"") >= 1.0;
        if is_done || Instant::now() > end {
            return now;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn an_exporter_shows_success_loss_and_delay_of_each_transport() {
    use std::io::BufRead;
    let server = server();
    let udp = format!("turn:{}", server.address());
    // Another port than that of UDP.
    let line = server
        .banner
        .lines()
        .find_map(|line| line.strip_prefix("listening")?.trim().strip_prefix("tcp "));
    let at = line
        .and_then(|rest| rest.split_whitespace().next())
        .expect("a TCP listener");
    let tcp = format!("turn:{at}?transport=tcp");
    let nobody = {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        format!("turn:{}", socket.local_addr().expect("it is bound"))
    };
    let mut command = hairpin(&[
        "probe",
        "turn",
        &udp,
        "--also",
        &tcp,
        "--also",
        &nobody,
        "--user",
        "alice:s3cret",
        "--every",
        "5s",
        "--timeout",
        "2s",
        "--exporter",
        "127.0.0.1:0",
    ]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("stdout is piped"));
    output.read_line(&mut line).expect("it prints its address");
    let address = line.split('/').nth(2).expect("a URL").to_owned();
    let last = after_some_rounds(&address, &nobody);
    let _ = child.kill();
    let _ = child.wait();
    let of = |name: &str, target: &str, transport| value(&last, name, [target, transport]);
    let udp = format!("\"{udp}\"");
    assert_eq!(
        of("hairpin_probe_success", &udp, "\"udp\""),
        Some(1.0),
        "{last:#?}"
    );
    assert_eq!(of("hairpin_probe_loss_ratio", &udp, "\"udp\""), Some(0.0));
    assert_eq!(of("hairpin_probe_success", &tcp, "\"tcp\""), Some(1.0));
    assert!(of("hairpin_probe_round_trip_seconds", &tcp, "\"tcp\"") > Some(0.0));
    assert!(of("hairpin_probe_connect_seconds", &tcp, "\"tcp\"") > Some(0.0));
    assert_eq!(of("hairpin_probe_connect_seconds", &udp, "\"udp\""), None);
    assert_eq!(of("hairpin_probe_success", &nobody, "\"udp\""), Some(0.0));
    assert_eq!(
        of("hairpin_probe_allocate_seconds", &nobody, "\"udp\""),
        None
    );
    assert!(rounds(&last, &nobody, "\"unreachable\"") >= 1.0);
}

#[test]
fn an_exporter_refuses_arguments_that_make_no_sense() {
    let target = "turn:127.0.0.1";
    for (more, part) in [
        (&["--every", "1s"][..], "--every: must be from 5s to 3600s"),
        (&["--also", target][..], "is given twice"),
        (&["--also", "https://a"][..], ""),
        (&["--user", "alice"][..], "expected NAME:PASSWORD"),
    ] {
        let args = ["probe", "turn", target, "--exporter", "127.0.0.1:0"];
        crate::common::fails(&run(&[&args[..], more].concat()), 2, part);
    }
    crate::common::fails(
        &run(&["probe", "turn", target, "--every", "30s"]),
        2,
        "--exporter",
    );
}
