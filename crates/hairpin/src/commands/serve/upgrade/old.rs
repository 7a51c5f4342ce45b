//! The old process: it hands over, and ends when it has no clients left.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use server::handover::Joining;
use server::passing::{self, Message};

use super::super::Service;
use super::messages::{
    FOREIGN, HELD, HOLD, LEFT, OFFER, OldProcessLoad, PROCESS, Process, SERVING, STOP, read_foreign,
};
use crate::control::protocol::{self, Refusal, Reply};
use crate::control::{Change, ChangeSender};

/// How long a write to the new process may block.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that arrived before the new process took over are served as before: the drain begins after this time.
const DRAIN_DELAY: Duration = Duration::from_secs(1);
/// After the upgrade, SIP connections stay for `server.drain`, and at least for this time. It is long enough for calls
/// that ring.
const SIP_CONNECTIONS: Duration = Duration::from_secs(60);
/// How often the new process learns how many clients are left.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The process that takes over.
pub(in super::super) struct Successor {
    stream: Arc<UnixStream>,
    /// Since when it serves.
    serving: Option<Instant>,
    /// It stops because it got a signal or a command.
    stops: bool,
    is_draining: bool,
    closes_sip: bool,
    reported_at: Instant,
}

/// Receives messages of the new process, on a separate thread.
fn listen(stream: &UnixStream, changes: &ChangeSender) {
    while let Ok(message) = passing::receive(stream) {
        if !changes.request_change(Change::FromSuccessor(message)) {
            return;
        }
    }
    changes.request_change(Change::SuccessorEnded);
}

/// Device and inode of the program that this process runs: another version has other ones.
fn running_program() -> Value {
    // The file may have been deleted; this link still leads to it.
    let file = std::fs::metadata("/proc/self/exe");
    file.map_or(Value::Null, |file| json!([file.dev(), file.ino()]))
}

