//! `hairpin import`: what it makes of whole files is accepted, starts, and serves the users of the old file.

use std::fs::{self, Permissions};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{Serve, fails, run, stderr, stdout};

/// Files after patterns that are common in the field. `@DIR@` is a folder with a certificate and its key.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import");

/// A temporary folder with a certificate.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params =
        rcgen::CertificateParams::new(vec!["turn.example.org".to_owned()]).expect("it exists");
    let certificate = params.self_signed(&key).expect("it exists").pem();
    fs::write(folder.path().join("tls.crt"), certificate).expect("a file can be written");
    let key_path = folder.path().join("tls.key");
    fs::write(&key_path, key.serialize_pem()).expect("a file can be written");
    fs::set_permissions(key_path, Permissions::from_mode(0o600)).expect("a file can be written");
    folder
}

/// Imports a text in a folder, with more arguments. The result is in `hairpin.toml` there.
fn import(folder: &Path, text: &str, more: &[&str]) -> (Output, PathBuf) {
    let (from, to) = (folder.join("old.conf"), folder.join("hairpin.toml"));
    let text = text.replace("@DIR@", folder.to_str().expect("a temporary path is UTF-8"));
    fs::write(&from, text).expect("a file can be written");
    let mut args = vec![
        "import",
        from.to_str().expect("a temporary path is UTF-8"),
        "--output",
        to.to_str().expect("a temporary path is UTF-8"),
    ];
    args.extend(more);
    (run(&args), to)
}

fn accepted(path: &Path) {
    let output = run(&["check", path.to_str().expect("a temporary path is UTF-8")]);
    let made = fs::read_to_string(path).expect("it exists");
    assert!(output.status.success(), "{made}\n{}", stderr(&output));
}

#[test]
fn every_example_passes_check_and_no_line_is_lost() {
    let mut count = 0;
    for entry in fs::read_dir(EXAMPLES).expect("it exists") {
        let path = entry.expect("it exists").path();
        let text = fs::read_to_string(&path).expect("it exists");
        let folder = folder();
        let (output, made) = import(folder.path(), &text, &[]);
        let report = stderr(&output);
        assert!(output.status.success(), "{}: {report}", path.display());
        accepted(&made);
        assert_eq!(
            made.metadata().expect("it exists").permissions().mode() & 0o777,
            0o600
        );
        for (number, line) in (1..).zip(text.lines()) {
            let has_option = !line.is_empty() && !line.starts_with('#');
            let reported = report.contains(&format!("old.conf:{number}: "));
            assert_eq!(
                has_option,
                reported,
                "{}:{number}: {report}",
                path.display()
            );
        }
        count += 1;
    }
    assert!(count >= 20, "{count} examples");
}

#[test]
fn the_examples_of_an_installed_coturn_pass_check() {
    for path in [
        "/usr/share/doc/coturn/examples/etc/turnserver.conf",
        "/etc/turnserver.conf",
    ] {
        // Only where Debian's package is installed.
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        // Every option that is commented out there, as if somebody had removed the `#`.
        let active: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .filter(|line| {
                line.split(['=', ' '])
                    .next()
                    .is_some_and(|name| name.contains('-'))
            })
            .filter(|line| line.contains('=') || !line.contains(' '))
            .map(|line| format!("{line}\n"))
            .collect();
        for (text, is_whole) in [(&text, true), (&active, false)] {
            let folder = folder();
            let (output, made) = import(folder.path(), text, &["--from", "coturn"]);
            if is_whole {
                assert!(output.status.success(), "{path}: {}", stderr(&output));
            }
            accepted(&made);
        }
    }
}

#[test]
fn the_configuration_of_an_installed_kamailio_is_understood_with_each_feature() {
    // Only where Debian's package is installed.
    let Ok(text) = fs::read_to_string("/etc/kamailio/kamailio.cfg") else {
        return;
    };
    let mut features: Vec<&str> = text
        .split("#!ifdef WITH_")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next())
        .collect();
    features.sort_unstable();
    features.dedup();
    let defines: String = features
        .iter()
        .map(|name| format!("#!define WITH_{name}\n"))
        .collect();
    let expressions = "#!substdef \"!LISTEN_IP!192.0.2.7!g\"\n#!ifexp A && B\n#!endif\n";
    let everything = format!("#!KAMAILIO\n{defines}{text}");
    let unread = format!("#!KAMAILIO\n{expressions}{text}");
    for (text, is_understood) in [(&text, true), (&everything, true), (&unread, false)] {
        let folder = folder();
        let (output, made) = import(folder.path(), text, &[]);
        let report = stderr(&output);
        assert_eq!(output.status.success(), is_understood, "{report}");
        assert!(report.contains("request_route: replaced"), "{report}");
        accepted(&made);
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("it exists");
    socket.local_addr().expect("it exists").port()
}

