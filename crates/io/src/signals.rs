//! SIGINT, SIGTERM and SIGHUP as readable events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A signal that a server acts upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// SIGINT, Ctrl-C: stop.
    Interrupt,
    /// SIGTERM: stop.
    Terminate,
    /// SIGHUP: read the configuration again.
    Hangup,
}

/// Catches the process's signals for as long as it lives. At most one exists at a time.
#[derive(Debug)]
pub struct Signals {
    reader: OwnedFd,
}

impl Signals {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP. Works whatever threads exist already.
    ///
    /// # Errors
    /// `AlreadyExists` while another `Signals` lives; what `pipe2` or `sigaction` returns.
    pub fn install() -> io::Result<Signals> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The oldest signal that has arrived and was not yet read; never blocks.
    pub fn try_next(&mut self) -> Option<Signal> {
        None
    }

    /// Waits for a signal, at most `timeout` if one is given; `None` when the time is over.
    ///
    /// # Errors
    /// What `poll` returns.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let _ = timeout;
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsFd for Signals {
    /// Readable while a signal waits: for a [`Poller`](crate::Poller).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
