//! `sched_getaffinity`, `sched_setaffinity`, for the calling thread.

use std::io;

use libc::cpu_set_t;

use super::check;

/// One bit per processor, 64 to a word, lowest first.
pub(crate) type CpuMask = [u64; 16];

const _: () = assert!(size_of::<CpuMask>() == size_of::<cpu_set_t>());

pub(crate) fn sched_getaffinity() -> io::Result<CpuMask> {
    let mut mask: CpuMask = [0; 16];
    // SAFETY: the kernel writes at most as many bytes as the mask has, and any bytes are valid words.
    check(unsafe { libc::sched_getaffinity(0, size_of::<CpuMask>(), mask.as_mut_ptr().cast()) })?;
    Ok(mask)
}

pub(crate) fn sched_setaffinity(mask: &CpuMask) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the mask has.
    check(unsafe { libc::sched_setaffinity(0, size_of::<CpuMask>(), mask.as_ptr().cast()) })
        .map(drop)
}
