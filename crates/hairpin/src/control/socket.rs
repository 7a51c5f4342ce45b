//! The file of the control socket: who may use it, and that one server at a time has it.
//!
//! A lock on a file beside it says whether a server has the socket. The kernel releases the lock when the server ends,
//! in any way. So the socket of a dead process and one in use are distinguished without a race.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use server::privileges::effective_user;

use crate::config::ControlSocket;

/// Write permission for the group or all others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Files of a directory can be replaced by their owners only.
const STICKY: u32 = 0o1000;

/// A socket that listens, and that no thread serves yet. Its file is removed with it.
#[derive(Debug)]
pub(crate) struct BoundControlSocket {
    pub(super) listener: UnixListener,
    pub(super) file: Arc<SocketFile>,
}

/// The file of the socket, and the lock on the one beside it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The user that owns it.
    pub(super) owner: u32,
    lock: File,
    /// Another process has it now.
    is_handed_over: AtomicBool,
}

impl SocketFile {
    /// Another process has the socket from now on.
    pub(crate) fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Relaxed);
    }

    /// This process has it from now on.
    pub(crate) fn own(&self) {
        self.is_handed_over.store(false, Ordering::Relaxed);
        let mut lock = &self.lock;
        // For the message to a third server.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| write!(lock, "{}", std::process::id()));
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_handed_over.load(Ordering::Relaxed) {
            return;
        }
        // The file of the lock stays: a server that opens it now and one that opens it later have to mean the same
        // file.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl BoundControlSocket {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    /// The file, which is removed with its last owner.
    pub(crate) fn file(&self) -> &Arc<SocketFile> {
        &self.file
    }

    /// The same once more, with a copy of the socket.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn try_clone(&self) -> std::io::Result<BoundControlSocket> {
        Ok(BoundControlSocket {
            listener: self.listener.try_clone()?,
            file: Arc::clone(&self.file),
        })
    }

    /// Copies of the socket and of the lock, for another process.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn copies(&self) -> std::io::Result<[OwnedFd; 2]> {
        let lock = self.file.lock.try_clone()?;
        Ok([self.listener.try_clone()?.into(), lock.into()])
    }

    /// The socket at `path`, of the process that has it before this one: [`BoundControlSocket::copies`]. Its file stays
    /// if this process ends before [`SocketFile::own`]: then the other process goes on.
    ///
    /// # Errors
    /// If there is no such file any more.
    pub(crate) fn of_predecessor(
        path: PathBuf,
        [listener, lock]: [OwnedFd; 2],
    ) -> Result<BoundControlSocket> {
        let owner = std::fs::metadata(&path)
            .with_context(|| path.display().to_string())?
            .uid();
        Ok(BoundControlSocket {
            listener: listener.into(),
            file: Arc::new(SocketFile {
                path,
                owner,
                lock: lock.into(),
                is_handed_over: AtomicBool::new(true),
            }),
        })
    }
}

/// Binds the socket before anything is started. `None` if there is to be none, or if it is not configured and the
/// default path cannot be used.
///
/// # Errors
/// If a path was asked for and cannot be used.
pub(crate) fn bind(wanted: &ControlSocket) -> Result<Option<BoundControlSocket>> {
    match wanted {
        ControlSocket::Off => Ok(None),
        ControlSocket::At(path) => at(path).map(Some).with_context(|| {
            format!(
                "cannot use the control socket {}; set it with server.control_socket, or say \"off\"",
                path.display()
            )
        }),
        ControlSocket::Auto => {
            if !ControlSocket::has_runtime_directory() && effective_user() != 0 {
                return Ok(None);
            }
            let path = ControlSocket::default_path();
            let bound = at(&path).inspect_err(|error| {
                tracing::warn!(
                    "no control socket: {} cannot be used ({error:#}); set another one with server.control_socket, or say \"off\"",
                    path.display()
                );
            });
            Ok(bound.ok())
        }
    }
}

fn at(path: &Path) -> Result<BoundControlSocket> {
    let directory = path.parent().context("it has no directory")?;
    make(directory)?;
    check(directory)?;
    let lock = lock(path)?;
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    let file = SocketFile {
        path: path.to_owned(),
        owner: std::fs::metadata(path)?.uid(),
        lock,
        is_handed_over: AtomicBool::new(false),
    };
    Ok(BoundControlSocket {
        listener,
        file: Arc::new(file),
    })
}

/// Makes the directory, for its owner only, if there is none.
fn make(directory: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error)
            .with_context(|| format!("the directory {} cannot be made", directory.display())),
        _ => Ok(()),
    }
}

/// Nobody else can replace files of the directory.
fn check(directory: &Path) -> Result<()> {
    let name = directory.display();
    let data = std::fs::metadata(directory).with_context(|| name.to_string())?;
    if !data.is_dir() {
        bail!("{name} is no directory");
    }
    if data.uid() != 0 && data.uid() != effective_user() {
        bail!("the directory {name} belongs to another user");
    }
    if data.mode() & WRITABLE_BY_OTHERS != 0 && data.mode() & STICKY == 0 {
        bail!("other users can replace files of the directory {name}: run chmod go-w {name}");
    }
    Ok(())
}

/// Takes the lock, and writes into its file who has it.
fn lock(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&name)
        .with_context(|| format!("{} cannot be opened", name.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("{} uses it", holder(&mut file)),
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("{} cannot be locked", name.display()));
        }
    }
    // The number is for the message above only.
    let _ = file
        .set_len(0)
        .and_then(|()| write!(file, "{}", std::process::id()));
    Ok(file)
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.take(20).read_to_string(&mut text);
    match text.parse::<u32>() {
        Ok(process) => format!("another server, process {process},"),
        Err(_) => "another server".to_owned(),
    }
}

/// Removes the socket of a process that has ended. The caller has the lock.
fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() => Ok(std::fs::remove_file(path)?),
        Ok(_) => bail!("the file exists and is no socket"),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        let error = bind(&ControlSocket::At(path.to_owned())).unwrap_err();
        format!("{error:#}")
    }

    #[test]
    fn one_server_at_a_time_has_the_socket_and_that_of_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made").join("control.sock");
        let first = at(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let told = refused(&path);
        let own = format!("another server, process {}, uses it", std::process::id());
        assert!(
            told.contains(&own) && told.contains("server.control_socket"),
            "{told}"
        );
        drop(first);
        assert!(!path.exists(), "an orderly end removes it");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead process leaves it");
        assert!(at(&path).is_ok());
    }

    #[test]
    fn paths_that_others_can_replace_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let set = |mode| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        };
        set(0o777);
        assert!(refused(&path).contains("chmod go-w"));
        set(0o1777);
        assert!(at(&path).is_ok());
        set(0o700);
        std::fs::write(&path, "mine").unwrap();
        assert!(refused(&path).contains("is no socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        let nowhere = folder.path().join("no").join("such").join("control.sock");
        assert!(refused(&nowhere).contains("cannot be made"));
    }
}
