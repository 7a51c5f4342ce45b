//! Runs the binary as a user would.

// Every test binary uses a part of this.

pub(crate) mod admin;
pub(crate) mod api;
pub(crate) mod controlled;
pub(crate) mod nodes;
pub(crate) mod places;
pub(crate) mod service;
pub(crate) mod sip;
pub(crate) mod tls;
pub(crate) mod turn;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes longer, unless it hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The binary, with an environment that cannot change what it does.
pub(crate) fn hairpin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hairpin"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAIRPIN_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Copies the binary to another file, which can be run at once.
///
/// `cp` writes the file, because nobody can run a file that is open for writing. If this process wrote it, a child that
/// another test starts would have it open for a moment.
pub(crate) fn copy_program(to: &Path) {
    let status = Command::new("cp")
        .args([Path::new(env!("CARGO_BIN_EXE_hairpin")), to])
        .status()
        .expect("cp runs");
    assert!(status.success(), "{status}");
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    hairpin(args).output().expect("the binary runs")
}

/// Its stdout as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

/// Its stderr as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8")
}

/// Its stdout as JSON.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {} {}", stdout(output), stderr(output)))
}

/// Asserts that it ended with this status and said this on stderr.
pub(crate) fn fails(output: &Output, code: i32, part: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(part), "`{part}` is not in: {text}");
}

/// A file in a directory of its own, gone with the guard.
pub(crate) fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("hairpin.toml");
    std::fs::File::create(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .expect("a file can be written");
    (directory, path)
}

/// A running `hairpin serve`; killed if the test fails.
pub(crate) struct Serve {
    child: Child,
    /// What it printed on stdout.
    pub(crate) banner: String,
    /// The listeners, from the banner.
    pub(crate) listeners: Vec<SocketAddr>,
}

impl Serve {
    /// Starts it and waits for the banner.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["serve"];
        if !args.iter().any(|arg| arg.contains("control_socket")) {
            // As root, many servers at once would want the same one.
            all.extend(["--set", "server.control_socket=off"]);
        }
        all.extend(args);
        Self::start_command(hairpin(&all))
    }

    /// Starts one with this configuration, for clients of this machine, on ports that are free.
    pub(crate) fn local(config: &Path, more: &[&str]) -> Self {
        let config = config.display().to_string();
        let mut args = vec!["--config", &config, "--listen", "127.0.0.1:0"];
        args.extend(["--relay-address", "127.0.0.1", "--offload", "off"]);
        args.extend(more);
        Self::start(&args)
    }

    /// Starts one with the user `ann`, two workers and the admin listener. `more` is the rest of its configuration. The
    /// guard keeps the file.
    pub(crate) fn with_ann(more: &str) -> (tempfile::TempDir, Self) {
        let (folder, config) = file(&format!(
            "[auth]\nrealm = \"example.org\"\nusers = [{{ name = \"ann\", password = \"secret\" }}]\n{more}"
        ));
        let arguments = ["--dev", "--workers", "2", "--admin", "127.0.0.1:0"];
        (folder, Self::local(&config, &arguments))
    }

    /// Starts a command that was prepared by [`hairpin`].
    pub(crate) fn start_command(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut banner = String::new();
        while let Some(Ok(line)) = lines.next() {
            banner.push_str(&line);
            banner.push('\n');
            if line.starts_with("Stop with") {
                break;
            }
        }
        let listeners = banner
            .lines()
            .filter_map(|line| {
                line.strip_prefix("listening")?
                    .trim()
                    .strip_prefix("udp ")?
                    .parse()
                    .ok()
            })
            .collect::<Vec<_>>();
        let mut serve = Self {
            child,
            banner,
            listeners,
        };
        if serve.listeners.is_empty() {
            let _ = serve.child.kill();
            let log = serve.rest_of_stderr();
            panic!("it did not start: {}\n{log}", serve.banner);
        }
        serve
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listeners[0]
    }

    /// The value of a line of the banner.
    pub(crate) fn value(&self, name: &str) -> &str {
        let line = self
            .banner
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("no {name} in {}", self.banner));
        line[name.len()..].trim()
    }

    /// All that it has said of itself.
    pub(crate) fn banner(&self) -> &str {
        &self.banner
    }

    /// Sends a signal, by the name that kill(1) knows.
    pub(crate) fn signal(&self, name: &str) {
        send_signal(&self.child, name);
    }

    /// Waits for the end. Returns its status and stderr.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        self.ended()
    }

    /// Ends it with SIGTERM, and returns its stderr.
    pub(crate) fn stop(self) -> String {
        self.signal("TERM");
        let (status, log) = self.wait();
        assert!(status.success(), "{log}");
        log
    }

    /// The same, for a server that belongs to something else.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                return (status, self.rest_of_stderr());
            }
            assert!(Instant::now() < deadline, "it did not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn rest_of_stderr(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process, in KiB.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number of kB")
}

/// A command that runs until it is told to stop; killed if the test fails. Its stderr is read as it comes.
pub(crate) struct Background {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    seen: String,
}

impl Background {
    /// Starts it.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_command(hairpin(args))
    }

    /// Starts a command that was prepared by [`hairpin`].
    pub(crate) fn start_command(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        Self {
            child,
            stderr,
            seen: String::new(),
        }
    }

    /// The next line of stderr that starts with `start`.
    pub(crate) fn wait_for(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.stderr.read_line(&mut line).expect("stderr is UTF-8");
            self.seen.push_str(&line);
            assert!(
                length > 0,
                "it ended without a line `{start}`: {}",
                self.seen
            );
            if line.starts_with(start) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Sends a signal, by the name that kill(1) knows.
    pub(crate) fn signal(&self, name: &str) {
        send_signal(&self.child, name);
    }

    /// Waits for the end: status, stdout, stderr.
    pub(crate) fn wait(mut self) -> (ExitStatus, String, String) {
        let mut stdout = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut stdout).expect("stdout is UTF-8");
        }
        self.stderr
            .read_to_string(&mut self.seen)
            .expect("stderr is UTF-8");
        let status = self.child.wait().expect("the child can be waited for");
        (status, stdout, std::mem::take(&mut self.seen))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
    assert!(status.expect("kill runs").success());
}
