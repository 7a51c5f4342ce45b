//! The calling thread's capabilities.

use std::io;

use super::check;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    thread: i32,
}

/// `struct __user_cap_data_struct`: 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CapabilityWord {
    pub(crate) effective: u32,
    pub(crate) permitted: u32,
    pub(crate) inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3: two halves.
const VERSION: u32 = 0x2008_0522;

pub(crate) fn capget() -> io::Result<[CapabilityWord; 2]> {
    let mut header = Header {
        version: VERSION,
        thread: 0,
    };
    let mut sets = [CapabilityWord::default(); 2];
    // SAFETY: the kernel reads and writes one header, and writes the two halves that this version has; both are live
    // locals.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    check(result as libc::c_int)?;
    Ok(sets)
}

pub(crate) fn capset(sets: &[CapabilityWord; 2]) -> io::Result<()> {
    let mut header = Header {
        version: VERSION,
        thread: 0,
    };
    // SAFETY: the kernel reads one header and the two halves that this version has; no memory changes but the header's
    // version.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } as libc::c_int)
        .map(drop)
}

/// No program that this thread starts gains a privilege.
pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    let (yes, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, none, none, none) }).map(drop)
}
