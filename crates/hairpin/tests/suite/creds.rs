//! `hairpin creds`: the credentials that every TURN server with a shared secret admits.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{file, hairpin, run, stderr, stdout};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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
    let output = run(&["creds", "--secret", "0123456789abcdef", "--ttl", "10x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("--ttl") && stderr(&output).contains("10m"),
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

const TOKEN_KEY: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[test]
fn an_access_token_has_the_members_of_an_authorization_servers_answer() {
    let output = run(&["creds", "oauth", "--key", TOKEN_KEY, "--ttl", "30m"]);
    let answer = json(&output);
    assert_eq!(answer["kid"], "k1");
    assert_eq!(answer["expires_in"], 1800);
    assert_eq!(answer["token_type"], "pop");
    assert_eq!(answer["alg"], "HMAC-SHA-1");
    let decoded = |member: &str| STANDARD.decode(answer[member].as_str().unwrap()).unwrap();
    assert_eq!(decoded("key").len(), 20);
    // Nonce length and nonce; key length, key, timestamp, lifetime; tag.
    assert_eq!(decoded("access_token").len(), 2 + 12 + 2 + 20 + 8 + 4 + 16);
}

#[test]
fn a_token_without_a_usable_key_is_refused_with_advice() {
    for (arguments, part) in [
        (&[][..], "give --key KID:BASE64"),
        (&["--key", "k1:AAAA"], "has 3 bytes; A256GCM requires 32"),
        (&["--key", TOKEN_KEY, "--kid", "k2"], "has no key `k2`"),
        (&["--key", TOKEN_KEY, "--ttl", "200y"], "--ttl"),
    ] {
        let output = run(&[&["creds", "oauth"], arguments].concat());
        assert!(!output.status.success(), "{part}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}
