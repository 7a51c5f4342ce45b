//! The directory of data that survives a restart: a key, and files of other modules.

use crate::random;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Only the owner may list users.
const DIRECTORY_MODE: u32 = 0o700;
const KEY_MODE: u32 = 0o600;
/// The permissions of others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// All permissions of others.
const OPEN_TO_OTHERS: u32 = 0o077;

const KEY: &str = "key";
const KEY_LEN: usize = 16;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It cannot be made, or is no directory that can be opened.
    #[error("cannot use the state directory {}: {source}: create it, and give it to the server's user", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could replace what is in it.
    #[error("others may write to the state directory {}: run chmod 700 on it", path.display())]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
    },
    /// A file in it cannot be read or written.
    #[error("cannot read or write {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may have read the key.
    #[error("others may read the key {}: run chmod 600 on it, or remove it for a new one", path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
    },
    /// The file of the key has something else.
    #[error("{} is no key of this server: remove it for a new one, which ends all temporary GRUUs", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
    },
    /// Another process uses it.
    #[error("another process uses the state directory {}: stop it, or set another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The log of bindings cannot be read.
    #[error("{}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: sip_server::log::OpenError,
    },
    /// The thread that writes cannot be started.
    #[error("cannot start the thread that writes the state: {0}")]
    Thread(#[source] io::Error),
}

/// A directory that is there, and whose key is known.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// The same in all runs; nobody else has it.
    pub(crate) key: [u8; KEY_LEN],
}

impl StateDir {
    /// Makes the directory and its key where there is none.
    ///
    /// # Errors
    /// [`StateError`] says what is in the way.
    pub(crate) fn open(path: &Path) -> Result<StateDir, StateError> {
        let failed = |source| StateError::Directory {
            path: path.to_owned(),
            source,
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(DIRECTORY_MODE);
        builder.create(path).map_err(failed)?;
        let directory = File::open(path).map_err(failed)?;
        let mode = directory.metadata().map_err(failed)?.mode();
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Err(StateError::WritableByOthers {
                path: path.to_owned(),
            });
        }
        let key = read_key(&path.join(KEY), &directory)?;
        Ok(StateDir {
            path: path.to_owned(),
            key,
        })
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn read_key(path: &Path, directory: &File) -> Result<[u8; KEY_LEN], StateError> {
    let failed = |source| StateError::File {
        path: path.to_owned(),
        source,
    };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return make_key(path, directory).map_err(failed);
        }
        Err(error) => return Err(failed(error)),
    };
    if file.metadata().map_err(failed)?.mode() & OPEN_TO_OTHERS != 0 {
        return Err(StateError::OpenKey {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    // A file of any length may have been put there.
    io::Read::by_ref(&mut file)
        .take(KEY_LEN as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    bytes.try_into().map_err(|_| StateError::BadKey {
        path: path.to_owned(),
    })
}

/// Makes a key. After a power failure, the file at `path` is complete or absent.
fn make_key(path: &Path, directory: &File) -> io::Result<[u8; KEY_LEN]> {
    let seed = random::seed()?;
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(&seed[..KEY_LEN]);
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = options.mode(KEY_MODE).open(&new)?;
    file.write_all(&key)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    directory.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    }

    #[test]
    fn it_is_made_for_its_owner_alone_and_keeps_its_key() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("a/b");
        let first = StateDir::open(&path).expect("it can be made");
        assert_eq!((mode(&path), mode(&path.join(KEY))), (0o700, 0o600));
        let second = StateDir::open(&path).expect("it is there");
        assert_eq!(first.key, second.key);
        let other = StateDir::open(&root.path().join("c")).expect("it can be made");
        assert_ne!(first.key, other.key);
    }

    #[test]
    fn directories_that_others_can_access_are_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("state");
        drop(StateDir::open(&path).expect("it can be made"));
        set_mode(&path, 0o770);
        let refused = StateDir::open(&path);
        assert!(matches!(refused, Err(StateError::WritableByOthers { .. })));
        set_mode(&path, 0o755);
        set_mode(&path.join(KEY), 0o640);
        let refused = StateDir::open(&path);
        assert!(matches!(refused, Err(StateError::OpenKey { .. })));
        set_mode(&path.join(KEY), 0o600);
        std::fs::write(path.join(KEY), b"short").expect("ours");
        let refused = StateDir::open(&path);
        assert!(matches!(refused, Err(StateError::BadKey { .. })));
    }

    #[test]
    fn an_error_names_the_path_and_the_remedy() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("file");
        std::fs::write(&path, b"").expect("ours");
        let error = StateDir::open(&path).expect_err("it is a file").to_string();
        assert!(
            error.contains("file") && error.contains("create it"),
            "{error}"
        );
    }
}
