//! `hairpin creds`: the credentials that every TURN server with a shared secret admits.

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{file, hairpin, run, stderr, stdout};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// base64(HMAC-SHA1(secret, username)), written down a second time.
fn formula(secret: &str, username: &str) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).expect("any key will do");
    mac.update(username.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

fn json(output: &std::process::Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).expect("JSON")
}

#[test]
fn password_and_expiry_follow_the_formula() {
    let output = run(&[
        "creds",
        "--secret",
        "0123456789abcdef",
        "--user",
        "alice",
        "--ttl",
        "1h",
        "--uri",
        "turn:example.org",
    ]);
    let value = json(&output);
    let server = &value["iceServers"][0];
    let username = server["username"].as_str().unwrap();
    let (expiry, name) = username.split_once(':').unwrap();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(expiry.parse::<u64>().unwrap().abs_diff(now + 3600) <= 5);
    assert_eq!(name, "alice");
    assert_eq!(server["credential"], formula("0123456789abcdef", username));
    assert_eq!(server["urls"][0], "turn:example.org");
}

#[test]
fn the_other_formats_carry_the_same() {
    let arguments = [
        "creds",
        "--secret",
        "0123456789abcdef",
        "--uri",
        "turn:example.org:1",
        "--format",
    ];
    let env = stdout(&run(&[&arguments[..], &["env"]].concat()));
    let value = |name: &str| {
        let line = env
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .unwrap();
        line.trim_matches('\'').to_owned()
    };
    assert_eq!(value("TURN_URI"), "turn:example.org:1");
    assert_eq!(
        value("TURN_PASSWORD"),
        formula("0123456789abcdef", &value("TURN_USERNAME"))
    );
    let uri = stdout(&run(&[&arguments[..], &["uri"]].concat()));
    assert!(
        uri.starts_with("turn://") && uri.ends_with("@example.org:1\n"),
        "{uri}"
    );
}

#[test]
fn the_secret_comes_from_flag_environment_or_file() {
    let (_directory, path) =
        file("[auth]\nsecrets = [\"secret-of-the-file\", \"an-older-one-of-it\"]\n");
    let from_file = json(&run(&["creds", "--config", path.to_str().unwrap()]));
    let from_environment = json(
        &hairpin(&["creds"])
            .env("HAIRPIN_AUTH__SECRETS", "secret-of-the-file")
            .output()
            .unwrap(),
    );
    for value in [from_file, from_environment] {
        let server = &value["iceServers"][0];
        assert_eq!(
            server["credential"],
            formula("secret-of-the-file", server["username"].as_str().unwrap())
        );
    }
}

#[test]
fn without_a_secret_it_says_how_to_give_one() {
    let output = run(&["creds"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("--secret") && stderr(&output).contains("HAIRPIN_AUTH__SECRETS")
    );
}

#[test]
fn a_lifetime_without_sense_is_refused() {
    let output = run(&["creds", "--secret", "0123456789abcdef", "--ttl", "10"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("--ttl") && stderr(&output).contains("10s"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_uri_that_no_client_takes_is_refused() {
    let output = run(&[
        "creds",
        "--secret",
        "0123456789abcdef",
        "--uri",
        "turn://example.org",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no slashes"),
        "{}",
        stderr(&output)
    );
}
