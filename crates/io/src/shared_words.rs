//! Words of memory that two processes share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::sys::memory;

/// Words that begin as 0, in a file of memory (memfd) whose descriptor another process can map as well. The file never
/// shrinks.
#[derive(Debug)]
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
    fd: OwnedFd,
}

// SAFETY: the words are atomics, and the mapping lives as long as this value.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// The number of words.
    ///
    /// # Errors
    /// When no descriptor or no address space is left.
    pub fn new(count: usize) -> io::Result<SharedWords> {
        let fd = memory::make_file(count * size_of::<u64>())?;
        SharedWords::map(fd, count)
    }

    /// The words of another process, behind the descriptor of its own.
    ///
    /// # Errors
    /// `InvalidInput` for a descriptor that is no such file: one that could shrink.
    pub fn of(fd: OwnedFd) -> io::Result<SharedWords> {
        let bytes = memory::sealed_length(fd.as_fd())?;
        SharedWords::map(fd, bytes / size_of::<u64>())
    }

    fn map(fd: OwnedFd, count: usize) -> io::Result<SharedWords> {
        let base = memory::map_file(fd.as_fd(), count * size_of::<u64>())?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { base, count, fd })
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is aligned to pages, cannot shrink, and lives as long as `self`. Any
        // bits are a value.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, with the length that it was made with, and nothing borrows it any more.
        unsafe { memory::unmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_see_the_same_words() {
        let one = SharedWords::new(1000).expect("memory");
        let copy = one.as_fd().try_clone_to_owned().expect("a descriptor");
        let other = SharedWords::of(copy).expect("the same file");
        assert_eq!((one.words().len(), other.words().len()), (1000, 1000));
        one.words()[999].store(7, Ordering::Relaxed);
        assert_eq!(other.words()[999].load(Ordering::Relaxed), 7);
        drop(one);
        assert_eq!(other.words()[999].load(Ordering::Relaxed), 7);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        assert!(SharedWords::of(socket.into()).is_err());
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert!(SharedWords::of(file.into()).is_err(), "it has no seals");
    }
}
