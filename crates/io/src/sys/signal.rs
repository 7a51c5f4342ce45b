//! `sigaction`, with the one handler this crate has.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, sigaction as Action};

use super::check;

/// Where the handler writes; -1 before the pipe exists. The descriptor behind it is never closed, so a handler that
/// runs late on another thread cannot write into another file.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Tells the handler which descriptor to write signal numbers to.
pub(crate) fn set_handler_pipe(writer: &'static std::os::fd::OwnedFd) {
    use std::os::fd::AsRawFd;
    PIPE.store(writer.as_raw_fd(), Ordering::Release);
}

/// Writes the signal's number into the pipe; a full pipe already says enough. Everything here is async-signal-safe.
extern "C" fn forward(signal: c_int) {
    let number = signal as u8;
    // SAFETY: errno belongs to the interrupted thread; it is saved and restored, so the thread sees no change. `write`
    // reads one local byte, and the descriptor of the pipe is never closed.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(PIPE.load(Ordering::Acquire), (&raw const number).cast(), 1);
        *errno = saved;
    }
}

/// Routes `signal` to the pipe and returns what was there before.
pub(crate) fn catch(signal: c_int) -> io::Result<Action> {
    // SAFETY: sigaction is integers, a pointer-sized handler and a bit set: all zeros are valid.
    let mut action: Action = unsafe { mem::zeroed() };
    action.sa_sigaction = forward as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    sigaction(signal, &action)
}

/// Puts back what [`catch`] returned.
pub(crate) fn restore(signal: c_int, action: &Action) -> io::Result<()> {
    sigaction(signal, action).map(drop)
}

fn sigaction(signal: c_int, action: &Action) -> io::Result<Action> {
    // SAFETY: all zeros are a valid sigaction, as above.
    let mut previous: Action = unsafe { mem::zeroed() };
    // SAFETY: the kernel reads one sigaction and writes one; both are live. The handler is `forward`, which is
    // async-signal-safe, or one that the process had installed before.
    check(unsafe { libc::sigaction(signal, action, &mut previous) })?;
    Ok(previous)
}