impl Service<'_> {
    /// How to start this server once more: for `hairpin upgrade`.
    pub(in super::super) fn describe() -> Value {
        let arguments: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        let is_wanted = |name: &str| {
            const FROM_SYSTEMD: [&str; 6] = [
                "NOTIFY_SOCKET",
                "WATCHDOG_USEC",
                "RUNTIME_DIRECTORY",
                "STATE_DIRECTORY",
                "CREDENTIALS_DIRECTORY",
                "INVOCATION_ID",
            ];
            name.starts_with("HAIRPIN_") || FROM_SYSTEMD.contains(&name)
        };
        let environment: serde_json::Map<String, Value> = std::env::vars()
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, value)| (name, value.into()))
            .collect();
        let directory = std::env::current_dir().unwrap_or_default();
        json!({
            "pid": std::process::id(),
            "user": server::privileges::effective_user(),
            "program": running_program(),
            "arguments": arguments,
            "environment": environment,
            "directory": directory,
        })
    }

    /// Another process asks to take over.
    pub(in super::super) fn hand_over(&mut self, stream: UnixStream) {
        if let Err(error) = self.offer(&stream) {
            tracing::warn!("upgrade failed, this process continues: {error:#}");
            let refusal: Reply = Err(Refusal::new(format!("{error:#}")));
            // The other process may have ended.
            let _ = std::io::Write::write_all(&mut &stream, protocol::reply(&refusal).as_bytes());
        }
    }

    fn offer(&mut self, stream: &UnixStream) -> Result<()> {
        self.check_hand_over()?;
        let offer = self.running.offer()?;
        let (copies, listeners) = self.endpoints.copies()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let granted: Reply = Ok(json!({ "pid": std::process::id() }));
        std::io::Write::write_all(&mut &*stream, protocol::reply(&granted).as_bytes())?;
        let (body, fds) = offer.encode();
        passing::send(stream, OFFER, &body, &fds)?;
        let process = Process {
            pid: std::process::id(),
            control_socket: self
                .endpoints
                .control_path()
                .map_or(String::new(), |path| path.display().to_string()),
            made_up_secret: self.made_up_secret.clone(),
        };
        let output = [
            std::io::stdout().as_fd().try_clone_to_owned()?,
            std::io::stderr().as_fd().try_clone_to_owned()?,
        ];
        let all = copies.iter().chain(&output).chain(&listeners);
        let fds: Vec<_> = all.map(AsFd::as_fd).collect();
        passing::send(stream, PROCESS, &serde_json::to_vec(&process)?, &fds)?;
        let stream = Arc::new(stream.try_clone()?);
        let (reader, changes) = (Arc::clone(&stream), self.changes.clone());
        std::thread::Builder::new()
            .name("hairpin-upgrade".to_owned())
            .spawn(move || listen(&reader, &changes))?;
        self.successor = Some(Successor {
            stream,
            serving: None,
            stops: false,
            is_draining: false,
            closes_sip: false,
            reported_at: Instant::now(),
        });
        tracing::info!("upgrade begins: another process takes over");
        Ok(())
    }

    /// A message of the process that takes over.
    pub(in super::super) fn handle_successor_message(&mut self, message: Message) {
        match message.kind {
            HOLD => self.hold(message),
            SERVING => {
                let pid = String::from_utf8_lossy(&message.body).into_owned();
                self.stop_listening(&pid);
            }
            FOREIGN => {
                let request = read_foreign(message);
                let handled = request.and_then(|request| self.running.receive_foreign(request));
                if let Err(error) = handled {
                    tracing::debug!("a request of the new process is dropped: {error:#}");
                }
            }
            STOP => {
                if let Some(successor) = &mut self.successor {
                    successor.stops = true;
                }
            }
            other => tracing::debug!(kind = other, "unknown message of the new process"),
        }
    }

    fn hold(&mut self, message: Message) {
        let joining = Joining::decode(&message.body, message.fds);
        let held = joining
            .map_err(anyhow::Error::from)
            .and_then(|joining| self.running.hold_clients(joining));
        let why = held
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default();
        if !why.is_empty() {
            tracing::warn!("upgrade failed, this process continues: {why}");
        }
        if let Some(successor) = &self.successor {
            // Its end is noticed by the thread that listens.
            let _ = passing::send(&successor.stream, HELD, why.as_bytes(), &[]);
        }
    }

    /// The new process serves: this one keeps its clients and admits no others.
    fn stop_listening(&mut self, pid: &str) {
        if let Err(error) = self.running.stop_listening() {
            tracing::error!("this process may still accept connections: {error:#}");
        }
        self.endpoints.hand_over();
        if let Some(cluster) = &self.cluster {
            cluster.set_retired(true);
        }
        if let Some(successor) = &mut self.successor {
            successor.serving = Some(Instant::now());
        }
        self.shared.upgrade.set_serving(pid);
        self.manager.main_process(pid);
        tracing::info!(
            pid,
            "upgrade done: the other process serves new clients; this process ends when no client is left"
        );
    }

    /// The new process has ended, or has given up.
    pub(in super::super) fn successor_ended(&mut self) {
        let Some(successor) = self.successor.take() else {
            return;
        };
        if successor.stops {
            self.shared.stopping.store(true, Ordering::Relaxed);
            return;
        }
        tracing::warn!("the new process has ended: this process serves new clients again");
        if let Some(cluster) = &self.cluster {
            cluster.set_retired(false);
        }
        let resumed = self
            .running
            .resume()
            .and_then(|()| match successor.is_draining {
                true => self.running.end_drain(),
                false => Ok(()),
            });
        if let Err(error) = resumed {
            tracing::error!("cannot serve new clients again: {error:#}");
        }
        if successor.serving.is_some() {
            self.manager.main_process(&std::process::id().to_string());
            let certificates = self.running.certificates();
            self.endpoints.own();
            let served = self
                .endpoints
                .serve(&self.shared, &self.changes, certificates);
            if let Err(error) = served {
                tracing::error!(
                    "cannot serve the control socket or the admin listener again: {error:#}"
                );
            }
        }
    }

    /// While another process serves: reports the number of remaining clients to it, and returns whether none is left.
    pub(in super::super) fn has_handed_over(&mut self) -> bool {
        let Some(successor) = &mut self.successor else {
            return false;
        };
        let Some(since) = successor.serving else {
            return false;
        };
        if since.elapsed() < DRAIN_DELAY {
            return false;
        }
        if !std::mem::replace(&mut successor.is_draining, true)
            && let Err(error) = self.running.drain(Duration::ZERO)
        {
            tracing::warn!("cannot begin to drain: {error:#}");
        }
        let stays = self.drain.max(SIP_CONNECTIONS);
        if since.elapsed() >= stays
            && !std::mem::replace(&mut successor.closes_sip, true)
            && let Err(error) = self.running.close_sip_connections()
        {
            tracing::warn!("cannot close idle SIP connections: {error:#}");
        }
        let stats = self.running.observer().stats();
        let left = OldProcessLoad {
            pid: std::process::id(),
            allocations: stats.allocations(),
            sip_transactions: stats.sip().transactions,
            sip_connections: stats.sip().connections,
        };
        if successor.reported_at.elapsed() >= REPORT_INTERVAL {
            successor.reported_at = Instant::now();
            self.running.share_rates();
            let body = serde_json::to_vec(&left).unwrap_or_default();
            let _ = passing::send(&successor.stream, LEFT, &body, &[]);
        }
        left.is_nothing()
    }

    /// The process before this one still has clients, or has none any more.
    pub(in super::super) fn handle_predecessor_message(&self, message: &Message) {
        if message.kind == LEFT {
            let left = serde_json::from_slice(&message.body).ok();
            self.set_predecessor(left);
            // It sends this once per second.
            self.running.share_rates();
        }
    }

    pub(in super::super) fn predecessor_ended(&mut self) {
        self.predecessor = None;
        self.set_predecessor(None);
        match self.running.predecessor_ended() {
            Ok(()) => tracing::info!("the old process has ended"),
            Err(error) => tracing::error!("after the end of the old process: {error:#}"),
        }
    }

    fn set_predecessor(&self, left: Option<Value>) {
        let predecessor = self.shared.predecessor.lock();
        *predecessor.unwrap_or_else(std::sync::PoisonError::into_inner) = left;
    }
}
