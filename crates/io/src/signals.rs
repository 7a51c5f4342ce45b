//! SIGINT, SIGTERM and SIGHUP as readable events.
//!
//! The handler writes the signal's number into a pipe: unlike a signalfd this needs no signal mask in every thread and
//! every child process. The pipe is made once and stays, so that a late handler writes into nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::sys;

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

const CAUGHT: [(c_int, Signal); 3] = [
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGHUP, Signal::Hangup),
];

/// No signal has this number.
const NO_SIGNAL: u8 = 0;

static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Catches the process's signals for as long as it lives; dropping it puts the former handlers back. At most one exists
/// at a time.
pub struct Signals {
    reader: &'static OwnedFd,
    previous: Vec<(c_int, libc::sigaction)>,
}

impl Signals {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP. Works also if other threads exist already.
    ///
    /// # Errors
    /// `AlreadyExists` while another `Signals` lives; what `pipe2` or `sigaction` returns.
    pub fn install() -> io::Result<Signals> {
        if INSTALLED.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let reader = match pipe() {
            Ok(reader) => reader,
            Err(error) => {
                INSTALLED.store(false, Ordering::Release);
                return Err(error);
            }
        };
        // From here on Drop undoes what was done.
        let mut signals = Signals {
            reader,
            previous: Vec::with_capacity(CAUGHT.len()),
        };
        while signals.try_next().is_some() {}
        for (number, _) in CAUGHT {
            signals.previous.push((number, sys::signal::catch(number)?));
        }
        Ok(signals)
    }

    /// The oldest signal that has arrived and was not yet read; never blocks.
    pub fn try_next(&mut self) -> Option<Signal> {
        while let Some(next) = self.read() {
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Ends waits of this process's `Signals` from other threads.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn waker(&self) -> io::Result<SignalWaker> {
        let (_, writer) = PIPE.get().ok_or(io::ErrorKind::Other)?;
        Ok(SignalWaker {
            writer: writer.try_clone()?,
        })
    }

    /// The oldest entry of the pipe: a signal, or `None` from a [`SignalWaker`].
    fn read(&mut self) -> Option<Option<Signal>> {
        let mut number = [0];
        let Ok(1) = sys::pipe::read(self.reader.as_fd(), &mut number) else {
            return None;
        };
        let known = CAUGHT
            .iter()
            .find(|(caught, _)| *caught == c_int::from(number[0]));
        Some(known.map(|(_, signal)| *signal))
    }

    /// Waits for a signal, at most `timeout` if one is given; `None` when the time is over, or a [`SignalWaker`] ends
    /// the wait.
    ///
    /// # Errors
    /// What `poll` returns.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(next) = self.read() {
                return Ok(next);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let milliseconds = left.map_or(-1, crate::poll::milliseconds);
            match sys::pipe::poll(self.reader.as_fd(), milliseconds) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

/// Ends a wait for signals.
#[derive(Debug)]
pub struct SignalWaker {
    writer: OwnedFd,
}

impl SignalWaker {
    /// Ends the wait that is in progress, or else the next one.
    pub fn wake(&self) {
        // A full pipe ends the wait as well.
        let _ = sys::pipe::write(self.writer.as_fd(), &[NO_SIGNAL]);
    }
}

fn pipe() -> io::Result<&'static OwnedFd> {
    if PIPE.get().is_none() {
        // Only the holder of INSTALLED gets here, so nobody else sets it in between.
        let _ = PIPE.set(sys::pipe::pipe2()?);
    }
    let (reader, writer) = PIPE.get().ok_or(io::ErrorKind::Other)?;
    sys::signal::set_handler_pipe(writer);
    Ok(reader)
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (number, previous) in &self.previous {
            // It was valid when the kernel returned it; should it fail, the handler stays and writes to a pipe nobody
            // reads.
            let _ = sys::signal::restore(*number, previous);
        }
        INSTALLED.store(false, Ordering::Release);
    }
}

impl AsFd for Signals {
    /// Readable while a signal waits: for a [`Poller`](crate::Poller).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}
