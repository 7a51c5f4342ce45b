//! The examples with sockets, together on the loopback interface: phones register at the proxy and call each other,
//! through it and through the B2BUA. Ports are free ones, and nothing depends on how fast anything is.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it runs programs, and waits for them"
)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const EXAMPLES: [&str; 5] = ["uac", "uas", "registrar", "proxy", "b2bua"];

/// How long something may take that happens.
const LONG: Duration = Duration::from_secs(120);

/// Cargo builds the examples beside the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let target = test.ancestors().nth(2).expect("target/PROFILE");
    let program = target.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is missing: `cargo build -p hairpin-sip-server --examples` makes it",
        program.display()
    );
    program
}

/// An example that runs until it is dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    address: String,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program(name));
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (seen, address) = (Vec::new(), String::new());
        let mut running = Running {
            child,
            lines,
            seen,
            address,
        };
        let first = running.line_with("listening on ");
        running.address = first["listening on ".len()..].to_owned();
        running
    }

    /// Waits for a line that has this text.
    fn line_with(&mut self, text: &str) -> String {
        let until = Instant::now() + LONG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no `{text}` after {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a phone has said, and whether it ended with success.
struct Outcome {
    is_success: bool,
    output: String,
    error: String,
}

/// Runs `uac` until it ends.
fn call(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program("uac"));
    command.args(["--listen", "127.0.0.1:0"]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the example runs");
    let until = Instant::now() + LONG;
    let is_success = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status.success(),
            None if Instant::now() > until => {
                child.kill().expect("a child");
                break false;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (mut output, mut error) = (String::new(), String::new());
    child
        .stdout
        .expect("piped")
        .read_to_string(&mut output)
        .expect("text");
    child
        .stderr
        .expect("piped")
        .read_to_string(&mut error)
        .expect("text");
    Outcome {
        is_success,
        output,
        error,
    }
}

fn proxy() -> Running {
    Running::start(
        "proxy",
        &[
            "--domain",
            "example.com",
            "alice:secret",
            "bob:hidden",
            "carol:open",
        ],
    )
}

/// The arguments of a user of the proxy.
fn user<'a>(proxy: &'a str, identity: &'a str, password: &'a str) -> [&'a str; 8] {
    let name = identity
        .trim_start_matches("sip:")
        .split('@')
        .next()
        .unwrap_or_default();
    [
        "--identity",
        identity,
        "--proxy",
        proxy,
        "--user",
        name,
        "--password",
        password,
    ]
}

/// bob, who is registered at the proxy.
fn bob(proxy: &str, more: &[&str]) -> Running {
    let bob = user(proxy, "sip:bob@example.com", "hidden");
    let mut bob = Running::start("uas", &[&bob, more].concat());
    bob.line_with("registered for 3600 s");
    bob
}

fn route(server: &Running, params: &str) -> String {
    format!("sip:{}{params};lr", server.address)
}

#[test]
fn every_example_is_short() {
    for name in EXAMPLES {
        let file = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).expect("the example");
        let code = text.lines().filter(|line| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with("//")
        });
        let lines = code.count();
        let most = if name == "proxy" { 100 } else { 190 };
        assert!(lines <= most, "{name} has {lines} lines of code");
    }
}

#[test]
fn phones_of_a_proxy_call_each_other() {
    let proxy = proxy();
    for params in ["", ";transport=tcp"] {
        let mut bob = bob(&route(&proxy, params), &[]);
        let route = route(&proxy, params);
        let alice = user(&route, "sip:alice@example.com", "secret");
        let rest = ["--register", "yes", "--hold", "yes", "sip:bob@example.com"];
        let outcome = call(&[&alice[..], &rest].concat());
        assert!(
            outcome.is_success,
            "{params}: {}{}",
            outcome.output, outcome.error
        );
        for text in [
            "registered for 3600 s",
            "180: not answered yet",
            "answered, with",
            "on hold",
            "this side has ended",
        ] {
            assert!(
                outcome.output.contains(text),
                "{text} in {}",
                outcome.output
            );
        }
        bob.line_with("call from sip:alice@example.com: rings");
        bob.line_with("re-INVITE: accepted");
        bob.line_with("call ended: the other side has ended the call");
    }
}

/// Identity, password, whether it registers first, whom it calls, and what the error says.
const REFUSED: [(&str, &str, bool, &str, &str); 7] = [
    ("alice", "wrong", true, "sip:bob@example.com", REJECTED),
    ("alice", "wrong", false, "sip:bob@example.com", REJECTED),
    ("mallory", "secret", true, "sip:bob@example.com", REJECTED),
    (
        "alice",
        "secret",
        false,
        "sip:nobody@example.com",
        "refused: 404",
    ),
    (
        "alice",
        "secret",
        false,
        "sip:carol@example.com",
        "refused: 480",
    ),
    (
        "alice",
        "secret",
        false,
        "sip:bob@example.com",
        "refused: 486",
    ),
    ("alice", "secret", false, "bob", "not a SIP URI"),
];

