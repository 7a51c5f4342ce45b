//! `hairpin check`: status, and what goes to which stream.

use crate::common::{file, hairpin, run, stderr, stdout};

fn check(text: &str, flags: &[&str]) -> std::process::Output {
    let (_directory, path) = file(text);
    let mut args = vec!["check", path.to_str().expect("a temporary path is UTF-8")];
    args.extend(flags);
    run(&args)
}

#[test]
fn a_good_file_is_summed_up() {
    let output = check(
        "[listen]\nudp = [\"192.0.2.1:3478\"]\n[auth]\nusers = [{ name = \"a\", password = \"b\" }]\n",
        &[],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains(": ok\n") && text.contains("udp 192.0.2.1:3478") && text.contains("1 user"),
        "{text}"
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_bad_file_yields_every_mistake_and_status_1() {
    let output = check(
        "[listen]\nudp = [\"x\"]\n[auth]\nrelm = \"y\"\nsecrets = [\"\"]\n",
        &[],
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let text = stderr(&output);
    assert!(text.contains("3 errors"), "{text}");
    assert!(
        text.contains("hairpin.toml:2:8")
            && text.contains("hairpin.toml:4:1")
            && text.contains("hairpin.toml:5:12"),
        "{text}"
    );
    assert!(
        text.contains("^^^") && text.contains("did you mean `realm`?"),
        "{text}"
    );
    assert!(
        !text.contains('\u{1b}'),
        "no colours, since this is no terminal"
    );
}

#[test]
fn warnings_do_not_fail_it() {
    let output = check("[auth]\nsecrets = [\"short\"]\n", &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("warning: the secret is shorter"));
    assert!(stdout(&output).contains("ok (1 warning)"));
}

#[test]
fn the_effective_configuration_names_origins_and_hides_secrets() {
    let text = "[auth]\nsecrets = [\"0123456789abcdef\"]\nrealm = \"r\"\n";
    let output = check(text, &["--effective"]);
    let shown = stdout(&output);
    assert!(
        shown.contains("realm = \"r\"  # ") && shown.contains("hairpin.toml:3:9"),
        "{shown}"
    );
    assert!(
        shown.contains("secrets = [\"***\"]") && !shown.contains("0123"),
        "{shown}"
    );
    assert!(stdout(&check(text, &["--effective", "--show-secrets"])).contains("0123456789abcdef"));
}

/// A configuration with a secret in each SIP key that has one.
const SIP_SECRETS: &str = r#"
[sip]
listen = ["127.0.0.1:5060"]
trace_hep = ["192.0.2.1:9060"]
trace_hep_password = "hidden-hep"
[[sip.domain]]
name = "example.com"
users = [{ name = "alice", password = "hidden-user" }]
[[sip.trunk]]
name = "carrier"
to = ["sip:192.0.2.7:5060"]
user = "line7"
password = "hidden-trunk"
"#;

#[test]
fn the_effective_configuration_hides_the_secrets_of_sip() {
    let output = check(SIP_SECRETS, &["--effective"]);
    let shown = stdout(&output);
    assert!(!shown.contains("hidden"), "{shown}");
    assert!(
        shown.contains(r#"user = "line7", password = "***""#),
        "{shown}"
    );
    let shown = stdout(&check(SIP_SECRETS, &["--effective", "--show-secrets"]));
    for secret in ["hidden-hep", "hidden-user", "hidden-trunk"] {
        assert!(shown.contains(secret), "{secret}: {shown}");
    }
}

#[test]
fn a_trunk_of_the_environment_is_not_shown_with_its_password() {
    let (_directory, path) = file("[auth]\nrealm = \"x\"\n");
    for key in ["HAIRPIN_SIP__TRUNK", "HAIRPIN_SIP__DOMAIN"] {
        let output = hairpin(&["check", path.to_str().unwrap()])
            .env(key, "password=hidden-trunk")
            .output()
            .unwrap();
        let shown = stderr(&output) + &stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{shown}");
        assert!(shown.contains(key) && !shown.contains("hidden"), "{shown}");
    }
}

#[test]
fn the_environment_is_a_part_of_it() {
    let (_directory, path) = file("[auth]\nrealm = \"x\"\n");
    let output = hairpin(&["check", path.to_str().unwrap()])
        .env("HAIRPIN_SERVER__WORKERS", "many")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("HAIRPIN_SERVER__WORKERS=many"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let output = run(&["check", "/does/not/exist.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("cannot open /does/not/exist.toml: No such file"),
        "{}",
        stderr(&output)
    );
    let output = run(&["check", "/"]);
    assert!(
        stderr(&output).contains("/ is a directory"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn usage_errors_have_status_2() {
    for args in [
        &["check"][..],
        &["check", "a", "b"],
        &["check", "--no-such-flag", "x"],
        &["no-such-command"],
        &[],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for command in [
        &["--help"][..],
        &["serve", "--help"],
        &["check", "--help"],
        &["creds", "--help"],
        &["probe", "turn", "--help"],
    ] {
        let output = run(command);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Examples:"), "{command:?}");
    }
    let version = stdout(&run(&["--version"]));
    let start = format!("hairpin {} (", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&start), "{version}");
    let target = format!("{}-linux", std::env::consts::ARCH);
    assert!(
        version.contains(&target) && version.contains("features: "),
        "{version}"
    );
}

#[test]
fn each_command_has_a_manual_page_and_shells_have_completions() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["man", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    for command in [
        "",
        "-serve",
        "-check",
        "-upgrade",
        "-load-turn",
        "-probe-nat",
    ] {
        let page = folder.path().join(format!("hairpin{command}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(
            text.contains(".SH NAME") && text.contains("Examples"),
            "{text}"
        );
    }
    let missing = run(&["man", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(1));
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(
            script.contains("upgrade") && script.contains("hairpin"),
            "{shell}"
        );
    }
}

#[test]
fn nat_discovery_has_two_addresses_and_two_ports_or_an_error() {
    let of = |listen: &str, rest: &str| {
        let text = format!(
            "[listen]\nudp = [{listen}]\n[nat_discovery]\n{rest}\n[auth]\nsecrets = [\"0123456789abcdef\"]\n"
        );
        let output = check(&text, &[]);
        (output.status.code(), stderr(&output))
    };
    let first = "\"192.0.2.1:3478\"";
    let (status, text) = of(first, "udp = [\"192.0.2.2:3479\"]");
    assert_eq!(status, Some(0), "{text}");
    for (listen, rest, expected) in [
        (
            first,
            "udp = [\"192.0.2.2:3478\"]",
            "another address and another port",
        ),
        (
            first,
            "udp = [\"192.0.2.1:3479\"]",
            "another address and another port",
        ),
        (
            first,
            "udp = [\"[2001:db8::2]:3479\"]",
            "has no listener of its transport",
        ),
        (
            first,
            "udp = [\"192.0.2.2:50000\"]",
            "lies in the relay range",
        ),
        (
            first,
            "tls = [\"192.0.2.2:5350\"]",
            "has no listener of its transport",
        ),
        (
            first,
            "external_ip = [\"203.0.113.1\"]",
            "which of the two addresses",
        ),
        (
            "\"0.0.0.0:3478\"",
            "udp = [\"192.0.2.2:3479\"]",
            "does not name one address",
        ),
    ] {
        let (status, text) = of(listen, rest);
        assert_eq!(status, Some(1), "{rest}: {text}");
        assert!(
            text.contains(expected) && text.contains("hairpin.toml:4:"),
            "{rest}: {text}"
        );
    }
}
