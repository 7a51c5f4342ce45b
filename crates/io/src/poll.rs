//! Readiness: epoll, level-triggered unless asked otherwise, and an eventfd that interrupts the wait from another
//! thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{c_int, epoll_event, timespec};

use crate::sys;

/// The events of a file descriptor that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// Bytes or datagrams can be read, or a connection accepted.
    Read,
    /// There is room to write.
    Write,
    /// Both.
    ReadWrite,
    /// Both, but only when it changes: the caller must then read until nothing is left, or write until there is no
    /// room.
    Edge,
    /// Only errors, and the end of the connection.
    Nothing,
}

impl Interest {
    fn bits(self) -> u32 {
        // EPOLLRDHUP: a half-closed connection is readable anyway, and said to be closed. EPOLLERR and EPOLLHUP come
        // unasked.
        let bits = match self {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::Write => libc::EPOLLOUT,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
            Interest::Edge => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT | libc::EPOLLET,
            Interest::Nothing => 0,
        };
        bits as u32
    }
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
    /// The other side has closed the connection, or an error waits; reading shows which.
    pub closed: bool,
    /// An error waits.
    pub error: bool,
}

impl Event {
    /// The event of a descriptor that can probably be read.
    #[must_use]
    pub fn readable(token: u64) -> Event {
        Event {
            token,
            readable: true,
            writable: false,
            closed: false,
            error: false,
        }
    }

    fn new(raw: epoll_event) -> Event {
        let bits = raw.events as c_int;
        Event {
            token: raw.u64,
            readable: bits & (libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP) != 0,
            writable: bits & libc::EPOLLOUT != 0,
            closed: bits & (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) != 0,
            error: bits & libc::EPOLLERR != 0,
        }
    }
}

/// Room for the events of one [`Poller::wait`], reused.
#[derive(Debug)]
pub struct Events {
    list: Vec<epoll_event>,
}

