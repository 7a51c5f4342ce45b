//! Writing to the /sys of another network namespace.

use std::io;
use std::thread;

use crate::NetNs;
use crate::sys::mount::{make_private, mount_sysfs, unshare_mounts};

/// Writes `value` to each of `paths` (below /sys) as they look in `namespace`.
///
/// A sysfs shows the network namespace from which it was mounted. So this function mounts a
/// separate one, on a thread that ends here; nothing stays mounted.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN, and what opening or writing a file returns.
pub fn write(namespace: &NetNs, paths: &[String], value: &str) -> io::Result<()> {
    let work = || {
        namespace.enter()?;
        unshare_mounts()?;
        make_private()?;
        mount_sysfs(c"/sys")?;
        paths
            .iter()
            .try_for_each(|path| std::fs::write(path, value))
    };
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread with its own /sys panicked")))
}
