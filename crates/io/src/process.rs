//! Child processes that live in a given network namespace, on given processors, and never longer
//! than their parent.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use crate::NetNs;
use crate::sys::{netns, task};
use crate::tasks;

/// Where a process runs.
#[derive(Debug)]
pub struct ProcessPlacement<'a> {
    /// Its network namespace.
    pub namespace: &'a NetNs,
    /// Its only processors; children inherit them.
    pub cpus: &'a [usize],
    /// Whether it runs before every ordinary task there (SCHED_RR); children inherit that too.
    pub preferred: bool,
}

/// A running child process.
///
/// It is process 1 of a PID namespace and dies with the thread that started it, which waits inside
/// this handle. So when this process ends, also by SIGKILL, the kernel kills the child and
/// everything that the child has started. Then no process uses the network namespace any longer.
/// Dropping the handle kills at once.
///
/// It leads a separate process group. So Ctrl-C on a terminal reaches only this process, which then
/// ends the child in order.
#[derive(Debug)]
pub struct GuardedChild {
    child: Child,
    /// Dropping it lets the parent thread end.
    release: Option<Sender<()>>,
    parent: Option<JoinHandle<()>>,
}

impl GuardedChild {
    /// Starts `command` in `place`.
    ///
    /// # Errors
    /// What spawning returns (no such program), or `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn spawn(mut command: Command, place: &ProcessPlacement<'_>) -> io::Result<GuardedChild> {
        place_process(&mut command, place)?;
        let (started, outcome) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        let parent = std::thread::Builder::new()
            .name("child-parent".into())
            .spawn(move || {
                let child = task::unshare_pids().and_then(|()| command.spawn());
                let running = child.is_ok();
                if started.send(child).is_ok() && running {
                    // Ends when the sender is dropped: nothing is ever sent.
                    let _ = wait.recv();
                }
            })?;
        let child = outcome
            .recv()
            .map_err(|_| io::Error::other("the parent thread panicked"))??;
        Ok(GuardedChild {
            child,
            release: Some(release),
            parent: Some(parent),
        })
    }

    /// Its process number, as this process sees it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child process, for access to its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// What `waitpid` returns.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for GuardedChild {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.release.take();
        if let Some(parent) = self.parent.take() {
            let _ = parent.join();
        }
    }
}

fn place_process(command: &mut Command, place: &ProcessPlacement<'_>) -> io::Result<()> {
    let namespace = place.namespace.as_fd().try_clone_to_owned()?;
    let mask = tasks::mask(place.cpus)?;
    let preferred = place.preferred;
    command.process_group(0);
    let enter = move || {
        task::set_parent_death_signal(libc::SIGKILL)?;
        netns::setns(namespace.as_fd())?;
        if preferred {
            tasks::make_preferred(0)?;
        }
        task::sched_setaffinity(0, &mask)
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `enter` makes four system calls on values
    // that it owns, allocates nothing and takes no lock.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

#[cfg(test)]
mod tests_needs_root {
    use super::*;
    use std::process::Stdio;

    fn place(namespace: &NetNs) -> ProcessPlacement<'_> {
        ProcessPlacement {
            namespace,
            cpus: &[0],
            preferred: true,
        }
    }

    #[test]
    fn a_child_and_its_children_end_with_the_handle() {
        let namespace = NetNs::current().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 60 & sleep 60"])
            .stdin(Stdio::null());
        let child = match GuardedChild::spawn(command, &place(&namespace)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                panic!("this test needs root: {error}")
            }
            other => other.unwrap(),
        };
        let shell = child.id();
        let alive = |pid: u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        assert!(alive(shell));
        drop(child);
        assert!(!alive(shell));
    }

    #[test]
    fn a_signal_to_our_process_group_does_not_reach_the_child() {
        let namespace = NetNs::current().unwrap();
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        let child = GuardedChild::spawn(command, &place(&namespace)).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        // proc(5): after the name in parentheses come state, parent and process group.
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let group = rest.split(' ').nth(2).unwrap();
        assert_eq!(group, child.id().to_string());
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let namespace = NetNs::current().unwrap();
        let command = Command::new("/proc/no-such-program");
        let error = GuardedChild::spawn(command, &place(&namespace)).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::NotFound,
            "this test needs root: {error}"
        );
    }
}
