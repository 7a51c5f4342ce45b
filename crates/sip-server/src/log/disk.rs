//! A log in a file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::Storage;

/// Other users of this host must not read the addresses of the phones.
const MODE: u32 = 0o600;

/// A log in a file, with its copy in another one beside it, and a third that shows that the log is in use.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    log: File,
    copy: Option<File>,
    /// The directory must be synchronized: a power cut could bring back the file that a copy has replaced.
    is_directory_stale: bool,
    /// Locked for as long as this lives.
    _lock: File,
}

impl Disk {
    /// The log in this file, which need not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process has it; others if the files cannot be opened.
    pub fn open(path: &Path) -> io::Result<Disk> {
        // The lock is in a separate file. A copy replaces the log, and a lock on the log would be lost then.
        let lock = options().open(beside(path, "lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        Ok(Disk {
            path: path.to_owned(),
            log: options().open(path)?,
            copy: None,
            is_directory_stale: true,
            _lock: lock,
        })
    }

    fn copy(&mut self) -> io::Result<&mut File> {
        self.copy
            .as_mut()
            .ok_or_else(|| io::Error::other("there is no copy of the location log"))
    }

    /// A file is found after a power cut only if its directory has been synchronized.
    fn sync_directory(&mut self) -> io::Result<()> {
        if !self.is_directory_stale {
            return Ok(());
        }
        let parent = self.path.parent().filter(|path| *path != Path::new(""));
        let directory = OpenOptions::new()
            .read(true)
            .open(parent.unwrap_or(Path::new(".")))?;
        directory.sync_all()?;
        self.is_directory_stale = false;
        Ok(())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(MODE);
    options
}

/// The path of a file beside the log.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

impl Storage for Disk {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let len = self.log.metadata()?.len();
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        self.log.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.log.read_exact_at(bytes, at)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.log.write_all(bytes)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.log.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.sync_data()?;
        self.sync_directory()
    }

    fn begin_copy(&mut self) -> io::Result<()> {
        let copy = options().open(beside(&self.path, "new"))?;
        copy.set_len(0)?;
        self.copy = Some(copy);
        Ok(())
    }

    fn append_to_copy(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.copy()?.write_all(bytes)
    }

    fn sync_copy(&mut self) -> io::Result<()> {
        self.copy()?.sync_data()
    }

    fn install_copy(&mut self) -> io::Result<()> {
        self.copy()?.sync_all()?;
        std::fs::rename(beside(&self.path, "new"), &self.path)?;
        if let Some(copy) = self.copy.take() {
            self.log = copy;
        }
        self.is_directory_stale = true;
        Ok(())
    }
}
