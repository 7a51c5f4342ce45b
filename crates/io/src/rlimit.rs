//! The limit on open files: one relayed transport address is one socket.

use std::io;

/// The process's limit on open file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit {
    /// What applies now.
    pub soft: u64,
    /// How far the process itself may raise `soft`.
    pub hard: u64,
}

/// Reads RLIMIT_NOFILE.
///
/// # Errors
/// What `getrlimit` returns.
pub fn open_files() -> io::Result<FileLimit> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Raises the soft limit on open files to the hard one, and returns what then applies.
///
/// # Errors
/// What `getrlimit` or `setrlimit` returns.
pub fn raise_open_files() -> io::Result<FileLimit> {
    Err(io::ErrorKind::Unsupported.into())
}
