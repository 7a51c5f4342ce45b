//! Memory of the whole process.

/// Has the allocator give free pages back to the kernel; says whether there were any to give. It takes about a
/// millisecond for each ten megabytes, in which other threads that allocate may have to wait. Allocators other than
/// that of glibc are left to themselves.
pub fn release_free() -> bool {
    crate::sys::memory::malloc_trim()
}
