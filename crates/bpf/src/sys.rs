//! The bpf(2) commands that are used often, or that the loader library does not have. An operation on a map is one
//! system call without an allocation. A link is a descriptor; closing it detaches the program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;

/// Where a link attaches: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachType {
    Xdp = 37,
    TcxIngress = 46,
}

/// Native mode only (`XDP_FLAGS_DRV_MODE`).
pub(crate) const XDP_DRIVER_MODE: u32 = 1 << 2;

/// The part of `union bpf_attr` for one element of a map.
#[repr(C)]
struct ElementAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for a new link.
#[repr(C)]
struct LinkAttr {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    /// The remaining fields, which stay zero: the position among other programs.
    zero: [u64; 4],
}

/// Runs a command for one element of a map.
fn element(
    command: libc::c_long,
    map: BorrowedFd<'_>,
    key: &[u8],
    value: *mut u8,
) -> io::Result<()> {
    let attr = ElementAttr {
        map: descriptor(map),
        pad: 0,
        key: key.as_ptr() as u64,
        value: value as u64,
        flags: 0,
    };
    // SAFETY: the structure has the kernel's layout for these commands, and outlives the call. The callers of this
    // module's functions ensure that key and value have the sizes of the map.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &attr, size_of::<ElementAttr>()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A descriptor as the kernel's structures have it.
fn descriptor(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor that is open is not negative.
    fd.as_raw_fd() as u32
}

/// A map whose keys and values have these sizes in bytes. A per-CPU map has a value for each possible processor.
#[derive(Debug)]
pub(crate) struct RawMap<const KEY: usize, const VALUE: usize> {
    fd: OwnedFd,
    processors: usize,
}

impl<const KEY: usize, const VALUE: usize> RawMap<KEY, VALUE> {
    /// # Safety
    /// The descriptor must be a map whose keys have `KEY` bytes and whose values have `VALUE` bytes. `processors`:
    /// the number of processors for a per-CPU map (`VALUE` is then a multiple of 8), otherwise 1.
    pub(crate) unsafe fn new(fd: OwnedFd, processors: usize) -> RawMap<KEY, VALUE> {
        RawMap { fd, processors }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many bytes the buffer of [`RawMap::get`] needs.
    pub(crate) fn room(&self) -> usize {
        VALUE * self.processors
    }

    /// Reads the value of a key. A per-CPU map has one for each processor, one after the other.
    ///
    /// # Panics
    /// When `value` is shorter than [`RawMap::room`].
    pub(crate) fn get(&self, key: &[u8; KEY], value: &mut [u8]) -> io::Result<()> {
        assert!(value.len() >= self.room());
        element(MAP_LOOKUP_ELEM, self.fd(), key, value.as_mut_ptr())
    }

    /// Writes the value of a key, and replaces the value that may be there.
    pub(crate) fn set(&self, key: &[u8; KEY], value: &[u8; VALUE]) -> io::Result<()> {
        // A per-CPU map would read a value for each processor.
        assert_eq!(self.processors, 1);
        // The kernel only reads the value.
        element(MAP_UPDATE_ELEM, self.fd(), key, value.as_ptr().cast_mut())
    }

    /// Removes a key of a hash map. It is an error if the key is not there.
    pub(crate) fn remove(&self, key: &[u8; KEY]) -> io::Result<()> {
        element(MAP_DELETE_ELEM, self.fd(), key, std::ptr::null_mut())
    }
}

/// Lets a loaded program choose the socket that receives a packet, in the SO_REUSEPORT group of `socket`.
pub(crate) fn attach_reuseport(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let number = program.as_raw_fd();
    // SAFETY: the kernel reads one integer, which the pointer leads to.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_EBPF,
            (&raw const number).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Attaches a loaded program to the interface with this index, in the calling thread's network namespace. Closing the
/// returned descriptor detaches the program.
pub(crate) fn link(
    program: BorrowedFd<'_>,
    interface: u32,
    at: AttachType,
    flags: u32,
) -> io::Result<OwnedFd> {
    let attr = LinkAttr {
        program: descriptor(program),
        interface,
        attach_type: at as u32,
        flags,
        zero: [0; 4],
    };
    // SAFETY: the structure has the kernel's layout for this command, with zeros in unused fields, and outlives the
    // call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &attr, size_of::<LinkAttr>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, with close-on-exec, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The part of `union bpf_attr` for another program of a link.
#[repr(C)]
struct LinkUpdateAttr {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// Replaces the program of a link. Each packet passes the old or the new program.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attr = LinkUpdateAttr {
        link: descriptor(link),
        program: descriptor(program),
        flags: 0,
        old_program: 0,
    };
    let size = size_of::<LinkUpdateAttr>();
    // SAFETY: the structure has the kernel's layout for this command, with zeros in unused fields, and outlives the
    // call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, LINK_UPDATE, &attr, size) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Memory: of a map that was made to be mapped (`BPF_F_MMAPABLE`), or of this process alone.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: std::ptr::NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory stays where it is until the last handle is dropped; all readers and writers use atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a map's values.
    pub(crate) fn new(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::map(bytes, libc::MAP_SHARED, map.as_raw_fd())
    }

    fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that is in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match std::ptr::NonNull::new(start.cast()) {
            Some(start) => Ok(Mapping { start, bytes }),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Memory of this process alone, without a map. It is zero at first.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::map(bytes, flags, -1)
    }

    /// Sets bytes to zero, also while other threads use them.
    ///
    /// # Panics
    /// When the range is not within the mapping, or not of whole words.
    pub(crate) fn clear(&self, range: std::ops::Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes);
        assert!(range.start.is_multiple_of(8) && range.end.is_multiple_of(8));
        for at in range.step_by(8) {
            // SAFETY: within the mapping, as asserted, and aligned: the mapping begins at a page. Others may use the
            // word at the same time, so it is written as an atomic.
            let word = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) };
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Reads the word at a byte position, also while another thread writes it.
    ///
    /// # Panics
    /// When it is not within the mapping, or not aligned.
    pub(crate) fn word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes);
        // SAFETY: within the mapping, as asserted, and aligned: the mapping begins at a page. Others may write it at
        // the same time, so it is read as an atomic.
        let word = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) };
        word.load(Ordering::Relaxed)
    }

    /// All words of the map as values of one type.
    ///
    /// # Safety
    /// Every bit pattern is a value of `T`, which is made of atomics only: others write the memory at the same time.
    pub(crate) unsafe fn slots<T>(&self) -> &[T] {
        const { assert!(align_of::<T>() <= 4096) };
        // SAFETY: the mapping begins at a page and is `bytes` long; the caller answers for the type. The slice borrows
        // from this handle, which keeps the mapping.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<T>())
        }
    }

    /// The memory, aligned to a page.
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; references into it borrow from the handle, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// For how many processors a per-CPU map has values.
pub(crate) fn possible_processors() -> io::Result<usize> {
    aya::util::nr_cpus().map_err(|(_, error)| error)
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
