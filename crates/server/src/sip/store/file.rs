//! The log of bindings in the state directory, and the lock of this directory.

use crate::state_dir::{StateDir, StateError};
use sip::HashKey;
use sip_server::log::{Disk, Image, Log, OpenError, Settings};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The log in the state directory.
const LOG_FILE: &str = "bindings.log";

/// How long the start waits for the lock of the previous process, and how often it tries the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The path of the log.
pub(super) fn path(directory: &StateDir) -> PathBuf {
    directory.file(LOG_FILE)
}

/// Locks the log, opens it, and reads the bindings in it.
///
/// # Errors
/// [`StateError`] if another process has the lock, or the log cannot be read.
pub(super) fn open(directory: &StateDir, key: HashKey) -> Result<(Log<Disk>, Image), StateError> {
    let opened = Log::open(lock(directory)?, Settings::default(), key);
    opened.map_err(|source| StateError::Log {
        path: path(directory),
        source,
    })
}

/// Opens the file of the log, and locks it until the result is dropped. Waits for the lock, because the previous
/// process may be about to end.
///
/// # Errors
/// [`StateError`] if another process has the lock, or the file cannot be opened.
fn lock(directory: &StateDir) -> Result<Disk, StateError> {
    let path = path(directory);
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match Disk::open(&path) {
            Ok(disk) => return Ok(disk),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(StateError::InUse {
                        path: directory.path().to_owned(),
                    });
                }
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(source) => {
                return Err(StateError::Log {
                    path,
                    source: OpenError::Io(source),
                });
            }
        }
    }
}