const REJECTED: &str = "the server does not accept the user name or the password";

#[test]
fn a_refused_call_or_registration_says_why() {
    let proxy = proxy();
    let _bob = bob(&route(&proxy, ""), &["--busy", "yes"]);
    let route = route(&proxy, "");
    for (name, password, register, callee, error) in REFUSED {
        let identity = format!("sip:{name}@example.com");
        let who = user(&route, &identity, password);
        let how: &[&str] = if register {
            &["--register", "yes", callee]
        } else {
            &[callee]
        };
        let outcome = call(&[&who[..], how].concat());
        let case = format!("{name} {password} {callee}");
        assert!(!outcome.is_success, "{case}: {}", outcome.output);
        assert!(outcome.error.contains(error), "{case}: {}", outcome.error);
    }
}

#[test]
fn a_call_that_rings_for_too_long_is_cancelled() {
    let proxy = proxy();
    let mut bob = bob(&route(&proxy, ""), &["--ring", "600"]);
    let route = route(&proxy, "");
    let alice = user(&route, "sip:alice@example.com", "secret");
    let outcome = call(&[&alice[..], &["--ring", "2", "sip:bob@example.com"]].concat());
    assert!(!outcome.is_success);
    assert!(outcome.output.contains("CANCEL"), "{}", outcome.output);
    assert!(
        outcome.error.contains("cancelled before it was answered"),
        "{}",
        outcome.error
    );
    bob.line_with("call ended: the call was cancelled before it was answered");
}

#[test]
fn a_call_passes_through_the_b2bua() {
    let mut uas = Running::start("uas", &[]);
    let target = format!("sip:bob@{}", uas.address);
    let mut b2bua = Running::start("b2bua", &[&target]);
    let callee = format!("sip:anybody@{}", b2bua.address);
    let outcome = call(&[
        "--identity",
        "sip:alice@example.com",
        "--hold",
        "yes",
        &callee,
    ]);
    assert!(outcome.is_success, "{}{}", outcome.output, outcome.error);
    assert!(outcome.output.contains("on hold"), "{}", outcome.output);
    uas.line_with("call from sip:alice@example.com: rings");
    uas.line_with("re-INVITE: accepted");
    uas.line_with("call ended: the other side has ended the call");
    b2bua.line_with("re-INVITE");
    b2bua.line_with("call ended: this side");
}

#[test]
fn the_b2bua_passes_on_refusals_and_cancels() {
    let busy = Running::start("uas", &["--busy", "yes"]);
    let b2bua = Running::start("b2bua", &[&format!("sip:bob@{}", busy.address)]);
    let callee = format!("sip:anybody@{}", b2bua.address);
    let outcome = call(&["--identity", "sip:alice@example.com", &callee]);
    assert!(outcome.error.contains("refused: 486"), "{}", outcome.error);
    let mut slow = Running::start("uas", &["--ring", "600"]);
    let b2bua = Running::start("b2bua", &[&format!("sip:bob@{}", slow.address)]);
    let callee = format!("sip:anybody@{}", b2bua.address);
    let outcome = call(&[
        "--identity",
        "sip:alice@example.com",
        "--ring",
        "2",
        &callee,
    ]);
    assert!(
        outcome.error.contains("cancelled before"),
        "{}",
        outcome.error
    );
    slow.line_with("call ended: the call was cancelled before it was answered");
}

#[test]
fn the_registrar_registers_its_users_alone() {
    let mut registrar = Running::start("registrar", &["--domain", "example.com", "alice:secret"]);
    let route = route(&registrar, "");
    let alice = user(&route, "sip:alice@example.com", "secret");
    let outcome = call(&[&alice[..], &["--register", "yes", "sip:bob@example.com"]].concat());
    assert!(
        outcome.output.contains("registered for 3600 s"),
        "{}",
        outcome.error
    );
    assert!(
        outcome.error.contains("refused: 405"),
        "a registrar takes no calls: {}",
        outcome.error
    );
    registrar.line_with("alice: 200");
    let wrong = user(&route, "sip:alice@example.com", "wrong");
    let outcome = call(&[&wrong[..], &["--register", "yes", "sip:bob@example.com"]].concat());
    assert!(
        outcome.error.contains("does not accept"),
        "{}",
        outcome.error
    );
}

#[test]
fn wrong_arguments_get_the_usage() {
    for name in EXAMPLES {
        for arguments in [&["--nonsense", "1"][..], &["--listen"], &[]] {
            let output = Command::new(program(name))
                .args(arguments)
                .output()
                .expect("it runs");
            assert!(!output.status.success(), "{name} {arguments:?}");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                error.contains("--listen ADDRESS"),
                "{name} {arguments:?}: {error}"
            );
        }
    }
    let output = Command::new(program("uas"))
        .args(["--listen", "0.0.0.0:0"])
        .output();
    let error = String::from_utf8_lossy(&output.expect("it runs").stderr).into_owned();
    assert!(error.contains("name one address"), "{error}");
}
