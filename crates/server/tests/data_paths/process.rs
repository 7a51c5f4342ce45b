//! The server as a process of its own, which can be stopped, told to end, and killed: this test binary, started again.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ::io::NetNs;
use ::io::process::{GuardedChild, ProcessPlacement};
use ::io::{Signal, Signals};
use hairpin_server::{Builder, Server, Settings};

use crate::common::{PASSWORD, USER, at, ip};
use crate::paths::Path;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the test that is the server.
const ENTRY: &str = "entry_of_the_server";
const PATH: &str = "HAIRPIN_TEST_PATH";
/// Set if relays share ports.
const SHARED: &str = "HAIRPIN_TEST_SHARED_PORTS";
/// The ports that they share then.
pub(crate) const SHARED_PORTS: std::ops::RangeInclusive<u16> = 50_000..=50_003;

/// A running server.
pub(crate) struct Process {
    child: GuardedChild,
    /// It has more to say at its end.
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it in a namespace; it is ready when this returns.
    pub(crate) fn start(namespace: &NetNs, path: Path) -> Process {
        Process::start_with(namespace, path, false)
    }

    /// The same; all relays may share [`SHARED_PORTS`].
    pub(crate) fn start_with(namespace: &NetNs, path: Path, shared: bool) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--ignored", "--exact", ENTRY, "--nocapture"])
            .env(PATH, path.name())
            .envs(shared.then_some((SHARED, "")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let cpus = ::io::affinity::available().expect("processors");
        let place = ProcessPlacement {
            namespace,
            cpus: &cpus,
            preferred: false,
        };
        let mut child = GuardedChild::spawn(command, &place).expect("the server's process");
        let stdout = child.child().stdout.take().expect("piped");
        let mut stdout = BufReader::new(stdout);
        let mut lines = stdout.by_ref().lines().map_while(Result::ok);
        let ready = lines.find(|line| line.ends_with("ready"));
        assert!(ready.is_some(), "the server did not start: {path:?}");
        Process {
            child,
            _stdout: stdout,
        }
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill").success(), "signal {name}");
    }

    /// Waits until it has ended.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What the process does.
pub(crate) fn serve() {
    let Some(path) = std::env::var(PATH).ok().and_then(|name| Path::named(&name)) else {
        return;
    };
    let mut signals = Signals::install().expect("handlers");
    let builder = builder();
    let builder = match std::env::var_os(SHARED) {
        Some(_) => builder
            .relay_ports(*SHARED_PORTS.start(), *SHARED_PORTS.end())
            .shared_ports(true),
        None => builder,
    };
    let running = path.choose(builder).start().expect("the server starts");
    println!("ready");
    while signals.wait(None).expect("a signal") != Some(Signal::Terminate) {}
    running.shutdown().expect("no worker failed");
}

/// The server of the tests, but for its path.
pub(crate) fn builder() -> Builder {
    // So that permissions last 300 seconds, as RFC 8656 §9 says.
    let mut settings = Settings::default();
    settings.channel_keeps_permission = false;
    settings.quota.per_user = 10_000;
    settings.quota.per_source = 10_000;
    Server::builder()
        .settings(settings)
        .listen(at("10.7.1.1:3478"))
        .listen(at("[fd07:1::1]:3478"))
        .relay_address(ip("10.7.2.1"))
        .relay_address(ip("fd07:2::1"))
        .user(USER, PASSWORD)
        .allow_peers("10.7.3.0/24".parse().expect("a network"))
        .allow_peers("fd07:3::/64".parse().expect("a network"))
        .workers(2)
}
