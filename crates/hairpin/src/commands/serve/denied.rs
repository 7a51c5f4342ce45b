//! The deny files of a running server: their rules beside the configuration, and whether a file has changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, anyhow};

use crate::config::{Config, read_deny_files};

/// What changes when a file is replaced or written: device, inode, length, and the time of the last change of its
/// inode.
type Stamp = (u64, u64, u64, i64, i64);

/// A configuration, and its deny files as they were when they were last looked at.
pub(super) struct WatchedDenyFiles {
    /// Without the rules of the files.
    config: Config,
    stamps: Vec<Option<Stamp>>,
}

impl WatchedDenyFiles {
    /// Notes the files before anybody reads them, so that a later change is noticed.
    pub(super) fn of(config: Config) -> Self {
        let stamps = stamps(&config);
        Self { config, stamps }
    }

    /// The configuration with the rules that the files have now.
    pub(super) fn with_rules(&self) -> Result<Config> {
        let rules = read_deny_files(&self.config.peers_deny_files).map_err(|mistakes| {
            let lines: Vec<_> = mistakes.iter().map(|mistake| mistake.one_line()).collect();
            anyhow!("{}", lines.join("; "))
        })?;
        let mut config = self.config.clone();
        config.peers_deny.extend(rules);
        Ok(config)
    }

    /// Whether a file has changed since the last call. A change is reported once.
    pub(super) fn have_changed(&mut self) -> bool {
        let now = stamps(&self.config);
        std::mem::replace(&mut self.stamps, now) != self.stamps
    }
}

fn stamps(config: &Config) -> Vec<Option<Stamp>> {
    let files = config.peers_deny_files.iter();
    files.map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let data = file.metadata().ok()?;
    Some((
        data.dev(),
        data.ino(),
        data.len(),
        data.ctime(),
        data.ctime_nsec(),
    ))
}
