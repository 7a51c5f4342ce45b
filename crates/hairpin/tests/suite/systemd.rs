//! What systemd is told.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Background, Serve, hairpin};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

const SECRET: &str = "0123456789abcdef";

/// A service manager, and a configuration for the server.
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
    seen: VecDeque<String>,
}

impl Manager {
    fn new(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
        let manager = Self {
            socket,
            folder,
            seen: VecDeque::new(),
        };
        manager.configure(more);
        manager
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nsecrets = [\"{SECRET}\"]\n[peers]\nallow_local = true\n[admin]\nlisten = \"off\"\n[server]\ncontrol_socket = \"off\"\nworkers = 2\n{more}"
        );
        std::fs::write(self.folder.path().join("hairpin.toml"), text).unwrap();
    }

    /// `hairpin serve`, told of this manager.
    fn serve(&self) -> Command {
        let mut command = hairpin(&["serve", "--config"]);
        command
            .arg(self.folder.path().join("hairpin.toml"))
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        command
    }

    /// The next message that has a line which begins like this.
    fn expect(&mut self, start: &str) -> String {
        let end = Instant::now() + MAX_WAIT;
        loop {
            let mut bytes = [0; 4096];
            let length = self.socket.recv(&mut bytes).unwrap_or_else(|error| {
                panic!("no `{start}`: {error}; there were {:?}", self.seen)
            });
            let message = String::from_utf8(bytes[..length].to_vec()).unwrap();
            if message.lines().any(|line| line.starts_with(start)) {
                return message;
            }
            self.seen.push_back(message);
            assert!(Instant::now() < end, "no `{start}`: {:?}", self.seen);
        }
    }
}

/// Microseconds since boot, as systemd compares them.
fn uptime_us() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    (seconds * 1e6) as u64
}

#[test]
fn start_reload_and_stop_are_reported_in_order() {
    let mut manager = Manager::new("");
    let serve = Serve::start_command(manager.serve());
    assert_eq!(
        manager.expect("READY=1"),
        "READY=1\nSTATUS=Serving on 2 workers"
    );

    let before = uptime_us();
    serve.signal("HUP");
    let reloading = manager.expect("RELOADING=1");
    let (_, at) = reloading.split_once("MONOTONIC_USEC=").unwrap();
    // /proc/uptime has hundredths of a second.
    let at: u64 = at.parse().unwrap();
    assert!(
        at + 20_000 >= before && at <= uptime_us() + 20_000,
        "{before} {at}"
    );
    manager.expect("READY=1");

    manager.configure("no_such_key = 1\n");
    serve.signal("HUP");
    manager.expect("RELOADING=1");
    let refused = manager.expect("READY=1");
    assert!(refused.contains("the last reload was refused"), "{refused}");
    assert!(refused.contains("no_such_key"), "{refused}");
    assert_eq!(refused.lines().count(), 2, "{refused}");

    serve.signal("TERM");
    manager.expect("STOPPING=1");
    assert!(serve.wait().0.success());
    assert!(
        !manager.seen.iter().any(|text| text.contains("WATCHDOG")),
        "nobody asked for that"
    );
}

#[test]
fn the_watchdog_is_fed_while_workers_make_progress() {
    let mut manager = Manager::new("");
    let mut command = manager.serve();
    command.env("WATCHDOG_USEC", "400000");
    let serve = Serve::start_command(command);
    manager.expect("READY=1");
    for _ in 0..5 {
        manager.expect("WATCHDOG=1");
    }
    serve.signal("TERM");
    manager.expect("STOPPING=1");
    assert!(serve.wait().0.success());
}

#[test]
fn the_watchdog_of_another_process_is_left_alone() {
    let mut manager = Manager::new("");
    let mut command = manager.serve();
    command
        .env("WATCHDOG_USEC", "100000")
        .env("WATCHDOG_PID", "1");
    let serve = Serve::start_command(command);
    manager.expect("READY=1");
    serve.signal("TERM");
    manager.expect("STOPPING=1");
    assert!(manager.seen.is_empty(), "{:?}", manager.seen);
    assert!(serve.wait().0.success());
}

#[test]
fn a_drain_extends_the_time_to_stop_and_says_what_is_left() {
    let mut manager = Manager::new("drain = \"1h\"\n");
    let serve = Serve::start_command(manager.serve());
    manager.expect("READY=1");
    let address = serve.address().to_string();
    let mut args = vec!["load", "turn", &address, "--secret", SECRET];
    args.extend(["--clients", "2", "--rate", "50/s", "--duration", "600s"]);
    let mut load = Background::start(&args);
    load.wait_for("at_s=2");
    serve.signal("TERM");
    manager.expect("STOPPING=1");
    for _ in 0..2 {
        let message = manager.expect("EXTEND_TIMEOUT_USEC=30000000");
        assert!(
            message.contains("STATUS=Draining: 2 allocations"),
            "{message}"
        );
    }
    load.signal("INT");
    assert!(load.wait().0.success());
    assert!(serve.wait().0.success());
}
