//! Memory of the whole process.

/// Makes the allocator return free pages to the kernel. Returns whether there were any. It takes about a millisecond
/// for ten megabytes. Meanwhile, other threads that allocate may have to wait. It does nothing if the allocator is not
/// that of glibc.
pub fn release_free() -> bool {
    crate::sys::memory::malloc_trim()
}
