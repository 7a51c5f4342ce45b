//! Whether files have changed.

use super::CertificateFiles;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What two files were like: device, inode, size and time of the last change, symbolic links followed. Kubernetes swaps a link to a
/// folder, which changes device or inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp([[u64; 5]; 2]);

impl Stamp {
    /// `None` if one of them cannot be looked at.
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
