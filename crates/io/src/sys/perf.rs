//! Counters of trace points, and the file system that gives these their numbers.

use std::ffi::CStr;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::{fs::File, ptr};

use super::{check, check_len, direct};

/// The first version of the kernel's `perf_event_attr` (64 bytes), which every later kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    config1: u64,
}

const PERF_TYPE_TRACEPOINT: u32 = 2;
/// Threads that the counted thread starts are counted, too.
const INHERIT: u64 = 1 << 1;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
const FSCONFIG_CMD_CREATE: u32 = 6;

/// Counts from now on how often `thread` passes the trace point with this number.
pub(crate) fn count_trace_point(number: u64, thread: i32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: number,
        flags: INHERIT,
        ..Attributes::default()
    };
    // SAFETY: the attributes live during the call and are as long as they say; -1 means every processor, and no group.
    let fd = check_len(unsafe {
        direct!(
            SYS_perf_event_open,
            &raw const attributes,
            thread,
            -1,
            -1,
            PERF_FLAG_FD_CLOEXEC
        )
    })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A tracefs that is mounted nowhere: only this descriptor leads to it.
pub(crate) fn tracefs() -> io::Result<OwnedFd> {
    // SAFETY: the name is a terminated string.
    let context =
        check_len(unsafe { direct!(SYS_fsopen, c"tracefs".as_ptr(), libc::FSOPEN_CLOEXEC) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    let context = unsafe { OwnedFd::from_raw_fd(context as i32) };
    let null = ptr::null::<u8>();
    // SAFETY: this command reads neither the key nor the value.
    check_len(unsafe {
        direct!(
            SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            null,
            null,
            0
        )
    })?;
    // SAFETY: takes a descriptor and flags.
    let mount =
        check_len(unsafe { direct!(SYS_fsmount, context.as_raw_fd(), libc::FSMOUNT_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(mount as i32) })
}

/// The text of a file below `folder`.
pub(crate) fn read_below(folder: &OwnedFd, path: &CStr) -> io::Result<String> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a terminated string.
    let fd = check(unsafe { libc::openat(folder.as_raw_fd(), path.as_ptr(), flags) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}
