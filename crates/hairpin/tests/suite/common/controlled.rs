//! A server with a control socket, which a new process takes over.

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::{Serve, hairpin, json, run, stderr, stdout};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A server with its configuration and its control socket in one directory.
pub(crate) struct Controlled {
    /// The first process.
    pub(crate) first: Serve,
    pub(crate) folder: tempfile::TempDir,
}

impl Controlled {
    /// The path of the control socket that the configuration in this directory has to name.
    pub(crate) fn socket_in(folder: &Path) -> PathBuf {
        folder.join("control.sock")
    }

    /// Starts a server with this configuration.
    pub(crate) fn start(folder: tempfile::TempDir, config: &str) -> Self {
        let path = folder.path().join("hairpin.toml");
        std::fs::write(&path, config).unwrap();
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&path);
        let first = Serve::start_command(command);
        Self { first, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        Self::socket_in(self.folder.path())
    }

    /// Runs a command that uses the control socket.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let socket = self.socket();
        let (command, rest) = args.split_first().unwrap();
        let path = ["--socket", socket.to_str().unwrap()];
        run(&[&[*command], &path[..], rest].concat())
    }

    /// What `hairpin status` prints; `None` if nobody has the control socket.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let output = self.run(&["status", "--json"]);
        (!output.stdout.is_empty()).then(|| json(&output))
    }

    /// The process that has the control socket.
    pub(crate) fn pid(&self) -> u64 {
        self.status()
            .and_then(|status| status["pid"].as_u64())
            .unwrap_or(0)
    }

    /// Lets a new process take over. Returns its number.
    pub(crate) fn upgrade(&self) -> u64 {
        let output = self.run(&["upgrade"]);
        assert!(
            output.status.success(),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
        self.pid()
    }

    /// Lets a new process take over, and kills it this time after it has begun. The command may have seen it serve.
    pub(crate) fn upgrade_and_kill_after(&self, time: Duration) {
        let socket = self.socket();
        let mut command = hairpin(&["upgrade", "--socket"]);
        let command = command.arg(&socket);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut upgrade = command.spawn().unwrap();
        let path = format!("/proc/{0}/task/{0}/children", upgrade.id());
        let mut pid = None;
        eventually("there is another process", || {
            let children = std::fs::read_to_string(&path).unwrap_or_default();
            let first = children.split_whitespace().next();
            pid = first.and_then(|pid| pid.parse().ok());
            pid.is_some()
        });
        std::thread::sleep(time);
        kill(pid.unwrap(), "-KILL");
        upgrade.wait().unwrap();
    }

    /// Waits until the process before has ended, because it has nothing left.
    pub(crate) fn wait_for_the_end_of(&self, old: u64) {
        let end = Instant::now() + MAX_WAIT;
        while is_alive(old) {
            let left = self.status().map(|status| status["predecessor"].clone());
            assert!(Instant::now() < end, "process {old} has {left:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A process of a test that failed would stay.
impl Drop for Controlled {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let pid = self.pid();
            if pid != 0 {
                kill(pid, "-KILL");
            }
        }
    }
}

/// A port that the next process can have as well: below those that the kernel gives to others, and that relays have.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 5_000;
    let mut ports =
        std::iter::repeat_with(|| 20_000 + first + NEXT.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| {
        let udp = UdpSocket::bind(("127.0.0.1", *port));
        udp.is_ok() && TcpListener::bind(("127.0.0.1", *port)).is_ok()
    };
    ports.find(is_free).unwrap()
}

/// Whether this process has the capabilities that loading BPF programs requires.
pub(crate) fn may_load_programs() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
    bits >> 21 & 1 == 1 || bits >> 39 & 1 == 1 && bits >> 12 & 1 == 1
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + MAX_WAIT;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn is_alive(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Sends a signal such as `-KILL`.
pub(crate) fn kill(pid: u64, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}
