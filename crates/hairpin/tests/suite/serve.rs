//! `hairpin serve`: starts on free ports, prints its addresses, responds, and stops on signals.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{Background, Serve, TEST_TIMEOUT, fails, file, hairpin, run, stderr};

/// RFC 8489 §5: a Binding request without attributes.
const BINDING: [u8; 20] = [
    0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

/// Sends a Binding request and returns the answer.
fn bind(server: SocketAddr) -> Vec<u8> {
    let any = if server.is_ipv4() {
        "127.0.0.1:0"
    } else {
        "[::1]:0"
    };
    let socket = UdpSocket::bind(any).expect("loopback exists");
    socket
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    socket.send_to(&BINDING, server).expect("it leaves");
    let mut answer = [0; 1500];
    let (length, from) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, server);
    answer[..length].to_vec()
}

fn assert_binding_success(answer: &[u8]) {
    assert_eq!(answer[..2], [0x01, 0x01], "a Binding success response");
    assert_eq!(
        answer[4..20],
        BINDING[4..20],
        "the cookie and the transaction are ours"
    );
}

#[test]
fn answers_on_a_free_port_and_stops_on_sigterm() {
    let serve = Serve::start(&["--listen", "127.0.0.1:0", "--workers", "2"]);
    assert_ne!(serve.address().port(), 0, "the real port is printed");
    for _ in 0..8 {
        assert_binding_success(&bind(serve.address()));
    }
    assert!(serve.value("workers").starts_with('2'));
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success(), "{status}: {log}");
}

#[test]
fn stops_on_sigint() {
    let serve = Serve::start(&["--listen", "127.0.0.1:0"]);
    serve.signal("INT");
    assert!(serve.wait().0.success());
}

/// `hairpin serve` without the capabilities that BPF takes; setpriv is part of every Debian.
fn without_bpf(more: &[&str]) -> std::process::Command {
    let plain = hairpin(&[]);
    let mut command = std::process::Command::new("setpriv");
    command
        .arg("--bounding-set=-bpf,-net_admin,-sys_admin")
        .arg(plain.get_program())
        .args(["serve", "--listen", "127.0.0.1:0", "--workers", "2"])
        .args(more);
    for (name, _) in plain.get_envs() {
        command.env_remove(name);
    }
    command
}

#[test]
fn without_the_capabilities_the_hash_decides_and_the_log_says_what_to_grant() {
    let serve = Serve::start_command(without_bpf(&[]));
    assert!(serve.value("workers").contains("hash"), "{}", serve.banner);
    assert_binding_success(&bind(serve.address()));
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success(), "{log}");
    let missing = "CAP_BPF, CAP_NET_ADMIN missing: run as root, or grant them";
    assert_eq!(log.matches(missing).count(), 1, "{log}");

    // Who does not want it is told nothing, who insists gets nothing else.
    let quiet = Serve::start_command(without_bpf(&["--set", "server.steering=hash"]));
    quiet.signal("TERM");
    assert!(!quiet.wait().1.contains("CAP_BPF"));
    let refused = without_bpf(&["--set", "server.steering=bpf"]).output();
    let refused = refused.expect("setpriv runs");
    assert_eq!(refused.status.code(), Some(1));
    let text = stderr(&refused);
    assert!(
        text.contains("server.steering") && text.contains("CAP_BPF"),
        "{text}"
    );
}

#[test]
fn listens_on_several_addresses() {
    let serve = Serve::start(&["--listen", "127.0.0.1:0", "--listen", "[::1]:0"]);
    assert_eq!(serve.listeners.len(), 2);
    serve
        .listeners
        .iter()
        .for_each(|&listener| assert_binding_success(&bind(listener)));
}

#[test]
fn the_banner_has_all_that_a_page_needs() {
    let serve = Serve::start(&[
        "--listen",
        "127.0.0.1:0",
        "--dev",
        "--port-range",
        "50000-50999",
    ]);
    let json = serve
        .banner
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("a JSON line");
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    let server = &value["iceServers"][0];
    assert_eq!(
        server["urls"][0],
        format!("turn:{}?transport=udp", serve.address())
    );
    assert!(server["username"].as_str().unwrap().ends_with(":demo"));
    assert!(!server["credential"].as_str().unwrap().is_empty());
    assert!(serve.banner.contains("ports 50000-50999"));
    assert!(serve.value("peers").contains("loopback"));
    assert_eq!(serve.value("secret").split(' ').next().unwrap().len(), 40);
}

#[test]
fn every_start_makes_another_secret() {
    let [first, second] = [0, 1].map(|_| {
        Serve::start(&["--listen", "127.0.0.1:0"])
            .value("secret")
            .to_owned()
    });
    assert_ne!(first, second);
}

#[test]
fn a_given_secret_is_not_printed() {
    let mut command = hairpin(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("HAIRPIN_AUTH__SECRETS", "a-secret-of-the-environment");
    let serve = Serve::start_command(command);
    assert!(
        !serve.banner.contains("a-secret-of-the-environment"),
        "{}",
        serve.banner
    );
}

#[test]
fn an_address_in_use_says_so_and_what_to_do() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains(&address) && text.contains("in use") && text.contains("--listen"),
        "{text}"
    );
}

