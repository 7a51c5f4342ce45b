//! Detects whether files have changed.

use super::CertificateFiles;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The state of two files: device, inode, size and time of the last status change. Symbolic links are followed:
/// Kubernetes replaces a link to a directory, which changes device or inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp([[u64; 5]; 2]);

impl Stamp {
    /// Reads the state; `None` if the system reports none for one of the files.
    pub(super) fn of(files: &CertificateFiles) -> Option<Stamp> {
        Some(Stamp([of(&files.certificate)?, of(&files.key)?]))
    }
}

fn of(path: &Path) -> Option<[u64; 5]> {
    let data = std::fs::metadata(path).ok()?;
    Some([
        data.dev(),
        data.ino(),
        data.size(),
        data.ctime().cast_unsigned(),
        data.ctime_nsec().cast_unsigned(),
    ])
}
