//! A file of lines (JSON lines). It may be renamed at any time: the next batch makes a new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Line, SendError, SinkOptions};
use crate::error::StoreError;

/// Events name users and addresses.
const MODE: u32 = 0o640;

pub(super) fn path_of(url: &str) -> Result<PathBuf, StoreError> {
    let rest = url.strip_prefix("file:").unwrap_or_default();
    let path = rest.strip_prefix("//").unwrap_or(rest);
    match path.starts_with('/') && !path.ends_with('/') {
        true => Ok(path.into()),
        false => Err(StoreError::Url(
            "expected the whole path of a file after file:, like file:/var/log/hairpin/events.jsonl"
                .to_owned(),
        )),
    }
}

#[derive(Debug)]
pub(super) struct LineFile {
    path: PathBuf,
    file: Option<File>,
    is_durable: bool,
    /// The last line may lack its end, because the disk was full.
    is_torn: bool,
}

impl LineFile {
    pub(super) fn open(options: &SinkOptions) -> Result<LineFile, StoreError> {
        let path = path_of(&options.at.url)?;
        let file = open(&path)
            .map_err(|error| StoreError::Url(format!("cannot open {}: {error}", path.display())))?;
        Ok(LineFile {
            path,
            file: Some(file),
            is_durable: options.is_durable,
            is_torn: false,
        })
    }

    pub(super) fn append(&mut self, lines: &[Line]) -> Result<(), SendError> {
        let outcome = self.try_append(lines);
        if outcome.is_err() {
            self.file = None;
            self.is_torn = true;
        }
        outcome.map_err(|error| SendError::Later(format!("{}: {error}", self.path.display())))
    }

    fn try_append(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut text = String::new();
        if self.is_torn {
            text.push('\n');
        }
        for line in lines {
            text.push_str(&line.json);
            text.push('\n');
        }
        if self
            .file
            .as_ref()
            .is_none_or(|file| !is_at(file, &self.path))
        {
            self.file = Some(open(&self.path)?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(text.as_bytes())?;
            self.is_torn = false;
            if self.is_durable {
                file.sync_data()?;
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(MODE)
        .open(path)
}

/// Whether the path still names this file: logrotate renames files.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |there: &std::fs::Metadata| {
        let here = file.metadata();
        here.is_ok_and(|here| (here.dev(), here.ino()) == (there.dev(), there.ino()))
    };
    std::fs::metadata(path).is_ok_and(|there| same(&there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Options;

    fn options(path: &Path) -> SinkOptions {
        SinkOptions {
            at: Options {
                url: format!("file:{}", path.display()),
                ..Options::default()
            },
            topic: String::new(),
            is_durable: true,
        }
    }

    fn line(json: &str) -> [Line; 1] {
        let json = json.to_owned();
        [Line { kind: "test", json }]
    }

    #[test]
    fn a_file_that_was_renamed_gets_a_successor() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("events"), folder.path().join("events.1"));
        let mut file = LineFile::open(&options(&path)).unwrap();
        file.append(&line("1")).unwrap();
        std::fs::rename(&path, &old).unwrap();
        file.append(&line("2")).unwrap();
        file.append(&line("3")).unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "1\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n3\n");
    }

    #[test]
    fn a_full_disk_is_an_error_and_the_next_line_begins_anew() {
        // Each write to it fails with ENOSPC.
        let mut file = LineFile::open(&options(Path::new("/dev/full"))).unwrap();
        let error = file.append(&line("1")).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        file.path = folder.path().join("events");
        file.append(&line("1")).unwrap();
        let text = std::fs::read_to_string(&file.path).unwrap();
        assert_eq!(text, "\n1\n");
    }

    #[test]
    fn a_missing_folder_is_an_error_at_the_start() {
        let error = LineFile::open(&options(Path::new("/nonexistent/events")));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("cannot open /nonexistent/events"), "{error}");
        assert!(path_of("file:events").is_err() && path_of("file:/var/log/").is_err());
    }
}