#[test]
fn an_address_of_another_host_says_so_and_what_to_do() {
    let output = run(&["serve", "--listen", "198.51.100.7:0"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("198.51.100.7") && text.contains("an address of this machine"),
        "{text}"
    );
}

#[test]
fn mistakes_in_flags_are_shown_where_they_are() {
    let output = run(&["serve", "--port-range", "9-1", "--listen", "localhost:1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("--port-range 9-1") && text.contains("--listen localhost:1"),
        "{text}"
    );
    assert!(text.contains("2 errors; nothing was started"), "{text}");
}

/// Waits until the log of a running server would contain what a reload wrote.
fn wait_for_reload() {
    std::thread::sleep(Duration::from_millis(600));
}

#[test]
fn sighup_reads_the_file_again_and_a_bad_one_changes_nothing() {
    let (_directory, path) =
        file("[listen]\nudp = [\"127.0.0.1:0\"]\n[auth]\nsecrets = [\"0123456789abcdef\"]\n");
    let serve = Serve::start(&["--config", path.to_str().unwrap()]);
    assert!(
        !serve.banner.contains("iceServers"),
        "nothing secret goes to a journal: {}",
        serve.banner
    );
    std::fs::write(&path, "[auth]\nrealm = 5\nuser = []\n").unwrap();
    serve.signal("HUP");
    wait_for_reload();
    assert_binding_success(&bind(serve.address()));
    std::fs::write(&path, "[listen]\nudp = [\"127.0.0.1:0\"]\n[auth]\nsecrets = [\"fedcba9876543210\"]\n[relay]\nports = \"50000-51000\"\n")
        .unwrap();
    serve.signal("HUP");
    wait_for_reload();
    assert_binding_success(&bind(serve.address()));
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success());
    assert!(
        log.contains("reload refused")
            && log.contains("hairpin.toml:2:9")
            && log.contains("hairpin.toml:3:1"),
        "{log}"
    );
    assert!(log.contains("configuration reloaded"), "{log}");
    assert!(
        log.contains("needs a restart to take effect: relay.ports"),
        "{log}"
    );
}

#[test]
fn the_log_is_text_in_the_journal_and_json_elsewhere() {
    for is_journal in [true, false] {
        let (_folder, log) = file("");
        let about = std::fs::metadata(&log).expect("it exists");
        let inode = about.ino() + u64::from(!is_journal);
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>>\"$LOG\""]);
        command.args([env!("CARGO_BIN_EXE_hairpin"), "serve", "--dev"]);
        command.args(["--listen", "127.0.0.1:0", "--offload", "off"]);
        command.args(["--set", "server.control_socket=off", "--admin", "off"]);
        command.env("LOG", &log);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", about.dev()));
        let serve = Serve::start_command(command);
        serve.signal("TERM");
        assert!(serve.wait().0.success());
        let text = std::fs::read_to_string(&log).expect("it exists");
        let line = text.lines().find(|line| line.contains("serving"));
        let line = line.expect("a line of the start");
        assert_eq!(line.starts_with('{'), !is_journal, "{line}");
    }
}

/// Many users of a machine can read its journal.
#[test]
fn a_server_whose_stdout_is_the_journal_shows_no_secret_and_says_so() {
    let (_folder, out) = file("");
    let about = std::fs::metadata(&out).expect("it exists");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" >>\"$OUT\""]);
    command.args([env!("CARGO_BIN_EXE_hairpin"), "serve", "--dev"]);
    command.args(["--listen", "127.0.0.1:0", "--offload", "off"]);
    command.args(["--set", "server.control_socket=off", "--admin", "off"]);
    command.env("OUT", &out);
    command.env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()));
    let mut serve = Background::start_command(command);
    while !serve.wait_for("").contains("serving") {}
    serve.signal("TERM");
    let (status, _, log) = serve.wait();
    assert!(status.success(), "{log}");
    assert_eq!(std::fs::read_to_string(&out).expect("it exists"), "");
    assert!(log.contains("no client can authenticate: "), "{log}");
}

#[test]
fn logs_are_json_when_asked_and_stdout_stays_clean() {
    let serve = Serve::start(&[
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
        "--secret",
        "short",
    ]);
    let address = serve.address().to_string();
    serve.signal("TERM");
    let (_, log) = serve.wait();
    let lines: Vec<_> = log.lines().collect();
    assert!(lines[0].contains("the secret is shorter"), "{log}");
    let mut listeners = Vec::new();
    for line in lines {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value["level"].is_string(), "{line}");
        assert!(value["timestamp"].is_string(), "{line}");
        if value["message"] == "serving" {
            listeners.push((value["listeners"].clone(), value["sip"].clone()));
        }
    }
    let expected = (serde_json::json!([address]), serde_json::json!([]));
    assert_eq!(listeners, [expected], "{log}");
}

#[test]
fn an_external_address_can_be_asked_for_at_the_start() {
    let stun = Serve::start(&["--listen", "127.0.0.1:0", "--relay-address", "127.0.0.1"]);
    let asked = stun.address().to_string();
    let sets = |server: &str| {
        let server = format!("relay.external_ip_servers={server}");
        let words = ["--listen", "127.0.0.1:0", "--relay-address", "127.0.0.2"];
        let further = ["--external-ip", "auto", "--set", &server];
        words
            .into_iter()
            .chain(further)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let words = sets(&asked);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let serve = Serve::start(&words);
    // Nothing on loopback changes addresses.
    assert!(serve.banner.contains("127.0.0.2"), "{}", serve.banner);
    drop((serve, stun));
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let silent_at = silent.local_addr().expect("bound").to_string();
    let words = sets(&silent_at);
    let mut all = vec!["serve", "--set", "server.control_socket=off"];
    all.extend(words.iter().map(String::as_str));
    let output = run(&all);
    fails(
        &output,
        1,
        "relay.external_ip: the external address is not known",
    );
    fails(&output, 1, &silent_at);
}
