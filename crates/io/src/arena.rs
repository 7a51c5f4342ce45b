//! Bytes that cost memory only once they are used.

use std::{io, slice};

use crate::sys::memory;

/// A private region of zeroed bytes straight from the kernel. Untouched pages use no memory. Unlike those of a `Vec`,
/// they reserve none either (MAP_NORESERVE), so room for the worst case is free.
pub(crate) struct Arena {
    base: *mut u8,
    len: usize,
}

// SAFETY: the region belongs to the arena alone and is not bound to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// # Errors
    /// ENOMEM when the address space, or a limit on it, is exhausted.
    pub(crate) fn new(len: usize) -> io::Result<Arena> {
        let base = memory::map(len)?;
        Ok(Arena { base, len })
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `new` mapped that many readable bytes, zeroed or written since, and they stay mapped until drop.
        unsafe { slice::from_raw_parts(self.base, self.len) }
    }

    /// Gives the memory behind `from` back. Those bytes are zero again.
    pub(crate) fn forget_from(&mut self, from: usize) {
        let from = from.next_multiple_of(memory::page());
        if from < self.len {
            // SAFETY: whole pages inside the region, to which `&mut self` is the only reference.
            unsafe { memory::forget(self.base.add(from), self.len - from) };
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the whole region as it was mapped; nothing can refer to it any more.
        unsafe { memory::unmap(self.base, self.len) };
    }
}