/// Imports the text with a free port, starts the server, and lets a client relay.
fn serves(text: &str, more: &[&str], credentials: &[&str]) {
    let (folder, port) = (folder(), free_port().to_string());
    let text =
        format!("listening-ip=127.0.0.1\nlistening-port={port}\nallow-loopback-peers\n{text}");
    let store = format!("sqlite:{}/users.db", folder.path().display());
    let mut args = more.to_vec();
    args.iter_mut()
        .filter(|arg| **arg == "@STORE@")
        .for_each(|arg| *arg = &store);
    let (output, made) = import(folder.path(), &text, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let made = made.display().to_string();
    let server = Serve::start(&["--config", &made, "--offload", "off", "--workers", "1"]);
    let target = server.address().to_string();
    assert!(target.ends_with(&port), "{target}");
    let mut probe = vec!["probe", "turn", &target];
    probe.extend(credentials);
    let output = run(&probe);
    assert!(
        output.status.success(),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    let output = run(&["probe", "turn", &target, "--user", "alice:wrong"]);
    assert!(!output.status.success());
}

#[test]
fn a_user_of_the_old_file_gets_a_relay() {
    serves(
        "realm=example.org\nuser=alice:s3:cret\n",
        &[],
        &["--user", "alice:s3:cret"],
    );
}

#[test]
fn a_secret_of_the_old_file_makes_credentials() {
    let secret = "0123456789abcdef0123";
    let text = format!(
        "use-auth-secret\nstatic-auth-secret={secret}\nrealm=example.org\nmin-port=20000\nmax-port=20999\n"
    );
    serves(&text, &[], &["--secret", secret]);
}

#[test]
fn a_user_with_a_key_gets_a_relay_from_the_database() {
    // MD5 of gorst:north.gov:hero, from coturn's documentation.
    let text = "realm=north.gov\nuser=gorst:0x7da2270ccfa49786e0115366d3a3d14d\nuser=bob:s3cret\n";
    serves(text, &["--database", "@STORE@"], &["--user", "gorst:hero"]);
    serves(text, &["--database", "@STORE@"], &["--user", "bob:s3cret"]);
}

/// Moves the addresses of a configuration to this machine, and its ports to free ones.
fn moved_here(value: &mut toml::Value) {
    match value {
        toml::Value::String(text) if text.parse::<SocketAddr>().is_ok() => {
            *text = "127.0.0.1:0".to_owned();
        }
        toml::Value::String(text) if text.parse::<IpAddr>().is_ok() => {
            *text = "127.0.0.1".to_owned();
        }
        toml::Value::Array(list) => {
            list.iter_mut().for_each(moved_here);
            // Addresses of several networks are now the same.
            let mut known = Vec::new();
            list.retain(|value| {
                let is_new = !known.contains(value);
                known.push(value.clone());
                is_new
            });
        }
        toml::Value::Table(table) => table.iter_mut().for_each(|(_, value)| moved_here(value)),
        _ => {}
    }
}

/// The same for the whole text. Peers of this machine are allowed, and databases of other machines are not used.
fn made_local(made: &str) -> String {
    let mut made: toml::Table = made.parse().expect("it is TOML");
    // They need servers and addresses that this machine has not.
    for name in ["alternate", "nat_discovery"] {
        made.remove(name);
    }
    let mut section = |name: &str| {
        let section = made.entry(name).or_insert(toml::Table::new().into());
        section.as_table().cloned().expect("a section is a table")
    };
    let (mut auth, mut relay, mut peers) = (section("auth"), section("relay"), section("peers"));
    auth.remove("stores");
    relay.remove("external_ip");
    relay.insert("addresses".to_owned(), vec!["127.0.0.1"].into());
    peers.insert("allow_local".to_owned(), true.into());
    peers.insert("allow".to_owned(), vec!["127.0.0.1/32"].into());
    for (name, section) in [("auth", auth), ("relay", relay), ("peers", peers)] {
        made.insert(name.to_owned(), section.into());
    }
    made.iter_mut().for_each(|(_, value)| moved_here(value));
    made.to_string()
}

/// What a client of the old file has: a user, or the secret.
fn credentials(text: &str) -> Option<[&str; 2]> {
    let find = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    // The password of a user with a key is not in the file.
    let user = find("user=").filter(|user| !user.contains(":0x"));
    let secret = || find("static-auth-secret=").map(|secret| secret.trim().trim_matches('"'));
    let user = user.map(|user| ["--user", user]);
    user.or_else(|| secret().map(|secret| ["--secret", secret]))
}

/// Starts a server with the imported example. A client of the old file gets a relay; returns whether there is one.
fn starts_and_relays(name: &str) -> bool {
    let text = fs::read_to_string(format!("{EXAMPLES}/{name}")).expect("it exists");
    text_starts_and_relays(name, &text)
}

fn text_starts_and_relays(name: &str, text: &str) -> bool {
    let folder = folder();
    let (output, made) = import(folder.path(), text, &["--from", "coturn"]);
    assert!(output.status.success(), "{name}: {}", stderr(&output));
    accepted(&made);
    let local = made_local(&fs::read_to_string(&made).expect("it exists"));
    fs::write(&made, local).expect("a file can be written");
    let made = made.display().to_string();
    let server = Serve::start(&["--config", &made, "--offload", "off", "--workers", "1"]);
    let Some(credentials) = credentials(text) else {
        return false;
    };
    let mut probe = vec!["probe", "turn"];
    let target = server.address().to_string();
    probe.push(&target);
    probe.extend(credentials);
    let output = run(&probe);
    let (said, why) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{name}: {said}{why}");
    true
}

#[test]
fn some_examples_start_and_relay_for_clients_of_the_old_file() {
    let names = [
        "two-families.conf",
        "cloud-nat.conf",
        "tls-only.conf",
        "comments.conf",
        "small-vps.conf",
    ];
    for name in names {
        assert!(starts_and_relays(name), "{name}");
    }
}

#[test]
#[ignore = "starts 23 servers"]
fn every_example_starts_and_relays_for_clients_of_the_old_file() {
    let names = fs::read_dir(EXAMPLES).expect("it exists");
    let names: Vec<_> = names
        .map(|entry| entry.expect("it exists").file_name())
        .filter_map(|name| name.into_string().ok())
        .collect();
    let relays = names.iter().filter(|name| starts_and_relays(name)).count();
    // The users of the others are in databases.
    assert!(names.len() >= 20 && relays >= 15, "{relays} of {names:?}");
}

/// The text with the certificate of the test. Files from elsewhere name certificates that this machine has not.
fn with_certificate(text: &str) -> String {
    let line = |line: &str| match line.trim_start().split(['=', ' ']).next() {
        Some("cert") => "cert=@DIR@/tls.crt\n".to_owned(),
        Some("pkey") => "pkey=@DIR@/tls.key\n".to_owned(),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
#[ignore = "needs HAIRPIN_TEST_CONFIGURATIONS, a folder with configurations of coturn that end in .conf"]
fn configurations_from_elsewhere_pass_check_start_and_relay_for_their_clients() {
    let folder = std::env::var_os("HAIRPIN_TEST_CONFIGURATIONS").expect("a folder");
    let entries = fs::read_dir(folder).expect("it exists");
    let paths = entries.map(|entry| entry.expect("it exists").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "conf"))
        .collect();
    paths.sort();
    let mut relays = 0;
    for path in &paths {
        let text = with_certificate(&fs::read_to_string(path).expect("it is text"));
        let name = path.display().to_string();
        let has_relay = text_starts_and_relays(&name, &text);
        println!("{name}: {}", if has_relay { "relays" } else { "starts" });
        relays += usize::from(has_relay);
    }
    println!(
        "{} start, {relays} of them relay for a client of the file",
        paths.len()
    );
    assert!(!paths.is_empty() && relays > 0);
}

#[test]
fn a_line_that_is_not_understood_fails_and_the_rest_is_written() {
    let folder = folder();
    let (output, made) = import(
        folder.path(),
        "realm=example.org\nlistening-prt=3478\n",
        &["--from", "coturn"],
    );
    fails(&output, 1, "old.conf:2: listening-prt 3478: not understood");
    assert!(stderr(&output).contains("2 lines: 1 carried over"));
    accepted(&made);
    let (again, _) = import(folder.path(), "realm=example.org\n", &[]);
    fails(&again, 1, "--output never replaces a file");
}

#[test]
fn a_certificate_that_is_missing_is_an_error_of_check() {
    let folder = folder();
    let (output, made) = import(folder.path(), "cert=/nowhere.pem\npkey=/nowhere.key\n", &[]);
    fails(&output, 1, "hairpin check does not accept");
    assert!(made.exists());
}

#[test]
fn a_file_of_no_server_is_refused() {
    let folder = folder();
    let (output, _) = import(folder.path(), "some text\nand more\n", &[]);
    fails(&output, 1, "name the server with --from");
}

#[test]
fn other_servers_are_recognized() {
    for (text, server) in [
        (
            "eturnal:\n  secret: 0123456789abcdef\n  realm: example.org\n",
            "eturnal",
        ),
        (
            "#!KAMAILIO\n#!define WITH_AUTH\nalias=\"example.org\"\n",
            "Kamailio",
        ),
        ("UDPPort = 5060\nDomains = example.org\n", "repro"),
    ] {
        let folder = folder();
        let (output, made) = import(folder.path(), text, &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        accepted(&made);
        let made = fs::read_to_string(made).expect("it exists");
        assert!(
            made.starts_with("# Made by `hairpin import`") && made.contains(server),
            "{made}"
        );
    }
}
