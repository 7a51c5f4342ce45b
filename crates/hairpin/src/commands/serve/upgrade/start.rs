//! An upgrade that the API asks for: this process starts the one that takes over.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::super::Service;
use crate::control::Shared;
use crate::control::protocol::{Refusal, Reply};
use crate::control::upgrade::{OURS, State};

/// How often the thread looks whether the new process serves, or has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What the kernel adds to the path of a program whose file was replaced.
const DELETED: &[u8] = b" (deleted)";

/// The program file that is installed now where this program was.
fn installed_program() -> Result<PathBuf> {
    let path = std::env::current_exe().context("this program has no path")?;
    let bytes = path.as_os_str().as_bytes();
    Ok(match bytes.strip_suffix(DELETED) {
        Some(bytes) if !path.exists() => OsString::from_vec(bytes.to_vec()).into(),
        _ => path,
    })
}

/// The command line of this process, with the flags of a process that takes over.
fn command(program: &PathBuf) -> Command {
    let mut command = Command::new(program);
    let arguments = std::env::args_os().skip(1);
    command.args(arguments.filter(|argument| OURS.iter().all(|ours| argument != ours)));
    command.args(OURS);
    // Sockets of systemd belong to the process that systemd started; the new one gets copies.
    command.env_remove("LISTEN_PID");
    command.stdin(Stdio::null());
    command
}

/// Waits for the end of the new process, on a thread of its own. Ends it if it does not serve in time.
fn watch(mut child: Child, shared: &Shared, timeout: Duration) {
    let (pid, deadline) = (child.id(), Instant::now() + timeout);
    let why = loop {
        if shared.upgrade.is_serving(pid) {
            break match child.wait() {
                Ok(status) => format!("the new process has ended ({status})"),
                Err(error) => format!("the new process cannot be watched: {error}"),
            };
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                break format!(
                    "the new process has ended ({status}): the log has the reason; without root, only hairpin upgrade on this machine can give it the capabilities that it requires"
                );
            }
            Ok(None) if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break format!(
                    "the new process did not serve within {} s, and was ended",
                    timeout.as_secs()
                );
            }
            Ok(None) => std::thread::sleep(POLL_INTERVAL),
            Err(error) => break format!("the new process cannot be watched: {error}"),
        }
    };
    tracing::warn!("upgrade failed, this process continues: {why}");
    shared.upgrade.set(pid, State::Failed(why));
}

impl Service<'_> {
    /// Whether another process can take over now.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) fn check_hand_over(&self) -> Result<()> {
        if self.successor.is_some() {
            bail!("another process is taking over");
        }
        if self.predecessor.is_some() {
            bail!(
                "the process before this one still has clients (hairpin status): wait until it has ended, or end it"
            );
        }
        if self.shared.stopping.load(Ordering::Relaxed) {
            bail!("the server is about to stop");
        }
        Ok(())
    }

    /// Starts the program that is installed now. The new process has this time to serve.
    pub(in super::super) fn start_successor(&self, timeout: Duration) -> Reply {
        let started = self.check_hand_over().and_then(|()| {
            if self.shared.upgrade.is_starting() {
                bail!("another process is starting");
            }
            let program = installed_program()?;
            // Create the thread before the process: without it, nothing ends a process that does not serve in time.
            let (sender, started) = sync_channel::<Child>(1);
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("hairpin-start".to_owned());
            let watched = thread.spawn(move || {
                if let Ok(child) = started.recv() {
                    watch(child, &shared, timeout);
                }
            });
            watched.context("no thread can watch the new process")?;
            let child = command(&program).spawn();
            let child = child.with_context(|| format!("{} does not start", program.display()))?;
            let pid = child.id();
            self.shared.upgrade.set(pid, State::Starting);
            // The thread waits in `recv`, so this cannot fail.
            let _ = sender.send(child);
            Ok(pid)
        });
        let pid = started.map_err(|error| Refusal::new(format!("no upgrade: {error:#}")))?;
        Ok(json!({ "pid": pid }))
    }
}
