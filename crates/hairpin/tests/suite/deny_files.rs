//! `peers.deny_files` in a running server: files that change, have mistakes, and are put right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::{Serve, fails, run, stderr, stdout};

/// Longer than any change takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A configuration that admits loopback, and a deny file with this text.
fn files(denied: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let [config, list] = ["hairpin.toml", "denied"].map(|name| folder.path().join(name));
    let text = format!(
        "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nsecrets = [\"0123456789abcdef\"]\n[peers]\nallow_local = true\ndeny_files = [{list:?}]\n"
    );
    fs::write(&config, text).unwrap();
    fs::write(&list, denied).unwrap();
    (folder, config, list)
}

/// Sends a few packets to peers on loopback; fails if the server refuses them.
fn relay(server: &Serve) -> Output {
    let target = server.address().to_string();
    run(&[
        "load",
        "turn",
        &target,
        "--secret",
        "0123456789abcdef",
        "--clients",
        "1",
        "--rate",
        "100",
        "--duration",
        "1s",
    ])
}

/// Replaces a file as programs should: never is half of it there.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A server whose log goes to a file, so that it can be read while the server runs.
fn start(config: &Path) -> (Serve, PathBuf) {
    let log = config.with_file_name("log");
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" serve --config \"$1\" 2> \"$2\""])
        .args([Path::new(env!("CARGO_BIN_EXE_hairpin")), config, &log]);
    (Serve::start_command(command), log)
}

fn wait_for_log(log: &Path, part: &str) {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let text = fs::read_to_string(log).unwrap();
        if text.contains(part) {
            return;
        }
        assert!(Instant::now() < deadline, "no {part} in {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the server admits peers on loopback; `None` if that has changed while packets were relayed.
fn admits(server: &Serve) -> Option<bool> {
    let output = relay(server);
    match output.status.success() {
        true => Some(true),
        false => stderr(&output).contains("403").then_some(false),
    }
}

fn wait_until_admitted(server: &Serve, wanted: bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while admits(server) != Some(wanted) {
        assert!(Instant::now() < deadline, "admitted is not {wanted}");
    }
}

#[test]
fn a_changed_file_is_read_again_without_a_signal_and_a_mistake_changes_nothing() {
    let (_folder, config, list) = files("# nothing yet\n");
    let (server, log) = start(&config);
    assert_eq!(admits(&server), Some(true));
    replace(&list, "127.0.0.1\n");
    wait_until_admitted(&server, false);
    replace(&list, "198.51.100.0/24\n127.0.0.1/8\n");
    wait_for_log(&log, "denied:2: `127.0.0.1/8` has bits set");
    assert_eq!(admits(&server), Some(false), "the old rules stay");
    fs::remove_file(&list).unwrap();
    wait_for_log(&log, "cannot read");
    assert_eq!(admits(&server), Some(false), "the old rules stay");
    replace(&list, "198.51.100.0/24\n");
    wait_until_admitted(&server, true);
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("deny files read again").count(), 2, "{log}");
    assert_eq!(log.matches("deny files refused").count(), 2, "{log}");
}

#[test]
fn a_signal_with_a_mistake_in_a_file_refuses_the_whole_reload() {
    let (_folder, config, list) = files("127.0.0.1\n");
    let (server, log) = start(&config);
    replace(&list, "nonsense\n");
    server.signal("HUP");
    wait_for_log(&log, "reload refused");
    wait_for_log(&log, "hairpin.toml:9:15: ");
    assert_eq!(admits(&server), Some(false), "the old rules stay");
    replace(&list, "198.51.100.0/24\n");
    server.signal("HUP");
    wait_for_log(&log, "configuration reloaded");
    assert_eq!(admits(&server), Some(true));
}

#[test]
fn a_mistake_at_the_start_names_the_line_of_both_files() {
    let (_folder, config, list) = files("nonsense\n");
    let path = config.to_str().unwrap();
    fails(&run(&["check", path]), 1, "hairpin.toml:9:");
    fails(&run(&["check", path]), 1, "denied:1: ");
    fails(&run(&["serve", "--config", path]), 1, "nothing was started");
    fs::remove_file(&list).unwrap();
    fails(&run(&["check", path]), 1, "cannot read");
    replace(&list, "198.51.100.0/24\n");
    let output = run(&["check", path]);
    assert!(
        stdout(&output).contains("and 1 file with more"),
        "{output:?}"
    );
}
