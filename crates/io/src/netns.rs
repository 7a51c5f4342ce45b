//! Network namespaces: tests and benchmarks build their networks in private ones.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::netns::{setns, unshare};

/// A network namespace, kept alive while this is held.
#[derive(Debug)]
pub struct NetNs {
    file: File,
}

impl NetNs {
    /// The calling thread's namespace.
    ///
    /// # Errors
    /// If /proc is not mounted.
    pub fn current() -> io::Result<NetNs> {
        Ok(NetNs {
            file: File::open("/proc/thread-self/ns/net")?,
        })
    }

    /// Moves the calling thread, and the threads and processes it starts from now on, into a new, empty namespace: one
    /// loopback interface, which is down.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn unshare() -> io::Result<NetNs> {
        unshare()?;
        NetNs::current()
    }

    /// Moves the calling thread into this namespace. Sockets stay in the one they were opened in.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn enter(&self) -> io::Result<()> {
        setns(self.file.as_fd())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn id(ns: &NetNs) -> u64 {
        ns.file.metadata().unwrap().ino()
    }

    #[test]
    fn a_thread_leaves_and_comes_back() {
        let walk = std::thread::spawn(|| {
            let home = NetNs::current().unwrap();
            let away = match NetNs::unshare() {
                Ok(away) => away,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
                Err(error) => panic!("{error}"),
            };
            assert_ne!(id(&home), id(&away));
            home.enter().unwrap();
            assert_eq!(id(&NetNs::current().unwrap()), id(&home));
        });
        walk.join().unwrap();
    }
}