impl Events {
    /// Room for `capacity` events a wait, at least 1.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Events {
        Events {
            list: Vec::with_capacity(capacity.max(1)),
        }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.list.iter().map(|raw| Event::new(*raw))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// As many as there is room for: others may wait.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.list.len() == self.list.capacity()
    }

    /// The last wait found nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// An epoll instance, level-triggered but for [`Interest::Edge`]. A descriptor that is closed leaves it by itself.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// The kernel has `epoll_pwait2` (5.11); cleared when it says otherwise.
    nanoseconds: AtomicBool,
}

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// What `epoll_create1` returns (EMFILE: raise the limit on open files).
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: sys::epoll::epoll_create1()?,
            nanoseconds: AtomicBool::new(true),
        })
    }

    /// Watches `source` and reports it as `token`.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `AlreadyExists` if it is watched already.
    pub fn add(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, source, token, interest.bits())
    }

    /// Changes the token or the interest of a watched descriptor.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `NotFound` if it is not watched.
    pub fn modify(&self, source: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, source, token, interest.bits())
    }

    /// Stops watching; not needed before closing the descriptor.
    ///
    /// # Errors
    /// What `epoll_ctl` returns; `NotFound` if it is not watched.
    pub fn remove(&self, source: &impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, source, 0, 0)
    }

    /// Spins on the device queue of the watched sockets for this many microseconds, before it sleeps;
    /// 0 is off. `packets` (at most 64 without CAP_NET_ADMIN) are taken from the queue at a time.
    ///
    /// # Errors
    /// What EPIOCSPARAMS returns: ENOTTY before Linux 6.9, where only the sysctl `net.core.busy_poll` does this.
    pub fn set_busy_poll(&self, microseconds: u32, packets: u16) -> io::Result<()> {
        let params = libc::epoll_params {
            busy_poll_usecs: microseconds,
            busy_poll_budget: packets,
            prefer_busy_poll: u8::from(microseconds > 0),
            __pad: 0,
        };
        sys::epoll::set_params(self.epoll.as_fd(), &params)
    }

    fn control(
        &self,
        operation: c_int,
        source: &impl AsFd,
        token: u64,
        bits: u32,
    ) -> io::Result<()> {
        let event = epoll_event {
            events: bits,
            u64: token,
        };
        sys::epoll::epoll_ctl(self.epoll.as_fd(), operation, source.as_fd(), event)
    }

    /// Waits for events for at most `timeout`; `None` waits forever, zero does not wait. If the kernel has no
    /// `epoll_pwait2`, `timeout` is rounded up to a millisecond. Returns the number of events; 0 also if a signal
    /// interrupted the wait.
    ///
    /// # Errors
    /// What `epoll_wait` returns, except EINTR.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        match self.wait_once(&mut events.list, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(events.len()),
        }
    }

    fn wait_once(&self, list: &mut Vec<epoll_event>, timeout: Option<Duration>) -> io::Result<()> {
        // Without waiting, no precise timeout is required, and the older call is faster.
        if timeout != Some(Duration::ZERO) && self.nanoseconds.load(Ordering::Relaxed) {
            match sys::epoll::epoll_pwait2(self.epoll.as_fd(), list, timeout.map(to_timespec)) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    // EPERM: some container runtimes' filters return it for system calls that they do not list.
                    self.nanoseconds.store(false, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        sys::epoll::epoll_wait(self.epoll.as_fd(), list, timeout.map_or(-1, milliseconds))
    }
}

fn to_timespec(timeout: Duration) -> timespec {
    // An i32 of seconds is 68 years and fits every time_t.
    let seconds = timeout.as_secs().min(i32::MAX as u64);
    timespec {
        tv_sec: seconds as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

/// Rounded up, so that a wait does not end before its time; at most 24 days.
pub(crate) fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// Makes a [`Poller`] return from another thread. Share it in an `Arc`.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// A waker whose wake-ups are reported as `token` until [`Waker::acknowledge`] is called.
    ///
    /// # Errors
    /// What `eventfd` or `epoll_ctl` returns.
    pub fn new(poller: &Poller, token: u64) -> io::Result<Waker> {
        let waker = Waker {
            event: sys::eventfd::eventfd()?,
        };
        poller.add(&waker.event, token, Interest::Read)?;
        Ok(waker)
    }

    /// Wakes the poller, now or at its next wait. Costs one system call: call it only when a queue stops being empty.
    pub fn wake(&self) {
        // Fails only if the counter is full, and then the poller is awake.
        let _ = sys::pipe::write(self.event.as_fd(), &1u64.to_ne_bytes());
    }

    /// Clears all wake-ups so far. Call it before reading the queue, so that nothing is missed.
    pub fn acknowledge(&self) {
        // Fails only if there was no wake-up.
        let _ = sys::pipe::read(self.event.as_fd(), &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    fn looked(poller: &Poller, events: &mut Events) -> Vec<u64> {
        poller.wait(events, Some(Duration::ZERO)).unwrap();
        events.iter().map(|event| event.token).collect()
    }

    #[test]
    fn a_wake_up_is_reported_until_acknowledged() {
        let poller = Poller::new().unwrap();
        let waker = Waker::new(&poller, u64::MAX).unwrap();
        let mut events = Events::with_capacity(4);
        assert_eq!(looked(&poller, &mut events), []);
        waker.wake();
        waker.wake();
        assert_eq!(looked(&poller, &mut events), [u64::MAX]);
        assert_eq!(looked(&poller, &mut events), [u64::MAX], "level-triggered");
        waker.acknowledge();
        assert_eq!(looked(&poller, &mut events), []);
    }

    #[test]
    fn another_thread_ends_an_endless_wait() {
        let poller = Poller::new().unwrap();
        let waker = Arc::new(Waker::new(&poller, 1).unwrap());
        let other = Arc::clone(&waker);
        let thread = std::thread::spawn(move || other.wake());
        assert_eq!(poller.wait(&mut Events::with_capacity(1), None).unwrap(), 1);
        thread.join().unwrap();
    }

    #[test]
    fn waits_last_as_long_as_asked_with_either_call() {
        for nanoseconds in [true, false] {
            let poller = Poller::new().unwrap();
            poller.nanoseconds.store(nanoseconds, Ordering::Relaxed);
            let start = Instant::now();
            let timeout = Duration::from_micros(2_300);
            assert_eq!(
                poller
                    .wait(&mut Events::with_capacity(1), Some(timeout))
                    .unwrap(),
                0
            );
            assert!(start.elapsed() >= timeout);
        }
    }

    #[test]
    fn tokens_and_interest_follow_modify_and_remove() {
        let poller = Poller::new().unwrap();
        let (reader, writer) = sys::pipe::pipe2().unwrap();
        let mut events = Events::with_capacity(4);
        poller.add(&writer, 5, Interest::Write).unwrap();
        poller.add(&reader, 6, Interest::Read).unwrap();
        assert_eq!(
            poller.add(&reader, 6, Interest::Read).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(looked(&poller, &mut events), [5]);
        sys::pipe::write(writer.as_fd(), b"x").unwrap();
        poller.modify(&reader, 7, Interest::ReadWrite).unwrap();
        poller.remove(&writer).unwrap();
        assert_eq!(looked(&poller, &mut events), [7]);
        let event = events.iter().next().unwrap();
        assert!(event.readable && !event.closed);
        drop(writer);
        looked(&poller, &mut events);
        assert!(events.iter().all(|event| event.closed));
        assert_eq!(
            poller.remove(&poller.epoll).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn timeouts_are_rounded_up_and_clamped() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::MAX), c_int::MAX);
        assert_eq!(to_timespec(Duration::MAX).tv_sec, i32::MAX.into());
    }
}
