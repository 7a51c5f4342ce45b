//! What systemd gets (sd_notify(3)): that the server is ready, reads its configuration or stops, and that every worker
//! makes progress.
//!
//! Messages are datagrams to the socket that NOTIFY_SOCKET names. No fault here stops the server. Without systemd the
//! variable does not exist, and a message that cannot be sent is a log line.

mod socket;

use std::time::{Duration, Instant};

use server::{Observer, monotonic_ns};

use crate::admin::health;
use socket::NotifySocket;

/// How often the state of a drain is shown.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How much longer a drain may last, each time it says so.
const DRAIN_EXTENSION: Duration = Duration::from_secs(30);
/// A worker turns its loop at least once a second: one that has not for this long makes no progress.
const MIN_IDLE_TIME: Duration = Duration::from_secs(3);
/// As for `/healthz`.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: Option<NotifySocket>,
    watchdog: Option<Watchdog>,
    /// When the state of a drain was shown last.
    shown: Option<Instant>,
}

/// systemd ends a service that is silent for longer than this.
#[derive(Debug)]
struct Watchdog {
    period: Duration,
    /// When systemd last got the message that all workers make progress.
    fed: Option<Instant>,
}

impl Manager {
    /// As the environment says.
    pub(crate) fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok();
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            NotifySocket::open(&name)
                .inspect_err(|error| {
                    tracing::warn!("NOTIFY_SOCKET={} cannot be used: {error}", name.display());
                })
                .ok()
        });
        let period = watchdog_period(
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
        );
        Self {
            watchdog: period
                .filter(|_| socket.is_some())
                .map(|period| Watchdog { period, fed: None }),
            socket,
            shown: None,
        }
    }

    /// How often [`Manager::tick`] is to be called, if that matters.
    pub(crate) fn interval(&self) -> Option<Duration> {
        Some(self.watchdog.as_ref()?.period / 4)
    }

    /// The server serves, by the configuration that it has.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// The server reads its configuration again; [`Manager::ready`] follows, also if the reload fails.
    pub(crate) fn reloading(&self) {
        let microseconds = monotonic_ns() / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// The server begins to stop.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Another process is the server from now on.
    pub(crate) fn main_process(&self, pid: &str) {
        self.send(&format!("MAINPID={pid}"));
    }

    /// What the server does.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// The drain of a server that stops goes on: systemd waits longer than TimeoutStopSec. At most one message per
    /// second.
    pub(crate) fn draining(&mut self, status: impl FnOnce() -> String) {
        let now = Instant::now();
        let is_due = self.shown.is_none_or(|shown| now - shown >= STATUS_EVERY);
        if self.socket.is_some() && is_due {
            self.shown = Some(now);
            let status = one_line(&status());
            let extension = DRAIN_EXTENSION.as_micros();
            self.send(&format!("EXTEND_TIMEOUT_USEC={extension}\nSTATUS={status}"));
        }
    }

    /// Tells the watchdog that all is well, when that is due and if it is true.
    pub(crate) fn tick(&mut self, observer: &Observer) {
        let Some(watchdog) = &mut self.watchdog else {
            return;
        };
        let now = Instant::now();
        let is_due = watchdog
            .fed
            .is_none_or(|fed| now - fed >= watchdog.period / 4);
        let limit = (watchdog.period / 2).clamp(MIN_IDLE_TIME, MAX_IDLE);
        if is_due && health::check_workers(observer, limit).is_healthy {
            watchdog.fed = Some(now);
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            tracing::warn!("cannot send `{}` to systemd: {error}", one_line(message));
        }
    }
}

/// A line feed would begin another variable.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// WATCHDOG_USEC, if it is meant for this process.
fn watchdog_period(microseconds: Option<&str>, process: Option<&str>) -> Option<Duration> {
    let is_other = |process: &str| process.parse() != Ok(std::process::id());
    if process.is_some_and(is_other) {
        return None;
    }
    let period = Duration::from_micros(microseconds?.parse().ok()?);
    Some(period).filter(|period| !period.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::credentials::{Credentials, KeyLookup, KeyQuery};
    use server::{Server, Settings};
    use std::os::unix::net::UnixDatagram;
    use std::sync::{Arc, Mutex};

    /// A source of credentials that blocks the worker until the lock is free.
    #[derive(Debug)]
    struct Hang(Arc<Mutex<()>>);

    impl Credentials for Hang {
        fn find(&self, _: &KeyQuery<'_>) -> KeyLookup {
            KeyLookup::Unknown
        }

        fn knows_userhash(&self) -> bool {
            drop(self.0.lock());
            false
        }
    }

    #[test]
    fn a_worker_that_hangs_silences_the_watchdog_until_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let watchdog = Watchdog {
            period: Duration::from_millis(40),
            fed: None,
        };
        let mut told = Manager {
            socket: Some(NotifySocket::open(path.as_os_str()).unwrap()),
            watchdog: Some(watchdog),
            shown: None,
        };
        let running = Server::builder()
            .listen("127.0.0.1:0".parse().unwrap())
            .relay_address("127.0.0.1".parse().unwrap())
            .workers(2)
            .start()
            .unwrap();
        let observer = running.observer();
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let mut settings = Settings::default();
        settings.credentials.push(Arc::new(Hang(Arc::clone(&lock))));
        running.reload(settings).unwrap();
        let mut message = [0; 64];
        let mut is_fed_within = |limit: Duration| {
            while manager.set_nonblocking(true).is_ok() && manager.recv(&mut message).is_ok() {}
            let end = Instant::now() + limit;
            while Instant::now() < end {
                told.tick(&observer);
                if manager.recv(&mut message).is_ok() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        };
        let end = Instant::now() + Duration::from_secs(60);
        while is_fed_within(Duration::from_secs(1)) {
            assert!(Instant::now() < end, "it is fed although a worker hangs");
        }
        drop(held);
        assert!(is_fed_within(Duration::from_secs(60)), "the worker goes on");
        drop(running);
    }

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let second = Some(Duration::from_secs(1));
        let own = std::process::id().to_string();
        assert_eq!(watchdog_period(Some("1000000"), None), second);
        assert_eq!(watchdog_period(Some("1000000"), Some(&own)), second);
        assert_eq!(watchdog_period(Some("1000000"), Some("1")), None);
        for wrong in [None, Some("0"), Some("-1"), Some("")] {
            assert_eq!(watchdog_period(wrong, None), None);
        }
    }

    #[test]
    fn a_status_is_one_variable() {
        assert_eq!(one_line("a\nREADY=0\r"), "a READY=0 ");
    }
}
