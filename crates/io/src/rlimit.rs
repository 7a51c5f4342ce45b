//! The limit on open files: one relayed transport address is one socket.

use std::io;

use crate::sys::rlimit::{getrlimit, setrlimit};

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
    let limit = getrlimit()?;
    Ok(FileLimit {
        soft: limit.rlim_cur,
        hard: limit.rlim_max,
    })
}

/// Raises the soft limit on open files to the hard one, and returns what then applies.
///
/// # Errors
/// What `getrlimit` or `setrlimit` returns.
pub fn raise_open_files() -> io::Result<FileLimit> {
    let mut limit = getrlimit()?;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(&limit)?;
    open_files()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let before = open_files().unwrap();
        let after = raise_open_files().unwrap();
        assert_eq!(
            after,
            FileLimit {
                soft: before.hard,
                hard: before.hard
            }
        );
    }
}
