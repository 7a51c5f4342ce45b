//! A per-thread alarm that interrupts a system call.
//!
//! BPF_PROG_TEST_RUN has a repeat count but no deadline; it returns early (EINTR) when its thread
//! has a signal pending. Starting a run costs about 25 ms, so a load is one long run, ended by this
//! alarm.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// After the first expiry the alarm repeats, in case the signal came just before the system call.
const ALARM_INTERVAL: Duration = Duration::from_millis(5);

/// The signal, chosen from the real-time range so that it collides with nothing conventional.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 5
}

/// An armed alarm for the calling thread; disarmed when dropped.
pub(crate) struct Alarm {
    timer: libc::timer_t,
}

impl Alarm {
    /// Interrupts the calling thread after `delay`, and every few milliseconds from then on.
    ///
    /// # Errors
    /// When the kernel has no timers left (RLIMIT_SIGPENDING).
    pub(crate) fn arm(delay: Duration) -> io::Result<Alarm> {
        install_handler()?;
        let timer = create_timer()?;
        let alarm = Alarm { timer };
        let times = libc::itimerspec {
            it_interval: timespec(ALARM_INTERVAL),
            it_value: timespec(delay),
        };
        // SAFETY: the timer was created above and is deleted only by `drop`; `times` outlives the
        // call; the old value is not asked for.
        if unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(alarm)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: `timer` came from timer_create and this is the only place that deletes it. A
        // signal that is already pending meets the no-op handler, which stays installed.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos().max(1)),
    }
}

fn create_timer() -> io::Result<libc::timer_t> {
    // SAFETY: all-zero is a valid sigevent; the fields that SIGEV_THREAD_ID reads are set before it
    // is used.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal();
    // SAFETY: gettid has no preconditions.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: both pointers are to live locals of the types the call wants.
    if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(timer)
}

extern "C" fn ignore(_: libc::c_int) {}

/// Installs the empty handler once per process. Without SA_RESTART: the interruption is the whole
/// point.
fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            // SAFETY: all-zero is a valid sigaction (empty mask, no flags); the handler is set
            // before use.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: `action` is initialised, and its handler is async-signal-safe because it does
            // nothing.
            match unsafe { libc::sigaction(signal(), &action, ptr::null_mut()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EINVAL)),
            }
        })
        .map_err(io::Error::from_raw_os_error)
}
